//! Whether polling for work before sleeping is worthwhile.
//!
//! Polling uses a processor; if the sender of the work needs that same processor, polling even delays the work.
//! So each poll that finds nothing makes polls rarer, and one that finds something restores them. Two kinds of
//! waiting are tracked separately, since one may be worthwhile and the other not: waiting for I/O in flight,
//! and for clients alone.
//!
//! Invariant
//! - At most [`MOST_SKIPPED`] sleeps of a kind in a row have no poll before them, unless polling is off.

use haversack_model::Micros;

/// The most sleeps in a row without a poll before them.
const MOST_SKIPPED: u32 = 63;

/// The state of one kind of waiting.
#[derive(Clone, Copy, Default)]
struct Wait {
    /// Number of sleeps to skip polling for after the last useless poll, and how many of them are left.
    skipped: u32,
    left: u32,
}

/// See the module documentation.
pub(crate) struct Polling {
    longest_us: Micros,
    /// Waiting for clients, and for I/O.
    waits: [Wait; 2],
    /// The poll in progress: its end, and its kind.
    look: Option<(Micros, usize)>,
}

impl Polling {
    /// Makes a policy with polls of at most this length; 0 disables polling.
    pub fn new(longest_us: Micros) -> Polling {
        Polling { longest_us, waits: [Wait::default(); 2], look: None }
    }

    /// Records that there was work.
    pub fn found(&mut self) {
        if let Some((_, kind)) = self.look.take() {
            self.waits[kind] = Wait::default();
        }
    }

    /// Records that there was no work. Returns false if it is time to sleep.
    pub fn goes_on(&mut self, now: Micros, awaits_io: bool) -> bool {
        let Some((end_us, kind)) = self.look else { return self.begin(now, usize::from(awaits_io)) };
        if now < end_us {
            return true;
        }
        self.look = None;
        let wait = &mut self.waits[kind];
        wait.skipped = (2 * wait.skipped + 1).min(MOST_SKIPPED);
        wait.left = wait.skipped;
        false
    }

    fn begin(&mut self, now: Micros, kind: usize) -> bool {
        let wait = &mut self.waits[kind];
        if wait.left > 0 {
            wait.left -= 1;
            return false;
        }
        if self.longest_us > 0 {
            self.look = Some((now + self.longest_us, kind));
        }
        self.longest_us > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of polls before this many sleeps if every poll finds nothing.
    fn vain_looks(polling: &mut Polling, sleeps: u64, awaits_io: bool) -> u32 {
        let mut looks = 0;
        for now in (0..sleeps).map(|sleep| sleep * 1000) {
            if polling.goes_on(now, awaits_io) {
                looks += 1;
                assert!(polling.goes_on(now + 49, awaits_io));
                assert!(!polling.goes_on(now + 50, awaits_io));
            }
        }
        looks
    }

    #[test]
    fn polls_that_find_nothing_become_rare_until_one_finds_something() {
        let mut polling = Polling::new(50);
        assert_eq!(vain_looks(&mut polling, 1 + 1 + 1 + 3 + 1 + 7 + 1, false), 4);
        assert_eq!(vain_looks(&mut polling, 64_000, false), 1001);
        while !polling.goes_on(0, false) {}
        polling.found();
        assert!(polling.goes_on(0, false));
        polling.found();
        assert!(polling.goes_on(0, false));
    }

    #[test]
    fn waiting_for_io_is_another_thing() {
        let mut polling = Polling::new(50);
        vain_looks(&mut polling, 100, false);
        for now in 0..100 {
            assert!(polling.goes_on(now, true));
            polling.found();
        }
    }

    #[test]
    fn without_time_there_are_no_looks() {
        let mut polling = Polling::new(0);
        assert!(!polling.goes_on(0, true) && !polling.goes_on(1, false));
        polling.found();
        assert!(!polling.goes_on(2, true));
    }
}
