//! A cache that never evicts: an access that it misses is a miss in every cache.

use super::Policy;
use crate::key::{Key, KeySet};

/// See the module.
#[derive(Default)]
pub struct Unlimited {
    blocks: KeySet,
}

impl Policy for Unlimited {
    fn access(&mut self, key: Key, _evicted: &mut Vec<Key>) -> bool {
        self.blocks.insert(key)
    }

    fn contains(&self, key: Key) -> bool {
        self.blocks.contains(key)
    }

    fn remove(&mut self, key: Key) {
        self.blocks.remove(key);
    }
}
