//! Management jobs that fail, that overlap, or that end while I/O is in flight.

use crate::common::*;
use haversack_core::{
    Action, CleanerConfig, CoreConfig, DiskConfig, IoFailure, IoPurpose, JobError, ManageError, Op, Rejected,
    Target, offline,
};
use haversack_model::{DeviceNo, DiskNo, WriteMode, WriteThroughAck};

const SECTORS: u64 = 4096;

fn lazy(rig: &mut Rig, number: u8) -> DiskNo {
    rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }, 1)
}

fn is_intent(asked: &Requested) -> bool {
    asked.purpose == Some(IoPurpose::Intent)
}

/// A released disk whose dirty blocks are being read to get their mirrored copies.
fn released_while_restaging() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4], true, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let now = rig.now;
    let release = rig.core().release(now, disk).expect("attached");
    rig.finish(release);
    rig.start_adding(4);
    rig.run_without(is_device_read);
    assert!(rig.pending.iter().any(|p| is_device_read(&p.asked)));
    (rig, disk)
}

#[test]
fn a_disk_is_forgotten_after_the_reads_of_its_blocks() {
    let (mut rig, disk) = released_while_restaging();
    let now = rig.now;
    let job = rig.core().forget(now, disk, Some(disk_id(0))).expect("it is named");
    rig.run_without(is_device_read);
    assert!(!rig.jobs.contains_key(&job), "its blocks are being read");
    rig.finish(job);
    rig.origins.clear();
    assert_eq!(rig.disk(1, SECTORS, WriteMode::WriteBack), disk, "the number is free again");
    assert_eq!(rig.read(disk, 0, 800), [7; 800]);
}

#[test]
fn a_disk_is_forgotten_after_the_writes_of_its_map() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    let release = rig.core().release(now, disk).expect("attached");
    rig.finish(release);
    rig.start_adding(4);
    let job = rig.core().forget(now, disk, None).expect("nothing is dirty");
    rig.run_without(is_intent);
    assert!(!rig.jobs.contains_key(&job), "its map is being written");
    rig.finish(job);
    rig.origins.clear();
    let other = rig.disk(1, SECTORS, WriteMode::WriteInvalidate);
    rig.write(other, 0, 8, 2);
    assert_eq!(rig.read(other, 0, 16), [[2; 8], [7; 8]].concat());
}

#[test]
fn a_release_waits_for_the_reads_of_its_blocks() {
    let mut rig = Rig::new(&[4], true, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    rig.start_adding(4);
    rig.run_without(is_device_read);
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    rig.run_without(is_device_read);
    assert!(!rig.jobs.contains_key(&job));
    rig.finish(job);
}

#[test]
fn a_release_waits_for_the_flush_of_its_origin() {
    let config = CoreConfig { intent_clear_us: 1_000_000, ..CoreConfig::default() };
    let mut rig = Rig::new(&[4], false, config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    rig.write(disk, 0, 8, 1);
    rig.wait_with(2_000_000, |a| if is_origin_flush(a) { Fate::Hold } else { Fate::Done });
    assert_eq!(rig.pending.len(), 1, "the map is to be cleared");
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    rig.run_without(is_origin_flush);
    assert!(!rig.jobs.contains_key(&job));
    rig.finish(job);
}

fn fail_origin_flushes(action: &Requested) -> Fate {
    if is_origin_flush(action) { Fate::Fail(IoFailure::Error) } else { Fate::Done }
}

#[test]
fn the_detach_of_a_clean_disk_ends_when_its_origin_cannot_be_flushed() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("attached");
    rig.wait_with(10_000_000, fail_origin_flushes);
    assert_eq!(rig.jobs.get(&job), Some(&Err(JobError::Origin)));

    rig.log.clear();
    rig.wait_with(20_000_000, |a| if is_origin_flush(a) { Fate::Hold } else { Fate::Done });
    rig.run_with(fail_origin_flushes);
    let flushes = rig.log.iter().filter(|a| is_origin_flush(a)).count();
    assert!(flushes <= 1, "{flushes} flushes: no job waits for the map any more");

    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("attached as before");
    rig.finish(job);
}

#[test]
fn after_a_detach_that_failed_the_map_is_cleared_in_its_usual_time() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("attached");
    assert_eq!(rig.outcome(job), Err(JobError::Origin));
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    let job = rig.core().set_mode(now, disk, WriteMode::WriteInvalidate).expect("no job runs");
    rig.finish(job);
    rig.log.clear();
    rig.write(disk, 2000, 8, 1);
    rig.wait(1_000_000);
    assert!(!rig.log.iter().any(is_origin_flush), "the map was cleared at once");
}

#[test]
fn nothing_is_managed_after_a_stop() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), SECTORS);
    let disk = rig.attach(&config, 1);
    rig.shelf.0.push(Device::blank("/dev/cache2", haversack_core::pool::device_bytes(4)));
    let number = rig.core().next_device_no().expect("another may join");
    let device = haversack_core::pool::prepare_device(
        &mut rig.shelf,
        2,
        &member(number, device_id(number.0)),
        u32::MAX,
        256,
    )
    .expect("a blank device");
    let job = rig.core().shutdown(0);
    for stopped in [false, true] {
        assert_eq!(rig.core().add_device(0, device).err(), Some(ManageError::Stopping), "{stopped}");
        assert_eq!(rig.core().remove_device(0, DeviceNo(0)).err(), Some(ManageError::Stopping));
        assert_eq!(rig.core().attach(0, &config, 1, false).err(), Some(ManageError::Stopping));
        assert_eq!(rig.core().detach(0, disk).err(), Some(ManageError::Stopping));
        rig.finish(job);
    }
    assert_eq!(rig.running().pool_stats().devices, 2);
}

#[test]
fn a_stop_cancels_a_removal_and_the_device_stays() {
    let mut rig = Rig::new(&[4, 4], true, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let removal = rig.core().remove_device(0, DeviceNo(1)).expect("another is left");
    rig.run_without(is_device_read);
    rig.start_write(disk, 800, 800, 2);
    let stop = rig.core().shutdown(0);
    rig.finish(stop);
    assert_eq!(rig.jobs[&removal], Err(JobError::Cancelled));
    let origins = std::mem::take(&mut rig.origins);
    let mut rig =
        Rig::open(std::mem::replace(&mut rig.shelf, Shelf(vec![])), memory(), CoreConfig::default());
    assert_eq!(rig.report.devices.len(), 2);
    rig.origins = origins;
    let disk = lazy(&mut rig, 0);
    rig.run();
    rig.flush(disk);
    let used = rig.usage(disk);
    assert!(used.dirty_blocks > 0 && used.mirrored_blocks == used.dirty_blocks, "{used:?}");
    assert!(!rig.running().pool_stats().degraded);
    rig.core().fail_device(0, DeviceNo(0));
    assert_eq!(rig.read(disk, 0, 1600), [[1; 800], [2; 800]].concat());
}

#[test]
fn a_stop_waits_for_a_device_that_joins() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    lazy(&mut rig, 0);
    let (_, joins) = rig.start_adding(4);
    let stop = rig.core().shutdown(0);
    rig.finish(stop);
    assert_eq!(rig.jobs[&joins], Ok(()));
    let rig = Rig::open(std::mem::replace(&mut rig.shelf, Shelf(vec![])), memory(), CoreConfig::default());
    assert!(rig.report.clean_stop);
    assert_eq!(rig.report.devices.len(), 2);
}

#[test]
fn a_removal_that_a_failure_completes_ends_when_the_record_says_so() {
    for (redundancy, result) in [(true, Ok(())), (false, Err(JobError::DataLost))] {
        let mut rig = Rig::new(&[4, 4], redundancy, CoreConfig::default());
        let disk = lazy(&mut rig, 0);
        rig.write(disk, 0, 1600, 1);
        rig.flush(disk);
        let job = rig.core().remove_device(0, DeviceNo(0)).expect("another is left");
        rig.run_without(is_device_read);
        rig.core().fail_device(0, DeviceNo(0));
        rig.run_without(is_record);
        assert!(!rig.jobs.contains_key(&job), "the record still lists the device");
        assert_eq!(rig.outcome(job), result);
    }
}

#[test]
fn a_write_past_the_cache_ends_before_a_disk_is_cut_off_there() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 2000, 800, 1);
    rig.flush(disk);
    let job = rig.core().set_mode(0, disk, WriteMode::PassThrough).expect("no job runs");
    rig.finish(job);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let write = rig.start_write(disk, 2400, 100, 2);
    rig.run();
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    let job = rig.core().resize(0, disk, 1000).expect("no job runs");
    let beyond = Rejected::OutOfRange { sector: 1000, sectors: 1, disk_sectors: 1000 };
    assert_eq!(rig.try_submit(disk, Op::Read, 1000, vec![0; 512]), Err(beyond));
    rig.finish(job);
    assert!(rig.is_answered(write));
    assert_eq!(rig.read(disk, 0, 1000), [7; 1000]);
}

#[test]
fn a_disk_does_not_grow_under_a_discard_of_its_last_block() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), 156) };
    let disk = rig.attach(&config, 1);
    rig.write(disk, 152, 4, 1);
    rig.flush(disk);
    let discard = rig.submit(disk, Op::Discard, 0, vec![0; 156 * 512]);
    let is_zeroing = |a: &Requested| matches!(a.action, Action::ZeroOrigin { .. });
    rig.run_without(is_zeroing);
    rig.origins.get_mut(&disk).expect("an origin").bytes.resize(179 * 512, 7);
    let job = rig.core().resize(0, disk, 179).expect("no job runs");
    rig.run_without(is_zeroing);
    assert!(!rig.jobs.contains_key(&job));
    rig.answered(discard);
    rig.finish(job);
    assert_eq!(rig.read(disk, 152, 8), [0, 0, 0, 0, 7, 7, 7, 7]);
}

#[test]
fn blocks_beyond_the_new_end_stay_dirty_until_the_record_has_the_new_size() {
    let idle_us = 1_000_000;
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config =
        DiskConfig { cleaner: CleanerConfig { idle_us, ..LAZY }, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.write(disk, 80, 8, 1);
    rig.flush(disk);
    rig.core().resize(0, disk, 84).expect("no job runs");
    let record_waits = |a: &Requested| if is_record(a) { Fate::Hold } else { Fate::Done };
    rig.wait_with(3 * idle_us, record_waits);
    assert_eq!(rig.usage(disk).dirty_blocks, 0, "the block was cleaned");
    rig.start_write(disk, 0, 8, 2);
    rig.start_flush(disk);
    rig.run_with(record_waits);
    // The device writes out the page that lists the block as clean, but the record with the new size is not written.
    let device = rig.device(DeviceNo(0));
    device.flush(device.flush_mark());
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let disk = rig.attach(&config, 1);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(80, 8), [1; 8 * 512], "the disk has its old size");
}

#[test]
fn a_clean_fails_if_a_device_takes_dirty_blocks_with_it() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.run_without(is_device_read);
    rig.core().fail_device(now, DeviceNo(0));
    assert_eq!(rig.outcome(job), Err(JobError::DataLost));
}

#[test]
fn writes_wait_for_room_when_the_last_device_is_lost_and_the_origin_is_away() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    rig.run_without(is_device_write);
    let writes: Vec<_> = (0..256).map(|at| rig.start_write(disk, at * 16, 16, 1)).collect();
    rig.run_without(is_device_write);
    rig.core().fail_device(0, DeviceNo(0));
    rig.run();
    assert!(writes.iter().any(|tag| !rig.is_answered(*tag)), "there is no room for all");
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    rig.core().loss_recorded(0);
    rig.wait(10_000_000);
    assert!(writes.iter().all(|tag| rig.is_answered(*tag)));
}

#[test]
fn evicted_content_does_not_come_back_when_a_disk_shrinks_and_grows() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig { mode: WriteMode::WriteInvalidate, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.read(disk, 2000, 8);
    rig.read(disk, 0, 800);
    rig.wait(10_000_000);
    // A clean block that cannot be read is evicted. Its page still lists the block, and its data is still in the slot.
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let read = rig.start_read(disk, 2000, 8);
    rig.run_with(|a| if is_device_read(a) { Fate::Fail(IoFailure::Error) } else { Fate::Done });
    assert!(rig.answer(read).is_err() && rig.stats(disk).corrupt_blocks == 1);
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    for size in [800, SECTORS] {
        rig.origins.get_mut(&disk).expect("an origin").bytes.resize(size as usize * 512, 0);
        let now = rig.now;
        let job = rig.core().resize(now, disk, size).expect("no job runs");
        rig.finish(job);
    }
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let disk = rig.attach(&config, 1);
    assert_eq!(rig.read(disk, 2000, 8), [0; 8]);
}

#[test]
fn staged_blocks_beyond_the_end_of_a_shrunk_disk_are_not_dirty_after_a_kill() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.write(disk, 804, 4, 1);
    let now = rig.now;
    rig.core().resize(now, disk, 803).expect("no job runs");
    rig.run_without(|a| is_device_write(a) && !is_record(a));
    let mut rig = rig.after_kill(CoreConfig::default());
    let disk = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), 803) }, 1);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
    rig.clean(disk);
}

#[test]
fn blocks_staged_during_an_origin_flush_stay_dirty() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.write(disk, 80, 8, 2);
    let mut origins = std::mem::take(&mut rig.origins);
    let (mut shelf, staging) = rig.kill();
    let origin = origins.get_mut(&disk).expect("an origin");
    offline::flush_disk(&mut shelf, disk_id(0), origin, |_| ()).expect("the pool is whole");

    let mut rig = Rig::open(shelf, staging, CoreConfig::default());
    rig.origins = origins;
    let mode = WriteMode::WriteThrough(WriteThroughAck::Origin);
    let config = DiskConfig { mode, cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    assert_eq!(rig.usage(disk).dirty_blocks, 1);
    rig.flush(disk);
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let disk = rig.attach(&config, 1);
    assert_eq!(rig.usage(disk).dirty_blocks, 1);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(80, 8), [2; 8 * 512]);
}

#[test]
fn blocks_cleaned_by_a_detach_stay_clean_after_the_next_attach() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 800, 1);
    let job = rig.core().detach(0, disk).expect("attached");
    rig.finish(job);
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 80, 8, 2);
    let (shelf, staging) = rig.kill();
    let rig = Rig::open(shelf, staging, CoreConfig::default());
    assert_eq!((rig.report.disks[0].cached_blocks, rig.report.disks[0].dirty_blocks), (100, 1));
}

/// A crash may leave the record on the devices, but not commits that were made before it. A commit after the crash must
/// not get the number of a lost one.
#[test]
fn commits_after_a_crash_have_higher_numbers_than_the_record() {
    for detaches in [false, true] {
        let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
        let mut rig = Rig::new(&[24], false, config);
        let other = lazy(&mut rig, 1);
        let disk = detaches.then(|| lazy(&mut rig, 0));
        for at in 0..16 {
            rig.start_write(other, at * 80, 8, 1);
        }
        let cleaner = LAZY;
        let job = match disk {
            Some(disk) => rig.core().detach(0, disk).expect("attached"),
            None => {
                let config = DiskConfig { cleaner, ..DiskConfig::new(disk_id(0), SECTORS) };
                rig.core().attach(0, &config, 1, false).expect("a new disk").1
            }
        };
        rig.run_without(is_segment_write);
        assert!(!rig.jobs.contains_key(&job), "the record is not durable yet");
        let (shelf, _) = rig.kill();

        let mut rig = Rig::open(shelf, memory(), config);
        let disk = lazy(&mut rig, 0);
        rig.write(disk, 0, 8, 2);
        rig.flush(disk);
        let mut rig = rig.after_power_cut(config);
        let disk = lazy(&mut rig, 0);
        assert_eq!(rig.usage(disk).dirty_blocks, 1, "detaches: {detaches}");
        assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    }
}

#[test]
fn a_released_disk_refuses_requests_until_it_is_attached_again() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), SECTORS);
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    rig.finish(job);
    let refused = Some(ManageError::NotAttached(disk_id(0)));
    assert_eq!(rig.core().clean(now, disk).err(), refused);
    assert_eq!(rig.core().detach(now, disk).err(), refused);
    assert_eq!(rig.core().release(now, disk).err(), refused);
    assert_eq!(rig.core().resize(now, disk, SECTORS / 2).err(), refused);
    assert_eq!(rig.core().set_mode(now, disk, WriteMode::PassThrough).err(), refused);
    assert_eq!(rig.core().set_target(now, disk, Target::Equal).err(), refused);
    let info = rig.core().disk_info(disk).expect("the pool knows it");
    assert_eq!((info.attached, info.owned), (false, false));
    assert_eq!(rig.try_submit(disk, Op::Read, 0, vec![0; 4096]), Err(Rejected::NotOwner));
    let mut rig = rig.after_power_cut(CoreConfig::default());
    assert_eq!(rig.try_submit(disk, Op::Read, 0, vec![0; 4096]), Err(Rejected::NotOwner));
    assert_eq!(rig.attach(&config, 2), disk);
    rig.read(disk, 0, 8);
}
