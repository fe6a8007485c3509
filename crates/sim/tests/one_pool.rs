//! One pool of many disks against the same requests to one disk: sharing costs about a point of hits at
//! most, since segments belong to one disk, and here a disk has few.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::{memory, simulate};
use haversack_core::Target;
use haversack_core::format::geometry::SLOTS_PER_SEGMENT;
use haversack_model::random::Random;
use haversack_policy::{Config, named};
use haversack_sim::{PolicyName, Pool, Settings, Sizes, Traffic};
use haversack_trace::{Access, Op, VolumeNo};

/// Bytes of a disk.
const DISK_BYTES: u64 = 1 << 30;
/// Segments of the pool for each disk.
const SEGMENTS_A_DISK: u64 = 10;

/// Bursts of requests to disks of all kinds: one in five scans; the others have working sets of different
/// sizes, which they use in different ways, and which some of them change half-way.
fn bursts(disks: u64, requests: u64, seed: u64) -> Vec<Access> {
    let mut rng = Random::new(seed);
    let mut scans = vec![0; disks as usize];
    let mut all = Vec::new();
    while (all.len() as u64) < requests {
        // Some disks are busier than others.
        let disk = (rng.unit().powi(2) * disks as f64) as u64;
        let half = u64::from(2 * all.len() as u64 > requests && disk.is_multiple_of(3));
        for _ in 0..=rng.bits() % 48 {
            let blocks = 1 + rng.bits() % 8;
            let block = if disk % 5 == 1 {
                scans[disk as usize] += blocks;
                scans[disk as usize] % 100_000
            } else {
                let size = 1500.0 * (3 + disk % 11) as f64;
                half * 20_000 + (rng.unit().powi(1 + (disk % 4) as i32) * size) as u64
            };
            all.push(Access {
                time_ns: all.len() as u64 * 100_000,
                offset_bytes: block * 4096,
                length_bytes: (blocks * 4096) as u32,
                volume: VolumeNo(disk as u32),
                op: if rng.bits().is_multiple_of(4) { Op::Write } else { Op::Read },
            });
        }
    }
    all
}

/// The same requests to one disk.
fn on_one_disk(accesses: &[Access]) -> Vec<Access> {
    let moved = |access: &Access| Access {
        volume: VolumeNo(0),
        offset_bytes: access.offset_bytes + u64::from(access.volume.0) * DISK_BYTES,
        ..*access
    };
    accesses.iter().map(moved).collect()
}

fn hit_ratio(accesses: &[Access], disks: u64, segments: u64, others: Target) -> f64 {
    hits(accesses, disks, segments, Pool { others, ..Pool::default() }, None)
}

fn hits(accesses: &[Access], disks: u64, segments: u64, pool: Pool, control: Option<Config>) -> f64 {
    let names: Vec<String> = (0..disks).map(|disk| format!("disk{disk}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let settings = Settings {
        policies: vec![PolicyName::Core],
        sizes: Sizes::Blocks(vec![segments * u64::from(SLOTS_PER_SEGMENT)]),
        traffic: Traffic { warm_up: 0.3, ..Traffic::default() },
        pool,
        control,
        ..Settings::default()
    };
    let report = simulate(&memory(accesses, &names), &settings);
    1.0 - report.of(PolicyName::Core).next().expect("it was simulated").miss_ratio.expect("accesses")
}

/// Returns the hit ratio of one disk, and how much lower the hit ratio of many disks is.
fn one_and_loss(disks: u64, accesses: &[Access]) -> (f64, f64) {
    let segments = SEGMENTS_A_DISK * disks;
    let shared = Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX };
    let one = hit_ratio(&on_one_disk(accesses), 1, segments, Target::Equal);
    let many = hit_ratio(accesses, disks, segments, shared);
    assert!((0.2..0.9).contains(&one), "{one} could not show a difference");
    (one, one - many)
}

fn compare(disks: u64, accesses: &[Access]) {
    let (one, loss) = one_and_loss(disks, accesses);
    assert!(loss < 0.01, "{disks} disks: {loss:.4} less of all accesses hit than {one:.4} on one disk");
}

#[test]
fn disks_share_one_pool_by_default() {
    let accesses = bursts(5, 40_000, 7);
    let hits = |allocator: Option<&str>| {
        let control = allocator.map(|name| named(name).expect("known"));
        hits(&accesses, 5, 5 * SEGMENTS_A_DISK, Pool::default(), control)
    };
    assert_eq!(hits(None), hits(Some("none")));
    assert_ne!(hits(None), hits(Some("equal")));
}

#[test]
fn two_disks_are_as_good_as_one() {
    compare(2, &bursts(2, 40_000, 7));
}

/// Any change in which block is evicted changes the hits of one run by up to half a point, so this test checks a mean.
#[test]
fn fifty_disks_are_nearly_as_good_as_one() {
    let seeds = 1..=4;
    let losses: Vec<f64> = seeds.map(|seed| one_and_loss(50, &bursts(50, 300_000, seed)).1).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean < 0.0125, "on average {mean:.4} less of all accesses hit than on one disk: {losses:.4?}");
}

#[test]
fn a_thousand_disks_are_as_good_as_one() {
    compare(1000, &bursts(1000, 1_000_000, 7));
}

/// A disk that has filled the pool and stops makes room for those that are busy.
#[test]
fn an_idle_disk_keeps_nothing() {
    let mut rng = Random::new(3);
    let access = |at: u64| {
        let volume = if at < 10_000 { 2 } else { at % 2 };
        let skew = if volume == 2 { 1 } else { 3 };
        Access {
            time_ns: at * 1_000_000,
            offset_bytes: (rng.unit().powi(skew) * 60_000.0) as u64 * 4096,
            length_bytes: 4096,
            volume: VolumeNo(volume as u32),
            op: Op::Read,
        }
    };
    compare(3, &(0..150_000).map(access).collect::<Vec<_>>());
}

/// A disk whose working set fits gets the space for it although another fills four times as much.
#[test]
fn a_scan_does_not_keep_a_working_set_out() {
    let mut rng = Random::new(5);
    let access = |at: u64| {
        let scan = !at.is_multiple_of(5);
        let block = if scan { at } else { (rng.unit().powi(2) * 4000.0) as u64 };
        Access {
            time_ns: at * 400_000,
            offset_bytes: block % 250_000 * 4096,
            length_bytes: 4096,
            volume: VolumeNo(u32::from(scan)),
            op: Op::Read,
        }
    };
    let accesses: Vec<_> = (0..400_000).map(access).collect();
    let shared = Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX };
    let one = hit_ratio(&on_one_disk(&accesses), 1, 31, Target::Equal);
    let many = hit_ratio(&accesses, 2, 31, shared);
    assert!(many > one - 0.01, "{many:.4} of all accesses hit, {one:.4} on one disk");
}
