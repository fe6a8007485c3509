//! When dirty blocks are written back, in which order, and how fast.

use crate::common::*;
use haversack_core::{Action, CleanerConfig, CoreConfig, DiskConfig, Event, IoFailure, JobError, Target};
use haversack_model::DiskNo;

/// A pool with a disk whose target is `target` blocks, and another disk with the rest.
fn rig(cleaner: CleanerConfig, target: u64) -> (Rig, DiskNo) {
    let mut rig = Rig::new(&[8], false, CoreConfig { commit_blocks: 16, ..CoreConfig::default() });
    let config =
        DiskConfig { cleaner, target: Target::Blocks(target), ..DiskConfig::new(disk_id(0), 80_000) };
    let disk = rig.attach(&config, 1);
    let rest = Target::Blocks(rig.running().pool_stats().capacity_blocks - target);
    rig.attach(&DiskConfig { target: rest, ..DiskConfig::new(disk_id(1), 80_000) }, 1);
    (rig, disk)
}

#[test]
fn blocks_are_clean_only_after_the_origin_flush() {
    let (mut rig, disk) = rig(LAZY, 1000);
    rig.write(disk, 0, 400, 1);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.run_without(is_origin_flush);
    assert_eq!(rig.origins[&disk].sectors(0, 400), vec![1; 400 * 512]);
    assert_eq!(rig.usage(disk).dirty_blocks, 50);
    rig.finish(job);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn a_disk_that_never_counts_as_idle_is_not_cleaned_for_that() {
    let (mut rig, disk) = rig(CleanerConfig { idle_us: u64::MAX, ..LAZY }, 1000);
    rig.wait(1_000_000);
    rig.write(disk, 0, 8, 1);
    rig.wait(20_000_000);
    assert_eq!(rig.origins[&disk].writes, 0);
}

#[test]
fn only_what_is_durable_in_the_cache_is_written_back() {
    let (mut rig, disk) = rig(LAZY, 1000);
    rig.write(disk, 0, 800, 1);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.run_without(is_device_flush);
    assert_eq!(rig.origins[&disk].writes, 0);
    rig.finish(job);
}

#[test]
fn neighbours_are_written_together_in_order() {
    let (mut rig, disk) = rig(LAZY, 1000);
    for block in [3u64, 1, 0, 2, 9] {
        rig.write(disk, block * 8, 8, block as u8);
    }
    rig.log.clear();
    rig.clean(disk);
    let written: Vec<_> = rig.log.iter().filter(|a| is_origin_write(a)).collect();
    assert_eq!(written.len(), 2, "{written:?}");
}

#[test]
fn a_block_written_meanwhile_stays_dirty() {
    let (mut rig, disk) = rig(LAZY, 1000);
    rig.write(disk, 0, 16, 1);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.run_without(is_origin_flush);
    rig.now += 1;
    let rewritten = rig.start_write(disk, 0, 8, 2);
    assert!(rig.is_answered(rewritten));
    assert!(rig.usage(disk).dirty_blocks > 0);
    rig.finish(job);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [2; 8 * 512]);
}

#[test]
fn age_cleans_even_a_single_staged_block() {
    let (mut rig, disk) = rig(CleanerConfig { age_us: 30_000_000, ..LAZY }, 1000);
    rig.write(disk, 0, 8, 1);
    rig.wait(29_000_000);
    assert_eq!(rig.usage(disk).dirty_blocks, 1);
    rig.wait(6_000_000);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
    assert_eq!(rig.origins[&disk].sectors(0, 8), [1; 8 * 512]);
}

#[test]
fn idleness_cleans_everything() {
    let (mut rig, disk) = rig(CleanerConfig { idle_us: 5_000_000, ..LAZY }, 1000);
    rig.write(disk, 0, 1000, 1);
    for _ in 0..8 {
        rig.wait(4_000_000);
        rig.read(disk, 0, 8);
    }
    assert_eq!(rig.usage(disk).dirty_blocks, 125, "it was not idle for so long");
    rig.wait(8_000_000);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn above_the_high_watermark_blocks_are_cleaned_down_to_the_low_one() {
    let (mut rig, disk) = rig(CleanerConfig { low_watermark: 0.3, high_watermark: 0.6, ..LAZY }, 2000);
    rig.write(disk, 0, 8000, 1);
    rig.wait(60_000_000);
    assert_eq!(rig.usage(disk).dirty_blocks, 1000, "half of the target is dirty");
    rig.write(disk, 8000, 1800, 1);
    rig.wait(60_000_000);
    let left = rig.usage(disk).dirty_blocks;
    assert!(left <= 600, "{left} blocks are dirty");
    assert!(left >= 300, "{left} blocks are dirty: not all had to go");
}

#[test]
fn a_disk_without_a_target_may_have_some_dirty_blocks() {
    let limits = CleanerConfig { low_watermark: 0.5, high_watermark: 0.5, dirty_limit: 0.5, ..LAZY };
    let (mut rig, disk) = rig(limits, 0);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    rig.write(disk, 0, 126 * 8, 1);
    let waiting = rig.start_write(disk, 8000, 8, 2);
    rig.run();
    assert!(!rig.is_answered(waiting), "half a segment of 253 slots is dirty");
}

#[test]
fn writes_wait_at_the_dirty_limit_until_blocks_are_clean() {
    let limits = CleanerConfig { low_watermark: 0.5, high_watermark: 0.5, dirty_limit: 0.5, ..LAZY };
    let (mut rig, disk) = rig(limits, 800);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    rig.write(disk, 0, 3200, 1);
    let waiting = rig.start_write(disk, 8000, 8, 2);
    rig.run();
    assert!(!rig.is_answered(waiting), "400 of 800 blocks are dirty");
    let over = rig.start_write(disk, 0, 8, 3);
    rig.run();
    assert!(rig.is_answered(over), "a dirty block may be written again");
    assert!(rig.events.contains(&Event::CleanFailed { disk }));
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    rig.answered(waiting);
    assert_eq!(rig.read(disk, 8000, 8), [2; 8]);
}

#[test]
fn a_discard_lets_writers_at_the_dirty_limit_go_on() {
    let limits = CleanerConfig { low_watermark: 0.5, high_watermark: 0.5, dirty_limit: 0.5, ..LAZY };
    let (mut rig, disk) = rig(limits, 0);
    rig.write(disk, 0, 126 * 8, 1);
    let waiting = rig.start_write(disk, 8000, 8, 2);
    assert!(!rig.is_answered(waiting), "half a segment is dirty");
    let discard = rig.submit(disk, haversack_core::Op::Discard, 0, vec![0; 8 * 512]);
    rig.answered(discard);
    rig.answered(waiting);
}

#[test]
fn the_rate_limit_holds_over_time() {
    let (mut rig, disk) =
        rig(CleanerConfig { low_watermark: 0.0, high_watermark: 0.0, rate_limit_blocks: 50, ..LAZY }, 2000);
    rig.write(disk, 0, 9600, 1);
    let mut before = 0;
    for second in 1..=10 {
        rig.wait(1_000_000);
        let cleaned = rig.stats(disk).cleaned_blocks;
        assert!((40..=56).contains(&(cleaned - before)), "{cleaned} blocks after {second} seconds");
        before = cleaned;
    }
    rig.wait(40_000_000);
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}

#[test]
fn the_rate_limit_holds_for_a_requested_cleaning_and_not_for_a_detach() {
    let (mut rig, disk) = rig(CleanerConfig { rate_limit_blocks: 50, ..LAZY }, 2000);
    rig.write(disk, 0, 4800, 1);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    rig.wait(4_000_000);
    let cleaned = rig.stats(disk).cleaned_blocks;
    assert!((150..=210).contains(&cleaned), "{cleaned} blocks in four seconds");
    rig.finish(job);
    rig.write(disk, 0, 4800, 2);
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("no job runs");
    rig.run();
    assert!(rig.jobs.contains_key(&job), "no time had to pass");
}

#[test]
fn the_rate_limit_does_not_hold_guests_back() {
    let limits = CleanerConfig { dirty_limit: 1.0, rate_limit_blocks: 1, ..LAZY };
    let (mut rig, disk) = rig(limits, 100);
    rig.write(disk, 0, 800, 1);
    let tag = rig.start_write(disk, 800, 800, 2);
    rig.run();
    assert!(rig.is_answered(tag), "no time had to pass");
}

#[test]
fn a_cleaning_tells_its_progress_and_can_be_cancelled() {
    let (mut rig, disk) = rig(LAZY, 2000);
    rig.write(disk, 0, 8000, 1);
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    let progress = rig.running().progress(job).expect("it runs");
    assert_eq!((progress.done_blocks, progress.total_blocks), (0, 1000));
    let mut flushes = 0;
    rig.run_without(|a| {
        flushes += u32::from(is_origin_flush(a));
        is_origin_flush(a) && flushes > 2
    });
    let done = rig.running().progress(job).expect("it runs").done_blocks;
    assert!(0 < done && done < 1000, "{done}");
    assert!(rig.core().cancel(now, job));
    assert_eq!(rig.outcome(job), Err(JobError::Cancelled));
    assert!(rig.running().progress(job).is_none() && !rig.core().cancel(now, job));
    let dirty = rig.usage(disk).dirty_blocks;
    assert!(0 < dirty && dirty <= 1000 - done, "what is clean stays clean: {dirty}");
    rig.write(disk, 0, 8, 2);
    rig.clean(disk);
}

#[test]
fn a_cancelled_detach_leaves_the_disk_attached() {
    let (mut rig, disk) = rig(LAZY, 2000);
    rig.write(disk, 0, 800, 1);
    let now = rig.now;
    let job = rig.core().detach(now, disk).expect("no job runs");
    rig.run_without(is_origin_write);
    assert!(rig.core().cancel(now, job));
    assert_eq!(rig.outcome(job), Err(JobError::Cancelled));
    assert_eq!(rig.read(disk, 0, 800), [1; 800]);
}

#[test]
fn a_dead_origin_ends_the_job_and_keeps_the_data() {
    let (mut rig, disk) = rig(LAZY, 2000);
    rig.write(disk, 0, 800, 1);
    rig.origins.get_mut(&disk).expect("an origin").down = true;
    let now = rig.now;
    let job = rig.core().clean(now, disk).expect("no job runs");
    assert_eq!(rig.outcome(job), Err(JobError::Origin));
    assert_eq!(rig.usage(disk).dirty_blocks, 100);
    rig.origins.get_mut(&disk).expect("an origin").down = false;
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 800), [1; 800 * 512]);
}

/// Returns a filter for I/Os that read the disk's first block from flash. Reads the block now to find its slot.
fn reads_first_slot(rig: &mut Rig, disk: DiskNo) -> impl Fn(&Requested) -> bool + use<> {
    rig.log.clear();
    rig.read(disk, 0, 8);
    let place = |asked: &Requested| match asked.action {
        Action::ReadDevice { device, offset_bytes, .. } => Some((device, offset_bytes)),
        _ => None,
    };
    let first = rig.log.iter().find_map(place);
    assert!(first.is_some(), "the block is on flash");
    move |asked| place(asked) == first
}

#[test]
fn an_unreadable_block_fails_the_job_and_delays_no_other_block() {
    for detaches in [false, true] {
        let (mut rig, disk) = rig(LAZY, 2000);
        rig.write(disk, 0, 800, 1);
        rig.flush(disk);
        let first_slot = reads_first_slot(&mut rig, disk);
        let now = rig.now;
        let job = if detaches { rig.core().detach(now, disk) } else { rig.core().clean(now, disk) };
        let job = job.expect("no job runs");
        let failing = |a: &Requested| if first_slot(a) { Fate::Fail(IoFailure::Error) } else { Fate::Done };
        rig.wait_with(10_000_000, failing);
        assert_eq!(rig.jobs.get(&job), Some(&Err(JobError::DeviceRead)));
        assert_eq!(rig.usage(disk).dirty_blocks, 1);
        rig.clean(disk);
        assert_eq!(rig.origins[&disk].sectors(0, 800), [1; 800 * 512]);
    }
}

#[test]
fn a_block_that_can_never_be_read_does_not_cost_its_device() {
    let (mut rig, disk) = rig(LAZY, 2000);
    rig.write(disk, 0, 800, 1);
    rig.flush(disk);
    let first_slot = reads_first_slot(&mut rig, disk);
    let failing = |a: &Requested| if first_slot(a) { Fate::Fail(IoFailure::Error) } else { Fate::Done };
    for _ in 0..20 {
        let tag = rig.start_read(disk, 0, 8);
        rig.run_with(failing);
        assert!(rig.answer(tag).is_err());
        rig.wait_with(10_000_000, failing);
    }
    assert_eq!(rig.usage(disk).dirty_blocks, 100);
    rig.clean(disk);
    assert_eq!(rig.origins[&disk].sectors(0, 800), [1; 800 * 512]);
}

#[test]
fn an_origin_flush_that_fails_leaves_the_blocks_dirty() {
    let (mut rig, disk) = rig(LAZY, 2000);
    rig.write(disk, 0, 800, 1);
    let now = rig.now;
    rig.core().clean(now, disk).expect("no job runs");
    rig.run_with(|a| if is_origin_flush(a) { Fate::Fail(IoFailure::Error) } else { Fate::Done });
    assert_eq!(rig.usage(disk).dirty_blocks, 100);
}

#[test]
fn a_slow_origin_does_not_keep_the_core_awake() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = rig.attach(&DiskConfig::new(disk_id(0), 4096), 1);
    rig.write(disk, 0, 8, 1);
    rig.flush(disk);
    let mut wakeups = 0;
    rig.wait_with(60_000_000, |asked| {
        wakeups += 1;
        if is_origin_write(asked) { Fate::Hold } else { Fate::Done }
    });
    assert!(wakeups < 1000, "{wakeups}");
    rig.run();
    assert_eq!(rig.usage(disk).dirty_blocks, 0);
}
