//! The control API over one connection, for tests that make thousands of calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// A connection that is kept.
#[derive(Debug)]
pub struct Control {
    socket: BufReader<UnixStream>,
}

fn lost(error: std::io::Error) -> Error {
    Error::io("the control connection")(error)
}

impl Control {
    /// Connects to a daemon's control socket.
    ///
    /// # Errors
    /// If the daemon is not there.
    pub fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(Error::io(socket.display().to_string()))?;
        Ok(Self { socket: BufReader::new(stream) })
    }

    /// What a path of the API tells.
    ///
    /// # Errors
    /// If the answer is no success, or no JSON.
    pub fn get(&mut self, path: &str) -> Result<Value> {
        self.send("GET", path, None)
    }

    /// What the API answers to a request with this method, such as `POST`, and this body.
    ///
    /// # Errors
    /// If the answer is no success, or no JSON.
    pub fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: haversackd\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.socket.get_mut().write_all(request.as_bytes()).map_err(lost)?;
        self.answer(path)
    }

    fn answer(&mut self, path: &str) -> Result<Value> {
        let status = self.line()?;
        let mut length = 0;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.strip_prefix("content-length:") {
                Some(bytes) => length = bytes.trim().parse().unwrap_or(0),
                None if line.is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body).map_err(lost)?;
        let said = || format!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        if !status.contains(" 200 ") && !status.contains(" 202 ") {
            return Err(Error::Check(said()));
        }
        serde_json::from_slice(&body).map_err(|_| Error::Check(said()))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.socket.read_line(&mut line).map_err(lost)?;
        Ok(line.trim_end().to_owned())
    }
}
