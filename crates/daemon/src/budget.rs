//! Budgets of flash writes. One thread maintains the budgets of the pools that have `endurance` configured.
//!
//! Invariants
//! - The account is saved in the daemon's state and continues after a restart. Time during which the daemon was not
//!   running counts.
//! - Each byte written counts once, even when devices join and leave.
//! - A budget keeps only clean copies out of the cache. It never changes how guests' writes are handled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haversack_api::EnduranceStatus;
use haversack_control::budget::Pacer;
use haversack_control::endurance::Endurance;
use haversack_engine::{DeviceSnapshot, Histogram, Snapshot};
use haversack_model::{BLOCK_BYTES, DeviceNo, Micros};

use crate::config::PoolConfig;
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::pool::Pool;

/// Time between two looks at the accounts.
const INTERVAL: Duration = Duration::from_secs(60);
/// The longest sleep, after which the thread checks whether the daemon is stopping.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The latency assumed for reads from an origin until some are measured.
const UNKNOWN_ORIGIN_US: f64 = 1000.0;

/// The budgets that are kept, by pool.
#[derive(Default)]
pub struct Budgets {
    pools: Mutex<BTreeMap<String, Kept>>,
}

struct Kept {
    pacer: Pacer,
    written: Written,
    fill_share: f64,
    was_nearly_spent: bool,
}

impl Budgets {
    /// Returns the state of a pool's budget; `None` if it has none.
    pub fn status(&self, pool: &str) -> Option<EnduranceStatus> {
        let pools = self.pools.locked();
        let Kept { pacer, fill_share, .. } = pools.get(pool)?;
        Some(EnduranceStatus {
            budget_bytes_per_day: pacer.budget().bytes_per_day,
            balance_bytes: pacer.account().balance_bytes,
            written_bytes: pacer.account().written_bytes,
            written_bytes_per_day: pacer.written_per_day(),
            price_us: pacer.price_us(),
            fill_share: *fill_share,
            nearly_spent: pacer.is_nearly_spent(),
        })
    }

    /// Updates a pool's account. The first call for a pool continues the account in the saved state.
    pub fn pace(&self, daemon: &Daemon, pool: &Pool, endurance: Endurance, now_us: Micros) {
        // A stopped pool is reported elsewhere.
        let Ok(snapshot) = pool.backend.snapshot() else { return };
        let mut pools = self.pools.locked();
        if !pools.contains_key(&pool.name) {
            let budget = endurance.budget(snapshot.pool.capacity_blocks * BLOCK_BYTES as u64);
            let mut written = Written::default();
            let written_bytes = written.note(&snapshot.devices);
            let pacer = match daemon.state.flash_account(&pool.name) {
                Some(account) => Pacer::resume(budget, account, now_us, written_bytes),
                None => Pacer::new(budget, now_us, written_bytes),
            };
            match pacer {
                Ok(pacer) => {
                    let kept = Kept { pacer, written, fill_share: 1.0, was_nearly_spent: false };
                    pools.insert(pool.name.clone(), kept);
                }
                Err(error) => return tracing::error!(pool = pool.name, "{error}"),
            }
        }
        let kept = pools.get_mut(&pool.name).expect("it was inserted");
        let written_bytes = kept.written.note(&snapshot.devices);
        kept.pacer.note(now_us, written_bytes);
        kept.fill_share = kept.pacer.fill_share(origin_read_us(&snapshot));
        let price_us = kept.pacer.write_price_us();
        if let Err(error) = pool.backend.set_write_price(price_us, kept.fill_share) {
            tracing::warn!(pool = pool.name, "cannot set the price of flash writes: {error}");
        }
        if let Err(error) = daemon.state.keep_flash_account(&pool.name, kept.pacer.account()) {
            tracing::warn!(pool = pool.name, "cannot save the account of flash writes: {error}");
        }
        kept.tell(daemon, &pool.name);
    }
}

/// What was written to a pool's devices, of which each has a counter that begins at 0 when the device is opened.
#[derive(Default)]
struct Written {
    counters: BTreeMap<DeviceNo, u64>,
    total_bytes: u64,
}

impl Written {
    /// Adds what the devices in use have written since the last call. Returns the total, which never decreases.
    fn note(&mut self, devices: &[DeviceSnapshot]) -> u64 {
        let before = std::mem::take(&mut self.counters);
        for device in devices {
            let known_bytes = before.get(&device.device).filter(|known| **known <= device.written_bytes);
            self.total_bytes += device.written_bytes - known_bytes.copied().unwrap_or(0);
            self.counters.insert(device.device, device.written_bytes);
        }
        self.total_bytes
    }
}

impl Kept {
    /// Reports once that the budget is nearly spent, and again only after it has recovered.
    fn tell(&mut self, daemon: &Daemon, pool: &str) {
        let is_nearly_spent = self.pacer.is_nearly_spent();
        if is_nearly_spent && !self.was_nearly_spent {
            let message = format!(
                "the budget of flash writes is nearly spent: a block written must save {:.0} us, {:.1} % of the blocks may be \
                 filled",
                self.pacer.price_us(),
                self.fill_share * 100.0
            );
            tracing::warn!(pool, "{message}");
            daemon.events.add("budget-nearly-spent", pool, message);
        }
        self.was_nearly_spent = is_nearly_spent;
    }
}

/// Returns the mean latency of reads from the origins, weighted by each disk's number of reads.
fn origin_read_us(snapshot: &Snapshot) -> f64 {
    let mut reads = Histogram::default();
    snapshot.disks.iter().for_each(|disk| reads.merge(&disk.origin_latency.read));
    if reads.count() > 0 { reads.mean_us() } else { UNKNOWN_ORIGIN_US }
}

/// The clock for accounts: real time, because a budget continues while the machine is off.
fn real_time_us() -> Micros {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as Micros)
}

/// Starts the thread that keeps the budgets, if any pool has one.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>, pools: &[PoolConfig]) -> std::io::Result<()> {
    let budgets: Vec<(String, Endurance)> =
        pools.iter().filter_map(|pool| Some((pool.name.clone(), pool.endurance?))).collect();
    if budgets.is_empty() {
        return Ok(());
    }
    let daemon = daemon.clone();
    let run = move || {
        let mut waited = INTERVAL;
        while !daemon.is_stopping() {
            if waited >= INTERVAL {
                waited = Duration::ZERO;
                for (name, endurance) in &budgets {
                    // A pool that is not open yet is looked at when it is.
                    if let Ok(pool) = daemon.pool(name) {
                        daemon.budgets.pace(&daemon, pool, *endurance, real_time_us());
                    }
                }
            }
            std::thread::sleep(LONGEST_SLEEP);
            waited += LONGEST_SLEEP;
        }
    };
    std::thread::Builder::new().name("budgets".into()).spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use haversack_engine::Latencies;

    use super::*;

    fn device(number: u8, written_bytes: u64) -> DeviceSnapshot {
        DeviceSnapshot {
            device: DeviceNo(number),
            path: String::new(),
            capacity_bytes: 0,
            errors: 0,
            read_bytes: 0,
            written_bytes,
            latency: Latencies::default(),
        }
    }

    #[test]
    fn a_device_that_leaves_or_joins_makes_nothing_count_twice() {
        let mut written = Written::default();
        assert_eq!(written.note(&[device(0, 100), device(1, 1000)]), 1100);
        assert_eq!(written.note(&[device(0, 110)]), 1110, "the second has left");
        assert_eq!(written.note(&[device(0, 120), device(1, 5)]), 1125, "another has its number");
        assert_eq!(written.note(&[device(0, 20), device(1, 6)]), 1146, "the first was opened again");
    }
}
