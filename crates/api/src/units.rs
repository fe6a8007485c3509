//! Sizes and times as people write them.
//!
//! Invariant
//! - What is printed parses to the same value.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{RefOr, schema::Schema};
use utoipa::{PartialSchema, ToSchema};

/// A number of bytes: a number, or a string such as `512MiB` or `10G` (powers of 1024, as is usual for disks), or
/// `20GB` or `1.5TB` (powers of 1000, as devices are sold).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Size(pub u64);

const SIZE_UNITS: [(&str, u32); 6] =
    [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

const DECIMAL_UNITS: [(&str, u32); 6] = [("EB", 18), ("PB", 15), ("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)];

/// Returns the bytes of a unit: `G` and `GiB` are powers of 1024, `GB` is one of 1000. Case does not matter.
fn unit_bytes(unit: &str) -> Option<u64> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("b") {
        return Some(1);
    }
    let is_binary = |name: &str| name.eq_ignore_ascii_case(unit) || name[..1].eq_ignore_ascii_case(unit);
    let binary = SIZE_UNITS.iter().find(|(name, _)| is_binary(name)).map(|(_, shift)| 1u64 << shift);
    let decimal = DECIMAL_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    binary.or(decimal.map(|(_, power)| 10u64.pow(*power)))
}

/// Returns the bytes of a decimal number of units, if they are a whole number that fits.
fn bytes_of(number: &str, unit_bytes: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.parse::<u128>().ok()?.checked_mul(u128::from(unit_bytes))?;
    if scaled % scale == 0 { u64::try_from(scaled / scale).ok() } else { None }
}

/// Splits `12.5GiB` or `30s` into number and unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..unit].trim(), text[unit..].trim())
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (number, unit) = split(text);
        let bytes = unit_bytes(unit).and_then(|unit_bytes| bytes_of(number, unit_bytes));
        bytes.map(Size).ok_or_else(|| {
            format!(
                "'{text}' is not a size: expected bytes, or a number with KiB, MiB, GiB or TiB (or K, M, G, T), or with kB, MB, \
                 GB or TB (powers of 1000)"
            )
        })
    }
}

impl fmt::Display for Size {
    /// Formats the value in the largest unit of which it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZE_UNITS.iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match unit {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Size {
    /// Formats the value rounded, for people: at most four digits and a unit.
    pub fn rounded(self) -> String {
        match SIZE_UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((name, shift)) => format!("{:.1} {name}", self.0 as f64 / (1u64 << shift) as f64),
            None => format!("{} B", self.0),
        }
    }
}

impl PartialSchema for Size {
    fn schema() -> RefOr<Schema> {
        u64::schema()
    }
}

impl ToSchema for Size {}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, or a string such as \"10GiB\"")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom(format!("a size is not negative: {bytes}")))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A length of time: a string such as `500ms`, `30s`, `5min`, `2h`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub Duration);

const SPAN_UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

impl Span {
    /// Returns the time in microseconds.
    pub fn as_micros(self) -> u64 {
        self.0.as_micros().min(u128::from(u64::MAX)) as u64
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let wrong = || format!("'{text}' is not a time: expected a whole number with us, ms, s, min or h");
        let (number, unit) = split(text);
        let factor =
            SPAN_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, us)| *us).ok_or_else(wrong)?;
        let value = number.parse::<u64>().map_err(|_| wrong())?;
        value.checked_mul(factor).map(|us| Span(Duration::from_micros(us))).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.as_micros();
        let unit = SPAN_UNITS.iter().find(|(_, factor)| us > 0 && us.is_multiple_of(*factor));
        let (name, factor) = unit.unwrap_or(&("s", 1_000_000));
        write!(f, "{}{name}", us / factor)
    }
}

impl PartialSchema for Span {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl ToSchema for Span {}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Time over which a disk is measured: a length of time, or `knee` for one that is chosen while the disk runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowSetting {
    /// This long.
    Length(Span),
    /// The length from which on hits no longer grow.
    Knee,
}

const KNEE: &str = "knee";

impl FromStr for WindowSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<WindowSetting, String> {
        if text.trim() == KNEE {
            return Ok(WindowSetting::Knee);
        }
        text.parse().map(WindowSetting::Length).map_err(|wrong: String| format!("{wrong}; or {KNEE}"))
    }
}

impl fmt::Display for WindowSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WindowSetting::Length(span) => span.fmt(f),
            WindowSetting::Knee => f.write_str(KNEE),
        }
    }
}

impl PartialSchema for WindowSetting {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl ToSchema for WindowSetting {}

impl Serialize for WindowSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WindowSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WindowSetting, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4k", 4096), ("1.5GiB", 3 << 29), ("10 GiB", 10 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
        for (text, bytes) in [
            ("20kB", 20_000),
            ("20MB", 20_000_000),
            ("20 GB", 20_000_000_000),
            ("1.5TB", 1_500_000_000_000),
            ("4.35gb", 4_350_000_000),
            ("0.001KB", 1),
            ("18EB", 18_000_000_000_000_000_000),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "GiB",
            "GB",
            ".",
            "-1",
            "1.0001KiB",
            "0.0001kB",
            "12 parsecs",
            "99999999999TiB",
            "19EB",
            "nan",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("expected bytes"), "{error}");
        }
    }

    #[test]
    fn what_is_printed_reads_back() {
        for bytes in [0, 1, 4096, 5 << 20, (1 << 30) + 512, u64::MAX] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        for us in [0, 1, 1500, 30_000_000, 90_000_000, 7_200_000_000] {
            let span = Span(Duration::from_micros(us));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert_eq!("2h".parse::<Span>().unwrap().as_micros(), 7_200_000_000);
        assert!("30".parse::<Span>().unwrap_err().contains("us, ms, s, min or h"));
        for text in ["knee", "12h"] {
            assert_eq!(text.parse::<WindowSetting>().unwrap().to_string(), text);
        }
        assert!("knees".parse::<WindowSetting>().unwrap_err().contains("min or h; or knee"));
    }

    #[test]
    fn json_takes_numbers_and_strings() {
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Size>("\"4KiB\"").unwrap(), Size(4096));
        assert!(serde_json::from_str::<Size>("-1").unwrap_err().to_string().contains("negative"));
        assert_eq!(serde_json::to_string(&Size(4096)).unwrap(), "4096");
    }
}
