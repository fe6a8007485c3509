//! Predicts that the next window is like the last one.
//!
//! Source: CloudCache (Arteaga), section 3.4.4, the baseline of figure 3.5.

use super::Forecast;

/// The last value observed.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LastValue {
    last: Option<f64>,
}

impl Forecast for LastValue {
    fn observe(&mut self, value: f64) {
        self.last = Some(value);
    }

    fn predict(&self) -> Option<f64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicts_what_it_saw_last() {
        let mut forecast = LastValue::default();
        assert_eq!(forecast.predict(), None);
        forecast.observe(3.0);
        forecast.observe(5.0);
        assert_eq!(forecast.predict(), Some(5.0));
    }
}
