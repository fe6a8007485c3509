//! Records when blocks became dirty. A disk's segments with dirty blocks are ordered by their longest dirty
//! block, so that the cleaner finds it without searching all segments of a large cache.
//!
//! Invariants
//! - A segment with dirty slots has the time of each of them; `dirty_since_us` is the earliest.
//! - The set of a disk has exactly its segments with dirty slots, each with its `dirty_since_us`.

use std::collections::BTreeSet;
use std::ops::Bound;

use haversack_model::{DiskNo, Micros};

use super::Store;
use super::segment::SegmentNo;
use super::slot::SlotNo;
use crate::format::geometry::SLOTS_PER_SEGMENT;

/// When the longest dirty block of a segment became dirty, and the segment.
pub type DirtySegments = BTreeSet<(Micros, SegmentNo)>;

/// When the dirty slots of a segment became dirty.
pub struct DirtyTimes {
    /// By slot. Values of slots that are not dirty have no meaning, but superseded slots keep their time:
    /// they are dirty again if the batch with the newer version fails.
    since_us: [Micros; SLOTS_PER_SEGMENT as usize],
    /// Dirty slots that have been so since the segment's `dirty_since_us`.
    longest: u8,
}

impl DirtyTimes {
    /// The times of a segment with this many dirty slots, all dirty since time 0.
    pub(super) fn since_the_start(dirty: u8) -> Box<DirtyTimes> {
        Box::new(DirtyTimes { since_us: [0; SLOTS_PER_SEGMENT as usize], longest: dirty })
    }
}

impl Store {
    /// Returns the disk's longest dirty segment or, after one that is still dirty, the next.
    pub fn longest_dirty(&self, disk: DiskNo, after: Option<SegmentNo>) -> Option<SegmentNo> {
        let set = &self.disks[disk].dirty_segments;
        let start = match after {
            Some(after) => Bound::Excluded((self.segments[after].dirty_since_us, after)),
            None => Bound::Unbounded,
        };
        set.range((start, Bound::Unbounded)).next().map(|(_, number)| *number)
    }

    /// Returns the disk's segments with dirty blocks.
    pub fn dirty_segments(&self, disk: DiskNo) -> impl Iterator<Item = SegmentNo> + '_ {
        self.disks[disk].dirty_segments.iter().map(|(_, number)| *number)
    }

    /// Returns the time at which the disk's longest dirty block on flash became dirty.
    pub fn dirty_since_us(&self, disk: DiskNo) -> Option<Micros> {
        self.disks[disk].dirty_segments.first().map(|(since_us, _)| *since_us)
    }

    /// Returns the time at which a slot became dirty; for a superseded slot, the time that it had then.
    pub fn slot_dirty_since_us(&self, number: SlotNo) -> Micros {
        let times = self.dirty_times[number.segment()].as_ref().expect("a dirty slot has a time");
        times.since_us[number.in_segment()]
    }

    /// Records the time at which a slot became dirty. Its segment does not count it as dirty yet.
    pub(super) fn note_dirty(&mut self, number: SlotNo, since_us: Micros) {
        self.put_in_order(number);
        let at = number.segment();
        let segment = &mut self.segments[at];
        let times = self.dirty_times[at].get_or_insert_with(|| {
            Box::new(DirtyTimes { since_us: [0; SLOTS_PER_SEGMENT as usize], longest: 0 })
        });
        times.since_us[number.in_segment()] = since_us;
        if segment.dirty == 0 {
            (segment.dirty_since_us, times.longest) = (since_us, 1);
        } else if since_us < segment.dirty_since_us {
            times.longest = 1;
            self.reorder(at, since_us);
        } else if since_us == segment.dirty_since_us {
            times.longest += 1;
        }
    }

    /// Notes that this many more slots of a segment have been dirty since time 0. The segment does not count them yet.
    pub(super) fn note_dirty_since_the_start(&mut self, at: SegmentNo, dirty: u8) {
        let segment = &mut self.segments[at];
        debug_assert!(segment.dirty == 0 || segment.dirty_since_us == 0);
        match &mut self.dirty_times[at] {
            Some(times) => times.longest += dirty,
            none => *none = (dirty > 0).then(|| DirtyTimes::since_the_start(dirty)),
        }
        if segment.dirty == 0 {
            segment.dirty_since_us = 0;
        }
    }

    /// Notes that a slot is not dirty any more. Its segment does not count it as dirty any more.
    pub(super) fn note_not_dirty(&mut self, number: SlotNo) {
        self.take_out_of_order(number);
        let at = number.segment();
        let segment = &self.segments[at];
        if segment.dirty == 0 {
            return self.drop_dirty_times(at);
        }
        let since_us = segment.dirty_since_us;
        let times = self.dirty_times[at].as_mut().expect("a dirty slot has a time");
        if times.since_us[number.in_segment()] != since_us {
            return;
        }
        times.longest -= 1;
        if times.longest > 0 {
            return;
        }
        let (earliest_us, longest) = self.earliest_dirty(at);
        self.dirty_times[at].as_mut().expect("another slot is dirty").longest = longest;
        self.reorder(at, earliest_us);
    }

    /// Frees the times of a segment when no slot can need them any more.
    pub(super) fn drop_dirty_times(&mut self, at: SegmentNo) {
        if (self.segments[at].dirty, self.segments[at].superseded) == (0, 0) {
            self.dirty_times[at] = None;
        }
    }

    /// Returns the earliest time of a segment's dirty slots, and how many have it.
    pub(super) fn earliest_dirty(&self, at: SegmentNo) -> (Micros, u8) {
        let dirty = self.slots_of(at).filter(|number| self.live(*number).is_some_and(|slot| slot.dirty()));
        dirty.map(|number| self.slot_dirty_since_us(number)).fold(
            (Micros::MAX, 0),
            |(earliest, count), at| match at.cmp(&earliest) {
                std::cmp::Ordering::Less => (at, 1),
                std::cmp::Ordering::Equal => (earliest, count + 1),
                std::cmp::Ordering::Greater => (earliest, count),
            },
        )
    }

    /// Changes the position of a segment with dirty slots in the order.
    fn reorder(&mut self, at: SegmentNo, since_us: Micros) {
        let segment = &mut self.segments[at];
        let set = &mut self.disks[DiskNo(segment.owner)].dirty_segments;
        set.remove(&(segment.dirty_since_us, at));
        set.insert((since_us, at));
        segment.dirty_since_us = since_us;
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{BlockNo, DeviceNo, Uuid};

    use super::*;
    use crate::store::slot::Live;

    /// A store in which blocks 0, 1, ... of one disk have been dirty since these times, in slots of one segment.
    fn dirty_since(times: &[Micros]) -> (Store, DiskNo, Vec<SlotNo>) {
        let (mut store, disk) = (Store::new(), DiskNo(0));
        store.add_disk(disk);
        store.add_device(DeviceNo(0), Uuid([1; 16]), 2, 2);
        store.collect_free_segments();
        store.take_this(SegmentNo(0), disk);
        let slots: Vec<SlotNo> = store.slots_of(SegmentNo(0)).take(times.len()).collect();
        for (block, (number, since_us)) in slots.iter().zip(times).enumerate() {
            store.install(*number, Live::new(BlockNo(block as u64), 255, 0, 1).with_dirty(true), *since_us);
        }
        (store, disk, slots)
    }

    #[test]
    fn a_disk_has_been_dirty_since_its_oldest_block_that_still_is() {
        let (mut store, disk, slots) = dirty_since(&[20, 5, 9, 5]);
        for (cleaned, since_us) in [(1, Some(5)), (3, Some(9)), (0, Some(9)), (2, None)] {
            store.cleaned(slots[cleaned]);
            assert_eq!(store.dirty_since_us(disk), since_us);
        }
        store.check();
    }

    #[test]
    fn a_block_whose_newer_version_failed_has_been_dirty_as_long_as_before() {
        let (mut store, disk, slots) = dirty_since(&[5, 9]);
        store.supersede(slots[0], 2);
        assert_eq!(store.dirty_since_us(disk), Some(9));
        store.supersede(slots[1], 2);
        assert_eq!(store.dirty_since_us(disk), None);
        store.revive(2);
        assert_eq!(store.dirty_since_us(disk), Some(5));
        store.check();
    }
}
