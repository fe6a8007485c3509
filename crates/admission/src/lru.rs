//! Block numbers in LRU order, in memory that is allocated once.
//!
//! Invariants
//! - There are at most `capacity` keys, and never more than `MOST_PLACES`; a new one replaces the least
//!   recently used.
//! - Nothing is allocated after construction, except in `resize`. Each operation takes constant time on
//!   average.

const NONE: u32 = u32::MAX;
/// Limits the memory to 2 GiB, whatever is requested.
const MOST_PLACES: u32 = 1 << 26;
/// A spreading multiplier: 2^64 over the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy)]
struct Place {
    key: u64,
    value: u8,
    newer: u32,
    older: u32,
    /// The next place of the same bucket, or the next free place.
    next: u32,
}

/// An LRU table of keys with a small value each.
pub struct Lru {
    places: Vec<Place>,
    buckets: Vec<u32>,
    capacity: u32,
    len: u32,
    free: u32,
    newest: u32,
    oldest: u32,
}

impl Lru {
    /// Makes a table for this many keys.
    pub fn new(capacity: u32) -> Lru {
        let capacity = capacity.min(MOST_PLACES);
        let buckets = (capacity as usize).max(1).next_power_of_two();
        Lru {
            places: Vec::with_capacity(capacity as usize),
            buckets: vec![NONE; buckets],
            capacity,
            len: 0,
            free: NONE,
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Returns how many keys there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many keys there may be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>() + self.buckets.capacity() * size_of::<u32>()
    }

    /// Returns the value of a key, without changing the order.
    pub fn get(&self, key: u64) -> Option<u8> {
        self.find(key).map(|place| self.places[place as usize].value)
    }

    /// Makes the key the most recently used, with this value. Returns the key that it displaced, if any.
    pub fn put(&mut self, key: u64, value: u8) -> Option<u64> {
        if let Some(place) = self.find(key) {
            self.places[place as usize].value = value;
            self.unlink(place);
            self.link_newest(place);
            return None;
        }
        if self.capacity == 0 {
            return Some(key);
        }
        let displaced = if self.len == self.capacity { self.pop_oldest() } else { None };
        let place = self.take_free();
        let bucket = self.bucket(key);
        self.places[place as usize] =
            Place { key, value, newer: NONE, older: NONE, next: self.buckets[bucket] };
        self.buckets[bucket] = place;
        self.link_newest(place);
        self.len += 1;
        displaced
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: u64) -> Option<u8> {
        let place = self.find(key)?;
        self.unlink(place);
        let bucket = self.bucket(key);
        let next = self.places[place as usize].next;
        if self.buckets[bucket] == place {
            self.buckets[bucket] = next;
        } else {
            let mut at = self.buckets[bucket];
            while self.places[at as usize].next != place {
                at = self.places[at as usize].next;
            }
            self.places[at as usize].next = next;
        }
        self.places[place as usize].next = self.free;
        self.free = place;
        self.len -= 1;
        Some(self.places[place as usize].value)
    }

    /// Removes the least recently used key and returns it.
    pub fn pop_oldest(&mut self) -> Option<u64> {
        let key = self.places.get(self.oldest as usize)?.key;
        self.remove(key);
        Some(key)
    }

    /// Returns the least recently used key and its value.
    pub fn oldest(&self) -> Option<(u64, u8)> {
        self.places.get(self.oldest as usize).map(|place| (place.key, place.value))
    }

    /// Returns all values, least recently used first.
    pub fn values(&self) -> impl Iterator<Item = u8> + '_ {
        let first = self.places.get(self.oldest as usize);
        std::iter::successors(first, |place| self.places.get(place.newer as usize)).map(|place| place.value)
    }

    /// Keeps only keys for which this is true, in the same order.
    pub fn retain(&mut self, keeps: impl Fn(u64) -> bool) {
        let mut place = self.oldest;
        while place != NONE {
            let Place { key, newer, .. } = self.places[place as usize];
            if !keeps(key) {
                self.remove(key);
            }
            place = newer;
        }
    }

    /// Changes the capacity; the least recently used keys are dropped if they no longer fit.
    pub fn resize(&mut self, capacity: u32) {
        let mut resized = Lru::new(capacity);
        let mut place = self.oldest;
        while place != NONE {
            let Place { key, value, newer, .. } = self.places[place as usize];
            resized.put(key, value);
            place = newer;
        }
        *self = resized;
    }

    fn bucket(&self, key: u64) -> usize {
        let mask = self.buckets.len() as u64 - 1;
        ((key.wrapping_mul(SPREAD) >> 32) & mask) as usize
    }

    fn find(&self, key: u64) -> Option<u32> {
        let mut place = self.buckets[self.bucket(key)];
        while place != NONE && self.places[place as usize].key != key {
            place = self.places[place as usize].next;
        }
        (place != NONE).then_some(place)
    }

    fn take_free(&mut self) -> u32 {
        if self.free == NONE {
            self.places.push(Place { key: 0, value: 0, newer: NONE, older: NONE, next: NONE });
            return self.places.len() as u32 - 1;
        }
        let place = self.free;
        self.free = self.places[place as usize].next;
        place
    }

    fn unlink(&mut self, place: u32) {
        let Place { newer, older, .. } = self.places[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        self.places[place as usize].newer = NONE;
        self.places[place as usize].older = older;
        match older {
            NONE => self.oldest = place,
            older => self.places[older as usize].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_capacity_nothing_is_kept() {
        let mut lru = Lru::new(0);
        assert_eq!(lru.put(1, 0), Some(1));
        assert_eq!((lru.get(1), lru.len(), lru.pop_oldest()), (None, 0, None));
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(
            capacity in 1u32..6,
            steps in prop::collection::vec((0u8..3, 0u64..10, any::<u8>()), 0..300),
        ) {
            let (mut lru, mut list) = (Lru::new(capacity), Vec::<(u64, u8)>::new());
            for (step, key, value) in steps {
                let known = list.iter().position(|(other, _)| *other == key);
                match step {
                    0 => prop_assert_eq!(lru.get(key), known.map(|at| list[at].1)),
                    1 => {
                        let removed = known.map(|at| list.remove(at).1);
                        prop_assert_eq!(lru.remove(key), removed);
                    }
                    _ => {
                        known.map(|at| list.remove(at));
                        let displaced =
                            (list.len() == capacity as usize).then(|| list.remove(0).0);
                        list.push((key, value));
                        prop_assert_eq!(lru.put(key, value), displaced);
                    }
                }
                prop_assert_eq!(lru.len() as usize, list.len());
            }
            lru.retain(|key| key % 3 != 0);
            list.retain(|(key, _)| key % 3 != 0);
            lru.resize(2);
            let kept: Vec<u64> = std::iter::from_fn(|| lru.pop_oldest()).collect();
            let newest: Vec<u64> = list.iter().skip(list.len().saturating_sub(2)).map(|(key, _)| *key).collect();
            prop_assert_eq!(kept, newest);
        }
    }
}
