//! The ghost list: addresses of blocks that were evicted on probation. A block that comes back while its
//! address is remembered is protected at once (S3-FIFO, Yang et al., SOSP'23, section 4.1).
//!
//! Each segment that a disk owns has a chunk of 256 fingerprints. So a disk remembers about as many addresses
//! as it has blocks, no disk can displace the addresses of another, and the cost is 4 bytes a block. A
//! block's chunk is chosen by jump consistent hashing (Lamping and Veach, 2014), so that few addresses are
//! forgotten when the disk gains or loses a segment. Within a chunk, sets of 16 are replaced first in, first
//! out.

const SETS: usize = 16;
const WAYS: usize = 16;

/// The addresses that the owner of one segment remembers in it.
#[derive(Clone)]
pub struct GhostChunk([[u32; WAYS]; SETS]);

impl Default for GhostChunk {
    fn default() -> Self {
        GhostChunk([[0; WAYS]; SETS])
    }
}

fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

impl GhostChunk {
    fn set(hash: u64) -> usize {
        (hash >> 8) as usize % SETS
    }

    /// Whether the address is remembered. Asking removes it.
    pub fn take(&mut self, hash: u64) -> bool {
        let set = &mut self.0[Self::set(hash)];
        match set.iter().position(|f| *f == fingerprint(hash)) {
            Some(way) => {
                set[way..].rotate_left(1);
                set[WAYS - 1] = 0;
                true
            }
            None => false,
        }
    }

    /// Remembers an address.
    pub fn insert(&mut self, hash: u64) {
        let set = &mut self.0[Self::set(hash)];
        set.rotate_right(1);
        set[0] = fingerprint(hash);
    }
}

/// Returns which of `chunks` chunks a hash belongs to: jump consistent hashing.
pub fn chunk_of(hash: u64, chunks: usize) -> usize {
    let (mut key, mut bucket, mut next) = (hash, 0u64, 0u64);
    while next < chunks as u64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as u64;
    }
    bucket as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::mix;

    #[test]
    fn remembers_the_newest_of_a_set() {
        let mut chunk = GhostChunk::default();
        let hashes: Vec<u64> = (0..1000u64).map(mix).filter(|h| GhostChunk::set(*h) == 3).take(20).collect();
        for hash in &hashes {
            chunk.insert(*hash);
        }
        for (age, hash) in hashes.iter().rev().enumerate() {
            assert_eq!(chunk.take(*hash), age < WAYS, "age {age}");
            assert!(!chunk.take(*hash));
        }
    }

    #[test]
    fn one_more_chunk_moves_few_addresses() {
        let moved = (0..10_000u64).filter(|i| chunk_of(mix(*i), 10) != chunk_of(mix(*i), 11)).count();
        assert!(moved < 1_100, "{moved}");
    }
}
