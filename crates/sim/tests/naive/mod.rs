//! A second implementation of the reference policies, written for simplicity only: vectors, oldest first, searched from
//! end to end. It shares no code with the library.

/// A cache of plain numbers.
pub trait Naive {
    /// Accesses a block; returns whether it was cached.
    fn access(&mut self, key: u64) -> bool;
    /// Drops a block and everything remembered about it.
    fn remove(&mut self, key: u64);
    /// Blocks cached.
    fn cached(&self) -> Vec<u64>;
}

fn take(list: &mut Vec<u64>, key: u64) -> bool {
    let place = list.iter().position(|k| *k == key);
    place.map(|place| list.remove(place)).is_some()
}

fn at_least_one(part: usize) -> usize {
    part.max(1)
}

pub struct Lru {
    pub capacity: usize,
    pub list: Vec<u64>,
}

impl Naive for Lru {
    fn access(&mut self, key: u64) -> bool {
        let hit = take(&mut self.list, key);
        self.list.push(key);
        if self.list.len() > self.capacity {
            self.list.remove(0);
        }
        hit
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.list, key);
    }

    fn cached(&self) -> Vec<u64> {
        self.list.clone()
    }
}

pub struct Fifo {
    pub capacity: usize,
    pub list: Vec<u64>,
}

impl Naive for Fifo {
    fn access(&mut self, key: u64) -> bool {
        let hit = self.list.contains(&key);
        if !hit {
            self.list.push(key);
            if self.list.len() > self.capacity {
                self.list.remove(0);
            }
        }
        hit
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.list, key);
    }

    fn cached(&self) -> Vec<u64> {
        self.list.clone()
    }
}

/// A circular buffer with a hand, as in the textbooks; without removals.
pub struct Clock {
    pub slots: Vec<Option<(u64, bool)>>,
    pub hand: usize,
}

impl Naive for Clock {
    fn access(&mut self, key: u64) -> bool {
        if let Some(slot) = self.slots.iter_mut().flatten().find(|slot| slot.0 == key) {
            slot.1 = true;
            return true;
        }
        while let Some((_, used @ true)) = &mut self.slots[self.hand] {
            *used = false;
            self.hand = (self.hand + 1) % self.slots.len();
        }
        self.slots[self.hand] = Some((key, false));
        self.hand = (self.hand + 1) % self.slots.len();
        false
    }

    fn remove(&mut self, _: u64) {
        unreachable!("the buffer has no holes")
    }

    fn cached(&self) -> Vec<u64> {
        self.slots.iter().flatten().map(|slot| slot.0).collect()
    }
}

pub struct TwoQ {
    pub capacity: usize,
    pub a1in: Vec<u64>,
    pub a1out: Vec<u64>,
    pub am: Vec<u64>,
}

impl TwoQ {
    fn reclaim(&mut self) {
        if self.a1in.len() + self.am.len() < self.capacity {
            return;
        }
        let from_in = self.a1in.len() > at_least_one(self.capacity / 4) || self.am.is_empty();
        if from_in {
            let victim = self.a1in.remove(0);
            self.a1out.push(victim);
            if self.a1out.len() > at_least_one(self.capacity / 2) {
                self.a1out.remove(0);
            }
        } else {
            self.am.remove(0);
        }
    }
}

impl Naive for TwoQ {
    fn access(&mut self, key: u64) -> bool {
        if take(&mut self.am, key) {
            self.am.push(key);
            true
        } else if self.a1in.contains(&key) {
            true
        } else {
            let again = take(&mut self.a1out, key);
            self.reclaim();
            if again { &mut self.am } else { &mut self.a1in }.push(key);
            false
        }
    }

    fn remove(&mut self, key: u64) {
        let _ = take(&mut self.am, key) || take(&mut self.a1in, key) || take(&mut self.a1out, key);
    }

    fn cached(&self) -> Vec<u64> {
        [&self.a1in[..], &self.am].concat()
    }
}

/// Figure 4 of the paper, line by line; without removals.
#[derive(Default)]
pub struct Arc {
    pub c: usize,
    pub p: f64,
    pub t1: Vec<u64>,
    pub t2: Vec<u64>,
    pub b1: Vec<u64>,
    pub b2: Vec<u64>,
}

impl Arc {
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        let over = !self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p));
        if over || self.t2.is_empty() {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.push(self.t2.remove(0));
        }
    }
}

impl Naive for Arc {
    fn access(&mut self, key: u64) -> bool {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.t1, key) || take(&mut self.t2, key) {
            self.t2.push(key);
            return true;
        }
        if self.b1.contains(&key) {
            self.p = (self.p + if b1 >= b2 { 1.0 } else { b2 / b1 }).min(self.c as f64);
            self.replace(false);
            take(&mut self.b1, key);
            self.t2.push(key);
            return false;
        }
        if self.b2.contains(&key) {
            self.p = (self.p - if b2 >= b1 { 1.0 } else { b1 / b2 }).max(0.0);
            self.replace(true);
            take(&mut self.b2, key);
            self.t2.push(key);
            return false;
        }
        let (l1, l2) = (self.t1.len() + self.b1.len(), self.t2.len() + self.b2.len());
        if l1 == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                self.replace(false);
            } else {
                self.t1.remove(0);
            }
        } else if l1 + l2 >= self.c {
            if l1 + l2 == 2 * self.c {
                self.b2.remove(0);
            }
            self.replace(false);
        }
        self.t1.push(key);
        false
    }

    fn remove(&mut self, _: u64) {
        unreachable!("the paper knows no removals")
    }

    fn cached(&self) -> Vec<u64> {
        [&self.t1[..], &self.t2].concat()
    }
}

/// The paper's stack with a status each; a queue of resident HIR blocks; a list of remembered ones.
#[derive(Default)]
pub struct Lirs {
    pub capacity: usize,
    pub stack: Vec<u64>,
    pub lir: Vec<u64>,
    pub queue: Vec<u64>,
    pub gone: Vec<u64>,
}

impl Lirs {
    fn prune(&mut self) {
        while self.stack.first().is_some_and(|key| !self.lir.contains(key)) {
            let key = self.stack.remove(0);
            take(&mut self.gone, key);
        }
    }

    fn becomes_lir(&mut self, key: u64) {
        take(&mut self.stack, key);
        self.stack.push(key);
        self.lir.push(key);
        if self.lir.len() > self.capacity - at_least_one(self.capacity / 100) {
            let bottom = self.stack.remove(0);
            take(&mut self.lir, bottom);
            self.queue.push(bottom);
        }
        self.prune();
    }

    fn becomes_hir(&mut self, key: u64) {
        self.queue.push(key);
        self.stack.push(key);
        self.prune();
    }
}

impl Naive for Lirs {
    fn access(&mut self, key: u64) -> bool {
        if self.lir.contains(&key) {
            take(&mut self.stack, key);
            self.stack.push(key);
            self.prune();
            return true;
        }
        if take(&mut self.queue, key) {
            if self.stack.contains(&key) {
                self.becomes_lir(key);
            } else {
                self.becomes_hir(key);
            }
            return true;
        }
        let hir = at_least_one(self.capacity / 100);
        let lir_full = self.lir.len() >= self.capacity - hir;
        if self.lir.len() + self.queue.len() >= self.capacity {
            let victim = self.queue.remove(0);
            if self.stack.contains(&victim) {
                self.gone.push(victim);
                if self.gone.len() > 2 * self.capacity {
                    let forgotten = self.gone.remove(0);
                    take(&mut self.stack, forgotten);
                }
            }
        }
        let remembered = take(&mut self.gone, key);
        if remembered && self.stack.contains(&key) || !lir_full {
            self.becomes_lir(key);
        } else {
            self.becomes_hir(key);
        }
        false
    }

    fn remove(&mut self, key: u64) {
        for list in [&mut self.stack, &mut self.lir, &mut self.queue, &mut self.gone] {
            take(list, key);
        }
        self.prune();
    }

    fn cached(&self) -> Vec<u64> {
        [&self.lir[..], &self.queue].concat()
    }
}

#[derive(Default)]
pub struct S3Fifo {
    pub capacity: usize,
    /// Blocks and their hits.
    pub small: Vec<(u64, u8)>,
    pub main: Vec<(u64, u8)>,
    pub ghost: Vec<u64>,
}

impl Naive for S3Fifo {
    fn access(&mut self, key: u64) -> bool {
        if let Some(block) = self.small.iter_mut().chain(&mut self.main).find(|block| block.0 == key) {
            block.1 = (block.1 + 1).min(3);
            return true;
        }
        let again = take(&mut self.ghost, key);
        let most = self.capacity - at_least_one(self.capacity / 10);
        while self.small.len() + self.main.len() >= self.capacity {
            if self.main.len() > most || self.small.is_empty() {
                let (key, hits) = self.main.remove(0);
                if hits > 0 {
                    self.main.push((key, hits - 1));
                }
            } else {
                let (key, hits) = self.small.remove(0);
                if hits >= 2 {
                    self.main.push((key, 0));
                } else {
                    self.ghost.push(key);
                    if self.ghost.len() > most {
                        self.ghost.remove(0);
                    }
                }
            }
        }
        if again { &mut self.main } else { &mut self.small }.push((key, 0));
        false
    }

    fn remove(&mut self, key: u64) {
        self.small.retain(|block| block.0 != key);
        self.main.retain(|block| block.0 != key);
        take(&mut self.ghost, key);
    }

    fn cached(&self) -> Vec<u64> {
        self.small.iter().chain(&self.main).map(|block| block.0).collect()
    }
}

/// Blocks and whether they were used; the hand is a place in the list.
#[derive(Default)]
pub struct Sieve {
    pub capacity: usize,
    pub list: Vec<(u64, bool)>,
    pub hand: usize,
}

impl Naive for Sieve {
    fn access(&mut self, key: u64) -> bool {
        if let Some(block) = self.list.iter_mut().find(|block| block.0 == key) {
            block.1 = true;
            return true;
        }
        if self.list.len() == self.capacity {
            loop {
                if self.hand >= self.list.len() {
                    self.hand = 0;
                }
                if !self.list[self.hand].1 {
                    self.list.remove(self.hand);
                    // At the newest end the hand starts over at the oldest block, even if a block is added later.
                    if self.hand == self.list.len() {
                        self.hand = 0;
                    }
                    break;
                }
                self.list[self.hand].1 = false;
                self.hand += 1;
            }
        }
        self.list.push((key, false));
        false
    }

    fn remove(&mut self, key: u64) {
        if let Some(place) = self.list.iter().position(|block| block.0 == key) {
            self.list.remove(place);
            if place < self.hand {
                self.hand -= 1;
            }
            if self.hand == self.list.len() {
                self.hand = 0;
            }
        }
    }

    fn cached(&self) -> Vec<u64> {
        self.list.iter().map(|block| block.0).collect()
    }
}

/// The most hits that are possible, by exhaustive search over which blocks to hold after each access.
pub fn best_hits(keys: &[u64], capacity: usize) -> usize {
    use std::collections::{BTreeMap, BTreeSet};
    let mut states = BTreeMap::from([(BTreeSet::new(), 0)]);
    for key in keys {
        let mut next: BTreeMap<BTreeSet<u64>, usize> = BTreeMap::new();
        let mut offer = |state: BTreeSet<u64>, hits: usize| {
            let best = next.entry(state).or_default();
            *best = (*best).max(hits);
        };
        for (state, hits) in &states {
            if state.contains(key) {
                offer(state.clone(), hits + 1);
                continue;
            }
            offer(state.clone(), *hits);
            let mut with = state.clone();
            with.insert(*key);
            if with.len() <= capacity {
                offer(with, *hits);
                continue;
            }
            for victim in state {
                let mut without = with.clone();
                without.remove(victim);
                offer(without, *hits);
            }
        }
        states = next;
    }
    states.into_values().max().unwrap_or(0)
}
