//! Output: text for people, or JSON.
//!
//! Invariants
//! - With `--json`, stdout has JSON and nothing else, and an error is one JSON object on stderr.
//! - A command that changes something says so in a line, unless the user wants `--quiet`.
//! - If the reader of the output goes away, for example `head`, the command ends quietly.

use std::io::{ErrorKind, Write};

pub use haversack_report::{counted, plural};
use serde::Serialize;
use serde_json::json;

use crate::error::{CliError, Result};

/// How a command that changes something says what it has done.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// In JSON.
    pub as_json: bool,
    /// Only in JSON, not in words.
    pub is_quiet: bool,
}

impl Style {
    /// Writes a value as JSON if wanted, else the text, unless the user wants no words.
    pub fn print(self, value: &impl Serialize, text: &str) -> Result<()> {
        if self.is_quiet && !self.as_json {
            return Ok(());
        }
        print(self.as_json, value, text)
    }

    /// Writes a line for people.
    pub fn tell(self, line: &str) -> Result<()> {
        if self.as_json || self.is_quiet { Ok(()) } else { write(&format!("{line}\n")) }
    }
}

/// Writes to stdout.
pub fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|e| CliError::Failed(format!("cannot write to stdout: {e}"))),
    }
}

/// Writes a value as JSON if wanted, else the text.
pub fn print(as_json: bool, value: &impl Serialize, text: &str) -> Result<()> {
    if !as_json {
        return write(text);
    }
    let json = serde_json::to_string_pretty(value).map_err(|e| CliError::Failed(e.to_string()))?;
    write(&format!("{json}\n"))
}

/// Writes a value as one line of JSON.
pub fn print_line(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(value).map_err(|e| CliError::Failed(e.to_string()))?;
    write(&format!("{json}\n"))
}

/// Writes a line to stderr. Errors are ignored: a closed terminal must not end the command.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Reports an error.
pub fn complain(as_json: bool, error: &CliError) {
    if !as_json {
        return say(&format!("haversack: {error}"));
    }
    let mut body =
        json!({ "code": error.code(), "error": error.to_string(), "exit_code": error.exit_code() });
    if let CliError::Refused(refusal) = error {
        (body["error"], body["hint"]) = (json!(refusal.error), json!(refusal.hint));
    }
    say(&body.to_string());
}
