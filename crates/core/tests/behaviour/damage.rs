//! Dirty blocks that are damaged on flash: which of their sectors stay readable, and how the losses end.

use std::collections::BTreeSet;

use crate::common::*;
use haversack_core::offline::{self, OfflineError};
use haversack_core::{
    Action, CleanOrder, CleanerConfig, CoreConfig, Damage, DiskConfig, Event, IoPurpose, JobError, JobId,
    RequestError, RequestTag,
};
use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo, HostId, SectorNo, WriteMode};

const SECTORS: u64 = 40_960;
/// Where the data of a device begins.
const DATA_STARTS: u64 = 9_437_184;
const SEGMENT_BYTES: u64 = 1 << 20;
/// Offset of page B of the first disk's write-intent bitmap, which the second write of the bitmap uses.
const OTHER_MARKS: u64 = 528_384;
/// A segment begins with its pages.
const PAGES_BYTES: u64 = 8192;

/// Each block is committed immediately and alone.
fn one_by_one() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn config() -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }
}

fn rig(devices: &[u32], redundancy: bool) -> (Rig, DiskNo) {
    let mut rig = Rig::new(devices, redundancy, one_by_one());
    let disk = rig.attach(&config(), 1);
    (rig, disk)
}

/// Writes a block full of ones and damages it on flash, where its only copy is. Returns the device.
fn damage(rig: &mut Rig, disk: DiskNo, block: u64) -> DeviceNo {
    let device = rot(rig, disk, block);
    lost(rig, disk, block * 8, 8);
    device
}

/// Like [`damage`], but the core has not noticed the damage yet.
fn rot(rig: &mut Rig, disk: DiskNo, block: u64) -> DeviceNo {
    rig.log.clear();
    rig.write(disk, block * 8, 8, 1);
    rig.flush(disk);
    // A commit writes the data first, then its page.
    let written = rig.log.iter().find(|asked| asked.purpose == Some(IoPurpose::Commit)).copied();
    let Some(Action::WriteDevice { device, offset_bytes, .. }) = written.map(|asked| asked.action) else {
        panic!("the block was committed")
    };
    rig.device(device).rot(offset_bytes + 5);
    device
}

/// Damages one block in each segment of the only device that has been written. Returns how many.
fn rot_each_segment(rig: &mut Rig, device: DeviceNo) -> usize {
    let mut damaged = BTreeSet::new();
    // Begin with the newest blocks, which are still dirty.
    for asked in std::mem::take(&mut rig.log).into_iter().rev() {
        if let Action::WriteDevice { offset_bytes, .. } = asked.action
            && asked.purpose == Some(IoPurpose::Commit)
            && (offset_bytes - DATA_STARTS) % SEGMENT_BYTES >= PAGES_BYTES
            && damaged.insert((offset_bytes - DATA_STARTS) / SEGMENT_BYTES)
        {
            rig.device(device).rot(offset_bytes + 5);
        }
    }
    damaged.len()
}

/// Damages a block and writes its first four sectors again, full of twos.
fn damage_half(rig: &mut Rig, disk: DiskNo, block: u64) -> DeviceNo {
    let device = damage(rig, disk, block);
    rig.write(disk, block * 8, 4, 2);
    rig.flush(disk);
    device
}

/// Checks that reads of these sectors fail.
fn lost(rig: &mut Rig, disk: DiskNo, sector: u64, sectors: u32) {
    let read = rig.start_read(disk, sector, sectors);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
}

fn start_clean(rig: &mut Rig, disk: DiskNo) -> JobId {
    let now = rig.now;
    rig.core().clean(now, disk).expect("no job runs")
}

fn at_origin(rig: &Rig, disk: DiskNo, sector: u64, sectors: u32) -> Vec<u8> {
    rig.origins[&disk].sectors(sector, sectors).iter().step_by(512).copied().collect()
}

fn cut(mut rig: Rig) -> (Rig, DiskNo) {
    rig.wait(2 * one_by_one().flush_mark_us);
    let mut rig = rig.after_power_cut(one_by_one());
    let disk = rig.attach(&config(), 1);
    (rig, disk)
}

#[test]
fn the_valid_sectors_of_a_damaged_block_outlive_the_removal_of_its_device() {
    let (mut rig, disk) = rig(&[4, 4], false);
    damage(&mut rig, disk, 9);
    damage_half(&mut rig, disk, 0);
    for device in [0, 1] {
        if device == 1 {
            rig.add_device(4);
        }
        let job = rig.core().remove_device(0, DeviceNo(device)).expect("another is left");
        rig.finish(job);
        assert_eq!(rig.read(disk, 0, 4), [2; 4]);
        lost(&mut rig, disk, 4, 1);
        lost(&mut rig, disk, 72, 1);
    }
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(4), 4), (SectorNo(72), 8)]);
    let origins = std::mem::take(&mut rig.origins);
    let mut shelf = rig.shutdown();
    let left = shelf.take(2);
    let mut rig = Rig::open(Shelf(vec![left]), memory(), one_by_one());
    rig.origins = origins;
    assert_eq!(rig.report.disks[0].damage, Damage::None, "what is lost is known");
    let disk = rig.attach(&config(), 1);
    assert_eq!(rig.read(disk, 0, 4), [2; 4]);
    lost(&mut rig, disk, 4, 1);
    lost(&mut rig, disk, 72, 1);
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(4), 4), (SectorNo(72), 8)]);
}

#[test]
fn a_bad_first_copy_costs_a_newer_version_none_of_its_copies() {
    let (mut rig, disk) = rig(&[4, 4], true);
    let bad = rot(&mut rig, disk, 0);
    let read = rig.start_read(disk, 0, 8);
    let is_of_bad =
        |asked: &Requested| matches!(asked.action, Action::ReadDevice { device, .. } if device == bad);
    rig.run_without(|asked| is_device_read(asked) && !is_of_bad(asked));
    assert_eq!(rig.pending.len(), 1, "the mirrored copy is being read");
    rig.start_write(disk, 0, 8, 2);
    rig.run_without(is_device_read);
    rig.end(0, Ok(()));
    assert_eq!(rig.answers.get(&read), Some(&Ok(())));
    let usage = rig.usage(disk);
    assert_eq!((usage.dirty_blocks, usage.mirrored_blocks), (1, 1), "the newer version has both copies");
    assert!(rig.events.is_empty(), "nothing of it is damaged: {:?}", rig.events);
}

#[test]
fn a_damaged_block_that_is_being_moved_is_listed_as_lost_after_a_kill() {
    let (mut rig, disk) = rig(&[4, 4], false);
    let device = rot(&mut rig, disk, 9);
    let now = rig.now;
    rig.core().remove_device(now, device).expect("another is left");
    rig.run_without(is_device_write);
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(72), 8)]);
    let mut rig = rig.after_kill(one_by_one());
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(72), 8)]);
    let disk = rig.attach(&config(), 1);
    lost(&mut rig, disk, 72, 1);
}

#[test]
fn the_cleaner_writes_the_valid_sectors_of_a_damaged_block_once() {
    let (mut rig, disk) = rig(&[4], false);
    damage_half(&mut rig, disk, 0);
    for writes in [1, 0] {
        rig.log.clear();
        let job = start_clean(&mut rig, disk);
        assert_eq!(rig.outcome(job), Err(JobError::DataLost));
        assert_eq!(rig.log.iter().filter(|a| is_origin_write(a)).count(), writes);
        assert_eq!(at_origin(&rig, disk, 0, 8), [2, 2, 2, 2, 7, 7, 7, 7]);
        assert_eq!(rig.running().lost_runs(disk), [(SectorNo(4), 4)]);
        lost(&mut rig, disk, 4, 4);
    }
    rig.write(disk, 1, 1, 3);
    let job = start_clean(&mut rig, disk);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    assert_eq!(at_origin(&rig, disk, 0, 8), [2, 3, 2, 2, 7, 7, 7, 7]);
    let (mut rig, disk) = cut(rig);
    lost(&mut rig, disk, 4, 4);
    rig.write(disk, 4, 4, 4);
    rig.clean(disk);
    assert_eq!(at_origin(&rig, disk, 0, 8), [2, 3, 2, 2, 4, 4, 4, 4]);
    assert_eq!(rig.running().lost_runs(disk), []);
}

#[test]
fn damaged_blocks_do_not_keep_the_cleaner_from_the_others() {
    let mut rig = Rig::new(&[100], false, CoreConfig::default());
    let config = DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), 200_000) };
    let disk = rig.attach(&config, 1);
    for at in (0..160_000).step_by(800) {
        rig.write(disk, at, 800, 1);
    }
    rig.flush(disk);
    rot_each_segment(&mut rig, DeviceNo(0));
    let job = start_clean(&mut rig, disk);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    assert!(rig.usage(disk).dirty_blocks > 70);
    rig.write(disk, 180_000, 8, 3);
    let job = start_clean(&mut rig, disk);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    assert_eq!(at_origin(&rig, disk, 180_000, 8), [3; 8]);
}

/// A crash occurs between the writes of the two pages that list a block as damaged.
#[test]
fn a_block_that_only_one_of_two_pages_calls_damaged_holds_up_no_other() {
    let ordered = CleanerConfig { order: CleanOrder::Flush, ..LAZY };
    let config = DiskConfig { cleaner: ordered, ..config() };
    let mut rig = Rig::new(&[4, 4], true, one_by_one());
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    for asked in std::mem::take(&mut rig.log) {
        if let Action::WriteDevice { device, offset_bytes, .. } = asked.action
            && asked.purpose == Some(IoPurpose::Commit)
            && !is_page(&asked)
        {
            rig.device(device).rot(offset_bytes + 5);
        }
    }
    lost(&mut rig, disk, 0, 8);
    rig.start_write(disk, 80, 8, 2);
    rig.run_without(|asked| asked.written_device() == Some(DeviceNo(1)));
    let mut rig = rig.after_kill(one_by_one());
    let disk = rig.attach(&config, 1);
    rig.running().check();
    rig.write(disk, 160, 8, 3);
    rig.flush(disk);
    let job = start_clean(&mut rig, disk);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    assert_eq!(at_origin(&rig, disk, 80, 8), [2; 8]);
    assert_eq!(at_origin(&rig, disk, 160, 8), [3; 8]);
    lost(&mut rig, disk, 0, 8);
}

#[test]
fn a_pool_is_whole_again_although_blocks_are_damaged() {
    let (mut rig, disk) = rig(&[4], true);
    damage(&mut rig, disk, 9);
    damage_half(&mut rig, disk, 0);
    rig.add_device(4);
    rig.run();
    assert!(!rig.running().pool_stats().degraded);
    let usage = rig.usage(disk);
    assert_eq!((usage.dirty_blocks, usage.mirrored_blocks), (2, 2));
    // The information about the loss is on both devices, so it survives the failure of either one.
    rig.core().fail_device(0, DeviceNo(0));
    rig.run();
    assert_eq!(rig.read(disk, 0, 4), [2; 4]);
    lost(&mut rig, disk, 4, 1);
    lost(&mut rig, disk, 72, 1);
    assert!(rig.events.iter().all(|event| !matches!(event, Event::DeviceFailed { lost_blocks: 1.., .. })));
}

#[test]
fn a_disk_is_let_go_of_when_the_loss_is_accepted() {
    for crashes in [false, true] {
        let (mut rig, disk) = rig(&[4, 4], false);
        let failing = damage(&mut rig, disk, 18);
        damage(&mut rig, disk, 9);
        damage_half(&mut rig, disk, 0);
        rig.write(disk, 800, 8, 3);
        rig.flush(disk);
        let refused = rig.core().detach(0, disk).expect("attached");
        assert_eq!(rig.outcome(refused), Err(JobError::DataLost));
        let job = rig.core().detach_accepting_loss(0, disk).expect("attached");
        rig.finish(job);
        assert_eq!(at_origin(&rig, disk, 0, 8), [2, 2, 2, 2, 7, 7, 7, 7]);
        assert_eq!(at_origin(&rig, disk, 800, 8), [3; 8]);
        assert_eq!((rig.usage(disk).dirty_blocks, rig.running().lost_runs(disk).len()), (0, 0));
        if crashes {
            rig = rig.after_power_cut(one_by_one());
            assert_eq!(rig.report.disks[0].damage, Damage::None);
            assert_eq!(rig.report.disks[0].dirty_blocks, 0);
        }
        // The data on flash becomes readable again. Blocks that were given up must not come back.
        rig.device(failing).rot(DATA_STARTS);
        let disk = rig.attach(&config(), 1);
        assert_eq!(rig.read(disk, 0, 8), [2, 2, 2, 2, 7, 7, 7, 7]);
        assert_eq!(rig.read(disk, 72, 8), [7; 8]);
        assert_eq!(rig.read(disk, 144, 8), [7; 8]);
        rig.clean(disk);
    }
}

#[test]
fn the_loss_of_blocks_on_a_failed_device_can_be_accepted() {
    let (mut rig, disk) = rig(&[4, 4], false);
    for block in 0..40 {
        rig.write(disk, block * 80, 8, 1);
    }
    rig.flush(disk);
    rig.core().fail_device(0, DeviceNo(1));
    rig.run();
    let lost_sectors: u64 = rig.running().lost_runs(disk).iter().map(|run| run.1).sum();
    assert!(lost_sectors > 0);
    let job = rig.core().detach_accepting_loss(0, disk).expect("attached");
    rig.finish(job);
    let mut rig = rig.after_power_cut(one_by_one());
    assert_eq!(rig.report.disks[0].damage, Damage::None);
    let disk = rig.attach(&config(), 1);
    let mut sevens = 0;
    for block in 0..40 {
        let read = rig.read(disk, block * 80, 8);
        assert_eq!(read, at_origin(&rig, disk, block * 80, 8));
        sevens += u64::from(read == [7; 8]);
    }
    assert_eq!(sevens * 8, lost_sectors);
}

#[test]
fn the_loss_is_accepted_only_when_everything_else_is_at_the_origin() {
    let (mut rig, disk) = rig(&[4], false);
    damage_half(&mut rig, disk, 0);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let job = rig.core().detach_accepting_loss(0, disk).expect("attached");
    assert_eq!(rig.outcome(job), Err(JobError::Origin));
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    assert_eq!(rig.read(disk, 0, 4), [2; 4]);
    lost(&mut rig, disk, 4, 1);
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(4), 4)]);
}

#[test]
fn an_offline_flush_writes_the_valid_sectors_of_a_damaged_block() {
    let (mut rig, disk) = rig(&[4], false);
    damage_half(&mut rig, disk, 0);
    rig.wait(2 * one_by_one().flush_mark_us);
    let mut origins = std::mem::take(&mut rig.origins);
    let mut shelf = rig.shutdown();
    let origin = origins.get_mut(&disk).expect("an origin");
    let result = offline::flush_disk(&mut shelf, disk_id(0), origin, |_| ());
    assert_eq!(result, Err(OfflineError::DataLost { disk: disk_id(0), blocks: vec![BlockNo(0)] }));
    let values: Vec<u8> = origin.sectors(0, 8).iter().step_by(512).copied().collect();
    assert_eq!(values, [2, 2, 2, 2, 7, 7, 7, 7]);
}

#[test]
fn a_loss_in_the_last_block_outlives_a_shrink() {
    let (mut rig, disk) = rig(&[4], false);
    damage(&mut rig, disk, 100);
    let job = rig.core().resize(0, disk, 804).expect("no job runs");
    rig.finish(job);
    lost(&mut rig, disk, 800, 4);
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(800), 4)]);
}

/// In a small pool, each segment has damaged blocks. A disk whose only segment is on a device that is being removed
/// must get another segment nevertheless.
#[test]
fn damaged_blocks_do_not_block_the_removal_of_a_device() {
    let (mut rig, first) = rig(&[2], false);
    for at in (0..3200).step_by(800) {
        rig.write(first, at, 800, 1);
    }
    rig.flush(first);
    let held = rot_each_segment(&mut rig, DeviceNo(0));
    assert_eq!(held, 2, "the disk has all segments of the device");
    let job = start_clean(&mut rig, first);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    let leaving = rig.add_device(2);
    let second = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), SECTORS) }, 1);
    assert_eq!(damage(&mut rig, second, 9), leaving);
    rig.write(second, 0, 8, 3);
    let job = rig.core().remove_device(0, leaving).expect("another is left");
    rig.finish(job);
    rig.flush(second);
    assert_eq!(rig.read(second, 0, 8), [3; 8]);
    lost(&mut rig, second, 72, 8);
    assert_eq!(rig.running().lost_runs(first).len(), 2);
}

/// As above, the damaged blocks that hold the segments are dropped. The sectors of these blocks that were written since
/// are at the origin.
#[test]
fn the_valid_sectors_of_a_damaged_block_that_is_dropped_are_read_from_the_origin() {
    let (mut rig, first) = rig(&[2], false);
    damage_half(&mut rig, first, 0);
    for at in (8..3208).step_by(800) {
        rig.write(first, at, 800, 1);
    }
    rig.flush(first);
    assert_eq!(rot_each_segment(&mut rig, DeviceNo(0)), 2);
    let job = start_clean(&mut rig, first);
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    let leaving = rig.add_device(2);
    let second = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), SECTORS) }, 1);
    assert_eq!(damage(&mut rig, second, 9), leaving);
    let job = rig.core().remove_device(0, leaving).expect("another is left");
    rig.finish(job);
    assert_eq!(rig.usage(first).dirty_blocks, 0, "the blocks were dropped");
    assert_eq!(rig.running().lost_runs(first).first(), Some(&(SectorNo(4), 4)));
    assert_eq!(rig.read(first, 0, 4), [2; 4]);
    lost(&mut rig, first, 3, 2);
    let partial = rig.start_write(first, 0, 4, 5);
    assert_eq!(rig.answer(partial), Err(RequestError::DataLost));
    rig.write(first, 0, 8, 5);
    assert_eq!(rig.read(first, 0, 8), [5; 8]);
}

#[test]
fn losses_beyond_the_end_of_a_shrunk_disk_stay_lost_when_it_grows() {
    let (mut rig, disk) = rig(&[4, 4], false);
    let now = rig.now;
    rig.write(disk, 0, 8, 1);
    rig.write(disk, 800, 8, 1);
    rig.flush(disk);
    for device in [0, 1] {
        rig.core().fail_device(now, DeviceNo(device));
        if device == 0 {
            rig.add_device(4);
        }
    }
    rig.run();
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(0), 8), (SectorNo(800), 8)]);
    for sectors in [400, SECTORS] {
        let job = rig.core().resize(now, disk, sectors).expect("no job runs");
        rig.finish(job);
        assert_eq!(rig.running().lost_runs(disk), [(SectorNo(0), 8)]);
    }
    rig.read(disk, 800, 8);
}

#[test]
fn damage_to_the_newest_commit_is_not_taken_for_a_torn_write_after_a_kill() {
    let (mut rig, disk) = rig(&[4], false);
    rot(&mut rig, disk, 0);
    let mut rig = rig.after_kill(one_by_one());
    assert_eq!((rig.report.torn_entries, rig.report.disks[0].damage), (0, Damage::None));
    rig.attach(&config(), 1);
    lost(&mut rig, disk, 0, 8);
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(0), 8)]);
}

#[test]
fn a_commit_that_was_being_written_at_a_kill_is_still_staged() {
    let (mut rig, disk) = rig(&[4], false);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.start_write(disk, 0, 8, 2);
    // The page is written, the data is not.
    rig.run_without(|asked| asked.purpose == Some(IoPurpose::Commit) && !is_page(asked));
    let mut rig = rig.after_kill(one_by_one());
    assert_eq!(rig.report.torn_entries, 1);
    rig.attach(&config(), 1);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

fn is_page(asked: &Requested) -> bool {
    let Action::WriteDevice { offset_bytes, .. } = asked.action else { return false };
    offset_bytes >= DATA_STARTS && (offset_bytes - DATA_STARTS) % SEGMENT_BYTES < PAGES_BYTES
}

/// A pool with two disks. A block of the first disk is damaged, and so is the newest page of the second disk, which is
/// the only page that marks the commit of that block as flushed.
fn damaged_with_the_mark() -> (Rig, DiskNo) {
    let (mut rig, disk) = rig(&[4], false);
    let other = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), SECTORS) }, 1);
    // Both own a segment already.
    for disk in [disk, other] {
        rig.write(disk, 0, 8, 1);
        rig.flush(disk);
    }
    rig.wait(2 * one_by_one().flush_mark_us);
    rot(&mut rig, disk, 1);
    rig.log.clear();
    rig.write(other, 8, 8, 1);
    rig.flush(other);
    let page = rig.log.iter().rev().find(|asked| is_page(asked)).map(|asked| asked.action);
    let Some(Action::WriteDevice { device, offset_bytes, .. }) = page else { panic!("it was committed") };
    rig.device(device).rot(offset_bytes + 700);
    (rig, disk)
}

#[test]
fn damage_is_not_taken_for_a_torn_write_when_the_flush_mark_is_damaged() {
    // After a power loss it is unknown whether the commit was ever flushed.
    let (rig, _) = damaged_with_the_mark();
    let mut rig = rig.after_power_cut(one_by_one());
    assert_eq!((rig.report.damaged_segments, rig.report.torn_entries), (1, 1));
    assert_eq!(rig.report.disks[0].damage, Damage::Uncertain);
    let refused = rig.core().attach(0, &config(), 1, false);
    assert!(refused.is_err(), "{refused:?}");

    // After a kill this is known, and still known if the power fails after that.
    let (rig, disk) = damaged_with_the_mark();
    let rig = rig.after_kill(one_by_one());
    assert_eq!((rig.report.damaged_segments, rig.report.torn_entries), (1, 0));
    let mut rig = rig.after_power_cut(one_by_one());
    assert_eq!((rig.report.damaged_segments, rig.report.torn_entries), (0, 0));
    assert_eq!(rig.report.disks[0].damage, Damage::None);
    rig.attach(&config(), 1);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
    lost(&mut rig, disk, 8, 8);
}

#[test]
fn the_blank_marks_of_a_device_that_joined_do_not_replace_damaged_ones() {
    let mut rig = Rig::new(&[4], false, one_by_one());
    let config = DiskConfig { mode: WriteMode::WriteInvalidate, ..config() };
    let disk = rig.attach(&config, 1);
    rig.read(disk, 0, 8);
    rig.flush(disk);
    assert_eq!(rig.usage(disk).usage_blocks, 1, "the origin's older data is on flash");
    rig.write(disk, 0, 8, 2);
    rig.start_adding(4);
    rig.run_without(|asked| asked.purpose == Some(IoPurpose::Intent));
    for number in [0, 1] {
        // The devices write out their volatile caches without a flush.
        let device = rig.device(DeviceNo(number));
        device.flush(device.flush_mark());
    }
    for sector in 0..8 {
        rig.device(DeviceNo(0)).rot(OTHER_MARKS + sector * 512 + 100);
    }
    let mut rig = rig.after_power_cut(one_by_one());
    assert_eq!(rig.running().pool_stats().devices, 2, "the device has joined");
    let disk = rig.attach(&config, 1);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn a_disk_with_a_damaged_block_is_not_handed_over() {
    let (mut rig, disk) = rig(&[4], false);
    damage(&mut rig, disk, 9);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
    rig.write(disk, 72, 8, 3);
    rig.flush(disk);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk takes requests again");
    rig.finish(job);
}

#[test]
fn the_next_owner_does_not_read_from_the_origin_what_is_found_damaged_after_the_release() {
    let (mut rig, disk) = rig(&[4], false);
    rot(&mut rig, disk, 9);
    rig.write(disk, 80, 8, 2);
    let now = rig.now;
    let job = rig.core().freeze(now, disk).expect("the disk is attached");
    rig.finish(job);
    let job = rig.core().release_to(now, disk, 2, HostId(9)).expect("the disk is frozen");
    rig.finish(job);
    let tag = RequestTag(1 << 32);
    rig.give_buffer(tag, vec![0; BLOCK_BYTES]);
    let now = rig.now;
    let copied = rig.core().read_copy(now, tag, disk, BlockNo(9), 0).expect("the disk was released");
    assert_eq!(copied.map(|copied| copied.mask), Some(255));
    assert!(rig.answer(tag).is_err(), "the block is damaged");
    // The page that no longer lists the other block says that this one is damaged.
    let now = rig.now;
    rig.core().forget_held(now, disk, &[BlockNo(10)]).expect("the disk was released");
    rig.wait(1_000_000);
    let mut rig = rig.after_kill(one_by_one());
    assert!(rig.running().has_losses(disk));
    assert_eq!(rig.core().held_blocks(disk, BlockNo(0), 10), [(BlockNo(9), 255)]);
}
