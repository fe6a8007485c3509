//! An LRU stack of extents, in which the extent at a depth is found in O(log n).
//!
//! Extents are in an array of slots in the order of their last visit, the latest at the end; a slot is empty after
//! its extent was moved. A Fenwick tree over groups of slots sums their blocks, separately for each state, so that a
//! depth can be looked up among all extents or among those with some states. When the array is full it is compacted.
//!
//! Invariants
//! - A slot is 0, or an extent of at least one block.
//! - `totals` and the tree count exactly the blocks in the slots before `end`.

/// Slots summed by one leaf of the tree.
const GROUP: usize = 32;

/// The operations on an extent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Read only.
    Read,
    /// Written only.
    Written,
    /// Read and written.
    Shared,
}

/// States, as bits of a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct States([bool; 3]);

impl States {
    pub const ALL: States = States([true; 3]);

    pub fn of(states: &[State]) -> Self {
        States([State::Read, State::Written, State::Shared].map(|state| states.contains(&state)))
    }

    pub fn contain(self, state: State) -> bool {
        self.0[state as usize]
    }

    fn sum(self, blocks: [u32; 3]) -> u64 {
        (0..3).map(|at| u64::from(blocks[at]) * u64::from(self.0[at])).sum()
    }
}

/// Neighbouring blocks that are visited together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The first block.
    pub start: u64,
    /// Their number; at least 1.
    pub blocks: u32,
    pub state: State,
}

impl Extent {
    /// The most blocks of an extent, and the most blocks that can be numbered.
    pub const LIMIT: u32 = (1 << 16) - 1;
    pub const VOLUME_LIMIT: u64 = 1 << 46;

    fn pack(self) -> u64 {
        self.start << 18 | u64::from(self.blocks) << 2 | self.state as u64
    }

    fn unpack(slot: u64) -> Self {
        let state = [State::Read, State::Written, State::Shared][(slot & 3) as usize];
        Extent { start: slot >> 18, blocks: (slot >> 2) as u32 & Self::LIMIT, state }
    }
}

/// The position of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    slot: usize,
    /// The extent there.
    pub extent: Extent,
    /// Blocks above it, of all states.
    pub above: u64,
}

/// The stack.
pub(super) struct Stack {
    slots: Vec<u64>,
    end: usize,
    tree: Vec<[u32; 3]>,
    totals: [u64; 3],
}

impl Stack {
    pub fn new() -> Self {
        let mut stack = Stack { slots: Vec::new(), end: 0, tree: Vec::new(), totals: [0; 3] };
        stack.squeeze();
        stack
    }

    /// Returns the number of blocks with some states.
    pub fn blocks(&self, states: States) -> u64 {
        (0..3).map(|at| self.totals[at] * u64::from(states.0[at])).sum()
    }

    /// Puts an extent on top.
    pub fn push(&mut self, extent: Extent) {
        if self.end == self.slots.len() {
            self.squeeze();
        }
        self.slots[self.end] = extent.pack();
        self.count(self.end, extent.state, |sum| sum + extent.blocks);
        self.totals[extent.state as usize] += u64::from(extent.blocks);
        self.end += 1;
    }

    /// Takes an extent out, or its last blocks only.
    pub fn take(&mut self, place: Place, blocks: u32) {
        let Extent { start, blocks: all, state } = place.extent;
        let left = if blocks == all { 0 } else { Extent { start, blocks: all - blocks, state }.pack() };
        self.slots[place.slot] = left;
        self.count(place.slot, state, |sum| sum - blocks);
        self.totals[state as usize] -= u64::from(blocks);
        while self.end > 0 && self.slots[self.end - 1] == 0 {
            self.end -= 1;
        }
    }

    /// Merges the two extents on top if the higher one begins at `seam`, where the lower one ends.
    pub fn rejoin(&mut self, seam: u64) {
        let [.., lower, higher] = self.slots[..self.end] else { return };
        let (lower, higher) = (Extent::unpack(lower), Extent::unpack(higher));
        let meet = higher.start == seam && lower.start + u64::from(lower.blocks) == seam;
        let blocks = lower.blocks + higher.blocks;
        if meet && lower.blocks > 0 && blocks <= Extent::LIMIT && lower.state == higher.state {
            self.end -= 1;
            self.slots[self.end] = 0;
            self.slots[self.end - 1] = Extent { blocks, ..lower }.pack();
            self.count(self.end, lower.state, |sum| sum - higher.blocks);
            self.count(self.end - 1, lower.state, |sum| sum + higher.blocks);
        }
    }

    /// Returns the extent that holds the block below `depth` others with these states; `None` if there are fewer.
    pub fn find(&self, depth: u64, states: States) -> Option<Place> {
        let rank = self.blocks(states).checked_sub(depth).filter(|rank| *rank > 0)?;
        Some(self.find_rank(rank, states))
    }

    /// Returns the extent with one of these states nearest to another, in blocks.
    pub fn nearest(&self, place: Place, states: States) -> Option<Place> {
        let rank = self.rank(place.slot, states);
        let deeper = (rank > 0).then(|| self.find_rank(rank, states));
        let higher = (rank < self.blocks(states)).then(|| self.find_rank(rank + 1, states));
        match (deeper, higher) {
            (Some(deeper), Some(higher)) => {
                let closer = deeper.above - place.above <= place.above - higher.above;
                Some(if closer { deeper } else { higher })
            }
            (deeper, higher) => deeper.or(higher),
        }
    }

    /// Returns the extent with one of these states that holds block number `rank`, counted from 1 at the bottom.
    fn find_rank(&self, rank: u64, states: States) -> Place {
        let (mut group, mut left, mut below) = (0, rank, 0);
        let mut step = self.tree.len() / 2;
        while step > 0 {
            let sums = self.tree[group + step];
            let sum = states.sum(sums);
            if sum < left {
                group += step;
                left -= sum;
                below += States::ALL.sum(sums);
            }
            step /= 2;
        }
        for slot in group * GROUP..self.end {
            let extent = Extent::unpack(self.slots[slot]);
            below += u64::from(extent.blocks);
            if extent.blocks > 0 && states.contain(extent.state) {
                if u64::from(extent.blocks) >= left {
                    return Place { slot, extent, above: self.blocks(States::ALL) - below };
                }
                left -= u64::from(extent.blocks);
            }
        }
        unreachable!("the tree counts {rank} blocks that no slot holds")
    }

    /// Returns the number of blocks with some states in slots before this one.
    fn rank(&self, slot: usize, states: States) -> u64 {
        let mut group = slot / GROUP;
        let mut sum = 0;
        for extent in self.slots[group * GROUP..slot].iter().map(|slot| Extent::unpack(*slot)) {
            sum += u64::from(extent.blocks) * u64::from(states.contain(extent.state));
        }
        while group > 0 {
            sum += states.sum(self.tree[group]);
            group &= group - 1;
        }
        sum
    }

    fn count(&mut self, slot: usize, state: State, change: impl Fn(u32) -> u32) {
        let mut group = slot / GROUP + 1;
        while group < self.tree.len() {
            self.tree[group][state as usize] = change(self.tree[group][state as usize]);
            group += group & group.wrapping_neg();
        }
    }

    /// Removes empty slots and makes room for as many visits as there are extents.
    fn squeeze(&mut self) {
        self.slots.retain(|slot| *slot != 0);
        self.end = self.slots.len();
        let groups = (2 * self.end.max(1024)).div_ceil(GROUP).next_power_of_two();
        self.slots.resize(groups * GROUP, 0);
        // One more than there are groups, because a Fenwick tree counts from 1; the last one sums all and is never
        // used.
        self.tree.clear();
        self.tree.resize(groups + 1, [0; 3]);
        for (slot, extent) in self.slots[..self.end].iter().enumerate() {
            let extent = Extent::unpack(*extent);
            self.tree[slot / GROUP + 1][extent.state as usize] += extent.blocks;
        }
        for group in 1..=groups {
            let parent = group + (group & group.wrapping_neg());
            if parent <= groups {
                for state in 0..3 {
                    self.tree[parent][state] += self.tree[group][state];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    /// Every answer agrees with a list that is searched from the top.
    #[test]
    fn agrees_with_a_plain_list() {
        let mut random = Random::new(3, 0);
        let (mut stack, mut list) = (Stack::new(), Vec::<Extent>::new());
        let masks = [States::ALL, States::of(&[State::Read, State::Shared]), States::of(&[State::Written])];
        let state =
            |random: &mut Random| [State::Read, State::Written, State::Shared][random.below(3) as usize];
        for step in 0..4_000u64 {
            let states = masks[random.below(3) as usize];
            let depth = random.below(400);
            let found = stack.find(depth, states);
            let mut masked = 0;
            let wanted = list.iter().rposition(|extent| {
                masked += u64::from(extent.blocks) * u64::from(states.contain(extent.state));
                masked > depth
            });
            assert_eq!(found.map(|place| place.extent), wanted.map(|at| list[at]), "step {step}");
            match (found, wanted) {
                (Some(place), Some(at)) if random.chance(0.9) => {
                    let above: u64 = list[at + 1..].iter().map(|extent| u64::from(extent.blocks)).sum();
                    assert_eq!(place.above, above);
                    let near = stack.nearest(place, masks[2]);
                    let distance = |other: usize| {
                        let above: u64 =
                            list[other + 1..].iter().map(|extent| u64::from(extent.blocks)).sum();
                        above.abs_diff(place.above)
                    };
                    let best =
                        (0..list.len()).filter(|at| masks[2].contain(list[*at].state)).map(distance).min();
                    assert_eq!(near.map(|near| near.above.abs_diff(place.above)), best);
                    let blocks = 1 + random.below(u64::from(place.extent.blocks)) as u32;
                    stack.take(place, blocks);
                    let taken = list.remove(at);
                    if blocks < taken.blocks {
                        list.insert(at, Extent { blocks: taken.blocks - blocks, ..taken });
                    }
                    let start = taken.start + u64::from(taken.blocks - blocks);
                    let extent = Extent { start, blocks, state: state(&mut random) };
                    stack.push(extent);
                    list.push(extent);
                }
                _ => {
                    let blocks = 1 + random.below(9) as u32;
                    let extent = Extent { start: step * 10, blocks, state: state(&mut random) };
                    stack.push(extent);
                    list.push(extent);
                }
            }
            assert_eq!(
                stack.blocks(States::ALL),
                list.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>()
            );
        }
    }

    #[test]
    fn what_was_split_becomes_one_again() {
        let mut stack = Stack::new();
        let extent = |start, blocks| Extent { start, blocks, state: State::Read };
        stack.push(extent(90, 5));
        stack.push(extent(10, 8));
        stack.take(stack.find(2, States::ALL).unwrap(), 3);
        stack.push(extent(15, 3));
        assert_eq!(stack.find(3, States::ALL).unwrap().extent, extent(10, 5));
        for seam in [10, 15, 15] {
            stack.rejoin(seam);
        }
        for (depth, wanted) in [(0, extent(10, 8)), (7, extent(10, 8)), (8, extent(90, 5))] {
            assert_eq!(stack.find(depth, States::ALL).unwrap().extent, wanted);
        }
        assert_eq!(stack.blocks(States::ALL), 13);
    }

    #[test]
    fn extents_keep_what_they_hold() {
        for state in [State::Read, State::Written, State::Shared] {
            let extent = Extent { start: Extent::VOLUME_LIMIT - 1, blocks: Extent::LIMIT, state };
            assert_eq!(Extent::unpack(extent.pack()), extent);
        }
        assert_eq!(Extent::unpack(0).blocks, 0);
    }
}
