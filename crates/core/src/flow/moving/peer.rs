//! The blocks that this host needs from the previous owner, the *peer*: which of their sectors are newest
//! there, and the progress of each block.
//!
//! Invariants
//! - A block stays in this table until the peer has durably forgotten it or, if the peer is given up, until the record
//!   says that this host does not need the peer. Until then the origin must not be written there: after a crash the
//!   peer's version would be taken for the newest.
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
    /// It is durable here: the peer may forget it. If the peer is given up, sectors that only the peer had are lost.
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
    /// The list is made of what this host has cached: the peer may have any other block as well.
    is_assumed: bool,
    /// The peer is given up, and blocks that are durable here may be cleaned although the record does not say that yet:
    /// without their space, the others never become durable.
    is_short_of_space: bool,
    /// How many blocks are not ready.
    unready: usize,
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
            is_assumed: false,
            is_short_of_space: false,
            unready: 0,
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
        let before = self.blocks.insert(block.0, entry);
        self.unready += usize::from(before.is_none_or(|before| before.stage == Stage::Ready));
        if before.is_none() {
            self.background.push_back(block);
        }
    }

    /// The list was made of what this host has cached, since the peer is dead.
    pub fn assume(&mut self) {
        self.is_assumed = true;
    }

    /// Called when this host has dropped everything that it had cached.
    pub fn needs_all(&mut self) {
        self.blocks.values_mut().for_each(|entry| entry.needed = entry.listed);
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

    /// Whether the peer may still have a version of a block that would count after a crash.
    #[inline]
    pub fn may_have(&self, block: BlockNo) -> bool {
        self.is_assumed || self.blocks.contains_key(&block.0)
    }

    /// Whether the cleaner must leave a block alone.
    pub fn bars_cleaning(&self, block: BlockNo) -> bool {
        let is_ready = || self.get(block).is_none_or(|entry| entry.stage == Stage::Ready);
        self.may_have(block) && !(self.is_short_of_space && is_ready())
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
            self.unready += usize::from(stage != Stage::Ready);
            self.unready -= usize::from(entry.stage != Stage::Ready);
            entry.stage = stage;
        }
    }

    pub fn waits_for_commits(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Marks the settling blocks for which `is_durable` holds as ready to be forgotten. It gets the sectors that must
    /// be durable: all that the peer has, except those that only the peer has and that are being given up.
    pub fn settle(&mut self, mut is_durable: impl FnMut(BlockNo, u8) -> bool) {
        for _ in 0..self.settling.len() {
            let block = self.settling.pop_front().expect("counted");
            let Some(PeerBlock { listed, needed, .. }) = self.get(block) else { continue };
            if is_durable(block, listed & !needed) {
                self.set(block, Stage::Ready);
            } else {
                self.settling.push_back(block);
            }
        }
    }

    /// Whether everything that this host can have of the blocks is durable here.
    pub fn is_settled(&self) -> bool {
        self.unready == 0
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
    }

    /// Called when blocks wait for space that only blocks of this list could give up. Returns whether that changes
    /// anything.
    pub fn runs_short(&mut self) -> bool {
        self.given_up.is_some() && !std::mem::replace(&mut self.is_short_of_space, true)
    }

    /// Returns how sectors that only the peer had are handled, if the peer is given up.
    pub fn given_up(&self) -> Option<PeerLoss> {
        self.given_up
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
