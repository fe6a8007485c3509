//! The weight of a tenant, a VM or a disk among others of its kind: Liu's four factors.
//!
//! w_i = sum over j of beta_j * alpha_ij, where alpha_ij is factor j of i over the sum of that factor over all.
//! The factors are priority, the ratio of reads to writes, the speed of reads, and the hit ratio. A factor that
//! is zero for all does not distinguish anything and adds nothing.
//!
//! Source: Liu, Ge, Du and Huang, "SSD as a Cloud Cache? Carefully Design about It", 2015, equation 3 and table 2.

use serde::{Deserialize, Serialize};

use crate::error::{PolicyError, check_range};
use crate::history::History;
use crate::window::DiskWindow;

/// The weights of priority, the ratio of reads to writes, the speed of reads, and the hit ratio.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Beta(pub [f64; 4]);

impl Default for Beta {
    /// Returns the paper's weights: the hit ratio counts twice as much as each of the others.
    fn default() -> Beta {
        Beta([0.2, 0.2, 0.2, 0.4])
    }
}

impl Beta {
    /// Checks that each is from 0 to 1 and that they sum to 1.
    ///
    /// # Errors
    /// `NoWeight` if they sum to zero, `BadFigure` otherwise.
    pub fn check(&self) -> Result<(), PolicyError> {
        for beta in self.0 {
            check_range(|| "a factor of beta".into(), beta, 0.0..=1.0, "a number from 0 to 1")?;
        }
        let sum: f64 = self.0.iter().sum();
        if sum == 0.0 {
            return Err(PolicyError::NoWeight { what: "factors", count: 4, whose: "parts of beta" });
        }
        check_range(|| "the sum of beta".into(), sum, 1.0 - 1e-6..=1.0 + 1e-6, "1")
    }
}

/// The factors of a tenant, a VM or a disk.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Factors {
    /// The configured priority.
    pub priority: f64,
    /// Reads over writes.
    pub read_write_ratio: f64,
    /// Blocks read per second.
    pub read_speed: f64,
    /// Share of reads that were hits.
    pub hit_ratio: f64,
}

/// Counts from which the factors are computed; counts of parts add up.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counts {
    priority: f64,
    reads: f64,
    writes: f64,
    read_hits: f64,
    read_speed: f64,
}

impl Counts {
    /// Returns the counts of one disk.
    pub fn of(priority: f64, window: Option<&DiskWindow>) -> Counts {
        let Some(window) = window else { return Counts { priority, ..Counts::default() } };
        let DiskWindow { length_us, reads, writes, read_hits, .. } = *window;
        Counts::over(priority, &History { length_us, reads, writes, read_hits, demand_blocks: 0 })
    }

    /// Returns the counts of one disk over several windows.
    pub fn over(priority: f64, history: &History) -> Counts {
        let seconds = history.length_us.max(1) as f64 / 1e6;
        Counts {
            priority,
            reads: history.reads as f64,
            writes: history.writes as f64,
            read_hits: history.read_hits as f64,
            read_speed: history.reads as f64 / seconds,
        }
    }

    /// Adds two counts. The priority of the whole is the highest of its parts.
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            priority: self.priority.max(other.priority),
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_hits: self.read_hits + other.read_hits,
            read_speed: self.read_speed + other.read_speed,
        }
    }

    /// Returns the four factors. Without writes, one write is assumed, so that the ratio is a number.
    pub fn factors(&self) -> Factors {
        Factors {
            priority: self.priority,
            read_write_ratio: self.reads / self.writes.max(1.0),
            read_speed: self.read_speed,
            hit_ratio: if self.reads > 0.0 { self.read_hits / self.reads } else { 0.0 },
        }
    }
}

/// Returns the weights of all participants.
pub fn weights(beta: &Beta, all: &[Factors]) -> Vec<f64> {
    let each: [fn(&Factors) -> f64; 4] =
        [|f| f.priority, |f| f.read_write_ratio, |f| f.read_speed, |f| f.hit_ratio];
    let mut weights = vec![0.0; all.len()];
    for (beta, factor) in beta.0.iter().zip(each) {
        let sum: f64 = all.iter().map(factor).sum();
        if sum > 0.0 {
            weights.iter_mut().zip(all).for_each(|(weight, factors)| *weight += beta * factor(factors) / sum);
        }
    }
    weights
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Table 2: proj, prxy, src, web.
    pub(crate) const TABLE_2: [[f64; 4]; 4] = [
        [8.0, 3.25, 164.0, 4.82],
        [10.0, 16.26, 278.0, 82.6],
        [6.0, 2.34, 21.0, 38.49],
        [8.0, 1.42, 106.0, 11.60],
    ];

    #[test]
    fn weights_of_the_paper_s_table() {
        let all = TABLE_2.map(|[priority, read_write_ratio, read_speed, hit_ratio]| Factors {
            priority,
            read_write_ratio,
            read_speed,
            hit_ratio,
        });
        let rounded: Vec<f64> =
            weights(&Beta::default(), &all).iter().map(|weight| (weight * 100.0).round() / 100.0).collect();
        assert_eq!(rounded, [0.15, 0.54, 0.18, 0.13]);
        // The paper divides 2 TB by the rounded weights, which sum to 1.
        let hundredths: Vec<f64> = rounded.iter().map(|weight| (weight * 200.0).round()).collect();
        assert_eq!(hundredths, [30.0, 108.0, 36.0, 26.0]);
    }

    #[test]
    fn a_factor_that_is_zero_for_all_says_nothing() {
        let all = [1.0, 3.0].map(|priority| Factors { priority, ..Factors::default() });
        let found = weights(&Beta::default(), &all);
        assert!((found[0] - 0.05).abs() < 1e-12 && (found[1] - 0.15).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn beta_that_sums_to_zero_is_refused() {
        assert!(matches!(Beta([0.0; 4]).check(), Err(PolicyError::NoWeight { .. })));
        assert!(matches!(Beta([0.5; 4]).check(), Err(PolicyError::BadFigure { .. })));
        assert_eq!(Beta::default().check(), Ok(()));
    }

    #[test]
    fn counts_of_a_tenant_are_those_of_its_disks() {
        let window = |reads, writes, read_hits| DiskWindow {
            length_us: 2_000_000,
            reads,
            writes,
            read_hits,
            ..DiskWindow::default()
        };
        let (one, other) = (window(30, 10, 30), window(10, 10, 0));
        let both = Counts::of(1.0, Some(&one)).and(Counts::of(4.0, Some(&other))).factors();
        let expected = Factors { priority: 4.0, read_write_ratio: 2.0, read_speed: 20.0, hit_ratio: 0.75 };
        assert_eq!(both, expected);
    }
}
