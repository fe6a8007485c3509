//! Takes the steepest steps first, on the concave hulls of all curves.
//!
//! This greedy method is optimal on concave curves. For curves with cliffs the hull is an upper bound. So no
//! division can exceed the sum on the hulls with the last step taken in part; every solver's gap is reported
//! relative to this bound. Steps that no longer fit in full are skipped. The remaining units go, one by one,
//! to the largest gain per unit that still fits.
//!
//! Sources: Stone, Turek and Wolf, "Optimal partitioning of cache memory", IEEE ToC 1992, for greedy; Beckmann and
//! Sanchez, "Talus", HPCA'15, for the hull. ECI-Cache calls equation 2 convex; its curves are steps, so it is not.

use super::problem::{Problem, Solution, Solver};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Hull;

/// A step of a disk from one corner of its hull to the next.
#[derive(Clone, Copy)]
struct Step {
    disk: usize,
    to: usize,
    units: usize,
    gain: f64,
}

impl Step {
    fn slope(&self) -> f64 {
        self.gain / self.units as f64
    }
}

/// Returns the corners of the concave hull, including the first and the last point; flat ends are left out.
fn corners(worth: &[f64]) -> Vec<usize> {
    let mut corners: Vec<usize> = vec![0];
    let slope = |from: usize, to: usize| (worth[to] - worth[from]) / (to - from) as f64;
    for at in 1..worth.len() {
        if worth[at] <= worth[at - 1] {
            continue;
        }
        while corners.len() > 1 {
            let (before, last) = (corners[corners.len() - 2], corners[corners.len() - 1]);
            if slope(before, last) > slope(last, at) {
                break;
            }
            corners.pop();
        }
        corners.push(at);
    }
    corners
}

/// Returns all steps, steepest first; steps of one disk stay in order, because the slopes of a hull decrease.
fn steps(problem: &Problem) -> Vec<Step> {
    let mut steps = Vec::new();
    for (disk, worth) in problem.worth.iter().enumerate() {
        for pair in corners(worth).windows(2) {
            let (from, to) = (pair[0], pair[1]);
            steps.push(Step { disk, to, units: to - from, gain: worth[to] - worth[from] });
        }
    }
    steps.sort_by(|a, b| b.slope().total_cmp(&a.slope()).then(a.disk.cmp(&b.disk)).then(a.to.cmp(&b.to)));
    steps
}

/// The division of blocks on the hulls, with the last step taken in part.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Relaxed {
    /// Its worth, which no division exceeds.
    pub worth: f64,
    /// The worth of a block at which space runs out; 0 if there is enough.
    pub price: f64,
    /// The points of a division that takes only whole steps, as many as fit.
    pub whole: Vec<(u64, f64)>,
}

/// Divides this many blocks on the hulls. Each curve has rising points of blocks, from 0 on, and worth.
pub(super) fn relaxed(blocks: u64, curves: &[Vec<(u64, f64)>]) -> Relaxed {
    let slope = |from: (u64, f64), to: (u64, f64)| (to.1 - from.1) / (to.0 - from.0) as f64;
    // The slope of each step, its end, its blocks, and its curve.
    let mut steps: Vec<(f64, (u64, f64), u64, usize)> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        let mut corners: Vec<(u64, f64)> = Vec::new();
        for &point in curve {
            while let [.., before, last] = corners[..]
                && slope(before, last) <= slope(last, point)
            {
                corners.pop();
            }
            corners.push(point);
        }
        let pairs = corners.windows(2);
        steps.extend(pairs.map(|pair| (slope(pair[0], pair[1]), pair[1], pair[1].0 - pair[0].0, number)));
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let whole: Vec<(u64, f64)> = curves.iter().map(|curve| curve[0]).collect();
    let mut relaxed = Relaxed { worth: whole.iter().map(|point| point.1).sum(), price: 0.0, whole };
    let (mut left, mut left_whole, mut stopped) = (blocks, blocks, vec![false; curves.len()]);
    for (slope, end, size, number) in steps {
        let taken = size.min(left);
        relaxed.worth += slope * taken as f64;
        if taken < size && relaxed.price == 0.0 {
            relaxed.price = slope;
        }
        left -= taken;
        stopped[number] |= size > left_whole;
        if !stopped[number] {
            relaxed.whole[number] = end;
            left_whole -= size;
        }
    }
    relaxed
}

impl Hull {
    /// Returns an upper bound of the worth of any division of the problem's units.
    pub fn bound(&self, problem: &Problem) -> f64 {
        let mut left = problem.units;
        let mut bound: f64 = problem.worth.iter().map(|worth| worth[0]).sum();
        for step in steps(problem) {
            let units = step.units.min(left);
            bound += step.slope() * units as f64;
            left -= units;
        }
        bound
    }
}

impl Solver for Hull {
    fn name(&self) -> &'static str {
        "hull"
    }

    fn solve(&self, problem: &Problem) -> Solution {
        let mut units = vec![0; problem.worth.len()];
        let mut left = problem.units;
        let mut stopped = vec![false; problem.worth.len()];
        for step in steps(problem) {
            if stopped[step.disk] {
                continue;
            }
            if step.units > left {
                stopped[step.disk] = true;
                continue;
            }
            units[step.disk] = step.to;
            left -= step.units;
        }
        fill(problem, &mut units, left);
        let worth = problem.worth_of(&units);
        Solution { units, worth }
    }
}

/// Gives units that are left to the disks with the largest gain per unit.
fn fill(problem: &Problem, units: &mut [usize], mut left: usize) {
    while left > 0 {
        let mut best: Option<Step> = None;
        for (disk, worth) in problem.worth.iter().enumerate() {
            let from = units[disk];
            for to in from + 1..worth.len().min(from + left + 1) {
                let step = Step { disk, to, units: to - from, gain: worth[to] - worth[from] };
                if step.gain > 0.0 && best.is_none_or(|best| step.slope() > best.slope()) {
                    best = Some(step);
                }
            }
        }
        let Some(best) = best else { return };
        units[best.disk] = best.to;
        left -= best.units;
    }
}
