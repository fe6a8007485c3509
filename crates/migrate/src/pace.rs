//! How fast copies are sent ahead, so that guests are not slowed down.
//!
//! A copy competes with guests for the flash and the reactor of the source, for processors, for the network, and for
//! the reactor and the flash of the destination. If any of these is scarce, the answer to the copy comes later. So, as
//! in LEDBAT (RFC 6817, section 2.4), the rate grows while answers come little later than the fastest recent ones, and
//! is halved when they come later than that.
//!
//! Guests that never pause leave no processor time for copies, and no queue grows either: each of them just waits
//! longer before it sends its next request. So each host also measures how much its reactor is occupied, and the
//! destination says with its answers whether it is busy; while either is, the rate is halved, too.
//!
//! Copies leave in bursts: one alone costs several times the processor time of one among many, since it wakes the same
//! threads on both hosts.
//!
//! Invariants
//! - Where guests are always busy, copies are still sent at the minimum rate. It grows with each pass over the cached
//!   blocks, so that the passes end although a guest writes.

use haversack_model::Micros;

/// The limits of a pace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaceLimits {
    /// How much later than the fastest recent answer an answer may come.
    pub target_us: Micros,
    /// Copies a second that are always sent in the first pass.
    pub least_per_s: u64,
}

impl Default for PaceLimits {
    /// 5 MiB a second.
    fn default() -> PaceLimits {
        PaceLimits { target_us: 1_000, least_per_s: 1_280 }
    }
}

/// Copies in a burst.
const BURST: usize = 16;
/// The minimum rate grows for this many passes.
const MOST_PASSES: u32 = 4;
/// The most copies a second that are sent.
const MOST_PER_S: f64 = 200_000.0;
/// How long the soonest answer is remembered: between this and twice this.
const BASE_US: Micros = 10_000_000;
/// The rate doubles in this time at first, and later grows by the least rate.
const GROWTH_US: Micros = 100_000;
/// The weight of an answer in the delay that counts.
const SMOOTHING: f64 = 1.0 / 8.0;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Pace {
    limits: PaceLimits,
    /// Copies a second.
    rate: f64,
    /// The rate has never been too high.
    is_starting: bool,
    /// The soonest answer of this period, and of the one before.
    soonest_us: [Option<Micros>; 2],
    period_us: Micros,
    /// The smoothed answer time.
    answer_us: Option<f64>,
    answered_us: Micros,
    halved_us: Micros,
    /// Copies that may be sent.
    allowed: f64,
    allowed_us: Micros,
}

impl Pace {
    pub fn new(limits: PaceLimits, now: Micros) -> Pace {
        Pace {
            limits,
            rate: limits.least_per_s as f64,
            is_starting: true,
            soonest_us: [None; 2],
            period_us: now,
            answer_us: None,
            answered_us: now,
            halved_us: now,
            allowed: BURST as f64,
            allowed_us: now,
        }
    }

    /// Returns how many copies may be sent now, in this pass over the cached blocks.
    pub fn room(&mut self, now: Micros, pass: u32) -> usize {
        let least = (self.limits.least_per_s * u64::from(pass.clamp(1, MOST_PASSES))) as f64;
        self.rate = self.rate.clamp(least, MOST_PER_S);
        let passed_us = now.saturating_sub(self.allowed_us);
        self.allowed_us = now;
        let most = (2 * BURST) as f64;
        self.allowed = (self.allowed + self.rate * passed_us as f64 / 1e6).min(most);
        if self.allowed < BURST as f64 { 0 } else { self.allowed as usize }
    }

    /// Records that copies were sent.
    pub fn sent(&mut self, copies: usize) {
        self.allowed = (self.allowed - copies as f64).max(0.0);
    }

    /// Records that copies have arrived. The answer to the newest of them took `answer_us`. `is_busy` says whether
    /// guests occupy one of the hosts.
    pub fn arrived(&mut self, now: Micros, answer_us: Micros, is_busy: bool) {
        if now >= self.period_us + BASE_US {
            (self.soonest_us, self.period_us) = ([None, self.soonest_us[0]], now);
        }
        let soonest_us = self.soonest_us[0].map_or(answer_us, |soonest| soonest.min(answer_us));
        self.soonest_us[0] = Some(soonest_us);
        let soonest_us = self.soonest_us[1].map_or(soonest_us, |before| before.min(soonest_us));
        let of_late_us = self
            .answer_us
            .map_or(answer_us as f64, |of_late_us| of_late_us + (answer_us as f64 - of_late_us) * SMOOTHING);
        self.answer_us = Some(of_late_us);
        let passed_us = now.saturating_sub(self.answered_us).min(GROWTH_US);
        self.answered_us = now;
        if is_busy || of_late_us - soonest_us as f64 > self.limits.target_us as f64 {
            // Halve the rate only once for the delays that one rate has caused.
            if now >= self.halved_us + of_late_us as Micros {
                self.slow_down(now);
            }
        } else {
            let growth = if self.is_starting { self.rate } else { self.limits.least_per_s as f64 };
            self.rate += growth * passed_us as f64 / GROWTH_US as f64;
        }
    }

    /// Halves the rate: answers come late, or not at all.
    pub fn slow_down(&mut self, now: Micros) {
        (self.rate, self.is_starting, self.halved_us) = (self.rate / 2.0, false, now);
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;

    use super::*;

    const LIMITS: PaceLimits = PaceLimits { target_us: 2_000, least_per_s: 2_000 };

    /// As [`send_busy`], with hosts that are never busy.
    fn send(time_us: Micros, pass: u32, answer_us: impl Fn(Micros, usize) -> Micros) -> u64 {
        send_busy(time_us, pass, answer_us, |_| false)
    }

    /// Sends for some time. `answer_us` returns how long the answer to a copy takes, from the time and the number of
    /// other copies in flight; `is_busy` returns when a host is busy. Returns the copies per second in the second half.
    fn send_busy(
        time_us: Micros,
        pass: u32,
        answer_us: impl Fn(Micros, usize) -> Micros,
        is_busy: impl Fn(Micros) -> bool,
    ) -> u64 {
        let mut pace = Pace::new(LIMITS, 0);
        let mut on_their_way: Vec<(Micros, Micros)> = Vec::new();
        let mut sent = 0;
        for now in (0..time_us).step_by(100) {
            let newest = on_their_way.iter().filter(|(due, _)| *due <= now).map(|(_, since)| *since).max();
            on_their_way.retain(|(due, _)| *due > now);
            if let Some(since) = newest {
                pace.arrived(now, now - since, is_busy(now));
            }
            let copies = pace.room(now, pass).min(200 - on_their_way.len());
            for _ in 0..copies {
                on_their_way.push((now + answer_us(now, on_their_way.len()), now));
                sent += u64::from(now >= time_us / 2);
            }
            pace.sent(copies);
        }
        sent * 2_000_000 / time_us
    }

    #[test]
    fn a_path_that_nobody_else_uses_is_filled() {
        // 0.5 ms there and back, and 20,000 copies a second at most. With 2 ms of delay it carries 16,000, and the rate
        // swings between half of that and all of it.
        let rate = send(8_000_000, 1, |_, others| 500 + 50 * others as Micros);
        assert!((11_000..=16_000).contains(&rate), "{rate}");
    }

    #[test]
    fn a_path_that_others_use_gets_the_least_rate_which_grows_with_the_passes() {
        let busy = |now: Micros, _| if now < 100_000 { 500 } else { 4_000 + now * 7 % 3_000 };
        for (pass, least) in [(1, 2_000), (2, 4_000), (9, 8_000)] {
            let rate = send(4_000_000, pass, busy);
            assert!((least * 95 / 100..=least * 105 / 100).contains(&rate), "{rate} in pass {pass}");
        }
    }

    #[test]
    fn busy_hosts_get_the_least_rate_although_answers_come_soon() {
        let soon = |_, others: usize| 500 + 50 * others as Micros;
        for (pass, least) in [(1, 2_000), (3, 6_000)] {
            let rate = send_busy(4_000_000, pass, soon, |_| true);
            assert!((least * 95 / 100..=least * 105 / 100).contains(&rate), "{rate} in pass {pass}");
        }
        let rate = send_busy(8_000_000, 1, soon, |now| now < 2_000_000);
        assert!(rate > 10_000, "{rate} when they are not busy any more");
    }

    #[test]
    fn whatever_happens_the_least_rate_is_kept_and_no_more_is_sent_than_allowed() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let (mut pace, mut now, mut sent) = (Pace::new(LIMITS, 0), 0, 0);
            while now < 2_000_000 {
                now += random.below(2_000);
                match random.below(4) {
                    0 => pace.arrived(now, random.below(20_000), random.one_in(2)),
                    1 if random.one_in(8) => pace.slow_down(now),
                    _ => {}
                }
                let copies = pace.room(now, 1);
                assert!(copies == 0 || (BURST..=2 * BURST).contains(&copies), "{copies}");
                pace.sent(copies);
                sent += copies as u64;
            }
            let least = LIMITS.least_per_s * now / 1_000_000;
            assert!(sent + BURST as u64 >= least, "{sent} of {least}");
        }
    }

    #[test]
    fn it_grows_again_when_the_others_have_gone() {
        let rate = send(8_000_000, 1, |now, others| {
            let others_us = if (500_000..1_000_000).contains(&now) { 6_000 } else { 0 };
            500 + 50 * others as Micros + others_us
        });
        assert!(rate > 10_000, "{rate}");
    }

    #[test]
    fn a_path_that_has_become_longer_is_filled_after_a_while() {
        let rate = send(60_000_000, 1, |now, _| if now < 1_000_000 { 500 } else { 5_000 });
        assert!(rate > 4_000, "{rate}");
    }

    #[test]
    fn copies_leave_in_bursts() {
        let mut pace = Pace::new(LIMITS, 0);
        assert_eq!(pace.room(0, 1), BURST);
        pace.sent(BURST);
        let rooms: Vec<usize> = [1_000, 7_900, 8_000].map(|now| pace.room(now, 1)).into();
        assert_eq!(rooms, [0, 0, BURST]);
        assert_eq!(pace.room(10_000_000, 1), 2 * BURST);
    }
}
