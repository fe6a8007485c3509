//! What is shown: the table that moves, and the comparison at the end.

use std::fmt::Write;

use haversack_api::{DiskStatus, Status};

use crate::fio::Done;
use crate::workload::WORKLOADS;

/// The widest bar, in characters.
const BAR_WIDTH: u64 = 20;
const MIB: f64 = 1048576.0;

/// Everything known at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// What each load has done, in the order of the workloads.
    pub loads: Vec<Done>,
    /// What the daemon tells.
    pub status: Status,
}

/// The table: what happened between two moments beside the uncached loads.
pub fn live(uncached: &[Done], before: &Moment, now: &Moment) -> String {
    let mut out = format!(
        "{:<9} {:<18} {:>6}  {:>17}  {:>16}  SHARE OF THE CACHE\n{:<28} {:>6}  {:>8} {:>8}  {:>7} {:>8}\n",
        "DISK", "LOAD", "HITS", "LATENCY (ms)", "IOPS", "", "%", "now", "uncached", "now", "uncached"
    );
    let capacity_bytes: u64 = now.status.pools.iter().map(|pool| pool.capacity_bytes).sum();
    for (index, workload) in WORKLOADS.iter().enumerate() {
        let load = now.loads[index].since(before.loads[index]);
        let (old, new) = (disk(&before.status, workload.disk), disk(&now.status, workload.disk));
        let usage_bytes = new.map_or(0, |disk| disk.usage.usage_bytes);
        // Writing into a string does not fail.
        let _ = writeln!(
            out,
            "{:<9} {:<18} {:>6}  {:>8} {:>8}  {:>7} {:>8}  {} {:.0} MiB",
            workload.disk,
            workload.load,
            hits(old, new),
            milliseconds(load.mean_us()),
            milliseconds(uncached[index].mean_us()),
            whole(load.iops()),
            whole(uncached[index].iops()),
            bar(usage_bytes, capacity_bytes),
            usage_bytes as f64 / MIB
        );
    }
    out + &pool_line(&now.status)
}

fn pool_line(status: &Status) -> String {
    let pools = status.pools.iter().map(|pool| {
        format!(
            "pool {}: {:.0} of {:.0} MiB used, {:.1} MiB dirty\n",
            pool.name,
            pool.usage_bytes as f64 / MIB,
            pool.capacity_bytes as f64 / MIB,
            pool.dirty_bytes as f64 / MIB
        )
    });
    pools.collect()
}

/// The whole run through the cache, cold start included, beside the uncached one.
pub fn comparison(uncached: &[Done], end: &Moment) -> String {
    let mut out = format!(
        "{:<9}  {:>25}  {:>25}  {:>27}\n{:<9}  {:>8} {:>8} {:>7}  {:>8} {:>8} {:>7}  {:>9} {:>9} {:>7}\n",
        "",
        "LATENCY (ms)",
        "IOPS",
        "I/Os",
        "DISK",
        "uncached",
        "cached",
        "factor",
        "uncached",
        "cached",
        "factor",
        "of guest",
        "at origin",
        "saved"
    );
    for (index, workload) in WORKLOADS.iter().enumerate() {
        let (plain, cached) = (uncached[index], end.loads[index]);
        let (asked, done) = disk(&end.status, workload.disk).map_or((0, 0), |disk| (asked(disk), done(disk)));
        // Writing into a string does not fail.
        let _ = writeln!(
            out,
            "{:<9}  {:>8} {:>8} {:>7}  {:>8} {:>8} {:>7}  {asked:>9} {done:>9} {:>7}",
            workload.disk,
            milliseconds(plain.mean_us()),
            milliseconds(cached.mean_us()),
            factor(plain.mean_us(), cached.mean_us()),
            whole(plain.iops()),
            whole(cached.iops()),
            factor(cached.iops(), plain.iops()),
            saved(asked, done)
        );
    }
    out
}

/// Reads, writes and flushes of a disk's clients.
fn asked(disk: &DiskStatus) -> u64 {
    disk.requests.reads + disk.requests.writes + disk.requests.flushes
}

/// Reads, writes and flushes at a disk's origin, the cleaner's included.
fn done(disk: &DiskStatus) -> u64 {
    let latency = &disk.origin_latency;
    latency.read.count + latency.write.count + latency.flush.count
}

fn disk<'a>(status: &'a Status, name: &str) -> Option<&'a DiskStatus> {
    status.disks.iter().find(|disk| disk.name == name)
}

/// The share of blocks read from the cache since `old`.
fn hits(old: Option<&DiskStatus>, new: Option<&DiskStatus>) -> String {
    let (Some(old), Some(new)) = (old, new) else { return "-".into() };
    let hits = new.requests.read_hits.saturating_sub(old.requests.read_hits);
    let misses = new.requests.read_misses.saturating_sub(old.requests.read_misses);
    if hits + misses == 0 {
        "-".into()
    } else {
        format!("{:.1}", hits as f64 * 100.0 / (hits + misses) as f64)
    }
}

fn bar(part: u64, all: u64) -> String {
    let length = if all == 0 { 0 } else { (part * BAR_WIDTH).div_ceil(all).min(BAR_WIDTH) } as usize;
    format!("{}{}", "#".repeat(length), ".".repeat(BAR_WIDTH as usize - length))
}

fn milliseconds(latency_us: Option<f64>) -> String {
    latency_us.map_or("-".into(), |us| format!("{:.2}", us / 1000.0))
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

fn factor(large: Option<f64>, small: Option<f64>) -> String {
    match (large, small) {
        (Some(large), Some(small)) if small > 0.0 => format!("{:.1}x", large / small),
        _ => "-".into(),
    }
}

/// Of `asked`, the share that was not `done`. More may be done than was asked for: a request may need several.
fn saved(asked: u64, done: u64) -> String {
    if asked <= done {
        "none".into()
    } else {
        format!("{:.1} %", (asked - done) as f64 * 100.0 / asked as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    /// The status of a daemon with a pool of 64 MiB of which each disk has 16, and what loads of `ios` a disk at 1 ms
    /// and 10 I/Os a second have done.
    fn moment(hits: u64, misses: u64, ios: u64) -> Moment {
        let mut status: Status =
            serde_json::from_str(include_str!("../../crates/cli/tests/status.json")).unwrap();
        status.pools.truncate(1);
        (status.pools[0].capacity_bytes, status.pools[0].usage_bytes) = (64 * MEBIBYTE, 64 * MEBIBYTE);
        let mut disk = status.disks[0].clone();
        (disk.usage.usage_bytes, disk.requests.read_hits, disk.requests.read_misses) =
            (16 * MEBIBYTE, hits, misses);
        (disk.requests.reads, disk.requests.writes, disk.requests.flushes) = (hits + misses, 0, 0);
        disk.origin_latency = Default::default();
        disk.origin_latency.read.count = misses;
        status.disks = WORKLOADS.iter().map(|w| DiskStatus { name: w.disk.into(), ..disk.clone() }).collect();
        let load = Done { ios, latency_us: ios as f64 * 1000.0, runtime_ms: ios * 100 };
        Moment { loads: vec![load; WORKLOADS.len()], status }
    }

    const UNCACHED: [Done; WORKLOADS.len()] =
        [Done { ios: 20, latency_us: 100_000.0, runtime_ms: 10_000 }; WORKLOADS.len()];

    /// The words of the line that begins with a disk's name.
    fn words<'a>(table: &'a str, disk: &str) -> Vec<&'a str> {
        table
            .lines()
            .find(|line| line.starts_with(disk))
            .unwrap_or_else(|| panic!("{table}"))
            .split_whitespace()
            .collect()
    }

    #[test]
    fn the_live_table_tells_of_the_time_between_two_moments() {
        let table = live(&UNCACHED, &moment(100, 100, 200), &moment(400, 200, 600));
        let database = words(&table, "database");
        assert_eq!(
            database[3..],
            ["75.0", "1.00", "5.00", "10", "2", "#####...............", "16", "MiB"],
            "{table}"
        );
        assert!(table.ends_with("pool main: 64 of 64 MiB used, 256.0 MiB dirty\n"), "{table}");
    }

    #[test]
    fn a_moment_without_requests_has_no_figures() {
        let table = live(&UNCACHED, &moment(100, 100, 200), &moment(100, 100, 200));
        assert_eq!(words(&table, "database")[3..8], ["-", "-", "5.00", "-", "2"], "{table}");
    }

    #[test]
    fn the_comparison_tells_of_the_whole_run() {
        let table = comparison(&UNCACHED, &moment(300, 100, 400));
        let web = words(&table, "web");
        assert_eq!(
            web,
            ["web", "5.00", "1.00", "5.0x", "2", "10", "5.0x", "400", "100", "75.0", "%"],
            "{table}"
        );
    }

    #[test]
    fn more_at_the_origin_than_asked_for_saves_nothing() {
        assert_eq!(
            (saved(10, 20), saved(0, 0), saved(10, 0)),
            ("none".into(), "none".into(), "100.0 %".into())
        );
    }

    #[test]
    fn bars_never_overflow() {
        assert_eq!((bar(0, 0), bar(0, 10)), (".".repeat(20), ".".repeat(20)));
        assert_eq!((bar(1, 1000), bar(5, 1)), (format!("#{}", ".".repeat(19)), "#".repeat(20)));
    }
}
