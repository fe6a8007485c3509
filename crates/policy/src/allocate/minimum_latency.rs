//! The division with the lowest latency, in which no disk gets more than its reuse distances demand.
//!
//! *Feasible*: the demanded sizes fit into the pool; each disk gets its own, and the rest stays idle.
//! *Infeasible*: they do not; minimise the sum over VMs of h_i(c_i) * T_cache + (1 - h_i(c_i)) * T_origin
//! between c_min and the demanded size. That is the same as maximising the sum of h_i(c_i) * (T_origin -
//! T_cache). The paper uses a solver for smooth functions and calls the problem convex; as h is a step
//! function, here it is solved exactly or on its hull, and the gap is reported. As in the printed equation,
//! each VM counts the same, however many accesses it makes; priority is its weight.
//!
//! Sources: ECI-Cache (Ahmadian et al., 2018), section 5.1, equation 2, algorithms 1 and 2, with URD; Centaur (Koller
//! et al., ICAC'15) with TRD.

use super::problem::{Problem, Solver};
use super::{Allocation, Allocator, Claim, check, targets};
use crate::error::PolicyError;

/// See the module documentation.
pub struct MinimumLatency {
    /// The solver.
    pub solver: Box<dyn Solver>,
    /// The approximate number of units into which the pool is divided.
    pub granularity: u64,
}

impl Allocator for MinimumLatency {
    fn name(&self) -> &'static str {
        "minimum-latency"
    }

    fn allocate(&self, pool_blocks: u64, claims: &[Claim]) -> Result<Allocation, PolicyError> {
        check(pool_blocks, claims)?;
        let asked: Vec<Claim> = claims
            .iter()
            .map(|claim| Claim {
                limit_blocks: claim.demand_blocks.clamp(claim.reservation_blocks, claim.limit_blocks),
                ..claim.clone()
            })
            .collect();
        let sum = asked.iter().map(|claim| claim.limit_blocks).fold(0, u64::saturating_add);
        if sum <= pool_blocks {
            let blocks = asked.iter().map(|claim| claim.limit_blocks).collect();
            let reason = format!("feasible: {sum} blocks asked for of {pool_blocks}");
            return Ok(Allocation { targets: targets(blocks), gap: None, reason });
        }
        let problem = Problem::new(pool_blocks, &asked, self.granularity, 1);
        let solution = self.solver.solve(&problem);
        let gap = problem.gap(self.solver.as_ref(), &solution);
        let reason = format!("infeasible: {sum} blocks asked for of {pool_blocks}; least latency, {gap}");
        Ok(Allocation { targets: targets(problem.blocks(&asked, &solution)), gap: Some(gap), reason })
    }
}
