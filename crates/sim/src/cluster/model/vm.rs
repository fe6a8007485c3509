//! A VM of a model: how much it demands over time, and how often what it wants is cached.

use haversack_model::random::Random;
use haversack_policy::Curve;

use super::scenario::Vms;

/// Points of a curve: parts of the working set.
const PARTS: [f64; 7] = [1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 3.0 / 8.0, 1.0 / 2.0, 3.0 / 4.0, 1.0];
/// Minimum and maximum skew. With 1, all blocks of the working set are used equally often, so the last block is worth
/// as much as the first.
const SKEWS: (f64, f64) = (1.0, 3.5);
/// The least and the most that a phase multiplies a working set by.
const PHASES: (f64, f64) = (0.4, 1.8);

/// A VM. Its hit ratio with c blocks is highest * (1 - (1 - c / working set)^skew): concave, as of an LRU cache whose
/// popular blocks are used most.
#[derive(Clone, Debug)]
pub struct ModelVm {
    /// The host that it runs on.
    pub host: usize,
    /// Blocks that it has in the cache there.
    pub held_blocks: f64,
    /// Its working set in this window.
    pub working_set: f64,
    /// Its accesses per second in this window.
    pub rate: f64,
    /// When it was moved last, in windows; for the checks of a run.
    pub moved_in: Option<u64>,
    base_set: f64,
    base_rate: f64,
    highest: f64,
    skew: f64,
    /// Where its day begins, as a part of a day.
    offset: f64,
    phase: f64,
    factor: f64,
}

impl ModelVm {
    /// A VM of a host whose VMs have their peak at `peak` of a day. `mean_set` is the mean working set.
    pub fn new(host: usize, vms: &Vms, mean_set: f64, peak: f64, random: &mut Random) -> ModelVm {
        // The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
        let spread = |random: &mut Random, sigma: f64| (sigma * random.normal() - sigma * sigma / 2.0).exp();
        let base_set = (mean_set * spread(random, vms.sigma)).max(64.0);
        let base_rate = base_set * vms.accesses_per_block_s * spread(random, vms.sigma);
        ModelVm {
            host,
            held_blocks: 0.0,
            working_set: base_set,
            rate: base_rate,
            moved_in: None,
            base_set,
            base_rate,
            highest: 0.6 + 0.38 * random.unit(),
            skew: SKEWS.0 + (SKEWS.1 - SKEWS.0) * random.unit(),
            offset: peak + vms.peaks * (random.unit() - 0.5),
            phase: 1.0,
            factor: 1.0,
        }
    }

    /// Advances to a window that begins at `day`, a part of a day. `phase_ends` starts a new phase of the working set.
    pub fn advance(&mut self, vms: &Vms, day: f64, phase_ends: bool, random: &mut Random) {
        if phase_ends {
            self.phase = PHASES.0 + (PHASES.1 - PHASES.0) * random.unit();
        }
        let wave = 1.0 + vms.amplitude * (std::f64::consts::TAU * (day + self.offset)).sin();
        self.working_set = (self.base_set * self.phase * self.factor * wave).max(64.0);
        self.rate = self.base_rate * self.factor * wave;
        self.held_blocks = self.held_blocks.min(self.working_set);
    }

    /// Multiplies what it demands from now on.
    pub fn step(&mut self, factor: f64) {
        self.factor *= factor;
    }

    /// Its hit ratio with this many blocks.
    pub fn hit_ratio(&self, blocks: f64) -> f64 {
        let part = (blocks / self.working_set).clamp(0.0, 1.0);
        self.highest * (1.0 - (1.0 - part).powf(self.skew))
    }

    /// Its curve in steps of parts of the working set: blocks and hit ratio.
    pub fn points(&self) -> [(f64, f64); PARTS.len()] {
        PARTS.map(|part| (part * self.working_set, self.highest * (1.0 - (1.0 - part).powf(self.skew))))
    }

    /// The same, for the balancer.
    pub fn curve(&self) -> Curve {
        Curve::estimated(self.points().map(|(blocks, hits)| (blocks as u64, hits)))
    }

    /// Fills the VM's share with the blocks that it misses during this time. Returns its mean hit ratio in that time.
    pub fn run(&mut self, share_blocks: f64, seconds: f64) -> f64 {
        self.held_blocks = self.held_blocks.min(share_blocks);
        let before = self.hit_ratio(self.held_blocks);
        let missed = self.rate * seconds * (1.0 - before);
        self.held_blocks = (self.held_blocks + missed).min(share_blocks).min(self.working_set);
        (before + self.hit_ratio(self.held_blocks)) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_concave_and_reaches_its_highest_at_the_working_set() {
        let mut random = Random::new(3);
        for _ in 0..100 {
            let vm = ModelVm::new(0, &Vms::default(), 1e5, 0.0, &mut random);
            let points = vm.points();
            let mut before = ((0.0, 0.0), f64::INFINITY);
            for point in points {
                let slope = (point.1 - before.0.1) / (point.0 - before.0.0);
                assert!(slope <= before.1 + 1e-15, "{points:?}");
                before = (point, slope);
            }
            assert!((vm.hit_ratio(vm.working_set) - vm.highest).abs() < 1e-12);
            assert_eq!(vm.hit_ratio(10.0 * vm.working_set), vm.hit_ratio(vm.working_set));
        }
    }

    #[test]
    fn a_cold_cache_warms_up_by_misses() {
        let mut vm = ModelVm::new(0, &Vms::default(), 1e5, 0.0, &mut Random::new(1));
        vm.held_blocks = 0.0;
        let cold = vm.run(vm.working_set, 60.0);
        let mut warm = cold;
        for _ in 0..10_000 {
            warm = vm.run(vm.working_set, 60.0);
        }
        assert!(cold < warm, "{cold} {warm}");
        assert!((warm - vm.highest).abs() < 1e-6, "{warm} {}", vm.highest);
        assert!(vm.run(vm.working_set / 2.0, 60.0) < warm, "a smaller share takes blocks at once");
    }
}
