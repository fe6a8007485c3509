//! What a disk will demand in the next window, from what it demanded in those before: one method a file.
//!
//! Each takes one observation a window and keeps a bounded memory of them. [`Scored`] notes how far off a method was;
//! [`Best`] runs them all and follows the one that was least off.
//!
//! Source: CloudCache (Arteaga), section 3.4.2 and figure 3.5.

mod best;
mod double;
mod exponential;
mod last_value;
mod outlier;
mod scored;

pub use best::Best;
pub use double::{Double, SelfTunedDouble};
pub use exponential::{Exponential, SelfTunedExponential};
pub use last_value::LastValue;
pub use outlier::OutlierFilter;
pub use scored::{Score, Scored};

use serde::{Deserialize, Serialize};

/// A method of forecasting.
pub trait Forecast {
    /// Takes what was observed in the window that has ended.
    fn observe(&mut self, value: f64);

    /// What the next window will show, never below 0; none before the first observation.
    fn predict(&self) -> Option<f64>;
}

/// The methods by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// What was seen last.
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
    /// Whichever of these was least off so far.
    Best,
}

impl Method {
    /// All that are no choice among others.
    pub const SINGLE: [Method; 5] =
        [Method::LastValue, Method::ExpFixed, Method::ExpSelf, Method::DoubleExpFixed, Method::DoubleExpSelf];

    /// The name as configured.
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

/// A method with its memory.
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
    /// A method that has seen nothing yet.
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

    /// The method that speaks at present: of several, the one that is followed.
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
