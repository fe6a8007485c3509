//! QEMU's machine protocol: the monitor of a running QEMU.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::tools::{PATIENCE, wait_until};
use crate::{Error, Result};

/// A connection to a monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to a monitor's socket.
    ///
    /// # Errors
    /// If nobody answers there as a monitor does.
    pub fn connect(socket: &Path) -> Result<Self> {
        let what = socket.display().to_string();
        let stream = UnixStream::connect(socket).map_err(Error::io(what.clone()))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io(what))?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        qmp.next("greeting")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its answer.
    ///
    /// # Errors
    /// What QEMU complained of.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).map_err(Error::io(command))?;
        loop {
            // Events come in between.
            let message = self.next(command)?;
            if let Some(answer) = message.get("return") {
                return Ok(answer.clone());
            }
            if let Some(error) = message.get("error") {
                return Err(Error::Check(format!("QEMU: {command}: {error}")));
            }
        }
    }

    /// Migrates the guest to the QEMU that listens on `channel`. Returns what QEMU tells of it.
    ///
    /// # Errors
    /// If it fails or takes longer than `limit`.
    pub fn migrate(&mut self, channel: &str, limit: Duration) -> Result<Value> {
        self.execute("migrate", &json!({ "uri": channel }))?;
        let mut told = Value::Null;
        wait_until("the migration", limit, || {
            told = self.execute("query-migrate", &json!({}))?;
            match told["status"].as_str() {
                Some("failed" | "cancelled") => Err(Error::Check(format!("the migration failed: {told}"))),
                status => Ok(status == Some("completed")),
            }
        })?;
        Ok(told)
    }

    /// Waits until the guest has this status, such as `running`.
    ///
    /// # Errors
    /// If it has not within `limit`.
    pub fn wait_for_status(&mut self, status: &str, limit: Duration) -> Result<()> {
        wait_until(&format!("the guest's being {status}"), limit, || {
            Ok(self.execute("query-status", &json!({}))?["status"] == status)
        })
    }

    /// Ends QEMU.
    ///
    /// # Errors
    /// If it cannot be told.
    pub fn quit(mut self) -> Result<()> {
        self.execute("quit", &json!({})).map(|_| ())
    }

    fn next(&mut self, what: &str) -> Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(Error::io(format!("QEMU: {what}")))?;
        serde_json::from_str(&line)
            .map_err(|error| Error::Check(format!("QEMU: {what}: no JSON ({error}): {line}")))
    }
}
