//! Dirty slots in the order of their commits, for disks whose blocks are cleaned in the order of the guest's flushes.
//!
//! Invariant: the order of a disk that has one has exactly its live dirty slots, mirrored copies included, each with
//! the sequence number of its commit.

use std::collections::BTreeSet;
use std::ops::Bound;

use haversack_model::DiskNo;

use super::Store;
use super::segment::SegmentNo;
use super::slot::{Live, SlotNo};

/// Sequence number of the commit that wrote a slot, and the slot.
pub type DirtyOrder = BTreeSet<(u64, SlotNo)>;

impl Store {
    /// Starts or ends to keep the order of a disk's dirty slots.
    pub fn keep_order(&mut self, disk: DiskNo, keep: bool) {
        self.disks[disk].dirty_order = keep.then(|| {
            let segments = self.disks[disk].dirty_segments.iter();
            segments.flat_map(|(_, segment)| self.dirty_slots_of(*segment)).collect()
        });
    }

    /// Returns the first dirty slot in order or, after one, the next. There is none if no order is kept.
    pub fn next_in_order(&self, disk: DiskNo, after: Option<(u64, SlotNo)>) -> Option<(u64, SlotNo, Live)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let order = self.disks[disk].dirty_order.as_ref()?;
        let (seq, number) = *order.range((start, Bound::Unbounded)).next()?;
        Some((seq, number, self.expect_live(number)))
    }

    /// Puts a slot that became dirty into the order.
    pub(super) fn put_in_order(&mut self, number: SlotNo) {
        let (disk, seq) = (self.owner_of(number), self.slot(number).seq());
        if let Some(order) = &mut self.disks[disk].dirty_order {
            order.insert((seq, number));
        }
    }

    /// Takes a slot that is not dirty any more, or not live, out of the order.
    pub(super) fn take_out_of_order(&mut self, number: SlotNo) {
        let (disk, seq) = (self.owner_of(number), self.slot(number).seq());
        if let Some(order) = &mut self.disks[disk].dirty_order {
            order.remove(&(seq, number));
        }
    }

    fn dirty_slots_of(&self, segment: SegmentNo) -> impl Iterator<Item = (u64, SlotNo)> + '_ {
        self.slots_of(segment).filter_map(|number| {
            let slot = self.live(number).filter(|slot| slot.dirty())?;
            Some((slot.seq(), number))
        })
    }

    /// Compares the order with the slots of the disk's dirty segments, for tests.
    pub(super) fn check_order(&self, disk: DiskNo, dirty: &[SegmentNo]) {
        if let Some(order) = &self.disks[disk].dirty_order {
            let slots: DirtyOrder = dirty.iter().flat_map(|segment| self.dirty_slots_of(*segment)).collect();
            assert_eq!(*order, slots);
        }
    }
}
