//! `haversack trace record`: writes a trace of a disk's requests, as seen by the daemon.

use std::path::{Path, PathBuf};

use clap::Args;
use haversack_api::{Size, Span};
use haversack_trace::{Access, Op, Source, TraceError, VolumeNo};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Client;
use crate::complete::Names;
use crate::error::{CliError, Result};
use crate::output::print;
use crate::run::part;
use crate::trace::{request_count, write_file};

/// What to record.
#[derive(Args)]
pub struct Record {
    /// The disk.
    #[arg(add = Names::AttachedDisks)]
    pub disk: String,
    /// Output file; - for standard output. CSV if its name ends in .csv or is -, otherwise Haversack's own format.
    #[arg(short, long)]
    pub output: PathBuf,
    /// How long to record [default: until Ctrl-C].
    #[arg(long = "for")]
    pub time: Option<Span>,
    /// Replace an existing file.
    #[arg(long)]
    pub force: bool,
}

/// The prefix of the row that says how many requests are missing from the trace.
const LOST: &str = "#lost,";

/// Requests sent by the daemon: rows of the common form.
struct Live<'a> {
    client: &'a Client,
    body: Incoming,
    interrupt: Signal,
    /// The beginning of a row that is not complete yet.
    rest: Vec<u8>,
    disk: String,
    volumes: Vec<String>,
    lost: u64,
}

#[derive(Serialize)]
struct Recorded<'a> {
    output: &'a PathBuf,
    requests: u64,
    bytes: u64,
    lost: u64,
}

/// Records a trace.
pub fn run(client: &Client, record: &Record, as_json: bool) -> Result<()> {
    let query = record.time.map_or(String::new(), |time| format!("?for={time}"));
    let path = format!("/v1/disks/{}/trace{query}", part(&record.disk)?);
    let interrupt = client
        .block_on(async { signal(SignalKind::interrupt()) })
        .map_err(|e| CliError::Failed(format!("cannot handle Ctrl-C: {e}")))?;
    let body = client.open(&path)?;
    let disk = record.disk.clone();
    let mut live = Live { client, body, interrupt, rest: Vec::new(), disk, volumes: Vec::new(), lost: 0 };
    let Some(written) = write_file(&mut live, &record.output, record.force)? else { return Ok(()) };
    if live.lost > 0 && !as_json {
        let (lost, verb) = (request_count(live.lost), if live.lost == 1 { "was" } else { "were" });
        eprintln!("haversack: {lost} {verb} lost because the record buffer was full");
    }
    if record.output == Path::new("-") {
        return Ok(());
    }
    let (count, size) = (request_count(written.accesses), Size(written.bytes).rounded());
    let text = format!("{}: {count}, {size}\n", record.output.display());
    let (requests, bytes, lost) = (written.accesses, written.bytes, live.lost);
    print(as_json, &Recorded { output: &record.output, requests, bytes, lost }, &text)
}

impl Live<'_> {
    fn failed(&self, why: impl std::fmt::Display) -> TraceError {
        TraceError::Io { path: self.disk.clone().into(), error: std::io::Error::other(why.to_string()) }
    }

    /// Parses the complete rows received so far.
    fn rows(&mut self, into: &mut Vec<Access>) -> std::result::Result<(), TraceError> {
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let rows: Vec<u8> = self.rest.drain(..=end).collect();
        let text = String::from_utf8(rows).map_err(|error| self.failed(error))?;
        for row in text.lines().filter(|row| !row.starts_with("timestamp_ns")) {
            if let Some(lost) = row.strip_prefix(LOST) {
                self.lost = lost.parse().map_err(|error| self.failed(error))?;
                continue;
            }
            let access = access(row).ok_or_else(|| {
                self.failed(format!("the daemon sent '{row}', which is not a valid trace row"))
            })?;
            into.push(access);
        }
        if self.volumes.is_empty() && !into.is_empty() {
            self.volumes.push(self.disk.clone());
        }
        Ok(())
    }
}

/// Parses a row of the common form, of any volume.
fn access(row: &str) -> Option<Access> {
    let mut fields = row.split(',');
    let time_ns = fields.next()?.parse().ok()?;
    let op = match fields.nth(1)? {
        "R" => Op::Read,
        "W" => Op::Write,
        "F" => Op::Flush,
        "D" => Op::Discard,
        _ => return None,
    };
    let (offset_bytes, length_bytes) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Access { time_ns, offset_bytes, length_bytes, volume: VolumeNo(0), op })
}

impl Source for Live<'_> {
    /// Waits for more requests. Ctrl-C ends the trace, not the command.
    fn read(&mut self, into: &mut Vec<Access>) -> std::result::Result<usize, TraceError> {
        let before = into.len();
        while into.len() == before {
            let (body, interrupt) = (&mut self.body, &mut self.interrupt);
            let frame = self.client.block_on(async {
                tokio::select! {
                    frame = body.frame() => frame,
                    _ = interrupt.recv() => None,
                }
            });
            let Some(frame) = frame else { return Ok(0) };
            let frame =
                frame.map_err(|error| self.failed(format!("the recording was interrupted: {error}")))?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
                self.rows(into)?;
            }
        }
        Ok(into.len() - before)
    }

    fn volumes(&self) -> &[String] {
        &self.volumes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_nonsense_is_not() {
        let read = access("5,vm1,R,4096,512").unwrap();
        assert_eq!((read.time_ns, read.op, read.offset_bytes, read.length_bytes), (5, Op::Read, 4096, 512));
        assert_eq!(access("5,vm1,F,0,0").map(|flush| flush.op), Some(Op::Flush));
        for row in ["", "5", "5,vm1,X,0,0", "5,vm1,R,-1,0", "a,vm1,R,0,0"] {
            assert_eq!(access(row), None, "{row}");
        }
    }
}
