//! Axes: from values to places between 0 and 1, and the ticks.

use crate::unit::Unit;

/// Sizes that differ by more than this factor are drawn on a logarithmic axis.
const WIDE: f64 = 8.0;

/// One axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its title.
    pub(crate) title: String,
    /// The unit of its values.
    pub(crate) unit: Unit,
    logarithmic: bool,
    from: Option<f64>,
    to: Option<f64>,
}

impl Axis {
    /// Makes a linear axis from 0 to the largest value.
    pub fn linear(title: &str, unit: Unit) -> Axis {
        Axis { title: title.into(), unit, logarithmic: false, from: Some(0.0), to: None }
    }

    /// Makes a logarithmic axis from the smallest positive to the largest value.
    pub fn log(title: &str, unit: Unit) -> Axis {
        Axis { title: title.into(), unit, logarithmic: true, from: None, to: None }
    }

    /// Makes an axis for these sizes in bytes: logarithmic if the largest is more than eight times the smallest
    /// one above 0, and otherwise linear.
    pub fn sizes(title: &str, sizes: impl IntoIterator<Item = f64>) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for size in sizes.into_iter().filter(|size| size.is_finite() && *size > 0.0) {
            (low, high) = (low.min(size), high.max(size));
        }
        if high > low * WIDE { Axis::log(title, Unit::Bytes) } else { Axis::linear(title, Unit::Bytes) }
    }

    /// Makes a linear axis from 0 % to 100 %.
    pub fn share(title: &str) -> Axis {
        Axis::linear(title, Unit::Share).range(0.0, 1.0)
    }

    /// Makes a linear axis of time, from the first to the last value.
    pub fn time(title: &str) -> Axis {
        Axis { from: None, ..Axis::linear(title, Unit::Seconds) }
    }

    /// Returns the same axis with fixed ends, whatever the values are.
    pub fn range(self, from: f64, to: f64) -> Axis {
        Axis { from: Some(from), to: Some(to), ..self }
    }

    /// Returns whether a value has a place on this kind of axis.
    pub(crate) fn takes(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    /// Returns the axis scaled to the values.
    pub(crate) fn over(&self, values: impl Iterator<Item = f64>) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| self.takes(*v)) {
            (low, high) = (low.min(value), high.max(value));
        }
        let (mut low, mut high) = (self.from.unwrap_or(low), self.to.unwrap_or(high));
        if self.logarithmic {
            if !(low > 0.0 && low.is_finite()) {
                low = 1.0;
            }
            if high.is_nan() || high <= low || high.is_infinite() {
                high = low * 10.0;
            }
        } else {
            if !low.is_finite() {
                low = 0.0;
            }
            if high.is_nan() || high <= low || high.is_infinite() {
                high = low + 1.0;
            }
        }
        let mut scale = Scale { low, high, logarithmic: self.logarithmic, unit: self.unit };
        if !self.logarithmic && self.to.is_none() && self.from.is_some() {
            // An end that is not fixed is placed on a tick.
            let step = scale.step();
            scale.high = (high / step - 1e-9).ceil() * step;
        }
        scale
    }
}

/// An axis with known ends.
pub(crate) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    unit: Unit,
}

/// The number of ticks for which an axis has room.
const TICKS: f64 = 6.0;

impl Scale {
    /// Returns the place of a value: 0 at the low end, 1 at the high end.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// Returns the values that get a line across the chart.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic { self.log_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let step = self.step();
        let first = (self.low / step - 1e-9).ceil();
        let count = ((self.high - self.low) / step + 1e-9).floor().min(4.0 * TICKS) as u32;
        let ticks = (0..=count).map(|n| (first + f64::from(n)) * step);
        ticks.filter(|t| *t <= self.high + step * 1e-6).collect()
    }

    /// Powers of 10, or of 2 for bytes, as dense as there is room for.
    fn log_ticks(&self) -> Vec<f64> {
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        let (first, last) =
            ((self.low.ln() / base.ln() - 1e-9).ceil(), (self.high.ln() / base.ln() + 1e-9).floor());
        let stride = ((last - first) / TICKS).ceil().max(1.0);
        let first = (first / stride).ceil() * stride;
        let powers = (0..).map(|n| first + f64::from(n) * stride).take_while(|power| *power <= last);
        let ticks: Vec<f64> = powers.map(|power| base.powf(power)).collect();
        if ticks.len() > 1 { ticks } else { vec![self.low, self.high] }
    }

    /// Returns a round distance between ticks.
    fn step(&self) -> f64 {
        const TIMES: [f64; 19] = [
            1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 21600.0,
            43200.0, 86400.0, 172_800.0, 432_000.0, 864_000.0,
        ];
        let rough = (self.high - self.low) / TICKS;
        if self.unit == Unit::Seconds
            && rough > 0.5
            && let Some(step) = TIMES.iter().find(|step| **step >= rough)
        {
            return *step;
        }
        if self.unit == Unit::Bytes && rough >= 1.0 {
            return rough.log2().ceil().exp2();
        }
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let axis = Axis::linear("x", Unit::Count).over([0.0, 37.0].into_iter());
        assert_eq!(axis.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0]);
        let bytes = Axis::log("x", Unit::Bytes).over([4096.0, 1048576.0].into_iter());
        assert_eq!(bytes.ticks(), [4096.0, 16384.0, 65536.0, 262144.0, 1048576.0]);
        let time = Axis::time("x").over([100.0, 1750.0].into_iter());
        assert_eq!(time.ticks(), [300.0, 600.0, 900.0, 1200.0, 1500.0].map(|t: f64| t));
    }

    #[test]
    fn sizes_far_apart_are_drawn_by_their_logarithms() {
        let is_log = |sizes: &[f64]| Axis::sizes("x", sizes.iter().copied()).logarithmic;
        assert!(is_log(&[0.0, 1.0, 8.1]));
        for near in [&[1.0, 8.0][..], &[0.0, 5.0], &[f64::NAN, 5.0, 6.0], &[]] {
            assert!(!is_log(near), "{near:?}");
        }
    }

    #[test]
    fn nothing_and_nonsense_still_give_an_axis() {
        for values in [vec![], vec![f64::NAN], vec![f64::INFINITY, 0.0], vec![-1.0], vec![5.0, 5.0]] {
            for axis in [Axis::linear("x", Unit::Bytes), Axis::log("x", Unit::Count), Axis::time("x")] {
                let scale = axis.over(values.iter().copied());
                let ticks = scale.ticks();
                assert!(ticks.len() < 32, "{ticks:?}");
                assert!(ticks.iter().all(|t| t.is_finite()), "{values:?} {ticks:?}");
                assert!((0.0..=1.0).contains(&scale.place(3.0)));
            }
        }
    }
}
