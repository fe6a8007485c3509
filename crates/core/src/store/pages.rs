//! Metadata pages: their entries, and what happens when a page becomes durable.
//!
//! A dead slot leaves its page in two cases. Either no older version of its block is listed elsewhere, which
//! would then be taken for the newest. Or a newer version on the same device is durable, which takes
//! precedence in any case and stays listed: of the durable versions on a device, the newest leaves its page
//! only after all older ones.
//!
//! Invariants
//! - A slot becomes blank only when a page that leaves it out is durable, or when its device is forgotten.
//! - Only one page of a segment is being written at a time.
//! - A version on one device never makes it safe to drop a version on another: it could be lost with its
//!   device.
//! - A slot counts as durably clean only if it was clean when a page that is now durable was composed.
//! - Of two copies of a version, neither leaves its page while a durable page lists the other one as dirty,
//!   unless a newer version on its own device is durable.

use std::cmp::Reverse;

use haversack_model::{DeviceNo, DiskNo};

use super::segment::{NONE, Segment, SegmentNo, SegmentState};
use super::slot::{Dead, ENTRY_BYTES, Slot, Status, View};
use super::{SlotNo, Store, hash};
use crate::bugs::{Bug, planted};
use crate::format::geometry::{self, SLOTS_PER_SEGMENT};
use crate::format::page::NO_OWNER;

/// Number of segments checked to find the best page to write.
const MOST_LOOKED_INTO: usize = 16;
/// A page that frees this many slots is good enough: the search ends.
const FREES_ENOUGH: u32 = SLOTS_PER_SEGMENT / 4;

/// The entries of a page.
pub type PageContent = [u8; ENTRY_BYTES * SLOTS_PER_SEGMENT as usize];

/// Where a composed page goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageWrite {
    /// The device.
    pub device: DeviceNo,
    /// Byte offset on the device.
    pub offset_bytes: u64,
    /// Generation of the page.
    pub generation: u64,
    /// The disk that owns the segment.
    pub owner: u16,
}

impl Store {
    /// Whether `entry`, in another segment, would wrongly be trusted if `slot` were no longer listed. That is
    /// so for an older version, and for a mirrored copy of the same version that a durable page lists as
    /// dirty: without its sibling, that copy would be taken for a half-written commit, or would still be
    /// trusted as dirty. (Two copies that are both obsolete leave in three steps: one is listed as clean, the
    /// other leaves, the first leaves.)
    pub(super) fn keeps_listed(slot: Slot, entry: Slot) -> bool {
        entry.status() != Status::Blank
            && (entry.seq() < slot.seq() || entry.seq() == slot.seq() && entry.durable_dirty())
    }

    /// Whether a live slot is one of a block's two copies.
    fn has_mirror(&self, number: SlotNo) -> bool {
        self.slot(number).mirror() || self.mirror_of(number).is_some()
    }

    /// Whether the other copy of a bad copy is still dirty: then the bad one must not be listed as cleaned.
    fn has_dirty_mirror(&self, number: SlotNo) -> bool {
        if !self.second_copies {
            return false;
        }
        let slot = self.slot(number);
        let mut has = false;
        self.entries(self.owner_of(number), slot.block(), |_, entry| {
            let is_dirty = match entry.view() {
                View::Live(entry) => entry.dirty(),
                View::Superseded(entry) => entry.dirty(),
                View::Dead(_) | View::Blank => false,
            };
            has |= is_dirty && entry.seq() == slot.seq();
        });
        has
    }

    /// Whether `entry` is on the same device, is durable, takes precedence over `slot` wherever that matters,
    /// and stays listed as long as any older version: then it does not matter whether `slot` is listed. An
    /// entry on another device does not qualify: it may be lost with that device.
    fn overtakes(&self, entry: Slot, slot: Slot, same_device: bool) -> bool {
        let listed = match entry.view() {
            View::Live(_) | View::Superseded(_) => true,
            View::Dead(entry) => !entry.omitted(),
            View::Blank => false,
        };
        let durable = entry.seq() <= self.flushed_seq;
        let covers = entry.poisoned() || entry.mask() & slot.mask() == slot.mask();
        same_device && entry.seq() > slot.seq() && listed && durable && covers
    }

    /// Whether a dead slot may be left out of its segment's next page.
    fn may_omit(&self, number: SlotNo) -> bool {
        let (slot, segment) = (self.slot(number), self.segment_of(number));
        let device = self.segments[segment].device;
        let (mut kept, mut overtaken) = (false, false);
        self.entries(self.owner_of(number), slot.block(), |other, entry| {
            let other = self.segment_of(other);
            kept |= other != segment && Self::keeps_listed(slot, entry);
            overtaken |= self.overtakes(entry, slot, self.segments[other].device == device);
        });
        !kept || overtaken || planted(Bug::OmitNewestFirst)
    }

    /// Reads the memory that decisions about the dead slots of a segment will read.
    fn prefetch_dead(&self, segment: SegmentNo) {
        let disk = DiskNo(self.segments[segment].owner);
        let dead = self.slots_of(segment).filter_map(|number| self.slot(number).dead());
        self.prefetch(dead.map(|slot| (disk, slot.block())));
    }

    /// Composes a segment's next page as of now. No other page of it may be composed until
    /// [`Store::page_written`] is called.
    pub fn compose_page(&mut self, segment: SegmentNo, seq: u64, content: &mut PageContent) -> PageWrite {
        let mut kept = false;
        self.prefetch_dead(segment);
        for (number, entry) in self.slots_of(segment).zip(content.chunks_exact_mut(ENTRY_BYTES)) {
            // What is listed, and whether it is listed as one of two copies.
            let listed: Option<(Slot, bool)> = match self.slot(number).view() {
                View::Blank => None,
                View::Live(slot) => Some((slot.into(), slot.dirty() && self.has_mirror(number))),
                View::Superseded(slot) => {
                    kept = true;
                    Some((slot.into(), false))
                }
                View::Dead(slot) => {
                    let slot = self.decide_listing(number, slot);
                    kept |= !slot.omitted();
                    self.set(number, slot);
                    (!slot.omitted()).then_some((slot.into(), slot.listed_dirty()))
                }
            };
            entry.copy_from_slice(&listed.map_or([0; ENTRY_BYTES], |(slot, twin)| slot.encode(twin)));
        }
        let (free, ready) = {
            let s = &mut self.segments[segment];
            assert!(!s.page_writing);
            s.generation += 1;
            (s.page_seq, s.page_writing, s.cleaned_since, s.stale) = (seq, true, false, kept && s.stale);
            (s.free, s.clone())
        };
        if ready.state != SegmentState::Free {
            self.relist(segment, free);
        }
        PageWrite {
            device: DeviceNo(ready.device),
            offset_bytes: geometry::metadata_bytes(ready.on_device, ready.generation),
            generation: ready.generation,
            owner: ready.owner,
        }
    }

    /// Decides whether and how the page that is being composed lists a dead slot.
    fn decide_listing(&self, number: SlotNo, slot: Dead) -> Dead {
        let omitted = self.may_omit(number);
        slot.with_page(omitted, !omitted && self.has_dirty_mirror(number))
    }

    /// Notes that the composed page has been written to the device, durably or not.
    pub fn page_written(&mut self, segment: SegmentNo) {
        let s = &mut self.segments[segment];
        if s.state == SegmentState::Dead {
            return;
        }
        assert!(s.page_writing);
        s.page_writing = false;
        let seq = s.page_seq;
        let behind = self.written_pages.iter().rev().take_while(|page| page.0 > seq).count();
        self.written_pages.insert(self.written_pages.len() - behind, (seq, segment));
        if planted(Bug::TwoUnflushedPages) && self.segments[segment].owner != NO_OWNER {
            let free = self.segments[segment].free;
            self.relist(segment, free);
        }
    }

    /// Applies the effects of a page that is now durable: slots that it leaves out become blank.
    pub(super) fn page_flushed(&mut self, segment: SegmentNo) {
        let Segment { state, cleaned_since, page_writing, .. } = self.segments[segment];
        if matches!(state, SegmentState::Dead | SegmentState::Free) || page_writing {
            return;
        }
        let disk = DiskNo(self.segments[segment].owner);
        let (mut blanked, mut unusable) = (0u8, 0u8);
        self.prefetch_dead(segment);
        for number in self.slots_of(segment) {
            let slot = self.slot(number);
            if let Some(dead) = slot.dead().filter(|dead| dead.omitted()) {
                self.index.remove(hash(disk, dead.block()), number);
                self.set(number, Slot::default());
                blanked += 1;
                unusable += u8::from(!dead.reusable());
            } else if !cleaned_since {
                self.set(number, slot.with_durable_page());
            }
        }
        let before = self.segments[segment].free;
        if blanked > 0 {
            self.adjust(segment, |s| {
                s.pending -= unusable;
                s.free += unusable;
            });
        }
        if self.segments[segment].free == before {
            self.relist(segment, before);
        }
        if state == SegmentState::Leaving {
            self.try_free(segment);
        }
    }

    /// Returns how many slots a segment's next page would free.
    fn would_free(&self, segment: SegmentNo) -> u32 {
        let frees = |number: SlotNo| {
            let waits = |dead: Dead| !dead.reusable() && !dead.omitted();
            self.slot(number).dead().is_some_and(waits) && self.may_omit(number)
        };
        self.prefetch_dead(segment);
        self.slots_of(segment).map(|number| u32::from(frees(number))).sum()
    }

    /// Whether a segment's next page would list less than the last: fewer entries, fewer sectors, or fewer
    /// dirty entries.
    pub fn can_shrink(&self, segment: SegmentNo) -> bool {
        let s = &self.segments[segment];
        if s.stale && s.superseded == 0 && !self.slots_of(segment).any(|n| self.slot(n).dead().is_some()) {
            return true;
        }
        self.slots_of(segment).any(|number| self.shrinks(number))
    }

    /// Whether its segment's next page would leave a slot out, or stop listing it as dirty.
    pub(super) fn shrinks(&self, number: SlotNo) -> bool {
        match self.slot(number).view() {
            View::Dead(slot) => {
                let stale_dirty = slot.durable_dirty() && !self.has_dirty_mirror(number);
                !slot.omitted() && (stale_dirty || self.may_omit(number))
            }
            View::Live(slot) => slot.durable_dirty() && !slot.dirty(),
            View::Superseded(_) | View::Blank => false,
        }
    }

    /// Whether the durable pages of a disk's segment may list blocks as dirty that are clean or gone.
    pub fn is_falsely_dirty(&self, disk: DiskNo, segment: SegmentNo) -> bool {
        let is_false = |number: SlotNo| {
            let slot = self.slot(number);
            slot.status() != Status::Blank
                && slot.durable_dirty()
                && !self.lookup(disk, slot.block()).is_some_and(|(_, live)| live.dirty())
        };
        self.segments[segment].owner == disk.0 && self.slots_of(segment).any(is_false)
    }

    /// Returns the segment whose page must be written next so that this one can list less: itself, or the one
    /// with an older entry that keeps its dead slots listed.
    pub fn first_to_shrink(&self, segment: SegmentNo) -> Option<SegmentNo> {
        let mut target = segment;
        while !self.can_shrink(target) {
            target = self.oldest_blocker(target)?;
        }
        Some(target)
    }

    /// Returns the segment of the oldest entry that keeps dead slots of a segment listed, if a page write can
    /// help there. Following these entries ends: each step leads to an older one.
    fn oldest_blocker(&self, segment: SegmentNo) -> Option<SegmentNo> {
        let disk = DiskNo(self.segments[segment].owner);
        let mut oldest: Option<(u64, SegmentNo, bool)> = None;
        for number in self.slots_of(segment) {
            let Some(slot) = self.slot(number).dead().filter(|dead| !dead.omitted()) else { continue };
            self.entries(disk, slot.block(), |other, entry| {
                let elsewhere = self.segment_of(other) != segment;
                let blocks = elsewhere && Self::keeps_listed(slot.into(), entry);
                if blocks && oldest.is_none_or(|o| entry.seq() < o.0) {
                    let listed_on = match entry.view() {
                        View::Live(entry) => !entry.dirty(),
                        View::Dead(entry) => !entry.omitted(),
                        View::Superseded(_) | View::Blank => false,
                    };
                    oldest = Some((entry.seq(), self.segment_of(other), listed_on));
                }
            });
        }
        oldest.filter(|o| o.2).map(|o| o.1)
    }

    /// Returns the disk's segment whose next page frees the most slots, among some tried in turn. Its page
    /// may be written now.
    pub fn worth_rewriting(&mut self, disk: DiskNo) -> Option<SegmentNo> {
        let count = self.disks[disk].segments.len();
        // What a page frees waits for it. So the search can end at a segment in which no more than the best page frees waits.
        let mut candidates: [(u8, SegmentNo); MOST_LOOKED_INTO] = [(0, NONE); _];
        let mut found = 0;
        for _ in 0..count {
            let space = &mut self.disks[disk];
            space.rewrite_hand = (space.rewrite_hand + 1) % count;
            let number = space.segments[space.rewrite_hand];
            let segment = &self.segments[number];
            if segment.pending == 0 || !segment.page_ready(self.flushed_seq) {
                continue;
            }
            candidates[found] = (segment.pending, number);
            found += 1;
            if found == MOST_LOOKED_INTO {
                break;
            }
        }
        let candidates = &mut candidates[..found];
        candidates.sort_by_key(|(pending, _)| Reverse(*pending));
        let mut best: Option<(u32, SegmentNo)> = None;
        for (pending, number) in &*candidates {
            let most = best.map_or(0, |b| b.0);
            if u32::from(*pending) <= most || most >= FREES_ENOUGH {
                break;
            }
            let frees = self.would_free(*number);
            if frees > most {
                best = Some((frees, *number));
            }
        }
        let blocked = candidates.first().map(|(_, number)| *number);
        let target = best.map(|b| b.1).or_else(|| self.first_to_shrink(blocked?));
        target.filter(|t| self.segments[*t].page_ready(self.flushed_seq))
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::BlockNo;

    use super::*;
    use crate::store::slot::Live;

    const DISK: DiskNo = DiskNo(0);
    const BLOCK: BlockNo = BlockNo(7);

    /// Returns a store of two devices with two segments each, all owned by the disk: 0 and 1 are on the first
    /// device.
    fn store() -> Store {
        let mut store = Store::new();
        store.add_disk(DISK);
        for device in 0..2 {
            store.add_device(DeviceNo(device), haversack_model::Uuid([device; 16]), 2, 2);
        }
        store.collect_free_segments();
        for segment in 0..4 {
            store.take_this(SegmentNo(segment), DISK);
        }
        store
    }

    /// Puts a version of the block into the segment's next slot.
    fn put(store: &mut Store, segment: u32, mask: u8, seq: u64) -> SlotNo {
        let blank = |number: &SlotNo| store.slot(*number).status() == Status::Blank;
        let number = store.slots_of(SegmentNo(segment)).find(blank).expect("the segment has room");
        store.install(number, Live::new(BLOCK, mask, 0, seq), 0);
        number
    }

    /// Writes a segment's next page, makes it and all before it durable, and returns the number of entries
    /// that it lists.
    fn listed(store: &mut Store, segment: u32, seq: u64) -> usize {
        let mut content = [0; _];
        store.compose_page(SegmentNo(segment), seq, &mut content);
        store.page_written(SegmentNo(segment));
        store.flushed(seq);
        content.chunks_exact(ENTRY_BYTES).filter(|entry| entry.iter().any(|byte| *byte != 0)).count()
    }

    /// Returns a store with an old version in segment 1, listed; an obsolete one in segment 0; and the newest
    /// one, with number 3, in `segment`.
    fn three_versions(segment: u32, newest_mask: u8) -> Store {
        let mut store = store();
        for (at, seq) in [(1, 1), (0, 2)] {
            let number = put(&mut store, at, 0xff, seq);
            assert_eq!(listed(&mut store, at, seq), 1);
            store.evict(number);
        }
        put(&mut store, segment, newest_mask, 3);
        store
    }

    #[test]
    fn a_version_leaves_for_a_newer_one_that_is_durable() {
        let mut store = three_versions(0, 0xff);
        assert_eq!(listed(&mut store, 0, 3), 2, "nothing may leave for a version that a power loss undoes");
        assert_eq!(listed(&mut store, 0, 4), 1, "the newest is durable");
        assert_eq!(listed(&mut store, 1, 5), 0, "the oldest may leave in any case");
    }

    #[test]
    fn a_flush_takes_effect_in_steps_of_some_pages() {
        let mut store = store();
        for (segment, seq) in [(0, 1), (1, 2), (2, 2), (3, 5)] {
            put(&mut store, segment, 0xff, seq);
            store.compose_page(SegmentNo(segment), seq, &mut [0; _]);
            store.page_written(SegmentNo(segment));
        }
        assert_eq!(store.flushed_by_pages(1, 9), 1);
        assert_eq!(store.flushed_by_pages(2, 9), 1, "pages with one number take effect together");
        assert_eq!(store.flushed_by_pages(3, 9), 4);
        assert_eq!(store.flushed_by_pages(4, 9), 9, "no page is left");
        assert_eq!(store.flushed_by_pages(3, 3), 3, "the flush covers no more");
        store.flushed(1);
        assert_eq!(store.flushed_by_pages(1, 9), 2, "a step takes at least one number");
    }

    #[test]
    fn a_page_takes_effect_although_slots_of_its_segment_were_released_in_an_earlier_step() {
        let other = BlockNo(8);
        let mut store = store();
        let first = put(&mut store, 0, 0xff, 1);
        store.install(SlotNo(first.0 + 1), Live::new(other, 0xff, 0, 1).with_dirty(true), 0);
        assert_eq!(listed(&mut store, 0, 1), 2);
        store.cleaned(SlotNo(first.0 + 1));
        assert!(store.durably_dirty(DISK, other).is_some());
        store.supersede(first, 2);
        store.install(SlotNo(SLOTS_PER_SEGMENT), Live::new(BLOCK, 0xff, 0, 2), 0);
        for (segment, seq) in [(1, 2), (0, 3)] {
            store.compose_page(SegmentNo(segment), seq, &mut [0; _]);
            store.page_written(SegmentNo(segment));
        }
        store.flushed(2);
        store.flushed(3);
        assert!(store.durably_dirty(DISK, other).is_none(), "a durable page lists it as clean");
    }

    #[test]
    fn superseded_slots_limit_a_step() {
        let mut store = store();
        let mut older = put(&mut store, 0, 0xff, 1);
        for seq in 2..=3 + SLOTS_PER_SEGMENT {
            store.supersede(older, seq.into());
            older = SlotNo(seq);
            store.install(older, Live::new(BLOCK, 0xff, 0, seq.into()), 0);
        }
        assert_eq!(store.flushed_by_pages(1, 9999), 1 + u64::from(SLOTS_PER_SEGMENT));
        assert_eq!(store.flushed_by_pages(2, 9999), 9999);
    }

    #[test]
    fn no_version_leaves_for_one_that_may_be_lost_without_it() {
        let mut store = three_versions(2, 0xff);
        assert_eq!(listed(&mut store, 2, 3), 1);
        assert_eq!(listed(&mut store, 0, 4), 1, "the newest is on another device");
        assert_eq!(listed(&mut store, 1, 5), 0);
        assert_eq!(listed(&mut store, 0, 6), 0, "no older one is listed any more");
    }

    #[test]
    fn no_version_leaves_for_one_that_does_not_cover_it() {
        let mut store = three_versions(0, 0x0f);
        assert_eq!(listed(&mut store, 0, 3), 2);
        assert_eq!(listed(&mut store, 0, 4), 2, "a disk that ends there would not count the newest");
    }

    #[test]
    fn the_newest_version_stays_until_all_older_ones_have_left() {
        let mut store = three_versions(0, 0xff);
        listed(&mut store, 0, 3);
        let newest = store.lookup(DISK, BLOCK).expect("it is live").0;
        store.evict(newest);
        assert_eq!(listed(&mut store, 0, 4), 1, "the middle one leaves, the newest stays");
        assert_eq!(listed(&mut store, 1, 5), 0);
        assert_eq!(listed(&mut store, 0, 6), 0);
    }
}
