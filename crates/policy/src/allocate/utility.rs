//! The division with the highest utility, with any solver.
//!
//! The paper divides all of the pool: units without worth are given out by priority, unless spare space is to
//! be left idle.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 5: maximise the sum of priority_i * CU_i(c_i), with the sum of
//! c_i = C and c_min <= c_i <= c_max.

use super::problem::{Problem, Solver};
use super::{Allocation, Allocator, Claim, Spare, check, targets};
use crate::error::PolicyError;

/// See the module documentation.
pub struct UtilityMaximum {
    /// The solver.
    pub solver: Box<dyn Solver>,
    /// The approximate number of units into which the pool is divided.
    pub granularity: u64,
    /// What happens to space that has no worth to any disk.
    pub spare: Spare,
}

impl Allocator for UtilityMaximum {
    fn name(&self) -> &'static str {
        "utility"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let problem = Problem::new(pool_blocks, claims, self.granularity, 1);
        let solution = self.solver.solve(&problem);
        let gap = problem.gap(self.solver.as_ref(), &solution);
        let weights: Vec<f64> = claims.iter().map(|claim| claim.priority).collect();
        let most: Vec<u64> = claims.iter().map(|claim| claim.limit_blocks).collect();
        let blocks = self.spare.add(pool_blocks, 1, &weights, &most, problem.blocks(claims, &solution));
        let reason = format!("most utility, {gap}, {}", self.spare.words());
        Ok(Allocation { targets: targets(blocks), gap: Some(gap), reason })
    }
}
