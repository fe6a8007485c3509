//! Blocks with too many versions. A block that is rewritten often leaves obsolete versions behind, in slots
//! that become free only with the next page of their segment. In a cache with free space no disk needs these
//! slots, but every search for the block must skip all of its versions.
//!
//! Invariant: the oldest version of a block may always leave its page. So there is always a page that can
//! usefully be written.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use super::segment::{SegmentNo, SegmentState};
use super::{SlotNo, Store};

/// Versions that a block may have before a page is written to drop the oldest.
const MOST_VERSIONS: u32 = 4;
/// A page is written only for this purpose if it drops at least this many entries.
const WORTH_A_PAGE: usize = 16;

impl Store {
    /// Returns a segment on another device than `other_than` with the oldest version of a block that has too
    /// many. Its page may be written now.
    fn oldest_of_crowded(
        &self,
        disk: DiskNo,
        block: BlockNo,
        other_than: Option<DeviceNo>,
        mut wanted: impl FnMut(SlotNo) -> bool,
    ) -> Option<SegmentNo> {
        let (mut versions, mut oldest) = (0, u64::MAX);
        self.entries(disk, block, |_, entry| {
            versions += u32::from(!entry.mirror());
            oldest = oldest.min(entry.seq());
        });
        if versions <= MOST_VERSIONS {
            return None;
        }
        let mut found = None;
        self.entries(disk, block, |number, entry| {
            let segment = &self.segments[self.segment_of(number)];
            let elsewhere = Some(DeviceNo(segment.device)) != other_than;
            if entry.seq() == oldest && elsewhere && segment.page_ready(self.flushed_seq) && wanted(number) {
                found = Some(self.segment_of(number));
            }
        });
        found
    }

    /// Returns the segment with the oldest version of a block with too many whose page was not written for
    /// longest, if writing that page now drops enough entries.
    pub fn crowded(&self, disk: DiskNo, blocks: impl Iterator<Item = BlockNo>) -> Option<SegmentNo> {
        let segment = blocks
            .filter_map(|block| self.oldest_of_crowded(disk, block, None, |number| self.shrinks(number)))
            .min_by_key(|segment| self.segments[*segment].page_seq)?;
        let shed = self.slots_of(segment).filter(|number| self.shrinks(*number)).count();
        (shed >= WORTH_A_PAGE).then_some(segment)
    }

    /// Returns a segment with space for `room` blocks whose page, which must be written with them anyway,
    /// drops the oldest version of a block that has too many.
    pub fn crowded_with_room(
        &self,
        disk: DiskNo,
        block: BlockNo,
        room: u64,
        other_than: Option<DeviceNo>,
    ) -> Option<SegmentNo> {
        self.oldest_of_crowded(disk, block, other_than, |number| {
            let segment = &self.segments[self.segment_of(number)];
            segment.state == SegmentState::Owned
                && self.closed != Some(self.segment_of(number))
                && u64::from(segment.free) >= room
                && self.usable_devices().any(|device| device == DeviceNo(segment.device))
        })
    }
}
