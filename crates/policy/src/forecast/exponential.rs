//! Exponential smoothing: the level moves towards each observation by alpha times the error.
//!
//! The first observation is the first level. The self-tuned variant ([`SelfTuned`]) tries twenty alphas.
//!
//! Source: CloudCache (Arteaga), section 3.4.2: alpha = 0.3 fixed, or self-tuned "based on the error between the
//! predicted and observed RWSS values".

use super::Forecast;
use super::tuned::SelfTuned;

/// The paper's alpha.
const ALPHA: f64 = 0.3;
/// The alphas that are tried: 1/20, 2/20, ... 1.
const ALPHAS: u32 = 20;

/// Exponential smoothing with a fixed alpha.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exponential {
    alpha: f64,
    level: Option<f64>,
}

impl Exponential {
    /// Makes a method with an alpha from 0 to 1; values outside are clamped.
    pub fn new(alpha: f64) -> Exponential {
        Exponential { alpha: alpha.clamp(0.0, 1.0), level: None }
    }
}

impl Default for Exponential {
    fn default() -> Exponential {
        Exponential::new(ALPHA)
    }
}

impl Forecast for Exponential {
    fn observe(&mut self, value: f64) {
        self.level = Some(self.level.map_or(value, |level| level + self.alpha * (value - level)));
    }

    fn predict(&self) -> Option<f64> {
        self.level
    }
}

/// Exponential smoothing that fits its alpha. Uses the paper's value until another one was better.
pub type SelfTunedExponential = SelfTuned<Exponential>;

impl Default for SelfTunedExponential {
    fn default() -> SelfTunedExponential {
        let alphas = (1..=ALPHAS).map(|step| f64::from(step) / f64::from(ALPHAS));
        SelfTuned::new(alphas.map(Exponential::new), |smoother| smoother.alpha >= ALPHA)
    }
}

impl SelfTunedExponential {
    /// Returns the alpha that fits best so far.
    pub fn alpha(&self) -> f64 {
        self.best().alpha
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_by_hand() {
        let mut forecast = Exponential::default();
        for value in [100.0, 200.0, 100.0] {
            forecast.observe(value);
        }
        // 100, then 100 + 0.3 * 100 = 130, then 130 - 0.3 * 30 = 121.
        assert!((forecast.predict().unwrap() - 121.0).abs() < 1e-9);
    }

    #[test]
    fn tuning_finds_the_alpha_that_fits() {
        let mut steps = SelfTunedExponential::default();
        assert_eq!(steps.alpha(), ALPHA);
        // A level that stays after a jump is followed at once, noise around a level hardly at all.
        (0..40).for_each(|at| steps.observe(f64::from(at / 8) * 100.0));
        assert_eq!(steps.alpha(), 1.0);
        let mut noise = SelfTunedExponential::default();
        noise.observe(100.0);
        (0..40).for_each(|at| noise.observe(if at % 2 == 0 { 90.0 } else { 110.0 }));
        assert_eq!(noise.alpha(), 0.05);
    }
}
