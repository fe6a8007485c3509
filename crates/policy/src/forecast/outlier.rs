//! Replaces an observation that is far above the usual before it is used for a forecast.
//!
//! If the newest observation is more than lambda times the mean of the last n, including itself, it is replaced
//! by that mean, in the history too. Among n observations, none can be more than n times their mean, so the
//! filter has no effect before there are more than lambda observations.
//!
//! Source: CloudCache (Arteaga), section 3.4.2: n = 20, lambda = 5.

use std::collections::VecDeque;

use crate::error::{PolicyError, check_range};

/// The filter and the observations that it remembers.
#[derive(Clone, PartialEq, Debug)]
pub struct OutlierFilter {
    remembered: usize,
    lambda: f64,
    last: VecDeque<f64>,
}

impl Default for OutlierFilter {
    fn default() -> OutlierFilter {
        OutlierFilter { remembered: 20, lambda: 5.0, last: VecDeque::new() }
    }
}

impl OutlierFilter {
    /// Makes a filter that compares with the mean of this many observations.
    ///
    /// # Errors
    /// `BadFigure` for no observations to compare with, or for a lambda below 1.
    pub fn new(remembered: usize, lambda: f64) -> Result<OutlierFilter, PolicyError> {
        if remembered == 0 {
            let (what, found) = ("the observations of an outlier filter".into(), "0".into());
            return Err(PolicyError::BadFigure { what, found, expected: "at least 1" });
        }
        check_range(|| "the lambda of an outlier filter".into(), lambda, 1.0..=f64::MAX, "a number from 1")?;
        Ok(OutlierFilter { remembered, lambda, last: VecDeque::new() })
    }

    /// Returns the observation to forecast from.
    pub fn filter(&mut self, value: f64) -> f64 {
        if self.last.len() == self.remembered {
            self.last.pop_front();
        }
        let mean = (self.last.iter().sum::<f64>() + value) / (self.last.len() + 1) as f64;
        let tamed = if value > self.lambda * mean { mean } else { value };
        self.last.push_back(tamed);
        tamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peak_becomes_the_mean() {
        let mut filter = OutlierFilter::default();
        (0..19).for_each(|_| assert_eq!(filter.filter(10.0), 10.0));
        // Twenty observations: 190 + 810 = 1000, a mean of 50, and 810 is more than five times that.
        assert_eq!(filter.filter(810.0), 50.0);
        // The mean of the last twenty is now (18 * 10 + 50 + 60) / 20 = 14.5.
        assert_eq!(filter.filter(60.0), 60.0);
    }

    #[test]
    fn a_filter_that_would_take_all_is_refused() {
        assert!(OutlierFilter::new(0, 5.0).is_err());
        assert!(OutlierFilter::new(20, 0.5).is_err());
        assert!(OutlierFilter::new(20, f64::NAN).is_err());
    }
}
