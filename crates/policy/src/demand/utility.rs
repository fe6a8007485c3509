//! The worth of hits: vCacheShare's cache utility.
//!
//! CU_i(c) = l_i * RR_i * (H_i(c) + alpha * RI_i / max RI), where l is the mean latency of the origin, RR the
//! share of reads, H the hit ratio of reads, and RI the reuse intensity: S_total / (t_w * S_unique), the blocks
//! read in the last t_w over the distinct blocks among them, per second.
//!
//! As printed, the term with RI does not depend on c, so it does not move the optimum; but the evaluation shows
//! that it does. [`Reading::Scaled`] is the interpretation that agrees with the evaluation: intensity scales
//! the worth of hits.
//!
//! Source: vCacheShare (Meng et al., ATC'14), sections 4.3 and 4.4, equations 1 and 2.

use serde::{Deserialize, Serialize};

use crate::window::{DiskWindow, Intensity};

/// How equation 2 is interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// l * RR * H(c) * (1 + alpha * RI~).
    #[default]
    Scaled,
    /// l * RR * (H(c) + alpha * RI~).
    AsPrinted,
}

/// Returns RI in 1/s: how often and how fast each block read was read again. 0 if nothing was read.
pub fn reuse_intensity(intensity: &Intensity) -> f64 {
    if intensity.unique_read_blocks == 0 || intensity.length_us == 0 {
        return 0.0;
    }
    let seconds = intensity.length_us as f64 / 1e6;
    intensity.read_blocks as f64 / (seconds * intensity.unique_read_blocks as f64)
}

/// The utility of a disk as a function of its size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Utility {
    /// l: mean latency of the origin in microseconds.
    pub origin_latency_us: f64,
    /// alpha.
    pub alpha: f64,
    /// RI over the largest RI of all disks, from 0 to 1.
    pub relative_intensity: f64,
    /// How the equation is interpreted.
    pub reading: Reading,
}

impl Utility {
    /// Returns CU at this many blocks, in microseconds per access.
    pub fn at(&self, window: &DiskWindow, blocks: u64) -> f64 {
        let (hits, burst) = (window.read_only.at(blocks), self.alpha * self.relative_intensity);
        let value = match self.reading {
            Reading::Scaled => hits * (1.0 + burst),
            Reading::AsPrinted => hits + burst,
        };
        self.origin_latency_us * window.read_ratio() * value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Curve;

    /// The example below equation 1: 1 G blocks read of 1,000 unique ones in 300 s.
    #[test]
    fn reuse_intensity_of_the_paper_s_example() {
        let intensity =
            Intensity { length_us: 300_000_000, read_blocks: 1_000_000_000, unique_read_blocks: 1000 };
        assert!((reuse_intensity(&intensity) - 1e9 / (1000.0 * 300.0)).abs() < 1e-6);
        assert_eq!(reuse_intensity(&Intensity::default()), 0.0);
    }

    #[test]
    fn both_readings() {
        let read_only = Curve::new(vec![(10, 0.5)]).unwrap();
        let window = DiskWindow { reads: 3, writes: 1, read_only, ..DiskWindow::default() };
        let scaled = Utility {
            origin_latency_us: 1000.0,
            alpha: 1.0,
            relative_intensity: 0.2,
            reading: Reading::Scaled,
        };
        let printed = Utility { reading: Reading::AsPrinted, ..scaled };
        assert_eq!(scaled.at(&window, 10), 1000.0 * 0.75 * 0.5 * 1.2);
        assert_eq!(printed.at(&window, 10), 1000.0 * 0.75 * 0.7);
        assert_eq!(scaled.at(&window, 9), 0.0);
        assert_eq!(printed.at(&window, 9), 1000.0 * 0.75 * 0.2);
    }
}
