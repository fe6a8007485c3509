//! SIEVE: a FIFO with a hand that moves from the oldest to the newest block, evicts the first one that was
//! not used, and leaves used blocks in place.
//!
//! Source: Zhang et al., "SIEVE is simpler than LRU", NSDI'24, algorithm 1.

use super::Policy;
use super::queues::Queues;
use super::table::At;
use crate::key::Key;

const USED: u8 = 1;

/// See the module.
pub struct Sieve {
    capacity: usize,
    blocks: Queues<1>,
    hand: Option<At>,
}

impl Sieve {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        Sieve { capacity, blocks: Queues::default(), hand: None }
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        while let Some(at) = self.hand.or_else(|| self.blocks.oldest(0)) {
            self.hand = self.blocks.newer(at);
            if self.blocks.mark(at) != USED {
                evicted.push(self.blocks.remove(at));
                return;
            }
            self.blocks.set_mark(at, 0);
        }
    }
}

impl Policy for Sieve {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        if let Some(at) = self.blocks.find(key) {
            self.blocks.set_mark(at, USED);
            return true;
        }
        if self.blocks.len(0) == self.capacity {
            self.evict(evicted);
        }
        self.blocks.push(0, key);
        false
    }

    fn contains(&self, key: Key) -> bool {
        self.blocks.find(key).is_some()
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.blocks.find(key) {
            if self.hand == Some(at) {
                self.hand = self.blocks.newer(at);
            }
            self.blocks.remove(at);
        }
    }
}
