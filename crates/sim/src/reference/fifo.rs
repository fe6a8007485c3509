//! FIFO: evicts the block that was inserted first, regardless of use.

use super::Policy;
use super::queues::Queues;
use crate::key::Key;

/// See the module.
pub struct Fifo {
    capacity: usize,
    blocks: Queues<1>,
}

impl Fifo {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        Fifo { capacity, blocks: Queues::default() }
    }
}

impl Policy for Fifo {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        if self.blocks.find(key).is_some() {
            return true;
        }
        if self.blocks.len(0) == self.capacity {
            evicted.extend(self.blocks.pop(0));
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
