//! Units: how a value is formatted for people.

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes, with powers of 1024.
    Bytes,
    /// Things counted, with powers of 1000.
    Count,
    /// A fraction, shown in percent.
    Share,
    /// Seconds, shown in a suitable unit: us, ms, s, min, h, d.
    Seconds,
    /// Something else; its name follows the number.
    Named(&'static str),
}

const BINARY: [(f64, &str); 6] = [
    ((1u64 << 60) as f64, " EiB"),
    ((1u64 << 50) as f64, " PiB"),
    ((1u64 << 40) as f64, " TiB"),
    ((1u64 << 30) as f64, " GiB"),
    ((1u64 << 20) as f64, " MiB"),
    ((1u64 << 10) as f64, " KiB"),
];
const DECIMAL: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
const TIMES: [(f64, &str); 6] =
    [(86400.0, " d"), (3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us")];

impl Unit {
    /// Returns the value with its unit, rounded to about three digits.
    pub fn format(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".into();
        }
        match self {
            Unit::Bytes => scaled(value, &BINARY, " B"),
            Unit::Count => scaled(value, &DECIMAL, ""),
            Unit::Share => format!("{} %", digits(value * 100.0)),
            Unit::Seconds if value == 0.0 => "0".into(),
            Unit::Seconds => scaled(value, &TIMES, " s"),
            Unit::Named("") => digits(value),
            Unit::Named(name) => format!("{} {name}", scaled(value, &DECIMAL, "")),
        }
    }
}

/// Returns the value in the largest unit in which it is at least 1.
fn scaled(value: f64, units: &[(f64, &str)], base: &str) -> String {
    // A value that rounds up to the next unit is shown in that unit.
    let fits = |(size, _): &&(f64, &str)| value.abs() >= size * 0.9995;
    match units.iter().find(fits) {
        Some((size, name)) => format!("{}{name}", digits(value / size)),
        None => format!("{}{base}", digits(value)),
    }
}

/// Formats three significant digits, without trailing zeroes; whole numbers are exact.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.01 => 2,
        v => (1.0 - v.log10().floor()).clamp(2.0, 9.0) as usize,
    };
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_for_people() {
        assert_eq!(Unit::Bytes.format(4096.0), "4 KiB");
        assert_eq!(Unit::Bytes.format(1.5 * 1024.0 * 1024.0 * 1024.0), "1.5 GiB");
        assert_eq!(Unit::Bytes.format(0.0), "0 B");
        assert_eq!(Unit::Count.format(12_345.0), "12.3 k");
        assert_eq!(Unit::Count.format(999.99), "1 k");
        assert_eq!(Unit::Count.format(110.0), "110");
        assert_eq!(Unit::Share.format(0.1432), "14.3 %");
        assert_eq!(Unit::Share.format(0.0004), "0.04 %");
        assert_eq!(Unit::Seconds.format(5400.0), "1.5 h");
        assert_eq!(Unit::Seconds.format(0.00012), "120 us");
        assert_eq!(Unit::Named("I/Os").format(1500.0), "1.5 k I/Os");
        assert_eq!(Unit::Count.format(f64::NAN), "-");
    }
}
