//! Epochs that are taken by force: without the host that may have had the last one.
//!
//! Invariants
//! - A forced epoch is higher than any that earlier takeovers have led to, whether they are known or not.
//! - Two hosts that take a disk over in the same second have different epochs, except with a probability of 2^-22, so
//!   that the one with the lower epoch yields when it hears of the other.

use haversack_model::HostId;

/// The most epochs that hosts can use in a second.
const EPOCHS_A_SECOND: u64 = 1 << 24;
/// The part of a forced epoch that depends on the host has this many bits: a quarter of the epochs of a second.
const HOST_BITS: u32 = 22;

/// Returns the lowest epoch that a takeover by force can have if `known` is the highest epoch that was known.
pub fn least_forced_epoch(known: u64) -> u64 {
    known.saturating_add(EPOCHS_A_SECOND)
}

/// Returns an epoch that is higher than any epoch that a dead host can have had. `known` is the highest epoch that the
/// living hosts know, `now_s` the time in seconds, and `by` the host that takes the disk over. A disk changes hosts by
/// agreement less than once in 80 nanoseconds, so earlier forced epochs, and the epochs derived from them, are lower.
/// If the clock was set back, the new epoch is still higher than the known ones, by more than hosts can have added by
/// agreement.
pub fn forced_epoch(known: u64, now_s: u64, by: HostId) -> u64 {
    let by_clock = now_s.saturating_mul(EPOCHS_A_SECOND);
    // Spread evenly, also if ids are small numbers: epochs derived from one host's must not reach another host's.
    let of_host = by.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HOST_BITS);
    by_clock.max(least_forced_epoch(known)).saturating_add(of_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [HostId; 4] = [HostId(0), HostId(1), HostId(2), HostId(u64::MAX)];

    #[test]
    fn a_later_force_is_stronger() {
        for (first_by, then_by) in HOSTS.into_iter().flat_map(|by| HOSTS.map(|then| (by, then))) {
            let first = forced_epoch(3, 1_700_000_000, first_by);
            assert!(first > 1 << 32);
            let later = forced_epoch(3, 1_700_000_001, then_by);
            assert!(later > first + 1_000, "although the first one is not known");
            let earlier_clock = forced_epoch(first, 1_600_000_000, then_by);
            assert!(earlier_clock > first + 1_000, "although the clock was set back");
            assert!(later >= least_forced_epoch(3) && earlier_clock >= least_forced_epoch(first));
        }
    }

    #[test]
    fn hosts_that_force_in_the_same_second_have_epochs_far_apart() {
        for (at, by) in HOSTS.into_iter().enumerate() {
            for other in &HOSTS[at + 1..] {
                let distance =
                    forced_epoch(3, 1_700_000_000, by).abs_diff(forced_epoch(3, 1_700_000_000, *other));
                assert!(distance > 1_000, "{by:?} and {other:?}: {distance}");
            }
        }
    }
}
