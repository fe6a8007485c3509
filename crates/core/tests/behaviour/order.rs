//! Cleaning in the order of the guest's flushes.

use crate::common::*;
use haversack_core::{Action, CleanOrder, CleanerConfig, CoreConfig, DiskConfig, IoFailure, Op, Target};
use haversack_model::{DeviceNo, DiskNo, SectorNo};

const IN_ORDER: CleanerConfig = CleanerConfig { order: CleanOrder::Flush, ..LAZY };

fn rig(devices: &[u32], cleaner: CleanerConfig) -> (Rig, DiskNo) {
    let mut rig = Rig::new(devices, false, CoreConfig { commit_blocks: 4, ..CoreConfig::default() });
    let config = DiskConfig { cleaner, target: Target::Equal, ..DiskConfig::new(disk_id(0), 80_000) };
    let disk = rig.attach(&config, 1);
    (rig, disk)
}

/// The first sectors of all writes to the origin, in order; `None` for a flush.
fn origin_log(rig: &Rig) -> Vec<Option<u64>> {
    let entry = |action: &Action| match action {
        Action::WriteOrigin { sector: SectorNo(sector), .. } => Some(Some(*sector)),
        Action::FlushOrigin { .. } => Some(None),
        _ => None,
    };
    rig.log.iter().filter_map(|asked| entry(&asked.action)).collect()
}

#[test]
fn groups_reach_the_origin_one_after_the_other() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    for sectors in [[800, 0], [400, 1600], [80, 8]] {
        sectors.iter().for_each(|sector| rig.write(disk, *sector, 8, 1));
        rig.flush(disk);
    }
    rig.log.clear();
    rig.clean(disk);
    let log = origin_log(&rig);
    let expected = [Some(0), Some(800), None, Some(400), Some(1600), None, Some(8), Some(80), None];
    assert_eq!(log, expected);
}

#[test]
fn writes_that_no_flush_separates_are_cleaned_together() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    (0..40).rev().for_each(|block| rig.write(disk, block * 8, 8, 1));
    rig.flush(disk);
    rig.log.clear();
    rig.clean(disk);
    assert_eq!(origin_log(&rig), [Some(0), None]);
}

#[test]
fn a_flush_of_a_block_that_was_flushed_before_waits_until_that_version_is_at_the_origin() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    rig.write(disk, 0, 8, 1);
    rig.write(disk, 800, 8, 1);
    rig.flush(disk);
    rig.write(disk, 0, 8, 2);
    let flush = rig.start_flush(disk);
    rig.run_without(is_origin_write);
    assert!(!rig.is_answered(flush));
    assert_eq!(rig.read(disk, 0, 8), [2; 8]);
    rig.answered(flush);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [1; 8 * 512]);
    assert_eq!(rig.origins[&disk].sectors(800, 8), [1; 8 * 512]);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 8 * 512]);
}

#[test]
fn a_block_that_was_not_flushed_is_written_again_without_the_origin() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    for value in 1..5 {
        (0..8).for_each(|block| rig.write(disk, block * 8, 8, value));
    }
    rig.flush(disk);
    assert_eq!(rig.origins[&disk].writes, 0);
}

#[test]
fn a_write_past_the_cache_waits_until_what_was_flushed_is_at_the_origin() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.log.clear();
    let zeroes = rig.submit_sized(disk, Op::WriteZeroes, 80, 8, Vec::new()).expect("the request is taken");
    rig.answered(zeroes);
    let first = rig
        .log
        .iter()
        .find(|asked| matches!(asked.action, Action::WriteOrigin { .. } | Action::ZeroOrigin { .. }));
    assert!(matches!(first.expect("the origin changes").action, Action::WriteOrigin { .. }));
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn while_the_origin_is_away_only_flushes_of_what_was_flushed_before_wait() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    let refuse = |asked: &Requested| match is_origin_write(asked) {
        true => Fate::Fail(IoFailure::Gone),
        false => Fate::Done,
    };
    rig.write(disk, 80, 8, 2);
    let other = rig.start_flush(disk);
    rig.run_with(refuse);
    assert!(rig.is_answered(other));
    rig.write(disk, 0, 8, 3);
    let same = rig.start_flush(disk);
    rig.run_with(refuse);
    assert!(!rig.is_answered(same));
    rig.answered(same);
}

#[test]
fn versions_that_wait_leave_most_of_the_staging_area_to_others() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    let blocks = u64::from(rig.staging_frames());
    (0..blocks).for_each(|block| rig.write(disk, block * 8, 8, 1));
    rig.flush(disk);
    let held = |asked: &Requested| is_origin_write(asked);
    let writes: Vec<_> = (0..blocks).map(|block| rig.start_write(disk, block * 8, 8, 2)).collect();
    rig.run_without(held);
    let taken = writes.iter().filter(|tag| rig.is_answered(**tag)).count() as u64;
    assert!((blocks / 8..blocks / 4).contains(&taken), "{taken} of {blocks}");
    writes.into_iter().for_each(|tag| rig.answered(tag));
}

#[test]
fn each_commit_is_a_group_after_a_restart_and_the_origin_is_in_order_when_they_are_clean() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
    for sector in [800, 0, 400] {
        rig.write(disk, sector, 8, 1);
        rig.flush(disk);
    }
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
    let mut rig = rig.after_power_cut(CoreConfig::default());
    let config = DiskConfig { cleaner: IN_ORDER, ..DiskConfig::new(disk_id(0), 80_000) };
    let disk = rig.attach(&config, 1);
    assert_eq!(rig.usage(disk).origin_in_order, Some(false));
    rig.write(disk, 8, 8, 1);
    rig.flush(disk);
    rig.log.clear();
    rig.clean(disk);
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
    let expected = [Some(800), None, Some(0), None, Some(400), None, Some(8), None];
    assert_eq!(origin_log(&rig), expected);
}

#[test]
fn the_order_is_suspended_while_a_device_is_emptied() {
    let (mut rig, disk) = rig(&[8, 8], IN_ORDER);
    for sector in (0..400).step_by(8) {
        rig.write(disk, sector, 8, 1);
        rig.flush(disk);
    }
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(0)).expect("another device is left");
    rig.run_without(is_origin_write);
    assert_eq!(rig.usage(disk).origin_in_order, Some(false));
    rig.finish(job);
    rig.clean(disk);
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
    assert_eq!(rig.origins[&disk].sectors(0, 400), [1; 400 * 512]);
}
