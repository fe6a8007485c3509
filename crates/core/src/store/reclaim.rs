//! Segments that are being emptied so that someone else can have them.
//!
//! Invariant: a segment in the list was given up. It leaves the list when it is free.

use haversack_model::DiskNo;

use super::Store;
use super::segment::{SegmentNo, SegmentState};

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

    /// Whether a segment is being reclaimed for a disk.
    pub fn reclaims_for(&self, disk: DiskNo) -> bool {
        self.reclaim.segments.iter().any(|r| r.1 == Some(disk))
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
