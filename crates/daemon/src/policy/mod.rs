//! The policy in the daemon: it divides the pools, handles events, and answers requests for curves and traces.
//!
//! One thread serves all pools: it takes what was recorded, closes windows and decides. None of this is on the
//! path of a request. Calls of the control API run on the caller's thread.
//!
//! The policy knows nothing of the daemon. The daemon posts [`News`]; what the policy cannot do with a pool alone
//! it leaves as an [`Order`], which the daemon takes after each call (`governed.rs`).
//!
//! Invariants
//! - Without a policy and without a request for figures, the thread sleeps and nothing is recorded.
//! - Each call sees all news that was posted before it.

mod actuate;
mod events;
mod monitors;
mod pool;
mod port;
mod recording;
mod reports;
mod show;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haversack_api::{DiskCurve, DiskEvent, DiskPolicy, Explanation, Measured, PolicySettings, PolicyStatus};
use haversack_control::settings;
use haversack_policy::{Config, DiskWindow, TenantBounds};
use serde_json::Value;

use crate::backend::Backend;
use crate::config::DaemonConfig;
use crate::error::{DaemonError, Result};
use crate::line_log::LineLog;
use crate::locked::Locked;
pub use events::{News, Order};
use pool::PoolLoop;
pub use recording::Rows;

/// The maximum number of log entries in an answer: a decision about many disks is large.
pub const MOST_ENTRIES: usize = 1000;
/// The shortest time for which a curve is measured.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// See the module documentation.
pub struct Policy {
    log_dir: PathBuf,
    log_size_bytes: u64,
    /// News that was not read yet. No other lock is taken while this one is held.
    posted: Mutex<Vec<Posted>>,
    inner: Mutex<Inner>,
    /// Orders that were taken and are not carried out yet.
    ordered: AtomicU64,
    /// Signalled when something is due earlier than the thread expects.
    wake: Condvar,
}

/// News of a disk.
struct Posted {
    pool: String,
    disk: String,
    news: News,
}

struct Inner {
    settings: Option<PolicySettings>,
    /// The window of the cluster's balancer, on a host of a cluster.
    balance_window_us: Option<u64>,
    pools: BTreeMap<String, PoolLoop>,
    /// Something may be due earlier than the thread expects.
    is_woken: bool,
}

/// What a host of a cluster does if nothing else is configured: the same as without a policy, but measured.
const IN_CLUSTER: &str = "auto";

impl Inner {
    /// Returns the settings that hold if these are configured.
    fn settings(&self, configured: Option<PolicySettings>) -> Option<PolicySettings> {
        configured.or_else(|| self.balance_window_us.map(|_| PolicySettings::named(IN_CLUSTER)))
    }

    fn config(&self, settings: Option<&PolicySettings>) -> Result<Option<Config>> {
        let config = |settings: &PolicySettings| match self.balance_window_us {
            Some(window_us) => settings::in_cluster(settings, window_us),
            None => settings::config(settings),
        };
        settings.map(config).transpose().map_err(DaemonError::Bad)
    }

    fn pool(&mut self, name: &str) -> Result<&mut PoolLoop> {
        self.pools.get_mut(name).ok_or_else(|| DaemonError::NoSuch { what: "open pool", name: name.into() })
    }
}

impl Policy {
    /// Makes an object without a policy and without pools.
    pub fn new(config: &DaemonConfig) -> Policy {
        let (settings, balance_window_us) = (None, None);
        let inner = Inner { settings, balance_window_us, pools: BTreeMap::new(), is_woken: false };
        Policy {
            log_dir: config.policy_log_dir().to_path_buf(),
            log_size_bytes: config.policy_log_size.0,
            posted: Mutex::default(),
            inner: Mutex::new(inner),
            ordered: AtomicU64::new(0),
            wake: Condvar::new(),
        }
    }

    /// Makes this host one of a cluster, whose balancer evaluates demands in windows of this length: from the next
    /// policy on, all disks are measured.
    pub fn join_cluster(&self, balance_window: Duration) {
        let window_us = u64::try_from(balance_window.as_micros()).unwrap_or(u64::MAX);
        self.inner.locked().balance_window_us = Some(window_us);
    }

    /// Returns whether there is a policy if none is configured.
    pub fn is_always_there(&self) -> bool {
        self.inner.locked().balance_window_us.is_some()
    }

    /// Sets the tenants' bounds on a pool, and decides again if they have changed.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn set_tenants(&self, pool: &str, tenants: &[TenantBounds]) -> Result<()> {
        self.with(pool, |looped| {
            looped.set_tenants(tenants);
            Ok(())
        })
    }

    /// Returns the tenants' bounds on a pool that the policy was given last, possibly before a restart.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn tenants(&self, pool: &str) -> Result<Vec<TenantBounds>> {
        self.with(pool, |looped| Ok(looped.tenants().to_vec()))
    }

    /// Posts what has happened to a disk. It may be called with any lock held, so that news arrives in the
    /// order in which it happened. The next call of any other method reads it.
    pub fn post(&self, pool: &str, disk: &str, news: News) {
        self.posted.locked().push(Posted { pool: pool.into(), disk: disk.into(), news });
    }

    /// Locks the policy and reads the news. Failures are only logged: the disk serves its guest anyway.
    fn current(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.locked();
        let posted = std::mem::take(&mut *self.posted.locked());
        for Posted { pool, disk, news } in posted {
            if let Err(error) = inner.pool(&pool).and_then(|looped| looped.note(&disk, news)) {
                tracing::warn!(disk, "cannot report a change of the disk to the policy: {error}");
            }
            self.wake(&mut inner);
        }
        inner
    }

    /// Reads the news.
    pub fn read_news(&self) {
        drop(self.current());
    }

    /// Wakes the thread: the next due time may have changed.
    fn wake(&self, inner: &mut Inner) {
        inner.is_woken = true;
        self.wake.notify_all();
    }

    /// Adds a pool that was opened, and applies the policy to it.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn opened(&self, pool: &str, backend: Arc<dyn Backend>) -> Result<()> {
        let mut inner = self.current();
        let config = inner.config(inner.settings.as_ref())?;
        let log = LineLog::new(self.log_dir.join(format!("policy-{pool}.log")), self.log_size_bytes);
        let mut looped = PoolLoop::new(pool, backend, log);
        let resumed = config.map_or(Ok(()), |config| looped.resume(&config));
        inner.pools.insert(pool.into(), looped);
        self.wake(&mut inner);
        resumed
    }

    /// Takes the orders for the daemon. The daemon calls [`Policy::carried_out`] after each one.
    pub fn take_orders(&self) -> Vec<Order> {
        let mut inner = self.inner.locked();
        let orders: Vec<Order> = inner.pools.values_mut().flat_map(PoolLoop::take_orders).collect();
        self.ordered.fetch_add(orders.len() as u64, Ordering::Relaxed);
        orders
    }

    /// An order that was taken is carried out.
    pub fn carried_out(&self) {
        self.ordered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Starts with the policy of the configuration, continuing from where the daemon last stopped.
    ///
    /// # Errors
    /// As [`Policy::set`].
    pub fn begin(&self, wanted: Option<PolicySettings>) -> Result<()> {
        let is_alone = !self.is_always_there();
        self.replace(wanted, |looped, config| {
            let Some(config) = config else { return Ok(()) };
            looped.resume(config)?;
            if is_alone {
                // The bounds from a time when this host was in a cluster no longer apply.
                looped.set_tenants(&[]);
            }
            Ok(())
        })
    }

    /// Sets another policy, or none, for all pools.
    ///
    /// # Errors
    /// The settings are invalid; the previous policy stays in effect.
    pub fn set(&self, wanted: Option<PolicySettings>) -> Result<()> {
        self.replace(wanted, PoolLoop::set)
    }

    fn replace(
        &self,
        wanted: Option<PolicySettings>,
        divide: impl Fn(&mut PoolLoop, Option<&Config>) -> Result<()>,
    ) -> Result<()> {
        let mut inner = self.current();
        let wanted = inner.settings(wanted);
        let config = inner.config(wanted.as_ref())?;
        for looped in inner.pools.values_mut() {
            divide(looped, config.as_ref())?;
        }
        let name = wanted.as_ref().map_or("none", |settings| settings.allocator.as_str());
        tracing::info!(allocator = name, "the policy is set");
        inner.settings = wanted;
        self.wake(&mut inner);
        Ok(())
    }

    /// Runs a closure with a pool's loop.
    fn with<R>(&self, pool: &str, call: impl FnOnce(&mut PoolLoop) -> Result<R>) -> Result<R> {
        let mut inner = self.current();
        let result = call(inner.pool(pool)?);
        self.wake(&mut inner);
        result
    }

    /// Handles an event of an attached disk.
    ///
    /// # Errors
    /// There is no such disk or no policy, or the event is not possible in the disk's state.
    pub fn tell(&self, pool: &str, disk: &str, event: DiskEvent) -> Result<DiskPolicy> {
        let event = settings::event(event).map_err(DaemonError::Bad)?;
        self.with(pool, |looped| looped.tell(disk, event))
    }

    /// Returns the last windows of an attached disk, oldest first, for the host to which it moves.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn kept_windows(&self, pool: &str, disk: &str) -> Result<Vec<DiskWindow>> {
        self.with(pool, |looped| Ok(looped.kept_windows(disk).cloned().collect()))
    }

    /// Returns the last window of an attached disk, if any has ended.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn last_window(&self, pool: &str, disk: &str) -> Result<Option<DiskWindow>> {
        self.with(pool, |looped| Ok(looped.kept_windows(disk).last().cloned()))
    }

    /// Continues with what another host has measured of an attached disk that comes, or has come, from there.
    ///
    /// # Errors
    /// There is no such disk or no policy, its VM has ended, or the windows are invalid.
    pub fn arriving(&self, pool: &str, disk: &str, windows: Vec<DiskWindow>) -> Result<()> {
        self.with(pool, |looped| looped.arriving(disk, windows))
    }

    /// Explains a disk's share and settings.
    ///
    /// # Errors
    /// Nothing was decided for the disk.
    pub fn explain(&self, pool: &str, disk: &str) -> Result<Explanation> {
        let text = self.with(pool, |looped| looped.explain(disk))?;
        Ok(Explanation { disk: disk.into(), text })
    }

    /// Returns the curve of an attached disk.
    ///
    /// # Errors
    /// Nothing was measured for the disk.
    pub fn curve(&self, pool: &str, disk: &str) -> Result<DiskCurve> {
        self.with(pool, |looped| looped.curve(disk))
    }

    /// Measures an attached disk for this long, for its curve.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn measure(&self, pool: &str, disk: &str, time: Duration) -> Result<()> {
        self.with(pool, |looped| looped.measure(disk, time.max(SHORTEST_LOOK)))
    }

    /// Records an attached disk's requests from now on, for this long or until nobody reads any more.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn record(&self, pool: &str, disk: &str, time: Option<Duration>) -> Result<Rows> {
        self.with(pool, |looped| looped.record(disk, time))
    }

    /// Returns what was decided for a disk and what was measured of it.
    pub fn of_disk(&self, pool: &str, disk: &str) -> (Option<DiskPolicy>, Option<Measured>) {
        let inner = self.current();
        let looped = inner.pools.get(pool);
        (looped.and_then(|looped| looped.decided(disk)), looped.and_then(|looped| looped.measured(disk)))
    }

    /// Returns the status for the API.
    pub fn status(&self) -> PolicyStatus {
        let inner = self.current();
        let config = inner.config(inner.settings.as_ref()).ok().flatten();
        PolicyStatus {
            settings: inner.settings.clone(),
            measures: config.as_ref().is_some_and(haversack_control::measures),
            orders: self.ordered.load(Ordering::Relaxed)
                + inner.pools.values().map(PoolLoop::orders).sum::<u64>(),
            effective: config.and_then(|config| serde_json::to_value(config).ok()),
            pools: inner.pools.values().map(PoolLoop::status).collect(),
        }
    }

    /// Returns the newest entries of a pool's log, or of all logs, oldest first; at most [`MOST_ENTRIES`].
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn log(&self, pool: Option<&str>, last: usize) -> Result<Vec<Value>> {
        let last = last.min(MOST_ENTRIES);
        let is_wanted = |name: &str| pool.is_none_or(|pool| pool == name);
        // The files are read without the lock: the data path's decisions do not wait for a slow file system.
        let logs: Vec<(String, LineLog)> = {
            let inner = self.current();
            let wanted = inner.pools.iter().filter(|(name, _)| is_wanted(name));
            wanted.map(|(name, looped)| (name.clone(), looped.log().to_read())).collect()
        };
        let mut entries = Vec::new();
        for (name, log) in logs {
            for line in log.newest_lines(last, |_| true)? {
                // A torn line is not an entry.
                let Ok(Value::Object(mut entry)) = serde_json::from_str(&line?) else { continue };
                entry.insert("pool".into(), name.as_str().into());
                entries.push(Value::Object(entry));
            }
        }
        entries.sort_by_key(time_us);
        Ok(entries.split_off(entries.len().saturating_sub(last)))
    }

    /// Does what is due in all pools. Returns the time until more is due, at most `longest`.
    pub fn serve(&self, longest: Duration) -> Duration {
        let mut inner = self.current();
        inner.is_woken = false;
        let left = |looped: &mut PoolLoop| {
            let due_us = looped.tick()?;
            Some(Duration::from_micros(due_us.saturating_sub(looped.now_us())))
        };
        inner.pools.values_mut().filter_map(left).min().map_or(longest, |left| left.min(longest))
    }

    /// Sleeps for this long, or until something may be due earlier.
    pub fn sleep(&self, time: Duration) {
        let inner = self.inner.locked();
        let woken = self.wake.wait_timeout_while(inner, time, |inner| !inner.is_woken);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Returns the time of a log entry.
fn time_us(entry: &Value) -> u64 {
    entry.get("time_us").or_else(|| entry.pointer("/inputs/time_us")).and_then(Value::as_u64).unwrap_or(0)
}
