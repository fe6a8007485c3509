//! The clock of all reactors.

use haversack_model::Micros;

/// Microseconds since the machine was started.
pub fn now_us() -> Micros {
    // SAFETY: all zero is a valid timespec, and the call fills it.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the timespec lives through the call; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as Micros * 1_000_000 + time.tv_nsec as Micros / 1_000
}
