//! Decides whether guests leave the reactor, and the processor that it needs, enough time for copies that are sent
//! ahead.
//!
//! The reactor is occupied while it works, and while it waits for a processor that others use. The more it is occupied,
//! the more guest requests wait behind a copy. Queues need not show this, because guests that wait for answers send
//! fewer requests. Copies occupy the reactor, too, so the share below limits how much of the reactor copies may use
//! beside guests. Without guests, copies may use all of it.

use haversack_model::Micros;

/// The time over which the share is taken.
const WINDOW_US: Micros = 100_000;
/// The reactor becomes busy when the occupied share reaches this limit, in percent.
const BUSY_PERCENT: u64 = 40;
/// The reactor stays busy until the occupied share falls below this limit, in percent.
const FREE_PERCENT: u64 = 30;
/// The reactor is not busy if it answers fewer guest requests than this per window, whatever else occupies it.
const LEAST_REQUESTS: u64 = 20;

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// How long the reactor was occupied.
    pub occupied_us: Micros,
    /// How many requests of guests it has answered.
    pub requests: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Load {
    window_us: Micros,
    before: Totals,
    is_busy: bool,
}

impl Load {
    /// Records the totals so far.
    pub fn note(&mut self, now: Micros, totals: Totals) {
        let passed_us = now.saturating_sub(self.window_us);
        if passed_us < WINDOW_US {
            return;
        }
        let percent = 100 * totals.occupied_us.saturating_sub(self.before.occupied_us) / passed_us;
        let limit = if self.is_busy { FREE_PERCENT } else { BUSY_PERCENT };
        let requests = totals.requests - self.before.requests;
        self.is_busy = percent >= limit && requests * WINDOW_US >= LEAST_REQUESTS * passed_us;
        (self.window_us, self.before) = (now, totals);
    }

    /// Whether copies should be sent slowly.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether it is busy after each of these windows: shares of occupied time in percent, and requests.
    fn after<const N: usize>(windows: [(u64, u64); N]) -> [bool; N] {
        let (mut load, mut now, mut totals) = (Load::default(), 0, Totals::default());
        windows.map(|(percent, requests)| {
            totals.requests += requests;
            for _ in 0..10 {
                now += WINDOW_US / 10;
                totals.occupied_us += percent * WINDOW_US / 1_000;
                load.note(now, totals);
            }
            load.is_busy()
        })
    }

    #[test]
    fn it_is_busy_while_guests_leave_it_little_time() {
        let shares = [10, 39, 41, 100, 31, 29, 39, 45].map(|percent| (percent, 500));
        assert_eq!(after(shares), [false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn without_guests_it_is_never_busy() {
        assert_eq!(after([(100, 0), (100, 19), (100, 20), (100, 0)]), [false, false, true, false]);
    }

    #[test]
    fn requests_count_by_their_rate_after_a_sleep() {
        let mut load = Load::default();
        load.note(10 * WINDOW_US, Totals { occupied_us: 9 * WINDOW_US, requests: 199 });
        assert!(!load.is_busy());
        load.note(20 * WINDOW_US, Totals { occupied_us: 18 * WINDOW_US, requests: 399 });
        assert!(load.is_busy());
    }

    #[test]
    fn a_clock_that_stands_still_says_nothing() {
        let mut load = Load::default();
        load.note(0, Totals { occupied_us: 1_000_000, requests: 1_000 });
        assert!(!load.is_busy());
    }
}
