//! Large clusters: thousands of hosts, each with VMs that have a curve of hit ratios and a rate of accesses that change
//! over time. There are no requests: in each window a host divides its cache by the curves, and a VM's latency follows
//! from its share.
//!
//! Simplifications: a host always has the best division for the current window; a smaller share takes effect
//! immediately, a larger one fills with what the VM misses; a moved VM brings its cache with it, stands still for as
//! long as the balancer expects, and slows both hosts down while its cache is copied; a VM of a failed host starts with
//! nothing cached. Latencies do not depend on load.

mod division;
mod hosts;
mod lending;
mod measure;
mod scenario;
mod vm;
mod world;

use std::time::Duration;

use serde::Serialize;

use super::system::System;
use crate::error::SimError;
use world::World;

pub use measure::Sample;
pub use scenario::{Event, Scenario, Vms};

/// The systems that a model can compare. With `Equal`, each host divides its cache equally; with the others, for the
/// lowest latency. VMs move only with the last two.
pub const SYSTEMS: [System; 4] = [System::Equal, System::Local, System::LeastVariance, System::LeastLatency];

/// The systems that a model can compare if its hosts lend flash.
pub const LENDING_SYSTEMS: [System; 5] =
    [System::Equal, System::Local, System::LeastVariance, System::LeastLatency, System::Lending];

/// The result of simulating a scenario with one system.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The system.
    pub system: System,
    /// The seed.
    pub seed: u64,
    /// Mean latency of all accesses.
    pub mean_us: f64,
    /// Mean over windows of the latency that 90 % of accesses do not exceed, by the mean of their VM.
    pub p90_us: f64,
    /// Accesses that hit.
    pub hit_ratio: f64,
    /// Accesses that other hosts' flash served.
    pub lent_hit_ratio: f64,
    /// Mean variance of load over the windows.
    pub variance: f64,
    /// Windows in which a serving host had more demand than the threshold, over all hosts.
    pub overloaded_windows: u64,
    /// Moves of VMs.
    pub moves: u64,
    /// Bytes that they copied.
    pub moved_bytes: u64,
    /// Moves of VMs that had been moved less than an hour before, other than off draining hosts.
    pub moved_twice: u64,
    /// VMs that were on no host, or on several, after some window.
    pub lost: usize,
    /// The windows.
    pub windows: Vec<Sample>,
    /// Load of each host in each window, windows first.
    #[serde(skip)]
    pub loads: Vec<Vec<f32>>,
    /// The longest time that the balancer took for a round: not part of the results.
    #[serde(skip)]
    pub longest_round: Duration,
}

/// Simulates a scenario with one system.
///
/// # Errors
/// The scenario is invalid, or the system is none of [`LENDING_SYSTEMS`], or hosts do not lend.
pub fn simulate(scenario: &Scenario, system: System, seed: u64) -> Result<Outcome, SimError> {
    scenario.check()?;
    if system == System::Lending && scenario.lend == 0.0 {
        return Err(SimError::Settings(format!(
            "'{system}' needs hosts that lend, and those of the scenario '{}' do not: set 'lend' in it to the part of each cache that \
             may be lent",
            scenario.title
        )));
    }
    if !LENDING_SYSTEMS.contains(&system) {
        let names: Vec<&str> = SYSTEMS.iter().map(|system| system.name()).collect();
        return Err(SimError::Settings(format!(
            "'{system}' needs requests, and the scenario '{}' has none: give one of {}",
            scenario.title,
            names.join(", ")
        )));
    }
    let mut world = World::new(scenario, system, seed)?;
    let mut lost = 0;
    for _ in 0..scenario.windows() {
        world.play()?;
        lost = lost.max(world.lost());
    }
    let windows = std::mem::take(&mut world.samples);
    let count = windows.len().max(1) as f64;
    let mean = |figure: &dyn Fn(&Sample) -> f64| windows.iter().map(figure).sum::<f64>() / count;
    let accesses = windows.iter().map(|sample| sample.accesses).sum::<f64>().max(f64::MIN_POSITIVE);
    let of_accesses = |figure: fn(&Sample) -> f64| {
        windows.iter().map(|sample| figure(sample) * sample.accesses).sum::<f64>() / accesses
    };
    let sum = |figure: &dyn Fn(&Sample) -> u64| windows.iter().map(figure).sum::<u64>();
    Ok(Outcome {
        system,
        seed,
        mean_us: of_accesses(|sample| sample.mean_us),
        p90_us: mean(&|sample| sample.p90_us),
        hit_ratio: of_accesses(|sample| sample.hit_ratio),
        lent_hit_ratio: of_accesses(|sample| sample.lent_hit_ratio),
        variance: mean(&|sample| sample.variance),
        overloaded_windows: sum(&|sample| sample.overloaded as u64),
        moves: sum(&|sample| sample.moves),
        moved_bytes: sum(&|sample| sample.moved_bytes),
        moved_twice: world.moved_twice,
        lost,
        loads: std::mem::take(&mut world.loads),
        longest_round: world.longest_round,
        windows,
    })
}
