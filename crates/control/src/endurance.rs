//! How much may be written to flash, as operators say it: `1 DWPD`, `500 GB/day`.
//!
//! Invariant
//! - What is printed parses to the same value.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;

/// A budget before the size of the pool is known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Endurance {
    /// As a multiple of the pool's size a day, as vendors rate their devices.
    DriveWritesPerDay(f64),
    /// In bytes a day.
    BytesPerDay(f64),
}

/// Units of bytes: decimal ones, as vendors use them, and binary ones.
const UNITS: [(&str, f64); 9] = [
    ("b", 1.0),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("pb", 1e15),
    ("mib", (1u64 << 20) as f64),
    ("gib", (1u64 << 30) as f64),
    ("tib", (1u64 << 40) as f64),
    ("pib", (1u64 << 50) as f64),
];

impl Endurance {
    /// Returns the budget of a pool of this size.
    pub fn budget(self, pool_bytes: u64) -> Budget {
        Budget::per_day(match self {
            Endurance::DriveWritesPerDay(times) => times * pool_bytes as f64,
            Endurance::BytesPerDay(bytes) => bytes,
        })
    }
}

impl FromStr for Endurance {
    type Err = String;

    fn from_str(text: &str) -> Result<Endurance, String> {
        let wrong = || {
            format!(
                "'{text}' is not an endurance: expected drive writes a day such as '1 DWPD', or bytes a day such as '500 GB/day'"
            )
        };
        let trimmed = text.trim();
        let unit_at = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let number: f64 = trimmed[..unit_at].trim().parse().map_err(|_| wrong())?;
        if !(number.is_finite() && number > 0.0) {
            return Err(wrong());
        }
        let unit = trimmed[unit_at..].to_ascii_lowercase();
        if unit == "dwpd" {
            return Ok(Endurance::DriveWritesPerDay(number));
        }
        let unit = unit.strip_suffix("/day").or_else(|| unit.strip_suffix("/d")).ok_or_else(wrong)?.trim();
        let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        Ok(Endurance::BytesPerDay(number * bytes))
    }
}

impl TryFrom<String> for Endurance {
    type Error = String;

    fn try_from(text: String) -> Result<Endurance, String> {
        text.parse()
    }
}

impl From<Endurance> for String {
    fn from(endurance: Endurance) -> String {
        endurance.to_string()
    }
}

impl fmt::Display for Endurance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endurance::DriveWritesPerDay(times) => write!(f, "{times} DWPD"),
            Endurance::BytesPerDay(bytes) => write!(f, "{bytes} B/day"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_operators_say_it() {
        assert_eq!("1 DWPD".parse(), Ok(Endurance::DriveWritesPerDay(1.0)));
        assert_eq!("0.3dwpd".parse(), Ok(Endurance::DriveWritesPerDay(0.3)));
        assert_eq!("500 GB/day".parse(), Ok(Endurance::BytesPerDay(500e9)));
        assert_eq!("2TiB/d".parse(), Ok(Endurance::BytesPerDay((2u64 << 40) as f64)));
        for text in ["1 DWPD", "0.25 DWPD", "500 GB/day"] {
            let endurance: Endurance = text.parse().unwrap();
            assert_eq!(endurance.to_string().parse(), Ok(endurance));
        }
        assert_eq!(Endurance::DriveWritesPerDay(0.5).budget(1000).bytes_per_day, 500.0);
    }

    #[test]
    fn anything_else_is_refused_with_what_is_expected() {
        for text in ["", "1", "DWPD", "0 DWPD", "-1 DWPD", "500 GB", "5 XB/day", "1e400 DWPD", "nan DWPD"] {
            let refused = text.parse::<Endurance>().unwrap_err();
            assert!(refused.contains(&format!("'{text}'")) && refused.contains("500 GB/day"), "{refused}");
        }
    }
}
