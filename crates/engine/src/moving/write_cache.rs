//! The write cache of the guest of a disk that can move. The guest may have switched it on another host. So when this
//! host becomes the owner, the setting is not known until someone settles it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haversack_model::DiskHandle;
use haversack_vhost_user::{WriteCache, WriteCacheSetting};

use crate::error::Result;
use crate::reactor::Reactor;

/// A guest's write cache, and the ownership under which it is known.
pub(crate) struct OwnedWriteCache {
    pub setting: Arc<WriteCache>,
    /// The epoch under which this host owns the disk, plus one; 0 if it does not.
    owned: AtomicU64,
}

impl OwnedWriteCache {
    pub fn new(setting: WriteCacheSetting) -> OwnedWriteCache {
        OwnedWriteCache { setting: Arc::new(WriteCache::new(setting)), owned: AtomicU64::new(0) }
    }

    /// Returns the epoch under which this host owns the disk, if it does.
    pub fn epoch(&self) -> Option<u64> {
        self.owned.load(Ordering::Acquire).checked_sub(1)
    }

    fn note(&self, owned: Option<u64>) {
        self.owned.store(owned.map_or(0, |epoch| epoch.saturating_add(1)), Ordering::Release);
    }

    /// Begins with this ownership, under which the setting is known as it is.
    fn begin(&self, owned: Option<u64>) {
        self.note(owned);
        if owned.is_none() {
            self.setting.set(WriteCacheSetting::Unknown);
        }
    }

    /// The ownership is this now. What was known before counts only if this host has owned the disk all along.
    fn look(&self, owned: Option<u64>) {
        if owned.is_none() || self.epoch().is_none() {
            self.setting.set(WriteCacheSetting::Unknown);
        }
        self.note(owned);
    }
}

impl Reactor {
    /// Follows the ownership of a disk whose guest has this write cache, if the disk can move.
    pub(crate) fn watch_write_cache(&mut self, disk: DiskHandle, write_cache: Arc<OwnedWriteCache>) {
        let Some(at) = self.moving.place_of(disk) else { return };
        let mover = &mut self.moving.movers[at];
        write_cache.begin(mover.owned_epoch());
        mover.write_cache = Some(write_cache);
    }

    pub(super) fn look_at_write_cache(&self, at: usize) {
        let mover = &self.moving.movers[at];
        if let Some(write_cache) = &mover.write_cache {
            write_cache.look(mover.owned_epoch());
        }
    }

    /// Says what the write cache of a disk's guest is, as was found out for this epoch. Returns false if this host no
    /// longer owns the disk under it.
    pub(crate) fn settle_write_cache(&mut self, disk: DiskHandle, epoch: u64, on: bool) -> Result<bool> {
        let at = self.mover_at(disk)?;
        self.look_at_write_cache(at);
        let mover = &self.moving.movers[at];
        let Some(write_cache) = mover.write_cache.as_ref().filter(|_| mover.owned_epoch() == Some(epoch))
        else {
            return Ok(false);
        };
        write_cache.setting.settle(on);
        Ok(true)
    }
}
