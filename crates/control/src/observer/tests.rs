use haversack_core::monitor::Kind as Recorded;
use haversack_core::{MonitorConfig, Records};
use haversack_model::place::spread;

use super::*;

const WINDOW_US: u64 = 1_000_000;

fn observer(sample_blocks: impl Into<Option<usize>>) -> Observer {
    let sample_blocks = sample_blocks.into();
    let config = ObserverConfig {
        window_us: WINDOW_US,
        measurement_us: 100_000,
        sample_blocks,
        unit_blocks: 1,
        whole_blocks: false,
        touches: true,
    };
    Observer::new(config, 0, 1 << 20, &Counters::default()).unwrap()
}

/// Notes whole-block requests of one kind at a time.
fn note(observer: &mut Observer, time_us: u64, kind: Recorded, blocks: impl IntoIterator<Item = u64>) {
    let mut records = Records::with_room(MonitorConfig::default().records);
    for block in blocks {
        if records.fill() > 0.9 {
            observer.note(&records);
            records.clear();
        }
        records.push(time_us, kind, block * 8, 8);
    }
    observer.note(&records);
}

fn counters(hits: u64, misses: u64, writes: u64) -> Counters {
    Counters { read_hits: hits, read_misses: misses, writes, ..Counters::default() }
}

/// ECI-Cache, figure 5: TRD asks for 5 blocks, URD for 2; two of seven accesses are reused, one of them by a read.
#[test]
fn the_example_of_eci_cache() {
    let mut observer = observer(64);
    for (block, kind) in [
        (1, Recorded::Write),
        (2, Recorded::Read),
        (1, Recorded::Read),
        (3, Recorded::Write),
        (4, Recorded::Read),
        (5, Recorded::Write),
        (2, Recorded::Write),
    ] {
        note(&mut observer, 0, kind, [block]);
    }
    let window = observer.close(WINDOW_US, &counters(1, 2, 4)).unwrap();
    assert_eq!(window.check("vm"), Ok(()));
    assert_eq!((window.trd.blocks_needed(), window.urd.blocks_needed()), (5, 2));
    assert!(
        (window.trd.highest() - 2.0 / 7.0).abs() < 1e-6 && (window.urd.highest() - 1.0 / 7.0).abs() < 1e-6
    );
    assert_eq!((window.reads, window.writes, window.read_hits, window.overwrites), (3, 4, 1, 1));
    assert_eq!((window.wss_blocks, window.rwss_blocks), (5, vec![2, 0, 0, 0]));
    assert_eq!(window.read_only.blocks_needed(), 0, "no block was read twice");
}

/// The same example in blocks of 8 KiB: twice the sizes. Each request is of a whole block of 8 KiB or of half of one.
#[test]
fn the_example_of_eci_cache_in_its_own_blocks() {
    let (window_us, measurement_us) = (WINDOW_US, WINDOW_US);
    let config = ObserverConfig {
        window_us,
        measurement_us,
        sample_blocks: None,
        unit_blocks: 2,
        whole_blocks: false,
        touches: false,
    };
    let mut observer = Observer::new(config, 0, 1 << 20, &Counters::default()).unwrap();
    let mut records = Records::with_room(64);
    for (block, sectors, kind) in [
        (2, 16, Recorded::Write),
        (5, 8, Recorded::Read),
        (3, 8, Recorded::Read),
        (6, 16, Recorded::Write),
        (8, 8, Recorded::Read),
        (10, 16, Recorded::Write),
        (4, 16, Recorded::Write),
        // Half of a block stays if the other half is discarded.
        (6, 8, Recorded::Discard),
        (7, 8, Recorded::Read),
    ] {
        records.push(0, kind, block * 8, sectors);
    }
    observer.note(&records);
    let window = observer.close(WINDOW_US, &counters(2, 2, 8)).unwrap();
    assert_eq!((window.trd.blocks_needed(), window.urd.blocks_needed()), (10, 8));
    let rounded = |hits: f64| (hits / 8.0 * 1e6).round() / 1e6;
    assert_eq!(window.urd.points(), [(4, rounded(1.0)), (8, rounded(2.0))]);
    assert_eq!((window.wss_blocks, window.rwss_blocks[0], window.reused_blocks), (10, 6, 6));
    // One access of eight overwrites; the counters count halves.
    assert_eq!((window.overwrites, window.unit_blocks), (2, Some(2)));
    // Intensity is of blocks of 4 KiB, as vCacheShare has it.
    assert_eq!((window.intensity.read_blocks, window.intensity.unique_read_blocks), (4, 4));
}

/// Blocks 0 to 2 and 0 to 1 are touched by two reads that cover block 1 and none, and a write covers blocks 3 and 4.
#[test]
fn unaligned_accesses_count_or_are_discarded() {
    for (whole_blocks, expected) in [(false, (5, 2, 5)), (true, (3, 0, 1))] {
        let (window_us, measurement_us, unit_blocks) = (WINDOW_US, WINDOW_US, 1);
        let config = ObserverConfig {
            window_us,
            measurement_us,
            sample_blocks: None,
            unit_blocks,
            whole_blocks,
            touches: false,
        };
        let mut observer = Observer::new(config, 0, 1 << 20, &Counters::default()).unwrap();
        let mut records = Records::with_room(64);
        for (sector, sectors, kind) in
            [(4, 16, Recorded::Read), (4, 8, Recorded::Read), (24, 16, Recorded::Write)]
        {
            records.push(0, kind, sector, sectors);
        }
        observer.note(&records);
        let window = observer.close(WINDOW_US, &counters(0, 5, 2)).unwrap();
        assert_eq!((window.wss_blocks, window.rwss_blocks[0], window.intensity.read_blocks), expected);
    }
}

/// A block is gone only when all of it is discarded.
#[test]
fn part_of_a_block_is_not_discarded() {
    let mut observer = observer(64);
    let mut records = Records::with_room(64);
    for (sector, sectors, kind) in
        [(0, 16, Recorded::Write), (4, 12, Recorded::Discard), (0, 16, Recorded::Read)]
    {
        records.push(0, kind, sector, sectors);
    }
    observer.note(&records);
    let window = observer.close(WINDOW_US, &counters(0, 2, 2)).unwrap();
    assert_eq!(window.urd.points(), [(1, 0.25)], "block 0 is read again, block 1 is gone");
}

/// The demand that LARC was given: of three blocks, one is used again within the first window; in the second, one that
/// was used in the first and one that is used twice; in the third, nothing that was used in the second.
#[test]
fn reused_addresses_are_remembered_for_two_windows() {
    for sample_blocks in [Some(64), None] {
        let mut observer = observer(sample_blocks);
        let windows: [&[u64]; 4] = [&[1, 2, 1, 3], &[2, 4, 4, 5], &[1, 6, 7], &[6, 6, 6, 7, 1]];
        let found = windows.map(|blocks| {
            note(&mut observer, 0, Recorded::Write, blocks.iter().copied());
            let window = observer.close(WINDOW_US, &counters(0, 0, 0)).unwrap();
            (window.reused_blocks, window.rwss_blocks[0])
        });
        assert_eq!(found, [(1, 1), (2, 1), (0, 0), (3, 1)]);
    }
}

/// A disk that comes late in the window, as in vCacheShare's boot storm, has an intensity at its end.
#[test]
fn a_newcomers_intensity_is_measured_until_the_window_of_the_others_ends() {
    for (attached_us, length_us) in [(950_000, 50_000), (300_000, 100_000)] {
        let config = ObserverConfig {
            window_us: WINDOW_US,
            measurement_us: 100_000,
            sample_blocks: Some(64),
            unit_blocks: 1,
            whole_blocks: false,
            touches: false,
        };
        let observer = Observer::new(config, attached_us, 1 << 20, &Counters::default()).unwrap();
        let mut observer = observer.ending_at(WINDOW_US).unwrap();
        note(&mut observer, 970_000, Recorded::Read, (0..10).chain(0..10));
        let intensity = observer.close(WINDOW_US, &counters(10, 10, 0)).unwrap().intensity;
        assert_eq!(intensity, Intensity { length_us, read_blocks: 20, unique_read_blocks: 10 });
    }
}

#[test]
fn what_was_used_in_the_window_before_is_not_cold_and_what_was_not_is_forgotten() {
    let mut observer = observer(4096);
    let hits: Vec<f64> = [0..100, 0..100, 500..600, 0..100]
        .into_iter()
        .enumerate()
        .map(|(at, blocks)| {
            note(&mut observer, at as u64 * WINDOW_US, Recorded::Read, blocks);
            let read = (at as u64 + 1) * 100;
            let window = observer.close((at as u64 + 1) * WINDOW_US, &counters(0, read, 0)).unwrap();
            assert_eq!((window.reads, window.wss_blocks, window.rwss_blocks[0]), (100, 100, 0));
            window.trd.highest()
        })
        .collect();
    assert_eq!(hits, [0.0, 1.0, 0.0, 0.0]);
}

/// The disk's window has three of the pool's; intensity is that of the end of each.
#[test]
fn intensity_is_measured_in_each_window_of_the_pool() {
    let mut observer = observer(4096);
    for (turn, late_reads) in [(0, 20), (1, 0), (2, 40), (3, 10)] {
        let begun_us = turn * WINDOW_US;
        note(&mut observer, begun_us, Recorded::Read, 0..50);
        note(&mut observer, begun_us + 950_000, Recorded::Read, (0..late_reads).map(|at| at % 10));
        let read = turn * 50 + [20, 20, 60, 70][turn as usize] + 50;
        let (window, goes_on) = observer.turn(begun_us + WINDOW_US, &counters(0, read, 0), 3).unwrap();
        let unique_read_blocks = late_reads.min(10);
        let expected = Intensity { length_us: 100_000, read_blocks: late_reads, unique_read_blocks };
        assert_eq!(window.intensity, expected, "window {turn}");
        assert_eq!(
            (window.length_us / WINDOW_US, goes_on),
            [(1, true), (2, true), (3, false), (1, true)][turn as usize]
        );
        assert_eq!((window.reads, window.wss_blocks), ([70, 120, 210, 60][turn as usize], 50));
    }
}

#[test]
fn intensity_is_of_the_end_of_the_window() {
    let mut observer = observer(4096);
    note(&mut observer, 0, Recorded::Read, 0..50);
    note(&mut observer, 950_000, Recorded::Read, (0..10).chain(0..10));
    let window = observer.close(WINDOW_US, &counters(0, 70, 0)).unwrap();
    let expected = Intensity { length_us: 100_000, read_blocks: 20, unique_read_blocks: 10 };
    assert_eq!(window.intensity, expected);
    assert_eq!(window.read_only.at(64), (20.0f64 / 70.0 * 1e6).round() / 1e6);
}

/// The largest distance of a window is its own, not that of the window before.
#[test]
fn an_exact_largest_distance_is_of_its_window() {
    let mut observer = observer(None);
    let needed = [(0..1000).chain(0..1000), (2000..2101).chain(2000..2101)].map(|blocks| {
        note(&mut observer, 0, Recorded::Read, blocks);
        observer.close(WINDOW_US, &counters(0, 0, 0)).unwrap().trd.blocks_needed()
    });
    assert_eq!(needed, [1000, 101]);
}

#[test]
fn a_small_sample_is_near_the_whole() {
    let (mut small, mut whole) = (observer(512), observer(1 << 20));
    for turn in 0..3 {
        for observer in [&mut small, &mut whole] {
            // A hot set and a scan: three of four reads are within the hot set, the rest within 40,000 other
            // blocks.
            let blocks = (0..200_000u64).map(|at| match at % 4 {
                3 => 100_000 + at / 4 % 40_000,
                _ => spread(at) >> 32 & 0x3fff,
            });
            note(observer, turn * WINDOW_US, Recorded::Read, blocks);
        }
        let count = counters(0, (turn + 1) * 200_000, 0);
        let (small, whole) =
            [&mut small, &mut whole].map(|o| o.close((turn + 1) * WINDOW_US, &count).unwrap()).into();
        let near = |found: u64, exact: u64| found.abs_diff(exact) as f64 / exact as f64;
        assert!(near(small.wss_blocks, whole.wss_blocks) < 0.1, "{small:?}");
        assert!(near(small.rwss_blocks[0], whole.rwss_blocks[0]) < 0.1, "{small:?}");
        for blocks in [5_000, 10_000, 20_000, 40_000, 60_000] {
            let (found, exact) = (small.trd.at(blocks), whole.trd.at(blocks));
            assert!((found - exact).abs() < 0.08, "at {blocks}: {found} for {exact}");
        }
    }
}

#[test]
fn what_is_recorded_as_a_sample_is_scaled_up() {
    let mut observer = observer(1 << 20);
    let mut records = Records::with_room(1 << 20);
    for _ in 0..2 {
        (0..80_000)
            .filter(|block| spread(*block) >> 61 == 0)
            .for_each(|b| records.push(0, Recorded::Read, b * 8, 8));
    }
    observer.note(&records.sampled(3));
    let window = observer.close(WINDOW_US, &counters(0, 160_000, 0)).unwrap();
    assert!(window.wss_blocks.abs_diff(80_000) < 800, "{window:?}");
    assert!(window.trd.at(70_000) < 0.1 && (window.trd.at(90_000) - 0.5).abs() < 0.02, "{:?}", window.trd);
}

/// Accesses to 30,000 blocks at random, and the largest distance among them, counted by brute force.
fn random_reads() -> (Vec<u64>, u64) {
    let reads: Vec<u64> = (0..60_000u64).map(|at| spread(at) % 30_000).collect();
    let mut last = std::collections::BTreeMap::new();
    // Blocks by their last use: a distance is the number of those used later.
    let mut order = std::collections::BTreeSet::new();
    let mut largest = 0;
    for (at, block) in reads.iter().enumerate() {
        if let Some(before) = last.insert(*block, at) {
            order.remove(&before);
            // Only candidates for the largest are counted.
            if at - before > largest {
                largest = largest.max(order.range(before..).count());
            }
        }
        order.insert(at);
    }
    (reads, largest as u64)
}

#[test]
fn without_a_sample_the_largest_distance_is_exact() {
    let (reads, largest) = random_reads();
    let mut of = [observer(None), observer(1024)].map(|mut observer| {
        note(&mut observer, 0, Recorded::Read, reads.iter().copied());
        observer.close(WINDOW_US, &counters(0, reads.len() as u64, 0)).unwrap()
    });
    let [exact, sampled] = &mut of;
    assert_eq!(exact.trd.blocks_needed(), largest + 1);
    assert_eq!((exact.sampled, exact.distance_error(largest)), (Some(1.0), Some(0.0)));
    let distinct = reads.iter().collect::<std::collections::BTreeSet<_>>().len();
    let hits = 1.0 - distinct as f64 / reads.len() as f64;
    assert!((exact.trd.highest() - hits).abs() < 1e-6, "{} and {hits}", exact.trd.highest());
    assert!(sampled.sampled.unwrap() < 0.1 && sampled.trd.blocks_needed() != largest + 1);
}

/// All distances are equal, so that nothing but the error of the estimate is seen, beside the rounding of a curve's
/// sizes.
#[test]
fn sampled_distances_are_within_the_stated_error() {
    const ROUNDING: f64 = 1.0 / 8.0;
    for blocks in [5_000u64, 20_000, 80_000, 300_000] {
        let mut observer = observer(1024);
        for turn in 0..2 {
            note(&mut observer, 0, Recorded::Read, (0..blocks).map(|block| block * 3));
            if turn == 0 {
                observer.close(WINDOW_US, &counters(0, blocks, 0)).unwrap();
            }
        }
        let window = observer.close(2 * WINDOW_US, &counters(0, 2 * blocks, 0)).unwrap();
        let found = window.trd.blocks_needed() as f64 / blocks as f64;
        let error = window.distance_error(blocks).unwrap();
        assert!(error > 0.0 && error < 0.1, "{blocks} blocks: {error}");
        let (least, most) = (1.0 - 3.0 * error, (1.0 + 3.0 * error) * (1.0 + ROUNDING));
        assert!((least..most).contains(&found), "{blocks} blocks: {found}, error {error}");
    }
}
