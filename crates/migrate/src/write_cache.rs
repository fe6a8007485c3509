//! Whether a guest has its write cache on, as it travels with the guest's disk.
//!
//! A guest switches its write cache once, and its hypervisor does not repeat that after a move. So a host remembers the
//! setting together with the epoch under which it owned the disk when it knew it, and tells that to the next owner.
//!
//! Invariants
//! - A host knows the setting only under the epoch that it remembers. Under any other epoch the guest may have been
//!   elsewhere, and the setting is in doubt: every write is then made durable before it is answered.
//! - A release grants the epoch that follows the owner's, and an epoch belongs to one host. So only the host that served
//!   the guest last can tell the setting. After a takeover by force, or if a grant was passed on, no host can.

use serde::{Deserialize, Serialize};

/// What a host remembers of a guest's write cache. The default is a disk whose guest has never switched it, and which
/// has never been on another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCacheMemory {
    /// The guest has switched it off.
    pub is_off: bool,
    /// When that was known.
    pub as_of: AsOf,
}

/// When a host knew a guest's setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsOf {
    /// Always: the disk has not come from another host.
    #[default]
    Always,
    /// While the host owned the disk under this epoch.
    Epoch(u64),
    /// The guest switched it here while it waited for the disk.
    Waiting,
}

/// What a host tells others of a guest's write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ToldWriteCache {
    /// The epoch under which the host owned the disk when it knew it.
    pub epoch: u64,
    /// The guest has switched it off.
    pub is_off: bool,
}

impl WriteCacheMemory {
    /// Returns what to remember when the guest switches it on a host that owns the disk under this epoch, if it does.
    pub fn switched(on: bool, owned: Option<u64>) -> WriteCacheMemory {
        WriteCacheMemory { is_off: !on, as_of: owned.map_or(AsOf::Waiting, AsOf::Epoch) }
    }

    /// Whether the setting is known to a host that owns the disk under this epoch, if it does.
    pub fn is_sure(self, owned: Option<u64>) -> bool {
        match self.as_of {
            AsOf::Always => owned.is_some(),
            AsOf::Epoch(epoch) => owned == Some(epoch),
            AsOf::Waiting => false,
        }
    }

    /// The disk comes from another host: the setting is in doubt until a host tells it.
    #[must_use]
    pub fn doubted(self) -> WriteCacheMemory {
        let as_of = if self.as_of == AsOf::Always { AsOf::Epoch(0) } else { self.as_of };
        WriteCacheMemory { as_of, ..self }
    }

    /// The setting was known all along, and the host owns the disk under this epoch now. An earlier epoch than before
    /// changes nothing: this was found out too late.
    #[must_use]
    pub fn confirmed(self, epoch: u64) -> WriteCacheMemory {
        let is_late = matches!(self.as_of, AsOf::Epoch(known) if known > epoch);
        WriteCacheMemory { as_of: if is_late { self.as_of } else { AsOf::Epoch(epoch) }, ..self }
    }

    /// Returns what to tell other hosts, if anything is certain.
    pub fn told(self) -> Option<ToldWriteCache> {
        match self.as_of {
            AsOf::Epoch(epoch) if epoch > 0 => Some(ToldWriteCache { epoch, is_off: self.is_off }),
            _ => None,
        }
    }

    /// Another host has told the setting to this one, which owns the disk under this epoch. A guest that switched it off
    /// while it waited here has done so later. Nothing else is changed: in particular, the guest may have switched it
    /// here since.
    #[must_use]
    pub fn learned(self, owned: u64, told: ToldWriteCache) -> WriteCacheMemory {
        if self.is_sure(Some(owned)) || !told.is_for(owned) {
            return self;
        }
        let is_off = told.is_off || self.is_off && self.as_of == AsOf::Waiting;
        WriteCacheMemory { is_off, as_of: AsOf::Epoch(owned) }
    }
}

impl ToldWriteCache {
    /// Whether it comes from the host that served the guest before the host that owns the disk under this epoch.
    pub fn is_for(self, owned: u64) -> bool {
        self.epoch.checked_add(1) == Some(owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off(epoch: u64) -> WriteCacheMemory {
        WriteCacheMemory { is_off: true, as_of: AsOf::Epoch(epoch) }
    }

    #[test]
    fn a_setting_is_known_under_the_epoch_under_which_it_was_noted() {
        let new = WriteCacheMemory::default();
        assert!(new.is_sure(Some(1)) && new.is_sure(Some(7)) && !new.is_sure(None));
        let switched = WriteCacheMemory::switched(false, Some(7));
        assert_eq!(switched, off(7));
        assert!(switched.is_sure(Some(7)) && !switched.is_sure(Some(9)) && !switched.is_sure(None));
        let waiting = WriteCacheMemory::switched(false, None);
        assert!(waiting.is_off && !waiting.is_sure(Some(7)) && !waiting.is_sure(None));
    }

    #[test]
    fn a_disk_that_comes_from_elsewhere_is_in_doubt() {
        let doubted = WriteCacheMemory::default().doubted();
        assert!(!doubted.is_sure(Some(1)) && doubted.told().is_none());
        assert_eq!(off(7).doubted(), off(7), "its epoch says how old that is");
        let waiting = WriteCacheMemory::switched(false, None);
        assert_eq!(waiting.doubted(), waiting);
    }

    #[test]
    fn only_the_host_that_served_last_tells_it() {
        assert_eq!(off(7).told(), Some(ToldWriteCache { epoch: 7, is_off: true }));
        for told in [WriteCacheMemory::default().told(), WriteCacheMemory::switched(false, None).told()] {
            assert_eq!(told, None);
        }
        let told = off(7).told().unwrap();
        let doubted = WriteCacheMemory::default().doubted();
        assert_eq!(doubted.learned(8, told), off(8));
        for epoch in [7, 9, 1_000] {
            assert_eq!(doubted.learned(epoch, told), doubted, "another host, or a takeover, came between");
        }
        assert!(!ToldWriteCache { epoch: u64::MAX, is_off: false }.is_for(0));
    }

    #[test]
    fn what_was_switched_here_wins() {
        let on = ToldWriteCache { epoch: 7, is_off: false };
        assert_eq!(off(8).learned(8, on), off(8), "it is newer");
        assert_eq!(WriteCacheMemory::switched(false, None).learned(8, on), off(8));
        assert!(!off(5).learned(8, on).is_off, "that was before the guest left");
        let told_off = ToldWriteCache { is_off: true, ..on };
        let learned = WriteCacheMemory::switched(true, None).learned(8, told_off);
        assert_eq!(learned, off(8), "a front end may have been shown that it was off");
    }

    #[test]
    fn what_was_known_all_along_is_known_under_the_next_epoch() {
        assert_eq!(off(7).confirmed(9), off(9));
        assert_eq!(off(9).confirmed(7), off(9));
        assert_eq!(WriteCacheMemory::switched(false, None).confirmed(8), off(8));
        assert_eq!(WriteCacheMemory::default().confirmed(1).told().unwrap().epoch, 1);
    }
}
