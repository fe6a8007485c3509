//! Where new data is placed: never over other data, often directly after the previous data, and from the volume's
//! first block to its last.

use super::random::Random;

/// Parts of the volume that are filled independently.
const ZONES: u64 = 64;

/// Space that has not been allocated.
pub(super) struct Space {
    /// The free part of each zone.
    zones: Vec<(u64, u64)>,
    current: usize,
    sequential: f64,
}

impl Space {
    pub fn new(blocks: u64, sequential: f64) -> Self {
        let zones = ZONES.min(blocks);
        let edge = |zone: u64| (u128::from(blocks) * u128::from(zone) / u128::from(zones)) as u64;
        let zones = (0..zones).map(|zone| (edge(zone), edge(zone + 1))).collect();
        Space { zones, current: 0, sequential }
    }

    /// Returns the end of the volume: fewer blocks if the last zone has fewer; it has at least 1.
    pub fn last(&mut self, blocks: u32) -> (u64, u32) {
        let last = self.zones.len() - 1;
        let (start, end) = &mut self.zones[last];
        let blocks = u64::from(blocks).min(*end - *start);
        *end -= blocks;
        (*end, blocks as u32)
    }

    /// Allocates n blocks, or fewer if no zone has as many; `None` when the volume is full.
    pub fn take(&mut self, blocks: u32, random: &mut Random) -> Option<(u64, u32)> {
        let wanted = u64::from(blocks);
        // The first allocation is at the beginning of the volume.
        let begins = self.zones[0].0 == 0 && self.room(0) > 0;
        if !begins && (self.room(self.current) < wanted || !random.chance(self.sequential)) {
            let from = random.below(self.zones.len() as u64) as usize;
            let turn = (0..self.zones.len()).map(|at| (from + at) % self.zones.len());
            let fits = turn.clone().find(|zone| self.room(*zone) >= wanted);
            self.current = fits.or_else(|| turn.max_by_key(|zone| self.room(*zone)))?;
        }
        let (start, end) = &mut self.zones[self.current];
        let blocks = wanted.min(*end - *start);
        let at = *start;
        *start += blocks;
        (blocks > 0).then_some((at, blocks as u32))
    }

    fn room(&self, zone: usize) -> u64 {
        self.zones[zone].1 - self.zones[zone].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_given_once() {
        for blocks in [1u64, 63, 64, 1000] {
            let mut space = Space::new(blocks, 0.5);
            let mut random = Random::new(blocks, 0);
            let mut given = vec![false; blocks as usize];
            let mut give = |(start, blocks): (u64, u32)| {
                for block in start..start + u64::from(blocks) {
                    assert!(!std::mem::replace(&mut given[block as usize], true), "block {block} twice");
                }
            };
            let last = space.last(3);
            assert_eq!(last.0 + u64::from(last.1), blocks);
            give(last);
            while let Some(extent) = space.take(7, &mut random) {
                give(extent);
            }
            assert!(given.iter().all(|given| *given));
        }
    }
}
