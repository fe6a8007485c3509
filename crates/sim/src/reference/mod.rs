//! Reference policies for comparison with the production cache: exact and simple, one file each.

pub mod arc;
pub mod bits;
pub mod clock;
pub mod fifo;
pub mod governed;
pub mod lirs;
pub mod lookahead;
pub mod lru;
pub mod min;
pub mod partitions;
pub mod queues;
mod reads;
pub mod replay;
pub mod s3_fifo;
pub mod sieve;
pub mod table;
pub mod two_q;
pub mod unlimited;

use std::fmt;
use std::str::FromStr;

use haversack_model::WriteMode;
use haversack_trace::{Access, VolumeNo};

use crate::error::SimError;
use crate::key::Key;

/// A cache of blocks that processes one access after the other. Every access to a block that is not cached
/// inserts it.
pub trait Policy: Send {
    /// Accesses a block; returns whether it was cached. The blocks that it replaces are added to `evicted`.
    fn access(&mut self, key: Key, evicted: &mut Vec<Key>) -> bool;
    /// Whether a block is cached. Changes nothing.
    fn contains(&self, key: Key) -> bool;
    /// Drops a block and everything remembered about it: its content is void.
    fn remove(&mut self, key: Key);

    /// Sets the request to which the next accesses belong.
    fn begin(&mut self, access: &Access) {
        let _ = access;
    }

    /// Whether the block of the last access is cached now: a filter may have rejected it.
    fn entered(&self) -> bool {
        true
    }

    /// A volume's own rules for writes, if it has any.
    fn mode(&self, volume: VolumeNo) -> Option<WriteMode> {
        let _ = volume;
        None
    }
}

/// A part of a cache, at least one block.
fn share(capacity: usize, part: f64) -> usize {
    ((capacity as f64 * part) as usize).clamp(1, capacity.max(1))
}

/// A policy's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum PolicyName {
    /// The production cache.
    Core,
    /// Exact LRU.
    Lru,
    /// FIFO.
    Fifo,
    /// CLOCK.
    Clock,
    /// 2Q.
    TwoQ,
    /// ARC.
    Arc,
    /// LIRS.
    Lirs,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// Belady's MIN with bypass.
    Min,
    /// A cache that never evicts.
    Unlimited,
}

impl PolicyName {
    /// All of them, the production cache first, the bounds last.
    pub const ALL: [PolicyName; 11] = [
        PolicyName::Core,
        PolicyName::Lru,
        PolicyName::Fifo,
        PolicyName::Clock,
        PolicyName::TwoQ,
        PolicyName::Arc,
        PolicyName::Lirs,
        PolicyName::S3Fifo,
        PolicyName::Sieve,
        PolicyName::Min,
        PolicyName::Unlimited,
    ];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::Core => "core",
            PolicyName::Lru => "lru",
            PolicyName::Fifo => "fifo",
            PolicyName::Clock => "clock",
            PolicyName::TwoQ => "2q",
            PolicyName::Arc => "arc",
            PolicyName::Lirs => "lirs",
            PolicyName::S3Fifo => "s3-fifo",
            PolicyName::Sieve => "sieve",
            PolicyName::Min => "min",
            PolicyName::Unlimited => "unlimited",
        }
    }

    /// Whether it is only a bound for policies.
    pub fn is_bound(self) -> bool {
        matches!(self, PolicyName::Min | PolicyName::Unlimited)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for PolicyName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for PolicyName {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        let found = PolicyName::ALL.into_iter().find(|policy| plain(policy.name()) == plain(text));
        found.ok_or_else(|| SimError::UnknownPolicy {
            name: text.into(),
            known: PolicyName::ALL.map(PolicyName::name).join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for policy in PolicyName::ALL {
            assert_eq!(policy.name().parse::<PolicyName>().unwrap(), policy);
        }
        assert_eq!("S3FIFO".parse::<PolicyName>().unwrap(), PolicyName::S3Fifo);
        assert!("mru".parse::<PolicyName>().unwrap_err().to_string().contains("s3-fifo"));
    }
}
