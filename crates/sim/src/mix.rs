//! A mix: several disks' loads that share a pool, from traces, presets of real volumes, and generators; the
//! policy that divides the pool; and the events of the disks during the simulation.
//!
//! Each load becomes a disk with the name given in the mix; a load with several volumes becomes one disk per
//! volume. All begin at time 0, or at their `start`. Keys of policies, disks and events are those of the
//! daemon.

mod event;
mod in_turn;
mod keys;
mod shared_base;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use haversack_api::{DiskConfig, PolicySettings, Span, WindowSetting};
use haversack_control::settings;
use haversack_core::AdmissionConfig;
use haversack_model::{BLOCK_BYTES, Micros};
use haversack_policy::{Config, named};
use haversack_trace::generate::{self, GenerateError, Generator, Pattern};
use haversack_trace::{
    Access, Damage, MergeOptions, Merged, OpenOptions, Selection, Source, TraceError, open,
};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterTable;
use crate::error::SimError;
use crate::grid::Grids;
use crate::migration::{MigrationTable, Role};
use crate::settings::{Pool, Settings, Sizes, Traffic};

pub use event::{Happening, Timed, TimedEvent};
pub use keys::MAIN_POOL;
use shared_base::SharedBase;

/// Several loads, and how they are simulated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mix {
    /// The purpose of the mix.
    pub title: String,
    /// Sizes of the pool, as fractions of the blocks that all loads together access.
    #[serde(default = "default_fractions")]
    pub fractions: Vec<f64>,
    /// Length of a window of the control loop in seconds, for policies that do not set it.
    #[serde(default)]
    pub window_s: Option<f64>,
    /// The factor by which time runs faster.
    #[serde(default = "default_speed_up")]
    pub speed_up: f64,
    /// Policies: `[policy]` as in the daemon, or several `[[policy]]`. An allocator that none of them names
    /// has its system's settings.
    #[serde(default, rename = "policy", deserialize_with = "one_or_several")]
    pub policies: Vec<PolicySettings>,
    /// The loads.
    #[serde(rename = "disk")]
    pub disks: Vec<Load>,
    /// The events during the simulation.
    #[serde(default, rename = "event")]
    pub events: Vec<TimedEvent>,
    /// The move of one of the disks to another host, for `compare-migration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationTable>,
    /// The hosts of a cluster between which the disks' VMs move, for `compare-cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterTable>,
}

/// A disk with its load. Exactly one of `trace`, `like` and `generator` says what the load is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Load {
    /// The disk, as in the daemon's configuration.
    #[serde(flatten)]
    pub config: DiskConfig,
    /// A trace file, relative to the mix's folder.
    pub trace: Option<PathBuf>,
    /// A preset of a real volume: `msr:web_0`, `cloudphysics:w27`.
    pub like: Option<String>,
    /// Number of requests of the preset, whose footprint shrinks accordingly; or the first ones of the trace.
    pub requests: Option<u64>,
    /// Duration in seconds to which the preset's requests are scaled; the real duration if not given.
    pub seconds: Option<f64>,
    /// With a trace: only so much of it, from its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// With a trace: the unit of its times, in formats that do not define one.
    #[serde(rename = "time-unit", skip_serializing_if = "Option::is_none")]
    pub time_unit: Option<Span>,
    /// A generator.
    pub generator: Option<Generator>,
    /// Generators whose requests follow when those of the one before have ended, on the same volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Generator>,
    /// The disk, or only a name, whose blocks it reads until it has written them itself. Nothing writes to a base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Another seed gives another load like the preset.
    pub seed: u64,
    /// When its first request arrives.
    pub start: Span,
    /// The host on which it runs before a migration.
    pub host: HostName,
    /// Requests that it keeps in flight in a migration, like a benchmark, whatever their times.
    pub depth: Option<u32>,
}

/// One of the two hosts of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostName {
    /// The source.
    #[default]
    A,
    /// The destination.
    B,
}

/// Distance between the seeds of a load for consecutive seeds of the mix, so that no two loads have the same
/// seed.
const SEED_STRIDE: u64 = 1_000_003;

fn default_fractions() -> Vec<f64> {
    vec![0.1]
}

fn default_speed_up() -> f64 {
    1.0
}

/// Reads a table, or an array of tables.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PolicySettings>, D::Error> {
    struct OneOrSeveral;

    impl<'de> Visitor<'de> for OneOrSeveral {
        type Value = Vec<PolicySettings>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("[policy] or [[policy]]")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Ok(vec![PolicySettings::deserialize(MapAccessDeserializer::new(map))?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(sequence))
        }
    }

    deserializer.deserialize_any(OneOrSeveral)
}

fn wrong(disk: &str, why: impl std::fmt::Display) -> SimError {
    SimError::Settings(format!("disk '{disk}' of the mix: {why}"))
}

impl Mix {
    /// Checks what can be checked without reading a trace.
    ///
    /// # Errors
    /// The error says what is wrong and what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        let title = &self.title;
        let refused = |why: &str| Err(SimError::Settings(format!("the mix '{title}': {why}")));
        if self.disks.is_empty() {
            return refused("there is no disk in it");
        }
        if self.window_s.is_some_and(|seconds| !(seconds.is_finite() && seconds >= 1e-3)) {
            return refused("a window takes at least a millisecond");
        }
        if !(self.speed_up.is_finite() && self.speed_up > 0.0) {
            return refused("a speed-up is above 0");
        }
        for base in self.disks.iter().filter(|disk| self.is_base(disk)) {
            base.check_base().map_err(|why| wrong(base.name(), why))?;
        }
        let mut names = BTreeSet::new();
        for disk in &self.disks {
            disk.check()?;
            if !names.insert(disk.name()) {
                return Err(wrong(disk.name(), "there are two of this name"));
            }
        }
        for pool in self.pools() {
            let disks = self.disks.iter().filter(|disk| disk.config.pool == pool);
            let weighed = settings::check_weights(&pool, disks.map(|disk| &disk.config));
            weighed.map_err(|why| SimError::Settings(format!("the mix '{title}': {why}")))?;
        }
        self.policies.iter().try_for_each(|policy| self.config(policy).map(|_| ()))?;
        self.migration.iter().try_for_each(MigrationTable::check)?;
        self.happenings().map(|_| ())
    }

    /// Whether another disk begins as a copy of this one.
    fn is_base(&self, disk: &Load) -> bool {
        self.disks.iter().any(|other| other.base.as_deref() == Some(disk.name()))
    }

    /// The pools that its disks name, in order.
    pub fn pools(&self) -> Vec<String> {
        let mut pools: Vec<String> = Vec::new();
        for disk in &self.disks {
            if !pools.contains(&disk.config.pool) {
                pools.push(disk.config.pool.clone());
            }
        }
        pools
    }

    /// One mix for each pool. Pools share nothing, so each is simulated alone.
    pub fn by_pool(&self) -> Vec<Mix> {
        let pools = self.pools();
        if pools.len() < 2 {
            return vec![self.clone()];
        }
        let of = |pool: &String| {
            let mut mix = Mix { title: format!("{}: pool {pool}", self.title), ..self.clone() };
            mix.disks.retain(|disk| disk.config.pool == *pool);
            mix.events.retain(|event| mix.disks.iter().any(|disk| disk.is_of(&event.disk)));
            mix
        };
        pools.iter().map(of).collect()
    }

    /// A policy's configuration, with the mix's window unless it has its own. A system that measures disks over
    /// more than one window does so still, over as many.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn config(&self, policy: &PolicySettings) -> Result<Config, SimError> {
        let refused =
            |why: String| SimError::Settings(format!("[policy] of the mix '{}': {why}", self.title));
        let mut settings = policy.clone();
        if let (None, Some(seconds)) = (settings.window, self.window_s) {
            let system = named(&settings.allocator).map_err(|error| refused(error.to_string()))?;
            let Config { window_us, measurement_us, disk_window_us, .. } = with_windows(&system, seconds);
            let span = |us| Span(std::time::Duration::from_micros(us));
            settings.window = Some(span(window_us));
            settings.measurement.get_or_insert(span(measurement_us));
            if disk_window_us > 0 {
                settings.disk_window.get_or_insert(WindowSetting::Length(span(disk_window_us)));
            }
        }
        settings::config(&settings).map_err(refused)
    }

    /// The configurations of an allocator: of each policy that names it, or of its system; with the keys by which
    /// they differ from it.
    ///
    /// # Errors
    /// There is no such allocator, or a setting is invalid.
    pub fn configs(&self, allocator: &str) -> Result<Vec<(String, Config)>, SimError> {
        named(allocator).map_err(|error| SimError::Settings(error.to_string()))?;
        let mut policies: Vec<_> =
            self.policies.iter().filter(|policy| policy.allocator == allocator).cloned().collect();
        if policies.is_empty() {
            policies.push(PolicySettings::named(allocator));
        }
        policies.iter().map(|policy| Ok((label(policy), self.config(policy)?))).collect()
    }

    /// The events, in order of time.
    ///
    /// # Errors
    /// An event is invalid, or belongs to no disk.
    pub fn happenings(&self) -> Result<Vec<Timed>, SimError> {
        let mut all = Vec::new();
        for event in &self.events {
            if !self.disks.iter().any(|disk| disk.is_of(&event.disk)) {
                let known: Vec<&str> = self.disks.iter().map(Load::name).collect();
                return Err(wrong(
                    &event.disk,
                    format!("an event of no disk; there are {}", known.join(", ")),
                ));
            }
            let timed = event.happening(self.speed_up);
            all.push(timed.map_err(|why| wrong(&event.disk, format!("event at {}: {why}", event.at)))?);
        }
        all.sort_by_key(|timed| timed.at_ns);
        Ok(all)
    }

    /// The settings of a simulation of it on one host, with a control loop of this configuration.
    ///
    /// # Errors
    /// As [`Mix::check`]; a disk is on another host.
    pub fn settings(&self, control: Option<Config>) -> Result<Settings, SimError> {
        if let Some(load) = self.disks.iter().find(|load| load.host == HostName::B || load.depth.is_some()) {
            let why =
                "'host' and 'depth' are for a migration: use compare-migration, or sim with --migrate-at";
            return Err(wrong(load.name(), why));
        }
        self.settings_of_pools(control)
    }

    /// The settings of a migration of one of its disks.
    ///
    /// # Errors
    /// As [`Mix::check`]; the mix has features that a migration does not simulate.
    pub fn settings_of_migration(&self) -> Result<Settings, SimError> {
        let refused = |what: &str| {
            Err(SimError::Settings(format!("the mix '{}': a migration is simulated {what}", self.title)))
        };
        if !self.policies.is_empty() {
            return refused("without a control loop: leave [policy] out, and give disks their targets");
        }
        if !self.events.is_empty() {
            return refused("without other events: leave [[event]] out");
        }
        if self.pools().len() > 1 {
            return refused("with one pool on each host: name no 'pool', but the disks' 'host'");
        }
        if self.disks.iter().any(|disk| disk.base.is_some()) {
            return refused("of disks with blocks of their own: leave 'base' out");
        }
        let settings = self.settings_of_pools(None)?;
        // Without a control loop the pool has the daemon's admission.
        Ok(Settings { pool: Pool { admission: AdmissionConfig::Learned, ..settings.pool }, ..settings })
    }

    fn settings_of_pools(&self, control: Option<Config>) -> Result<Settings, SimError> {
        self.check()?;
        let pool = Pool {
            disks: self.disks.iter().map(|disk| disk.config.clone()).collect(),
            happenings: self.happenings()?,
            ..Pool::default()
        };
        Ok(Settings {
            sizes: Sizes::Fractions(self.fractions.clone()),
            traffic: Traffic { speed_up: self.speed_up, ..Traffic::default() },
            pool,
            control,
            ..Settings::default()
        })
    }

    /// Returns the mix with other random numbers in its generated loads. Seed 1 gives the mix itself, and so does every
    /// seed if all loads are recorded.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Mix {
        let added = seed.wrapping_sub(1).wrapping_mul(SEED_STRIDE);
        let mut mix = self.clone();
        for disk in &mut mix.disks {
            if disk.like.is_some() {
                disk.seed = disk.seed.wrapping_add(added);
            }
            for generator in disk.generator.iter_mut().chain(&mut disk.then) {
                generator.seed = generator.seed.wrapping_add(added);
            }
        }
        mix
    }

    /// Opens all loads as one trace. Paths are relative to `folder`.
    ///
    /// # Errors
    /// A trace cannot be opened, or a load is invalid.
    pub fn open(&self, folder: &Path) -> Result<Box<dyn Source>, SimError> {
        let sources = self.disks.iter().map(|disk| disk.open(folder));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        // Each load has its own beginning.
        let merged = Box::new(Merged::new(sources, MergeOptions { align: false, separate: true }));
        let base = |disk: &Load| Some((disk.name().to_owned(), disk.base.clone()?));
        let bases: Vec<_> = self.disks.iter().filter_map(base).collect();
        if bases.is_empty() {
            return Ok(merged);
        }
        let phases = self.disks.iter().map(|disk| (disk.name().to_owned(), disk.config.phase));
        let grids = Grids::new(BLOCK_BYTES as u64, 0, phases.collect());
        Ok(Box::new(SharedBase::new(merged, bases, grids)))
    }
}

/// Intensity is measured in this last fraction of a mix's window, but for at most a minute.
const MEASURED_PART: f64 = 0.25;
const LONGEST_MEASUREMENT_US: Micros = 60_000_000;

/// A configuration with windows of this many seconds, and a shorter measurement of intensity at their end. What disks
/// are measured over is as many windows as before.
pub fn with_windows(config: &Config, seconds: f64) -> Config {
    let window_us = (seconds * 1e6) as Micros;
    let measured_us = (window_us as f64 * MEASURED_PART) as Micros;
    let windows_of_disk = config.disk_window_us as f64 / config.window_us as f64;
    Config {
        window_us,
        measurement_us: measured_us.clamp(1, LONGEST_MEASUREMENT_US),
        disk_window_us: (windows_of_disk * window_us as f64) as Micros,
        ..config.clone()
    }
}

/// An allocator and the keys that a policy gives beside it: `urd (write_threshold=0.3)`.
fn label(policy: &PolicySettings) -> String {
    let Ok(serde_json::Value::Object(keys)) = serde_json::to_value(policy) else {
        return policy.allocator.clone();
    };
    let keys = keys.iter().filter(|(key, _)| *key != "allocator");
    let keys: Vec<String> = keys
        .map(|(key, value)| format!("{key}={}", value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect();
    if keys.is_empty() {
        policy.allocator.clone()
    } else {
        format!("{} ({})", policy.allocator, keys.join(", "))
    }
}

/// Whether a volume belongs to a disk of a mix: it has the disk's name, alone or before a slash.
pub fn is_of(volume: &str, disk: &str) -> bool {
    volume.strip_prefix(disk).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Load {
    /// The seed of a load that does not name one.
    pub const SEED: u64 = 1;

    /// A disk with defaults, still without a load.
    pub fn named(name: &str) -> Load {
        Load {
            config: DiskConfig::new(name, MAIN_POOL, ""),
            trace: None,
            like: None,
            requests: None,
            seconds: None,
            span: None,
            time_unit: None,
            generator: None,
            then: Vec::new(),
            base: None,
            seed: Load::SEED,
            start: Span::default(),
            host: HostName::A,
            depth: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether this is its name, or that of one of its volumes.
    fn is_of(&self, volume: &str) -> bool {
        is_of(volume, self.name())
    }

    /// Checks a disk that is the base of others: it only reads, has no base itself, and is one volume.
    fn check_base(&self) -> Result<(), &'static str> {
        if self.may_write() {
            return Err("it is a base, and nothing may write to one: give it a 'generator' that only reads");
        }
        if self.base.is_some() {
            return Err("it is a base, and may not have one itself: name the first base in all its copies");
        }
        if self.generator.as_ref().is_some_and(|generator| generator.volumes > 1) {
            return Err("it is a base, and must be one volume: set 'volumes = 1' in its generator");
        }
        Ok(())
    }

    fn may_write(&self) -> bool {
        let only_reads = |generator: &Generator| {
            let has_mix = !matches!(generator.pattern, Pattern::Ycsb { .. } | Pattern::BootStorm { .. });
            has_mix && generator.mix.read >= 1.0
        };
        self.generator.is_none() || !self.generator.iter().chain(&self.then).all(only_reads)
    }

    fn check(&self) -> Result<(), SimError> {
        let kinds = [self.trace.is_some(), self.like.is_some(), self.generator.is_some()];
        if kinds.into_iter().filter(|given| *given).count() != 1 {
            return Err(wrong(self.name(), "give one of 'trace', 'like' and 'generator'"));
        }
        self.check_keys().map_err(|why| wrong(self.name(), why))?;
        let volumes = self.generator.as_ref().map(|generator| generator.volumes);
        if self.then.iter().any(|next| Some(next.volumes) != volumes) {
            return Err(wrong(self.name(), "'then' follows a 'generator', with as many volumes"));
        }
        if self.depth == Some(0) {
            return Err(wrong(self.name(), "a depth is 1 or more"));
        }
        settings::check_disk(&self.config).map_err(|why| wrong(self.name(), why))
    }

    /// Refuses keys that have no effect on this kind of load.
    fn check_keys(&self) -> Result<(), &'static str> {
        if self.trace.is_none() {
            if self.span.is_some() {
                return Err("a 'span' is of a 'trace'");
            }
            if self.time_unit.is_some() {
                return Err("a 'time-unit' is of a 'trace'");
            }
        }
        if self.like.is_none() {
            if self.seconds.is_some() {
                return Err(
                    "'seconds' are of a load 'like' a real volume: a trace has its own times, a generator a 'rate'",
                );
            }
            if self.seed != Load::SEED {
                return Err("a 'seed' is of a load 'like' a real volume: a generator has its own");
            }
        }
        if self.generator.is_some() && self.requests.is_some() {
            return Err(
                "'requests' are of a 'trace', or of a load 'like' a real volume: a generator has its own",
            );
        }
        Ok(())
    }

    /// The role of its VM in a migration.
    pub(crate) fn role(&self, moves: bool) -> Role {
        match self.host {
            HostName::A if moves => Role::Moves,
            HostName::A => Role::AtSource,
            HostName::B => Role::AtDestination,
        }
    }

    pub(crate) fn open(&self, folder: &Path) -> Result<Box<dyn Source>, SimError> {
        let refused = |error: GenerateError| wrong(self.name(), error);
        let source = if let Some(path) = &self.trace {
            let span_ns = self.span.map(|span| 0..span.as_micros().saturating_mul(1000));
            let selection = Selection { span_ns, limit: self.requests, ..Selection::default() };
            let time_unit_ns = self.time_unit.map(|unit| unit.as_micros().saturating_mul(1000));
            open(&folder.join(path), &OpenOptions { selection, time_unit_ns, ..OpenOptions::default() })?
        } else if let Some(name) = &self.like {
            let mut profile = generate::preset(name).map_err(refused)?;
            if let Some(requests) = self.requests {
                profile = profile.scaled(requests as f64 / profile.requests().max(1) as f64);
            }
            if let Some(seconds) = self.seconds {
                profile.median_gap_s = profile.median_gap_s.map(|gap| gap * seconds / profile.span_s);
                profile.span_s = seconds;
            }
            profile.source(self.seed).map_err(refused)?
        } else if let Some(generator) = &self.generator {
            in_turn::source(generator, &self.then).map_err(refused)?
        } else {
            return Err(wrong(self.name(), "give one of 'trace', 'like' and 'generator'"));
        };
        let start_ns = self.start.as_micros().saturating_mul(1000);
        let name = self.name().to_owned();
        let unit_ns = if source.is_timed() { 1 } else { Traffic::TIMELESS_INTERVAL_NS };
        Ok(Box::new(Named { name, source, names: Vec::new(), start_ns, first_ns: None, unit_ns }))
    }
}

/// A source whose volumes have the disk's name, and whose first request arrives when the disk starts. Requests without
/// times arrive at an interval, so that they have times beside other loads.
struct Named {
    name: String,
    source: Box<dyn Source>,
    names: Vec<String>,
    start_ns: u64,
    first_ns: Option<u64>,
    /// Of the time of the source.
    unit_ns: u64,
}

impl Source for Named {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        let read = self.source.read(into)?;
        let new = &mut into[before..];
        if let Some(first) = new.first() {
            let first_ns = *self.first_ns.get_or_insert(first.time_ns);
            let (start_ns, unit_ns) = (self.start_ns, self.unit_ns);
            new.iter_mut()
                .for_each(|access| access.time_ns = (access.time_ns - first_ns) * unit_ns + start_ns);
        }
        let volumes = self.source.volumes();
        if volumes.len() > self.names.len() {
            let named = |volume: &String| format!("{}/{volume}", self.name);
            self.names = match volumes {
                [_] => vec![self.name.clone()],
                // A name that was already returned stays: the first volume may have been the only one then.
                several if self.names.is_empty() => several.iter().map(named).collect(),
                several => {
                    self.names.iter().cloned().chain(several[self.names.len()..].iter().map(named)).collect()
                }
            };
        }
        Ok(read)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }

    fn read_once(&self) -> Option<&Path> {
        self.source.read_once()
    }

    fn damage(&self) -> Damage {
        self.source.damage()
    }
}
