//! Exact reuse distances, access by access: Mattson's stack algorithm with a tree instead of a stack.
//!
//! Blocks are in the order of their last accesses; a block's depth is the reuse distance of its next access.
//!
//! In addition to the distance, each write's version of a block has a *deepest* depth: the largest distance at any
//! access after it, up to and including the one that ends it (the next write, or a discard). A write-back LRU cache
//! of `c` blocks evicts that version dirty if and only if it is at least `c`.

use std::hint::black_box;

use crate::block::{Block, NOWHERE};
use crate::orders::{Orders, order_of};
use crate::reference::{Kind, Reference};
use crate::table::{AHEAD, ANYWHERE, Table};

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The previous access to the same block, and the distance from it; `None` for a cold access.
    pub previous: Option<(Kind, u32)>,
    /// The deepest depth of the dirty version that it ended; of a sample, scaled to all blocks.
    pub ended: Option<u32>,
}

/// Stacks of all blocks and, with two orders, of each volume's. Depths are kept in as many orders, or in none if
/// nothing is ever written.
#[derive(Clone)]
pub struct Stacks<const ORDERS: usize, const DEPTHS: usize> {
    pub(crate) table: Table<Block<ORDERS, DEPTHS>>,
    pub(crate) orders: Orders<ORDERS>,
}

/// One stack of all blocks.
pub type Stack = Stacks<1, 1>;

impl<const ORDERS: usize, const DEPTHS: usize> Default for Stacks<ORDERS, DEPTHS> {
    fn default() -> Self {
        Stacks { table: Table::new(), orders: Orders::new() }
    }
}

/// The result of an access to a known block with places in each order, and what happens to its dirty version. Depths
/// are kept scaled by the weight that blocks have at the time: it may be another one later.
#[inline(always)]
pub(crate) fn met<const ORDERS: usize, const DEPTHS: usize>(
    block: &mut Block<ORDERS, DEPTHS>,
    kind: Kind,
    distances: [u32; ORDERS],
    weight: f64,
) -> [Outcome; ORDERS] {
    let mut outcomes = [Outcome::default(); ORDERS];
    for (outcome, distance) in outcomes.iter_mut().zip(&distances) {
        outcome.previous = Some((block.last(), *distance));
    }
    if !block.is_dirty() {
        return outcomes;
    }
    deepen(block, distances.map(|distance| scaled(distance, weight)));
    if kind != Kind::Read {
        block.set_dirty(false);
        for (outcome, deepest) in outcomes.iter_mut().zip(&block.deepest) {
            outcome.ended = Some(*deepest);
        }
    }
    outcomes
}

/// A distance in a sample whose blocks stand for `weight` blocks each.
#[inline(always)]
fn scaled(distance: u32, weight: f64) -> u32 {
    if weight == 1.0 { distance } else { (f64::from(distance) * weight) as u32 }
}

/// A block was found at these depths.
#[inline(always)]
pub(crate) fn deepen<const ORDERS: usize, const DEPTHS: usize>(
    block: &mut Block<ORDERS, DEPTHS>,
    depths: [u32; ORDERS],
) {
    for (deepest, depth) in block.deepest.iter_mut().zip(&depths) {
        *deepest = (*deepest).max(*depth);
    }
}

impl Stack {
    /// Returns the number of known blocks: all that were ever read or written, unless forgotten.
    pub fn blocks(&self) -> usize {
        self.table.len()
    }

    /// Records an access and returns its result. Keys are below 2^60.
    pub fn touch(&mut self, key: u64, kind: Kind) -> Outcome {
        self.touch_sampled(key, kind, 1.0)
    }

    /// Records an access to a block that stands for `weight` blocks now.
    pub(crate) fn touch_sampled(&mut self, key: u64, kind: Kind, weight: f64) -> Outcome {
        let [outcome] = self.touch_at(ANYWHERE, key, kind, weight);
        outcome
    }

    /// Forgets a block altogether.
    pub fn forget(&mut self, key: u64) {
        if let Some(block) = self.table.remove(key)
            && block.has_places()
        {
            self.orders.remove(key, block.places);
        }
    }

    /// Returns the deepest depth so far of each version that is currently dirty.
    pub fn dirty(&self) -> impl Iterator<Item = u32> + '_ {
        self.dirty_versions(1.0).map(|(_, [deepest])| deepest)
    }

    /// Counts every known block as used once so far.
    pub fn restart_counts(&mut self) {
        self.table.iter_mut().for_each(|block| block.count = u32::from(block.has_places()));
    }

    /// Returns how often each block was read or written, in no order.
    pub fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.iter().map(|block| block.count)
    }
}

impl<const ORDERS: usize, const DEPTHS: usize> Stacks<ORDERS, DEPTHS> {
    #[inline]
    fn touch_at(&mut self, spot: usize, key: u64, kind: Kind, weight: f64) -> [Outcome; ORDERS] {
        if self.orders.room() == 0 {
            self.renumber(0);
        }
        let block = match kind {
            Kind::Discard => match self.table.find(key, spot) {
                Some(block) => block,
                None => return [Outcome::default(); ORDERS],
            },
            Kind::Read | Kind::Write => self.table.find_or_insert(key, spot).0,
        };
        step(&mut self.orders, block, kind, weight)
    }

    /// Records accesses in order; `see` is called with the result of each in each of its block's orders. All orders
    /// must be known.
    pub(crate) fn touch_all(
        &mut self,
        references: &[Reference],
        mut see: impl FnMut(Reference, [Outcome; ORDERS]),
    ) {
        for batch in references.chunks(AHEAD) {
            let spots = self.spots_of(batch.iter().map(|reference| reference.key()));
            for (&reference, spot) in batch.iter().zip(spots) {
                see(reference, self.touch_at(spot, reference.key(), reference.kind(), 1.0));
            }
        }
    }

    /// Finds some blocks in the table. Their state, and the bits of their places, are then in the processor's cache.
    pub(crate) fn spots_of(&self, keys: impl ExactSizeIterator<Item = u64> + Clone) -> [usize; AHEAD] {
        let spots = self.table.spots_of(keys.clone());
        let mut read = 0;
        for (key, spot) in keys.zip(&spots) {
            read ^= self.orders.peek(key, self.table.at(*spot).places);
        }
        black_box(read);
        spots
    }

    /// Returns the keys of blocks with a dirty version, and its deepest depths so far, if blocks stand for `weight`
    /// blocks each now.
    pub(crate) fn dirty_versions(&self, weight: f64) -> impl Iterator<Item = (u64, [u32; ORDERS])> + '_ {
        self.table.iter().filter(|block| block.is_dirty()).map(move |block| {
            let mut block = *block;
            let mut depths = self.orders.after(block.key(), block.places).map(|depth| scaled(depth, weight));
            deepen(&mut block, depths);
            depths.iter_mut().zip(block.deepest).for_each(|(depth, deepest)| *depth = deepest);
            (block.key(), depths)
        })
    }

    /// Returns the number of known blocks, by order.
    pub(crate) fn blocks_in_orders(&self) -> Vec<u64> {
        let mut blocks = vec![0; self.orders.known()];
        for block in self.table.iter() {
            (0..ORDERS).for_each(|nth| blocks[order_of(block.key(), nth)] += 1);
        }
        blocks
    }

    /// Returns how often each block was read or written, by order.
    pub(crate) fn counts_in_orders(&self) -> Vec<Vec<u32>> {
        let mut counts = vec![Vec::new(); self.orders.known()];
        for block in self.table.iter() {
            (0..ORDERS).for_each(|nth| counts[order_of(block.key(), nth)].push(block.count));
        }
        counts
    }

    /// Closes the gaps in the orders, with room for at least n more places.
    #[cold]
    pub(crate) fn renumber(&mut self, more: u32) {
        let (orders, numbers) = self.orders.renumbered(more);
        for block in self.table.iter_mut().filter(|block| block.has_places()) {
            block.places = numbers(block.key(), block.places);
        }
        drop(numbers);
        self.orders = orders;
    }
}

/// Moves a block to its position after an access. There must be room in the orders.
#[inline(always)]
pub(crate) fn step<const ORDERS: usize, const DEPTHS: usize>(
    orders: &mut Orders<ORDERS>,
    block: &mut Block<ORDERS, DEPTHS>,
    kind: Kind,
    weight: f64,
) -> [Outcome; ORDERS] {
    let mut outcomes = [Outcome::default(); ORDERS];
    let key = block.key();
    if block.has_places() {
        outcomes = met(block, kind, orders.after(key, block.places), weight);
        orders.remove(key, block.places);
    }
    if kind == Kind::Discard {
        block.places = [NOWHERE; ORDERS];
        return outcomes;
    }
    block.places = orders.push(key);
    block.count = block.count.saturating_add(1);
    block.set_last(kind);
    if kind == Kind::Write {
        block.set_dirty(true);
        block.deepest = [0; DEPTHS];
    }
    outcomes
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
