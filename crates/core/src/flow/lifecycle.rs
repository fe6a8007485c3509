//! Management: the life of a disk, its settings, and jobs with an end.

use haversack_model::{BlockNo, DeviceNo, DiskId, DiskNo, Micros, WriteMode};

use crate::action::{Event, JobError, JobId};
use crate::admission;
use crate::bugs::{Bug, planted};
use crate::config::{AdmissionConfig, CleanerConfig, DiskConfig, MAX_DISKS, Persistence, Target};
use crate::core::Core;
use crate::disk::{Disk, DiskState};
use crate::error::ManageError;
use crate::flow::request::Park;
use crate::format::record::DiskRecord;
use crate::memory::{DESCRIPTOR_BYTES, FrameNo, Memory};
use crate::store::slot::Status;

/// Failed rounds of cleaning after which a job that cleans gives up.
const MOST_FAILURES: u64 = 3;

/// A disk's job.
pub(crate) struct Job {
    id: JobId,
    kind: JobKind,
    /// The record version that must be durable.
    version: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobKind {
    Attach,
    Detach { total: u64 },
    Release,
    Mode(WriteMode),
    Resize { before: u64, sectors: u64, dropped: bool },
    Clean { since_us: Micros, total: u64 },
    Forget,
}

impl Job {
    /// Whether the disk leaves the pool for good.
    pub fn forgets(&self) -> bool {
        self.kind == JobKind::Forget
    }

    /// Whether the job needs everything staged to be committed.
    pub fn commits(&self) -> bool {
        matches!(self.kind, JobKind::Detach { .. } | JobKind::Clean { .. } | JobKind::Resize { .. })
    }
}

/// A job of the whole pool.
pub(crate) struct PoolJob {
    pub id: JobId,
    pub kind: PoolJobKind,
}

/// See [`PoolJob`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolJobKind {
    /// A device joined; the record must say so.
    Add { version: u64 },
    /// A device is being emptied.
    Drain { device: DeviceNo },
    /// Pages elsewhere that list what the device had newer are being written.
    Purge { device: DeviceNo },
    /// The record must say that a device is gone.
    Gone { version: u64 },
    /// Everything staged is being committed.
    Stop,
    /// The last record is being written.
    Stopped { version: u64 },
}

impl PoolJob {
    pub fn is_final(&self) -> bool {
        matches!(self.kind, PoolJobKind::Stopped { .. })
    }

    pub fn is_removal_of(&self, gone: DeviceNo) -> bool {
        match self.kind {
            PoolJobKind::Drain { device } | PoolJobKind::Purge { device } => device == gone,
            _ => false,
        }
    }
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Blocks done.
    pub done_blocks: u64,
    /// Blocks in all, as of the job's start.
    pub total_blocks: u64,
}

impl<M: Memory> Core<M> {
    pub(crate) fn new_job(&mut self) -> JobId {
        self.next_job += 1;
        JobId(self.next_job)
    }

    fn known(&self, disk: DiskNo) -> Result<&Disk, ManageError> {
        self.disks.get(disk.0 as usize).and_then(Option::as_ref).ok_or(ManageError::NoSuchDisk(disk))
    }

    fn attached(&self, disk: DiskNo) -> Result<&Disk, ManageError> {
        let d = self.known(disk)?;
        if d.state != DiskState::Active {
            return Err(ManageError::NotAttached(d.id));
        }
        Ok(d)
    }

    fn idle(&self, disk: DiskNo) -> Result<(), ManageError> {
        if self.known(disk)?.job.is_some() || self.stopping { Err(ManageError::Busy) } else { Ok(()) }
    }

    fn start_job(&mut self, disk: DiskNo, kind: JobKind, version: Option<u64>) -> JobId {
        let id = self.new_job();
        self.disk_mut(disk).job = Some(Job { id, kind, version });
        self.touch(disk);
        self.settle();
        id
    }

    fn dirty_blocks(&self, disk: DiskNo) -> u64 {
        self.store.disks[disk.0 as usize].dirty + self.disk(disk).flush.staged_dirty()
    }

    /// Lets a disk take requests, under an ownership epoch. With the epoch on record its cached blocks are
    /// warm; with a higher one another host may have written the origin, and clean blocks are dropped.
    ///
    /// # Errors
    /// See [`ManageError`]; nothing was changed then.
    pub fn attach(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.now = now;
        config.check().map_err(ManageError::BadConfig)?;
        if self.stopping {
            return Err(ManageError::Busy);
        }
        let known = self.disks.iter().position(|d| d.as_ref().is_some_and(|d| d.id == config.id));
        let disk = match known {
            Some(at) => {
                let disk = DiskNo(at as u16);
                let void = self.check_attach(disk, config, epoch, accept_loss)?;
                if void {
                    self.void_cache(disk);
                }
                disk
            }
            None => self.new_disk(config, epoch)?,
        };
        self.configure(disk, config, epoch);
        let version = self.change_record();
        let job = self.start_job(disk, JobKind::Attach, Some(version));
        Ok((disk, job))
    }

    /// Checks whether a known disk may be attached so, and whether its cached blocks are void then.
    fn check_attach(
        &self,
        disk: DiskNo,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
    ) -> Result<bool, ManageError> {
        self.idle(disk)?;
        let d = self.disk(disk);
        let detached_by_release = d.state == DiskState::Active && !d.owned;
        if d.state != DiskState::Detached && !detached_by_release {
            return Err(ManageError::Attached(d.id));
        }
        if epoch < d.epoch || epoch == d.epoch && !d.owned {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.epoch });
        }
        if d.damaged && !accept_loss {
            return Err(ManageError::Damaged(d.id));
        }
        let geometry = config.phase != d.phase;
        let persistence = config.persistence != d.persistence;
        let newer = epoch > d.epoch && !planted(Bug::KeepOldEpoch);
        let holds = self.store.disks[disk.0 as usize].live > 0 || self.staging.all_of(disk).next().is_some();
        if d.owned && holds && config.sectors != d.sectors {
            return Err(ManageError::Size { disk: d.id, recorded_sectors: d.sectors });
        }
        let void = newer || geometry || config.sectors != d.sectors || persistence || d.damaged;
        let dirty_blocks = self.dirty_blocks(disk);
        if void && d.owned && !d.damaged && dirty_blocks > 0 {
            return Err(ManageError::Dirty { disk: d.id, dirty_blocks });
        }
        Ok(void)
    }

    fn new_disk(&mut self, config: &DiskConfig, epoch: u64) -> Result<DiskNo, ManageError> {
        let at = self.disks.iter().position(Option::is_none).unwrap_or(self.disks.len());
        if at >= MAX_DISKS {
            return Err(ManageError::DiskTableFull);
        }
        let disk = DiskNo(at as u16);
        let record = DiskRecord {
            id: config.id,
            sectors: config.sectors,
            phase: config.phase,
            owned: true,
            epoch,
            may_be_dirty: false,
            damaged: false,
            persistence: config.persistence,
            since_seq: self.sequence.last() + 1,
        };
        if self.disks.len() <= at {
            self.disks.push(None);
        }
        let mut d = Disk::new(disk, &record);
        d.intents.generation = self.intent_generations.get(at).copied().unwrap_or(1);
        self.disks[at] = Some(d);
        self.store.add_disk(disk);
        self.staging.add_disk(disk);
        Ok(disk)
    }

    fn configure(&mut self, disk: DiskNo, config: &DiskConfig, epoch: u64) {
        let now = self.now;
        let d = self.disk_mut(disk);
        if d.intents.set_size(config.sectors) {
            d.intents.mark_all_durably();
        }
        (d.sectors, d.phase, d.persistence) = (config.sectors, config.phase, config.persistence);
        (d.mode, d.target) = (config.mode, config.target);
        d.admission = admission::of(config.admission);
        d.sequential_cutoff_bytes = config.sequential_cutoff_bytes;
        d.cleaner_config = config.cleaner;
        (d.owned, d.epoch, d.damaged) = (true, epoch, false);
        d.may_be_dirty |= config.mode.defers_origin();
        d.state = DiskState::Attaching;
        d.last_request_us = now;
    }

    /// Nothing cached of the disk counts any more, on flash either.
    fn void_cache(&mut self, disk: DiskNo) {
        let frames: Vec<FrameNo> = self.staging.all_of(disk).collect();
        for frame in frames {
            if self.staging.get(frame).committing {
                self.memory.store_descriptor(frame.0, &[0; DESCRIPTOR_BYTES]);
                self.staging.abandon(frame);
            } else {
                self.unstage(frame);
            }
        }
        let segments = self.store.disks[disk.0 as usize].segments.clone();
        for segment in segments {
            for number in self.store.slots_of(segment) {
                let slot = self.store.slot(number);
                if slot.status() == Status::Live {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
        let since_seq = self.sequence.last() + 1;
        let d = self.disk_mut(disk);
        d.since_seq = since_seq;
        d.lost.clear();
    }

    /// Finishes a disk's requests, cleans it and takes no more. Its clean blocks stay for the next time.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn detach(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let total = self.dirty_blocks(disk);
        let d = self.disk_mut(disk);
        d.state = DiskState::Detaching;
        (d.cleaner.all, d.cleaner.done_blocks, d.cleaner.failures) = (true, 0, 0);
        d.intents.clear_now = true;
        Ok(self.start_job(disk, JobKind::Detach { total }, None))
    }

    /// Forgets a detached disk and frees its space. Dirty blocks are destroyed only if the disk is named.
    ///
    /// # Errors
    /// The disk is attached, has a job, or has dirty blocks and was not named.
    pub fn forget(
        &mut self,
        now: Micros,
        disk: DiskNo,
        destroy_dirty: Option<DiskId>,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.known(disk)?;
        let gone = d.state == DiskState::Detached || d.state == DiskState::Active && !d.owned;
        if !gone {
            return Err(ManageError::Attached(d.id));
        }
        let (id, dirty_blocks) = (d.id, self.dirty_blocks(disk));
        if dirty_blocks > 0 && destroy_dirty != Some(id) {
            return Err(ManageError::Dirty { disk: id, dirty_blocks });
        }
        self.disk_mut(disk).state = DiskState::Detached;
        self.void_cache(disk);
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Forget, Some(version)))
    }

    /// Gives up ownership: no write to the origin is started from now on.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn release(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        self.disk_mut(disk).owned = false;
        let parked: Vec<u32> = self.requests.iter().filter(|(_, r)| r.disk == disk).map(|(n, _)| n).collect();
        for request in parked {
            if self.requests[request].park != Park::Flush {
                self.wake(request);
            }
        }
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Release, Some(version)))
    }

    /// Changes the write mode. Nothing is lost or read again.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or keeps nothing over a restart while the mode defers writes.
    pub fn set_mode(&mut self, now: Micros, disk: DiskNo, mode: WriteMode) -> Result<JobId, ManageError> {
        self.now = now;
        let persistence = self.attached(disk)?.persistence;
        self.idle(disk)?;
        if mode.defers_origin() && persistence == Persistence::None {
            let message = format!("persistence 'none' does not go with mode {mode}: use wt, wa, wi or pt");
            return Err(ManageError::BadConfig(message));
        }
        let mut version = None;
        if mode.defers_origin() && !self.disk(disk).may_be_dirty {
            self.disk_mut(disk).may_be_dirty = true;
            version = Some(self.change_record());
        }
        Ok(self.start_job(disk, JobKind::Mode(mode), version))
    }

    /// Changes the target. Moves no data.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn set_target(&mut self, now: Micros, disk: DiskNo, target: Target) -> Result<(), ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.disk_mut(disk).target = target;
        self.wake_dirty(disk);
        self.settle();
        Ok(())
    }

    /// Changes which blocks may enter.
    ///
    /// # Errors
    /// The disk is not attached or the setting is wrong.
    pub fn set_admission(
        &mut self,
        now: Micros,
        disk: DiskNo,
        config: AdmissionConfig,
    ) -> Result<(), ManageError> {
        self.now = now;
        let d = self.attached(disk)?;
        let tried = DiskConfig { admission: config, ..DiskConfig::new(d.id, d.sectors) };
        tried.check().map_err(ManageError::BadConfig)?;
        self.disk_mut(disk).admission = admission::of(config);
        Ok(())
    }

    /// Changes when dirty blocks are cleaned.
    ///
    /// # Errors
    /// The disk is not attached or the setting is wrong.
    pub fn set_cleaner(
        &mut self,
        now: Micros,
        disk: DiskNo,
        config: CleanerConfig,
    ) -> Result<(), ManageError> {
        self.now = now;
        let d = self.attached(disk)?;
        let tried = DiskConfig { cleaner: config, ..DiskConfig::new(d.id, d.sectors) };
        tried.check().map_err(ManageError::BadConfig)?;
        self.disk_mut(disk).cleaner_config = config;
        self.wake_dirty(disk);
        self.touch(disk);
        self.settle();
        Ok(())
    }

    /// Changes the sequential cut-off; 0 for none.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn set_sequential_cutoff(
        &mut self,
        now: Micros,
        disk: DiskNo,
        bytes: u64,
    ) -> Result<(), ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.disk_mut(disk).sequential_cutoff_bytes = bytes;
        Ok(())
    }

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

    /// Writes all that is dirty now back to the origin.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn clean(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let total = self.dirty_blocks(disk);
        let d = self.disk_mut(disk);
        (d.cleaner.all, d.cleaner.done_blocks, d.cleaner.failures) = (true, 0, 0);
        Ok(self.start_job(disk, JobKind::Clean { since_us: now, total }, None))
    }

    /// Commits everything staged and marks the stop as clean. Requests in flight finish first.
    pub fn shutdown(&mut self, now: Micros) -> JobId {
        self.now = now;
        self.stopping = true;
        let job = self.new_job();
        if let Some(other) = self.pool_job.replace(PoolJob { id: job, kind: PoolJobKind::Stop }) {
            self.event(Event::JobDone { job: other.id, result: Err(JobError::Cancelled) });
        }
        self.touch_all();
        self.settle();
        job
    }

    /// Stops a job that cleans: what is clean stays clean. False if there is no such job.
    pub fn cancel(&mut self, now: Micros, job: JobId) -> bool {
        self.now = now;
        for number in 0..self.disks.len() {
            let Some(d) = self.disks[number].as_mut() else { continue };
            let cancels = d.job.as_ref().is_some_and(|j| {
                j.id == job
                    && j.version.is_none()
                    && matches!(j.kind, JobKind::Clean { .. } | JobKind::Detach { .. })
            });
            if cancels {
                d.cleaner.all = false;
                d.intents.clear_now = false;
                d.state = DiskState::Active;
                self.end_job(DiskNo(number as u16), Err(JobError::Cancelled));
                self.settle();
                return true;
            }
        }
        false
    }

    /// How far a job that cleans is.
    pub fn progress(&self, job: JobId) -> Option<Progress> {
        let d = self.disks.iter().flatten().find(|d| d.job.as_ref().is_some_and(|j| j.id == job))?;
        match d.job.as_ref()?.kind {
            JobKind::Clean { total, .. } | JobKind::Detach { total } => {
                Some(Progress { done_blocks: d.cleaner.done_blocks.min(total), total_blocks: total })
            }
            _ => None,
        }
    }

    fn end_job(&mut self, disk: DiskNo, result: Result<(), JobError>) {
        if let Some(job) = self.disk_mut(disk).job.take() {
            self.event(Event::JobDone { job: job.id, result });
        }
    }

    pub(crate) fn drive_job(&mut self, disk: DiskNo) {
        let Some(job) = self.disk(disk).job.as_ref() else { return };
        let (kind, version) = (job.kind, job.version);
        let recorded = version.is_none_or(|v| self.record.is_durable(v));
        match kind {
            JobKind::Attach if recorded => {
                self.disk_mut(disk).state = DiskState::Active;
                self.end_job(disk, Ok(()));
            }
            JobKind::Mode(mode) if recorded => {
                self.disk_mut(disk).mode = mode;
                self.end_job(disk, Ok(()));
            }
            JobKind::Release => {
                let d = self.disk(disk);
                if recorded && d.requests == 0 && d.origin_writes == 0 && d.cleaner.is_idle() {
                    self.end_job(disk, Ok(()));
                }
            }
            JobKind::Clean { since_us, .. } => self.drive_clean_job(disk, since_us),
            JobKind::Detach { .. } => self.drive_detach(disk, version),
            JobKind::Resize { before, sectors, dropped } => {
                self.drive_resize(disk, before, sectors, dropped, version);
            }
            JobKind::Forget if recorded => self.drive_forget(disk),
            JobKind::Attach | JobKind::Mode(_) | JobKind::Forget => {}
        }
    }

    fn only_lost_left(&self, disk: DiskNo) -> bool {
        let segments = &self.store.disks[disk.0 as usize].segments;
        let good = |n| {
            let slot = self.store.slot(n);
            slot.status() == Status::Live && slot.dirty() && !slot.mirror() && !slot.poisoned()
        };
        self.disk(disk).flush.staged_dirty() == 0
            && !segments
                .iter()
                .any(|s| self.store.segments[*s as usize].dirty > 0 && self.store.slots_of(*s).any(good))
    }

    fn drive_clean_job(&mut self, disk: DiskNo, since_us: Micros) {
        let dirty = self.dirty_blocks(disk);
        let newer_only = self.oldest_dirty_us(disk).is_none_or(|oldest| oldest > since_us);
        let idle = self.disk(disk).cleaner.is_idle();
        let result = if !self.disk(disk).owned {
            Err(JobError::NotOwner)
        } else if !self.disk(disk).lost.is_empty() && idle && self.only_lost_left(disk) {
            Err(JobError::DataLost)
        } else if dirty == 0 || newer_only && idle && self.staging.lists[disk.0 as usize].len == 0 {
            Ok(())
        } else if idle && self.only_lost_left(disk) {
            Err(JobError::DataLost)
        } else if self.disk(disk).cleaner.failures >= MOST_FAILURES {
            Err(JobError::Origin)
        } else {
            return;
        };
        self.disk_mut(disk).cleaner.all = false;
        self.end_job(disk, result);
    }

    fn drive_detach(&mut self, disk: DiskNo, version: Option<u64>) {
        if let Some(version) = version {
            if self.record.is_durable(version) {
                self.disk_mut(disk).state = DiskState::Detached;
                self.end_job(disk, Ok(()));
            }
            return;
        }
        let d = self.disk(disk);
        if d.cleaner.failures >= MOST_FAILURES && d.cleaner.is_idle() {
            self.disk_mut(disk).cleaner.all = false;
            self.disk_mut(disk).state = DiskState::Active;
            self.end_job(disk, Err(JobError::Origin));
            return;
        }
        let staged = self.staging.all_of(disk).next().is_some();
        if d.requests > 0 || !d.cleaner.is_idle() || d.origin_writes > 0 || staged || d.restaging > 0 {
            return;
        }
        let dirty = self.dirty_blocks(disk);
        let lost = !self.disk(disk).lost.is_empty();
        if dirty > 0 || lost {
            if self.only_lost_left(disk) {
                self.disk_mut(disk).cleaner.all = false;
                self.disk_mut(disk).state = DiskState::Active;
                self.end_job(disk, Err(JobError::DataLost));
            }
            return;
        }
        if !self.disk(disk).intents.is_clear() && self.alive_devices().next().is_some() {
            return;
        }
        let d = self.disk_mut(disk);
        (d.cleaner.all, d.intents.clear_now, d.may_be_dirty) = (false, false, false);
        let version = self.change_record();
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.version = Some(version);
        }
    }

    /// Growing: no page may list what once lay beyond the end, then the record says the new size. Shrinking:
    /// first the record, so that a crash finds either size whole, then what lies beyond is dropped.
    fn drive_resize(&mut self, disk: DiskNo, before: u64, sectors: u64, dropped: bool, version: Option<u64>) {
        let has_devices = self.alive_devices().next().is_some();
        let shrinks = sectors < before;
        let Some(version) = version else {
            let marked = self.disk(disk).intents.is_durably_marked();
            if has_devices && (!marked || !shrinks && !self.pages_current(disk)) {
                return;
            }
            self.disk_mut(disk).next_sectors = Some(sectors);
            let version = self.change_record();
            if let Some(job) = self.disk_mut(disk).job.as_mut() {
                job.version = Some(version);
            }
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

    fn drive_forget(&mut self, disk: DiskNo) {
        if self.staging.all_of(disk).next().is_some() {
            return;
        }
        for segment in self.store.disks[disk.0 as usize].segments.clone() {
            let s = &self.store.segments[segment as usize];
            let owned = s.state == crate::store::segment::SegmentState::Owned;
            if owned && s.retained == 0 && !s.page_writing {
                self.store.give_up(segment);
                self.reclaiming.push((segment, None));
            } else if owned {
                self.want_flush(self.sequence.completed());
            }
        }
        if !self.store.disks[disk.0 as usize].segments.is_empty() {
            return;
        }
        self.end_job(disk, Ok(()));
        let generation = self.disk(disk).intents.generation;
        let at = disk.0 as usize;
        if self.intent_generations.len() <= at {
            self.intent_generations.resize(at + 1, 1);
        }
        self.intent_generations[at] = generation;
        self.disks[at] = None;
        self.store.disks[at] = crate::store::DiskSpace::default();
    }

    pub(crate) fn drive_pool_job(&mut self) -> bool {
        if self.degraded && self.redundancy && self.rebuilt() {
            self.degraded = false;
            self.change_record();
            return true;
        }
        let Some(job) = self.pool_job.take() else { return false };
        let id = job.id;
        let next = self.step_pool_job(job.kind);
        let changed = next.as_ref() != Some(&job.kind);
        match next {
            Some(kind) => self.pool_job = Some(PoolJob { id, kind }),
            None => self.event(Event::JobDone { job: id, result: Ok(()) }),
        }
        changed
    }

    fn step_pool_job(&mut self, kind: PoolJobKind) -> Option<PoolJobKind> {
        match kind {
            PoolJobKind::Add { version } if self.record.is_durable(version) && self.intents_settled() => None,
            PoolJobKind::Gone { version } | PoolJobKind::Stopped { version }
                if self.record.is_durable(version) =>
            {
                None
            }
            PoolJobKind::Drain { device } if self.drain(device) => Some(PoolJobKind::Purge { device }),
            PoolJobKind::Purge { device } if self.purge_pages(device) => {
                Some(PoolJobKind::Gone { version: self.remove_emptied(device) })
            }
            PoolJobKind::Stop if self.all_committed() => {
                Some(PoolJobKind::Stopped { version: self.change_record() })
            }
            other => Some(other),
        }
    }

    fn intents_settled(&self) -> bool {
        self.disks.iter().flatten().all(|d| d.intents.is_durably_marked())
    }

    /// Writes the pages that list what the emptied device had newer. True when none does.
    fn purge_pages(&mut self, device: DeviceNo) -> bool {
        let left = self.store.overtaken_elsewhere(device);
        for segment in &left {
            let s = &self.store.segments[*segment as usize];
            if !s.page_ready(self.store.flushed_seq) {
                self.want_flush(s.page_seq);
            } else if s.retained == 0 && self.store.can_shrink(*segment) {
                self.rewrite_page(*segment);
            } else {
                self.want_flush(self.sequence.completed());
            }
        }
        left.is_empty()
    }

    fn all_committed(&mut self) -> bool {
        let staged = (0..self.disks.len()).any(|number| {
            self.disks[number].is_some() && self.staging.all_of(DiskNo(number as u16)).next().is_some()
        });
        if self.requests.len() > 0 || staged || self.batches.len() > 0 {
            return false;
        }
        let busy = self.disks.iter().flatten().any(|d| !d.cleaner.is_idle() || d.restaging > 0);
        if busy || !self.locks.is_empty() {
            return false;
        }
        self.want_flush(self.sequence.completed());
        self.store.flushed_seq == self.sequence.completed() || self.alive_devices().next().is_none()
    }
}
