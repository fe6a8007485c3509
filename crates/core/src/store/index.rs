//! The index: a hash of (disk, block) to the slots that hold, or once held, that block.
//!
//! Buckets of one cache line, twelve entries each: a byte of the hash and a slot number. A full bucket
//! overflows into the next; each bucket counts the entries that went past it, so that a search knows when
//! to stop and a removal leaves no mark. The key itself is in the slot table, so an entry costs 5.9 bytes
//! at the load of 0.9 that the index is sized for.
//!
//! Invariants
//! - `passed` of a bucket is the number of entries whose home is at or before it and that lie behind it.
//! - The index never holds more entries than it was sized for.

use super::slot::SlotNo;

const WAYS: usize = 12;

#[derive(Clone)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; WAYS],
    used: u16,
    passed: u16,
    slots: [u32; WAYS],
}

const EMPTY: Bucket = Bucket { tags: [0; WAYS], used: 0, passed: 0, slots: [0; WAYS] };

/// The index. See the module.
pub struct Index {
    buckets: Vec<Bucket>,
    len: usize,
    capacity: usize,
}

fn tag(hash: u64) -> u8 {
    hash as u8
}

/// Which bytes of a word have a value, as a bit each: all eight are compared at once.
fn equal_bytes(word: u64, value: u8) -> u16 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    /// Gathers bit 7 of every byte in the highest byte.
    const GATHER: u64 = 0x0002_0408_1020_4081;
    let differs = word ^ (u64::from(value) * 0x0101_0101_0101_0101);
    let zeroes = !(((differs & LOW_BITS) + LOW_BITS) | differs | LOW_BITS);
    (zeroes.wrapping_mul(GATHER) >> 56) as u16
}

impl Bucket {
    fn matches(&self, tag: u8) -> u16 {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.tags;
        let low = equal_bytes(u64::from_le_bytes([a, b, c, d, e, f, g, h]), tag);
        let high = equal_bytes(u64::from(u32::from_le_bytes([i, j, k, l])), tag);
        (low | high << 8) & self.used
    }
}

impl Index {
    /// An index for at most `capacity` entries.
    pub fn new(capacity: usize) -> Index {
        let buckets = (capacity * 10).div_ceil(WAYS * 9).max(2);
        Index { buckets: vec![EMPTY; buckets], len: 0, capacity }
    }

    /// Entries it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// The first entry of this hash that `wanted` accepts.
    pub fn find(&self, hash: u64, mut wanted: impl FnMut(SlotNo) -> bool) -> Option<SlotNo> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut matches = bucket.matches(tag(hash));
            while matches != 0 {
                let slot = SlotNo(bucket.slots[matches.trailing_zeros() as usize]);
                if wanted(slot) {
                    return Some(slot);
                }
                matches &= matches - 1;
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Reads the bucket where a search starts. The value is of no use; the bucket is in the processor's
    /// cache then.
    pub fn touch(&self, hash: u64) -> u64 {
        u64::from(self.buckets[self.home(hash)].used)
    }

    /// The entry that a search most likely looks at first.
    pub fn candidate(&self, hash: u64) -> Option<SlotNo> {
        let bucket = &self.buckets[self.home(hash)];
        let matches = bucket.matches(tag(hash));
        (matches != 0).then(|| SlotNo(bucket.slots[matches.trailing_zeros() as usize]))
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, slot: SlotNo) {
        assert!(self.len < self.capacity, "the index holds no more entries than there are slots");
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            let way = (!bucket.used).trailing_zeros() as usize;
            if way < WAYS {
                bucket.tags[way] = tag(hash);
                bucket.slots[way] = slot.0;
                bucket.used |= 1 << way;
                self.len += 1;
                return;
            }
            bucket.passed += 1;
            at = self.next(at);
        }
    }

    /// Removes an entry that is there.
    pub fn remove(&mut self, hash: u64, slot: SlotNo) {
        let home = self.home(hash);
        let mut at = home;
        let way = loop {
            let bucket = &self.buckets[at];
            let mut matches = bucket.matches(tag(hash));
            while matches != 0 && bucket.slots[matches.trailing_zeros() as usize] != slot.0 {
                matches &= matches - 1;
            }
            if matches != 0 {
                break matches.trailing_zeros();
            }
            assert!(bucket.passed > 0, "an entry to remove is in the index");
            at = self.next(at);
        };
        self.buckets[at].used &= !(1 << way);
        self.len -= 1;
        let mut passed = home;
        while passed != at {
            self.buckets[passed].passed -= 1;
            passed = self.next(passed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::mix;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn full_load_finds_everything() {
        let n = 20_000u32;
        let mut index = Index::new(n as usize);
        for slot in 0..n {
            index.insert(mix(u64::from(slot) + 1), SlotNo(slot));
        }
        for slot in 0..n {
            let hash = mix(u64::from(slot) + 1);
            assert_eq!(index.find(hash, |s| s.0 == slot), Some(SlotNo(slot)));
            if let Some(candidate) = index.candidate(hash) {
                assert_eq!(index.find(hash, |_| true), Some(candidate));
            }
        }
        assert!(index.bytes() <= n as usize * 6);
    }

    proptest! {
        #[test]
        fn equal_bytes_are_those_that_compare_equal(bytes: [u8; 8], value: u8, at in 0usize..8) {
            let mut bytes = bytes;
            bytes[at] = value;
            let one_by_one = (0..8).fold(0, |mask, at| mask | u16::from(bytes[at] == value) << at);
            prop_assert_eq!(equal_bytes(u64::from_le_bytes(bytes), value), one_by_one);
        }

        #[test]
        fn behaves_like_a_set(ops in proptest::collection::vec((any::<bool>(), 0u32..40), 1..400)) {
            let mut index = Index::new(40);
            let mut model = BTreeSet::new();
            // Few hashes, so that buckets overflow.
            let hash = |slot: u32| mix(u64::from(slot % 3));
            for (add, slot) in ops {
                if add && model.insert(slot) {
                    index.insert(hash(slot), SlotNo(slot));
                } else if !add && model.remove(&slot) {
                    index.remove(hash(slot), SlotNo(slot));
                }
                for slot in 0..40 {
                    let found = index.find(hash(slot), |s| s.0 == slot).is_some();
                    prop_assert_eq!(found, model.contains(&slot));
                }
                prop_assert_eq!(index.len(), model.len());
            }
        }
    }
}
