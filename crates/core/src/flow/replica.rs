//! A replica of another host's dirty blocks, which this host has only in case that host dies.
//!
//! Invariants
//! - A replica is never written to the origin, and serves no request, until this host has taken the disk over.
//! - A replica has the last copy of a block that the owner sent. Each copy has at least the sectors of the previous
//!   copy.
//! - What is sealed survives any crash of this host: it is durable on flash.
//! - A new replica starts empty, and not complete. The record says so before the first copy is stored.

use haversack_model::{BlockNo, DiskNo, HostId, Micros};

use crate::action::JobId;
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::format::record::Moved;
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::{Memory, RequestTag};

impl Core {
    /// Returns the number of the last seal of a replica that is done.
    pub fn sealed(&self, disk: DiskNo) -> u64 {
        self.disks.get(disk).map_or(0, |d| d.flush.sealed())
    }

    /// Returns how many dirty blocks of another host's disk are kept here as its replica.
    pub fn replica_blocks(&self, disk: DiskNo) -> u64 {
        let is_replica = self.disks.get(disk).is_some_and(|d| d.life.is_replica());
        if is_replica { self.dirty_blocks(disk) } else { 0 }
    }

    fn replica(&self, disk: DiskNo) -> Result<(), ManageError> {
        let d = self.known(disk)?;
        let is_taken = d.job.as_ref().is_some_and(|job| matches!(job.kind, JobKind::Retake { .. }));
        if d.life.is_replica() && !is_taken { Ok(()) } else { Err(ManageError::NotAttached(d.id)) }
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts a replica of a disk that another host owns under this epoch, in a session of the owner. What this host has
    /// of the disk becomes void. When the job has ended, copies may be stored.
    ///
    /// # Errors
    /// This host owns the disk or has dirty blocks of it for another host, it has a job or had a higher epoch, or the
    /// configuration is invalid.
    pub fn start_replica(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        of: HostId,
        session: [u64; 2],
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.now = now;
        config.check().map_err(ManageError::BadConfig)?;
        self.running()?;
        let disk = self.known_or_new(config)?;
        self.idle(disk)?;
        self.not_overtaken(disk)?;
        let d = self.disk_mut(disk);
        if epoch < d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if d.life.is_replica() {
            d.life.happened(Event::Drained);
        } else if d.life.is_incoming() {
            d.life.happened(Event::Dismiss);
        }
        if !d.life.allows(Event::Replicate) {
            return Err(ManageError::Migrating(d.id));
        }
        d.moving = None;
        self.void_cache(disk);
        self.settings(disk, config);
        let d = self.disk_mut(disk);
        d.life.happened(Event::Replicate);
        d.life.passed_on(epoch);
        d.may_be_dirty = true;
        d.moved = Moved::Replica { of, session, is_complete: false };
        let version = self.change_record();
        Ok((disk, self.start_job(disk, JobKind::Record, Some(version))))
    }

    /// Stores a copy of a block's dirty sectors from the buffer of `tag`, one block long, each sector at its place.
    /// Returns false if there is no space now, or if some of it is beyond the end that the disk has here.
    ///
    /// # Errors
    /// There is no replica of the disk here, or it is being taken over.
    pub fn keep_copy(
        &mut self,
        now: Micros,
        tag: RequestTag,
        disk: DiskNo,
        block: BlockNo,
        mask: u8,
    ) -> Result<bool, ManageError> {
        self.now = now;
        self.replica(disk)?;
        self.running()?;
        // The number comes from another host and may be out of range. What is not stored must not count as stored.
        if mask & !self.disk(disk).inside_checked(block) != 0 {
            return Ok(false);
        }
        if mask == 0 {
            return Ok(true);
        }
        let Some(frame) = self.take_in(tag, mask) else {
            self.queue(disk);
            self.settle();
            return Ok(false);
        };
        self.stage(disk, block, frame, mask, true);
        if let Some(moving) = &mut self.disk_mut(disk).moving
            && let Some(held) = &mut moving.held
        {
            held.entry(block).or_default().mask |= mask;
        }
        self.queue_if_due(disk);
        self.settle();
        Ok(true)
    }

    /// Starts to make durable what the replica has. It is done when [`Core::sealed`] is at least the number returned.
    ///
    /// # Errors
    /// There is no replica of the disk here, or it is being taken over.
    pub fn seal(&mut self, now: Micros, disk: DiskNo) -> Result<u64, ManageError> {
        self.now = now;
        self.replica(disk)?;
        let flush = &mut self.disk_mut(disk).flush;
        let number = flush.request_seal(planted(Bug::SealUnflushed));
        self.queue(disk);
        self.settle();
        Ok(number)
    }

    /// Records that the replica has everything that was flushed.
    ///
    /// # Errors
    /// There is no replica of the disk here, or it has a job.
    pub fn complete_replica(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.replica(disk)?;
        self.idle(disk)?;
        let d = self.disk_mut(disk);
        if let Moved::Replica { is_complete, .. } = &mut d.moved {
            *is_complete = true;
        }
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Record, Some(version)))
    }

    /// Drops a replica. When the job has ended, no crash brings it back.
    ///
    /// # Errors
    /// There is no replica of the disk here, or it has a job.
    pub fn end_replica(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.replica(disk)?;
        self.discard_held(now, disk)?;
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Record, Some(version)))
    }
}
