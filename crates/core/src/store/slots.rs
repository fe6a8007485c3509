//! The table of all slots, packed in 14 bytes each. Two fields nearly always have the same value in all slots of a
//! segment: the valid sectors, which are all eight, and the high bits of the sequence number, which change every 4
//! billion commits. A slot in which one of them differs has a flag, and its segment has an additional table of these
//! fields.
//!
//! ```text
//! bytes 0..6   bits 0..38 block   38..47 status and flags   47 valid sectors or high bits differ
//! bytes 6..14  the second word of the slot
//! ```
//! A slot whose bytes are all zero is blank. Memory that was never written to is zero and takes no space, so the table
//! of a large pool grows as the pool fills.
//!
//! Invariants
//! - A slot has the flag if and only if one of the two fields differs. A segment has [`Others`] if and only if one of
//!   its slots has the flag.
//! - If more than half of a segment's slots have the same high bits, these are the usual high bits of the segment.

use std::ops::Range;

use super::segment::SegmentNo;
use super::slot::{EVERY_SECTOR, Parts, Slot, SlotNo, Status};
use crate::format::geometry::SLOTS_PER_SEGMENT;

const PER_SEGMENT: usize = SLOTS_PER_SEGMENT as usize;
/// Bytes of a slot.
const SLOT_BYTES: usize = 14;
/// Bytes before the second word.
const HEAD_BYTES: usize = 6;
const HEAD_MASK: u64 = (1 << (8 * HEAD_BYTES)) - 1;
/// The flag that valid sectors or high bits differ.
const DIFFERS: u64 = 1 << 47;

type Packed = [u8; SLOT_BYTES];

/// The fields that differ in some slots of a segment.
#[derive(Clone)]
struct Others {
    /// Slots with the flag.
    flagged: u8,
    /// The valid sectors of each slot with the flag.
    masks: [u8; PER_SEGMENT],
    /// The high bits of all slots with the flag, if they differ in at least one slot.
    highs: Option<Box<Highs>>,
}

/// High bits of the sequence numbers of a segment's slots.
#[derive(Clone)]
struct Highs {
    /// Slots with the flag whose high bits differ from those of the segment.
    differing: u8,
    each: [u16; PER_SEGMENT],
}

/// All slots, 253 for each segment.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Packed>,
    /// By segment: the high bits of the sequence numbers of most of its slots.
    usual_highs: Vec<u16>,
    /// By segment: what is different in some of its slots.
    others: Vec<Option<Box<Others>>>,
    /// Bytes of all [`Others`].
    others_bytes: usize,
}

/// The slots of one segment, to be changed. They are named by their index in it.
pub struct SegmentSlots<'a> {
    slots: &'a mut [Packed],
    usual_high: &'a mut u16,
    others: &'a mut Option<Box<Others>>,
    others_bytes: &'a mut usize,
}

/// The slots of some neighbouring segments, to be filled while others are.
pub struct SlotsPart<'a> {
    /// The number of the first segment.
    first: SegmentNo,
    slots: &'a mut [Packed],
    usual_highs: &'a mut [u16],
    others: &'a mut [Option<Box<Others>>],
    /// By how many bytes [`Others`] have grown.
    pub others_bytes: usize,
}

/// Writes a slot in two steps that overlap, without composing it elsewhere.
#[inline]
fn pack(packed: &mut Packed, head: u64, tail: u64) {
    if let Some(bytes) = packed.first_chunk_mut() {
        *bytes = (head | tail << (8 * HEAD_BYTES)).to_le_bytes();
    }
    if let Some(bytes) = packed.last_chunk_mut() {
        *bytes = tail.to_le_bytes();
    }
}

#[inline]
fn unpack(packed: &Packed) -> (u64, u64) {
    let head = packed.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) & HEAD_MASK;
    (head, packed.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// Returns valid sectors and high bits of a slot with the flag.
fn differing(others: Option<&Others>, at: usize, usual: u16) -> (u8, u16) {
    others.map_or((EVERY_SECTOR, usual), |others| {
        (others.masks[at], others.highs.as_ref().map_or(usual, |highs| highs.each[at]))
    })
}

/// Returns a slot; `differing` returns valid sectors and high bits if it has the flag.
#[inline]
fn slot_of(packed: &Packed, usual: u16, differing: impl FnOnce() -> (u8, u16)) -> Slot {
    let (head, tail) = unpack(packed);
    if head == 0 {
        return Slot::default();
    }
    let (mask, seq_high) = if head & DIFFERS == 0 { (EVERY_SECTOR, usual) } else { differing() };
    Slot::from_parts(Parts { head: head & !DIFFERS, mask, seq_high, tail })
}

impl Others {
    fn bytes(&self) -> usize {
        size_of::<Others>() + self.highs.as_ref().map_or(0, |_| size_of::<Highs>())
    }

    /// Notes the fields of a slot that gets the flag. `usual` are the high bits of the segment.
    fn add(&mut self, at: usize, parts: &Parts, usual: u16) {
        self.flagged += 1;
        self.masks[at] = parts.mask;
        if parts.seq_high != usual && self.highs.is_none() {
            self.highs = Some(Box::new(Highs { differing: 0, each: [usual; PER_SEGMENT] }));
        }
        if let Some(highs) = &mut self.highs {
            highs.differing += u8::from(parts.seq_high != usual);
            highs.each[at] = parts.seq_high;
        }
    }

    /// Forgets a slot that had the flag.
    fn remove(&mut self, at: usize, usual: u16) {
        self.flagged -= 1;
        if let Some(highs) = &mut self.highs {
            highs.differing -= u8::from(highs.each[at] != usual);
            if highs.differing == 0 {
                self.highs = None;
            }
        }
    }
}

impl Slots {
    /// Returns the blank slots of this many segments.
    pub fn new(segments: usize) -> Slots {
        Slots {
            slots: vec![[0; SLOT_BYTES]; segments * PER_SEGMENT],
            usual_highs: vec![0; segments],
            others: vec![None; segments],
            others_bytes: 0,
        }
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns a slot.
    #[inline]
    pub fn get(&self, number: SlotNo) -> Slot {
        let segment = number.segment().0 as usize;
        let usual = self.usual_highs[segment];
        slot_of(&self.slots[number.0 as usize], usual, || {
            differing(self.others[segment].as_deref(), number.in_segment(), usual)
        })
    }

    /// Reads a slot's memory, which may be in two cache lines, to bring it into the processor's cache. The value has no
    /// meaning.
    #[inline]
    pub fn prefetch(&self, number: SlotNo) -> u8 {
        let packed = &self.slots[number.0 as usize];
        packed[0] ^ packed[SLOT_BYTES - 1]
    }

    /// Returns the slots of a segment.
    #[inline]
    pub fn segment(&mut self, segment: SegmentNo) -> SegmentSlots<'_> {
        let at = segment.0 as usize;
        SegmentSlots {
            slots: &mut self.slots[at * PER_SEGMENT..][..PER_SEGMENT],
            usual_high: &mut self.usual_highs[at],
            others: &mut self.others[at],
            others_bytes: &mut self.others_bytes,
        }
    }

    /// Sets a slot.
    #[inline]
    pub fn set(&mut self, number: SlotNo, slot: Slot) {
        self.segment(number.segment()).set(number.in_segment(), slot);
    }

    /// See [`SegmentSlots::fill`].
    #[inline]
    pub fn fill(&mut self, number: SlotNo, slot: Slot) {
        self.segment(number.segment()).fill(number.in_segment(), slot);
    }

    /// See [`SegmentSlots::expect`].
    pub fn expect(&mut self, segment: SegmentNo, slot: &Slot) {
        self.segment(segment).expect(slot);
    }

    /// Returns the slots from a segment on in parts of this many segments. [`Slots::grown`] must be told by how much
    /// the parts have grown.
    pub fn parts(&mut self, first: SegmentNo, segments: usize) -> impl Iterator<Item = SlotsPart<'_>> {
        let at = first.0 as usize;
        let slots = self.slots[at * PER_SEGMENT..].chunks_mut(segments * PER_SEGMENT);
        let highs = self.usual_highs[at..].chunks_mut(segments);
        let others = self.others[at..].chunks_mut(segments);
        let firsts = (first.0..).step_by(segments).map(SegmentNo);
        firsts.zip(slots.zip(highs.zip(others))).map(|(first, (slots, (usual_highs, others)))| SlotsPart {
            first,
            slots,
            usual_highs,
            others,
            others_bytes: 0,
        })
    }

    /// Counts the growth of parts.
    pub fn grown(&mut self, others_bytes: usize) {
        self.others_bytes += others_bytes;
    }

    /// Copies the slots of a segment, which are blank so far, from another table.
    pub fn copy_segment(&mut self, from: &Slots, segment: SegmentNo) {
        let at = segment.0 as usize;
        let slots = at * PER_SEGMENT..(at + 1) * PER_SEGMENT;
        self.slots[slots.clone()].copy_from_slice(&from.slots[slots]);
        self.usual_highs[at] = from.usual_highs[at];
        self.others[at].clone_from(&from.others[at]);
        self.others_bytes += self.others[at].as_ref().map_or(0, |others| others.bytes());
    }

    /// Returns the addresses of the slots of segments.
    pub fn addresses(&self, first: SegmentNo, segments: u32) -> Range<usize> {
        let slots = &self.slots[first.0 as usize * PER_SEGMENT..][..segments as usize * PER_SEGMENT];
        let range = slots.as_ptr_range();
        range.start.addr()..range.end.addr()
    }

    /// Returns the bytes of memory that the table takes once every slot was used. What differs in slots is counted as
    /// it is now.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.slots[..])
            + size_of_val(&self.usual_highs[..])
            + size_of_val(&self.others[..])
            + self.others_bytes
    }
}

impl SlotsPart<'_> {
    /// Returns the slots of one of the segments.
    pub fn segment(&mut self, segment: SegmentNo) -> SegmentSlots<'_> {
        let at = (segment.0 - self.first.0) as usize;
        SegmentSlots {
            slots: &mut self.slots[at * PER_SEGMENT..][..PER_SEGMENT],
            usual_high: &mut self.usual_highs[at],
            others: &mut self.others[at],
            others_bytes: &mut self.others_bytes,
        }
    }
}

impl SegmentSlots<'_> {
    /// Returns valid sectors and high bits of a slot with the flag.
    fn differing(&self, at: usize) -> (u8, u16) {
        differing(self.others.as_deref(), at, *self.usual_high)
    }

    #[inline]
    fn set(&mut self, at: usize, slot: Slot) {
        let had_flag = unpack(&self.slots[at]).0 & DIFFERS != 0;
        if slot.status() == Status::Blank {
            debug_assert_eq!(slot, Slot::default());
            self.slots[at] = [0; SLOT_BYTES];
            if had_flag {
                self.change_others(at, true, None);
            }
        } else {
            self.write(at, slot, had_flag);
        }
    }

    /// Sets a blank slot to one that is not blank, without reading it first. In memory that was never written to, the
    /// read would cause one page fault, and the write a second one that interrupts all other threads.
    #[inline]
    pub fn fill(&mut self, at: usize, slot: Slot) {
        debug_assert!(self.get(at).status() == Status::Blank && slot.status() != Status::Blank);
        self.write(at, slot, false);
    }

    /// Sets the usual high bits to those of a slot that the segment, all blank so far, will contain. Without this,
    /// filling it when the high bits are not 0 would put each of its first slots in the additional table.
    pub fn expect(&mut self, slot: &Slot) {
        debug_assert!(self.others.is_none() && slot.status() != Status::Blank);
        *self.usual_high = slot.parts().seq_high;
    }

    #[inline]
    fn write(&mut self, at: usize, slot: Slot, had_flag: bool) {
        let parts = slot.parts();
        let differs = parts.mask != EVERY_SECTOR || parts.seq_high != *self.usual_high;
        let is_recorded = had_flag && differs && self.differing(at) == (parts.mask, parts.seq_high);
        let head = parts.head | if differs { DIFFERS } else { 0 };
        pack(&mut self.slots[at], head, parts.tail);
        if (differs || had_flag) && !is_recorded {
            self.change_others(at, had_flag, differs.then_some(&parts));
        }
    }

    /// Updates the differing fields of a slot: `parts` if a field differs now. `had_flag` says that a field differed
    /// before.
    #[cold]
    fn change_others(&mut self, at: usize, had_flag: bool, parts: Option<&Parts>) {
        let usual = *self.usual_high;
        *self.others_bytes -= self.others.as_ref().map_or(0, |others| others.bytes());
        let others = self
            .others
            .get_or_insert_with(|| Box::new(Others { flagged: 0, masks: [0; PER_SEGMENT], highs: None }));
        if had_flag {
            others.remove(at, usual);
        }
        if let Some(parts) = parts {
            others.add(at, parts, usual);
        }
        let many = others.highs.as_ref().is_some_and(|highs| usize::from(highs.differing) > PER_SEGMENT / 2);
        if others.flagged == 0 {
            *self.others = None;
        }
        *self.others_bytes += self.others.as_ref().map_or(0, |others| others.bytes());
        if let Some(parts) = parts.filter(|_| many) {
            self.change_usual_high(parts.seq_high);
        }
    }

    fn get(&self, at: usize) -> Slot {
        slot_of(&self.slots[at], *self.usual_high, || self.differing(at))
    }

    /// Makes high bits the usual ones, if more than half of the slots have them.
    fn change_usual_high(&mut self, high: u16) {
        let all: Vec<Slot> = (0..PER_SEGMENT).map(|at| self.get(at)).collect();
        let has_high = |slot: &Slot| slot.status() != Status::Blank && slot.parts().seq_high == high;
        if all.iter().filter(|slot| has_high(slot)).count() <= PER_SEGMENT / 2 {
            return;
        }
        (0..all.len()).for_each(|at| self.set(at, Slot::default()));
        *self.usual_high = high;
        all.into_iter().enumerate().for_each(|(at, slot)| self.set(at, slot));
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::BlockNo;
    use haversack_model::random::Random;

    use super::super::slot::Live;
    use super::*;

    const SEGMENTS: usize = 3;

    fn slot(rng: &mut Random, high: u64) -> Slot {
        let mask = if rng.one_in(4) { rng.below(256) as u8 } else { EVERY_SECTOR };
        let seq = high << 32 | rng.below(1 << 32);
        let live = Live::new(BlockNo(rng.below(1 << 38)), mask, rng.below(1 << 32) as u32, seq);
        let live = live.with_dirty(rng.one_in(2)).with_protected(rng.one_in(2)).with_hits(rng.below(4) as u8);
        let live = live.with_mirror(rng.one_in(9)).with_poisoned(rng.one_in(9));
        if rng.one_in(3) { live.die(rng.one_in(2)).into() } else { live.into() }
    }

    fn check(slots: &Slots, model: &[Slot]) {
        let mut bytes = 0;
        for (at, slot) in model.iter().enumerate() {
            assert_eq!(slots.get(SlotNo(at as u32)), *slot, "slot {at}");
        }
        for (segment, others) in slots.others.iter().enumerate() {
            let usual = slots.usual_highs[segment];
            let of_segment = &model[segment * PER_SEGMENT..(segment + 1) * PER_SEGMENT];
            let used =
                of_segment.iter().filter(|slot| slot.status() != Status::Blank).map(|slot| slot.parts());
            let other_high = used.clone().filter(|parts| parts.seq_high != usual).count();
            for high in 0..9 {
                let count = used.clone().filter(|parts| parts.seq_high == high).count();
                assert!(high == usual || count <= PER_SEGMENT / 2, "{count} slots have high bits {high}");
            }
            let flagged = used.filter(|parts| parts.seq_high != usual || parts.mask != EVERY_SECTOR).count();
            assert_eq!(others.as_ref().map_or(0, |others| usize::from(others.flagged)), flagged);
            assert_eq!(others.is_some(), flagged > 0);
            let highs = others.as_ref().and_then(|others| others.highs.as_ref());
            assert_eq!(highs.map_or(0, |highs| usize::from(highs.differing)), other_high);
            assert_eq!(highs.is_some(), other_high > 0);
            bytes += others.as_ref().map_or(0, |others| others.bytes());
        }
        assert_eq!(slots.others_bytes, bytes);
    }

    #[test]
    fn returns_what_was_set_whatever_it_is() {
        let mut rng = Random::scrambled(3);
        let mut slots = Slots::new(SEGMENTS);
        let mut model = vec![Slot::default(); SEGMENTS * PER_SEGMENT];
        for step in 0..60_000u64 {
            let at = rng.below(model.len() as u64) as usize;
            // High bits that grow, and now and then an older version.
            let high = (step / 9_000).saturating_sub(u64::from(rng.one_in(20)));
            let was_blank = model[at].status() == Status::Blank;
            model[at] = if rng.one_in(5) { Slot::default() } else { slot(&mut rng, high) };
            if was_blank && model[at].status() != Status::Blank {
                slots.fill(SlotNo(at as u32), model[at]);
            } else {
                slots.set(SlotNo(at as u32), model[at]);
            }
            if step % 500 == 0 {
                check(&slots, &model);
            }
        }
        check(&slots, &model);
        let mut copy = Slots::new(SEGMENTS);
        (0..SEGMENTS as u32).for_each(|segment| copy.copy_segment(&slots, SegmentNo(segment)));
        check(&copy, &model);
        model.fill(Slot::default());
        (0..model.len()).for_each(|at| slots.set(SlotNo(at as u32), Slot::default()));
        check(&slots, &model);
    }

    /// Slots whose sectors are all valid take 14 bytes, even long after the high bits of sequence numbers have changed.
    #[test]
    fn whole_blocks_take_nothing_besides() {
        let mut slots = Slots::new(1);
        let blank_bytes = slots.bytes();
        assert!(blank_bytes <= PER_SEGMENT * SLOT_BYTES + 10);
        for high in [0, 1, 511u64] {
            for at in 0..SLOTS_PER_SEGMENT {
                slots.set(SlotNo(at), Live::new(BlockNo(7), EVERY_SECTOR, 1, high << 32).into());
            }
            assert_eq!(slots.bytes(), blank_bytes, "high bits {high}");
        }
        slots.set(SlotNo(5), Live::new(BlockNo(7), 1, 1, 511 << 32).into());
        assert!((blank_bytes + 253..blank_bytes + 300).contains(&slots.bytes()), "a byte for each block");
        slots.set(SlotNo(6), Live::new(BlockNo(7), EVERY_SECTOR, 1, 510 << 32).into());
        let most_bytes = blank_bytes + 3 * 253 + 50;
        assert!((blank_bytes + 3 * 253..most_bytes).contains(&slots.bytes()), "and two for the high bits");
    }

    /// If a segment's usual high bits are known before it is filled, none of its slots is in the additional table.
    #[test]
    fn a_segment_takes_the_high_bits_that_are_expected() {
        let mut slots = Slots::new(2);
        let blank_bytes = slots.bytes();
        let slot = |at: u32| Slot::from(Live::new(BlockNo(u64::from(at)), EVERY_SECTOR, 1, 3 << 32));
        slots.expect(SegmentNo(1), &slot(0));
        for at in SLOTS_PER_SEGMENT..2 * SLOTS_PER_SEGMENT {
            slots.fill(SlotNo(at), slot(at));
            assert_eq!((slots.bytes(), slots.get(SlotNo(at))), (blank_bytes, slot(at)));
        }
    }
}
