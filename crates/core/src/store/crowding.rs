//! Blocks with too many versions. A block that is written again and again leaves overtaken versions behind, in slots
//! that only the next page of their segment gives back. In a cache with room nobody needs these slots, but every search
//! for the block passes all of its versions.
//!
//! Invariant: the oldest version of a block may always leave. So there is always a page that can be written for it.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use super::segment::{SegmentNo, SegmentState};
use super::{SlotNo, Store};

/// Versions that a block may have before something is done for the oldest to leave.
const MOST_VERSIONS: u32 = 4;
/// A page is written only for that if it sheds so many of its entries.
const WORTH_A_PAGE: usize = 16;

impl Store {
    /// A segment with the oldest version of a crowded block, outside a device. Its page may be written now.
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

    /// Where the oldest versions of crowded blocks are: the segment whose page was not written for longest, if that
    /// page, written now, sheds enough to be worth it.
    pub fn crowded(&self, disk: DiskNo, blocks: impl Iterator<Item = BlockNo>) -> Option<SegmentNo> {
        let segment = blocks
            .filter_map(|block| self.oldest_of_crowded(disk, block, None, |number| self.shrinks(number)))
            .min_by_key(|segment| self.segments[*segment].page_seq)?;
        let shed = self.slots_of(segment).filter(|number| self.shrinks(*number)).count();
        (shed >= WORTH_A_PAGE).then_some(segment)
    }

    /// A segment with room for so many blocks whose page, which has to be written with them, sheds the oldest version
    /// of a crowded block.
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
                && u64::from(segment.free) >= room
                && self.usable_devices().any(|device| device == DeviceNo(segment.device))
        })
    }
}
