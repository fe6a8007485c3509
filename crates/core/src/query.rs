//! Queries about disks and blocks that change nothing.

use haversack_model::{DiskId, DiskNo, SECTORS_PER_BLOCK, SectorNo, WriteMode};

use crate::action::IoId;
use crate::core::Core;
use crate::format::record::{Damage, Moved};
use crate::io::{IoPurpose, OriginFlushReason, Purpose};

/// A disk as the pool knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    /// Its identity.
    pub id: DiskId,
    /// Its sectors.
    pub sectors: u64,
    /// Its grid phase.
    pub phase: u8,
    /// Its write mode.
    pub mode: WriteMode,
    /// The disk currently writes through, either because of its mode or because it has to.
    pub writes_through: bool,
    /// It takes requests.
    pub attached: bool,
    /// This host owns it.
    pub owned: bool,
    /// The ownership epoch.
    pub epoch: u64,
    /// Whether dirty blocks were lost.
    pub damage: Damage,
    /// What remains to be done of its last migration.
    pub moved: Moved,
    /// A job of it is running.
    pub busy: bool,
    /// It is owned and not attached, and all its dirty data was at the origin when it was detached: the origin alone
    /// has everything.
    pub left_clean: bool,
}

/// Whether sectors are in the cache, and whether the origin lacks them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheState {
    /// In the cache.
    pub cached: bool,
    /// In the cache, and the origin does not have them.
    pub dirty: bool,
}

/// Who issued an I/O to an origin. This decides who is affected if a write that the origin has acknowledged
/// is lost before it is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// The cleaner: what it wrote is still dirty and is written again, and no guest needs to know.
    Cleaner,
    /// A guest whose writes go past the cache: its next flush reports it.
    Guest,
}

impl Core {
    /// Returns what an I/O in flight is for, and whose blocks it carries if they are one disk's.
    pub fn purpose(&self, io: IoId) -> (IoPurpose, Option<DiskNo>) {
        let io = &self.ios[io.0];
        let disk = match io.purpose {
            Purpose::Hit { request } | Purpose::Fill { request } => Some(self.requests[request].disk),
            Purpose::Commit { batch, .. } => self.batches.disk(batch),
            _ => io.disk,
        };
        (io.purpose.into(), disk)
    }

    /// Returns who issued an I/O to an origin.
    pub fn writer(&self, io: IoId) -> Writer {
        match self.ios[io.0].purpose {
            Purpose::CleanWrite | Purpose::FlushOrigin { reason: OriginFlushReason::Clean, .. } => {
                Writer::Cleaner
            }
            _ => Writer::Guest,
        }
    }

    /// Returns what the pool knows of a disk.
    pub fn disk_info(&self, disk: DiskNo) -> Option<DiskInfo> {
        let d = self.disks.get(disk)?;
        Some(DiskInfo {
            id: d.id,
            sectors: d.sectors,
            phase: d.phase,
            mode: d.set_mode,
            writes_through: !d.mode.defers_origin(),
            attached: d.life.is_active(),
            owned: d.life.is_owned(),
            epoch: d.life.epoch(),
            damage: d.damage,
            busy: d.job.is_some(),
            left_clean: self.is_left_clean(disk),
            moved: d.moved,
        })
    }

    /// Returns the numbers of all disks that the pool knows.
    pub fn disk_numbers(&self) -> impl Iterator<Item = DiskNo> + '_ {
        self.disks.numbers()
    }

    /// Reports which sectors of a range are cached and dirty, as runs in order. It stops after `most` runs,
    /// so the end of the range may be missing. Sectors beyond the end of the disk are not cached.
    pub fn cache_runs(
        &self,
        disk: DiskNo,
        sector: SectorNo,
        sectors: u64,
        most: usize,
        mut each: impl FnMut(u64, CacheState),
    ) {
        let Some(d) = self.disks.get(disk) else { return };
        let (mut at, end) = (sector.0, sector.0.saturating_add(sectors));
        let (mut run, mut runs) = ((0, CacheState::default()), 0);
        while at < end {
            let block = d.blocks(at, 1).0;
            let (part, _) = d.part(block, at, SECTORS_PER_BLOCK as u32);
            let (first, (cached, dirty)) = (part.trailing_zeros(), self.cached_and_dirty(disk, block));
            for place in (first..SECTORS_PER_BLOCK as u32).take((end - at) as usize) {
                let bit = 1u8 << place;
                let state = CacheState { cached: cached & bit != 0, dirty: dirty & bit != 0 };
                if state != run.1 && run.0 > 0 {
                    each(run.0, run.1);
                    runs += 1;
                    run.0 = 0;
                    if runs == most {
                        return;
                    }
                }
                run = (run.0 + 1, state);
                at += 1;
            }
        }
        if run.0 > 0 {
            each(run.0, run.1);
        }
    }
}
