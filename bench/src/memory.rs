//! RAM per cached block, with ten million of them.

use haversack_core::{CoreConfig, DESCRIPTOR_BYTES, NullMemory};
use haversack_model::BLOCK_BYTES;

use crate::alloc;
use crate::driver::{Driver, Setup, disk_of_blocks};
use crate::table::{self, grouped, row};

/// Blocks that should be cached.
const CACHED: u64 = 10_000_000;
/// Blocks of the disk, a power of two: all are read once, so that the cache is full and evicts.
const DISK_BLOCKS: u64 = 1 << 24;
/// Segments: a share of 1 in 32 slots is kept free, and room for a batch.
const SEGMENTS: u32 = (CACHED * 32 / 31 / 253) as u32 + 4;
/// Staging and transfer frames of a host with such a cache: 8 MiB each.
const FRAMES: u32 = 2048;
/// An odd factor that scatters the blocks.
const SCATTER: u64 = 0x9E37_79B1;

/// Measures and prints.
pub fn run() {
    let before = alloc::live_bytes();
    alloc::reset_peak();
    let setup = Setup {
        segments: SEGMENTS,
        config: CoreConfig::default(),
        disk: disk_of_blocks(DISK_BLOCKS),
        zero_reads: false,
    };
    let mut driver = Driver::open(&setup, NullMemory::new(FRAMES, FRAMES));
    let (opened, opening) = (alloc::live_bytes() - before, alloc::peak_bytes() - before);
    for at in 0..DISK_BLOCKS {
        driver.read(at, at.wrapping_mul(SCATTER) % DISK_BLOCKS, 1);
        driver.pass(10);
    }
    let after = alloc::live_bytes() - before;
    print(&driver, opened, opening, after);
}

fn print(driver: &Driver<NullMemory>, opened: usize, opening: usize, after: usize) {
    let pool = driver.core.pool_stats();
    let live = pool.usage_blocks;
    let frames = 2 * FRAMES as usize * BLOCK_BYTES + (FRAMES as usize + 1) * DESCRIPTOR_BYTES;
    let each = |bytes: usize| format!("{:.2}", bytes as f64 / live as f64);
    let whole = |bytes: usize| grouped(bytes as u64);
    let counted = pool.memory_bytes as usize;
    let rows = [
        row(["", "bytes", "per cached block", "goal"]),
        row(["allocated by the core, ghost list included", &whole(after), &each(after), "28"]),
        row(["frames and descriptors (not allocated here)", &whole(frames), &each(frames), ""]),
        row(["both together", &whole(after + frames), &each(after + frames), "28"]),
        row(["pool_stats().memory_bytes", &whole(counted), &each(counted), ""]),
        row(["allocated before the first read", &whole(opened), &each(opened), ""]),
        row(["peak while making and opening", &whole(opening), &each(opening), ""]),
    ];
    let title = format!(
        "memory: {} blocks cached in {} slots after {} reads of distinct blocks, {} staging and {} transfer frames",
        grouped(live),
        grouped(pool.capacity_blocks),
        grouped(driver.completed()),
        grouped(u64::from(FRAMES)),
        grouped(u64::from(FRAMES)),
    );
    table::print(&title, &rows);
}
