//! The monotonic clock that all reactors share.
//!
//! Invariant
//! - Time never goes back.

use haversack_model::Micros;

/// Returns the microseconds since the machine was started.
pub fn now_us() -> Micros {
    // SAFETY: all zeroes is a valid timespec, and the call fills it.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the timespec lives through the call, and this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as Micros * 1_000_000 + time.tv_nsec as Micros / 1_000
}
