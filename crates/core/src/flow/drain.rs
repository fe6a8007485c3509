//! Removal of a device in use: its segments are emptied and freed a few at a time, so that the device leaves
//! with nothing on it.
//!
//! A segment's dirty blocks are staged again, to be committed on other devices; a damaged block is staged
//! with its valid sectors and the information that the others are lost. Then the segment is given up, as if
//! another disk needed it: clean blocks are evicted, and pages are written until none lists anything that was
//! in it.
//!
//! Invariants
//! - No new blocks go to the device, so a segment that is free stays free: one pass over the device is
//!   enough.
//! - Each call processes a bounded number of blocks, however large the device is.

use haversack_model::{DeviceNo, DiskNo};

use crate::core::{Call, Core};
use crate::memory::Memory;
use crate::store::segment::{SegmentNo, SegmentState};
use crate::store::slot::SlotNo;

/// After this many restages were requested, no further segment is searched for dirty blocks in the same call.
/// The last segment may exceed the number.
const BLOCKS_AT_A_TIME: u32 = 256;

impl Core {
    fn begin_segments(&mut self, device: DeviceNo) {
        self.devices.drain.begin_segments(&self.store, device);
    }
}

impl<M: Memory> Call<'_, M> {
    /// Empties the next part of a device. Returns true when nothing is left on it.
    pub(crate) fn drain(&mut self, device: DeviceNo) -> bool {
        if self.restages_all_disks() {
            return false;
        }
        let mut asked = 0;
        loop {
            self.begin_segments(device);
            let mut segments = self.devices.drain.take_segments();
            let before = segments.len();
            segments.retain(|segment| !self.empty_segment(*segment, &mut asked));
            let freed = before - segments.len();
            self.devices.drain.put_segments(segments);
            // If no segment was freed, an I/O is in flight whose completion calls this function again.
            if freed == 0 {
                break;
            }
        }
        self.restages_all_disks();
        self.devices.drain.is_done()
    }

    /// Advances a segment. Returns true when it is free.
    fn empty_segment(&mut self, segment: SegmentNo, asked: &mut u32) -> bool {
        if self.state_of(segment) == SegmentState::Owned && *asked < BLOCKS_AT_A_TIME {
            *asked += self.move_dirty(segment);
            let s = &self.store.segments[segment];
            let moved = !self.store.slots_of(segment).any(|number| self.has_dirty_copy(number));
            if moved && s.superseded == 0 && !s.page_writing {
                self.store.give_up(segment);
            }
        }
        let s = &self.store.segments[segment];
        let newest_seq = s.page_seq.max(self.durability.completed());
        if s.state == SegmentState::Leaving && s.page_ready(self.durability.flushed()) {
            self.shrink_page(segment);
        }
        self.durability.want(newest_seq);
        self.state_of(segment) == SegmentState::Free
    }

    fn state_of(&self, segment: SegmentNo) -> SegmentState {
        self.store.segments[segment].state
    }

    pub(super) fn has_dirty_copy(&self, number: SlotNo) -> bool {
        self.store.live(number).is_some_and(|slot| slot.dirty() || slot.mirror())
    }

    /// Requests restages of a segment's dirty blocks; returns how many.
    pub(super) fn move_dirty(&mut self, segment: SegmentNo) -> u32 {
        let disk = DiskNo(self.store.segments[segment].owner);
        let mut asked = 0;
        for number in self.store.slots_of(segment) {
            if !self.has_dirty_copy(number) {
                continue;
            }
            let block = self.store.slot(number).block();
            let versions = self.resolve(disk, block);
            let Some((primary, _)) = versions.flash else { continue };
            if versions.staged.is_none() {
                self.ask_restage(disk, primary);
                asked += 1;
            }
        }
        asked
    }

    /// Keeps the device in use. Segments that are already being given up are still given up.
    pub(crate) fn stop_draining(&mut self, device: DeviceNo) {
        self.store.use_device(device);
        let begun = std::mem::take(&mut self.devices.drain).take_segments();
        let leaves = |segment: &SegmentNo| self.store.segments[*segment].state == SegmentState::Leaving;
        let leaving: Vec<SegmentNo> = begun.into_iter().filter(leaves).collect();
        for segment in leaving {
            self.store.keep_reclaiming(segment);
        }
    }
}
