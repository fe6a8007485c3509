//! Finds out from the cluster's directory which disks other hosts have taken over by force. [`haversack_migrate::heed`]
//! decides what follows from that.
//!
//! Invariants
//! - Nothing waits for the directory. Without a view, everything is as if there were none.
//! - An entry counts only if its host is in a `[[host]]` table of this host: two clusters may use one etcd by mistake.
//! - What an entry says is stored durably here before a pool is told. So it still counts after a restart, even if etcd
//!   is away.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_engine::RecordedDisk;
use haversack_migrate::{KnownBefore, heed, is_concerned, is_news};
use haversack_model::{DiskId, HostId};

use super::known::after_take_over;
use super::{Hosts, bytes};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::locked::Locked;
use crate::pool::Pool;

/// How often the directory is checked although it has not changed: a pool may have been opened, or a disk attached.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A host that has taken a disk over by force, and the epoch.
pub(super) type TakeOver = (HostId, u64);

impl Daemon {
    /// Returns which other host had a disk according to the directory, and under which epoch.
    fn witnessed(&self, hosts: &Hosts, id: DiskId) -> Option<TakeOver> {
        let (host, epoch) = self.cluster()?.owner_of(id)?;
        Some((hosts.find(&host)?, epoch))
    }

    /// Returns the epoch under which any host, this one included, last owned a disk according to the directory; 0 if
    /// that is not known.
    pub(super) fn directory_epoch(&self, id: DiskId) -> u64 {
        let entry = self.cluster().and_then(|cluster| cluster.owner_of(id));
        entry.map_or(0, |(_, epoch)| epoch)
    }

    /// Remembers what the directory says of a disk. Returns the takeover that the disk's pool must still record.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub(super) fn heed_directory(&self, hosts: &Hosts, id: DiskId) -> Result<Option<TakeOver>> {
        let Some((by, epoch)) = self.witnessed(hosts, id) else { return Ok(None) };
        // A disk that is attached and does not move, such as a read-only one, is not taken from this host.
        let may_leave = |pool: &Pool, disk: &RecordedDisk| {
            !disk.info.attached || matches!(pool.backend.migration_status(id), Ok(Some(_)))
        };
        let recorded = self.pool_with(id).filter(|(pool, disk)| may_leave(pool, disk)).map(|(_, disk)| disk);
        let heeded = heed(epoch, self.state.known_before(id), recorded.as_ref().map(|disk| disk.info.epoch));
        let overtaken = recorded.filter(|_| heeded.is_overtaken);
        let floor = heeded.floor.unwrap_or(KnownBefore { epoch: 0, had: None });
        let before = match &overtaken {
            Some(disk) => after_take_over(disk, epoch).and(floor),
            None => floor,
        };
        if before.epoch > 0 {
            self.state.note_known([(id, before)])?;
        }
        if let Some(disk) = overtaken.as_ref().filter(|_| self.state.taken_over(id) != Some((by, epoch))) {
            self.state.note_taken_over([(id, by, epoch)])?;
            if is_concerned(&disk.info, disk.dirty_blocks) {
                self.tell_overtaken(id, (hosts.name_of(by).as_str(), epoch), disk.dirty_blocks);
            }
        }
        if let Some(floor) = heeded.floor {
            self.pools().try_for_each(|pool| pool.backend.has_forgotten(id, floor.epoch))?;
        }
        Ok(overtaken.map(|_| (by, epoch)))
    }

    fn tell_overtaken(&self, id: DiskId, (by, epoch): (&str, u64), dirty_blocks: u64) {
        let name = self.by_id(id).map_or_else(|_| id.to_string(), |(name, _)| name);
        let kept = match bytes(dirty_blocks) {
            0 => String::new(),
            dirty => format!(
                "; {dirty} bytes that are dirty here are kept until 'haversack disk forget {name}', and can be seen with \
                 'haversack flush-offline --list'"
            ),
        };
        let message = format!(
            "the directory of the cluster says that host '{by}' has taken the disk over by force, under epoch {epoch}: this host \
             neither serves nor cleans it any more{kept}. Start its VM where that host, or a later one, has the disk; if no host has \
             it any more, run 'haversack disk own {name}' where the VM is to run"
        );
        tracing::error!(disk = name, "{message}");
        self.events.add("directory-overtaken", &name, message);
    }

    /// Returns which host has certainly taken over a disk that this host has on record under the epoch `recorded`,
    /// according to the directory or to what this host has noted.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub(super) fn certain_take_over(
        &self,
        hosts: &Hosts,
        id: DiskId,
        recorded: u64,
    ) -> Result<Option<TakeOver>> {
        if let Some(taken) = self.heed_directory(hosts, id)? {
            return Ok(Some(taken));
        }
        // The noted takeover may have failed. It is certain if the disk is known to have been owned under that epoch.
        let known = self.state.known_before(id).map_or(0, |before| before.epoch);
        let noted = self.state.taken_over(id).filter(|(by, epoch)| *by != hosts.me && known >= *epoch);
        Ok(noted.filter(|(_, epoch)| is_news(false, recorded, *epoch)))
    }

    /// Returns the disks that this host has attached or on record.
    fn local_disks(&self) -> Vec<DiskId> {
        let recorded = self.pools().flat_map(|pool| pool.known.locked().keys().copied().collect::<Vec<_>>());
        let mut disks: Vec<DiskId> = self.disks().values().map(|disk| disk.id).chain(recorded).collect();
        disks.sort_unstable();
        disks.dedup();
        disks
    }
}

/// Watches the directory for disks of this host that other hosts have taken over.
#[derive(Default)]
pub(super) struct Witness {
    /// The revision that was looked at last, and when.
    looked: Option<(i64, Instant)>,
    /// By disk, the epochs that were already acted on.
    heeded: HashMap<DiskId, u64>,
}

impl Witness {
    /// Acts on what is new in the directory. Returns the takeovers that the pools must record.
    pub(super) fn look(&mut self, daemon: &Daemon, hosts: &Hosts) -> Vec<(DiskId, HostId, u64)> {
        let Some(revision) = daemon.cluster().map(|cluster| cluster.revision()) else { return Vec::new() };
        let now = Instant::now();
        let is_same = |(seen, at): &(i64, Instant)| *seen == revision && now < *at + LOOK_EVERY;
        if self.looked.as_ref().is_some_and(is_same) {
            return Vec::new();
        }
        self.looked = Some((revision, now));
        // A pool that is not open may have the disk on record.
        let are_all_open = daemon.closed.closed().next().is_none();
        let mut overtaken = Vec::new();
        for id in daemon.local_disks() {
            let Some((_, epoch)) = daemon.witnessed(hosts, id) else { continue };
            let heeded = self.heeded.get(&id).copied().unwrap_or_default();
            if !is_news(false, heeded, epoch) {
                continue;
            }
            match daemon.heed_directory(hosts, id) {
                Ok(taken) => {
                    overtaken.extend(taken.map(|(by, epoch)| (id, by, epoch)));
                    if are_all_open {
                        self.heeded.insert(id, epoch);
                    }
                }
                Err(error) => {
                    tracing::error!(%id, "what the directory says of it has not been noted: {error}");
                }
            }
        }
        overtaken
    }
}
