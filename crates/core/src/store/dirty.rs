//! A disk's segments with dirty blocks, ordered by when their oldest dirty block became dirty. So the cleaner
//! finds the longest dirty without searching all segments of a large cache.
//!
//! Invariant: the set has exactly the disk's segments with dirty blocks, each with its `dirty_since_us`.

use std::collections::BTreeSet;
use std::ops::Bound;

use haversack_model::{DiskNo, Micros};

use super::Store;
use super::segment::SegmentNo;

/// When the oldest dirty block of a segment became dirty, and the segment.
pub type DirtySegments = BTreeSet<(Micros, SegmentNo)>;

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

    /// Returns when the disk's longest dirty block on flash became dirty, as far as is known.
    pub fn dirty_since_us(&self, disk: DiskNo) -> Option<Micros> {
        self.disks[disk].dirty_segments.first().map(|(since_us, _)| *since_us)
    }

    /// Notes that a segment has, or is about to get, a block that has been dirty since this time.
    pub(super) fn note_dirty_since(&mut self, number: SegmentNo, since_us: Micros) {
        let segment = &mut self.segments[number];
        if segment.dirty == 0 {
            segment.dirty_since_us = since_us;
        } else if segment.dirty_since_us > since_us {
            let set = &mut self.disks[DiskNo(segment.owner)].dirty_segments;
            set.remove(&(segment.dirty_since_us, number));
            set.insert((since_us, number));
            segment.dirty_since_us = since_us;
        }
    }
}
