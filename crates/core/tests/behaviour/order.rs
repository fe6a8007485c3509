//! Cleaning in the order of the guest's flushes.

use crate::common::*;
use haversack_core::{
    Action, CleanOrder, CleanerConfig, CoreConfig, DiskConfig, Event, IoFailure, JobError, Op, Target,
};
use haversack_model::{DeviceNo, DiskNo, SectorNo};

const IN_ORDER: CleanerConfig = CleanerConfig { order: CleanOrder::Flush, ..LAZY };

fn rig(devices: &[u32], cleaner: CleanerConfig) -> (Rig, DiskNo) {
    let mut rig = Rig::new(devices, false, CoreConfig { commit_blocks: 4, ..CoreConfig::default() });
    let config = DiskConfig { cleaner, target: Target::Equal, ..DiskConfig::new(disk_id(0), 80_000) };
    let disk = rig.attach(&config, 1);
    (rig, disk)
}

/// Makes the origin fail all writes.
fn away(asked: &Requested) -> Fate {
    if is_origin_write(asked) { Fate::Fail(IoFailure::Gone) } else { Fate::Done }
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
    rig.write(disk, 80, 8, 2);
    let other = rig.start_flush(disk);
    rig.run_with(away);
    assert!(rig.is_answered(other));
    rig.write(disk, 0, 8, 3);
    let same = rig.start_flush(disk);
    rig.run_with(away);
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
fn a_device_is_emptied_without_the_origin_which_is_not_called_in_order_then() {
    let (mut rig, disk) = rig(&[8, 8], IN_ORDER);
    for sector in (0..400).step_by(8) {
        rig.write(disk, sector, 8, 1);
        rig.flush(disk);
    }
    let now = rig.now;
    let job = rig.core().remove_device(now, DeviceNo(0)).expect("another device is left");
    rig.wait_with(10_000_000, away);
    assert_eq!(rig.jobs.get(&job), Some(&Ok(())));
    assert_eq!(rig.usage(disk).origin_in_order, Some(false));
    let flush = rig.start_flush(disk);
    rig.wait_with(1_000_000, away);
    assert!(rig.is_answered(flush));
    rig.clean(disk);
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
    assert_eq!(rig.origins[&disk].sectors(0, 400), [1; 400 * 512]);
}

#[test]
fn other_disks_and_blocks_go_on_while_a_flush_waits_for_an_origin_that_is_away() {
    let (mut rig, disk) = rig(&[16], IN_ORDER);
    let other = rig.attach(&DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(1), 80_000) }, 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.write(disk, 0, 8, 2);
    let waits = rig.start_flush(disk);
    rig.run_with(away);
    assert!(!rig.is_answered(waits));
    let blocks = 2 * u64::from(rig.staging_frames());
    for block in 1..blocks {
        let write = rig.start_write(disk, block * 8, 8, 3);
        rig.run_with(away);
        assert!(rig.is_answered(write), "block {block}");
        let write = rig.start_write(other, block * 8, 8, 3);
        rig.run_with(away);
        assert!(rig.is_answered(write), "block {block} of the other disk");
    }
    let flush = rig.start_flush(other);
    rig.run_with(away);
    assert!(rig.is_answered(flush));
    rig.answered(waits);
}

#[test]
fn at_the_dirty_limit_a_write_waits_for_room_and_not_for_everything() {
    let limits = CleanerConfig { low_watermark: 0.5, high_watermark: 0.5, dirty_limit: 0.5, ..IN_ORDER };
    let (mut rig, disk) = rig(&[8], limits);
    let capacity = rig.running().pool_stats().capacity_blocks;
    let waiting = (0..capacity).find_map(|block| {
        let write = rig.start_write(disk, block * 8, 8, 1);
        rig.run_without(is_origin_write);
        rig.start_flush(disk);
        rig.run_without(is_origin_write);
        (!rig.is_answered(write)).then_some(write)
    });
    let waiting = waiting.expect("there is a limit");
    let mut left = 10;
    rig.run_with(|asked| match is_origin_write(asked) {
        true if left == 0 => Fate::Hold,
        is_write => {
            left -= usize::from(is_write);
            Fate::Done
        }
    });
    assert!(rig.is_answered(waiting));
    assert!(rig.usage(disk).dirty_blocks > capacity / 4);
}

#[test]
fn a_stop_does_not_wait_for_an_origin_that_is_away() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    rig.write(disk, 0, 8, 2);
    let flush = rig.start_flush(disk);
    rig.run_with(away);
    let now = rig.now;
    let job = rig.core().shutdown(now);
    rig.wait_with(10_000_000, away);
    assert!(rig.is_answered(flush));
    assert_eq!(rig.jobs.get(&job), Some(&Ok(())));
}

#[test]
fn a_block_that_cannot_be_read_does_not_hold_up_the_others() {
    let (mut rig, disk) = rig(&[8], IN_ORDER);
    for sector in [0, 800, 1600] {
        rig.write(disk, sector, 8, 1);
        rig.flush(disk);
    }
    let mut first = None;
    let failing = |asked: &Requested| {
        let Action::ReadDevice { offset_bytes, .. } = asked.action else { return Fate::Done };
        let is_first = *first.get_or_insert(offset_bytes) == offset_bytes;
        if is_first { Fate::Fail(IoFailure::Error) } else { Fate::Done }
    };
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.wait_with(20_000_000, failing);
    assert_eq!(rig.jobs.get(&job), Some(&Err(JobError::DeviceRead)));
    assert_eq!(rig.origins[&disk].sectors(1600, 8), [1; 8 * 512]);
    assert_eq!(rig.usage(disk).origin_in_order, Some(false));
    rig.write(disk, 0, 8, 2);
    rig.flush(disk);
    rig.clean(disk);
    assert_eq!(rig.usage(disk).origin_in_order, Some(true));
}

#[test]
fn after_a_loss_the_origin_is_not_called_in_order() {
    let (mut rig, disk) = rig(&[8, 8], IN_ORDER);
    for sector in (0..800).step_by(8) {
        rig.write(disk, sector, 8, 1);
        rig.flush(disk);
    }
    let now = rig.now;
    rig.core().fail_device(now, DeviceNo(0));
    rig.run();
    assert!(rig.events.iter().any(|event| matches!(event, Event::DeviceFailed { .. })));
    assert_eq!(rig.usage(disk).origin_in_order, Some(false));
}
