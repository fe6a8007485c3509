//! Detaching a disk, and cleaning everything that is dirty, which can also be requested alone.
//!
//! Invariants
//! - When a detach ends well, the disk has nothing staged, dirty or lost and no I/O in flight, and the record
//!   durably says that it is not dirty. Everything that was acknowledged is durable at the origin, except for
//!   lost data if the loss is accepted.
//! - A job that gives up leaves the disk active and its dirty blocks in the cache.
//! - An accepted loss is dropped only when everything else is done, no device is leaving that could bring
//!   lost blocks back, and the record says that the disk has lost something: a crash from then on finds
//!   either that record or the end of the detach. The detach ends only when no durable page lists the dropped
//!   blocks as dirty.

use haversack_model::{DiskNo, Micros};

use crate::action::{JobError, JobId};
use crate::core::Call;
use crate::durability::record::RecordVersion;
use crate::error::ManageError;
use crate::jobs::{JobKind, Loss};
use crate::lifecycle::Event;
use crate::memory::Memory;

/// A job that cleans gives up after this many failed rounds of cleaning and failed flushes of the origin.
const MOST_FAILURES: u64 = 3;

impl<M: Memory> Call<'_, M> {
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
    /// The disk is not attached, has a job, or may have a replica.
    pub fn detach(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.start_detach(now, disk, Loss::Refused)
    }

    /// Detaches a disk, and gives up lost data: once everything else is at the origin, lost sectors read as
    /// the origin has them.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or may have a replica.
    pub fn detach_accepting_loss(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.start_detach(now, disk, Loss::Accepted)
    }

    fn start_detach(&mut self, now: Micros, disk: DiskNo, loss: Loss) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        self.not_replicated(disk)?;
        let total = self.dirty_blocks(disk);
        self.end_sharing_of_base(disk);
        let d = self.disk_mut(disk);
        d.life.happened(Event::Detach);
        d.cleaner.clean_all();
        d.intents.clear_soon();
        Ok(self.start_job(disk, JobKind::Detach { total, loss }, None))
    }

    pub(crate) fn drive_detach(&mut self, disk: DiskNo, loss: Loss, version: Option<RecordVersion>) {
        if let Some(version) = version {
            if self.durability.is_recorded(version) {
                self.disk_mut(disk).life.happened(Event::Detached);
                self.staging.drop_all_data(disk);
                self.end_job(disk, Ok(()));
            }
            return;
        }
        if loss == Loss::Dropped {
            self.end_of_loss(disk);
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
        let lost = self.dirty_blocks(disk) > 0 || !self.disk(disk).lost.is_empty();
        if lost && !self.only_lost_left(disk) {
            return;
        }
        if lost && loss == Loss::Refused {
            self.give_up_detaching(disk, JobError::DataLost);
            return;
        }
        if !self.disk(disk).intents.is_clear() && self.alive_devices().next().is_some() {
            return;
        }
        if !self.settle_origin(disk) {
            return;
        }
        if !lost {
            self.heal(disk);
            self.record_detached(disk);
        } else if !self.devices.leaves_any() && self.has_recorded_loss(disk) {
            self.drop_lost(disk);
            self.advance_loss(disk);
        }
    }

    /// Called when the lost data was dropped.
    fn advance_loss(&mut self, disk: DiskNo) {
        if let Some(JobKind::Detach { loss, .. }) = self.disk_mut(disk).job.as_mut().map(|job| &mut job.kind)
        {
            *loss = Loss::Dropped;
        }
        self.queue(disk);
    }

    /// Continues when no durable page lists the dropped blocks as dirty.
    fn end_of_loss(&mut self, disk: DiskNo) {
        let d = self.disk(disk);
        let listed = !d.rewriting.is_empty() || self.devices.leaves_any();
        let seq = d.last_commit_seq;
        if !listed && (self.durability.want(seq) || self.alive_devices().next().is_none()) {
            self.heal(disk);
            self.record_detached(disk);
        }
    }

    /// Makes the record say that the disk has no dirty data.
    fn record_detached(&mut self, disk: DiskNo) {
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
}
