//! Writes through the core alone: one thread, devices that complete at once. Measures how long each call into the core takes:
//! requests of guests wait for a call that takes long.

use haversack_core::{CoreConfig, NullMemory, Op};
use haversack_model::random::Random;

use crate::driver::{Driver, Setup, disk_of_blocks};
use crate::table::{self, grouped, row};

/// Blocks of the disk.
const BLOCKS: u64 = 1_000_000;
/// Segments, with room to spare.
const SEGMENTS: u32 = (BLOCKS * 11 / 10 / 253) as u32;
const STAGING_FRAMES: u32 = 16_384;
const TRANSFER_FRAMES: u32 = 1024;
/// Blocks that are written: few, and all.
const WRITTEN: [u64; 2] = [4096, BLOCKS];
/// Requests before measuring, until versions and pages have built up, and then.
const WARM_UP: u64 = 2_000_000;
const MEASURED: u64 = 2_000_000;
/// Time between two requests.
const INTERVAL_US: u64 = 3;

/// Measures and prints.
pub fn run() {
    let mut rows = vec![row([
        "blocks written",
        "us/request",
        "calls",
        "median us",
        "99 %",
        "99.9 %",
        "99.99 %",
        "99.999 %",
        "longest",
    ])];
    for blocks in WRITTEN {
        rows.push(measure(blocks));
    }
    let title = "writes: random 4 KiB in write-back mode, 1 thread, null devices, no data; durations of calls into the core";
    table::print(title, &rows);
}

fn measure(blocks: u64) -> Vec<String> {
    let setup = Setup {
        segments: SEGMENTS,
        config: CoreConfig::default(),
        disk: disk_of_blocks(BLOCKS),
        zero_reads: false,
    };
    let mut driver = Driver::open(&setup, NullMemory::new(STAGING_FRAMES, TRANSFER_FRAMES));
    let mut rng = Random::new(1);
    write(&mut driver, &mut rng, blocks, WARM_UP);
    driver.calls_ns = Some(Vec::new());
    write(&mut driver, &mut rng, blocks, MEASURED);
    let mut calls_ns = driver.calls_ns.take().unwrap_or_default();
    calls_ns.sort_unstable();
    let sum_ns: u64 = calls_ns.iter().map(|ns| u64::from(*ns)).sum();
    let at = |share: f64| {
        let last = calls_ns.len().saturating_sub(1);
        let ns = calls_ns.get((last as f64 * share) as usize);
        format!("{:.1}", ns.map_or(f64::NAN, |ns| f64::from(*ns) / 1e3))
    };
    vec![
        grouped(blocks),
        format!("{:.2}", sum_ns as f64 / 1e3 / MEASURED as f64),
        grouped(calls_ns.len() as u64),
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(0.99999),
        at(1.0),
    ]
}

fn write(driver: &mut Driver<NullMemory>, rng: &mut Random, blocks: u64, requests: u64) {
    for tag in 0..requests {
        let mut request = driver.read_request(tag, rng.below(blocks), 1);
        request.op = Op::Write { fua: false };
        driver.submit(request);
        driver.drain();
        driver.pass(INTERVAL_US);
    }
    assert_eq!(driver.stats().corrupt_blocks, 0, "all blocks verify");
}
