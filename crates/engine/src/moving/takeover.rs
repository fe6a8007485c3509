//! Disks of permanently dead hosts: taking them over, and handling a takeover by another host.

use haversack_core::{Core, DiskConfig, DiskInfo, ManageError, Moved, PeerLoss};
use haversack_model::{BlockNo, DiskHandle, DiskId, DiskNo, HostId, SectorNo};
use haversack_ownership::Record;

use crate::error::{EngineError, Result};
use crate::reactor::Reactor;

/// What a pool has recorded about a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedDisk {
    /// What the core knows.
    pub info: DiskInfo,
    /// Its dirty blocks.
    pub dirty_blocks: u64,
    /// Dirty data of it is lost, as far as is known.
    pub has_losses: bool,
}

/// What would be lost if a disk were taken over now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TakeoverLoss {
    /// Everything that the dead host had dirty and no other host knows of.
    Unknown,
    /// These runs of sectors, in order: first sector and number of sectors.
    Runs(Vec<(SectorNo, u64)>),
}

/// Joins sectors of blocks, which are in order, to runs.
fn runs(phase: u8, blocks: &[(BlockNo, u8)]) -> Vec<(SectorNo, u64)> {
    let shift = (8 - u64::from(phase)) % 8;
    let mut runs: Vec<(SectorNo, u64)> = Vec::new();
    for (block, mask) in blocks {
        for at in (0..8).filter(|at| mask >> at & 1 == 1) {
            let sector = block.0 * 8 + at - shift;
            match runs.last_mut() {
                Some((first, sectors)) if first.0 + *sectors == sector => *sectors += 1,
                _ => runs.push((SectorNo(sector), 1)),
            }
        }
    }
    runs
}

impl Reactor {
    fn known(&self, id: DiskId) -> Option<(DiskNo, DiskInfo)> {
        let infos =
            self.core.disk_numbers().filter_map(|number| Some((number, self.core.disk_info(number)?)));
        infos.into_iter().find(|(_, info)| info.id == id)
    }

    /// Returns what is recorded about a disk.
    pub(crate) fn recorded_disk(&self, id: DiskId) -> Option<RecordedDisk> {
        let (number, info) = self.known(id)?;
        let dirty_blocks = self.core.disk_usage(number).map_or(0, |usage| usage.dirty_blocks);
        Some(RecordedDisk { info, dirty_blocks, has_losses: self.core.has_losses(number) })
    }

    /// Returns what would be lost if a disk were taken over now.
    pub(crate) fn takeover_loss(&self, id: DiskId) -> TakeoverLoss {
        let Some((number, info)) = self.known(id) else { return TakeoverLoss::Unknown };
        if !info.attached || !matches!(info.moved, Moved::Depends { .. }) {
            return TakeoverLoss::Unknown;
        }
        TakeoverLoss::Runs(runs(info.phase, &Core::only_at_peer(&self.core, number)))
    }

    /// Makes this host the owner of a disk under a forced epoch. A replica on this host is not used. The takeover is
    /// complete when the record says so.
    pub(crate) fn take_over(&mut self, disk: DiskHandle, epoch: u64, loss: PeerLoss) -> Result<()> {
        let at = self.mover_at(disk)?;
        self.now = self.clock.now_us();
        self.with_mover(at, |mover, call, now| mover.migration.take_over(call, now, epoch, loss))?;
        self.look_at_serving(at);
        Ok(())
    }

    /// Like `take_over`, but uses this host's replica of the owner's dirty blocks, even if the replica is not certain.
    /// Fails, without any change, if there is no complete replica.
    pub(crate) fn take_over_with_replica(&mut self, disk: DiskHandle, epoch: u64) -> Result<()> {
        let at = self.mover_at(disk)?;
        self.now = self.clock.now_us();
        self.with_mover(at, |mover, call, now| {
            if !mover.migration.replica(call, now).is_some_and(|replica| replica.is_complete) {
                return Err(EngineError::NoReplica);
            }
            mover.migration.trust_replica();
            Ok(mover.migration.take_over(call, now, epoch, PeerLoss::Recorded)?)
        })?;
        self.look_at_serving(at);
        Ok(())
    }

    /// Records that another host has taken a disk over, or is about to. Returns whether the takeover is recorded, or
    /// was known before; otherwise the call must be repeated.
    pub(crate) fn overtaken(&mut self, id: DiskId, by: HostId, epoch: u64) -> bool {
        if self.moving.place(id).is_none() {
            let Some((_, info)) = self.known(id) else { return true };
            self.add_mover(DiskConfig::new(id, info.sectors), None, None);
        }
        // The pool does not know the other hosts yet.
        let Some(at) = self.moving.place(id) else { return false };
        self.now = self.clock.now_us();
        let done = self.with_mover(at, |mover, call, now| mover.migration.overtaken(call, now, by, epoch));
        self.look_at_serving(at);
        done
    }

    /// Another host claims to own a disk under this epoch. If the guest waits here for an earlier owner, that host
    /// is asked instead.
    pub(crate) fn heard_of_owner(&mut self, id: DiskId, host: HostId, epoch: u64) {
        let Some(at) = self.moving.place(id) else { return };
        self.now = self.clock.now_us();
        self.with_mover(at, |mover, call, now| mover.migration.heard_of_owner(call, now, host, epoch));
        self.look_at_serving(at);
    }

    /// A disk was once owned under this epoch: no grant of this epoch or a lower one is taken or passed on.
    pub(crate) fn has_forgotten(&mut self, id: DiskId, epoch: u64) {
        if let Some(at) = self.moving.place(id) {
            self.moving.movers[at].migration.has_forgotten(epoch);
        }
    }

    /// Refuses a disk that another host has taken over while dirty blocks of it are here.
    pub(super) fn check_not_overtaken(&self, id: DiskId) -> Result<()> {
        let Some((number, _)) = self.known(id) else { return Ok(()) };
        match self.core.overtaken_blocks(number) {
            0 => Ok(()),
            dirty_blocks => Err(ManageError::Overtaken { disk: id, dirty_blocks }.into()),
        }
    }

    /// Returns how many dirty blocks are here of a disk that another host has taken over.
    pub(super) fn overtaken_blocks(&self, at: usize) -> u64 {
        let mover = &self.moving.movers[at];
        let is_overtaken = matches!(mover.migration.record(), Record::Overtaken { .. });
        mover.migration.disk().filter(|_| is_overtaken).map_or(0, |disk| self.core.overtaken_blocks(disk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_neighbours_are_one_run() {
        let blocks = [(BlockNo(0), 0b1100_0000), (BlockNo(1), 0b0000_0011), (BlockNo(5), 255)];
        assert_eq!(runs(0, &blocks), [(SectorNo(6), 4), (SectorNo(40), 8)]);
        assert_eq!(runs(7, &blocks), [(SectorNo(5), 4), (SectorNo(39), 8)]);
    }
}
