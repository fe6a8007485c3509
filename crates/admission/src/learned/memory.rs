//! When blocks were last accessed, and how often: a table of bounded size.
//!
//! An entry has 12 bits of the block's hash, up to three accesses, and the time of the last one in units of a
//! power of two. A bucket has eight entries; a new block replaces the one that was accessed longest ago. The
//! unit follows the time that is of interest, so that entries reach back at least eight times as far.
//!
//! Invariants
//! - An entry is 0 or counts at least one access, and its bits of the hash are not all 0.
//! - No entry is older than three quarters of the times that can be distinguished: the sweep passes every bucket
//!   before one could get there.

const WAYS: usize = 8;
const TIME_BITS: u32 = 18;
const TIMES: u32 = 1 << TIME_BITS;
/// The sweep drops entries that are older than this many units.
const OLDEST: u32 = TIMES / 2;
/// The sweep visits all buckets in this many units.
const ROUND: u64 = (TIMES / 4) as u64;
/// The time of interest is at most this many units, and at least a sixteenth of that.
const FINEST: u64 = (OLDEST / 8) as u64;
const COUNT_SHIFT: u32 = TIME_BITS;
const TAG_SHIFT: u32 = 20;
/// The largest count.
const MOST_COUNTED: u32 = 3;

/// What is known of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Accesses of the pool since its last access.
    pub age: u64,
    /// Accesses of the block, up to three.
    pub count: u32,
}

/// See the module documentation.
pub struct Memory {
    buckets: Vec<[u32; WAYS]>,
    /// The unit of time is 2 to the power of this.
    shift: u32,
    /// The bucket that is swept next, and when the last one was.
    hand: usize,
    swept_at: u64,
    /// When the last access was noted.
    noted_at: u64,
}

impl Memory {
    /// Makes a table with room for this many blocks.
    pub fn new(blocks: usize) -> Memory {
        let buckets = blocks.div_ceil(WAYS).max(1);
        Memory { buckets: vec![[0; WAYS]; buckets], shift: 0, hand: 0, swept_at: 0, noted_at: 0 }
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> usize {
        Memory::bytes_of(self.buckets.capacity())
    }

    /// Returns the bytes of this many buckets.
    pub fn bytes_of(buckets: usize) -> usize {
        buckets * WAYS * 4
    }

    /// Returns the unit of time: 2 to the power of this.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the entries, bucket by bucket, each with its age in place of the time of the last access.
    pub fn entries_by_age(&self, now: u64) -> impl Iterator<Item = u32> + '_ {
        let time = self.time(now);
        let by_age = move |entry: u32| (entry & !(TIMES - 1)) | (time.wrapping_sub(entry) % TIMES);
        let entries = self.buckets.as_flattened().iter();
        entries.map(move |entry| if *entry == 0 { 0 } else { by_age(*entry) })
    }

    /// Continues from the entries that [`Memory::entries_by_age`] returned earlier. Those that are invalid or too old
    /// are dropped.
    pub fn resume(&mut self, shift: u32, entries: impl Iterator<Item = u32>, now: u64) {
        (self.shift, self.noted_at, self.swept_at) = (shift, now, now);
        let time = self.time(now);
        for (to, entry) in self.buckets.as_flattened_mut().iter_mut().zip(entries) {
            let (rest, age) = (entry & !(TIMES - 1), entry % TIMES);
            let is_valid = entry >> TAG_SHIFT != 0 && entry >> COUNT_SHIFT & 3 != 0 && age <= OLDEST;
            *to = if is_valid { rest | (time.wrapping_sub(age) % TIMES) } else { 0 };
        }
    }

    fn time(&self, now: u64) -> u32 {
        (now >> self.shift) as u32 % TIMES
    }

    /// Notes an access to the block with this hash, and returns what was known of it.
    pub fn note(&mut self, hash: u64, now: u64) -> Option<Seen> {
        self.sweep(now);
        let time = self.time(now);
        let tag = ((hash as u32) >> TAG_SHIFT).max(1);
        let at = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        let bucket = &mut self.buckets[at];
        let known = bucket
            .iter()
            .enumerate()
            .fold(0, |known, (way, entry)| known | u32::from(*entry >> TAG_SHIFT == tag) << way);
        let (way, seen) = if known == 0 {
            (oldest(bucket, time), None)
        } else {
            let way = known.trailing_zeros() as usize;
            let age = u64::from(time.wrapping_sub(bucket[way]) % TIMES) << self.shift;
            (way, Some(Seen { age, count: bucket[way] >> COUNT_SHIFT & 3 }))
        };
        let count = seen.map_or(1, |seen| (seen.count + 1).min(MOST_COUNTED));
        bucket[way] = tag << TAG_SHIFT | count << COUNT_SHIFT | time;
        seen
    }

    /// Drops entries that are too old from as many buckets as time has passed.
    fn sweep(&mut self, now: u64) {
        let passed = now.saturating_sub(self.noted_at) >> self.shift;
        if passed > ROUND {
            self.sweep_all(passed);
            (self.noted_at, self.swept_at) = (now, now);
            return;
        }
        self.noted_at = now;
        let every = ((ROUND << self.shift) / self.buckets.len() as u64).max(1);
        if now.saturating_sub(self.swept_at) < every {
            return;
        }
        let due = (now - self.swept_at) / every;
        let time = self.time(now);
        for _ in 0..due.min(self.buckets.len() as u64) {
            self.hand = (self.hand + 1) % self.buckets.len();
            for entry in &mut self.buckets[self.hand] {
                if time.wrapping_sub(*entry) % TIMES > OLDEST {
                    *entry = 0;
                }
            }
        }
        self.swept_at += due * every;
    }

    /// Drops all that is too old after this many units without an access.
    #[cold]
    fn sweep_all(&mut self, passed: u64) {
        let before = self.time(self.noted_at);
        for entry in self.buckets.iter_mut().flatten() {
            if u64::from(before.wrapping_sub(*entry) % TIMES) + passed >= u64::from(OLDEST) {
                *entry = 0;
            }
        }
    }

    /// Adapts the unit to the time of interest.
    #[inline]
    pub fn tell_apart(&mut self, interest: u64, now: u64) {
        let units = interest >> self.shift;
        if units > FINEST || units < FINEST / 16 && self.shift > 0 {
            self.rescale((interest / FINEST + 1).next_power_of_two().trailing_zeros(), now);
        }
    }

    /// Changes the unit. Entries that are too old to be told apart in it are dropped.
    #[cold]
    fn rescale(&mut self, shift: u32, now: u64) {
        self.sweep(now);
        let (before, old_shift) = (self.time(now), self.shift);
        self.shift = shift;
        let after = self.time(now);
        for entry in self.buckets.iter_mut().flatten().filter(|entry| **entry != 0) {
            let age = u64::from(before.wrapping_sub(*entry) % TIMES) << old_shift >> shift;
            let rest = *entry & !(TIMES - 1);
            *entry =
                if age > u64::from(OLDEST) { 0 } else { rest | (after.wrapping_sub(age as u32) % TIMES) };
        }
        self.swept_at = now;
    }
}

/// Returns which entry of a bucket is free, or else the oldest.
fn oldest(bucket: &[u32; WAYS], time: u32) -> usize {
    let key = |(way, entry): (usize, &u32)| {
        let age = if *entry == 0 { TIMES } else { time.wrapping_sub(*entry) % TIMES };
        age << 3 | way as u32
    };
    (bucket.iter().enumerate().map(key).fold(0, u32::max) % WAYS as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_model::place::mix;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn accesses_are_counted_and_dated() {
        let mut memory = Memory::new(64);
        assert_eq!(memory.note(mix(1), 10), None);
        assert_eq!(memory.note(mix(1), 15), Some(Seen { age: 5, count: 1 }));
        assert_eq!(memory.note(mix(2), 16), None);
        assert_eq!(memory.note(mix(1), 17), Some(Seen { age: 2, count: 2 }));
        assert_eq!(memory.note(mix(1), 18), Some(Seen { age: 1, count: 3 }));
        assert_eq!(memory.note(mix(1), 18), Some(Seen { age: 0, count: 3 }));
    }

    #[test]
    fn the_oldest_of_a_bucket_is_replaced() {
        let mut memory = Memory::new(8);
        (0..8).for_each(|block| assert_eq!(memory.note(mix(block), block), None));
        assert_eq!(memory.note(mix(0), 8), Some(Seen { age: 8, count: 1 }));
        assert_eq!(memory.note(mix(100), 9), None);
        assert_eq!(memory.note(mix(1), 10), None, "it was the oldest");
        assert_eq!(memory.note(mix(3), 11), Some(Seen { age: 8, count: 1 }));
    }

    #[test]
    fn what_is_older_than_can_be_told_is_forgotten() {
        let mut memory = Memory::new(8);
        memory.note(mix(1), 0);
        let later = u64::from(TIMES);
        assert_eq!(memory.note(mix(1), later), None);
        assert_eq!(memory.note(mix(1), later + 7), Some(Seen { age: 7, count: 1 }));
    }

    proptest! {
        /// Ages are right to a unit whatever the unit changes to, or the block is forgotten.
        #[test]
        fn ages_are_right(steps in prop::collection::vec((0u64..20, 0u64..40_000, 1u64..4_000_000), 1..200)) {
            let mut memory = Memory::new(256);
            let (mut last, mut now) = (HashMap::new(), 0);
            for (block, passed, interest) in steps {
                now += passed;
                let mut unit = 1 << memory.shift;
                memory.tell_apart(interest, now);
                unit = unit.max(1 << memory.shift);
                prop_assert!(interest >> memory.shift <= FINEST);
                if let Some(seen) = memory.note(mix(block), now) {
                    let (at, error): (u64, u64) = last[&block];
                    prop_assert!(seen.age.abs_diff(now - at) <= error + unit);
                }
                last.insert(block, (now, unit));
                for (_, error) in last.values_mut() {
                    *error += unit;
                }
            }
        }
    }
}
