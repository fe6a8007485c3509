//! Uniform: every block is as likely as any other.

use super::mix::Place;
use super::random::Random;

pub(super) struct Uniform {
    pub blocks: u64,
}

impl Place for Uniform {
    fn place(&mut self, _: u32, _: f64, random: &mut Random) -> u64 {
        random.below(self.blocks)
    }
}
