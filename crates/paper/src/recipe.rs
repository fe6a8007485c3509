//! A recipe: what a figure is made of, as data. The files are in the folder `papers`.
//!
//! A paper has figures. A figure has a recipe of one of a few kinds, a mix of loads, plots, columns of a table, and
//! claims: what the paper says, with its own numbers.

use std::collections::BTreeMap;

use haversack_api::{PolicySettings, Size, Span};
use haversack_model::WriteMode;
use haversack_sim::migration::{LatencyTable, Method};
use haversack_sim::mix::Mix;
use serde::{Deserialize, Deserializer};

use crate::claim::Claim;
use crate::measure::Measure;

/// A paper.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Paper {
    /// Its short name, as on the command line.
    pub name: String,
    /// Authors, title, where it appeared.
    pub source: String,
    /// Loads of several of its figures, by name.
    #[serde(default, rename = "mix")]
    pub mixes: BTreeMap<String, Mix>,
    /// Its figures and tables.
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
}

/// A figure, a table, or a result that the text gives.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figure {
    /// Its name within the paper: the number of the figure, or of the section.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it is in the paper.
    pub place: String,
    /// About how many seconds of processor time it takes with its generated load.
    pub seconds: f64,
    /// The load: a mix of the paper's file, or a file of the folder `mixes`.
    #[serde(default)]
    pub mix: Option<String>,
    /// What the load and the simulation leave open, beyond what follows from the kinds of loads.
    #[serde(default)]
    pub limits: Vec<String>,
    /// How real traces are used in place of volumes like them.
    #[serde(default)]
    pub real: Real,
    /// How it is made.
    pub recipe: Recipe,
    /// The plots.
    pub plot: Vec<Plot>,
    /// The columns of the table.
    pub table: Vec<Measure>,
    /// What the paper says.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// How real traces are used.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Real {
    /// How much of each trace, from its beginning; all if not given.
    pub span: Option<Span>,
    /// The maximum number of requests from each trace.
    pub requests: Option<u64>,
    /// Length of the control loop's windows in seconds, instead of the mix's.
    pub window_s: Option<f64>,
}

/// The kinds of recipes.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recipe {
    /// Systems that divide a pool, simulated.
    Pools(Pools),
    /// Reuse distances of each disk of the mix.
    Distances(Distances),
    /// Hits, reuse intensity and working sets of each disk of the mix over time.
    Intervals(Intervals),
    /// Lengths of windows of each disk of the mix.
    Windows(Windows),
    /// Rings of several sizes that estimate the hits of a disk.
    Rings(Rings),
    /// Methods of moving a VM with its cache.
    Moves(Moves),
    /// Weights of tenants from given factors.
    Weights(Weights),
    /// Clients of a remote cache with and without an index of it.
    Clients(Clients),
}

/// Disks in consecutive intervals of time. Their points have the beginning of the interval, in seconds, as x.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Intervals {
    /// The length of an interval.
    pub length: Span,
    /// The size of each disk's LRU cache.
    pub size: Size,
    /// The length with real traces, if it differs.
    #[serde(default)]
    pub real_length: Option<Span>,
    /// The size with real traces, if it differs.
    #[serde(default)]
    pub real_size: Option<Size>,
}

/// Systems that divide a pool.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pools {
    /// The systems.
    #[serde(rename = "system")]
    pub systems: Vec<System>,
    /// Sizes of the pool as parts of the footprint, instead of the mix's. With several, each is an x of the plots.
    #[serde(default)]
    pub fractions: Vec<f64>,
    /// Parts of the time for which shares and hits are also given: points named `SYSTEM, PHASE`.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
    /// Latencies other than the simulator's.
    #[serde(default)]
    pub latency: LatencyTable,
}

/// A system with its settings.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct System {
    /// Its name in the figure.
    pub name: String,
    /// Its place on the x axis, in a sweep of a setting: systems of one name are then one line.
    #[serde(default)]
    pub x: Option<f64>,
    /// The policy, with the daemon's keys.
    pub policy: PolicySettings,
    /// The write mode in the beginning, or throughout if the policy does not set it.
    #[serde(default = "write_back", deserialize_with = "write_mode")]
    pub mode: WriteMode,
    /// What replaces blocks: core, lru or arc.
    #[serde(default)]
    pub replacement: Option<String>,
    /// Priorities of disks, instead of the mix's.
    #[serde(default)]
    pub priorities: BTreeMap<String, f64>,
    /// The pool's size over that of the other systems' pools.
    #[serde(default = "one")]
    pub scale: f64,
    /// Cache devices.
    #[serde(default)]
    pub devices: Option<u32>,
    /// Whether dirty blocks are on two devices.
    #[serde(default)]
    pub redundancy: bool,
    /// Whether everything is on two devices, as on RAID-1.
    #[serde(default)]
    pub mirrored: bool,
    /// Whether clean blocks survive a restart.
    #[serde(default = "yes")]
    pub keeps_clean: bool,
    /// Time between two restarts.
    #[serde(default)]
    pub restart_every: Option<Span>,
}

/// A part of the time.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Its beginning.
    pub from: Span,
    /// Its end.
    pub to: Span,
}

/// Reuse distances.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distances {
    /// Size of a block.
    pub block: Size,
}

/// Lengths of windows.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Those to try.
    pub lengths: Vec<Span>,
    /// Those to try with real traces, which last a week.
    pub real_lengths: Vec<Span>,
    /// Reuses of a block that count as demand.
    pub reuses: u8,
}

/// Rings that hold a disk's last accesses.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// Sizes of the rings. Each is a system, by its size.
    pub rings: Vec<Size>,
    /// Size of an entry.
    pub entry: Size,
    /// Sizes of the cache for which hits are estimated. Each is an x of the plots.
    pub caches: Vec<Size>,
}

/// Methods of moving a VM.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moves {
    /// The methods, by their names in the figure.
    #[serde(rename = "method")]
    pub methods: Vec<NamedMethod>,
    /// Targets of all disks and with them sizes of the pools, instead of the mix's. Each is an x of the plots.
    #[serde(default)]
    pub targets: Vec<Size>,
    /// Rates at which the earlier host is asked for blocks, in bytes a second; 0 for no limit. Each is an x of the
    /// plots.
    #[serde(default)]
    pub rates: Vec<Size>,
    /// How long the VM is measured from its stop on, instead of the mix's time.
    #[serde(default)]
    pub window: Option<Span>,
}

/// A method with its name in the paper.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedMethod {
    /// The paper's name.
    pub name: String,
    /// The method.
    #[serde(deserialize_with = "method")]
    pub method: Method,
}

/// Weights of tenants.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// What a factor counts for: priority, reads over writes, read speed, hit ratio.
    pub beta: [f64; 4],
    /// The cache, in bytes.
    pub cache: Size,
    /// Each tenant's factors, in the same order.
    pub tenants: BTreeMap<String, [f64; 4]>,
}

/// Clients of a remote flash cache behind a client's memory.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Clients {
    /// The remote cache, as a part of the footprint.
    pub flash: f64,
    /// Sizes of the client's memory, as parts of the footprint. Each is an x of the plots.
    pub memory: Vec<f64>,
    /// False positives of each of the index's filters.
    pub false_positives: f64,
    /// Blocks of each of the index's filters.
    pub filter_blocks: u64,
    /// Latencies other than the simulator's.
    #[serde(default)]
    pub latency: LatencyTable,
}

/// A plot.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Plot {
    /// A bar for each system.
    Bars {
        /// What is drawn.
        measure: Measure,
    },
    /// A line for each system over x.
    Lines {
        /// What is drawn.
        measure: Measure,
        /// The title of the x axis.
        x: String,
        /// Its unit.
        unit: XUnit,
    },
    /// The parts of the pool over time.
    Course {
        /// The system.
        system: String,
        /// What of it.
        of: Parts,
    },
    /// Hits over time, a line for each system.
    HitsOverTime,
}

/// The unit of an x axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XUnit {
    /// A number.
    Number,
    /// A fraction, in percent.
    Share,
    /// Bytes, logarithmic.
    Bytes,
    /// Seconds, logarithmic.
    Seconds,
    /// Time from the beginning, in seconds.
    Time,
}

/// Parts of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parts {
    /// The disks' targets.
    Targets,
    /// What the disks use.
    Usage,
}

fn one() -> f64 {
    1.0
}

fn write_back() -> WriteMode {
    WriteMode::WriteBack
}

fn yes() -> bool {
    true
}

fn write_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WriteMode, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn method<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Method, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
