//! The disks' load since the last poll.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use haversack_api::{DiskStatus, Size, Status};
use serde::Serialize;

use crate::client::Client;
use crate::error::Result;
use crate::output;

/// Moves to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// A disk's load.
#[derive(Serialize)]
struct Load {
    disk: String,
    reads_per_s: f64,
    writes_per_s: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    /// The share of reads that were hits; `None` without reads.
    hit_ratio: Option<f64>,
    cached_bytes: u64,
    dirty_bytes: u64,
    /// The 99th percentile of reads since the start, of the slower front end.
    read_p99_us: u64,
}

/// Shows the load `count` times: by default until Ctrl-C on a terminal, and once elsewhere. JSON is one array
/// per line.
pub fn top(client: &Client, interval: Duration, count: Option<u64>, as_json: bool) -> Result<()> {
    let on_terminal = std::io::stdout().is_terminal();
    let count = count.or((!on_terminal).then_some(1));
    let mut before = look(client)?;
    let mut since = Instant::now();
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        std::thread::sleep(interval);
        let now = look(client)?;
        let loads = loads(&before, &now, since.elapsed());
        (before, since) = (now, Instant::now());
        if as_json {
            output::print_line(&loads)?;
        } else {
            let clear = if on_terminal { CLEAR } else { "" };
            output::write(&format!("{clear}{}", table(&loads)))?;
        }
        shown += 1;
    }
    Ok(())
}

fn look(client: &Client) -> Result<Vec<DiskStatus>> {
    Ok(client.get::<Status>("/v1/status")?.disks)
}

/// Returns the load of the disks that were present at both polls.
fn loads(before: &[DiskStatus], now: &[DiskStatus], time: Duration) -> Vec<Load> {
    let before: HashMap<_, _> = before.iter().map(|d| (&d.name, d)).collect();
    let both = now.iter().filter_map(|d| Some((*before.get(&d.name)?, d)));
    both.map(|(old, new)| load(old, new, time)).collect()
}

fn load(old: &DiskStatus, new: &DiskStatus, time: Duration) -> Load {
    let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / time.as_secs_f64();
    let (r, q) = (&new.requests, &old.requests);
    let hits = r.read_hits.saturating_sub(q.read_hits);
    let reads = hits + r.read_misses.saturating_sub(q.read_misses);
    Load {
        disk: new.name.clone(),
        reads_per_s: per_second(r.reads, q.reads),
        writes_per_s: per_second(r.writes, q.writes),
        read_bytes_per_s: per_second(new.blocks.read_bytes, old.blocks.read_bytes),
        written_bytes_per_s: per_second(new.blocks.written_bytes, old.blocks.written_bytes),
        hit_ratio: (reads > 0).then(|| hits as f64 / reads as f64),
        cached_bytes: new.usage.usage_bytes,
        dirty_bytes: new.usage.dirty_bytes,
        read_p99_us: new.vhost_user_latency.read.p99_us.max(new.nbd_latency.read.p99_us),
    }
}

fn table(loads: &[Load]) -> String {
    let mut out = format!(
        "{:<20} {:>9} {:>9} {:>11} {:>11} {:>7} {:>10} {:>10} {:>9}\n",
        "DISK", "READS/s", "WRITES/s", "READ/s", "WRITTEN/s", "HITS", "CACHED", "DIRTY", "p99 us"
    );
    for load in loads {
        let hits = load.hit_ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:<20} {:>9.0} {:>9.0} {:>11} {:>11} {hits:>7} {:>10} {:>10} {:>9}",
            load.disk,
            load.reads_per_s,
            load.writes_per_s,
            Size(load.read_bytes_per_s as u64).rounded(),
            Size(load.written_bytes_per_s as u64).rounded(),
            Size(load.cached_bytes).rounded(),
            Size(load.dirty_bytes).rounded(),
            load.read_p99_us,
        );
    }
    out
}
