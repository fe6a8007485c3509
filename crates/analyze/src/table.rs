//! The state of each block: a hash table with open addressing, designed for one look-up per reference and for little
//! memory.
//!
//! Slots are in the order of their keys' hashes, except for displaced ones. So a table can grow in place, in one pass
//! from its end: there is never much unused room, and never two copies of the table.

use std::hint::black_box;

use crate::reference::mix;

/// Bits that a key may have: the other bits of the eight bytes are marks.
pub(crate) const KEY_BITS: u32 = 60;
const MARK_BITS: u32 = 64 - KEY_BITS;
const MARKS: u32 = (1 << MARK_BITS) - 1;

/// Keys that are looked up together.
pub(crate) const AHEAD: usize = 32;
/// No spot to look at first.
pub(crate) const ANYWHERE: usize = usize::MAX;

/// Slots at first.
const FIRST_SLOTS: usize = 64;
/// The share of the slots that may be taken: the larger it is, the longer are the probe sequences.
const MOST_TAKEN: (usize, usize) = (3, 4);
/// A table grows by this part of itself, one in n: the smaller the part, the more often it grows.
const GROWTH: usize = 4;

/// A key and four marks, not all 0 unless the slot is vacant. Two halves, so that a slot needs only their alignment.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tag {
    upper: u32,
    lower: u32,
}

impl Tag {
    /// The lowest mark is set.
    fn new(key: u64) -> Tag {
        debug_assert!(key >> KEY_BITS == 0, "keys have {KEY_BITS} bits");
        let bits = key << MARK_BITS;
        Tag { upper: (bits >> 32) as u32, lower: bits as u32 | 1 }
    }

    #[inline]
    fn is_taken(self) -> bool {
        self.marks() != 0
    }

    #[inline]
    pub fn key(self) -> u64 {
        (u64::from(self.upper) << 32 | u64::from(self.lower)) >> MARK_BITS
    }

    #[inline]
    pub fn marks(self) -> u32 {
        self.lower & MARKS
    }

    #[inline]
    pub fn set_marks(&mut self, marks: u32) {
        debug_assert!(marks != 0 && marks & !MARKS == 0, "marks tell that the slot is taken");
        self.lower = self.lower & !MARKS | marks;
    }
}

/// A slot: a tag and the other state of its block.
pub(crate) trait Slot: Copy {
    /// A slot of a block without state.
    fn new(tag: Tag) -> Self;
    fn tag(&self) -> Tag;
}

#[derive(Clone)]
pub(crate) struct Table<S> {
    slots: Vec<S>,
    taken: usize,
}

impl<S: Slot> Table<S> {
    pub fn new() -> Table<S> {
        Table { slots: vec![Self::vacant(); FIRST_SLOTS], taken: 0 }
    }

    fn vacant() -> S {
        S::new(Tag::default())
    }

    /// Number of known blocks.
    pub fn len(&self) -> usize {
        self.taken
    }

    /// Returns where a key belongs: its hash as a share of all hashes, as that share of the slots.
    #[inline]
    fn home(&self, key: u64) -> usize {
        ((u128::from(mix(key)) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// Returns the spot of a key's slot, or of the vacant one where it belongs.
    #[inline]
    fn spot_of(&self, key: u64) -> usize {
        self.spot_from(self.home(key), key)
    }

    #[inline]
    fn spot_from(&self, home: usize, key: u64) -> usize {
        let mut at = home;
        loop {
            let tag = self.slots[at].tag();
            if !tag.is_taken() || tag.key() == key {
                return at;
            }
            at = self.next(at);
        }
    }

    /// Returns the spots of some keys: all looked up at once, so that memory accesses overlap.
    #[inline]
    pub fn spots_of(&self, keys: impl Iterator<Item = u64> + Clone) -> [usize; AHEAD] {
        let mut spots = [ANYWHERE; AHEAD];
        let mut read = 0;
        for (spot, key) in spots.iter_mut().zip(keys.clone()) {
            *spot = self.home(key);
            read ^= self.slots[*spot].tag().lower;
        }
        black_box(read);
        for (spot, key) in spots.iter_mut().zip(keys) {
            *spot = self.spot_from(*spot, key);
        }
        spots
    }

    /// Returns the content of a spot.
    pub fn at(&self, spot: usize) -> &S {
        &self.slots[spot]
    }

    /// Returns the spot of a key, which may be its position before other keys were added.
    #[inline]
    fn spot_near(&self, spot: usize, key: u64) -> usize {
        match self.slots.get(spot).map(S::tag) {
            Some(tag) if tag.is_taken() && tag.key() == key => spot,
            _ => self.spot_of(key),
        }
    }

    /// Returns a block's slot, if it is known. It may be at `spot`.
    #[inline]
    pub fn find(&mut self, key: u64, spot: usize) -> Option<&mut S> {
        let spot = self.spot_near(spot, key);
        Some(&mut self.slots[spot]).filter(|slot| slot.tag().is_taken())
    }

    /// Returns a block's slot, new if it is not known, and whether it is known. It may be at `spot`.
    #[inline]
    pub fn find_or_insert(&mut self, key: u64, spot: usize) -> (&mut S, bool) {
        let mut spot = self.spot_near(spot, key);
        let new = !self.slots[spot].tag().is_taken();
        if new {
            if (self.taken + 1) * MOST_TAKEN.1 > self.slots.len() * MOST_TAKEN.0 {
                self.stretch();
                spot = self.spot_of(key);
            }
            self.taken += 1;
            self.slots[spot] = S::new(Tag::new(key));
        }
        (&mut self.slots[spot], new)
    }

    /// Makes room. From the last slot to the first, each is moved to its new position, which is further back; behind
    /// it are only slots that stay.
    #[cold]
    fn stretch(&mut self) {
        let before = self.slots.len();
        let more = before / GROWTH;
        self.slots.reserve_exact(more);
        self.slots.resize(before + more, Self::vacant());
        let mut crowded = Vec::new();
        for at in (0..before).rev() {
            let slot = std::mem::replace(&mut self.slots[at], Self::vacant());
            if !slot.tag().is_taken() {
                continue;
            }
            let to = self.spot_of(slot.tag().key());
            if to > at {
                self.slots[to] = slot;
            } else {
                // Few, near the beginning or past the end: the slots before them are still to be moved.
                crowded.push(slot);
            }
        }
        crowded.into_iter().for_each(|slot| self.put(slot));
    }

    fn put(&mut self, slot: S) {
        let at = self.spot_of(slot.tag().key());
        self.slots[at] = slot;
    }

    /// Forgets a block. Those after it move up, so that none is lost.
    pub fn remove(&mut self, key: u64) -> Option<S> {
        let mut hole = self.spot_of(key);
        let removed = self.slots[hole];
        if !removed.tag().is_taken() {
            return None;
        }
        let slots = self.slots.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + slots - from };
        let mut at = self.next(hole);
        while self.slots[at].tag().is_taken() {
            // It may move up if its home is not after the hole.
            if distance(self.home(self.slots[at].tag().key()), at) >= distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = Self::vacant();
        self.taken -= 1;
        Some(removed)
    }

    /// Forgets all blocks. The memory is kept if it was used.
    pub fn clear(&mut self) {
        if self.taken < self.slots.len() / 4 {
            *self = Table::new();
        } else {
            self.slots.fill(Self::vacant());
            self.taken = 0;
        }
    }

    /// Forgets all blocks but some.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let kept: Vec<S> = self.iter().filter(|slot| keep(slot.tag().key())).copied().collect();
        self.slots.fill(Self::vacant());
        self.taken = kept.len();
        kept.into_iter().for_each(|slot| self.put(slot));
    }

    /// Returns a table with other slots for the same blocks.
    pub fn map<T: Slot>(&self, slot: impl Fn(&S) -> T) -> Table<T> {
        Table { slots: self.slots.iter().map(slot).collect(), taken: self.taken }
    }

    /// Returns all blocks, nearly in the order of their hashes: a growing table that is filled in this order has
    /// clusters.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.slots.iter().filter(|slot| slot.tag().is_taken())
    }

    /// Returns all blocks, in that order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().filter(|slot| slot.tag().is_taken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Copy)]
    struct Count(Tag, u32);

    impl Slot for Count {
        fn new(tag: Tag) -> Count {
            Count(tag, 0)
        }

        fn tag(&self) -> Tag {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        RetainFrom(u64),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Keys that all belong to the last slots cluster there and go past the end, which rarely happens in a large
        // table.
        let last: Vec<u64> = (0..).filter(|key| mix(*key) > u64::MAX / 256 * 255).take(60).collect();
        let key =
            move || prop_oneof![0u64..400, prop::sample::select(last.clone()), Just((1 << KEY_BITS) - 1)];
        prop_oneof![
            600 => key().prop_map(Step::Insert),
            600 => key().prop_map(Step::Remove),
            2 => key().prop_map(Step::RetainFrom),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(steps in prop::collection::vec(step(), 1..2000)) {
            let (mut table, mut map) = (Table::<Count>::new(), HashMap::new());
            for step in steps {
                match step {
                    Step::Insert(key) => {
                        let (slot, new) = table.find_or_insert(key, ANYWHERE);
                        slot.1 += 1;
                        slot.0.set_marks(slot.1 & MARKS | 1);
                        prop_assert_eq!(new, !map.contains_key(&key));
                        *map.entry(key).or_insert(0) += 1;
                    }
                    Step::Remove(key) => {
                        let found = table.find(key, ANYWHERE).map(|slot| slot.1);
                        prop_assert_eq!(found, map.get(&key).copied());
                        prop_assert_eq!(table.remove(key).map(|slot| slot.1), map.remove(&key));
                    }
                    Step::RetainFrom(least) => {
                        table.retain(|key| key >= least);
                        map.retain(|key, _| *key >= least);
                    }
                    Step::Clear => {
                        table.clear();
                        map.clear();
                    }
                }
                prop_assert_eq!(table.len(), map.len());
            }
            prop_assert!(table.iter().all(|slot| slot.0.marks() == slot.1 & MARKS | 1));
            let found: HashMap<_, _> = table.iter().map(|slot| (slot.0.key(), slot.1)).collect();
            prop_assert_eq!(found, map);
        }
    }
}
