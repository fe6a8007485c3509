//! The questions to the host that should have a disk's replica and has none: when it is asked to attach the disk, and
//! which hosts could not have the replica.
//!
//! Invariants
//! - A host is asked again when its answer has come, or when it has connected again: a question is lost with its
//!   connection.
//! - A host that could not have the replica is remembered until it may be chosen again, or until the replica is
//!   complete.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use haversack_migrate::Unable;
use haversack_model::HostId;

use crate::hosts::talk::{Answer, IS_BUSY};

/// How often the host is asked: first after this time, then after twice the time before.
const EVERY: Duration = Duration::from_secs(5);
/// The longest time between two questions to a host that refuses.
const AT_LEAST_EVERY: Duration = Duration::from_secs(300);
/// The longest time between two questions to a host that has the disk attached, or has just been busy.
const AT_LEAST_EVERY_IF_WILLING: Duration = Duration::from_secs(30);
/// A question that has waited for longer does not count towards the limit of waiting questions: attaching may take as
/// long as an origin does.
const COUNTS_FOR: Duration = Duration::from_secs(30);
/// How long a host that could not have the replica is not chosen again by `auto`.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// See the module documentation.
pub(super) struct Asked {
    /// The host, and since when it has been unable to have the replica.
    unable: Unable,
    /// Since when the host has been connected; none if it is not.
    connected: Option<SystemTime>,
    /// When it may be asked, or asked again.
    next: Instant,
    every: Duration,
    asked: Instant,
    answers: Option<Receiver<(HostId, Answer)>>,
    refusal: Option<String>,
}

impl Asked {
    pub fn new(host: HostId, now: Instant) -> Asked {
        Asked::of(Unable::new(host), now)
    }

    fn of(unable: Unable, now: Instant) -> Asked {
        Asked { unable, connected: None, next: now, every: EVERY, asked: now, answers: None, refusal: None }
    }

    /// Sets which host should have the replica, and since when that host has been connected.
    pub fn turn_to(&mut self, host: HostId, connected: Option<SystemTime>, now: Instant) {
        // One that connects again may have been configured differently meanwhile.
        if self.unable.host() != host || self.connected != connected {
            let unable = std::mem::replace(&mut self.unable, Unable::new(host)).turned_to(host);
            *self = Asked { connected, ..Asked::of(unable, now) };
        }
    }

    /// The replica has begun, and is not complete yet.
    pub fn begun(&mut self, now: Instant) {
        (self.next, self.every, self.answers, self.refusal) = (now, EVERY, None, None);
    }

    /// Returns whether the host may be asked now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.connected.is_some() && self.answers.is_none() && now >= self.next
    }

    /// Returns whether an answer is awaited that may come soon.
    pub fn is_waiting(&self, now: Instant) -> bool {
        self.answers.is_some() && now.duration_since(self.asked) < COUNTS_FOR
    }

    /// The host has been asked.
    pub fn ask(&mut self, answers: Receiver<(HostId, Answer)>, now: Instant) {
        (self.answers, self.asked) = (Some(answers), now);
    }

    /// Processes the answer, if it has arrived.
    pub fn hear(&mut self) {
        let Some(answers) = &self.answers else { return };
        let most = match answers.try_recv() {
            Err(TryRecvError::Empty) => return,
            Ok((_, Answer::Refused(why))) if why != IS_BUSY => {
                self.refusal = Some(why);
                AT_LEAST_EVERY
            }
            Ok((_, Answer::Refused(_))) | Err(TryRecvError::Disconnected) => AT_LEAST_EVERY_IF_WILLING,
            Ok(_) => {
                self.refusal = None;
                AT_LEAST_EVERY_IF_WILLING
            }
        };
        self.answers = None;
        self.next = self.asked + self.every;
        self.every = (2 * self.every).min(most);
    }

    /// Returns why the host refused to attach the disk.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Records whether the host is unable to have the replica at present. Returns how long it has been unable.
    pub fn unable_for(&mut self, is_unable: bool, now: Instant) -> Duration {
        self.unable.unable_for(is_unable, now)
    }

    /// Returns the hosts that `auto` does not choose at present: this one, and those that were unable before.
    pub fn not_to_choose(&mut self, now: Instant) -> HashSet<HostId> {
        self.unable.not_to_choose(now, REFUSED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const A: HostId = HostId(1);
    const B: HostId = HostId(2);

    fn since(second: u64) -> Option<SystemTime> {
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second))
    }

    fn asked(asked: &mut Asked, now: Instant) -> Sender<(HostId, Answer)> {
        assert!(asked.is_due(now));
        let (sender, answers) = channel();
        asked.ask(answers, now);
        sender
    }

    #[test]
    fn a_host_that_could_not_have_a_replica_is_not_chosen_again_at_once() {
        let start = Instant::now();
        let mut one = Asked::new(A, start);
        assert_eq!(one.not_to_choose(start), HashSet::from([A]));
        one.turn_to(B, since(1), start);
        one.begun(start);
        let later = start + REFUSED_FOR / 2;
        assert_eq!(one.not_to_choose(later), HashSet::from([A, B]));
        assert_eq!(one.not_to_choose(start + REFUSED_FOR), HashSet::from([B]));
    }

    #[test]
    fn a_question_is_lost_with_its_connection() {
        let start = Instant::now();
        let mut one = Asked::new(A, start);
        assert!(!one.is_due(start), "not connected");
        one.turn_to(A, since(1), start);
        let _first = asked(&mut one, start);
        one.hear();
        one.turn_to(A, since(1), start);
        assert!(!one.is_due(start + REFUSED_FOR));
        one.turn_to(A, since(2), start);
        let _second = asked(&mut one, start);
        assert!(one.is_waiting(start) && !one.is_waiting(start + COUNTS_FOR));
    }

    #[test]
    fn a_host_that_refuses_is_asked_less_and_less_often_and_one_that_is_busy_soon() {
        let start = Instant::now();
        let mut one = Asked::new(A, start);
        one.turn_to(A, since(1), start);
        let mut now = start;
        let mut next_after = |answer: Answer| {
            let sender = asked(&mut one, now);
            sender.send((A, answer)).unwrap();
            one.hear();
            let begin = now;
            while !one.is_due(now) {
                now += Duration::from_secs(1);
            }
            (now - begin).as_secs()
        };
        let refuses = || Answer::Refused("has no pool 'main'".into());
        assert_eq!([(); 8].map(|()| next_after(refuses())), [5, 10, 20, 40, 80, 160, 300, 300]);
        let busy = || Answer::Refused(IS_BUSY.into());
        assert_eq!([(); 3].map(|()| next_after(busy())), [300, 30, 30]);
        assert_eq!(one.refusal(), Some("has no pool 'main'"));
    }

    #[test]
    fn the_time_counts_from_when_the_host_became_unable() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut one = Asked::new(A, start);
        assert_eq!(one.unable_for(false, start + 100 * second), Duration::ZERO);
        assert_eq!(one.unable_for(true, start + 101 * second), Duration::ZERO);
        one.begun(start + 102 * second);
        assert_eq!(one.unable_for(true, start + 116 * second), 15 * second, "the attempt has failed");
        one.turn_to(A, since(1), start + 117 * second);
        assert_eq!(one.unable_for(true, start + 117 * second), Duration::ZERO, "it is connected again");
    }
}
