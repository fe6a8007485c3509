//! Decides whether a disk's writes are worth caching: ECI-Cache's choice between write-back and read-only.
//!
//! The write ratio is the share of accesses that overwrite blocks accessed before (WAR and WAW). At or above
//! the threshold, such writes wear the flash without helping reads, so the disk becomes read-only: reads are
//! cached, and a write invalidates and goes to the origin. Below the threshold the disk is write-back. It
//! leaves read-only mode only when the ratio falls below the threshold by the hysteresis, so that a ratio
//! near the threshold does not switch the mode in every window.
//!
//! The result is advice: the daemon switches without losing dirty blocks.
//!
//! Source: ECI-Cache (Ahmadian et al., 2018), section 5.2, algorithm 3; threshold 0.5, with 0.2 to 0.9 tried. The
//! hysteresis is ours. Its RO is our write-invalidate.

use haversack_model::WriteMode;
use serde::{Deserialize, Serialize};

use crate::error::{PolicyError, check_range};

/// When to switch the mode.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct WriteModeChoice {
    /// The write ratio at which a disk becomes read-only: wThreshold.
    pub threshold: f64,
    /// How far below the threshold the ratio must fall before the disk is write-back again.
    pub hysteresis: f64,
}

impl Default for WriteModeChoice {
    fn default() -> WriteModeChoice {
        WriteModeChoice { threshold: 0.5, hysteresis: 0.05 }
    }
}

/// The write mode that corresponds to read-only.
pub const READ_ONLY: WriteMode = WriteMode::WriteInvalidate;

impl WriteModeChoice {
    /// Checks the settings.
    ///
    /// # Errors
    /// `BadFigure` for a threshold that is not a ratio, or a hysteresis as large as the threshold.
    pub fn check(&self) -> Result<(), PolicyError> {
        check_range(|| "the write-mode threshold".into(), self.threshold, 0.0..=1.0, "a number from 0 to 1")?;
        let what = || "the write-mode hysteresis".into();
        check_range(what, self.hysteresis, 0.0..=self.threshold, "a number from 0 to the threshold")
    }

    /// Returns the mode for the coming window, and the reason. A mode other than these two was set by the
    /// operator and stays.
    pub fn choose(&self, present: WriteMode, write_ratio: f64) -> (WriteMode, String) {
        let ratio = format!("write ratio {write_ratio:.2}");
        let (threshold, below) = (self.threshold, self.threshold - self.hysteresis);
        if present != WriteMode::WriteBack && present != READ_ONLY {
            return (present, format!("{present} stays: the policy does not change it"));
        }
        if write_ratio >= threshold {
            (READ_ONLY, format!("{ratio}, at least {threshold}: read-only"))
        } else if present == READ_ONLY && write_ratio >= below {
            (READ_ONLY, format!("{ratio}, not below {below:.2} yet: stays read-only"))
        } else {
            (WriteMode::WriteBack, format!("{ratio}, below {threshold}: write-back"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_around_the_threshold_switches_once() {
        let choice = WriteModeChoice::default();
        let mut mode = WriteMode::WriteBack;
        let ratios = [0.3, 0.49, 0.5, 0.48, 0.46, 0.51, 0.44, 0.48];
        let modes = ratios.map(|ratio| {
            mode = choice.choose(mode, ratio).0;
            mode
        });
        let (back, only) = (WriteMode::WriteBack, READ_ONLY);
        assert_eq!(modes, [back, back, only, only, only, only, back, back]);
    }

    #[test]
    fn what_the_operator_set_stays() {
        let (mode, why) = WriteModeChoice::default().choose(WriteMode::PassThrough, 0.9);
        assert_eq!(mode, WriteMode::PassThrough);
        assert!(why.contains("pt stays"), "{why}");
    }

    #[test]
    fn thresholds_that_are_no_ratios_are_refused() {
        for (threshold, hysteresis) in [(1.5, 0.0), (0.5, 0.6), (f64::NAN, 0.0), (0.5, -0.1)] {
            assert!(WriteModeChoice { threshold, hysteresis }.check().is_err());
        }
    }
}
