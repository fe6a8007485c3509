//! `haversack sim`: simulates caches of several policies and sizes on a trace.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use haversack_api::{Admission, CleanerSettings, Mode, PolicySettings, Size, Span};
use haversack_control::endurance::Endurance;
use haversack_core::{AdmissionConfig, Persistence};
use haversack_policy::admission::StagingKind;
use haversack_policy::{AdmissionRule, Config};
use haversack_sim::latency::LatencyModel;
use haversack_sim::latency::distribution::Distribution;
use haversack_sim::migration::LatencyTable;
use haversack_sim::mix::Mix;
use haversack_sim::tape::Opener;
use haversack_sim::{
    PolicyName, Pool, Replacement, Report, RestartKind, Restarts, Settings, SimError, Sizes, Stage, Traffic,
};
use haversack_trace::{Damage, Format, MergeOptions, Merged, OpenOptions, Source};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use crate::compare_migration::MigrationArguments;
use crate::error::{CliError, Result};

/// What to simulate.
#[derive(Args)]
pub struct Sim {
    /// Policies: core (the production cache), lru, fifo, clock, 2q, arc, lirs, s3-fifo, sieve; or all. The bounds
    /// min and unlimited are always added.
    #[arg(long, value_delimiter = ',', default_value = "core")]
    pub policy: Vec<String>,
    /// Bytes of a block; the production cache has 4096.
    #[arg(long, default_value = "4096")]
    pub block_size: Size,
    /// Simulate a mix of workloads instead of traces: a TOML file; see docs/policies.md and the folder `mixes`. Sizes,
    /// disks, events and policy are those of the mix, unless given here.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub mix: Option<PathBuf>,
    /// The pool to simulate, if the mix has several.
    #[arg(long, requires = "mix")]
    pub pool: Option<String>,
    /// Replacement algorithm for policy core: core (the production cache), or lru or arc as in the papers, with the
    /// same targets, admission and write modes.
    #[arg(long, default_value = "core")]
    pub replacement: Replacement,
    /// Add the speed of the simulation to the table.
    #[arg(long)]
    pub speed: bool,
    /// Write all results to this file as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all results, and those of each volume, to this file as Parquet.
    #[cfg(feature = "parquet")]
    #[arg(long, value_name = "FILE", conflicts_with = "migrate_at")]
    pub parquet: Option<PathBuf>,
    /// Write an HTML page with curves to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the control loop's decisions with their inputs to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    pub decisions: Option<PathBuf>,
    #[command(flatten)]
    pub migration: MigrationArguments,
    #[command(flatten)]
    pub common: Common,
}

/// What simulations and advice have in common.
#[derive(Args)]
pub struct Common {
    /// Trace file in any format. Several files are several disks on one clock.
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,
    /// Format of the traces, if it is not detected.
    #[arg(long)]
    pub format: Option<Format>,
    /// Bytes per block number, in traces that contain only block numbers.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub key_bytes: Option<u32>,
    /// Time unit, such as 1s, in traces that do not define one.
    #[arg(long)]
    pub time_unit: Option<Span>,
    /// Stop at the first damaged line.
    #[arg(long)]
    pub strict: bool,
    /// Start all traces at the same time.
    #[arg(long)]
    pub align: bool,
    /// Cache sizes in blocks.
    #[arg(long, value_delimiter = ',', group = "sizes")]
    pub blocks: Vec<u64>,
    /// Cache sizes.
    #[arg(long, value_delimiter = ',', group = "sizes")]
    pub size: Vec<Size>,
    /// Cache sizes as fractions of the blocks that the trace accesses.
    #[arg(long, value_delimiter = ',', group = "sizes")]
    pub fractions: Vec<f64>,
    /// Write mode: wb, wt, wt-cache, wa, wi or pt; auto to switch each disk between write-back and read-only by its
    /// writes. [default: wb, or as the allocator's system does]
    #[arg(long, visible_alias = "write-mode")]
    pub mode: Option<Mode>,
    /// Speed up the trace by this factor. [default: 1, or the mix's]
    #[arg(long)]
    pub speed_up: Option<f64>,
    /// Fixed time between requests, instead of the times in the trace.
    #[arg(long)]
    pub interval: Option<Span>,
    /// Fraction of the requests that warm up the cache and are not counted.
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// Number of samples over the trace, for the time series in the JSON output and on the page.
    #[arg(long, default_value_t = 0)]
    pub samples: u32,
    /// Seed of all random numbers, including those of a mix's loads. Seed 1 gives the mix's own loads.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of caches simulated in parallel; 0 for the number of processors.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub pool: PoolArguments,
    #[command(flatten)]
    pub latency: LatencyArguments,
}

/// Blocks that survive a restart.
#[derive(Clone, Copy, ValueEnum)]
pub enum Survives {
    /// Every block.
    All,
    /// Dirty blocks only.
    Dirty,
    /// Nothing.
    None,
}

/// How the cache ends before a restart.
#[derive(Clone, Copy, ValueEnum)]
pub enum Ends {
    /// Stopped cleanly.
    Stop,
    /// Killed; the staging area stays.
    Kill,
    /// A power loss.
    PowerLoss,
}

/// The production cache, in the words of the daemon's configuration.
#[derive(Args)]
#[command(next_help_heading = "The production cache (policy core)")]
pub struct PoolArguments {
    /// Number of cache devices, which together have the cache size.
    #[arg(long, default_value_t = 1)]
    pub devices: u32,
    /// Keep dirty blocks on two devices.
    #[arg(long)]
    pub redundancy: bool,
    /// Keep everything on two devices, as RAID-1 below the cache does: devices are pairs, and half of their space
    /// counts.
    #[arg(long, conflicts_with = "redundancy")]
    pub mirrored: bool,
    /// Staging memory [default: 64MiB, but at most 1/64 of the cache].
    #[arg(long)]
    pub staging: Option<Size>,
    /// Keep disks that have targets within their targets, even if no other disk needs the space.
    #[arg(long)]
    pub no_spare: bool,
    /// Target of a disk; the others share one pool. May be repeated. With a mix, only for allocator static or in a
    /// migration.
    #[arg(long, value_name = "DISK=SIZE", value_parser = target)]
    pub target: Vec<(String, Size)>,
    /// Blocks that survive a restart. [default: all, or the mix's]
    #[arg(long, value_enum)]
    pub persistence: Option<Survives>,
    /// Which blocks may enter the cache: always, learned, reuse(N), reuse(N, ADDRESSES); sized by shares of the pool:
    /// hec, larc, address(N), data(N), hybrid(N). [default: learned, or as the allocator's system does]
    #[arg(long)]
    pub admission: Option<AdmissionArgument>,
    /// Allocator that divides the pool: auto, none, equal, static, wss, rwss, utility, trd, urd or max-min, or a
    /// paper's whole system: cloudcache, vcacheshare, eci-cache, centaur or liu. [default: none, one pool for all
    /// disks]
    #[arg(long)]
    pub allocator: Option<String>,
    /// Setting of the policy, as `haversack policy set` takes it: spare=idle, forecast=best. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Length of a window, after which the next decision is made. [default: as the allocator's system does]
    #[arg(long)]
    pub window: Option<Span>,
    /// Budget of flash writes, in drive writes per day such as "1 DWPD" or bytes per day such as "500 GB/day".
    #[arg(long)]
    pub endurance: Option<Endurance>,
    /// How much of this budget a burst may use, as the time in which that much accrues.
    #[arg(long, default_value = "24h", requires = "endurance")]
    pub burst: Span,
    /// Sequential runs longer than this bypass the cache; 0 for never. [default: 0, or the mix's]
    #[arg(long)]
    pub sequential_cutoff: Option<Size>,
    /// First sector of the guests' partitions, modulo 8. [default: 0, or the mix's]
    #[arg(long)]
    pub phase: Option<u8>,
    #[command(flatten)]
    pub cleaning: CleanerSettings,
    /// Time between restarts of the cache.
    #[arg(long)]
    pub restart_every: Option<Span>,
    /// How the cache ends before a restart.
    #[arg(long, value_enum, default_value = "stop", requires = "restart_every")]
    pub restart: Ends,
}

/// The model of time. Any of its options turns it on; the others then have their defaults.
#[derive(Args)]
#[command(next_help_heading = "Latency (times: MICROSECONDS, exponential:MEAN, log-normal:MEDIAN,SIGMA or \
                                profile:0=US,0.5=US,...,1=US)")]
pub struct LatencyArguments {
    /// Simulate latencies, with defaults for options that are not given.
    #[arg(long)]
    pub latency: bool,
    /// Latency of a read from a cache device.
    #[arg(long, value_name = "TIME")]
    pub device_read: Option<Distribution>,
    /// Latency of a write.
    #[arg(long, value_name = "TIME")]
    pub device_write: Option<Distribution>,
    /// Latency of a flush.
    #[arg(long, value_name = "TIME")]
    pub device_flush: Option<Distribution>,
    /// I/Os that a cache device handles in parallel.
    #[arg(long, value_name = "COUNT")]
    pub device_servers: Option<u32>,
    /// Bytes per second of each of these.
    #[arg(long, value_name = "SIZE")]
    pub device_speed: Option<Size>,
    /// Latency of a read from the origin.
    #[arg(long, value_name = "TIME")]
    pub origin_read: Option<Distribution>,
    /// Latency of a write.
    #[arg(long, value_name = "TIME")]
    pub origin_write: Option<Distribution>,
    /// Latency of a flush.
    #[arg(long, value_name = "TIME")]
    pub origin_flush: Option<Distribution>,
    /// I/Os that the origin handles in parallel.
    #[arg(long, value_name = "COUNT")]
    pub origin_servers: Option<u32>,
    /// Bytes per second of each of these.
    #[arg(long, value_name = "SIZE")]
    pub origin_speed: Option<Size>,
    /// Round-trip time of the network.
    #[arg(long, value_name = "SPAN")]
    pub round_trip: Option<Span>,
    /// Network bandwidth in bytes per second.
    #[arg(long, value_name = "SIZE")]
    pub network_speed: Option<Size>,
}

fn target(text: &str) -> std::result::Result<(String, Size), String> {
    let (name, size) = text.split_once('=').ok_or_else(|| format!("'{text}': expected DISK=SIZE"))?;
    Ok((name.into(), size.parse()?))
}

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// Converts an error: invalid settings are wrong usage, everything else is a failure.
pub fn refused(error: SimError) -> CliError {
    match error {
        SimError::Settings(_) | SimError::UnknownPolicy { .. } => CliError::Usage(error.to_string()),
        other => failed(other),
    }
}

/// A filter of a given size, or one whose size depends on the disk's share.
#[derive(Clone, Copy)]
pub enum AdmissionArgument {
    /// A given size.
    Fixed(Admission),
    /// Sized by share.
    Rule(AdmissionRule),
}

impl FromStr for AdmissionArgument {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.parse() {
            Ok(Admission::Hec) => Ok(AdmissionArgument::Rule(AdmissionRule::Hec)),
            Ok(Admission::Larc) => Ok(AdmissionArgument::Rule(AdmissionRule::Larc)),
            Ok(Admission::Staging { kind, n }) => {
                Ok(AdmissionArgument::Rule(AdmissionRule::staging(kind, n)))
            }
            Ok(admission) => Ok(AdmissionArgument::Fixed(admission)),
            // Filters that only policies have are sized by the policy.
            Err(error) => text.parse().map(AdmissionArgument::Rule).map_err(|_| error),
        }
    }
}

impl AdmissionArgument {
    fn is_auto(self) -> bool {
        matches!(self, AdmissionArgument::Fixed(Admission::Auto))
    }

    fn rule(self) -> AdmissionRule {
        match self {
            AdmissionArgument::Rule(rule) => rule,
            AdmissionArgument::Fixed(Admission::Auto | Admission::Always) => AdmissionRule::Always,
            AdmissionArgument::Fixed(Admission::Learned) => AdmissionRule::Learned,
            AdmissionArgument::Fixed(Admission::Hec) => AdmissionRule::Hec,
            AdmissionArgument::Fixed(Admission::Larc) => AdmissionRule::Larc,
            AdmissionArgument::Fixed(Admission::Staging { kind, n }) => AdmissionRule::staging(kind, n),
            AdmissionArgument::Fixed(Admission::Reuse { n, .. }) => {
                AdmissionRule::staging(StagingKind::Address, n)
            }
        }
    }
}

impl PoolArguments {
    /// Returns the control loop's configuration, if any option or the mix needs one: without an allocator all disks
    /// share one pool.
    fn control(&self, mode: Option<Mode>, mix: Option<&Mix>) -> Result<Option<Config>> {
        let auto = mode == Some(Mode::Auto);
        let by_share = matches!(self.admission, Some(AdmissionArgument::Rule(_)));
        let named = self.allocator.is_some() || !self.settings.is_empty() || mix.is_some();
        if !named && self.window.is_none() && !auto && !by_share {
            return Ok(None);
        }
        let mut config = self.policy(mix)?;
        match mode {
            Some(Mode::Auto) => {
                (config.write_mode, config.fixed_mode) = (Some(config.write_mode.unwrap_or_default()), None);
            }
            Some(Mode::Fixed(_)) => (config.write_mode, config.fixed_mode) = (None, None),
            None => {}
        }
        let admission = self.admission.filter(|admission| !admission.is_auto());
        if let Some(admission) = admission {
            config.admission = admission.rule();
        }
        Ok(Some(config))
    }

    /// Returns the policy's configuration: the mix's, or that of the allocator named here, with the settings given.
    fn policy(&self, mix: Option<&Mix>) -> Result<Config> {
        let of_mix = mix.map(|mix| mix.policies.as_slice()).unwrap_or_default();
        let same =
            |policy: &&PolicySettings| self.allocator.as_ref().is_none_or(|name| policy.allocator == *name);
        let named = || PolicySettings::named(self.allocator.as_deref().unwrap_or("none"));
        let policy = of_mix.iter().find(same).cloned().unwrap_or_else(named);
        let mut policy = crate::policy::changed(&policy, &self.settings)?;
        policy.window = self.window.or(policy.window);
        match mix {
            Some(mix) => mix.config(&policy).map_err(refused),
            None => haversack_control::settings::config(&policy).map_err(CliError::Usage),
        }
    }

    pub(crate) fn settings(&self) -> Pool {
        let blocks = |size: Size| size.0 / haversack_model::BLOCK_BYTES as u64;
        Pool {
            devices: self.devices,
            redundancy: self.redundancy,
            mirrored: self.mirrored,
            staging_blocks: self.staging.map(|size| u32::try_from(blocks(size)).unwrap_or(u32::MAX)),
            share_spare: !self.no_spare,
            targets: self.target.iter().map(|(name, size)| (name.clone(), blocks(*size))).collect(),
            persistence: match self.persistence {
                None | Some(Survives::All) => Persistence::All,
                Some(Survives::Dirty) => Persistence::Dirty,
                Some(Survives::None) => Persistence::None,
            },
            admission: match self.admission {
                Some(AdmissionArgument::Fixed(Admission::Reuse { n, addresses })) => {
                    AdmissionConfig::reuse(n, addresses)
                }
                None | Some(AdmissionArgument::Fixed(Admission::Auto | Admission::Learned)) => {
                    AdmissionConfig::Learned
                }
                Some(_) => AdmissionConfig::Always,
            },
            sequential_cutoff_bytes: self.sequential_cutoff.map_or(0, |size| size.0),
            cleaner: haversack_control::disk::cleaner(self.cleaning),
            phase: self.phase.unwrap_or(0),
            endurance: self.endurance,
            burst_us: self.burst.as_micros(),
            restarts: self.restart_every.map(|every| Restarts {
                every_ns: every.as_micros().saturating_mul(1000),
                kind: match self.restart {
                    Ends::Stop => RestartKind::Stop,
                    Ends::Kill => RestartKind::Kill,
                    Ends::PowerLoss => RestartKind::PowerLoss,
                },
            }),
            ..Pool::default()
        }
    }
}

impl LatencyArguments {
    /// Returns the model, if any option requests it.
    pub fn model(&self) -> Option<LatencyModel> {
        let is_given = self.table() != LatencyTable::default() || self.round_trip.is_some();
        (self.latency || is_given).then(|| self.over(LatencyModel::default()))
    }

    /// Returns a model with what the options say.
    pub fn over(&self, model: LatencyModel) -> LatencyModel {
        let mut model = self.table().over(model);
        model.network_round_trip_us =
            self.round_trip.map_or(model.network_round_trip_us, |span| span.as_micros() as f64);
        model
    }

    /// Returns the options that a table of a mix has too.
    fn table(&self) -> LatencyTable {
        LatencyTable {
            device_read: self.device_read.clone(),
            device_write: self.device_write.clone(),
            device_flush: self.device_flush.clone(),
            device_servers: self.device_servers,
            device_speed: self.device_speed,
            origin_read: self.origin_read.clone(),
            origin_write: self.origin_write.clone(),
            origin_flush: self.origin_flush.clone(),
            origin_servers: self.origin_servers,
            origin_speed: self.origin_speed,
            network_speed: self.network_speed,
        }
    }
}

impl Sim {
    /// Whether a file is to hold the results.
    fn writes_a_file(&self) -> bool {
        #[cfg(feature = "parquet")]
        let parquet = self.parquet.is_some();
        #[cfg(not(feature = "parquet"))]
        let parquet = false;
        parquet || [&self.csv, &self.html, &self.decisions].into_iter().any(Option::is_some)
    }
}

impl Common {
    /// Returns how each trace is read.
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions {
            format: self.format,
            key_bytes: self.key_bytes,
            time_unit_ns: self.time_unit.map(|unit| unit.as_micros().saturating_mul(1000)),
            strict: self.strict,
            ..OpenOptions::default()
        }
    }

    /// Opens all traces.
    pub fn open(&self) -> std::result::Result<Box<dyn Source>, SimError> {
        let options = self.open_options();
        let mut sources = self
            .trace
            .iter()
            .map(|path| haversack_trace::open(path, &options))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(match sources.len() {
            1 => sources.remove(0),
            _ => Box::new(Merged::new(sources, MergeOptions { align: self.align, separate: true })),
        })
    }

    /// Returns the sizes that were asked for.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        if !self.blocks.is_empty() {
            Some(Sizes::Blocks(self.blocks.clone()))
        } else if !self.size.is_empty() {
            Some(Sizes::Bytes(self.size.iter().map(|size| size.0).collect()))
        } else if !self.fractions.is_empty() {
            Some(Sizes::Fractions(self.fractions.clone()))
        } else {
            None
        }
    }

    /// Returns the settings, except policies and block size.
    pub fn settings(&self) -> Result<Option<Settings>> {
        self.sizes().map(|sizes| self.settings_of(sizes)).transpose()
    }

    /// Returns the settings with other sizes.
    pub fn settings_of(&self, sizes: Sizes) -> Result<Settings> {
        if self.trace.is_empty() {
            return Err(CliError::Usage("nothing to simulate: give --trace, one or more of them".into()));
        }
        Ok(self.with_control(sizes, self.pool.settings(), self.pool.control(self.mode, None)?))
    }

    /// Returns the settings with pools of these sizes and no control loop.
    pub(crate) fn settings_without_control(&self, sizes: Sizes) -> Settings {
        self.with_control(sizes, self.pool.settings(), None)
    }

    /// Returns the settings of a mix, with what was asked for here.
    fn settings_of_mix(&self, mix: &Mix) -> Result<Settings> {
        let control = self.pool.control(self.mode, Some(mix))?;
        self.check_targets(control.as_ref())?;
        let of_mix = mix.settings(control).map_err(refused)?;
        let pool = self.pool_of_mix(of_mix.pool);
        let settings = self.with_control(self.sizes().unwrap_or(of_mix.sizes), pool, of_mix.control);
        Ok(Settings { traffic: Traffic { speed_up: mix.speed_up, ..settings.traffic }, ..settings })
    }

    /// Returns the pool of a mix, whose disks have their settings themselves, with what was asked for here.
    pub(crate) fn pool_of_mix(&self, of_mix: Pool) -> Pool {
        let Pool { disks, happenings, .. } = of_mix;
        Pool { disks, happenings, targets: Vec::new(), ..self.pool.settings() }
    }

    fn with_control(&self, sizes: Sizes, pool: Pool, control: Option<Config>) -> Settings {
        Settings {
            sizes,
            mode: self.mode.unwrap_or_default().at_first(),
            traffic: Traffic {
                speed_up: self.speed_up.unwrap_or(1.0),
                interval_ns: self.interval.map(|span| span.as_micros().saturating_mul(1000)),
                warm_up: self.warm_up,
                samples: self.samples,
            },
            pool,
            control,
            latency: self.latency.model(),
            seed: self.seed,
            threads: self.threads,
            ..Settings::default()
        }
    }

    /// Returns the traces' names, for titles.
    pub fn title(&self) -> String {
        let name =
            |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.trace.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

/// A progress bar on a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// Makes an empty bar, hidden if stderr is not a terminal.
    pub fn new() -> Result<Bar> {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new(1000) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:14} {bar:40} {percent:>3} % {elapsed}");
        bar.set_style(style.map_err(failed)?);
        Ok(Bar(bar))
    }

    /// Shows the progress of a stage.
    pub fn show(&self, stage: Stage, part: f64) {
        self.0.set_message(match stage {
            Stage::Survey => "looking through",
            Stage::Play => "simulating",
            Stage::Finish => "bounds",
        });
        self.0.set_position((part * 1000.0) as u64);
    }

    /// Removes the bar.
    pub fn end(self) {
        self.0.finish_and_clear();
    }
}

/// Returns the requested policies, each once.
fn policies(names: &[String]) -> Result<Vec<PolicyName>> {
    let mut policies = Vec::new();
    for name in names {
        if name == "all" {
            policies.extend(PolicyName::ALL);
        } else {
            policies.push(name.parse().map_err(refused)?);
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    policies.retain(|policy| seen.insert(*policy));
    Ok(policies)
}

/// Formats the report. A single result is the object itself, with the trace, the results and the bounds as
/// further keys.
fn json(report: &Report, policies: &[PolicyName]) -> Result<Value> {
    let whole = serde_json::to_value(report).map_err(failed)?;
    let asked: Vec<_> = report.results.iter().filter(|row| policies.contains(&row.policy)).collect();
    let mut object = match &asked[..] {
        [row] => serde_json::to_value(row).map_err(failed)?,
        _ => Value::Object(Map::new()),
    };
    if let (Value::Object(object), Value::Object(whole)) = (&mut object, whole) {
        object.extend(whole);
    }
    Ok(object)
}

/// Returns a row for each cache, and one for each volume in it, which is then named.
#[cfg(feature = "parquet")]
fn rows(report: &Report) -> serde_json::Result<Vec<Value>> {
    let mut rows = Vec::new();
    for result in &report.results {
        let mut row = serde_json::to_value(result)?;
        row["volume"] = Value::Null;
        rows.push(row);
        for volume in &result.volumes {
            let (policy, blocks) = (result.policy, result.blocks);
            rows.push(serde_json::json!({
                "policy": policy, "blocks": blocks, "volume": volume.name, "miss_ratio": volume.miss_ratio,
                "counts": volume.counts,
            }));
        }
    }
    Ok(rows)
}

/// Reports damage in the trace.
pub fn warn(report: &Report) {
    warn_of(&report.trace.damage);
}

/// Reports damage in a trace.
pub fn warn_of(damage: &Damage) {
    for line in &damage.examples {
        eprintln!("haversack: {line}");
    }
    if !damage.is_none() {
        eprintln!(
            "haversack: {} damaged lines were left out, {} accesses were out of order",
            damage.lines, damage.late
        );
    }
}

/// Writes a requested file.
pub fn write(path: Option<&PathBuf>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()).map_err(|error| failed(format!("{}: {error}", path.display())))
}

/// Runs the command.
pub fn run(arguments: &Sim, as_json: bool) -> Result<()> {
    if let Some(at) = arguments.migration.migrate_at {
        return crate::compare_migration::simulate_one(arguments, at, as_json);
    }
    let Some(path) = &arguments.mix else {
        let settings = arguments.common.settings()?.ok_or_else(|| {
            CliError::Usage("no cache size: give --blocks, --size or --fractions, one or more of them".into())
        })?;
        let title = format!("Simulation of {}", arguments.common.title());
        return simulate(arguments, settings, &|| arguments.common.open(), &title, as_json);
    };
    let mut mixes = arguments.common.mix(path)?.by_pool();
    if let Some(pool) = &arguments.pool {
        let known: Vec<String> = mixes.iter().flat_map(Mix::pools).collect();
        mixes.retain(|mix| mix.pools().contains(pool));
        if mixes.is_empty() {
            return Err(CliError::Usage(format!("no pool '{pool}' in the mix: it has {}", known.join(", "))));
        }
    }
    if mixes.len() > 1 && (as_json || arguments.writes_a_file()) {
        let why = "the mix has several pools, but a file or JSON holds only one: select it with --pool";
        return Err(CliError::Usage(why.into()));
    }
    let folder = path.parent().unwrap_or(std::path::Path::new("."));
    for mix in &mixes {
        if mixes.len() > 1 {
            println!("{}", mix.title);
        }
        let settings = arguments.common.settings_of_mix(mix)?;
        simulate(arguments, settings, &|| mix.open(folder), &mix.title, as_json)?;
    }
    Ok(())
}

/// Simulates one pool and prints the result.
fn simulate(
    arguments: &Sim,
    settings: Settings,
    opener: &Opener<'_>,
    title: &str,
    as_json: bool,
) -> Result<()> {
    let policies = policies(&arguments.policy)?;
    let settings = Settings {
        policies: policies.clone(),
        block_bytes: arguments.block_size.0,
        replacement: arguments.replacement,
        ..settings
    };
    if arguments.decisions.is_some() && !(settings.control.is_some() && policies.contains(&PolicyName::Core))
    {
        let why = "--decisions: only policy core decides, and only with a control loop: add --allocator, or give a mix";
        return Err(CliError::Usage(why.into()));
    }
    if arguments.decisions.is_some() && settings.sizes.count() > 1 {
        let why = "--decisions: a file holds the decisions of one pool, but there are several sizes: give one of them";
        return Err(CliError::Usage(why.into()));
    }
    let shown = |policy: &PolicyName| match policy {
        PolicyName::Core => arguments.replacement.policy(),
        policy => *policy,
    };
    let policies: Vec<PolicyName> = policies.iter().map(shown).collect();
    let bar = Bar::new()?;
    let report = haversack_sim::run(opener, &settings, &|stage, part| bar.show(stage, part));
    bar.end();
    let report = report.map_err(refused)?;
    warn(&report);
    write(arguments.csv.as_ref(), || haversack_sim::csv::csv(&report))?;
    write(arguments.decisions.as_ref(), || {
        let mut governed = report.results.iter().filter_map(|row| row.production.as_ref()?.control.as_ref());
        let lines = governed.next_back().map(|governed| governed.log.as_slice()).unwrap_or_default();
        lines.iter().map(|line| format!("{line}\n")).collect()
    })?;
    #[cfg(feature = "parquet")]
    crate::parquet::write(arguments.parquet.as_deref(), rows(&report).map_err(failed)?)?;
    write(arguments.html.as_ref(), || haversack_sim::show::page(&report, title).to_html())?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&json(&report, &policies)?).map_err(failed)?);
    } else {
        println!("{}\n", haversack_sim::show::trace_line(&report));
        print!("{}", haversack_sim::show::table(&report, arguments.speed).to_text());
    }
    Ok(())
}

/// What a mix would be simulated with, in words.
#[cfg(test)]
pub(crate) fn told(arguments: &Sim, path: &std::path::Path) -> Result<String> {
    let mix = arguments.common.mix(path)?;
    let settings = Settings { threads: 0, ..arguments.common.settings_of_mix(&mix)? };
    let Sim { policy, block_size, pool, replacement, .. } = arguments;
    Ok(format!("{:?}", (mix, settings, policy, block_size, pool, replacement)))
}
