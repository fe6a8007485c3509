//! Methods of migration on equal terms: a mix moves with every method, over links of several speeds, with pools of
//! several sizes, and with several seeds.

mod goals;
mod show;
mod summary;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use haversack_migrate::Method;
use haversack_trace::Source;
use serde::Serialize;

use crate::error::SimError;
use crate::latency::LatencyModel;
use crate::migration::link::Speed;
use crate::migration::{MigrationTable, Outcome, Setup, simulate};
use crate::mix::Mix;
use crate::settings::{Settings, Sizes};
use crate::sweep::{Progress, Stage, threads};
use crate::tape::{Survey, Tape};

pub use goals::{Goal, goals};
pub use show::{
    facts_table, first_pictures, goals_table, neighbours_table, outcome_page, outcome_table, page, table,
};
pub use summary::{CaseSummary, summaries};

/// The choices to compare.
#[derive(Clone, PartialEq, Debug)]
pub struct MigrationChoices {
    /// Methods.
    pub methods: Vec<Method>,
    /// Speeds of the link; empty for the mix's own speed.
    pub links: Vec<Speed>,
    /// The model of time, instead of the mix's.
    pub latency: Option<LatencyModel>,
    /// Seeds of all random numbers. The loads of seed 1 are the mix's own.
    pub seeds: Vec<u64>,
    /// Migrations simulated at a time; 0 for as many as there are processors.
    pub threads: usize,
}

impl Default for MigrationChoices {
    fn default() -> Self {
        MigrationChoices {
            methods: Method::ALL.to_vec(),
            links: Vec::new(),
            latency: None,
            seeds: vec![1],
            threads: 0,
        }
    }
}

/// A simulated migration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Move {
    /// Size of each pool as a fraction of the footprint of all loads.
    pub fraction: f64,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A mix with all methods.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MigrationComparison {
    /// The mix.
    pub mix: Mix,
    /// Its loads together, with the first seed.
    pub trace: Survey,
    /// The migrations: method by method, for each seed, speed and size.
    pub moves: Vec<Move>,
    /// The model of time.
    #[serde(skip)]
    pub latency: LatencyModel,
}

impl Move {
    /// Whether another one differs only in the method and the seed.
    fn is_alike(&self, other: &Move) -> bool {
        self.fraction == other.fraction && self.outcome.link == other.outcome.link
    }
}

/// Groups the migrations that are equal in some respect, in the order of the first one of each group.
fn grouped<'a>(
    moves: impl Iterator<Item = &'a Move>,
    is_same: impl Fn(&Move, &Move) -> bool,
) -> Vec<Vec<&'a Move>> {
    let mut groups: Vec<Vec<&Move>> = Vec::new();
    for one in moves {
        match groups.iter_mut().find(|group| is_same(group[0], one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// The migration of a mix, which must have one.
///
/// # Errors
/// It has none.
pub fn table_of(mix: &Mix) -> Result<&MigrationTable, SimError> {
    mix.migration.as_ref().ok_or_else(|| {
        SimError::Settings(format!(
            "the mix '{}' does not say what moves: give it a table [migration]",
            mix.title
        ))
    })
}

/// One migration to simulate.
struct Case {
    method: Method,
    speed: Speed,
    fraction: f64,
}

/// Simulates a mix with all methods.
///
/// # Errors
/// The mix or a choice is invalid, a trace cannot be read, or a migration goes wrong.
pub fn compare_migration(
    mix: &Mix,
    folder: &Path,
    choices: &MigrationChoices,
    progress: &Progress<'_>,
) -> Result<MigrationComparison, SimError> {
    let table = table_of(mix)?;
    if choices.seeds.is_empty() || choices.methods.is_empty() {
        return Err(SimError::Settings("nothing to compare: give at least one seed and one method".into()));
    }
    let latency = choices.latency.clone().unwrap_or_else(|| table.latency.model());
    let mut comparison = MigrationComparison {
        mix: mix.clone(),
        trace: Survey::default(),
        moves: Vec::new(),
        latency: latency.clone(),
    };
    for (done, seed) in choices.seeds.iter().enumerate() {
        let part = |stage, part: f64| progress(stage, (done as f64 + part) / choices.seeds.len() as f64);
        let mix = mix.with_seed(*seed);
        let settings = mix.settings_of_migration()?;
        let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(folder) };
        let seen = |seen| part(Stage::Survey, seen);
        let survey = Tape::of(&opener, &settings, &seen)?.survey;
        let round =
            Round { mix: &mix, table, folder, settings: &settings, latency: &latency, survey: &survey };
        comparison.moves.extend(round.simulate(choices, *seed, &part)?);
        if done == 0 {
            comparison.trace = survey;
        }
    }
    Ok(comparison)
}

/// A mix with one seed.
struct Round<'a> {
    mix: &'a Mix,
    table: &'a MigrationTable,
    folder: &'a Path,
    settings: &'a Settings,
    latency: &'a LatencyModel,
    survey: &'a Survey,
}

impl Round<'_> {
    fn simulate(
        &self,
        choices: &MigrationChoices,
        seed: u64,
        progress: &(dyn Fn(Stage, f64) + Sync),
    ) -> Result<Vec<Move>, SimError> {
        let links = if choices.links.is_empty() { vec![self.table.link] } else { choices.links.clone() };
        let mut cases = Vec::new();
        for &fraction in &self.mix.fractions {
            for &speed in &links {
                cases.extend(choices.methods.iter().map(|method| Case { method: *method, speed, fraction }));
            }
        }
        let results: Vec<Mutex<Option<Result<Move, SimError>>>> =
            cases.iter().map(|_| Mutex::new(None)).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(at) else { return };
                *results[at].lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    Some(self.one(case, seed));
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                progress(Stage::Play, done as f64 / cases.len() as f64);
            }
        };
        std::thread::scope(|scope| {
            let workers = threads(&Settings { threads: choices.threads, ..self.settings.clone() });
            (0..workers).for_each(|_| {
                scope.spawn(work);
            });
        });
        let finished = results.into_iter().map(|result| {
            let result = result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            result.expect("every case was simulated")
        });
        finished.collect()
    }

    fn one(&self, case: &Case, seed: u64) -> Result<Move, SimError> {
        let settings = Settings { sizes: Sizes::Fractions(vec![case.fraction]), ..self.settings.clone() };
        let setup = Setup::of_mix(self.mix, self.table, self.folder, self.survey, &settings, self.latency)?;
        let table = MigrationTable { link: case.speed, ..self.table.clone() };
        let plan = table.plan(case.method, self.mix.speed_up);
        let outcome = simulate(&setup, &plan, seed)?;
        Ok(Move { fraction: case.fraction, outcome })
    }
}
