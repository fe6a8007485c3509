//! What the operator wants for a disk, and the facts about it that decisions use: the same in the daemon and in
//! the simulator.
//!
//! Invariant
//! - A share set by the operator is both the disk's reservation and its limit, so every allocator leaves it
//!   unchanged.

use haversack_model::WriteMode;
use haversack_policy::{AllocatorRule, Config, DiskFacts, OwnWindow};

/// The tenant of disks that name none.
pub const NO_TENANT: &str = "none";

/// What the operator wants for a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct Wishes {
    /// The VM that it belongs to; without one the disk stands alone.
    pub vm: Option<String>,
    /// The tenant that the VM belongs to.
    pub tenant: Option<String>,
    /// Its priority.
    pub priority: f64,
    /// Its reservation in blocks.
    pub reservation_blocks: u64,
    /// Its limit in blocks; the whole pool if not set.
    pub limit_blocks: Option<u64>,
    /// Its fixed share in blocks, whatever is decided.
    pub fixed_blocks: Option<u64>,
    /// How the length of its window is found, if not as the policy says.
    pub own_window: Option<OwnWindow>,
}

impl Default for Wishes {
    /// Returns the wishes of a disk without a VM, with the usual priority, no reservation and no limit.
    fn default() -> Self {
        Wishes {
            vm: None,
            tenant: None,
            priority: 1.0,
            reservation_blocks: 0,
            limit_blocks: None,
            fixed_blocks: None,
            own_window: None,
        }
    }
}

impl Wishes {
    /// Returns the facts about a disk that uses `used_blocks` of a pool of `pool_blocks`.
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
            own_window: self.own_window,
            knee: None,
            window: None,
            goes_on: false,
        }
    }
}

/// Returns whether somebody uses measurements: decisions, or a balancer of hosts. If not, nothing needs to be recorded.
pub fn measures(config: &Config) -> bool {
    let divides =
        !matches!(config.allocator, AllocatorRule::None | AllocatorRule::Equal | AllocatorRule::Static);
    divides || config.write_mode.is_some() || config.measures_anyway
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
