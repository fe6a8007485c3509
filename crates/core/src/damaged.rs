//! The blocks of a disk that are damaged on flash. `flow/damage.rs` handles them.
//!
//! A block stays in this table at least until a complete version of it is on flash. The table may also list blocks that
//! are no longer damaged: only the block's slot tells whether it is damaged.

use std::collections::BTreeMap;

use haversack_model::BlockNo;

use crate::store::slot::Live;

/// See the module. Maps each block to the sequence number of the version whose valid sectors the origin has.
#[derive(Default)]
pub(crate) struct DamagedBlocks(BTreeMap<u64, Option<u64>>);

impl DamagedBlocks {
    /// Adds a block, with valid sectors that the origin may lack.
    pub fn note(&mut self, block: BlockNo) {
        self.0.insert(block.0, None);
    }

    /// Called when the origin has the valid sectors of a slot.
    pub fn note_cleaned(&mut self, slot: Live) {
        self.0.insert(slot.block().0, Some(slot.seq()));
    }

    /// Whether the origin has the valid sectors of a damaged block's slot.
    pub fn is_cleaned(&self, slot: Live) -> bool {
        self.0.get(&slot.block().0) == Some(&Some(slot.seq()))
    }

    pub fn remove(&mut self, block: BlockNo) {
        self.0.remove(&block.0);
    }

    /// Forgets the blocks behind `last`.
    pub fn forget_beyond(&mut self, last: BlockNo) {
        self.0.retain(|block, _| *block <= last.0);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNo> + '_ {
        self.0.keys().copied().map(BlockNo)
    }
}
