//! Phases: a working set that is hot for a while and is then replaced by another.

use super::mix::Place;
use super::random::Random;
use super::zipf::{Ranks, Spread};

/// The share of requests that go to any block of the volume.
const STRAY: f64 = 0.05;

pub(super) struct Phases {
    pub blocks: u64,
    pub phases: u32,
    pub ranks: Ranks,
    /// Places within a working set.
    pub spread: Spread,
}

impl Place for Phases {
    fn place(&mut self, _: u32, share: f64, random: &mut Random) -> u64 {
        if random.chance(STRAY) {
            return random.below(self.blocks);
        }
        let phase = (share * f64::from(self.phases)) as u64;
        let begin = u128::from(self.blocks) * u128::from(phase) / u128::from(self.phases);
        (begin as u64 + self.spread.place(self.ranks.draw(random))) % self.blocks
    }
}
