//! What is remembered of disks across restarts: their settings, and through which pool each origin was last used.
//!
//! Invariants
//! - Before a disk can have dirty blocks in a pool, it is remembered that it may. That is only forgotten when the disk is
//!   detached from that pool, which cleans it, or when its blocks there are forgotten, or when the user accepts their loss.
//! - Blocks of an origin that was used since through another pool, or as another disk, are never served: they may be older
//!   than what the origin has.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use haversack_api::{DiskConfig, DiskState, Mode};
use haversack_core::Moved;
use haversack_model::{DiskId, WriteMode, WriteThroughAck};

use crate::attach::wait;
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::exclusive::Store;
use crate::locked::Locked;
use crate::origin::Origin;
use crate::pool::Pool;
use crate::settings;
use crate::state::{LastUse, RememberedDisk};

/// Returns whether writes to a disk are acknowledged before its origin has them.
fn writes_back(config: &DiskConfig) -> bool {
    let writes_back = match config.mode {
        Mode::Auto => true,
        Mode::Fixed(mode) => {
            matches!(mode, WriteMode::WriteBack | WriteMode::WriteThrough(WriteThroughAck::Cache))
        }
    };
    writes_back && !config.read_only
}

fn last_use(pool: &Pool, id: DiskId, may_be_dirty: bool) -> LastUse {
    LastUse {
        pool: pool.name.clone(),
        pool_id: pool.id.to_string(),
        disk_id: id.to_string(),
        may_be_dirty,
        modified_ns: None,
    }
}

fn is_of(last: &LastUse, pool: &Pool, id: DiskId) -> bool {
    last.pool_id == pool.id.to_string() && last.disk_id == id.to_string()
}

/// Returns when an origin was last modified, if it is a regular file.
fn modified_ns(origin: &str) -> Option<i64> {
    let Ok(Origin::File(path)) = Origin::parse(origin) else { return None };
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    file.mtime().checked_mul(1_000_000_000)?.checked_add(file.mtime_nsec())
}

/// Returns what has been done to a disk's origin since its last use by this disk in this pool, as far as it can be known.
fn change_since(last: &LastUse, config: &DiskConfig, id: DiskId, pool: &Pool) -> Option<String> {
    if !is_of(last, pool, id) {
        return Some(format!("was used in pool '{}' as disk {}", last.pool, last.disk_id));
    }
    let is_accepted = config.accept_origin_change.as_ref() == Some(&config.name);
    let is_modified = last.modified_ns.is_some_and(|before| modified_ns(&config.origin) != Some(before));
    (is_modified && !is_accepted).then(|| "was modified while the disk was detached".into())
}

fn has_id(remembered: &RememberedDisk, id: DiskId) -> bool {
    settings::disk_id(&remembered.config).is_ok_and(|known| known == id)
}

impl Daemon {
    /// Drops what a pool has of a disk that is about to be attached there, if its origin was used since through another pool or
    /// as another disk, or is a file that was modified since the disk was detached.
    pub(crate) fn drop_outdated(&self, config: &DiskConfig, id: DiskId, pool: &Pool) -> Result<()> {
        let Some(known) = pool.known(id).filter(|known| known.cached_bytes + known.dirty_bytes > 0) else {
            return Ok(());
        };
        let remembered = self.state.disks();
        let uses =
            remembered.values().filter(|disk| has_id(disk, id)).filter_map(|disk| disk.last_use.as_ref());
        let Some(change) = uses.into_iter().find_map(|last| change_since(last, config, id, pool)) else {
            return Ok(());
        };
        let what = format!(
            "pool '{}' has {} cached bytes of disk '{}' with id {id}, {} of them dirty, from before its origin {change}",
            pool.name, known.cached_bytes, config.name, known.dirty_bytes
        );
        if known.dirty_bytes > 0 {
            let advice =
                "attach it as it was used last; or destroy those blocks with 'haversack disk forget ID'";
            return Err(DaemonError::conflict(what, advice));
        }
        // What was sent to another host is void as soon as it is not the newest.
        if !matches!(pool.backend.recorded_move(id)?, Some(Moved::No)) {
            return Ok(());
        }
        wait(&pool.backend.forget(id, false)?)?;
        pool.known.locked().remove(&id);
        tracing::warn!(disk = config.name, "{what}: dropped, they may be older than the origin");
        self.events.add("outdated-dropped", &config.name, what);
        Ok(())
    }

    /// Remembers a disk that is about to be attached.
    pub(crate) fn remember_attached(&self, disk: &Disk, config: &DiskConfig, pool: &Pool) -> Result<()> {
        if config.read_only {
            return self.remember(disk, true, self.last_use(&config.name));
        }
        let is_dirty = pool.known(disk.id).is_some_and(|known| known.dirty_bytes > 0);
        let last = last_use(pool, disk.id, is_dirty || writes_back(config));
        self.state.note_use(&self.others_with_origin(config, disk.id), &last)?;
        self.remember(disk, true, Some(last))
    }

    /// Returns the names of remembered disks with the origin or the identity of a disk, apart from it.
    fn others_with_origin(&self, config: &DiskConfig, id: DiskId) -> Vec<String> {
        let store = Store::without_backing(&config.origin);
        let is_other = |name: &str| {
            // The origins of disks in use are known to be others.
            let in_use = |disk: Arc<Disk>| disk.with(|inner| inner.state != DiskState::Detached);
            name != config.name && !self.disk(name).is_ok_and(in_use)
        };
        let shares = |disk: &RememberedDisk| {
            has_id(disk, id) || Store::without_backing(&disk.config.origin).shared(&store).is_some()
        };
        let remembered = self.state.disks().into_iter();
        remembered.filter(|(name, disk)| is_other(name) && shares(disk)).map(|(name, _)| name).collect()
    }

    /// Restores what was remembered of a disk before a failed attach.
    pub(crate) fn remember_as_before(&self, name: &str, before: Option<RememberedDisk>) {
        let restored = match before {
            Some(before) => self.state.remember(before),
            None => self.state.forget(name),
        };
        if let Err(error) = restored {
            tracing::warn!(disk = name, "not attached, retrying at the next start: {error}");
        }
    }

    /// Remembers a disk that was detached, and is clean.
    pub(crate) fn remember_detached(&self, disk: &Disk, pool: &Pool) -> Result<()> {
        self.state.note_clean(disk.id, pool.id)?;
        let config = disk.config();
        // Reading in this pool makes what another one has of the disk no older.
        let kept = self.last_use(&config.name).filter(|last| config.read_only && !is_of(last, pool, disk.id));
        let modified_ns = modified_ns(&config.origin);
        let last = kept.unwrap_or_else(|| LastUse { modified_ns, ..last_use(pool, disk.id, false) });
        self.remember(disk, false, Some(last))
    }

    /// Remembers a disk that is no longer to be attached. Its dirty blocks stay where they are.
    pub(crate) fn remember_given_up(&self, disk: &Disk) -> Result<()> {
        self.remember(disk, false, self.last_use(&disk.config().name))
    }

    /// Remembers changed settings of an attached disk.
    pub(crate) fn remember_changed(&self, disk: &Disk) -> Result<()> {
        self.remember(disk, true, self.last_use(&disk.config().name))
    }

    /// Remembers that an attached disk may have dirty blocks from now on, if it may in its new write mode.
    pub(crate) fn remember_mode(&self, disk: &Disk, new: &DiskConfig) -> Result<()> {
        if !writes_back(new) {
            return Ok(());
        }
        let last = last_use(self.pool(&new.pool)?, disk.id, true);
        Ok(self.state.note_use(std::slice::from_ref(&new.name), &last)?)
    }

    fn last_use(&self, name: &str) -> Option<LastUse> {
        self.state.disks().remove(name).and_then(|remembered| remembered.last_use)
    }

    fn remember(&self, disk: &Disk, attached: bool, last_use: Option<LastUse>) -> Result<()> {
        // Losses are accepted only once.
        let config = DiskConfig { accept_loss: None, accept_origin_change: None, ..disk.config() };
        Ok(self.state.remember(RememberedDisk { config, by_api: disk.by_api, attached, last_use })?)
    }

    /// Forgets a disk, unless a pool that is not open may have dirty blocks of it, or another pool still has some that the last
    /// use of its origin has made outdated.
    pub(crate) fn forget_remembered(&self, name: &str, id: DiskId) -> Result<()> {
        let remembered = self.state.disks().remove(name);
        let is_dirty = remembered.is_some_and(|disk| self.dirty_in_closed_pool(&disk).is_some());
        if is_dirty || self.pools().any(|pool| pool.known(id).is_some()) {
            return Ok(());
        }
        Ok(self.state.forget(name)?)
    }

    /// Returns the name of a pool that is not open in which a disk may have dirty blocks, and that pool's identity if it is
    /// recorded. What an open pool has is known to it.
    pub(crate) fn dirty_in_closed_pool<'a>(
        &self,
        disk: &'a RememberedDisk,
    ) -> Option<(&'a str, Option<&'a str>)> {
        let (name, id) = disk.dirty_pool()?;
        let is_open = match id {
            Some(id) => self.pools().any(|pool| pool.id.to_string() == id),
            None => self.pool(name).is_ok(),
        };
        (!is_open).then_some((name, id))
    }

    /// Lists a remembered disk that is not to be attached if its pool still knows it; otherwise forgets it.
    pub(crate) fn know_detached(&self, remembered: RememberedDisk) {
        let (name, pool) = (remembered.config.name.clone(), remembered.config.pool.clone());
        if let Some((left, _)) = self.dirty_in_closed_pool(&remembered)
            && matches!(self.pool(left), Err(DaemonError::NoSuch { .. }))
        {
            let what = format!(
                "it was attached in pool '{left}', which is no longer configured: its dirty data stays there"
            );
            tracing::warn!(disk = name, "{what}");
            self.events.add("left-dirty", &name, what);
        }
        let is_known =
            |disk: &Disk| self.pool(&disk.config().pool).is_ok_and(|pool| pool.known(disk.id).is_some());
        let result = match Disk::new(remembered.config, remembered.by_api, DiskState::Detached) {
            Ok(disk) if is_known(&disk) => self.insert_disk(&name, Arc::new(disk)),
            // The pool may be in the configuration again at the next start.
            _ if self.pool(&pool).is_err() => Ok(()),
            Ok(disk) => self.forget_remembered(&name, disk.id),
            Err(_) => self.state.forget(&name).map_err(DaemonError::from),
        };
        if let Err(error) = result {
            tracing::warn!(disk = name, "{error}");
        }
    }
}
