//! Handing over a disk to another host without waiting until it is clean: freeze the disk, record the new
//! owner, and keep the dirty blocks until the new owner has them.
//!
//! Invariants
//! - A disk is frozen only when it has no request and no I/O in flight, nothing staged, and everything in its
//!   cache is durable: from then on it does not change, here or at the origin, until it thaws.
//! - The durable record is the point of no return. Before that the disk can thaw; afterwards it is never
//!   served or cleaned here again, unless the new owner gives it back.
//! - When a disk is frozen, durable pages list only dirty blocks as dirty. So the list of blocks that the new
//!   owner needs is the same after a crash here: it never has a block that was already at the origin.
//! - A disk with losses is not frozen: the new owner would read older data from the origin in their place. A block
//!   whose damage is found later is listed with all its sectors, so that the new owner waits for it instead.
//! - Blocks that are clean when a disk is frozen are durable at the origin. Otherwise the new owner gets no
//!   clean blocks: its guest could read data from such a copy that the origin has since lost, and older data
//!   once the copy is gone.
//! - A dirty block is dropped only when the new owner says that it has it durably, and it counts as gone only
//!   when no durable page lists it as dirty. Until then it is listed: the new owner may ask for the list at
//!   any time, and a crash here must not bring back a block that is not on it.

use std::collections::BTreeMap;

use haversack_model::{BlockNo, DiskNo, HostId, Micros};

use crate::action::{JobError, JobId};
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::flow::moving::{Held, Moving};
use crate::format::record::{Damage, Moved};
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::Memory;
use crate::store::segment::{Segment, SegmentNo, SegmentState};

/// Blocks that are forgotten in one call.
const FORGET_AT_A_TIME: usize = 256;
/// Segments that one step of [`Call::relist_ahead`] examines.
const SEGMENTS_A_STEP: u32 = 4;

/// Where [`Call::relist_ahead`] continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RelistCursor(u32);

impl Core {
    /// Returns dirty blocks of a frozen or handed-over disk that the new owner needs from here, with their
    /// sectors, from a block on and in order.
    pub fn held_blocks(&mut self, disk: DiskNo, from: BlockNo, most: usize) -> Vec<(BlockNo, u8)> {
        let is_held = self.disks.get(disk).is_some_and(|d| d.life.is_frozen() || d.life.holds_for_another());
        if !is_held {
            return Vec::new();
        }
        self.list_held(disk);
        let held = self.disk(disk).moving.as_ref().and_then(|moving| moving.held.as_ref());
        held.expect("they were just listed")
            .range(from..)
            .take(most)
            .map(|(b, held)| (*b, held.mask))
            .collect()
    }

    /// Lists the dirty blocks, if that was not done yet. It takes time in proportion to the segments with
    /// dirty blocks.
    fn list_held(&mut self, disk: DiskNo) {
        if self.disk(disk).moving.as_ref().is_some_and(|moving| moving.held.is_some()) {
            return;
        }
        let mut held: BTreeMap<BlockNo, Held> = BTreeMap::new();
        for segment in &self.store.disks[disk].segments {
            if self.store.segments[*segment].dirty == 0 {
                continue;
            }
            for number in self.store.slots_of(*segment) {
                if let Some(slot) = self.store.slot(number).primary().filter(|slot| slot.dirty()) {
                    let inside = self.disk(disk).inside(slot.block());
                    let mask = if slot.poisoned() { inside } else { slot.mask() };
                    held.entry(slot.block()).or_default().mask = mask;
                }
            }
        }
        for frame in self.staging.all_of(disk) {
            let staged = self.staging.get(frame);
            if staged.dirty && !staged.superseded {
                held.entry(staged.block).or_default().mask |= staged.mask;
            }
        }
        self.disk_mut(disk).moving.get_or_insert_default().held = Some(held);
    }

    /// Whether the clean blocks of a frozen disk are durable at the origin, so that copies of them count.
    pub fn is_origin_settled(&self, disk: DiskNo) -> bool {
        self.disks.get(disk).is_some_and(|d| d.origin.is_durable())
    }

    /// Whether a disk is owned and detached, and the origin is complete: the record says that the disk has no
    /// dirty data.
    pub(crate) fn is_left_clean(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        let is_clean = !d.may_be_dirty && self.dirty_blocks(disk) == 0;
        let is_whole = d.damage == Damage::None && d.lost.is_empty() && d.moved == Moved::No;
        d.life.is_detached() && is_whole && (is_clean || planted(Bug::ReleaseLeftDirty))
    }

    /// Returns how many blocks are being forgotten: their removal was requested, but durable pages may still
    /// list them.
    pub fn forgetting(&self, disk: DiskNo) -> usize {
        self.disks.get(disk).and_then(|d| d.moving.as_ref()).map_or(0, |moving| moving.forgetting.len())
    }
}

impl<M: Memory> Call<'_, M> {
    /// Rewrites a page that lists clean blocks of a disk as dirty, if it finds one. This shortens a later freeze, for
    /// which the guest waits: the freeze has to rewrite all such pages. It examines some segments; returns where the
    /// next call continues, or `None` at the end.
    pub fn relist_ahead(&mut self, now: Micros, disk: DiskNo, from: RelistCursor) -> Option<RelistCursor> {
        self.now = now;
        let all = self.store.segments.len() as u32;
        let end = from.0.saturating_add(SEGMENTS_A_STEP).min(all);
        let flushed = self.durability.flushed();
        let is_due = |segment: &SegmentNo| {
            self.store.segments[*segment].page_ready(flushed) && self.store.is_falsely_dirty(disk, *segment)
        };
        let is_here = self.disks.get(disk).is_some_and(|d| d.life.writes_origin());
        let found = (from.0..end).map(SegmentNo).find(|segment| is_here && is_due(segment));
        if let Some(segment) = found {
            self.ask_rewrite(disk, segment);
            self.settle();
        }
        let next = found.map_or(end, |segment| segment.0 + 1);
        (next < all).then_some(RelistCursor(next))
    }

    /// Commits the staged blocks of a disk that is being exported, and makes them durable. To be called when the guest
    /// has stopped, and then from time to time until the freeze or until [`Call::end_settling`]. It shortens the
    /// freeze, which waits for these commits.
    pub fn settle_ahead(&mut self, now: Micros, disk: DiskNo) {
        self.now = now;
        let Some(d) = self.disks.get_mut(disk).filter(|d| d.life.writes_origin()) else { return };
        let Some(moving) = d.moving.as_mut().filter(|moving| moving.export.is_some()) else { return };
        moving.is_settling = true;
        let seq = d.last_commit_seq;
        if self.staging.lists[disk].len == 0 {
            self.durability.want(seq);
        }
        self.queue(disk);
        self.settle();
    }

    /// Ends what [`Call::settle_ahead`] began, since the guest runs here again.
    pub fn end_settling(&mut self, disk: DiskNo) {
        if let Some(moving) = self.disks.get_mut(disk).and_then(|d| d.moving.as_mut()) {
            moving.is_settling = false;
        }
    }

    /// Finishes a disk's requests and makes everything in its cache durable, so that it can be handed over. No
    /// more requests are taken.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or still needs blocks from another host.
    pub fn freeze(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        self.independent(disk)?;
        self.end_late_copies(disk);
        self.end_settling(disk);
        self.disk_mut(disk).life.happened(Event::Freeze);
        Ok(self.start_job(disk, JobKind::Freeze, None))
    }

    pub(crate) fn drive_freeze(&mut self, disk: DiskNo) {
        // The new owner would read what is lost from the origin, which has older data.
        if self.has_losses(disk) {
            self.stay(disk, JobError::DataLost);
            return;
        }
        if self.alive_devices().next().is_none() {
            self.stay(disk, JobError::NoDevice);
            return;
        }
        let d = self.disk(disk);
        let moves = !d.restage.is_empty() || d.restaging > 0 || !d.cleaner.is_idle();
        let staged = self.staging.all_of(disk).next().is_some();
        if staged && !planted(Bug::FreezeStaged) || moves || !self.is_quiet(disk) {
            return;
        }
        let seq = self.disk(disk).last_commit_seq;
        if !self.durability.want(seq) && !planted(Bug::FreezeUnflushed) {
            return;
        }
        if !planted(Bug::FreezeListed) && !self.relist_clean(disk) {
            return;
        }
        let cannot_settle = self.disk(disk).moving.as_ref().is_some_and(|moving| moving.is_origin_unsettled);
        if !cannot_settle && !self.settle_origin(disk) {
            return;
        }
        self.list_held(disk);
        self.end_job(disk, Ok(()));
    }

    /// Rewrites pages that list clean blocks as dirty. Returns true when none is left. The first call takes
    /// time in proportion to the disk's segments, unless [`Call::relist_ahead`] has left few.
    fn relist_clean(&mut self, disk: DiskNo) -> bool {
        let listed = self.disk_mut(disk).moving.get_or_insert_default().called_dirty.take();
        let mut listed = listed.unwrap_or_else(|| self.store.disks[disk].segments.clone());
        let flushed = self.durability.flushed();
        // Until a segment's page is durable, checking its slots again gives the same result. So they are checked once
        // per page.
        let is_awaited = |s: &Segment| !s.page_ready(flushed) && !planted(Bug::FreezeUnflushed);
        let is_on_its_way = |s: &Segment| s.state != SegmentState::Dead && is_awaited(s);
        listed.retain(|segment| {
            let s = &self.store.segments[*segment];
            s.owner == disk.0 && is_on_its_way(s) || self.store.is_falsely_dirty(disk, *segment)
        });
        for segment in &listed {
            let s = &self.store.segments[*segment];
            let (page_seq, is_written) = (s.page_seq, !s.page_writing);
            if s.page_ready(flushed) {
                self.rewrite_page(*segment);
            } else if is_written {
                self.durability.want(page_seq);
            }
        }
        let is_done = listed.is_empty() && !self.devices.leaves_any();
        self.disk_mut(disk).moving.get_or_insert_default().called_dirty = Some(listed);
        is_done
    }

    fn stay(&mut self, disk: DiskNo, error: JobError) {
        self.forget_freeze(disk);
        self.end_job(disk, Err(error));
    }

    /// Cancels a handover: the disk takes requests again.
    ///
    /// # Errors
    /// The disk is not frozen, or the handover can no longer be cancelled.
    pub fn thaw(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        if !self.known(disk)?.life.is_frozen() {
            return Err(ManageError::Migrating(self.disk(disk).id));
        }
        let job = self.disk(disk).job.is_some();
        if job {
            self.end_job(disk, Err(JobError::Cancelled));
        }
        self.forget_freeze(disk);
        self.queue(disk);
        self.settle();
        Ok(())
    }

    fn forget_freeze(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        d.life.happened(Event::Thaw);
        if let Some(moving) = &mut d.moving {
            (moving.held, moving.called_dirty, moving.is_origin_unsettled) = (None, None, false);
        }
    }

    /// Makes another host the owner of a frozen disk, under a higher epoch. When the job has ended, that host
    /// may be notified.
    ///
    /// # Errors
    /// The disk is not frozen, has a job, or had that epoch already.
    pub fn release_to(
        &mut self,
        now: Micros,
        disk: DiskNo,
        epoch: u64,
        to: HostId,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.disk_mut(disk);
        if !d.life.is_frozen() {
            return Err(ManageError::Migrating(d.id));
        }
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        let holds = d.moving.as_ref().and_then(|moving| moving.held.as_ref()).is_some_and(|h| !h.is_empty());
        let lends = d.origin.is_durable();
        d.moving.get_or_insert_default().lends = lends;
        let moved = if holds { Moved::Peer { to } } else { Moved::Away { to, holder: None } };
        Ok(self.start_hand_over(disk, epoch, moved))
    }

    fn start_hand_over(&mut self, disk: DiskNo, epoch: u64, moved: Moved) -> JobId {
        let d = self.disk_mut(disk);
        d.life.hand_over(epoch);
        d.moved = moved;
        self.staging.drop_all_data(disk);
        let version = self.change_record();
        self.start_job(disk, JobKind::HandOver, Some(version))
    }

    /// Makes another host the owner of a detached disk that was left clean, under a higher epoch. That host
    /// needs none of the blocks here, and is lent none: while the disk was detached, its origin may have been
    /// changed by other means, such as a rollback to a snapshot. When the job has ended, that host may be
    /// notified.
    ///
    /// # Errors
    /// The disk is attached, was not left clean, is damaged, has a job, or had that epoch already, or the pool has no
    /// device left to record it on.
    pub fn release_detached(
        &mut self,
        now: Micros,
        disk: DiskNo,
        epoch: u64,
        to: HostId,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        self.running()?;
        self.idle(disk)?;
        let dirty_blocks = self.dirty_blocks(disk);
        let d = self.disk(disk);
        if !d.life.is_detached() {
            return Err(ManageError::Attached(d.id));
        }
        match d.damage {
            Damage::None => {}
            Damage::Lost => return Err(ManageError::Lost(d.id)),
            Damage::Uncertain => return Err(ManageError::Damaged(d.id)),
        }
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if !self.is_left_clean(disk) {
            return Err(ManageError::Dirty { disk: self.disk(disk).id, dirty_blocks });
        }
        if self.alive_devices().next().is_none() {
            return Err(ManageError::NoDevice(self.disk(disk).id));
        }
        self.disk_mut(disk).moving = None;
        Ok(self.start_hand_over(disk, epoch, Moved::Away { to, holder: None }))
    }

    pub(crate) fn end_hand_over(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        let is_peer = matches!(d.moved, Moved::Peer { .. });
        d.life.happened(if is_peer { Event::HandedOver } else { Event::Released });
        if let Some(moving) = &mut d.moving {
            moving.export = None;
        }
        self.end_job(disk, Ok(()));
    }

    /// Drops dirty blocks of a handed-over disk, which the new owner now has durably, or of a replica, which the
    /// owner's origin has. They are gone when [`Core::forgetting`] is 0.
    ///
    /// # Errors
    /// The disk is not one of which another host needs blocks.
    pub fn forget_held(&mut self, now: Micros, disk: DiskNo, blocks: &[BlockNo]) -> Result<(), ManageError> {
        self.now = now;
        if !self.known(disk)?.life.holds_for_another() {
            return Err(ManageError::NotAttached(self.disk(disk).id));
        }
        self.list_held(disk);
        let moving = self.disk_mut(disk).moving.as_mut().expect("it was just listed");
        let held = moving.held.as_mut().expect("it was just listed");
        for block in blocks {
            if let Some(held) = held.get_mut(block).filter(|held| !held.is_being_forgotten) {
                held.is_being_forgotten = true;
                moving.forgetting.push_back(*block);
            }
        }
        self.queue(disk);
        self.settle();
        Ok(())
    }

    /// Drops the dirty blocks of a handed-over disk. They are obsolete: a later owner, which did not need them, has
    /// changed the disk.
    ///
    /// # Errors
    /// The disk is not one of which another host needs blocks, or it has a job.
    pub fn discard_held(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        self.idle(disk)?;
        if !self.known(disk)?.life.holds_for_another() {
            return Err(ManageError::NotAttached(self.disk(disk).id));
        }
        self.void_cache(disk);
        self.disk_mut(disk).moving = None;
        self.end_of_peer(disk);
        self.settle();
        Ok(())
    }

    /// Drops blocks that the new owner has, and requests pages that no longer list them as dirty.
    pub(crate) fn drive_forgetting(&mut self, disk: DiskNo) {
        let Some(moving) = &mut self.disk_mut(disk).moving else { return };
        let count = moving.forgetting.len().min(FORGET_AT_A_TIME);
        let blocks: Vec<BlockNo> = moving.forgetting.drain(..count).collect();
        for block in blocks {
            let is_gone = self.forget_one(disk, block);
            let Some(moving) = &mut self.disk_mut(disk).moving else { return };
            if !is_gone {
                moving.forgetting.push_back(block);
            } else if let Some(held) = &mut moving.held {
                held.remove(&block);
            }
        }
        let d = self.disk(disk);
        let held = d.moving.as_ref().and_then(|moving| moving.held.as_ref());
        let drained = held.is_some_and(BTreeMap::is_empty) && d.life.is_peer();
        if drained && d.life.allows(Event::Drained) {
            self.end_of_peer(disk);
        }
    }

    /// Drops a block; returns true if no durable page lists it as dirty any more.
    fn forget_one(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        let versions = self.resolve(disk, block);
        if let Some(staged) = versions.staged {
            if staged.committing || self.commit_in_flight(staged.commit_seq) {
                return false;
            }
            self.unstage(staged.frame);
        }
        if versions.flash.is_some() {
            self.store.invalidate(disk, block);
        }
        let listed = self.store.durably_dirty(disk, block);
        if let Some(slot) = listed {
            let segment = self.store.segment_of(slot);
            self.ask_rewrite(disk, segment);
        }
        listed.is_none() || planted(Bug::ForgetUnlisted) || self.alive_devices().next().is_none()
    }

    /// Ends the state in which blocks are held for another host: no other host needs them any more.
    fn end_of_peer(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        d.life.happened(Event::Drained);
        if let Moved::Peer { to } | Moved::Replica { of: to, .. } = d.moved {
            d.moved = Moved::Away { to, holder: None };
        }
        let lends = d.moving.as_ref().is_some_and(|moving| moving.lends);
        d.moving = lends.then(|| Box::new(Moving { lends, ..Moving::default() }));
        d.may_be_dirty = false;
        self.change_record();
    }

    /// Takes a disk back under a higher epoch from a host that never owned it: nothing was written since this
    /// host handed it over, so all cached blocks stay valid.
    ///
    /// # Errors
    /// Blocks of the disk are not held for another host, or as for [`Call::attach`].
    pub fn regain(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
    ) -> Result<(DiskNo, JobId), ManageError> {
        self.now = now;
        let disk = self.check_regain(config, epoch, false)?;
        self.configure(disk, config, epoch);
        let d = self.disk_mut(disk);
        (d.moved, d.moving) = (Moved::No, None);
        d.origin.suspect_unmarked();
        let version = self.change_record();
        Ok((disk, self.start_job(disk, JobKind::Attach, Some(version))))
    }

    /// Checks that a disk whose blocks are held for another host may be taken back.
    pub(crate) fn check_regain(
        &self,
        config: &DiskConfig,
        epoch: u64,
        accept_loss: bool,
    ) -> Result<DiskNo, ManageError> {
        config.check().map_err(ManageError::BadConfig)?;
        let disk = self.disks.find(config.id).ok_or(ManageError::NotKnown(config.id))?;
        self.idle(disk)?;
        let d = self.disk(disk);
        if !d.life.holds_for_another() || !d.life.allows(Event::Attach) {
            return Err(ManageError::NotAttached(d.id));
        }
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if (config.sectors, config.phase) != (d.sectors, d.phase) {
            return Err(ManageError::Size { disk: d.id, recorded_sectors: d.sectors });
        }
        match d.damage {
            Damage::Lost if !accept_loss => Err(ManageError::Lost(d.id)),
            Damage::Uncertain if !accept_loss => Err(ManageError::Damaged(d.id)),
            _ => Ok(disk),
        }
    }

    /// Records that another host owns a disk under an epoch that was granted to this host, which did not take the disk.
    /// `holder` has the dirty blocks.
    ///
    /// # Errors
    /// This host owns the disk, it has a job, or the disk had that epoch already.
    pub fn pass_on(
        &mut self,
        now: Micros,
        config: &DiskConfig,
        epoch: u64,
        to: HostId,
        holder: Option<HostId>,
    ) -> Result<JobId, ManageError> {
        self.now = now;
        let disk = self.known_or_new(config)?;
        self.idle(disk)?;
        let dirty_blocks = self.dirty_blocks(disk);
        let d = self.disk_mut(disk);
        if d.life.is_owned() || !d.life.is_released() || epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        if d.life.is_incoming() {
            d.life.happened(Event::Dismiss);
        }
        d.life.passed_on(epoch);
        if let Some(moving) = &mut d.moving {
            moving.lends = false;
        }
        d.moved = match d.moved {
            Moved::Peer { .. } => Moved::Peer { to },
            Moved::Overtaken { .. } if dirty_blocks > 0 => Moved::Overtaken { to },
            _ => Moved::Away { to, holder },
        };
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Record, Some(version)))
    }
}
