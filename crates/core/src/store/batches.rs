//! The batches of a disk that have blocks on probation, in the order in which they were written.
//!
//! A batch leaves when the probation hand comes to it. While a disk's cache is not full, the hand does not move, and a
//! guest that overwrites few blocks may commit batches for ever. So while the queue is long, some batches are reviewed
//! with each new one: those of which nothing is on probation leave.
//!
//! Invariants
//! - Batches are in increasing order of their sequence numbers.
//! - While the queue is long, a pass over it ends before it has grown by half. So it is at most twice as long as its
//!   limit, or as the batches with blocks on probation require.

use std::collections::VecDeque;

use super::segment::SegmentNo;

/// A batch: the segment that it filled, and its sequence number.
pub(super) type Batch = (SegmentNo, u64);

/// Batches reviewed for each new one.
pub(super) const REVIEWED: usize = 4;

/// See the module.
#[derive(Default)]
pub(super) struct Batches {
    /// Those that the present pass has kept. They are older than all others.
    reviewed: VecDeque<Batch>,
    others: VecDeque<Batch>,
}

impl Batches {
    /// Returns a queue of these batches.
    pub fn of(others: VecDeque<Batch>) -> Batches {
        Batches { reviewed: VecDeque::new(), others }
    }

    pub fn len(&self) -> usize {
        self.reviewed.len() + self.others.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the oldest.
    pub fn front(&self) -> Option<&Batch> {
        self.iter().next()
    }

    /// Returns all, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Batch> + '_ {
        self.reviewed.iter().chain(&self.others)
    }

    /// Adds the newest.
    pub fn push(&mut self, batch: Batch) {
        self.others.push_back(batch);
    }

    /// Takes out the oldest.
    pub fn pop(&mut self) -> Option<Batch> {
        self.reviewed.pop_front().or_else(|| self.others.pop_front())
    }

    /// Takes out the next batch to review.
    pub fn next_to_review(&mut self) -> Option<Batch> {
        if self.others.is_empty() {
            std::mem::swap(&mut self.reviewed, &mut self.others);
        }
        self.others.pop_front()
    }

    /// Puts back the batch that was taken out for review.
    pub fn keep(&mut self, batch: Batch) {
        self.reviewed.push_back(batch);
    }

    /// Returns the bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        (self.reviewed.capacity() + self.others.capacity()) * size_of::<Batch>()
    }
}
