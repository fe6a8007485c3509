//! S3-FIFO: a small FIFO of a tenth of the cache for new blocks, a main FIFO with reinsertion, and a ghost queue
//! of the addresses that left the small one unused.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23, section 4. Where the
//! paper leaves a choice, libCacheSim's is used: two hits promote, and the main queue evicts only when it
//! exceeds its nine tenths.

use super::queues::{QueueNo, Queues};
use super::{Policy, share};
use crate::key::Key;

const SMALL: QueueNo = 0;
const MAIN: QueueNo = 1;
const GHOST: QueueNo = 2;

/// Hits that move a block from the small queue to the main one.
const PROMOTING_HITS: u8 = 2;
const MAX_HITS: u8 = 3;

/// See the module.
pub struct S3Fifo {
    capacity: usize,
    main_blocks: usize,
    queues: Queues<3>,
}

impl S3Fifo {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        S3Fifo { capacity, main_blocks: capacity - share(capacity, 0.1), queues: Queues::default() }
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        while self.queues.len(SMALL) + self.queues.len(MAIN) >= self.capacity {
            if self.queues.len(MAIN) > self.main_blocks || self.queues.len(SMALL) == 0 {
                self.main_step(evicted);
            } else {
                self.small_step(evicted);
            }
        }
    }

    fn small_step(&mut self, evicted: &mut Vec<Key>) {
        let Some(at) = self.queues.oldest(SMALL) else { return };
        let promoted = self.queues.mark(at) >= PROMOTING_HITS;
        self.queues.set_mark(at, 0);
        if !promoted {
            evicted.push(self.queues.key(at));
        }
        self.queues.move_to(if promoted { MAIN } else { GHOST }, at);
        if self.queues.len(GHOST) > self.main_blocks {
            self.queues.pop(GHOST);
        }
    }

    fn main_step(&mut self, evicted: &mut Vec<Key>) {
        let Some(at) = self.queues.oldest(MAIN) else { return };
        match self.queues.mark(at) {
            0 => evicted.push(self.queues.remove(at)),
            hits => {
                self.queues.set_mark(at, hits - 1);
                self.queues.move_to(MAIN, at);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        let found = self.queues.find(key);
        let queue = match found.map(|at| (at, self.queues.queue(at))) {
            Some((at, SMALL | MAIN)) => {
                self.queues.set_mark(at, (self.queues.mark(at) + 1).min(MAX_HITS));
                return true;
            }
            Some((at, _)) => {
                self.queues.remove(at);
                MAIN
            }
            None => SMALL,
        };
        self.evict(evicted);
        self.queues.push(queue, key);
        false
    }

    fn contains(&self, key: Key) -> bool {
        self.queues.queue_of(key).is_some_and(|queue| queue != GHOST)
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.queues.find(key) {
            self.queues.remove(at);
        }
    }
}
