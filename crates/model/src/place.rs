//! Samples of blocks: every part of the system that samples blocks samples the same ones.
//!
//! A block is in a sample if its place, a number derived from its address, is below a threshold. Places are spread
//! evenly over adjacent blocks, so nearly the same share of any run of blocks is in a sample.
//!
//! Source: Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS", FAST'15, for sampling by
//! address.

/// Places are spread evenly over groups of this many blocks: 2 to this power.
const GROUP_BITS: u32 = 16;

/// Mixes a number's bits so that all of them are as good as random: the finaliser of SplitMix64.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA'14; constants by Stafford.
#[inline]
pub fn mix(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

/// Returns a key's place among all 64-bit numbers: uniform over the groups' random offsets, and evenly spaced for
/// adjacent keys, so that each range of numbers holds nearly the same share of every run of blocks.
///
/// Multiples of the golden ratio, modulo 1, are the most even of all such sequences for any length and almost any
/// stride (Weyl; Knuth, "The art of computer programming", volume 3, section 6.4).
#[inline]
pub fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(mix(key >> GROUP_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_blocks_is_sampled_evenly() {
        for first in [0, 1 << 20, 12_345_678] {
            let sampled = (first..first + 10_000).filter(|block| spread(*block) >> 61 == 0).count();
            assert!(sampled.abs_diff(10_000 / 8) < 30, "an eighth of the run from {first} on: {sampled}");
        }
    }
}
