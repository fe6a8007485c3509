//! Clean blocks that the previous owner had when it released the disk, and that are not here yet: *late
//! copies*, because they arrive after the claim.
//!
//! Until a block is written, the previous owner's copy equals the origin's data. So a late copy is valid as
//! long as this host has not changed its block since the claim. None of this is durable: without a late copy,
//! the block is read from the origin.
//!
//! Invariants
//! - A block that this host has changed since the claim is not in the list and is not added to it, however
//!   late it is listed.
//! - A block leaves the list when its copy is being read: it is tried once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use haversack_model::BlockNo;

use crate::bugs::{Bug, planted};
use crate::hasher::NumberHasher;

/// Where late copies are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateSource {
    /// From the previous owner, in the background.
    Owner,
    /// From the previous owner, in the background and when a read needs them.
    OwnerOnDemand,
    /// From the origin.
    Origin,
}

/// See the module. It takes about 24 bytes for each block.
pub(crate) struct LateCopies {
    pub source: LateSource,
    /// How many are read at a time in the background.
    pub window: u32,
    /// Being read now.
    pub reading: u32,
    /// Their valid sectors, by block.
    blocks: HashMap<u64, u8, BuildHasherDefault<NumberHasher>>,
    /// The order in which they are read in the background. Blocks that left the list may still be here.
    order: VecDeque<BlockNo>,
    /// The blocks changed since the claim, while more late copies may be listed.
    changed: Option<HashSet<u64, BuildHasherDefault<NumberHasher>>>,
}

impl LateCopies {
    pub fn new(source: LateSource) -> LateCopies {
        LateCopies {
            source,
            window: 0,
            reading: 0,
            blocks: HashMap::default(),
            order: VecDeque::new(),
            changed: Some(HashSet::default()),
        }
    }

    /// Adds a block, unless it was changed since the claim or the list is complete.
    pub fn list(&mut self, block: BlockNo, mask: u8) {
        let Some(changed) = &self.changed else { return };
        if changed.contains(&block.0) && !planted(Bug::ListChanged) {
            return;
        }
        if mask != 0 && self.blocks.insert(block.0, mask).is_none() {
            self.order.push_back(block);
        }
    }

    /// All are listed.
    pub fn complete(&mut self) {
        self.changed = None;
    }

    /// Whether nothing is or will be left to read.
    pub fn is_over(&self) -> bool {
        self.changed.is_none() && self.blocks.is_empty() && self.reading == 0
    }

    /// How many listed copies have not arrived: those that are being read, too.
    pub fn missing(&self) -> usize {
        self.blocks.len() + self.reading as usize
    }

    /// Called when this host is about to change a block, or has changed it.
    pub fn changes(&mut self, block: BlockNo) {
        self.blocks.remove(&block.0);
        if let Some(changed) = &mut self.changed {
            changed.insert(block.0);
        }
    }

    /// Takes a block off the list, to read it.
    pub fn take(&mut self, block: BlockNo) -> Option<u8> {
        self.blocks.remove(&block.0)
    }

    /// Takes the next block off the list, if another one may be read in the background.
    pub fn next(&mut self) -> Option<(BlockNo, u8)> {
        while self.reading < self.window {
            let block = self.order.pop_front()?;
            if let Some(mask) = self.take(block) {
                return Some((block, mask));
            }
        }
        None
    }
}
