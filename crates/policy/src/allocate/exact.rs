//! The optimal division, by dynamic programming over units.
//!
//! Disks are added one after the other. The best worth of n units for the disks so far is the maximum over the
//! units that the last disk gets. Only sizes at which a disk's worth rises need to be tried; any other size
//! equals the next smaller one with units left over. Time: disks x units x rises.
//!
//! Source: LAMA (Hu et al., ATC'15) and OSCA (Zhang et al., ATC'20) partition this way; it is the reference for
//! annealing.

use super::problem::{Problem, Solution, Solver};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Exact;

impl Solver for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn solve(&self, problem: &Problem) -> Solution {
        let width = problem.units + 1;
        let mut best = vec![0.0f64; width];
        let mut taken = vec![0u32; width * problem.worth.len()];
        let mut next = vec![0.0f64; width];
        for (worth, taken) in problem.worth.iter().zip(taken.chunks_mut(width)) {
            next.iter_mut().zip(&best).for_each(|(next, best)| *next = best + worth[0]);
            for units in rises(&worth[..worth.len().min(width)]) {
                let gained = worth[units];
                let reached = next[units..].iter_mut().zip(&mut taken[units..]).zip(&best);
                for ((next, taken), best) in reached {
                    if best + gained > *next {
                        *next = best + gained;
                        *taken = units as u32;
                    }
                }
            }
            std::mem::swap(&mut best, &mut next);
        }
        let mut left = problem.units;
        let mut units = vec![0; problem.worth.len()];
        for (units, taken) in units.iter_mut().zip(taken.chunks(width)).rev() {
            *units = taken[left] as usize;
            left -= *units;
        }
        let worth = problem.worth_of(&units);
        Solution { units, worth }
    }
}

/// Returns the numbers of units at which the worth rises.
fn rises(worth: &[f64]) -> impl Iterator<Item = usize> + '_ {
    (1..worth.len()).filter(|units| worth[*units] > worth[*units - 1])
}
