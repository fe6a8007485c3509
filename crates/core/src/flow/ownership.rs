//! Ownership of a disk's origin: attaching takes it, releasing gives it up, each under an epoch.
//!
//! Invariants
//! - The epoch is durably on record before the disk's first request, and "not owned" before a release ends.
//! - A release ends only when no request and no I/O of the disk is in flight.
//! - An attach keeps cached blocks only if no other host can have written the origin, that is, the epoch is the
//!   recorded one and the caller knows of no other writer; and only if size, grid and persistence are unchanged.
//! - An attach gives up dirty blocks of a disk that this host owns only if the disk is damaged and the caller
//!   accepts the loss.

use haversack_model::{DiskNo, Micros};

use crate::action::JobId;
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::Call;
use crate::disk::Disk;
use crate::error::ManageError;
use crate::flow::moving::Moving;
use crate::flow::request::Park;
use crate::format::record::{Damage, DiskRecord, Moved};
use crate::io::{Io, OriginFlushReason};
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::media::IoFailure;
use crate::memory::Memory;

/// The epoch of a disk that no other host has had.
const FIRST_EPOCH: u64 = 1;

impl<M: Memory> Call<'_, M> {
    /// Attaches a disk under an ownership epoch, so that it takes requests. If the epoch is the recorded one,
    /// its cached blocks stay valid. If it is higher, another host may have written the origin, and clean
    /// blocks are dropped.
    ///
    /// # Errors
    /// See [`ManageError`]; nothing was changed in that case.
    pub fn attach(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.attach_with(now, config, epoch, accept_loss, false)
    }

    /// As [`Call::attach`], but drops clean blocks although the epoch is the recorded one: the caller knows that the
    /// origin may have been written since they were cached.
    ///
    /// # Errors
    /// See [`ManageError`]; nothing was changed in that case.
    pub fn attach_outdated(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.attach_with(now, config, epoch, accept_loss, true)
    }

    fn attach_with(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
        is_outdated: bool,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.now = now;
        config.check().map_err(ManageError::BadConfig)?;
        self.running()?;
        let known = self.disks.find(config.id);
        let (disk, void) = match known {
            Some(disk) => (disk, self.check_attach(disk, config, epoch, accept_loss, is_outdated)?),
            None => (self.new_disk(config, epoch, true)?, false),
        };
        if void {
            self.void_cache(disk);
        }
        match self.disk(disk).moved {
            Moved::Depends { .. } => {
                let peer = self.disk_mut(disk).moving.as_mut().and_then(|moving| moving.peer.as_mut());
                if let Some(peer) = peer.filter(|_| void) {
                    peer.needs_all();
                }
            }
            // What the replica has is older than what is acknowledged here, until the owner has made sure that it is
            // not used.
            Moved::Replicates { .. } => self.disk_mut(disk).moving = Some(Box::new(Moving::replicating())),
            _ => {
                let d = self.disk_mut(disk);
                (d.moved, d.moving) = (Moved::No, None);
            }
        }
        let lost = self.disk(disk).damage != Damage::None;
        self.configure(disk, config, epoch);
        // After a kill, the record of an earlier attach may be durable and its marks not.
        let unmarked = known.is_some() && self.disk(disk).origin.is_unmarked();
        if void || lost || unmarked {
            // The origin may hold unflushed writes of blocks that were dirty, and no map marks them.
            let d = self.disk_mut(disk);
            d.intents.mark_all_durably();
            d.origin.suspect_unmarked();
        }
        let version = self.change_record();
        let job = self.start_job(disk, JobKind::Attach, Some(version));
        Ok((disk, job))
    }

    /// Checks whether a known disk may be attached like this; returns whether its cached blocks become void.
    fn check_attach(
        &self,
        disk: DiskNo,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
        is_outdated: bool,
    ) -> Result<bool, ManageError> {
        self.idle(disk)?;
        self.not_overtaken(disk)?;
        let d = self.disk(disk);
        if !d.life.allows(Event::Attach) {
            return Err(ManageError::Attached(d.id));
        }
        let is_replicated = matches!(d.moved, Moved::Replicates { .. }) && epoch != d.life.epoch();
        if d.life.holds_for_another() || d.life.is_incoming() || is_replicated {
            return Err(ManageError::Migrating(d.id));
        }
        if matches!(d.moved, Moved::Depends { .. }) {
            let peer = d.moving.as_ref().and_then(|moving| moving.peer.as_ref());
            if epoch != d.life.epoch() || peer.is_none_or(|peer| !peer.is_complete) {
                return Err(ManageError::PeerUnlisted(d.id));
            }
        }
        if !d.life.allows_epoch(epoch) {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        match d.damage {
            Damage::Lost if !accept_loss => return Err(ManageError::Lost(d.id)),
            Damage::Uncertain if !accept_loss => return Err(ManageError::Damaged(d.id)),
            _ => {}
        }
        let geometry = config.phase != d.phase;
        let persistence = config.persistence != d.persistence;
        let newer = epoch > d.life.epoch() && !planted(Bug::KeepOldEpoch);
        let holds = self.store.disks[disk].live > 0 || self.staging.all_of(disk).next().is_some();
        if d.life.is_owned() && holds && config.sectors != d.sectors {
            return Err(ManageError::Size { disk: d.id, recorded_sectors: d.sectors });
        }
        let uncertain = d.damage == Damage::Uncertain && !planted(Bug::TrustWhatIsLeft)
            || d.damage == Damage::Lost && planted(Bug::GiveUpAll);
        let outdated = is_outdated && !planted(Bug::AttachOutdated);
        let void = newer || outdated || geometry || config.sectors != d.sectors || persistence || uncertain;
        let dirty_blocks = self.dirty_blocks(disk);
        if void && d.life.is_owned() && !uncertain && dirty_blocks > 0 {
            return Err(ManageError::Dirty { disk: d.id, dirty_blocks });
        }
        Ok(void)
    }

    /// Returns the number of a disk that another host owns. One that the pool does not know is added.
    pub(crate) fn known_or_new(&mut self, config: &DiskConfig) -> Result<DiskNo, ManageError> {
        match self.disks.find(config.id) {
            Some(disk) => Ok(disk),
            None => self.new_disk(config, 0, false),
        }
    }

    fn new_disk(&mut self, config: &DiskConfig, epoch: u64, owned: bool) -> Result<DiskNo, ManageError> {
        let disk = self.disks.free_number().ok_or(ManageError::DiskTableFull)?;
        let record = DiskRecord {
            id: config.id,
            sectors: config.sectors,
            phase: config.phase,
            owned,
            epoch,
            may_be_dirty: false,
            // Another host may have left volatile writes at the origin.
            origin_volatile: epoch > FIRST_EPOCH,
            damage: Damage::None,
            persistence: config.persistence,
            since_seq: self.durability.last() + 1,
            clean_seq: 0,
            moved: Moved::No,
        };
        self.disks.add(disk, Disk::new(&record));
        self.store.add_disk(disk);
        self.staging.add_disk(disk);
        Ok(disk)
    }

    pub(crate) fn configure(&mut self, disk: DiskNo, config: &DiskConfig, epoch: u64) {
        self.settings(disk, config);
        let d = self.disk_mut(disk);
        d.life.attach(epoch);
        d.may_be_dirty |= config.mode.defers_origin();
    }

    /// Takes over the settings of a disk that is not attached.
    pub(crate) fn settings(&mut self, disk: DiskNo, config: &DiskConfig) {
        let now = self.now;
        self.end_sharing_of_base(disk);
        let d = self.disk_mut(disk);
        if d.intents.set_size(config.sectors) {
            d.intents.mark_all_durably();
        }
        (d.sectors, d.phase, d.persistence) = (config.sectors, config.phase, config.persistence);
        d.change_mode(config.mode, false);
        d.tuning = config.tuning();
        (d.damage, d.loss_version) = (Damage::None, None);
        d.lost.clear();
        d.given_up.clear();
        (d.monitor, d.base) = (None, None);
        d.last_request_us = now;
        self.staging.drop_all_data(disk);
        self.change_order(disk);
        self.change_target(disk, config.target);
        self.change_admission(disk, config.admission);
    }

    /// Whether all marks that the disk needs before its first request are durable.
    pub(crate) fn may_serve(&self, disk: DiskNo) -> bool {
        self.alive_devices().next().is_none() || self.disk(disk).intents.is_durably_marked()
    }

    pub(crate) fn end_attach(&mut self, disk: DiskNo) {
        self.disk_mut(disk).life.happened(Event::Attached);
        self.end_job(disk, Ok(()));
        // The origin is available now. Flushing it early means that a later flush of the guest does not need
        // it.
        self.settle_origin(disk);
    }

    /// Flushes the origin if it may hold volatile writes that were acknowledged to a guest. Returns true if
    /// it holds none.
    pub(crate) fn settle_origin(&mut self, disk: DiskNo) -> bool {
        let settled = self.disk(disk).origin.is_durable();
        if !settled {
            self.flush_origin(OriginFlushReason::Settle, disk);
        }
        settled
    }

    pub(crate) fn settle_flush_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the flush is of a disk");
        let d = self.disk_mut(disk);
        d.intents.failures += u64::from(result.is_err());
        if result.is_err() && d.life.is_frozen() {
            d.moving.get_or_insert_default().is_origin_unsettled = true;
        }
        self.queue(disk);
    }

    /// Gives up ownership: no write to the origin is started from now on.
    ///
    /// # Errors
    /// The disk is not attached or has a job.
    pub fn release(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        self.not_replicated(disk)?;
        self.give_up_ownership(disk);
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Release, Some(version)))
    }

    /// Ends writes to the origin, and requests that wait.
    pub(crate) fn give_up_ownership(&mut self, disk: DiskNo) {
        self.end_late_copies(disk);
        self.disk_mut(disk).life.happened(Event::Release);
        self.staging.drop_all_data(disk);
        let parked: Vec<u32> = self.requests.iter().filter(|(_, r)| r.disk == disk).map(|(n, _)| n).collect();
        for request in parked {
            if self.requests[request].park != Park::Flush {
                self.wake(request);
            }
        }
    }

    pub(crate) fn drive_release(&mut self, disk: DiskNo) {
        if self.is_quiet(disk) {
            self.disk_mut(disk).life.happened(Event::Released);
            self.end_job(disk, Ok(()));
        }
    }
}
