//! A disk that is about to move to this host: copies of its blocks arrive before this host owns it, and count
//! from the moment it does.
//!
//! Invariants
//! - Copies are clean and not in use until the disk is claimed: no request is served from them, and a crash
//!   before the claim is recorded voids them all.
//! - The claim is recorded only when every region in which a copy was dropped or replaced is durably marked:
//!   no crash brings such a copy back. Copies need not be durable for that: a copy lost in a crash is only
//!   missing.
//! - A copy that arrives replaces the previous copy, including sectors that the new one lacks.

use haversack_model::{BlockNo, DiskNo, HostId, Micros, SECTOR_BYTES};

use crate::action::JobId;
use crate::bugs::{Bug, planted};
use crate::config::DiskConfig;
use crate::core::Call;
use crate::disk::runs;
use crate::error::ManageError;
use crate::flow::export::Copied;
use crate::flow::moving::Moving;
use crate::flow::moving::peer::PeerBlocks;
use crate::format::record::Moved;
use crate::jobs::JobKind;
use crate::lifecycle::Event;
use crate::memory::{FrameNo, Memory, RequestTag};

impl<M: Memory> Call<'_, M> {
    /// Prepares for a disk that may move here. All its cached blocks become void. A disk that was already
    /// expected keeps its target.
    ///
    /// # Errors
    /// This host owns the disk or has dirty blocks of it for another host, it has a job, or the configuration
    /// is invalid.
    pub fn expect_disk(&mut self, now: Micros, config: &DiskConfig) -> Result<DiskNo, ManageError> {
        self.now = now;
        config.check().map_err(ManageError::BadConfig)?;
        self.running()?;
        let disk = self.known_or_new(config)?;
        self.idle(disk)?;
        self.not_overtaken(disk)?;
        let d = self.disk_mut(disk);
        let target = d.life.is_incoming().then_some(d.target);
        if d.life.is_incoming() {
            d.life.happened(Event::Dismiss);
        }
        if !d.life.allows(Event::Expect) {
            return Err(ManageError::Migrating(d.id));
        }
        d.moving = None;
        self.void_cache(disk);
        self.settings(disk, config);
        if let Some(target) = target {
            self.change_target(disk, target);
        }
        self.disk_mut(disk).life.happened(Event::Expect);
        Ok(disk)
    }

    /// Gives up a disk that was expected: its copies become void.
    ///
    /// # Errors
    /// The disk is not expected, or is being claimed.
    pub fn dismiss_disk(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        self.idle(disk)?;
        self.incoming(disk)?;
        self.void_cache(disk);
        let d = self.disk_mut(disk);
        d.moving = None;
        d.life.happened(Event::Dismiss);
        self.settle();
        Ok(())
    }

    pub(crate) fn incoming(&self, disk: DiskNo) -> Result<(), ManageError> {
        let d = self.known(disk)?;
        if d.life.is_incoming() { Ok(()) } else { Err(ManageError::NotAttached(d.id)) }
    }

    /// Stores a copy of a block from the buffer of `tag`, one block long, each sector at its place. It replaces an
    /// older copy. A copy marked as reused becomes protected here as well: on probation it could be evicted, since no
    /// request can hit it before the claim. Returns false if there is no space: then this host has no copy.
    ///
    /// # Errors
    /// The disk is not expected, or is being claimed.
    pub fn take_copy(
        &mut self,
        now: Micros,
        tag: RequestTag,
        disk: DiskNo,
        block: BlockNo,
        copied: Copied,
    ) -> Result<bool, ManageError> {
        self.now = now;
        self.incoming(disk)?;
        self.idle(disk)?;
        // The number comes from another host and may be out of range.
        if self.disk(disk).inside_checked(block) == 0 {
            return Ok(false);
        }
        if !planted(Bug::MixCopies) {
            self.drop_copy(disk, block);
        }
        let mask = copied.mask & self.disk(disk).inside(block);
        let frame = if mask == 0 { None } else { self.take_in(tag, mask) };
        let Some(frame) = frame else {
            self.queue(disk);
            self.settle();
            return Ok(false);
        };
        self.stage_as(disk, block, frame, mask, false, copied.reused);
        self.queue_if_due(disk);
        self.settle();
        Ok(true)
    }

    /// Takes sectors of a block from the buffer of `tag`, which another host has filled, into a staging frame. `None`
    /// if there is no space now.
    pub(crate) fn take_in(&mut self, tag: RequestTag, mask: u8) -> Option<FrameNo> {
        let is_usable = self.store.usable_devices().next().is_some();
        let has_room = self.staging.free() > self.spare_frames() && is_usable;
        let frame = has_room.then(|| self.staging.allocate()).flatten()?;
        for (first, count) in runs(mask) {
            let at = first as usize * SECTOR_BYTES;
            if !self.memory.take(tag, at, frame, at, count as usize * SECTOR_BYTES) {
                self.staging.give_back(frame);
                return None;
            }
        }
        Some(frame)
    }

    /// Drops the copy of a block, if there is one, and makes sure that no crash brings it back.
    fn drop_copy(&mut self, disk: DiskNo, block: BlockNo) {
        let since_seq = self.disk(disk).since_seq;
        let versions = self.resolve(disk, block);
        let mut may_return = versions.staged.is_some_and(|staged| staged.committing);
        self.store.entries(disk, block, |_, slot| may_return |= slot.seq() >= since_seq);
        if may_return && !planted(Bug::DropUnmarked) {
            self.intent_marked(disk, block);
        }
        if let Some(staged) = versions.staged {
            if staged.committing {
                self.memory.store_descriptor(staged.frame.0, &[0; crate::memory::DESCRIPTOR_BYTES]);
                self.staging.abandon(staged.frame);
            } else {
                self.unstage(staged.frame);
            }
        }
        self.store.invalidate(disk, block);
    }

    /// Drops copies that are out of date, and makes sure that no crash brings them back.
    ///
    /// # Errors
    /// The disk is not expected, or is being claimed.
    pub fn drop_copies(&mut self, now: Micros, disk: DiskNo, blocks: &[BlockNo]) -> Result<(), ManageError> {
        self.now = now;
        self.incoming(disk)?;
        self.idle(disk)?;
        for block in blocks {
            let is_inside = self.disk(disk).inside_checked(*block) != 0;
            if is_inside && !planted(Bug::KeepOutdated) {
                self.drop_copy(disk, *block);
            }
        }
        self.queue(disk);
        self.settle();
        Ok(())
    }

    /// Lists blocks of which another host has dirty sectors. With `last` the list is complete. It is needed
    /// before a claim, and before an attach after a crash of a host that still depends on another one.
    ///
    /// # Errors
    /// The disk is neither expected nor owned and detached.
    pub fn list_peer_blocks(
        &mut self,
        now: Micros,
        disk: DiskNo,
        peer: HostId,
        blocks: &[(BlockNo, u8)],
        last: bool,
    ) -> Result<(), ManageError> {
        self.now = now;
        self.idle(disk)?;
        let d = self.known(disk)?;
        let awaits = d.life.allows(Event::Attach) && matches!(d.moved, Moved::Depends { .. });
        if !d.life.is_incoming() && !awaits {
            return Err(ManageError::Attached(d.id));
        }
        let is_beyond = |(block, mask): &(BlockNo, u8)| mask & !self.disk(disk).inside_checked(*block) != 0;
        if let Some((block, _)) = blocks.iter().find(|listed| is_beyond(listed)) {
            let (id, sectors) = (d.id, d.sectors);
            return Err(ManageError::BadConfig(format!(
                "disk {id} has {sectors} sectors here, and the host that has it has dirty data beyond them, in block {}: \
                 detach it and attach it with the size that it has there",
                block.0
            )));
        }
        for (block, mask) in blocks {
            let listed = mask & self.disk(disk).inside(*block);
            let dirty = self.cached_and_dirty(disk, *block).1;
            if listed != 0 && !planted(Bug::LosePeerList) {
                self.peer_mut(disk, peer).list(*block, listed, listed & !dirty);
            }
        }
        self.peer_mut(disk, peer).is_complete |= last;
        Ok(())
    }

    fn peer_mut(&mut self, disk: DiskNo, host: HostId) -> &mut PeerBlocks {
        let moving = self.disk_mut(disk).moving.get_or_insert_default();
        moving.peer.get_or_insert_with(|| PeerBlocks::new(host))
    }

    /// Forgets the list: the host that holds the blocks has started over, so the list must start over too.
    pub fn forget_peer_list(&mut self, disk: DiskNo) {
        if let Some(d) = self.disks.get_mut(disk)
            && !d.life.writes_origin()
            && let Some(moving) = &mut d.moving
        {
            moving.peer = None;
        }
    }

    /// Takes ownership of an expected disk under an epoch. The copies that arrived count from then on; the
    /// blocks that were listed are read from the other host until they are here.
    ///
    /// # Errors
    /// The disk is not expected, has a job, had that epoch, or the other host's blocks are not all listed.
    pub fn claim(&mut self, now: Micros, disk: DiskNo, epoch: u64) -> Result<JobId, ManageError> {
        self.now = now;
        self.incoming(disk)?;
        self.idle(disk)?;
        let d = self.disk(disk);
        if epoch <= d.life.epoch() {
            return Err(ManageError::OldEpoch { given: epoch, recorded: d.life.epoch() });
        }
        let peer = d.moving.as_ref().and_then(|moving| moving.peer.as_ref());
        if peer.is_some_and(|peer| !peer.is_complete) {
            return Err(ManageError::PeerUnlisted(d.id));
        }
        Ok(self.start_job(disk, JobKind::Claim { epoch }, None))
    }

    pub(crate) fn drive_claim(&mut self, disk: DiskNo, epoch: u64) {
        if !self.may_serve(disk) {
            return;
        }
        let d = self.disk_mut(disk);
        d.life.attach(epoch);
        d.may_be_dirty = true;
        // The previous owner may have left volatile writes at the origin.
        d.origin.suspect_unmarked();
        let (peer, late) = d.moving.take().map_or((None, None), |moving| (moving.peer, moving.late));
        let peer = peer.filter(|peer| !peer.is_empty());
        d.moved = peer.as_ref().map_or(Moved::No, |peer| Moved::Depends { on: peer.host });
        if planted(Bug::ForgetDependence) {
            d.moved = Moved::No;
        }
        let moving = Moving { peer, late, ..Moving::default() };
        d.moving = (!moving.is_over()).then(|| Box::new(moving));
        self.await_record(disk);
        if let Some(job) = self.disk_mut(disk).job.as_mut() {
            job.kind = JobKind::Attach;
        }
        self.queue(disk);
    }
}
