//! `haversack compare`: runs every system on the same mix of loads.

use std::path::PathBuf;

use clap::Args;
use haversack_sim::compare::{self, Choices, Comparison};
use haversack_sim::mix::Mix;

use crate::error::{CliError, Result};
use crate::sim::{Bar, LatencyArguments, refused, warn_of, write};

/// What to compare.
#[derive(Args)]
pub struct Compare {
    /// Mix of workloads: a TOML file; see docs/policies.md and the folder `mixes`.
    pub mix: PathBuf,
    /// Allocators. [default: all but static]
    #[arg(long, value_delimiter = ',')]
    pub allocators: Vec<String>,
    /// Admission filters: always, learned, hec, larc, address(N), data(N), hybrid(N). [default: always,address(1),hec,larc]
    #[arg(long, value_delimiter = ',')]
    pub admissions: Vec<String>,
    /// Write modes: wb, wt, wt-cache, wa, wi, pt, or auto. [default: wb,auto]
    #[arg(long, value_delimiter = ',')]
    pub write_modes: Vec<String>,
    /// Pool sizes as fractions of the blocks that all workloads access, instead of those in the mix.
    #[arg(long, value_delimiter = ',')]
    pub fractions: Vec<f64>,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of caches simulated in parallel; 0 for the number of processors.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    #[command(flatten)]
    pub latency: LatencyArguments,
}

fn mix(arguments: &Compare) -> Result<Mix> {
    let path = arguments.mix.display();
    let usage = |error: &dyn std::fmt::Display| CliError::Usage(format!("{path}: {error}"));
    let text = std::fs::read_to_string(&arguments.mix).map_err(|error| usage(&error))?;
    let mut mix: Mix = toml::from_str(&text).map_err(|error| usage(&error))?;
    if !arguments.fractions.is_empty() {
        mix.fractions.clone_from(&arguments.fractions);
    }
    Ok(mix)
}

fn choices(arguments: &Compare) -> Choices {
    let default = Choices::default();
    let or = |given: &[String], default: Vec<String>| if given.is_empty() { default } else { given.to_vec() };
    Choices {
        allocators: or(&arguments.allocators, default.allocators),
        admissions: or(&arguments.admissions, default.admissions),
        write_modes: or(&arguments.write_modes, default.write_modes),
        latency: arguments.latency.model().unwrap_or(default.latency),
        seed: arguments.seed,
        threads: arguments.threads,
    }
}

fn text(comparison: &Comparison) -> Result<String> {
    serde_json::to_string_pretty(comparison).map_err(|error| CliError::Failed(error.to_string()))
}

/// Runs the command.
pub fn run(arguments: &Compare, as_json: bool) -> Result<()> {
    let mix = mix(arguments)?;
    let folder = arguments.mix.parent().unwrap_or(std::path::Path::new("."));
    let bar = Bar::new()?;
    let compared = compare::compare(&mix, folder, &choices(arguments), &|stage, part| bar.show(stage, part));
    bar.end();
    let comparison = compared.map_err(refused)?;
    warn_of(&comparison.trace.damage);
    let json = text(&comparison)?;
    write(arguments.html.as_ref(), || compare::page(&comparison).to_html())?;
    write(arguments.json_file.as_ref(), || format!("{json}\n"))?;
    if as_json {
        println!("{json}");
    } else {
        println!("{}\n", comparison.mix.title);
        print!("{}", compare::table(&comparison).to_text());
        println!();
        print!("{}", compare::bounds_table(&comparison).to_text());
    }
    Ok(())
}
