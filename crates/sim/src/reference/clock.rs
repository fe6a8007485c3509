//! CLOCK, or second chance: FIFO, but a block that was used since the hand last met it stays for another round.

use super::Policy;
use super::queues::Queues;
use crate::key::Key;

const USED: u8 = 1;

/// See the module.
pub struct Clock {
    capacity: usize,
    blocks: Queues<1>,
}

impl Clock {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        Clock { capacity, blocks: Queues::default() }
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        while let Some(at) = self.blocks.oldest(0) {
            if self.blocks.mark(at) != USED {
                evicted.push(self.blocks.remove(at));
                return;
            }
            self.blocks.set_mark(at, 0);
            self.blocks.move_to(0, at);
        }
    }
}

impl Policy for Clock {
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
            self.blocks.remove(at);
        }
    }
}
