//! The daemon's parts in one place: pools, disks, jobs, events, memory.
//!
//! Invariants
//! - Locks are taken in the order policy, disks, one disk, its state, and none is held while a call waits for I/O.
//! - A disk's name and identity are in use once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use haversack_api::{DiskConfig, DiskState};
use haversack_core::OpenReport;
use haversack_model::{DiskHandle, DiskId};

use crate::backend::{Backend, VhostUser};
use crate::closed::ClosedPools;
use crate::config::DaemonConfig;
use crate::error::{DaemonError, Result};
use crate::events::EventLog;
use crate::exclusive;
use crate::helper::Helper;
use crate::jobs::Jobs;
use crate::locked::Locked;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::settings;
use crate::state::State;

/// See the module documentation.
pub struct Daemon {
    /// Its own settings.
    pub config: DaemonConfig,
    /// User and group that helpers run as and sockets belong to, if not those that the daemon is started as.
    pub run_as: Option<(u32, u32)>,
    /// When it was started.
    pub started: Instant,
    /// What it remembers.
    pub state: State,
    /// What happened.
    pub events: EventLog,
    /// Management jobs.
    pub jobs: Jobs,
    /// Who divides the pools among the disks.
    pub policy: Policy,
    /// Pools that could not be opened at the start.
    pub closed: ClosedPools,
    pools: BTreeMap<String, Pool>,
    disks: Mutex<BTreeMap<String, Arc<Disk>>>,
    stopping: AtomicBool,
}

/// A disk that the daemon has by name.
pub struct Disk {
    /// Its identity.
    pub id: DiskId,
    /// It was attached through the API.
    pub by_api: bool,
    inner: Mutex<DiskInner>,
}

/// What changes of a disk.
pub struct DiskInner {
    /// Its settings.
    pub config: DiskConfig,
    /// Where it is in its life.
    pub state: DiskState,
    /// Why it is not attached.
    pub error: Option<String>,
    /// What its pool calls it by while it is attached.
    pub handle: Option<DiskHandle>,
    /// Its sectors, 0 if not known yet.
    pub sectors: u64,
    /// Its vhost-user server.
    pub vhost_user: Option<Box<dyn VhostUser>>,
    /// The helper of its origin.
    pub helper: Option<Helper>,
}

impl Disk {
    /// A disk that is not attached.
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
        };
        Ok(Disk { id, by_api, inner: Mutex::new(inner) })
    }

    /// Looks at it or changes it.
    pub fn with<R>(&self, look: impl FnOnce(&mut DiskInner) -> R) -> R {
        look(&mut self.inner.locked())
    }

    /// Its settings.
    pub fn config(&self) -> DiskConfig {
        self.with(|inner| inner.config.clone())
    }

    /// What its pool calls it by, if it is attached.
    ///
    /// # Errors
    /// It is not attached.
    pub fn attached(&self) -> Result<DiskHandle> {
        self.with(|inner| match (inner.state, inner.handle) {
            (DiskState::Attached, Some(handle)) => Ok(handle),
            (state, _) => Err(not_attached(&inner.config.name, state)),
        })
    }
}

/// The refusal of something that only an attached disk can do.
pub fn not_attached(name: &str, state: DiskState) -> DaemonError {
    let state = format!("{state:?}").to_lowercase();
    DaemonError::conflict(
        format!("disk '{name}' is {state}, not attached"),
        "attach it first, or wait for its job",
    )
}

impl Daemon {
    /// A daemon with its pools and no disks.
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
        Arc::new(Daemon {
            policy: Policy::new(&config),
            config,
            run_as,
            started: Instant::now(),
            state,
            events: EventLog::default(),
            jobs: Jobs::default(),
            closed: ClosedPools::default(),
            pools,
            disks: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// The pools that are open.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values().chain(self.closed.opened())
    }

    /// A pool.
    ///
    /// # Errors
    /// There is none of that name, or it is not open.
    pub fn pool(&self, name: &str) -> Result<&Pool> {
        self.pools.get(name).map_or_else(|| self.closed.pool(name), Ok)
    }

    /// The disks, by name.
    pub fn disks(&self) -> BTreeMap<String, Arc<Disk>> {
        self.disks.locked().clone()
    }

    /// A disk.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn disk(&self, name: &str) -> Result<Arc<Disk>> {
        let disks = self.disks.locked();
        disks.get(name).cloned().ok_or_else(|| DaemonError::NoSuch { what: "disk", name: name.to_string() })
    }

    /// Puts a disk in, in the place of a detached one of the same name.
    ///
    /// # Errors
    /// The name or the identity is in use.
    pub fn insert_disk(&self, name: &str, disk: Arc<Disk>) -> Result<()> {
        if self.is_stopping() {
            return Err(DaemonError::Stopping);
        }
        let mut disks = self.disks.locked();
        let in_use = |other: &Disk| other.with(|inner| inner.state != DiskState::Detached);
        for (other_name, other) in disks.iter() {
            if !in_use(other) {
                continue;
            }
            if other_name == name || other.id == disk.id {
                let what = format!("disk '{other_name}' ({}) is in use already", other.id);
                return Err(DaemonError::conflict(what, "detach it first, or give another name and id"));
            }
            if let Some(what) = exclusive::conflict(&disk.config(), &other.config()) {
                return Err(DaemonError::conflict(
                    what,
                    "detach the other disk first, or name the disk's own image",
                ));
            }
        }
        disks.insert(name.to_string(), disk);
        Ok(())
    }

    /// Takes a disk out.
    pub fn remove_disk(&self, name: &str) {
        self.disks.locked().remove(name);
    }

    /// The name of a disk of a pool; its identity if it has none.
    pub fn name_of(&self, pool: &str, id: DiskId) -> String {
        let disks = self.disks();
        let is_it = |disk: &Disk| disk.id == id && disk.config().pool == pool;
        let name = disks.iter().find(|(_, disk)| is_it(disk)).map(|(name, _)| name.clone());
        name.unwrap_or_else(|| id.to_string())
    }

    /// Nothing new is begun any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether every pool's reactor turns. Waits for as long as one does not answer.
    pub fn is_alive(&self) -> bool {
        self.pools().all(|pool| pool.backend.snapshot().is_ok())
    }

    /// Stops the pools cleanly: what is staged is committed, requests in flight finish, those that come later wait for
    /// the next daemon. The disks stay known, and dirty blocks stay in the cache.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let jobs: Vec<_> = self.pools().map(|pool| (&pool.name, pool.backend.shutdown())).collect();
        for (name, job) in jobs {
            let end = job.and_then(|job| {
                while job.wait_for(std::time::Duration::from_secs(1))?.is_none() {}
                Ok(())
            });
            match end {
                Ok(()) => tracing::info!(pool = name, "stopped cleanly"),
                Err(error) => tracing::error!(pool = name, "not stopped cleanly: {error}"),
            }
        }
    }

    /// Closes the disks' vhost-user servers and ends their helpers. The reactors must have ended: they hold requests
    /// that came after the pools had stopped, and a server waits for its queues.
    pub fn close(&self) {
        for disk in self.disks().values() {
            let servers = disk.with(|inner| (inner.vhost_user.take(), inner.helper.take()));
            drop(servers);
        }
    }
}
