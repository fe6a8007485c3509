//! Attaching and detaching disks.
//!
//! Invariants
//! - The helper of an origin runs from before the disk is attached until it is detached.
//! - A disk's recorded size is never reduced here: the space may hold a guest's data.
//! - Attaching a configured or remembered disk is retried indefinitely. A disk requested through the API is
//!   either attached or not when its job ends, even if the job panics.
//! - A disk that its pool has keeps its handle, its lock and its helper: one that can be neither served nor detached
//!   again is attached, with an error, until it is detached.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::{DiskConfig, DiskState, Job, JobKind, redact};
use haversack_core::{JobError, ManageError, Moved};
use haversack_engine::label::{self, Label};
use haversack_engine::{
    DiskSpec, EngineError, Held, Moves, OriginSpec, VhostUserConfig, WriteCacheSetting, origin_size_bytes,
};
use haversack_model::{BLOCK_BYTES, DiskHandle, DiskId, SECTOR_BYTES, Uuid};

use crate::backend::{Backend, StartedJob, VhostUser};
use crate::daemon::{Daemon, Disk, not_attached};
use crate::error::{DaemonError, Result};
use crate::exclusive::{self, Store};
use crate::helper::{self, CONFIRM_EVERY, Helper, HelperError, HelperSpec};
use crate::jobs::JobControl;
use crate::locked::Locked;
use crate::origin::Origin;
use crate::part;
use crate::policy::News;
use crate::pool::{KnownDisk, Pool};
use crate::rbd::watchers;
use crate::sandbox::SandboxError;
use crate::state::RememberedDisk;
use crate::{origin_checks, settings, system};

/// The first pause before another attempt to attach; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before another attempt to attach.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a wait checks whether it is still needed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a wait for the first attempt to attach looks whether it has ended.
const ATTACHING_PAUSE: Duration = Duration::from_millis(10);
/// How long an attach waits for previous connections and jobs of its disk, and how often it tries again.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Where an attach request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    /// An API request. It fails if its only attempt fails.
    Requested,
    /// The configuration, or an API request from before a restart. The daemon retries until the disk is attached.
    Lasting,
}

fn wait(job: &StartedJob) -> Result<()> {
    while job.wait_for(Duration::from_secs(1))?.is_none() {}
    Ok(())
}

/// Returns how many bytes of a disk are cached; 0 if that is not known.
fn cached_bytes(backend: &dyn Backend, disk: DiskHandle) -> u64 {
    let Ok(snapshot) = backend.snapshot() else { return 0 };
    let found = snapshot.disks.iter().find(|found| found.disk == disk);
    found.map_or(0, |found| found.usage.usage_blocks * BLOCK_BYTES as u64)
}

/// Records the disk's origin on the cache devices, for recovery if this host fails.
fn label(pool: &Pool, config: &DiskConfig, id: DiskId, handle: DiskHandle, sectors: u64) {
    let (place, inode) = label::place_of(&config.origin);
    let label = Label {
        id: Uuid(id.0),
        seen_s: label::now_s(),
        size_bytes: sectors * SECTOR_BYTES as u64,
        inode,
        name: config.name.clone(),
        place_crc: label::place_crc(&place),
        place,
        ..Label::default()
    };
    if let Err(error) = pool.backend.label_disk(handle, label) {
        tracing::warn!(disk = config.name, "cannot record the origin on the cache devices: {error}");
    }
}

/// Keeps vhost-user front ends out while the returned value lives, or returns the connected ones. Once the operation
/// has begun, the data path itself keeps NBD clients out.
pub(crate) fn close_if_unused(disk: &Disk) -> std::result::Result<Option<Held>, Vec<String>> {
    let in_use = |process: String| format!("vhost-user front end {process}");
    let closed =
        disk.with(|inner| inner.vhost_user.as_ref().map(|server| server.close_if_unused()).transpose());
    closed.map_err(|processes| processes.into_iter().map(in_use).collect())
}

/// Returns the error of a disk that its pool has although it cannot be served.
fn unserved(name: &str, why: &DaemonError, stays: &DaemonError) -> DaemonError {
    let what = format!(
        "disk '{name}' is attached and not served: {why}; it cannot be detached either: {stays}; run 'haversack disk detach'"
    );
    DaemonError::conflict(what, "detach the disk, and attach it again")
}

/// An attach on request of the API. When it ends, even by a panic, a disk that is still attaching is as it was before.
struct Requested {
    daemon: Arc<Daemon>,
    name: String,
    disk: Arc<Disk>,
    before: (Option<Arc<Disk>>, Option<RememberedDisk>),
}

impl Drop for Requested {
    fn drop(&mut self) {
        if self.disk.with(|inner| inner.state == DiskState::Attaching) {
            self.daemon.undo_attach(&self.name, std::mem::take(&mut self.before));
        }
    }
}

/// How a disk is detached.
#[derive(Clone, Copy)]
struct DetachOptions {
    /// Detach even if clients are connected.
    force: bool,
    /// Give up lost sectors.
    accept_loss: bool,
}

impl Daemon {
    /// Attaches a disk on request of the API.
    ///
    /// # Errors
    /// The settings are malformed, or the disk's name or identity is in use.
    pub fn attach(self: &Arc<Self>, config: DiskConfig) -> Result<Job> {
        settings::check_disk(&config).map_err(DaemonError::Bad)?;
        settings::check_replica(&config).map_err(DaemonError::Bad)?;
        self.pool(&config.pool)?;
        self.refuse_outside(&config)?;
        let name = config.name.clone();
        let before = (self.disk(&name).ok(), self.state.disks().remove(&name));
        let disk = Arc::new(Disk::new(config, true, DiskState::Attaching)?);
        self.insert_disk(&name, disk.clone())?;
        let requested = Requested { daemon: self.clone(), name: name.clone(), disk, before };
        self.jobs.start(JobKind::Attach, &name, move |_| {
            let Requested { daemon, disk, .. } = &requested;
            // Remember the disk first: if that fails, the disk must not be attached.
            daemon.remember(disk, true)?;
            daemon.try_attach(disk, Attempt::Requested)
        })
    }

    /// Restores the list entry and the remembered state that a disk had before a failed attach.
    fn undo_attach(&self, name: &str, (listed, remembered): (Option<Arc<Disk>>, Option<RememberedDisk>)) {
        self.remove_disk(name);
        let undone = listed.map_or(Ok(()), |disk| self.insert_disk(name, disk));
        let forgotten = match remembered {
            Some(remembered) => self.state.remember(remembered),
            None => self.state.forget(name),
        };
        if let Err(error) = undone.and(forgotten.map_err(DaemonError::from)) {
            tracing::warn!(disk = name, "not attached, retrying at the next start: {error}");
        }
    }

    /// Attaches configured or remembered disks in the background, and retries until they are attached. Returns these
    /// disks, and an error for each one whose name or identity is in use.
    pub fn begin_attaching(
        self: &Arc<Self>,
        disks: Vec<(DiskConfig, bool)>,
    ) -> (Vec<Arc<Disk>>, Vec<DaemonError>) {
        let (mut attaching, mut errors) = (Vec::new(), Vec::new());
        for (config, by_api) in disks {
            let name = config.name.clone();
            let made = Disk::new(config, by_api, DiskState::Attaching).map(Arc::new);
            match made.and_then(|disk| self.insert_disk(&name, disk.clone()).map(|()| disk)) {
                Ok(disk) => {
                    let (daemon, disk_too) = (self.clone(), disk.clone());
                    std::thread::spawn(move || daemon.keep_trying(&disk_too));
                    attaching.push(disk);
                }
                Err(error) => errors.push(error),
            }
        }
        (attaching, errors)
    }

    /// Waits until the first attempt to attach each of these disks has ended, but not beyond the deadline or the stop
    /// of the daemon. Returns those that are still being attached.
    pub fn await_attached(&self, disks: &[Arc<Disk>], deadline: Instant) -> Vec<Arc<Disk>> {
        loop {
            let trying = disks.iter().filter(|disk| disk.with(|inner| inner.state == DiskState::Attaching));
            let trying: Vec<_> = trying.cloned().collect();
            if trying.is_empty() || Instant::now() >= deadline || self.is_stopping() {
                return trying;
            }
            std::thread::sleep(ATTACHING_PAUSE);
        }
    }

    fn keep_trying(self: &Arc<Self>, disk: &Arc<Disk>) {
        let name = disk.config().name;
        let mut pause = FIRST_PAUSE;
        loop {
            let attached = part::caught(|| self.try_attach(disk, Attempt::Lasting));
            let Err(error) = attached.and_then(|()| self.remember(disk, true)) else { return };
            if !self.has(&name, disk) {
                return;
            }
            if disk.is_in_pool() {
                tracing::error!(disk = name, "attached, but: {error}");
                return;
            }
            tracing::warn!(disk = name, retry_s = pause.as_secs(), "not attached: {error}");
            self.events.add("attach-failed", &name, error.to_string());
            disk.with(|inner| (inner.state, inner.error) = (DiskState::Waiting, Some(error.to_string())));
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
                if self.is_stopping() || !self.has(&name, disk) {
                    return;
                }
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns whether the daemon has exactly this disk under its name.
    fn has(&self, name: &str, disk: &Arc<Disk>) -> bool {
        self.disk(name).is_ok_and(|present| Arc::ptr_eq(&present, disk))
    }

    pub(crate) fn remember(&self, disk: &Disk, attached: bool) -> Result<()> {
        Ok(self.state.remember(RememberedDisk { config: disk.config(), by_api: disk.by_api, attached })?)
    }

    /// Makes one attempt to attach.
    fn try_attach(self: &Arc<Self>, disk: &Arc<Disk>, attempt: Attempt) -> Result<()> {
        // Also a disk that cannot be attached yet keeps others from its origin: it may have dirty blocks.
        self.claim_store(disk)?;
        let config = disk.config();
        let pool = self.pool(&config.pool)?;
        let _turn = self.disk_turns.take(disk.id);
        if !self.has(&config.name, disk) {
            let what = format!("disk '{}' was detached before it could be attached", config.name);
            return Err(DaemonError::conflict(what, "attach it again"));
        }
        // This host is about to use the disk, so the disk must no longer stand by for other hosts.
        pool.backend.withdraw(disk.id)?;
        let origin = Origin::parse(&config.origin).map_err(DaemonError::Bad)?;
        self.refuse_outside(&config)?;
        self.refuse_part_of_pool(&config)?;
        origin_checks::refuse_other_origin(pool, &config, disk.id)?;
        origin_checks::refuse_dirty_read_only(pool, &config, disk.id)?;
        self.refuse_dirty_elsewhere(&config, disk.id)?;
        let locked = self
            .lock_store(pool, &config, disk.id, &origin, attempt == Attempt::Requested)
            .map_err(|error| self.or_who_took_it(&config.name, disk.id, error))?;
        let attached = self.attach_used(disk, &config, pool, &origin, attempt);
        if attached.is_err() && !disk.is_in_pool() {
            self.undo_lock(pool, &config, disk.id, locked);
        }
        attached
    }

    /// Attaches a disk whose store is locked for this pool. The use of the origin is recorded before it begins.
    fn attach_used(
        self: &Arc<Self>,
        disk: &Disk,
        config: &DiskConfig,
        pool: &Pool,
        origin: &Origin,
        attempt: Attempt,
    ) -> Result<()> {
        let is_outdated = self.is_outdated(config, disk.id, pool)?;
        let before = self.begin_use(config, disk.id, pool, is_outdated)?;
        let attached =
            part::caught(|| self.attach_locked(disk, config, pool, origin, (attempt, is_outdated)));
        if attached.is_err() && !disk.is_in_pool() {
            self.undo_use(disk.id, pool, before);
        }
        attached
    }

    /// See [`Daemon::attach_used`].
    fn attach_locked(
        self: &Arc<Self>,
        disk: &Disk,
        config: &DiskConfig,
        pool: &Pool,
        origin: &Origin,
        (attempt, is_outdated): (Attempt, bool),
    ) -> Result<()> {
        let helper = self.start_helper(config, disk.id, origin, attempt)?;
        let helper_uri = helper.as_ref().map(|(_, uri)| uri.clone());
        let spec = origin.engine_spec(config.connections, config.origin_tls.clone(), helper_uri);
        let known = pool.known(disk.id);
        // While another host owned the disk, that host may have resized it.
        let is_elsewhere = self.hosts().is_some()
            && matches!(
                pool.backend.recorded_move(disk.id)?,
                None | Some(Moved::Away { .. } | Moved::Overtaken { .. })
            );
        let sectors =
            self.sectors(config, known.filter(|_| config.size.is_none() || !is_elsewhere), &spec)?;
        let _seeking = self.seek(disk.id);
        let replica = self.replica_policy(config, disk.id)?;
        let moves = self.moves(config, disk.id, origin, pool)?.map(|moves| Moves { replica, ..moves });
        let spec = DiskSpec { moves, is_outdated, ..self.disk_spec(config, spec, sectors)? };
        // For a disk that does not move, clear this flag before the attach: after a crash in between, the state must
        // not claim that its ownership was agreed on.
        if moves.is_none() {
            self.state.note_agreed(disk.id, false)?;
        }
        let write_cache = self.known_write_cache(pool, disk.id, moves)?;
        let (handle, job) = self.begin_attach(pool, &spec)?;
        wait(&job)?;
        // What the pool still has of the disk if the disk cannot be served after all.
        let known = known.map(|known| match is_outdated {
            true => KnownDisk { cached_bytes: 0, ..known },
            false => known,
        });
        pool.known.locked().insert(disk.id, KnownDisk { sectors, cached_bytes: 0, dirty_bytes: 0 });
        let served = part::caught(|| {
            if is_outdated {
                self.note_dropped(&config.name, disk.id, pool);
            }
            self.serve(config, pool, (disk.id, handle), &spec, write_cache)
        });
        let (vhost_user, error) = match served {
            Ok(server) => (server, None),
            Err(error) => match self.detach_again(pool, disk.id, handle, known) {
                Ok(()) => return Err(error),
                Err(stays) => (None, Some(unserved(&config.name, &error, &stays))),
            },
        };
        disk.with(|inner| {
            (inner.state, inner.error, inner.handle, inner.sectors) =
                (DiskState::Attached, error.as_ref().map(ToString::to_string), Some(handle), sectors);
            inner.config.forget_acceptances();
            self.policy.post(&config.pool, &config.name, News::Attached(Box::new(inner.config.clone())));
            (inner.vhost_user, inner.helper) = (vhost_user, helper.map(|(helper, _)| helper));
        });
        if let Some(error) = error {
            self.events.add("attach-failed", &config.name, error.to_string());
            return Err(error);
        }
        tracing::info!(
            disk = config.name,
            pool = config.pool,
            bytes = sectors * SECTOR_BYTES as u64,
            "attached"
        );
        self.events.add("attached", &config.name, format!("in pool '{}'", config.pool));
        self.grow_to_configured(config, disk, handle, sectors);
        self.size_filters(pool);
        self.report_to_policy();
        // A disk has no replica while its cache is being sent. So if the disk is to have one, its cache is requested
        // only when its VM arrives.
        let may_be_sent = config.replica_host().is_none();
        if may_be_sent && moves.is_some_and(|moves| moves.from.is_some()) {
            self.have_sent(disk)?;
        }
        Ok(())
    }

    /// Makes a disk ready for its guest, once its pool has it.
    fn serve(
        self: &Arc<Self>,
        config: &DiskConfig,
        pool: &Pool,
        (id, handle): (DiskId, DiskHandle),
        spec: &DiskSpec,
        write_cache: WriteCacheSetting,
    ) -> Result<Option<Box<dyn VhostUser>>> {
        self.apply_taken_over(pool, id)?;
        self.note_write_cache(id, write_cache, spec.moves.is_some())?;
        if spec.moves.is_some()
            && let Err(error) = self.state.note_agreed(id, true)
        {
            tracing::warn!(
                disk = config.name,
                "the other hosts will be asked again at the next start: {error}"
            );
        }
        self.resume_learned(&*pool.backend, &config.name, id, handle);
        label(pool, config, id, handle, spec.config.sectors);
        if let Some(hosts) = self.hosts() {
            hosts.replicas.place(id, spec.moves.and_then(|moves| moves.replica));
        }
        self.serve_vhost_user(config, (id, handle), spec.config.sectors, write_cache)
    }

    /// Begins to attach a disk. Waits until its previous connections and jobs have ended: a detach does not wait for
    /// all of them, and another host may cause a change of the disk's record at any time.
    fn begin_attach(&self, pool: &Pool, spec: &DiskSpec) -> Result<(DiskHandle, StartedJob)> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            match pool.backend.attach(spec.clone()) {
                Err(EngineError::Manage(ManageError::Busy))
                    if Instant::now() < deadline && !self.is_stopping() =>
                {
                    std::thread::sleep(BUSY_PAUSE);
                }
                begun => return Ok(begun?),
            }
        }
    }

    /// Refuses what the process cannot open because it is confined.
    fn refuse_outside(&self, config: &DiskConfig) -> Result<()> {
        Ok(self.sandbox().map_or(Ok(()), |sandbox| sandbox.check_disk(config))?)
    }

    /// Refuses an origin that is a cache device or a staging area, under whatever path.
    fn refuse_part_of_pool(&self, config: &DiskConfig) -> Result<()> {
        let store = Store::of(&config.origin);
        let devices = self.pools().filter_map(|pool| pool.backend.snapshot().ok()).flat_map(|s| s.devices);
        let devices = devices.map(|device| PathBuf::from(device.path));
        let Some(part) = devices.chain(exclusive::staging_areas()).find(|part| store.uses(part)) else {
            return Ok(());
        };
        Err(DaemonError::conflict(
            format!(
                "the origin of disk '{}', {}, is {}, which is part of a pool",
                config.name,
                redact::text(&config.origin),
                part.display()
            ),
            "name the disk's own image",
        ))
    }

    /// Detaches a disk that cannot be served after all, and removes it from its pool if it was new there.
    ///
    /// # Errors
    /// The pool still has it, attached.
    fn detach_again(
        &self,
        pool: &Pool,
        id: DiskId,
        handle: DiskHandle,
        known: Option<KnownDisk>,
    ) -> Result<()> {
        wait(&pool.backend.detach(handle, true, false)?)?;
        match known {
            // The blocks that it had before are still cached.
            Some(known) => drop(pool.known.locked().insert(id, KnownDisk { dirty_bytes: 0, ..known })),
            None => match pool
                .backend
                .forget(id, false, None)
                .map_err(DaemonError::from)
                .and_then(|job| wait(&job))
            {
                Ok(()) => drop(pool.known.locked().remove(&id)),
                Err(error) => tracing::warn!(%id, "not attached, but its pool still knows it: {error}"),
            },
        }
        Ok(())
    }

    fn serve_vhost_user(
        self: &Arc<Self>,
        config: &DiskConfig,
        (id, handle): (DiskId, DiskHandle),
        sectors: u64,
        write_cache: WriteCacheSetting,
    ) -> Result<Option<Box<dyn VhostUser>>> {
        let Some(socket) = &config.vhost_user else { return Ok(None) };
        let backend = &self.pool(&config.pool)?.backend;
        let shown = VhostUserConfig {
            serial: config.name.clone(),
            queues: config.queues,
            read_only: config.read_only,
            write_cache,
            on_switch: Some(self.write_cache_switch(config, id)),
        };
        let server = backend.serve_vhost_user(handle, sectors, socket, &shown)?;
        if let Some((user, group)) = self.run_as {
            system::give(socket, user, group)?;
        }
        Ok(Some(server))
    }

    fn start_helper(
        self: &Arc<Self>,
        config: &DiskConfig,
        id: DiskId,
        origin: &Origin,
        attempt: Attempt,
    ) -> Result<Option<(Helper, String)>> {
        let Origin::Helper(device) = origin else { return Ok(None) };
        let spec = HelperSpec {
            program: self.config.qemu_storage_daemon.clone(),
            disk: config.name.clone(),
            socket: helper::socket(&self.config.runtime_dir, &config.name),
            device: device.clone(),
            read_only: config.read_only,
            tells_depth: config.base.is_some(),
            run_as: self.run_as,
            confined_to: self.sandbox().and_then(|sandbox| sandbox.helper_rules(device)),
            gate: self.gate(config, id, device)?,
            confirm_every: CONFIRM_EVERY,
        };
        let uri = spec.uri();
        let helper = Helper::start(spec).map_err(|error| self.explain_helper(error))?;
        if !config.read_only {
            let after_crash =
                attempt == Attempt::Lasting && self.started.elapsed() < watchers::FORGOTTEN_AFTER;
            let holder = self.holder(self.pool(&config.pool)?, config, id, device);
            watchers::refuse_other_clients(device, &holder, after_crash)?;
        }
        Ok(Some((helper, uri)))
    }

    /// Explains an error that the sandbox may have caused: the configuration does not name an image's backing file.
    fn explain_helper(&self, error: HelperError) -> DaemonError {
        match &error {
            HelperError::Ended { last_line: why, .. } | HelperError::Store { why, .. }
                if self.sandbox().is_some() && why.contains("Permission denied") =>
            {
                SandboxError::Denied { what: error.to_string() }.into()
            }
            _ => error.into(),
        }
    }

    /// Returns the size to attach with: the recorded one, else the configured one, else the origin's.
    fn sectors(&self, config: &DiskConfig, known: Option<KnownDisk>, origin: &OriginSpec) -> Result<u64> {
        let configured = config.size.map(settings::sectors).transpose().map_err(DaemonError::Bad)?;
        match (known, configured) {
            (Some(known), Some(sectors)) if sectors < known.sectors => {
                tracing::warn!(
                    disk = config.name,
                    recorded_bytes = known.sectors * SECTOR_BYTES as u64,
                    "larger on record than configured, attached as recorded; shrink it with 'disk resize'"
                );
                Ok(known.sectors)
            }
            (Some(known), _) => Ok(known.sectors),
            (None, Some(sectors)) => Ok(sectors),
            (None, None) => Ok(origin_size_bytes(origin, config.origin_wait.0)? / SECTOR_BYTES as u64),
        }
    }

    /// Grows a disk, once it is attached, that is configured larger than recorded.
    fn grow_to_configured(&self, config: &DiskConfig, disk: &Disk, handle: DiskHandle, sectors: u64) {
        let Some(Ok(configured)) = config.size.map(settings::sectors) else { return };
        if configured <= sectors {
            return;
        }
        let grown =
            self.pool(&config.pool).and_then(|pool| wait(&pool.backend.resize(handle, configured, false)?));
        match grown {
            Ok(()) => self.note_size(disk, handle, configured),
            Err(error) => tracing::error!(disk = config.name, "cannot grow to the configured size: {error}"),
        }
    }

    /// Records a disk's new size.
    pub(crate) fn note_size(&self, disk: &Disk, handle: DiskHandle, sectors: u64) {
        let told = disk.with(|inner| {
            // The job may end after the disk was detached.
            (inner.handle == Some(handle)).then(|| {
                inner.sectors = sectors;
                self.policy.post(&inner.config.pool, &inner.config.name, News::Resized { sectors });
                inner.vhost_user.as_ref().map_or(Ok(()), |server| server.resize(sectors))
            })
        });
        let DiskConfig { name, pool, .. } = disk.config();
        match told {
            None => return,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(disk = name, "cannot report the new size to the guest: {error}");
            }
        }
        self.report_to_policy();
        if let Ok(pool) = self.pool(&pool)
            && let Some(known) = pool.known.locked().get_mut(&disk.id)
        {
            known.sectors = sectors;
        }
    }

    fn disk_spec(&self, config: &DiskConfig, origin: OriginSpec, sectors: u64) -> Result<DiskSpec> {
        Ok(DiskSpec {
            name: config.name.clone(),
            config: settings::core_config(config, sectors).map_err(DaemonError::Bad)?,
            epoch: config.epoch,
            accept_loss: config.accept_loss.as_ref() == Some(&config.name),
            is_outdated: false,
            origin,
            origin_holds_pool: config.origin_holds_pool,
            origin_wait: config.origin_wait.0,
            read_only: config.read_only,
            borrows: config.borrow,
            moves: None,
            beside: config.base.as_deref().and_then(|base| self.id_in_pool(base, &config.pool)),
        })
    }

    /// Returns the identity of a disk of a pool.
    fn id_in_pool(&self, name: &str, pool: &str) -> Option<DiskId> {
        self.disk(name).ok().filter(|disk| disk.config().pool == pool).map(|disk| disk.id)
    }

    /// Returns the users of a disk: connected front ends and NBD clients.
    ///
    /// # Errors
    /// The disk's pool is not available.
    pub fn users_of(&self, disk: &Disk) -> Result<Vec<String>> {
        let (pool, handle, front_ends) = disk.with(|inner| {
            let front_ends = inner.vhost_user.as_ref().map(|server| server.connected());
            (inner.config.pool.clone(), inner.handle, front_ends.unwrap_or_default())
        });
        let mut users: Vec<String> =
            front_ends.into_iter().map(|process| format!("vhost-user front end {process}")).collect();
        if let Some(handle) = handle {
            users.extend(self.pool(&pool)?.backend.nbd_peers(handle)?);
        }
        Ok(users)
    }

    fn check_unused(&self, name: &str, disk: &Disk) -> Result<()> {
        let clients = self.users_of(disk)?;
        if clients.is_empty() { Ok(()) } else { Err(DaemonError::InUse { disk: name.to_string(), clients }) }
    }

    /// Cleans a disk and detaches it. A disk that could not be attached yet is no longer retried. Unless
    /// `force` is set, the call is refused if clients are connected, or if dirty data would remain that nothing
    /// writes back. Lost sectors are given up only if `accept_loss` repeats the disk's name.
    ///
    /// # Errors
    /// There is no such disk, it is neither attached nor waiting to be, or the call is refused as above.
    pub fn detach(self: &Arc<Self>, name: &str, force: bool, accept_loss: Option<&str>) -> Result<Job> {
        let disk = self.disk(name)?;
        if accept_loss.is_some_and(|repeated| repeated != name) {
            return Err(DaemonError::Bad(format!("accept_loss must repeat the disk's name, '{name}'")));
        }
        let options = DetachOptions { force, accept_loss: accept_loss.is_some() };
        if !force {
            self.check_unused(name, &disk)?;
            self.check_left_clean(name, &disk)?;
        }
        let handle = disk.with(|inner| match (inner.state, inner.handle) {
            (DiskState::Attached, Some(handle)) => {
                inner.state = DiskState::Detaching;
                self.policy.post(&inner.config.pool, &inner.config.name, News::Detaching);
                Ok(Some(handle))
            }
            (DiskState::Waiting, _) => Ok(None),
            (state, _) => Err(not_attached(name, state)),
        })?;
        let mut closed = None;
        // New clients may connect until the disk is closed to them.
        if handle.is_some() && !force {
            let in_use = |clients| DaemonError::InUse { disk: name.to_string(), clients };
            let unused = close_if_unused(&disk).map_err(in_use);
            match unused.and_then(|held| self.check_unused(name, &disk).map(|()| held)) {
                Ok(held) => closed = held,
                Err(error) => {
                    self.stay_attached(&disk);
                    return Err(error);
                }
            }
        }
        let (daemon, name_too, again) = (self.clone(), name.to_string(), disk.clone());
        let started = self.jobs.start(JobKind::Detach, name, move |control| {
            let _closed = closed;
            match handle {
                Some(handle) => daemon.finish_detach(control, &name_too, &disk, handle, options),
                None => daemon.give_up(&name_too, &disk),
            }
        });
        if started.is_err() && handle.is_some() {
            self.stay_attached(&again);
        }
        started
    }

    /// Returns a disk to the attached state after a failed detach.
    fn stay_attached(&self, disk: &Disk) {
        disk.with(|inner| {
            inner.state = DiskState::Attached;
            let news = News::DetachFailed(Box::new(inner.config.clone()));
            self.policy.post(&inner.config.pool, &inner.config.name, news);
        });
    }

    /// Checks that a disk that waits to be attached and is given up has no dirty data: nothing would write it
    /// back.
    fn check_left_clean(&self, name: &str, disk: &Disk) -> Result<()> {
        let (pool, waits) = disk.with(|inner| (inner.config.pool.clone(), inner.state == DiskState::Waiting));
        let dirty_bytes = match self.pool(&pool)?.known(disk.id) {
            Some(known) if waits => known.dirty_bytes,
            _ => 0,
        };
        if dirty_bytes == 0 {
            Ok(())
        } else {
            Err(DaemonError::LeftDirty { disk: name.to_string(), dirty_bytes })
        }
    }

    fn finish_detach(
        &self,
        control: &JobControl,
        name: &str,
        disk: &Disk,
        handle: DiskHandle,
        options: DetachOptions,
    ) -> Result<()> {
        let pool = self.pool(&disk.config().pool)?;
        if let Err(error) = self.await_blocks(control, name, disk, handle) {
            self.stay_attached(disk);
            return Err(error);
        }
        if let Err(error) = self.end_replica(disk, handle) {
            self.stay_attached(disk);
            return Err(error);
        }
        let cached_bytes = cached_bytes(&*pool.backend, handle);
        self.save_learned(&*pool.backend, name, disk.id, handle, true);
        let DetachOptions { force, accept_loss } = options;
        let begun = pool.backend.detach(handle, force, accept_loss).map_err(|error| match error {
            EngineError::Connected { disk, clients } => DaemonError::InUse { disk, clients },
            error => error.into(),
        });
        let end = begun.and_then(|job| control.follow(&job)).map_err(|error| match error {
            DaemonError::Engine(EngineError::Job(JobError::DataLost)) => {
                DaemonError::DataLost { disk: name.to_string() }
            }
            error => error,
        });
        if end.is_err() {
            self.stay_attached(disk);
            self.renew_replica(disk, handle);
            return end;
        }
        if let Some(known) = pool.known.locked().get_mut(&disk.id) {
            (known.cached_bytes, known.dirty_bytes) = (cached_bytes, 0);
        }
        // Record the end of the use before anybody can attach the disk again.
        let noted = self.end_use(&disk.config(), disk.id, pool);
        let remembered = self.remember(disk, false);
        // An attach that starts from now on waits for this turn, so it takes the store's lock only after this detach
        // has released the lock.
        let turn = self.disk_turns.take(disk.id);
        let servers = disk.with(|inner| {
            (inner.state, inner.handle) = (DiskState::Detached, None);
            self.policy.post(&pool.name, name, News::Detached);
            (inner.vhost_user.take(), inner.helper.take())
        });
        self.size_filters(pool);
        self.report_to_policy();
        // The helper may take a while to end, so end it only now, without holding the disk's lock.
        drop(servers);
        self.unlock_store(&disk.config(), disk.id);
        drop(turn);
        tracing::info!(disk = name, "detached");
        self.events.add("detached", name, "clean blocks stay in the cache");
        noted.and(remembered)
    }

    /// Handles a remembered disk that is not to be attached: lists it if its pool still knows it, forgets it otherwise.
    pub fn know_detached(&self, remembered: RememberedDisk) {
        let (name, pool) = (remembered.config.name.clone(), remembered.config.pool.clone());
        let is_not_configured =
            || matches!(self.pool(&pool), Err(DaemonError::NoSuch { .. } | DaemonError::NoPool));
        if remembered.attached && is_not_configured() {
            let what = format!(
                "it was attached in pool '{pool}', which is no longer configured: its dirty data stays there"
            );
            tracing::warn!(disk = name, "{what}");
            self.events.add("left-dirty", &name, what);
        }
        let disk = Disk::new(remembered.config, remembered.by_api, DiskState::Detached);
        let is_known =
            |disk: &Disk| self.pool(&disk.config().pool).is_ok_and(|pool| pool.known(disk.id).is_some());
        let result = match disk {
            Ok(disk) if is_known(&disk) => self.insert_disk(&name, Arc::new(disk)),
            // The pool may be in the configuration again at the next start.
            Ok(disk) if self.pool(&disk.config().pool).is_err() => Ok(()),
            _ => self.state.forget(&name).map_err(DaemonError::from),
        };
        if let Err(error) = result {
            tracing::warn!(disk = name, "{error}");
        }
    }

    /// Removes a disk that waits to be attached; it stays listed if its pool knows it.
    fn give_up(&self, name: &str, disk: &Arc<Disk>) -> Result<()> {
        let config = disk.config();
        // An attempt to attach it may be under way.
        let _turn = self.disk_turns.take(disk.id);
        if !self.has(name, disk) || disk.with(|inner| inner.state != DiskState::Waiting) {
            let what = format!("disk '{name}' is no longer waiting to be attached");
            return Err(DaemonError::conflict(what, "see 'haversack disk show', and try again"));
        }
        // A pool that is not open may know the disk.
        let is_known = self.pool(&config.pool).map_or(true, |pool| pool.known(disk.id).is_some());
        self.remove_disk(name);
        if is_known {
            let detached = Disk::new(config, disk.by_api, DiskState::Detached)?;
            self.remember(&detached, false)?;
            return self.insert_disk(name, Arc::new(detached));
        }
        self.unlock_store(&disk.config(), disk.id);
        Ok(self.state.forget(name)?)
    }
}
