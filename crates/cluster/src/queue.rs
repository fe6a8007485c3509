//! The overloaded host whose best move is the best of all.
//!
//! Moves made since a host's best move was found may have changed what its best move is. So the move is made only if
//! neither of its two hosts has changed; otherwise it is computed again. Few hosts need this.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::round::Choice;

/// See the module documentation.
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    /// How often each host has changed.
    versions: Vec<u32>,
    asked: u64,
}

struct Entry {
    from: usize,
    choice: Choice,
    /// The versions of the two hosts when the choice was made.
    versions: (u32, u32),
    /// How many were asked before.
    turn: u64,
}

impl Queue {
    /// Makes an empty queue for this many hosts.
    pub fn new(hosts: usize) -> Queue {
        Queue { heap: BinaryHeap::new(), versions: vec![0; hosts], asked: 0 }
    }

    /// Adds a host with its best move, if it has one.
    pub fn ask(&mut self, from: usize, choice: Option<Choice>) {
        let Some(choice) = choice else { return };
        let versions = (self.versions[from], self.versions[choice.to]);
        self.asked += 1;
        self.heap.push(Entry { from, choice, versions, turn: self.asked });
    }

    /// Returns the next host with its move; without it if it must be asked again.
    pub fn next(&mut self) -> Option<(usize, Option<Choice>)> {
        let entry = self.heap.pop()?;
        let is_fresh = entry.versions == (self.versions[entry.from], self.versions[entry.choice.to]);
        Some((entry.from, is_fresh.then_some(entry.choice)))
    }

    /// Records a move.
    pub fn made(&mut self, from: usize, to: usize) {
        self.versions[from] += 1;
        self.versions[to] += 1;
    }
}

impl Entry {
    fn order(&self, other: &Entry) -> Ordering {
        let by_score = self.choice.score.total_cmp(&other.choice.score);
        by_score.then(other.turn.cmp(&self.turn))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.order(other)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.order(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
