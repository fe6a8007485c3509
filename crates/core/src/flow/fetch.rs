//! Fetches blocks from a peer, the previous owner: when a read needs them, when something waits for them, and
//! in the background.
//!
//! Invariants
//! - Data from the peer is staged as dirty while its block is locked, and only in sectors of which this host
//!   has no newer version. So every write of the guest takes precedence.
//! - A block is read from the peer at most once at a time, and only when a staging frame is available.
//! - A request whose sectors cannot be read from the peer fails. The origin's older sectors are never returned
//!   instead.

use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, HostId, Micros};

use crate::action::{Action, IoId, JobId, Op, RequestError};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::flow::moving::peer::PeerBlocks;
use crate::flow::request::Park;
use crate::format::record::Moved;
use crate::io::{FlashPart, Io, Purpose};
use crate::jobs::JobKind;
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::{FrameNo, Memory};
use crate::versions::Versions;

impl Core {
    #[inline]
    fn peer(&self, disk: DiskNo) -> Option<&PeerBlocks> {
        self.disk(disk).moving.as_ref()?.peer.as_ref()
    }

    fn peer_blocks(&mut self, disk: DiskNo) -> Option<&mut PeerBlocks> {
        self.disk_mut(disk).moving.as_mut()?.peer.as_mut()
    }

    /// Returns the sectors of a block of which a peer has the newest version, unless there is a clean copy
    /// here.
    #[inline]
    pub(crate) fn needed_of_peer(&self, disk: DiskNo, block: BlockNo) -> u8 {
        match &self.disk(disk).moving {
            None => 0,
            Some(moving) => moving.peer.as_ref().map_or(0, |peer| peer.needed(block)),
        }
    }

    /// Whether a peer may still list a block, so that the origin must not be written there.
    #[inline]
    pub(crate) fn is_at_peer(&self, disk: DiskNo, block: BlockNo) -> bool {
        self.peer(disk).is_some_and(|peer| peer.may_have(block)) && !planted(Bug::CleanUndrained)
    }

    /// Whether the cleaner must not write a block because a peer may still list it.
    pub(crate) fn is_kept_from_cleaner(&self, disk: DiskNo, block: BlockNo) -> bool {
        self.peer(disk).is_some_and(|peer| peer.bars_cleaning(block)) && !planted(Bug::CleanUndrained)
    }

    /// Whether the peer is given up, and the record does not say that yet.
    pub(crate) fn is_giving_up(&self, disk: DiskNo) -> bool {
        self.peer(disk).is_some_and(|peer| peer.given_up().is_some())
    }

    /// Requests a block of the peer before others, since something waits until the peer has forgotten it.
    /// Returns whether the peer may still list it.
    pub(crate) fn ask_peer(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        if !self.is_at_peer(disk, block) {
            return false;
        }
        if let Some(peer) = self.peer_blocks(disk) {
            peer.hurry(block);
        }
        self.queue(disk);
        true
    }

    /// Returns the host from which this one still needs blocks, and how many.
    pub fn dependence(&self, disk: DiskNo) -> Option<(HostId, usize)> {
        self.disks.get(disk)?;
        self.peer(disk).map(|peer| (peer.host, peer.len()))
    }

    /// Returns blocks that are durable here and that the peer should forget, at most this many.
    pub fn ready_to_forget(&self, disk: DiskNo, most: usize) -> Vec<BlockNo> {
        self.disks.get(disk).and_then(|_| self.peer(disk)).map_or_else(Vec::new, |peer| peer.ready(most))
    }

    /// Checks that a disk needs no blocks of another host.
    pub(crate) fn independent(&self, disk: DiskNo) -> Result<(), ManageError> {
        match (self.peer(disk), self.disk(disk).moved) {
            (None, Moved::No | Moved::Away { .. } | Moved::Peer { .. }) => Ok(()),
            _ => Err(ManageError::Migrating(self.disk(disk).id)),
        }
    }
}

impl<M: Memory> Call<'_, M> {
    /// Sets how many of the peer's blocks are fetched at a time in the background; 0 stops fetching.
    pub fn set_fetch_window(&mut self, now: Micros, disk: DiskNo, blocks: u32) {
        self.now = now;
        if self.disks.contains(disk)
            && let Some(peer) = self.peer_blocks(disk)
        {
            peer.window = blocks;
            self.queue(disk);
            self.settle();
        }
    }

    /// Sets how many more blocks may be fetched from the previous owner in the background, including late
    /// copies; `None` for no limit. Blocks that requests need are always fetched, and count.
    pub fn set_fetch_allowance(&mut self, now: Micros, disk: DiskNo, blocks: Option<u64>) {
        self.now = now;
        if let Some(moving) = self.disks.get_mut(disk).and_then(|d| d.moving.as_mut()) {
            moving.allowance = blocks;
            self.queue(disk);
            self.settle();
        }
    }

    /// Called when the peer has durably forgotten these blocks.
    pub fn forgotten_by_peer(&mut self, now: Micros, disk: DiskNo, blocks: &[BlockNo]) {
        self.now = now;
        if !self.disks.contains(disk) {
            return;
        }
        if let Some(peer) = self.peer_blocks(disk) {
            blocks.iter().for_each(|block| peer.forgotten(*block));
            self.disk_mut(disk).cleaner.barred_until = None;
        }
        self.wake_around(disk);
        self.queue(disk);
        self.settle();
    }

    /// Records that the disk needs nothing from its peer any more.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or the peer has not forgotten all blocks.
    pub fn end_dependence(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        if self.peer(disk).is_some_and(|peer| !peer.is_empty()) {
            return Err(ManageError::Migrating(self.disk(disk).id));
        }
        let d = self.disk_mut(disk);
        if let Some(moving) = &mut d.moving {
            moving.peer = None;
        }
        d.moved = Moved::No;
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Record, Some(version)))
    }

    pub(crate) fn drive_fetch(&mut self, disk: DiskNo) {
        let Some(peer) = self.peer_blocks(disk) else { return };
        if peer.waits_for_commits() {
            self.settle_fetched(disk);
        }
        if self.peer(disk).is_some_and(PeerBlocks::waits_for_commits) {
            self.gather_for(disk);
        }
        let now = self.now;
        if !self.disk(disk).life.writes_origin() {
            return;
        }
        while let Some(block) = self.next_of_peer(disk, now) {
            if self.obtain(disk, block).is_err() {
                if let Some(peer) = self.peer_blocks(disk) {
                    peer.put_off(block);
                }
                break;
            }
        }
    }

    fn next_of_peer(&mut self, disk: DiskNo, now: Micros) -> Option<BlockNo> {
        let moving = self.disk_mut(disk).moving.as_mut()?;
        let in_background = moving.may_fetch();
        moving.peer.as_mut()?.next(now, in_background)
    }

    /// Marks blocks that are durable here as ready to be forgotten by the peer.
    fn settle_fetched(&mut self, disk: DiskNo) {
        let mut peer = self.peer_blocks(disk).map(|peer| std::mem::replace(peer, PeerBlocks::new(peer.host)));
        if let Some(peer) = &mut peer {
            let mut unflushed = false;
            peer.settle(|block, mask| {
                let Versions { flash, lost, .. } = self.resolve(disk, block);
                if mask == 0 {
                    return true;
                }
                let Some((_, slot)) = flash.filter(|(_, slot)| slot.dirty()) else { return lost != 0 };
                let is_all = slot.poisoned() || slot.mask() & mask == mask;
                let is_durable = self.durability.is_durable(slot.seq()) || planted(Bug::ConfirmUnflushed);
                unflushed |= is_all && !is_durable;
                is_all && is_durable
            });
            if unflushed {
                let seq = self.disk(disk).last_commit_seq;
                self.durability.want(seq);
            }
        }
        if let (Some(slot), Some(peer)) = (self.peer_blocks(disk), peer) {
            *slot = peer;
        }
    }

    /// Starts to make the peer's sectors of a block dirty here: from a clean copy if there is one, otherwise
    /// from the peer.
    pub(crate) fn obtain(&mut self, disk: DiskNo, block: BlockNo) -> Result<(), Park> {
        if self.locks.get(disk, block).is_some() {
            return Err(Park::Lock(block));
        }
        let is_given_up = self.is_giving_up(disk);
        let versions = self.resolve(disk, block);
        let (cached, dirty) = self.cached_and_dirty(disk, block);
        let Some(peer) = self.peer_blocks(disk).filter(|peer| peer.get(block).is_some()) else {
            return Ok(());
        };
        peer.has_newer(block, dirty);
        let needed = if is_given_up { peer.needed(block) & cached } else { peer.needed(block) };
        if needed == 0 {
            peer.settles(block);
            self.queue(disk);
            return Ok(());
        }
        let frame = if self.staging.free() > 1 { self.staging.allocate() } else { None };
        let frame = frame.ok_or(Park::Staging)?;
        if let Some(staged) = versions.staged.filter(|staged| staged.mask & needed == needed) {
            self.memory.copy(staged.frame, frame, 0, BLOCK_BYTES);
            self.obtained(disk, block, frame, staged.mask);
            self.peer_blocks(disk).expect("it has the block").settles(block);
            return Ok(());
        }
        let copy = versions.flash.filter(|(_, slot)| slot.mask() & needed == needed);
        let copy = copy.filter(|_| versions.staged.is_none());
        if is_given_up && copy.is_none() {
            // The copy here is in two parts, staged and on flash. It is complete once the staged part is committed.
            self.staging.give_back(frame);
            return Err(Park::Staging);
        }
        self.locks.lock(disk, block, LockKind::Fill);
        self.peer_blocks(disk).expect("it has the block").fetches(block);
        match copy {
            Some((number, slot)) => {
                let io = self.new_io(Purpose::Adopt { part: FlashPart::of(number, slot) });
                self.ios[io].disk = Some(disk);
                self.read_slot(io, number, frame);
            }
            None => {
                let io = self.new_io(Purpose::Fetch { block, mask: needed });
                self.ios[io].disk = Some(disk);
                self.ios[io].len = BLOCK_BYTES;
                self.ios[io].frames.push(frame);
                let d = self.disk_mut(disk);
                d.stats.peer_read_blocks += 1;
                if let Some(moving) = &mut d.moving {
                    moving.fetches_one();
                }
                self.emit(Action::ReadPeer { io: IoId(io), disk, block, mask: needed, is_late: false });
            }
        }
        Ok(())
    }

    fn obtained(&mut self, disk: DiskNo, block: BlockNo, frame: FrameNo, mask: u8) {
        self.stage(disk, block, frame, mask, true);
        if let Some(peer) = self.peer_blocks(disk) {
            peer.has_newer(block, mask);
        }
        self.queue(disk);
    }

    pub(crate) fn fetch_done(&mut self, io: &Io, block: BlockNo, mask: u8, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("a block is of a disk");
        let mask = if planted(Bug::FetchOverNewer) { 255 } else { mask };
        if result.is_ok() {
            self.obtained(disk, block, io.frames[0], mask & self.disk(disk).inside(block));
        } else {
            self.staging.give_back(io.frames[0]);
            if self.peer(disk).is_some_and(|peer| peer.given_up().is_none()) {
                self.fail_readers(disk, block);
            }
        }
        let retry_us = self.now + self.config.clean_retry_us;
        if let Some(peer) = self.peer_blocks(disk) {
            peer.fetched(block, result.is_ok());
            if result.is_err() && peer.given_up().is_none() {
                peer.retry_us = retry_us;
            }
        }
        self.unlock(disk, block);
        self.wake_staging();
        self.queue(disk);
    }

    /// Fails the reads that wait for a block that is not available.
    fn fail_readers(&mut self, disk: DiskNo, block: BlockNo) {
        for at in 0..self.disk(disk).lock_waiters.len() {
            let request = self.disk(disk).lock_waiters[at];
            let waits = self.requests.contains(request) && self.requests[request].park == Park::Lock(block);
            if waits && self.requests[request].op == Op::Read {
                self.fail(request, RequestError::PeerLost);
            }
        }
    }

    pub(crate) fn adopt_done(&mut self, io: &Io, part: FlashPart, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("a block is of a disk");
        self.note_device_read(io, part.slot, result);
        let (block, frame) = (part.block, io.frames[0]);
        let is_good = result.is_ok() && self.verified(disk, block, frame, part.crc);
        let versions = self.resolve(disk, block);
        let is_current = versions.flash_of(part.seq).is_some() && versions.staged.is_none();
        if is_good && is_current {
            self.obtained(disk, block, frame, part.mask);
        } else {
            self.staging.give_back(frame);
            if let Some((number, _)) = versions.flash_of(part.seq).filter(|_| !is_good) {
                self.damaged(disk, number);
            }
        }
        if let Some(peer) = self.peer_blocks(disk) {
            peer.fetched(block, is_good && is_current);
        }
        self.unlock(disk, block);
        self.wake_staging();
        self.queue(disk);
    }
}
