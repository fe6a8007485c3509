//! Simulated annealing: units move between disks at random; moves that reduce the worth are allowed, but less
//! and less often.
//!
//! It starts from equal parts. The temperature falls by a constant factor from a tenth of the worth of a full
//! cache to nearly zero. The solution is the best division found. The generator is seeded, and no library
//! function is used that differs between machines, so a replay makes the same moves.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 5: "our prototype implementation uses an open-source simulated
//! annealing tool".

use super::problem::{Problem, Solution, Solver};
use haversack_model::random::Random;

/// The factor by which the temperature falls over all moves: 2^-13.
const COOLED: f64 = 1.0 / 8192.0;

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Annealing {
    /// The generator's seed.
    pub seed: u64,
    /// Number of moves tried.
    pub moves: u32,
}

fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit.max(1) as u64) as usize
}

/// Returns whether a loss, in units of the temperature, is accepted: with a probability of about exp(-loss),
/// from the first terms of its series.
fn accepted(loss: f64, random: f64) -> bool {
    let series = 1.0 + loss * (1.0 + loss / 2.0 * (1.0 + loss / 3.0 * (1.0 + loss / 4.0)));
    random * series < 1.0
}

impl Solver for Annealing {
    fn name(&self) -> &'static str {
        "annealing"
    }

    fn solve(&self, problem: &Problem) -> Solution {
        let disks = problem.worth.len();
        let mut random = Random::new(self.seed);
        let mut units = equal_parts(problem);
        let mut free = problem.units - units.iter().sum::<usize>();
        let mut worth = problem.worth_of(&units);
        let mut best = Solution { units: units.clone(), worth };
        let full: f64 = problem.worth.iter().filter_map(|worth| Some(worth.last()? - worth[0])).sum();
        if disks == 0 || full <= 0.0 {
            return best;
        }
        let mut temperature = full / 10.0;
        // The factor whose power over all moves is COOLED, to first order: (1 - ln(8192) / moves).
        let cooling = 1.0 - (13.0 * std::f64::consts::LN_2 / f64::from(self.moves.max(10))).min(0.5);
        for _ in 0..self.moves {
            temperature = (temperature * cooling).max(full * COOLED / 10.0);
            let (from, to) = (below(&mut random, disks + 1), below(&mut random, disks));
            // One index stands for the units that no disk has.
            let at_hand = if from == disks { free } else { units[from] };
            let most = at_hand.min(problem.worth[to].len() - 1 - units[to]);
            if from == to || most == 0 {
                continue;
            }
            let longest = 1 + below(&mut random, most);
            let moved = 1 + below(&mut random, longest);
            let lost = if from == disks { 0.0 } else { loss(problem, from, units[from], moved) };
            let gained = problem.worth[to][units[to] + moved] - problem.worth[to][units[to]];
            if lost > gained && !accepted((lost - gained) / temperature, random.unit()) {
                continue;
            }
            if from == disks {
                free -= moved;
            } else {
                units[from] -= moved;
            }
            units[to] += moved;
            worth += gained - lost;
            if worth > best.worth {
                best.units.clone_from(&units);
                best.worth = worth;
            }
        }
        best.worth = problem.worth_of(&best.units);
        best
    }
}

fn loss(problem: &Problem, disk: usize, units: usize, moved: usize) -> f64 {
    problem.worth[disk][units] - problem.worth[disk][units - moved]
}

fn equal_parts(problem: &Problem) -> Vec<usize> {
    let part = problem.units / problem.worth.len().max(1);
    problem.worth.iter().map(|worth| part.min(worth.len() - 1)).collect()
}
