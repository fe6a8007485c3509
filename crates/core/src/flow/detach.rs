//! Detaching a disk, and cleaning everything that is dirty, which can also be requested alone.
//!
//! Invariants
//! - When a detach ends well, the disk has nothing staged, dirty or lost and no I/O in flight, and the record
//!   durably says that it is not dirty. Everything that was acknowledged is durable at the origin.
//! - A job that gives up leaves the disk active and its dirty blocks in the cache.

use haversack_model::{DiskNo, Micros};

use crate::action::{JobError, JobId};
use crate::core::Core;
use crate::durability::record::RecordVersion;
use crate::error::ManageError;
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::Memory;

/// A job that cleans gives up after this many failed rounds of cleaning and failed flushes of the origin.
const MOST_FAILURES: u64 = 3;

impl<M: Memory> Core<M> {
    /// Writes everything that is dirty now back to the origin.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn clean(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let total = self.dirty_blocks(disk);
        self.disk_mut(disk).cleaner.clean_all();
        Ok(self.start_job(disk, JobKind::Clean { since_us: now, total }, None))
    }

    pub(crate) fn drive_clean_job(&mut self, disk: DiskNo, since_us: Micros) {
        let newer_only = self.oldest_dirty_us(disk).is_none_or(|oldest| oldest > since_us);
        let (idle, lost) = (self.disk(disk).cleaner.is_idle(), !self.disk(disk).lost.is_empty());
        let done = self.dirty_blocks(disk) == 0 || newer_only && idle && !self.stages_older(disk, since_us);
        let result = if done && !lost {
            Ok(())
        } else if idle && (done || self.only_lost_left(disk)) {
            Err(JobError::DataLost)
        } else if self.disk(disk).cleaner.failures >= MOST_FAILURES {
            Err(self.why_not_cleaned(disk))
        } else {
            return;
        };
        self.disk_mut(disk).cleaner.all = false;
        self.end_job(disk, result);
    }

    /// Whether any block that was already dirty at that time is still staged, or on its way to a device that
    /// has since failed.
    fn stages_older(&self, disk: DiskNo, since_us: Micros) -> bool {
        let is_older = |frame| {
            let staged = self.staging.get(frame);
            staged.dirty && !staged.superseded && staged.since_us <= since_us
        };
        self.staging.lists[disk].len > 0
            || self.disk(disk).flush.staged_dirty() > 0 && self.staging.all_of(disk).any(is_older)
    }

    /// Finishes a disk's requests, cleans it and accepts no more requests. Its clean blocks stay for the next
    /// attach.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn detach(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let total = self.dirty_blocks(disk);
        let d = self.disk_mut(disk);
        d.life.happened(Event::Detach);
        d.cleaner.clean_all();
        d.intents.clear_soon();
        Ok(self.start_job(disk, JobKind::Detach { total }, None))
    }

    pub(crate) fn drive_detach(&mut self, disk: DiskNo, version: Option<RecordVersion>) {
        if let Some(version) = version {
            if self.durability.is_recorded(version) {
                self.disk_mut(disk).life.happened(Event::Detached);
                self.staging.drop_all_data(disk);
                self.end_job(disk, Ok(()));
            }
            return;
        }
        let d = self.disk(disk);
        if d.cleaner.failures + d.intents.failures >= MOST_FAILURES && d.cleaner.is_idle() {
            self.give_up_detaching(disk, self.why_not_cleaned(disk));
            return;
        }
        let staged = self.staging.all_of(disk).next().is_some();
        if staged || !self.is_quiet(disk) {
            return;
        }
        let dirty = self.dirty_blocks(disk);
        let lost = !self.disk(disk).lost.is_empty();
        if dirty > 0 || lost {
            if self.only_lost_left(disk) {
                self.give_up_detaching(disk, JobError::DataLost);
            }
            return;
        }
        if !self.disk(disk).intents.is_clear() && self.alive_devices().next().is_some() {
            return;
        }
        if !self.settle_origin(disk) {
            return;
        }
        let clean_seq = self.durability.last();
        let d = self.disk_mut(disk);
        (d.cleaner.all, d.may_be_dirty, d.clean_seq) = (false, false, clean_seq);
        d.intents.clear_at_leisure();
        self.await_record(disk);
    }

    /// Returns what failed last: the cleaner or, if it did not fail, a flush of the origin.
    fn why_not_cleaned(&self, disk: DiskNo) -> JobError {
        self.disk(disk).cleaner.last_failure.unwrap_or(JobError::Origin)
    }

    fn give_up_detaching(&mut self, disk: DiskNo, error: JobError) {
        let d = self.disk_mut(disk);
        d.cleaner.all = false;
        d.intents.clear_at_leisure();
        d.life.happened(Event::DetachFailed);
        self.end_job(disk, Err(error));
    }

    /// Whether no dirty block is left that can be cleaned.
    fn only_lost_left(&self, disk: DiskNo) -> bool {
        let segments = &self.store.disks[disk].segments;
        let good = |n| self.store.slot(n).primary().is_some_and(|slot| slot.dirty() && !slot.poisoned());
        self.disk(disk).flush.staged_dirty() == 0
            && !segments
                .iter()
                .any(|s| self.store.segments[*s].dirty > 0 && self.store.slots_of(*s).any(good))
    }
}
