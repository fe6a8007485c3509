//! The error of a forecast: each prediction is compared with the observation.
//!
//! The error of a window is |predicted - observed| / observed, at most [`WORST`], so that a window with next to
//! no demand does not outweigh all others. Errors fade by [`FADE`] per window, so that old ones count little.
//!
//! Source: CloudCache (Arteaga), section 3.4.4, "prediction error". The cap and the fading are ours.

use super::Forecast;

/// The largest value that an error counts for.
pub const WORST: f64 = 10.0;
/// The share of its weight that an error keeps from window to window: half is gone after about 14 windows.
pub const FADE: f64 = 0.95;

/// The faded mean of errors.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    sum: f64,
    weight: f64,
}

impl Score {
    /// Compares a prediction with the observation.
    pub fn note(&mut self, predicted: f64, observed: f64) {
        let off = (predicted - observed).abs();
        let error = if off == 0.0 { 0.0 } else { (off / observed.max(f64::MIN_POSITIVE)).min(WORST) };
        self.sum = self.sum * FADE + error;
        self.weight = self.weight * FADE + 1.0;
    }

    /// Returns the mean error; `None` before the first one.
    pub fn mean_error(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// A method with its score.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scored<F> {
    /// The method.
    pub forecast: F,
    /// Its error.
    pub score: Score,
}

impl<F: Forecast> Scored<F> {
    /// Makes an untested method.
    pub fn new(forecast: F) -> Scored<F> {
        Scored { forecast, score: Score::default() }
    }
}

impl<F: Forecast> Forecast for Scored<F> {
    fn observe(&mut self, value: f64) {
        if let Some(predicted) = self.forecast.predict() {
            self.score.note(predicted, value);
        }
        self.forecast.observe(value);
    }

    fn predict(&self) -> Option<f64> {
        self.forecast.predict()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::LastValue;

    #[test]
    fn errors_are_relative_and_fade() {
        let mut scored = Scored::new(LastValue::default());
        scored.observe(100.0);
        assert_eq!(scored.score.mean_error(), None);
        scored.observe(200.0);
        assert_eq!(scored.score.mean_error(), Some(0.5));
        scored.observe(200.0);
        assert_eq!(scored.score.mean_error(), Some(0.5 * FADE / (1.0 + FADE)));
    }

    #[test]
    fn an_empty_window_does_not_count_without_end() {
        let mut score = Score::default();
        score.note(100.0, 0.0);
        assert_eq!(score.mean_error(), Some(WORST));
        let mut met = Score::default();
        met.note(0.0, 0.0);
        assert_eq!(met.mean_error(), Some(0.0));
    }
}
