//! Devices that come, go and fail while the pool is in use; disks that change hands.

use crate::common::*;
use haversack_core::{
    Action, Core, CoreConfig, DiskConfig, Event, IoFailure, JobError, ManageError, Op, OpenOptions,
    PoolError, Rejected, RequestError,
};
use haversack_model::{DeviceNo, SECTOR_BYTES, WriteMode};

const SECTORS: u64 = 4096;

#[test]
fn a_device_that_joins_takes_second_copies() {
    let mut rig = Rig::new(&[4], true, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    assert_eq!(rig.usage(disk).mirrored_blocks, 0);
    assert!(rig.running().pool_stats().degraded);
    let added = rig.add_device(4);
    rig.flush(disk);
    // Blocks that were cleaned in the meantime need no mirrored copy.
    let usage = rig.usage(disk);
    assert!(usage.dirty_blocks > 0 && usage.mirrored_blocks == usage.dirty_blocks);
    assert!(!rig.running().pool_stats().degraded);
    assert_eq!(rig.running().pool_stats().devices, 2);

    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    assert!(rig.events.contains(&Event::DeviceFailed { device: DeviceNo(0), lost_blocks: 0 }));
    assert_eq!(rig.read(disk, 0, 800), [1; 800]);
    assert!(rig.running().pool_stats().degraded);
    assert_eq!(added, DeviceNo(1));
}

#[test]
fn the_number_of_a_device_that_left_is_given_to_another_after_the_next_start() {
    let config = CoreConfig::default();
    let mut rig = Rig::new(&[4, 4], false, config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(0)).expect("another is left");
    rig.finish(job);
    assert_eq!(rig.running().next_device_no(), Some(DeviceNo(2)));
    let mut rig = rig.after_power_cut(config);
    assert_eq!((&rig.report.ignored[..], rig.running().next_device_no()), (&[0][..], Some(DeviceNo(0))));
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.add_device(4), DeviceNo(0));
    assert_eq!(rig.running().next_device_no(), Some(DeviceNo(2)));
    rig.write(disk, 800, 1600, 2);
    rig.flush(disk);
    let mut rig = rig.after_power_cut(config);
    assert_eq!(rig.report.ignored, [0], "the earlier device is told apart from the one that has its number");
    assert_eq!(rig.report.devices.iter().find(|(number, _)| number.0 == 0), Some(&(DeviceNo(0), 2)));
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 2400), [[1; 800], [2; 800], [2; 800]].concat());
}

#[test]
fn a_removed_device_is_ignored_when_it_comes_back() {
    let mut rig = Rig::new(&[4, 4], true, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(1)).expect("another is left");
    rig.finish(job);
    rig.write(disk, 0, 800, 2);
    let rig = Rig::open(rig.shutdown(), memory(), CoreConfig::default());
    assert_eq!(
        (rig.report.devices.as_slice(), rig.report.ignored.as_slice()),
        (&[(DeviceNo(0), 0)][..], &[1][..])
    );
}

#[test]
fn a_removal_empties_a_device_step_by_step() {
    let mut rig = Rig::new(&[70, 70], false, CoreConfig::default());
    let disk = rig.disk(0, 250_000, WriteMode::WriteBack);
    for at in (0..240_000).step_by(128) {
        rig.read(disk, at, 128);
    }
    rig.wait(10_000_000);
    let before = rig.usage(disk).usage_blocks;
    assert!(before > 20_000);
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(1)).expect("another is left");
    rig.collect();
    let evicted = before - rig.usage(disk).usage_blocks;
    assert!(evicted > 0 && evicted <= 4 * 253, "{evicted} blocks in one call");
    rig.run();
    assert_eq!(rig.jobs.get(&job), Some(&Ok(())), "its own I/Os drive it, nothing else has to happen");
    assert!(rig.usage(disk).usage_blocks < before - 8000);
}

#[test]
fn a_failure_takes_clean_blocks_out_step_by_step() {
    let mut rig = Rig::new(&[70, 70], false, CoreConfig::default());
    let disk = rig.disk(0, 250_000, WriteMode::WriteBack);
    for at in (0..240_000).step_by(128) {
        rig.read(disk, at, 128);
    }
    rig.wait(10_000_000);
    let before = rig.usage(disk).usage_blocks;
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(1));
    rig.collect();
    let gone = before - rig.usage(disk).usage_blocks;
    assert!(gone > 0 && gone <= 8 * 253, "{gone} blocks in one call");
    // None of the blocks on the failed device is found any more. Now compare with changed origin data: reads must not
    // use the device.
    rig.origins.get_mut(&disk).expect("an origin").bytes.fill(8);
    rig.log.clear();
    let values: Vec<u8> = (0..240_000).step_by(6400).flat_map(|at| rig.read(disk, at, 8)).collect();
    assert!(values.contains(&8) && values.iter().all(|value| [7, 8].contains(value)));
    let is_gone = |asked: &Requested| matches!(asked.action, Action::ReadDevice { device: DeviceNo(1), .. });
    assert!(!rig.log.iter().any(is_gone));
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.wait(1_000_000);
    rig.running().check();
    let left = rig.usage(disk).usage_blocks;
    assert!(left < before - 8000, "{left} of {before} blocks are left");
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
    let mut rig = rig.after_power_cut(CoreConfig::default());
    assert_eq!(rig.report.devices, [(DeviceNo(0), 0)]);
    let disk = rig.disk(0, 250_000, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}

#[test]
fn a_flush_waits_until_the_record_drops_a_failed_device() {
    let mut rig = Rig::new(&[4, 4], true, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(1));
    let flush = rig.start_flush(disk);
    rig.run_without(is_device_write);
    assert!(!rig.is_answered(flush));
    rig.answered(flush);
}

#[test]
fn a_disk_with_staged_clean_blocks_is_detached_without_devices() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    let now = rig.now;
    let clean = rig.core().clean(now, disk).expect("no job runs");
    rig.start_read(disk, 800, 8);
    rig.run_with(|a| match a.action {
        Action::ReadDevice { .. } => Fate::Fail(IoFailure::Error),
        Action::WriteDevice { .. } => Fate::Hold,
        _ => Fate::Done,
    });
    rig.core().fail_device(now, DeviceNo(0));
    rig.core().loss_recorded(now);
    rig.run();
    assert_eq!(rig.jobs.get(&clean), Some(&Err(JobError::DataLost)));
    let detach = rig.core().detach(now, disk).expect("no job runs");
    rig.run();
    assert_eq!(rig.jobs.get(&detach), Some(&Err(JobError::DataLost)), "nothing is left to wait for");
}

#[test]
fn dirty_blocks_without_a_mirrored_copy_fail_until_written_again() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 64, 1);
    rig.flush(disk);
    rig.add_device(4);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    assert!(rig.events.contains(&Event::DeviceFailed { device: DeviceNo(0), lost_blocks: 8 }));
    let read = rig.start_read(disk, 0, 8);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
    let part = rig.start_write(disk, 0, 4, 2);
    assert_eq!(rig.answer(part), Err(RequestError::DataLost));
    rig.write(disk, 0, 8, 2);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    assert_eq!(rig.read(disk, 64, 8), [7; 8]);
}

#[test]
fn without_any_device_writes_wait_for_the_loss_to_be_noted() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteThrough(haversack_model::WriteThroughAck::Origin));
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    let write = rig.start_write(disk, 0, 8, 1);
    rig.run();
    assert!(rig.events.contains(&Event::PoolLost) && !rig.is_answered(write));
    assert_eq!(rig.read(disk, 0, 8), [7; 8]);
    rig.core().loss_recorded(now);
    rig.answered(write);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [1; 8 * 512]);
    rig.add_device(4);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}

#[test]
fn a_flush_fails_without_devices_and_the_release_completes() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), SECTORS);
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 8, 1);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    let (first, second) = (rig.start_flush(disk), rig.start_flush(disk));
    rig.run();
    assert!(!rig.is_answered(first) && !rig.is_answered(second), "the loss is not noted yet");
    let job = rig.core().release(now, disk).expect("attached");
    rig.finish(job);
    for flush in [first, second] {
        assert_eq!(rig.answer(flush), Err(RequestError::NotOwner));
    }
    rig.add_device(4);
    let disk = rig.attach(&config, 2);
    rig.write(disk, 0, 8, 2);
    rig.flush(disk);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn a_flush_fails_without_space_and_the_release_completes() {
    let mut rig = Rig::new(&[2], false, CoreConfig::default());
    let config = |number| DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) };
    let disk = rig.attach(&config(0), 1);
    rig.write(disk, 0, 8, 2);
    for number in 1..3 {
        let released = rig.attach(&config(number), 1);
        let write = rig.start_write(released, 0, 400, 1);
        let flush = rig.start_flush(released);
        rig.run_without(is_origin_write);
        assert!(rig.is_answered(write) && rig.is_answered(flush));
        let now = rig.now;
        let job = rig.core().release(now, released).expect("attached");
        rig.run_without(is_origin_write);
        assert!(rig.jobs.contains_key(&job));
        assert_eq!(rig.usage(released).dirty_blocks, 50, "a segment has dirty blocks that nobody cleans");
    }
    let flush = rig.start_flush(disk);
    rig.run_without(is_origin_write);
    assert!(!rig.is_answered(flush), "the origin may take it yet");
    let refuse = |a: &Requested| if is_origin_write(a) { Fate::Fail(IoFailure::Error) } else { Fate::Done };
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    rig.run_with(refuse);
    assert_eq!(rig.answer(flush), Err(RequestError::NotOwner));
    rig.finish(job);
}

#[test]
fn a_released_disk_is_taken_back_only_under_a_higher_epoch() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig::new(disk_id(0), SECTORS);
    let disk = rig.attach(&config, 3);
    rig.write(disk, 0, 800, 1);
    rig.log.clear();
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    assert_eq!(rig.try_submit(disk, haversack_core::Op::Flush, 0, vec![]), Err(Rejected::NotOwner));
    rig.run_without(is_device_flush);
    assert!(!rig.jobs.contains_key(&job), "the record must be durable first");
    rig.finish(job);
    rig.wait(100_000_000);
    assert!(!rig.log.iter().any(is_origin_write), "no write after the release");
    for epoch in [2, 3] {
        let old = ManageError::OldEpoch { given: epoch, recorded: 3 };
        assert_eq!(rig.core().attach(now, &config, epoch, false).err(), Some(old));
    }
    rig.origins.get_mut(&disk).expect("an origin").bytes.fill(8);
    let disk = rig.attach(&config, 4);
    assert_eq!(rig.read(disk, 0, 800), [8; 800], "what was cached is void");
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn a_release_waits_for_origin_writes_in_flight() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    let write = rig.start_write(disk, 0, 8, 1);
    rig.run_without(is_origin_write);
    let now = rig.now;
    let job = rig.core().release(now, disk).expect("attached");
    rig.run_without(is_origin_write);
    assert!(!rig.jobs.contains_key(&job));
    rig.finish(job);
    assert!(rig.is_answered(write));
}

#[test]
fn the_recorded_epoch_keeps_the_cache_warm_and_a_higher_one_voids_it() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig { mode: WriteMode::WriteInvalidate, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.read(disk, 0, 800);
    for (epoch, misses) in [(1, 100), (2, 200), (2, 200)] {
        let now = rig.now;
        let job = rig.core().detach(now, disk).expect("attached");
        rig.finish(job);
        rig.attach(&config, epoch);
        rig.read(disk, 0, 800);
        assert_eq!(rig.stats(disk).read_misses, misses, "epoch {epoch}");
    }
}

#[test]
fn what_is_outdated_is_dropped_under_the_recorded_epoch_unless_it_is_dirty() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let config = DiskConfig { mode: WriteMode::WriteBack, ..DiskConfig::new(disk_id(0), SECTORS) };
    let disk = rig.attach(&config, 1);
    rig.write(disk, 0, 800, 1);
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("attached");
    rig.finish(job);
    rig.origins.get_mut(&disk).expect("the disk has an origin").bytes[..800 * SECTOR_BYTES].fill(2);
    let now = rig.now;
    let (again, job) = rig.core().attach_outdated(now, &config, 1, false).expect("it is clean");
    rig.finish(job);
    assert_eq!(again, disk);
    assert_eq!(rig.read(disk, 0, 800), [2; 800]);
    assert_eq!(rig.stats(disk).read_misses, 100);
    rig.write(disk, 0, 8, 3);
    rig.flush(disk);
    let mut rig = rig.after_kill(CoreConfig::default());
    let now = rig.now;
    let refused = rig.core().attach_outdated(now, &config, 1, false).err();
    assert_eq!(refused, Some(ManageError::Dirty { disk: config.id, dirty_blocks: 1 }));
}

#[test]
fn a_device_is_removed_without_loss() {
    for redundancy in [false, true] {
        let mut rig = Rig::new(&[4, 4, 4], redundancy, CoreConfig::default());
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        rig.write(disk, 0, 800, 1);
        rig.flush(disk);
        for device in [DeviceNo(0), DeviceNo(1)] {
            let now = rig.now;
            let job = rig.core().remove_device(now, device).expect("others are left");
            assert_eq!(rig.core().remove_device(now, DeviceNo(2)).err(), Some(ManageError::Busy));
            rig.finish(job);
            assert_eq!(rig.core().remove_device(now, device).err(), Some(ManageError::NoSuchDevice(device)));
            let place = rig.places[&device];
            rig.shelf.0[place].bytes.fill(0xdd);
            assert_eq!(rig.read(disk, 0, 800), [1; 800]);
        }
        let origins = std::mem::take(&mut rig.origins);
        let mut shelf = rig.shutdown();
        let left = shelf.take(2);
        let mut rig = Rig::open(Shelf(vec![left]), memory(), CoreConfig::default());
        rig.origins = origins;
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        assert_eq!(rig.read(disk, 0, 800), [1; 800]);
    }
}

#[test]
fn a_pool_is_degraded_until_every_dirty_block_is_mirrored() {
    for fails in [false, true] {
        let devices: &[u32] = if fails { &[4, 4] } else { &[4] };
        let mut rig = Rig::new(devices, true, CoreConfig::default());
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        rig.write(disk, 0, 808, 1);
        rig.flush(disk);
        if fails {
            rig.core().fail_device(0, DeviceNo(1));
        }
        rig.write(disk, 4, 8, 2);
        rig.write(disk, 2000, 3, 2);
        let (_, job) = rig.start_adding(4);
        rig.run_without(is_device_read);
        assert!(rig.jobs.contains_key(&job), "the device is in use");
        assert!(rig.running().pool_stats().degraded, "blocks wait for their second copies");
        rig.run();
        assert!(!rig.running().pool_stats().degraded);
        assert_eq!((rig.usage(disk).dirty_blocks, rig.usage(disk).mirrored_blocks), (102, 102));
        rig.core().fail_device(0, DeviceNo(0));
        assert_eq!(rig.read(disk, 0, 16), [[1; 4], [2; 4], [2; 4], [1; 4]].concat());
    }
}

#[test]
fn a_joining_device_does_not_replace_the_first() {
    let mut rig = Rig::new(&[4], true, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let (_, job) = rig.start_adding(4);
    rig.run_without(is_device_read);
    assert!(rig.jobs.contains_key(&job), "the device is in use");
    let mut shelf = rig.power_cut();
    shelf.take(0);
    let opened = Core::open(&mut shelf, &mut memory(), CoreConfig::default(), &OpenOptions::default(), 0);
    let error = opened.err().expect("the first device has the only copies");
    assert!(matches!(error, PoolError::MissingDevice { device: DeviceNo(0), .. }), "{error}");
}

#[test]
fn a_device_being_emptied_does_not_replace_the_last() {
    let mut rig = Rig::new(&[4, 4], true, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    rig.core().remove_device(0, DeviceNo(1)).expect("another is left");
    rig.run_without(is_device_read);
    let write = rig.start_write(disk, 1600, 800, 2);
    let flush = rig.start_flush(disk);
    rig.run_without(is_device_read);
    assert!(rig.is_answered(write) && rig.is_answered(flush));
    let mut shelf = rig.power_cut();
    shelf.take(0);
    let opened = Core::open(&mut shelf, &mut memory(), CoreConfig::default(), &OpenOptions::default(), 0);
    let error = opened.err().expect("the other device has the only copies");
    assert!(matches!(error, PoolError::MissingDevice { device: DeviceNo(0), .. }), "{error}");
}

/// The first version of a block is on its way to a device that is being emptied, so nothing of it stays on flash.
#[test]
fn a_kill_does_not_bring_back_a_block_whose_slow_commit_was_evicted() {
    for (op, value) in [(Op::Discard, 0), (Op::Write { fua: false }, 2)] {
        let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
        let mut rig = Rig::new(&[4, 4], false, config);
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        let read = rig.start_read(disk, 0, 8);
        rig.run_without(is_device_write);
        assert!(rig.is_answered(read));
        let slow = rig.pending.iter().find_map(|pending| match pending.asked.action {
            Action::WriteDevice { device, .. } => Some(device),
            _ => None,
        });
        let slow = slow.expect("the block is on its way to flash");
        let is_slow =
            |a: &Requested| matches!(a.action, Action::WriteDevice { device, .. } if device == slow);
        rig.start_write(disk, 0, 8, 1);
        rig.core().remove_device(0, slow).expect("another is left");
        rig.run_without(is_slow);
        let newest = rig.submit_sized(disk, op, 0, 8, vec![value; 8 * 512]).expect("the request is taken");
        rig.run_without(is_slow);
        let expected = if rig.is_answered(newest) { value } else { 1 };
        let mut rig = rig.after_kill(config);
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        assert_eq!(rig.read(disk, 0, 8), [expected; 8], "{op:?}");
    }
}

#[test]
fn a_kill_does_not_bring_back_a_block_whose_slow_commit_was_lost_with_its_device() {
    let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
    let mut rig = Rig::new(&[4], false, config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    for half in [0, 4] {
        rig.start_read(disk, half, 4);
        rig.run_without(is_device_write);
    }
    let is_slow = |a: &Requested| matches!(a.action, Action::WriteDevice { device: DeviceNo(0), .. });
    rig.core().fail_device(0, DeviceNo(0));
    rig.core().loss_recorded(0);
    rig.run_without(is_slow);
    let write = rig.start_write(disk, 0, 8, 1);
    rig.start_adding(4);
    rig.run_without(is_slow);
    let expected = if rig.is_answered(write) { 1 } else { 7 };
    let mut rig = rig.after_kill(config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteInvalidate);
    assert_eq!(rig.read(disk, 0, 8), [expected; 8]);
}

#[test]
fn nothing_is_kept_on_a_device_before_the_record_lists_it() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    rig.start_adding(8);
    rig.run_without(is_record);
    rig.start_write(disk, 0, 1600, 1);
    let flush = rig.start_flush(disk);
    rig.run_without(is_record);
    assert!(!rig.is_answered(flush), "what is written while the record is being written is durable with it");
    let mut rig = rig.after_kill(CoreConfig::default());
    assert_eq!(rig.report.ignored, [1]);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    assert_eq!(rig.read(disk, 0, 1600), [1; 1600]);
}

#[test]
fn a_returning_device_does_not_supersede_blocks_cleaned_for_lack_of_space() {
    let config = CoreConfig { commit_blocks: 1, ..CoreConfig::default() };
    let mut rig = Rig::new(&[2, 2], false, config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    let other = rig.disk(1, 2 * SECTORS, WriteMode::WriteBack);
    rig.read(disk, 0, 8);
    // The other disk fills the rest of both devices.
    rig.read(other, 0, 3 * 254 * 8);
    assert_eq!((rig.usage(disk).segments, rig.usage(other).segments), (1, 3));
    rig.write(disk, 0, 8, 2);
    let now = rig.now;
    rig.core().remove_device(now, DeviceNo(0)).expect("another is left");
    rig.run_without(is_device_write);
    let mut rig = rig.after_power_cut(config);
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    let read = rig.read(disk, 0, 8);
    let in_origin = rig.origins[&disk].sectors(0, 8).iter().step_by(512).copied();
    assert_eq!(in_origin.collect::<Vec<u8>>(), read);
}
