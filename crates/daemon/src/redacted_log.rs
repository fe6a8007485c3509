//! The log: lines on standard error, without secrets.
//!
//! Invariant
//! - Secrets are removed from each line before it is written, no matter which part of the daemon logs it: messages
//!   about origins contain their URIs, which may include passwords.

use std::io::{self, Write};

use haversack_api::redact;

use crate::config::LogFormat;

/// Writes lines to standard error, without the secrets in them.
pub struct Lines(pub LogFormat);

impl Write for Lines {
    /// The subscriber writes each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(clean(line, self.0).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn clean(line: &[u8], format: LogFormat) -> String {
    if format == LogFormat::Json
        && let Ok(mut value) = serde_json::from_slice(line)
    {
        redact::json(&mut value);
        return format!("{value}\n");
    }
    redact::text(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_of_json_stays_json() {
        for origin in ["rbd:p/i:id=a:key=AQ==", "nbds://u:word@h/x", r#"qemu:{"password":"a\"b"}"#] {
            let line = format!(
                "{}\n",
                json!({ "origin": origin, "x": 1, "message": format!("origin {origin}: no") })
            );
            let clean = clean(line.as_bytes(), LogFormat::Json);
            let value: Value = serde_json::from_str(&clean).expect("valid JSON");
            assert_eq!(value["x"], 1);
            assert!(!["AQ==", "word@", "a\\\"b"].iter().any(|secret| clean.contains(secret)), "{clean}");
        }
    }
}
