//! Taking over a disk from a permanently dead host, and handling a takeover by another host.
//!
//! Invariants
//! - This host's blocks that the origin may lack are kept. Clean blocks are kept only if no other host can
//!   have written to the origin since.
//! - Sectors that only the dead host had are read from the origin, which has older ones, only if that was
//!   accepted. Otherwise they count as lost, and the record says so as soon as it says that this host needs no other
//!   host, and not before: if this host dies half-way, and the dead host comes back, nothing is lost.
//! - Blocks that the dead host may have are not written to the origin before the record says that this host needs no
//!   other host. The exception is a disk that has no other space (`make_room_for_given_up`).
//! - A disk is served only when a power loss can no longer undo its state: staged blocks of a replica are made durable
//!   before the disk is served.
//! - A disk that was taken over by another host is never served or cleaned here again, and its dirty blocks stay
//!   until it is forgotten by name.

use haversack_model::{BlockNo, DiskNo, HostId, Micros};

use crate::action::{JobError, JobId};
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::{Call, Core};
use crate::durability::record::RecordVersion;
use crate::error::ManageError;
use crate::flow::moving::peer::PeerBlocks;
use crate::format::record::Moved;
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::{DESCRIPTOR_BYTES, FrameNo, Memory};

/// How sectors that only a dead host had are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerLoss {
    /// They are lost: reads of them fail until they are written.
    Recorded,
    /// From now on they read as the origin has them.
    Accepted,
}

impl Core {
    /// Returns an error if another host has taken the disk over, and dirty blocks of it are still here.
    pub(crate) fn not_overtaken(&self, disk: DiskNo) -> Result<(), ManageError> {
        let d = self.disk(disk);
        let dirty_blocks = self.dirty_blocks(disk);
        match d.moved {
            Moved::Overtaken { .. } if dirty_blocks > 0 => {
                Err(ManageError::Overtaken { disk: d.id, dirty_blocks })
            }
            _ => Ok(()),
        }
    }

    /// Returns how many dirty blocks are left here of a disk that another host has taken over.
    pub fn overtaken_blocks(&self, disk: DiskNo) -> u64 {
        match self.disks.get(disk).map(|d| d.moved) {
            Some(Moved::Overtaken { .. }) => self.dirty_blocks(disk),
            _ => 0,
        }
    }

    /// Returns the sectors that only the peer has, block by block and in order. It takes time in proportion to their
    /// number.
    pub fn only_at_peer(&self, disk: DiskNo) -> Vec<(BlockNo, u8)> {
        let peer = self.disks.get(disk).and_then(|d| d.moving.as_ref()).and_then(|m| m.peer.as_ref());
        let Some(peer) = peer else { return Vec::new() };
        let missing = |(block, needed)| (block, needed & !self.cached_and_dirty(disk, block).0);
        let mut blocks: Vec<_> = peer.all_needed().map(missing).filter(|(_, mask)| *mask != 0).collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        blocks
    }
}

impl<M: Memory> Call<'_, M> {
    /// Makes this host independent of the dead previous owner, under a higher epoch. Blocks still expected
    /// from there become dirty if this host has a copy; the others are lost.
    ///
    /// # Errors
    /// The disk is not attached, has a job, needs no other host, or had that epoch.
    pub fn give_up_peer(
        &mut self,
        now: Micros,
        disk: DiskNo,
        epoch: u64,
        loss: PeerLoss,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let d = self.disk_mut(disk);
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if !matches!(d.moved, Moved::Depends { .. }) {
            return Err(ManageError::Attached(d.id));
        }
        if let Some(peer) = d.moving.as_mut().and_then(|moving| moving.peer.as_mut()) {
            peer.give_up(loss);
        }
        Ok(self.start_job(disk, JobKind::GiveUpPeer { epoch }, None))
    }

    /// `version` is set once the record is being written that says that this host does not need the peer.
    pub(crate) fn drive_give_up(&mut self, disk: DiskNo, epoch: u64, version: Option<RecordVersion>) {
        match version {
            Some(version) if self.durability.is_recorded(version) => self.end_give_up(disk),
            Some(_) => {}
            None => self.record_give_up(disk, epoch),
        }
    }

    /// Makes the record say that this host does not need the peer, once everything that it can have is durable here.
    /// What only the peer had is lost from that record on. Not earlier: if this host dies first, and the peer comes
    /// back, nothing is lost.
    fn record_give_up(&mut self, disk: DiskNo, epoch: u64) {
        let peer = self.disk(disk).moving.as_ref().and_then(|moving| moving.peer.as_ref());
        let loss = peer.and_then(PeerBlocks::given_up);
        if peer.is_some_and(|peer| !peer.is_settled()) && !planted(Bug::GiveUpUnsettled) {
            return;
        }
        if loss == Some(PeerLoss::Recorded) && !planted(Bug::LoseSilently) {
            for (block, missing) in self.only_at_peer(disk) {
                self.lose(disk, block, missing);
            }
        }
        let d = self.disk_mut(disk);
        d.life.renew(epoch);
        d.moved = Moved::No;
        self.await_record(disk);
        self.queue(disk);
    }

    /// The record is durable: from now on, blocks that the peer had may be written to the origin.
    fn end_give_up(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        if let Some(moving) = &mut d.moving {
            moving.peer = None;
        }
        d.cleaner.barred_until = None;
        self.wake_around(disk);
        self.end_job(disk, Ok(()));
        self.queue(disk);
    }

    /// Lets blocks that are durable here be cleaned while the peer is being given up, if other blocks wait for space
    /// that nothing else could give up. If this host dies before the record is durable, and the peer comes back, the
    /// peer's versions of these blocks count again.
    pub(crate) fn make_room_for_given_up(&mut self, disk: DiskNo) {
        if !self.disk(disk).cleaner.space_needed || self.space_comes(disk) {
            return;
        }
        let peer = self.disk_mut(disk).moving.as_mut().and_then(|moving| moving.peer.as_mut());
        if peer.is_some_and(PeerBlocks::runs_short) {
            self.disk_mut(disk).cleaner.barred_until = None;
            self.queue(disk);
        }
    }

    /// Uses this host's blocks of a disk in place of the dead host's list: if the disk is not attached and
    /// still depends on that host, no other host knows which blocks the origin lacks.
    ///
    /// # Errors
    /// The disk is not one that depends on a host, is attached, or has a job.
    pub fn assume_peer_list(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.known(disk)?;
        let Moved::Depends { on } = d.moved else { return Err(ManageError::NotAttached(d.id)) };
        self.forget_peer_list(disk);
        let mut blocks = Vec::new();
        for segment in &self.store.disks[disk].segments {
            let slots = self.store.slots_of(*segment).filter_map(|number| self.store.slot(number).primary());
            blocks.extend(slots.map(|slot| (slot.block(), slot.mask())));
        }
        for frame in self.staging.all_of(disk) {
            let staged = self.staging.get(frame);
            blocks.push((staged.block, staged.mask));
        }
        if planted(Bug::AssumeNothing) {
            blocks.clear();
        }
        self.list_peer_blocks(now, disk, on, &blocks, true)?;
        let moving = self.disk_mut(disk).moving.as_mut();
        if let Some(peer) = moving.and_then(|moving| moving.peer.as_mut()) {
            peer.assume();
        }
        Ok(())
    }

    /// Takes a disk back under a higher epoch from a host that owned it and is dead. The dirty blocks that
    /// this host has kept for it are the newest remaining versions; clean blocks may be older than the
    /// origin's, and are dropped. Losses of this host itself must be accepted.
    ///
    /// # Errors
    /// Blocks of the disk are not held for another host, the pool has no device left, or as for [`Call::regain`].
    pub fn retake(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        loss: PeerLoss,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.now = now;
        let disk = self.check_regain(config, epoch, loss == PeerLoss::Accepted)?;
        if self.alive_devices().next().is_none() {
            return Err(ManageError::NoDevice(config.id));
        }
        if !planted(Bug::RetakeClean) {
            self.drop_clean(disk);
        }
        self.settings(disk, config);
        self.disk_mut(disk).intents.mark_all_durably();
        if !planted(Bug::RetakeStaged) {
            self.disk_mut(disk).flush.request_seal(false);
        }
        Ok((disk, self.start_job(disk, JobKind::Retake { epoch }, None)))
    }

    /// Drops the clean blocks of a disk that takes no requests.
    fn drop_clean(&mut self, disk: DiskNo) {
        let all = self.staging.all_of(disk);
        let frames: Vec<FrameNo> = all.filter(|frame| !self.staging.get(*frame).dirty).collect();
        for frame in frames {
            if self.staging.get(frame).committing {
                self.memory.store_descriptor(frame.0, &[0; DESCRIPTOR_BYTES]);
                self.staging.abandon(frame);
            } else {
                self.unstage(frame);
            }
        }
        for segment in self.store.disks[disk].segments.clone() {
            for number in self.store.slots_of(segment) {
                if let Some(slot) = self.store.live(number).filter(|slot| !slot.dirty()) {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
    }

    pub(crate) fn drive_retake(&mut self, disk: DiskNo, epoch: u64) {
        if self.alive_devices().next().is_none() {
            self.end_job(disk, Err(JobError::NoDevice));
            return;
        }
        // A crash would bring back blocks that a durable page still lists, although the origin has overtaken them.
        if !self.may_serve(disk) || self.forgetting(disk) > 0 || self.disk(disk).flush.is_sealing() {
            return;
        }
        let d = self.disk_mut(disk);
        d.life.attach(epoch);
        d.may_be_dirty = true;
        // The previous owner may have left volatile writes at the origin.
        d.origin.suspect_unmarked();
        (d.moved, d.moving) = (Moved::No, None);
        self.await_record(disk);
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.kind = JobKind::Attach;
        }
        self.queue(disk);
    }

    /// Notes that another host has taken the disk over under a higher epoch. From now on the disk is not
    /// served and its origin is not written; dirty blocks stay. A job that cleans is cancelled.
    ///
    /// # Errors
    /// The disk has another job, is about to be handed over, or had that epoch.
    pub fn overtaken(
        &mut self,
        now: Micros,
        disk: DiskNo,
        epoch: u64,
        by: HostId,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.running()?;
        let d = self.known(disk)?;
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if d.life.is_frozen() {
            return Err(ManageError::Migrating(d.id));
        }
        // It would write old data to the origin for as long as it takes.
        if let Some(job) = d.job.as_ref().map(|job| job.id) {
            self.cancel(now, job);
        }
        self.idle(disk)?;
        let d = self.disk_mut(disk);
        let leaves = d.life.is_owned();
        if d.life.is_incoming() {
            d.life.happened(Event::Dismiss);
        } else if d.life.holds_for_another() {
            d.life.happened(Event::Drained);
        } else if leaves {
            self.give_up_ownership(disk);
        }
        let d = self.disk_mut(disk);
        d.life.passed_on(epoch);
        (d.moved, d.moving) = (Moved::Overtaken { to: by }, None);
        let version = self.change_record();
        let kind = if leaves { JobKind::Release } else { JobKind::Record };
        Ok(self.start_job(disk, kind, Some(version)))
    }
}
