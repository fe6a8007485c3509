//! Sequence numbers of device writes, and which of them are completed.
//!
//! Invariants
//! - Numbers are handed out in increasing order, each once.
//! - A number counts as completed only when all I/Os of it and of every number before it are.

use std::collections::VecDeque;

/// Hands out sequence numbers and tracks their completion.
#[derive(Default)]
pub(crate) struct Sequence {
    /// The next number to hand out.
    next: u64,
    /// Numbers from the first one that is not completed on, each with its outstanding I/Os.
    in_flight: VecDeque<(u64, u32)>,
}

impl Sequence {
    pub fn starting_at(next: u64) -> Sequence {
        Sequence { next, in_flight: VecDeque::new() }
    }

    /// Takes a new number for a write of this many I/Os.
    pub fn take(&mut self, ios: u32) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.in_flight.push_back((seq, ios));
        seq
    }

    /// Adds I/Os to a number that was just taken.
    pub fn expect(&mut self, seq: u64, ios: u32) {
        let at = self.position(seq);
        self.in_flight[at].1 += ios;
    }

    /// Called when one I/O of a number is completed; returns whether it was the last.
    pub fn done(&mut self, seq: u64) -> bool {
        let at = self.position(seq);
        self.in_flight[at].1 -= 1;
        let last = self.in_flight[at].1 == 0;
        while self.in_flight.front().is_some_and(|f| f.1 == 0) {
            self.in_flight.pop_front();
        }
        last
    }

    fn position(&self, seq: u64) -> usize {
        self.in_flight.binary_search_by_key(&seq, |f| f.0).expect("the number is in flight")
    }

    /// Returns the last number such that it and all before it are completed.
    pub fn completed(&self) -> u64 {
        self.in_flight.front().map_or(self.next, |f| f.0) - 1
    }

    /// Returns the last number handed out.
    pub fn last(&self) -> u64 {
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_is_a_prefix() {
        let mut s = Sequence::starting_at(5);
        let (a, b) = (s.take(2), s.take(1));
        assert_eq!((a, b, s.completed()), (5, 6, 4));
        assert!(s.done(b));
        assert_eq!(s.completed(), 4);
        assert!(!s.done(a));
        assert!(s.done(a));
        assert_eq!(s.completed(), 6);
    }
}
