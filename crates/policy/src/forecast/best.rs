//! Runs all methods and uses the one with the smallest error.
//!
//! Another method takes over only if its error is smaller by a tenth, so that two equal ones do not alternate.
//!
//! Source: the methods are those of CloudCache (Arteaga), section 3.4.2; choosing among them continuously is
//! ours.

use super::{Forecast, Forecaster, Method, Scored};

/// How much smaller the error of another method must be for it to take over.
const BETTER: f64 = 0.9;

/// All single methods, and which of them is used.
#[derive(Clone, PartialEq, Debug)]
pub struct Best {
    tried: Vec<Scored<Forecaster>>,
    speaks: usize,
}

impl Default for Best {
    fn default() -> Best {
        let tried = Method::SINGLE.map(|method| Scored::new(Forecaster::new(method))).to_vec();
        let speaks = Method::SINGLE.iter().position(|method| *method == Method::default()).unwrap_or(0);
        Best { tried, speaks }
    }
}

impl Best {
    /// Returns the method that is used.
    pub fn method(&self) -> Method {
        Method::SINGLE[self.speaks]
    }

    /// Returns each method's mean error so far.
    pub fn errors(&self) -> impl Iterator<Item = (Method, f64)> + '_ {
        let scored = Method::SINGLE.into_iter().zip(&self.tried);
        scored.filter_map(|(method, tried)| Some((method, tried.score.mean_error()?)))
    }
}

impl Forecast for Best {
    fn observe(&mut self, value: f64) {
        self.tried.iter_mut().for_each(|tried| tried.observe(value));
        let error = |at: usize| self.tried[at].score.mean_error().unwrap_or(0.0);
        let least = (0..self.tried.len()).fold(0, |best, at| if error(at) < error(best) { at } else { best });
        if error(least) < BETTER * error(self.speaks) {
            self.speaks = least;
        }
    }

    fn predict(&self) -> Option<f64> {
        self.tried[self.speaks].predict()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_left_to_double_smoothing() {
        let mut best = Best::default();
        assert_eq!(best.method(), Method::ExpSelf);
        (1..20).for_each(|at| best.observe(f64::from(at) * 1000.0));
        assert!(
            matches!(best.method(), Method::DoubleExpFixed | Method::DoubleExpSelf),
            "{:?}",
            best.method()
        );
        assert!((best.predict().unwrap() - 20_000.0).abs() < 1.0);
        assert_eq!(best.errors().count(), Method::SINGLE.len());
    }

    #[test]
    fn noise_around_a_level_is_left_to_smoothing() {
        let mut best = Best::default();
        (0..60).for_each(|at| best.observe(if at % 2 == 0 { 900.0 } else { 1100.0 }));
        assert_ne!(best.method(), Method::LastValue);
        assert!((best.predict().unwrap() - 1000.0).abs() < 80.0, "{:?}", best.predict());
    }
}
