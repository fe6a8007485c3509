//! What the operator wants of a disk, and what decisions are told of it: the same in the daemon and in the simulator.
//!
//! Invariant: a share that the operator gave a disk is its reservation and its limit at once, so every allocator leaves
//! it what it was given.

use haversack_model::WriteMode;
use haversack_policy::{AllocatorRule, Config, DiskFacts};

/// The tenant of disks that name none.
const NO_TENANT: &str = "none";

/// What the operator wants of a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct Wishes {
    /// The VM that it belongs to; without one it stands alone.
    pub vm: Option<String>,
    /// The tenant that the VM belongs to.
    pub tenant: Option<String>,
    /// How much it counts.
    pub priority: f64,
    /// What it must have, in blocks.
    pub reservation_blocks: u64,
    /// What it may have, in blocks; the whole pool if not given.
    pub limit_blocks: Option<u64>,
    /// The share that it has whatever is decided, in blocks.
    pub fixed_blocks: Option<u64>,
}

impl Default for Wishes {
    /// A disk alone that counts as much as others, and must and may have anything.
    fn default() -> Self {
        Wishes {
            vm: None,
            tenant: None,
            priority: 1.0,
            reservation_blocks: 0,
            limit_blocks: None,
            fixed_blocks: None,
        }
    }
}

impl Wishes {
    /// What is told of a disk in a pool of so many blocks, of which it uses some.
    pub fn facts(&self, name: &str, pool_blocks: u64, used_blocks: u64, write_mode: WriteMode) -> DiskFacts {
        let reservation_blocks = self.fixed_blocks.unwrap_or(self.reservation_blocks);
        let limit_blocks = self.fixed_blocks.unwrap_or_else(|| self.limit_blocks.unwrap_or(pool_blocks));
        DiskFacts {
            name: name.into(),
            vm: self.vm.clone().unwrap_or_else(|| name.into()),
            tenant: self.tenant.clone().unwrap_or_else(|| NO_TENANT.into()),
            priority: self.priority,
            reservation_blocks,
            limit_blocks: limit_blocks.max(reservation_blocks),
            fixed_blocks: self.fixed_blocks,
            used_blocks,
            write_mode,
            window: None,
        }
    }
}

/// Whether decisions look at what is measured. Where they do not, nothing needs to be recorded.
pub fn measures(config: &Config) -> bool {
    let divides =
        !matches!(config.allocator, AllocatorRule::None | AllocatorRule::Equal | AllocatorRule::Static);
    divides || config.write_mode.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_share_is_reservation_and_limit() {
        let wishes = Wishes { limit_blocks: Some(7), fixed_blocks: Some(9), ..Wishes::default() };
        let facts = wishes.facts("web", 100, 3, WriteMode::WriteBack);
        assert_eq!((facts.reservation_blocks, facts.limit_blocks, facts.fixed_blocks), (9, 9, Some(9)));
        assert_eq!((&*facts.vm, &*facts.tenant), ("web", NO_TENANT));
        assert_eq!(Wishes::default().facts("web", 100, 3, WriteMode::WriteBack).limit_blocks, 100);
    }
}
