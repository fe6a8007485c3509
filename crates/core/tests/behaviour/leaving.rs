//! Devices that leave: which blocks come back if the power fails in the meantime, and which blocks are lost with the
//! devices.

use crate::common::*;
use haversack_core::{
    AdmissionConfig, CoreConfig, Damage, DiskConfig, IoFailure, JobError, ManageError, Op, OpenOptions,
    Persistence, RequestError, RequestTag, StagingKind, offline,
};
use haversack_model::{DeviceNo, DiskNo, SectorNo, WriteMode};

const SECTORS: u64 = 4096;

/// A dirty block was cleaned, but no page says so yet. The first copy of the record is being written.
fn durably_dirty_while_the_record_is_written(redundancy: bool) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4, 4], redundancy, CoreConfig::default());
    let config = DiskConfig { persistence: Persistence::Dirty, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.wait(2 * CoreConfig::default().flush_mark_us);
    rig.clean(disk);
    let (now, other) = (rig.now, DiskConfig::new(disk_id(1), SECTORS));
    rig.core().attach(now, &other, 1, false).expect("the disk may be attached");
    rig.run_without(is_device_flush);
    (rig, disk)
}

/// Kills the process while the record still lists the device. The device is then in use again with the blocks that its
/// pages list, but reads must return the origin's data.
fn the_origin_wins_after_a_kill(rig: Rig) {
    let mut rig = rig.after_kill(CoreConfig::default());
    assert_eq!(rig.report.devices.len(), 2);
    let config = DiskConfig { persistence: Persistence::Dirty, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    let read = rig.read(disk, 0, 8);
    let in_origin = rig.origins[&disk].sectors(0, 8).iter().step_by(512).copied();
    assert_eq!(in_origin.collect::<Vec<u8>>(), read);
}

#[test]
fn a_removed_device_brings_no_stale_block_back() {
    let (mut rig, disk) = durably_dirty_while_the_record_is_written(false);
    let now = rig.now;
    rig.core().remove_device(now, DeviceNo(0)).expect("another is left");
    rig.submit_sized(disk, Op::WriteZeroes, 0, 2, Vec::new()).expect("the request is taken");
    rig.run_without(is_record);
    the_origin_wins_after_a_kill(rig);
}

#[test]
fn a_failed_devices_dirty_blocks_are_not_superseded_before_the_record_drops_it() {
    let (mut rig, disk) = durably_dirty_while_the_record_is_written(true);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    let write = rig.submit_sized(disk, Op::WriteZeroes, 0, 2, Vec::new()).expect("the request is taken");
    rig.run_without(is_device_flush);
    rig.run_without(is_record);
    assert!(!rig.is_answered(write));
    the_origin_wins_after_a_kill(rig);
}

/// A pool without redundancy and a disk whose first block has an older version on device 0, durable and listed as
/// dirty, and a newer one on device 1, which has been cleaned.
fn cleaned_with_an_older_version_elsewhere() -> (Rig, DiskNo) {
    let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
    let mut rig = Rig::new(&[4, 4], false, config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    // The page of the first segment is not durable yet, so the second commit goes to another segment, which is on the
    // other device.
    for value in [1, 2] {
        rig.start_write(disk, 0, 8, value);
        rig.run_without(is_device_flush);
    }
    let written: Vec<&Requested> = rig.log.iter().filter(|asked| is_segment_write(asked)).collect();
    assert_eq!(written[0].written_device(), Some(DeviceNo(0)), "{written:?}");
    assert_eq!(written[3].written_device(), Some(DeviceNo(1)), "{written:?}");
    rig.flush(disk);
    rig.clean(disk);
    (rig, disk)
}

#[test]
fn older_versions_on_other_devices_do_not_come_back_after_a_failure() {
    // The power fails when the device is gone, or before the page that lists the older version is rewritten.
    for held in [false, true] {
        let (mut rig, disk) = cleaned_with_an_older_version_elsewhere();
        let now = rig.now;
        rig.core().fail_device(now, DeviceNo(1));
        rig.run_without(|asked| held && is_segment_write(asked));
        let mut rig = rig.after_power_cut(CoreConfig::default());
        assert!(held || rig.report.devices == [(DeviceNo(0), 0)]);
        rig.disk(0, SECTORS, WriteMode::WriteBack);
        assert_eq!(rig.read(disk, 0, 8), [2; 8], "held: {held}");
        rig.clean(disk);
        assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 4096]);
    }
}

#[test]
fn older_versions_on_other_devices_do_not_come_back_when_one_is_missing() {
    let (mut rig, disk) = cleaned_with_an_older_version_elsewhere();
    let origins = std::mem::take(&mut rig.origins);
    let mut shelf = rig.power_cut();
    shelf.take(1);
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let mut rig = Rig::open_with(shelf, memory(), CoreConfig::default(), options);
    rig.origins = origins;
    let (now, config) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
    let (_, attached) = rig.core().attach(now, &config, 1, true).expect("the loss is accepted");
    rig.finish(attached);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 4096]);
}

/// A pool without redundancy in which device 1 has failed. It had dirty blocks of a disk, but not the first blocks. The
/// power was cut after that.
fn lost_some() -> (Rig, DiskNo, Vec<(SectorNo, u64)>) {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() });
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 0, 2400, 1);
    rig.flush(disk);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(1));
    rig.write(disk, 0, 8, 2);
    rig.flush(disk);
    let lost = rig.running().lost_runs(disk);
    let rig = rig.after_power_cut(CoreConfig::default());
    (rig, disk, lost)
}

#[test]
fn dirty_blocks_that_a_lost_device_did_not_have_are_kept() {
    let (mut rig, disk, lost) = lost_some();
    assert_eq!(rig.report.disks[0].damage, Damage::Lost);
    let (now, config) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
    let refused = rig.core().attach(now, &config, 1, false);
    assert_eq!(refused.err(), Some(ManageError::Lost(disk_id(0))));
    let (_, attached) = rig.core().attach(now, &config, 1, true).expect("the loss is accepted");
    rig.finish(attached);
    let mut expected = vec![1; 2400];
    expected[..8].fill(2);
    for (first, sectors) in &lost {
        expected[first.0 as usize..][..*sectors as usize].fill(OF_ORIGIN);
    }
    let kept = expected.iter().filter(|value| **value != OF_ORIGIN).count();
    assert!(8 < kept && kept < 2400, "{kept} sectors were on the device that is left");
    assert!(rig.read(disk, 0, 2400) == expected);
    rig.clean(disk);
    let origin = rig.origins[&disk].sectors(0, 2400);
    assert!(origin.chunks(512).zip(&expected).all(|(sector, value)| sector == [*value; 512]));
    let rig = Rig::open(rig.shutdown(), memory(), CoreConfig::default());
    assert_eq!(rig.report.disks[0].damage, Damage::None);
}

/// A pool without redundancy. The first block of a disk has a flushed version on device 0 and a newer version that is
/// only staged. Another disk has data on device 1.
fn flushed_and_staged_anew() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disks = [0, 1].map(|number| {
        let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }, 1);
        rig.write(disk, 0, 8, 1);
        rig.flush(disk);
        disk
    });
    for device in [0, 1] {
        assert!(rig.log.iter().any(|action| is_segment_write_to(action, DeviceNo(device))));
    }
    rig.write(disks[0], 0, 8, 2);
    (rig, disks[0])
}

#[test]
fn a_device_is_gone_only_when_staged_versions_of_its_blocks_are_durable() {
    let (mut rig, disk) = flushed_and_staged_anew();
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run_without(|action| is_segment_write_to(action, DeviceNo(1)));
    let origins = std::mem::take(&mut rig.origins);
    // The power fails. Everything that was written has reached the devices.
    let (shelf, _) = rig.kill();
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert_eq!(rig.report.devices.len(), 2, "the record does not say yet that the device is gone");
    rig.origins = origins;
    rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}

#[test]
fn blocks_staged_when_a_device_failed_are_committed() {
    let (mut rig, disk) = flushed_and_staged_anew();
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    let mut rig = rig.after_power_cut(CoreConfig::default());
    assert_eq!(rig.report.devices, [(DeviceNo(1), 1)]);
    rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn a_commit_over_a_lost_block_keeps_the_loss_if_the_device_returns() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.write(disk, 0, 2, 2);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(2), 6)]);
    rig.start_flush(disk);
    rig.run_without(is_record);
    assert!(
        rig.log.iter().any(|asked| is_segment_write_to(asked, DeviceNo(1))),
        "the two sectors are committed"
    );
    let mut rig = rig.after_kill(CoreConfig::default());
    assert_eq!(rig.report.devices.len(), 2, "the record does not say yet that the device is gone");
    assert_eq!(rig.report.disks[0].damage, Damage::None);
    rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    assert_eq!(rig.read(disk, 0, 2), [2; 2]);
    let read = rig.start_read(disk, 0, 8);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(2), 6)]);
}

/// A pool before one of its devices fails. Each segment of the other device lists newer versions of blocks that the
/// failing device lists, so no segment becomes free before the failed device is gone. All data of a second disk is on
/// the failing device, and this disk waits for a segment.
fn staged_without_a_place() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[2], false, CoreConfig { commit_blocks: 8, ..CoreConfig::default() });
    let large = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    let small = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), SECTORS) }, 1);
    for disk in [large, small] {
        rig.write(disk, 0, 80, 1);
        rig.flush(disk);
    }
    rig.write(large, 0, 1600, 1);
    rig.flush(large);
    rig.add_device(2);
    for _ in 0..2 {
        rig.write(large, 0, 1600, 2);
        rig.flush(large);
    }
    rig.clean(large);
    rig.start_write(small, 0, 80, 3);
    rig.run_without(is_device_write);
    (rig, small)
}

#[test]
fn a_failed_device_does_not_wait_forever_for_blocks_that_wait_for_it() {
    let (mut rig, small) = staged_without_a_place();
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    let flush = rig.start_flush(small);
    rig.run();
    assert!(!rig.is_answered(flush));
    assert_eq!(rig.running().disk_info(small).expect("known").damage, Damage::None);
    rig.wait(2 * CoreConfig::default().leave_wait_us);
    assert_eq!(rig.answer(flush), Ok(()));
    rig.flush(small);
    assert_eq!(rig.running().disk_info(small).expect("known").damage, Damage::None, "it is durable");
    rig.run();
    let mut rig = rig.after_power_cut(CoreConfig::default());
    rig.attach(&DiskConfig::new(disk_id(1), SECTORS), 1);
    assert_eq!(rig.read(small, 0, 80), [3; 80]);
}

/// The flushed version is lost with the device, and the newer version is not durable yet.
#[test]
fn a_disk_has_lost_something_until_what_was_staged_is_durable() {
    let (mut rig, small) = staged_without_a_place();
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.start_flush(small);
    rig.run();
    rig.wait_with(2 * CoreConfig::default().leave_wait_us, |asked| {
        if is_segment_write(asked) { Fate::Hold } else { Fate::Done }
    });
    assert_eq!(rig.running().disk_info(small).expect("known").damage, Damage::Lost);
    let rig = rig.after_power_cut(CoreConfig::default());
    assert_eq!(rig.report.disks[1].damage, Damage::Lost);
}

/// A released disk has a dirty block on a device that is being emptied and fails. Each segment of the other device has
/// dirty blocks of other disks, and nothing tells the released disk when these are clean.
#[test]
fn a_released_disks_staged_block_gets_a_place_once_another_disk_is_clean() {
    let mut rig = Rig::new(&[2], false, CoreConfig::default());
    let disks = [0, 1, 2, 3].map(|number| {
        rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }, 1)
    });
    for disk in &disks[..2] {
        rig.write(*disk, 0, 8, 1);
        rig.flush(*disk);
    }
    rig.clean(disks[1]);
    let now = rig.now;
    rig.core().release(now, disks[0]).expect("attached");
    rig.run();
    rig.add_device(2);
    for disk in &disks[2..] {
        rig.write(*disk, 0, 8, 2);
        rig.flush(*disk);
    }
    rig.core().remove_device(now, DeviceNo(0)).expect("another is left");
    rig.run_without(is_origin_write);
    rig.core().fail_device(now, DeviceNo(0));
    let hold_cleaning = |asked: &Requested| if is_origin_write(asked) { Fate::Hold } else { Fate::Done };
    rig.wait_with(2 * CoreConfig::default().leave_wait_us, hold_cleaning);
    assert_eq!(rig.usage(disks[0]).dirty_blocks, 1);
    let stop = rig.core().shutdown(now);
    rig.run();
    while !rig.jobs.contains_key(&stop) {
        let next = rig.core().next_wakeup().expect("the core has something to wait for");
        rig.core().tick(next);
        rig.run();
    }
    let shelf = Shelf(vec![rig.shelf.take(1)]);
    let rig = Rig::open(shelf, memory(), CoreConfig::default());
    assert_eq!(rig.report.disks[0].dirty_blocks, 1);
}

/// A clean stop heals the disk without a flush. A later stop while the disk is not attached does not change that.
#[test]
fn a_disk_is_whole_after_a_stop_if_what_was_lost_was_written_again() {
    for again in [8, 7] {
        let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
        let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
        rig.write(disk, 0, 8, 1);
        rig.write(disk, 80, 8, 1);
        rig.flush(disk);
        let now = rig.now;
        rig.core().fail_device(now, DeviceNo(0));
        rig.run();
        rig.write(disk, 0, 8, 2);
        if again == 8 {
            rig.write(disk, 80, 8, 2);
        }
        let expected = if again == 8 { Damage::None } else { Damage::Lost };
        let mut shelf = rig.shutdown();
        let mut shelf = Shelf(vec![shelf.take(1)]);
        for _ in 0..2 {
            let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
            assert_eq!(rig.report.disks[0].damage, expected);
            shelf = rig.shutdown();
        }
    }
}

#[test]
fn only_the_dirty_sectors_of_a_block_are_lost_with_its_device() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 2, 3, 1);
    rig.flush(disk);
    rig.write(disk, 3, 1, 2);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    assert_eq!(rig.running().lost_runs(disk), [(SectorNo(2), 1), (SectorNo(4), 1)]);
    assert_eq!(rig.read(disk, 0, 2), [7; 2]);
    assert_eq!(rig.read(disk, 3, 1), [2]);
    assert_eq!(rig.read(disk, 5, 3), [7; 3]);
    let read = rig.start_read(disk, 0, 3);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
}

/// A block has three versions: the first is on one device, the second is being written to another device, and the third
/// is staged. A flush waits for the second version, which is lost when the devices in `failing` fail.
fn flush_waits_for_a_version_that_fails(failing: &[u8]) -> (Rig, DiskNo, RequestTag) {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.add_device(4);
    rig.start_write(disk, 0, 8, 2);
    let now = rig.now;
    // Nothing new is written to a device that is being emptied.
    rig.core().remove_device(now, DeviceNo(0)).expect("another is left");
    let flush = rig.start_flush(disk);
    rig.run_without(is_segment_write);
    assert!(rig.pending.iter().any(|pending| is_segment_write_to(&pending.asked, DeviceNo(1))));
    let newer = rig.start_write(disk, 0, 8, 3);
    rig.run_without(is_segment_write);
    assert!(rig.is_answered(newer) && !rig.is_answered(flush));
    for device in failing {
        let now = rig.now;
        rig.core().fail_device(now, DeviceNo(*device));
    }
    let fate = |asked: &Requested| match asked.written_device() {
        Some(device) if failing.contains(&device.0) => Fate::Fail(IoFailure::Gone),
        _ if is_segment_write(asked) || is_origin_write(asked) => Fate::Hold,
        _ => Fate::Done,
    };
    rig.run_with(fate);
    rig.wait_with(2 * CoreConfig::default().leave_wait_us, fate);
    (rig, disk, flush)
}

#[test]
fn a_flush_waits_for_what_replaces_a_version_whose_commit_failed() {
    let (mut rig, disk, flush) = flush_waits_for_a_version_that_fails(&[1]);
    assert!(!rig.is_answered(flush), "neither version is durable");
    rig.run();
    assert_eq!(rig.answer(flush), Ok(()));
    let mut rig = rig.after_power_cut(CoreConfig::default());
    rig.attach(&DiskConfig::new(disk_id(0), SECTORS), 1);
    assert_eq!(rig.read(disk, 0, 8), [3; 8]);
}

#[test]
fn a_flush_waits_for_the_origin_when_the_last_device_took_a_version() {
    let (mut rig, disk, flush) = flush_waits_for_a_version_that_fails(&[1, 0]);
    let now = rig.now;
    rig.core().loss_recorded(now);
    rig.run_without(is_origin_write);
    assert!(!rig.is_answered(flush), "neither version is durable");
    rig.run();
    assert_eq!(rig.answer(flush), Ok(()));
    assert_eq!(rig.origins[&disk].sectors(0, 1)[0], 3);
}

/// Clean sectors on flash would have a higher sequence number than the lost dirty ones, and would supersede them if the
/// device came back after a crash.
#[test]
fn clean_sectors_of_a_lost_block_do_not_enter_through_the_data_stage() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 2, 3, 1);
    rig.flush(disk);
    let filter = AdmissionConfig::Staging { kind: StagingKind::Data, reuses: 1, bytes: 100_000 };
    rig.core().set_admission(0, disk, filter).expect("attached");
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    for _ in 0..3 {
        assert_eq!(rig.read(disk, 0, 2), [7; 2]);
    }
    assert_eq!(rig.usage(disk).usage_blocks, 0);
    rig.flush(disk);
    assert_eq!(rig.read(disk, 5, 3), [7; 3]);
    assert!(!rig.running().lost_runs(disk).is_empty());
}

#[test]
fn lost_sectors_beyond_the_end_of_a_shrunk_disk_are_forgotten() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.write(disk, 804, 4, 1);
    rig.flush(disk);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    for sectors in [804, SECTORS] {
        let job = rig.core().resize(now, disk, sectors).expect("no job runs");
        rig.finish(job);
    }
    assert_eq!(rig.running().lost_runs(disk), []);
    rig.write(disk, 800, 2, 3);
}

#[test]
fn a_device_that_is_being_emptied_stays_when_the_last_other_fails() {
    let (mut rig, disk) = flushed_and_staged_anew();
    let now = rig.now;
    let removal = rig.core().remove_device(now, DeviceNo(1)).expect("another is left");
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    assert_eq!(rig.jobs.get(&removal), Some(&Err(JobError::Cancelled)));
    rig.flush(disk);
    let mut rig = rig.after_power_cut(CoreConfig::default());
    assert_eq!(rig.report.devices, [(DeviceNo(1), 1)]);
    rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn an_offline_flush_writes_what_a_lost_device_did_not_have() {
    let (rig, disk, lost) = lost_some();
    let mut origins = rig.origins;
    let mut shelf = rig.shelf;
    let origin = origins.get_mut(&disk).expect("it was attached");
    let written =
        offline::flush_disk(&mut shelf, disk_id(0), origin, |_| {}).expect("what is left is certain");
    let lost_blocks: u64 = lost.iter().map(|run| run.1 / 8).sum();
    assert_eq!(written, 300 - lost_blocks);
    assert_eq!(origin.sectors(0, 8), [2; 4096]);
    let mut rig = Rig::open(shelf, memory(), CoreConfig::default());
    let (now, config) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
    let refused = rig.core().attach(now, &config, 1, false);
    assert_eq!(refused.err(), Some(ManageError::Lost(disk_id(0))), "the loss is still to be accepted");
}

#[test]
fn a_redundant_pool_opens_without_a_failed_device_that_the_record_still_lists() {
    let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
    let lazy = |number| DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) };
    let mut waited = 0;
    for device in 0..3 {
        let mut rig = Rig::new(&[4, 4, 4], true, config);
        let disk = rig.attach(&lazy(0), 1);
        for value in 1..=4 {
            rig.start_write(disk, 0, 8, value);
            rig.run_without(is_device_flush);
        }
        rig.flush(disk);
        let now = rig.now;
        rig.core().fail_device(now, DeviceNo(device));
        // Hold the pages that must be written before the device is gone, and have the record written because another
        // disk is attached.
        rig.core().attach(now, &lazy(1), 1, false).expect("the pool knows no such disk");
        rig.run_without(is_segment_write);
        waited += usize::from(!rig.pending.is_empty());
        let (mut shelf, _) = rig.kill();
        shelf.take(device as usize);
        let rig = Rig::open(shelf, memory(), config);
        assert_eq!(rig.report.disks[0].damage, Damage::None);
    }
    assert!(waited > 0);
}

#[test]
fn a_device_is_gone_only_when_commits_in_flight_of_its_blocks_are_durable() {
    let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
    let mut rig = Rig::new(&[4, 4], false, config);
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }, 1);
    rig.start_write(disk, 0, 8, 1);
    rig.run_without(is_device_flush);
    rig.start_write(disk, 0, 8, 2);
    let first = rig
        .log
        .iter()
        .find_map(|action| [0, 1].into_iter().find(|at| is_segment_write_to(action, DeviceNo(*at))));
    let (old, new) =
        (DeviceNo(first.expect("it was committed")), DeviceNo(1 - first.expect("it was committed")));
    // The first version becomes durable while the second is on its way to the other device.
    let is_new = |action: &Requested| is_segment_write_to(action, new);
    rig.run_without(is_new);
    assert!(rig.pending.iter().any(|pending| is_new(&pending.asked)));
    let now = rig.now;
    rig.core().fail_device(now, old);
    rig.run_without(is_new);
    let origins = std::mem::take(&mut rig.origins);
    // The power fails. Everything that was written has reached the devices.
    let (shelf, _) = rig.kill();
    let mut rig = Rig::open(shelf, memory(), config);
    assert_eq!(rig.report.devices.len(), 2, "the record does not say yet that the device is gone");
    rig.origins = origins;
    rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}
