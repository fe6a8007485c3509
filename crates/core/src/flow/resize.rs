//! Changing the size of an attached disk.
//!
//! Growing: no page and no staging descriptor may list what once lay beyond the end, then the record says
//! the new size. Shrinking: requests beyond the new end are refused, those in flight end; then the record says the
//! new size; then what lies beyond is dropped. Opening the pool drops it too.
//!
//! Invariants
//! - A crash finds either size whole: until the record is durable, the old one holds for all but new requests,
//!   and the cleaner writes what lies beyond the new end.
//! - What once lay beyond the end never comes back when the disk grows over it.

use haversack_model::{DiskNo, Micros};

use crate::action::JobId;
use crate::config::DiskConfig;
use crate::core::Core;
use crate::error::ManageError;
use crate::flow::job::JobKind;
use crate::memory::Memory;

/// How far a change of size is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResizeStage {
    /// Requests beyond the new end are in flight.
    Requests,
    /// Something may list what once lay beyond the old end, or the map fits the new size not yet.
    Pages,
    /// The record is being written.
    Record { version: u64 },
    /// The record says the new size; what lies beyond is still there.
    Beyond,
    /// It is dropped; pages may list it.
    Forgotten,
}

impl<M: Memory> Core<M> {
    /// Changes the size. What lies beyond a smaller size is dropped from the cache.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or the size is wrong.
    pub fn resize(&mut self, now: Micros, disk: DiskNo, sectors: u64) -> Result<JobId, ManageError> {
        self.now = now;
        let id = self.attached(disk)?.id;
        self.idle(disk)?;
        DiskConfig::new(id, sectors).check().map_err(ManageError::BadConfig)?;
        let kind = JobKind::Resize { before: self.disk(disk).sectors, sectors, stage: ResizeStage::Requests };
        Ok(self.start_job(disk, kind, None))
    }

    pub(crate) fn drive_resize(&mut self, disk: DiskNo, before: u64, sectors: u64, stage: ResizeStage) {
        let shrinks = sectors < before;
        let next = match stage {
            ResizeStage::Requests if !self.reaches_beyond(disk, sectors) => {
                let intents = &mut self.disk_mut(disk).intents;
                if intents.set_size(sectors) {
                    intents.mark_all_durably();
                }
                ResizeStage::Pages
            }
            ResizeStage::Pages if self.may_resize(disk, shrinks) => {
                self.disk_mut(disk).next_sectors = Some(sectors);
                ResizeStage::Record { version: self.change_record() }
            }
            ResizeStage::Record { version }
                if self.record.is_durable(version) && self.is_last_block_quiet(disk, sectors.min(before)) =>
            {
                let d = self.disk_mut(disk);
                (d.sectors, d.next_sectors) = (sectors, None);
                ResizeStage::Beyond
            }
            ResizeStage::Beyond if !shrinks || self.drop_beyond(disk, sectors) => ResizeStage::Forgotten,
            ResizeStage::Forgotten if !shrinks || self.nothing_listed(disk) => {
                self.end_job(disk, Ok(()));
                return;
            }
            _ => return,
        };
        self.staging.drop_all_data(disk);
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.kind = JobKind::Resize { before, sectors, stage: next };
        }
        self.drive_resize(disk, before, sectors, next);
    }

    /// Whether a request in flight reaches beyond so many sectors.
    fn reaches_beyond(&self, disk: DiskNo, sectors: u64) -> bool {
        self.requests.iter().any(|(_, r)| r.disk == disk && r.sector + u64::from(r.sectors) > sectors)
    }

    /// Whether nothing is under way in the block in which so many sectors end: how many of its sectors are inside must
    /// not change under who has found it covered.
    fn is_last_block_quiet(&self, disk: DiskNo, sectors: u64) -> bool {
        let last = self.disk(disk).blocks(sectors - 1, 1).0;
        self.locks.get(disk, last).is_none()
    }

    /// Whether the record may say the new size.
    fn may_resize(&mut self, disk: DiskNo, shrinks: bool) -> bool {
        let trimmed = self.staging.all_of(disk).any(|f| self.staging.get(f).trimmed);
        let no_device = self.alive_devices().next().is_none();
        let marked = self.disk(disk).intents.is_durably_marked();
        !trimmed && (no_device || marked && (shrinks || self.pages_current(disk)))
    }

    /// Whether no page lists what was dropped.
    fn nothing_listed(&mut self, disk: DiskNo) -> bool {
        self.alive_devices().next().is_none() || self.pages_current(disk)
    }

    /// Drops what lies beyond the end, once nothing of it is on its way.
    fn drop_beyond(&mut self, disk: DiskNo, sectors: u64) -> bool {
        let last = self.disk(disk).blocks(sectors - 1, 1).0;
        let staged = self.staging.all_of(disk).any(|f| self.staging.get(f).block >= last);
        if staged || !self.disk(disk).cleaner.is_idle() || self.disk(disk).restaging > 0 {
            return false;
        }
        let inside = self.disk(disk).inside(last);
        let segments = self.store.disks[disk.0 as usize].segments.clone();
        for segment in segments {
            for number in self.store.slots_of(segment) {
                let Some(slot) = self.store.live(number).filter(|slot| slot.block() >= last) else {
                    continue;
                };
                if slot.block() > last
                    || slot.mask() & inside == 0
                    || !slot.dirty() && slot.mask() & !inside != 0
                {
                    self.store.invalidate(disk, slot.block());
                } else {
                    self.store.trim(number, inside);
                }
            }
        }
        self.wake_dirty(disk);
        true
    }

    /// Whether no durable page of the disk lists overtaken content; asks for the pages that do.
    fn pages_current(&mut self, disk: DiskNo) -> bool {
        let mut current = true;
        for segment in self.store.disks[disk.0 as usize].segments.clone() {
            let s = &self.store.segments[segment];
            if s.stale {
                self.shrink_page(segment);
                current = false;
            } else if !s.page_ready(self.durability.flushed()) {
                self.durability.want(s.page_seq);
                current = false;
            }
        }
        current
    }
}
