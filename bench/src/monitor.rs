//! What recording a disk's requests costs: the same reads with and without, in turn.

use std::time::Instant;

use haversack_core::{CoreConfig, MonitorConfig, NullMemory, Records, Request};

use crate::driver::{Driver, Setup, disk_of_blocks};
use crate::table::{self, row};
use haversack_model::random::Random;

/// Cached blocks, all of the disk: few enough that the tables stay in the processor's caches and noise is small.
const CACHED: u64 = 20_000;
const SEGMENTS: u32 = (CACHED * 11 / 10 / 253) as u32;
const FRAMES: u32 = 1024;
const FILL_BLOCKS: u32 = 64;
/// Time in which the core finishes its background work after the fill.
const SETTLING_SECONDS: u32 = 10;
/// Requests of a round, and rounds of each kind, of which the best counts.
const ROUND: u64 = 2_000_000;
const ROUNDS: usize = 12;
/// Requests in flight together.
const DEPTH: u64 = 32;
/// Room for records, and requests after which they are taken.
const RECORDS: usize = 8192;
const TAKE_AFTER: u64 = 4096;
/// How recording is set.
const KINDS: [(&str, Option<u8>); 4] = [
    ("off", None),
    ("all requests", Some(0)),
    ("one block of 16", Some(4)),
    ("one block of 1,024", Some(10)),
];

/// Measures and prints.
pub fn run() {
    let setup = Setup {
        segments: SEGMENTS,
        config: CoreConfig::default(),
        disk: disk_of_blocks(CACHED),
        zero_reads: false,
    };
    let mut driver = Driver::open(&setup, NullMemory::new(FRAMES, FRAMES));
    for block in (0..CACHED).step_by(FILL_BLOCKS as usize) {
        let blocks = FILL_BLOCKS.min((CACHED - block) as u32);
        driver.read(block, block, blocks);
        driver.pass(10);
    }
    for _ in 0..SETTLING_SECONDS {
        driver.pass(1_000_000);
    }
    let (mut rng, mut records) = (Random::new(1), Records::with_room(RECORDS));
    let mut best_ns = [f64::INFINITY; KINDS.len()];
    for _ in 0..ROUNDS {
        for ((_, sample_shift), best_ns) in KINDS.iter().zip(&mut best_ns) {
            let config = sample_shift.map(|sample_shift| MonitorConfig { records: RECORDS, sample_shift });
            driver.core.set_monitor(driver.disk(), config).expect("the disk is attached");
            *best_ns = round(&mut driver, &mut rng, &mut records).min(*best_ns);
        }
    }
    let mut rows = vec![row(["recorded", "ns a read", "more than off", "goal"])];
    for ((name, _), ns) in KINDS.iter().zip(best_ns) {
        rows.push(row([name, &format!("{ns:.1}"), &format!("{:.1}", ns - best_ns[0]), "5"]));
    }
    table::print(
        "monitor: random 4 KiB read hits, no data, 32 in flight, records taken now and then, best of 12",
        &rows,
    );
}

/// Nanoseconds a request.
fn round(driver: &mut Driver<NullMemory>, rng: &mut Random, records: &mut Records) -> f64 {
    let mut batch: Vec<Request> = Vec::with_capacity(DEPTH as usize);
    let mut since_taken = 0;
    let start = Instant::now();
    for _ in 0..ROUND / DEPTH {
        batch.clear();
        batch.extend((0..DEPTH).map(|tag| driver.read_request(tag, rng.below(CACHED), 1)));
        for request in &batch {
            driver.submit(*request);
        }
        driver.drain();
        driver.now += DEPTH;
        since_taken += DEPTH;
        if since_taken >= TAKE_AFTER {
            since_taken = 0;
            driver.core.take_records(driver.disk(), records);
            assert_eq!(records.lost(), 0, "there is room for all");
        }
    }
    start.elapsed().as_nanos() as f64 / ROUND as f64
}
