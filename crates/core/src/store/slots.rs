//! The table of all slots. A slot whose bytes are zero is blank, and memory that was never written to is zero and takes
//! no space, so the table of a large pool grows as the pool fills.

use super::segment::SegmentNo;
use super::slot::{Slot, SlotNo};
use crate::format::geometry::SLOTS_PER_SEGMENT;

/// All slots, 253 for each segment.
#[derive(Default)]
pub struct Slots(Vec<[u64; 2]>);

impl Slots {
    /// Returns the blank slots of this many segments.
    pub fn new(segments: usize) -> Slots {
        Slots(vec![[0; 2]; segments * SLOTS_PER_SEGMENT as usize])
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a slot.
    #[inline]
    pub fn get(&self, number: SlotNo) -> Slot {
        Slot::from_words(self.0[number.0 as usize])
    }

    /// Sets a slot.
    #[inline]
    pub fn set(&mut self, number: SlotNo, slot: Slot) {
        self.0[number.0 as usize] = slot.words();
    }

    /// Copies the slots of a segment from another table.
    pub fn copy_segment(&mut self, from: &Slots, segment: SegmentNo) {
        let first = (segment.0 * SLOTS_PER_SEGMENT) as usize;
        let slots = first..first + SLOTS_PER_SEGMENT as usize;
        self.0[slots.clone()].copy_from_slice(&from.0[slots]);
    }

    /// Returns all slots, as the table has them.
    pub fn all(&self) -> &[[u64; 2]] {
        &self.0
    }

    /// Returns all slots, to change.
    pub fn all_mut(&mut self) -> &mut [[u64; 2]] {
        &mut self.0
    }

    /// Returns the bytes of memory that the table takes once every slot was used.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }
}
