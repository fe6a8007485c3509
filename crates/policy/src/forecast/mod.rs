//! Predicts a disk's demand in the next window from its demand in earlier ones: one method per file.
//!
//! Each method takes one observation per window and keeps a bounded history. [`Scored`] tracks the error of a
//! method; [`Best`] runs all of them and uses the one with the smallest error.
//!
//! Source: CloudCache (Arteaga), section 3.4.2 and figure 3.5.

mod best;
mod double;
mod exponential;
mod last_value;
mod outlier;
mod scored;
mod tuned;

pub use best::Best;
pub use double::{Double, SelfTunedDouble};
pub use exponential::{Exponential, SelfTunedExponential};
pub use last_value::LastValue;
pub use outlier::OutlierFilter;
pub use scored::{Score, Scored};
pub use tuned::SelfTuned;

use serde::{Deserialize, Serialize};

/// A forecasting method.
pub trait Forecast {
    /// Takes the observation from the window that has ended.
    fn observe(&mut self, value: f64);

    /// Returns the prediction for the next window, never below 0; `None` before the first observation.
    fn predict(&self) -> Option<f64>;
}

/// The methods by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The last value.
    LastValue,
    /// Exponential smoothing with alpha = 0.3.
    ExpFixed,
    /// Exponential smoothing, self-tuned.
    #[default]
    ExpSelf,
    /// Double exponential smoothing with alpha = beta = 0.3.
    DoubleExpFixed,
    /// Double exponential smoothing, self-tuned.
    DoubleExpSelf,
    /// The one of these with the smallest error so far.
    Best,
}

impl Method {
    /// All methods that do not choose among others.
    pub const SINGLE: [Method; 5] =
        [Method::LastValue, Method::ExpFixed, Method::ExpSelf, Method::DoubleExpFixed, Method::DoubleExpSelf];

    /// Returns the name used in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Method::LastValue => "last-value",
            Method::ExpFixed => "exp-fixed",
            Method::ExpSelf => "exp-self",
            Method::DoubleExpFixed => "double-exp-fixed",
            Method::DoubleExpSelf => "double-exp-self",
            Method::Best => "best",
        }
    }
}

/// A method with its state.
#[derive(Clone, PartialEq, Debug)]
pub enum Forecaster {
    /// See [`LastValue`].
    LastValue(LastValue),
    /// See [`Exponential`].
    ExpFixed(Exponential),
    /// See [`SelfTunedExponential`].
    ExpSelf(SelfTunedExponential),
    /// See [`Double`].
    DoubleExpFixed(Double),
    /// See [`SelfTunedDouble`].
    DoubleExpSelf(SelfTunedDouble),
    /// See [`Best`].
    Best(Best),
}

impl Forecaster {
    /// Makes a method without observations.
    pub fn new(method: Method) -> Forecaster {
        match method {
            Method::LastValue => Forecaster::LastValue(LastValue::default()),
            Method::ExpFixed => Forecaster::ExpFixed(Exponential::default()),
            Method::ExpSelf => Forecaster::ExpSelf(SelfTunedExponential::default()),
            Method::DoubleExpFixed => Forecaster::DoubleExpFixed(Double::default()),
            Method::DoubleExpSelf => Forecaster::DoubleExpSelf(SelfTunedDouble::default()),
            Method::Best => Forecaster::Best(Best::default()),
        }
    }

    /// Returns the method in use: of several, the one that is currently chosen.
    pub fn method(&self) -> Method {
        match self {
            Forecaster::LastValue(_) => Method::LastValue,
            Forecaster::ExpFixed(_) => Method::ExpFixed,
            Forecaster::ExpSelf(_) => Method::ExpSelf,
            Forecaster::DoubleExpFixed(_) => Method::DoubleExpFixed,
            Forecaster::DoubleExpSelf(_) => Method::DoubleExpSelf,
            Forecaster::Best(best) => best.method(),
        }
    }

    fn inner(&self) -> &dyn Forecast {
        match self {
            Forecaster::LastValue(f) => f,
            Forecaster::ExpFixed(f) => f,
            Forecaster::ExpSelf(f) => f,
            Forecaster::DoubleExpFixed(f) => f,
            Forecaster::DoubleExpSelf(f) => f,
            Forecaster::Best(f) => f,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Forecast {
        match self {
            Forecaster::LastValue(f) => f,
            Forecaster::ExpFixed(f) => f,
            Forecaster::ExpSelf(f) => f,
            Forecaster::DoubleExpFixed(f) => f,
            Forecaster::DoubleExpSelf(f) => f,
            Forecaster::Best(f) => f,
        }
    }
}

impl Forecast for Forecaster {
    fn observe(&mut self, value: f64) {
        self.inner_mut().observe(value);
    }

    fn predict(&self) -> Option<f64> {
        self.inner().predict()
    }
}
