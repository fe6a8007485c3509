//! Pools that could not be opened when the daemon started. Their disks wait while the other pools run. Opening
//! each of them is retried until it succeeds; from then on it is like any other pool.
//!
//! Invariants
//! - A pool that was opened stays open and does not move in memory.
//! - When a disk can be attached in a pool, the pool is connected with the other hosts and known to the policy, and its
//!   events are received.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use haversack_core::OpenReport;
use haversack_engine::OpenPool;

use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::pool::{self, Pool};

/// The first pause before another attempt to open a pool; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before another attempt to open a pool.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a pause checks whether the daemon is stopping.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Open pools, to be dropped when the daemon ends.
pub type OpenPools = Arc<Mutex<Vec<OpenPool>>>;

/// See the module documentation.
#[derive(Default)]
pub struct ClosedPools(OnceLock<BTreeMap<String, ClosedPool>>);

struct ClosedPool {
    why: Mutex<String>,
    opened: OnceLock<Pool>,
}

impl ClosedPools {
    /// Sets which pools could not be opened, and why. Called once, at the start.
    pub fn set(&self, pools: impl IntoIterator<Item = (String, String)>) {
        let closed = |why| ClosedPool { why: Mutex::new(why), opened: OnceLock::new() };
        // Later calls have no effect.
        let _ = self.0.set(pools.into_iter().map(|(name, why)| (name, closed(why))).collect());
    }

    fn all(&self) -> impl Iterator<Item = (&String, &ClosedPool)> {
        self.0.get().into_iter().flatten()
    }

    /// Returns whether all pools could be opened.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Returns the pools that have been opened since.
    pub fn opened(&self) -> impl Iterator<Item = &Pool> {
        self.all().filter_map(|(_, pool)| pool.opened.get())
    }

    /// Returns the pools that are still closed, and why.
    pub fn closed(&self) -> impl Iterator<Item = (&str, String)> {
        let closed = self.all().filter(|(_, pool)| pool.opened.get().is_none());
        closed.map(|(name, pool)| (name.as_str(), pool.why.locked().clone()))
    }

    /// Returns a pool that has been opened since.
    ///
    /// # Errors
    /// It is still closed, or there is none of that name.
    pub fn pool(&self, name: &str) -> Result<&Pool> {
        let Some(pool) = self.0.get().and_then(|pools| pools.get(name)) else {
            return Err(DaemonError::NoSuch { what: "pool", name: name.to_string() });
        };
        let closed = || DaemonError::PoolClosed { pool: name.to_string(), why: pool.why.locked().clone() };
        pool.opened.get().ok_or_else(closed)
    }

    fn take(&self, name: &str, opened: std::result::Result<Pool, String>) {
        let Some(closed) = self.0.get().and_then(|pools| pools.get(name)) else { return };
        match opened {
            // Each pool has one such thread, which ends after this.
            Ok(pool) => drop(closed.opened.set(pool)),
            Err(why) => *closed.why.locked() = why,
        }
    }
}

/// Tries to open a pool, in the background, until it succeeds or the daemon stops.
pub fn keep_opening(
    daemon: &Arc<Daemon>,
    opened_pools: &OpenPools,
    name: &str,
    open: impl Fn(&Daemon) -> std::result::Result<(OpenPool, OpenReport), String> + Send + 'static,
) {
    let (daemon, opened_pools, name) = (daemon.clone(), opened_pools.clone(), name.to_string());
    std::thread::spawn(move || {
        let mut pause = FIRST_PAUSE;
        while wait(&daemon, pause) {
            pause = (pause * 2).min(LONGEST_PAUSE);
            let joined = open(&daemon).and_then(|(opened, report)| {
                let pool = Pool::new(&name, Arc::new(opened.handle()), &report);
                let events = pool::join(&daemon, &pool).map_err(|error| error.to_string())?;
                Ok((opened, pool, events))
            });
            match joined {
                Ok((opened, pool, events)) => {
                    opened_pools.locked().push(opened);
                    let backend = pool.backend.clone();
                    if let Err(error) = daemon.with_policy(|policy| policy.opened(&name, backend)) {
                        tracing::error!(pool = name, "cannot start the policy for the pool: {error}");
                    }
                    daemon.closed.take(&name, Ok(pool));
                    pool::watch(&daemon, &name, events);
                    if let Ok(pool) = daemon.pool(&name) {
                        pool::tell_refused(&daemon, pool);
                        pool::tell_left_dirty(&daemon, pool);
                    }
                    daemon.events.add("pool-opened", &name, "it could not be opened at first".to_string());
                    return;
                }
                Err(why) => {
                    tracing::warn!(
                        pool = name,
                        retry_s = pause.as_secs(),
                        "still cannot open the pool: {why}"
                    );
                    daemon.closed.take(&name, Err(why));
                }
            }
        }
    });
}

/// Pauses. Returns false if the daemon stops in that time.
fn wait(daemon: &Daemon, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until && !daemon.is_stopping() {
        std::thread::sleep(LOOK_EVERY);
    }
    !daemon.is_stopping()
}
