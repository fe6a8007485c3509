//! What the pools and disks did over the last day, for the dashboard: samples in a file of bounded size.
//!
//! Invariants
//! - The interval between samples is as many minutes as it takes for a day to fit into the file.
//! - An error of the file is logged once and ends the history, but nothing else.

mod ring;
mod show;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haversack_engine::snapshot::{DiskSnapshot, Latencies, Snapshot};
use haversack_model::{BLOCK_BYTES, DiskId};
use uuid::Uuid;

use crate::config::DaemonConfig;
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::status::flash_writes;
use ring::{Record, Ring, Subject};

/// Seconds of a day, which is what the file should hold.
const DAY_S: u64 = 86_400;
/// The shortest time between samples.
const MINUTE: Duration = Duration::from_secs(60);
/// The file's name, in the state directory.
pub const FILE: &str = "history";

/// See the module documentation.
#[derive(Default)]
pub struct History {
    inner: Mutex<Option<Inner>>,
}

struct Inner {
    ring: Ring,
    /// The time of the last sample, and what had been counted then.
    time: SystemTime,
    counted: HashMap<(String, DiskId), Counted>,
}

/// What a disk has counted since it was attached.
#[derive(Clone, Copy, Default)]
struct Counted {
    hits: u64,
    misses: u64,
    requests: u64,
    latency_us: u64,
    flash_blocks: u64,
}

impl Counted {
    fn of(disk: &DiskSnapshot) -> Counted {
        let histograms = |l: &Latencies| [l.read.clone(), l.write.clone(), l.flush.clone()];
        let latencies = [histograms(&disk.vhost_user_latency), histograms(&disk.nbd_latency)].concat();
        let flash = flash_writes(&disk.stats);
        Counted {
            hits: disk.stats.read_hits,
            misses: disk.stats.read_misses,
            requests: latencies.iter().map(|histogram| histogram.count()).sum(),
            latency_us: latencies.iter().map(|histogram| histogram.sum_us()).sum(),
            flash_blocks: flash.total_bytes() / BLOCK_BYTES as u64,
        }
    }

    /// Returns what was counted since `before`. The counters of a disk that was attached again have restarted at 0.
    fn since(self, before: Counted) -> Counted {
        let is_new =
            self.hits < before.hits || self.misses < before.misses || self.requests < before.requests;
        let before = if is_new { Counted::default() } else { before };
        Counted {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            requests: self.requests - before.requests,
            latency_us: self.latency_us.saturating_sub(before.latency_us),
            flash_blocks: self.flash_blocks.saturating_sub(before.flash_blocks),
        }
    }

    fn plus(self, other: Counted) -> Counted {
        Counted {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            requests: self.requests + other.requests,
            latency_us: self.latency_us + other.latency_us,
            flash_blocks: self.flash_blocks + other.flash_blocks,
        }
    }
}

/// A pool's identity in the file: the UUID version 5 of its name.
fn pool_id(name: &str) -> [u8; 16] {
    Uuid::new_v5(&haversack_api::DISK_NAMESPACE, format!("pool {name}").as_bytes()).into_bytes()
}

impl History {
    /// Opens the file, unless the configuration wants no history.
    pub fn open(&self, config: &DaemonConfig, now: SystemTime) {
        if config.history_size.0 == 0 {
            return;
        }
        let path = config.state_dir.join(FILE);
        match Ring::open(&path, config.history_size.0) {
            Ok(ring) => *self.inner.locked() = Some(Inner { ring, time: now, counted: HashMap::new() }),
            Err(error) => tracing::warn!("{}: no history is kept: {error}", path.display()),
        }
    }

    /// Takes a sample of all pools and returns the time until the next one. Nothing that was counted before the first
    /// sample is recorded.
    pub fn sample(&self, daemon: &Daemon, now: SystemTime) -> Duration {
        let snapshots: Vec<(String, Snapshot)> = daemon
            .pools()
            .filter_map(|pool| Some((pool.name.clone(), pool.backend.snapshot().ok()?)))
            .collect();
        let mut inner = self.inner.locked();
        let Some(state) = inner.as_mut() else { return MINUTE };
        let records = state.records(&snapshots, now);
        let wanted = (records.len() as u64 * DAY_S / MINUTE.as_secs()).div_ceil(state.ring.capacity());
        if let Err(error) = state.ring.append(&records) {
            tracing::warn!(
                "{}: no more history is kept: {error}",
                daemon.config.state_dir.join(FILE).display()
            );
            *inner = None;
        }
        MINUTE * u32::try_from(wanted).unwrap_or(u32::MAX).max(1)
    }
}

impl Inner {
    fn records(&mut self, snapshots: &[(String, Snapshot)], now: SystemTime) -> Vec<Record> {
        let interval = now.duration_since(self.time).unwrap_or_default();
        let time_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let interval_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        let mut counted = HashMap::new();
        let mut records = Vec::new();
        for (name, snapshot) in snapshots {
            let pool = pool_id(name);
            let record = |subject, usage_blocks, dirty_blocks, counted: Counted| Record {
                time_s,
                interval_ms,
                pool,
                subject,
                usage_blocks,
                dirty_blocks,
                hits: counted.hits,
                misses: counted.misses,
                requests: counted.requests,
                latency_us: counted.latency_us,
                flash_blocks: counted.flash_blocks,
            };
            let mut sum = Counted::default();
            for disk in &snapshot.disks {
                let (key, all) = ((name.clone(), disk.id), Counted::of(disk));
                // What a disk counted before it was first seen happened at another time.
                let new = self.counted.get(&key).map_or(Counted::default(), |before| all.since(*before));
                counted.insert(key, all);
                sum = sum.plus(new);
                let usage = &disk.usage;
                records.push(record(Subject::Disk(disk.id.0), usage.usage_blocks, usage.dirty_blocks, new));
            }
            records.push(record(Subject::Pool, snapshot.pool.usage_blocks, snapshot.pool.dirty_blocks, sum));
        }
        (self.time, self.counted) = (now, counted);
        records
    }
}

/// Starts the thread that takes samples, until the daemon stops.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    daemon.history.open(&daemon.config, SystemTime::now());
    let daemon = daemon.clone();
    let run = move || {
        while !daemon.is_stopping() {
            // The thread ends with the process: nothing waits for it.
            std::thread::sleep(daemon.history.sample(&daemon, SystemTime::now()));
        }
    };
    std::thread::Builder::new().name("history".into()).spawn(run)?;
    Ok(())
}
