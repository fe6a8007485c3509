//! Management of disks and pools while the daemon runs, other than attaching and detaching.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haversack_api::{AddDevice, DiskChange, DiskConfig, DiskState, Job, JobKind, LostData, LostRange, Size};
use haversack_core::Moved;
use haversack_engine::RecordedDisk;
use haversack_engine::error::EngineError;
use haversack_engine::pool::Formatting;
use haversack_migrate::WriteCacheMemory;
use haversack_model::{BLOCK_BYTES, DeviceNo, DiskHandle, DiskId, SECTOR_BYTES, SectorNo};

use crate::attach::close_if_unused;
use crate::backend::StartedJob;
use crate::daemon::{Daemon, Disk, not_attached};
use crate::error::{DaemonError, Result};
use crate::exclusive::Store;
use crate::jobs::JobControl;
use crate::locked::Locked;
use crate::policy::News;
use crate::pool::{KnownDisk, Pool};
use crate::settings;

/// Maximum number of ranges in a list of what is lost.
const MOST_RANGES: usize = 10_000;
/// How long to wait for an attempt to attach a disk that is to be forgotten.
const TURN_TIME: Duration = Duration::from_secs(20);
/// What to do about a disk of which another host needs blocks.
const KEPT_FOR_OWNER: &str = "keep both hosts up until that host has them ('haversack migrate status'); if it is permanently dead, attach \
     the disk here and take it over with 'haversack disk own', then detach it, and forget it";

impl Daemon {
    /// Writes all blocks that are dirty now back to the origin.
    ///
    /// # Errors
    /// There is no such disk, or it is not attached.
    pub fn flush(self: &Arc<Self>, name: &str) -> Result<Job> {
        let disk = self.disk(name)?;
        let handle = disk.attached()?;
        let job = self.pool(&disk.config().pool)?.backend.clean(handle)?;
        self.jobs.start(JobKind::Flush, name, move |control| control.follow(&job))
    }

    /// Changes a disk's size. It shrinks only if its name is repeated and nobody uses it; the data beyond the
    /// new end is lost.
    ///
    /// # Errors
    /// There is no such disk, it is not attached, or the size is malformed or too small.
    pub fn resize(self: &Arc<Self>, name: &str, size: Size, shrink: Option<&str>) -> Result<Job> {
        let sectors = settings::sectors(size).map_err(DaemonError::Bad)?;
        let disk = self.disk(name)?;
        let handle = disk.attached()?;
        if shrink.is_some_and(|repeated| repeated != name) {
            return Err(DaemonError::Bad(format!("shrink must repeat the disk's name, '{name}'")));
        }
        let old = disk.with(|inner| inner.sectors);
        if sectors < old {
            self.check_shrink(&disk, old, sectors, shrink.is_some())?;
        }
        self.check_not_kept(&disk)?;
        let (daemon, name_too, shrinks) = (self.clone(), name.to_string(), shrink.is_some());
        self.jobs.start(JobKind::Resize, name, move |control| {
            let connected = |clients| EngineError::Connected { disk: disk.config().name, clients };
            let _closed =
                (sectors < old).then(|| close_if_unused(&disk).map_err(connected)).transpose()?;
            let pool = daemon.pool(&disk.config().pool)?;
            let has_helper = disk.with(|inner| inner.helper.is_some());
            daemon.end_replica(&disk, handle)?;
            let resized = pool.backend.resize(handle, sectors, shrinks).map_err(|error| match error {
                EngineError::OriginTooSmall { .. } if has_helper => DaemonError::conflict(
                    format!(
                        "disk '{}' cannot grow in use: its helper has opened the store with its old size; detach the disk, \
                         enlarge the store, and attach it again with --size {size}",
                        disk.config().name
                    ),
                    "detach the disk, enlarge its store, and attach it again with the new size",
                ),
                error => error.into(),
            });
            let done = resized.and_then(|job| control.follow(&job));
            daemon.renew_replica(&disk, handle);
            done?;
            daemon.note_size(&disk, handle, sectors);
            daemon.tell_resized(&name_too, old, sectors);
            disk.with(|inner| inner.config.size = Some(size));
            daemon.remember_change(&disk)
        })
    }

    /// Refuses immediately what the data path would refuse later, so that the error can name all users of the disk.
    fn check_shrink(&self, disk: &Disk, old: u64, new: u64, confirmed: bool) -> Result<()> {
        let disk_name = || disk.config().name;
        if !confirmed {
            let [present_bytes, new_bytes] = [old, new].map(|sectors| sectors * SECTOR_BYTES as u64);
            return Err(EngineError::Shrinks { disk: disk_name(), present_bytes, new_bytes }.into());
        }
        match self.users_of(disk)? {
            clients if clients.is_empty() => Ok(()),
            clients => Err(EngineError::Connected { disk: disk_name(), clients }.into()),
        }
    }

    fn tell_resized(&self, name: &str, old: u64, new: u64) {
        let [from, to] = [old, new].map(|sectors| sectors * SECTOR_BYTES as u64);
        if new < old {
            let message = format!("shrunk from {from} to {to} bytes; cached data beyond was dropped");
            tracing::warn!(disk = name, "{message}");
            self.events.add("shrunk", name, message);
        } else {
            tracing::info!(disk = name, from, to, "resized");
            self.events.add("resized", name, format!("from {from} to {to} bytes"));
        }
    }

    /// Changes settings. For a configured disk they last until the next start, when the file applies again. Changes of
    /// a disk are carried out one after the other, and a later one keeps what an earlier one has changed.
    ///
    /// # Errors
    /// There is no such disk, it is not attached, or a setting is malformed.
    pub fn change(self: &Arc<Self>, name: &str, change: &DiskChange) -> Result<Job> {
        let disk = self.disk(name)?;
        let handle = disk.attached()?;
        self.changed(&disk, change)?;
        let (daemon, change) = (self.clone(), change.clone());
        self.jobs.start(JobKind::Change, name, move |control| {
            let _turn = daemon.change_turns.take(disk.id);
            // An earlier change may have ended only now.
            let (old, new) = daemon.changed(&disk, &change)?;
            daemon.apply(control, &disk, handle, &old, new)
        })
    }

    /// Returns a disk's settings, and what a change makes of them.
    fn changed(&self, disk: &Disk, change: &DiskChange) -> Result<(DiskConfig, DiskConfig)> {
        let old = disk.config();
        let new = change.applied_to(&old);
        settings::check_disk(&new).map_err(DaemonError::Bad)?;
        // A mode in which nothing becomes dirty may be temporary: a disk is quiesced in one.
        let keeps_replica = |config: &DiskConfig| (config.replicate.clone(), config.cleaner.order);
        if keeps_replica(&new) != keeps_replica(&old) {
            settings::check_replica(&new).map_err(DaemonError::Bad)?;
        }
        let replicates = |config: &DiskConfig| (config.replicate.clone(), config.without_replica);
        if replicates(&new) != replicates(&old) {
            self.replica_policy(&new, disk.id)?;
        }
        if new.priority == 0.0 {
            let disks: Vec<_> = self.disks().into_values().map(|disk| disk.config()).collect();
            let others = disks.iter().filter(|other| other.pool == new.pool && other.name != new.name);
            haversack_control::settings::check_weights(&new.pool, others.chain([&new]))
                .map_err(DaemonError::Bad)?;
        }
        Ok((old, new))
    }

    fn apply(
        &self,
        control: &JobControl,
        disk: &Disk,
        handle: DiskHandle,
        old: &DiskConfig,
        new: DiskConfig,
    ) -> Result<()> {
        let backend = &self.pool(&new.pool)?.backend;
        if settings::target(&new) != settings::target(old) {
            backend.set_target(handle, settings::target(&new))?;
        }
        if new.admission != old.admission {
            backend.set_admission(handle, settings::admission(new.admission, 0))?;
        }
        let sectors = disk.with(|inner| inner.sectors);
        let for_core = |config| settings::core_config(config, sectors).map_err(DaemonError::Bad);
        let tuned = for_core(&new)?;
        if tuned.tuning() != for_core(old)?.tuning() {
            backend.tune(handle, tuned)?;
        }
        if new.mode != old.mode {
            self.note_mode(&new, disk.id)?;
            control.follow(&backend.set_mode(handle, new.mode.at_first())?)?;
        }
        if (&new.replicate, new.without_replica) != (&old.replicate, old.without_replica) {
            self.set_replica(disk, handle, self.replica_policy(&new, disk.id)?)?;
        }
        tracing::info!(disk = new.name, "settings changed");
        let divided = is_divided_otherwise(old, &new);
        disk.with(|inner| {
            // The disk may have been resized in the meantime.
            let new = DiskConfig { size: inner.config.size, ..new };
            if divided {
                self.policy.post(&new.pool, &new.name, News::Changed(Box::new(new.clone())));
            }
            inner.config = new;
        });
        if divided {
            self.size_filters(self.pool(&disk.config().pool)?);
            self.report_to_policy();
        }
        self.remember_change(disk)
    }

    fn remember_change(&self, disk: &Disk) -> Result<()> {
        if disk.attached().is_err() {
            // The disk was detached in the meantime. That is recorded, or it was forgotten; neither must be
            // undone.
            return Ok(());
        }
        self.remember(disk, true)
    }

    /// Returns where data of an attached disk is lost.
    ///
    /// # Errors
    /// There is no such disk, or it is not attached.
    pub fn lost(&self, name: &str) -> Result<LostData> {
        let disk = self.disk(name)?;
        let handle = disk.with(|inner| inner.handle.ok_or_else(|| not_attached(name, inner.state)))?;
        let runs = self.pool(&disk.config().pool)?.backend.lost_runs(handle)?;
        let bytes = |sectors: u64| sectors * SECTOR_BYTES as u64;
        let range = |(first, sectors): &(SectorNo, u64)| LostRange {
            offset_bytes: bytes(first.0),
            length_bytes: bytes(*sectors),
        };
        Ok(LostData {
            bytes: runs.iter().map(|run| bytes(run.1)).sum(),
            more_ranges: runs.len().saturating_sub(MOST_RANGES) as u64,
            ranges: runs.iter().take(MOST_RANGES).map(range).collect(),
        })
    }

    /// Forgets a detached disk. Its dirty data is destroyed only if its name is repeated.
    ///
    /// # Errors
    /// No pool knows it, it is attached, it is dirty and its name was not repeated, or another host needs its blocks.
    pub fn forget(self: &Arc<Self>, name: &str, destroy_dirty: Option<&str>) -> Result<Job> {
        let (pool_name, id, _) = match self.find_known(name) {
            Err(DaemonError::NoSuch { .. } | DaemonError::NoPool) if self.noted(name).is_some() => {
                return self.forget_note(name);
            }
            found => found?,
        };
        let turn = self.disk_turns.take_within(id, TURN_TIME).ok_or_else(|| {
            let what = format!("disk '{name}' is being attached or detached");
            DaemonError::conflict(what, "wait for that, and try again")
        })?;
        // It may be attached now.
        let (_, _, known) = self.find_known(name)?;
        let pool = self.pool(&pool_name)?;
        self.check_not_needed(name, id, pool)?;
        if destroy_dirty.is_some_and(|repeated| repeated != name) {
            return Err(DaemonError::Bad(format!("destroy_dirty must repeat the disk's name, '{name}'")));
        }
        if known.dirty_bytes > 0 && destroy_dirty.is_none() {
            return Err(DaemonError::Dirty { disk: name.to_string(), dirty_bytes: known.dirty_bytes });
        }
        let remembered = self.remember_forgotten(id)?;
        let job = pool.backend.forget(id, destroy_dirty.is_some(), remembered)?;
        let (daemon, name_too) = (self.clone(), name.to_string());
        let config = self.disk(name).ok().map(|disk| disk.config());
        self.jobs.start(JobKind::Forget, name, move |control| {
            let _turn = turn;
            control.follow(&job)?;
            let pool = daemon.pool(&pool_name)?;
            pool.known.locked().remove(&id);
            daemon.forget_use(id, pool)?;
            if let Some(config) = config {
                daemon.unlock_store(&config, id);
            }
            daemon.state.note_locked(id, false)?;
            daemon.state.change_write_cache(id, |_| WriteCacheMemory::default())?;
            daemon.remove_disk(&name_too);
            daemon.forget_learned(id);
            daemon.events.add("forgotten", &name_too, "its cached blocks were dropped");
            daemon.state.forget_taken_over(id)?;
            Ok(daemon.state.forget(&name_too)?)
        })
    }

    /// Returns an error if another host has the disk, and still needs dirty blocks that only this host has.
    fn check_not_needed(&self, name: &str, id: DiskId, pool: &Pool) -> Result<()> {
        let Some(RecordedDisk { info, dirty_blocks, .. }) = pool.backend.recorded_disk(id)? else {
            return Ok(());
        };
        let Moved::Peer { to } = info.moved else { return Ok(()) };
        let what = format!(
            "host '{}' has disk '{name}', and still needs {} dirty bytes that only this host has: they would be lost",
            self.host_name(to),
            dirty_blocks * BLOCK_BYTES as u64
        );
        Err(DaemonError::conflict(what, KEPT_FOR_OWNER))
    }

    /// Forgets a disk of which this host has only a note that another host has taken it over.
    fn forget_note(self: &Arc<Self>, name: &str) -> Result<Job> {
        let (daemon, name_too) = (self.clone(), name.to_string());
        self.jobs.start(JobKind::Forget, name, move |_| {
            let Some(id) = daemon.noted(&name_too) else { return Ok(()) };
            daemon.remember_forgotten(id)?;
            Ok(daemon.state.forget_taken_over(id)?)
        })
    }

    /// Returns the identity of a disk that another host has taken over, according to this host's notes.
    fn noted(&self, name: &str) -> Option<DiskId> {
        let by_name = DiskConfig::new(name, "", "");
        let by_id = DiskConfig { id: Some(name.into()), ..by_name.clone() };
        let config = self.disk(name).map(|disk| disk.config()).unwrap_or(by_name);
        let ids = [config, by_id].map(|config| settings::disk_id(&config).ok());
        ids.into_iter().flatten().find(|id| self.state.taken_over(*id).is_some())
    }

    /// Returns the pool and identity of a disk that is not attached, and what the pool has of it. The name may be the
    /// disk's, its identity, or the name from which its identity is derived.
    fn find_known(&self, name: &str) -> Result<(String, DiskId, KnownDisk)> {
        let no_such = || DaemonError::NoSuch { what: "disk", name: name.to_string() };
        let (pool, id) = self.find_detached(name)?;
        let known = self.pool(&pool)?.known(id).ok_or_else(no_such)?;
        Ok((pool, id, known))
    }

    fn find_detached(&self, name: &str) -> Result<(String, DiskId)> {
        match self.disk(name) {
            Ok(disk) => disk.with(|inner| match inner.state {
                DiskState::Detached | DiskState::Waiting => Ok((inner.config.pool.clone(), disk.id)),
                _ => Err(DaemonError::conflict(format!("disk '{name}' is in use"), "detach it first")),
            }),
            Err(no_such) => {
                let by_name = settings::disk_id(&DiskConfig::new(name, "", "")).ok();
                // If several pools know the disk, prefer the one with its dirty blocks.
                let known = self.pools().filter_map(|pool| {
                    let known = pool.known.locked();
                    let is_named = |id: DiskId| id.to_string() == name || Some(id) == by_name;
                    let (id, found) = known.iter().find(|(id, _)| is_named(**id))?;
                    Some((found.dirty_bytes, (pool.name.clone(), *id)))
                });
                let known = known.max_by_key(|(dirty_bytes, _)| *dirty_bytes).map(|(_, found)| found);
                known.ok_or(no_such)
            }
        }
    }

    /// Adds a device to a pool. Existing data on it is overwritten only if the request allows that.
    ///
    /// # Errors
    /// There is no such pool, the device is unfit or not blank, or it is an origin of a disk.
    pub fn add_device(self: &Arc<Self>, pool: &str, device: &AddDevice) -> Result<Job> {
        let path = Path::new(&device.path);
        if !path.is_absolute() {
            return Err(DaemonError::Bad(format!("'{}' is not an absolute path", path.display())));
        }
        self.sandbox().map_or(Ok(()), |sandbox| sandbox.check_added_device(path))?;
        let added = Store::of(&device.path).look_up();
        for (name, disk) in self.disks() {
            if disk.known_store().shared(&added).is_some() {
                let what = format!("{} is the origin of disk '{name}'", path.display());
                return Err(DaemonError::conflict(what, "give another device"));
            }
        }
        let formatting = Formatting { size_bytes: device.size.map(|size| size.0), overwrite: device.force };
        let job = self.pool(pool)?.backend.add_device(path, formatting)?;
        tracing::info!(pool, path = %path.display(), "adding a cache device");
        self.change_devices(JobKind::AddDevice, pool, job)
    }

    /// Empties a device and removes it from a pool.
    ///
    /// # Errors
    /// There is no such pool or device, or it is the only one.
    pub fn remove_device(self: &Arc<Self>, pool: &str, device: u8) -> Result<Job> {
        let job = self.pool(pool)?.backend.remove_device(DeviceNo(device))?;
        tracing::info!(pool, device, "removing a cache device");
        self.change_devices(JobKind::RemoveDevice, pool, job)
    }

    /// Follows a job that changes a pool's devices, then adapts the filters: the disks' shares have changed.
    fn change_devices(self: &Arc<Self>, kind: JobKind, pool: &str, job: StartedJob) -> Result<Job> {
        let (daemon, pool_too) = (self.clone(), pool.to_string());
        self.jobs.start(kind, pool, move |control| {
            control.follow(&job)?;
            daemon.size_filters(daemon.pool(&pool_too)?);
            Ok(())
        })
    }
}

/// Returns whether changed settings affect how the policy divides the pool.
fn is_divided_otherwise(old: &DiskConfig, new: &DiskConfig) -> bool {
    let is_same = (old.target, old.mode, old.admission) == (new.target, new.mode, new.admission)
        && (&old.vm, &old.tenant, old.priority) == (&new.vm, &new.tenant, new.priority)
        && (old.reservation, old.limit, old.window) == (new.reservation, new.limit, new.window);
    !is_same
}
