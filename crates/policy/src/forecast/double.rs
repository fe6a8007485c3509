//! Double exponential smoothing: a level and a trend, for demands that grow or shrink steadily.
//!
//! The prediction is level + trend. After an observation, the level is the prediction plus alpha times its
//! error, and the trend moves by beta towards the step that the level took. The first trend is the first step.
//! The self-tuned variant ([`SelfTuned`]) tries ten alphas and ten betas.
//!
//! Source: Holt's method as named in CloudCache (Arteaga), section 3.4.2: alpha = beta = 0.3 fixed, or self-tuned.

use super::Forecast;
use super::tuned::SelfTuned;

/// The paper's alpha and beta.
const FIXED: f64 = 0.3;
/// Values of each that are tried: 1/10, 2/10, ... 1.
const STEPS: u32 = 10;

/// Double exponential smoothing with fixed alpha and beta.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Double {
    alpha: f64,
    beta: f64,
    level: Option<f64>,
    trend: Option<f64>,
}

impl Double {
    /// Makes a method with alpha and beta from 0 to 1; values outside are clamped.
    pub fn new(alpha: f64, beta: f64) -> Double {
        Double { alpha: alpha.clamp(0.0, 1.0), beta: beta.clamp(0.0, 1.0), level: None, trend: None }
    }

    /// Returns level plus trend, which may be negative.
    fn ahead(&self) -> Option<f64> {
        self.level.map(|level| level + self.trend.unwrap_or(0.0))
    }
}

impl Default for Double {
    fn default() -> Double {
        Double::new(FIXED, FIXED)
    }
}

impl Forecast for Double {
    fn observe(&mut self, value: f64) {
        let (Some(level), Some(ahead)) = (self.level, self.ahead()) else {
            self.level = Some(value);
            return;
        };
        let Some(trend) = self.trend else {
            (self.level, self.trend) = (Some(value), Some(value - level));
            return;
        };
        let next = ahead + self.alpha * (value - ahead);
        self.trend = Some(trend + self.beta * (next - level - trend));
        self.level = Some(next);
    }

    fn predict(&self) -> Option<f64> {
        self.ahead().map(|ahead| ahead.max(0.0))
    }
}

/// Double exponential smoothing that fits alpha and beta. Uses the paper's values until another pair was
/// better.
pub type SelfTunedDouble = SelfTuned<Double>;

impl Default for SelfTunedDouble {
    fn default() -> SelfTunedDouble {
        let share = |step: u32| f64::from(step) / f64::from(STEPS);
        let pairs = (1..=STEPS).flat_map(|alpha| (1..=STEPS).map(move |beta| (alpha, beta)));
        let tried = pairs.map(|(alpha, beta)| Double::new(share(alpha), share(beta)));
        SelfTuned::new(tried, |double| double.alpha >= FIXED && double.beta >= FIXED)
    }
}

impl SelfTunedDouble {
    /// Returns the alpha and beta that fit best so far.
    pub fn parameters(&self) -> (f64, f64) {
        (self.best().alpha, self.best().beta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_met_exactly() {
        for forecast in [&mut Double::default() as &mut dyn Forecast, &mut SelfTunedDouble::default()] {
            for value in [100.0, 150.0, 200.0, 250.0] {
                forecast.observe(value);
            }
            assert!((forecast.predict().unwrap() - 300.0).abs() < 1e-9);
        }
    }

    #[test]
    fn smoothing_by_hand() {
        let mut forecast = Double::default();
        for value in [100.0, 200.0, 200.0] {
            forecast.observe(value);
        }
        // Prediction 300, level 300 - 0.3 * 100 = 270, trend 100 + 0.3 * (70 - 100) = 91.
        assert!((forecast.predict().unwrap() - 361.0).abs() < 1e-9);
    }

    #[test]
    fn never_below_zero() {
        let mut forecast = Double::default();
        forecast.observe(100.0);
        forecast.observe(10.0);
        assert_eq!(forecast.predict(), Some(0.0));
    }

    #[test]
    fn tuning_leaves_the_paper_s_pair_when_another_fits_better() {
        let mut forecast = SelfTunedDouble::default();
        assert_eq!(forecast.parameters(), (FIXED, FIXED));
        // The level jumps and stays: follow the level, not the jump.
        (0..60).for_each(|at| forecast.observe(f64::from(at / 12) * 100.0));
        let (alpha, beta) = forecast.parameters();
        assert!(alpha > beta && (alpha, beta) != (FIXED, FIXED), "{alpha} {beta}");
    }
}
