//! Segments that are being emptied for another owner.
//!
//! Invariant: a segment in the list was given up. It leaves the list when it is free.

use haversack_model::DiskNo;

use super::Store;
use super::segment::{SegmentNo, SegmentState};
use super::slot::{Slot, SlotNo, Status};

/// See the module.
#[derive(Default)]
pub struct Reclaim {
    /// The segments, and the disk that asked for each.
    segments: Vec<(SegmentNo, Option<DiskNo>)>,
}

/// A segment that is being reclaimed.
pub enum Reclaiming {
    /// Its pages still list something.
    Listed(SegmentNo),
    /// It became free, and is for this disk.
    Free(SegmentNo, Option<DiskNo>),
}

impl Store {
    /// Gives a segment up for a disk that asked for one, or for anyone.
    pub fn reclaim(&mut self, number: SegmentNo, asker: Option<DiskNo>) {
        self.give_up(number);
        self.reclaim.segments.push((number, asker));
    }

    /// Continues to empty a segment that was given up for another purpose.
    pub fn keep_reclaiming(&mut self, number: SegmentNo) {
        if !self.reclaim.segments.iter().any(|r| r.0 == number) {
            self.reclaim.segments.push((number, None));
        }
    }

    /// Returns the number of segments that are being reclaimed.
    pub fn reclaiming(&self) -> usize {
        self.reclaim.segments.len()
    }

    /// Whether a segment is being reclaimed that can become free now.
    pub fn is_reclaiming(&self) -> bool {
        self.reclaim.segments.iter().any(|r| !self.is_held(r.0))
    }

    /// Whether a failed device holds a segment: its pages list an older version of a block in the segment. The
    /// segment's page can become empty only when the device is gone.
    pub(super) fn is_held(&self, segment: SegmentNo) -> bool {
        if self.devices.iter().flatten().all(|device| device.alive) {
            return false;
        }
        let disk = DiskNo(self.segments[segment].owner);
        let holds = |number: SlotNo, slot: Slot, entry: Slot| {
            self.segments[self.segment_of(number)].state == SegmentState::Dead
                && Self::keeps_listed(slot, entry)
        };
        self.slots_of(segment).map(|number| self.slot(number)).any(|slot| {
            let mut held = false;
            if slot.status() != Status::Blank {
                self.entries(disk, slot.block(), |number, entry| held |= holds(number, slot, entry));
            }
            held
        })
    }

    /// Whether a segment is being reclaimed for a disk that can become free now.
    pub fn reclaims_for(&self, disk: DiskNo) -> bool {
        self.reclaim.segments.iter().any(|r| r.1 == Some(disk) && !self.is_held(r.0))
    }

    /// Returns the disks whose segments are being reclaimed.
    pub(super) fn reclaimed_from(&self) -> impl Iterator<Item = DiskNo> + '_ {
        self.reclaim.segments.iter().map(|r| DiskNo(self.segments[r.0].owner))
    }

    /// Returns one of the segments that are being reclaimed. One that is free leaves the list, and the last
    /// one takes its place.
    pub fn look_at_reclaimed(&mut self, index: usize) -> Reclaiming {
        let (number, asker) = self.reclaim.segments[index];
        if self.segments[number].state == SegmentState::Leaving {
            return Reclaiming::Listed(number);
        }
        self.reclaim.segments.swap_remove(index);
        Reclaiming::Free(number, asker)
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{BlockNo, DeviceNo, Uuid};

    use super::*;
    use crate::store::slot::Live;

    #[test]
    fn a_failed_device_holds_the_segments_with_newer_versions_of_what_it_lists() {
        let (mut store, disk) = (Store::new(), DiskNo(0));
        store.add_disk(disk);
        for device in 0..2 {
            store.add_device(DeviceNo(device), Uuid([device; 16]), 2, 2);
        }
        store.collect_free_segments();
        for segment in 0..4 {
            store.take_this(SegmentNo(segment), disk);
        }
        // Block 7 is on both devices, block 8 on the second alone.
        for (segment, block, seq) in [(0, 7, 1), (2, 7, 2), (3, 8, 3)] {
            let number = store.slots_of(SegmentNo(segment)).next().expect("a segment has slots");
            if let Some((older, _)) = store.lookup(disk, BlockNo(block)) {
                store.supersede(older, seq);
            }
            store.install(number, Live::new(BlockNo(block), 255, 0, seq), 0);
        }
        store.flushed(3);
        let held = |store: &Store| [2, 3].map(|segment| store.is_held(SegmentNo(segment)));
        assert_eq!(held(&store), [false, false]);
        store.lose_device(DeviceNo(0), |_, _| ());
        assert_eq!(held(&store), [true, false]);
        assert_eq!(store.coldest_segment(disk, None), Some(SegmentNo(3)));
        store.reclaim(SegmentNo(2), Some(disk));
        assert!(!store.is_reclaiming() && !store.reclaims_for(disk));
        store.forget_segment(SegmentNo(0));
        assert_eq!(held(&store), [false, false]);
        assert!(store.is_reclaiming() && store.reclaims_for(disk));
    }
}
