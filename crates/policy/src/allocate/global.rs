//! No allocation: one pool shared by all disks. Any disk gets space, and the coldest blocks of all disks are
//! evicted.
//!
//! Reservations and limits are enforced at replacement; priorities have no effect. All other rules are
//! compared with this one, and it is the best for disks with identical loads.
//!
//! Source: "global LRU" of vCacheShare, "no allocation" of CloudCache.

use super::{Allocation, Allocator, Claim, Target, check};
use crate::error::PolicyError;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Global;

impl Allocator for Global {
    fn name(&self) -> &'static str {
        "none"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let shared = |claim: &Claim| Target::Shared {
            at_least_blocks: claim.reservation_blocks,
            at_most_blocks: claim.limit_blocks.min(pool_blocks),
        };
        let reason = "all share one pool".into();
        Ok(Allocation { targets: claims.iter().map(shared).collect(), gap: None, reason })
    }
}
