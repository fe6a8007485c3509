//! The blocks that this host needs from the previous owner, the *peer*: which of their sectors are newest
//! there, and the progress of each block.
//!
//! Invariants
//! - A block stays in this table until the peer has durably forgotten it. Until then the origin must not be
//!   written there: after a crash the peer's version would be taken for the newest.
//! - `needed` are the sectors of which the peer has the newest version, unless this host has a clean copy. Local
//!   dirty sectors are never among them.
//! - A block is ready to be forgotten only when all sectors that the peer has of it are in a dirty version that
//!   is durable here.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use haversack_model::{BlockNo, HostId, Micros};

use crate::flow::takeover::PeerLoss;
use crate::hasher::NumberHasher;

/// Blocks that may wait to become durable before more are fetched in the background.
const MOST_SETTLING: usize = 256;
/// Blocks that are fetched at a time because a request waits for them, even if the window is 0.
const URGENT_WINDOW: u32 = 8;

/// The progress of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It still has to be obtained.
    Listed,
    /// It is being read.
    Fetching,
    /// All of it is dirty here, and not durable yet.
    Settling,
    /// It is durable here: the peer may forget it.
    Ready,
}

/// A block of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerBlock {
    /// The sectors that the peer has.
    pub listed: u8,
    /// Those of them that are newest there.
    pub needed: u8,
    pub stage: Stage,
}

/// See the module.
pub(crate) struct PeerBlocks {
    /// The peer.
    pub host: HostId,
    /// All of its blocks are listed.
    pub is_complete: bool,
    /// How many blocks are fetched at a time in the background.
    pub window: u32,
    /// After a failure, nothing is fetched in the background until this time.
    pub retry_us: Micros,
    /// The peer is permanently dead.
    given_up: Option<PeerLoss>,
    blocks: HashMap<u64, PeerBlock, BuildHasherDefault<NumberHasher>>,
    background: VecDeque<BlockNo>,
    urgent: VecDeque<BlockNo>,
    settling: VecDeque<BlockNo>,
    fetching: u32,
}

impl PeerBlocks {
    pub fn new(host: HostId) -> PeerBlocks {
        PeerBlocks {
            host,
            is_complete: false,
            window: 0,
            retry_us: 0,
            given_up: None,
            blocks: HashMap::default(),
            background: VecDeque::new(),
            urgent: VecDeque::new(),
            settling: VecDeque::new(),
            fetching: 0,
        }
    }

    /// Adds a block, unless it is known.
    pub fn list(&mut self, block: BlockNo, listed: u8, needed: u8) {
        let entry = PeerBlock { listed, needed, stage: Stage::Listed };
        if self.blocks.insert(block.0, entry).is_none() {
            self.background.push_back(block);
        }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    #[inline]
    pub fn get(&self, block: BlockNo) -> Option<PeerBlock> {
        self.blocks.get(&block.0).copied()
    }

    /// Returns the sectors of a block of which the peer has the newest version.
    #[inline]
    pub fn needed(&self, block: BlockNo) -> u8 {
        self.blocks.get(&block.0).map_or(0, |block| block.needed)
    }

    /// Called when this host has newer dirty sectors.
    pub fn has_newer(&mut self, block: BlockNo, mask: u8) {
        if let Some(entry) = self.blocks.get_mut(&block.0) {
            entry.needed &= !mask;
        }
    }

    /// Requests a block before others.
    pub fn hurry(&mut self, block: BlockNo) {
        let is_listed = self.get(block).is_some_and(|entry| entry.stage == Stage::Listed);
        if is_listed && !self.urgent.contains(&block) {
            self.urgent.push_back(block);
        }
    }

    /// Returns the next block to obtain: one that something waits for or, if allowed, any other.
    pub fn next(&mut self, now: Micros, in_background: bool) -> Option<BlockNo> {
        let is_listed = |blocks: &HashMap<u64, PeerBlock, _>, block: BlockNo| {
            blocks.get(&block.0).is_some_and(|entry: &PeerBlock| entry.stage == Stage::Listed)
        };
        if now < self.retry_us {
            return None;
        }
        while self.fetching < self.window.max(URGENT_WINDOW) {
            let Some(block) = self.urgent.pop_front() else { break };
            if is_listed(&self.blocks, block) {
                return Some(block);
            }
        }
        while in_background && self.fetching < self.window && self.settling.len() < MOST_SETTLING {
            let Some(block) = self.background.pop_front() else { break };
            if is_listed(&self.blocks, block) {
                return Some(block);
            }
        }
        None
    }

    /// Returns a block that cannot be obtained now.
    pub fn put_off(&mut self, block: BlockNo) {
        self.background.push_front(block);
    }

    pub fn fetches(&mut self, block: BlockNo) {
        self.fetching += 1;
        self.set(block, Stage::Fetching);
    }

    /// Called when the read of a block has ended. One that failed is obtained later.
    pub fn fetched(&mut self, block: BlockNo, is_here: bool) {
        self.fetching -= 1;
        if is_here {
            self.settles(block);
        } else {
            self.set(block, Stage::Listed);
            self.background.push_back(block);
        }
    }

    /// Called when all of a block is dirty here.
    pub fn settles(&mut self, block: BlockNo) {
        self.set(block, Stage::Settling);
        self.settling.push_back(block);
    }

    fn set(&mut self, block: BlockNo, stage: Stage) {
        if let Some(entry) = self.blocks.get_mut(&block.0) {
            entry.stage = stage;
        }
    }

    pub fn waits_for_commits(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Marks the settling blocks for which `is_durable` holds as ready to be forgotten. If the peer is given
    /// up, they are removed from the list.
    pub fn settle(&mut self, mut is_durable: impl FnMut(BlockNo, u8) -> bool) {
        for _ in 0..self.settling.len() {
            let block = self.settling.pop_front().expect("counted");
            let Some(PeerBlock { listed, .. }) = self.get(block) else { continue };
            if !is_durable(block, listed) {
                self.settling.push_back(block);
            } else if self.given_up.is_some() {
                self.blocks.remove(&block.0);
            } else {
                self.set(block, Stage::Ready);
            }
        }
    }

    /// Returns blocks that the peer may forget.
    pub fn ready(&self, most: usize) -> Vec<BlockNo> {
        let ready = self.blocks.iter().filter(|(_, entry)| entry.stage == Stage::Ready);
        let mut ready: Vec<BlockNo> = ready.map(|(block, _)| BlockNo(*block)).collect();
        ready.sort_unstable();
        ready.truncate(most);
        ready
    }

    /// Called when the peer is permanently dead. Nothing is fetched from it any more.
    pub fn give_up(&mut self, loss: PeerLoss) {
        (self.given_up, self.retry_us) = (Some(loss), 0);
        self.window = self.window.max(URGENT_WINDOW);
        self.blocks.retain(|_, entry| entry.stage != Stage::Ready);
    }

    /// Returns how sectors that only the peer had are handled, if the peer is given up.
    pub fn given_up(&self) -> Option<PeerLoss> {
        self.given_up
    }

    /// Gives up sectors of a block that only the peer had.
    pub fn give_up_sectors(&mut self, block: BlockNo, mask: u8) {
        let Some(entry) = self.blocks.get_mut(&block.0) else { return };
        (entry.listed, entry.needed) = (entry.listed & !mask, entry.needed & !mask);
        if entry.listed == 0 {
            self.blocks.remove(&block.0);
        }
    }

    /// Returns the blocks of which the peer has the newest version, unless there is a clean copy here.
    pub fn all_needed(&self) -> impl Iterator<Item = (BlockNo, u8)> + '_ {
        self.blocks.iter().map(|(block, entry)| (BlockNo(*block), entry.needed))
    }

    /// Called when the peer has durably forgotten a block.
    pub fn forgotten(&mut self, block: BlockNo) {
        if self.get(block).is_some_and(|entry| entry.stage == Stage::Ready) {
            self.blocks.remove(&block.0);
        }
    }
}
