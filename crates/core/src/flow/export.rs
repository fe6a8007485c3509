//! Copies of a disk's blocks for the host that will own it next, or that owns it now.
//!
//! Invariants
//! - Reading a copy changes nothing: no admission, no hit, no statistics.
//! - A copy has the content of the block at some moment after the call. If the block changes after that, the
//!   copy counts as out of date.
//! - A host that does not own the disk gives away only what is in its cache: the origin may have newer data.

use haversack_model::{BlockNo, DiskNo, Micros, SECTORS_PER_BLOCK};

use crate::action::{Op, Rejected};
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::flow::moving::export::Export;
use crate::flow::request::RequestState;
use crate::locks::LockKind;
use crate::memory::{Memory, RequestTag};
use crate::store::slot::SlotNo;

/// Slots that one step of [`Core::list_cached`] examines.
const SLOTS_A_STEP: u32 = 4_096;

/// A cached block, as [`Core::list_cached`] reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedBlock {
    /// The block.
    pub block: BlockNo,
    /// Its valid sectors.
    pub mask: u8,
    /// The origin does not have it.
    pub dirty: bool,
    /// It was used again after it had entered the cache.
    pub protected: bool,
    /// Its counter of hits, 0 to 3.
    pub hits: u8,
    /// The number of the commit that wrote it: the greater, the later.
    pub seq: u64,
}

/// What a copy of a block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Its sectors.
    pub mask: u8,
    /// In the cache that the copy is from, the block is protected and has been hit recently.
    pub reused: bool,
}

/// Where a listing continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListCursor(u32);

impl Core {
    /// Reports the blocks that a disk has on flash, a part at a time, in no particular order; returns where
    /// the next part begins, or `None` at the end. Blocks that move in the meantime may be missing or
    /// reported twice, and staged blocks are missing.
    pub fn list_cached(
        &self,
        disk: DiskNo,
        from: ListCursor,
        mut each: impl FnMut(CachedBlock),
    ) -> Option<ListCursor> {
        self.disks.get(disk)?;
        let all = self.store.segments.len() as u32 * crate::format::geometry::SLOTS_PER_SEGMENT;
        let end = from.0.saturating_add(SLOTS_A_STEP).min(all);
        for number in (from.0..end).map(SlotNo) {
            let slot = self.store.slot(number).primary().filter(|_| self.store.owner_of(number) == disk);
            let Some(slot) = slot else { continue };
            each(CachedBlock {
                block: slot.block(),
                mask: slot.mask(),
                dirty: slot.dirty(),
                protected: slot.protected(),
                hits: slot.hits(),
                seq: slot.seq(),
            });
        }
        (end < all).then_some(ListCursor(end))
    }

    /// Whether a cached block is protected and has been hit since a hand of replacement last passed it. For a block
    /// that meets only one of the two conditions, the next owner's cache learns by itself whether it is reused.
    fn is_reused(&self, disk: DiskNo, block: BlockNo) -> bool {
        let versions = self.resolve(disk, block);
        let staged = versions.staged.map(|staged| self.staging.get(staged.frame));
        staged.is_some_and(|staged| staged.protected && staged.hits > 0)
            || versions.flash.is_some_and(|(_, slot)| slot.protected() && slot.hits() > 0)
    }

    /// Whether the last copy of a block that was read for the next owner is still up to date.
    pub fn is_copy_good(&self, disk: DiskNo, block: BlockNo) -> bool {
        let export = self.disks.get(disk).and_then(|d| d.moving.as_ref()?.export.as_ref());
        export.is_some_and(|export| export.is_good(block))
    }

    /// Returns the blocks of which the next owner may have outdated copies. The next owner has received every copy with
    /// an order below `arrived`.
    pub fn outdated_copies(&self, disk: DiskNo, arrived: u64) -> Vec<BlockNo> {
        let export = self.disks.get(disk).and_then(|d| d.moving.as_ref()?.export.as_ref());
        let mut blocks: Vec<BlockNo> = export.map_or_else(Vec::new, |e| e.outdated(arrived).collect());
        blocks.sort_unstable();
        blocks
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts to track the copies of a disk's blocks that are sent to its next owner, or starts over.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn start_export(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.disk_mut(disk).moving.get_or_insert_default().export = Some(Export::default());
        Ok(())
    }

    /// Called when a copy did not arrive, or may not have arrived.
    pub fn copy_lost(&mut self, disk: DiskNo, block: BlockNo) {
        if let Some(moving) = self.disks.get_mut(disk).and_then(|d| d.moving.as_mut())
            && let Some(export) = &mut moving.export
        {
            export.changed(block);
        }
    }

    /// Stops tracking: no migration is in progress any more.
    pub fn end_export(&mut self, now: Micros, disk: DiskNo) {
        self.now = now;
        if let Some(d) = self.disks.get_mut(disk)
            && let Some(moving) = &mut d.moving
        {
            (moving.export, moving.is_settling) = (None, false);
            if moving.is_over() && !d.life.is_peer() {
                d.moving = None;
            }
        }
    }

    /// Starts to read a copy of a block's cached sectors into the buffer of `tag`, one block long, each
    /// sector at its place in the block. Completion is reported like that of a request. Returns what the copy
    /// has; `None` if nothing is cached, or the block is being changed at the origin. `order` is the caller's
    /// number of the copy, which increases from copy to copy.
    ///
    /// # Errors
    /// As for requests.
    pub fn read_copy(
        &mut self,
        now: Micros,
        tag: RequestTag,
        disk: DiskNo,
        block: BlockNo,
        order: u64,
    ) -> Result<Option<Copied>, Rejected> {
        self.now = now;
        let d = self.disks.get_mut(disk).ok_or(Rejected::NoSuchDisk(disk))?;
        let lends = d.life.is_released() && d.moving.as_ref().is_some_and(|moving| moving.lends);
        if !d.life.writes_origin() && !d.life.is_frozen() && !d.life.is_peer() && !lends {
            return Err(Rejected::NotOwner);
        }
        let of_clients = self.requests.len() - self.schedule.children();
        if of_clients >= self.config.max_requests as usize || self.pool.is_stopping() {
            return Err(Rejected::Busy);
        }
        let inside = self.disk(disk).inside_checked(block);
        let (cached, dirty) = self.cached_and_dirty(disk, block);
        let only_dirty = self.disk(disk).life.is_peer() && !lends;
        let mask = if only_dirty { dirty } else { cached } & inside;
        if mask == 0 || self.locks.get(disk, block) == Some(LockKind::Around) {
            return Ok(None);
        }
        let reused = self.is_reused(disk, block);
        let d = self.disk_mut(disk);
        if let Some(export) = d.moving.as_mut().and_then(|moving| moving.export.as_mut()) {
            export.sends(block, order);
        }
        self.start_copy(tag, disk, block, mask);
        Ok(Some(Copied { mask, reused }))
    }

    /// Starts to read these sectors of a block for another host.
    pub(crate) fn start_copy(&mut self, tag: RequestTag, disk: DiskNo, block: BlockNo, mask: u8) {
        self.disk_mut(disk).requests += 1;
        let number = self.requests.take();
        let state = &mut self.requests[number];
        state.retries.clear();
        let mut retries = std::mem::take(&mut state.retries);
        retries.push((block, mask));
        *state = RequestState {
            tag,
            disk,
            op: Op::Read,
            sectors: SECTORS_PER_BLOCK as u32,
            retries,
            bypass: true,
            is_copy: true,
            ..RequestState::default()
        };
        self.enqueue(number);
        self.settle();
    }
}
