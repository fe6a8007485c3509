//! Messages about what was slow: one in a while, of all that was since the last.

use haversack_model::Micros;

/// An I/O of this length is told of.
pub(crate) const SLOW_US: Micros = 1_000_000;
/// Between two messages.
const PAUSE_US: Micros = 10_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    count: u64,
    worst_us: Micros,
    /// When something may be told again.
    next_us: Micros,
}

impl Slow {
    /// Something took so long. Returns how many things and the longest time to tell of, if it is time to.
    pub fn note(&mut self, now: Micros, took_us: Micros) -> Option<(u64, Micros)> {
        self.count += 1;
        self.worst_us = self.worst_us.max(took_us);
        if now < self.next_us {
            return None;
        }
        self.next_us = now + PAUSE_US;
        Some((std::mem::take(&mut self.count), std::mem::take(&mut self.worst_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_in_between_is_told_with_the_next() {
        let mut slow = Slow::default();
        assert_eq!(slow.note(5, 2_000_000), Some((1, 2_000_000)));
        assert_eq!(slow.note(6, 4_000_000), None);
        assert_eq!(slow.note(7, 3_000_000), None);
        assert_eq!(slow.note(5 + PAUSE_US, 1_000_000), Some((3, 4_000_000)));
    }
}
