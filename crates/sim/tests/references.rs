//! Latencies of the reference caches with constant service times, and settings that these caches refuse.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::{memory, simulate};
use haversack_core::CleanerConfig;
use haversack_latency::WholeTimes;
use haversack_model::{WriteMode, WriteThroughAck};
use haversack_sim::{PolicyName, Pool, Replacement, Row, Settings, Sizes, run};
use haversack_trace::{Access, Op, VolumeNo};

const DEVICE_US: u32 = 10;
const ORIGIN_US: u32 = 1_000;

/// A device that does everything at the same time, and an origin that does one thing after the other.
const TIMES: WholeTimes = WholeTimes {
    device_read_us: DEVICE_US,
    device_write_us: DEVICE_US,
    device_flush_us: DEVICE_US,
    device_servers: 100,
    origin_read_us: ORIGIN_US,
    origin_write_us: ORIGIN_US,
    origin_flush_us: ORIGIN_US,
    origin_servers: 1,
};

/// An LRU cache of this size in blocks.
fn lru(mode: WriteMode, blocks: u64, requests: &[(u64, Op, u64)]) -> Row {
    lru_with(TIMES, mode, blocks, requests)
}

fn lru_with(times: WholeTimes, mode: WriteMode, blocks: u64, requests: &[(u64, Op, u64)]) -> Row {
    let access = |(us, op, block): &(u64, Op, u64)| Access {
        time_ns: us * 1_000,
        offset_bytes: block * 4096,
        length_bytes: 4096,
        volume: VolumeNo(0),
        op: *op,
    };
    let accesses: Vec<Access> = requests.iter().map(access).collect();
    let settings = Settings {
        policies: vec![PolicyName::Lru],
        sizes: Sizes::Blocks(vec![blocks]),
        mode,
        latency: Some(times.model()),
        ..Settings::default()
    };
    let report = simulate(&memory(&accesses, &["v"]), &settings);
    report.of(PolicyName::Lru).next().expect("it was simulated").clone()
}

fn means_us(row: &Row) -> (f64, f64) {
    let latency = row.latency.as_ref().expect("there is a model of time");
    (latency.reads.mean_us, latency.writes.mean_us)
}

fn is_near(one_us: f64, other_us: u32) -> bool {
    (one_us - f64::from(other_us)).abs() <= 0.01 * f64::from(other_us.max(1))
}

#[test]
fn a_dirty_block_that_is_evicted_keeps_the_origin_busy() {
    let written = [(0, Op::Write, 1), (0, Op::Write, 2), (20, Op::Read, 3), (40, Op::Read, 4)];
    let (reads, writes) = means_us(&lru(WriteMode::WriteBack, 1, &written));
    assert!(is_near(writes, 0), "a write does not wait for what it replaces: {writes} us");
    // Block 1 is written to the origin from 10 us on, block 2 from 30 us on: the first read waits for one, the second
    // for both and for the first.
    assert!(is_near(reads, 3 * ORIGIN_US - 2 * DEVICE_US), "{reads} us");
    let clean = [(0, Op::Read, 1), (5_000, Op::Read, 2), (10_000, Op::Read, 3)];
    let (reads, _) = means_us(&lru(WriteMode::WriteBack, 1, &clean));
    assert!(is_near(reads, ORIGIN_US), "what is clean is only dropped: {reads} us");
}

/// Servers are free until an I/O begins: the fill of a block that is still being read, the write of an evicted one.
#[test]
fn what_begins_later_delays_no_earlier_request() {
    let one = WholeTimes { device_servers: 1, ..TIMES };
    let filled = [(0, Op::Read, 1), (100, Op::Read, 1), (200, Op::Read, 1)];
    let (reads, _) = means_us(&lru_with(one, WriteMode::WriteBack, 10, &filled));
    assert!(is_near(reads, (ORIGIN_US + 2 * DEVICE_US) / 3), "{reads} us");
    let evicted = [(0, Op::Write, 1), (0, Op::Read, 2)];
    let (reads, _) = means_us(&lru(WriteMode::WriteBack, 1, &evicted));
    assert!(is_near(reads, ORIGIN_US), "block 1 has yet to be read from the cache: {reads} us");
}

#[test]
fn what_is_written_back_counts_when_it_is_evicted() {
    let written = [(0, Op::Write, 1), (0, Op::Write, 2), (0, Op::Write, 1), (0, Op::Write, 3)];
    for (blocks, expected) in [(3, 0), (2, 1), (1, 3)] {
        let row = lru(WriteMode::WriteBack, blocks, &written);
        assert_eq!(row.counts.origin_writes, expected, "{blocks} blocks");
    }
    let discarded = [(0, Op::Write, 1), (0, Op::Discard, 1), (0, Op::Write, 2)];
    let row = lru(WriteMode::WriteBack, 1, &discarded);
    assert_eq!((row.counts.origin_writes, row.counts.origin_written_bytes), (1, 0), "only the discard");
}

#[test]
fn a_write_through_is_answered_by_the_origin_or_by_the_cache() {
    let requests = [(0, Op::Write, 1), (0, Op::Read, 9)];
    let through = |answer| means_us(&lru(WriteMode::WriteThrough(answer), 10, &requests));
    let (reads, writes) = through(WriteThroughAck::Origin);
    assert!(is_near(writes, ORIGIN_US) && is_near(reads, 2 * ORIGIN_US), "{reads} {writes} us");
    let (reads, writes) = through(WriteThroughAck::Cache);
    assert!(is_near(writes, 0) && is_near(reads, 2 * ORIGIN_US), "{reads} {writes} us");
}

#[test]
fn discards_and_flushes_keep_the_origin_busy() {
    let read_us = |requests: &[(u64, Op, u64)]| {
        let mode = WriteMode::WriteThrough(WriteThroughAck::Origin);
        means_us(&lru(mode, 10, requests)).0
    };
    let discarded = read_us(&[(0, Op::Discard, 1), (0, Op::Read, 9)]);
    assert!(is_near(discarded, 2 * ORIGIN_US), "{discarded} us");
    let flushed = read_us(&[(0, Op::Write, 1), (2_000, Op::Flush, 0), (2_000, Op::Read, 9)]);
    assert!(is_near(flushed, 2 * ORIGIN_US), "{flushed} us");
    let twice =
        read_us(&[(0, Op::Write, 1), (2_000, Op::Flush, 0), (4_000, Op::Flush, 0), (4_000, Op::Read, 9)]);
    assert!(is_near(twice, ORIGIN_US), "nothing was written since the first flush: {twice} us");
}

#[test]
fn settings_that_only_the_production_cache_has_are_refused() {
    let plain = Pool::default();
    let cases = [
        (Pool { devices: 2, ..plain.clone() }, "devices"),
        (Pool { sequential_cutoff_bytes: 1 << 20, ..plain.clone() }, "sequential cutoff"),
        (Pool { share_spare: false, ..plain.clone() }, "targets"),
        (Pool { staging_blocks: Some(64), ..plain.clone() }, "staging"),
        (
            Pool { cleaner: CleanerConfig { age_us: 1, ..CleanerConfig::default() }, ..plain.clone() },
            "cleaner",
        ),
    ];
    let accesses = [Access { length_bytes: 4096, ..Access::default() }];
    for (pool, word) in cases {
        for replacement in [Replacement::Lru, Replacement::Arc] {
            let settings = Settings { pool: pool.clone(), replacement, ..Settings::default() };
            let error = run(&memory(&accesses, &["v"]), &settings, &|_, _| {}).expect_err("it is refused");
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
}
