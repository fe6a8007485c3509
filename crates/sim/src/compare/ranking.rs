//! Whether the systems' ranking holds over the seeds: the same order with each, or which pairs change theirs.
//!
//! Source of tau: Kendall, "A new measure of rank correlation", Biometrika 1938: pairs in the same order with two seeds
//! minus pairs in the opposite one, over all pairs.

use serde::Serialize;

use super::Combination;
use super::summary::groups;
use super::{Comparison, System};

/// What the systems are ranked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankedBy {
    /// Hits among the blocks read and written.
    Hits,
    /// Mean latency of requests.
    MeanLatency,
}

impl RankedBy {
    /// All of them.
    pub const ALL: [RankedBy; 2] = [RankedBy::Hits, RankedBy::MeanLatency];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            RankedBy::Hits => "hits",
            RankedBy::MeanLatency => "mean latency",
        }
    }

    fn of(self, row: &Combination) -> f64 {
        match self {
            RankedBy::Hits => row.hit_ratio,
            RankedBy::MeanLatency => row.mean_us,
        }
    }
}

/// Two systems, of which one is ahead with one seed and the other with another.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Swap {
    /// The one.
    pub one: System,
    /// Length of its windows in seconds.
    pub one_window_s: f64,
    /// The other.
    pub other: System,
    /// Length of its windows in seconds.
    pub other_window_s: f64,
    /// By how much they differ at most with any seed: hits as a difference, latencies relative to the lower one.
    pub largest_difference: f64,
}

/// A ranking of the systems in a pool of one size, over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ranking {
    /// Size of the pool as a fraction of the footprint.
    pub fraction: f64,
    /// What they are ranked by.
    pub by: RankedBy,
    /// Systems.
    pub systems: usize,
    /// Seeds.
    pub seeds: usize,
    /// The least Kendall's tau of two seeds: 1 if all have the same order. Equal systems count as neither order.
    pub least_tau: f64,
    /// The pairs that change their order, those that differ most first. With none the ranking is stable.
    pub swaps: Vec<Swap>,
}

/// Returns the rankings of each size; none with a single seed or system. Pools with a budget of flash writes are those
/// of one system only, and are left out beside pools without.
pub fn rankings(comparison: &Comparison) -> Vec<Ranking> {
    let budget = comparison.combinations.first().and_then(|row| row.write_budget);
    let all: Vec<Vec<&Combination>> =
        groups(comparison).into_iter().filter(|rows| rows[0].write_budget == budget).collect();
    let seeds = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut found = Vec::new();
    for fraction in &comparison.mix.fractions {
        let of_size = all.iter().filter(|rows| rows[0].fraction == *fraction && rows.len() == seeds);
        let of_size: Vec<&Vec<&Combination>> = of_size.collect();
        if seeds < 2 || of_size.len() < 2 {
            continue;
        }
        found.extend(RankedBy::ALL.map(|by| ranking(*fraction, by, seeds, &of_size)));
    }
    found
}

fn ranking(fraction: f64, by: RankedBy, seeds: usize, systems: &[&Vec<&Combination>]) -> Ranking {
    let mut swaps = Vec::new();
    // For each two seeds, pairs in the same order minus pairs in the opposite one.
    let mut agreed = vec![0i64; seeds * seeds];
    let mut pairs = 0i64;
    for (at, one) in systems.iter().enumerate() {
        for other in &systems[at + 1..] {
            let orders: Vec<f64> = one.iter().zip(*other).map(|(a, b)| by.of(a) - by.of(b)).collect();
            pairs += 1;
            for (first, a) in orders.iter().enumerate() {
                for (second, b) in orders.iter().enumerate() {
                    agreed[first * seeds + second] += sign(*a) * sign(*b);
                }
            }
            if orders.iter().any(|order| *order > 0.0) && orders.iter().any(|order| *order < 0.0) {
                swaps.push(swap(by, one, other));
            }
        }
    }
    swaps.sort_by(|a, b| b.largest_difference.total_cmp(&a.largest_difference));
    let of_two = (0..seeds).flat_map(|first| (first + 1..seeds).map(move |second| first * seeds + second));
    let least = of_two.map(|at| agreed[at]).min().unwrap_or(pairs);
    let least_tau = least as f64 / pairs as f64;
    Ranking { fraction, by, systems: systems.len(), seeds, least_tau, swaps }
}

fn sign(order: f64) -> i64 {
    i64::from(order > 0.0) - i64::from(order < 0.0)
}

fn swap(by: RankedBy, one: &[&Combination], other: &[&Combination]) -> Swap {
    let difference = |(a, b): (&&Combination, &&Combination)| {
        let (a, b) = (by.of(a), by.of(b));
        let scale = if by == RankedBy::Hits { 1.0 } else { a.min(b).max(f64::MIN_POSITIVE) };
        (a - b).abs() / scale
    };
    Swap {
        one: one[0].system.clone(),
        one_window_s: one[0].window_s,
        other: other[0].system.clone(),
        other_window_s: other[0].window_s,
        largest_difference: one.iter().zip(other).map(difference).fold(0.0, f64::max),
    }
}
