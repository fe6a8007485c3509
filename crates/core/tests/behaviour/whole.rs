//! Pools that lose one device after the other, or had only one device for a while. Obsolete versions on the remaining
//! devices must not come back.

use crate::common::*;
use haversack_core::{Core, CoreConfig, DiskConfig, IoPurpose, OpenOptions, PoolError};
use haversack_model::{DeviceNo, DiskNo};

const SECTORS: u64 = 4096;
fn config() -> CoreConfig {
    CoreConfig { commit_blocks: 1, ..CoreConfig::default() }
}

fn lazy(rig: &mut Rig, number: u8) -> DiskNo {
    rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(number), SECTORS) }, 1)
}

/// The devices that data was written to.
fn devices_written(log: &[Requested]) -> Vec<DeviceNo> {
    let has = |device: &DeviceNo| log.iter().any(|action| is_segment_write_to(action, *device));
    (0..4).map(DeviceNo).filter(has).collect()
}

/// Three devices. A fill of a disk's first block went to one device, and a later write to the two others. The block was
/// then cleaned. No page says yet that the filled version is overtaken.
fn overtaken_on_two_devices() -> (Rig, DiskNo, Vec<DeviceNo>) {
    let mut rig = Rig::new(&[4, 4, 4], true, config());
    let disk = lazy(&mut rig, 0);
    rig.start_read(disk, 0, 8);
    rig.run_without(is_device_flush);
    let filled = devices_written(&rig.log);
    let before = rig.log.len();
    rig.start_write(disk, 0, 8, 2);
    rig.run_without(is_device_flush);
    let written = devices_written(&rig.log[before..]);
    assert!(filled.len() == 1 && written.len() == 2 && !written.contains(&filled[0]));
    rig.flush(disk);
    rig.clean(disk);
    (rig, disk, written)
}

#[test]
fn a_stale_clean_block_does_not_come_back_when_both_devices_with_newer_ones_failed() {
    let (mut rig, disk, written) = overtaken_on_two_devices();
    for device in written {
        let now = rig.now;
        rig.core().fail_device(now, device);
        rig.run();
        rig.flush(disk);
    }
    let mut rig = rig.after_power_cut(config());
    assert_eq!(rig.report.devices.len(), 1);
    lazy(&mut rig, 0);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn a_stale_clean_block_does_not_come_back_when_one_device_failed_and_one_is_missing() {
    for wait_us in [0, 1_000_000] {
        let (mut rig, disk, written) = overtaken_on_two_devices();
        let now = rig.now;
        rig.core().fail_device(now, written[0]);
        rig.run();
        rig.wait(wait_us);
        let origins = std::mem::take(&mut rig.origins);
        let mut shelf = rig.power_cut();
        shelf.take(written[1].0 as usize);
        let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        let mut rig = Rig::open_with(shelf, memory(), config(), options);
        rig.origins = origins;
        let (now, disk_config) = (rig.now, DiskConfig::new(disk_id(0), SECTORS));
        let (_, attached) = rig.core().attach(now, &disk_config, 1, true).expect("the loss is accepted");
        rig.finish(attached);
        assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    }
}

#[test]
fn once_stale_versions_are_purged_the_cache_stays_warm_over_a_restart() {
    let (mut rig, disk, written) = overtaken_on_two_devices();
    let other = lazy(&mut rig, 1);
    for block in 0..100 {
        rig.read(other, 8 * block, 8);
    }
    let now = rig.now;
    rig.core().fail_device(now, written[0]);
    rig.run();
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    let left = rig.usage(other).usage_blocks;
    assert!(left > 30);
    let rig = Rig::open(rig.shutdown(), memory(), config());
    assert_eq!(rig.report.disks[1].cached_blocks, left);
}

/// Two devices, one of which is being taken out. The first block of a disk is on both, as is much of another disk.
fn half_removed() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[4, 4], true, config());
    let (disk, other) = (lazy(&mut rig, 0), lazy(&mut rig, 1));
    rig.write(disk, 0, 8, 1);
    rig.write(other, 0, 80, 1);
    rig.flush(disk);
    rig.flush(other);
    let now = rig.now;
    rig.core().remove_device(now, DeviceNo(1)).expect("another is left");
    (rig, disk)
}

/// Whether an I/O reads a block of the other disk to stage it again. While such a read is held, the device cannot
/// become empty.
fn is_of_the_other(asked: &Requested) -> bool {
    asked.purpose == Some(IoPurpose::Restage) && asked.disk == Some(DiskNo(1))
}

#[test]
fn versions_superseded_on_a_lone_device_do_not_come_back_once_the_pool_is_whole() {
    let (mut rig, disk) = half_removed();
    rig.run_without(is_of_the_other);
    rig.start_write(disk, 0, 8, 2);
    rig.start_flush(disk);
    rig.run_without(is_of_the_other);
    let now = rig.now;
    let detached = rig.core().detach(now, disk).expect("nothing else is going on");
    rig.run_without(is_of_the_other);
    assert_eq!(rig.jobs.get(&detached), Some(&Ok(())));
    assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 4096]);
    // The power cut interrupts the removal. After the restart, the pool becomes whole again.
    let mut rig = rig.after_power_cut(config());
    rig.run();
    assert!(!rig.running().pool_stats().degraded);
    let origins = std::mem::take(&mut rig.origins);
    let mut shelf = rig.power_cut();
    shelf.take(0);
    let mut rig = Rig::open(shelf, memory(), config());
    rig.origins = origins;
    lazy(&mut rig, 0);
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
}

#[test]
fn a_lone_device_that_the_record_does_not_name_yet_is_missed() {
    let (mut rig, _) = half_removed();
    rig.run_without(is_record);
    // The power fails. Everything that was written has reached the devices. The next failure follows before mirrored
    // copies are made.
    let (shelf, _) = rig.kill();
    let rig = Rig::open(shelf, memory(), config());
    assert!(rig.running().pool_stats().degraded);
    let (mut shelf, _) = rig.kill();
    shelf.take(0);
    let opened = Core::open(&mut shelf, &mut memory(), config(), &OpenOptions::default(), 0);
    let error = opened.err().expect("the first device has the only copies");
    assert!(matches!(error, PoolError::MissingDevice { device: DeviceNo(0), .. }), "{error}");
}

#[test]
fn the_other_device_can_be_done_without() {
    let (mut rig, disk) = half_removed();
    rig.run_without(is_device_read);
    let mut shelf = rig.power_cut();
    shelf.take(1);
    let mut rig = Rig::open(shelf, memory(), config());
    lazy(&mut rig, 0);
    assert_eq!(rig.read(disk, 0, 8), [1; 8]);
}

#[test]
fn nothing_is_cleaned_before_the_record_says_that_a_device_stands_alone() {
    let mut rig = Rig::new(&[4, 4], true, config());
    let disk = lazy(&mut rig, 0);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    // The record is already being written because another disk is attached. So a record that says that a device stands
    // alone is written only later.
    let (now, other) = (rig.now, DiskConfig::new(disk_id(1), SECTORS));
    rig.core().attach(now, &other, 1, false).expect("the disk may be attached");
    rig.run_without(is_device_flush);
    rig.core().fail_device(now, DeviceNo(1));
    rig.start_write(disk, 0, 8, 2);
    rig.run_without(is_record);
    let now = rig.now;
    let cleaned = rig.core().clean(now, disk).expect("nothing else is going on");
    rig.run_without(is_record);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [OF_ORIGIN; 4096]);
    rig.finish(cleaned);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 4096]);
}

#[test]
fn the_last_device_goes_on_when_the_other_fails_while_it_is_being_emptied() {
    let (mut rig, disk) = half_removed();
    rig.run_without(is_device_read);
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.write(disk, 8, 8, 3);
    rig.flush(disk);
    let mut rig = rig.after_power_cut(config());
    lazy(&mut rig, 0);
    assert_eq!(rig.read(disk, 0, 16), [[1; 8], [3; 8]].concat());
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [1; 4096]);
}
