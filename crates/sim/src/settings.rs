//! The settings of a simulation: traffic, caches, time.

use std::str::FromStr;

use haversack_api::DiskConfig;
use haversack_control::budget::DAY_US;
use haversack_control::endurance::Endurance;
use haversack_core::{AdmissionConfig, CleanerConfig, Persistence, Target};
use haversack_model::{BLOCK_BYTES, Micros, SECTORS_PER_BLOCK, WriteMode};
use haversack_policy::Config;

use crate::error::SimError;
use crate::latency::LatencyModel;
use crate::mix::{Timed, is_of};
use crate::reference::PolicyName;

/// How the trace is played.
#[derive(Clone, PartialEq, Debug)]
pub struct Traffic {
    /// Time runs n times faster than it was recorded.
    pub speed_up: f64,
    /// Requests arrive at this fixed interval, whatever the trace says. If not given, requests of traces
    /// without times arrive at [`Traffic::TIMELESS_INTERVAL_NS`].
    pub interval_ns: Option<u64>,
    /// The share of the requests that warms the cache and is not counted.
    pub warm_up: f64,
    /// Number of samples of the caches, evenly distributed over the trace; 0 for none.
    pub samples: u32,
}

impl Traffic {
    /// The interval of requests in traces without times: 10 us.
    pub const TIMELESS_INTERVAL_NS: u64 = 10_000;
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic { speed_up: 1.0, interval_ns: None, warm_up: 0.0, samples: 0 }
    }
}

/// How a restart ends the production cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RestartKind {
    /// Stopped cleanly.
    #[default]
    Stop,
    /// Killed: the staging area stays.
    Kill,
    /// A power loss: the staging area is gone.
    PowerLoss,
}

/// Restarts of the production cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restarts {
    /// The time between two restarts.
    pub every_ns: u64,
    /// The kind of restart.
    pub kind: RestartKind,
}

/// The production cache's pool, in the terms of the daemon's configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    /// Number of identical cache devices; together they have the requested blocks.
    pub devices: u32,
    /// Dirty blocks are written to two devices.
    pub redundancy: bool,
    /// Devices are pairs, and everything is written to both of a pair: RAID-1 below the cache. For comparison.
    pub mirrored: bool,
    /// Blocks of the staging area. Not given: the daemon's 16,384, but at most a 64th of the pool.
    pub staging_blocks: Option<u32>,
    /// Blocks of transfer memory.
    pub transfer_blocks: u32,
    /// Whether a disk may exceed its target while no other disk needs the space.
    pub share_spare: bool,
    /// Targets of the volumes, by name.
    pub targets: Vec<(String, u64)>,
    /// The target of the other volumes.
    pub others: Target,
    /// The blocks that survive a restart.
    pub persistence: Persistence,
    /// Which blocks may enter.
    pub admission: AdmissionConfig,
    /// Requests that continue a run longer than this bypass the cache; 0 for never.
    pub sequential_cutoff_bytes: u64,
    /// When dirty blocks are cleaned.
    pub cleaner: CleanerConfig,
    /// The grid phase of all disks, in sectors.
    pub phase: u8,
    /// Restarts.
    pub restarts: Option<Restarts>,
    /// Settings of disks, as in the daemon; volumes without them use the settings here.
    pub disks: Vec<DiskConfig>,
    /// Events of disks during the simulation, in order of time. Needs a control loop.
    pub happenings: Vec<Timed>,
    /// The budget of flash writes.
    pub endurance: Option<Endurance>,
    /// The part of the budget that a burst may use, as the time in which it accrues.
    pub burst_us: Micros,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            devices: 1,
            redundancy: false,
            mirrored: false,
            staging_blocks: None,
            transfer_blocks: 8192,
            share_spare: true,
            targets: Vec::new(),
            others: Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX },
            persistence: Persistence::All,
            admission: AdmissionConfig::Always,
            sequential_cutoff_bytes: 0,
            cleaner: CleanerConfig::default(),
            phase: 0,
            restarts: None,
            disks: Vec::new(),
            happenings: Vec::new(),
            endurance: None,
            burst_us: DAY_US,
        }
    }
}

impl Pool {
    /// The settings that are not the default and that only the production cache has.
    fn of_the_production_cache(&self) -> impl Iterator<Item = &'static str> {
        let (plain, plain_disk) = (Pool::default(), DiskConfig::new("disk", "pool", ""));
        let of_a_disk = |differs: fn(&DiskConfig, &DiskConfig) -> bool| {
            self.disks.iter().any(|disk| differs(disk, &plain_disk))
        };
        [
            (self.devices > 1, "several devices"),
            (self.restarts.is_some(), "restarts"),
            (self.staging_blocks.is_some(), "a staging area"),
            (!self.share_spare, "a limit of disks to their targets"),
            (
                self.persistence != plain.persistence
                    || of_a_disk(|disk, plain| disk.persistence != plain.persistence),
                "blocks that do not survive a restart",
            ),
            (
                self.sequential_cutoff_bytes > 0
                    || of_a_disk(|disk, plain| disk.sequential_cutoff != plain.sequential_cutoff),
                "a sequential cutoff",
            ),
            (
                self.cleaner != plain.cleaner || of_a_disk(|disk, plain| disk.cleaner != plain.cleaner),
                "a cleaner",
            ),
            (self.endurance.is_some(), "a budget of flash writes"),
        ]
        .into_iter()
        .filter_map(|(is_set, what)| is_set.then_some(what))
    }
}

/// The replacement in a pool that is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replacement {
    /// The production cache's own.
    #[default]
    Core,
    /// Exact LRU, as in CloudCache, vCacheShare and ECI-Cache.
    Lru,
    /// ARC, as in Liu.
    Arc,
}

impl Replacement {
    /// The policy shown in the rows of such pools.
    pub fn policy(self) -> PolicyName {
        match self {
            Replacement::Core => PolicyName::Core,
            Replacement::Lru => PolicyName::Lru,
            Replacement::Arc => PolicyName::Arc,
        }
    }
}

impl FromStr for Replacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "core" => Ok(Replacement::Core),
            "lru" => Ok(Replacement::Lru),
            "arc" => Ok(Replacement::Arc),
            _ => Err(format!("replacement '{text}': expected core, lru or arc")),
        }
    }
}

/// The sizes of caches.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// In blocks.
    Blocks(Vec<u64>),
    /// In bytes.
    Bytes(Vec<u64>),
    /// These fractions of the blocks that the trace accesses, if it accesses any at least one block each.
    Fractions(Vec<f64>),
}

impl Sizes {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Sizes::Blocks(sizes) | Sizes::Bytes(sizes) => sizes.len(),
            Sizes::Fractions(parts) => parts.len(),
        }
    }

    /// The sizes in blocks, for a trace with this footprint.
    ///
    /// # Errors
    /// [`SimError::Settings`] for no sizes, and for a size of zero blocks.
    pub fn blocks(&self, block_bytes: u64, footprint_blocks: u64) -> Result<Vec<u64>, SimError> {
        let blocks: Vec<u64> = match self {
            Sizes::Blocks(blocks) => blocks.clone(),
            Sizes::Bytes(bytes) => bytes.iter().map(|bytes| bytes / block_bytes).collect(),
            Sizes::Fractions(parts) => {
                let fewest = footprint_blocks.min(1);
                parts.iter().map(|part| ((part * footprint_blocks as f64) as u64).max(fewest)).collect()
            }
        };
        if blocks.is_empty() || blocks.contains(&0) {
            return Err(SimError::Settings(format!(
                "a cache needs at least one block of {block_bytes} bytes, found sizes of {blocks:?} blocks"
            )));
        }
        Ok(blocks)
    }
}

/// All settings of a simulation except the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The policies to simulate, each with each size. The bounds are always added.
    pub policies: Vec<PolicyName>,
    /// The sizes to simulate.
    pub sizes: Sizes,
    /// Bytes of a block. The production cache has 4,096.
    pub block_bytes: u64,
    /// The write mode.
    pub mode: WriteMode,
    /// How the trace is played.
    pub traffic: Traffic,
    /// The production cache.
    pub pool: Pool,
    /// The replacement in the pool.
    pub replacement: Replacement,
    /// The control loop over the production cache; without it, targets, admission and mode stay as they are given.
    pub control: Option<Config>,
    /// The model of time; without it, I/Os complete at once.
    pub latency: Option<LatencyModel>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Caches simulated at a time; 0 for as many as there are processors.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policies: vec![PolicyName::Core],
            sizes: Sizes::Fractions(vec![0.1]),
            block_bytes: BLOCK_BYTES as u64,
            mode: WriteMode::WriteBack,
            traffic: Traffic::default(),
            pool: Pool::default(),
            replacement: Replacement::Core,
            control: None,
            latency: None,
            seed: 1,
            threads: 0,
        }
    }
}

impl Settings {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// [`SimError::Settings`] says what is wrong and what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        let wrong = |why: String| Err(SimError::Settings(why));
        let traffic = &self.traffic;
        if !self.block_bytes.is_power_of_two() || !(512..=1 << 30).contains(&self.block_bytes) {
            return wrong(format!(
                "block sizes are powers of two from 512 bytes to 1 GiB, not {}",
                self.block_bytes
            ));
        }
        if self.policies.contains(&PolicyName::Core) && self.block_bytes != BLOCK_BYTES as u64 {
            return wrong(format!(
                "the production cache has blocks of {BLOCK_BYTES} bytes, not {}",
                self.block_bytes
            ));
        }
        if !(traffic.speed_up.is_finite() && traffic.speed_up > 0.0) {
            return wrong(format!("a speed-up is above 0, not {}", traffic.speed_up));
        }
        if !(0.0..1.0).contains(&traffic.warm_up) {
            return wrong(format!(
                "the warm-up is a share of the trace from 0 to below 1, not {}",
                traffic.warm_up
            ));
        }
        if let Sizes::Fractions(parts) = &self.sizes
            && !parts.iter().all(|part| part.is_finite() && *part > 0.0)
        {
            return wrong(format!("sizes are parts of the footprint above 0, not {parts:?}"));
        }
        let phases = self.pool.disks.iter().map(|disk| disk.phase).chain([self.pool.phase]);
        if let Some(phase) = phases.max().filter(|phase| u64::from(*phase) >= SECTORS_PER_BLOCK) {
            return wrong(format!("a grid phase is a number of sectors from 0 to 7, not {phase}"));
        }
        if self.pool.redundancy && self.pool.devices < 2 {
            return wrong("redundancy needs two cache devices or more".into());
        }
        if let Some(model) = &self.latency {
            model.check().map_err(|error| SimError::Settings(error.to_string()))?;
        }
        if let Some(config) = &self.control {
            config.check().map_err(|error| SimError::Settings(error.to_string()))?;
        }
        if self.pool.mirrored && self.pool.redundancy {
            return wrong("mirrored devices keep everything twice already: leave redundancy out".into());
        }
        if self.pool.mirrored && !self.pool.devices.is_multiple_of(2) {
            return wrong(format!(
                "mirrored devices are pairs: their number is even, not {}",
                self.pool.devices
            ));
        }
        if self.replacement != Replacement::Core
            && let Some(first) = self.pool.of_the_production_cache().next()
        {
            return wrong(format!(
                "only the production cache has {first}: leave that out, or --replacement {}",
                self.replacement.policy()
            ));
        }
        if self.control.is_none() && !self.pool.happenings.is_empty() {
            return wrong("events of disks need an allocator: name one, such as none".into());
        }
        if self.pool.restarts.is_some_and(|restarts| restarts.every_ns == 0) {
            return wrong("restarts need time between them".into());
        }
        Ok(())
    }

    /// The settings of a volume's disk, if it has its own.
    pub fn disk(&self, volume: &str) -> Option<&DiskConfig> {
        self.pool.disks.iter().find(|disk| is_of(volume, &disk.name))
    }

    /// Whether writes bring blocks into the cache. Only then does a write hit or miss count.
    pub fn writes_allocate(&self) -> bool {
        self.mode.caches_write(false)
    }
}
