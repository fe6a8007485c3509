//! Finds out whether the guests of disks that have moved here have their write caches on.
//!
//! The host that served the guest before knows it. Until it has told this host, every write of the guest is durable
//! before it is answered. If that host is dead, or has forgotten the disk, this stays so until the guest switches its
//! write cache here, or its driver restarts.
//!
//! Invariants
//! - A write cache counts as on only once that is durable in this host's state.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_engine::WriteCacheSetting;
use haversack_migrate::ToldWriteCache;
use haversack_model::DiskId;

use crate::daemon::{Daemon, Disk};
use crate::error::Result;

/// The first pause before the hosts are asked again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// When to ask the hosts about a disk again.
struct Asked {
    /// The epoch under which this host owns the disk.
    epoch: u64,
    next: Instant,
    pause: Duration,
}

/// See the module.
#[derive(Default)]
pub(super) struct WriteCaches(HashMap<DiskId, Asked>);

impl WriteCaches {
    /// Records and applies what is known. Returns the disks about which the other hosts are to be asked now.
    pub fn look(&mut self, daemon: &Daemon, now: Instant) -> Vec<DiskId> {
        let doubted: Vec<_> = daemon.disks().values().filter_map(|disk| daemon.doubted_epoch(disk)).collect();
        self.whom_to_ask_about(&doubted, now)
    }

    fn whom_to_ask_about(&mut self, doubted: &[(DiskId, u64)], now: Instant) -> Vec<DiskId> {
        self.0.retain(|id, asked| doubted.contains(&(*id, asked.epoch)));
        let mut due = Vec::new();
        for (id, epoch) in doubted {
            let asked = self.0.entry(*id).or_insert(Asked { epoch: *epoch, next: now, pause: FIRST_PAUSE });
            if asked.next <= now {
                due.push(*id);
                asked.next = now + asked.pause;
                asked.pause = (asked.pause * 2).min(LONGEST_PAUSE);
            }
        }
        due
    }
}

/// Returns the epoch under which this host owns a disk, and what is known of its guest's write cache, if the disk is
/// served on a vhost-user socket.
fn served(disk: &Disk) -> Option<(u64, WriteCacheSetting)> {
    let (epoch, setting) = disk.with(|inner| inner.vhost_user.as_ref().map(|server| server.write_cache()))?;
    Some((epoch?, setting))
}

impl Daemon {
    /// Returns the disk and the epoch under which this host owns it, if the setting of its guest is in doubt. What is
    /// known in only one of both places, the state and the data path, is told to the other one.
    fn doubted_epoch(&self, disk: &Disk) -> Option<(DiskId, u64)> {
        let (epoch, setting) = served(disk)?;
        let memory = self.state.write_cache(disk.id);
        let told = match (setting, memory.is_sure(Some(epoch))) {
            (WriteCacheSetting::Unknown, false) => return Some((disk.id, epoch)),
            (WriteCacheSetting::Unknown, true) => self.settle_write_cache(disk, epoch, !memory.is_off),
            (_, false) => {
                let confirmed = self.state.change_write_cache(disk.id, |memory| memory.confirmed(epoch));
                confirmed.map_err(Into::into)
            }
            (_, true) => Ok(()),
        };
        if let Err(error) = told {
            tracing::debug!(%disk.id, "the guest's write cache is not settled: {error}");
        }
        None
    }

    fn settle_write_cache(&self, disk: &Disk, epoch: u64, on: bool) -> Result<()> {
        let backend = &self.pool(&disk.config().pool)?.backend;
        backend.settle_write_cache(disk.attached()?, epoch, on)?;
        Ok(())
    }

    /// Remembers and applies what another host tells of a guest's write cache, if that is in doubt here.
    pub(super) fn learn_write_cache(&self, id: DiskId, host: &str, told: ToldWriteCache) {
        let Ok((name, disk)) = self.by_id(id) else { return };
        let is_doubted = |(epoch, setting): &(u64, WriteCacheSetting)| {
            *setting == WriteCacheSetting::Unknown && told.is_for(*epoch)
        };
        let Some((epoch, _)) = served(&disk).filter(is_doubted) else { return };
        if let Err(error) = self.state.change_write_cache(id, |memory| memory.learned(epoch, told)) {
            tracing::warn!(disk = name, "its guest's writes stay durable when they are answered: {error}");
            return;
        }
        let on = !self.state.write_cache(id).is_off;
        tracing::info!(disk = name, host, on, "the write cache of the guest is known");
        self.doubted_epoch(&disk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_asked_at_once_and_then_ever_less_often() {
        let (mut caches, disk, start) = (WriteCaches::default(), DiskId([1; 16]), Instant::now());
        let mut ask = |doubted: &[(DiskId, u64)], after_s: u64| {
            !caches.whom_to_ask_about(doubted, start + Duration::from_secs(after_s)).is_empty()
        };
        let times: Vec<u64> = (0..300).filter(|after_s| ask(&[(disk, 2)], *after_s)).collect();
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
        assert!(ask(&[(disk, 4)], 300), "it has been elsewhere since");
        assert!(!ask(&[], 301) && ask(&[(disk, 4)], 302));
    }
}
