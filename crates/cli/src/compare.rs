//! `haversack compare`: runs every system on the same mixes of loads.

use std::path::{Path, PathBuf};

use clap::Args;
use haversack_api::Span;
use haversack_control::endurance::Endurance;
use haversack_sim::Replacement;
use haversack_sim::compare::verdict::{Verdict, verdict};
use haversack_sim::compare::{self, Choices, Comparison, Kept, System};
use haversack_sim::mix::Mix;

use crate::error::{CliError, Result};
use crate::sim::{Bar, LatencyArguments, refused, warn_of, write};

/// Sizes of a full sweep, as parts of the footprint.
const FULL_FRACTIONS: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4];
/// Seconds of the windows of a full sweep.
const FULL_WINDOWS_S: [f64; 6] = [10.0, 30.0, 60.0, 180.0, 600.0, 1800.0];
/// Seeds of a full sweep.
const FULL_SEEDS: u64 = 3;

/// What to compare.
#[derive(Args)]
pub struct Compare {
    /// Mixes of workloads: TOML files; see docs/policies.md and the folder `mixes`.
    #[arg(required = true, value_name = "MIX")]
    pub mixes: Vec<PathBuf>,
    /// The allocator that is judged against all others, with its own admission filter and write modes.
    #[arg(long, default_value = "auto", value_name = "ALLOCATOR")]
    pub subject: String,
    /// Admission filter of the subject, instead of its own.
    #[arg(long, default_value = compare::OWN, value_name = "ADMISSION")]
    pub subject_admission: String,
    /// Allocators. [default: all but static]
    #[arg(long, value_delimiter = ',')]
    pub allocators: Vec<String>,
    /// Admission filters: own (the system's), always, learned, hec, larc, address(N), data(N), hybrid(N). [default:
    /// always,address(1),hec,larc]
    #[arg(long, value_delimiter = ',')]
    pub admissions: Vec<String>,
    /// Write modes: wb, wt, wt-cache, wa, wi, pt, auto, or own (the system's). [default: wb,auto]
    #[arg(long, value_delimiter = ',')]
    pub write_modes: Vec<String>,
    /// Replacement algorithm: core (the production cache), or lru or arc as in the papers.
    #[arg(long, default_value = "core")]
    pub replacement: Replacement,
    /// Lengths of the control loop's windows. The subject keeps its own. [default: the mix's]
    #[arg(long, value_delimiter = ',')]
    pub windows: Vec<Span>,
    /// Pool sizes as fractions of the blocks that all workloads access, instead of those in the mix.
    #[arg(long, value_delimiter = ',')]
    pub fractions: Vec<f64>,
    /// Seeds of latencies and generated workloads: a number, or several. The workloads of seed 1 are those of the mix.
    /// [default: 1]
    #[arg(long, visible_alias = "seed", value_delimiter = ',')]
    pub seeds: Vec<u64>,
    /// Budget of flash writes for all systems: drive writes per day such as "1 DWPD", or bytes per day such as "500
    /// GB/day".
    #[arg(long)]
    pub write_budget: Option<Endurance>,
    /// Also run the subject with its rivals' flash writes as budgets, to compare latencies at equal flash writes.
    #[arg(long)]
    pub equal_writes: bool,
    /// Sweep sizes from 1 % to 40 % of the footprint, windows from 10 s to 30 min, and three seeds, where these are not
    /// given, and equal flash writes. Takes hours.
    #[arg(long)]
    pub full: bool,
    /// Keep each result in this file, and do not repeat simulations that it has: an interrupted sweep
    /// continues where it stopped. Results of another build of this program do not count.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Number of caches simulated in parallel; 0 for the number of processors.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Write all results to this file as CSV, a line for each simulated pool.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    #[command(flatten)]
    pub latency: LatencyArguments,
}

/// Reads a mix from its file.
pub fn read_mix(path: &Path) -> Result<Mix> {
    let usage = |error: &dyn std::fmt::Display| CliError::Usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(&error))?;
    let mix: Mix = toml::from_str(&text).map_err(|error| usage(&error))?;
    mix.check().map_err(|error| usage(&error))?;
    Ok(mix)
}

fn mix(path: &Path, arguments: &Compare) -> Result<Mix> {
    let mut mix = read_mix(path)?;
    if !arguments.fractions.is_empty() {
        mix.fractions.clone_from(&arguments.fractions);
    } else if arguments.full {
        mix.fractions = FULL_FRACTIONS.to_vec();
    }
    Ok(mix)
}

fn choices(arguments: &Compare) -> Choices {
    let default = Choices::default();
    let or = |given: &[String], default: Vec<String>| if given.is_empty() { default } else { given.to_vec() };
    let windows_s: Vec<f64> = arguments.windows.iter().map(|span| span.as_micros() as f64 / 1e6).collect();
    let full = arguments.full;
    let seeds = match &arguments.seeds[..] {
        [] if full => (1..=FULL_SEEDS).collect(),
        [] => default.seeds,
        given => given.to_vec(),
    };
    let subject =
        System { admission: arguments.subject_admission.clone(), ..System::own(&arguments.subject) };
    Choices {
        subject: Some(subject),
        allocators: or(&arguments.allocators, default.allocators),
        admissions: or(&arguments.admissions, default.admissions),
        write_modes: or(&arguments.write_modes, default.write_modes),
        replacement: arguments.replacement,
        windows_s: if windows_s.is_empty() && full { FULL_WINDOWS_S.to_vec() } else { windows_s },
        write_budget: arguments.write_budget,
        equal_writes: arguments.equal_writes || full,
        latency: arguments.latency.model().unwrap_or(default.latency),
        seeds,
        threads: arguments.threads,
    }
}

/// Results of earlier runs of this very program.
fn kept(path: Option<&Path>) -> Result<Kept> {
    let Some(path) = path else { return Ok(Kept::nothing()) };
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|error| CliError::Failed(format!("cannot read this program: {error}")))?;
    Kept::open(path, &program).map_err(refused)
}

fn text(comparisons: &[Comparison], verdict: Option<&Verdict>) -> Result<String> {
    let rankings: Vec<_> = comparisons.iter().map(compare::rankings).collect();
    let value = serde_json::json!({ "comparisons": comparisons, "rankings": rankings, "verdict": verdict });
    serde_json::to_string_pretty(&value).map_err(|error| CliError::Failed(error.to_string()))
}

fn print(comparisons: &[Comparison], verdict: Option<&Verdict>) {
    for comparison in comparisons {
        println!("{}\n", comparison.mix.title);
        println!("{}", compare::table(comparison).to_text());
        let rankings = compare::rankings(comparison);
        if !rankings.is_empty() {
            println!("{}", compare::ranking_table(&rankings).to_text());
        }
        println!("{}", compare::bounds_table(comparison).to_text());
    }
    if let Some(verdict) = verdict {
        println!("How good is {}?\n", verdict.subject.label());
        print!("{}", compare::verdict_table(verdict).to_text());
    }
}

/// Runs the command.
pub fn run(arguments: &Compare, as_json: bool) -> Result<()> {
    let choices = choices(arguments);
    let mut kept = kept(arguments.results.as_deref())?;
    let mut mixes = Vec::new();
    for path in &arguments.mixes {
        mixes.extend(mix(path, arguments)?.by_pool().into_iter().map(|mix| (path, mix)));
    }
    let (bar, count) = (Bar::new()?, mixes.len() as f64);
    let compared = mixes.iter().enumerate().map(|(done, (path, mix))| {
        let folder = path.parent().unwrap_or(Path::new("."));
        let progress = |stage, part| bar.show(stage, (done as f64 + part) / count);
        compare::compare(mix, folder, &choices, &mut kept, &progress)
    });
    let compared: std::result::Result<Vec<Comparison>, _> = compared.collect();
    bar.end();
    let comparisons = compared.map_err(refused)?;
    comparisons.iter().for_each(|comparison| warn_of(&comparison.trace.damage));
    let verdict = choices.subject.as_ref().and_then(|subject| verdict(&comparisons, subject));
    let verdict = verdict.as_ref();
    write(arguments.html.as_ref(), || compare::page(&comparisons, verdict).to_html())?;
    write(arguments.csv.as_ref(), || compare::csv::csv(&comparisons))?;
    let json = text(&comparisons, verdict)?;
    write(arguments.json_file.as_ref(), || format!("{json}\n"))?;
    if as_json {
        println!("{json}");
    } else {
        print(&comparisons, verdict);
    }
    Ok(())
}
