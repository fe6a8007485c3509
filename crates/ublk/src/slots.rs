//! The requests of a queue, without I/O: where each of them is.
//!
//! A request's tag is *idle* (the kernel has it, and no request), *waiting* (its request is not sent), *sent* (the
//! daemon has the request) or *closed* (the kernel gives it no more requests). What was sent and not answered when a
//! connection ends waits again.
//!
//! Invariants
//! - A tag is waiting exactly if it is in the queue of waiting ones, once.
//! - A sent tag has one slot of the session, and that slot no other tag.
//! - The memory of a tag belongs to this side exactly while it is waiting or sent.
//! - Nothing is allocated after `new`.

use std::collections::VecDeque;

use crate::request::BlockRequest;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Waiting,
    Sent { session_slot: usize },
    Closed,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Slots {
    states: Box<[State]>,
    requests: Box<[BlockRequest]>,
    waiting: VecDeque<u16>,
    /// The tags of the session's slots.
    tags: Box<[Option<u16>]>,
    closed: usize,
}

impl Slots {
    /// Creates the slots of a queue of this depth, all idle. A session has as many slots as the queue.
    pub fn new(depth: u16) -> Self {
        let count = usize::from(depth);
        Self {
            states: vec![State::Idle; count].into(),
            requests: vec![BlockRequest::default(); count].into(),
            waiting: VecDeque::with_capacity(count),
            tags: vec![None; count].into(),
            closed: 0,
        }
    }

    /// The kernel has given a request.
    pub fn fetched(&mut self, tag: u16, request: BlockRequest) {
        debug_assert_eq!(self.states[usize::from(tag)], State::Idle);
        self.states[usize::from(tag)] = State::Waiting;
        self.requests[usize::from(tag)] = request;
        self.waiting.push_back(tag);
    }

    /// The kernel gives no more requests with this tag.
    pub fn close(&mut self, tag: u16) {
        debug_assert_eq!(self.states[usize::from(tag)], State::Idle);
        self.states[usize::from(tag)] = State::Closed;
        self.closed += 1;
    }

    /// Returns whether the kernel gives no more requests at all.
    pub fn are_closed(&self) -> bool {
        self.closed == self.states.len()
    }

    /// Returns the request of a tag that is waiting or sent.
    pub fn request(&self, tag: u16) -> BlockRequest {
        self.requests[usize::from(tag)]
    }

    /// Returns the next request to send. It stays waiting until [`Slots::sent`] or [`Slots::refused`].
    pub fn next_waiting(&self) -> Option<(u16, BlockRequest)> {
        self.waiting.front().map(|&tag| (tag, self.request(tag)))
    }

    /// The first waiting request is on its way, in this slot of the session.
    pub fn sent(&mut self, session_slot: usize) {
        if let Some(tag) = self.waiting.pop_front() {
            self.states[usize::from(tag)] = State::Sent { session_slot };
            self.tags[session_slot] = Some(tag);
        }
    }

    /// The first waiting request cannot be sent: it is to be answered to the kernel. Returns its tag.
    pub fn refused(&mut self) -> Option<u16> {
        let tag = self.waiting.pop_front()?;
        self.states[usize::from(tag)] = State::Idle;
        Some(tag)
    }

    /// Returns the tag of a request that the daemon has.
    pub fn tag_of(&self, session_slot: usize) -> Option<u16> {
        self.tags.get(session_slot).copied().flatten()
    }

    /// The daemon has answered a request: the answer is to be given to the kernel. Returns its tag.
    pub fn answered(&mut self, session_slot: usize) -> Option<u16> {
        let tag = self.tags.get_mut(session_slot)?.take()?;
        self.states[usize::from(tag)] = State::Idle;
        Some(tag)
    }

    /// The connection has ended: what was sent on it waits again, before what came later. Returns how many were sent.
    /// Their order does not matter: the kernel has no order of requests in flight.
    pub fn connection_lost(&mut self) -> usize {
        let mut count = 0;
        for tag in self.tags.iter_mut().rev().filter_map(Option::take) {
            debug_assert!(matches!(self.states[usize::from(tag)], State::Sent { .. }));
            self.states[usize::from(tag)] = State::Waiting;
            self.waiting.push_front(tag);
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Operation;

    fn request(sector: u64) -> BlockRequest {
        BlockRequest {
            operation: Operation::Read,
            offset_bytes: sector * 512,
            bytes: 512,
            ..BlockRequest::default()
        }
    }

    fn offsets(slots: &Slots) -> Vec<u64> {
        slots.waiting.iter().map(|&tag| slots.request(tag).offset_bytes / 512).collect()
    }

    #[test]
    fn a_request_goes_round() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.next_waiting(), None);
        slots.fetched(1, request(7));
        assert_eq!(slots.next_waiting(), Some((1, request(7))));
        slots.sent(0);
        assert_eq!((slots.next_waiting(), slots.tag_of(0)), (None, Some(1)));
        assert_eq!(slots.answered(0), Some(1));
        assert_eq!(slots.tag_of(0), None);
        slots.fetched(1, request(8));
        assert_eq!(slots.refused(), Some(1));
        assert_eq!(slots.next_waiting(), None);
    }

    #[test]
    fn an_answer_to_nothing_is_no_request() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.answered(1), None);
        assert_eq!(slots.answered(9), None);
        assert_eq!(slots.refused(), None);
    }

    #[test]
    fn everything_that_was_not_answered_is_sent_again_once() {
        let mut slots = Slots::new(4);
        for tag in 0..4 {
            slots.fetched(tag, request(u64::from(tag)));
        }
        for session_slot in [2, 0, 1] {
            slots.sent(session_slot);
        }
        assert_eq!(slots.answered(0), Some(1));
        assert_eq!(slots.connection_lost(), 2);
        assert_eq!(offsets(&slots), [2, 0, 3]);
        assert_eq!(slots.connection_lost(), 0);
        assert_eq!(offsets(&slots), [2, 0, 3]);
        assert_eq!(slots.tag_of(2), None);
        for session_slot in 0..3 {
            slots.sent(session_slot);
        }
        assert_eq!(slots.connection_lost(), 3);
        assert_eq!(offsets(&slots), [2, 0, 3]);
    }

    #[test]
    fn a_queue_is_over_when_all_its_tags_are() {
        let mut slots = Slots::new(2);
        slots.fetched(0, request(0));
        slots.close(1);
        assert!(!slots.are_closed());
        slots.sent(0);
        assert_eq!(slots.answered(0), Some(0));
        slots.close(0);
        assert!(slots.are_closed());
    }
}
