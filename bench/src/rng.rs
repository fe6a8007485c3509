//! Random numbers that are the same in every run.

/// A xorshift generator (Marsaglia, 2003).
pub struct Rng(u64);

impl Rng {
    /// A generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Rng(seed | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}
