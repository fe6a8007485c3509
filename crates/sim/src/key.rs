//! How reference policies name blocks, and compact sets of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use haversack_trace::VolumeNo;

use crate::error::SimError;

/// Bits of a key that hold the block number.
const BLOCK_BITS: u32 = 40;
/// Number of blocks of the largest volume.
pub const MAX_BLOCKS: u64 = 1 << BLOCK_BITS;
/// Maximum number of volumes of a trace.
pub const MAX_VOLUMES: u32 = 1 << (64 - BLOCK_BITS);

/// A block of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(pub u64);

impl Key {
    /// The key of a volume's block. Blocks from [`MAX_BLOCKS`] on must have been refused, see [`check`].
    pub fn new(volume: VolumeNo, block: u64) -> Key {
        Key(u64::from(volume.0) << BLOCK_BITS | block)
    }

    /// The volume that it is a block of.
    pub fn volume(self) -> VolumeNo {
        VolumeNo((self.0 >> BLOCK_BITS) as u32)
    }

    /// The block's number in its volume.
    pub fn block(self) -> u64 {
        self.0 & ((1 << BLOCK_BITS) - 1)
    }

    /// A hash with all bits mixed (the finalizer of MurmurHash3).
    pub fn hash(self) -> u64 {
        let mut hash = self.0;
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ (hash >> 33)
    }
}

/// Refuses blocks that have no key.
///
/// # Errors
/// [`SimError::TooLarge`] for a volume or block beyond the largest.
pub fn check(volume: VolumeNo, last_block: u64, block_bytes: u64) -> Result<(), SimError> {
    if volume.0 < MAX_VOLUMES && last_block < MAX_BLOCKS {
        return Ok(());
    }
    let (offset_bytes, most_bytes) = (last_block.saturating_mul(block_bytes), MAX_BLOCKS * block_bytes);
    Err(SimError::TooLarge { volume: volume.0, offset_bytes, most_bytes, most_volumes: MAX_VOLUMES })
}

/// Hashes one number, for tables of keys.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = Key(self.0 ^ number).hash();
    }
}

/// A map from numbers, with a fast hash.
pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Blocks whose bits lie in one word.
const WORD_BLOCKS: u64 = 64;

/// A set of blocks: one bit per block, in words shared by neighbours.
#[derive(Default)]
pub struct KeySet {
    words: NumberMap<u64>,
    len: u64,
}

impl KeySet {
    /// Adds a block; returns whether it was already there.
    pub fn insert(&mut self, key: Key) -> bool {
        let (word, bit) = (self.words.entry(key.0 / WORD_BLOCKS).or_default(), 1 << (key.0 % WORD_BLOCKS));
        let was_there = *word & bit != 0;
        *word |= bit;
        self.len += u64::from(!was_there);
        was_there
    }

    /// Whether a block is in it.
    pub fn contains(&self, key: Key) -> bool {
        self.words.get(&(key.0 / WORD_BLOCKS)).is_some_and(|word| word & (1 << (key.0 % WORD_BLOCKS)) != 0)
    }

    /// Removes a block; returns whether it was there.
    pub fn remove(&mut self, key: Key) -> bool {
        let Some(word) = self.words.get_mut(&(key.0 / WORD_BLOCKS)) else { return false };
        let was_there = *word & (1 << (key.0 % WORD_BLOCKS)) != 0;
        *word &= !(1 << (key.0 % WORD_BLOCKS));
        self.len -= u64::from(was_there);
        was_there
    }

    /// All blocks, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Key> + '_ {
        let blocks = |(word, bits): (&u64, &u64)| {
            let (first, bits) = (word * WORD_BLOCKS, *bits);
            (0..WORD_BLOCKS).filter(move |at| bits & (1 << at) != 0).map(move |at| Key(first + at))
        };
        self.words.iter().flat_map(blocks)
    }

    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_counts_each_block_once() {
        let mut set = KeySet::default();
        let key = |volume, block| Key::new(VolumeNo(volume), block);
        assert!(set.is_empty() && !set.contains(key(0, 63)));
        assert!(!set.insert(key(0, 63)));
        assert!(!set.insert(key(1, 63)));
        assert!(!set.insert(key(0, 64)));
        assert!(set.insert(key(0, 63)));
        assert_eq!(set.len(), 3);
        assert!(set.remove(key(0, 63)) && !set.remove(key(0, 63)) && !set.remove(key(9, 9)));
        assert_eq!(set.len(), 2);
        assert!(set.contains(key(1, 63)) && !set.contains(key(0, 63)));
        let mut all: Vec<_> = set.iter().collect();
        all.sort();
        assert_eq!(all, [key(0, 64), key(1, 63)]);
        assert_eq!(all[1].volume(), VolumeNo(1));
    }

    #[test]
    fn settings_without_a_key_are_refused() {
        assert!(check(VolumeNo(MAX_VOLUMES - 1), MAX_BLOCKS - 1, 4096).is_ok());
        let error = check(VolumeNo(0), MAX_BLOCKS, 4096).unwrap_err().to_string();
        assert!(error.contains("volume 0") && error.contains("block size"), "{error}");
        assert!(check(VolumeNo(MAX_VOLUMES), 0, 4096).is_err());
    }
}
