//! How the daemon calls its policy and carries out the policy's orders.
//!
//! Invariant
//! - After each call of the policy, its orders are carried out while no lock is held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::{JobKind, PolicySettings};
use haversack_control::settings;
use haversack_model::WriteMode;

use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::part::Part;
use crate::policy::{Order, Policy};

/// The longest sleep of the policy's thread, after which it checks whether the daemon is stopping.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Daemon {
    /// Calls the policy, then carries out its orders. The caller must hold no lock.
    pub fn with_policy<R>(&self, call: impl FnOnce(&Policy) -> R) -> R {
        let result = call(&self.policy);
        for order in self.policy.take_orders() {
            self.carry_out(order);
            self.policy.carried_out();
        }
        result
    }

    /// Makes the policy read the news that was posted.
    pub fn report_to_policy(&self) {
        self.with_policy(Policy::read_news);
    }

    /// Calls the policy about an attached disk. The closure gets the name of the disk's pool.
    ///
    /// # Errors
    /// There is no such disk, it is not attached, or the call failed.
    pub fn with_policy_of<R>(&self, disk: &str, call: impl FnOnce(&Policy, &str) -> Result<R>) -> Result<R> {
        let found = self.disk(disk)?;
        found.attached()?;
        self.with_policy(|policy| call(policy, &found.config().pool))
    }

    /// Sets another policy, or none, for all pools.
    ///
    /// # Errors
    /// The settings are invalid, and the previous policy stays in effect; or the daemon is starting, and the policy of the
    /// configuration would replace this one.
    pub fn set_policy(&self, wanted: Option<PolicySettings>) -> Result<()> {
        self.check_started()?;
        self.check_weights(wanted.is_some())?;
        self.with_policy(|policy| policy.set(wanted))
    }

    /// Starts with the policy of the configuration, continuing from where the daemon last stopped. If the disks of a
    /// pool cannot be weighed against each other, their shares stay as they are, and an event reports it: a daemon that
    /// did not start would serve no guest.
    ///
    /// # Errors
    /// The settings are invalid, or a pool has stopped.
    pub fn begin_policy(&self, wanted: Option<PolicySettings>) -> Result<()> {
        self.with_policy(|policy| policy.begin(wanted))
    }

    fn check_weights(&self, is_set: bool) -> Result<()> {
        let has_policy = is_set || self.policy.is_always_there();
        for pool in self.pools().filter(|_| has_policy) {
            let disks: Vec<_> = self.disks().values().map(|disk| disk.config()).collect();
            let here = disks.iter().filter(|disk| disk.pool == pool.name);
            settings::check_weights(&pool.name, here).map_err(DaemonError::Bad)?;
        }
        Ok(())
    }

    fn carry_out(&self, order: Order) {
        match order {
            Order::ChangeMode { disk, mode } => {
                tracing::info!(disk, %mode, "the policy changes the write mode");
                if let Err(error) = self.change_mode(&disk, mode) {
                    tracing::error!(disk, "cannot change the write mode: {error}");
                }
            }
            Order::SizeFilters { pool } => {
                if let Ok(pool) = self.pool(&pool) {
                    self.size_filters(pool);
                }
            }
            Order::ReportEvent { disk, event } => self.events.add("disk-event", &disk, event),
            Order::ReportRefusal { pool, why } => self.events.add("policy-refused", &pool, why),
        }
    }

    fn change_mode(&self, name: &str, mode: WriteMode) -> Result<()> {
        let disk = self.disk(name)?;
        let handle = disk.attached()?;
        let backend = self.pool(&disk.config().pool)?.backend.clone();
        // The change begins here, not on the job's thread, so that modes change in the order of the disks, as in the
        // simulator.
        let change = backend.set_mode(handle, mode);
        self.jobs.start(JobKind::Change, name, move |control| control.follow(&change?))?;
        Ok(())
    }
}

/// Starts the thread that serves the pools.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let daemon = daemon.clone();
    let serve = move || {
        let mut part = Part::new("serving the policy");
        while !daemon.is_stopping() {
            let mut idle = LONGEST_SLEEP;
            let mut serve = || idle = daemon.with_policy(|policy| policy.serve(LONGEST_SLEEP));
            if let Some(what) = part.run(Instant::now(), &mut serve) {
                daemon.events.add("policy-failed", "daemon", what);
            }
            daemon.policy.sleep(idle);
        }
    };
    std::thread::Builder::new().name("policy".into()).spawn(serve)?;
    Ok(())
}
