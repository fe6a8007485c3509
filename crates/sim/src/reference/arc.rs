//! ARC: one LRU queue for blocks used once, one for blocks used more often, and a border between them that
//! follows the hits in the addresses evicted from either queue.
//!
//! Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST'03, figure 4.

use super::Policy;
use super::partitions::Resizable;
use super::queues::{QueueNo, Queues};
use crate::key::Key;

const T1: QueueNo = 0;
const T2: QueueNo = 1;
const B1: QueueNo = 2;
const B2: QueueNo = 3;

/// See the module.
pub struct Arc {
    capacity: usize,
    /// The target size of T1, `p` in the paper.
    target: f64,
    queues: Queues<4>,
}

impl Arc {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        Arc { capacity, target: 0.0, queues: Queues::default() }
    }

    fn replace(&mut self, in_b2: bool, evicted: &mut Vec<Key>) {
        let t1 = self.queues.len(T1) as f64;
        let from_t1 = t1 >= 1.0 && (t1 > self.target || in_b2 && t1 == self.target);
        let (from, to) = if from_t1 || self.queues.len(T2) == 0 { (T1, B1) } else { (T2, B2) };
        if let Some(oldest) = self.queues.oldest(from) {
            evicted.push(self.queues.key(oldest));
            self.queues.move_to(to, oldest);
        }
    }

    /// Moves the border after a hit in B1 or B2.
    fn adapt(&mut self, in_b2: bool) {
        let (b1, b2) = (self.queues.len(B1) as f64, self.queues.len(B2) as f64);
        self.target = if in_b2 {
            (self.target - (b1 / b2).max(1.0)).max(0.0)
        } else {
            (self.target + (b2 / b1).max(1.0)).min(self.capacity as f64)
        };
    }

    fn make_room(&mut self, evicted: &mut Vec<Key>) {
        let [t1, t2, b1, b2] = [T1, T2, B1, B2].map(|queue| self.queues.len(queue));
        if t1 + b1 >= self.capacity {
            if b1 > 0 {
                self.queues.pop(B1);
                self.replace_if_full(false, evicted);
            } else {
                evicted.extend(self.queues.pop(T1));
            }
        } else if t1 + t2 + b1 + b2 >= self.capacity {
            if t1 + t2 + b1 + b2 >= 2 * self.capacity {
                self.queues.pop(B2);
            }
            self.replace_if_full(false, evicted);
        }
    }

    /// Without removals the cache is full whenever this is called, as in the paper.
    fn replace_if_full(&mut self, in_b2: bool, evicted: &mut Vec<Key>) {
        if self.queues.len(T1) + self.queues.len(T2) >= self.capacity {
            self.replace(in_b2, evicted);
        }
    }
}

impl Resizable for Arc {
    fn cached_blocks(&self) -> usize {
        self.queues.len(T1) + self.queues.len(T2)
    }

    /// Forgets addresses beyond the sizes of the paper's lists.
    fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
        self.target = self.target.min(blocks as f64);
        while self.queues.len(B1) > 0 && self.queues.len(T1) + self.queues.len(B1) > blocks {
            self.queues.pop(B1);
        }
        while self.queues.len(B2) > 0
            && self.cached_blocks() + self.queues.len(B1) + self.queues.len(B2) > 2 * blocks
        {
            self.queues.pop(B2);
        }
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        self.replace(false, evicted);
    }

    fn keys(&self) -> Box<dyn Iterator<Item = Key> + '_> {
        Box::new(self.queues.keys(T1).chain(self.queues.keys(T2)))
    }
}

impl Policy for Arc {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        match self.queues.find(key).map(|at| (at, self.queues.queue(at))) {
            Some((at, T1 | T2)) => {
                self.queues.move_to(T2, at);
                true
            }
            Some((at, ghost)) => {
                self.adapt(ghost == B2);
                self.replace_if_full(ghost == B2, evicted);
                self.queues.move_to(T2, at);
                false
            }
            None => {
                self.make_room(evicted);
                self.queues.push(T1, key);
                false
            }
        }
    }

    fn contains(&self, key: Key) -> bool {
        self.queues.queue_of(key).is_some_and(|queue| queue == T1 || queue == T2)
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.queues.find(key) {
            self.queues.remove(at);
        }
    }
}
