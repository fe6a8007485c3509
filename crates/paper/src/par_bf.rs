//! Par-BF: an index of what a remote cache has, as a list of partial Bloom filters. A new filter is added when the last
//! one is full, so the size need not be known in advance.
//!
//! A Bloom filter cannot forget. When the filters have room for a filter's worth of keys more than the cache holds, the
//! oldest is dropped, and those of its keys that are still cached are entered again. Until then a key that left the
//! cache gives a wasted trip, as a false positive does.
//!
//! Invariant
//! - A cached key is always found: what is not found is not cached.
//!
//! Source: Liu et al., 2015, section 4.1; its space of 1.44 log2(1 / fpp) bits a key.

use std::collections::{HashSet, VecDeque};

use bloomfilter::Bloom;

/// Filters are seeded, so that a run can be repeated. The halves are the keys of two hash functions, and must differ.
const SEED: [u8; 32] = *b"the first half, the second half.";

struct Part {
    filter: Bloom<u64>,
    /// Its keys. The paper's index does not keep them: there the cache says what it still has.
    keys: Vec<u64>,
}

/// See the module.
pub struct ParBf {
    parts: VecDeque<Part>,
    /// The keys of all parts, each of which is in one.
    entered: HashSet<u64>,
    part_keys: usize,
    part_bytes: usize,
    capacity: usize,
}

impl ParBf {
    /// Makes an index for a cache of `capacity` blocks. Each filter holds `part_keys` keys and has this share of false
    /// positives.
    pub fn new(capacity: usize, part_keys: usize, false_positives: f64) -> ParBf {
        let part_keys = part_keys.max(1);
        let part_bytes = Bloom::<u64>::compute_bitmap_size(part_keys, false_positives);
        ParBf { parts: VecDeque::new(), entered: HashSet::new(), part_keys, part_bytes, capacity }
    }

    /// Whether the key may be cached.
    pub fn may_have(&self, key: u64) -> bool {
        self.parts.iter().any(|part| part.filter.check(&key))
    }

    /// Enters a key. `is_cached` says what the cache still has.
    pub fn insert(&mut self, key: u64, is_cached: impl Fn(u64) -> bool) {
        self.push(key);
        // More keys than this are not all cached, so that dropping the oldest filters ends.
        while self.entered.len() > self.capacity + self.part_keys {
            let Some(oldest) = self.parts.pop_front() else { break };
            oldest.keys.iter().for_each(|key| {
                self.entered.remove(key);
            });
            oldest.keys.into_iter().filter(|key| is_cached(*key)).for_each(|key| self.push(key));
        }
    }

    /// Bits of all filters for each of these keys.
    pub fn bits_a_key(&self, keys: usize) -> f64 {
        (self.parts.len() * self.part_bytes * 8) as f64 / keys.max(1) as f64
    }

    fn push(&mut self, key: u64) {
        if !self.entered.insert(key) {
            return;
        }
        if self.parts.back().is_none_or(|part| part.keys.len() >= self.part_keys) {
            let filter = Bloom::new_with_seed(self.part_bytes, self.part_keys, &SEED);
            let filter = filter.expect("a filter of a byte and a key or more");
            self.parts.push_back(Part { filter, keys: Vec::new() });
        }
        let part = self.parts.back_mut().expect("one was added");
        part.filter.set(&key);
        part.keys.push(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(keys: u64, false_positives: f64) -> ParBf {
        let mut index = ParBf::new(keys as usize, 10_000, false_positives);
        (0..keys).for_each(|key| index.insert(key, |_| true));
        index
    }

    /// Section 4.1: 10.08 bits a key for 0.78 %, that is 1 / 2^7.
    #[test]
    fn a_key_takes_the_bits_of_the_paper() {
        let index = filled(100_000, 1.0 / 128.0);
        let bits = index.bits_a_key(100_000);
        assert!((bits - 10.08).abs() < 0.05, "{bits}");
    }

    #[test]
    fn what_is_cached_is_found_and_little_else() {
        // One filter, at 0.39 %, that is 1 / 2^8.
        let index = filled(10_000, 1.0 / 256.0);
        assert!((0..10_000).all(|key| index.may_have(key)));
        let wrong = (1_000_000..1_100_000).filter(|key| index.may_have(*key)).count();
        assert!((200..700).contains(&wrong), "{wrong} of 100,000");
    }

    #[test]
    fn filters_of_what_has_left_are_dropped() {
        let mut index = ParBf::new(1000, 100, 1.0 / 256.0);
        // The cache keeps the key 5 for ever, and otherwise the last thousand.
        for key in 0..100_000u64 {
            index.insert(key, |old| old == 5 || old + 1000 > key);
            assert!(index.may_have(5) || key < 5, "after {key}");
        }
        assert!(index.parts.len() <= 12, "{}", index.parts.len());
        assert!((99_001..100_000).all(|key| index.may_have(key)));
    }
}
