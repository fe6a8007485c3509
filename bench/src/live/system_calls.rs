//! Counts the system calls of a server while it serves, by strace, which slows it down: times of such a round mean
//! nothing.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;

/// strace on all threads of a server.
pub struct Count<'a> {
    strace: Child,
    summary: &'a Path,
}

/// Whether strace is installed.
pub fn is_available() -> bool {
    let version = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

impl Count<'_> {
    /// Begins to count.
    pub fn begin<'a>(server: &Process, summary: &'a Path) -> io::Result<Count<'a>> {
        let mut command = Command::new("strace");
        command.args(["--follow-forks", "--summary-only", "--output"]).arg(summary);
        command.arg("--attach").arg(server.id().to_string());
        let mut strace = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut told = String::new();
        if let Some(errors) = strace.stderr.take() {
            BufReader::new(errors).read_line(&mut told)?;
        }
        if told.contains("attached") {
            return Ok(Count { strace, summary });
        }
        let _ = strace.kill();
        let _ = strace.wait();
        Err(io::Error::other(format!("strace cannot follow the server: {}", told.trim())))
    }

    /// Ends, and returns the number of calls.
    pub fn end(mut self) -> io::Result<u64> {
        kill_process(Pid::from_child(&self.strace), Signal::INT)?;
        self.strace.wait()?;
        let text = std::fs::read_to_string(self.summary)?;
        total(&text).ok_or_else(|| io::Error::other("strace's summary has no total"))
    }
}

/// The number of calls in a summary: the fourth column of the last line. A server that made none has no summary.
fn total(summary: &str) -> Option<u64> {
    if summary.trim().is_empty() {
        return Some(0);
    }
    let line = summary.lines().rfind(|line| line.trim_end().ends_with("total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_a_summary() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ----------------\n \
                       99.10    0.004000           4      1000         3 io_uring_enter\n\
                       ------ ----------- ----------- --------- --------- ----------------\n\
                       100.00    0.004036           4      1009         3 total\n";
        assert_eq!(total(summary), Some(1009));
        assert_eq!(total(""), Some(0));
        assert_eq!(total("strace: something else\n"), None);
    }
}
