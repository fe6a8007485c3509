//! Changing the size of an attached disk.
//!
//! Growing: no page and no staging descriptor may list what once lay beyond the end, then the record says
//! the new size. Shrinking: first the record, then what lies beyond is dropped; opening the pool drops it too.
//!
//! Invariants
//! - A crash finds either size whole.
//! - What once lay beyond the end never comes back when the disk grows over it.

use haversack_model::{BlockNo, DiskNo, Micros};

use crate::action::JobId;
use crate::config::DiskConfig;
use crate::core::Core;
use crate::error::ManageError;
use crate::flow::job::JobKind;
use crate::memory::Memory;
use crate::store::slot::Status;

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
        let before = self.disk(disk).sectors;
        let d = self.disk_mut(disk);
        d.sectors = d.sectors.min(sectors);
        if d.intents.set_size(sectors) {
            d.intents.mark_all_durably();
        }
        Ok(self.start_job(disk, JobKind::Resize { before, sectors, dropped: false }, None))
    }

    pub(crate) fn drive_resize(
        &mut self,
        disk: DiskNo,
        before: u64,
        sectors: u64,
        dropped: bool,
        version: Option<u64>,
    ) {
        let has_devices = self.alive_devices().next().is_some();
        let shrinks = sectors < before;
        let Some(version) = version else {
            let marked = self.disk(disk).intents.is_durably_marked();
            let trimmed = self.staging.all_of(disk).any(|f| self.staging.get(f).trimmed);
            if trimmed || has_devices && (!marked || !shrinks && !self.pages_current(disk)) {
                return;
            }
            self.disk_mut(disk).next_sectors = Some(sectors);
            self.await_record(disk);
            return;
        };
        if !self.record.is_durable(version) {
            return;
        }
        let d = self.disk_mut(disk);
        d.sectors = d.next_sectors.take().unwrap_or(d.sectors);
        if shrinks && !dropped {
            let last = self.disk(disk).blocks(sectors - 1, 1).0;
            if !self.drop_beyond(disk, last, sectors) {
                return;
            }
            if let Some(job) = self.disk_mut(disk).job.as_mut() {
                job.kind = JobKind::Resize { before, sectors, dropped: true };
            }
        }
        if !shrinks || !has_devices || self.pages_current(disk) {
            self.end_job(disk, Ok(()));
        }
    }

    /// Drops what lies beyond the end, once nothing of it is on its way.
    fn drop_beyond(&mut self, disk: DiskNo, last: BlockNo, sectors: u64) -> bool {
        let in_flight =
            self.requests.iter().any(|(_, r)| r.disk == disk && r.sector + u64::from(r.sectors) > sectors);
        let staged = self.staging.all_of(disk).any(|f| self.staging.get(f).block >= last);
        if in_flight || staged || !self.disk(disk).cleaner.is_idle() || self.disk(disk).restaging > 0 {
            return false;
        }
        let inside = self.disk(disk).inside(last);
        let segments = self.store.disks[disk.0 as usize].segments.clone();
        for segment in segments {
            for number in self.store.slots_of(segment) {
                let slot = self.store.slot(number);
                if slot.status() != Status::Live || slot.block() < last {
                    continue;
                }
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
            let s = &self.store.segments[segment as usize];
            if s.stale {
                self.shrink_page(segment);
                current = false;
            } else if !s.page_ready(self.store.flushed_seq) {
                self.want_flush(s.page_seq);
                current = false;
            }
        }
        current
    }
}
