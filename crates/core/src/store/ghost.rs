//! The ghost list: addresses of blocks that were evicted on probation. A block that comes back while its
//! address is remembered is protected at once (S3-FIFO, Yang et al., SOSP'23, section 4.1).
//!
//! Each segment that a disk owns has a chunk of 256 fingerprints. So a disk remembers about as many addresses
//! as it has blocks, no disk can displace the addresses of another, and the cost is 2 bytes a block. A
//! block's chunk is chosen by jump consistent hashing (Lamping and Veach, 2014), so that few addresses are
//! forgotten when the disk gains or loses a segment. Within a chunk, sets of 16 are replaced first in, first
//! out. A fingerprint has 16 bits, on which neither the set nor the chunk depends. About one in 4,096 blocks that are
//! not remembered is mistaken for a remembered one.

use super::segment::SegmentNo;

const SETS: usize = 16;
const WAYS: usize = 16;

/// The addresses that the owner of one segment remembers in it.
type Chunk = [[u16; WAYS]; SETS];

/// The chunks of all segments. Those that were never written to take no memory.
#[derive(Default)]
pub struct Ghosts(Vec<Chunk>);

/// Returns bits of the hash that are evenly distributed among the blocks of a set in a chunk: the choice of the chunk
/// depends on the upper half of the hash, whatever the lower half is. 0 means no address.
fn fingerprint(hash: u64) -> u16 {
    ((hash >> 16) as u16).max(1)
}

fn set_of(hash: u64) -> usize {
    (hash >> 8) as usize % SETS
}

impl Ghosts {
    /// Returns the chunks of this many segments, all empty.
    pub fn new(segments: usize) -> Ghosts {
        Ghosts(vec![[[0; WAYS]; SETS]; segments])
    }

    /// Copies the chunk of a segment from another table.
    pub fn copy_segment(&mut self, from: &Ghosts, segment: SegmentNo) {
        self.0[segment.0 as usize] = from.0[segment.0 as usize];
    }

    /// Forgets the addresses in the chunk of a segment.
    pub fn clear(&mut self, segment: SegmentNo) {
        let chunk = &mut self.0[segment.0 as usize];
        // A chunk that is empty already is left alone: it may take no memory yet.
        if chunk.as_flattened().iter().any(|fingerprint| *fingerprint != 0) {
            *chunk = [[0; WAYS]; SETS];
        }
    }

    /// Returns the addresses of all chunks, one after the other; 0 where there is none.
    pub fn all(&self) -> &[u16] {
        self.0.as_flattened().as_flattened()
    }

    /// Returns the addresses of all chunks, to change.
    pub fn all_mut(&mut self) -> &mut [u16] {
        self.0.as_flattened_mut().as_flattened_mut()
    }

    /// Returns the bytes of memory that the chunks take once all have been used.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }

    /// Whether the address is remembered in the chunk of a segment. Asking removes it.
    pub fn take(&mut self, segment: SegmentNo, hash: u64) -> bool {
        let set = &mut self.0[segment.0 as usize][set_of(hash)];
        match set.iter().position(|f| *f == fingerprint(hash)) {
            Some(way) => {
                set[way..].rotate_left(1);
                set[WAYS - 1] = 0;
                true
            }
            None => false,
        }
    }

    /// Remembers an address in the chunk of a segment.
    pub fn insert(&mut self, segment: SegmentNo, hash: u64) {
        let set = &mut self.0[segment.0 as usize][set_of(hash)];
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
        let (mut ghosts, segment) = (Ghosts::new(2), SegmentNo(1));
        let hashes: Vec<u64> = (0..1000u64).map(mix).filter(|h| set_of(*h) == 3).take(20).collect();
        for hash in &hashes {
            ghosts.insert(segment, *hash);
        }
        for (age, hash) in hashes.iter().rev().enumerate() {
            assert!(!ghosts.take(SegmentNo(0), *hash), "another segment's chunk");
            assert_eq!(ghosts.take(segment, *hash), age < WAYS, "age {age}");
            assert!(!ghosts.take(segment, *hash));
        }
        ghosts.insert(segment, hashes[0]);
        ghosts.clear(segment);
        assert!(!ghosts.take(segment, hashes[0]));
    }

    /// Blocks that come to the same chunk differ in their fingerprints as much as any others.
    #[test]
    fn few_blocks_are_taken_for_others() {
        let chunks = 500;
        let mut ghosts = Ghosts::new(chunks);
        let chunk = |hash| SegmentNo(chunk_of(hash, chunks) as u32);
        let remembered = 16 * (chunks * SETS * WAYS) as u64;
        (0..remembered).map(mix).for_each(|hash| ghosts.insert(chunk(hash), hash));
        let asked = 1 << 20;
        let absent = (remembered..remembered + asked).map(mix);
        let taken = absent.filter(|hash| ghosts.take(chunk(*hash), *hash)).count();
        let expected = asked as usize / 4096;
        assert!((expected / 2..expected * 3 / 2).contains(&taken), "{taken} instead of about {expected}");
    }

    #[test]
    fn one_more_chunk_moves_few_addresses() {
        let moved = (0..10_000u64).filter(|i| chunk_of(mix(*i), 10) != chunk_of(mix(*i), 11)).count();
        assert!(moved < 1_100, "{moved}");
    }
}
