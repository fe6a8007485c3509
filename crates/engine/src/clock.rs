//! The monotonic clock that all reactors share.
//!
//! Invariant
//! - Time never goes back.

use haversack_model::Micros;

/// Returns the microseconds since the machine was started.
pub fn now_us() -> Micros {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as Micros * 1_000_000 + time.tv_nsec as Micros / 1_000
}
