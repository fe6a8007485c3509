//! What a host has of the disks: its records, blocks, losses and replicas.

use std::collections::BTreeSet;

use haversack_core::{CacheState, Damage, DiskInfo, Moved};
use haversack_migrate::ReplicaStatus;
use haversack_model::{DiskNo, Micros, SectorNo};
use haversack_ownership::Record;

use super::{Host, Remains, Running, Shared};

impl Host {
    /// Whether this host has dirty blocks of a disk that another host has taken over: the disk cannot be served here
    /// until they are forgotten.
    pub fn has_obsolete(&self, of: usize) -> bool {
        let running = self.running.as_ref();
        running.zip(self.disk(of)).is_some_and(|(running, disk)| running.core.overtaken_blocks(disk) > 0)
    }

    /// Whether a disk is being detached or forgotten.
    pub fn is_detaching(&self, of: usize) -> bool {
        self.running.as_ref().is_some_and(|running| running.disks[of].detaching.is_some())
    }

    /// Returns what a running host has on record of a disk.
    pub fn record(&self, of: usize) -> Option<&Record> {
        self.running.as_ref().map(|running| running.disks[of].migration.record())
    }

    /// Returns a disk's number in the pool of a running host that knows it.
    pub fn disk(&self, of: usize) -> Option<DiskNo> {
        self.running.as_ref().and_then(|running| running.disks[of].migration.disk())
    }

    /// Whether a running host may serve a disk's guest.
    pub fn may_serve(&mut self, of: usize) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|r| r.disks[of].migration.may_serve(&r.core.with(&mut r.memory)))
    }

    /// Whether this host owns a disk, as far as its core knows.
    pub fn owns(&self, of: usize) -> bool {
        let Some(running) = &self.running else { return false };
        let info = running.disks[of].migration.disk().and_then(|disk| running.core.disk_info(disk));
        info.is_some_and(|info| info.owned)
    }

    pub(super) fn owns_which(&self) -> Vec<bool> {
        (0..self.owned.len()).map(|of| self.owns(of)).collect()
    }

    /// Returns the sectors of a disk that a running host has cached and whose state `wanted` accepts.
    pub fn sectors_of(
        &self,
        shared: &Shared,
        of: usize,
        wanted: impl Fn(CacheState) -> bool,
    ) -> BTreeSet<u64> {
        let mut sectors = BTreeSet::new();
        let (Some(running), Some(disk)) = (&self.running, self.disk(of)) else { return sectors };
        let mut from = 0;
        running.core.cache_runs(
            disk,
            SectorNo(0),
            shared.plan.disks[of].sectors,
            usize::MAX,
            |count, state| {
                if wanted(state) {
                    sectors.extend(from..from + count);
                }
                from += count;
            },
        );
        sectors
    }

    /// Returns the sectors of a disk that a running host says are lost.
    pub fn lost_sectors(&self, of: usize) -> BTreeSet<u64> {
        let known = self.running.as_ref().zip(self.disk(of));
        let runs = known.map_or_else(Vec::new, |(running, disk)| running.core.lost_runs(disk));
        runs.into_iter().flat_map(|(first, count)| first.0..first.0 + count).collect()
    }

    /// Returns what a running host's pool has on record of a disk.
    fn info(&self, of: usize) -> Option<DiskInfo> {
        self.running.as_ref()?.core.disk_info(self.disk(of)?)
    }

    /// Whether a running host has attached a disk.
    pub fn has_attached(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| info.attached)
    }

    /// Whether a running host owns a disk that it does not attach before somebody accepts that blocks of it are lost.
    pub fn is_damaged(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| info.owned && !info.attached && info.damage != Damage::None)
    }

    /// Whether a running host has attached a disk that it owns, and has no loss of it on record.
    pub fn is_whole(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| info.owned && info.attached && info.damage == Damage::None)
    }

    /// Whether a running host has a replica of another host's blocks of a disk.
    pub fn has_replica(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| matches!(info.moved, Moved::Replica { .. }))
    }

    /// Whether it refuses to have a replica of a disk.
    pub fn refuses_replica(&self, of: usize, now: Micros) -> bool {
        now < self.refuses_until && !self.has_replica(of)
    }

    /// Returns what the host has of a disk or, if the host is down, what it had when it died. A power cut may have lost
    /// some of that.
    pub fn remains_of(&self, shared: &Shared, of: usize) -> Remains {
        match self.record(of) {
            Some(record) => {
                let dirty = self.sectors_of(shared, of, |state| state.dirty);
                let before = self.remains[of].guarded_by;
                let guarded_by = if self.fenced { before } else { self.guarded_by(of) };
                Remains { record: record.clone(), dirty, guarded_by }
            }
            None => self.remains[of].clone(),
        }
    }

    /// Returns what is on record of a disk, or was last.
    pub fn last_record(&self, of: usize) -> &Record {
        self.record(of).unwrap_or(&self.remains[of].record)
    }

    /// Returns the epoch that is on record of a disk, or was last.
    pub fn last_epoch(&self, of: usize) -> u64 {
        self.last_record(of).epoch()
    }

    /// Whether flushes of a disk wait here for a replica.
    pub fn guards(&self, of: usize) -> bool {
        let Some(running) = &self.running else { return false };
        let replication = self.disk(of).and_then(|disk| running.core.replication(disk));
        replication.is_some_and(|replication| replication.guards)
    }

    /// Returns the host of the replica that flushes of a disk wait for here, unless that host was asked to drop the
    /// replica.
    pub fn guarded_by(&self, of: usize) -> Option<usize> {
        let migration = &self.running.as_ref()?.disks[of].migration;
        let is_kept = self.guards(of) && !migration.may_have_dropped_replica();
        migration.replica_host().filter(|_| is_kept).map(|host| host.0 as usize - 1)
    }

    /// Returns the replica that this host has of another host's dirty blocks of a disk, if this host runs.
    pub fn replica(&mut self, shared: &Shared, of: usize) -> Option<ReplicaStatus> {
        let Running { core, memory, disks, .. } = self.running.as_mut()?;
        disks[of].migration.replica(&core.with(memory), shared.now)
    }
}
