//! LIRS: blocks whose last two uses were close together (LIR) have nearly all of the cache; the others (HIR) share
//! a hundredth of it, and are remembered for as long as they are newer than the oldest LIR block.
//!
//! Source: Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy",
//! SIGMETRICS'02, section 3. The number of remembered addresses of blocks that are not cached is limited, as
//! the paper proposes: here to twice the cache's blocks.

use super::queues::{QueueNo, Queues};
use super::table::At;
use super::{Policy, share};
use crate::key::Key;

/// The stack with its only queue, and the marks of its entries.
const STACK: QueueNo = 0;
const LIR: u8 = 1;
const HIR: u8 = 2;
/// Not cached, only remembered.
const GONE: u8 = 3;

/// Queues of resident HIR blocks, and of remembered addresses in the order of their eviction.
const RESIDENT: QueueNo = 0;
const REMEMBERED: QueueNo = 1;

/// See the module.
pub struct Lirs {
    lir_most: usize,
    hir_most: usize,
    remembered_most: usize,
    lir: usize,
    stack: Queues<1>,
    hir: Queues<2>,
}

impl Lirs {
    /// A cache of n blocks, at least 1.
    pub fn new(capacity: usize) -> Self {
        let hir_most = share(capacity, 0.01);
        Lirs {
            lir_most: capacity - hir_most,
            hir_most,
            remembered_most: 2 * capacity,
            lir: 0,
            stack: Queues::default(),
            hir: Queues::default(),
        }
    }

    /// Removes entries older than the oldest LIR block from the stack.
    fn prune(&mut self) {
        while let Some(at) = self.stack.oldest(STACK).filter(|at| self.stack.mark(*at) != LIR) {
            let gone = self.stack.mark(at) == GONE;
            let key = self.stack.remove(at);
            if gone && let Some(at) = self.hir.find(key) {
                self.hir.remove(at);
            }
        }
    }

    /// Turns the oldest LIR block into a HIR block while there are too many.
    fn demote(&mut self) {
        while self.lir > self.lir_most {
            let Some(at) = self.stack.oldest(STACK) else { return };
            let key = self.stack.remove(at);
            self.lir -= 1;
            self.hir.push(RESIDENT, key);
            self.prune();
        }
    }

    fn promote(&mut self, stacked: At) {
        self.stack.set_mark(stacked, LIR);
        self.stack.move_to(STACK, stacked);
        self.lir += 1;
        self.demote();
    }

    fn evict(&mut self, evicted: &mut Vec<Key>) {
        let Some(at) = self.hir.oldest(RESIDENT) else { return };
        evicted.push(self.hir.key(at));
        match self.stack.find(self.hir.key(at)) {
            None => {
                self.hir.remove(at);
            }
            Some(stacked) => {
                self.stack.set_mark(stacked, GONE);
                self.hir.move_to(REMEMBERED, at);
                if self.hir.len(REMEMBERED) > self.remembered_most
                    && let Some(forgotten) = self.hir.pop(REMEMBERED).and_then(|key| self.stack.find(key))
                {
                    self.stack.remove(forgotten);
                }
            }
        }
    }

    fn hit_lir(&mut self, stacked: At) {
        self.stack.move_to(STACK, stacked);
        self.prune();
    }

    fn hit_hir(&mut self, key: Key, at: At) {
        match self.stack.find(key) {
            Some(stacked) => {
                self.hir.remove(at);
                self.promote(stacked);
            }
            None => {
                self.hir.move_to(RESIDENT, at);
                self.push_hir(key);
            }
        }
    }

    fn push_hir(&mut self, key: Key) {
        let at = self.stack.push(STACK, key);
        self.stack.set_mark(at, HIR);
        self.prune();
    }

    fn miss(&mut self, key: Key, evicted: &mut Vec<Key>) {
        if self.hir.len(RESIDENT) >= self.hir_most && self.lir >= self.lir_most {
            self.evict(evicted);
        }
        if let Some(remembered) = self.hir.find(key) {
            self.hir.remove(remembered);
        }
        match self.stack.find(key) {
            Some(stacked) => self.promote(stacked),
            None if self.lir < self.lir_most => {
                let at = self.stack.push(STACK, key);
                self.promote(at);
            }
            None => {
                self.hir.push(RESIDENT, key);
                self.push_hir(key);
            }
        }
    }
}

impl Policy for Lirs {
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool {
        if let Some(at) = self.hir.find(key).filter(|at| self.hir.queue(*at) == RESIDENT) {
            self.hit_hir(key, at);
            return true;
        }
        match self.stack.find(key).filter(|at| self.stack.mark(*at) == LIR) {
            Some(stacked) => self.hit_lir(stacked),
            None => {
                self.miss(key, evicted);
                return false;
            }
        }
        true
    }

    fn contains(&self, key: Key) -> bool {
        self.hir.queue_of(key) == Some(RESIDENT)
            || self.stack.find(key).is_some_and(|at| self.stack.mark(at) == LIR)
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.stack.find(key) {
            self.lir -= usize::from(self.stack.mark(at) == LIR);
            self.stack.remove(at);
        }
        if let Some(at) = self.hir.find(key) {
            self.hir.remove(at);
        }
        self.prune();
    }
}
