//! Which systems are best in a pool of one size: what an operator wants to see first.
//!
//! Bounds are no systems, and are never best.

use super::summary::Summary;

/// What a system is best in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Best {
    /// The lowest mean latency.
    MeanLatency,
    /// The most hits among the blocks read and written.
    Hits,
    /// The fewest flash writes.
    FlashWrites,
}

impl Best {
    /// All of them.
    pub const ALL: [Best; 3] = [Best::MeanLatency, Best::Hits, Best::FlashWrites];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Best::MeanLatency => "latency",
            Best::Hits => "hits",
            Best::FlashWrites => "flash writes",
        }
    }

    /// The figure by which systems are ranked: the lowest is the best.
    pub fn cost(self, summary: &Summary) -> f64 {
        match self {
            Best::MeanLatency => summary.mean_us.mean,
            Best::Hits => -summary.hit_ratio.mean,
            Best::FlashWrites => summary.flash_write_ratio.mean,
        }
    }
}

/// Returns, for each of these in the same order, what it is best in among all with pools of its size. If several tie,
/// all of them are best; a single one is best in nothing.
pub fn best(summaries: &[Summary]) -> Vec<Vec<Best>> {
    let of = |summary: &Summary| {
        let alike = || summaries.iter().filter(|other| other.fraction == summary.fraction);
        let is_best = |best: &Best| alike().all(|other| best.cost(summary) <= best.cost(other));
        if alike().count() < 2 { Vec::new() } else { Best::ALL.into_iter().filter(is_best).collect() }
    };
    summaries.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::system::System;
    use super::*;

    fn row(fraction: f64, hits: f64, mean_us: f64, writes: f64) -> Summary {
        Summary { fraction, ..Summary::of_one_seed(&System::own("none"), hits, mean_us, writes) }
    }

    #[test]
    fn each_size_has_its_own_winners_and_ties_share() {
        let all = [
            row(0.1, 0.5, 900.0, 0.4),
            row(0.1, 0.6, 950.0, 0.2),
            row(0.1, 0.4, 990.0, 0.2),
            row(0.2, 0.7, 800.0, 0.3),
            row(0.2, 0.6, 850.0, 0.5),
            row(0.3, 0.9, 100.0, 0.1),
        ];
        let everything = Best::ALL.to_vec();
        let expected = [
            vec![Best::MeanLatency],
            vec![Best::Hits, Best::FlashWrites],
            vec![Best::FlashWrites],
            everything,
            vec![],
            vec![],
        ];
        assert_eq!(best(&all), expected);
    }
}
