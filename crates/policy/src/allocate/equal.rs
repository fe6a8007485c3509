//! Equal parts, or in proportion to priority if priorities differ.
//!
//! Source: the static partition with which ECI-Cache (section 2.3.1) and vCacheShare (section 7) are compared.

use super::share::{Share, share};
use super::{Allocation, Allocator, Claim, check, targets};
use crate::error::PolicyError;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Equal;

impl Allocator for Equal {
    fn name(&self) -> &'static str {
        "equal"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let part = |claim: &Claim| Share {
            weight: claim.priority,
            least: claim.reservation_blocks,
            most: claim.limit_blocks,
        };
        let blocks = share(pool_blocks, 1, &claims.iter().map(part).collect::<Vec<_>>());
        Ok(Allocation { targets: targets(blocks), gap: None, reason: "equal parts by priority".into() })
    }
}
