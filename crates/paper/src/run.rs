//! Makes figures from their recipes.

use std::path::Path;
use std::time::Instant;

use haversack_sim::mix::Mix;
use haversack_sim::{Progress, Stage};
use serde::Serialize;

use crate::catalogue;
use crate::claim::{Claim, Judged};
use crate::error::{Failure, PaperError};
use crate::outcome::Outcome;
use crate::recipe::{Figure, Paper, Recipe};
use crate::recipes::{clients, distances, intervals, moves, pools, rings, weights, windows};
use crate::seeds;
use crate::workload::Workload;

/// A figure that was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FigureResult {
    /// Its name: `PAPER/FIGURE`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Whether real traces were played.
    pub is_real: bool,
    /// What is assumed of the load, and what the figure leaves open.
    pub assumptions: Vec<String>,
    /// What was measured.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How many seeds the generated loads had. What was measured is of the first.
    pub seeds: u64,
    /// What the paper says, and how it came out with all seeds.
    pub claims: Vec<Judged>,
    /// Seconds that it took; not part of the result.
    #[serde(skip)]
    pub seconds: f64,
}

/// Looks for the traces of all figures, so that a missing one is found before the first simulation.
///
/// # Errors
/// A trace is missing, or a recipe is wrong.
pub fn check(papers: &[Paper], traces: Option<&Path>) -> Result<(), PaperError> {
    for paper in papers {
        for figure in &paper.figures {
            load(paper, figure, traces)?;
        }
    }
    Ok(())
}

/// Makes a figure, with real MSR traces from a folder if one is given. Generated loads are played with this many seeds,
/// at least one, of which the first gives the loads of the figure's mix; if nothing is generated, one suffices.
///
/// # Errors
/// The recipe is wrong, or the traces cannot be read.
pub fn run(
    paper: &Paper,
    figure: &Figure,
    traces: Option<&Path>,
    seeds: u64,
    progress: &Progress<'_>,
) -> Result<FigureResult, PaperError> {
    let begun = Instant::now();
    let name = format!("{}/{}", paper.name, figure.name);
    let load = load(paper, figure, traces)?;
    let generated = load.as_ref().is_some_and(|load| load.mix.with_seed(2) != load.mix);
    let seeds = if generated { seeds.max(1) } else { 1 };
    let of_seed = |seed: u64| {
        let load =
            load.as_ref().map(|load| Workload { mix: load.mix.with_seed(seed), is_real: load.is_real });
        let part = |stage, part: f64| progress(stage, ((seed - 1) as f64 + part) / seeds as f64);
        make(figure, load.as_ref(), &part).map_err(|failure| failure.of(&name))
    };
    let mut outcomes = (1..=seeds).map(of_seed).collect::<Result<Vec<_>, _>>()?;
    let is_real = load.as_ref().is_some_and(|load| load.is_real);
    let mut assumptions = load.as_ref().map(Workload::assumptions).unwrap_or_default();
    assumptions.extend(figure.limits.iter().cloned());
    let judge = |claim: &Claim| {
        let judged = outcomes.iter().map(|outcome| claim.judge(outcome, is_real)).collect::<Vec<_>>();
        seeds::join(claim, &judged)
    };
    let claims = figure.claims.iter().map(judge).collect();
    let outcome = outcomes.swap_remove(0);
    Ok(FigureResult {
        name,
        title: figure.title.clone(),
        is_real,
        assumptions,
        outcome,
        seeds,
        claims,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// A figure's load, if it has one.
fn load(paper: &Paper, figure: &Figure, traces: Option<&Path>) -> Result<Option<Workload>, PaperError> {
    let name = format!("{}/{}", paper.name, figure.name);
    let Some(mix) = &figure.mix else { return Ok(None) };
    let mix = catalogue::mix(paper, mix)?;
    mix.check().map_err(|error| Failure::from(error).of(&name))?;
    let workload = Workload::new(mix, &figure.real, traces);
    workload.map(Some).map_err(|missing| Failure::from(missing).of(&name))
}

fn make(figure: &Figure, load: Option<&Workload>, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let load = || load.ok_or_else(|| Failure::Recipe("it needs a mix".into()));
    let mix = || load().map(|load| -> &Mix { &load.mix });
    let outcome = match &figure.recipe {
        Recipe::Pools(recipe) => pools::run(recipe, mix()?, progress),
        Recipe::Distances(recipe) => distances::run(recipe, mix()?, progress),
        Recipe::Intervals(recipe) => intervals::run(recipe, mix()?, load()?.is_real, progress),
        Recipe::Windows(recipe) => windows::run(recipe, mix()?, load()?.is_real, progress),
        Recipe::Rings(recipe) => rings::run(recipe, mix()?, progress),
        Recipe::Moves(recipe) => moves::run(recipe, mix()?, progress),
        Recipe::Weights(recipe) => weights::run(recipe),
        Recipe::Clients(recipe) => clients::run(recipe, mix()?, progress),
    };
    progress(Stage::Finish, 1.0);
    outcome
}
