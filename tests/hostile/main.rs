//! Attacks on a daemon and mistakes of its operator: tests the promises of safety.md and security.md with hostile
//! guests, clients, origins, files and configurations.
//!
//! Each attack takes the seconds of `HAVERSACK_HOSTILE_SECONDS` (3 by default; `make hostile` gives more) and draws
//! what it does from `HAVERSACK_HOSTILE_SEED`, which it prints.

use std::time::{Duration, Instant};

mod api;
mod devices;
mod greedy;
mod membership;
mod nbd;
mod origin_away;
mod origin_ends;
mod origins;
mod pools;
mod roles;
mod sandbox;
mod slips;
mod staging;
mod storm;
mod tls;
mod uses;
mod vhost_user;

/// How long a random attack goes on.
pub fn seconds() -> Duration {
    Duration::from_secs(number_of("HAVERSACK_HOSTILE_SECONDS").unwrap_or(3))
}

/// The seed of a random attack; printed, so that a failure can be reproduced.
pub fn seed(attack: &str) -> u64 {
    let seed = number_of("HAVERSACK_HOSTILE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("{attack}: HAVERSACK_HOSTILE_SEED={seed}");
    seed
}

/// Calls `attack` with 0, 1, 2, ... until the time of a random attack is over, at least once.
pub fn rounds<E>(mut attack: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
    let end = Instant::now() + seconds();
    let mut round = 0;
    loop {
        attack(round)?;
        round += 1;
        if Instant::now() >= end {
            println!("{round} rounds");
            return Ok(());
        }
    }
}

fn number_of(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}
