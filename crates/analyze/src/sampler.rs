//! Estimated distances in bounded memory: only blocks whose place (a number computed from the address) is below a
//! threshold are tracked, and their figures are scaled up.
//!
//! With a *fixed rate*, memory grows with the blocks accessed. With a *fixed size*, the threshold is lowered whenever
//! there would be more blocks than allowed. Each sampled access counts for as many as the rate at that moment stands
//! for.
//!
//! Places are spread evenly over neighbouring blocks, not hashed as in the paper: of any run of blocks, nearly the
//! same share is in the sample. On disk traces this reduces the error to a third or less, at no cost.
//!
//! It has no I/O, clock or thread: a running cache may feed it access by access.
//!
//! Source: Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST'15.

use std::collections::BinaryHeap;

use crate::profile::Profile;
use crate::reference::{Kind, spread};
use crate::stack::Stack;

/// Estimates the profile of the accesses passed to it. For a cache that drops written blocks, pass writes as discards.
#[derive(Clone)]
pub struct Sampler {
    /// Blocks with a place of at most this are in the sample.
    threshold: u64,
    /// How many accesses a sampled one stands for.
    weight: f64,
    most_blocks: usize,
    stack: Stack,
    /// Places and keys of the sampled blocks, the largest place on top. Empty with a fixed rate.
    by_place: BinaryHeap<(u64, u64)>,
    profile: Profile,
    /// Reads and writes up to the last [`Sampler::fade`], sampled or not.
    known: [f64; 2],
    /// Reads, writes and discards since then, not in `known` yet.
    fresh: [u64; 3],
}

impl Sampler {
    /// Makes a sample of a fixed share of all blocks, above 0 and at most 1.
    pub fn fixed_rate(rate: f64) -> Sampler {
        Sampler::new(threshold_of(rate), usize::MAX)
    }

    /// Makes a sample of at most n blocks: at first of all, then of fewer and fewer. About 100 bytes each.
    pub fn fixed_size(most_blocks: usize) -> Sampler {
        Sampler::new(u64::MAX, most_blocks.max(1))
    }

    /// Makes a sample of at most n blocks that begins with this share of all blocks, above 0 and at most 1: the final
    /// share of an earlier, similar sample. This avoids adding blocks that soon have to be removed again.
    pub fn fixed_size_from(most_blocks: usize, rate: f64) -> Sampler {
        Sampler::new(threshold_of(rate), most_blocks.max(1))
    }

    /// Makes the counts of hits exact at these sizes in blocks, as far as the sample is. Must be called before any
    /// access.
    #[must_use]
    pub fn exact_at(self, sizes: &[u64]) -> Sampler {
        Sampler { profile: Profile::new(sizes), ..self }
    }

    fn new(threshold: u64, most_blocks: usize) -> Sampler {
        let mut sampler = Sampler {
            threshold,
            weight: 1.0,
            most_blocks,
            stack: Stack::default(),
            by_place: BinaryHeap::new(),
            profile: Profile::new(&[]),
            known: [0.0; 2],
            fresh: [0; 3],
        };
        sampler.set_threshold(threshold);
        sampler
    }

    /// Returns the share of blocks that are currently sampled.
    pub fn rate(&self) -> f64 {
        1.0 / self.weight
    }

    /// Returns the number of blocks in the sample.
    pub fn blocks(&self) -> usize {
        self.stack.blocks()
    }

    /// Returns the estimated number of distinct blocks read or written so far.
    pub fn footprint(&self) -> f64 {
        self.stack.blocks() as f64 * self.weight
    }

    /// Records an access. `key` is the block's number, or any number below 2^60 that identifies it.
    #[inline]
    pub fn access(&mut self, key: u64, kind: Kind) {
        self.fresh[kind as usize] += 1;
        let place = spread(key);
        if place <= self.threshold {
            self.sample(place, key, kind);
        }
    }

    /// Records accesses to blocks that are known not to be in the sample.
    pub fn pass_over(&mut self, kind: Kind, accesses: u64) {
        self.fresh[kind as usize] += accesses;
    }

    fn sample(&mut self, place: u64, key: u64, kind: Kind) {
        let before = self.stack.blocks();
        let outcome = self.stack.touch_sampled(key, kind, self.weight);
        self.profile.record(kind, outcome, self.weight);
        if self.most_blocks == usize::MAX || self.stack.blocks() == before {
            return;
        }
        self.by_place.push((place, key));
        if self.by_place.len() > self.most_blocks
            && let Some((place, key)) = self.by_place.pop()
        {
            self.stack.forget(key);
            self.set_threshold(place.saturating_sub(1));
        }
    }

    fn set_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
        self.weight = 2f64.powi(64) / (threshold as f64 + 1.0);
    }

    /// Returns the result so far, scaled up to all accesses; versions still dirty count with their current depth.
    pub fn profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        let known = |kind: Kind| self.known[kind as usize] + self.fresh[kind as usize] as f64;
        profile.adjust(known(Kind::Read), known(Kind::Write));
        self.stack
            .dirty_versions(self.weight)
            .for_each(|(_, [deepest])| profile.record_version(deepest, self.weight));
        profile
    }

    /// Makes old accesses count less: all weights are multiplied by `factor`. Blocks and their order stay.
    pub fn fade(&mut self, factor: f64) {
        self.profile.fade(factor);
        for (known, fresh) in self.known.iter_mut().zip(&mut self.fresh) {
            *known = (*known + std::mem::take(fresh) as f64) * factor;
        }
    }

    /// Counts every block of the sample as used once so far: after that, a block used at least twice is one that was
    /// used again since then.
    pub fn restart_counts(&mut self) {
        self.stack.restart_counts();
    }

    /// Returns how often each sampled block was read or written, in no order.
    pub fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.stack.counts()
    }
}

/// Blocks with a place of at most this are this share of all.
fn threshold_of(rate: f64) -> u64 {
    // The cast saturates: a rate of 1 includes all.
    (rate.clamp(f64::MIN_POSITIVE, 1.0) * 2f64.powi(64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depths at which a version was found when the sample was larger do not grow when blocks leave the sample.
    #[test]
    fn old_depths_stay_when_the_sample_becomes_sparser() {
        let (hot, cold) = (1000, 1000);
        let mut sampler = Sampler::fixed_size(hot as usize);
        (0..hot).for_each(|key| sampler.access(key, Kind::Write));
        for round in 1..100 {
            (0..hot).for_each(|key| sampler.access(key, Kind::Read));
            (0..cold).for_each(|key| sampler.access(hot + round * cold + key, Kind::Read));
        }
        assert!(sampler.rate() < 0.02, "{}", sampler.rate());
        // No written block is ever deeper than the other hot ones and the cold ones of a round.
        let evicted = sampler.profile().dirty_evictions(2 * (hot + cold));
        assert!(evicted < 100.0, "{evicted} of {hot}");
    }
}
