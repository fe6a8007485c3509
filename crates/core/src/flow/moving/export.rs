//! Which copies of blocks were sent to the next owner, and which of them are out of date.
//!
//! Invariant: a copy that differs from its block, or may not have arrived, is never counted as good. A change
//! that begins before the copy is read also counts.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use haversack_model::BlockNo;

use crate::bugs::{Bug, planted};
use crate::hasher::NumberHasher;

/// The order of a copy that is out of date.
const CHANGED: u64 = u64::MAX;

/// See the module. It takes about 16 bytes for each block that was sent.
#[derive(Default)]
pub(crate) struct Export {
    /// By block: the order of its last copy, or that it has changed since.
    sent: HashMap<u64, u64, BuildHasherDefault<NumberHasher>>,
}

impl Export {
    /// Called when a copy is being read.
    pub fn sends(&mut self, block: BlockNo, order: u64) {
        self.sent.insert(block.0, order);
    }

    /// Called when a block changes.
    pub fn changed(&mut self, block: BlockNo) {
        if let Some(order) = self.sent.get_mut(&block.0)
            && !planted(Bug::ForgetChange)
        {
            *order = CHANGED;
        }
    }

    /// Whether the last copy of a block is good.
    pub fn is_good(&self, block: BlockNo) -> bool {
        self.sent.get(&block.0).is_some_and(|order| *order != CHANGED)
    }

    /// Returns the blocks of which the next owner may have copies that are out of date, if it has all copies
    /// before `arrived`.
    pub fn outdated(&self, arrived: u64) -> impl Iterator<Item = BlockNo> + '_ {
        let arrived = if planted(Bug::TrustSent) { CHANGED } else { arrived };
        self.sent.iter().filter(move |(_, order)| **order >= arrived).map(|(block, _)| BlockNo(*block))
    }
}
