//! `haversack paper`: the papers' figures and tables, reproduced from recipes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use haversack_paper::page::{claims_table, page, table};
use haversack_paper::recipe::{Figure, Paper};
use haversack_paper::{FigureResult, PaperError, catalogue, run};
use haversack_report::{Table, Unit};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output;
use crate::sim::Bar;

/// Commands for the papers' figures.
#[derive(Subcommand)]
pub enum PaperCommand {
    /// List the figures and tables that can be reproduced here.
    List,
    /// Reproduce figures and tables, and write an HTML page for each paper.
    Run(RunPaper),
}

/// What to reproduce.
#[derive(Args)]
pub struct RunPaper {
    /// Figures or papers, such as cloudcache/3.2 or cloudcache; or all.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Directory with the MSR Cambridge traces, one file for each volume, such as web_0.csv.gz. They replace generated
    /// volumes like them. [default: generated loads only]
    #[arg(long, value_name = "DIR")]
    msr: Option<PathBuf>,
    /// Number of seeds for generated loads. A claim holds only if it holds with every seed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Directory for the pages.
    #[arg(long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
}

/// A figure as it is listed.
#[derive(Serialize)]
struct Listed {
    name: String,
    title: String,
    place: String,
    workload: String,
    seconds: f64,
}

/// The JSON output of a run.
#[derive(Serialize)]
struct Made<'a> {
    paper: &'a str,
    page: String,
    figures: &'a [FigureResult],
}

fn refused(error: PaperError) -> CliError {
    match error {
        PaperError::Unknown { .. } | PaperError::NoTraces { .. } => CliError::Usage(error.to_string()),
        other => CliError::Failed(other.to_string()),
    }
}

/// Runs the command.
pub fn run(command: &PaperCommand, as_json: bool) -> Result<()> {
    match command {
        PaperCommand::List => list(as_json),
        PaperCommand::Run(arguments) => make(arguments, as_json),
    }
}

fn list(as_json: bool) -> Result<()> {
    let papers = catalogue::papers().map_err(refused)?;
    let listed: Vec<Listed> =
        papers.iter().flat_map(|paper| paper.figures.iter().map(|figure| of(paper, figure))).collect();
    let mut table = Table::new(["figure", "shows", "workload", "about"]).words(1).words(2);
    for one in &listed {
        let about = Unit::Seconds.format(one.seconds);
        table.row([one.name.clone(), one.title.clone(), one.workload.clone(), about]);
    }
    output::print(as_json, &listed, &table.to_text())
}

fn of(paper: &Paper, figure: &Figure) -> Listed {
    Listed {
        name: format!("{}/{}", paper.name, figure.name),
        title: figure.title.clone(),
        place: figure.place.clone(),
        workload: figure.mix.clone().unwrap_or_else(|| "the paper's figures".into()),
        seconds: figure.seconds,
    }
}

fn make(arguments: &RunPaper, as_json: bool) -> Result<()> {
    let papers = haversack_paper::find(&arguments.names).map_err(refused)?;
    let traces = arguments.msr.as_deref();
    run::check(&papers, traces).map_err(refused)?;
    let unwritten = |error: std::io::Error| {
        CliError::Failed(format!("{}: cannot be written: {error}", arguments.output.display()))
    };
    std::fs::create_dir_all(&arguments.output).map_err(unwritten)?;
    let mut made = Vec::new();
    for paper in &papers {
        let mut results = Vec::new();
        for figure in &paper.figures {
            let bar = Bar::new()?;
            let result = run::run(paper, figure, traces, arguments.seeds, &|stage, part| {
                bar.show(stage, part);
            });
            bar.end();
            let result = result.map_err(refused)?;
            output::say(&format!("{}: {}", result.name, Unit::Seconds.format(result.seconds)));
            if !as_json {
                output::write(&text(figure, &result))?;
            }
            results.push(result);
        }
        let path = arguments.output.join(file_name(paper, &arguments.names));
        page(paper, &results).write(&path).map_err(unwritten)?;
        if !as_json {
            output::write(&format!("{}\n", path.display()))?;
        }
        made.push((paper, path, results));
    }
    let made: Vec<Made<'_>> = made
        .iter()
        .map(|(paper, path, figures)| Made { paper: &paper.name, page: path.display().to_string(), figures })
        .collect();
    if as_json { output::print(true, &made, "") } else { Ok(()) }
}

/// A page of some figures does not replace that of their paper.
fn file_name(paper: &Paper, names: &[String]) -> String {
    if names.iter().any(|name| *name == paper.name || name == "all") {
        return format!("{}.html", paper.name);
    }
    let figures: Vec<&str> = paper.figures.iter().map(|figure| figure.name.as_str()).collect();
    format!("{}-{}.html", paper.name, figures.join("-"))
}

fn text(figure: &Figure, result: &FigureResult) -> String {
    let claims = claims_table(&result.claims);
    let claims = if claims.is_empty() { String::new() } else { format!("{}\n", claims.to_text()) };
    format!("{}: {}\n\n{}\n{claims}", result.name, result.title, table(figure, &result.outcome).to_text())
}
