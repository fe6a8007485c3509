//! The state of a disk's migration: the copies sent, the blocks that another host still needs from here, and
//! the blocks that this host still needs from another. Only the flows of migration change it.

pub(crate) mod export;
pub(crate) mod late;
pub(crate) mod peer;
pub(crate) mod replicating;

use std::collections::{BTreeMap, VecDeque};

use haversack_model::BlockNo;

use export::Export;
use late::LateCopies;
use peer::PeerBlocks;
use replicating::Replicating;

use crate::bugs::{Bug, planted};
use crate::store::segment::SegmentNo;

/// A dirty block that the new owner needs from here.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    /// Its dirty sectors.
    pub mask: u8,
    /// The new owner has it: it is removed when no durable page lists it as dirty.
    pub is_being_forgotten: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Moving {
    /// Copies of blocks are being sent to the next owner.
    pub export: Option<Export>,
    /// What is staged is committed at once, since the guest has stopped and the disk is about to be frozen.
    pub is_settling: bool,
    /// While the disk is being frozen: segments whose durable pages list clean blocks as dirty, once they are listed.
    pub called_dirty: Option<Vec<SegmentNo>>,
    /// While the disk is being frozen: the origin could not be flushed.
    pub is_origin_unsettled: bool,
    /// The dirty blocks that the new owner needs from here, once they are listed.
    pub held: Option<BTreeMap<BlockNo, Held>>,
    /// Those of them that the new owner has, and that durable pages here may still list as dirty.
    pub forgetting: VecDeque<BlockNo>,
    /// The blocks that this host needs from the previous owner.
    pub peer: Option<PeerBlocks>,
    /// The clean blocks that the previous owner had.
    pub late: Option<LateCopies>,
    /// The disk's blocks here have not changed since this host released it, or are lent: its clean blocks may be read
    /// as copies.
    pub lends: bool,
    /// How many more blocks may be fetched from the previous owner in the background; `None` for no limit.
    pub allowance: Option<u64>,
    /// What the replica of the disk's dirty blocks still lacks.
    pub replicating: Option<Replicating>,
}

impl Moving {
    /// Returns the state of a disk that may have a replica, of which nothing is known yet.
    pub fn replicating() -> Moving {
        Moving { replicating: Some(Replicating::unknown()), ..Moving::default() }
    }

    /// Whether no state of a migration is left.
    pub fn is_over(&self) -> bool {
        let is_alone = self.export.is_none() && self.peer.is_none() && self.late.is_none();
        is_alone && !self.lends && self.replicating.is_none()
    }

    /// Whether another block may be fetched from the previous owner in the background.
    pub fn may_fetch(&self) -> bool {
        self.allowance != Some(0)
    }

    /// Called when a block is being fetched from the previous owner.
    pub fn fetches_one(&mut self) {
        self.allowance = self.allowance.map(|left| left.saturating_sub(1));
    }

    /// Whether blocks wait to be committed.
    pub fn waits_for_commits(&self) -> bool {
        self.is_settling || self.peer.as_ref().is_some_and(PeerBlocks::waits_for_commits)
    }

    /// Returns the number of the last change that a replica is to have; 0 if there is no replica.
    pub fn changes(&self) -> u64 {
        self.replicating.as_ref().map_or(0, Replicating::changes)
    }

    /// Called when a guest has written sectors of a block, or is about to change it in another way.
    pub fn changed(&mut self, block: BlockNo, mask: u8) {
        if let Some(export) = &mut self.export {
            export.changed(block);
        }
        if let Some(peer) = &mut self.peer {
            peer.has_newer(block, mask);
        }
        let is_missed = mask == 0 && planted(Bug::LateForgetsAround);
        if let Some(late) = self.late.as_mut().filter(|_| !is_missed) {
            late.changes(block);
        }
        if let Some(replicating) = &mut self.replicating {
            replicating.changed(block);
        }
    }
}
