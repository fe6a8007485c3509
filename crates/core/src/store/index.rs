//! The index: a hash of (disk, block) to the slots that hold, or once held, that block.
//!
//! A bucket is one cache line with twelve entries: a byte of the hash and a slot number each. A full bucket
//! overflows into others, at a distance that depends on the hash (double hashing), so that full buckets do
//! not cluster however long entries come and go. Each bucket counts the entries that passed it because it was
//! full, so that a search knows when to stop and a removal leaves no tombstone. Entries whose search began
//! there are counted separately from those that came from elsewhere: at a load of 0.9 nearly every bucket has
//! some of the first kind, but a search that came from elsewhere stops at the first bucket without the second
//! kind. The key itself is in the slot table, so an entry costs 5.9 bytes at the load of 0.9 that the index
//! is sized for.
//!
//! Invariants
//! - The number of buckets is prime, so that every step visits all of them.
//! - The `AT_HOME` count of a bucket is the number of entries that have it as their home but are elsewhere;
//!   `BEYOND` is the number of other entries that found it full. A count that reaches [`STUCK`] stays
//!   there: searches then continue further than needed, which is correct but slower.
//! - The index never holds more entries than it was sized for.

use super::slot::SlotNo;

const WAYS: usize = 12;
/// Which count a search or an entry uses: in the bucket where it begins, and in those after.
const AT_HOME: usize = 0;
const BEYOND: usize = 1;
const STUCK: u8 = u8::MAX;

/// A quarter of a cache line.
pub type Line = [u32; 4];
/// The bytes of a cache line.
const CACHE_LINE: usize = 64;
/// The bytes of a page of memory.
const PAGE_BYTES: usize = 4096;
/// The lines of a bucket.
const LINES: usize = CACHE_LINE / size_of::<Line>();

/// A bucket. Its words, little-endian: 0 to 2 are the lowest byte of each entry's hash; the low half of word 3 has a bit
/// for each entry in use; its other bytes count the entries that found it full (see the module); 4 to 15 are the slot
/// numbers.
type Bucket = [Line; LINES];

/// The index. See the module.
pub struct Index {
    /// The buckets, from the first cache line on. Memory of a bucket that was never written to takes no space.
    lines: Vec<Line>,
    /// The first line of the first bucket.
    first: usize,
    /// The number of buckets.
    count: usize,
    /// Entries in use.
    len: usize,
    /// Maximum number of entries.
    capacity: usize,
}

/// The search for a place for an entry.
#[derive(Clone, Copy, Default)]
pub struct Search {
    /// The hash of the entry.
    pub hash: u64,
    slot: u32,
    /// The bucket that it has come to.
    bucket: u32,
}

impl Search {
    /// Returns the search for an entry that [`Index::begin`] has to begin.
    pub fn of(hash: u64, slot: SlotNo) -> Search {
        Search { hash, slot: slot.0, bucket: 0 }
    }

    /// Returns the slot of the entry.
    pub fn slot(&self) -> SlotNo {
        SlotNo(self.slot)
    }
}

fn tag(hash: u64) -> u8 {
    hash as u8
}

fn is_prime(number: usize) -> bool {
    number >= 2
        && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}

/// Returns which bytes of a word have a value, as one bit each: all eight are compared at once.
fn equal_bytes(word: u64, value: u8) -> u16 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    /// Gathers bit 7 of every byte in the highest byte.
    const GATHER: u64 = 0x0002_0408_1020_4081;
    let differs = word ^ (u64::from(value) * 0x0101_0101_0101_0101);
    let zeroes = !(((differs & LOW_BITS) + LOW_BITS) | differs | LOW_BITS);
    (zeroes.wrapping_mul(GATHER) >> 56) as u16
}

/// Returns a bit for each entry in use.
fn used(bucket: &Bucket) -> u16 {
    bucket[0][3] as u16
}

/// Returns how many entries of a kind found the bucket full.
fn passed(bucket: &Bucket, kind: usize) -> u8 {
    (bucket[0][3] >> (16 + 8 * kind)) as u8
}

fn set_passed(bucket: &mut Bucket, kind: usize, count: u8) {
    let shift = 16 + 8 * kind;
    bucket[0][3] = bucket[0][3] & !(0xff << shift) | u32::from(count) << shift;
}

/// Returns the slot number of an entry.
fn slot_at(bucket: &Bucket, way: usize) -> u32 {
    bucket[1 + way / 4][way % 4]
}

/// Returns which entries in use have a tag.
fn matches(bucket: &Bucket, tag: u8) -> u16 {
    let [a, b, c, _] = bucket[0];
    let low = equal_bytes(u64::from(a) | u64::from(b) << 32, tag);
    let high = equal_bytes(u64::from(c), tag);
    (low | high << 8) & used(bucket)
}

impl Index {
    /// Returns an index for at most `capacity` entries.
    pub fn new(capacity: usize) -> Index {
        let mut buckets = (capacity * 10).div_ceil(WAYS * 9).max(2);
        while !is_prime(buckets) {
            buckets += 1;
        }
        let lines = vec![[0; 4]; buckets * LINES + LINES - 1];
        let past = lines.as_ptr() as usize % CACHE_LINE;
        let first = (CACHE_LINE - past) % CACHE_LINE / size_of::<Line>();
        Index { lines, first, count: buckets, len: 0, capacity }
    }

    #[inline]
    fn bucket(&self, number: usize) -> &Bucket {
        &self.lines[self.first..].as_chunks().0[number]
    }

    #[inline]
    fn bucket_mut(&mut self, number: usize) -> &mut Bucket {
        &mut self.lines[self.first..].as_chunks_mut().0[number]
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.count
    }

    /// Returns all buckets, in quarters of a cache line.
    pub fn all(&self) -> &[Line] {
        &self.lines[self.first..][..self.count * LINES]
    }

    /// Fills part of an empty index with what [`Index::all`] had: quarters from the index `at` on, which begins a bucket.
    /// Returns false if it cannot have been there: it is outside, or a slot is not one of `slots`.
    pub fn fill(&mut self, at: usize, from: &[[u8; size_of::<Line>()]], slots: u32) -> bool {
        let to = self.first + at..self.first + at + from.len();
        let is_inside = at.is_multiple_of(LINES)
            && from.len().is_multiple_of(LINES)
            && at + from.len() <= self.count * LINES;
        let Some(lines) = self.lines.get_mut(to).filter(|_| is_inside) else { return false };
        let (mut used, mut highest) = (0, 0);
        for (bucket, bytes) in lines.as_chunks_mut::<LINES>().0.iter_mut().zip(from.as_chunks::<LINES>().0) {
            *bucket = bytes.map(|line| {
                let words = line.as_chunks::<4>().0;
                std::array::from_fn(|at| u32::from_le_bytes(words[at]))
            });
            used += self::used(bucket).count_ones();
            highest = bucket[1..].as_flattened().iter().fold(highest, |highest, slot| highest.max(*slot));
        }
        self.len += used as usize;
        highest < slots.max(1) && self.len <= self.capacity
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of memory that it takes once every bucket was used.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.count as u128) >> 64) as usize
    }

    /// Returns the distance between the buckets of a search, from bits that neither home nor tag depend on.
    fn step(&self, hash: u64) -> usize {
        let bits = u64::from((hash >> 8) as u32);
        1 + ((bits * (self.count as u64 - 1)) >> 32) as usize
    }

    fn next(&self, bucket: usize, step: usize) -> usize {
        let next = bucket + step;
        if next >= self.count { next - self.count } else { next }
    }

    /// Returns the first entry of this hash that `wanted` accepts.
    pub fn find(&self, hash: u64, mut wanted: impl FnMut(SlotNo) -> bool) -> Option<SlotNo> {
        let (mut at, mut count) = (self.home(hash), AT_HOME);
        for _ in 0..self.count {
            let bucket = self.bucket(at);
            let mut matches = matches(bucket, tag(hash));
            while matches != 0 {
                let slot = SlotNo(slot_at(bucket, matches.trailing_zeros() as usize));
                if wanted(slot) {
                    return Some(slot);
                }
                matches &= matches - 1;
            }
            if passed(bucket, count) == 0 {
                return None;
            }
            (at, count) = (self.next(at, self.step(hash)), BEYOND);
        }
        None
    }

    /// Reads the bucket where a search starts, to bring it into the processor's cache. The value has no
    /// meaning.
    pub fn prefetch(&self, hash: u64) -> u64 {
        u64::from(used(self.bucket(self.home(hash))))
    }

    /// Returns the entry that a search most likely checks first.
    pub fn candidate(&self, hash: u64) -> Option<SlotNo> {
        let bucket = self.bucket(self.home(hash));
        let matches = matches(bucket, tag(hash));
        (matches != 0).then(|| SlotNo(slot_at(bucket, matches.trailing_zeros() as usize)))
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, slot: SlotNo) {
        let mut search = self.search(hash, slot);
        while !self.enter(&mut search, |_| {}) {}
    }

    /// Returns the search for a place for an entry, at its beginning.
    fn search(&self, hash: u64, slot: SlotNo) -> Search {
        Search { bucket: self.home(hash) as u32, ..Search::of(hash, slot) }
    }

    /// Returns a search at its beginning.
    pub fn begin(&self, search: Search) -> Search {
        self.search(search.hash, search.slot())
    }

    /// Reads the bucket where a search is, like [`Index::prefetch`].
    pub fn prefetch_bucket(&self, search: &Search) -> u64 {
        u64::from(used(self.bucket(search.bucket as usize)))
    }

    /// Returns the number of pages of memory that the buckets are in.
    pub fn pages(&self) -> usize {
        self.page_at(self.count - 1) + 1
    }

    /// Returns the memory page of a search's current bucket.
    pub fn page(&self, search: &Search) -> usize {
        self.page_at(search.bucket as usize)
    }

    fn page_at(&self, bucket: usize) -> usize {
        let start = self.lines[self.first..].as_ptr().addr();
        (start % PAGE_BYTES + bucket * CACHE_LINE) / PAGE_BYTES
    }

    /// Writes to the memory page of a search before anything is added there. If the page were read first, the read
    /// would cause one page fault, and the first write a second one that interrupts all other threads.
    pub fn use_page(&mut self, search: &Search) {
        self.bucket_mut(search.bucket as usize)[0][0] = std::hint::black_box(0);
    }

    /// Adds the entry to the bucket where its search is. If that is full, the search goes on to the next one, and false is
    /// returned. `same` gets the entries there that may have the same hash. As long as nothing was removed since the
    /// index was empty, every entry of the same hash that was added before is in one of the buckets of a search.
    pub fn enter(&mut self, search: &mut Search, mut same: impl FnMut(SlotNo)) -> bool {
        assert!(self.len < self.capacity, "the index holds no more entries than there are slots");
        let (hash, at) = (search.hash, search.bucket as usize);
        let home = self.home(hash);
        let bucket = self.bucket_mut(at);
        let mut matches = matches(bucket, tag(hash));
        while matches != 0 {
            same(SlotNo(slot_at(bucket, matches.trailing_zeros() as usize)));
            matches &= matches - 1;
        }
        let way = (!used(bucket)).trailing_zeros() as usize;
        if way < WAYS {
            let (word, shift) = (way / 4, 8 * (way % 4));
            bucket[0][word] = bucket[0][word] & !(0xff << shift) | u32::from(tag(hash)) << shift;
            bucket[1 + word][way % 4] = search.slot;
            bucket[0][3] |= 1 << way;
            self.len += 1;
            return true;
        }
        let count = if at == home { AT_HOME } else { BEYOND };
        set_passed(bucket, count, passed(bucket, count).saturating_add(1));
        search.bucket = self.next(at, self.step(hash)) as u32;
        false
    }

    /// Removes an entry that must exist.
    pub fn remove(&mut self, hash: u64, slot: SlotNo) {
        let (home, step) = (self.home(hash), self.step(hash));
        let (mut at, mut count) = (home, AT_HOME);
        let way = loop {
            let bucket = self.bucket(at);
            let mut matches = matches(bucket, tag(hash));
            while matches != 0 && slot_at(bucket, matches.trailing_zeros() as usize) != slot.0 {
                matches &= matches - 1;
            }
            if matches != 0 {
                break matches.trailing_zeros();
            }
            assert!(passed(bucket, count) > 0, "an entry to remove is in the index");
            (at, count) = (self.next(at, step), BEYOND);
        };
        self.bucket_mut(at)[0][3] &= !(1 << way);
        (count, self.len) = (AT_HOME, self.len - 1);
        let mut between = home;
        while between != at {
            let bucket = self.bucket_mut(between);
            let now = passed(bucket, count);
            set_passed(bucket, count, now - u8::from(now != STUCK));
            (between, count) = (self.next(between, step), BEYOND);
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

    /// With many entries of one home, counts get stuck; everything is still found.
    #[test]
    fn counts_that_are_stuck_hide_nothing() {
        let n = 2_000;
        let mut index = Index::new(n as usize);
        for round in 0..3 {
            for slot in 0..n {
                index.insert(mix(round), SlotNo(slot));
            }
            for slot in 0..n {
                assert_eq!(index.find(mix(round), |s| s.0 == slot), Some(SlotNo(slot)));
                index.remove(mix(round), SlotNo(slot));
                assert_eq!(index.find(mix(round), |s| s.0 == slot), None);
            }
        }
        assert_eq!(index.len(), 0);
    }

    /// In a full index whose entries have all been replaced many times, a search for an absent entry checks
    /// few entries.
    #[test]
    fn searches_stay_short_when_entries_come_and_go() {
        let n = 20_000u32;
        let mut index = Index::new(n as usize);
        let hash = |slot: u32, round: u32| mix(u64::from(slot) << 32 | u64::from(round));
        (0..n).for_each(|slot| index.insert(hash(slot, 0), SlotNo(slot)));
        for round in 1..20 {
            for slot in (0..n).map(|at| (at * 7_919 + round) % n) {
                index.remove(hash(slot, round - 1), SlotNo(slot));
                index.insert(hash(slot, round), SlotNo(slot));
            }
        }
        let mut looked_at = 0;
        for absent in 0..n {
            index.find(mix(u64::from(absent) + (1 << 60)), |_| {
                looked_at += 1;
                false
            });
        }
        // One in 256 of a bucket's ten or eleven entries has the tag that is searched for.
        let buckets = f64::from(looked_at) / f64::from(n) * 256.0 / 10.8;
        assert!(buckets < 12.0, "a search that finds nothing looks at {buckets} buckets");
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
