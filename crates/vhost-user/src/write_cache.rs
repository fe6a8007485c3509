//! Whether a disk's guest has its write cache on, where the guest may switch it.
//!
//! A front end keeps a copy of what it was shown, and drops a guest's switch to that value. So a disk whose guest's
//! setting is not known shows *on*: a later switch-off gets here. It is served as if the cache were off.

use std::sync::atomic::{AtomicU8, Ordering};

/// What is known of a guest's write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCacheSetting {
    /// Writes may be lost until they are flushed.
    On,
    /// A completed write is durable.
    Off,
    /// The guest may have switched it off on another host.
    Unknown,
}

impl WriteCacheSetting {
    /// Returns the setting of a guest that has switched its write cache on or off.
    pub fn of(on: bool) -> WriteCacheSetting {
        if on { WriteCacheSetting::On } else { WriteCacheSetting::Off }
    }
}

/// A disk's setting, shared by its protocol threads, its queues and its owner.
#[derive(Debug)]
pub struct WriteCache(AtomicU8);

const SETTINGS: [WriteCacheSetting; 3] =
    [WriteCacheSetting::On, WriteCacheSetting::Off, WriteCacheSetting::Unknown];

impl WriteCache {
    /// Makes one with this setting.
    pub fn new(setting: WriteCacheSetting) -> WriteCache {
        WriteCache(AtomicU8::new(setting as u8))
    }

    /// Returns the setting.
    pub fn get(&self) -> WriteCacheSetting {
        SETTINGS[usize::from(self.0.load(Ordering::Acquire))]
    }

    /// Whether the cache is certainly on: then a write need not be durable when it completes.
    pub fn is_on(&self) -> bool {
        self.get() == WriteCacheSetting::On
    }

    /// Changes the setting.
    pub fn set(&self, setting: WriteCacheSetting) {
        self.0.store(setting as u8, Ordering::Release);
    }

    /// Changes the setting if it is not known. The guest may have switched it meanwhile, and knows better.
    pub fn settle(&self, on: bool) {
        let (unknown, known) = (WriteCacheSetting::Unknown as u8, WriteCacheSetting::of(on) as u8);
        // An error means that it is known.
        let _ = self.0.compare_exchange(unknown, known, Ordering::AcqRel, Ordering::Acquire);
    }

    /// What a front end is shown.
    pub(crate) fn is_shown_on(&self) -> bool {
        self.get() != WriteCacheSetting::Off
    }
}

impl Default for WriteCache {
    /// Returns a write cache that is on.
    fn default() -> Self {
        WriteCache::new(WriteCacheSetting::On)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_setting_is_settled() {
        for (before, on, after) in [
            (WriteCacheSetting::Unknown, true, WriteCacheSetting::On),
            (WriteCacheSetting::Unknown, false, WriteCacheSetting::Off),
            (WriteCacheSetting::Off, true, WriteCacheSetting::Off),
            (WriteCacheSetting::On, false, WriteCacheSetting::On),
        ] {
            let cache = WriteCache::new(before);
            cache.settle(on);
            assert_eq!(cache.get(), after);
        }
    }

    #[test]
    fn an_unknown_setting_is_shown_as_on_and_counts_as_off() {
        let cache = WriteCache::new(WriteCacheSetting::Unknown);
        assert!(cache.is_shown_on() && !cache.is_on());
    }
}
