//! What is known of each block: a hash table with open addressing, made for one look a reference.

use std::hint::black_box;

use crate::order::Order;
use crate::reference::{Kind, mix};

/// No place: the block was discarded, or is being moved.
pub(crate) const NOWHERE: u32 = u32::MAX;
const EMPTY: u64 = u64::MAX;

/// What is known of a block. Aligned so that none lies across two lines of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Slot {
    /// The block.
    pub key: u64,
    /// Its last access in the order of last accesses.
    pub place: u32,
    /// The largest distance at an access since the last write.
    pub deepest: u32,
    /// Reads and writes.
    pub count: u32,
    /// What the last access was.
    pub last_was_write: bool,
    /// It was written, and not discarded since.
    pub dirty: bool,
    /// Whether it is dirty is known only to what came before this part of the trace.
    pub inherited: bool,
}

const VACANT: Slot = Slot {
    key: EMPTY,
    place: NOWHERE,
    deepest: 0,
    count: 0,
    last_was_write: false,
    dirty: false,
    inherited: false,
};

impl Slot {
    /// What the last access was.
    pub fn last(&self) -> Kind {
        if self.last_was_write { Kind::Write } else { Kind::Read }
    }
}

#[derive(Clone)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    used: usize,
}

impl Table {
    pub fn new() -> Table {
        Table { slots: vec![VACANT; 64], used: 0 }
    }

    /// Blocks known.
    pub fn len(&self) -> usize {
        self.used
    }

    fn home(&self, key: u64) -> usize {
        mix(key) as usize & (self.slots.len() - 1)
    }

    /// The slot of a key, or the vacant one where it belongs.
    #[inline]
    fn place_of(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].key != key && self.slots[at].key != EMPTY {
            at = (at + 1) & mask;
        }
        at
    }

    /// Has the slots of some keys, and their places in the order, brought into the processor's cache: all at once instead
    /// of one after the other.
    pub fn warm(&self, keys: impl Iterator<Item = u64> + Clone, order: &Order) {
        let slots = keys.clone().fold(0, |sum, key| sum ^ self.slots[self.home(key)].key);
        black_box(slots);
        black_box(keys.fold(0, |sum, key| sum ^ order.peek(self.slots[self.home(key)].place)));
    }

    /// A block's slot, if it is known.
    #[inline]
    pub fn find(&mut self, key: u64) -> Option<&mut Slot> {
        let at = self.place_of(key);
        Some(&mut self.slots[at]).filter(|slot| slot.key == key)
    }

    /// A block's slot, new if it is not known, and whether it is.
    #[inline]
    pub fn find_or_insert(&mut self, key: u64) -> (&mut Slot, bool) {
        let mut at = self.place_of(key);
        let new = self.slots[at].key == EMPTY;
        if new {
            if self.used * 4 >= self.slots.len() * 3 {
                self.grow();
                at = self.place_of(key);
            }
            self.used += 1;
            self.slots[at] = Slot { key, ..VACANT };
        }
        (&mut self.slots[at], new)
    }

    fn grow(&mut self) {
        let larger = vec![VACANT; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.key != EMPTY {
                let at = self.place_of(slot.key);
                self.slots[at] = slot;
            }
        }
    }

    /// Forgets a block. Those behind it move up, so that none is lost.
    pub fn remove(&mut self, key: u64) -> Option<Slot> {
        let mask = self.slots.len() - 1;
        let mut hole = self.place_of(key);
        let removed = self.slots[hole];
        if removed.key == EMPTY {
            return None;
        }
        self.used -= 1;
        let mut next = (hole + 1) & mask;
        while self.slots[next].key != EMPTY {
            // It may move up if its home is not after the hole.
            let distance = next.wrapping_sub(self.home(self.slots[next].key)) & mask;
            if distance >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = VACANT;
        Some(removed)
    }

    /// All blocks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.key != EMPTY)
    }

    /// All blocks, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| slot.key != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_agrees_with_a_map(steps in prop::collection::vec((0u64..200, any::<bool>()), 1..2000)) {
            let (mut table, mut map) = (Table::new(), HashMap::new());
            for (key, insert) in steps {
                if insert {
                    let (slot, new) = table.find_or_insert(key);
                    slot.count += 1;
                    prop_assert_eq!(new, !map.contains_key(&key));
                    *map.entry(key).or_insert(0) += 1;
                } else {
                    prop_assert_eq!(table.remove(key).map(|slot| slot.count), map.remove(&key));
                }
                prop_assert_eq!(table.len(), map.len());
            }
            let found: HashMap<_, _> = table.iter().map(|slot| (slot.key, slot.count)).collect();
            prop_assert_eq!(found, map);
        }
    }
}
