//! `haversack analyze`: what a trace shows about caches for it.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use haversack_analyze::{Analysis, Depth, Options, analyze};
use haversack_api::{Size, Span};
use haversack_trace::{Damage, Source};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output::print;
use crate::trace::{Traces, warn};

/// What to analyse, and how.
#[derive(Args)]
pub struct Analyze {
    #[command(flatten)]
    traces: Traces,
    /// Size of a block.
    #[arg(long, default_value = "4KiB")]
    block: Size,
    /// Sample at most this many blocks of each volume: faster, with less memory.
    #[arg(long, value_name = "BLOCKS")]
    sampled: Option<usize>,
    /// Cache sizes in bytes to compute exact results for.
    #[arg(long, value_delimiter = ',')]
    size: Vec<Size>,
    /// Cache sizes in blocks to compute exact results for.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    blocks: Vec<u64>,
    /// Window length for working sets.
    #[arg(long, default_value = "10min")]
    window: Span,
    /// Window length for reuse intensity.
    #[arg(long, default_value = "60s")]
    intensity_window: Span,
    /// Also show figures by intervals of this length: classes of accesses, TRD and URD sizes, reuse intensity, and hits
    /// at the sizes given with --size or --blocks.
    #[arg(long)]
    interval: Option<Span>,
    /// Number of threads [default: the number of processors].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the curves to this file as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the curves to this file as Parquet.
    #[cfg(feature = "parquet")]
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

/// The JSON output.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    analysis: Analysis,
    damage: Damage,
}

/// Runs the command.
pub fn run(arguments: &Analyze, as_json: bool) -> Result<()> {
    let options = options(arguments)?;
    let mut source = arguments.traces.open()?;
    if options.interval_ns.is_some() && !source.is_timed() {
        return Err(CliError::Usage("--interval: the trace has no times: leave it out".into()));
    }
    let analysis = look(source.as_mut(), &options)?;
    let damage = source.damage();
    warn(&damage, as_json);
    if let Some(file) = &arguments.html {
        let page = analysis.page(&title(&arguments.traces.files));
        page.write(file).map_err(|error| unwritten(file, &error))?;
    }
    if let Some(file) = &arguments.csv {
        std::fs::write(file, analysis.curves_csv()).map_err(|error| unwritten(file, &error))?;
    }
    #[cfg(feature = "parquet")]
    crate::parquet::write(arguments.parquet.as_deref(), points(&analysis))?;
    let tables: Vec<String> = analysis.tables().iter().map(|table| table.to_text()).collect();
    print(as_json, &Found { analysis, damage }, &tables.join("\n"))
}

/// A point of a curve, with its volume.
#[cfg(feature = "parquet")]
#[derive(Serialize)]
struct Point<'a> {
    volume: &'a str,
    #[serde(flatten)]
    point: &'a haversack_analyze::CurvePoint,
}

#[cfg(feature = "parquet")]
fn points(analysis: &Analysis) -> impl Iterator<Item = Point<'_>> {
    let volumes = analysis.volumes.iter().chain([&analysis.overall]);
    volumes.flat_map(|of| of.points().into_iter().map(|point| Point { volume: &of.name, point }))
}

fn options(arguments: &Analyze) -> Result<Options> {
    let block_bytes = arguments.block.0;
    let mut sizes = arguments.blocks.clone();
    for size in &arguments.size {
        if block_bytes == 0 || size.0 < block_bytes {
            let why = format!("--size {size}: a cache holds at least one block of {}", arguments.block);
            return Err(CliError::Usage(why));
        }
        sizes.push(size.0 / block_bytes);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let nanoseconds = |span: Span| u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX);
    let defaults = Options::default();
    Ok(Options {
        block_bytes,
        depth: arguments.sampled.map_or(Depth::Exact, Depth::Sampled),
        window_ns: nanoseconds(arguments.window),
        intensity_window_ns: nanoseconds(arguments.intensity_window),
        interval_ns: interval_ns(arguments.interval)?,
        sizes,
        threads: arguments.threads.map_or(defaults.threads, usize::from),
        ..defaults
    })
}

fn interval_ns(interval: Option<Span>) -> Result<Option<u64>> {
    let Some(length) = interval else { return Ok(None) };
    match u64::try_from(length.0.as_nanos()).unwrap_or(u64::MAX) {
        0 => Err(CliError::Usage("--interval: expected a time above 0".into())),
        length_ns => Ok(Some(length_ns)),
    }
}

/// Analyses a source, with a progress bar if stderr is a terminal.
fn look(source: &mut dyn Source, options: &Options) -> Result<Analysis> {
    const STEPS: u64 = 1000;
    let bar = ProgressBar::new(STEPS);
    let style = ProgressStyle::with_template("{msg} {bar:30} {percent} %, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let found = analyze(source, options, |share, requests| {
        bar.set_message(format!("{requests} requests"));
        bar.set_position((share.unwrap_or(0.0) * STEPS as f64) as u64);
    });
    bar.finish_and_clear();
    found.map_err(|error| CliError::Failed(error.to_string()))
}

fn title(files: &[PathBuf]) -> String {
    let name = |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    match files {
        [file] => name(file),
        [first, rest @ ..] => format!("{} and {} more", name(first), rest.len()),
        [] => String::new(),
    }
}

fn unwritten(file: &Path, error: &io::Error) -> CliError {
    CliError::Failed(format!("{}: cannot be written: {error}", file.display()))
}
