//! The latency that a host's cache is expected to save, when it is divided as well as it can be.
//!
//! A disk's worth at a size is what its hits save in a second. On the concave hull of this curve each block is worth
//! the slope of its step, so the best division takes the steepest steps of all disks first, the last one in part. The
//! result is what no division of the curves as they are can exceed, and it exceeds the best one by less than one step
//! of one disk. Reservations are granted before the steps.
//!
//! Sources: Stone, Turek and Wolf, "Optimal partitioning of cache memory", IEEE ToC 1992, for greedy; Beckmann and
//! Sanchez, "Talus", HPCA'15, for the hull. `haversack_policy::allocate::hull` divides a single pool in the same way.

use crate::snapshot::{Disk, Vm};

/// A step of a hull.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Step {
    /// The microseconds that each of its blocks saves in a second.
    pub slope: f64,
    /// Its blocks.
    pub blocks: u64,
}

/// A step and the VM that it belongs to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Owned {
    pub step: Step,
    pub vm: u32,
}

/// What a VM's disks are worth in a cache.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Worth {
    /// What their reservations save, in microseconds in a second.
    pub reserved: f64,
    /// The steps beyond the reservations, the steepest first.
    pub steps: Vec<Step>,
}

impl Worth {
    pub fn of(vm: &Vm) -> Worth {
        let mut worth = Worth::default();
        for disk in &vm.disks {
            let points = points(disk);
            worth.reserved += points[0].1;
            let hull = hull(points);
            worth.steps.extend(hull.windows(2).map(|pair| step(pair[0], pair[1])));
        }
        worth.steps.sort_by(|a, b| b.slope.total_cmp(&a.slope));
        worth
    }

    /// Returns what they save in a cache of their own with this many blocks beyond the reservations.
    pub fn alone(&self, blocks: u64) -> f64 {
        self.reserved + divided(blocks, &[], None, &self.steps).0
    }
}

/// Returns points of blocks beyond the reservation, the first 0, and microseconds saved in a second.
fn points(disk: &Disk) -> Vec<(u64, f64)> {
    let least = disk.reservation_blocks;
    let most = disk.limit_blocks.unwrap_or(u64::MAX);
    let saved = disk.accesses_per_s.max(0.0) * disk.saved_per_hit_us();
    let saved = if saved.is_finite() { saved } else { 0.0 };
    let beyond = disk.curve.points().iter().filter(|point| point.0 > least && point.0 <= most);
    let first = (0, saved * disk.curve.at(least.min(most)));
    std::iter::once(first).chain(beyond.map(|(blocks, ratio)| (blocks - least, saved * ratio))).collect()
}

fn step(from: (u64, f64), to: (u64, f64)) -> Step {
    let blocks = to.0 - from.0;
    Step { slope: (to.1 - from.1) / blocks as f64, blocks }
}

/// Returns the corners of the concave hull of rising points, without flat ends.
pub(crate) fn hull(points: impl IntoIterator<Item = (u64, f64)>) -> Vec<(u64, f64)> {
    let mut corners: Vec<(u64, f64)> = Vec::new();
    for point in points {
        if corners.last().is_some_and(|last| point.1 <= last.1) {
            continue;
        }
        while let [.., before, last] = corners[..]
            && step(before, last).slope <= step(last, point).slope
        {
            corners.pop();
        }
        corners.push(point);
    }
    corners
}

/// Divides this many blocks among a host's steps, without those of one VM if given, and with further ones. Returns what
/// they save, and the slope at which space runs out, 0 if it does not. Both lists have the steepest first.
pub(crate) fn divided(blocks: u64, own: &[Owned], without: Option<u32>, with: &[Step]) -> (f64, f64) {
    let (mut left, mut saved) = (blocks, 0.0);
    let mut own = own.iter().filter(|owned| Some(owned.vm) != without).map(|owned| owned.step).peekable();
    let mut with = with.iter().copied().peekable();
    loop {
        let next = match (own.peek(), with.peek()) {
            (Some(a), Some(b)) if a.slope >= b.slope => own.next(),
            (Some(_), None) => own.next(),
            (_, Some(_)) => with.next(),
            (None, None) => None,
        };
        let Some(step) = next else { return (saved, 0.0) };
        let taken = step.blocks.min(left);
        saved += step.slope * taken as f64;
        left -= taken;
        if taken < step.blocks {
            return (saved, step.slope);
        }
    }
}

#[cfg(test)]
mod tests {
    use haversack_policy::Curve;

    use super::*;

    fn disk(points: &[(u64, f64)]) -> Disk {
        Disk {
            curve: Curve::new(points.to_vec()).unwrap(),
            accesses_per_s: 10.0,
            origin_latency_us: 1100.0,
            cache_latency_us: 100.0,
            priority: 1.0,
            ..Disk::default()
        }
    }

    fn worth(disks: Vec<Disk>) -> Worth {
        Worth::of(&Vm { disks, ..Vm::default() })
    }

    #[test]
    fn steps_are_those_of_the_hull() {
        // (10, 0.1) is below the line from (0, 0) to (20, 0.8).
        let worth = worth(vec![disk(&[(10, 0.1), (20, 0.8), (40, 0.9), (60, 0.9)])]);
        let [first, second] = worth.steps[..] else { panic!("{worth:?}") };
        assert_eq!((first.blocks, second.blocks), (20, 20));
        assert!((first.slope - 400.0).abs() < 1e-9 && (second.slope - 50.0).abs() < 1e-9);
        assert!((worth.alone(20) - 8000.0).abs() < 1e-6);
        assert!((worth.alone(1000) - 9000.0).abs() < 1e-6);
    }

    #[test]
    fn reservations_come_first_and_limits_cut() {
        let reserved = Disk {
            reservation_blocks: 10,
            limit_blocks: Some(20),
            ..disk(&[(10, 0.5), (20, 0.6), (30, 1.0)])
        };
        let worth = worth(vec![reserved]);
        assert!((worth.reserved - 5000.0).abs() < 1e-6);
        assert_eq!(worth.steps.iter().map(|step| step.blocks).sum::<u64>(), 10);
        assert!((worth.alone(99) - 6000.0).abs() < 1e-6);
    }

    #[test]
    fn bad_figures_are_worth_nothing() {
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let disk = Disk { accesses_per_s: bad, ..disk(&[(10, 0.5)]) };
            assert_eq!(worth(vec![disk]).alone(10), 0.0);
        }
    }

    #[test]
    fn the_division_takes_the_steepest_steps() {
        let step = |slope, blocks| Step { slope, blocks };
        let own = [Owned { step: step(9.0, 10), vm: 0 }, Owned { step: step(2.0, 10), vm: 1 }];
        assert_eq!(divided(15, &own, None, &[]), (100.0, 2.0));
        assert_eq!(divided(15, &own, None, &[step(5.0, 4)]), (112.0, 2.0));
        assert_eq!(divided(15, &own, Some(0), &[]), (20.0, 0.0));
        assert_eq!(divided(10, &own, None, &[]), (90.0, 2.0));
        assert_eq!(divided(20, &own, None, &[]), (110.0, 0.0));
    }
}
