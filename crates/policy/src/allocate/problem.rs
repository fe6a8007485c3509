//! The solvers' problem: which number of units for each disk maximises the sum of worth?
//!
//! Space beyond all reservations is divided into units, so that all solvers search the same set and the exact
//! one is exact. A disk takes from 0 units, its reservation, up to the number that reaches its limit. A disk's
//! worth never decreases with its size.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 5; Centaur and ECI-Cache, equation 2, seen as worth
//! gained.

use serde::{Deserialize, Serialize};

use super::optimum::optimum;
use super::{Claim, Gap};

/// A problem in units.
#[derive(Clone, PartialEq, Debug)]
pub struct Problem {
    /// Units to divide.
    pub units: usize,
    /// Size of a unit in blocks.
    pub unit_blocks: u64,
    /// The worth of each disk at 0, 1, 2, ... units; has at least the value for 0 units and never decreases.
    pub worth: Vec<Vec<f64>>,
    /// Blocks beyond all reservations.
    pub blocks: u64,
    /// The worth of each disk beyond its reservation: rising points of blocks, from 0 on, and worth.
    pub curves: Vec<Vec<(u64, f64)>>,
}

/// Units for each disk.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Solution {
    /// Units of each disk; their sum is at most the problem's.
    pub units: Vec<usize>,
    /// The sum of worth.
    pub worth: f64,
}

/// A solver of the problem.
pub trait Solver {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns a solution; it need not use all units.
    fn solve(&self, problem: &Problem) -> Solution;
}

impl Problem {
    /// Makes the problem of dividing a pool among checked claims, in about `granularity` units of at least
    /// `unit_blocks` blocks. Worth is weighted by priority.
    pub fn new(pool_blocks: u64, claims: &[Claim], granularity: u64, unit_blocks: u64) -> Problem {
        let reserved = claims.iter().map(|claim| claim.reservation_blocks).fold(0, u64::saturating_add);
        let rest = pool_blocks.saturating_sub(reserved);
        let unit_blocks = rest.div_ceil(granularity.max(1)).max(unit_blocks).max(1);
        let units = (rest / unit_blocks) as usize;
        let worth = claims.iter().map(|claim| worth_in_units(claim, units, unit_blocks)).collect();
        let curves = claims.iter().map(curve_in_blocks).collect();
        Problem { units, unit_blocks, worth, blocks: rest, curves }
    }

    /// Returns the sum of worth for these units.
    pub fn worth_of(&self, units: &[usize]) -> f64 {
        self.worth.iter().zip(units).map(|(worth, units)| worth[*units]).sum()
    }

    /// Returns the blocks of each claim. The last unit of a disk may exceed its limit; it is cut there.
    pub fn blocks(&self, claims: &[Claim], solution: &Solution) -> Vec<u64> {
        let blocks = |(claim, units): (&Claim, &usize)| {
            let more = self.unit_blocks.saturating_mul(*units as u64);
            claim.reservation_blocks.saturating_add(more).min(claim.limit_blocks)
        };
        claims.iter().zip(&solution.units).map(blocks).collect()
    }

    /// Returns how close a solution is to the best division in blocks, or to an upper bound of that: an optimum in
    /// units is not one in blocks.
    pub fn gap(&self, solver: &dyn Solver, solution: &Solution) -> Gap {
        let best = optimum(self.blocks, &self.curves, solution.worth);
        let bound = best.worth;
        let relative = if bound > 0.0 { (bound - solution.worth) / bound } else { 0.0 };
        Gap {
            solver: solver.name().into(),
            worth: solution.worth,
            bound,
            is_optimum: best.is_reached,
            relative,
        }
    }
}

/// Returns the worth of a claim beyond its reservation: rising points of blocks, from 0 on, and worth.
fn curve_in_blocks(claim: &Claim) -> Vec<(u64, f64)> {
    let (least, most) = (claim.reservation_blocks, claim.limit_blocks);
    let mut curve = vec![(0, 0.0f64)];
    for (size, gained) in claim.worth.iter().filter(|point| point.0 <= most) {
        let (blocks, worth) = (size.saturating_sub(least), gained * claim.priority);
        match curve.last_mut() {
            Some(last) if worth > last.1 && last.0 == blocks => last.1 = worth,
            Some(last) if worth > last.1 => curve.push((blocks, worth)),
            _ => {}
        }
    }
    curve
}

fn worth_in_units(claim: &Claim, units: usize, unit_blocks: u64) -> Vec<f64> {
    let room = claim.limit_blocks.saturating_sub(claim.reservation_blocks).div_ceil(unit_blocks);
    let most = units.min(usize::try_from(room).unwrap_or(usize::MAX));
    let mut points = claim.worth.iter().peekable();
    let mut worth = Vec::with_capacity(most + 1);
    let mut so_far = 0.0f64;
    for unit in 0..=most as u64 {
        let size = claim.reservation_blocks.saturating_add(unit * unit_blocks).min(claim.limit_blocks);
        while let Some((_, gained)) = points.next_if(|point| point.0 <= size) {
            so_far = so_far.max(gained * claim.priority);
        }
        worth.push(so_far);
    }
    worth
}
