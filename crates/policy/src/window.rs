//! The measurements of a disk in a window of real time, which all models use.
//!
//! Accesses are block accesses: a request of 16 KiB counts as four. Sizes are in cache blocks.

use serde::{Deserialize, Serialize};

use crate::curve::Curve;
use crate::error::{PolicyError, check_range};

/// Reads within a short time, for vCacheShare's reuse intensity.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Intensity {
    /// The length of the measurement.
    pub length_us: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Distinct blocks read.
    pub unique_read_blocks: u64,
}

/// The measurements of a disk in a window.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DiskWindow {
    /// The length of the window.
    pub length_us: u64,
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Blocks written that had been accessed before: WAR and WAW.
    pub overwrites: u64,
    /// Blocks read that were in the cache.
    pub read_hits: u64,
    /// Distinct blocks: WSS.
    pub wss_blocks: u64,
    /// Distinct blocks reused at least once, twice and so on: RWSS_1, RWSS_2, ...
    pub rwss_blocks: Vec<u64>,
    /// Distinct blocks used that had been used before, in this window or in the one before it. Figures of earlier
    /// versions do not say.
    #[serde(default)]
    pub reused_blocks: u64,
    /// Blocks of the regions ever touched more than once: what HEC would admit.
    pub touched_blocks: u64,
    /// Hits of reads and writes by ordinary reuse distance, over all accesses.
    pub trd: Curve,
    /// Hits of reads by useful reuse distance (RAR and RAW), over all accesses.
    pub urd: Curve,
    /// Hits by reuse distance among reads only, over all reads.
    pub read_only: Curve,
    /// Reads within the last seconds.
    pub intensity: Intensity,
    /// The share of the blocks from which distances were estimated: 1 if of all, that is exactly. Figures of earlier
    /// versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Blocks of the unit in which distances and working sets were measured, if it was not one. All sizes are in
    /// blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit_blocks: Option<u64>,
    /// Mean latency of the origin in microseconds; `None` if it was not measured yet.
    pub origin_latency_us: Option<f64>,
    /// Mean latency of the cache device in microseconds; `None` if it was not measured yet.
    pub cache_latency_us: Option<f64>,
}

impl DiskWindow {
    /// Returns the number of reads and writes.
    pub fn accesses(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Returns the share of reads among all accesses; 0 without accesses.
    pub fn read_ratio(&self) -> f64 {
        ratio(self.reads, self.accesses())
    }

    /// Returns the share of accesses that overwrite blocks accessed before: ECI-Cache's write ratio.
    pub fn overwrite_ratio(&self) -> f64 {
        ratio(self.overwrites, self.accesses())
    }

    /// Returns the share of reads that were hits.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.read_hits, self.reads)
    }

    /// Returns the relative standard error of a distance of this many blocks: 0 if distances are exact, `None` if that
    /// is not known. The distance is counted in sampled units, of which there are `sampled * units` on average.
    pub fn distance_error(&self, blocks: u64) -> Option<f64> {
        let sampled = self.sampled.filter(|sampled| *sampled > 0.0)?;
        let units = (blocks / self.unit_blocks.unwrap_or(1).max(1)).max(1);
        Some(((1.0 - sampled).max(0.0) / (sampled * units as f64)).sqrt())
    }

    /// Checks that the figures are consistent.
    ///
    /// # Errors
    /// `WindowTooShort` if intensity was measured for longer than the window; `BadFigure` for a part that is
    /// larger than its whole, and for invalid latencies.
    pub fn check(&self, disk: &str) -> Result<(), PolicyError> {
        if self.length_us < self.intensity.length_us {
            let measurement_us = self.intensity.length_us;
            return Err(PolicyError::WindowTooShort { window_us: self.length_us, measurement_us });
        }
        let parts = [
            ("overwrites", self.overwrites, self.writes, "at most as many as there are writes"),
            ("read hits", self.read_hits, self.reads, "at most as many as there are reads"),
            (
                "unique reads",
                self.intensity.unique_read_blocks,
                self.intensity.read_blocks,
                "at most all reads",
            ),
        ];
        for (what, part, whole, expected) in parts {
            if part > whole {
                let what = format!("disk '{disk}': the number of {what}");
                return Err(PolicyError::BadFigure { what, found: format!("{part} of {whole}"), expected });
            }
        }
        let sampled = || format!("disk '{disk}': the share of sampled blocks");
        check_range(sampled, self.sampled.unwrap_or(1.0), 0.0..=1.0, "a number from 0 to 1")?;
        let latencies = [("origin", self.origin_latency_us), ("cache", self.cache_latency_us)];
        for (what, latency_us) in latencies {
            let what = || format!("disk '{disk}': the latency of its {what} in us");
            check_range(what, latency_us.unwrap_or(0.0), 0.0..=1e12, "a number from 0 to 1e12")?;
        }
        Ok(())
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let good = DiskWindow { length_us: 10, reads: 4, writes: 4, overwrites: 2, ..DiskWindow::default() };
        assert_eq!(good.check("vm1"), Ok(()));
        assert_eq!(good.overwrite_ratio(), 0.25);
        let longer = Intensity { length_us: 11, ..Intensity::default() };
        let refused = DiskWindow { intensity: longer, ..good.clone() }.check("vm1");
        assert_eq!(refused, Err(PolicyError::WindowTooShort { window_us: 10, measurement_us: 11 }));
        let refused = DiskWindow { overwrites: 5, ..good.clone() }.check("vm1").unwrap_err().to_string();
        assert!(refused.contains("disk 'vm1'") && refused.contains("5 of 4"), "{refused}");
        let refused = DiskWindow { origin_latency_us: Some(f64::NAN), ..good }.check("vm1");
        assert!(matches!(refused, Err(PolicyError::BadFigure { .. })));
    }
}
