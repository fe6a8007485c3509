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
//! The buckets can be divided into ranges, and entries be added to all ranges at the same time ([`IndexRange`]).
//!
//! Invariants
//! - The number of buckets is prime, so that every step visits all of them.
//! - The `AT_HOME` count of a bucket is the number of entries that have it as their home but are elsewhere;
//!   `BEYOND` is the number of other entries that found it full. A count that reaches [`STUCK`] stays
//!   there: searches then continue further than needed, which is correct but slower.
//! - The index never holds more entries than it was sized for.

use std::ops::Range;

use super::prefetch::prefetch;
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

/// A bucket. Its words, little-endian: 0 to 2 are the lowest byte of each entry's hash; the low half of word 3 has a
/// bit for each entry in use; its other bytes count the entries that found it full (see the module); 4 to 15 are the
/// slot numbers.
pub type Bucket = [Line; LINES];

/// The fewest buckets of a range, as a power of two: a page of memory.
const MIN_RANGE_LOG2: u32 = 6;
/// The most ranges, as a power of two.
const MOST_RANGES_LOG2: u32 = 7;

/// The index. See the module.
pub struct Index {
    /// The buckets, from the first cache line on. Memory of a bucket that was never written to takes no space.
    lines: Vec<Line>,
    /// The first line of the first bucket.
    first: usize,
    /// How entries are spread over the buckets.
    spread: Spread,
    /// Entries in use.
    len: usize,
    /// Maximum number of entries.
    capacity: usize,
}

/// The search for a place for an entry.
#[derive(Clone, Copy, Default)]
pub struct Search {
    hash: u64,
    slot: u32,
    /// The bucket that it has come to.
    bucket: u32,
}

impl Search {
    /// Returns the slot of the entry.
    pub fn slot(&self) -> SlotNo {
        SlotNo(self.slot)
    }
}

/// How the entries of an index are spread over its buckets, and these over ranges.
#[derive(Clone, Copy)]
pub struct Spread {
    /// The number of buckets.
    count: usize,
    /// The number of buckets of every range but the last, as a power of two.
    range_log2: u32,
}

impl Spread {
    /// Returns how entries are spread over this many buckets, which are at least two.
    fn over(count: usize) -> Spread {
        let bits = usize::BITS - (count - 1).leading_zeros();
        Spread { count, range_log2: bits.saturating_sub(MOST_RANGES_LOG2).max(MIN_RANGE_LOG2) }
    }

    fn home(self, hash: u64) -> usize {
        ((u128::from(hash) * self.count as u128) >> 64) as usize
    }

    /// Returns the distance between the buckets of a search, from bits that neither home nor tag depend on.
    fn step(self, hash: u64) -> usize {
        let bits = u64::from((hash >> 8) as u32);
        1 + ((bits * (self.count as u64 - 1)) >> 32) as usize
    }

    fn next(self, bucket: usize, step: usize) -> usize {
        let next = bucket + step;
        if next >= self.count { next - self.count } else { next }
    }

    /// Returns the search for a place for an entry, at its beginning.
    #[inline]
    pub fn begin(self, hash: u64, slot: SlotNo) -> Search {
        Search { hash, slot: slot.0, bucket: self.home(hash) as u32 }
    }

    /// Returns the number of ranges.
    pub fn ranges(self) -> usize {
        self.range_of_bucket(self.count - 1) + 1
    }

    fn range_of_bucket(self, bucket: usize) -> usize {
        bucket >> self.range_log2
    }

    /// Returns the range in which a search is.
    #[inline]
    pub fn range_of(self, search: &Search) -> usize {
        self.range_of_bucket(search.bucket as usize)
    }
}

/// Some neighbouring buckets of an index, to which entries are added while others are added elsewhere.
pub struct IndexRange<'a> {
    buckets: &'a mut [Bucket],
    /// The number of the first one.
    first: usize,
    spread: Spread,
}

impl IndexRange<'_> {
    fn bucket(&self, search: &Search) -> &Bucket {
        &self.buckets[search.bucket as usize - self.first]
    }

    fn bucket_mut(&mut self, search: &Search) -> &mut Bucket {
        &mut self.buckets[search.bucket as usize - self.first]
    }

    /// Begins to bring the bucket where a search is into the processor's cache.
    #[inline]
    pub fn prefetch(&self, search: &Search) {
        prefetch(self.bucket(search));
    }

    /// Returns the part that a search is in, of the range divided into this many parts.
    #[inline]
    pub fn part(&self, search: &Search, parts: usize) -> usize {
        ((search.bucket as usize - self.first) * parts) >> self.spread.range_log2
    }

    /// Returns the number of pages of memory that the buckets are in.
    pub fn pages(&self) -> usize {
        self.page_at(self.buckets.len() - 1) + 1
    }

    /// Returns the memory page of a search's current bucket, counted from that of the first bucket.
    #[inline]
    pub fn page(&self, search: &Search) -> usize {
        self.page_at(search.bucket as usize - self.first)
    }

    fn page_at(&self, bucket: usize) -> usize {
        (self.buckets.as_ptr().addr() % PAGE_BYTES + bucket * CACHE_LINE) / PAGE_BYTES
    }

    /// Writes to the memory page of a search before anything of this range is added there. If the page were read first,
    /// the read would cause one page fault, and the first write a second one that interrupts all other threads.
    pub fn use_page(&mut self, search: &Search) {
        self.bucket_mut(search)[0][0] = std::hint::black_box(0);
    }

    /// Adds the entry to the bucket where its search is. If that is full, the search goes on to the next one, which may
    /// be in another range, and false is returned. `same` gets the entries there that may have the same hash. As long
    /// as nothing was removed since the index was empty, every entry of the same hash that was added before is in one
    /// of the buckets of a search.
    #[inline]
    pub fn enter(&mut self, search: &mut Search, mut same: impl FnMut(SlotNo)) -> bool {
        let spread = self.spread;
        let bucket = self.bucket_mut(search);
        let hash = search.hash;
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
            return true;
        }
        let at = search.bucket as usize;
        let count = if at == spread.home(hash) { AT_HOME } else { BEYOND };
        set_passed(bucket, count, passed(bucket, count).saturating_add(1));
        search.bucket = spread.next(at, spread.step(hash)) as u32;
        false
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

fn set_slot(bucket: &mut Bucket, way: usize, slot: SlotNo) {
    bucket[1 + way / 4][way % 4] = slot.0;
}

/// Returns where an entry is in a bucket.
fn way_of(bucket: &Bucket, hash: u64, slot: SlotNo) -> Option<usize> {
    let mut matches = matches(bucket, tag(hash));
    while matches != 0 {
        let way = matches.trailing_zeros() as usize;
        if slot_at(bucket, way) == slot.0 {
            return Some(way);
        }
        matches &= matches - 1;
    }
    None
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
        Index { lines, first, spread: Spread::over(buckets), len: 0, capacity }
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
        self.spread.count
    }

    /// Returns how entries are spread over the buckets.
    pub fn spread(&self) -> Spread {
        self.spread
    }

    /// Returns all buckets, to add entries to them.
    fn whole(&mut self) -> IndexRange<'_> {
        let spread = self.spread;
        let buckets = &mut self.lines[self.first..].as_chunks_mut().0[..spread.count];
        IndexRange { buckets, first: 0, spread }
    }

    /// Returns the buckets in ranges. [`Index::added`] must be told how many entries they get.
    pub fn ranges(&mut self) -> impl Iterator<Item = IndexRange<'_>> {
        let IndexRange { buckets, spread, .. } = self.whole();
        let size = 1 << spread.range_log2;
        let firsts = (0..).step_by(size);
        buckets.chunks_mut(size).zip(firsts).map(move |(buckets, first)| IndexRange {
            buckets,
            first,
            spread,
        })
    }

    /// Counts entries that were added to ranges.
    pub fn added(&mut self, entries: usize) {
        self.len += entries;
        assert!(self.len <= self.capacity, "the index holds no more entries than there are slots");
    }

    /// Returns all buckets, in quarters of a cache line.
    pub fn all(&self) -> &[Line] {
        &self.lines[self.first..][..self.spread.count * LINES]
    }

    /// Fills part of an empty index with what [`Index::all`] had: quarters from the index `at` on, which begins a
    /// bucket. Returns false if it cannot have been there: it is outside, or a slot is not one of `slots`.
    pub fn fill(&mut self, at: usize, from: &[[u8; size_of::<Line>()]], slots: u32) -> bool {
        let to = self.first + at..self.first + at + from.len();
        let is_inside = at.is_multiple_of(LINES)
            && from.len().is_multiple_of(LINES)
            && at + from.len() <= self.spread.count * LINES;
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

    /// Returns the addresses of the buckets.
    pub fn addresses(&self) -> Range<usize> {
        let range = self.all().as_ptr_range();
        range.start.addr()..range.end.addr()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of memory that it takes once every bucket was used.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    /// Returns the first entry of this hash that `wanted` accepts.
    pub fn find(&self, hash: u64, mut wanted: impl FnMut(SlotNo) -> bool) -> Option<SlotNo> {
        let (mut at, mut count) = (self.spread.home(hash), AT_HOME);
        for _ in 0..self.spread.count {
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
            (at, count) = (self.spread.next(at, self.spread.step(hash)), BEYOND);
        }
        None
    }

    /// Reads the bucket where a search starts, to bring it into the processor's cache. The value has no
    /// meaning.
    pub fn prefetch(&self, hash: u64) -> u64 {
        u64::from(used(self.bucket(self.spread.home(hash))))
    }

    /// Returns the entry that a search most likely checks first.
    pub fn candidate(&self, hash: u64) -> Option<SlotNo> {
        let bucket = self.bucket(self.spread.home(hash));
        let matches = matches(bucket, tag(hash));
        (matches != 0).then(|| SlotNo(slot_at(bucket, matches.trailing_zeros() as usize)))
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, slot: SlotNo) {
        self.added(1);
        let mut search = self.spread.begin(hash, slot);
        let mut buckets = self.whole();
        while !buckets.enter(&mut search, |_| {}) {}
    }

    /// Adds an entry so that a search comes to it before it comes to an older one of the same hash, which must exist.
    pub fn insert_before(&mut self, hash: u64, older: SlotNo, newer: SlotNo) {
        self.insert(hash, newer);
        if self.find(hash, |slot| slot == older || slot == newer) == Some(newer) {
            return;
        }
        let [(older_at, older_way), (newer_at, newer_way)] =
            [older, newer].map(|slot| self.place(hash, slot));
        set_slot(self.bucket_mut(older_at), older_way, newer);
        set_slot(self.bucket_mut(newer_at), newer_way, older);
    }

    /// Returns the bucket of an entry that must exist, and where it is in it.
    fn place(&self, hash: u64, slot: SlotNo) -> (usize, usize) {
        let (mut at, mut count) = (self.spread.home(hash), AT_HOME);
        loop {
            let bucket = self.bucket(at);
            if let Some(way) = way_of(bucket, hash, slot) {
                return (at, way);
            }
            assert!(passed(bucket, count) > 0, "{slot:?} is in the index");
            (at, count) = (self.spread.next(at, self.spread.step(hash)), BEYOND);
        }
    }

    /// Removes an entry that must exist.
    pub fn remove(&mut self, hash: u64, slot: SlotNo) {
        let (home, step) = (self.spread.home(hash), self.spread.step(hash));
        let (at, way) = self.place(hash, slot);
        self.bucket_mut(at)[0][3] &= !(1 << way);
        self.len -= 1;
        let mut count = AT_HOME;
        let mut between = home;
        while between != at {
            let bucket = self.bucket_mut(between);
            let now = passed(bucket, count);
            set_passed(bucket, count, now - u8::from(now != STUCK));
            (between, count) = (self.spread.next(between, step), BEYOND);
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

    /// Entries that are added to ranges, in rounds, are found and leave nothing behind.
    #[test]
    fn ranges_are_parts_of_the_whole() {
        for n in [20u32, 700, 30_000] {
            let (mut index, hash) = (Index::new(n as usize), |slot: u32| mix(u64::from(slot) + 1));
            let spread = index.spread();
            assert!(spread.ranges() <= 1 << MOST_RANGES_LOG2);
            assert_eq!(spread.ranges(), index.ranges().count());
            assert_eq!(index.ranges().map(|range| range.buckets.len()).sum::<usize>(), index.buckets());
            let mut left: Vec<Search> = (0..n).map(|slot| spread.begin(hash(slot), SlotNo(slot))).collect();
            while !left.is_empty() {
                for (number, mut range) in index.ranges().enumerate() {
                    let here = left.iter_mut().filter(|search| spread.range_of(search) == number);
                    here.for_each(|search| {
                        if range.enter(search, |_| {}) {
                            search.bucket = u32::MAX;
                        }
                    });
                }
                left.retain(|search| search.bucket != u32::MAX);
            }
            index.added(n as usize);
            (0..n).for_each(|slot| assert!(index.find(hash(slot), |s| s.0 == slot).is_some()));
            (0..n).for_each(|slot| index.remove(hash(slot), SlotNo(slot)));
            assert!(index.all().iter().flatten().enumerate().all(|(at, word)| at % 16 != 3 || *word == 0));
        }
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
        fn behaves_like_a_set(ops in proptest::collection::vec((any::<bool>(), any::<bool>(), 0u32..40), 1..400)) {
            let mut index = Index::new(40);
            let mut model = BTreeSet::new();
            // Few hashes, so that buckets overflow.
            let hash = |slot: u32| mix(u64::from(slot % 3));
            for (add, before, slot) in ops {
                let same = |other: &&u32| before && hash(**other) == hash(slot) && **other != slot;
                let older = model.iter().find(same).copied();
                if let Some(older) = older.filter(|_| add && !model.contains(&slot)) {
                    let first = |index: &Index, all: [u32; 2]| index.find(hash(slot), |s| all.contains(&s.0));
                    model.insert(slot);
                    index.insert_before(hash(slot), SlotNo(older), SlotNo(slot));
                    prop_assert_eq!(first(&index, [older, slot]), Some(SlotNo(slot)));
                } else if add && model.insert(slot) {
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
