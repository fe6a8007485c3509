//! Rules of balancing on equal terms: a cluster's scenario with every rule and with several seeds.

mod goals;
mod scenario;
mod show;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::cluster::{System, model, traced, variance};
use crate::error::SimError;
use crate::mix::Mix;
use crate::settings::Settings;
use crate::sweep::{Progress, Stage, threads};

pub use goals::{Goal, goals};
pub use scenario::{BUILT_IN, Scenario, built_in};
pub use show::{goals_table, moves_table, page, table, vms_table};

/// The choices to compare.
#[derive(Clone, PartialEq, Debug)]
pub struct ClusterChoices {
    /// Rules; empty for all that the scenario can compare.
    pub systems: Vec<System>,
    /// Seeds of all random numbers. The loads of seed 1 are the scenario's own.
    pub seeds: Vec<u64>,
    /// Clusters simulated at a time; 0 for as many as there are processors.
    pub threads: usize,
}

impl Default for ClusterChoices {
    fn default() -> Self {
        ClusterChoices { systems: Vec::new(), seeds: vec![1], threads: 0 }
    }
}

/// The details of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Details {
    /// Request by request.
    Traced(traced::Outcome),
    /// By models of VMs.
    Model(model::Outcome),
}

/// A simulated cluster.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Run {
    /// The rule.
    pub system: System,
    /// The seed.
    pub seed: u64,
    /// Mean hit ratio: over the judged VMs request by request, and over accesses by models.
    pub hit_ratio: f64,
    /// Accesses that other hosts' flash served.
    pub lent_hit_ratio: f64,
    /// Mean latency, in the same way.
    pub mean_us: f64,
    /// Mean of the VMs' 90th percentiles request by request, of the windows' by models.
    pub p90_us: f64,
    /// Mean variance of load over hosts.
    pub variance: f64,
    /// How often a host had more demand than the threshold at the end of a window.
    pub overloaded: u64,
    /// Moves of VMs.
    pub moves: u64,
    /// Bytes that they copied.
    pub moved_bytes: u64,
    /// Everything else.
    pub details: Details,
}

/// A scenario with all rules.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClusterComparison {
    /// The scenario.
    pub scenario: Scenario,
    /// The runs: rule by rule, for each seed.
    pub runs: Vec<Run>,
}

impl ClusterComparison {
    /// The rules, in the order of the runs.
    pub fn systems(&self) -> Vec<System> {
        distinct(&self.runs.iter().map(|run| run.system).collect::<Vec<System>>())
    }

    /// The runs of a rule.
    pub fn of(&self, system: System) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.system == system)
    }
}

impl Run {
    fn of_trace(mix: &Mix, threshold: f64, outcome: traced::Outcome) -> Run {
        let judged = mix.cluster.as_ref().map(|table| table.judged.as_slice()).unwrap_or_default();
        let is_judged = |vm: &&traced::VmOutcome| judged.is_empty() || judged.contains(&vm.name);
        let vms: Vec<&traced::VmOutcome> = outcome.vms.iter().filter(is_judged).collect();
        let mean = |figure: &dyn Fn(&traced::VmOutcome) -> f64| {
            vms.iter().map(|vm| figure(vm)).sum::<f64>() / vms.len().max(1) as f64
        };
        let warm = mix.cluster.as_ref().map_or(0, |table| table.warm_up_windows as usize);
        let counted = outcome.windows.get(warm..).unwrap_or_default();
        let variances = counted.iter().map(|window| variance(&window.loads)).sum::<f64>();
        let loads = counted.iter().flat_map(|window| &window.loads);
        Run {
            system: outcome.system,
            seed: outcome.seed,
            hit_ratio: mean(&|vm| vm.hits.ratio().unwrap_or(0.0)),
            lent_hit_ratio: 0.0,
            mean_us: mean(&|vm| vm.latency.mean_us),
            p90_us: mean(&|vm| vm.latency.p90_us),
            variance: variances / counted.len().max(1) as f64,
            overloaded: loads.filter(|load| **load > threshold).count() as u64,
            moves: outcome.moves.len() as u64,
            moved_bytes: outcome.moves.iter().map(|moved| moved.sent_bytes).sum(),
            details: Details::Traced(outcome),
        }
    }

    fn of_model(outcome: model::Outcome) -> Run {
        Run {
            system: outcome.system,
            seed: outcome.seed,
            hit_ratio: outcome.hit_ratio,
            lent_hit_ratio: outcome.lent_hit_ratio,
            mean_us: outcome.mean_us,
            p90_us: outcome.p90_us,
            variance: outcome.variance,
            overloaded: outcome.overloaded_windows,
            moves: outcome.moves,
            moved_bytes: outcome.moved_bytes,
            details: Details::Model(outcome),
        }
    }
}

/// Simulates a scenario with all rules.
///
/// # Errors
/// The scenario or a choice is invalid, a trace cannot be read, or a move goes wrong.
pub fn compare_cluster(
    scenario: &Scenario,
    folder: &Path,
    choices: &ClusterChoices,
    progress: &Progress<'_>,
) -> Result<ClusterComparison, SimError> {
    if choices.seeds.is_empty() {
        return Err(SimError::Settings("nothing to compare: give at least one seed".into()));
    }
    scenario.check()?;
    let systems =
        if choices.systems.is_empty() { scenario.systems().to_vec() } else { distinct(&choices.systems) };
    if matches!(scenario, Scenario::Traced(_)) && systems.contains(&System::Lending) {
        return Err(SimError::Settings(format!(
            "'{}' is modelled only, and the scenario '{}' has requests: leave it out",
            System::Lending,
            scenario.title()
        )));
    }
    let seeds = distinct(&choices.seeds);
    let mut runs = Vec::new();
    for (done, seed) in seeds.iter().enumerate() {
        let part = |part: f64| progress(Stage::Play, (done as f64 + part) / seeds.len() as f64);
        runs.extend(match scenario {
            Scenario::Traced(mix) => {
                let mix = mix.with_seed(*seed);
                traced::with_tape(&mix, folder, |tape| {
                    let one = |system: System| {
                        Ok(Run::of_trace(
                            &mix,
                            scenario.threshold(),
                            traced::simulate(&mix, tape, system, *seed)?,
                        ))
                    };
                    side_by_side(&systems, choices.threads, &part, &one)
                })?
            }
            Scenario::Model(scenario) => {
                let one = |system: System| Ok(Run::of_model(model::simulate(scenario, system, *seed)?));
                side_by_side(&systems, choices.threads, &part, &one)?
            }
        });
    }
    runs.sort_by_key(|run| systems.iter().position(|system| *system == run.system));
    Ok(ClusterComparison { scenario: scenario.clone(), runs })
}

/// Returns each value once, in the order in which they come first.
fn distinct<T: PartialEq + Copy>(values: &[T]) -> Vec<T> {
    values
        .iter()
        .enumerate()
        .filter(|(at, value)| !values[..*at].contains(value))
        .map(|(_, value)| *value)
        .collect()
}

/// Runs every system, several at a time.
fn side_by_side(
    systems: &[System],
    most: usize,
    progress: &(dyn Fn(f64) + Sync),
    one: &(dyn Fn(System) -> Result<Run, SimError> + Sync),
) -> Result<Vec<Run>, SimError> {
    let results: Vec<Mutex<Option<Result<Run, SimError>>>> =
        systems.iter().map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(system) = systems.get(at) else { return };
            *results[at].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(one(*system));
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done as f64 / systems.len() as f64);
        }
    };
    std::thread::scope(|scope| {
        let workers = threads(&Settings { threads: most, ..Settings::default() });
        (0..workers.min(systems.len())).for_each(|_| {
            scope.spawn(work);
        });
    });
    let finished = results.into_iter().map(|result| {
        let result = result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        result.expect("every system was simulated")
    });
    finished.collect()
}
