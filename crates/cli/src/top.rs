//! The disks' load since the last look.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use haversack_api::{DiskStatus, Size, Status};

use crate::client::Client;
use crate::error::Result;

/// Moves to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the load until Ctrl-C, or so many times.
pub fn top(client: &Client, interval: Duration, count: Option<u64>) -> Result<()> {
    let mut before: HashMap<String, DiskStatus> = HashMap::new();
    let mut shown = 0;
    loop {
        let status: Status = client.get("/v1/status")?;
        if !before.is_empty() || status.disks.is_empty() {
            print!("{CLEAR}{}", table(&status, &before, interval));
            shown += 1;
        }
        if count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
        before = status.disks.into_iter().map(|d| (d.name.clone(), d)).collect();
        if client.interrupted_within(interval) {
            return Ok(());
        }
    }
}

fn table(status: &Status, before: &HashMap<String, DiskStatus>, interval: Duration) -> String {
    let mut out = format!(
        "{:<20} {:>9} {:>9} {:>11} {:>11} {:>7} {:>10} {:>10} {:>9}\n",
        "DISK", "READS/s", "WRITES/s", "READ/s", "WRITTEN/s", "HITS", "CACHED", "DIRTY", "p99 us"
    );
    for d in &status.disks {
        let Some(old) = before.get(&d.name) else { continue };
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / interval.as_secs_f64();
        let (r, q) = (&d.requests, &old.requests);
        let hits = r.read_hits.saturating_sub(q.read_hits);
        let reads = hits + r.read_misses.saturating_sub(q.read_misses);
        let share =
            if reads == 0 { "-".into() } else { format!("{:.1} %", hits as f64 * 100.0 / reads as f64) };
        // Writing into a string does not fail.
        let _ = writeln!(
            out,
            "{:<20} {:>9.0} {:>9.0} {:>11} {:>11} {share:>7} {:>10} {:>10} {:>9}",
            d.name,
            per_second(r.reads, q.reads),
            per_second(r.writes, q.writes),
            Size(per_second(d.blocks.read_bytes, old.blocks.read_bytes) as u64).rounded(),
            Size(per_second(d.blocks.written_bytes, old.blocks.written_bytes) as u64).rounded(),
            Size(d.usage.usage_bytes).rounded(),
            Size(d.usage.dirty_bytes).rounded(),
            d.vhost_user_latency.read.p99_us.max(d.nbd_latency.read.p99_us),
        );
    }
    out
}
