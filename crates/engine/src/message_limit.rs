//! Limits messages that unauthenticated clients can cause: up to `MOST` a minute are logged, the rest only
//! counted. A client that connects thousands of times does not fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages logged per minute.
const MOST: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// See the module documentation.
#[derive(Debug)]
pub struct MessageLimit {
    /// What the messages are about.
    about: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    told: u32,
    untold: u64,
}

impl State {
    /// Returns whether a message may be logged now, and how many were dropped before this minute.
    fn next(&mut self, now: Instant) -> (bool, u64) {
        let mut untold_before = 0;
        if self.began.is_none_or(|began| now.duration_since(began) >= MINUTE) {
            untold_before = std::mem::take(self).untold;
            self.began = Some(now);
        }
        let tells = self.told < MOST;
        self.told += u32::from(tells);
        self.untold += u64::from(!tells);
        (tells, untold_before)
    }
}

impl MessageLimit {
    /// Limits messages about `about`, which is named when some are dropped.
    pub fn new(about: impl Into<String>) -> MessageLimit {
        MessageLimit { about: about.into(), state: Mutex::default() }
    }

    /// Calls `message` unless the limit is reached. The number of dropped messages is logged at the first call
    /// in a later minute.
    pub fn tell(&self, message: impl FnOnce()) {
        let (tells, untold) = self.state.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
        if untold > 0 {
            tracing::warn!("{}: {untold} more messages suppressed in the last minute", self.about);
        }
        if tells {
            message();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_logged_later() {
        let (mut state, start) = (State::default(), Instant::now());
        let told = (0..1000).filter(|_| state.next(start) == (true, 0)).count();
        assert_eq!(told, MOST as usize);
        assert_eq!(state.next(start + MINUTE / 2), (false, 0));
        assert_eq!(state.next(start + MINUTE), (true, 1001 - u64::from(MOST)));
        assert_eq!(state.next(start + 2 * MINUTE), (true, 0));
    }
}
