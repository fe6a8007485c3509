//! Finds a key's node: open addressing with linear probing, 8 bytes per entry.
//!
//! Invariants
//! - An entry holds the high half of its key's hash. Its home follows from that half alone, so entries can be
//!   moved without reading their keys.
//! - Between an entry and its home no entry is empty: deleting moves later entries back.
//! - At most three quarters of the entries are used.

use crate::key::Key;

/// A node's index in the arena.
pub type At = u32;

const EMPTY: At = At::MAX;
const MIN_BITS: u32 = 4;

#[derive(Clone, Copy)]
struct Entry {
    tag: u32,
    at: At,
}

/// See the module.
pub struct Table {
    entries: Vec<Entry>,
    bits: u32,
    used: usize,
}

fn tag(key: Key) -> u32 {
    (key.hash() >> 32) as u32
}

impl Default for Table {
    fn default() -> Self {
        Table { entries: vec![Entry { tag: 0, at: EMPTY }; 1 << MIN_BITS], bits: MIN_BITS, used: 0 }
    }
}

impl Table {
    fn home(&self, tag: u32) -> usize {
        (tag >> (32 - self.bits)) as usize
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.entries.len() - 1)
    }

    /// The node of a key. `is` returns whether a node belongs to the key.
    pub fn find(&self, key: Key, is: impl Fn(At) -> bool) -> Option<At> {
        let tag = tag(key);
        let mut place = self.home(tag);
        loop {
            let entry = self.entries[place];
            if entry.at == EMPTY {
                return None;
            }
            if entry.tag == tag && is(entry.at) {
                return Some(entry.at);
            }
            place = self.next(place);
        }
    }

    /// Adds the node of a key that has none.
    pub fn insert(&mut self, key: Key, at: At) {
        if (self.used + 1) * 4 > self.entries.len() * 3 && self.bits < 32 {
            self.grow();
        }
        self.used += 1;
        self.place(Entry { tag: tag(key), at });
    }

    fn place(&mut self, entry: Entry) {
        let mut place = self.home(entry.tag);
        while self.entries[place].at != EMPTY {
            place = self.next(place);
        }
        self.entries[place] = entry;
    }

    fn grow(&mut self) {
        self.bits += 1;
        let empty = vec![Entry { tag: 0, at: EMPTY }; 1 << self.bits];
        for entry in std::mem::replace(&mut self.entries, empty) {
            if entry.at != EMPTY {
                self.place(entry);
            }
        }
    }

    /// Removes the node of a key, which must exist.
    pub fn remove(&mut self, key: Key, at: At) {
        let mut hole = self.home(tag(key));
        while self.entries[hole].at != at {
            hole = self.next(hole);
        }
        self.used -= 1;
        let mut place = hole;
        loop {
            place = self.next(place);
            let entry = self.entries[place];
            if entry.at == EMPTY {
                break;
            }
            // The entry may fill the hole if its home is not after the hole, on the way round to its place.
            let mask = self.entries.len() - 1;
            let way = |from: usize, to: usize| to.wrapping_sub(from) & mask;
            if way(self.home(entry.tag), place) >= way(hole, place) {
                self.entries[hole] = entry;
                hole = place;
            }
        }
        self.entries[hole].at = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_map_does(steps in prop::collection::vec((0u64..200, any::<bool>()), 1..800)) {
            let (mut table, mut map) = (Table::default(), HashMap::new());
            let mut keys = Vec::new();
            for (key, insert) in steps {
                let key = Key(key);
                let found = table.find(key, |at| keys[at as usize] == key);
                prop_assert_eq!(found, map.get(&key).copied());
                match (found, insert) {
                    (None, true) => {
                        let at = keys.len() as At;
                        keys.push(key);
                        table.insert(key, at);
                        map.insert(key, at);
                    }
                    (Some(at), false) => {
                        table.remove(key, at);
                        map.remove(&key);
                    }
                    _ => {}
                }
            }
            for key in (0..200).map(Key) {
                prop_assert_eq!(table.find(key, |at| keys[at as usize] == key), map.get(&key).copied());
            }
        }
    }
}
