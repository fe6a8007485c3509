//! Divides a host's cache among its VMs: the steepest steps of all curves first.
//!
//! The curves are concave, so this is the division with the lowest latency up to the last step, which is taken in part.
//! With curves of any shape the daemon needs `haversack-policy`, whose solvers take longer.

use super::vm::ModelVm;

/// A step of a VM's curve.
#[derive(Clone, Copy)]
struct Step {
    vm: usize,
    blocks: f64,
    /// What a block gains.
    slope: f64,
}

/// Shares for VMs, in the order of `vms`. `shares` and the steps are reused between calls.
#[derive(Default)]
pub struct Division {
    steps: Vec<Step>,
    /// The last shares, in blocks.
    pub shares: Vec<f64>,
}

impl Division {
    /// Divides this many blocks for the lowest latency.
    pub fn least_latency(&mut self, blocks: f64, vms: &[ModelVm], here: &[u32]) {
        let of = |place: usize| &vms[here[place] as usize];
        self.shares.clear();
        self.shares.resize(here.len(), 0.0);
        let wanted: f64 = (0..here.len()).map(|place| of(place).working_set).sum();
        if wanted <= blocks {
            self.shares.iter_mut().enumerate().for_each(|(place, share)| *share = of(place).working_set);
            return;
        }
        self.steps.clear();
        for place in 0..here.len() {
            let mut before = (0.0, 0.0);
            for point in of(place).points() {
                let size = point.0 - before.0;
                let slope = of(place).rate * (point.1 - before.1) / size;
                self.steps.push(Step { vm: place, blocks: size, slope });
                before = point;
            }
        }
        self.steps.sort_by(|a, b| b.slope.total_cmp(&a.slope).then(a.vm.cmp(&b.vm)));
        let mut left = blocks;
        for step in &self.steps {
            let given = step.blocks.min(left);
            self.shares[step.vm] += given;
            left -= given;
        }
    }

    /// Divides this many blocks equally.
    pub fn equal(&mut self, blocks: f64, here: &[u32]) {
        self.shares.clear();
        self.shares.resize(here.len(), blocks / here.len().max(1) as f64);
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;
    use haversack_policy::allocate::hull::Hull;
    use haversack_policy::allocate::{Allocator, Claim, MinimumLatency};

    use super::super::scenario::Vms;
    use super::*;

    fn hits(vms: &[ModelVm], shares: impl Iterator<Item = f64>) -> f64 {
        vms.iter().zip(shares).map(|(vm, share)| vm.rate * vm.hit_ratio(share)).sum()
    }

    /// The allocator of the daemon, on the same curves.
    fn by_the_daemon(vms: &[ModelVm], blocks: u64) -> f64 {
        let claim = |(number, vm): (usize, &ModelVm)| Claim {
            disk: format!("vm-{number}"),
            vm: format!("vm-{number}"),
            tenant: "none".into(),
            reservation_blocks: 0,
            limit_blocks: blocks,
            demand_blocks: vm.working_set as u64,
            fixed_blocks: None,
            priority: 1.0,
            worth: std::iter::once((0, 0.0))
                .chain(vm.points().map(|(blocks, hits)| (blocks as u64, hits * vm.rate)))
                .collect(),
            counts: Default::default(),
        };
        let claims: Vec<Claim> = vms.iter().enumerate().map(claim).collect();
        let allocator = MinimumLatency { solver: Box::new(Hull), granularity: 2000 };
        let targets = allocator.allocate(blocks, &claims).unwrap().targets;
        hits(vms, targets.into_iter().map(|target| target.own_blocks().unwrap_or(0) as f64))
    }

    #[test]
    fn it_is_as_good_as_the_daemons() {
        let mut random = Random::new(5);
        for round in 0..20 {
            let vm = |_| ModelVm::new(0, &Vms::default(), 1e5, 0.0, &mut random);
            let vms: Vec<ModelVm> = (0..8).map(vm).collect();
            let here: Vec<u32> = (0..8).collect();
            let mut division = Division::default();
            division.least_latency(4e5, &vms, &here);
            let sum: f64 = division.shares.iter().sum();
            let wanted: f64 = vms.iter().map(|vm| vm.working_set).sum();
            assert!((sum - wanted.min(4e5)).abs() < 1.0, "{sum} of {wanted}");
            let (ours, daemons) = (hits(&vms, division.shares.iter().copied()), by_the_daemon(&vms, 400_000));
            assert!(ours > daemons * 0.995, "round {round}: {ours} and {daemons}");
            division.equal(4e5, &here);
            assert!(hits(&vms, division.shares.iter().copied()) <= ours);
        }
    }
}
