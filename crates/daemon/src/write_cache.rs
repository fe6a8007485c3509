//! What this host remembers of guests' write caches: when a disk is attached, and when its guest switches.
//!
//! Invariants
//! - A switch is durable in the daemon's state before the guest is answered.
//! - Before the guest of a disk that can move is served, the state says under which epoch the setting is known.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::DiskConfig;
use haversack_core::Moved;
use haversack_engine::{Moves, WriteCacheSetting, WriteCacheSwitch};
use haversack_migrate::{AsOf, WriteCacheMemory};
use haversack_model::DiskId;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::locked::Locked;
use crate::pool::Pool;

/// The shortest time between two records of a guest's switch of its write cache.
const SWITCH_EVERY: Duration = Duration::from_millis(100);

impl Daemon {
    /// Returns what is known of the write cache of a disk's guest when the disk is about to be attached.
    pub(crate) fn known_write_cache(
        &self,
        pool: &Pool,
        id: DiskId,
        moves: Option<Moves>,
    ) -> Result<WriteCacheSetting> {
        let memory = self.state.write_cache(id);
        let info = pool.backend.recorded_disk(id)?.map(|disk| disk.info);
        let owned = info.filter(|info| info.owned).map(|info| info.epoch);
        let has_moved = moves.is_some_and(|moves| moves.from.is_some())
            || info.is_some_and(|info| info.moved != Moved::No);
        // No host has the disk, so no guest runs with it: the next one reads what it is shown.
        let is_unused = owned.is_none() && !has_moved;
        let is_known = is_unused || memory.is_sure(owned);
        Ok(if is_known { WriteCacheSetting::of(!memory.is_off) } else { WriteCacheSetting::Unknown })
    }

    /// Remembers under which epoch that is known, now that the disk is attached.
    pub(crate) fn note_write_cache(
        &self,
        id: DiskId,
        known: WriteCacheSetting,
        can_move: bool,
    ) -> Result<()> {
        if !can_move && self.state.write_cache(id).as_of == AsOf::Always {
            return Ok(());
        }
        let owned = self.owned_epoch(id).filter(|_| known != WriteCacheSetting::Unknown);
        Ok(self.state.change_write_cache(id, |memory| match owned {
            Some(epoch) => WriteCacheMemory { as_of: AsOf::Epoch(epoch), ..memory },
            None => memory.doubted(),
        })?)
    }

    /// Returns what remembers that a disk's guest switches its write cache.
    pub(crate) fn write_cache_switch(self: &Arc<Self>, config: &DiskConfig, id: DiskId) -> WriteCacheSwitch {
        let (daemon, name) = (Arc::downgrade(self), config.name.clone());
        let last = Mutex::new(None::<Instant>);
        WriteCacheSwitch(Arc::new(move |on| {
            let Some(daemon) = daemon.upgrade() else { return };
            // A guest that does nothing else must not keep the state file busy.
            let since = last.locked().replace(Instant::now()).map_or(SWITCH_EVERY, |last| last.elapsed());
            std::thread::sleep(SWITCH_EVERY.saturating_sub(since));
            let switched = WriteCacheMemory::switched(on, daemon.owned_epoch(id));
            if let Err(error) = daemon.state.change_write_cache(id, |_| switched) {
                let what = format!("its guest's write cache may be on again after a restart: {error}");
                daemon.events.add("write-cache-unsaved", &name, what);
            }
        }))
    }
}
