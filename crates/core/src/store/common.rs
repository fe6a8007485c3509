//! Disks that share one pool: the two hands visit the segments of all of them as if they belonged to one
//! disk.
//!
//! The probation hand takes the oldest batch of all sharers. The main hand sweeps the segments of all sharers
//! equally often: next is a segment of the disk that it has swept least often. So blocks of all sharers are
//! compared by the same measure: whether they were hit in the time that a block can stay. A segment still
//! belongs to one disk, and slots that the hands free in it belong to that disk.
//!
//! The ghost list is also common: a sharer's addresses are in the chunks of all segments of sharers. So a
//! disk with a small part of the pool remembers addresses for as long as all others do.
//!
//! Invariants
//! - `segments` holds exactly the segments of sharers, each at its `common_place`, and the counts are sums
//!   over the sharers.
//! - `oldest` has exactly the sharers with batches on probation, each with the number of its oldest; `laps` has
//!   exactly those with segments.
//! - A disk's blocks within its reservation are not evicted for others.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use haversack_model::{DeviceNo, DiskNo};

use super::replacement::is_probation_due;
use super::segment::SegmentNo;
use super::slot::SlotNo;
use super::stay::Stay;
use super::{DiskSpace, Store};
use crate::format::geometry::SLOTS_PER_SEGMENT;

/// One of this many slots of a disk is not counted as spare, nor are those that a batch needs.
const KEPT_FREE: u64 = 32;
const KEPT_FOR_A_BATCH: u64 = 128;
/// A disk's own blocks are evicted before their turn if at most this many quarters of the queue of batches,
/// or of the main hand's round, are ahead of them.
const EARLY: u64 = 3;
/// One round of the main hand over all segments.
const LAP: u64 = 1 << 32;
/// Maximum number of live blocks that are given up with a segment.
const MOST_GONE: u8 = 128;
/// Number of disks that are asked for a spare segment.
const GIVERS_TRIED: usize = 16;
/// Batches of a disk whose segments may be overdue, and the number of such segments that are examined.
const BATCHES_LOOKED_AT: usize = 32;
const OVERDUE_TRIED: usize = 4;
/// Such a segment is ahead of the requesting disk's blocks by more than one of this many parts of the queue.
const MARGIN: u64 = 3;
/// Number of segments of such a disk that are examined, twice.
const LOOKED_AT: usize = 32;

/// The combined state of the sharers. See the module.
#[derive(Default)]
pub struct Common {
    /// Their segments.
    pub segments: Vec<SegmentNo>,
    /// Live blocks.
    pub live: u64,
    /// Live blocks on probation.
    pub probation: u64,
    /// Dirty blocks.
    pub dirty: u64,
    /// Slots that a batch may use.
    pub free: u64,
    /// Dead slots that a batch may not use yet.
    pub pending: u64,
    /// How long their blocks stay.
    pub(super) stay: Stay,
    /// The oldest batch on probation of each sharer: its sequence number, and the disk.
    pub(super) oldest: BTreeSet<(u64, DiskNo)>,
    /// The sharers with segments, by how often the main hand has swept their segments, in parts of [`LAP`].
    pub(super) laps: BTreeSet<(u64, DiskNo)>,
    /// The order that `segments` had before a restart, until all of them are common again: which part of the ghost list
    /// an address is in depends on it.
    pub(super) former: Vec<SegmentNo>,
}

impl Store {
    /// Makes a disk a sharer of the common pool that keeps this many blocks in any case, or a disk on its own.
    pub fn share(&mut self, disk: DiskNo, reserved_blocks: Option<u64>) {
        self.disks[disk].reserved_blocks = reserved_blocks.unwrap_or(0);
        if self.disks[disk].shares == reserved_blocks.is_some() {
            return;
        }
        let segments = self.disks[disk].segments.clone();
        if reserved_blocks.is_none() {
            segments.iter().for_each(|number| self.leave_common(*number));
            self.leave_round(disk);
            self.count_common(disk, -1);
        }
        self.disks[disk].shares = reserved_blocks.is_some();
        if reserved_blocks.is_some() {
            self.count_common(disk, 1);
            segments.iter().for_each(|number| self.join_common(*number));
            self.restore_order();
        }
    }

    /// Restores the order that the common segments had before a restart, once all of them are common again.
    fn restore_order(&mut self) {
        let common = &mut self.common;
        if common.segments.len() < common.former.len() || common.former.is_empty() {
            return;
        }
        let former = std::mem::take(&mut common.former);
        let has = |number: &SegmentNo| {
            let place = self.segments[*number].common_place as usize;
            common.segments.get(place) == Some(number)
        };
        if common.segments.len() == former.len() && former.iter().all(has) {
            for (place, number) in former.iter().enumerate() {
                self.segments[*number].common_place = place as u32;
            }
            common.segments = former;
        }
    }

    /// Adds a sharer's counts to the common counts, or subtracts them.
    fn count_common(&mut self, disk: DiskNo, sign: i64) {
        let (space, common) = (&self.disks[disk], &mut self.common);
        let add = |sum: &mut u64, count: u64| {
            *sum = sum.checked_add_signed(sign * count as i64).expect("a sum does not go below zero");
        };
        add(&mut common.live, space.live);
        add(&mut common.probation, space.probation);
        add(&mut common.dirty, space.dirty);
        add(&mut common.free, space.free);
        add(&mut common.pending, space.pending);
        let Some((_, seq)) = space.filled.front() else { return };
        let oldest = (*seq, disk);
        if sign > 0 {
            common.oldest.insert(oldest);
        } else {
            common.oldest.remove(&oldest);
        }
    }

    /// Adds a segment of a sharer to the common ones. Its first is swept with those of the others.
    pub(super) fn join_common(&mut self, number: SegmentNo) {
        let owner = self.segments[number].owner;
        let least = self.common.laps.first().map_or(0, |(laps, _)| *laps);
        let space = &mut self.disks[DiskNo(owner)];
        if !self.common.laps.contains(&(space.laps, DiskNo(owner))) {
            space.laps = space.laps.max(least);
            self.common.laps.insert((space.laps, DiskNo(owner)));
        }
        self.segments[number].common_place = self.common.segments.len() as u32;
        self.common.segments.push(number);
    }

    /// Takes a segment of a sharer out of the common ones.
    pub(super) fn leave_common(&mut self, number: SegmentNo) {
        let place = self.segments[number].common_place;
        self.common.segments.swap_remove(place as usize);
        if let Some(moved) = self.common.segments.get(place as usize) {
            self.segments[*moved].common_place = place;
        }
    }

    /// Leaves a sharer out of the main hand's round if it has no segment left.
    pub(super) fn leave_round_if_empty(&mut self, disk: DiskNo) {
        if self.disks[disk].segments.is_empty() {
            self.leave_round(disk);
        }
    }

    fn leave_round(&mut self, disk: DiskNo) {
        self.common.laps.remove(&(self.disks[disk].laps, disk));
    }

    /// Evicts at least `wanted` blocks of the sharers, wherever they are. Stops early like
    /// [`Store::evict_blocks`].
    pub fn evict_common(&mut self, wanted: u64) {
        let (mut evicted, mut fruitless) = (0, 0);
        while evicted < wanted && fruitless <= 5 * self.common.segments.len() {
            let Some((_, disk)) = self.turns().first().copied() else { return };
            let more = self.move_hand(disk);
            fruitless = if more > 0 { 0 } else { fruitless + 1 };
            evicted += more;
        }
    }

    /// Evicts `wanted` blocks of one sharer, as long as it is its turn or soon will be. Reserved blocks stay.
    pub fn evict_in_turn(&mut self, disk: DiskNo, wanted: u64) {
        let space = &self.disks[disk];
        if space.segments.is_empty() || space.is_reserved() {
            return;
        }
        let (mut evicted, mut fruitless) = (0, 0);
        while evicted < wanted && fruitless <= 5 * self.disks[disk].segments.len() {
            let is_soon = if self.is_probation_turn() {
                let front = self.disks[disk].filled.front();
                let oldest = self.common.oldest.first().map_or(0, |(seq, _)| *seq);
                let newest = self.newest_filled.max(oldest);
                front.is_some_and(|(_, seq)| seq - oldest <= (newest - oldest) / 4 * EARLY)
            } else {
                let least = self.common.laps.first().map_or(0, |(laps, _)| *laps);
                self.disks[disk].laps - least <= LAP / 4 * EARLY
            };
            if !is_soon {
                return;
            }
            let more = self.move_hand(disk);
            fruitless = if more > 0 { 0 } else { fruitless + 1 };
            evicted += more;
        }
    }

    fn is_probation_turn(&self) -> bool {
        let common = &self.common;
        is_probation_due(common.probation, common.live) && !common.oldest.is_empty()
    }

    /// Returns the sharers in the order in which the hand whose turn it is visits them.
    fn turns(&self) -> &BTreeSet<(u64, DiskNo)> {
        if self.is_probation_turn() { &self.common.oldest } else { &self.common.laps }
    }

    /// Moves the hand whose turn it is over one batch or segment of a sharer; returns the number of evicted
    /// blocks.
    fn move_hand(&mut self, disk: DiskNo) -> u64 {
        let kept = self.disks[disk].is_reserved();
        let evicted = if self.is_probation_turn() {
            self.probation_hand(disk, kept).unwrap_or(0)
        } else {
            let evicted = if kept { 0 } else { self.main_hand(disk) };
            self.count_lap(disk);
            evicted
        };
        evicted.into()
    }

    /// Notes that the main hand has swept one of a sharer's segments.
    fn count_lap(&mut self, disk: DiskNo) {
        let space = &mut self.disks[disk];
        self.common.laps.remove(&(space.laps, disk));
        space.laps += LAP / space.segments.len().max(1) as u64;
        self.common.laps.insert((space.laps, disk));
    }

    /// Returns the segment that a sharer other than the requesting disk needs least: among the disks with the
    /// most spare slots, at least `least_slots`, the segment with the fewest live blocks; one that a failed
    /// device holds is the last choice. The last segment of a disk is given up only if it is empty and no
    /// blocks of the disk wait for it.
    pub fn spare_segment(
        &mut self,
        asker: DiskNo,
        least_slots: u64,
        other_than: Option<DeviceNo>,
        waits: impl Fn(DiskNo) -> bool,
    ) -> Option<SegmentNo> {
        let giving: Vec<DiskNo> = self.reclaimed_from().collect();
        let spare = |(disk, space): (DiskNo, &DiskSpace)| {
            let gives =
                space.shares && !space.segments.is_empty() && disk != asker && !giving.contains(&disk);
            let gives = gives && (space.segments.len() > 1 || space.live == 0 && !waits(disk));
            gives.then(|| (space.spare_slots(), disk)).filter(|(slots, _)| *slots >= least_slots)
        };
        let mut givers: Vec<(u64, DiskNo)> = self.disks.numbered().filter_map(spare).collect();
        givers.sort_by_key(|(slots, disk)| (Reverse(*slots), *disk));
        givers.truncate(GIVERS_TRIED);
        let ease = |number: &SegmentNo| (self.is_held(*number), self.segments[*number].live);
        let emptiest = |(slots, disk): &(u64, DiskNo)| {
            let fits = |number: &SegmentNo| {
                let s = &self.segments[*number];
                let slots_gone = u64::from(s.free) + u64::from(s.pending);
                let keeps = s.live == 0 || self.keeps_reserved_without(*number);
                let spares = least_slots == 1 || slots_gone <= *slots && s.live <= MOST_GONE;
                keeps && spares && self.could_go(*number, other_than)
            };
            self.likely_empty(*disk).filter(fits).min_by_key(ease)
        };
        let found = givers.iter().filter_map(emptiest).min_by_key(ease);
        for (_, disk) in givers {
            let space = &mut self.disks[disk];
            space.giving_hand = (space.giving_hand + LOOKED_AT) % space.segments.len();
        }
        found
    }

    /// Returns a segment of another sharer whose blocks are, on average, ahead of the requesting disk's
    /// oldest batch in the queue of the probation hand. Protected blocks and those that were hit count as the
    /// newest.
    pub fn overdue_segment(&self, asker: DiskNo, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        let (oldest, _) = *self.common.oldest.first().filter(|_| self.is_probation_turn())?;
        let newest = self.newest_filled.max(oldest);
        let own = self.disks[asker].filled.front().map_or(newest, |(_, seq)| *seq);
        let margin = (newest - oldest) / MARGIN;
        let giving: Vec<DiskNo> = self.reclaimed_from().collect();
        let gives =
            |disk: &DiskNo| *disk != asker && self.disks[*disk].segments.len() > 1 && !giving.contains(disk);
        let before = self.common.oldest.iter().take_while(|(seq, _)| *seq + margin < own);
        let segments = before.map(|(_, disk)| *disk).filter(gives).flat_map(|disk| {
            // Segments that the disk has given up since are still in its queue.
            let batches = self.disks[disk].filled.iter().take(BATCHES_LOOKED_AT);
            batches.map(|(segment, _)| *segment).filter(move |number| self.segments[*number].owner == disk.0)
        });
        let mut found: Option<(u64, SegmentNo)> = None;
        let mut last = None;
        let distinct = segments.filter(|number| last.replace(*number) != Some(*number));
        for number in distinct.take(OVERDUE_TRIED) {
            if !self.could_go(number, other_than) || !self.keeps_reserved_without(number) {
                continue;
            }
            let mean = self.mean_filled(number, oldest, newest);
            if mean + margin < own && found.is_none_or(|(least, _)| mean < least) {
                found = Some((mean, number));
            }
        }
        found.map(|(_, number)| number)
    }

    /// Whether the segment's owner would still have its reservation without the segment.
    fn keeps_reserved_without(&self, number: SegmentNo) -> bool {
        let segment = &self.segments[number];
        let owner = &self.disks[DiskNo(segment.owner)];
        owner.live - u64::from(segment.live) >= owner.reserved_blocks
    }

    /// Returns the mean number of the commits that filled a segment's slots: a free one counts as the oldest, one
    /// whose block is protected or was hit as the newest.
    fn mean_filled(&self, number: SegmentNo, oldest: u64, newest: u64) -> u64 {
        let filled = |slot: SlotNo| match self.live(slot) {
            None => oldest,
            Some(slot) if slot.protected() || slot.hits() > 0 => newest,
            Some(slot) => slot.seq().clamp(oldest, newest),
        };
        self.slots_of(number).map(|slot| filled(slot) - oldest).sum::<u64>() / u64::from(SLOTS_PER_SEGMENT)
            + oldest
    }

    /// Returns the disk's segments with the most free slots, and some that are examined in turn.
    fn likely_empty(&self, disk: DiskNo) -> impl Iterator<Item = SegmentNo> + '_ {
        let space = &self.disks[disk];
        let count = space.segments.len();
        let in_turn =
            (1..=LOOKED_AT.min(count)).map(move |step| space.segments[(space.giving_hand + step) % count]);
        space.free_lists.most_free(&self.segments).take(LOOKED_AT).chain(in_turn)
    }

    /// Recounts the blocks of the sharers. For tests; slow.
    pub(super) fn check_common(&self) {
        let sharers = || self.disks.iter().filter(|disk| disk.shares);
        let sum = |count: fn(&DiskSpace) -> u64| sharers().map(count).sum::<u64>();
        let common = &self.common;
        assert_eq!(common.live, sum(|disk| disk.live));
        assert_eq!(common.probation, sum(|disk| disk.probation));
        assert_eq!(common.dirty, sum(|disk| disk.dirty));
        assert_eq!(common.free, sum(|disk| disk.free));
        assert_eq!(common.pending, sum(|disk| disk.pending));
        assert_eq!(common.segments.len(), sharers().map(|disk| disk.segments.len()).sum());
        for (place, number) in common.segments.iter().enumerate() {
            let segment = &self.segments[*number];
            assert_eq!(segment.common_place as usize, place);
            assert!(self.disks[DiskNo(segment.owner)].shares);
        }
        let fronts = self.disks.numbered().filter(|(_, disk)| disk.shares);
        let fronts = fronts.filter_map(|(number, disk)| Some((disk.filled.front()?.1, number)));
        assert_eq!(common.oldest, fronts.collect());
        let owners = self.disks.numbered().filter(|(_, d)| d.shares && !d.segments.is_empty());
        assert_eq!(common.laps, owners.map(|(number, disk)| (disk.laps, number)).collect());
    }
}

impl DiskSpace {
    /// Whether none of its blocks may be evicted for others.
    fn is_reserved(&self) -> bool {
        self.live <= self.reserved_blocks
    }

    /// Returns how many slots are free, or about to be, beyond what the next batches need of a disk in use.
    fn spare_slots(&self) -> u64 {
        let kept = self.segments.len() as u64 * u64::from(SLOTS_PER_SEGMENT) / KEPT_FREE + KEPT_FOR_A_BATCH;
        (self.free + self.pending).saturating_sub(if self.live > 0 { kept } else { 0 })
    }
}
