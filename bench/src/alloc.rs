//! An allocator that counts: bytes live, their peak, and allocations made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with counters.
pub struct Counting;

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
    COUNT.fetch_add(1, Relaxed);
}

fn shrunk(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; only counters are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrunk(layout.size());
        grown(size);
        // SAFETY: the pointer came from the system's allocator with this layout; the caller vouches for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Bytes allocated and not freed.
pub fn live_bytes() -> usize {
    LIVE.load(Relaxed)
}

/// The most bytes that were live since [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK.load(Relaxed)
}

/// Resets the peak to what is live now.
pub fn reset_peak() {
    PEAK.store(live_bytes(), Relaxed);
}

/// Allocations made so far, reallocations too.
pub fn allocations() -> usize {
    COUNT.load(Relaxed)
}
