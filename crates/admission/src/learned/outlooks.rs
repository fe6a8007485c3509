//! The expected outcome for blocks of each category, learned from a hash sample of blocks.
//!
//! A sampled block's access is counted when the block is accessed again, or when its time is over. The expectation
//! for a category starts from that of a coarser one, which starts from that of an access of which nothing is known;
//! both count as a few samples. Counts are halved when they are high, so that old samples matter less.
//!
//! Invariants
//! - Each access of a sampled block counts at most once: it is dropped from the sample, or pending until the
//!   next access, when it is counted.
//! - Only blocks whose hash belongs to the current sample are in the table.

use crate::Access;

/// Coarse categories, and fine ones for each of them.
pub const COARSE: usize = 48;
pub const FINE: usize = 8;

const WAYS: usize = 4;
const SETS: usize = 2048;
/// One block in 2 to the power of this is followed, or fewer.
const FIRST_SHIFT: u32 = 4;
/// Counts are halved at this number.
const MOST_COUNTED: f32 = 500.0;

/// The weight of what is expected of the coarser category, in samples.
const PRIOR: f32 = 10.0;

/// Uses in time after which what they save is halved with their number.
const MOST_USES: f32 = 16_384.0;

/// How often the size of the sample is reviewed, in accesses of sampled blocks.
const REVIEW: u32 = 4096;

/// What is expected of a block, if it enters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outlook {
    /// The probability that it is used again in time.
    pub again: f32,
    /// What that saves, in microseconds; 0 if it is not used again in time.
    pub saved_us: f32,
}

impl Outlook {
    /// Nothing is known of the block: it may as well be used again in time as not.
    fn unknown(access: &Access) -> Outlook {
        Outlook { again: 0.5, saved_us: 0.5 * access.saved_us() }
    }

    /// The block was not used again in time.
    const NEVER: Outlook = Outlook { again: 0.0, saved_us: 0.0 };

    fn map(self, other: Outlook, combine: impl Fn(f32, f32) -> f32) -> Outlook {
        Outlook { again: combine(self.again, other.again), saved_us: combine(self.saved_us, other.saved_us) }
    }
}

/// Samples of a category, and the sum of their outcomes.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub all: f32,
    pub sum: Outlook,
}

impl Count {
    const NONE: Count = Count { all: 0.0, sum: Outlook::NEVER };

    fn add(&mut self, outcome: Outlook) {
        self.all += 1.0;
        self.sum = self.sum.map(outcome, |sum, one| sum + one);
        if self.all >= MOST_COUNTED {
            self.all /= 2.0;
            self.sum = self.sum.map(self.sum, |sum, _| sum / 2.0);
        }
    }

    fn mean(&self, prior: Outlook) -> Outlook {
        self.sum.map(prior, |sum, prior| (sum + PRIOR * prior) / (self.all + PRIOR))
    }
}

/// The last access of a sampled block.
#[derive(Clone, Copy, Default)]
struct Sample {
    at: u64,
    /// Low half of the hash.
    hash: u32,
    category: u16,
    used: bool,
}

/// See the module documentation.
pub struct Outlooks {
    coarse: [Count; COARSE],
    fine: [[Count; FINE]; COARSE],
    /// The sum of the uses in time, of all categories.
    uses: Outlook,
    samples: Vec<[Sample; WAYS]>,
    shift: u32,
    hand: usize,
    /// Since the last review: accesses of sampled blocks, and samples that were dropped.
    noted: u32,
    dropped: u32,
}

impl Outlooks {
    /// Nothing is learned yet.
    pub fn new() -> Outlooks {
        Outlooks {
            coarse: [Count::NONE; COARSE],
            fine: [[Count::NONE; FINE]; COARSE],
            uses: Outlook::NEVER,
            samples: vec![[Sample::default(); WAYS]; SETS],
            shift: FIRST_SHIFT,
            hand: 0,
            noted: 0,
            dropped: 0,
        }
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Outlooks>() + self.samples.capacity() * WAYS * size_of::<Sample>()
    }

    /// Returns the expectation for a block after such an access of this category.
    #[inline]
    pub fn of(&self, (coarse, fine): (usize, usize), access: &Access) -> Outlook {
        let prior = self.coarse[coarse].mean(Outlook::unknown(access));
        self.fine[coarse][fine].mean(prior)
    }

    /// Returns the mean saving of a use in time over all categories, if there was one that saved anything.
    pub fn usual_us(&self) -> Option<f32> {
        (self.uses.saved_us > 0.0).then(|| self.uses.saved_us / self.uses.again)
    }

    /// Returns how many samples of a category count.
    pub fn samples(&self, (coarse, fine): (usize, usize)) -> f32 {
        self.fine[coarse][fine].all
    }

    /// Notes an access of a category to the block with this hash. Accesses up to `horizon` later are in time.
    #[inline]
    pub fn note(&mut self, hash: u64, category: (usize, usize), access: &Access, horizon: u64) {
        if is_sampled(hash as u32, self.shift) {
            self.note_sampled(hash, category, access, horizon);
        }
    }

    fn note_sampled(&mut self, hash: u64, category: (usize, usize), access: &Access, horizon: u64) {
        let now = access.now;
        self.expire(now, horizon);
        let set = (hash >> 40) as usize % SETS;
        let samples = &self.samples[set];
        let known = samples.iter().position(|s| s.used && s.hash == hash as u32);
        let way = known.unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|way| (samples[*way].used, samples[*way].at));
            oldest.unwrap_or(0)
        });
        let before = samples[way];
        if known.is_some() {
            let again = Outlook { again: 1.0, saved_us: access.saved_us() };
            let is_in_time = now - before.at <= horizon;
            self.count(before.category, if is_in_time { again } else { Outlook::NEVER });
        } else if before.used {
            self.dropped += 1;
        }
        let category = (category.0 * FINE + category.1) as u16;
        self.samples[set][way] = Sample { at: now, hash: hash as u32, category, used: true };
        self.review();
    }

    fn count(&mut self, category: u16, outcome: Outlook) {
        let (coarse, fine) = (usize::from(category) / FINE, usize::from(category) % FINE);
        self.uses = self.uses.map(outcome, |sum, one| sum + one);
        if self.uses.again >= MOST_USES {
            self.uses = self.uses.map(self.uses, |sum, _| sum / 2.0);
        }
        self.coarse[coarse].add(outcome);
        self.fine[coarse][fine].add(outcome);
    }

    /// Counts samples of two sets that were not used again in time.
    fn expire(&mut self, now: u64, horizon: u64) {
        for _ in 0..2 {
            self.hand = (self.hand + 1) % SETS;
            for way in 0..WAYS {
                let sample = self.samples[self.hand][way];
                if sample.used && now - sample.at > horizon {
                    self.count(sample.category, Outlook::NEVER);
                    self.samples[self.hand][way].used = false;
                }
            }
        }
    }

    /// Follows fewer blocks if the table is too small for them, and more if it is nearly empty.
    fn review(&mut self) {
        self.noted += 1;
        if self.noted < REVIEW {
            return;
        }
        let used = self.samples.iter().flatten().filter(|sample| sample.used).count();
        if self.dropped > REVIEW / 64 {
            self.shift += 1;
            let shift = self.shift;
            let gone = |sample: &&mut Sample| !is_sampled(sample.hash, shift);
            self.samples.iter_mut().flatten().filter(gone).for_each(|sample| sample.used = false);
        } else if used < SETS * WAYS / 16 && self.shift > FIRST_SHIFT {
            self.shift -= 1;
        }
        (self.noted, self.dropped) = (0, 0);
    }

    /// Returns the share of the blocks that is sampled: one in 2 to the power of this.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the sum of the uses in time.
    pub fn uses(&self) -> Outlook {
        self.uses
    }

    /// Returns the counts of the coarse categories, then those of the fine ones.
    pub(super) fn counts(&self) -> impl Iterator<Item = &Count> {
        self.coarse.iter().chain(self.fine.iter().flatten())
    }

    /// Continues from what [`Outlooks::shift`], [`Outlooks::uses`] and [`Outlooks::counts`] returned earlier. Returns
    /// false, and changes nothing, if that cannot be.
    pub(super) fn resume(&mut self, shift: u32, uses: Outlook, counts: &[Count]) -> bool {
        if !(FIRST_SHIFT..32).contains(&shift) || counts.len() != COARSE + COARSE * FINE {
            return false;
        }
        *self = Outlooks { shift, uses, ..Outlooks::new() };
        self.coarse
            .iter_mut()
            .chain(self.fine.iter_mut().flatten())
            .zip(counts)
            .for_each(|(to, from)| *to = *from);
        true
    }

    /// Forgets the samples, but not what was learned.
    pub fn forget_samples(&mut self) {
        self.samples.iter_mut().flatten().for_each(|sample| sample.used = false);
    }
}

#[inline]
fn is_sampled(hash: u32, shift: u32) -> bool {
    hash & ((1 << shift) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use haversack_model::place::mix;

    /// Hashes of sampled blocks, in which the sample may shrink to one in 256.
    fn sampled() -> impl Iterator<Item = u64> {
        (0u64..).map(mix).filter(|hash| hash & 0xff == 0)
    }

    fn at(now: u64) -> Access {
        Access { now, ..Access::from(Op::Read) }
    }

    fn again(outlooks: &Outlooks, category: (usize, usize)) -> f32 {
        outlooks.of(category, &at(0)).again
    }

    #[test]
    fn by_hand() {
        let mut outlooks = Outlooks::new();
        let (one, other) = ((3, 5), (3, 6));
        let hash = sampled().next().expect("there are many");
        outlooks.note(hash, one, &at(0), 10);
        assert_eq!(again(&outlooks, one), 0.5, "it is pending");
        // Again in time: coarse 6/11, fine (1 + 60/11) / 11.
        outlooks.note(hash, one, &at(10), 10);
        let known = outlooks.of(one, &at(0));
        assert!((known.again - 71.0 / 121.0).abs() < 1e-6);
        assert!((known.saved_us - 1000.0 * 71.0 / 121.0).abs() < 1e-3);
        assert!((again(&outlooks, other) - 6.0 / 11.0).abs() < 1e-6, "no samples: as the coarse one");
        // Too late: coarse 6/12.
        outlooks.note(hash, other, &at(21), 10);
        assert!((again(&outlooks, one) - (1.0 + 5.0) / 12.0).abs() < 1e-6);
        assert!((again(&outlooks, (4, 0)) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn what_is_never_used_again_counts_when_its_time_is_over() {
        let mut outlooks = Outlooks::new();
        for (now, hash) in sampled().take(3000).enumerate() {
            outlooks.note(hash, (1, 1), &at(now as u64), 100);
        }
        let known = outlooks.of((1, 1), &at(0));
        assert!(known.again < 0.01 && known.saved_us < 10.0, "{known:?}");
    }

    #[test]
    fn a_change_is_learned_within_some_thousand_samples() {
        let mut outlooks = Outlooks::new();
        let hashes: Vec<u64> = sampled().take(100).collect();
        let mut now = 0;
        let mut rounds = |outlooks: &mut Outlooks, count: u64, horizon| {
            for _ in 0..count {
                for hash in &hashes {
                    now += 1;
                    outlooks.note(*hash, (0, 0), &at(now), horizon);
                }
            }
        };
        rounds(&mut outlooks, 100, 100);
        assert!(again(&outlooks, (0, 0)) > 0.99);
        rounds(&mut outlooks, 50, 99);
        assert!(again(&outlooks, (0, 0)) < 0.1, "{}", again(&outlooks, (0, 0)));
    }

    #[test]
    fn fewer_blocks_are_followed_if_they_are_too_many() {
        let mut outlooks = Outlooks::new();
        let hashes: Vec<u64> = (0..1u64 << 20).map(mix).collect();
        let mut now = 0;
        for _ in 0..3 {
            for hash in &hashes {
                now += 1;
                outlooks.note(*hash, (0, 0), &at(now), 1 << 20);
            }
        }
        assert!((7..10).contains(&outlooks.shift), "{}", outlooks.shift);
        assert!(again(&outlooks, (0, 0)) > 0.9, "{}", again(&outlooks, (0, 0)));
        let all_sampled = outlooks
            .samples
            .iter()
            .flatten()
            .all(|sample| !sample.used || is_sampled(sample.hash, outlooks.shift));
        assert!(all_sampled);
    }
}
