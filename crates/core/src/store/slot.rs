//! One slot of flash: 16 bytes in a metadata page and, with the same layout, two words in the processor. In memory
//! slots are packed ([`super::slots`]).
//!
//! ```text
//! word 0   bits 0..38 block   38..46 valid sectors   46..55 sequence number, high bits
//!          55..57 status   57 dirty   58 durably dirty   59 mirror   60 protected   61..63 hits   63 poisoned
//! word 1   bits 0..32 checksum   32..64 sequence number, low bits
//! ```
//! In a dead slot, bit 57 says that the last page composed lists it as dirty, bit 60 that a batch may write
//! over it, and bits 61..63 that the last page leaves it out. On flash the status is 1 for a listed slot, bit
//! 58 says that a dirty block has a mirrored copy, and an unlisted slot is all zero.
//!
//! Invariants
//! - The meaning of a slot's bits depends on its status, so they are read and changed through a view of that
//!   status: [`Live`], [`Superseded`], [`Dead`]. [`Slot`] itself has only what every slot that is not blank
//!   has.
//! - A slot becomes live when it is written. A live slot becomes superseded or dead, a superseded one dead,
//!   and a dead one blank. A superseded slot becomes live again only if the batch that superseded it failed.

use std::ops::Deref;

use haversack_model::BlockNo;

use super::segment::SegmentNo;
use crate::format::geometry::SLOTS_PER_SEGMENT;

/// Bytes of a slot's metadata entry.
pub const ENTRY_BYTES: usize = 16;
/// Sequence numbers are kept in 41 bits: 69 years at 1,000 commits a second.
pub const SEQ_LIMIT: u64 = 1 << 41;
/// No pool gets as far as this. What has a higher number on a device is damaged: a pool could not continue from it.
pub const IMPOSSIBLE_SEQ: u64 = SEQ_LIMIT - SEQ_LIMIT / 16;
/// Maximum hit count.
pub const MAX_HITS: u8 = 3;
/// The mask of a block whose sectors are all valid.
pub const EVERY_SECTOR: u8 = 0xff;

/// A slot of the pool: the segment's number times 253, plus its position in the segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotNo(pub u32);

impl SlotNo {
    /// Returns the segment that it is in.
    #[inline]
    pub fn segment(self) -> SegmentNo {
        SegmentNo(self.0 / SLOTS_PER_SEGMENT)
    }

    /// Returns its index among the slots of its segment.
    #[inline]
    pub fn in_segment(self) -> usize {
        (self.0 % SLOTS_PER_SEGMENT) as usize
    }
}

/// The status of a slot's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Empty, and no durable page lists it.
    Blank = 0,
    /// The block's cached content.
    Live = 1,
    /// Superseded by a version that is not durable yet.
    Superseded = 2,
    /// Obsolete, but a durable page still lists it.
    Dead = 3,
}

/// The packed entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Block, valid sectors, high bits of the sequence number, status and flags.
    w0: u64,
    /// Checksum and low bits of the sequence number.
    w1: u64,
}

/// The fields of a slot, grouped by how the table of all slots keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Bits 0..38 block, 38..47 status and flags.
    pub head: u64,
    /// The mask of valid sectors.
    pub mask: u8,
    /// The high bits of the sequence number.
    pub seq_high: u16,
    /// The second word.
    pub tail: u64,
}

/// A slot's entry, by its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// See [`Status::Blank`].
    Blank,
    /// See [`Status::Live`].
    Live(Live),
    /// See [`Status::Superseded`].
    Superseded(Superseded),
    /// See [`Status::Dead`].
    Dead(Dead),
}

/// The entry of a live slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live(Slot);

/// The entry of a superseded slot, unchanged from when it was live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded(Slot);

/// The entry of a dead slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dead(Slot);

const BLOCK_BITS: u32 = 38;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;
const MASK_SHIFT: u32 = 38;
const SEQ_HIGH_SHIFT: u32 = 46;
const SEQ_HIGH_MASK: u64 = (1 << 9) - 1;
const STATUS_SHIFT: u32 = 55;
const STATUS_MASK: u64 = 3 << STATUS_SHIFT;
const DIRTY: u64 = 1 << 57;
const DURABLE_DIRTY: u64 = 1 << 58;
const TWIN: u64 = 1 << 58;
const MIRROR: u64 = 1 << 59;
const PROTECTED: u64 = 1 << 60;
const HITS_SHIFT: u32 = 61;
const HITS_MASK: u64 = 3 << HITS_SHIFT;
const POISONED: u64 = 1 << 63;
/// Bits of a dead slot.
const LISTED_DIRTY: u64 = DIRTY;
const REUSABLE: u64 = PROTECTED;
const OMITTED: u64 = 1 << HITS_SHIFT;

impl Slot {
    /// Returns its fields.
    #[inline]
    pub fn parts(self) -> Parts {
        Parts {
            head: self.w0 & BLOCK_MASK | self.w0 >> STATUS_SHIFT << BLOCK_BITS,
            mask: self.mask(),
            seq_high: (self.w0 >> SEQ_HIGH_SHIFT & SEQ_HIGH_MASK) as u16,
            tail: self.w1,
        }
    }

    /// Returns the entry with these fields.
    #[inline]
    pub fn from_parts(parts: Parts) -> Slot {
        let (block, flags) = (parts.head & BLOCK_MASK, parts.head >> BLOCK_BITS << STATUS_SHIFT);
        let middle = u64::from(parts.mask) << MASK_SHIFT | u64::from(parts.seq_high) << SEQ_HIGH_SHIFT;
        Slot { w0: block | middle | flags, w1: parts.tail }
    }

    /// Returns the entry as a checkpoint has it.
    #[inline]
    pub fn words(self) -> [u64; 2] {
        [self.w0, self.w1]
    }

    /// Returns the entry that a checkpoint has.
    #[inline]
    pub fn from_words([w0, w1]: [u64; 2]) -> Slot {
        Slot { w0, w1 }
    }

    /// Returns the block.
    pub fn block(self) -> BlockNo {
        BlockNo(self.w0 & BLOCK_MASK)
    }

    /// Returns the mask of valid sectors.
    pub fn mask(self) -> u8 {
        (self.w0 >> MASK_SHIFT) as u8
    }

    /// Returns the sequence number of the commit that wrote it.
    pub fn seq(self) -> u64 {
        (self.w0 >> SEQ_HIGH_SHIFT & SEQ_HIGH_MASK) << 32 | self.w1 >> 32
    }

    /// Returns the checksum of the data, bound to disk and block.
    pub fn crc(self) -> u32 {
        self.w1 as u32
    }

    /// Returns the status of the content.
    pub fn status(self) -> Status {
        match self.w0 >> STATUS_SHIFT & 3 {
            0 => Status::Blank,
            1 => Status::Live,
            2 => Status::Superseded,
            _ => Status::Dead,
        }
    }

    /// Returns the entry as a view of its status.
    pub fn view(self) -> View {
        match self.status() {
            Status::Blank => View::Blank,
            Status::Live => View::Live(Live(self)),
            Status::Superseded => View::Superseded(Superseded(self)),
            Status::Dead => View::Dead(Dead(self)),
        }
    }

    /// Returns the entry if the slot is live.
    pub fn live(self) -> Option<Live> {
        (self.status() == Status::Live).then_some(Live(self))
    }

    /// Returns the entry if the slot is dead.
    pub fn dead(self) -> Option<Dead> {
        (self.status() == Status::Dead).then_some(Dead(self))
    }

    /// Returns the entry if the slot is live and not a mirrored copy.
    pub fn primary(self) -> Option<Live> {
        let wanted = (Status::Live as u64) << STATUS_SHIFT;
        (self.w0 & (STATUS_MASK | MIRROR) == wanted).then_some(Live(self))
    }

    fn has(self, bit: u64) -> bool {
        self.w0 & bit != 0
    }

    fn with(mut self, bit: u64, on: bool) -> Slot {
        self.w0 = if on { self.w0 | bit } else { self.w0 & !bit };
        self
    }

    fn with_status(mut self, status: Status) -> Slot {
        self.w0 = self.w0 & !STATUS_MASK | (status as u64) << STATUS_SHIFT;
        self
    }

    /// Whether a durable page may list it as dirty.
    pub fn durable_dirty(self) -> bool {
        self.has(DURABLE_DIRTY)
    }

    /// Returns it with another durably dirty flag.
    pub fn with_durable_dirty(self, on: bool) -> Slot {
        self.with(DURABLE_DIRTY, on)
    }

    /// Returns it as it is when a page that lists it in its present state is durable.
    pub fn with_durable_page(self) -> Slot {
        self.with(DURABLE_DIRTY, self.has(DIRTY))
    }

    /// Whether it was written as the mirrored copy of a dirty block.
    pub fn mirror(self) -> bool {
        self.has(MIRROR)
    }

    /// Whether sectors outside the mask are lost, so that they must not be read from elsewhere.
    pub fn poisoned(self) -> bool {
        self.has(POISONED)
    }

    /// Returns the entry as a metadata page lists it. `twin` says whether it is listed as one of two copies.
    pub fn encode(self, twin: bool) -> [u8; ENTRY_BYTES] {
        let listed = self.with_status(Status::Live).with(TWIN, twin);
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&listed.w0.to_le_bytes());
        bytes[8..].copy_from_slice(&listed.w1.to_le_bytes());
        bytes
    }

    /// Whether all entries that a page lists have sequence numbers from which a pool can continue.
    pub fn are_possible(entries: &[[u8; ENTRY_BYTES]]) -> bool {
        entries.iter().filter_map(Slot::decode).all(|(slot, _)| slot.seq() < IMPOSSIBLE_SEQ)
    }

    /// Reads an entry and whether it is one of two copies. Returns `None` for an unlisted slot.
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<(Live, bool)> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let slot = Slot { w0: word(0), w1: word(8) };
        Some((Live(slot.live()?.with_durable_page()), slot.has(TWIN)))
    }
}

impl Live {
    /// Returns a live entry for a block. All flags are off.
    pub fn new(block: BlockNo, mask: u8, crc: u32, seq: u64) -> Live {
        assert!(block.0 <= BLOCK_MASK && seq < SEQ_LIMIT);
        let mut slot = Slot { w0: block.0, w1: u64::from(crc) | (seq & 0xffff_ffff) << 32 };
        slot.w0 |= u64::from(mask) << MASK_SHIFT | (seq >> 32) << SEQ_HIGH_SHIFT;
        Live(slot.with_status(Status::Live))
    }

    /// Returns it with other valid sectors.
    pub fn with_mask(mut self, mask: u8) -> Live {
        self.0.w0 = self.0.w0 & !(0xff << MASK_SHIFT) | u64::from(mask) << MASK_SHIFT;
        self
    }

    /// Whether the origin lacks it.
    pub fn dirty(self) -> bool {
        self.has(DIRTY)
    }

    /// Returns it with another dirty flag.
    pub fn with_dirty(self, on: bool) -> Live {
        Live(self.with(DIRTY, on))
    }

    /// Returns it as a mirrored copy or not.
    pub fn with_mirror(self, on: bool) -> Live {
        Live(self.with(MIRROR, on))
    }

    /// Whether it is past probation.
    pub fn protected(self) -> bool {
        self.has(PROTECTED)
    }

    /// Returns it as protected or not.
    pub fn with_protected(self, on: bool) -> Live {
        Live(self.with(PROTECTED, on))
    }

    /// Returns the hit count, 0 to 3.
    pub fn hits(self) -> u8 {
        (self.0.w0 >> HITS_SHIFT & 3) as u8
    }

    /// Returns it with another hit count, 3 at most.
    pub fn with_hits(mut self, hits: u8) -> Live {
        self.0.w0 = self.0.w0 & !HITS_MASK | u64::from(hits.min(MAX_HITS)) << HITS_SHIFT;
        self
    }

    /// Returns it as poisoned or not.
    pub fn with_poisoned(self, on: bool) -> Live {
        Live(self.with(POISONED, on))
    }

    /// Returns it as superseded: a newer version is being written to flash.
    pub fn supersede(self) -> Superseded {
        Superseded(self.with_status(Status::Superseded))
    }

    /// Returns it as dead. `reusable` says whether a batch may write over it.
    pub fn die(self, reusable: bool) -> Dead {
        Dead::of(self.0, reusable)
    }
}

impl Superseded {
    /// Whether the origin lacked it when it was superseded.
    pub fn dirty(self) -> bool {
        self.has(DIRTY)
    }

    /// Returns it as live again: the newer version did not reach flash.
    pub fn revive(self) -> Live {
        Live(self.with_status(Status::Live))
    }

    /// Returns it as dead: the newer version is durable. No batch may write over it before a page leaves it
    /// out.
    ///
    /// The page that was composed last listed it as dirty if it still is: it may have been superseded by then.
    pub fn die(self) -> Dead {
        Dead(Dead::of(self.0, false).with(LISTED_DIRTY, self.dirty()))
    }
}

impl Dead {
    fn of(mut slot: Slot, reusable: bool) -> Dead {
        slot.w0 &= !(LISTED_DIRTY | HITS_MASK);
        Dead(slot.with(REUSABLE, reusable).with_status(Status::Dead))
    }

    /// Whether a batch may write over it.
    pub fn reusable(self) -> bool {
        self.has(REUSABLE)
    }

    /// Returns it as reusable or not.
    pub fn with_reusable(self, on: bool) -> Dead {
        Dead(self.with(REUSABLE, on))
    }

    /// Whether the last page composed leaves it out.
    pub fn omitted(self) -> bool {
        self.has(OMITTED)
    }

    /// Whether the last page composed lists it as dirty.
    pub fn listed_dirty(self) -> bool {
        self.has(LISTED_DIRTY)
    }

    /// Returns it with its state in the page just composed: left out, or listed as dirty or not.
    pub fn with_page(self, omitted: bool, listed_dirty: bool) -> Dead {
        Dead(self.with(OMITTED, omitted).with(LISTED_DIRTY, listed_dirty))
    }
}

macro_rules! is_a_slot {
    ($($view:ident),*) => {$(
        impl Deref for $view {
            type Target = Slot;

            fn deref(&self) -> &Slot {
                &self.0
            }
        }

        impl From<$view> for Slot {
            fn from(view: $view) -> Slot {
                view.0
            }
        }
    )*};
}

is_a_slot!(Live, Superseded, Dead);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let slot = Live::new(BlockNo(BLOCK_MASK), 0xa5, 0xdead_beef, SEQ_LIMIT - 1);
        let full =
            slot.with_dirty(true).with_mirror(true).with_protected(true).with_hits(3).with_poisoned(true);
        for s in [slot, full, slot.with_mask(0).with_mask(0xa5)] {
            assert_eq!(
                (s.block().0, s.mask(), s.crc(), s.seq()),
                (BLOCK_MASK, 0xa5, 0xdead_beef, SEQ_LIMIT - 1)
            );
            assert_eq!(s.view(), View::Live(s));
        }
        for twin in [false, true] {
            let decoded = Slot::decode(&full.encode(twin)).expect("it is listed");
            assert_eq!((*decoded.0, decoded.1), (full.with_durable_dirty(true), twin));
        }
        assert_eq!(Slot::decode(&[0; ENTRY_BYTES]), None);
    }

    #[test]
    fn a_dead_slot_has_nothing_of_a_live_ones_state() {
        let full = Live::new(BlockNo(7), 0xff, 1, 2).with_dirty(true).with_protected(true).with_hits(3);
        for dead in [full.die(false), full.supersede().die()] {
            assert!(!dead.reusable() && !dead.omitted());
            assert_eq!((dead.block(), dead.seq(), dead.view()), (BlockNo(7), 2, View::Dead(dead)));
        }
        let dead = full.die(true);
        assert!(dead.reusable() && !dead.omitted());
        assert!(dead.with_page(true, false).omitted() && dead.with_page(false, true).listed_dirty());
        assert_eq!(full.supersede().revive(), full);
    }

    #[test]
    fn a_second_copy_is_not_the_first() {
        let slot = Live::new(BlockNo(7), 0xff, 1, 2);
        assert_eq!(slot.primary(), Some(slot));
        assert_eq!(slot.with_mirror(true).primary(), None);
        assert_eq!((slot.supersede().primary(), slot.die(false).primary()), (None, None));
    }
}
