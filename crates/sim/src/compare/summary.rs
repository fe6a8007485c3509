//! Results over all seeds.

use serde::Serialize;

use super::statistics::Estimate;
use super::system::System;
use super::{Combination, Comparison};

/// A system with one length of windows in a pool of one size, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// The system.
    #[serde(flatten)]
    pub system: System,
    /// Length of a window in seconds.
    pub window_s: f64,
    /// Size of the pool as a fraction of the footprint.
    pub fraction: f64,
    /// Its budget of flash writes, in blocks per block accessed.
    pub write_budget: Option<f64>,
    /// Seeds.
    pub seeds: usize,
    /// Hits among the blocks read and written.
    pub hit_ratio: Estimate,
    /// Hits among the blocks read; `None` if none was.
    pub read_hit_ratio: Option<Estimate>,
    /// Mean latency.
    pub mean_us: Estimate,
    /// 95th percentile of latency.
    pub p95_us: Estimate,
    /// Blocks written to flash per block read or written.
    pub flash_write_ratio: Estimate,
    /// Processor time of the longest decision in milliseconds.
    pub decision_ms: f64,
}

impl Summary {
    fn of(rows: &[&Combination]) -> Summary {
        let first = rows[0];
        let estimate = |figure: fn(&Combination) -> f64| {
            Estimate::of(&rows.iter().map(|row| figure(row)).collect::<Vec<_>>())
        };
        let read_hits: Option<Vec<f64>> = rows.iter().map(|row| row.read_hit_ratio).collect();
        Summary {
            system: first.system.clone(),
            window_s: first.window_s,
            fraction: first.fraction,
            write_budget: first.write_budget,
            seeds: rows.len(),
            hit_ratio: estimate(|row| row.hit_ratio),
            read_hit_ratio: read_hits.map(|read_hits| Estimate::of(&read_hits)),
            mean_us: estimate(|row| row.mean_us),
            p95_us: estimate(|row| row.p95_us),
            flash_write_ratio: estimate(|row| row.flash_write_ratio),
            decision_ms: rows.iter().map(|row| row.decision_ms).fold(0.0, f64::max),
        }
    }

    /// Returns the result of one seed of a pool of a tenth of the footprint, for tests.
    #[cfg(test)]
    pub(super) fn of_one_seed(system: &System, hits: f64, mean_us: f64, writes: f64) -> Summary {
        let exactly = |mean| Estimate { mean, half_width: None };
        Summary {
            system: system.clone(),
            window_s: 1.0,
            fraction: 0.1,
            write_budget: None,
            seeds: 1,
            hit_ratio: exactly(hits),
            read_hit_ratio: Some(exactly(hits)),
            mean_us: exactly(mean_us),
            p95_us: exactly(mean_us),
            flash_write_ratio: exactly(writes),
            decision_ms: 1.0,
        }
    }

    /// Whether it has both lower mean latency and fewer flash writes.
    pub fn dominates(&self, other: &Summary) -> bool {
        self.mean_us.mean < other.mean_us.mean && self.flash_write_ratio.mean < other.flash_write_ratio.mean
    }
}

/// The results of a mix over all seeds, in the order in which they were simulated.
pub fn summaries(comparison: &Comparison) -> Vec<Summary> {
    groups(comparison).iter().map(|rows| Summary::of(rows)).collect()
}

/// The results of each system in each setting, which differ only in the seed.
pub(super) fn groups(comparison: &Comparison) -> Vec<Vec<&Combination>> {
    let mut groups: Vec<Vec<&Combination>> = Vec::new();
    let alike = |a: &Combination, b: &Combination| {
        a.system == b.system
            && a.window_s == b.window_s
            && a.fraction == b.fraction
            && a.write_budget == b.write_budget
    };
    for row in &comparison.combinations {
        match groups.iter_mut().find(|group| alike(group[0], row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// The bounds of a size over all seeds: hits, and the flash writes of one LRU cache.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MeanBounds {
    /// Hits of a cache without limit.
    pub unlimited: f64,
    /// Hits of a cache that knows the future.
    pub min: f64,
    /// Hits of the best static split.
    pub static_split: f64,
    /// Hits of one LRU cache for all.
    pub global_lru: f64,
    /// Flash writes of that cache per block access.
    pub global_lru_flash_writes: f64,
}

/// The bounds of a size over all seeds.
pub fn mean_bounds(comparison: &Comparison, fraction: f64) -> MeanBounds {
    let of_size: Vec<_> = comparison.bounds.iter().filter(|bounds| bounds.fraction == fraction).collect();
    let mean = |figure: fn(&super::Bounds) -> f64| {
        of_size.iter().map(|bounds| figure(bounds)).sum::<f64>() / of_size.len().max(1) as f64
    };
    MeanBounds {
        unlimited: mean(|bounds| bounds.unlimited),
        min: mean(|bounds| bounds.min),
        static_split: mean(|bounds| bounds.static_split.hit_ratio),
        global_lru: mean(|bounds| bounds.global_lru),
        global_lru_flash_writes: mean(|bounds| bounds.global_lru_flash_writes),
    }
}
