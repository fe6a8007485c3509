//! The stream of copies that a source sends ahead, and what its destination has received.
//!
//! Invariants
//! - The source counts a copy as arrived only if the destination has taken it after every older copy of its block.
//! - A block is not sent again while a copy of it is on its way. Copies of an earlier round are never taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use haversack_core::RelistCursor;
use haversack_model::{BlockNo, HostId, Micros};

use crate::message::{Position, Session};
use crate::pace::{Pace, PaceLimits};

/// The source's side.
#[derive(Debug)]
pub(crate) struct Sending {
    /// The destination.
    pub to: HostId,
    pub session: Session,
    /// The current round, and the order of the next copy.
    pub at: Position,
    /// The destination has answered in the current round.
    pub is_open: bool,
    /// The start of the destination's pool, once it is known.
    pub taker: Option<u64>,
    /// Copies on their way, by order, and since when.
    pub in_flight: BTreeMap<u64, (BlockNo, Micros)>,
    /// Blocks to send, in this order.
    pub queue: VecDeque<BlockNo>,
    /// Since when an answer is awaited; `None` if that begins with the next check.
    since_us: Option<Micros>,
    /// The longest recent wait for an answer.
    longest_wait_us: Micros,
    /// Rounds since copies last arrived.
    fruitless: u32,
    /// How fast they are sent, if guests must not be slowed down.
    pub pace: Option<Pace>,
    /// Up to where pages were rewritten in this pass, so that a freeze has less to rewrite; `None` at the end.
    pub relist: Option<RelistCursor>,
}

/// The timeout is doubled at most this often.
const MOST_DOUBLINGS: u32 = 4;

impl Sending {
    pub fn new(to: HostId, session: Session, limits: Option<PaceLimits>, now: Micros) -> Sending {
        let at = Position { round: 1, next: 1 };
        let (in_flight, queue) = (BTreeMap::new(), VecDeque::new());
        Sending {
            to,
            session,
            at,
            is_open: false,
            taker: None,
            in_flight,
            queue,
            since_us: Some(now),
            longest_wait_us: 0,
            fruitless: 0,
            pace: limits.map(|limits| Pace::new(limits, now)),
            relist: None,
        }
    }

    /// Returns the order up to which every copy has arrived.
    pub fn arrived(&self) -> u64 {
        self.in_flight.keys().next().copied().unwrap_or(self.at.next)
    }

    /// Takes the next block to send, and its copy's order.
    pub fn next(&mut self) -> Option<(BlockNo, u64)> {
        let is_on_its_way = |block: &BlockNo| self.in_flight.values().any(|(copied, _)| copied == block);
        let place = self.queue.iter().position(|block| !is_on_its_way(block))?;
        let block = self.queue.remove(place)?;
        Some((block, self.at.next))
    }

    /// Records that a copy has been sent.
    pub fn sent(&mut self, block: BlockNo, now: Micros) {
        if self.in_flight.is_empty() {
            self.since_us = None;
        }
        self.in_flight.insert(self.at.next, (block, now));
        self.at.next += 1;
    }

    /// Records up to which order copies have arrived. `is_busy`: one of the hosts is busy.
    pub fn acknowledged(&mut self, until: Position, now: Micros, is_busy: bool) {
        if until.round != self.at.round || until.next > self.at.next {
            return;
        }
        let waited_us = self.since_us.map_or(0, |since| now.saturating_sub(since));
        self.longest_wait_us = waited_us.max(self.longest_wait_us - self.longest_wait_us / 8);
        (self.is_open, self.since_us) = (true, Some(now));
        let left = self.in_flight.split_off(&until.next);
        let arrived = std::mem::replace(&mut self.in_flight, left);
        if let Some((_, sent_us)) = arrived.into_values().next_back() {
            self.fruitless = 0;
            self.pace.iter_mut().for_each(|pace| pace.arrived(now, now.saturating_sub(sent_us), is_busy));
        }
    }

    /// Whether answers are overdue. The timeout is twice the longest wait, and grows with each round in which no copy
    /// arrived: otherwise, over a link that is slower than expected, every answer would belong to a round that has
    /// already ended.
    pub fn is_overdue(&mut self, now: Micros, repeat_us: Micros) -> bool {
        if self.is_open && self.in_flight.is_empty() {
            return false;
        }
        let most_us = repeat_us << MOST_DOUBLINGS;
        let timeout_us = (repeat_us << self.fruitless).max(2 * self.longest_wait_us.min(most_us));
        now >= *self.since_us.get_or_insert(now) + timeout_us
    }

    /// Begins a new round, since copies are overdue; returns the blocks whose copies do not count.
    pub fn start_over(&mut self, now: Micros) -> Vec<BlockNo> {
        self.at.round += 1;
        (self.is_open, self.since_us) = (false, Some(now));
        self.fruitless = (self.fruitless + 1).min(MOST_DOUBLINGS);
        self.pace.iter_mut().for_each(|pace| pace.slow_down(now));
        std::mem::take(&mut self.in_flight).into_values().map(|(block, _)| block).collect()
    }
}

/// The destination's side.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// The source.
    pub from: HostId,
    pub session: Session,
    pub until: Position,
    /// Copies that have arrived from `until` on.
    beyond: BTreeSet<u64>,
}

impl Receiving {
    pub fn new(from: HostId, session: Session, at: Position) -> Receiving {
        Receiving { from, session, until: at, beyond: BTreeSet::new() }
    }

    /// Begins a round.
    pub fn begins(&mut self, at: Position) {
        if at.round > self.until.round {
            (self.until, self.beyond) = (at, BTreeSet::new());
        }
    }

    /// Whether a copy should be taken.
    pub fn would_take(&self, at: Position) -> bool {
        at.round == self.until.round && at.next >= self.until.next && !self.beyond.contains(&at.next)
    }

    /// Whether a copy should be taken; records that it was.
    pub fn takes(&mut self, at: Position) -> bool {
        let is_new =
            at.round == self.until.round && at.next >= self.until.next && self.beyond.insert(at.next);
        while self.beyond.remove(&self.until.next) {
            self.until.next += 1;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session = Session { incarnation: 1, count: 1 };

    fn at(round: u64, next: u64) -> Position {
        Position { round, next }
    }

    fn sending(blocks: impl IntoIterator<Item = u64>) -> Sending {
        let mut sending = Sending::new(HostId(2), SESSION, None, 0);
        sending.queue.extend(blocks.into_iter().map(BlockNo));
        sending
    }

    fn send(sending: &mut Sending) -> (BlockNo, u64) {
        send_at(sending, 0)
    }

    fn send_at(sending: &mut Sending, now: Micros) -> (BlockNo, u64) {
        let (block, order) = sending.next().expect("a block may be sent");
        sending.sent(block, now);
        (block, order)
    }

    #[test]
    fn a_copy_is_taken_once_and_in_any_order() {
        let mut receiving = Receiving::new(HostId(1), SESSION, at(1, 1));
        assert_eq!(
            [2, 1, 2, 1, 3].map(|next| receiving.takes(at(1, next))),
            [true, true, false, false, true]
        );
        assert_eq!(receiving.until, at(1, 4));
    }

    #[test]
    fn copies_of_an_earlier_round_are_not_taken() {
        let mut receiving = Receiving::new(HostId(1), SESSION, at(1, 1));
        receiving.begins(at(2, 5));
        assert!(!receiving.takes(at(1, 4)) && !receiving.takes(at(1, 5)) && !receiving.takes(at(2, 4)));
        assert!(receiving.takes(at(2, 5)));
        receiving.begins(at(1, 1));
        assert_eq!(receiving.until, at(2, 6), "a late offer of an earlier round changes nothing");
    }

    #[test]
    fn a_block_is_not_sent_while_a_copy_of_it_is_on_its_way() {
        let mut sending = sending([7, 7, 8]);
        assert_eq!(send(&mut sending), (BlockNo(7), 1));
        assert_eq!(send(&mut sending), (BlockNo(8), 2));
        assert_eq!(sending.next(), None);
        sending.acknowledged(at(1, 2), 0, false);
        assert_eq!(send(&mut sending), (BlockNo(7), 3));
        assert_eq!(sending.arrived(), 2);
    }

    /// Sends blocks to a destination that answers after `round_trip`, with a timeout of 10. Returns when all have
    /// arrived.
    fn send_all(blocks: u64, window: usize, round_trip: Micros) -> Option<Micros> {
        let mut sending = sending(0..blocks);
        let mut answers = VecDeque::from([(round_trip, sending.at)]);
        for now in 0..100_000 {
            while answers.front().is_some_and(|(at, _)| *at <= now) {
                let (_, until) = answers.pop_front().expect("it is not empty");
                sending.acknowledged(until, now, false);
            }
            if sending.is_open && sending.queue.is_empty() && sending.in_flight.is_empty() {
                return Some(now);
            }
            while sending.is_open && sending.in_flight.len() < window {
                let Some((block, _)) = sending.next() else { break };
                sending.sent(block, now);
                answers.push_back((now + round_trip, sending.at));
            }
            if sending.is_overdue(now, 10) {
                let lost = sending.start_over(now);
                sending.queue.extend(lost);
                answers.push_back((now + round_trip, sending.at));
            }
        }
        None
    }

    #[test]
    fn all_copies_arrive_however_long_an_answer_takes() {
        for round_trip in [0, 5, 9, 10, 11, 15, 20, 30, 79, 100, 150] {
            for window in [1, 4, 64] {
                assert!(send_all(200, window, round_trip).is_some(), "{round_trip} {window}");
            }
        }
    }

    #[test]
    fn copies_are_sent_at_the_least_rate_while_answers_say_that_a_host_is_busy() {
        let sent_in_two_seconds = |is_busy: bool| {
            let limits = PaceLimits { least_per_s: 1_000, ..PaceLimits::default() };
            let mut sending = Sending::new(HostId(2), SESSION, Some(limits), 0);
            sending.queue.extend((0..1_000_000).map(BlockNo));
            for now in (0..2_000_000).step_by(500) {
                sending.acknowledged(sending.at, now, is_busy);
                let room = sending.pace.as_mut().map_or(0, |pace| pace.room(now, 1));
                for _ in 0..room {
                    send_at(&mut sending, now);
                }
                sending.pace.iter_mut().for_each(|pace| pace.sent(room));
            }
            sending.at.next
        };
        let (busy, free) = (sent_in_two_seconds(true), sent_in_two_seconds(false));
        assert!((1_900..2_200).contains(&busy) && free > 10 * busy, "{busy} {free}");
    }

    #[test]
    fn a_pause_between_copies_is_not_a_wait() {
        let mut sending = sending([7]);
        sending.acknowledged(at(1, 1), 5, false);
        assert!(!sending.is_overdue(1_000, 10));
        send(&mut sending);
        assert!(!sending.is_overdue(1_001, 10) && !sending.is_overdue(1_010, 10));
        assert!(sending.is_overdue(1_011, 10));
    }

    #[test]
    fn the_timeout_grows_up_to_a_limit_while_nothing_arrives() {
        let mut sending = sending([7]);
        let mut start = 0;
        for length in [10, 20, 40, 80, 160, 160, 160] {
            assert!(!sending.is_overdue(start + length - 1, 10));
            assert!(sending.is_overdue(start + length, 10));
            start += length;
            sending.start_over(start);
        }
    }

    #[test]
    fn an_answer_of_an_earlier_round_or_to_copies_that_were_not_sent_counts_for_nothing() {
        let mut sending = sending([7, 8]);
        send(&mut sending);
        assert_eq!(sending.start_over(0), [BlockNo(7)]);
        send(&mut sending);
        sending.acknowledged(at(1, 2), 0, false);
        sending.acknowledged(at(2, 9), 0, false);
        assert_eq!(sending.arrived(), 2);
        assert!(!sending.is_open);
        sending.acknowledged(at(2, 3), 0, false);
        assert_eq!(sending.arrived(), 3);
        assert!(sending.is_open);
    }
}
