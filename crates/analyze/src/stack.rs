//! Exact reuse distances, access by access: Mattson's stack without a stack.
//!
//! Blocks stand in the order of their last accesses; a block's depth in it is the reuse distance of its next access.
//!
//! Beside the distance, each write's version of a block has a *deepest* depth: the largest distance at any access after
//! it, up to and including the one that ends it (the next write, or a discard). A write-back LRU cache of `c` blocks
//! evicts that version dirty if and only if it is at least `c`.

use std::hint::black_box;

use crate::block::{Block, NOWHERE};
use crate::order::Order;
use crate::reference::{Kind, Reference};
use crate::table::{AHEAD, ANYWHERE, Table};

/// What an access was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The access before it to the same block, and the distance from there; none for a cold access.
    pub previous: Option<(Kind, u32)>,
    /// The deepest depth of the dirty version that it ended.
    pub ended: Option<u32>,
}

/// The order of last accesses.
#[derive(Clone)]
pub struct Stack {
    pub(crate) table: Table<Block>,
    pub(crate) order: Order,
}

impl Default for Stack {
    fn default() -> Stack {
        Stack { table: Table::new(), order: Order::new(1 << 12) }
    }
}

/// What an access to a known block with a place was, and what becomes of its dirty version.
#[inline]
pub(crate) fn met(block: &mut Block, kind: Kind, distance: u32) -> Outcome {
    let previous = Some((block.last(), distance));
    if !block.is_dirty() {
        return Outcome { previous, ended: None };
    }
    block.deepest = block.deepest.max(distance);
    if kind == Kind::Read {
        return Outcome { previous, ended: None };
    }
    block.set_dirty(false);
    Outcome { previous, ended: Some(block.deepest) }
}

impl Stack {
    /// Blocks known: all that were ever read or written, unless forgotten.
    pub fn blocks(&self) -> usize {
        self.table.len()
    }

    /// Notes an access and tells what it was. Keys are below 2^60.
    #[inline]
    pub fn touch(&mut self, key: u64, kind: Kind) -> Outcome {
        self.touch_at(ANYWHERE, key, kind)
    }

    #[inline]
    fn touch_at(&mut self, spot: usize, key: u64, kind: Kind) -> Outcome {
        if self.order.room() == 0 {
            self.renumber(0);
        }
        let block = match kind {
            Kind::Discard => match self.table.find(key, spot) {
                Some(block) => block,
                None => return Outcome::default(),
            },
            Kind::Read | Kind::Write => self.table.find_or_insert(key, spot).0,
        };
        step(&mut self.order, block, kind)
    }

    /// Notes accesses in their order; `see` is told what each was.
    pub fn touch_all(&mut self, references: &[Reference], mut see: impl FnMut(Reference, Outcome)) {
        for batch in references.chunks(AHEAD) {
            let spots = self.spots_of(batch.iter().map(|reference| reference.key()));
            for (&reference, spot) in batch.iter().zip(spots) {
                see(reference, self.touch_at(spot, reference.key(), reference.kind()));
            }
        }
    }

    /// Where some blocks are in the table. What is known of them, and the bits of their places, are in the processor's cache
    /// then.
    pub(crate) fn spots_of(&self, keys: impl ExactSizeIterator<Item = u64> + Clone) -> [usize; AHEAD] {
        let count = keys.len();
        let spots = self.table.spots_of(keys);
        let read = |sum, spot: &usize| sum ^ self.order.peek(self.table.at(*spot).place);
        black_box(spots[..count].iter().fold(0, read));
        spots
    }

    /// Forgets a block altogether.
    pub fn forget(&mut self, key: u64) {
        if let Some(block) = self.table.remove(key)
            && block.place != NOWHERE
        {
            self.order.remove(block.place);
        }
    }

    /// The deepest depth so far of each version that is dirty now.
    pub fn dirty(&self) -> impl Iterator<Item = u32> + '_ {
        let dirty = self.table.iter().filter(|block| block.is_dirty());
        dirty.map(|block| block.deepest.max(self.order.after(block.place)))
    }

    /// How often each block was read or written, in no order.
    pub fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.iter().map(|block| block.count)
    }

    /// Closes the gaps in the order, with room for at least so many more places.
    pub(crate) fn renumber(&mut self, more: u32) {
        let (order, number) = self.order.renumbered(more);
        for block in self.table.iter_mut().filter(|block| block.place != NOWHERE) {
            block.place = number(block.place);
        }
        drop(number);
        self.order = order;
    }
}

/// Moves a block to where an access takes it. There must be room in the order.
#[inline]
pub(crate) fn step(order: &mut Order, block: &mut Block, kind: Kind) -> Outcome {
    let mut outcome = Outcome::default();
    if block.place != NOWHERE {
        outcome = met(block, kind, order.after(block.place));
        order.remove(block.place);
    }
    if kind == Kind::Discard {
        block.place = NOWHERE;
        return outcome;
    }
    block.place = order.push();
    block.count = block.count.saturating_add(1);
    block.set_last(kind);
    if kind == Kind::Write {
        block.set_dirty(true);
        block.deepest = 0;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of ECI-Cache (Ahmadian et al., ACM TOS 2018), figure 5.
    #[test]
    fn typed_distances_of_the_eci_cache_example() {
        use Kind::{Read, Write};
        let requests = [(1, Write), (2, Read), (1, Read), (3, Write), (4, Read), (5, Write), (2, Write)];
        let mut stack = Stack::default();
        let outcomes: Vec<_> = requests.iter().map(|(sector, kind)| stack.touch(*sector, *kind)).collect();
        assert_eq!(outcomes[2].previous, Some((Write, 1)), "the largest useful distance");
        assert_eq!(outcomes[6].previous, Some((Read, 4)), "the largest distance");
        assert_eq!(outcomes.iter().filter(|o| o.previous.is_some()).count(), 2);
    }

    #[test]
    fn a_discarded_block_is_cold_and_clean() {
        let mut stack = Stack::default();
        stack.touch(1, Kind::Write);
        stack.touch(2, Kind::Read);
        assert_eq!(
            stack.touch(1, Kind::Discard),
            Outcome { previous: Some((Kind::Write, 1)), ended: Some(1) }
        );
        assert_eq!(stack.dirty().count(), 0);
        assert_eq!(stack.touch(2, Kind::Read).previous, Some((Kind::Read, 0)));
        assert_eq!(stack.touch(1, Kind::Read), Outcome::default());
        assert_eq!(stack.touch(9, Kind::Discard), Outcome::default());
        assert_eq!(stack.blocks(), 2);
    }
}
