//! One slot of flash: 16 bytes in memory and, with the same layout, 16 bytes in a metadata page.
//!
//! ```text
//! word 0   bits 0..38 block   38..46 valid sectors   46..55 sequence number, high bits
//!          55..57 status   57 dirty   58 durably dirty   59 mirror   60 established   61..63 hits   63 poisoned
//! word 1   bits 0..32 checksum   32..64 sequence number, low bits
//! ```
//! On flash the status is 1 for a listed slot, bit 58 says that a dirty block has a second copy, and an unlisted
//! slot is all zero.

use haversack_model::BlockNo;

/// Bytes of a slot's metadata entry.
pub const ENTRY_BYTES: usize = 16;
/// Sequence numbers are kept in 41 bits: 69 years at 1,000 commits a second.
pub const SEQ_LIMIT: u64 = 1 << 41;
/// Hits counted at most.
pub const MAX_HITS: u8 = 3;

/// A slot of the pool: segment number times 253 plus place in the segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotNo(pub u32);

/// What a slot's content is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Nothing here, and no durable page says otherwise.
    Blank = 0,
    /// The block's cached content.
    Live = 1,
    /// Superseded by a version that is not durable yet.
    Retained = 2,
    /// Of no use any more, but a durable page still lists it.
    Remnant = 3,
}

/// The packed entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    w0: u64,
    w1: u64,
}

const BLOCK_BITS: u32 = 38;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;
const MASK_SHIFT: u32 = 38;
const SEQ_HIGH_SHIFT: u32 = 46;
const SEQ_HIGH_MASK: u64 = (1 << 9) - 1;
const STATUS_SHIFT: u32 = 55;
const DIRTY: u64 = 1 << 57;
const DURABLE_DIRTY: u64 = 1 << 58;
const TWIN: u64 = 1 << 58;
const MIRROR: u64 = 1 << 59;
const ESTABLISHED: u64 = 1 << 60;
const HITS_SHIFT: u32 = 61;
const POISONED: u64 = 1 << 63;

impl Slot {
    /// A live slot for a block. All flags are off.
    pub fn live(block: BlockNo, mask: u8, crc: u32, seq: u64) -> Slot {
        assert!(block.0 <= BLOCK_MASK && seq < SEQ_LIMIT);
        let mut slot = Slot { w0: block.0, w1: u64::from(crc) | (seq & 0xffff_ffff) << 32 };
        slot.w0 |= u64::from(mask) << MASK_SHIFT | (seq >> 32) << SEQ_HIGH_SHIFT;
        slot.with_status(Status::Live)
    }

    /// The block.
    pub fn block(self) -> BlockNo {
        BlockNo(self.w0 & BLOCK_MASK)
    }

    /// Valid sectors.
    pub fn mask(self) -> u8 {
        (self.w0 >> MASK_SHIFT) as u8
    }

    /// The same with other valid sectors.
    pub fn with_mask(mut self, mask: u8) -> Slot {
        self.w0 = self.w0 & !(0xff << MASK_SHIFT) | u64::from(mask) << MASK_SHIFT;
        self
    }

    /// Sequence number of the commit that wrote it.
    pub fn seq(self) -> u64 {
        (self.w0 >> SEQ_HIGH_SHIFT & SEQ_HIGH_MASK) << 32 | self.w1 >> 32
    }

    /// Checksum of the data, bound to disk and block.
    pub fn crc(self) -> u32 {
        self.w1 as u32
    }

    /// What the content is worth.
    pub fn status(self) -> Status {
        match self.w0 >> STATUS_SHIFT & 3 {
            0 => Status::Blank,
            1 => Status::Live,
            2 => Status::Retained,
            _ => Status::Remnant,
        }
    }

    /// The same with another status.
    pub fn with_status(mut self, status: Status) -> Slot {
        self.w0 = self.w0 & !(3 << STATUS_SHIFT) | (status as u64) << STATUS_SHIFT;
        self
    }

    fn has(self, bit: u64) -> bool {
        self.w0 & bit != 0
    }

    fn with(mut self, bit: u64, on: bool) -> Slot {
        self.w0 = if on { self.w0 | bit } else { self.w0 & !bit };
        self
    }

    /// The origin does not have it yet.
    pub fn dirty(self) -> bool {
        self.has(DIRTY)
    }

    /// The same, dirty or not.
    pub fn with_dirty(self, on: bool) -> Slot {
        self.with(DIRTY, on)
    }

    /// A durable page may call it dirty.
    pub fn durable_dirty(self) -> bool {
        self.has(DURABLE_DIRTY)
    }

    /// The same, durably dirty or not.
    pub fn with_durable_dirty(self, on: bool) -> Slot {
        self.with(DURABLE_DIRTY, on)
    }

    /// The second copy of a dirty block.
    pub fn mirror(self) -> bool {
        self.has(MIRROR)
    }

    /// The same, a second copy or not.
    pub fn with_mirror(self, on: bool) -> Slot {
        self.with(MIRROR, on)
    }

    /// Past probation. Of a remnant: a batch may write over it.
    pub fn established(self) -> bool {
        self.has(ESTABLISHED)
    }

    /// The same, established or not.
    pub fn with_established(self, on: bool) -> Slot {
        self.with(ESTABLISHED, on)
    }

    /// Hits counted, 0 to 3. Of a remnant: not 0 when the last page written leaves it out.
    pub fn hits(self) -> u8 {
        (self.w0 >> HITS_SHIFT & 3) as u8
    }

    /// The same with another hit count.
    pub fn with_hits(mut self, hits: u8) -> Slot {
        self.w0 = self.w0 & !(3 << HITS_SHIFT) | u64::from(hits.min(MAX_HITS)) << HITS_SHIFT;
        self
    }

    /// Sectors outside the mask are lost and must not be read from elsewhere.
    pub fn poisoned(self) -> bool {
        self.has(POISONED)
    }

    /// The same, poisoned or not.
    pub fn with_poisoned(self, on: bool) -> Slot {
        self.with(POISONED, on)
    }

    /// The entry as a metadata page lists it; `twin`: as one of two copies.
    pub fn encode(self, twin: bool) -> [u8; ENTRY_BYTES] {
        let listed = self.with_status(Status::Live).with(TWIN, twin);
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&listed.w0.to_le_bytes());
        bytes[8..].copy_from_slice(&listed.w1.to_le_bytes());
        bytes
    }

    /// Reads an entry and whether it is one of two copies; `None` for an unlisted slot.
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<(Slot, bool)> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let slot = Slot { w0: word(0), w1: word(8) };
        (slot.status() == Status::Live).then_some((slot.with_durable_dirty(slot.dirty()), slot.has(TWIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let slot = Slot::live(BlockNo(BLOCK_MASK), 0xa5, 0xdead_beef, SEQ_LIMIT - 1);
        let full =
            slot.with_dirty(true).with_mirror(true).with_established(true).with_hits(3).with_poisoned(true);
        for s in [slot, full, slot.with_mask(0).with_mask(0xa5)] {
            assert_eq!(
                (s.block().0, s.mask(), s.crc(), s.seq()),
                (BLOCK_MASK, 0xa5, 0xdead_beef, SEQ_LIMIT - 1)
            );
            assert_eq!(s.status(), Status::Live);
        }
        for twin in [false, true] {
            assert_eq!(Slot::decode(&full.encode(twin)), Some((full.with_durable_dirty(true), twin)));
        }
        assert_eq!(Slot::decode(&[0; ENTRY_BYTES]), None);
        assert_eq!(full.with_status(Status::Remnant).status(), Status::Remnant);
    }
}
