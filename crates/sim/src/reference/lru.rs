//! Exact LRU: evicts the least recently used block.

use super::Policy;
use super::partitions::Resizable;
use super::queues::Queues;
use crate::key::Key;

/// See the module.
pub struct Lru {
    capacity: usize,
    blocks: Queues<1>,
}

impl Lru {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        Lru { capacity, blocks: Queues::default() }
    }
}

impl Resizable for Lru {
    fn cached_blocks(&self) -> usize {
        self.blocks.len(0)
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        evicted.extend(self.blocks.pop(0));
    }

    fn keys(&self) -> Box<dyn Iterator<Item = Key> + '_> {
        Box::new(self.blocks.keys(0))
    }
}

impl Policy for Lru {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        if let Some(at) = self.blocks.find(key) {
            self.blocks.move_to(0, at);
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
