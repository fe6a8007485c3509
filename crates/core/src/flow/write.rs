//! Staged writes (wb, and wt acknowledged by the cache), and how any block enters the staging area.
//!
//! Discards and zeroes are also staged, as blocks of zeroes, while the origin refuses writes.
//!
//! Invariants
//! - A new version goes to a new frame: first its content, then its descriptor, then the older descriptor is
//!   cleared. So if the process is killed at any point, one of the two is intact.
//! - A write is acknowledged only after the descriptor of its frame is stored.
//! - A guest's write is not staged while its block is being filled from the origin or while the origin is
//!   being written past the cache.
//! - Clean data never replaces staged sectors, and is not staged for a block whose dirty sectors are lost: it
//!   would supersede them if the device came back after a crash.
//! - A write does not take the last free frame: merges need one, and without merges partial blocks cannot be
//!   committed.

use haversack_model::{BlockNo, DiskNo, SECTOR_BYTES};

use crate::action::RequestError;
use crate::bugs::{Bug, planted};
use crate::checksum;
use crate::core::{Call, Core};
use crate::disk::runs;
use crate::flow::request::Park;
use crate::format::descriptor::Descriptor;
use crate::locks::LockKind;
use crate::memory::{DESCRIPTOR_BYTES, FrameNo, Memory};
use crate::staging::Staged;
use crate::store::slot::{Live, MAX_HITS, SlotNo};
use crate::versions::Versions;

impl Core {
    pub(crate) fn commit_threshold(&self) -> u32 {
        let frames = self.staging.capacity() as u32;
        self.config.commit_blocks.min(frames / 4).max(1)
    }
}

impl<M: Memory> Call<'_, M> {
    // Not inlined, to keep `settle` small for reads.
    #[inline(never)]
    pub(crate) fn pump_write(&mut self, number: u32) {
        let disk = self.requests[number].disk;
        while self.requests[number].error.is_none() && self.requests[number].next < self.requests[number].end
        {
            let block = BlockNo(self.requests[number].next);
            if let Some(park) = self.write_block(number, disk, block) {
                if park == Park::Dirty && self.overflows(number) {
                    self.pump_around(number);
                } else {
                    self.park(number, park);
                }
                return;
            }
            self.requests[number].next += 1;
        }
        self.finish_if_done(number);
    }

    fn write_block(&mut self, number: u32, disk: DiskNo, block: BlockNo) -> Option<Park> {
        match self.locks.get(disk, block) {
            Some(LockKind::Fill | LockKind::Around) => return Some(Park::Lock(block)),
            Some(LockKind::Clean) | None => {}
        }
        let versions = self.resolve(disk, block);
        if !versions.is_dirty() && self.dirty_full(disk) {
            self.disk_mut(disk).cleaner.space_needed = true;
            return Some(Park::Dirty);
        }
        if self.must_wait_for_order(disk, &versions) {
            return Some(Park::Dirty);
        }
        let mask = self.part(number, block);
        let inside = self.disk(disk).inside(block);
        if mask != inside && versions.lost != 0 {
            self.fail(number, RequestError::DataLost);
            return None;
        }
        // The last frame is left for merges: without one, no block that lacks sectors could be committed.
        let frame = if self.staging.free() > 1 { self.staging.allocate() } else { None };
        let Some(frame) = frame else {
            return Some(Park::Staging);
        };
        if self.is_zero_op(number) {
            for (first, count) in runs(mask) {
                self.memory.zero(frame, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
            }
        } else if !self.take(number, block, mask, frame) {
            self.staging.give_back(frame);
            self.wake_staging();
            return None;
        }
        self.disk_mut(disk).lost.remove(block);
        let cached = versions.is_cached();
        let stats = &mut self.disk_mut(disk).stats;
        stats.write_hits += u64::from(cached);
        stats.write_misses += u64::from(!cached);
        self.stage(disk, block, frame, mask, true);
        self.note_changed(disk, block, mask);
        self.queue_if_due(disk);
        None
    }

    /// Records a guest's write in the state of a migration: copies of the block are out of date, and these sectors are
    /// newer than the peer's.
    #[inline]
    pub(crate) fn note_changed(&mut self, disk: DiskNo, block: BlockNo, mask: u8) {
        if let Some(moving) = &mut self.disk_mut(disk).moving {
            moving.changed(block, mask);
        }
    }

    /// Triggers a check for commits when enough is staged.
    pub(crate) fn queue_if_due(&mut self, disk: DiskNo) {
        let staged = self.staging.lists[disk].len;
        if staged >= self.commit_threshold() || self.disk(disk).commits_eagerly() {
            self.queue(disk);
        }
    }

    /// Returns how many staging frames clean blocks leave free for writes.
    pub(crate) fn spare_frames(&self) -> usize {
        self.staging.capacity() / 8
    }

    /// Stages a block that was read from the origin or written to it; `mask` says which sectors of `from` are
    /// the origin's. Never waits: if no frame is free, the block is not kept.
    pub(crate) fn stage_clean(&mut self, disk: DiskNo, block: BlockNo, from: FrameNo, mask: u8) {
        let versions = self.resolve(disk, block);
        let old = versions.staged.map_or(0, |s| s.mask);
        let new = if planted(Bug::FillWithoutLock) { mask } else { mask & !old };
        // Nothing is cached of a block whose dirty sectors are lost: it would supersede them if they came
        // back.
        if new == 0 || versions.lost != 0 || self.store.usable_devices().next().is_none() {
            return;
        }
        let frame = if self.staging.free() > self.spare_frames() { self.staging.allocate() } else { None };
        let Some(frame) = frame else {
            self.disk_mut(disk).stats.fills_skipped += 1;
            self.queue(disk);
            return;
        };
        for (first, count) in runs(new) {
            self.memory.copy(from, frame, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
        }
        self.stage(disk, block, frame, new, false);
        self.queue_if_due(disk);
    }

    /// Makes `frame`, which holds new content in sectors `mask`, the newest of its block. Valid sectors of an
    /// older staged frame are copied in first; the older frame's descriptor is cleared last.
    pub(crate) fn stage(&mut self, disk: DiskNo, block: BlockNo, frame: FrameNo, mask: u8, dirty: bool) {
        self.stage_as(disk, block, frame, mask, dirty, false);
    }

    /// Like [`Call::stage`]. The block becomes protected if it was `reused` on another host.
    pub(crate) fn stage_as(
        &mut self,
        disk: DiskNo,
        block: BlockNo,
        frame: FrameNo,
        mask: u8,
        dirty: bool,
        reused: bool,
    ) {
        self.drop_data(disk, block);
        let mut staged = Staged::new(disk, block);
        (staged.mask, staged.dirty, staged.since_us) = (mask, dirty, self.now);
        staged.group = self.disk(disk).flush.open_group();
        let inside = self.disk(disk).inside(block);
        let Versions { staged: old, flash, .. } = self.resolve(disk, block);
        let old = old.map(|old| (old.frame, *self.staging.get(old.frame)));
        if let Some((old, s)) = old {
            for (first, count) in runs(s.mask & !mask) {
                self.memory.copy(old, frame, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
            }
            staged.commit_seq = s.commit_seq;
            staged.mask |= s.mask;
            staged.dirty |= s.dirty;
            staged.poisoned = s.poisoned && !self.disk(disk).is_whole(block, staged.mask);
            (staged.protected, staged.hits) = (s.protected, (s.hits + 1).min(MAX_HITS));
            if s.dirty {
                staged.since_us = s.since_us;
            }
            if s.dirty && !s.committing {
                staged.group = s.group;
            }
        } else if let Some((_, slot)) = flash {
            (staged.protected, staged.hits) = (slot.protected(), (slot.hits() + 1).min(MAX_HITS));
        } else {
            let was_evicted = self.store.was_evicted(disk, block);
            staged.protected = reused || was_evicted;
        }
        let whole = self.disk(disk).is_whole(block, staged.mask);
        staged.poisoned |= flash.is_some_and(|(_, slot)| slot.poisoned()) && !whole;
        if let Some((number, _)) = flash.filter(|s| s.1.dirty()) {
            staged.since_us = staged.since_us.min(self.store.slot_dirty_since_us(number));
        }
        for (first, count) in runs(!staged.mask) {
            self.memory.zero(frame, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
        }
        if planted(Bug::DropSectorMask) {
            staged.mask = inside;
        }
        staged.crc = checksum::bind(self.memory.crc(frame), self.disk(disk).seed, block);
        staged.version = self.staging.next_version;
        self.staging.next_version += 1;
        self.describe(frame, &staged);
        let flush = &mut self.disk_mut(disk).flush;
        if staged.dirty {
            flush.staged(staged.group);
            self.note_staged_since(disk, staged.since_us);
        }
        self.staging.insert(frame, staged);
        self.note_staged_in_order(disk, flash);
        if let Some((old, s)) = old
            && self.staging.supersede(old).is_some()
        {
            if s.dirty {
                self.unstaged_from(disk, s.group);
            }
            self.memory.store_descriptor(old.0, &[0; DESCRIPTOR_BYTES]);
            self.staging.give_back(old);
        }
    }

    /// Clears `holds_all` if a newly staged frame is not held by the order. `flash` is the version of its block on
    /// flash.
    fn note_staged_in_order(&mut self, disk: DiskNo, flash: Option<(SlotNo, Live)>) {
        if self.disk(disk).cleaner.order.is_some()
            && !self.is_held_by_order(disk, flash)
            && let Some(order) = &mut self.disk_mut(disk).cleaner.order
        {
            order.holds_all = false;
        }
    }

    fn describe(&mut self, frame: FrameNo, staged: &Staged) {
        if planted(Bug::AckBeforeStaging) {
            return;
        }
        let descriptor = Descriptor {
            disk: staged.disk,
            block: staged.block,
            version: staged.version,
            mask: staged.mask,
            dirty: staged.dirty,
            poisoned: staged.poisoned,
            crc: staged.crc,
        };
        self.memory.store_descriptor(frame.0, &descriptor.encode());
    }

    /// Forgets a staged frame: clears its descriptor first, then frees the frame.
    pub(crate) fn unstage(&mut self, frame: FrameNo) {
        self.memory.store_descriptor(frame.0, &[0; DESCRIPTOR_BYTES]);
        let staged = self.staging.remove(frame);
        if staged.dirty {
            self.unstaged_from(staged.disk, staged.group);
        }
    }

    /// Called when a dirty block is no longer staged. Wakes flushes that waited only for that.
    fn unstaged_from(&mut self, disk: DiskNo, group: u64) {
        let flush = &mut self.disk_mut(disk).flush;
        if flush.unstaged(group) {
            self.queue(disk);
        }
    }
}
