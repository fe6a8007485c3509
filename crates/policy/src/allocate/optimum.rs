//! The optimum of a division in blocks, however fine, against which solutions in units are compared.
//!
//! Curves are step functions with few steps, so this is a multiple-choice knapsack: one step of each curve. It is
//! solved exactly by dominance: curve after curve, a sum of steps is kept only if no other takes less
//! space for at least as much worth. Lagrange's relaxation, with the slope at which the hulls run out of space as the
//! price of a block, bounds what a sum can still reach. Sums and steps that cannot beat the known solution are
//! dropped. The known solution is the better of two: the solver's, and a greedy one of whole hull steps and then the
//! best steps that still fit. Time is bounded: if there are too many sums, neighbours are joined into one that takes
//! the space of the smaller and has the worth of the larger. The result is then an upper bound of the optimum, and
//! says so.
//!
//! Source: Kellerer, Pferschy and Pisinger, "Knapsack Problems", 2004, chapter 11: dominance, upper bounds and
//! reduction of multiple-choice knapsack problems.

use super::hull;

/// Approximate number of sums that are examined: a few milliseconds.
const MOST_EXAMINED: usize = 1 << 15;
/// The number of sums kept from curve to curve, whatever the number of steps.
const FEWEST_KEPT: usize = 16;
/// Sums within this share of the known worth are not left out: sums of numbers in another order differ by less.
const ROUNDING: f64 = 1e-9;

/// The highest worth of any division.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Optimum {
    /// It, or an upper bound.
    pub worth: f64,
    /// Whether a division has this worth.
    pub is_reached: bool,
}

/// A sum of steps.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Sum {
    blocks: u64,
    worth: f64,
}

/// Returns the highest worth of dividing this many blocks, if a solution of the worth `known` exists. Each curve has
/// rising points of blocks, from 0 on, and rising worth.
pub fn optimum(blocks: u64, curves: &[Vec<(u64, f64)>], known: f64) -> Optimum {
    let relaxed = hull::relaxed(blocks, curves);
    let known = known.max(filled(blocks, curves, relaxed.whole));
    let least = known - ROUNDING * known.abs();
    // What no solution in which one step is not the best of its curve at this price can exceed.
    let best_of: Vec<f64> = curves.iter().map(|curve| best(curve, relaxed.price)).collect();
    let bound = best_of.iter().sum::<f64>() + relaxed.price * blocks as f64;
    let kept = |(curve, best): (&Vec<(u64, f64)>, &f64)| -> Vec<(u64, f64)> {
        let can_win = |point: &&(u64, f64)| bound - (best - value(**point, relaxed.price)) >= least;
        curve.iter().filter(can_win).copied().collect()
    };
    let mut reduced: Vec<(Vec<(u64, f64)>, f64)> =
        curves.iter().zip(&best_of).map(kept).zip(best_of.iter().copied()).collect();
    // Curves with few steps first: what they decide bounds the others.
    reduced.sort_by_key(|(curve, _)| curve.len());
    let steps: usize = reduced.iter().map(|(curve, _)| curve.len()).sum();
    let most = (MOST_EXAMINED / steps.max(1)).max(FEWEST_KEPT);

    let mut sums = vec![Sum { blocks: 0, worth: 0.0 }];
    let mut rest = bound;
    let mut is_reached = true;
    for (curve, best) in &reduced {
        rest -= best;
        let longer = sums.iter().flat_map(|sum| curve.iter().map(|step| add(*sum, *step)));
        let can_win =
            |sum: &Sum| sum.blocks <= blocks && rest + value((sum.blocks, sum.worth), relaxed.price) >= least;
        sums = undominated(longer.filter(can_win).collect());
        if sums.len() > most {
            is_reached = false;
            sums = joined(&sums, most);
        }
    }
    // The last sum has the highest worth. If none is left, nothing beats the known solution.
    let found = sums.last().map_or(known, |sum| sum.worth).max(known);
    Optimum { worth: found.min(relaxed.worth.max(known)), is_reached }
}

/// Returns the worth of a division after what it leaves has gone to the steps that gain most, one after the other.
fn filled(blocks: u64, curves: &[Vec<(u64, f64)>], mut points: Vec<(u64, f64)>) -> f64 {
    let mut left = blocks - points.iter().map(|point| point.0).sum::<u64>();
    loop {
        let mut best = (0.0, 0, (0, 0.0));
        for (number, (curve, has)) in curves.iter().zip(&points).enumerate() {
            let fits = curve.partition_point(|point| point.0 <= has.0 + left);
            let point = curve[fits - 1];
            if point.1 - has.1 > best.0 {
                best = (point.1 - has.1, number, point);
            }
        }
        let (gain, number, point) = best;
        if gain <= 0.0 {
            return points.iter().map(|point| point.1).sum();
        }
        left -= point.0 - points[number].0;
        points[number] = point;
    }
}

/// Returns the worth of a sum less the price of its blocks.
fn value(point: (u64, f64), price: f64) -> f64 {
    point.1 - price * point.0 as f64
}

fn best(curve: &[(u64, f64)], price: f64) -> f64 {
    curve.iter().map(|point| value(*point, price)).fold(f64::NEG_INFINITY, f64::max)
}

fn add(sum: Sum, (blocks, worth): (u64, f64)) -> Sum {
    Sum { blocks: sum.blocks.saturating_add(blocks), worth: sum.worth + worth }
}

/// Returns the sums of which no other takes at most the same space for at least the same worth, by rising space.
fn undominated(mut sums: Vec<Sum>) -> Vec<Sum> {
    sums.sort_unstable_by(|a, b| a.blocks.cmp(&b.blocks).then(b.worth.total_cmp(&a.worth)));
    let mut highest = f64::NEG_INFINITY;
    sums.retain(|sum| {
        let rises = sum.worth > highest;
        highest = highest.max(sum.worth);
        rises
    });
    sums
}

/// Joins neighbours, so that at most this many are left: each with the space of the smallest and the worth of the
/// largest.
fn joined(sums: &[Sum], most: usize) -> Vec<Sum> {
    let of = |group: &[Sum]| Sum { blocks: group[0].blocks, worth: group[group.len() - 1].worth };
    sums.chunks(sums.len().div_ceil(most.max(1))).map(of).collect()
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;

    use super::*;

    /// Rising curves of a few steps, of up to 40 blocks.
    fn curves(random: &mut Random) -> Vec<Vec<(u64, f64)>> {
        let curve = |random: &mut Random| {
            let mut curve = vec![(0, if random.below(4) == 0 { random.unit() } else { 0.0 })];
            for _ in 0..random.below(6) {
                let (blocks, worth) = curve[curve.len() - 1];
                curve.push((blocks + 1 + random.below(8), worth + random.unit()));
            }
            curve
        };
        (0..1 + random.below(6)).map(|_| curve(random)).collect()
    }

    /// The highest worth by dynamic programming over every number of blocks.
    fn by_blocks(blocks: u64, curves: &[Vec<(u64, f64)>]) -> f64 {
        let mut best = vec![0.0f64; blocks as usize + 1];
        for curve in curves {
            let of = |room: usize| {
                let fits = curve.iter().filter(|step| step.0 <= room as u64);
                fits.map(|step| best[room - step.0 as usize] + step.1).fold(f64::NEG_INFINITY, f64::max)
            };
            best = (0..best.len()).map(of).collect();
        }
        best[blocks as usize]
    }

    #[test]
    fn it_is_the_best_of_all_divisions() {
        let seed = 7;
        let mut random = Random::new(seed);
        for round in 0..2000 {
            let curves = curves(&mut random);
            let blocks = random.below(80);
            let expected = by_blocks(blocks, &curves);
            let least: f64 = curves.iter().map(|curve| curve[0].1).sum();
            // From a poor solution as well as from the best.
            for known in [least, expected * 0.9, expected] {
                let found = optimum(blocks, &curves, known.max(least));
                assert!(found.is_reached, "seed {seed}, round {round}");
                let off = (found.worth - expected).abs();
                assert!(off < 1e-9, "seed {seed}, round {round}: {} and {expected}", found.worth);
            }
        }
    }

    #[test]
    fn without_the_time_it_is_a_bound() {
        let seed = 3;
        let mut random = Random::new(seed);
        let curve = |random: &mut Random| {
            let mut worth = 0.0;
            let step = |at: u64| {
                worth += random.unit();
                (at * 1000 + random.below(1000), worth)
            };
            std::iter::once((0, 0.0)).chain((1..200).map(step).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let curves: Vec<_> = (0..60).map(|_| curve(&mut random)).collect();
        // Nothing is known, so next to nothing can be left out.
        let found = optimum(3_000_000, &curves, 0.0);
        let relaxed = hull::relaxed(3_000_000, &curves);
        assert!(!found.is_reached && found.worth <= relaxed.worth, "{found:?} {relaxed:?}");
        let near = optimum(3_000_000, &curves, relaxed.worth * 0.9995);
        assert!(near.worth <= relaxed.worth && near.worth >= relaxed.worth * 0.9995, "{near:?}");
    }

    #[test]
    fn joined_sums_are_no_worse_than_any_of_them() {
        let sum = |blocks, worth| Sum { blocks, worth };
        let sums =
            undominated(vec![sum(5, 2.0), sum(1, 1.0), sum(3, 1.0), sum(5, 2.5), sum(9, 2.4), sum(9, 4.0)]);
        assert_eq!(sums, [sum(1, 1.0), sum(5, 2.5), sum(9, 4.0)]);
        assert_eq!(joined(&sums, 2), [sum(1, 2.5), sum(9, 4.0)]);
    }
}
