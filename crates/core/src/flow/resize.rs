//! Changing the size of an attached disk.
//!
//! Growing: first, pages and staging descriptors are rewritten until none lists anything beyond the old end,
//! which an earlier, larger size may have left; then the new size is recorded. Shrinking: requests beyond the
//! new end are refused and those in flight end; then the new size is recorded; then everything beyond it is
//! dropped. Opening the pool also drops it.
//!
//! Invariants
//! - A crash finds one of the two sizes, complete: until the record is durable, the old size holds for
//!   everything but new requests, and the cleaner still writes blocks beyond the new end.
//! - Old content beyond the end never comes back when the disk grows over it.

use haversack_model::{BlockNo, DiskNo, Micros};

use crate::action::JobId;
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::Call;
use crate::error::ManageError;
use crate::format::record::Moved;
use crate::jobs::{JobKind, ResizeStage};
use crate::memory::Memory;
use crate::store::slot::{SlotNo, Status};

impl<M: Memory> Call<'_, M> {
    /// Changes the size. Content beyond a smaller size is dropped from the cache.
    ///
    /// # Errors
    /// The disk is not attached, has a job or a replica, or the size is invalid; or the disk would shrink, and still
    /// needs blocks of the host that owned it before.
    pub fn resize(&mut self, now: Micros, disk: DiskNo, sectors: u64) -> Result<JobId, ManageError> {
        self.now = now;
        let id = self.attached(disk)?.id;
        self.idle(disk)?;
        self.not_replicated(disk)?;
        DiskConfig::new(id, sectors).check().map_err(ManageError::BadConfig)?;
        if sectors < self.disk(disk).sectors && matches!(self.disk(disk).moved, Moved::Depends { .. }) {
            // Blocks beyond the new end that the other host lists could neither be stored here nor be forgotten there.
            return Err(ManageError::ShrinksDependent(id));
        }
        self.end_late_copies(disk);
        self.share_less(disk, sectors);
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
                if self.durability.is_recorded(version)
                    && self.is_last_block_quiet(disk, sectors.min(before)) =>
            {
                let d = self.disk_mut(disk);
                (d.sectors, d.next_sectors) = (sectors, None);
                ResizeStage::Beyond
            }
            ResizeStage::Beyond if !shrinks || self.drop_beyond(disk, sectors) => ResizeStage::Forgotten,
            ResizeStage::Forgotten if !shrinks || planted(Bug::GrowOverOld) || self.nothing_listed(disk) => {
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

    /// Whether a request in flight reaches beyond `sectors`.
    fn reaches_beyond(&self, disk: DiskNo, sectors: u64) -> bool {
        self.requests.iter().any(|(_, r)| r.disk == disk && r.sector + u64::from(r.sectors) > sectors)
    }

    /// Whether the block that contains the last of `sectors` is not locked. The number of its sectors that
    /// are inside the disk must not change while an operation relies on covering the whole block.
    fn is_last_block_quiet(&self, disk: DiskNo, sectors: u64) -> bool {
        let last = self.disk(disk).blocks(sectors - 1, 1).0;
        self.locks.get(disk, last).is_none()
    }

    /// Whether the record may say the new size.
    fn may_resize(&mut self, disk: DiskNo, shrinks: bool) -> bool {
        let trimmed = self.staging.all_of(disk).any(|f| self.staging.get(f).trimmed);
        let no_device = self.alive_devices().next().is_none();
        let marked = self.disk(disk).intents.is_durably_marked();
        !trimmed
            && (no_device || marked && (shrinks || planted(Bug::GrowOverOld) || self.pages_current(disk)))
    }

    /// Whether no page lists dropped content.
    fn nothing_listed(&mut self, disk: DiskNo) -> bool {
        self.alive_devices().next().is_none() || self.pages_current(disk)
    }

    /// Drops content beyond the end, once none of it is in flight.
    fn drop_beyond(&mut self, disk: DiskNo, sectors: u64) -> bool {
        let last = self.disk(disk).blocks(sectors - 1, 1).0;
        let staged = self.staging.all_of(disk).any(|f| self.staging.get(f).block >= last);
        if staged || !self.disk(disk).cleaner.is_idle() || self.disk(disk).restaging > 0 {
            return false;
        }
        let inside = self.disk(disk).inside(last);
        for segment in self.store.disks[disk].segments.clone() {
            for number in self.store.slots_of(segment) {
                self.cut_slot(disk, number, last, inside);
            }
        }
        self.forget_lost_beyond(disk, last);
        self.wake_dirty(disk);
        true
    }

    /// Drops a slot's content beyond the end, which comes after the sectors `inside` of block `last`. This
    /// includes dead slots: an evicted block equals the origin's until the origin ends before it.
    fn cut_slot(&mut self, disk: DiskNo, number: SlotNo, last: BlockNo, inside: u8) {
        let slot = self.store.slot(number);
        if slot.status() == Status::Blank || slot.block() < last {
            return;
        }
        let beyond = slot.block() > last;
        match self.store.live(number) {
            Some(live) if beyond || live.mask() & inside == 0 && !live.poisoned() => {
                self.store.invalidate(disk, live.block());
            }
            Some(live) if live.dirty() => self.store.trim(number, inside),
            Some(live) if live.mask() & !inside != 0 => self.store.invalidate(disk, live.block()),
            Some(_) => (),
            None if beyond || slot.mask() & !inside != 0 => {
                let segment = self.store.segment_of(number);
                self.store.segments[segment].stale = true;
            }
            None => (),
        }
    }

    /// Whether no durable page of the disk lists overtaken content. Requests new pages where one does.
    fn pages_current(&mut self, disk: DiskNo) -> bool {
        let mut current = true;
        for segment in self.store.disks[disk].segments.clone() {
            let s = &self.store.segments[segment];
            let page_seq = s.page_seq;
            if s.stale {
                self.shrink_page(segment);
                current = false;
            } else if !s.page_ready(self.durability.flushed()) {
                self.durability.want(page_seq);
                current = false;
            }
        }
        current
    }
}
