//! Rate-limited messages about slow operations: each message covers all slow operations since the one before.
//!
//! Invariant
//! - At most one message in [`PAUSE`].

use std::time::{Duration, Instant};

use haversack_model::Micros;

/// An I/O that takes this long is logged.
pub(crate) const SLOW_US: Micros = 1_000_000;
/// The least time between two messages.
const PAUSE: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    count: u64,
    worst_us: Micros,
    told: Option<Instant>,
}

impl Slow {
    /// Counts an operation that took this long. If a message is due, returns the number of slow operations and
    /// the longest time.
    pub fn note(&mut self, now: Instant, took_us: Micros) -> Option<(u64, Micros)> {
        self.count += 1;
        self.worst_us = self.worst_us.max(took_us);
        if self.told.is_some_and(|told| now.duration_since(told) < PAUSE) {
            return None;
        }
        self.told = Some(now);
        Some((std::mem::take(&mut self.count), std::mem::take(&mut self.worst_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_turns_between_two_messages_are_logged_with_the_next() {
        let (mut slow, start) = (Slow::default(), Instant::now());
        assert_eq!(slow.note(start, 2_000_000), Some((1, 2_000_000)));
        assert_eq!(slow.note(start, 4_000_000), None);
        assert_eq!(slow.note(start + PAUSE / 2, 3_000_000), None);
        assert_eq!(slow.note(start + PAUSE, 1_000_000), Some((3, 4_000_000)));
    }
}
