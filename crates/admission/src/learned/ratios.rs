//! How often blocks of each category are used again in time, learned from a hash sample of blocks.
//!
//! A sampled block's access is counted when the block is accessed again, or when its time is over. The ratio of
//! a category starts from that of a coarser one, which starts from one half; both count as a few samples. Counts
//! are halved when there are many, so that what was learned long ago matters less.
//!
//! Invariants
//! - Each access of a sampled block counts at most once: it is dropped from the sample, or pending until the
//!   next access, when it is counted.
//! - Only blocks whose hash belongs to the present sample are in the table.

/// Coarse categories, and fine ones for each of them.
pub const COARSE: usize = 48;
pub const FINE: usize = 8;

const WAYS: usize = 4;
const SETS: usize = 2048;
/// One block in 2 to the power of this is followed, or fewer.
const FIRST_SHIFT: u32 = 4;
/// Counts are halved at this number.
const MOST_COUNTED: f32 = 500.0;

/// The weight of the coarser category's ratio, in samples.
const PRIOR: f32 = 10.0;

/// How often the size of the sample is reviewed, in accesses of sampled blocks.
const REVIEW: u32 = 4096;

#[derive(Clone, Copy, Default)]
struct Count {
    all: f32,
    again: f32,
}

impl Count {
    fn add(&mut self, again: bool) {
        self.all += 1.0;
        self.again += f32::from(u8::from(again));
        if self.all >= MOST_COUNTED {
            (self.all, self.again) = (self.all / 2.0, self.again / 2.0);
        }
    }

    fn ratio(self, prior: f32) -> f32 {
        (self.again + PRIOR * prior) / (self.all + PRIOR)
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
pub struct Ratios {
    coarse: [Count; COARSE],
    fine: [[Count; FINE]; COARSE],
    /// What follows from the counts.
    ratios: [[f32; FINE]; COARSE],
    samples: Vec<[Sample; WAYS]>,
    shift: u32,
    hand: usize,
    /// Since the last review: accesses of sampled blocks, and samples that were dropped.
    noted: u32,
    dropped: u32,
}

impl Ratios {
    /// Returns ratios of one half.
    pub fn new() -> Ratios {
        Ratios {
            coarse: [Count::default(); COARSE],
            fine: [[Count::default(); FINE]; COARSE],
            ratios: [[0.5; FINE]; COARSE],
            samples: vec![[Sample::default(); WAYS]; SETS],
            shift: FIRST_SHIFT,
            hand: 0,
            noted: 0,
            dropped: 0,
        }
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Ratios>() + self.samples.capacity() * WAYS * size_of::<Sample>()
    }

    /// Returns the share of accesses of a category whose blocks are used again in time.
    #[inline]
    pub fn ratio(&self, category: (usize, usize)) -> f32 {
        self.ratios[category.0][category.1]
    }

    /// Notes an access of a category to the block with this hash. Accesses up to `horizon` later are in time.
    #[inline]
    pub fn note(&mut self, hash: u64, category: (usize, usize), now: u64, horizon: u64) {
        if is_sampled(hash as u32, self.shift) {
            self.note_sampled(hash, category, now, horizon);
        }
    }

    fn note_sampled(&mut self, hash: u64, category: (usize, usize), now: u64, horizon: u64) {
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
            self.count(before.category, now - before.at <= horizon);
        } else if before.used {
            self.dropped += 1;
        }
        let category = (category.0 * FINE + category.1) as u16;
        self.samples[set][way] = Sample { at: now, hash: hash as u32, category, used: true };
        self.review();
    }

    fn count(&mut self, category: u16, again: bool) {
        let (coarse, fine) = (usize::from(category) / FINE, usize::from(category) % FINE);
        self.coarse[coarse].add(again);
        self.fine[coarse][fine].add(again);
        let prior = self.coarse[coarse].ratio(0.5);
        self.ratios[coarse] = self.fine[coarse].map(|fine| fine.ratio(prior));
    }

    /// Counts samples of two sets that were not used again in time.
    fn expire(&mut self, now: u64, horizon: u64) {
        for _ in 0..2 {
            self.hand = (self.hand + 1) % SETS;
            for way in 0..WAYS {
                let sample = self.samples[self.hand][way];
                if sample.used && now - sample.at > horizon {
                    self.count(sample.category, false);
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

    /// Forgets the samples, but not what was learned.
    pub fn forget_samples(&mut self) {
        self.samples.iter_mut().flatten().for_each(|sample| sample.used = false);
    }
}

fn is_sampled(hash: u32, shift: u32) -> bool {
    hash & ((1 << shift) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_model::place::mix;

    /// Hashes of sampled blocks, in which the sample may shrink to one in 256.
    fn sampled() -> impl Iterator<Item = u64> {
        (0u64..).map(mix).filter(|hash| hash & 0xff == 0)
    }

    #[test]
    fn by_hand() {
        let mut ratios = Ratios::new();
        let (one, other) = ((3, 5), (3, 6));
        assert_eq!(ratios.ratio(one), 0.5);
        let hash = sampled().next().expect("there are many");
        ratios.note(hash, one, 0, 10);
        assert_eq!(ratios.ratio(one), 0.5, "it is pending");
        // Again in time: coarse 6/11, fine (1 + 60/11) / 11.
        ratios.note(hash, one, 10, 10);
        assert!((ratios.ratio(one) - 71.0 / 121.0).abs() < 1e-6);
        assert!((ratios.ratio(other) - 6.0 / 11.0).abs() < 1e-6, "what has no samples is as the coarse one");
        // Too late: coarse 6/12.
        ratios.note(hash, other, 21, 10);
        assert!((ratios.ratio(one) - (1.0 + 5.0) / 12.0).abs() < 1e-6);
        assert!((ratios.ratio((4, 0)) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn what_is_never_used_again_counts_when_its_time_is_over() {
        let mut ratios = Ratios::new();
        for (now, hash) in sampled().take(3000).enumerate() {
            ratios.note(hash, (1, 1), now as u64, 100);
        }
        assert!(ratios.ratio((1, 1)) < 0.01, "{}", ratios.ratio((1, 1)));
    }

    #[test]
    fn a_change_is_learned_within_some_thousand_samples() {
        let mut ratios = Ratios::new();
        let hashes: Vec<u64> = sampled().take(100).collect();
        let mut now = 0;
        let mut rounds = |ratios: &mut Ratios, count: u64, stay| {
            for _ in 0..count {
                for hash in &hashes {
                    now += 1;
                    ratios.note(*hash, (0, 0), now, stay);
                }
            }
        };
        rounds(&mut ratios, 100, 100);
        assert!(ratios.ratio((0, 0)) > 0.99);
        rounds(&mut ratios, 50, 99);
        assert!(ratios.ratio((0, 0)) < 0.1, "{}", ratios.ratio((0, 0)));
    }

    #[test]
    fn fewer_blocks_are_followed_if_they_are_too_many() {
        let mut ratios = Ratios::new();
        let hashes: Vec<u64> = (0..1u64 << 20).map(mix).collect();
        let mut now = 0;
        for _ in 0..3 {
            for hash in &hashes {
                now += 1;
                ratios.note(*hash, (0, 0), now, 1 << 20);
            }
        }
        assert!((7..10).contains(&ratios.shift), "{}", ratios.shift);
        assert!(ratios.ratio((0, 0)) > 0.9, "{}", ratios.ratio((0, 0)));
        let all_sampled = ratios
            .samples
            .iter()
            .flatten()
            .all(|sample| !sample.used || is_sampled(sample.hash, ratios.shift));
        assert!(all_sampled);
    }
}
