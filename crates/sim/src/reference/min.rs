//! Belady's MIN with bypass: evicts the block whose next use is farthest away, which may be the new one. No
//! policy has more hits.
//!
//! It needs the future, so it works in two passes. [`Future`] takes the accesses and records for each where
//! the same block is used next: 4 bytes per access, the only part of the simulator that grows with the
//! trace's length. [`replay`] then simulates any size. It needs no block names: a cached block is identified
//! by the position of its next use, and an access hits if its position is in the set of cached next uses.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966.

use super::bits::BitTree;
use crate::error::SimError;
use crate::key::{Key, NumberMap};

/// The block is not used again, or is invalidated first.
const NEVER: u32 = u32::MAX;
/// Number of accesses in a piece of memory. With pieces, nothing is copied when the list grows.
const PIECE: usize = 1 << 20;
/// Number of neighbouring blocks whose last uses are stored together.
const TOGETHER: u64 = 4;

/// Where each access's block is used next.
#[derive(Default)]
pub struct Future {
    next: Vec<Vec<u32>>,
    len: usize,
    /// Where to look whether a block is cached: after how many accesses, and the last access of the block.
    looks: Vec<(u32, u32)>,
    last: NumberMap<[u32; TOGETHER as usize]>,
}

impl Future {
    /// Records the next access.
    ///
    /// # Errors
    /// [`SimError::TooLong`] beyond 2^32 - 2 accesses.
    pub fn access(&mut self, key: Key) -> Result<(), SimError> {
        let place = u32::try_from(self.len).ok().filter(|place| *place < NEVER);
        let place = place.ok_or(SimError::TooLong { most: u64::from(NEVER) - 1 })?;
        let together = self.last.entry(key.0 / TOGETHER).or_insert([NEVER; TOGETHER as usize]);
        let last = std::mem::replace(&mut together[(key.0 % TOGETHER) as usize], place);
        if last != NEVER {
            self.next[last as usize / PIECE][last as usize % PIECE] = place;
        }
        if self.len.is_multiple_of(PIECE) {
            self.next.push(Vec::with_capacity(PIECE));
        }
        self.next[self.len / PIECE].push(NEVER);
        self.len += 1;
        Ok(())
    }

    /// Invalidates a block: later accesses cannot hit its earlier content.
    pub fn remove(&mut self, key: Key) {
        if let Some(together) = self.last.get_mut(&(key.0 / TOGETHER)) {
            together[(key.0 % TOGETHER) as usize] = NEVER;
        }
    }

    /// Has [`replay`] look here whether a block is cached, without an access. Returns false if it never is.
    pub fn look(&mut self, key: Key) -> bool {
        let together = self.last.get(&(key.0 / TOGETHER));
        let last = together.map_or(NEVER, |together| together[(key.0 % TOGETHER) as usize]);
        if last != NEVER {
            self.looks.push((self.len as u32, last));
        }
        last != NEVER
    }

    /// Number of looks so far.
    pub fn looks(&self) -> usize {
        self.looks.len()
    }

    fn next_of(&self, place: u32) -> u32 {
        self.next[place as usize / PIECE][place as usize % PIECE]
    }

    /// Ends the first pass and frees the memory that only this pass needs.
    pub fn end(&mut self) {
        self.last = NumberMap::default();
    }

    /// Number of recorded accesses.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MinStep {
    /// The block was cached.
    pub hit: bool,
    /// The block is cached from now on.
    pub kept: bool,
}

/// Simulates a cache of n blocks. `each` is called for every access in order, `looked` for every look, and told whether
/// the block is cached.
pub fn replay(
    future: &Future,
    capacity: usize,
    mut each: impl FnMut(usize, MinStep),
    mut looked: impl FnMut(usize, bool),
) {
    let mut cached = BitTree::new(future.len());
    let mut looks = future.looks.iter().enumerate().peekable();
    let mut look_until = |played: usize, cached: &BitTree| {
        while let Some((number, (_, last))) = looks.next_if(|(_, (at, _))| *at as usize <= played) {
            let next = future.next_of(*last);
            looked(number, next != NEVER && cached.contains(next as usize));
        }
    };
    for (place, next) in future.next.iter().flatten().enumerate() {
        let hit = cached.contains(place);
        if hit {
            cached.remove(place);
        }
        let mut kept = *next != NEVER && capacity > 0;
        if kept && cached.len() == capacity {
            // Full, so there is a farthest one.
            let farthest = cached.max().unwrap_or(0);
            kept = (*next as usize) < farthest;
            if kept {
                cached.remove(farthest);
            }
        }
        if kept {
            cached.insert(*next as usize);
        }
        each(place, MinStep { hit, kept });
        look_until(place + 1, &cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(keys: &[u64], capacity: usize) -> Vec<usize> {
        let mut future = Future::default();
        keys.iter().for_each(|key| future.access(Key(*key)).unwrap());
        let mut hits = Vec::new();
        replay(&future, capacity, |place, step| hits.extend(step.hit.then_some(place)), |_, _| {});
        hits
    }

    #[test]
    fn the_farthest_gives_way_or_never_enters() {
        assert_eq!(hits(&[1, 2, 3, 1, 2, 3], 2), [3, 4]);
        assert_eq!(hits(&[1, 2, 3, 3, 1, 2], 1), [3]);
        assert_eq!(hits(&[1, 2, 1, 2], 0), [] as [usize; 0]);
    }

    #[test]
    fn an_invalidated_block_does_not_hit() {
        let mut future = Future::default();
        future.access(Key(1)).unwrap();
        future.remove(Key(1));
        future.access(Key(1)).unwrap();
        replay(&future, 9, |_, step| assert!(!step.hit), |_, _| {});
    }

    #[test]
    fn a_look_sees_what_is_cached_between_two_accesses() {
        let mut future = Future::default();
        assert!(!future.look(Key(1)), "it was never accessed");
        for key in [1, 2, 2, 1] {
            future.access(Key(key)).unwrap();
            assert!(future.look(Key(1)));
        }
        let looked = |capacity| {
            let mut found = Vec::new();
            replay(&future, capacity, |_, _| {}, |_, is_cached| found.push(is_cached));
            found
        };
        assert_eq!(looked(2), [true, true, true, false], "after its last access it is not needed");
        assert_eq!(looked(1), [true, false, false, false]);
    }
}
