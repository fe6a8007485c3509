//! Memory of an exact analysis: bytes for each block, and none for an access.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use haversack_analyze::{Options, analyze};
use haversack_trace::{Access, Op, Source, TraceError, VolumeNo};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with counters.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; only counters are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    // Large allocations are resized by remapping their pages, so they never exist twice.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size(), Relaxed);
        PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
        // SAFETY: the pointer came from the system's allocator with this layout; the caller vouches for `bytes`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory of the parts of a trace that are on their way between threads.
const PARTS_BYTES: usize = 48 << 20;
/// Maximum bytes of state for each block that every window accesses, including unused table space: with one volume, and
/// with several.
const BLOCK_BYTES: [usize; 2] = [90, 110];

/// Accesses to a number of blocks in turn, every third a write, of n volumes.
struct Turns {
    blocks: u64,
    volumes: u32,
    done: u64,
    accesses: u64,
}

impl Source for Turns {
    fn volumes(&self) -> &[String] {
        &[]
    }

    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let count = (self.accesses - self.done).min(1 << 12);
        into.extend((self.done..self.done + count).map(|n| {
            let op = if n % 3 == 0 { Op::Write } else { Op::Read };
            let block = n % self.blocks;
            let volume = VolumeNo((block % u64::from(self.volumes)) as u32);
            Access { offset_bytes: block * 4096, length_bytes: 4096, volume, op, ..Access::default() }
        }));
        self.done += count;
        Ok(count as usize)
    }
}

/// The most that an analysis has allocated at once.
fn peak_bytes(blocks: u64, volumes: u32, accesses: u64) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let options = Options { threads: 2, ..Options::default() };
    let mut turns = Turns { blocks, volumes, accesses, done: 0 };
    let found = analyze(&mut turns, &options, |_, _| {}).expect("it is readable");
    assert_eq!(found.overall.footprint_blocks, blocks);
    assert_eq!(found.overall.all_distances.blocks, blocks);
    PEAK.load(Relaxed) - before
}

#[test]
fn memory_grows_with_blocks_alone() {
    for (volumes, block_bytes) in [1, 4].into_iter().zip(BLOCK_BYTES) {
        for blocks in [1_000, 300_000, 1_000_000, 1_300_000] {
            let peak = peak_bytes(blocks, volumes, 4_000_000);
            let what = format!("{blocks} blocks of {volumes} volumes: {peak} bytes");
            println!("{what}");
            assert!(peak <= PARTS_BYTES + block_bytes * blocks as usize, "{what}");
        }
    }
}
