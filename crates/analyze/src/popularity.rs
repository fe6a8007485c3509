//! Popularity: the share of all accesses that goes to the most popular blocks.

use serde::{Deserialize, Serialize};

/// The share of accesses that the most popular blocks have.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopShare {
    /// The share of all blocks accessed, the most popular first.
    pub blocks: f64,
    /// Their share of reads and writes.
    pub references: f64,
}

/// The popularity of blocks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Popularity {
    /// Shares of the top 0.1, 1, 5, 10, 20 and 50 %.
    pub top: Vec<TopShare>,
    /// The share of blocks accessed only once.
    pub once: f64,
    /// The exponent of the best-fitting Zipf distribution: the number of accesses decreases with the rank to this
    /// power. `None` if there are too few blocks.
    pub zipf_exponent: Option<f64>,
    /// The quality of the fit: the explained share of the variance, up to 1.
    pub zipf_fit: Option<f64>,
}

const TOPS: [f64; 6] = [0.001, 0.01, 0.05, 0.1, 0.2, 0.5];
/// Ranks per octave that the fit uses.
const RANKS_AN_OCTAVE: f64 = 4.0;
/// The least number of ranks for a fit.
const LEAST_RANKS: usize = 8;
/// Below n accesses, a block's count is due to chance rather than popularity.
const LEAST_COUNT: f64 = 5.0;

impl Popularity {
    /// Computes it from the number of accesses of each block.
    pub fn of(counts: impl Iterator<Item = u32>) -> Popularity {
        let mut counts: Vec<u32> = counts.filter(|count| *count > 0).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        if counts.is_empty() {
            return Popularity::default();
        }
        let blocks = counts.len() as f64;
        let all: f64 = counts.iter().map(|count| f64::from(*count)).sum();
        let top = |share: f64| {
            let first = (blocks * share).ceil() as usize;
            let sum: f64 = counts[..first].iter().map(|count| f64::from(*count)).sum();
            TopShare { blocks: share, references: sum / all }
        };
        let once = counts.len() - counts.partition_point(|count| *count > 1);
        let fit = fit_zipf(&counts);
        Popularity {
            top: TOPS.map(top).to_vec(),
            once: once as f64 / blocks,
            zipf_exponent: fit.map(|fit| fit.0),
            zipf_fit: fit.map(|fit| fit.1),
        }
    }
}

/// Fits a line through the logarithms of rank and mean count of ranks spaced evenly in their logarithm; returns its
/// slope and the explained share of the variance. `counts` decrease.
fn fit_zipf(counts: &[u32]) -> Option<(f64, f64)> {
    let mut points = Vec::new();
    let mut from = 0;
    while from < counts.len() {
        let to =
            (((from + 1) as f64 * 2f64.powf(1.0 / RANKS_AN_OCTAVE)) as usize).max(from + 1).min(counts.len());
        let mean = counts[from..to].iter().map(|count| f64::from(*count)).sum::<f64>() / (to - from) as f64;
        if mean < LEAST_COUNT {
            break;
        }
        // The middle of the ranks, counted from 1, on a logarithmic scale.
        points.push(((((from + 1) * to) as f64).sqrt().ln(), mean.ln()));
        from = to;
    }
    if points.len() < LEAST_RANKS {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|a, _| a * a), sum(&|a, b| a * b), sum(&|_, b| b * b));
    let fit = if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 };
    Some((-xy / xx, fit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_zipf_distribution_is_found() {
        for exponent in [0.6, 0.99, 1.3] {
            let counts = (1..=50_000).map(|rank| (1e6 / f64::from(rank).powf(exponent)).round() as u32);
            let found = Popularity::of(counts);
            assert!((found.zipf_exponent.unwrap() - exponent).abs() < 0.02, "{exponent}: {found:?}");
            assert!(found.zipf_fit.unwrap() > 0.99);
        }
    }

    #[test]
    fn shares_of_the_most_popular() {
        let counts = std::iter::once(900).chain(std::iter::repeat_n(1, 99)).chain([0]);
        let found = Popularity::of(counts);
        assert_eq!(found.top[1], TopShare { blocks: 0.01, references: 900.0 / 999.0 });
        assert_eq!(found.once, 0.99);
        assert_eq!(found.zipf_exponent, None);
        assert_eq!(Popularity::of(std::iter::empty()), Popularity::default());
    }
}
