//! What the cache holds: slots, segments, index and ghost lists, and the transitions between a slot's states.
//!
//! No I/O happens here. Each transition keeps all counts consistent, so the flows only specify which blocks
//! are installed, superseded, cleaned, evicted or invalidated.
//!
//! Invariants
//! - The index holds exactly the slots that are not blank. So for any block it has every entry that a durable
//!   metadata page may list.
//! - A block has at most one live slot that is not a mirror.
//! - A slot is overwritten only if it is blank, or dead, clean and the only entry of its block: then neither
//!   the old data nor its loss can matter to recovery.
//! - A durable entry disappears from a page only when no older entry of its block is left elsewhere, or when
//!   a newer one on the same device is durable and stays listed as long as any older one.
//! - A slot that was superseded stays listed until the newer version is durable.

mod adopting;
mod aging;
mod batches;
mod check;
pub(crate) mod checkpoint;
pub mod common;
mod crowding;
mod dirty;
mod dirty_order;
pub mod ghost;
pub mod index;
mod pages;
mod prefetch;
pub mod reclaim;
mod replacement;
pub mod segment;
pub mod slot;
mod slots;
mod space;
mod stay;
mod strictness;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros, Uuid};

use crate::bugs::{Bug, planted};
use crate::checksum::mix;
use crate::format::geometry::{self, SLOTS_PER_SEGMENT};
use crate::format::page::NO_OWNER;
use crate::hasher::NumberHasher;
use crate::table::Table;
use aging::Aging;
use batches::Batches;
use common::Common;
use dirty::{DirtySegments, DirtyTimes};
use dirty_order::DirtyOrder;
use ghost::Ghosts;
use index::Index;
use reclaim::Reclaim;
use segment::{FreeLists, Segment, SegmentNo, SegmentState};
use slot::{Live, Slot, SlotNo, Status, View};
use slots::Slots;
use stay::{LastUses, Stay};

pub(crate) use adopting::{Filling, Indexing, Placed, PlacedCounts};
pub use pages::PageContent;
pub(crate) use slots::SlotsPart;
pub use space::LostDevice;

/// A cache device as the store sees it.
#[derive(Clone)]
pub struct DeviceSpace {
    /// Its identity.
    pub id: Uuid,
    /// Number of its first segment in the pool.
    pub first_segment: SegmentNo,
    /// Number of its segments.
    pub segments: u32,
    /// Number of segments, from the first, that are prepared for use.
    pub prepared: u32,
    /// Prepared segments that belong to no disk.
    pub free_segments: Vec<SegmentNo>,
    /// It may be used.
    pub alive: bool,
    /// It is being emptied, or is not on record yet: no new blocks go to it.
    pub draining: bool,
}

impl DeviceSpace {
    /// Returns the numbers of its segments.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = SegmentNo> + ExactSizeIterator + use<> {
        (self.first_segment.0..self.first_segment.0 + self.segments).map(SegmentNo)
    }

    /// Returns the numbers of its segments that are prepared for use.
    pub fn prepared_numbers(&self) -> impl DoubleEndedIterator<Item = SegmentNo> + use<> {
        self.numbers().take(self.prepared as usize)
    }
}

/// A disk's blocks in the cache. The counts are in blocks; mirrored copies are counted separately.
#[derive(Default)]
pub struct DiskSpace {
    /// Its segments.
    pub segments: Vec<SegmentNo>,
    /// Live blocks.
    pub live: u64,
    /// Live blocks on probation.
    pub probation: u64,
    /// Dirty blocks.
    pub dirty: u64,
    /// Second copies of dirty blocks.
    pub mirrors: u64,
    /// Slots that a batch may use.
    pub free: u64,
    /// Dead slots that a batch may not use yet.
    pub pending: u64,
    /// It shares the common pool.
    shares: bool,
    /// If it shares the pool: blocks that are not evicted for others.
    reserved_blocks: u64,
    /// If it shares the pool: how often the main hand has swept its segments.
    laps: u64,
    /// Its segments that may take a batch, by their number of free slots.
    free_lists: FreeLists,
    /// Its segments with dirty blocks, the longest dirty first.
    dirty_segments: DirtySegments,
    /// Its dirty slots, if they are cleaned in order.
    dirty_order: Option<DirtyOrder>,
    /// Batches that may have blocks on probation.
    filled: Batches,
    /// Index in `segments` of the main hand of replacement.
    hand: usize,
    /// Index in `segments` where the last search for a segment to give to another disk ended.
    giving_hand: usize,
    /// Index in `segments` where the last search for a page worth rewriting ended.
    rewrite_hand: usize,
    /// If it does not share the pool: how long its blocks stay.
    stay: Stay,
    /// How fast the hits of its blocks are forgotten, if last uses of them are sampled.
    aging: Option<Aging>,
}

/// The store. See the module.
pub struct Store {
    /// All slots, 253 for each segment, in the order of `segments`.
    slots: Slots,
    /// The slots of each block that are not blank.
    index: Index,
    /// All segments, ordered by device as they were added.
    pub segments: Table<SegmentNo, Segment>,
    /// By segment: since when its dirty slots are dirty.
    dirty_times: Table<SegmentNo, Option<Box<DirtyTimes>>>,
    /// By segment: addresses that its owner evicted lately.
    ghosts: Ghosts,
    pub disks: Table<DiskNo, DiskSpace>,
    /// The combined state of the disks that share one pool.
    pub common: Common,
    /// Number of the newest batch with blocks on probation.
    newest_filled: u64,
    pub devices: Table<DeviceNo, Option<DeviceSpace>>,
    /// Free segments were taken, or a device got new ones, since the last check whether more must be
    /// prepared.
    pub free_changed: bool,
    /// Segments that are being emptied for a new owner.
    reclaim: Reclaim,
    /// A segment that takes no new blocks.
    closed: Option<SegmentNo>,
    /// Every commit up to this sequence number is durable.
    flushed_seq: u64,
    /// Dirty blocks may have two copies: the pool is redundant, or a page says so of a block.
    pub second_copies: bool,
    /// The slot of the mirrored copy, by the slot of the first.
    mirrors: HashMap<SlotNo, SlotNo, BuildHasherDefault<NumberHasher>>,
    /// Superseded slots, each with the number of the commit that must become durable before it is dead.
    superseded: VecDeque<(u64, SlotNo)>,
    /// Pages that are written and not durable yet: sequence number and segment, in order of the numbers.
    written_pages: VecDeque<(u64, SegmentNo)>,
    /// When some blocks were used last.
    last_uses: LastUses,
    /// By segment: when the main hand swept it last, in accesses of the pool; 0 if it has not yet.
    swept: Table<SegmentNo, u64>,
}

/// The number of blocks that [`Store::prefetch`] reads at once.
const PREFETCH_TOGETHER: usize = 32;

fn hash(disk: DiskNo, block: BlockNo) -> u64 {
    mix(block.0 ^ u64::from(disk.0) << 44)
}

impl Store {
    /// Returns a store without devices.
    pub fn new() -> Store {
        Store {
            slots: Slots::default(),
            index: Index::new(0),
            segments: Table::new(),
            dirty_times: Table::new(),
            ghosts: Ghosts::default(),
            disks: Table::new(),
            common: Common::default(),
            newest_filled: 0,
            devices: Table::new(),
            free_changed: false,
            reclaim: Reclaim::default(),
            closed: None,
            flushed_seq: 0,
            second_copies: true,
            mirrors: HashMap::default(),
            superseded: VecDeque::new(),
            written_pages: VecDeque::new(),
            last_uses: LastUses::new(),
            swept: Table::new(),
        }
    }

    /// Adds a device with free segments only, of which the first ones are prepared for use. The index is rebuilt for
    /// the larger pool.
    pub fn add_device(&mut self, number: DeviceNo, id: Uuid, segments: u32, prepared: u32) {
        let first_segment = SegmentNo(self.segments.len() as u32);
        for on_device in 0..segments {
            self.segments.push(Segment::new(number.0, on_device));
            self.dirty_times.push(None);
            self.swept.push(0);
        }
        let total = self.segments.len();
        self.free_changed = true;
        self.enlarge_tables(total);
        self.devices.reach(number, || None);
        self.devices[number] = Some(DeviceSpace {
            id,
            first_segment,
            segments,
            prepared,
            free_segments: (first_segment.0..first_segment.0 + prepared).rev().map(SegmentNo).collect(),
            alive: true,
            draining: false,
        });
    }

    /// Enlarges the tables for this many segments. Only the used part is copied: the rest of the tables takes
    /// no memory until it is written to.
    fn enlarge_tables(&mut self, segments: usize) {
        let slots = std::mem::replace(&mut self.slots, Slots::new(segments));
        let ghosts = std::mem::replace(&mut self.ghosts, Ghosts::new(segments));
        self.last_uses.resize(self.slots.len());
        self.index = Index::new(0);
        let mut index = Index::new(self.slots.len());
        for (segment, state) in self.segments.numbered().filter(|(_, s)| s.owner != NO_OWNER) {
            self.slots.copy_segment(&slots, segment);
            self.ghosts.copy_segment(&ghosts, segment);
            for number in self.slots_of(segment) {
                let slot = self.slot(number);
                if slot.status() != Status::Blank {
                    index.insert(hash(DiskNo(state.owner), slot.block()), number);
                }
            }
        }
        self.index = index;
    }

    /// Makes room in the disk table up to `disk`.
    pub fn add_disk(&mut self, disk: DiskNo) {
        self.disks.reach(disk, DiskSpace::default);
    }

    /// Returns a slot's entry.
    pub fn slot(&self, number: SlotNo) -> Slot {
        self.slots.get(number)
    }

    /// Returns the segment that a slot is in.
    pub fn segment_of(&self, number: SlotNo) -> SegmentNo {
        number.segment()
    }

    /// Returns the disk that a slot belongs to.
    pub fn owner_of(&self, number: SlotNo) -> DiskNo {
        DiskNo(self.segments[number.segment()].owner)
    }

    /// Returns the device and byte offset of a slot.
    pub fn location(&self, number: SlotNo) -> (DeviceNo, u64) {
        let segment = &self.segments[number.segment()];
        let offset = geometry::slot_bytes(segment.on_device, number.0 % SLOTS_PER_SEGMENT);
        (DeviceNo(segment.device), offset)
    }

    /// Returns the slots of a segment.
    pub fn slots_of(&self, segment: SegmentNo) -> impl Iterator<Item = SlotNo> + use<> {
        (segment.0 * SLOTS_PER_SEGMENT..(segment.0 + 1) * SLOTS_PER_SEGMENT).map(SlotNo)
    }

    /// Returns the entry of a slot if it is live.
    pub fn live(&self, number: SlotNo) -> Option<Live> {
        self.slot(number).live()
    }

    /// Returns the live slot of a block that is not a mirrored copy.
    pub fn lookup(&self, disk: DiskNo, block: BlockNo) -> Option<(SlotNo, Live)> {
        let mut found = None;
        let number = self.index.find(hash(disk, block), |number| {
            let slot = self.slots.get(number);
            // What a lost device has is not taken out of the tables at once.
            let segment = &self.segments[number.segment()];
            let wanted =
                slot.block() == block && segment.owner == disk.0 && segment.state != SegmentState::Dead;
            found = slot.primary().filter(|_| wanted);
            found.is_some()
        })?;
        Some((number, found?))
    }

    /// Reads the memory that [`Store::lookup`] of these blocks will read.
    #[inline]
    pub fn prefetch(&self, blocks: impl Iterator<Item = (DiskNo, BlockNo)>) {
        let mut some = [(DiskNo(0), BlockNo(0)); PREFETCH_TOGETHER];
        let mut count = 0;
        for block in blocks {
            some[count] = block;
            count += 1;
            if count == PREFETCH_TOGETHER {
                self.prefetch_some(&some);
                count = 0;
            }
        }
        self.prefetch_some(&some[..count]);
    }

    /// Prefetches at most [`PREFETCH_TOGETHER`] blocks. The reads of each loop do not depend on each other, so that the
    /// processor overlaps them.
    fn prefetch_some(&self, blocks: &[(DiskNo, BlockNo)]) {
        let mut hashes = [0; PREFETCH_TOGETHER];
        let mut read = 0;
        for (to, (disk, block)) in hashes.iter_mut().zip(blocks) {
            *to = hash(*disk, *block);
            read ^= self.index.prefetch(*to);
        }
        let mut candidates = [SlotNo(0); PREFETCH_TOGETHER];
        let mut found = 0;
        for hash in &hashes[..blocks.len()] {
            if let Some(number) = self.index.candidate(*hash) {
                candidates[found] = number;
                found += 1;
            }
        }
        for number in &candidates[..found] {
            read ^= u64::from(self.slots.prefetch(*number)) ^ u64::from(self.owner_of(*number).0);
        }
        std::hint::black_box(read);
    }

    /// Visits every entry of a block, regardless of its status.
    pub fn entries(&self, disk: DiskNo, block: BlockNo, mut visit: impl FnMut(SlotNo, Slot)) {
        self.index.find(hash(disk, block), |number| {
            let slot = self.slots.get(number);
            if slot.block() == block && self.owner_of(number) == disk {
                visit(number, slot);
            }
            false
        });
    }

    /// Returns a slot of the block that a durable page may list as dirty.
    pub fn durably_dirty(&self, disk: DiskNo, block: BlockNo) -> Option<SlotNo> {
        let mut found = None;
        self.entries(disk, block, |number, slot| {
            if slot.durable_dirty() {
                found = Some(number);
            }
        });
        found
    }

    /// Returns the mirrored copy of a dirty block.
    pub fn mirror_of(&self, primary: SlotNo) -> Option<SlotNo> {
        self.mirrors.get(&primary).copied()
    }

    fn set(&mut self, number: SlotNo, slot: impl Into<Slot>) {
        self.slots.set(number, slot.into());
    }

    /// Returns the entry of a slot that must be live.
    fn expect_live(&self, number: SlotNo) -> Live {
        self.live(number).unwrap_or_else(|| panic!("slot {number:?} is live"))
    }

    /// Changes a segment's counts and updates the disk's counts and the free lists.
    fn adjust(&mut self, number: SegmentNo, change: impl FnOnce(&mut Segment)) {
        let before = self.segments[number].clone();
        change(&mut self.segments[number]);
        let after = &self.segments[number];
        debug_assert!(
            u32::from(after.live)
                + u32::from(after.superseded)
                + u32::from(after.free)
                + u32::from(after.pending)
                <= SLOTS_PER_SEGMENT + 1
        );
        let disk = &mut self.disks[DiskNo(before.owner)];
        disk.free = disk.free + u64::from(after.free) - u64::from(before.free);
        disk.pending = disk.pending + u64::from(after.pending) - u64::from(before.pending);
        if disk.shares {
            let common = &mut self.common;
            common.free = common.free + u64::from(after.free) - u64::from(before.free);
            common.pending = common.pending + u64::from(after.pending) - u64::from(before.pending);
        }
        let dirty = (after.dirty_since_us, number);
        if before.dirty == 0 && after.dirty > 0 {
            disk.dirty_segments.insert(dirty);
        } else if before.dirty > 0 && after.dirty == 0 {
            disk.dirty_segments.remove(&dirty);
        }
        if after.free != before.free {
            self.relist(number, before.free);
        }
    }

    fn relist(&mut self, number: SegmentNo, was_free: u8) {
        let segment = &self.segments[number];
        let draining = self.devices[DeviceNo(segment.device)].as_ref().is_none_or(|d| d.draining || !d.alive);
        let ready = segment.page_ready(self.flushed_seq);
        let is_open = segment.state == SegmentState::Owned && self.closed != Some(number);
        let eligible = is_open && ready && !draining;
        let disk = &mut self.disks[DiskNo(segment.owner)];
        disk.free_lists.place(&mut self.segments, number, was_free, eligible);
    }

    /// Counts a hit of a live slot.
    #[inline]
    pub fn hit(&mut self, number: SlotNo) {
        let slot = self.expect_live(number);
        self.set(number, slot.with_hits(slot.hits() + 1));
    }

    /// Puts a block that no other slot has into a slot, see [`Store::install_over`].
    pub fn install(&mut self, number: SlotNo, entry: Live, since_us: Micros) {
        self.install_over(None, number, entry, since_us);
    }

    /// Puts a block into a slot that may be used. Lookups will find it before the slot of an older version. `since_us` says
    /// since when it has been dirty, if it is. The slot's earlier entry leaves the index.
    pub fn install_over(&mut self, older: Option<SlotNo>, number: SlotNo, entry: Live, since_us: Micros) {
        let (segment, old) = (self.segment_of(number), self.slot(number));
        let disk = self.owner_of(number);
        match old.view() {
            View::Blank => {}
            View::Dead(dead) => {
                assert!(dead.reusable(), "a batch writes over dead slots only if they may be used again");
                self.index.remove(hash(disk, dead.block()), number);
            }
            View::Live(_) | View::Superseded(_) => panic!("slot {number:?} is in use"),
        }
        assert!(entry.mask() != 0 || entry.poisoned(), "a block without valid sectors has no slot");
        self.set(number, entry.with_durable_page());
        let hash = hash(disk, entry.block());
        match older {
            Some(older) => self.index.insert_before(hash, older, number),
            None => self.index.insert(hash, number),
        }
        if entry.dirty() {
            self.note_dirty(number, since_us);
        }
        self.adjust(segment, |s| {
            s.free -= 1;
            s.live += 1;
            s.dirty += u8::from(entry.dirty());
        });
        self.count_live(disk, entry, 1);
    }

    fn count_live(&mut self, disk: DiskNo, entry: Live, sign: i64) {
        let disk = &mut self.disks[disk];
        let add =
            |count: &mut u64| *count = count.checked_add_signed(sign).expect("counts do not go below zero");
        if entry.mirror() {
            add(&mut disk.mirrors);
            return;
        }
        add(&mut disk.live);
        if !entry.protected() {
            add(&mut disk.probation);
        }
        if disk.shares {
            add(&mut self.common.live);
            if !entry.protected() {
                add(&mut self.common.probation);
            }
            if entry.dirty() {
                add(&mut self.common.dirty);
            }
        }
        if entry.dirty() {
            add(&mut disk.dirty);
        }
    }

    /// Notes the mirrored copy of a dirty block that was just installed.
    pub fn pair(&mut self, primary: SlotNo, mirror: SlotNo) {
        self.second_copies = true;
        self.mirrors.insert(primary, mirror);
    }

    /// Supersedes a slot: a newer version of the block is written by commit `seq`. The slot stays listed
    /// until that is durable.
    pub fn supersede(&mut self, number: SlotNo, seq: u64) {
        if let Some(mirror) = self.mirrors.remove(&number) {
            self.supersede_one(mirror, seq);
        }
        self.supersede_one(number, seq);
    }

    fn supersede_one(&mut self, number: SlotNo, seq: u64) {
        let slot = self.expect_live(number);
        self.count_live(self.owner_of(number), slot, -1);
        self.set(number, slot.supersede());
        self.adjust(self.segment_of(number), |s| {
            s.live -= 1;
            s.superseded += 1;
            s.dirty -= u8::from(slot.dirty());
        });
        if slot.dirty() {
            self.note_not_dirty(number);
        }
        self.superseded.push_back((seq, number));
        if planted(Bug::ReuseSlotTooEarly) {
            self.release(number);
            self.set(number, slot.die(true).with_durable_dirty(false));
            self.adjust(self.segment_of(number), |s| {
                s.pending -= 1;
                s.free += 1;
            });
        }
    }

    fn release(&mut self, number: SlotNo) {
        let View::Superseded(slot) = self.slot(number).view() else { return };
        self.set(number, slot.die());
        self.adjust(self.segment_of(number), |s| {
            s.superseded -= 1;
            s.pending += 1;
        });
        self.drop_dirty_times(number.segment());
    }

    /// Marks a slot as clean: the origin durably has the block. Its mirrored copy is no longer needed.
    pub fn cleaned(&mut self, number: SlotNo) {
        let slot = self.expect_live(number);
        assert!(slot.dirty() && !slot.mirror());
        if let Some(mirror) = self.mirrors.remove(&number) {
            self.drop_live(mirror, false);
        }
        self.count_live(self.owner_of(number), slot, -1);
        self.set(number, slot.with_dirty(false));
        self.count_live(self.owner_of(number), slot.with_dirty(false), 1);
        self.adjust(self.segment_of(number), |s| {
            s.dirty -= 1;
            s.cleaned_since = true;
        });
        self.note_not_dirty(number);
    }

    /// Evicts a clean live slot in place. Nothing is written: the origin has the block.
    pub fn evict(&mut self, number: SlotNo) {
        let slot = self.expect_live(number);
        assert!(!slot.dirty() && !slot.mirror());
        if !slot.protected() {
            self.remember(self.owner_of(number), slot.block());
        }
        self.drop_live(number, !slot.durable_dirty());
    }

    /// Invalidates a block that the origin is about to overtake, or has overtaken: no entry of it may be
    /// trusted any more. This includes dirty slots; the caller has made sure that the origin durably has the
    /// valid content.
    pub fn invalidate(&mut self, disk: DiskNo, block: BlockNo) {
        self.mark_stale(disk, block);
        if let Some((number, slot)) = self.lookup(disk, block) {
            if let Some(mirror) = self.mirrors.remove(&number) {
                self.drop_live(mirror, false);
            }
            self.drop_live(number, !slot.dirty() && !slot.durable_dirty());
        }
    }

    fn mark_stale(&mut self, disk: DiskNo, block: BlockNo) {
        let mut stale = [segment::NONE; 8];
        let mut count = 0;
        let mut more = false;
        self.entries(disk, block, |number, _| {
            if count < stale.len() {
                stale[count] = number.segment();
                count += 1;
            } else {
                more = true;
            }
        });
        for segment in &stale[..count] {
            self.segments[*segment].stale = true;
        }
        if more {
            let disk = &self.disks[disk];
            for segment in &disk.segments {
                self.segments[*segment].stale = true;
            }
        }
    }

    /// Removes sectors that the origin is about to overtake from the cached copy.
    pub fn narrow(&mut self, disk: DiskNo, block: BlockNo, overtaken: u8) {
        match self.lookup(disk, block) {
            Some((number, slot)) if !slot.dirty() && slot.mask() & !overtaken != 0 => {
                self.mark_stale(disk, block);
                self.set(number, slot.with_mask(slot.mask() & !overtaken));
            }
            _ => self.invalidate(disk, block),
        }
    }

    fn drop_live(&mut self, number: SlotNo, usable: bool) {
        let slot = self.expect_live(number);
        self.count_live(self.owner_of(number), slot, -1);
        self.set(number, slot.die(usable));
        self.adjust(self.segment_of(number), |s| {
            s.live -= 1;
            if slot.dirty() {
                s.dirty -= 1;
                s.cleaned_since = true;
            }
            if usable {
                s.free += 1;
            } else {
                s.pending += 1;
            }
        });
        if slot.dirty() {
            self.note_not_dirty(number);
        }
    }

    /// Marks a live slot whose data is damaged, and its mirrored copy: they must not be read, nor may their
    /// sectors be read from elsewhere.
    pub fn poison(&mut self, number: SlotNo) {
        for copy in [Some(number), self.mirror_of(number)].into_iter().flatten() {
            let slot = self.expect_live(copy);
            self.set(copy, slot.with_poisoned(true).with_mask(0));
        }
    }

    /// Makes the slots that batch `seq` superseded live again: the batch failed.
    pub fn revive(&mut self, seq: u64) {
        let failed: Vec<SlotNo> = self.superseded.iter().filter(|s| s.0 == seq).map(|s| s.1).collect();
        self.superseded.retain(|s| s.0 != seq);
        for number in failed {
            let View::Superseded(slot) = self.slot(number).view() else { continue };
            let slot = slot.revive();
            self.set(number, slot);
            self.count_live(self.owner_of(number), slot, 1);
            if slot.dirty() {
                self.note_dirty(number, self.slot_dirty_since_us(number));
            }
            self.adjust(self.segment_of(number), |s| {
                s.superseded -= 1;
                s.live += 1;
                s.dirty += u8::from(slot.dirty());
            });
            if slot.mirror() {
                let primary = self.lookup(self.owner_of(number), slot.block());
                match primary.filter(|(_, p)| p.seq() == slot.seq()) {
                    Some((primary, _)) => {
                        self.mirrors.insert(primary, number);
                    }
                    None => self.promote(number),
                }
            }
        }
    }

    /// Makes a mirrored copy the first one.
    fn promote(&mut self, mirror: SlotNo) {
        let slot = self.expect_live(mirror);
        self.count_live(self.owner_of(mirror), slot, -1);
        self.set(mirror, slot.with_mirror(false));
        self.count_live(self.owner_of(mirror), slot.with_mirror(false), 1);
    }

    /// Drops a slot and makes its mirrored copy the first; returns that.
    pub fn fail_over(&mut self, primary: SlotNo) -> Option<SlotNo> {
        let mirror = self.mirrors.remove(&primary)?;
        self.drop_live(primary, false);
        self.promote(mirror);
        Some(mirror)
    }

    /// Returns the sequence number up to which everything is durable, as last reported to the store.
    pub fn flushed_seq(&self) -> u64 {
        self.flushed_seq
    }

    /// Returns the number up to which this many written pages come into effect, which is at most `until`: more if several
    /// have the same number, and fewer if that would release too many superseded slots.
    pub fn flushed_by_pages(&self, pages: usize, until: u64) -> u64 {
        let before = |at: Option<u64>, first: Option<u64>| match (at, first) {
            (Some(at), Some(first)) if at <= until => (at - 1).max(first),
            _ => until,
        };
        let page = |at: usize| self.written_pages.get(at).map(|page| page.0);
        let released = |at: usize| self.superseded.get(at).map(|superseded| superseded.0);
        let slots = pages * SLOTS_PER_SEGMENT as usize;
        before(page(pages), page(0)).min(before(released(slots), released(0)))
    }

    /// Notes that all commits up to `seq` are durable.
    pub fn flushed(&mut self, seq: u64) {
        assert!(seq >= self.flushed_seq);
        self.flushed_seq = seq;
        while let Some((page_seq, segment)) = self.written_pages.front().copied() {
            if page_seq > seq {
                break;
            }
            self.written_pages.pop_front();
            self.page_flushed(segment);
        }
        while let Some((newer, number)) = self.superseded.front().copied() {
            if newer > seq {
                break;
            }
            self.superseded.pop_front();
            self.release(number);
        }
    }

    /// Returns how many written pages are not durable yet.
    pub fn unflushed_pages(&self) -> usize {
        self.written_pages.len()
    }

    /// Returns the segment with the part of the ghost list that a block's address belongs to.
    fn ghosts_of(&self, disk: DiskNo, hash: u64) -> Option<SegmentNo> {
        let space = &self.disks[disk];
        let segments = if space.shares { &self.common.segments } else { &space.segments };
        (!segments.is_empty()).then(|| segments[ghost::chunk_of(hash, segments.len())])
    }

    fn remember(&mut self, disk: DiskNo, block: BlockNo) {
        let hash = hash(disk, block);
        if let Some(segment) = self.ghosts_of(disk, hash) {
            self.ghosts.insert(segment, hash);
        }
    }

    /// Whether the block was recently evicted on probation. Asking removes it from the list.
    pub fn was_evicted(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        let hash = hash(disk, block);
        self.ghosts_of(disk, hash).is_some_and(|segment| self.ghosts.take(segment, hash))
    }

    /// Returns the addresses of the memory that most of it will take if all prepared segments are full.
    pub(crate) fn memory_to_fill(&self) -> Vec<Range<usize>> {
        let devices = self.devices.iter().flatten();
        let prepared: usize = devices.clone().map(|device| device.prepared as usize).sum();
        let slots = devices.map(|device| self.slots.addresses(device.first_segment, device.prepared));
        // The entries of few segments are everywhere in the index.
        let index = (2 * prepared >= self.segments.len()).then(|| self.index.addresses());
        slots.chain(index).collect()
    }

    /// Returns the bytes of memory that the store takes.
    pub fn bytes(&self) -> usize {
        let per_disk: usize = self
            .disks
            .iter()
            .map(|d| {
                let listed = d.segments.capacity() * 4 + d.filled.bytes() + 254 * 4;
                let ordered = d.dirty_order.as_ref().map_or(0, |order| order.len() * 24);
                let dirty_bytes = d.dirty_segments.len() * (24 + size_of::<DirtyTimes>()) + ordered;
                size_of::<DiskSpace>() + listed + dirty_bytes
            })
            .sum();
        self.slots.bytes()
            + self.index.bytes()
            + self.segments.capacity() * size_of::<Segment>()
            + self.ghosts.bytes()
            + per_disk
            + self.common.segments.capacity() * 4
            + self.common.oldest.len() * 16
            + self.mirrors.capacity() * 9
            + self.superseded.capacity() * 16
            + self.written_pages.capacity() * 16
            + self.last_uses.bytes()
            + self.swept.len() * size_of::<u64>()
            + self.dirty_times.len() * size_of::<Option<Box<DirtyTimes>>>()
    }
}
