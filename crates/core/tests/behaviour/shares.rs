//! Which blocks enter the cache, and how disks share it.

use crate::common::*;
use haversack_core::{CleanerConfig, CoreConfig, DiskConfig, Target};
use haversack_model::random::Random;
use haversack_model::{DeviceNo, WriteMode};

const SECTORS: u64 = 40_000;

#[test]
fn long_sequential_runs_go_past_the_cache() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    rig.core().set_sequential_cutoff(0, disk, 64 << 10).expect("attached");
    fill(&mut rig, disk, 64);
    assert_eq!(rig.usage(disk).usage_blocks, 16, "64 KiB entered, the rest did not");
    assert_eq!(rig.stats(disk).not_admitted, 48);
    rig.read(disk, 20_000, 8);
    assert_eq!(rig.usage(disk).usage_blocks, 17);

    let dirty = rig.disk(1, SECTORS, WriteMode::WriteBack);
    rig.core().set_sequential_cutoff(0, dirty, 64 << 10).expect("attached");
    for at in 0..8 {
        rig.write(dirty, at * 64, 64, 1);
    }
    assert_eq!(rig.usage(dirty).dirty_blocks, 16);
    assert_eq!(rig.origins[&dirty].sectors(128, 384), [1; 384 * 512]);
    assert_eq!(rig.read(dirty, 0, 512), [1; 512]);
}

#[test]
fn spare_capacity_is_shared_and_taken_back_when_it_is_needed() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let capacity = 8 * 253;
    let greedy = reader(&mut rig, 0, Target::Blocks(capacity / 2));
    let late = reader(&mut rig, 1, Target::Blocks(capacity / 2));
    fill(&mut rig, greedy, 3000);
    let alone = rig.usage(greedy).usage_blocks;
    assert!(alone > capacity * 8 / 10, "nobody else needs it: {alone}");
    rig.core().set_target(0, greedy, Target::Blocks(capacity / 4)).expect("attached");
    assert_eq!(rig.usage(greedy).usage_blocks, alone, "a target moves nothing");
    fill(&mut rig, late, 3000);
    fill(&mut rig, greedy, 3000);
    fill(&mut rig, late, 3000);
    let (first, second) = (rig.usage(greedy), rig.usage(late));
    assert!(second.usage_blocks > capacity * 4 / 10, "{second:?}");
    assert!(first.usage_blocks < alone && first.usage_blocks > capacity / 10, "{first:?}");
}

#[test]
fn without_sharing_a_disk_keeps_within_its_target() {
    let mut rig = Rig::new(&[8], false, CoreConfig { share_spare: false, ..CoreConfig::default() });
    let disk = reader(&mut rig, 0, Target::Blocks(500));
    fill(&mut rig, disk, 3000);
    let used = rig.usage(disk).usage_blocks;
    assert!((250..=500 + 128).contains(&used), "{used}");
}

/// A cap holds although the pool is empty, and another disk that is not capped fills the rest.
#[test]
fn a_capped_disk_keeps_within_its_target_beside_free_space() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let capped = reader(&mut rig, 0, Target::Capped(500));
    let other = reader(&mut rig, 1, Target::Blocks(100));
    fill(&mut rig, capped, 1300);
    fill(&mut rig, other, 1300);
    let used = [capped, other].map(|disk| rig.usage(disk).usage_blocks);
    assert!((250..=500 + 128).contains(&used[0]) && used[1] > 1000, "{used:?}");
    rig.core().set_target(0, capped, Target::Blocks(500)).expect("attached");
    fill(&mut rig, capped, 700);
    let used = rig.usage(capped).usage_blocks;
    assert!(used > 600, "{used}");
}

/// A disk that is capped at 0 fills no more blocks, except for those already staged. Its cached blocks are still
/// served.
#[test]
fn a_disk_capped_to_nothing_fills_nothing() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Blocks(500));
    fill(&mut rig, disk, 256);
    rig.core().set_target(0, disk, Target::Capped(0)).expect("attached");
    let before = rig.stats(disk);
    fill(&mut rig, disk, 2000);
    let after = rig.stats(disk);
    let filled = after.flash_fill_blocks - before.flash_fill_blocks;
    assert!(filled <= 128 && after.not_admitted - before.not_admitted > 1600, "{after:?}");
    assert!(after.read_hits - before.read_hits > 100, "{after:?}");
}

#[test]
fn without_sharing_a_disk_gets_the_segments_beyond_anothers_lowered_target() {
    let mut rig = Rig::new(&[7], false, CoreConfig { share_spare: false, ..CoreConfig::default() });
    let [first, second] =
        [(0, 1400), (1, 300)].map(|(n, blocks)| reader(&mut rig, n, Target::Blocks(blocks)));
    fill(&mut rig, first, 1400);
    fill(&mut rig, second, 300);
    rig.core().set_target(0, first, Target::Blocks(350)).expect("attached");
    fill(&mut rig, first, 2000);
    assert!(rig.usage(first).usage_blocks <= 350 + 128);
    rig.core().set_target(0, second, Target::Blocks(1350)).expect("attached");
    for _ in 0..3 {
        fill(&mut rig, second, 1350);
    }
    let used = rig.usage(second).usage_blocks;
    assert!(used >= 1150, "{used}");
}

#[test]
fn equal_targets_divide_the_pool() {
    let mut rig = Rig::new(&[4, 4], false, CoreConfig::default());
    let disks = [0, 1, 2].map(|number| reader(&mut rig, number, Target::Equal));
    for disk in disks {
        assert_eq!(rig.usage(disk).target_blocks, 8 * 253 / 3);
    }
    rig.core().set_target(0, disks[0], Target::Blocks(10)).expect("attached");
    assert_eq!(rig.usage(disks[1]).target_blocks, (8 * 253 - 10) / 2);
}

#[test]
fn a_full_cache_keeps_what_is_read_again() {
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disk = reader(&mut rig, 0, Target::Equal);
    for round in 0..20 {
        rig.read(disk, 0, 400);
        for block in 0..100 {
            rig.read(disk, (100 + round * 100 + block) * 8, 8);
        }
    }
    let before = rig.stats(disk).read_misses;
    rig.read(disk, 0, 400);
    let missed = rig.stats(disk).read_misses - before;
    assert!(missed <= 5, "{missed} of 50 blocks that are read all the time are gone");
}

#[test]
fn a_disk_that_gets_no_space_has_its_staged_blocks_cleaned() {
    for (devices, redundancy) in [(&[2][..], false), (&[2, 2], true)] {
        let mut rig = Rig::new(devices, redundancy, CoreConfig::default());
        let cleaner = CleanerConfig {
            low_watermark: 1.0,
            high_watermark: 1.0,
            dirty_limit: 1.0,
            ..CleanerConfig::default()
        };
        let config =
            DiskConfig { cleaner, target: Target::Blocks(506), ..DiskConfig::new(disk_id(0), SECTORS) };
        let greedy = rig.attach(&config, 1);
        let small = rig.disk(1, SECTORS, WriteMode::WriteBack);
        rig.write(small, 0, 8, 2);
        rig.origins.get_mut(&greedy).expect("an origin").down = true;
        rig.write(greedy, 0, 300 * 8, 1);
        rig.flush(greedy);
        assert_eq!(rig.running().pool_stats().free_segments, 0);
        let now = rig.now;
        let release = rig.core().release(now, greedy).expect("attached");
        rig.finish(release);
        rig.flush(small);
        rig.write(small, 80, 8, 3);
        rig.flush(small);
        assert_eq!(rig.read(small, 0, 8), [2; 8]);
        assert_eq!(rig.origins[&small].sectors(80, 8), [3; 8 * 512]);
    }
}

#[test]
fn slow_devices_do_not_empty_a_cache_that_was_written() {
    let mut rig = Rig::new(&[8], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    let lazy = CleanerConfig {
        low_watermark: 0.97,
        high_watermark: 0.98,
        dirty_limit: 0.99,
        ..CleanerConfig::default()
    };
    rig.core().set_cleaner(0, disk, lazy).expect("attached");
    for block in (0..1900).step_by(8) {
        rig.write(disk, block * 8, 64, 1);
    }
    rig.flush(disk);
    rig.clean(disk);
    let before = rig.usage(disk).usage_blocks;
    for round in 0..40 {
        rig.start_write(disk, 20_000 + round * 64, 64, 2);
        rig.run_without(is_device_flush);
        if round % 8 == 7 {
            rig.run();
        }
    }
    let after = rig.usage(disk).usage_blocks;
    assert!(after + 500 > before, "320 blocks came, {before} were there, {after} are left");
}

#[test]
fn a_disk_that_only_writes_gets_its_share_of_a_full_pool() {
    for (devices, redundancy) in [(&[8][..], false), (&[6, 6], true)] {
        let mut rig = Rig::new(devices, redundancy, CoreConfig::default());
        let reader = reader(&mut rig, 0, Target::Equal);
        fill(&mut rig, reader, 5000);
        assert_eq!(rig.running().pool_stats().free_segments, 0);
        let writer = rig.disk(1, SECTORS, WriteMode::WriteBack);
        for block in 0..100 {
            rig.write(writer, block * 8, 8, 1);
        }
        assert!(rig.usage(writer).usage_blocks > 90, "{:?}", rig.usage(writer));
        rig.flush(writer);
    }
}

#[test]
fn superseded_versions_do_not_accumulate_in_a_cache_with_room() {
    const BLOCKS: u64 = 512;
    for redundancy in [false, true] {
        let mut rig = Rig::new(&[64, 64], redundancy, CoreConfig::default());
        let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
        let mut block = 1;
        for _ in 0..60 * BLOCKS / 8 {
            block = (block * 5 + 3) % (BLOCKS / 8);
            rig.write(disk, block * 64, 64, 1);
        }
        rig.flush(disk);
        let usage = rig.usage(disk);
        let copies = 1 + u64::from(redundancy);
        assert!(
            usage.overtaken_blocks < 8 * copies * BLOCKS,
            "{usage:?} after 60 rounds over {BLOCKS} blocks"
        );
    }
}

#[test]
fn one_block_written_and_flushed_for_ever_takes_few_slots() {
    let mut rig = Rig::new(&[64], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    fill(&mut rig, disk, 2000);
    for _ in 0..3000 {
        rig.write(disk, 0, 8, 1);
        rig.flush(disk);
    }
    let usage = rig.usage(disk);
    assert!(usage.overtaken_blocks < 50, "{usage:?} after 3,000 versions of a block");
}

#[test]
fn a_page_drops_all_versions_that_durable_newer_ones_superseded() {
    const BLOCKS: u64 = 512;
    let mut rig = Rig::new(&[64], false, CoreConfig::default());
    let disk = rig.disk(0, SECTORS, WriteMode::WriteBack);
    fill(&mut rig, disk, 4000);
    let mut random = Random::new(1);
    for round in 0..60_000 {
        rig.start_write(disk, random.below(BLOCKS) * 8, 8, 1);
        rig.run_without(is_device_flush);
        if round % 1000 == 999 {
            rig.run();
        }
    }
    let (stats, usage) = (rig.stats(disk), rig.usage(disk));
    assert!(usage.overtaken_blocks < 8 * BLOCKS, "{usage:?} after many rounds over {BLOCKS} blocks");
    let (rewritten, batches) = (stats.flash_rewrite_pages, stats.flash_batch_pages);
    assert!(
        rewritten < batches / 2,
        "{rewritten} pages were written for old versions, {batches} with new ones"
    );
}

#[test]
fn a_disk_whose_mirror_is_unavailable_is_cleaned_and_bypasses_the_cache() {
    // The released disk gets all segments of the second device.
    let mut rig = Rig::new(&[6, 2], true, CoreConfig::default());
    let cleaner = CleanerConfig {
        low_watermark: 1.0,
        high_watermark: 1.0,
        dirty_limit: 1.0,
        ..CleanerConfig::default()
    };
    let config = DiskConfig { cleaner, target: Target::Blocks(506), ..DiskConfig::new(disk_id(0), SECTORS) };
    let released = rig.attach(&config, 1);
    rig.origins.get_mut(&released).expect("an origin").down = true;
    for block in (0..480).step_by(8) {
        rig.write(released, block * 8, 64, 1);
    }
    rig.start_flush(released);
    rig.run();
    let now = rig.now;
    let release = rig.core().release(now, released).expect("attached");
    rig.finish(release);
    assert!(rig.usage(released).mirrored_blocks > 253, "{:?}", rig.usage(released));
    let disk = rig.disk(1, SECTORS, WriteMode::WriteBack);
    rig.write(disk, 0, 64, 2);
    rig.write(disk, 3, 2, 3);
    rig.flush(disk);
    assert_eq!(rig.read(disk, 0, 8), [2, 2, 2, 3, 3, 2, 2, 2]);
    assert_eq!(rig.origins[&disk].sectors(3, 1), [3; 512]);
    assert_eq!(rig.usage(disk).segments, 0, "{:?}", rig.usage(disk));
    let now = rig.now;
    let forget = rig.core().forget(now, released, Some(disk_id(0))).expect("released");
    rig.finish(forget);
    rig.write(disk, 0, 8, 4);
    rig.flush(disk);
    assert_eq!(rig.usage(disk).segments, 2, "there are two places again");
}

/// A pool of 40 segments with a disk that scans and another that reads its working set again and again: returns the
/// final usage of each, and the miss ratio of the last round of reads of the working set.
fn scan_beside_working_set(target: Target, working_set_blocks: u64) -> (u64, u64, f64) {
    let mut rig = Rig::new(&[40], false, CoreConfig::default());
    let [scanner, local] = [0, 1].map(|number| {
        let mode = WriteMode::WriteInvalidate;
        rig.attach(&DiskConfig { mode, target, ..DiskConfig::new(disk_id(number), 8 * 80_000) }, 1)
    });
    let (mut scanned, mut before) = (0, 0);
    for round in 0..6 {
        before = rig.stats(local).read_misses;
        for block in (0..working_set_blocks).step_by(8) {
            rig.read(local, block * 8, 64);
            // The scan reads half as many blocks as the other disk.
            if block % 16 == 0 {
                rig.read(scanner, (scanned * 8) % (8 * 80_000), 64);
                scanned += 8;
            }
        }
        rig.wait(1_000_000 * (round + 1));
    }
    rig.running().check();
    let missed = (rig.stats(local).read_misses - before) as f64 / working_set_blocks as f64;
    (rig.usage(scanner).usage_blocks, rig.usage(local).usage_blocks, missed)
}

#[test]
fn of_one_pool_the_scanner_loses_its_segments_first() {
    let (scanner, local, missed) = scan_beside_working_set(SHARED, 6400);
    assert!(local > 6200 && missed < 0.05, "{scanner} and {local} blocks, {missed} missed");
    let (_, local, missed) = scan_beside_working_set(Target::Equal, 6400);
    assert!(local < 5500 && missed > 0.1, "equal parts would do as well: {local} blocks, {missed} missed");
}

#[test]
fn one_pool_goes_to_who_needs_it_but_for_what_is_reserved() {
    let mut rig = Rig::new(&[16], false, CoreConfig::default());
    let capacity = 16 * 253;
    let shared = Target::Shared { at_least_blocks: 600, at_most_blocks: capacity };
    let [first, late] = [0, 1].map(|number| reader(&mut rig, number, shared));
    fill(&mut rig, first, 4800);
    assert!(rig.usage(first).usage_blocks > capacity * 8 / 10);
    for _ in 0..6 {
        fill(&mut rig, late, 4800);
        rig.wait(1_000_000);
    }
    rig.running().check();
    let (first, late) = (rig.usage(first), rig.usage(late));
    assert!(late.usage_blocks > capacity / 2, "{late:?}");
    assert!((550..capacity / 3).contains(&first.usage_blocks), "{first:?}");
}

#[test]
fn a_sharer_stays_within_its_limit_while_others_need_space() {
    let mut rig = Rig::new(&[16], false, CoreConfig::default());
    let other = reader(&mut rig, 0, SHARED);
    fill(&mut rig, other, 4800);
    let limited = reader(&mut rig, 1, Target::Shared { at_least_blocks: 0, at_most_blocks: 500 });
    for _ in 0..3 {
        fill(&mut rig, limited, 4800);
    }
    assert!((100..=500 + 128).contains(&rig.usage(limited).usage_blocks), "{:?}", rig.usage(limited));
}

#[test]
fn with_more_sharers_than_segments_all_progress_and_the_busy_one_gets_the_pool() {
    const DISKS: u8 = 7;
    let mut rig = Rig::new(&[4], false, CoreConfig::default());
    let disks: Vec<_> = (0..DISKS)
        .map(|number| {
            rig.attach(&DiskConfig { target: SHARED, ..DiskConfig::new(disk_id(number), SECTORS) }, 1)
        })
        .collect();
    for round in 0..3 {
        for disk in &disks {
            for block in 0..150 {
                rig.write(*disk, block * 8, 8, round + 1);
            }
            rig.flush(*disk);
        }
    }
    rig.wait(60_000_000);
    // Each of the other disks has one segment and none to spare.
    let writer = disks[5];
    for _ in 0..4 {
        (0..600).for_each(|block| rig.write(writer, block * 8, 8, 9));
        rig.wait(60_000_000);
    }
    assert!(rig.usage(writer).usage_blocks > 200, "{:?}", rig.usage(writer));
    let busy = disks[4];
    let mut missed = 0;
    for _ in 0..12 {
        let before = rig.stats(busy).read_misses;
        (0..600).for_each(|block| drop(rig.read(busy, block * 8, 8)));
        rig.wait(1_000_000);
        missed = rig.stats(busy).read_misses - before;
    }
    rig.running().check();
    for disk in disks.iter().filter(|disk| **disk != writer) {
        assert_eq!(rig.read(*disk, 0, 8), [3; 8]);
    }
    assert!(missed < 60, "{missed} of 600 blocks missed, {:?}", rig.usage(busy));
}

#[test]
fn a_disk_with_an_equal_part_gets_it_beside_one_pool() {
    for equal_first in [true, false] {
        let mut rig = Rig::new(&[32], false, CoreConfig::default());
        let targets = [Target::Equal, SHARED, SHARED].into_iter().zip(0..);
        let mut disks: Vec<_> = targets.map(|(target, number)| reader(&mut rig, number, target)).collect();
        let equal = disks[0];
        if !equal_first {
            disks.reverse();
        }
        for _ in 0..4 {
            disks.iter().for_each(|disk| fill(&mut rig, *disk, 4800));
        }
        rig.running().check();
        let (has, target) = (rig.usage(equal).usage_blocks, rig.usage(equal).target_blocks);
        assert_eq!(target, 32 * 253 / 3);
        assert!((target * 3 / 4..=target * 5 / 4).contains(&has), "{has} of {target} blocks");
    }
}

#[test]
fn disks_with_parts_of_their_own_keep_them_beside_one_pool() {
    let mut rig = Rig::new(&[32], false, CoreConfig::default());
    let own = reader(&mut rig, 0, Target::Blocks(8 * 253));
    let sharers = [1, 2].map(|number| reader(&mut rig, number, SHARED));
    for _ in 0..4 {
        fill(&mut rig, own, 4800);
        sharers.iter().for_each(|sharer| fill(&mut rig, *sharer, 4800));
    }
    rig.running().check();
    let has = rig.usage(own).usage_blocks;
    assert!((6 * 253..=9 * 253).contains(&has), "{has}");
    // The disk with its own target joins the sharers, and then leaves them.
    rig.core().set_target(0, own, SHARED).expect("attached");
    fill(&mut rig, own, 4800);
    rig.running().check();
    rig.core().set_target(0, own, Target::Blocks(0)).expect("attached");
    sharers.iter().for_each(|sharer| fill(&mut rig, *sharer, 4800));
    rig.running().check();
    assert!(rig.usage(own).usage_blocks < 3 * 253, "{:?}", rig.usage(own));
}

#[test]
fn a_sharer_whose_device_failed_gets_a_segment_from_a_disk_with_a_target() {
    let mut rig = Rig::new(&[2], false, CoreConfig { commit_blocks: 8, ..CoreConfig::default() });
    let shared = Target::Shared { at_least_blocks: 0, at_most_blocks: 5000 };
    let sharer =
        rig.attach(&DiskConfig { target: shared, cleaner: LAZY, ..DiskConfig::new(disk_id(0), 8000) }, 1);
    rig.write(sharer, 0, 80, 1);
    rig.flush(sharer);
    fill(&mut rig, sharer, 400);
    rig.add_device(2);
    let other = reader(&mut rig, 1, Target::Blocks(1000));
    fill(&mut rig, other, 500);
    let now = rig.now;
    // A newer version of what only the failed device had must be on flash before the device can go.
    let write = rig.start_write(sharer, 0, 80, 2);
    rig.run_without(is_device_write);
    assert!(rig.is_answered(write));
    rig.core().fail_device(now, DeviceNo(0));
    rig.flush(sharer);
    assert_eq!(rig.read(sharer, 0, 80), [2; 80]);
}
