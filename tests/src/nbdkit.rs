//! nbdkit: an NBD server with filters that make it slow, faulty or talkative.

use std::path::{Path, PathBuf};

use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Error, Place, Result, tools};

/// A running nbdkit on a Unix socket. It serves the same disk under every export name.
#[derive(Debug)]
pub struct Nbdkit {
    process: Process,
    name: String,
    socket: PathBuf,
}

impl Nbdkit {
    /// Starts nbdkit as `NAME` on `NAME.sock` with a plugin, filters and their parameters, as on its command line.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(place: &Place, name: &str, arguments: &[&str]) -> Result<Self> {
        let (socket, ready) = (place.path(format!("{name}.sock")), place.path(format!("{name}.pid")));
        for leftover in [&socket, &ready] {
            // Left by an earlier server that was killed.
            let _ = std::fs::remove_file(leftover);
        }
        let mut nbdkit = tools::tool("nbdkit")?;
        nbdkit.arg("--foreground").arg("--unix").arg(&socket).arg("--pidfile").arg(&ready).args(arguments);
        let mut process = Process::start(place, name, &nbdkit)?;
        process.wait_for_file(&ready)?;
        Ok(Self { process, name: name.to_owned(), socket })
    }

    /// Starts one that serves a file and logs its requests.
    ///
    /// # Errors
    /// As [`Nbdkit::start`].
    pub fn file(place: &Place, name: &str, file: &Path) -> Result<Self> {
        let text = file.to_str().ok_or_else(|| Error::Check(format!("{} is not UTF-8", file.display())))?;
        let log = format!("logfile={}", place.path(format!("{name}-requests.log")).display());
        // With several threads per connection, nbdkit 1.32 may abort when a client that has sent many requests is
        // killed (raw_send_socket: Assertion `sock >= 0' failed).
        Self::start(place, name, &["--threads=1", "--filter=log", "file", text, &log, "logappend=true"])
    }

    /// Bytes that clients have read from a server started by [`Nbdkit::file`], those of its predecessors included.
    ///
    /// # Errors
    /// If there is no log of its requests.
    pub fn bytes_read(&self) -> Result<u64> {
        let path = self.socket.with_file_name(format!("{}-requests.log", self.name));
        let log = std::fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
        let reads = log.lines().filter(|line| line.contains(" Read id="));
        Ok(reads.filter_map(|line| hexadecimal(line.split_once("count=0x")?.1)).sum())
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its URI, with an arbitrary export name, because nbdkit ignores the name.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket.display())
    }

    /// The server, to pause and resume it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn kill(self) -> Result<()> {
        self.process.kill()
    }

    /// Stops the server with SIGTERM, and waits until it has ended.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(self) -> Result<()> {
        self.process.terminate(PATIENCE).map(|_| ())
    }
}

/// The number at the start of a text.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    u64::from_str_radix(digits, 16).ok()
}
