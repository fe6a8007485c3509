//! The locks of disks whose store supports locks: taken before a disk is attached, released after it is detached or
//! forgotten, once the pool has no dirty blocks of it.
//!
//! Invariants
//! - A pool that has dirty blocks of a disk keeps the lock of its store, unless somebody takes it away.
//! - A lock that was shared between hosts is noted in the state, from when it was taken or found until it is released.
//!   If the lock is missing, or this host is marked as fenced, the lock is taken only on request of an operator or
//!   another host, and only if every other host is connected and so can say whether it has taken the disk over. This
//!   holds even if the disk does not move any more.
//! - A failed attach releases only a lock that it has taken itself, and not if the pool has dirty blocks that only this
//!   lock protects. An earlier note of the lock stays.

use haversack_api::DiskConfig;
use haversack_model::DiskId;

use super::fenced::Marks;
use super::lock::{self, Holder};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::origin::{BlockDevice, Origin};
use crate::pool::Pool;

/// What an attach has done to the lock of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StoreLock {
    /// The attach has taken the lock.
    is_new: bool,
    /// The lock was noted before the attach.
    was_noted: bool,
}

impl Daemon {
    pub(crate) fn holder(
        &self,
        pool: &Pool,
        config: &DiskConfig,
        id: DiskId,
        device: &BlockDevice,
    ) -> Holder {
        let moves = super::can_move(&config.origin, device);
        let host = self.hosts().filter(|_| moves).map(|hosts| hosts.my_name());
        Holder::new(pool.id, &pool.name, id, &config.name, host)
    }

    /// Locks the store of an origin for a disk's pool, where the store has such locks. `is_requested`: a lock that was
    /// taken away from this host may be taken again.
    ///
    /// # Errors
    /// The store is locked for others, the lock was taken away, or the store does not answer.
    pub(crate) fn lock_store(
        &self,
        pool: &Pool,
        config: &DiskConfig,
        id: DiskId,
        origin: &Origin,
        is_requested: bool,
    ) -> Result<StoreLock> {
        let Origin::Helper(device) = origin else { return Ok(StoreLock::default()) };
        if config.read_only {
            return Ok(StoreLock::default());
        }
        let holder = self.holder(pool, config, id, device);
        // Checked even if the disk does not move any more: it may have been taken over when it did.
        let mut was_noted = self.state.has_locked(id);
        let marks = Marks::of(device, &holder)?;
        if let Some(marks) = marks.as_ref().filter(|_| !is_requested) {
            return Err(marks.error().into());
        }
        if is_requested && (marks.is_some() || was_noted && !lock::is_held(device, &holder)?) {
            self.check_connected(config, lock::other_hosts(device, &holder)?)?;
        }
        if let Some(marks) = marks {
            // This note stays even if the attach fails.
            self.state.note_locked(id, true)?;
            was_noted = true;
            marks.remove()?;
        }
        let is_new = lock::acquire(device, &holder, is_requested || !was_noted)?;
        let locked = StoreLock { is_new, was_noted };
        // Only a lock that exists now or did before is noted: a lock that never existed was not taken away.
        if holder.is_shared()
            && let Err(error) = self.state.note_locked(id, true)
        {
            self.undo_lock(pool, config, id, locked);
            return Err(error.into());
        }
        Ok(locked)
    }

    /// Refuses a disk whose lock was taken away if a host cannot say whether it has taken the disk over. The hosts in
    /// question are those that are configured, and those that have locked the disk's store.
    fn check_connected(&self, config: &DiskConfig, lockers: Vec<String>) -> Result<()> {
        let Some(known) = self.hosts() else { return Ok(()) };
        let configured = known.others().into_iter().map(|host| known.name_of(host));
        let mut hosts = configured.chain(lockers);
        let Some(away) = hosts.find(|host| !known.is_there(host)) else { return Ok(()) };
        Err(DaemonError::conflict(
            format!(
                "the lock of the origin of disk '{}' was taken away from this host, and host '{away}' is not connected: it may \
                 have taken the disk over",
                config.name
            ),
            "connect that host; neither from nor 'haversack disk own' can help. If it is permanently dead, remove it from \
             [[host]], and if it has locked the origin, take its lock away with 'rados lock break'",
        ))
    }

    /// Undoes what a failed attach has done to the lock of a store. A new lock stays if the pool has dirty blocks that
    /// no lock was known to protect. A lock that had been taken away before is released again.
    pub(crate) fn undo_lock(&self, pool: &Pool, config: &DiskConfig, id: DiskId, lock: StoreLock) {
        let recorded = pool.backend.recorded_disk(id);
        let is_clean = matches!(recorded, Ok(recorded) if recorded.is_none_or(|disk| disk.dirty_blocks == 0));
        if !lock.is_new || !lock.was_noted && !is_clean {
            return;
        }
        // The note is removed before the lock: after a crash in between, the lock is found again.
        if !lock.was_noted
            && let Err(error) = self.state.note_locked(id, false)
        {
            tracing::warn!(disk = config.name, "cannot release the lock of the origin: {error}");
            return;
        }
        self.release_store(pool, config, id);
    }

    /// Releases the lock of a disk's store, unless the pool has blocks of the disk that its store does not have. A lock
    /// that was taken away stays noted.
    pub(crate) fn unlock_store(&self, config: &DiskConfig, id: DiskId) {
        let (Ok(Origin::Helper(device)), Ok(pool), false) =
            (Origin::parse(&config.origin), self.pool(&config.pool), config.read_only)
        else {
            return;
        };
        match pool.backend.recorded_disk(id) {
            Ok(recorded) if recorded.is_none_or(|disk| disk.dirty_blocks == 0) => {}
            Ok(_) => return,
            Err(error) => return self.tell_still_locked(config, &error),
        }
        let holder = self.holder(pool, config, id, &device);
        let is_there = match holder.is_shared() || self.state.has_locked(id) {
            true => lock::is_held(&device, &holder),
            false => Ok(true),
        };
        match is_there {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.tell_still_locked(config, &error),
        }
        // The note is removed before the lock: after a crash in between, the lock is found again.
        if let Err(error) = self.state.note_locked(id, false) {
            tracing::warn!(disk = config.name, "cannot release the lock of the origin: {error}");
            return;
        }
        self.release_store(pool, config, id);
    }

    fn release_store(&self, pool: &Pool, config: &DiskConfig, id: DiskId) {
        let Ok(Origin::Helper(device)) = Origin::parse(&config.origin) else { return };
        if let Err(error) = lock::release(&device, &self.holder(pool, config, id, &device)) {
            self.tell_still_locked(config, &error);
        }
    }

    fn tell_still_locked(&self, config: &DiskConfig, error: &dyn std::error::Error) {
        tracing::warn!(disk = config.name, "cannot release the lock of the origin: {error}");
        self.events.add("still-locked", &config.name, error.to_string());
    }
}
