//! Epochs that are taken by force: without the host that may have had the last one.

/// The most epochs that hosts can use in a second.
const EPOCHS_A_SECOND: u64 = 1 << 24;

/// Returns an epoch that is higher than any that a dead host can have had: `known` is the highest that the living hosts
/// know, `now_s` the time in seconds. A disk changes hosts by agreement less than once in 60 nanoseconds, so earlier
/// forced epochs, and the epochs derived from them, are lower. If the clock was set back, the new epoch is still higher
/// than the known ones, by more than hosts can have added by agreement.
pub fn forced_epoch(known: u64, now_s: u64) -> u64 {
    let by_clock = now_s.saturating_mul(EPOCHS_A_SECOND);
    by_clock.max(known.saturating_add(EPOCHS_A_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_force_is_stronger() {
        let first = forced_epoch(3, 1_700_000_000);
        assert!(first > 1 << 32);
        assert!(forced_epoch(3, 1_700_000_001) > first + 1_000, "although the first one is not known");
        assert!(forced_epoch(first, 1_600_000_000) > first + 1_000, "although the clock was set back");
    }
}
