//! Jobs of a disk: management operations that end some time after the call. They are started, driven and
//! ended here. What each one does is in `ownership.rs`, `detach.rs`, `forget.rs`, `resize.rs` and `settings.rs`.
//!
//! Invariants
//! - A disk has at most one job, and its end is reported once.
//! - A job that changes the record ends only when the record that holds the change is durable.

use haversack_model::{DiskNo, Micros};

use crate::action::{Event, JobError, JobId};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::disk::Disk;
use crate::durability::record::RecordVersion;
use crate::error::ManageError;
use crate::jobs::{Job, JobKind};
use crate::lifecycle::Event as LifeEvent;
use crate::memory::Memory;

/// The progress of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Blocks done.
    pub done_blocks: u64,
    /// Blocks in total, as of the job's start.
    pub total_blocks: u64,
}

impl Core {
    /// Returns a disk that the pool knows.
    pub(crate) fn known(&self, disk: DiskNo) -> Result<&Disk, ManageError> {
        self.disks.get(disk).ok_or(ManageError::NoSuchDisk(disk))
    }

    /// Returns a disk that is attached.
    pub(crate) fn attached(&self, disk: DiskNo) -> Result<&Disk, ManageError> {
        let d = self.known(disk)?;
        if !d.life.is_active() {
            return Err(ManageError::NotAttached(d.id));
        }
        Ok(d)
    }

    pub(crate) fn dirty_blocks(&self, disk: DiskNo) -> u64 {
        self.store.disks[disk].dirty + self.disk(disk).flush.staged_dirty()
    }

    /// Returns the progress of a job that cleans.
    pub fn progress(&self, job: JobId) -> Option<Progress> {
        let d = self.disks.iter().find(|d| d.job.as_ref().is_some_and(|j| j.id == job))?;
        match d.job.as_ref()?.kind {
            JobKind::Clean { total, .. } | JobKind::Detach { total, .. } => {
                Some(Progress { done_blocks: d.cleaner.done_blocks.min(total), total_blocks: total })
            }
            _ => None,
        }
    }
}

impl<M: Memory> Call<'_, M> {
    /// Checks that the pool is not being stopped.
    pub(crate) fn running(&self) -> Result<(), ManageError> {
        if self.pool.is_stopping() { Err(ManageError::Stopping) } else { Ok(()) }
    }

    /// Checks that a job of the disk may start.
    pub(crate) fn idle(&self, disk: DiskNo) -> Result<(), ManageError> {
        self.running()?;
        if self.known(disk)?.job.is_some() { Err(ManageError::Busy) } else { Ok(()) }
    }

    pub(crate) fn start_job(&mut self, disk: DiskNo, kind: JobKind, version: Option<RecordVersion>) -> JobId {
        let id = self.jobs.new_id();
        self.disk_mut(disk).job = Some(Job { id, kind, version });
        self.queue(disk);
        self.settle();
        id
    }

    /// Whether no I/O of the disk is in flight, for requests or in the background.
    pub(crate) fn is_quiet(&self, disk: DiskNo) -> bool {
        self.disk(disk).requests == 0 && !self.ios.iter().any(|io| io.disk == Some(disk))
    }

    /// Called when the job has changed the record. The job continues when the change is durable.
    pub(crate) fn await_record(&mut self, disk: DiskNo) {
        let version = self.change_record();
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.version = Some(version);
        }
    }

    /// Stops a job that cleans: blocks that are clean stay clean. Returns false if there is no such job.
    pub fn cancel(&mut self, now: Micros, job: JobId) -> bool {
        self.now = now;
        for disk in self.disks.places() {
            let Some(d) = self.disks.get_mut(disk) else { continue };
            let cancels = d.job.as_ref().is_some_and(|j| j.id == job && j.may_be_cancelled());
            if cancels {
                d.cleaner.all = false;
                d.intents.clear_at_leisure();
                if d.life.is_detaching() {
                    d.life.happened(LifeEvent::DetachFailed);
                }
                self.end_job(disk, Err(JobError::Cancelled));
                self.settle();
                return true;
            }
        }
        false
    }

    pub(crate) fn end_job(&mut self, disk: DiskNo, result: Result<(), JobError>) {
        if let Some(job) = self.disk_mut(disk).job.take() {
            self.event(Event::JobDone { job: job.id, result });
        }
    }

    pub(crate) fn drive_job(&mut self, disk: DiskNo) {
        let Some(job) = self.disk(disk).job.as_ref() else { return };
        let (kind, version) = (job.kind, job.version);
        let recorded = version.is_none_or(|v| self.durability.is_recorded(v));
        match kind {
            JobKind::Attach if (recorded || planted(Bug::AttachUnrecorded)) && self.may_serve(disk) => {
                self.end_attach(disk);
            }
            JobKind::Mode(mode) if recorded => self.end_mode(disk, mode),
            JobKind::Release if recorded || planted(Bug::ReleaseUnrecorded) => self.drive_release(disk),
            JobKind::Clean { since_us, .. } => self.drive_clean_job(disk, since_us),
            JobKind::Detach { loss, .. } => self.drive_detach(disk, loss, version),
            JobKind::Resize { before, sectors, stage } => self.drive_resize(disk, before, sectors, stage),
            JobKind::Forget { .. } if recorded => self.drive_forget(disk),
            JobKind::Freeze => self.drive_freeze(disk),
            JobKind::HandOver if recorded || planted(Bug::HandOverUnrecorded) => self.end_hand_over(disk),
            JobKind::Claim { epoch } => self.drive_claim(disk, epoch),
            JobKind::GiveUpPeer { epoch } => self.drive_give_up(disk, epoch, version),
            JobKind::Retake { epoch } => self.drive_retake(disk, epoch),
            JobKind::Record if recorded => self.end_job(disk, Ok(())),
            JobKind::Attach
            | JobKind::Mode(_)
            | JobKind::Release
            | JobKind::Forget { .. }
            | JobKind::HandOver
            | JobKind::Record => {}
        }
    }
}
