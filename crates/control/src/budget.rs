//! A budget of flash writes, kept by a price.
//!
//! The account is a bucket of bytes: it fills at the rate of the budget, up to a day's worth, and what is written to
//! flash is taken out of it. So a burst may use what a quiet day has left, while over many days no more is written than
//! the budget allows.
//!
//! The price of a block written to flash is what it must save at least, in microseconds of latency. It is moved so that
//! the bucket stays half full: writes may exceed the rate while there is more in it, and have to stay below the rate
//! while there is less. The logarithm of the price integrates what is written beyond that, in units of the rate: a
//! controller that works alike for prices of 1 us and of 10 ms, and in which quiet hours and bursts weigh by their
//! bytes. In the last tenth of the bucket the price rises steeply, so that no burst overdraws the account by much.
//!
//! Caches whose admission weighs no prices follow the same price: see [`Pacer::fill_share`].
//!
//! Nothing here reads a clock. The account is kept across restarts; time in which nothing ran fills the bucket as well.
//!
//! Invariants
//! - The bucket never holds more than a day's worth.
//! - A price is finite, and is 0 or above [`LEAST_PRICE_US`], up to [`MOST_PRICE_US`].

use haversack_admission::WRITE_PRICE_US;
use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use crate::error::ControlError;

/// Microseconds of a day.
pub const DAY_US: Micros = 86_400_000_000;
/// Prices up to this are nothing.
pub const LEAST_PRICE_US: f64 = 1.0;
/// The highest price: a block that saves a minute is always worth a write.
pub const MOST_PRICE_US: f64 = 60e6;
/// The bucket is brought half full within this part of the time that it takes to fill.
const CORRECTION: f64 = 0.25;
/// While writes exceed the permitted rate by the budget's rate, the price rises by a factor of e in this part of the
/// time that the bucket takes to fill.
const RESPONSE: f64 = 1.0 / 8.0;
/// Limits to which the deviation from the permitted rate is clamped, in units of the budget's rate: below and above.
const MOST_BELOW: f64 = -2.0;
const MOST_ABOVE: f64 = 8.0;
/// Above this part of the bucket the price does not rise: a burst that leaves so much is free.
const AMPLE: f64 = 0.75;
/// The bucket is nearly spent below this part.
const NEARLY_SPENT: f64 = 0.1;
/// The logarithm of the factor that the price has when the bucket is empty.
const DEAREST: f64 = 10.0;

/// How much may be written to flash.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Budget {
    /// Bytes a day, over many days.
    pub bytes_per_day: f64,
    /// What a burst may use, as time in which it accrues. A day unless a simulation is shorter than that.
    pub burst_us: Micros,
}

impl Budget {
    /// A budget in bytes per day. A burst may use up to one day's budget at once.
    pub fn per_day(bytes_per_day: f64) -> Budget {
        Budget { bytes_per_day, burst_us: DAY_US }
    }

    fn rate(&self) -> f64 {
        self.bytes_per_day / DAY_US as f64
    }

    /// Returns the most that the account holds, in bytes.
    pub fn burst_bytes(&self) -> f64 {
        self.rate() * self.burst_us as f64
    }
}

/// What has to survive a restart.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Account {
    /// Bytes that may be written at once; negative if it is overdrawn.
    pub balance_bytes: f64,
    /// The price of a block, without what an almost empty bucket adds.
    pub price_us: f64,
    /// Bytes written under this budget so far.
    pub written_bytes: u64,
    /// When the budget began to hold.
    pub begun_us: Micros,
    /// When this was known.
    pub time_us: Micros,
}

/// Keeps a [`Budget`].
#[derive(Clone, PartialEq, Debug)]
pub struct Pacer {
    budget: Budget,
    account: Account,
    /// The pool's counter at the last look.
    counted_bytes: u64,
}

impl Pacer {
    /// Starts with half a bucket, the lowest price, and the pool's counter of bytes written to flash.
    ///
    /// # Errors
    /// The budget is not a positive number of bytes.
    pub fn new(budget: Budget, now_us: Micros, counted_bytes: u64) -> Result<Pacer, ControlError> {
        if !(budget.bytes_per_day.is_finite() && budget.burst_bytes() >= 1.0) {
            return Err(ControlError::BadBudget { bytes_per_day: budget.bytes_per_day });
        }
        let account = Account {
            balance_bytes: budget.burst_bytes() / 2.0,
            price_us: LEAST_PRICE_US,
            written_bytes: 0,
            begun_us: now_us,
            time_us: now_us,
        };
        Ok(Pacer { budget, account, counted_bytes })
    }

    /// Continues the account of an earlier run, which must have used the same clock. The time since then has filled the
    /// bucket. An account from the future, which a clock that was set back leaves, continues from now.
    ///
    /// # Errors
    /// As for [`Pacer::new`].
    pub fn resume(
        budget: Budget,
        account: Account,
        now_us: Micros,
        counted_bytes: u64,
    ) -> Result<Pacer, ControlError> {
        let mut pacer = Pacer::new(budget, now_us, counted_bytes)?;
        let sane = account.balance_bytes.is_finite() && account.price_us.is_finite();
        if sane {
            pacer.account = Account {
                time_us: account.time_us.min(now_us),
                begun_us: account.begun_us.min(now_us),
                price_us: account.price_us.clamp(LEAST_PRICE_US, MOST_PRICE_US),
                ..account
            };
            pacer.accrue(now_us);
        }
        Ok(pacer)
    }

    fn accrue(&mut self, now_us: Micros) {
        let passed_us = now_us.saturating_sub(self.account.time_us) as f64;
        let filled = self.account.balance_bytes + self.budget.rate() * passed_us;
        self.account.balance_bytes = filled.min(self.budget.burst_bytes());
        // If the clock was set back, the time since the budget began is what it was.
        let set_back_us = self.account.time_us.saturating_sub(now_us);
        self.account.begun_us = self.account.begun_us.saturating_sub(set_back_us);
        self.account.time_us = now_us;
    }

    /// Looks at the pool's counter and moves the price. A counter that went back started again from 0.
    pub fn note(&mut self, now_us: Micros, counted_bytes: u64) -> f64 {
        let written = counted_bytes.checked_sub(self.counted_bytes).unwrap_or(counted_bytes);
        self.counted_bytes = counted_bytes;
        let passed_us = now_us.saturating_sub(self.account.time_us) as f64;
        self.accrue(now_us);
        self.account.balance_bytes -= written as f64;
        self.account.written_bytes = self.account.written_bytes.saturating_add(written);
        if passed_us > 0.0 {
            self.move_price(written as f64, passed_us);
        }
        self.price_us()
    }

    fn move_price(&mut self, written_bytes: f64, passed_us: f64) {
        let (rate, burst_us) = (self.budget.rate(), self.budget.burst_us as f64);
        let surplus = self.account.balance_bytes - self.budget.burst_bytes() / 2.0;
        let may = rate + surplus / (CORRECTION * burst_us);
        let off = ((written_bytes / passed_us - may) / rate).clamp(MOST_BELOW, MOST_ABOVE);
        let is_ample = self.account.balance_bytes > AMPLE * self.budget.burst_bytes();
        let off = if is_ample { off.min(0.0) } else { off };
        let moved = self.account.price_us * (off * passed_us / (RESPONSE * burst_us)).exp();
        self.account.price_us = moved.clamp(LEAST_PRICE_US, MOST_PRICE_US);
    }

    /// Returns the price of a block written to flash, in microseconds that it must save.
    pub fn price_us(&self) -> f64 {
        let left = self.account.balance_bytes / (NEARLY_SPENT * self.budget.burst_bytes());
        let dear = (DEAREST * (1.0 - left.clamp(0.0, 1.0))).exp();
        let price_us = (self.account.price_us * dear).min(MOST_PRICE_US);
        if price_us <= LEAST_PRICE_US { 0.0 } else { price_us }
    }

    /// Returns the price for admission filters that weigh prices: what they demand without a budget, and this price on
    /// top.
    pub fn write_price_us(&self) -> f32 {
        WRITE_PRICE_US + self.price_us() as f32
    }

    /// Returns the share of clean fills that may enter a cache whose admission weighs no prices, when a hit saves this
    /// much on average. If what blocks are worth is distributed exponentially, that share of them is worth the price.
    /// Nothing may enter while the account is overdrawn.
    pub fn fill_share(&self, saved_us: f64) -> f64 {
        if self.account.balance_bytes <= 0.0 {
            return 0.0;
        }
        (-self.price_us() / saved_us.max(1.0)).exp()
    }

    /// Returns what has to be kept for a restart.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Returns the budget.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Returns whether little is left for a burst.
    pub fn is_nearly_spent(&self) -> bool {
        self.account.balance_bytes < NEARLY_SPENT * self.budget.burst_bytes()
    }

    /// Returns the mean of bytes a day since the budget began to hold; none in the first minute.
    pub fn written_per_day(&self) -> Option<f64> {
        let passed_us = self.account.time_us.saturating_sub(self.account.begun_us);
        let is_some_time = passed_us >= DAY_US / 1440;
        is_some_time.then(|| self.account.written_bytes as f64 / passed_us as f64 * DAY_US as f64)
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;
    use proptest::prelude::*;

    use super::*;

    const MINUTE_US: Micros = 60_000_000;
    const GIB: f64 = (1u64 << 30) as f64;

    /// Runs the pacer for `days` days in steps of a minute. `demand` returns, for each minute, what would be written if
    /// writes were free, relative to the budget's rate; what is written is the part that is worth the price, which
    /// `saved_us` scales. Returns what was written each day, relative to the budget.
    fn days(pacer: &mut Pacer, days: u64, saved_us: f64, mut demand: impl FnMut(u64) -> f64) -> Vec<f64> {
        let a_minute = pacer.budget().bytes_per_day / 1440.0;
        let (mut counted, mut of_days) = (0u64, Vec::new());
        for day in 0..days {
            let before = counted;
            for minute in day * 1440..(day + 1) * 1440 {
                let worth = (-pacer.price_us() / saved_us).exp();
                counted += (demand(minute) * a_minute * worth) as u64;
                pacer.note((minute + 1) * MINUTE_US, counted);
            }
            of_days.push((counted - before) as f64 / pacer.budget().bytes_per_day);
        }
        of_days
    }

    fn pacer() -> Pacer {
        Pacer::new(Budget::per_day(100.0 * GIB), 0, 0).unwrap()
    }

    #[test]
    fn steady_demand_above_the_budget_is_held_to_it_over_thirty_days() {
        let mut pacer = pacer();
        let of_days = days(&mut pacer, 30, 2000.0, |_| 5.0);
        let mean = of_days.iter().sum::<f64>() / 30.0;
        assert!((0.97..1.03).contains(&mean), "{mean}: {of_days:?}");
        assert!((pacer.written_per_day().unwrap() / pacer.budget().bytes_per_day - mean).abs() < 1e-3);
        assert!(of_days[5..].iter().all(|day| (0.9..1.1).contains(day)), "{of_days:?}");
    }

    #[test]
    fn demand_below_the_budget_costs_nothing() {
        let mut pacer = pacer();
        let of_days = days(&mut pacer, 5, 2000.0, |_| 0.5);
        assert!(of_days.iter().all(|day| (day - 0.5).abs() < 0.01), "{of_days:?}");
        assert_eq!(pacer.price_us(), 0.0);
    }

    /// Two hours a day at nine times the rate are three quarters of the budget: all of it passes.
    #[test]
    fn a_burst_passes_where_the_rest_of_the_day_is_quiet() {
        let mut pacer = pacer();
        let burst = |minute: u64| if minute % 1440 < 120 { 9.0 } else { 0.0 };
        let of_days = days(&mut pacer, 30, 2000.0, burst);
        assert!(of_days[1..].iter().all(|day| *day > 0.6), "{of_days:?}");
    }

    #[test]
    fn a_restart_forgets_neither_the_account_nor_the_price() {
        let mut pacer = pacer();
        days(&mut pacer, 3, 2000.0, |_| 20.0);
        let account = pacer.account();
        assert!(account.price_us > LEAST_PRICE_US);
        let text = serde_json::to_string(&account).unwrap();
        let account: Account = serde_json::from_str(&text).unwrap();
        let at_once = Pacer::resume(pacer.budget(), account, account.time_us, 0).unwrap();
        assert_eq!(at_once.account(), pacer.account());
        let later = Pacer::resume(pacer.budget(), account, account.time_us + 2 * DAY_US, 0).unwrap();
        assert_eq!(later.account().balance_bytes, pacer.budget().burst_bytes());
        let earlier = Pacer::resume(pacer.budget(), account, account.time_us - DAY_US, 0).unwrap();
        assert_eq!(
            earlier.account().balance_bytes,
            account.balance_bytes,
            "a clock that was set back fills nothing"
        );
    }

    #[test]
    fn an_overdrawn_account_recovers_though_the_clock_was_set_back() {
        let mut pacer = Pacer::new(Budget::per_day(100.0 * GIB), 10 * DAY_US, 0).unwrap();
        let written_bytes = (80.0 * GIB) as u64;
        pacer.note(11 * DAY_US, written_bytes);
        pacer.note(11 * DAY_US + 1, 2 * written_bytes);
        assert_eq!(pacer.fill_share(2000.0), 0.0);
        let before = pacer.clone();
        pacer.note(4 * DAY_US, 2 * written_bytes);
        assert_eq!(pacer.account().balance_bytes, before.account().balance_bytes, "nothing is filled");
        assert_eq!(pacer.written_per_day(), before.written_per_day());
        pacer.note(5 * DAY_US, 2 * written_bytes);
        assert!(pacer.account().balance_bytes > 0.0 && pacer.fill_share(2000.0) > 0.0);
    }

    #[test]
    fn an_overdrawn_account_lets_no_fill_in() {
        let mut pacer = pacer();
        assert_eq!(pacer.fill_share(2000.0), 1.0);
        pacer.note(MINUTE_US, (60.0 * GIB) as u64);
        assert!(pacer.is_nearly_spent());
        assert_eq!(pacer.fill_share(2000.0), 0.0);
    }

    #[test]
    fn a_budget_of_nothing_is_refused() {
        for bytes_per_day in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pacer::new(Budget::per_day(bytes_per_day), 0, 0).is_err(), "{bytes_per_day}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Whatever the demand is like and whatever hits save, thirty days keep the budget within what one burst may
        /// exceed it by, and what the demand asks for at most is used where it is always above the budget.
        #[test]
        fn the_long_run_average_holds(
            seed in any::<u64>(),
            saved_us in 50.0..20_000.0,
            most in 1.5..40.0f64,
            busy in 0.3..1.0f64,
        ) {
            let mut random = Random::new(seed);
            let mut level = most;
            let demand = |minute: u64| {
                if minute.is_multiple_of(60) {
                    level = if random.unit() < busy { 1.0 + random.unit() * (most - 1.0) } else { 0.0 };
                }
                level
            };
            let mut pacer = pacer();
            let of_days = days(&mut pacer, 30, saved_us, demand);
            let mean = of_days.iter().sum::<f64>() / 30.0;
            prop_assert!(mean < 1.04, "{mean}: {of_days:?}");
            if most * busy > 4.0 {
                prop_assert!(mean > 0.85, "{mean}: {of_days:?}");
            }
            prop_assert!(pacer.price_us().is_finite() && pacer.account().balance_bytes.is_finite());
        }
    }
}
