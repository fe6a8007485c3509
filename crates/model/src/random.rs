//! Random numbers that follow from a seed: the same ones on every machine, in every version.

use crate::place::mix;

/// What the state grows by: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14): fast, and good enough for faults, workloads and latencies.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Makes a generator whose numbers have nothing to do with those of [`Random::new`] for any small seed.
    pub fn scrambled(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x6a09_e667_f3bc_c908);
        random.bits();
        random
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number above 0 and below 1.
    pub fn open_unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a normally distributed number with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.open_unit().ln()).sqrt() * (std::f64::consts::TAU * self.open_unit()).cos()
    }

    /// Returns true in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true once in `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns a number from 1 to `max`, small ones far more often.
    pub fn skewed(&mut self, max: u64) -> u64 {
        let bits = 64 - u64::from(max.leading_zeros());
        let top = 1u64 << self.below(bits + 1);
        self.range(1, top.min(max).max(1))
    }

    /// Returns a separate generator for a part of the work.
    pub fn fork(&mut self) -> Random {
        Random::scrambled(self.bits())
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut random = Random::new(1_234_567);
        let first = [random.bits(), random.bits(), random.bits()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
