//! Whether a pool's blocks of a disk are current, judged by who used the disk's origin last ([`crate::uses`]).
//!
//! Invariants
//! - Before a disk can have dirty blocks in a pool, it is recorded that it may. The record is withdrawn only when the
//!   disk is detached from that pool, which cleans it, when its blocks there are forgotten, or when the user accepts
//!   their loss.
//! - When a disk is attached, its clean blocks are dropped unless its last use in that pool is recorded and, as far as
//!   can be determined, its origin was not modified since.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use haversack_api::{DiskConfig, DiskState, Mode};
use haversack_core::Moved;
use haversack_model::{DiskId, WriteMode, WriteThroughAck};

use crate::daemon::{Daemon, DiskInner};
use crate::error::{DaemonError, Result};
use crate::exclusive::Store;
use crate::origin::Origin;
use crate::pool::Pool;
use crate::uses::Use;

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

/// Returns when an origin was last modified, if it is a regular file.
fn modified_ns(origin: &str) -> Result<Option<i64>> {
    let Ok(Origin::File(path)) = Origin::parse(origin) else { return Ok(None) };
    let file = std::fs::metadata(&path).map_err(|error| {
        let what = format!("cannot read the modification time of origin {}: {error}", path.display());
        DaemonError::conflict(what, "make the file accessible, and attach the disk again")
    })?;
    let ns = || file.mtime().checked_mul(1_000_000_000)?.checked_add(file.mtime_nsec());
    Ok(if file.is_file() { ns() } else { None })
}

/// Returns whether a use is of this origin, even if the use names the origin differently.
fn is_use_of(known: &Use, origin: &str, store: &Store) -> bool {
    known.origin == origin || Store::without_backing(&known.origin).shared(store).is_some()
}

impl Daemon {
    /// Returns the position of the use of a disk through a pool.
    fn own_use(&self, uses: &[Use], id: DiskId, pool: &Pool) -> Option<usize> {
        let recorded = uses.iter().position(|known| known.is_by(id, pool.id));
        // A use from before uses were recorded has no pool identity. If its pool's name is no longer configured, the
        // pool may have been renamed.
        let has_name = |known: &Use| {
            let is_gone = || matches!(self.pool(&known.pool), Err(DaemonError::NoSuch { .. }));
            known.pool == pool.name || (pool.known(id).is_some() && is_gone())
        };
        recorded.or_else(|| {
            uses.iter().position(|known| known.pool_id.is_none() && known.is_of(id) && has_name(known))
        })
    }

    /// Returns whether what a pool has of a disk may be older than the disk's origin.
    ///
    /// # Errors
    /// Dirty blocks may be older than the origin, or the origin's modification time cannot be read.
    pub(crate) fn is_outdated(&self, config: &DiskConfig, id: DiskId, pool: &Pool) -> Result<bool> {
        // If another host has or had the disk, the epoch decides whether its blocks are current.
        if !matches!(pool.backend.recorded_move(id)?, None | Some(Moved::No)) {
            return Ok(false);
        }
        let Some(known) = pool.known(id) else { return Ok(false) };
        let dirty_bytes = known.dirty_bytes;
        let uses = self.state.uses.list();
        let has = format!("pool '{}' has blocks of disk '{}' with id {id}", pool.name, config.name);
        let what = match self.own_use(&uses, id, pool).map(|at| &uses[at]) {
            Some(own) if own.is_ended => {
                format!("{has} from before its origin was used by another disk or pool")
            }
            // The disk was attached when its blocks became dirty, so they were current.
            Some(_) if dirty_bytes > 0 => return Ok(false),
            Some(own) if own.is_outdated => format!("{has} that were out of date before"),
            Some(own) => {
                let is_accepted = config.accept_origin_change.as_ref() == Some(&config.name);
                let is_modified =
                    own.modified_ns.is_some() && own.modified_ns != modified_ns(&config.origin)?;
                if is_accepted || !is_modified {
                    return Ok(false);
                }
                format!("{has} from before its origin was modified, while the disk was detached")
            }
            None => {
                let store = Store::without_backing(&config.origin);
                let other = uses.iter().find(|known| is_use_of(known, &config.origin, &store));
                match other {
                    Some(other) => format!(
                        "{has} from before its origin was used in pool '{}' as disk '{}' with id {}",
                        other.pool, other.name, other.disk_id
                    ),
                    None if dirty_bytes > 0 || !self.state.uses.is_complete() => return Ok(false),
                    None => format!("{has}, but there is no record that they belong to its origin"),
                }
            }
        };
        if dirty_bytes > 0 {
            return Err(DaemonError::conflict(
                format!(
                    "{what}; {dirty_bytes} bytes of them are dirty, and could be written over newer data"
                ),
                "attach the disk as it was used last; or destroy those blocks with 'haversack disk forget ID'",
            ));
        }
        tracing::warn!(disk = config.name, "{what}: dropping {} cached bytes", known.cached_bytes);
        Ok(true)
    }

    /// Records that a disk is about to use its origin through a pool. Returns the records that this replaces.
    pub(crate) fn begin_use(
        &self,
        config: &DiskConfig,
        id: DiskId,
        pool: &Pool,
        is_outdated: bool,
    ) -> Result<Vec<Use>> {
        let is_dirty = pool.known(id).is_some_and(|known| known.dirty_bytes > 0);
        let mut new = Use {
            origin: config.origin.clone(),
            name: config.name.clone(),
            disk_id: id.to_string(),
            pool: pool.name.clone(),
            pool_id: Some(pool.id.to_string()),
            // What comes with a disk from another host may be dirty in any mode.
            may_be_dirty: is_dirty || writes_back(config) || (self.hosts().is_some() && !config.read_only),
            is_ended: false,
            is_outdated,
            modified_ns: None,
        };
        let ended = self.uses_ended_by(config, id, pool);
        let replaced = self.state.uses.change(|uses| {
            let mut replaced = Vec::new();
            if let Some(at) = self.own_use(uses, id, pool) {
                if config.read_only && uses[at].modified_ns.is_some() {
                    new.modified_ns = modified_ns(&config.origin).unwrap_or_default();
                }
                replaced.push(std::mem::replace(&mut uses[at], new.clone()));
            } else {
                uses.push(new.clone());
            }
            for (before, after) in ended {
                if let Some(known) = uses.iter_mut().find(|known| **known == before) {
                    replaced.push(std::mem::replace(known, after));
                }
            }
            replaced
        })?;
        Ok(replaced)
    }

    /// Returns the uses that end when a disk uses its origin, each before and after the change: uses of the same
    /// origin, if the disk may write it, and uses whose dirty blocks are accepted as lost.
    fn uses_ended_by(&self, config: &DiskConfig, id: DiskId, pool: &Pool) -> Vec<(Use, Use)> {
        let store = Store::without_backing(&config.origin);
        // The origins of other disks in use are known to be different.
        let disks = self.disks().into_values().filter(|disk| disk.id != id);
        let in_use: BTreeMap<String, String> = disks
            .filter_map(|disk| {
                let is_in_use = |inner: &DiskInner| inner.state != DiskState::Detached;
                let origin = disk.with(|inner| is_in_use(inner).then(|| inner.config.origin.clone()))?;
                Some((disk.id.to_string(), origin))
            })
            .collect();
        let accepts_loss = config.accept_loss.as_ref() == Some(&config.name);
        let ends = |known: &Use| {
            if known.is_by(id, pool.id) {
                return None;
            }
            let is_written = !config.read_only
                && in_use.get(&known.disk_id) != Some(&known.origin)
                && is_use_of(known, &config.origin, &store);
            let is_lost =
                accepts_loss && self.is_dirty_in_closed_pool(known) && is_same(known, config, id, &store);
            if !is_written && !is_lost {
                return None;
            }
            let after = Use { is_ended: known.is_ended || is_written, may_be_dirty: false, ..known.clone() };
            Some((known.clone(), after))
        };
        self.state.uses.list().iter().filter_map(ends).collect()
    }

    /// Reverts [`Daemon::begin_use`] for a disk that was not attached.
    pub(crate) fn undo_use(&self, id: DiskId, pool: &Pool, replaced: Vec<Use>) {
        let undone = self.state.uses.change(|uses| {
            uses.retain(|known| !known.is_by(id, pool.id));
            for before in replaced {
                match uses.iter_mut().find(|known| key(known) == key(&before)) {
                    None => uses.push(before),
                    Some(known) if known.is_ended || !known.may_be_dirty => *known = before,
                    // The disk is in use again.
                    Some(_) => {}
                }
            }
        });
        if let Err(error) = undone {
            tracing::warn!(%id, "not attached, but on record as if it was: {error}");
        }
    }

    /// Records that outdated blocks of a disk were dropped.
    pub(crate) fn note_dropped(&self, name: &str, id: DiskId, pool: &Pool) {
        let what = format!("its blocks in pool '{}' were older than its origin, and were dropped", pool.name);
        tracing::warn!(disk = name, "{what}");
        self.events.add("outdated-dropped", name, what);
        if let Err(error) = self.change_use(id, pool, |own| own.is_outdated = false) {
            tracing::warn!(disk = name, "the cached blocks will be dropped again at the next start: {error}");
        }
    }

    /// If a disk may have dirty blocks in its new write mode, records that it may have some from now on.
    pub(crate) fn note_mode(&self, new: &DiskConfig, id: DiskId) -> Result<()> {
        if !writes_back(new) {
            return Ok(());
        }
        self.change_use(id, self.pool(&new.pool)?, |own| own.may_be_dirty = true)
    }

    /// Records that a disk was detached. The disk is clean, unless it still has blocks for another host.
    pub(crate) fn end_use(&self, config: &DiskConfig, id: DiskId, pool: &Pool) -> Result<()> {
        let is_for_other =
            matches!(pool.backend.recorded_move(id)?, Some(Moved::Peer { .. } | Moved::Depends { .. }));
        // If the modification time cannot be read now, later modifications cannot be detected.
        let modified_ns = modified_ns(&config.origin).unwrap_or_default();
        self.change_use(id, pool, |own| {
            own.may_be_dirty &= is_for_other;
            own.modified_ns = modified_ns;
        })
    }

    /// Records that detached disks are clean, if other hosts have fetched their last dirty blocks.
    pub(crate) fn note_drained(&self) {
        let disks = self.disks().into_values();
        let detached = disks.filter(|disk| disk.with(|inner| inner.state) == DiskState::Detached);
        let detached: BTreeMap<String, DiskId> =
            detached.map(|disk| (disk.id.to_string(), disk.id)).collect();
        for known in self.state.uses.list().iter().filter(|known| known.may_be_dirty) {
            let (Some(id), Some(pool)) = (detached.get(&known.disk_id), self.pool_of(known)) else {
                continue;
            };
            let moved = pool.backend.recorded_move(*id);
            if matches!(moved, Ok(Some(Moved::Away { .. } | Moved::Overtaken { .. })))
                && let Err(error) = self.change_use(*id, pool, |own| own.may_be_dirty = false)
            {
                tracing::warn!(disk = known.name, "cannot record that it is clean: {error}");
            }
        }
    }

    /// Returns the pool of a use, if it is open.
    fn pool_of(&self, known: &Use) -> Option<&Pool> {
        match &known.pool_id {
            Some(id) => self.pools().find(|pool| pool.id.to_string() == *id),
            None => self.pool(&known.pool).ok(),
        }
    }

    /// Forgets the use of a disk through a pool that has no blocks of the disk any more.
    pub(crate) fn forget_use(&self, id: DiskId, pool: &Pool) -> Result<()> {
        Ok(self.state.uses.change(|uses| {
            if let Some(at) = self.own_use(uses, id, pool) {
                uses.remove(at);
            }
        })?)
    }

    fn change_use(&self, id: DiskId, pool: &Pool, change: impl FnOnce(&mut Use)) -> Result<()> {
        Ok(self.state.uses.change(|uses| {
            if let Some(at) = self.own_use(uses, id, pool) {
                change(&mut uses[at]);
            }
        })?)
    }

    /// Returns whether a use may have left dirty blocks in a pool that is not open. An open pool knows its dirty blocks
    /// itself.
    fn is_dirty_in_closed_pool(&self, known: &Use) -> bool {
        known.may_be_dirty && self.pool_of(known).is_none()
    }

    /// Refuses a disk that may have dirty blocks in a pool which is not open, under this name or identity or with this
    /// origin.
    pub(crate) fn refuse_dirty_in_closed_pool(&self, config: &DiskConfig, id: DiskId) -> Result<()> {
        if config.accept_loss.as_ref() == Some(&config.name) {
            return Ok(());
        }
        let uses = self.state.uses.list();
        // If the use has no pool identity, a pool that knows the disk counts as the pool of that use, renamed.
        let own = self.own_use(&uses, id, self.pool(&config.pool)?);
        let store = Store::without_backing(&config.origin);
        let refused = uses.iter().enumerate().find(|(at, known)| {
            own != Some(*at) && self.is_dirty_in_closed_pool(known) && is_same(known, config, id, &store)
        });
        let Some((_, Use { name, pool, pool_id, .. })) = refused else { return Ok(()) };
        let identity = pool_id.as_ref().map_or(String::new(), |id| format!(" with id {id}"));
        Err(DaemonError::conflict(
            format!(
                "disk '{name}' was attached in pool '{pool}'{identity}, which is not open, and may have dirty blocks there that \
                 disk '{}' would not see",
                config.name
            ),
            "open that pool, and detach the disk there; or, if that pool is lost or was cleaned, repeat the name of the disk to \
             attach as accept_loss",
        ))
    }
}

/// A use is identified by its disk and its pool.
fn key(known: &Use) -> (&str, Option<&str>) {
    (&known.disk_id, known.pool_id.as_deref())
}

/// Returns whether a use is by this disk, by a disk of the same name, or of the same origin.
fn is_same(known: &Use, config: &DiskConfig, id: DiskId, store: &Store) -> bool {
    known.is_of(id) || known.name == config.name || is_use_of(known, &config.origin, store)
}
