//! How long to wait before the next connection.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits that double with every round through all members, up to [`LONGEST`], and vary, so that the hosts of a cluster
/// do not all come back at the same instant.
pub struct Backoff {
    members: u32,
    failures: u32,
}

impl Backoff {
    pub fn new(members: usize) -> Backoff {
        Backoff { members: u32::try_from(members).unwrap_or(u32::MAX).max(1), failures: 0 }
    }

    /// A connection was of use.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Returns how long to wait after a failure.
    pub fn failed(&mut self) -> Duration {
        let rounds = (self.failures / self.members).min(16);
        self.failures = self.failures.saturating_add(1);
        let longest = FIRST.saturating_mul(1 << rounds).min(LONGEST);
        let share = 0.5 + 0.5 * (random() >> 11) as f64 / (1_u64 << 53) as f64;
        longest.mul_f64(share)
    }
}

/// Returns a random number, not for secrets.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_per_round_up_to_a_limit() {
        let mut backoff = Backoff::new(3);
        let waits: Vec<_> = (0..40).map(|_| backoff.failed()).collect();
        assert!(waits[..3].iter().all(|wait| (FIRST / 2..=FIRST).contains(wait)), "{waits:?}");
        assert!(waits[3..6].iter().all(|wait| (FIRST..=FIRST * 2).contains(wait)), "{waits:?}");
        assert!(waits[30..].iter().all(|wait| (LONGEST / 2..=LONGEST).contains(wait)), "{waits:?}");
        backoff.succeeded();
        assert!(backoff.failed() <= FIRST);
    }

    #[test]
    fn two_hosts_wait_differently() {
        let waits = || {
            let mut backoff = Backoff::new(1);
            (0..8).map(|_| backoff.failed()).collect::<Vec<_>>()
        };
        assert_ne!(waits(), waits());
    }
}
