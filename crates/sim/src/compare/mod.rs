//! Systems on equal terms: every allocator with every admission filter, every choice of write modes and every
//! length of windows, on mixes of loads, in pools of several sizes and with several seeds, together with
//! bounds that no system can exceed.
//!
//! [`compare`] simulates one mix; [`verdict`](verdict::verdict) judges one system, the subject, against all others on
//! several of them.

mod bounds;
pub mod csv;
mod kept;
mod picture;
mod ranking;
mod row;
mod show;
mod statistics;
mod summary;
mod system;
pub mod verdict;
mod winners;

use std::path::Path;

use haversack_control::endurance::Endurance;
use haversack_trace::Source;
use serde::Serialize;

use crate::error::SimError;
use crate::latency::LatencyModel;
use crate::mix::Mix;
use crate::settings::{Replacement, Settings};
use crate::sweep::{self, Progress, Stage};
use crate::tape::{Survey, Tape};

pub use bounds::{Bounds, StaticSplit};
pub use kept::Kept;
use kept::Loads;
pub use ranking::{RankedBy, Ranking, Swap, rankings};
pub use row::{Combination, DiskRow};
pub use show::{bounds_table, page, ranking_table, table, verdict_table};
pub use statistics::Estimate;
pub use summary::{Summary, summaries};
pub use system::{OWN, System};
pub use winners::{Best, best};

/// Number of pools simulated side by side per thread. Results are kept when all of them are done.
const POOLS_A_THREAD: usize = 4;

/// The choices to compare.
#[derive(Clone, PartialEq, Debug)]
pub struct Choices {
    /// The system that is judged. It runs with its own windows.
    pub subject: Option<System>,
    /// Allocators of its rivals by their systems' names.
    pub allocators: Vec<String>,
    /// Their admission filters by name, or `own`.
    pub admissions: Vec<String>,
    /// `wb`, `wi` and so on for all disks, `auto` for a choice per disk by its writes, or `own`.
    pub write_modes: Vec<String>,
    /// The replacement.
    pub replacement: Replacement,
    /// Lengths of their windows in seconds; empty for the mix's own.
    pub windows_s: Vec<f64>,
    /// A budget of flash writes for all systems. A burst may use a fiftieth of it.
    pub write_budget: Option<Endurance>,
    /// Whether the subject is simulated with its rivals' flash writes as budgets as well.
    pub equal_writes: bool,
    /// The model of time.
    pub latency: LatencyModel,
    /// Seeds of all random numbers: those of latencies and of generated loads. The loads of seed 1 are the mix's own.
    pub seeds: Vec<u64>,
    /// Caches simulated at a time; 0 for as many as there are processors.
    pub threads: usize,
}

impl Default for Choices {
    fn default() -> Self {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        Choices {
            subject: None,
            allocators: all(&["none", "equal", "wss", "rwss", "utility", "trd", "urd", "max-min"]),
            admissions: all(&["always", "address(1)", "hec", "larc"]),
            write_modes: all(&["wb", "auto"]),
            replacement: Replacement::default(),
            windows_s: Vec::new(),
            write_budget: None,
            equal_writes: false,
            latency: LatencyModel::default(),
            seeds: vec![1],
            threads: 0,
        }
    }
}

/// A mix with all systems.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The mix.
    pub mix: Mix,
    /// Its loads together, with the first seed.
    pub trace: Survey,
    /// The systems, for each seed and size.
    pub combinations: Vec<Combination>,
    /// The bounds, for each seed and size.
    pub bounds: Vec<Bounds>,
}

/// Simulates a mix with all systems. Results in `kept` are not simulated again.
///
/// # Errors
/// The mix or a choice is invalid, or a trace cannot be read.
pub fn compare(
    mix: &Mix,
    folder: &Path,
    choices: &Choices,
    kept: &mut Kept,
    progress: &Progress<'_>,
) -> Result<Comparison, SimError> {
    mix.check()?;
    let Some(first) = choices.seeds.first() else {
        return Err(SimError::Settings("nothing to compare: give at least one seed".into()));
    };
    let mut comparison = Comparison {
        mix: mix.clone(),
        trace: Survey::default(),
        combinations: Vec::new(),
        bounds: Vec::new(),
    };
    let mut all_seeds = |comparison: &mut Comparison, budgets: Option<&[(f64, f64)]>| {
        for (done, seed) in choices.seeds.iter().enumerate() {
            let part = |stage, part: f64| progress(stage, (done as f64 + part) / choices.seeds.len() as f64);
            let mix = &mix.with_seed(*seed);
            let round = Round { mix, choices, seed: *seed, is_first: seed == first, budgets };
            round.simulate(folder, kept, comparison, &part)?;
        }
        Ok::<(), SimError>(())
    };
    all_seeds(&mut comparison, None)?;
    if let Some(subject) = choices.subject.as_ref().filter(|_| choices.equal_writes) {
        let budgets = verdict::budgets(&comparison, subject);
        if !budgets.is_empty() {
            all_seeds(&mut comparison, Some(&budgets))?;
        }
    }
    Ok(comparison)
}

/// A mix with one seed.
struct Round<'a> {
    mix: &'a Mix,
    choices: &'a Choices,
    seed: u64,
    is_first: bool,
    /// Simulates the subject with these budgets, instead of all systems without a budget.
    budgets: Option<&'a [(f64, f64)]>,
}

impl Round<'_> {
    fn simulate(
        &self,
        folder: &Path,
        kept: &mut Kept,
        comparison: &mut Comparison,
        progress: &Progress<'_>,
    ) -> Result<(), SimError> {
        let mut all = match self.budgets {
            None => system::variants(self.mix, self.choices, self.seed)?,
            Some(budgets) => system::budgeted(self.mix, self.choices, self.seed, budgets)?,
        };
        let opener = || -> Result<Box<dyn Source>, SimError> { self.mix.open(folder) };
        let tape = Tape::of(&opener, &all[0].settings, &|part| {
            progress(Stage::Survey, part);
        })?;
        all.iter_mut().for_each(|variant| variant.fit(&tape.survey));
        if self.budgets.is_none() {
            self.add_bounds(&tape, &all[0].settings, kept, comparison, progress)?;
        }
        self.add_missing(&tape, &all, kept, progress)?;
        let loads = self.loads(&tape);
        let known = |variant| kept.combination(loads, variant).expect("it was kept");
        comparison.combinations.extend(all.iter().map(known));
        if self.is_first {
            comparison.trace = tape.survey;
        }
        Ok(())
    }

    fn loads(&self, tape: &Tape<'_>) -> Loads<'_> {
        Loads { mix: self.mix, digest: tape.survey.digest }
    }

    /// The bounds of all sizes, which are computed together if any is missing.
    fn add_bounds(
        &self,
        tape: &Tape<'_>,
        settings: &Settings,
        kept: &mut Kept,
        comparison: &mut Comparison,
        progress: &Progress<'_>,
    ) -> Result<(), SimError> {
        let sizes = bounds::sizes(settings, &self.mix.fractions, tape.survey.footprint_blocks)?;
        let loads = self.loads(tape);
        let known: Option<Vec<Bounds>> =
            sizes.iter().map(|size| kept.bounds(loads, size, self.seed)).collect();
        let bounds = match known {
            Some(known) => known,
            None => {
                let progress = |_, part| progress(Stage::Finish, part);
                let found = bounds::bounds(tape, settings, &sizes, self.seed, &progress)?;
                found.iter().try_for_each(|bounds| kept.keep_bounds(loads, bounds))?;
                found
            }
        };
        comparison.bounds.extend(bounds);
        Ok(())
    }

    /// Simulates the pools whose results are not kept yet, some at a time.
    fn add_missing(
        &self,
        tape: &Tape<'_>,
        all: &[system::Variant],
        kept: &mut Kept,
        progress: &Progress<'_>,
    ) -> Result<(), SimError> {
        let loads = self.loads(tape);
        let missing: Vec<_> =
            all.iter().filter(|variant| kept.combination(loads, variant).is_none()).collect();
        let threads = sweep::threads(&all[0].settings);
        let mut done = 0;
        for some in missing.chunks(POOLS_A_THREAD * threads) {
            let part = |stage: Stage, part: f64| {
                let part = if stage == Stage::Play { part } else { 1.0 };
                progress(Stage::Play, (done as f64 + part * some.len() as f64) / missing.len() as f64);
            };
            let settings: Vec<&Settings> = some.iter().map(|variant| &variant.settings).collect();
            for (variant, row) in some.iter().zip(sweep::pools(tape, &settings, &part)?) {
                let mut row = Combination::of(variant, &row);
                if !self.is_first || variant.fraction != self.mix.fractions[0] {
                    row.targets.clear();
                }
                kept.keep(loads, variant, &row)?;
            }
            done += some.len();
        }
        Ok(())
    }
}
