//! The blocks that may follow a disk, by importance: a list of tens of millions, which is put in order a little at a
//! time because other disks wait during each step.
//!
//! Invariants
//! - What is added at a time is sorted at once, and these runs are merged only as far as the list is read.
//! - What was read once stays the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haversack_model::BlockNo;

/// The greatest comes first: protected, hits, the number of the commit.
pub(crate) type Rank = (bool, u8, u64);
/// A block of this rank, with its sectors. Of equal ranks, the first block comes first.
type Entry = (Rank, Reverse<BlockNo>, u8);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    /// What is not read yet, but for the first entry of each run. The first is at the end.
    runs: Vec<Vec<Entry>>,
    /// The first entry of each run, and which run that is.
    first: BinaryHeap<(Entry, usize)>,
    read: Vec<(BlockNo, u8)>,
}

impl Ordered {
    /// Adds blocks. Nothing has been read yet.
    pub fn add(&mut self, blocks: impl IntoIterator<Item = (Rank, BlockNo, u8)>) {
        let mut run: Vec<Entry> =
            blocks.into_iter().map(|(rank, block, mask)| (rank, Reverse(block), mask)).collect();
        run.sort_unstable();
        if let Some(entry) = run.pop() {
            self.first.push((entry, self.runs.len()));
            self.runs.push(run);
        }
    }

    /// Returns at most this many blocks from a place on, which is not behind what was read before, and the next place;
    /// `None` at the end.
    pub fn part(&mut self, from: usize, most: usize) -> (&[(BlockNo, u8)], Option<usize>) {
        let from = from.min(self.read.len());
        while self.read.len() < from + most {
            let Some(((_, Reverse(block), mask), run)) = self.first.pop() else { break };
            self.read.push((block, mask));
            if let Some(entry) = self.runs[run].pop() {
                self.first.push((entry, run));
            }
        }
        let end = self.read.len().min(from + most);
        let is_end = end == self.read.len() && self.first.is_empty();
        (&self.read[from..end], (!is_end).then_some(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_several_runs_are_in_one_order_and_can_be_read_again() {
        let entry = |number: u64| ((number.is_multiple_of(3), 0, number), BlockNo(number), 255);
        let mut ordered = Ordered::default();
        for step in 0..5 {
            ordered.add((0..20).map(|at| entry(at * 5 + step)));
        }
        let mut expected: Vec<u64> = (0..100).collect();
        expected.sort_by_key(|number| Reverse((number.is_multiple_of(3), *number)));
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let first = ordered.part(from, 7).0.to_vec();
            let (again, end) = ordered.part(from, 7);
            assert_eq!(again, first);
            found.extend(again.iter().map(|(block, _)| block.0));
            next = end;
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn an_empty_list_ends_at_once() {
        let mut ordered = Ordered::default();
        ordered.add([]);
        assert_eq!(ordered.part(0, 7), (&[][..], None));
    }
}
