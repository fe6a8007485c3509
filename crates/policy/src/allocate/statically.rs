//! Sizes set by the operator. Disks without a size share the rest equally.
//!
//! If all sizes together exceed the pool, they shrink in proportion to size and priority, but never below a
//! reservation.
//!
//! Source: the administrator-defined partitions from which vCacheShare (sections 1 and 8) starts.

use super::share::{Share, share};
use super::{Allocation, Allocator, Claim, check, targets};
use crate::error::PolicyError;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Static;

impl Allocator for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let within = |claim: &Claim, fixed: u64| fixed.clamp(claim.reservation_blocks, claim.limit_blocks);
        let given = claims.iter().filter_map(|claim| Some(within(claim, claim.fixed_blocks?)));
        let others = claims.iter().filter(|claim| claim.fixed_blocks.is_none());
        let promised = others.map(|claim| claim.reservation_blocks).chain(given).fold(0, u64::saturating_add);
        let short = promised > pool_blocks;
        let part = |claim: &Claim| match claim.fixed_blocks {
            Some(fixed) if short => Share {
                weight: claim.priority * fixed as f64,
                least: claim.reservation_blocks,
                most: within(claim, fixed),
            },
            Some(fixed) => Share { weight: 0.0, least: within(claim, fixed), most: claim.limit_blocks },
            None if short => Share { weight: 0.0, least: claim.reservation_blocks, most: claim.limit_blocks },
            None => {
                Share { weight: claim.priority, least: claim.reservation_blocks, most: claim.limit_blocks }
            }
        };
        let blocks = share(pool_blocks, 1, &claims.iter().map(part).collect::<Vec<_>>());
        let reason = if short {
            format!(
                "the sizes given come to {promised} blocks, more than the pool's {pool_blocks}: all shrink"
            )
        } else {
            "the sizes given".into()
        };
        Ok(Allocation { targets: targets(blocks), gap: None, reason })
    }
}
