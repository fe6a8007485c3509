//! Reads of blocks that a disk shares with its base. See [`crate::base`].
//!
//! A run of such blocks is read by a request of the base's disk, the *child*: it uses and fills the base's cache like a
//! read of a client, and gives its data to the client of the disk. If it fails, the disk's own origin is read.
//!
//! Invariants
//! - A block that a write touches is not shared from the moment the write is accepted, and before it starts.
//! - A base is not written while its blocks are shared: its first write ends the sharing. Reads through the base that
//!   are in flight then are repeated from the disk's own origin.
//! - A request completes only when its children have.

use haversack_model::{BlockNo, DiskNo, Micros, SectorNo};

use crate::action::{Op, Request, RequestError};
use crate::base::{Base, BaseBlocks, SharingId};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::disk::Disk;
use crate::error::ManageError;
use crate::format::record::Moved;
use crate::memory::Memory;

/// Children that a request may have at a time.
const MOST_CHILDREN: u32 = 16;

/// The request that a child belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parent {
    /// Its number.
    pub request: u32,
    /// The first block that the child reads.
    pub first: u64,
}

/// What a disk shares with its base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BaseUsage {
    /// The base.
    pub base: DiskNo,
    /// Whether [`Core::share_blocks`] was called. Until then, no block is shared.
    pub is_known: bool,
    /// Blocks that are as the base has them.
    pub shared_blocks: u64,
}

impl Core {
    /// Begins to share blocks of a disk with its base, the attached disk that it was made from. From now on the core
    /// tracks which blocks change. The caller then asks the origin which blocks it reads from the base, and completes
    /// the sharing with [`Core::share_blocks`]. Sharing ends when either disk is attached again or handed over, or the
    /// base is written or made smaller.
    ///
    /// # Errors
    /// One of the disks is not attached, has dirty blocks on another host, or is being resized; or the base has another
    /// grid than the disk, a base itself, or data that its origin does not have.
    pub fn share_base(&mut self, now: Micros, disk: DiskNo, base: DiskNo) -> Result<SharingId, ManageError> {
        self.now = now;
        let (clone, original) = (self.attached(disk)?, self.attached(base)?);
        for one in [clone, original] {
            if one.moved != Moved::No {
                return Err(ManageError::Migrating(one.id));
            }
            if one.job.as_ref().is_some_and(|job| job.resizes_to().is_some()) {
                return Err(ManageError::Busy);
            }
        }
        let problem = if disk == base {
            Some("is the disk itself")
        } else if original.base.is_some() {
            Some("has a base itself")
        } else if clone.is_base {
            Some("would be the base of another disk's base")
        } else if original.phase != clone.phase {
            Some("has another grid phase than the disk")
        } else if self.dirty_blocks(base) > 0 || !original.lost.is_empty() || self.is_being_written(base) {
            Some("has data in the cache that its origin does not have")
        } else {
            None
        };
        if let Some(problem) = problem {
            let message = format!("disk {} cannot be the base of {}: it {problem}", original.id, clone.id);
            return Err(ManageError::BadConfig(message));
        }
        let epochs = (clone.life.epoch(), original.life.epoch());
        let (original_id, sectors) = (original.id, clone.sectors.min(original.sectors));
        let sharing = SharingId(self.jobs.new_id().0);
        let mut shared = Base::new(sharing, base, original_id, epochs, sectors);
        if !planted(Bug::ShareDirty) {
            self.changed_blocks(disk).for_each(|block| shared.differs(block));
        }
        self.disk_mut(disk).base = Some(Box::new(shared));
        self.disk_mut(base).is_base = true;
        Ok(sharing)
    }

    /// Shares the blocks that the disk's origin reads from the base image, except for those that have changed since
    /// [`Core::share_base`]. The origin must have been asked after that call. Returns false, and shares nothing, if
    /// that sharing has ended or begun again, or if the size of the disk differs from that of `blocks`.
    pub fn share_blocks(&mut self, disk: DiskNo, sharing: SharingId, blocks: BaseBlocks) -> bool {
        let fits = self.disks.get_mut(disk).filter(|d| blocks.is_for(d.sectors, d.phase));
        let base = fits
            .and_then(|d| d.base.as_mut())
            .filter(|base| base.sharing == sharing || planted(Bug::ShareOldAnswer));
        base.map(|base| base.share(blocks)).is_some()
    }

    /// Ends the sharing of a disk's blocks with its base.
    pub fn end_sharing(&mut self, disk: DiskNo) {
        if let Some(d) = self.disks.get_mut(disk) {
            d.base = None;
        }
    }

    /// Returns what a disk shares with its base, if anything.
    pub fn base_usage(&self, disk: DiskNo) -> Option<BaseUsage> {
        let usage = |base: &Base| BaseUsage {
            base: base.disk,
            is_known: base.is_known,
            shared_blocks: base.shared_blocks,
        };
        self.valid_base(disk).map(usage)
    }

    /// Returns the sharing of a disk, if it is valid under the current ownership of both disks.
    fn valid_base(&self, disk: DiskNo) -> Option<&Base> {
        let d = self.disks.get(disk)?;
        let base = d.base.as_deref()?;
        let original = self.disks.get(base.disk).filter(|original| original.id == base.id)?;
        let epochs = (d.life.epoch(), original.life.epoch());
        (original.life.is_active() && original.is_base && epochs == base.epochs).then_some(base)
    }

    /// Whether reads of a disk may be reads of its base.
    pub(crate) fn reads_base(&self, disk: DiskNo) -> bool {
        self.disk(disk).base.is_some() && self.valid_base(disk).is_some()
    }

    /// Ends all sharing of a base's blocks.
    pub(crate) fn end_sharing_of_base(&mut self, base: DiskNo) {
        if !std::mem::take(&mut self.disk_mut(base).is_base) {
            return;
        }
        for disk in self.disks.places() {
            if let Some(d) = self.disks.get_mut(disk)
                && d.base.as_ref().is_some_and(|shared| shared.disk == base)
            {
                d.base = None;
            }
        }
    }

    /// Returns the blocks of a disk whose newest content is, or may be, not at the origin.
    fn changed_blocks(&self, disk: DiskNo) -> impl Iterator<Item = BlockNo> + '_ {
        let staged = self.staging.all_of(disk).map(|frame| self.staging.get(frame));
        let staged = staged.filter(|staged| staged.dirty).map(|staged| staged.block);
        let slots = self.store.dirty_segments(disk).flat_map(|segment| self.store.slots_of(segment));
        let flash = slots.filter_map(|slot| self.store.live(slot)).filter(|slot| slot.dirty());
        let writes = self.requests.iter().filter(move |(_, r)| r.disk == disk && r.op != Op::Read);
        // Blocks before `next` may be staged or written to the origin only in part, so all blocks of the write count.
        let writing = writes.filter(|(_, r)| r.op != Op::Flush).flat_map(move |(_, r)| {
            let (first, last) = self.disk(disk).blocks(r.sector, r.sectors);
            (first.0..=last.0).map(BlockNo)
        });
        let d = self.disk(disk);
        let damaged = d.lost.blocks().chain(d.damaged.blocks());
        staged.chain(flash.map(|slot| slot.block())).chain(writing).chain(damaged)
    }

    fn is_being_written(&self, disk: DiskNo) -> bool {
        self.requests.iter().any(|(_, r)| r.disk == disk && !matches!(r.op, Op::Read | Op::Flush))
    }

    /// Called when a request that has been accepted changes blocks of its disk.
    pub(crate) fn note_change(&mut self, disk: DiskNo, blocks: std::ops::Range<u64>) {
        let d = self.disk_mut(disk);
        if let Some(base) = &mut d.base
            && !planted(Bug::ShareWritten)
        {
            blocks.map(BlockNo).for_each(|block| base.differs(block));
        }
        if d.is_base {
            self.end_sharing_of_base(disk);
        }
    }

    /// Ends the sharing of blocks that a resize changes. Blocks that a smaller size cuts off have other content if the
    /// disk grows again. When a disk grows, the content of its last block changes behind the old end.
    pub(crate) fn share_less(&mut self, disk: DiskNo, sectors: u64) {
        let d = self.disk_mut(disk);
        let (last, shrinks) = (d.sectors - 1, sectors < d.sectors);
        let changes = d.blocks(sectors.min(last), 1).0.0..d.blocks(last, 1).0.0 + 1;
        if let Some(base) = &mut d.base {
            changes.map(BlockNo).for_each(|block| base.differs(block));
        }
        if shrinks {
            self.end_sharing_of_base(disk);
        }
    }

    /// Returns the base and the end of the run of shared blocks that starts at a read's next block, if that block is
    /// shared.
    fn shared_run(&self, number: u32) -> Option<(DiskNo, u64)> {
        let request = &self.requests[number];
        self.disk(request.disk).base.as_ref()?;
        let base = self.valid_base(request.disk)?;
        let shared = (request.next..request.end).take_while(|block| base.is_shared(BlockNo(*block)));
        let count = shared.count() as u64;
        (count > 0).then_some((base.disk, request.next + count))
    }
}

impl Disk {
    /// Records an accepted read, except for what its base will read.
    #[cold]
    pub(crate) fn record_own_parts(&mut self, now: Micros, sector: u64, sectors: u32) {
        let (first, last) = self.blocks(sector, sectors);
        let mut run: Option<(u64, u32)> = None;
        for block in (first.0..=last.0).map(BlockNo) {
            if self.base.as_ref().is_some_and(|base| base.is_shared(block)) {
                if let Some((start, count)) = run.take() {
                    self.record_request(now, Op::Read, start, count);
                }
                continue;
            }
            let (part, start) = self.part(block, sector, sectors);
            let (_, count) = run.get_or_insert((start, 0));
            *count += part.count_ones();
        }
        if let Some((start, count)) = run {
            self.record_request(now, Op::Read, start, count);
        }
    }
}

/// The outcome of [`Call::read_shared`].
pub(crate) enum Shared {
    /// It is not shared.
    No,
    /// A child reads it.
    Started,
    /// The request has too many children; it continues when one ends.
    Wait,
}

impl<M: Memory> Call<'_, M> {
    /// Starts to read the run of shared blocks at a read's next block, if it is shared.
    #[inline]
    pub(crate) fn read_shared(&mut self, number: u32) -> Shared {
        if self.disk(self.requests[number].disk).base.is_none() {
            return Shared::No;
        }
        self.start_child(number)
    }

    fn start_child(&mut self, number: u32) -> Shared {
        let Some((base, end)) = self.shared_run(number) else { return Shared::No };
        let request = &self.requests[number];
        let (disk, tag, first) = (request.disk, request.tag, request.next);
        let (sector, sectors) = (request.sector, request.sectors);
        let d = self.disk(disk);
        let (_, start) = d.part(BlockNo(first), sector, sectors);
        let (last, last_start) = d.part(BlockNo(end - 1), sector, sectors);
        let end_sector = last_start + u64::from(last.count_ones());
        if end_sector > self.disk(base).open_sectors() {
            return Shared::No;
        }
        if self.requests[number].outstanding >= MOST_CHILDREN {
            return Shared::Wait;
        }
        let child = self.requests.take();
        self.schedule.child_started();
        let part = (SectorNo(start), (end_sector - start) as u32);
        self.begin(child, Request { tag, disk: base, op: Op::Read, sector: part.0, sectors: part.1 });
        // The child's data goes to its place in the buffer of the whole request.
        let state = &mut self.requests[child];
        (state.sector, state.sectors) = (sector, sectors);
        state.parent = Some(Parent { request: number, first });
        let now = self.now;
        let original = self.disk_mut(base);
        original.requests += 1;
        original.last_request_us = now;
        self.enqueue(child);
        self.disk_mut(disk).stats.base_blocks += end - first;
        let request = &mut self.requests[number];
        request.outstanding += 1;
        request.next = end;
        Shared::Started
    }

    /// Handles the end of a child that has read the blocks up to `end`. Blocks that are no longer shared are read
    /// again, since the base may have been written in the meantime.
    pub(crate) fn child_done(&mut self, parent: Parent, end: u64, error: Option<RequestError>) {
        let Parent { request: number, first } = parent;
        self.schedule.child_ended();
        self.requests[number].outstanding -= 1;
        let base = self.valid_base(self.requests[number].disk).filter(|_| error.is_none());
        let again =
            (first..end).rev().map(BlockNo).filter(|block| !base.is_some_and(|base| base.is_shared(*block)));
        let again: Vec<(BlockNo, u8)> = again.map(|block| (block, self.part(number, block))).collect();
        if self.requests[number].error.is_none() {
            // The last one is taken first.
            self.requests[number].retries.extend(again);
        }
        self.read_on(number);
    }
}
