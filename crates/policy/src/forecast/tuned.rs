//! Smoothing that fits its parameters to the whole history, for the smallest sum of squared one-step errors: a smoother
//! runs for each choice of parameters and sums its own errors, so that fitting needs no copy of the history.

use super::Forecast;

/// See the module. Uses the initial smoother until another one has a smaller error.
#[derive(Clone, PartialEq, Debug)]
pub struct SelfTuned<S> {
    /// The smoothers, and their errors.
    tried: Vec<(S, f64)>,
    best: usize,
}

impl<S: Forecast> SelfTuned<S> {
    /// Makes a method that tries these smoothers, at least one. It begins with the first one for which `is_first`
    /// returns true.
    pub(super) fn new(smoothers: impl Iterator<Item = S>, is_first: impl Fn(&S) -> bool) -> SelfTuned<S> {
        let tried: Vec<_> = smoothers.map(|smoother| (smoother, 0.0)).collect();
        let best = tried.iter().position(|(smoother, _)| is_first(smoother)).unwrap_or(0);
        SelfTuned { tried, best }
    }

    /// Returns the smoother that fits best so far.
    pub(super) fn best(&self) -> &S {
        &self.tried[self.best].0
    }
}

impl<S: Forecast> Forecast for SelfTuned<S> {
    fn observe(&mut self, value: f64) {
        for (smoother, squared_error) in &mut self.tried {
            let error = smoother.predict().map_or(0.0, |predicted| value - predicted);
            *squared_error += error * error;
            smoother.observe(value);
        }
        for at in 0..self.tried.len() {
            if self.tried[at].1 < self.tried[self.best].1 {
                self.best = at;
            }
        }
    }

    fn predict(&self) -> Option<f64> {
        self.best().predict()
    }
}
