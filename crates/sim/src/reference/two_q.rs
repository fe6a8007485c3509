//! 2Q, the full version: new blocks pass through a FIFO of a quarter of the cache; blocks that are used again
//! after leaving it, while they are remembered, enter the LRU queue, which has the rest of the cache.
//!
//! Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm",
//! VLDB'94, section 3.2, with its Kin = 25 % and Kout = 50 %.

use super::queues::{QueueNo, Queues};
use super::{Policy, share};
use crate::key::Key;

const IN: QueueNo = 0;
const OUT: QueueNo = 1;
const MAIN: QueueNo = 2;

/// See the module.
pub struct TwoQ {
    capacity: usize,
    in_blocks: usize,
    out_blocks: usize,
    queues: Queues<3>,
}

impl TwoQ {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        let (in_blocks, out_blocks) = (share(capacity, 0.25), share(capacity, 0.5));
        TwoQ { capacity, in_blocks, out_blocks, queues: Queues::default() }
    }

    fn make_room(&mut self, evicted: &mut Vec<Key>) {
        if self.queues.len(IN) + self.queues.len(MAIN) < self.capacity {
            return;
        }
        match self.queues.oldest(IN) {
            Some(oldest) if self.queues.len(IN) > self.in_blocks || self.queues.len(MAIN) == 0 => {
                evicted.push(self.queues.key(oldest));
                self.queues.move_to(OUT, oldest);
                if self.queues.len(OUT) > self.out_blocks {
                    self.queues.pop(OUT);
                }
            }
            _ => evicted.extend(self.queues.pop(MAIN)),
        }
    }
}

impl Policy for TwoQ {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        match self.queues.find(key).map(|at| (at, self.queues.queue(at))) {
            Some((at, MAIN)) => {
                self.queues.move_to(MAIN, at);
                true
            }
            Some((_, IN)) => true,
            Some((at, _)) => {
                self.queues.remove(at);
                self.make_room(evicted);
                self.queues.push(MAIN, key);
                false
            }
            None => {
                self.make_room(evicted);
                self.queues.push(IN, key);
                false
            }
        }
    }

    fn contains(&self, key: Key) -> bool {
        self.queues.queue_of(key).is_some_and(|queue| queue != OUT)
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.queues.find(key) {
            self.queues.remove(at);
        }
    }
}
