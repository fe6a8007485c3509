//! Systems on equal terms: every allocator with every admission filter and every choice of write modes, on one mix, in
//! pools of several sizes, beside what no system can exceed.

mod bounds;
mod show;

use std::path::Path;

use haversack_model::{BLOCK_BYTES, Micros, WriteMode};
use haversack_policy::write_mode::WriteModeChoice;
use haversack_policy::{AdmissionRule, Config, named};
use haversack_trace::Source;
use serde::Serialize;

use crate::counts::ratio;
use crate::error::SimError;
use crate::latency::LatencyModel;
use crate::mix::Mix;
use crate::outcome::Row;
use crate::production::governor::TargetSample;
use crate::settings::{Settings, Sizes, Traffic};
use crate::sweep::{Progress, Stage, variants};
use crate::tape::{Survey, Tape};

pub use bounds::{Bounds, StaticSplit};
pub use show::{bounds_table, page, table};

/// What is compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Choices {
    /// Allocators by their systems' names.
    pub allocators: Vec<String>,
    /// Admission filters by name.
    pub admissions: Vec<String>,
    /// `wb`, `wi` and so on for all disks, or `auto` for each as its writes ask for.
    pub write_modes: Vec<String>,
    /// What takes time.
    pub latency: LatencyModel,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Caches simulated at a time; 0 for as many as there are processors.
    pub threads: usize,
}

/// Intensity is measured for this part of a window at its end, but not for longer than a minute.
const MEASURED_PART: f64 = 0.25;
const LONGEST_MEASUREMENT_US: Micros = 60_000_000;

impl Default for Choices {
    fn default() -> Self {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        Choices {
            allocators: all(&["none", "equal", "wss", "rwss", "utility", "trd", "urd", "max-min"]),
            admissions: all(&["always", "address(1)", "hec", "larc"]),
            write_modes: all(&["wb", "auto"]),
            latency: LatencyModel::default(),
            seed: 1,
            threads: 0,
        }
    }
}

/// A disk under a system.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DiskRow {
    /// Its name.
    pub name: String,
    /// Hits among the blocks read.
    pub read_hit_ratio: f64,
    /// Hits among the blocks read and written.
    pub hit_ratio: f64,
    /// Mean latency of its reads and writes.
    pub mean_us: f64,
    /// 95th percentile of it.
    pub p95_us: f64,
    /// Blocks written to flash.
    pub flash_writes: u64,
    /// Bytes read from and written to its origin.
    pub origin_bytes: u64,
}

/// A system on the mix.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Combination {
    /// Who divides the pool.
    pub allocator: String,
    /// What may enter.
    pub admission: String,
    /// How write modes are chosen.
    pub write_mode: String,
    /// Blocks of the pool.
    pub blocks: u64,
    /// Hits among the blocks read.
    pub read_hit_ratio: f64,
    /// Hits among the blocks read and written.
    pub hit_ratio: f64,
    /// Mean latency of requests.
    pub mean_us: f64,
    /// 95th percentile of it.
    pub p95_us: f64,
    /// Blocks written to flash, whatever the cause.
    pub flash_writes: u64,
    /// Bytes read from and written to the origins.
    pub origin_bytes: u64,
    /// Blocks in use, the mean over the decisions.
    pub usage_blocks: f64,
    /// Processor time of the longest decision in milliseconds.
    pub decision_ms: f64,
    /// Each disk.
    pub disks: Vec<DiskRow>,
    /// What each disk was given over time.
    pub targets: Vec<TargetSample>,
    /// Why nothing could be decided, if that happened.
    pub refusal: Option<String>,
}

/// A mix under all systems.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The mix.
    pub mix: Mix,
    /// Its loads together.
    pub trace: Survey,
    /// The systems, for each size.
    pub combinations: Vec<Combination>,
    /// The bounds, for each size.
    pub bounds: Vec<Bounds>,
}

struct Variant {
    allocator: String,
    admission: String,
    write_mode: String,
    settings: Settings,
}

fn unfit(error: impl std::fmt::Display) -> SimError {
    SimError::Settings(error.to_string())
}

fn config(mix: &Mix, allocator: &str, admission: &str, auto: bool) -> Result<Config, SimError> {
    let window_us = (mix.window_s * 1e6) as Micros;
    let measured = (window_us as f64 * MEASURED_PART) as Micros;
    let admission: AdmissionRule = admission.parse().map_err(unfit)?;
    Ok(Config {
        window_us,
        measurement_us: measured.clamp(1, LONGEST_MEASUREMENT_US),
        admission,
        write_mode: auto.then(WriteModeChoice::default),
        ..named(allocator).map_err(unfit)?
    })
}

fn combined(mix: &Mix, choices: &Choices) -> Result<Vec<Variant>, SimError> {
    let mut variants = Vec::new();
    for allocator in &choices.allocators {
        for admission in &choices.admissions {
            for write_mode in &choices.write_modes {
                let auto = write_mode == "auto";
                let mode = if auto { WriteMode::WriteBack } else { write_mode.parse().map_err(unfit)? };
                let settings = Settings {
                    sizes: Sizes::Fractions(mix.fractions.clone()),
                    mode,
                    traffic: Traffic { speed_up: mix.speed_up, ..Traffic::default() },
                    control: Some(config(mix, allocator, admission, auto)?),
                    latency: Some(choices.latency.clone()),
                    seed: choices.seed,
                    threads: choices.threads,
                    ..Settings::default()
                };
                settings.check()?;
                let (allocator, admission) = (allocator.clone(), admission.clone());
                variants.push(Variant { allocator, admission, write_mode: write_mode.clone(), settings });
            }
        }
    }
    if variants.is_empty() {
        return Err(unfit("nothing to compare: name an allocator, an admission and a write mode"));
    }
    Ok(variants)
}

fn combination(variant: &Variant, row: &Row) -> Combination {
    let governed =
        row.production.as_ref().and_then(|production| production.control.clone()).unwrap_or_default();
    let used = |sample: &TargetSample| sample.usage_blocks.iter().sum::<u64>() as f64;
    let used: f64 = governed.targets.iter().map(used).sum();
    let disk = |volume: &crate::outcome::VolumeRow| DiskRow {
        name: volume.name.clone(),
        read_hit_ratio: ratio(volume.counts.read_hits, volume.counts.blocks_read()),
        hit_ratio: ratio(
            volume.counts.read_hits + volume.counts.write_hits,
            volume.counts.blocks_read() + volume.counts.blocks_written(),
        ),
        mean_us: volume.latency.map_or(0.0, |latency| latency.mean_us),
        p95_us: volume.latency.map_or(0.0, |latency| latency.p95_us),
        flash_writes: volume.counts.flash_writes(),
        origin_bytes: volume.counts.origin_read_bytes + volume.counts.origin_written_bytes,
    };
    let counts = &row.counts;
    Combination {
        allocator: variant.allocator.clone(),
        admission: variant.admission.clone(),
        write_mode: variant.write_mode.clone(),
        blocks: row.blocks.unwrap_or(0),
        read_hit_ratio: 1.0 - row.read_miss_ratio,
        hit_ratio: ratio(
            counts.read_hits + counts.write_hits,
            counts.blocks_read() + counts.blocks_written(),
        ),
        mean_us: row.latency.map_or(0.0, |latency| latency.all.mean_us),
        p95_us: row.latency.map_or(0.0, |latency| latency.all.p95_us),
        flash_writes: row.flash_writes,
        origin_bytes: counts.origin_read_bytes + counts.origin_written_bytes,
        usage_blocks: used / governed.targets.len().max(1) as f64,
        decision_ms: governed.longest_decision.as_secs_f64() * 1000.0,
        disks: row.volumes.iter().map(disk).collect(),
        targets: governed.targets,
        refusal: governed.refusal,
    }
}

/// Compares.
///
/// # Errors
/// The mix or a choice makes no sense, or a trace cannot be read.
pub fn compare(
    mix: &Mix,
    folder: &Path,
    choices: &Choices,
    progress: &Progress<'_>,
) -> Result<Comparison, SimError> {
    mix.check()?;
    let all = combined(mix, choices)?;
    let first = &all[0].settings;
    let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(folder) };
    let tape = Tape::new(&opener, &first.traffic, BLOCK_BYTES as u64, &|part| progress(Stage::Survey, part))?;
    let sizes = first.sizes.blocks(BLOCK_BYTES as u64, tape.survey.footprint_blocks)?;
    let settings: Vec<Settings> = all.iter().map(|variant| variant.settings.clone()).collect();
    let rows = variants(&tape, &settings, &sizes, progress)?;
    let governed = all.len() * sizes.len();
    let combinations = rows[..governed].iter().enumerate();
    let combinations = combinations.map(|(at, row)| combination(&all[at / sizes.len()], row)).collect();
    let bounds = bounds::bounds(&tape, &sizes, &rows[governed..])?;
    Ok(Comparison { mix: mix.clone(), trace: tape.survey.clone(), combinations, bounds })
}
