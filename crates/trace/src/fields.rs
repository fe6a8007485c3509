//! Fields of a line and the numbers in them.

use crate::access::Op;

/// The fields of a line, in order.
pub(crate) struct Fields<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Fields<'a> {
    /// Splits a line at a separator; blanks around fields do not count. The separator b' ' stands for any run of
    /// blanks.
    pub fn new(line: &'a [u8], separator: u8) -> Self {
        Fields { rest: Some(line.trim_ascii()).filter(|l| !l.is_empty()), separator }
    }

    /// The next field.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let (one, other) = (self.separator, if self.separator == b' ' { b'\t' } else { self.separator });
        let Some(end) = rest.iter().position(|b| *b == one || *b == other) else {
            self.rest = None;
            return Some(rest.trim_ascii());
        };
        let after = &rest[end + 1..];
        self.rest = Some(if self.separator == b' ' { after.trim_ascii_start() } else { after });
        Some(rest[..end].trim_ascii())
    }

    /// Returns the next field as a whole number.
    pub fn number(&mut self) -> Option<u64> {
        number(self.text()?)
    }

    /// Returns the next field, a number of units with or without a fraction, in nanoseconds.
    pub fn time(&mut self, unit_ns: u64) -> Option<u64> {
        time(self.text()?, unit_ns)
    }

    /// Returns the next field as an operation.
    pub fn op(&mut self) -> Option<Op> {
        op(self.text()?)
    }

    /// Returns what has not been returned yet.
    pub fn rest(&self) -> Option<&'a [u8]> {
        self.rest
    }
}

fn digit(byte: u8) -> Option<u64> {
    let digit = byte.wrapping_sub(b'0');
    (digit <= 9).then_some(u64::from(digit))
}

/// Parses a whole number.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    // This many digits always fit.
    let (safe, rest) = text.split_at(text.len().min(19));
    let mut value = 0;
    for byte in safe {
        value = value * 10 + digit(*byte)?;
    }
    for byte in rest {
        value = u64::checked_mul(value, 10)?.checked_add(digit(*byte)?)?;
    }
    (!text.is_empty()).then_some(value)
}

/// Parses a number of units with or without a fraction to nanoseconds, exactly; digits below a nanosecond are dropped.
pub(crate) fn time(text: &[u8], unit_ns: u64) -> Option<u64> {
    let Some(point) = text.iter().position(|b| *b == b'.') else {
        return number(text)?.checked_mul(unit_ns);
    };
    let whole_ns = number(&text[..point])?.checked_mul(unit_ns)?;
    let (kept, dropped) = text[point + 1..].split_at((text.len() - point - 1).min(18));
    if !dropped.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (fraction, scale) = (number(kept)?, 10u64.pow(kept.len() as u32));
    let fraction_ns = match fraction.checked_mul(unit_ns) {
        Some(product) => product / scale,
        None => (u128::from(fraction) * u128::from(unit_ns) / u128::from(scale)) as u64,
    };
    whole_ns.checked_add(fraction_ns)
}

/// Parses an operation: its letter or its name, in either case.
pub(crate) fn op(text: &[u8]) -> Option<Op> {
    Some(match text {
        [b'R' | b'r'] => Op::Read,
        [b'W' | b'w'] => Op::Write,
        [b'F' | b'f'] => Op::Flush,
        [b'D' | b'd'] => Op::Discard,
        _ if text.eq_ignore_ascii_case(b"read") => Op::Read,
        _ if text.eq_ignore_ascii_case(b"write") => Op::Write,
        _ if text.eq_ignore_ascii_case(b"flush") || text.eq_ignore_ascii_case(b"sync") => Op::Flush,
        _ if text.eq_ignore_ascii_case(b"discard") || text.eq_ignore_ascii_case(b"trim") => Op::Discard,
        _ => return None,
    })
}

/// Returns what a SCSI operation code does to a disk.
pub(crate) fn scsi_op(code: u8) -> Option<Op> {
    Some(match code {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        // WRITE, WRITE AND VERIFY, WRITE SAME.
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 => Op::Write,
        0x35 | 0x91 => Op::Flush,
        _ => return None,
    })
}

/// Parses a SCSI operation code of two hexadecimal digits, such as `2a`.
pub(crate) fn scsi_op_text(text: &[u8]) -> Option<Op> {
    let [high, low] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    scsi_op((digit(high)? << 4 | digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"0000000000000000000000018446744073709551615"), Some(u64::MAX));
        for bad in [&b"18446744073709551616"[..], b"99999999999999999999", b"", b"-1", b"1.5", b" 1"] {
            assert_eq!(number(bad), None);
        }
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(time(b"1456095145.133076000", 1_000_000_000), Some(1_456_095_145_133_076_000));
        assert_eq!(time(b"223.412", 10_000_000), Some(2_234_120_000));
        assert_eq!(time(b"0.0000000019", 1_000_000_000), Some(1));
        assert_eq!(time(b"0.123456789123456789123", 1_000_000_000_000), Some(123_456_789_123));
        assert_eq!(time(b"7", 1000), Some(7000));
        for bad in [&b"1."[..], b".", b"1.2.3", b"1e9", b"99999999999.0"] {
            assert_eq!(time(bad, 1_000_000_000), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn scsi_codes() {
        assert_eq!(scsi_op_text(b"28"), Some(Op::Read));
        assert_eq!(scsi_op_text(b"8A"), Some(Op::Write));
        for bad in [&b"2"[..], b"+8", b"028", b"zz", b"00", b""] {
            assert_eq!(scsi_op_text(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn fields_of_lines() {
        let mut fields = Fields::new(b" a, b,,12 ", b',');
        assert_eq!(fields.text(), Some(&b"a"[..]));
        assert_eq!(fields.text(), Some(&b"b"[..]));
        assert_eq!(fields.text(), Some(&b""[..]));
        assert_eq!(fields.number(), Some(12));
        assert_eq!(fields.text(), None);
        let mut words = Fields::new(b"1 \t 2   W", b' ');
        assert_eq!((words.number(), words.number(), words.op()), (Some(1), Some(2), Some(Op::Write)));
        assert_eq!(words.text(), None);
    }
}
