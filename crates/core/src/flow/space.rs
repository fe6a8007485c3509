//! Space: which segment a batch goes to, which blocks make room for it, and page writes that free slots.
//!
//! Targets move no data. They are enforced when space is needed: a disk below its target gets a segment of
//! the disk furthest above its own; any other disk evicts its own blocks.
//!
//! Invariants
//! - The copies of a batch go to segments on different devices, and only to devices that are in use and not
//!   being emptied.
//! - A segment that is given up goes to the disk that asked for it only after its durable page lists nothing.
//! - At most one page of a segment's pair is unflushed: a page is written only when the one before it is
//!   durable.

use haversack_model::{DeviceNo, DiskNo};

use crate::config::Target;
use crate::core::{Call, Core};
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::io::{Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::store::reclaim::Reclaiming;
use crate::store::segment::{NONE, SegmentNo};

/// One of this many slots is kept free.
const FREE_SHARE: u64 = 32;
/// One of this many slots may wait for a page write that frees it: writing a page is worthwhile only for
/// many.
pub(super) const PENDING_SHARE: u64 = 32;
/// Maximum number of blocks in a batch that costs little more than its page.
const SMALL_BATCH: u64 = 8;

impl Core {
    /// Asks for a segment when none is free: a disk above its target gives one up. Returns whether one does.
    pub(crate) fn ask_for_segment(&mut self, disk: DiskNo, other_than: Option<DeviceNo>) -> bool {
        let space = &self.store.disks[disk];
        let empty_handed = !self.store.owns_elsewhere(disk, other_than);
        let shares = self.shares(disk);
        let short = if shares { self.common_is_short() } else { space.live < self.target_blocks(disk) };
        let below = short || !self.store.owns_elsewhere(disk, None);
        let dormant = shares && self.disks.iter().any(|d| d.life.is_dormant());
        if self.store.is_reclaiming() || !(below || dormant || empty_handed && other_than.is_some()) {
            return false;
        }
        // The last segment of an attached disk is taken only for dirty blocks that have nowhere to go.
        let must = self.disk(disk).flush.staged_dirty() > 0;
        let mut victims: Vec<(i64, DiskNo)> = self
            .disks
            .numbers()
            .filter(|d| !self.store.disks[*d].segments.is_empty())
            .filter(|d| *d != disk || other_than.is_some() && empty_handed)
            .filter(|d| must || self.store.disks[*d].segments.len() > 1 || self.is_dormant(*d))
            // Among sharers, the common hands decide.
            .filter(|d| !shares || empty_handed || self.is_dormant(*d) || below && !self.shares(*d))
            .map(|d| (self.excess(d, shares), d))
            .filter(|(excess, d)| *excess > 0 || empty_handed && *d != disk)
            .collect();
        victims.sort_by_key(|(excess, d)| (std::cmp::Reverse(*excess), d.0));
        for (_, victim) in victims {
            if let Some(segment) = self.store.coldest_segment(victim, other_than) {
                self.store.reclaim(segment, Some(disk));
                return true;
            }
            if !std::mem::replace(&mut self.disk_mut(victim).cleaner.space_needed, true) {
                self.queue(victim);
            }
        }
        false
    }

    /// Returns by how many blocks a disk exceeds its target, computed for sharers or for other disks.
    fn excess(&self, disk: DiskNo, seen_by_sharer: bool) -> i64 {
        let has = self.store.disks[disk].live as i64;
        match self.disk(disk).target {
            _ if self.is_dormant(disk) => has,
            Target::Shared { at_least_blocks, .. } => {
                let most = if seen_by_sharer { i64::MAX } else { self.common_excess() };
                most.min(has - at_least_blocks as i64)
            }
            _ => has.max(self.room_with_one_less(disk)) - self.target_blocks(disk) as i64,
        }
    }

    /// Returns the number of blocks that would fit in the disk's segments if it had one segment less. A disk
    /// whose target was lowered may have free slots that others need.
    fn room_with_one_less(&self, disk: DiskNo) -> i64 {
        let segments = self.store.disks[disk].segments.len() as i64;
        (segments - 1) * i64::from(SLOTS_PER_SEGMENT)
    }

    /// Whether the disk is dormant: its cached blocks are not in use through this pool.
    pub(crate) fn is_dormant(&self, disk: DiskNo) -> bool {
        self.disk(disk).life.is_dormant()
    }

    /// Returns on how many devices a dirty block should be.
    pub(crate) fn dirty_copies(&self) -> usize {
        if self.pool.is_redundant() && self.store.usable_devices().nth(1).is_some() { 2 } else { 1 }
    }

    /// Requests a page of the segment that no longer lists what must not be listed.
    pub(crate) fn ask_rewrite(&mut self, disk: DiskNo, segment: SegmentNo) {
        let d = self.disk_mut(disk);
        if !d.rewriting.contains(&segment) {
            d.rewriting.push_back(segment);
            self.queue(disk);
        }
    }
}

impl<M: Memory> Call<'_, M> {
    /// Returns the segments for the copies of a batch, on different devices.
    pub(crate) fn find_segments(
        &mut self,
        disk: DiskNo,
        wanted: usize,
        copies: usize,
    ) -> Option<[SegmentNo; 2]> {
        let first = self.find_place(disk, wanted as u64, None)?;
        if copies == 1 {
            return Some([first, NONE]);
        }
        let device = DeviceNo(self.store.segments[first].device);
        let second = self.find_place(disk, wanted as u64, Some(device))?;
        // Looking for the second may have started a page write of the first.
        let ready = self.store.segments[first].page_ready(self.durability.flushed());
        ready.then_some([first, second])
    }

    /// Finds a segment for a batch. A small batch with a block that is often rewritten goes to a segment
    /// whose page write drops an old version.
    fn find_place(&mut self, disk: DiskNo, wanted: u64, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        if wanted <= SMALL_BATCH {
            let block = self.staging.get(self.batches.first_picked()?).block;
            if let Some(segment) = self.store.crowded_with_room(disk, block, wanted, other_than) {
                return Some(segment);
            }
        }
        self.find_segment(disk, wanted, other_than)
    }

    fn find_segment(&mut self, disk: DiskNo, wanted: u64, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        self.shrink_to_target(disk, wanted);
        let slots = self.store.disks[disk].segments.len() as u64 * u64::from(SLOTS_PER_SEGMENT);
        let low = slots / FREE_SHARE + wanted;
        let may_wait = slots / PENDING_SHARE;
        let none_there = !self.store.owns_elsewhere(disk, other_than);
        if self.store.disks[disk].free < low || none_there {
            let may_grow = none_there || self.may_grow(disk);
            let grown = may_grow && self.store.take_segment(disk, other_than).is_some();
            // Nothing is evicted for space that more prepared segments will provide.
            let comes = may_grow && self.store.unprepared_segments(other_than) > 0;
            let short = !grown && !comes;
            if short && self.shares(disk) {
                self.make_common_room(disk, wanted, other_than);
            } else if short {
                if may_grow {
                    self.ask_for_segment(disk, other_than);
                }
                let space = &self.store.disks[disk];
                let coming = space.free + space.pending.saturating_sub(may_wait);
                self.store.evict_blocks(disk, low.saturating_sub(coming));
            }
        }
        let space = &self.store.disks[disk];
        if space.pending > may_wait && space.free < low {
            self.rewrite_some(disk);
        }
        let mut best = self.store.best_segment(disk, other_than);
        if best.is_none() && self.may_grow(disk) && self.store.take_segment(disk, other_than).is_some() {
            best = self.store.best_segment(disk, other_than);
        }
        if best.is_none() {
            self.rewrite_some(disk);
            if !self.store.flush_makes_room(disk, other_than) {
                best = self.evict_for(disk, other_than);
            }
        }
        if best.is_none() || self.store.unflushed_pages() * 2 > self.store.segments.len() {
            self.durability.want_completed();
        }
        if best.is_none() {
            self.disk_mut(disk).cleaner.space_needed = true;
            // A segment that is being emptied may wait for a damaged block too: its page lists a copy of it.
            let comes = self.store.unprepared_segments(other_than) > 0;
            let is_at_rest = self.ios.len() == 0 && self.durability.ended_flush().is_none();
            if none_there && !comes && (self.store.reclaiming() == 0 || is_at_rest) {
                self.drop_damaged_for_space();
            }
        }
        best
    }

    /// Evicts until a segment has room: the coldest blocks wherever they are or, for a mirrored copy, those of
    /// one segment on another device.
    fn evict_for(&mut self, disk: DiskNo, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        if other_than.is_some() {
            let live = |number: &SegmentNo| self.store.segments[*number].live;
            let fullest = self.store.owned_elsewhere(disk, other_than).max_by_key(live)?;
            self.store.evict_clean(fullest);
            return self.store.best_segment(disk, other_than);
        }
        for _ in 0..4 {
            self.store.evict_blocks(disk, 64);
            if let Some(best) = self.store.best_segment(disk, None) {
                return Some(best);
            }
        }
        None
    }

    /// Whether a disk stays within its target even if space is free.
    fn is_capped(&self, disk: DiskNo) -> bool {
        match self.disk(disk).target {
            Target::Shared { .. } => false,
            Target::Capped(_) => true,
            Target::Equal | Target::Blocks(_) => !self.config.share_spare,
        }
    }

    /// Keeps a capped disk within its target.
    fn shrink_to_target(&mut self, disk: DiskNo, wanted: u64) {
        if !self.is_capped(disk) {
            return;
        }
        let space = &self.store.disks[disk];
        let over = (space.live + wanted).saturating_sub(self.target_blocks(disk));
        self.store.evict_blocks(disk, over);
    }

    fn may_grow(&self, disk: DiskNo) -> bool {
        let space = &self.store.disks[disk];
        let slots = space.segments.len() as u64 * u64::from(SLOTS_PER_SEGMENT);
        !self.is_capped(disk) || slots < self.target_blocks(disk) + self.target_blocks(disk) / FREE_SHARE + 8
    }

    /// Whether space for the disk's staged blocks is being made: a segment is emptied or prepared, or a page that frees
    /// slots is written.
    pub(crate) fn space_comes(&self, disk: DiskNo) -> bool {
        self.store.is_reclaiming()
            || self.store.unprepared_segments(None) > 0
            || self.store.disks[disk].pending > 0
            || self.batches.of_disk(disk) > 0
    }

    /// Whether the disk has or can get space for its staged blocks.
    pub(crate) fn has_space(&self, disk: DiskNo) -> bool {
        let some = !self.store.disks[disk].segments.is_empty()
            || self.store.free_segments(None) > 0
            || self.store.unprepared_segments(None) > 0;
        some && !self.is_mirror_unavailable(disk)
    }

    /// Whether the disk has or can get space for its staged blocks. If not, another disk is asked to give
    /// some up.
    pub(crate) fn gets_space(&mut self, disk: DiskNo) -> bool {
        let has = self.has_space(disk);
        if self.is_mirror_unavailable(disk) {
            self.vacate_flash(disk);
        } else if !has {
            self.ask_for_segment(disk, None);
        }
        has
    }

    /// Writes the pages of segments that are being emptied.
    pub(crate) fn drive_reclaim(&mut self) -> bool {
        let mut acted = false;
        if self.pool.rests() {
            return false;
        }
        for index in (0..self.store.reclaiming()).rev() {
            match self.store.look_at_reclaimed(index) {
                Reclaiming::Listed(segment) => acted |= self.shrink_page(segment),
                Reclaiming::Free(segment, asker) => {
                    self.hand_over(segment, asker);
                    acted = true;
                }
            }
        }
        acted
    }

    /// Assigns a segment that became free to the disk that asked for it, before others take it.
    fn hand_over(&mut self, segment: SegmentNo, asker: Option<DiskNo>) {
        let asker = asker.filter(|a| self.disks.get(*a).is_some_and(|d| !d.life.is_forgotten()));
        if let Some(asker) = asker {
            self.store.take_this(segment, asker);
        }
        for disk in self.disks.places() {
            let Some(d) = self.disks.get(disk) else { continue };
            let waits = self.staging.lists[disk].len > 0 && asker.is_none_or(|a| a == disk);
            if waits || d.life.is_forgotten() {
                self.queue(disk);
            }
        }
    }

    /// Writes a segment's page so that it lists less, or the page of the segment that prevents this.
    pub(crate) fn shrink_page(&mut self, segment: SegmentNo) -> bool {
        let target = self.store.first_to_shrink(segment).unwrap_or(segment);
        let s = &self.store.segments[target];
        if !s.page_ready(self.durability.flushed()) || !self.store.can_shrink(target) {
            let seq = s.page_seq.max(self.durability.completed());
            self.durability.want(seq);
            return false;
        }
        self.rewrite_page(target)
    }

    /// Writes one or two pages that free slots of the disk.
    pub(crate) fn rewrite_some(&mut self, disk: DiskNo) -> bool {
        for _ in 0..2 {
            match self.store.worth_rewriting(disk) {
                Some(segment) if self.rewrite_page(segment) => {}
                _ => break,
            }
        }
        if self.store.unflushed_pages() > 0 {
            self.durability.want_completed();
        }
        false
    }

    /// Writes a segment's metadata page alone. It must be ready. Returns false if no frame is left.
    pub(crate) fn rewrite_page(&mut self, segment: SegmentNo) -> bool {
        if !self.frames.suffices(1) {
            return false;
        }
        let disk = DiskNo(self.store.segments[segment].owner);
        let seq = self.durability.take(0);
        let io = self.new_io(Purpose::Page { segment, seq });
        self.ios[io].disk = Some(disk);
        self.compose(segment, seq, io);
        let d = self.disk_mut(disk);
        d.stats.flash_rewrite_pages += 1;
        d.last_commit_seq = seq;
        true
    }

    pub(crate) fn page_done(&mut self, io: &Io, segment: SegmentNo, seq: u64, result: Result<(), IoFailure>) {
        self.free_frame(io.frames[0], false);
        if result.is_err() {
            self.device_failed(io.device.expect("a page is on a device"));
        }
        self.sequence_done(seq);
        self.store.page_written(segment);
        self.durability.want(seq);
        self.queue(io.disk.expect("a page is of a disk"));
    }

    /// Writes the requested pages as they become ready.
    pub(crate) fn drive_rewrites(&mut self, disk: DiskNo) {
        for _ in 0..self.disk(disk).rewriting.len() {
            let segment = self.disk_mut(disk).rewriting.pop_front().expect("counted");
            let s = &self.store.segments[segment];
            let (page_seq, is_written) = (s.page_seq, !s.page_writing);
            if s.owner != disk.0 {
                continue;
            }
            if s.page_ready(self.durability.flushed()) {
                if self.rewrite_page(segment) {
                    continue;
                }
            } else if is_written {
                self.durability.want(page_seq);
            }
            self.disk_mut(disk).rewriting.push_back(segment);
        }
    }
}
