//! The daemon's parts in one place: pools, disks, jobs, events, memory.
//!
//! Invariants
//! - A lock is held during a call of another part in two cases only: the table of disks is locked while a disk is read,
//!   and a disk is locked while news is posted to the policy. Both calls are short and lock nothing else.
//! - No lock is held while a call waits for I/O of a device or an origin.
//! - A disk's name and identity are used only once, and an origin has one disk that writes it: a disk has claimed its
//!   origin before it uses it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use haversack_api::{DiskConfig, DiskState};
use haversack_core::OpenReport;
use haversack_model::{DiskHandle, DiskId};

use crate::backend::{Backend, VhostUser};
use crate::bases::Attempts;
use crate::budget::Budgets;
use crate::closed::ClosedPools;
use crate::cluster::Cluster;
use crate::config::DaemonConfig;
use crate::error::{DaemonError, Result};
use crate::events::EventLog;
use crate::exclusive::{self, KnownStore, Store};
use crate::helper::Helper;
use crate::history::History;
use crate::hosts::Hosts;
use crate::jobs::Jobs;
use crate::locked::Locked;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::sandbox::Sandbox;
use crate::settings;
use crate::state::State;
use crate::turns::Turns;

/// How long after a disk was added those after it wait until it knows what its origin is, and how often they check. It is
/// short: a file system that does not answer must not hold up the other disks.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// See the module documentation.
pub struct Daemon {
    /// Its own settings.
    pub config: DaemonConfig,
    /// User and group that helpers run as and sockets belong to, if different from those of the daemon's
    /// process at start.
    pub run_as: Option<(u32, u32)>,
    /// When it was started.
    pub started: Instant,
    /// The state kept across restarts.
    pub state: State,
    /// Recent events.
    pub events: EventLog,
    /// What happened in the last day.
    pub history: History,
    /// Held while what admission has learned is written.
    pub(crate) learned_writing: Mutex<()>,
    /// Whose turn it is to attach a disk, to give it up or to forget it.
    pub(crate) disk_turns: Turns,
    /// Whose turn it is to change a disk's settings.
    pub(crate) change_turns: Turns,
    /// Management jobs.
    pub jobs: Jobs,
    /// The policy that divides the pools among the disks. Only [`Daemon::with_policy`] calls it.
    pub(crate) policy: Policy,
    /// Budgets of flash writes.
    pub budgets: Budgets,
    /// Pools that could not be opened at the start.
    pub closed: ClosedPools,
    /// How far disks are with sharing the blocks of their bases.
    pub(crate) base_attempts: Attempts,
    /// The other hosts, if disks move between hosts.
    hosts: OnceLock<Arc<Hosts>>,
    cluster: OnceLock<Cluster>,
    sandbox: OnceLock<Sandbox>,
    pools: BTreeMap<String, Pool>,
    disks: Mutex<BTreeMap<String, Arc<Disk>>>,
    /// How many disks have been added.
    added: AtomicU64,
    starting: AtomicBool,
    stopping: AtomicBool,
}

/// A disk known to the daemon by name.
pub struct Disk {
    /// Its identity.
    pub id: DiskId,
    /// It was attached through the API.
    pub by_api: bool,
    inner: Mutex<DiskInner>,
}

/// The variable state of a disk.
pub struct DiskInner {
    /// Its settings.
    pub config: DiskConfig,
    /// Its state.
    pub state: DiskState,
    /// Why it is not attached; or, if it is attached, why it is not served and has to be detached.
    pub error: Option<String>,
    /// Its pool's handle for it, while it is attached.
    pub handle: Option<DiskHandle>,
    /// Its size in sectors, 0 if not known yet.
    pub sectors: u64,
    /// Its vhost-user server.
    pub vhost_user: Option<Box<dyn VhostUser>>,
    /// The helper of its origin.
    pub helper: Option<Helper>,
    /// The store that it has claimed by attaching, see [`Daemon::claim_store`].
    store: Option<KnownStore>,
    /// How many disks had been added before, and when it was added.
    number: u64,
    added: Instant,
}

impl Disk {
    /// Makes a disk that is not attached.
    pub fn new(config: DiskConfig, by_api: bool, state: DiskState) -> Result<Disk> {
        let id = settings::disk_id(&config).map_err(DaemonError::Bad)?;
        let inner = DiskInner {
            config,
            state,
            error: None,
            handle: None,
            sectors: 0,
            vhost_user: None,
            helper: None,
            store: None,
            number: 0,
            added: Instant::now(),
        };
        Ok(Disk { id, by_api, inner: Mutex::new(inner) })
    }

    /// Reads or changes the disk's state, under its lock.
    pub fn with<R>(&self, look: impl FnOnce(&mut DiskInner) -> R) -> R {
        look(&mut self.inner.locked())
    }

    /// Returns whether its name, its identity and its origin are taken.
    fn is_in_use(&self) -> bool {
        self.with(|inner| inner.state != DiskState::Detached)
    }

    /// Returns its settings.
    pub fn config(&self) -> DiskConfig {
        self.with(|inner| inner.config.clone())
    }

    /// Returns what its origin is. Looks that up only for a detached disk: for another one the last attempt to attach it
    /// has, on a thread that may wait, and until then only names are known.
    pub(crate) fn known_store(&self) -> KnownStore {
        let (store, state, origin) =
            self.with(|inner| (inner.store.clone(), inner.state, inner.config.origin.clone()));
        match state {
            DiskState::Detached => Store::of(&origin).look_up(),
            _ => store.unwrap_or_else(|| Store::of(&origin).by_name()),
        }
    }

    /// Returns whether its pool has it, in whatever state.
    pub fn is_in_pool(&self) -> bool {
        self.with(|inner| inner.handle.is_some())
    }

    /// Returns its pool's handle for it.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn attached(&self) -> Result<DiskHandle> {
        self.with(|inner| match (inner.state, inner.handle) {
            (DiskState::Attached, Some(handle)) => Ok(handle),
            (state, _) => Err(not_attached(&inner.config.name, state)),
        })
    }
}

/// Refuses a store that another disk uses.
fn refuse_shared(disk: (&DiskConfig, &KnownStore), other: (&DiskConfig, &KnownStore)) -> Result<()> {
    let hint = "detach the other disk first, or name the disk's own image";
    exclusive::conflict(disk, other).map_or(Ok(()), |what| Err(DaemonError::conflict(what, hint)))
}

/// Returns the error of an operation that needs an attached disk.
pub fn not_attached(name: &str, state: DiskState) -> DaemonError {
    DaemonError::conflict(
        format!("disk '{name}' is {state}, not attached"),
        "attach it first, or wait for its job",
    )
}

impl Daemon {
    /// Makes a daemon with its pools and no disks.
    pub fn new(
        config: DaemonConfig,
        state: State,
        pools: Vec<(String, Arc<dyn Backend>, OpenReport)>,
        run_as: Option<(u32, u32)>,
    ) -> Arc<Daemon> {
        let pools = pools
            .into_iter()
            .map(|(name, backend, report)| (name.clone(), Pool::new(&name, backend, &report)));
        let pools: BTreeMap<String, Pool> = pools.collect();
        let policy = Policy::new(&config);
        for pool in pools.values() {
            policy.opened(&pool.name, pool.backend.clone()).expect("there is nothing to resume yet");
        }
        Arc::new(Daemon {
            policy,
            config,
            run_as,
            started: Instant::now(),
            state,
            events: EventLog::default(),
            history: History::default(),
            learned_writing: Mutex::default(),
            disk_turns: Turns::default(),
            change_turns: Turns::default(),
            jobs: Jobs::default(),
            budgets: Budgets::default(),
            closed: ClosedPools::default(),
            base_attempts: Attempts::default(),
            hosts: OnceLock::new(),
            cluster: OnceLock::new(),
            sandbox: OnceLock::new(),
            pools,
            disks: Mutex::default(),
            added: AtomicU64::new(0),
            starting: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        })
    }

    /// Sets the other hosts. Called once, before disks are attached.
    pub fn set_hosts(&self, hosts: Arc<Hosts>) {
        // Later calls have no effect.
        let _ = self.hosts.set(hosts);
    }

    /// Sets how the process is confined. Called once, before disks are attached.
    pub fn set_sandbox(&self, sandbox: Sandbox) {
        // Later calls have no effect.
        let _ = self.sandbox.set(sandbox);
    }

    /// Returns how the process is confined, if it is.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.get()
    }

    /// Returns the other hosts, if disks move between hosts.
    pub fn hosts(&self) -> Option<Arc<Hosts>> {
        self.hosts.get().cloned()
    }

    /// Sets the cluster that this host is in. Called once.
    pub(crate) fn set_cluster(&self, cluster: Cluster) {
        // Later calls have no effect.
        let _ = self.cluster.set(cluster);
    }

    /// Returns the cluster, if this host is in one.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// Returns the open pools.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values().chain(self.closed.opened())
    }

    /// Returns a pool.
    ///
    /// # Errors
    /// There is no pool of that name, or it is not open.
    pub fn pool(&self, name: &str) -> Result<&Pool> {
        if self.pools.is_empty() && self.closed.is_empty() {
            return Err(DaemonError::NoPool);
        }
        self.pools.get(name).map_or_else(|| self.closed.pool(name), Ok)
    }

    /// Returns the disks, by name.
    pub fn disks(&self) -> BTreeMap<String, Arc<Disk>> {
        self.disks.locked().clone()
    }

    /// Returns a disk.
    ///
    /// # Errors
    /// There is no disk of that name.
    pub fn disk(&self, name: &str) -> Result<Arc<Disk>> {
        let disks = self.disks.locked();
        disks.get(name).cloned().ok_or_else(|| DaemonError::NoSuch { what: "disk", name: name.to_string() })
    }

    /// Adds a disk; it replaces a detached one of the same name.
    ///
    /// # Errors
    /// The name, the identity or the origin is in use. The origin may also be in use under another name, see
    /// `claim_store`.
    pub fn insert_disk(&self, name: &str, disk: Arc<Disk>) -> Result<()> {
        if self.is_stopping() {
            return Err(DaemonError::Stopping);
        }
        let config = disk.config();
        let store = Store::of(&config.origin).by_name();
        let mut disks = self.disks.locked();
        for (other_name, other) in disks.iter().filter(|(_, other)| other.is_in_use()) {
            if other_name == name || other.id == disk.id {
                let what = format!("disk '{other_name}' ({}) is in use already", other.id);
                return Err(DaemonError::conflict(what, "detach it first, or give another name and id"));
            }
            let other = other.config();
            refuse_shared((&config, &store), (&other, &Store::of(&other.origin).by_name()))?;
        }
        let number = self.added.fetch_add(1, Ordering::Relaxed);
        disk.with(|inner| (inner.number, inner.added) = (number, Instant::now()));
        disks.insert(name.to_string(), disk);
        Ok(())
    }

    /// Looks up what a disk's origin is, and claims it for the disk until that is detached. Of several disks that are
    /// to be attached at the same time, the one that was added first comes first, unless its origin takes long to be
    /// looked up: then the others do not wait for it.
    ///
    /// # Errors
    /// Another disk has claimed it.
    pub(crate) fn claim_store(&self, disk: &Disk) -> Result<()> {
        let config = disk.config();
        let store = Store::of(&config.origin).look_up();
        let number = disk.with(|inner| inner.number);
        let looks = |other: &Arc<Disk>| {
            other.with(|other| {
                let is_before = other.state == DiskState::Attaching && other.number < number;
                is_before && other.store.is_none() && other.added.elapsed() < CLAIM_PATIENCE
            })
        };
        while !self.is_stopping() && self.disks.locked().values().any(looks) {
            std::thread::sleep(CLAIM_PAUSE);
        }
        let disks = self.disks.locked();
        for other in disks.values().filter(|other| other.id != disk.id && other.is_in_use()) {
            if let (other, Some(of_other)) = other.with(|inner| (inner.config.clone(), inner.store.clone())) {
                refuse_shared((&config, &store), (&other, &of_other))?;
            }
        }
        disk.with(|inner| inner.store = Some(store));
        Ok(())
    }

    /// Removes a disk.
    pub fn remove_disk(&self, name: &str) {
        self.disks.locked().remove(name);
    }

    /// Returns the name of a pool's disk, or its identity if it has no name.
    pub fn name_of(&self, pool: &str, id: DiskId) -> String {
        let disks = self.disks();
        let is_it = |disk: &Disk| disk.id == id && disk.config().pool == pool;
        let name = disks.iter().find(|(_, disk)| is_it(disk)).map(|(name, _)| name.clone());
        name.unwrap_or_else(|| id.to_string())
    }

    /// Returns whether the start goes on: disks are being attached for the first time, and there is no policy yet.
    pub fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Acquire)
    }

    /// Sets whether the start goes on, see [`crate::start`].
    pub fn set_starting(&self, starting: bool) {
        self.starting.store(starting, Ordering::Release);
    }

    /// Refuses what needs the policy while there is none yet.
    ///
    /// # Errors
    /// The start goes on.
    pub(crate) fn check_started(&self) -> Result<()> {
        if self.is_starting() { Err(DaemonError::Starting) } else { Ok(()) }
    }

    /// Returns whether the daemon is stopping and starts nothing new.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Makes everything end that waits, retries or repeats. [`Daemon::stop`] does it too.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns whether every pool's reactor responds. Blocks while one does not.
    pub fn is_alive(&self) -> bool {
        self.pools().all(|pool| pool.backend.snapshot().is_ok())
    }

    /// Stops the pools cleanly: commits what is staged and finishes requests in flight; later requests wait for
    /// the next daemon. The disks stay known, and dirty blocks stay in the cache.
    pub fn stop(&self) {
        self.begin_stop();
        self.save_all_learned();
        let jobs: Vec<_> = self.pools().map(|pool| (&pool.name, pool.backend.shutdown())).collect();
        for (name, job) in jobs {
            let end = job.and_then(|job| {
                while job.wait_for(std::time::Duration::from_secs(1))?.is_none() {}
                Ok(())
            });
            match end {
                Ok(()) => tracing::info!(pool = name, "stopped cleanly"),
                Err(error) => tracing::error!(pool = name, "cannot stop cleanly: {error}"),
            }
        }
    }

    /// Closes the disks' vhost-user servers and ends their helpers. The reactors must have ended: they hold
    /// requests that arrived after the pools had stopped, and a server waits for its queues.
    pub fn close(&self) {
        for disk in self.disks().values() {
            let servers = disk.with(|inner| (inner.vhost_user.take(), inner.helper.take()));
            drop(servers);
        }
    }
}
