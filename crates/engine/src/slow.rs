//! Messages about what was slow: one in a while, of all that was since the last.

use std::time::{Duration, Instant};

use haversack_model::Micros;

/// An I/O of this length is told of.
pub(crate) const SLOW_US: Micros = 1_000_000;
/// Between two messages.
const PAUSE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    count: u64,
    worst_us: Micros,
    told: Option<Instant>,
}

impl Slow {
    /// Something took so long. Returns how many things and the longest time to tell of, if it is time to.
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
    fn what_is_slow_in_between_is_told_with_the_next() {
        let (mut slow, start) = (Slow::default(), Instant::now());
        assert_eq!(slow.note(start, 2_000_000), Some((1, 2_000_000)));
        assert_eq!(slow.note(start, 4_000_000), None);
        assert_eq!(slow.note(start + PAUSE / 2, 3_000_000), None);
        assert_eq!(slow.note(start + PAUSE, 1_000_000), Some((3, 4_000_000)));
    }
}
