//! Asks the processor to bring a cache line into its cache, and does not wait for it.
//!
//! A load brings the line too, but the processor can only run a few instructions ahead of a load that it waits for. The
//! only unsafe code of the core is here.

use super::index::Bucket;

/// Begins to bring a bucket into the processor's cache.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch(bucket: &Bucket) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor has the instruction. It changes nothing but caches, and an address where nothing
    // is mapped is no fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(bucket).cast()) };
}

/// Reads a bucket, to bring it into the processor's cache.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch(bucket: &Bucket) {
    std::hint::black_box(bucket[0][3]);
}
