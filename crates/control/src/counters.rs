//! The cache's counters of a disk, for what records do not show.

use haversack_core::DiskStats;

/// Counts since the disk was attached, and recent latencies.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counters {
    /// Blocks read that were in the cache.
    pub read_hits: u64,
    /// Blocks read that were not.
    pub read_misses: u64,
    /// Blocks written.
    pub writes: u64,
    /// Mean latency of the origin since the last window in microseconds, if it was measured.
    pub origin_latency_us: Option<f64>,
    /// Mean latency of the cache device since the last window in microseconds, if it was measured.
    pub cache_latency_us: Option<f64>,
}

impl Counters {
    /// Returns the core's counters.
    pub fn of(stats: &DiskStats) -> Counters {
        Counters {
            read_hits: stats.read_hits,
            read_misses: stats.read_misses,
            writes: stats.write_hits + stats.write_misses,
            ..Counters::default()
        }
    }

    /// Returns the counts since then. Counts that decreased were restarted from zero.
    pub fn since(&self, before: &Counters) -> Counters {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Counters {
            read_hits: since(self.read_hits, before.read_hits),
            read_misses: since(self.read_misses, before.read_misses),
            writes: since(self.writes, before.writes),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_new_life_count_from_zero() {
        let before = Counters { read_hits: 5, read_misses: 5, writes: 5, ..Counters::default() };
        let now = Counters { read_hits: 7, read_misses: 2, writes: 5, ..Counters::default() };
        assert_eq!(now.since(&before), Counters { read_hits: 2, read_misses: 2, ..Counters::default() });
    }
}
