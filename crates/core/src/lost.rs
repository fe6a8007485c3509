//! The blocks of a disk with dirty sectors that were lost with a device, or dropped as damaged. The cache need not have
//! an entry that says so, and a restart does not know them: the record says only that the disk has lost something.
//!
//! Invariants
//! - A block that is here has at least one lost sector.
//! - The sectors of it that are not lost are cached, or the origin has them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use haversack_model::BlockNo;

use crate::hasher::NumberHasher;

/// See the module. Each block with its lost sectors, as a mask.
#[derive(Default)]
pub(crate) struct LostBlocks(HashMap<u64, u8, BuildHasherDefault<NumberHasher>>);

impl LostBlocks {
    /// Adds lost sectors of a block.
    pub fn add(&mut self, block: BlockNo, sectors: u8) {
        if sectors != 0 {
            *self.0.entry(block.0).or_default() |= sectors;
        }
    }

    /// Returns the lost sectors of a block.
    #[inline]
    pub fn sectors_of(&self, block: BlockNo) -> u8 {
        if self.0.is_empty() { 0 } else { self.0.get(&block.0).copied().unwrap_or(0) }
    }

    /// Forgets a block, since all of it has been written.
    pub fn remove(&mut self, block: BlockNo) {
        self.0.remove(&block.0);
    }

    /// Forgets sectors beyond the end of the disk: the blocks behind `last`, and the sectors of `last` that are not in
    /// `inside`.
    pub fn forget_beyond(&mut self, last: BlockNo, inside: u8) {
        self.0.retain(|block, sectors| {
            *sectors &= if *block == last.0 { inside } else { u8::MAX };
            *block <= last.0 && *sectors != 0
        });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the blocks, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNo> + '_ {
        self.0.keys().copied().map(BlockNo)
    }
}
