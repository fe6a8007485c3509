//! A Bloom filter of block numbers.
//!
//! With k probes and 1.44 k bits for each of its blocks, a full filter says yes to 2^-k of the blocks that it does not
//! have. The probes are taken from two hashes (Kirsch and Mitzenmacher, "Less hashing, same performance", ESA'06).

use haversack_model::place::mix;

/// See the module.
#[derive(Clone, Debug)]
pub struct Bloom {
    bits: Vec<u64>,
    probes: u32,
    blocks: u32,
    most_blocks: u32,
}

impl Bloom {
    /// Makes an empty filter for this many blocks.
    pub fn new(most_blocks: u32, probes: u32) -> Bloom {
        let bits = u64::from(most_blocks.max(1)) * u64::from(probes) * 1443 / 1000;
        Bloom { bits: vec![0; bits.div_ceil(64) as usize], probes, blocks: 0, most_blocks }
    }

    /// Returns the share of other blocks to which a full filter says yes.
    pub fn false_positives(probes: u32) -> f64 {
        0.5f64.powi(probes as i32)
    }

    /// Returns the blocks that were added.
    pub fn len(&self) -> u32 {
        self.blocks
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Returns for how many blocks it was made.
    pub fn most(&self) -> u32 {
        self.most_blocks
    }

    /// Returns whether there are as many as it was made for.
    pub fn is_full(&self) -> bool {
        self.blocks >= self.most_blocks
    }

    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bits.len() * 8
    }

    fn places(&self, block: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (first, step) = (mix(block), mix(block ^ 0x5bd1_e995_9e37_79b9) | 1);
        let bits = self.bits.len() as u64 * 64;
        (0..u64::from(self.probes)).map(move |probe| {
            let hash = first.wrapping_add(probe.wrapping_mul(step));
            let place = ((u128::from(hash) * u128::from(bits)) >> 64) as u64;
            ((place / 64) as usize, 1 << (place % 64))
        })
    }

    /// Returns whether a block may have been added.
    pub fn has(&self, block: u64) -> bool {
        self.places(block).all(|(word, bit)| self.bits[word] & bit != 0)
    }

    /// Adds a block. Returns whether it was not there.
    pub fn add(&mut self, block: u64) -> bool {
        let mut is_new = false;
        for (word, bit) in self.places(block) {
            is_new |= self.bits[word] & bit == 0;
            self.bits[word] |= bit;
        }
        self.blocks += u32::from(is_new);
        is_new
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.blocks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_filter_is_wrong_as_rarely_as_computed() {
        for probes in [4, 8, 13] {
            let mut bloom = Bloom::new(20_000, probes);
            for block in 0.. {
                if bloom.is_full() {
                    break;
                }
                bloom.add(block * 7);
            }
            let last = u64::from(bloom.len()) * 7;
            assert!((0..u64::from(bloom.len())).all(|at| bloom.has(at * 7)));
            let others = 2_000_000;
            let wrong = (0..others).filter(|at| bloom.has((1 << 40) + last + at)).count();
            let expected = Bloom::false_positives(probes) * others as f64;
            assert!(
                (wrong as f64) < expected * 1.1 + 60.0 && wrong as f64 > expected * 0.8 - 60.0,
                "{wrong}, {expected}"
            );
        }
    }

    #[test]
    fn an_emptied_filter_has_nothing() {
        let mut bloom = Bloom::new(100, 8);
        for block in 0..100 {
            bloom.add(block);
        }
        assert!(!bloom.is_empty());
        bloom.clear();
        assert!(bloom.is_empty() && (0..100).all(|block| !bloom.has(block)));
    }
}
