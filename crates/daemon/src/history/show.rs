//! What the control API says of the history: one point for every few minutes.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use haversack_api::{DiskHistory, History as Answer, PoolHistory, PoolMoment};
use haversack_model::{BLOCK_BYTES, DiskId};

use super::ring::{Record, Subject};
use super::{Counted, DAY_S, History, pool_id};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The most points of a curve.
const POINTS: u64 = 288;
/// The most disks of a pool that are shown individually: those with the most cached data.
const DISKS: usize = 8;

/// The records of a pool in one point of the curves.
#[derive(Default)]
struct Moment {
    counted: Counted,
    interval_ms: u64,
    usage_blocks: u64,
    dirty_blocks: u64,
    disks: HashMap<[u8; 16], u64>,
}

impl Moment {
    fn add(&mut self, record: &Record) {
        match record.subject {
            Subject::Pool => {
                self.counted = self.counted.plus(Counted {
                    hits: record.hits,
                    misses: record.misses,
                    requests: record.requests,
                    latency_us: record.latency_us,
                    flash_blocks: record.flash_blocks,
                });
                self.interval_ms += u64::from(record.interval_ms);
                (self.usage_blocks, self.dirty_blocks) = (record.usage_blocks, record.dirty_blocks);
            }
            Subject::Disk(id) => drop(self.disks.insert(id, record.usage_blocks)),
        }
    }

    fn show(&self, time_s: u64) -> PoolMoment {
        PoolMoment {
            time_s,
            interval_s: self.interval_ms as f64 / 1e3,
            usage_bytes: self.usage_blocks * BLOCK,
            dirty_bytes: self.dirty_blocks * BLOCK,
            read_hits: self.counted.hits,
            read_misses: self.counted.misses,
            requests: self.counted.requests,
            latency_us: self.counted.latency_us,
            flash_bytes: self.counted.flash_blocks * BLOCK,
        }
    }
}

impl History {
    /// Returns the last day.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last_day(&self, daemon: &Daemon, now: SystemTime) -> Result<Answer> {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let from_s = now_s.saturating_sub(DAY_S);
        let records = match self.inner.locked().as_ref() {
            Some(inner) => inner.ring.since(from_s).map_err(DaemonError::History)?,
            None => return Ok(Answer { pools: Vec::new() }),
        };
        let first_s = records.iter().map(|record| record.time_s).min().unwrap_or(now_s);
        let step_s = (now_s.saturating_sub(first_s) / POINTS / 60 + 1) * 60;
        let mut pools: HashMap<[u8; 16], BTreeMap<u64, Moment>> = HashMap::new();
        for record in records.iter().filter(|record| record.time_s <= now_s) {
            let time_s = record.time_s / step_s * step_s;
            pools.entry(record.pool).or_default().entry(time_s).or_default().add(record);
        }
        let named = |pool: &str| Some(show_pool(daemon, pool, &pools.remove(&pool_id(pool))?));
        let mut named = named;
        Ok(Answer { pools: daemon.pools().filter_map(|pool| named(&pool.name)).collect() })
    }
}

fn show_pool(daemon: &Daemon, pool: &str, moments: &BTreeMap<u64, Moment>) -> PoolHistory {
    let mut sums: HashMap<[u8; 16], u64> = HashMap::new();
    for (id, blocks) in moments.values().flat_map(|moment| &moment.disks) {
        *sums.entry(*id).or_default() += blocks;
    }
    let mut disks: Vec<_> = sums.into_iter().collect();
    disks.sort_unstable_by_key(|(id, blocks)| (std::cmp::Reverse(*blocks), *id));
    let shown = disks.iter().take(DISKS).map(|(id, _)| DiskHistory {
        disk: daemon.name_of(pool, DiskId(*id)),
        usage_bytes: moments.values().map(|m| m.disks.get(id).map_or(0, |blocks| blocks * BLOCK)).collect(),
    });
    PoolHistory {
        pool: pool.into(),
        moments: moments.iter().map(|(time_s, moment)| moment.show(*time_s)).collect(),
        disks: shown.collect(),
        other_disks: disks.len().saturating_sub(DISKS) as u64,
    }
}
