//! Writes that would make more of a share dirty than its limit.

use crate::common::*;
use haversack_core::{CleanerConfig, CoreConfig, DiskConfig, IoPurpose, Target};
use haversack_model::DiskNo;

/// A disk with a target of 800 blocks, of which 400 may be dirty, and 400 are. The tests hold the cleaner's writes to
/// the origin.
fn rig() -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[8], false, CoreConfig { commit_blocks: 16, ..CoreConfig::default() });
    let cleaner = CleanerConfig { low_watermark: 0.5, high_watermark: 0.5, dirty_limit: 0.5, ..LAZY };
    let config = DiskConfig { cleaner, target: Target::Blocks(800), ..DiskConfig::new(disk_id(0), 80_000) };
    let disk = rig.attach(&config, 1);
    let rest = Target::Blocks(rig.running().pool_stats().capacity_blocks - 800);
    rig.attach(&DiskConfig { target: rest, ..DiskConfig::new(disk_id(1), 80_000) }, 1);
    rig.write(disk, 8000, 80, 1);
    rig.clean(disk);
    rig.write(disk, 80, 3200, 1);
    assert_eq!(rig.usage(disk).dirty_blocks, 400);
    (rig, disk)
}

/// Whether an I/O is a write of the cleaner.
fn cleans(asked: &Requested) -> bool {
    asked.purpose == Some(IoPurpose::CleanWrite)
}

#[test]
fn a_write_over_the_limit_does_not_wait_for_the_cleaner() {
    let (mut rig, disk) = rig();
    let write = rig.start_write(disk, 16_000, 16, 2);
    rig.run_without(cleans);
    assert!(rig.is_answered(write));
    assert_eq!(rig.origins[&disk].sectors(16_000, 16), [2; 16 * 512]);
    assert_eq!(rig.read(disk, 16_000, 16), [2; 16]);
    assert_eq!(rig.stats(disk).overflowed_blocks, 2);
}

#[test]
fn clean_blocks_stay_cached() {
    let (mut rig, disk) = rig();
    let write = rig.start_write(disk, 8000, 8, 2);
    rig.run_without(cleans);
    assert!(rig.is_answered(write));
    let before = rig.stats(disk).read_hits;
    assert_eq!(rig.read(disk, 8000, 8), [2; 8]);
    assert_eq!(rig.stats(disk).read_hits, before + 1);
    assert_eq!(rig.origins[&disk].sectors(8000, 8), [2; 8 * 512]);
}

#[test]
fn a_write_goes_on_past_the_cache_after_its_dirty_blocks() {
    let (mut rig, disk) = rig();
    let write = rig.start_write(disk, 3264, 32, 2);
    rig.run_without(cleans);
    assert!(rig.is_answered(write));
    assert_eq!(rig.origins[&disk].sectors(3280, 16), [2; 16 * 512]);
    assert_ne!(rig.origins[&disk].sectors(3264, 16), [2; 16 * 512], "what is dirty is not overtaken");
    assert_eq!(rig.read(disk, 3264, 32), [2; 32]);
}

#[test]
fn a_write_goes_past_the_cache_before_and_after_its_dirty_blocks() {
    let (mut rig, disk) = rig();
    let (mut answered, mut overflowed) = (Vec::new(), 0);
    for (sector, sectors, past) in [(72, 16, 1), (40, 3280, 10)] {
        answered.push(rig.start_write(disk, sector, sectors, 2));
        rig.run_without(cleans);
        assert!(answered.iter().all(|write| rig.is_answered(*write)));
        overflowed += past;
        assert_eq!(rig.stats(disk).overflowed_blocks, overflowed);
        assert_eq!(rig.origins[&disk].sectors(sector, 8), [2; 8 * 512]);
        assert_ne!(rig.origins[&disk].sectors(80, 8), [2; 8 * 512], "what is dirty is not overtaken");
    }
    for at in [40, 72, 80, 3312] {
        assert_eq!(rig.read(disk, at, 8), [2; 8]);
    }
}

#[test]
fn writes_refused_by_the_origin_are_staged_when_there_is_room() {
    let (mut rig, disk) = rig();
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let writes = [16_000, 8000, 24_000].map(|sector| rig.start_write(disk, sector, 16, 2));
    rig.run();
    assert!(writes.iter().all(|write| !rig.is_answered(*write)), "they neither fail nor are they done");
    assert_eq!(rig.stats(disk).failed_requests, 0);
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    for (write, sector) in writes.into_iter().zip([16_000, 8000, 24_000]) {
        rig.answered(write);
        assert_eq!(rig.read(disk, sector, 16), [2; 16]);
    }
    assert_eq!(rig.stats(disk).failed_requests, 0);
}

#[test]
fn no_older_content_returns_after_an_overflowing_write_and_a_kill() {
    let (mut rig, disk) = rig();
    let write = rig.start_write(disk, 8000, 8, 2);
    rig.run_without(cleans);
    assert!(rig.is_answered(write));
    rig.flush(disk);
    let origin = rig.origins[&disk].bytes.clone();
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let disk = rig.disk(0, 80_000, haversack_model::WriteMode::WriteBack);
    rig.origins.get_mut(&disk).expect("an origin").bytes = origin;
    assert_eq!(rig.read(disk, 8000, 8), [2; 8]);
}

#[test]
fn unassigned_capacity_counts_towards_the_disks_limit() {
    let (mut rig, disk) = rig();
    let now = rig.now;
    let other = DiskNo(1);
    let capacity = rig.running().pool_stats().capacity_blocks;
    // 600 blocks are unassigned, so half of them count towards the limit of each of the two disks.
    rig.core().set_target(now, other, Target::Blocks(capacity - 800 - 600)).expect("it is attached");
    let write = rig.start_write(disk, 3280, 151 * 8, 2);
    rig.run_without(cleans);
    assert!(rig.is_answered(write));
    assert_eq!(rig.stats(disk).overflowed_blocks, 1, "550 of 1100 blocks are dirty");
}
