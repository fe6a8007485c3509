//! The time that a device takes for one I/O.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

use haversack_model::random::Random;

use crate::error::LatencyError;

/// A distribution of times, in microseconds.
#[derive(Clone, PartialEq, Debug)]
pub enum Distribution {
    /// Constant.
    Constant(f64),
    /// Exponential.
    Exponential {
        /// The mean.
        mean_us: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Half of the times are shorter.
        median_us: f64,
        /// Standard deviation of the time's natural logarithm.
        sigma: f64,
    },
    /// Measured: quantiles from 0 to 1 and their times, both increasing; linear in between.
    Quantiles(Vec<(f64, f64)>),
}

impl Distribution {
    /// A measured distribution.
    ///
    /// # Errors
    /// [`LatencyError`] unless quantiles go from 0 to 1 and neither they nor the times decrease.
    pub fn measured(quantiles: Vec<(f64, f64)>) -> Result<Self, LatencyError> {
        let ends = (quantiles.first().map(|q| q.0), quantiles.last().map(|q| q.0));
        let sorted = quantiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let sane = quantiles.iter().all(|(_, us)| us.is_finite() && *us >= 0.0);
        if ends == (Some(0.0), Some(1.0)) && sorted && sane {
            return Ok(Distribution::Quantiles(quantiles));
        }
        Err(LatencyError(format!(
            "a measured profile needs rising quantiles from 0 to 1 with times that do not fall, found {quantiles:?}"
        )))
    }

    /// The mean.
    pub fn mean_us(&self) -> f64 {
        match self {
            Distribution::Constant(us) => *us,
            Distribution::Exponential { mean_us } => *mean_us,
            Distribution::LogNormal { median_us, sigma } => median_us * (sigma * sigma / 2.0).exp(),
            Distribution::Quantiles(quantiles) => {
                let between = quantiles.windows(2);
                between.map(|ends| (ends[1].0 - ends[0].0) * (ends[0].1 + ends[1].1) / 2.0).sum()
            }
        }
    }

    /// A random time from this distribution.
    pub fn draw_us(&self, rng: &mut Random) -> f64 {
        match self {
            Distribution::Constant(us) => *us,
            Distribution::Exponential { mean_us } => -mean_us * rng.open_unit().ln(),
            Distribution::LogNormal { median_us, sigma } => median_us * (sigma * rng.normal()).exp(),
            Distribution::Quantiles(quantiles) => interpolate(quantiles, rng.open_unit()),
        }
    }
}

fn interpolate(quantiles: &[(f64, f64)], at: f64) -> f64 {
    let above = quantiles.partition_point(|(q, _)| *q < at).clamp(1, quantiles.len() - 1);
    let ((q0, us0), (q1, us1)) = (quantiles[above - 1], quantiles[above]);
    us0 + (us1 - us0) * (at - q0) / (q1 - q0)
}

impl fmt::Display for Distribution {
    /// The form in which it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Constant(us) => write!(f, "constant:{us}"),
            Distribution::Exponential { mean_us } => write!(f, "exponential:{mean_us}"),
            Distribution::LogNormal { median_us, sigma } => write!(f, "log-normal:{median_us},{sigma}"),
            Distribution::Quantiles(quantiles) => {
                let pairs: Vec<String> = quantiles.iter().map(|(q, us)| format!("{q}={us}")).collect();
                write!(f, "profile:{}", pairs.join(","))
            }
        }
    }
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for Distribution {
    type Err = LatencyError;

    /// `80` or `constant:80`, `exponential:100`, `log-normal:80,0.5`, `profile:0=60,0.5=80,0.99=200,1=900`.
    fn from_str(text: &str) -> Result<Self, LatencyError> {
        let wrong = || {
            LatencyError(format!(
                "'{text}' is no service time: expected microseconds, exponential:MEAN, log-normal:MEDIAN,SIGMA or \
                 profile:0=US,0.5=US,...,1=US"
            ))
        };
        let number = |text: &str| {
            let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
            number.ok_or_else(wrong)
        };
        let (kind, values) = text.split_once(':').unwrap_or(("constant", text));
        match kind {
            "constant" => Ok(Distribution::Constant(number(values)?)),
            "exponential" => Ok(Distribution::Exponential { mean_us: number(values)? }),
            "log-normal" => {
                let (median, sigma) = values.split_once(',').ok_or_else(wrong)?;
                Ok(Distribution::LogNormal { median_us: number(median)?, sigma: number(sigma)? })
            }
            "profile" => {
                let pair = |pair: &str| {
                    let (q, us) = pair.split_once('=').ok_or_else(wrong)?;
                    Ok((number(q)?, number(us)?))
                };
                Self::measured(values.split(',').map(pair).collect::<Result<_, LatencyError>>()?)
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(distribution: &str) -> f64 {
        let distribution: Distribution = distribution.parse().unwrap();
        let mut rng = Random::new(7);
        (0..200_000).map(|_| distribution.draw_us(&mut rng)).sum::<f64>() / 200_000.0
    }

    #[test]
    fn means_are_what_they_should_be() {
        for (text, expected) in [
            ("80", 80.0),
            ("exponential:100", 100.0),
            ("log-normal:80,0.5", 80.0 * (0.125f64).exp()),
            ("profile:0=0,0.5=100,1=300", 125.0),
        ] {
            assert!((mean(text) / expected - 1.0).abs() < 0.02, "{text}: {}", mean(text));
            let read: Distribution = text.parse().unwrap();
            assert_eq!(read.to_string().parse::<Distribution>().unwrap(), read);
            let told = read.mean_us();
            assert!((told / expected - 1.0).abs() < 1e-9, "{text}: {told}");
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        for text in
            ["", "-1", "nan", "exp:1", "log-normal:3", "profile:0=1", "profile:0=2,1=1", "profile:0.1=2,1=3"]
        {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
