//! Whether a lender is worth asking: one that does not answer, or is slower than the origin, is left alone for a while.
//!
//! Invariant
//! - Answers that arrive during a pause belong to earlier questions. They do not make the pause longer.

use haversack_model::Micros;

use crate::times::Times;

/// After this many consecutive failures, the lender is not asked.
const FAILURES: u32 = 4;
const FIRST_PAUSE_US: Micros = 1_000_000;
const LONGEST_PAUSE_US: Micros = 64_000_000;
/// Answers that are needed to say how fast it is.
const ENOUGH: u32 = 64;

/// Why a lender is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It did not answer in time, or answered wrongly, several times in a row.
    Fails,
    /// It takes longer than the origin.
    Slow,
}

/// A pause in which a lender is not asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// Why.
    pub cause: Cause,
    /// For how much longer.
    pub left_us: Micros,
}

/// The experience with a lender.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    failures: u32,
    pause_us: Micros,
    until_us: Micros,
    cause: Cause,
    /// How often it was left alone.
    pub pauses: u64,
    /// It has answered since, or never was left alone.
    pub answers: bool,
    pub times: Times,
}

impl Breaker {
    pub fn new() -> Breaker {
        Breaker {
            failures: 0,
            pause_us: FIRST_PAUSE_US,
            until_us: 0,
            cause: Cause::Fails,
            pauses: 0,
            answers: true,
            times: Times::new(),
        }
    }

    /// Returns for how much longer it is left alone, and why.
    pub fn pause(&self, now: Micros) -> Option<Pause> {
        let left_us = self.until_us.saturating_sub(now);
        (left_us > 0).then_some(Pause { cause: self.cause, left_us })
    }

    /// Returns whether it may be asked.
    pub fn is_closed(&self, now: Micros) -> bool {
        now >= self.until_us
    }

    /// Records an answer.
    pub fn answered(&mut self, now: Micros, took_us: Micros, origin: &Times) {
        if self.is_closed(now) {
            self.failures = 0;
            self.answers = true;
            self.count(now, took_us, origin);
        }
    }

    /// Records that an answer is late after this time. The whole read takes this time plus the origin's latency.
    pub fn late(&mut self, now: Micros, waited_us: Micros, origin: &Times) {
        if self.is_closed(now) {
            self.count(now, waited_us + origin.mean_us() as Micros, origin);
            self.failed(now);
        }
    }

    fn count(&mut self, now: Micros, took_us: Micros, origin: &Times) {
        self.times.add(took_us);
        let is_known = self.times.samples() >= ENOUGH && origin.samples() >= ENOUGH;
        if is_known && self.times.mean_us() > origin.mean_us() {
            self.open(now, Cause::Slow);
        } else if is_known {
            self.pause_us = FIRST_PAUSE_US;
        }
    }

    /// Records a question that was answered wrongly, or not in time.
    pub fn failed(&mut self, now: Micros) {
        if !self.is_closed(now) {
            return;
        }
        self.failures += 1;
        if self.failures >= FAILURES {
            self.open(now, Cause::Fails);
        }
    }

    /// Leaves it alone for a while. Then its speed is measured from the beginning.
    fn open(&mut self, now: Micros, cause: Cause) {
        self.cause = cause;
        self.pauses += 1;
        self.answers = false;
        self.until_us = now + self.pause_us;
        self.pause_us = (self.pause_us * 2).min(LONGEST_PAUSE_US);
        self.failures = 0;
        self.times = Times::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_that_is_slower_than_the_origin_is_left_alone() {
        let mut origin = Times::new();
        (0..100).for_each(|_| origin.add(1000));
        let mut breaker = Breaker::new();
        (0..500).for_each(|_| breaker.answered(10, 900, &origin));
        assert!(breaker.is_closed(10));
        (0..500).for_each(|_| breaker.answered(10, 1400, &origin));
        assert!(!breaker.is_closed(10) && breaker.is_closed(10 + LONGEST_PAUSE_US));
    }

    #[test]
    fn what_is_late_at_one_moment_makes_one_pause() {
        let mut breaker = Breaker::new();
        (0..32).for_each(|_| breaker.late(10, 20_000, &Times::new()));
        (0..32).for_each(|_| breaker.failed(11));
        assert!(!breaker.is_closed(10 + FIRST_PAUSE_US - 1) && breaker.is_closed(10 + FIRST_PAUSE_US));
        (0..200).for_each(|_| breaker.answered(20, 1, &Times::new()));
        assert_eq!(breaker.times.samples(), 0, "answers to questions of before the pause");
    }

    #[test]
    fn a_lender_that_is_often_late_is_left_alone() {
        let mut origin = Times::new();
        (0..100).for_each(|_| origin.add(1000));
        let late_of_four = |late: u32| {
            let mut breaker = Breaker::new();
            (0..400u32).for_each(|at| match at % 4 < late {
                true => breaker.late(10, 1024, &origin),
                false => breaker.answered(10, 100, &origin),
            });
            !breaker.is_closed(10)
        };
        assert!(late_of_four(3), "most reads take longer than without it");
        assert!(!late_of_four(1), "most reads take a tenth");
    }

    #[test]
    fn the_pauses_of_a_dead_lender_become_longer() {
        let mut breaker = Breaker::new();
        let mut now = 0;
        for pause_us in [1_000_000, 2_000_000, 4_000_000] {
            (0..FAILURES).for_each(|_| breaker.failed(now));
            assert!(!breaker.is_closed(now + pause_us - 1) && breaker.is_closed(now + pause_us));
            now += pause_us;
        }
        breaker.failed(now);
        breaker.answered(now, 1, &Times::new());
        (1..FAILURES).for_each(|_| breaker.failed(now));
        assert!(breaker.is_closed(now), "an answer in between");
    }

    #[test]
    fn it_is_known_why_a_lender_is_left_alone_and_whether_it_has_answered_since() {
        let mut breaker = Breaker::new();
        assert_eq!((breaker.pause(0), breaker.pauses, breaker.answers), (None, 0, true));
        (0..FAILURES).for_each(|_| breaker.failed(10));
        let pause = Pause { cause: Cause::Fails, left_us: FIRST_PAUSE_US - 5 };
        assert_eq!((breaker.pause(15), breaker.pauses, breaker.answers), (Some(pause), 1, false));
        let later = 10 + FIRST_PAUSE_US;
        assert_eq!((breaker.pause(later), breaker.answers), (None, false), "nobody has asked it yet");
        let mut origin = Times::new();
        (0..100).for_each(|_| origin.add(1000));
        breaker.answered(later, 2000, &origin);
        assert!(breaker.answers);
        (0..ENOUGH).for_each(|_| breaker.answered(later, 2000, &origin));
        assert_eq!(breaker.pause(later).map(|pause| pause.cause), Some(Cause::Slow));
    }
}
