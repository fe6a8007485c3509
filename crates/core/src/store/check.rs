//! Recounts the store, for tests: all counts, and the order of dirty segments, must match the slots.

use super::Store;
use super::segment::{SegmentNo, SegmentState};
use super::slot::{Status, View};

impl Store {
    /// Recounts everything and compares. For tests; slow.
    ///
    /// # Panics
    /// A count is wrong.
    pub fn check(&self) {
        let mut entries = 0;
        let mut live = vec![(0u64, 0u64, 0u64, 0u64); self.disks.len()];
        for (at, segment) in self.segments.iter().enumerate() {
            let mut seen = (0u8, 0u8, 0u8, 0u8, 0u8);
            for number in self.slots_of(SegmentNo(at as u32)) {
                let slot = self.slot(number);
                match slot.view() {
                    View::Blank => seen.3 += 1,
                    View::Live(slot) => {
                        seen.0 += 1;
                        seen.1 += u8::from(slot.dirty());
                        let disk = &mut live[segment.owner as usize];
                        if slot.mirror() {
                            disk.3 += 1;
                        } else {
                            disk.0 += 1;
                            disk.1 += u64::from(!slot.protected());
                            disk.2 += u64::from(slot.dirty());
                        }
                    }
                    View::Superseded(_) => seen.2 += 1,
                    View::Dead(slot) if slot.reusable() => seen.3 += 1,
                    View::Dead(_) => seen.4 += 1,
                }
                entries += usize::from(slot.status() != Status::Blank);
            }
            let counted = (segment.live, segment.dirty, segment.superseded, segment.free, segment.pending);
            assert!(
                segment.state == SegmentState::Dead || seen == counted,
                "segment {at}: {seen:?} {counted:?}"
            );
            if segment.dirty > 0 {
                assert_eq!(segment.dirty_since_us, self.earliest_dirty(SegmentNo(at as u32)).0);
            }
        }
        assert_eq!(entries, self.index.len());
        for disk in self.disks.numbers() {
            let dirty: Vec<SegmentNo> =
                self.disks[disk].dirty_segments.iter().map(|(_, number)| *number).collect();
            assert!(dirty.is_sorted_by_key(|number| self.segments[*number].dirty_since_us));
            let has = |number: &&SegmentNo| self.segments[**number].dirty > 0;
            assert_eq!(dirty.len(), self.disks[disk].segments.iter().filter(has).count());
            assert!(dirty.iter().all(|number| self.segments[*number].owner == disk.0));
            self.check_order(disk, &dirty);
        }
        for (disk, seen) in self.disks.iter().zip(live) {
            assert_eq!((disk.live, disk.probation, disk.dirty, disk.mirrors), seen);
        }
        for (first, second) in &self.mirrors {
            let copy = |number| self.live(number).map(|slot| (slot.seq(), slot.mask(), slot.poisoned()));
            assert_eq!(copy(*first), copy(*second), "the copies of a block say the same of it");
        }
        self.check_common();
    }
}
