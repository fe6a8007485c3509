//! Random numbers: xoshiro256++, seeded by SplitMix64.
//!
//! Implemented here so that a seed always gives the same trace, even if a library changes.
//!
//! Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS 47(4), 2021.

/// A stream of random numbers.
#[derive(Clone)]
pub(super) struct Random([u64; 4]);

impl Random {
    /// Makes the stream of a seed; `stream` numbers independent ones.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        Random([(); 4].map(|()| split_mix(&mut state)))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let out = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        out
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a number below `limit`, which is not 0. The bias is below one in 2^64 / `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns true with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Rounds `value` up or down at random, so that its mean stays the same.
    pub fn round(&mut self, value: f64) -> u64 {
        value.floor() as u64 + u64::from(self.chance(value.fract()))
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // The reference implementation's first numbers from the state 1, 2, 3, 4.
        let mut random = Random([1, 2, 3, 4]);
        assert_eq!(
            [random.bits(), random.bits(), random.bits()],
            [41_943_041, 58_720_359, 3_588_806_011_781_223]
        );
        // SplitMix64's first number from 0.
        assert_eq!(split_mix(&mut 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn streams_and_seeds_differ_and_numbers_are_even() {
        assert_ne!(Random::new(1, 0).bits(), Random::new(1, 1).bits());
        assert_ne!(Random::new(1, 0).bits(), Random::new(2, 0).bits());
        let mut random = Random::new(7, 0);
        let mut counts = [0; 10];
        (0..100_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
        let mean = (0..100_000).map(|_| random.round(0.3)).sum::<u64>() as f64 / 1e5;
        assert!((mean - 0.3).abs() < 0.01, "{mean}");
    }
}
