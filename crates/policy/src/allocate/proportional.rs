//! Each disk gets its demand; if there is not enough, disks share in proportion to demand and priority.
//!
//! Source: CloudCache (Arteaga), sections 3.4.3 and 4.4. If space is short, the paper migrates VMs away, and
//! divides in proportion if it cannot.

use super::share::{Share, share};
use super::{Allocation, Allocator, Claim, Spare, check, targets};
use crate::error::PolicyError;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Proportional {
    /// What happens to space that is not demanded.
    pub spare: Spare,
}

impl Allocator for Proportional {
    fn name(&self) -> &'static str {
        "proportional"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let wanted = |claim: &Claim| claim.demand_blocks.clamp(claim.reservation_blocks, claim.limit_blocks);
        let sum = claims.iter().map(wanted).fold(0, u64::saturating_add);
        let weights: Vec<f64> =
            claims.iter().map(|claim| claim.priority * claim.demand_blocks as f64).collect();
        if sum > pool_blocks {
            let part = |(claim, weight): (&Claim, &f64)| Share {
                weight: *weight,
                least: claim.reservation_blocks,
                most: wanted(claim),
            };
            let blocks = share(pool_blocks, 1, &claims.iter().zip(&weights).map(part).collect::<Vec<_>>());
            let reason =
                format!("demands come to {sum} blocks of {pool_blocks}: parts by demand and priority");
            return Ok(Allocation { targets: targets(blocks), gap: None, reason });
        }
        let met: Vec<u64> = claims.iter().map(wanted).collect();
        let most: Vec<u64> = claims.iter().map(|claim| claim.limit_blocks).collect();
        let blocks = self.spare.add(pool_blocks, 1, &weights, &most, met);
        let reason =
            format!("demands come to {sum} blocks of {pool_blocks}: all are met, {}", self.spare.words());
        Ok(Allocation { targets: targets(blocks), gap: None, reason })
    }
}
