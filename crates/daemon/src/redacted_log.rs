//! The log: lines on standard error, without secrets.
//!
//! Invariant
//! - A line has passed [`redact::text`] before it is written, whatever its author knew of what is in it: errors of origins name
//!   them with their passwords.

use std::io::{self, Write};

use haversack_api::redact;

/// Writes lines to standard error, without the secrets in them.
pub struct Lines;

impl Write for Lines {
    /// The subscriber writes each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(redact::text(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
