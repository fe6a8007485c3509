//! This host in a cluster: its reports to the directory, and the decisions that it derives from the directory.
//!
//! Invariants
//! - Code that serves guests, attaches disks or moves them on a guest's behalf never waits for the directory. The
//!   directory never gives a disk to a host: the pools' records say who owns a disk (docs/ownership.md). It can only
//!   say that another host has taken a disk over by force ([`crate::hosts`]).
//! - While the directory is away, everything continues except the balancer's new moves, and status answers say
//!   how old the view is.

mod balance;
pub mod config;
mod loans;
mod moves;
mod report;
mod show;
#[cfg(test)]
mod size;
mod tenants;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_cluster::{Balancer, ClusterError, Plan};
use haversack_directory::{DirectoryError, PoolRecord, View};
use haversack_etcd::Directory;
use haversack_model::DiskId;
use haversack_moves::{ABANDONED_LEASES, Intents, Observed, snapshot};

use self::config::ClusterConfig;
use self::moves::Proposed;
use self::report::Reporter;
use self::tenants::Tenants;
use self::watch::Watch;
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::hosts::config::MigrationConfig;
use crate::locked::Locked;
use crate::part::Part;

/// How often the directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// See the module.
pub struct Cluster {
    directory: Directory,
    observed: Mutex<Observed>,
    intents: Mutex<Intents>,
    proposed: Proposed,
    /// Whether the next report is due before its regular time.
    is_report_due: AtomicBool,
}

/// Epochs from this one on are invalid. An epoch that is taken by force is about 2^24 times the time in seconds.
const MOST_EPOCH: u64 = 1 << 60;

/// Starts to connect to the directory, without waiting for it. Called before disks are attached, because the directory
/// may say that another host has taken one of them over.
///
/// # Errors
/// The settings cannot be used, or a thread cannot be started.
pub fn connect(
    daemon: &Arc<Daemon>,
    config: &ClusterConfig,
    migration: Option<&MigrationConfig>,
) -> std::result::Result<(), DirectoryError> {
    // Checked when the file was read.
    let settings = config.directory(migration).map_err(DirectoryError::Name)?;
    let directory = Directory::start(settings)?;
    let balancer = Balancer::new(config.balance.settings()).expect("the settings were checked");
    let abandoned_after = config.lease.0.saturating_mul(ABANDONED_LEASES);
    let intents = Intents::new(directory.name(), directory.instance(), abandoned_after);
    daemon.set_cluster(Cluster {
        directory,
        observed: Mutex::new(Observed::new(balancer, Instant::now())),
        intents: Mutex::new(intents),
        proposed: Proposed::new(abandoned_after),
        is_report_due: AtomicBool::new(false),
    });
    Ok(())
}

/// Begins to report, and to look at what others report. Called after disks were attached: a report without them would
/// remove their entries.
///
/// # Errors
/// A thread cannot be started.
pub fn start(
    daemon: &Arc<Daemon>,
    config: &ClusterConfig,
    migration: Option<&MigrationConfig>,
) -> std::result::Result<(), DirectoryError> {
    let Some(cluster) = daemon.cluster() else { return Ok(()) };
    let (every, window) = (config.report_every.0, config.balance.window.0);
    let link = migration.map(|migration| migration.rate.0).filter(|rate| *rate > 0);
    let mut reporter = Reporter::new(cluster.directory.name(), cluster.directory.instance(), config, link);
    let weak = Arc::downgrade(daemon);
    let run = move || {
        let (mut watch, mut tenants) = (Watch::default(), Tenants::default());
        let [mut observing, mut borrowing, mut dividing, mut reporting, mut watching, mut tidying] = [
            "looking at the loads of hosts",
            "borrowing flash of other hosts",
            "dividing caches among tenants",
            "reporting",
            "looking for changes of hosts",
            "following moves",
        ]
        .map(Part::new);
        let (mut next, mut next_window) = (Instant::now(), Instant::now() + window);
        while let Some(daemon) = weak.upgrade().filter(|daemon| !daemon.is_stopping()) {
            let Some(cluster) = daemon.cluster() else { return };
            let guard = |part: &mut Part, act: &mut dyn FnMut()| {
                if let Some(what) = part.run(Instant::now(), act) {
                    daemon.events.add("cluster-failed", "daemon", what);
                }
            };
            if Instant::now() >= next_window {
                next_window = Instant::now() + window;
                guard(&mut observing, &mut || cluster.observe());
                guard(&mut borrowing, &mut || cluster.borrow(&daemon));
                tenants.end_window();
            }
            if cluster.is_report_due.swap(false, Ordering::Relaxed) || Instant::now() >= next {
                next = Instant::now() + every;
                guard(&mut dividing, &mut || tenants.look(&daemon, cluster));
                guard(&mut reporting, &mut || {
                    cluster.directory.report(reporter.report(&daemon, &tenants.limits(&daemon)));
                });
            }
            guard(&mut watching, &mut || watch.look(&daemon, cluster));
            guard(&mut tidying, &mut || {
                cluster.follow();
                cluster.tidy();
                cluster.stop_given_up(&daemon);
            });
            drop(daemon);
            std::thread::sleep(LOOK_EVERY.min(every));
        }
    };
    std::thread::Builder::new().name("cluster".into()).spawn(run).map_err(DirectoryError::Thread)?;
    balance::start(daemon, config)
}

impl Cluster {
    /// Returns how much cache of each host that is alive its own disks could not use.
    pub(crate) fn free_bytes(&self) -> BTreeMap<String, u64> {
        let view = self.directory.view();
        let mut free = BTreeMap::new();
        for ((host, _), pool) in view.pools.iter().filter(|((host, _), _)| view.hosts.contains_key(host)) {
            let PoolRecord { capacity_bytes, demand_bytes, .. } = pool.record;
            let free_bytes: &mut u64 = free.entry(host.clone()).or_default();
            *free_bytes = free_bytes.saturating_add(capacity_bytes.saturating_sub(demand_bytes));
        }
        free
    }

    /// Returns the revision of this host's view of the directory.
    pub(crate) fn revision(&self) -> i64 {
        self.directory.view().revision
    }

    /// Returns which host had a disk according to the directory, and under which epoch. Ignores an epoch that no host
    /// can have reached: hosts would remember it for ever.
    pub(crate) fn owner_of(&self, id: DiskId) -> Option<(String, u64)> {
        let view = self.directory.view();
        let owner = view.owner_of(&id.to_string()).filter(|(_, epoch)| *epoch < MOST_EPOCH);
        owner.map(|(host, epoch)| (host.to_owned(), epoch))
    }

    /// Makes this host report soon, without waiting for that, so that others learn that it has taken a disk over.
    pub(crate) fn report_soon(&self) {
        self.is_report_due.store(true, Ordering::Relaxed);
    }

    /// Returns the owner of a disk and the host that had a complete replica of its dirty blocks, if one had.
    pub(crate) fn replica_of(&self, id: DiskId) -> Option<(String, String)> {
        let view = self.directory.view();
        let disk = &view.disks.get(&id.to_string())?.record;
        Some((disk.host.clone(), disk.replica_at.clone().filter(|_| disk.is_replicated)?))
    }

    /// Returns the owner of the disk of this name, if there is only one, and the host with a complete replica.
    pub(crate) fn disk_named(&self, name: &str) -> Option<(String, Option<String>)> {
        let view = self.directory.view();
        let mut named = view.disks.values().map(|seen| &seen.record).filter(|disk| disk.name == name);
        let disk = named.next().filter(|_| named.next().is_none())?;
        Some((disk.host.clone(), disk.replica_at.clone().filter(|_| disk.is_replicated)))
    }

    /// Returns the hosts that are being drained.
    pub(crate) fn draining(&self) -> BTreeSet<String> {
        self.directory.view().drains.keys().cloned().collect()
    }

    /// Lets the balancer look at the hosts' loads, at the end of a window.
    fn observe(&self) {
        if !self.is_current() {
            return;
        }
        if let Err(error) = self.observed.locked().observe(&self.directory.view()) {
            tracing::debug!("the balancer cannot use what the directory has: {error}");
        }
    }

    /// Tracks the moves of the host that balances.
    fn follow(&self) {
        self.observed.locked().follow(&self.directory.view(), Instant::now());
    }

    /// Returns what the balancer would move. It may take a second in a large cluster.
    ///
    /// # Errors
    /// What the directory has contradicts itself.
    fn plan(&self, view: &View) -> std::result::Result<Plan, ClusterError> {
        let (balancer, now_us) = self.observed.locked().balancer(Instant::now());
        balancer.plan(now_us, &snapshot::of(view))
    }

    /// Returns whether the view shows what the directory has now.
    fn is_current(&self) -> bool {
        self.directory.status().endpoint.is_some()
    }

    /// Tells the other hosts that this one is leaving.
    pub fn leave(&self) {
        self.directory.stop();
    }
}

impl Daemon {
    pub(crate) fn cluster_or_error(&self) -> Result<&Cluster> {
        self.cluster().ok_or_else(|| {
            DaemonError::conflict("this host is in no cluster", "configure [cluster], see cluster.md")
        })
    }
}
