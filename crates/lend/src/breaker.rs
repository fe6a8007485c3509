//! Whether a lender is worth asking: one that does not answer, or is slower than the origin, is left alone for a while.

use haversack_model::Micros;

use crate::times::Times;

/// This many failures one after the other stop the questions.
const FAILURES: u32 = 4;
const FIRST_PAUSE_US: Micros = 1_000_000;
const LONGEST_PAUSE_US: Micros = 64_000_000;
/// Answers that are needed to say how fast it is.
const ENOUGH: u32 = 64;

/// The experience with a lender.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    failures: u32,
    pause_us: Micros,
    until_us: Micros,
    pub times: Times,
}

impl Breaker {
    pub fn new() -> Breaker {
        Breaker { failures: 0, pause_us: FIRST_PAUSE_US, until_us: 0, times: Times::new() }
    }

    /// Returns whether it may be asked.
    pub fn is_closed(&self, now: Micros) -> bool {
        now >= self.until_us
    }

    /// Notes an answer.
    pub fn answered(&mut self, now: Micros, took_us: Micros, origin: &Times) {
        self.failures = 0;
        self.times.add(took_us);
        let is_known = self.times.samples() >= ENOUGH && origin.samples() >= ENOUGH;
        if is_known && self.times.mean_us() > origin.mean_us() {
            self.open(now);
        } else if is_known {
            self.pause_us = FIRST_PAUSE_US;
        }
    }

    /// Notes a question that was not answered in time, or wrongly.
    pub fn failed(&mut self, now: Micros) {
        self.failures += 1;
        if self.failures >= FAILURES {
            self.open(now);
        }
    }

    /// Leaves it alone for a while. Then its speed is measured from the beginning.
    pub fn open(&mut self, now: Micros) {
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
}
