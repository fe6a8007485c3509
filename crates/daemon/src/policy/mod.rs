//! The policy in the daemon: it divides the pools, handles events, and answers requests for curves and traces.
//!
//! One thread serves all pools: it takes what was recorded, closes windows and decides. None of this is on the
//! path of a request. Calls of the control API run on the caller's thread, under the same lock.
//!
//! Invariants
//! - Without a policy and without a request for figures, the thread sleeps and nothing is recorded.
//! - The policy's lock is taken before those of disks, never while one of them is held.

mod actuate;
mod log;
mod monitors;
mod pool;
mod port;
mod recording;
mod reports;
pub mod settings;
mod show;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use haversack_api::{
    DiskCurve, DiskEvent, DiskEventKind, DiskPolicy, Explanation, Measured, PolicySettings, PolicyStatus,
};
use haversack_policy::{Config, Event};
use serde_json::Value;

use crate::config::DaemonConfig;
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::pool::Pool;
use log::DecisionLog;
use pool::PoolLoop;
pub use recording::Rows;

/// The longest sleep, after which the thread checks whether the daemon is stopping.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The shortest time for which a curve is measured.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// See the module documentation.
pub struct Policy {
    log_dir: PathBuf,
    log_size_bytes: u64,
    inner: Mutex<Inner>,
    /// Signalled when something is due earlier than the thread expects.
    wake: Condvar,
}

/// What the daemon reports about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// It was attached.
    Attached,
    /// It was detached.
    Detached,
    /// It has a new size.
    Resized {
        /// In sectors.
        sectors: u64,
    },
    /// The operator has changed its settings.
    Changed,
}

struct Inner {
    settings: Option<PolicySettings>,
    pools: BTreeMap<String, PoolLoop>,
}

impl Policy {
    /// Makes an object without a policy.
    pub fn new(config: &DaemonConfig) -> Policy {
        let inner = Inner { settings: None, pools: BTreeMap::new() };
        Policy {
            log_dir: config.policy_log_dir().to_path_buf(),
            log_size_bytes: config.policy_log_size.0,
            inner: Mutex::new(inner),
            wake: Condvar::new(),
        }
    }

    /// Returns a pool's loop; for a new pool, a loop without a policy.
    fn loop_of<'a>(&self, pools: &'a mut BTreeMap<String, PoolLoop>, pool: &str) -> &'a mut PoolLoop {
        pools.entry(pool.to_owned()).or_insert_with(|| {
            let path = self.log_dir.join(format!("policy-{pool}.log"));
            PoolLoop::new(DecisionLog::new(path, self.log_size_bytes))
        })
    }

    /// Applies the policy to a pool that could not be opened before.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn opened(&self, daemon: &Daemon, pool: &str) -> Result<()> {
        let mut inner = self.inner.locked();
        let config = inner.settings.as_ref().map(settings::config).transpose().map_err(DaemonError::Bad)?;
        let looped = self.loop_of(&mut inner.pools, pool);
        let pool = daemon.pool(pool)?;
        if let Some(config) = config {
            looped.resume(daemon, pool, pool.now_us(), &config)?;
        }
        self.wake.notify_all();
        Ok(())
    }

    /// Starts with the policy of the configuration, continuing from where the daemon last stopped.
    ///
    /// # Errors
    /// As [`Policy::set`].
    pub fn begin(&self, daemon: &Daemon, wanted: Option<PolicySettings>) -> Result<()> {
        self.go_on(daemon, wanted, |looped, pool, config| match config {
            Some(config) => looped.resume(daemon, pool, pool.now_us(), config),
            None => Ok(()),
        })
    }

    /// Runs a closure with a pool's loop, then wakes the thread: the next due time may have changed.
    fn with<R>(
        &self,
        daemon: &Daemon,
        pool: &str,
        call: impl FnOnce(&mut PoolLoop, &Pool) -> R,
    ) -> Result<R> {
        let pool = daemon.pool(pool)?;
        let mut inner = self.inner.locked();
        let result = call(self.loop_of(&mut inner.pools, &pool.name), pool);
        self.wake.notify_all();
        Ok(result)
    }

    /// Sets another policy, or none, for all pools.
    ///
    /// # Errors
    /// The settings are invalid; the previous policy stays in effect.
    pub fn set(&self, daemon: &Daemon, wanted: Option<PolicySettings>) -> Result<()> {
        self.go_on(daemon, wanted, |looped, pool, config| looped.set(daemon, pool, pool.now_us(), config))
    }

    fn go_on(
        &self,
        daemon: &Daemon,
        wanted: Option<PolicySettings>,
        divide: impl Fn(&mut PoolLoop, &Pool, Option<&Config>) -> Result<()>,
    ) -> Result<()> {
        let config = wanted.as_ref().map(settings::config).transpose().map_err(DaemonError::Bad)?;
        for pool in daemon.pools().filter(|_| config.is_some()) {
            let disks: Vec<_> = daemon.disks().values().map(|disk| disk.config()).collect();
            let here = disks.iter().filter(|disk| disk.pool == pool.name);
            settings::check_weights(&pool.name, here).map_err(DaemonError::Bad)?;
        }
        let mut inner = self.inner.locked();
        for pool in daemon.pools() {
            divide(self.loop_of(&mut inner.pools, &pool.name), pool, config.as_ref())?;
        }
        let name = wanted.as_ref().map_or("none", |settings| settings.allocator.as_str());
        tracing::info!(allocator = name, "the policy is set");
        inner.settings = wanted;
        self.wake.notify_all();
        Ok(())
    }

    /// Notes what has happened to a disk. Failures are only logged: the disk serves its guest anyway.
    pub fn note(&self, daemon: &Daemon, pool: &str, disk: &str, news: News) {
        let noted = self.with(daemon, pool, |looped, pool| looped.note(daemon, pool, disk, news));
        if let Err(error) = noted.flatten() {
            tracing::warn!(disk, ?news, "cannot report a change of the disk to the policy: {error}");
        }
    }

    /// Handles an event of a disk.
    ///
    /// # Errors
    /// There is no such disk or no policy, or the event is not possible in the disk's state.
    pub fn tell(&self, daemon: &Daemon, disk: &str, event: DiskEvent) -> Result<DiskPolicy> {
        let event = event_of(event)?;
        let found = daemon.disk(disk)?;
        found.attached()?;
        let name = event.name();
        let told = self.with(daemon, &found.config().pool, |looped, pool| {
            looped.tell(daemon, pool, pool.now_us(), disk, event)
        })?;
        if told.is_ok() {
            daemon.events.add("disk-event", disk, name);
        }
        told
    }

    /// Explains a disk's share and settings.
    ///
    /// # Errors
    /// There is no such disk, or nothing was decided for it.
    pub fn explain(&self, daemon: &Daemon, disk: &str) -> Result<Explanation> {
        let pool = daemon.disk(disk)?.config().pool;
        let text = self.with(daemon, &pool, |looped, _| looped.explain(disk))??;
        Ok(Explanation { disk: disk.into(), text })
    }

    /// Returns a disk's curve.
    ///
    /// # Errors
    /// There is no such disk, or nothing was measured for it.
    pub fn curve(&self, daemon: &Daemon, disk: &str) -> Result<DiskCurve> {
        let found = daemon.disk(disk)?;
        found.attached()?;
        self.with(daemon, &found.config().pool, |looped, pool| looped.curve(pool, pool.now_us(), disk))?
    }

    /// Measures a disk for this long, for its curve.
    ///
    /// # Errors
    /// There is no such disk, or it is not attached.
    pub fn measure(&self, daemon: &Daemon, disk: &str, time: Duration) -> Result<()> {
        let found = daemon.disk(disk)?;
        found.attached()?;
        let time = time.max(SHORTEST_LOOK);
        self.with(daemon, &found.config().pool, |looped, pool| {
            looped.measure(pool, pool.now_us(), disk, time)
        })?
    }

    /// Records a disk's requests from now on, for this long or until nobody reads any more.
    ///
    /// # Errors
    /// There is no such disk, or it is not attached.
    pub fn record(&self, daemon: &Daemon, disk: &str, time: Option<Duration>) -> Result<Rows> {
        let found = daemon.disk(disk)?;
        let handle = found.attached()?;
        self.with(daemon, &found.config().pool, |looped, pool| {
            looped.record(pool, pool.now_us(), disk, handle, time)
        })?
    }

    /// Returns what was decided for a disk and what was measured of it.
    pub fn of_disk(&self, pool: &str, disk: &str) -> (Option<DiskPolicy>, Option<Measured>) {
        let inner = self.inner.locked();
        let looped = inner.pools.get(pool);
        (looped.and_then(|looped| looped.decided(disk)), looped.and_then(|looped| looped.measured(disk)))
    }

    /// Returns the status for the API.
    pub fn status(&self, daemon: &Daemon) -> PolicyStatus {
        let inner = self.inner.locked();
        let config = inner.settings.as_ref().and_then(|wanted| settings::config(wanted).ok());
        PolicyStatus {
            settings: inner.settings.clone(),
            measures: config.as_ref().is_some_and(haversack_control::measures),
            effective: config.and_then(|config| serde_json::to_value(config).ok()),
            pools: daemon
                .pools()
                .filter_map(|pool| Some(inner.pools.get(&pool.name)?.status(&pool.name, pool.now_us())))
                .collect(),
        }
    }

    /// Returns the newest entries of a pool's log, or of all logs, oldest first.
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn log(&self, pool: Option<&str>, last: usize) -> Result<Vec<Value>> {
        let inner = self.inner.locked();
        let mut entries = Vec::new();
        for (name, looped) in inner.pools.iter().filter(|(name, _)| pool.is_none_or(|pool| pool == *name)) {
            for line in looped.log().newest(last, |_| true)? {
                // A torn line is not an entry.
                let Ok(Value::Object(mut entry)) = serde_json::from_str(&line) else { continue };
                entry.insert("pool".into(), name.as_str().into());
                entries.push(Value::Object(entry));
            }
        }
        entries.sort_by_key(time_us);
        Ok(entries.split_off(entries.len().saturating_sub(last)))
    }

    /// Serves all pools until the daemon stops.
    fn run(&self, daemon: &Daemon) {
        let mut inner = self.inner.locked();
        while !daemon.is_stopping() {
            let mut sleep = LONGEST_SLEEP;
            for (name, looped) in &mut inner.pools {
                let Ok(pool) = daemon.pool(name) else { continue };
                if let Some(due_us) = looped.tick(daemon, pool, pool.now_us()) {
                    sleep = sleep.min(Duration::from_micros(due_us.saturating_sub(pool.now_us())));
                }
            }
            inner = self.wake.wait_timeout(inner, sleep).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns the time of a log entry.
fn time_us(entry: &Value) -> u64 {
    entry.get("time_us").or_else(|| entry.pointer("/inputs/time_us")).and_then(Value::as_u64).unwrap_or(0)
}

fn event_of(event: DiskEvent) -> Result<Event> {
    let DiskEvent { event, figures } = event;
    if figures.is_some() && event != DiskEventKind::MigratingIn {
        return Err(DaemonError::Bad("figures come with migrating-in alone: leave them out".into()));
    }
    Ok(match event {
        DiskEventKind::New => Event::New,
        DiskEventKind::Ended => Event::Ended,
        DiskEventKind::Suspended => Event::Suspended,
        DiskEventKind::Resumed => Event::Resumed,
        DiskEventKind::Stunned => Event::Stunned,
        DiskEventKind::MigratingIn => {
            let window = figures.map(serde_json::from_value).transpose();
            let window = window.map_err(|error| DaemonError::Bad(format!("figures: {error}")))?;
            Event::MigratingIn(window)
        }
        DiskEventKind::MigratingOut => Event::MigratingOut,
        DiskEventKind::StorageMigrating => Event::StorageMigrating,
        DiskEventKind::StorageMigrated => Event::StorageMigrated,
    })
}

/// Starts the thread that serves the pools.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let daemon = daemon.clone();
    std::thread::Builder::new().name("policy".into()).spawn(move || daemon.policy.run(&daemon))?;
    Ok(())
}
