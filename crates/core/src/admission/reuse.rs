//! Address staging: a block enters at access number N+1 while its address is still staged; the least
//! recently accessed address gives way (CloudCache, section 3.2, "staging area").

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use haversack_model::BlockNo;

use super::Admission;
use crate::hasher::NumberHasher;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Address {
    block: u64,
    accesses: u8,
    newer: u32,
    older: u32,
}

/// See the module.
pub struct Reuse {
    needed: u8,
    capacity: u32,
    places: Vec<Address>,
    free: Vec<u32>,
    table: HashMap<u64, u32, BuildHasherDefault<NumberHasher>>,
    newest: u32,
    oldest: u32,
}

impl Reuse {
    /// Admits after `n` reuses within the last `addresses` addresses.
    pub fn new(n: u8, addresses: u32) -> Reuse {
        Reuse {
            needed: n,
            capacity: addresses,
            places: Vec::with_capacity(addresses as usize),
            free: Vec::new(),
            table: HashMap::with_capacity_and_hasher(addresses as usize, BuildHasherDefault::default()),
            newest: NONE,
            oldest: NONE,
        }
    }

    fn unlink(&mut self, place: u32) {
        let Address { newer, older, .. } = self.places[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        self.places[place as usize].newer = NONE;
        self.places[place as usize].older = older;
        match older {
            NONE => self.oldest = place,
            older => self.places[older as usize].newer = place,
        }
        self.newest = place;
    }

    fn new_place(&mut self) -> u32 {
        if let Some(place) = self.free.pop() {
            return place;
        }
        if (self.places.len() as u32) < self.capacity {
            self.places.push(Address { block: 0, accesses: 0, newer: NONE, older: NONE });
            return self.places.len() as u32 - 1;
        }
        let place = self.oldest;
        self.unlink(place);
        self.table.remove(&self.places[place as usize].block);
        place
    }
}

impl Admission for Reuse {
    fn admit(&mut self, block: BlockNo) -> bool {
        if let Some(place) = self.table.get(&block.0).copied() {
            self.unlink(place);
            if self.places[place as usize].accesses >= self.needed {
                self.table.remove(&block.0);
                self.free.push(place);
                return true;
            }
            self.places[place as usize].accesses += 1;
            self.link_newest(place);
            return false;
        }
        let place = self.new_place();
        self.places[place as usize] = Address { block: block.0, accesses: 1, newer: NONE, older: NONE };
        self.table.insert(block.0, place);
        self.link_newest(place);
        false
    }

    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Address>() + self.table.capacity() * 13 + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u8, addresses: u32, blocks: &[u64]) -> Vec<bool> {
        let mut policy = Reuse::new(n, addresses);
        blocks.iter().map(|b| policy.admit(BlockNo(*b))).collect()
    }

    #[test]
    fn second_access_enters_with_n_1() {
        assert_eq!(run(1, 4, &[1, 2, 1, 2, 1]), [false, false, true, true, false]);
    }

    #[test]
    fn third_access_enters_with_n_2() {
        assert_eq!(run(2, 4, &[1, 1, 1, 1]), [false, false, true, false]);
    }

    #[test]
    fn the_least_recent_address_gives_way() {
        assert_eq!(run(1, 2, &[1, 2, 3, 1, 3]), [false, false, false, false, true]);
        assert_eq!(run(2, 2, &[1, 2, 1, 3, 1]), [false, false, false, false, true]);
    }
}
