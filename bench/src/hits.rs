//! Read hits a second through the core alone: one thread, devices that complete at once.

use std::hint::black_box;
use std::time::Instant;

use haversack_core::{CoreConfig, FrameNo, HeapMemory, Memory, NullMemory, Payloads, Request, RequestTag};
use haversack_model::BLOCK_BYTES;

use crate::alloc;
use crate::driver::{Driver, Setup, disk_of_blocks};
use crate::table::{self, row};
use haversack_model::random::Random;

/// Cached blocks, all of the disk.
const CACHED: u64 = 1_000_000;
/// Segments with room to spare.
const SEGMENTS: u32 = (CACHED * 11 / 10 / 253) as u32;
const STAGING_FRAMES: u32 = 1024;
const TRANSFER_FRAMES: u32 = 1024;
/// Blocks of a request that fills the cache.
const FILL_BLOCKS: u32 = 64;
/// Time in which the core finishes its background work after the fill.
const SETTLING_SECONDS: u32 = 10;
/// The number of requests before measuring. The two below: requests in each round, and rounds, of which the best one
/// counts.
const WARM_UP: u64 = 1_000_000;
const ROUND: u64 = 4_000_000;
const ROUNDS: usize = 3;
/// Requests in flight together, and whether the core is told of them before the first is submitted.
const DEPTHS: [(usize, bool); 3] = [(1, false), (32, false), (32, true)];
/// Buffers that a guest reads into, in turn.
const BUFFERS: u64 = 64;

/// Guest buffers that data is really copied to.
struct Copied(Vec<[u8; BLOCK_BYTES]>);

impl Payloads for Copied {
    fn take(&mut self, _: RequestTag, _: usize, into: &mut [u8]) -> bool {
        into.fill(0);
        true
    }

    fn give(&mut self, tag: RequestTag, _: usize, from: &[u8]) {
        let buffer = &mut self.0[(tag.0 % BUFFERS) as usize][..from.len()];
        buffer.copy_from_slice(from);
        black_box(&*buffer);
    }
}

/// No buffers: the front end takes the frame itself.
struct InPlace;

impl Payloads for InPlace {
    fn take(&mut self, _: RequestTag, _: usize, into: &mut [u8]) -> bool {
        into.fill(0);
        true
    }

    fn give(&mut self, _: RequestTag, _: usize, from: &[u8]) {
        black_box(from);
    }
}

/// Measures and prints all variants.
pub fn run() {
    let mut rows =
        vec![row(["variant", "in flight", "hint", "million hits/s", "goal", "allocations/request", "goal"])];
    let heap = "every block's CRC-32C is computed";
    let copied = Copied(vec![[0; BLOCK_BYTES]; BUFFERS as usize]);
    let memory = HeapMemory::new(STAGING_FRAMES, TRANSFER_FRAMES, copied);
    measure(&format!("{heap}, data copied"), memory, true, &mut rows);
    let memory = HeapMemory::new(STAGING_FRAMES, TRANSFER_FRAMES, InPlace);
    measure(&format!("{heap}, not copied"), memory, true, &mut rows);
    let memory = NullMemory::new(STAGING_FRAMES, TRANSFER_FRAMES);
    measure("no data: no CRC, no copy", memory, false, &mut rows);
    let title =
        "hits: random 4 KiB reads over 1 million cached blocks, 1 thread, null device, best of 3 rounds";
    table::print(title, &rows);
}

fn measure<M: Memory>(name: &str, memory: M, real: bool, rows: &mut Vec<Vec<String>>) {
    let setup = Setup {
        segments: SEGMENTS,
        config: CoreConfig::default(),
        disk: disk_of_blocks(CACHED),
        zero_reads: real,
    };
    let mut driver = Driver::open(&setup, memory);
    for block in (0..CACHED).step_by(FILL_BLOCKS as usize) {
        driver.read(block, block, FILL_BLOCKS);
        driver.pass(10);
    }
    // The last commits are flushed and marked as flushed: no page is written while it is measured.
    for _ in 0..SETTLING_SECONDS {
        driver.pass(1_000_000);
    }
    // The null device leaves frames alone, so those that held metadata must become blocks again.
    driver.zero_reads = false;
    if real {
        for frame in STAGING_FRAMES..STAGING_FRAMES + TRANSFER_FRAMES {
            driver.memory.frame_mut(FrameNo(frame)).fill(0);
        }
    }
    let mut rng = Random::new(1);
    for (depth, hint) in DEPTHS {
        let mut batch = Vec::with_capacity(depth);
        let mut round = |driver: &mut _, requests| round(driver, &mut rng, &mut batch, depth, hint, requests);
        round(&mut driver, WARM_UP);
        let (stats, ios, allocations) = (driver.stats(), driver.device_ios, alloc::allocations());
        let best = (0..ROUNDS).map(|_| round(&mut driver, ROUND)).fold(0.0, f64::max);
        let allocations = alloc::allocations() - allocations;
        let requests = ROUND * ROUNDS as u64;
        let now = driver.stats();
        assert_eq!(now.read_hits - stats.read_hits, requests, "all are hits");
        assert_eq!(now.corrupt_blocks, 0, "all blocks verify");
        let staged = driver.usage().usage_blocks - driver.core.pool_stats().usage_blocks;
        let from_flash = driver.device_ios - ios;
        assert!(
            from_flash + requests * 2 * (staged + 1) / CACHED >= requests,
            "all but the staged blocks come from the device"
        );
        rows.push(vec![
            name.into(),
            depth.to_string(),
            if hint { "yes" } else { "no" }.into(),
            format!("{:.2}", best / 1e6),
            "3".into(),
            (allocations as f64 / requests as f64).to_string(),
            "0".into(),
        ]);
    }
}

/// Requests a second of one round. Making up the requests is part of it.
fn round<M: Memory>(
    driver: &mut Driver<M>,
    rng: &mut Random,
    batch: &mut Vec<Request>,
    depth: usize,
    hint: bool,
    requests: u64,
) -> f64 {
    let (start, before) = (Instant::now(), driver.completed());
    for _ in 0..requests / depth as u64 {
        batch.clear();
        batch.extend((0..depth as u64).map(|tag| driver.read_request(tag, rng.below(CACHED), 1)));
        if hint {
            driver.core.prefetch(batch);
        }
        for request in &*batch {
            driver.submit(*request);
        }
        driver.drain();
        driver.now += depth as u64;
    }
    assert_eq!(driver.completed() - before, requests, "no request hangs");
    requests as f64 / start.elapsed().as_secs_f64()
}
