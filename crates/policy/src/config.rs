//! The configuration of decisions: an allocator, a demand model, a forecast, an admission filter, and a choice
//! of write modes.
//!
//! The systems from the papers are available [by name](crate::named), for a single key in a configuration file; any
//! other combination can be spelled out.

use haversack_model::{BLOCK_BYTES, Micros, WriteMode};
use serde::{Deserialize, Serialize};

use crate::allocate::problem::Solver;
use crate::allocate::{Spare, Weighting, annealing::Annealing, exact::Exact, hull::Hull};
use crate::demand::running_knee::MOST_WINDOWS;
use crate::demand::utility::Reading;
use crate::demand::working_set_window::MOST_REUSES;
use crate::demand::{
    All, Demand, ReadOnly, ReuseWorkingSet, ReusedAddresses, TouchCount, Traditional, Useful, WorkingSet,
};
use crate::error::{PolicyError, check_range};
use crate::forecast::Method;
use crate::write_mode::WriteModeChoice;
use haversack_admission::{Admit, StagingKind};

/// How the length of a disk's window is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnWindow {
    /// It is this.
    Length(Micros),
    /// It is chosen while the disk runs, at the [knee](crate::demand::running_knee) of hit ratio against length.
    AtKnee,
}

/// A demand model by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DemandRule {
    /// Distinct blocks.
    Wss,
    /// Distinct blocks reused at least this many times.
    Rwss {
        /// N, from 1 to 4.
        reuses: u8,
    },
    /// The demand of the largest reuse distance.
    Trd,
    /// The demand of the largest useful reuse distance.
    Urd,
    /// The demand of the largest reuse distance among reads.
    ReadOnly,
    /// What HEC would admit.
    TouchCount,
    /// Blocks used that were used before: the addresses that LARC sees again.
    ReusedAddresses,
    /// All that the disk may have: its limit, or the pool.
    All,
}

impl DemandRule {
    /// Returns the model.
    pub fn model(self) -> Box<dyn Demand> {
        match self {
            DemandRule::Wss => Box::new(WorkingSet),
            DemandRule::Rwss { reuses } => Box::new(ReuseWorkingSet { reuses }),
            DemandRule::Trd => Box::new(Traditional),
            DemandRule::Urd => Box::new(Useful),
            DemandRule::ReadOnly => Box::new(ReadOnly),
            DemandRule::TouchCount => Box::new(TouchCount),
            DemandRule::ReusedAddresses => Box::new(ReusedAddresses),
            DemandRule::All => Box::new(All),
        }
    }
}

/// What unaligned accesses count for in measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unaligned {
    /// For each block that they touch.
    #[default]
    Counted,
    /// For the blocks that they cover as a whole.
    Discarded,
}

/// A solver by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SolverRule {
    /// The steepest steps of the hulls.
    Hull,
    /// Dynamic programming.
    #[default]
    Exact,
    /// Simulated annealing.
    Annealing {
        /// The generator's seed.
        seed: u64,
        /// Number of moves tried.
        moves: u32,
    },
}

impl SolverRule {
    /// Returns the solver.
    pub fn solver(self) -> Box<dyn Solver> {
        match self {
            SolverRule::Hull => Box::new(Hull),
            SolverRule::Exact => Box::new(Exact),
            SolverRule::Annealing { seed, moves } => Box::new(Annealing { seed, moves }),
        }
    }
}

/// An allocation rule by name.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocatorRule {
    /// One pool for all.
    None,
    /// Equal parts.
    Equal,
    /// Sizes set by the operator.
    Static,
    /// In proportion to demand.
    Proportional {
        /// What happens to spare space.
        spare: Spare,
    },
    /// Highest total utility.
    Utility {
        /// The weight of intensity.
        alpha: f64,
        /// How the paper's equation is interpreted.
        reading: Reading,
        /// The solver.
        solver: SolverRule,
        /// What happens to spare space.
        spare: Spare,
    },
    /// Lowest total latency.
    MinimumLatency {
        /// The solver.
        solver: SolverRule,
        /// What happens to space that no disk demands. Logs of earlier versions do not say.
        #[serde(default)]
        spare: Spare,
    },
    /// Fair by weight, from tenant to VM to disk.
    MaxMin {
        /// What the weights are based on.
        weighting: Weighting,
        /// Size of a chunk in blocks.
        chunk_blocks: u64,
        /// What happens to spare space.
        spare: Spare,
    },
}

impl AllocatorRule {
    /// Returns what happens to spare space.
    pub fn spare(self) -> Spare {
        match self {
            AllocatorRule::None | AllocatorRule::Equal | AllocatorRule::Static => Spare::Shared,
            AllocatorRule::Proportional { spare }
            | AllocatorRule::Utility { spare, .. }
            | AllocatorRule::MinimumLatency { spare, .. }
            | AllocatorRule::MaxMin { spare, .. } => spare,
        }
    }
}

/// An admission filter by name, before its size is known.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdmissionRule {
    /// Everything.
    Always,
    /// Blocks that are reused while they are staged.
    Staging(Staging),
    /// Touch count and rejection of sequences, in regions and runs of 4 MiB.
    Hec,
    /// Lazy adaptive replacement.
    Larc,
    /// Blocks that are mostly used again while they would stay.
    Learned,
    /// Blocks read by requests of at most this many blocks.
    SmallReads {
        /// Blocks of the largest such request.
        most_blocks: u8,
    },
}

/// Staging memory of all disks together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Staging {
    /// The kind of staging.
    pub kind: StagingKind,
    /// N, the number of reuses.
    pub reuses: u8,
    /// The memory of all disks together, as a share of the pool's bytes: 0.001 to 0.01 in the paper.
    pub share_of_pool: f64,
}

/// Size of HEC's regions and longest run in blocks: 4 MiB.
const HEC_BLOCKS: u64 = 1024;

/// The largest unit of distances: 1 MiB.
const MOST_UNIT_BLOCKS: u64 = 256;

/// The share of the pool used for staging by default.
const STAGING_SHARE: f64 = 0.005;

impl std::str::FromStr for AdmissionRule {
    type Err = PolicyError;

    /// Parses `always`, `learned`, `hec`, `larc`, `small-reads(BLOCKS)`, or reuse before admission as `address(N)`,
    /// `data(N)`, `hybrid(N)` with N reuses.
    fn from_str(text: &str) -> Result<AdmissionRule, PolicyError> {
        let unknown = || PolicyError::UnknownName {
            what: "admission",
            found: text.into(),
            expected: "always, learned, hec, larc, small-reads(BLOCKS), address(N), data(N) or hybrid(N)",
        };
        let (name, reuses) = match text.strip_suffix(')').and_then(|open| open.split_once('(')) {
            Some((name, reuses)) => (name, Some(reuses.trim().parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        let staging = |kind| Ok(AdmissionRule::staging(kind, reuses.ok_or_else(unknown)?));
        match (name, reuses) {
            ("always", None) => Ok(AdmissionRule::Always),
            ("learned", None) => Ok(AdmissionRule::Learned),
            ("hec", None) => Ok(AdmissionRule::Hec),
            ("larc", None) => Ok(AdmissionRule::Larc),
            ("small-reads", Some(most_blocks)) => Ok(AdmissionRule::SmallReads { most_blocks }),
            ("address", _) => staging(StagingKind::Address),
            ("data", _) => staging(StagingKind::Data),
            ("hybrid", _) => staging(StagingKind::Hybrid),
            _ => Err(unknown()),
        }
    }
}

impl AdmissionRule {
    /// Returns staging in half a percent of the pool, between the paper's 0.1 % and 1 %.
    pub fn staging(kind: StagingKind, reuses: u8) -> AdmissionRule {
        AdmissionRule::Staging(Staging { kind, reuses, share_of_pool: STAGING_SHARE })
    }

    /// Returns the filter of a disk with this many blocks of cache and, for staging, its part of the memory.
    pub fn of_share(&self, cache_blocks: u64) -> Admit {
        let share_bytes = cache_blocks.saturating_mul(BLOCK_BYTES as u64);
        self.sized(self.staging_bytes(share_bytes), cache_blocks)
    }

    /// Returns the staging memory for this many bytes of cache.
    pub fn staging_bytes(&self, cache_bytes: u64) -> u64 {
        match self {
            AdmissionRule::Staging(staging) => (cache_bytes as f64 * staging.share_of_pool) as u64,
            _ => 0,
        }
    }

    /// Returns the filter of a disk with this many bytes of staging memory and this many blocks of cache.
    pub fn sized(&self, bytes: u64, cache_blocks: u64) -> Admit {
        match *self {
            AdmissionRule::Always => Admit::Always,
            AdmissionRule::Staging(Staging { kind, reuses, .. }) => {
                Admit::Staging { kind, reuses, bytes: bytes.max(kind.least_bytes()) }
            }
            AdmissionRule::Hec => Admit::Hec { region_blocks: HEC_BLOCKS, run_blocks: HEC_BLOCKS },
            AdmissionRule::Larc => Admit::Larc { cache_blocks },
            AdmissionRule::Learned => Admit::Learned,
            AdmissionRule::SmallReads { most_blocks } => {
                Admit::SmallReads { most_blocks: most_blocks.into() }
            }
        }
    }
}

/// The complete configuration of decisions.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// How the pool is divided.
    pub allocator: AllocatorRule,
    /// How demand is measured.
    pub demand: DemandRule,
    /// How demand is forecast.
    pub forecast: Method,
    /// Whether outliers are filtered first.
    pub filter_outliers: bool,
    /// How write modes are chosen; `None` leaves them alone.
    pub write_mode: Option<WriteModeChoice>,
    /// The write mode of all disks; `None` if it is chosen, or left alone.
    #[serde(default, with = "crate::plan::some_mode")]
    pub fixed_mode: Option<WriteMode>,
    /// The smallest share of every disk: c_min.
    #[serde(default)]
    pub least_blocks: u64,
    /// The share of a disk that has not been measured yet. 0: the disk gets its reservation and, while all disks are
    /// new, also a part of the rest by priority.
    #[serde(default)]
    pub first_blocks: u64,
    /// Which blocks are admitted.
    pub admission: AdmissionRule,
    /// The length of a window of the pool: the time between two decisions.
    pub window_us: Micros,
    /// The length of the window of a disk that does not ask for its own; 0 for a window of the pool.
    #[serde(default)]
    pub disk_window_us: Micros,
    /// Whether, instead, the window length of such a disk is chosen while the disk runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_window_at_knee: bool,
    /// The number of windows whose counts give the factors of [`AllocatorRule::MaxMin`], including the last window.
    #[serde(default = "one_window")]
    pub history_windows: u64,
    /// How long intensity is measured at the end of each window of the pool.
    pub measurement_us: Micros,
    /// Blocks of each disk from which reuse distances are estimated; 0 for all.
    #[serde(default = "usual_sample_blocks")]
    pub sample_blocks: u64,
    /// Blocks of the unit in which distances and working sets are measured: a power of two.
    #[serde(default = "one_block")]
    pub unit_blocks: u64,
    /// What unaligned accesses count for.
    #[serde(default)]
    pub unaligned: Unaligned,
    /// Whether disks are measured even if the division does not depend on measurements. The balancer of hosts needs
    /// them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measures_anyway: bool,
    /// The approximate number of units into which a solver divides the pool.
    pub granularity: u64,
    /// The latency in microseconds assumed for an origin that was not measured yet.
    pub origin_latency_us: f64,
    /// The latency in microseconds assumed for a cache device that was not measured yet.
    pub cache_latency_us: f64,
}

fn one_window() -> u64 {
    1
}

fn one_block() -> u64 {
    1
}

/// Estimates of hit ratios are accurate to about 2 %, with about half a megabyte per disk.
fn usual_sample_blocks() -> u64 {
    1024
}

impl Default for Config {
    fn default() -> Config {
        Config {
            allocator: AllocatorRule::None,
            demand: DemandRule::Wss,
            forecast: Method::LastValue,
            filter_outliers: false,
            write_mode: None,
            fixed_mode: None,
            least_blocks: 0,
            first_blocks: 0,
            admission: AdmissionRule::Always,
            window_us: 600_000_000,
            disk_window_us: 0,
            disk_window_at_knee: false,
            history_windows: one_window(),
            measurement_us: 60_000_000,
            sample_blocks: usual_sample_blocks(),
            unit_blocks: one_block(),
            unaligned: Unaligned::Counted,
            measures_anyway: false,
            granularity: 512,
            origin_latency_us: 5000.0,
            cache_latency_us: 100.0,
        }
    }
}

impl Config {
    /// Returns whether the allocation depends on measurements, so that a disk must be measured first.
    pub(crate) fn measures(&self) -> bool {
        !matches!(self.allocator, AllocatorRule::None | AllocatorRule::Equal | AllocatorRule::Static)
    }

    /// Returns how the window length of a disk is found. `wanted` is what the disk asks for, if anything.
    pub fn window_of_disk(&self, wanted: Option<OwnWindow>) -> OwnWindow {
        let policys = || match self.disk_window_at_knee {
            true => OwnWindow::AtKnee,
            false => OwnWindow::Length(self.disk_window_us),
        };
        wanted.unwrap_or_else(policys)
    }

    /// Returns how many windows of the pool make up a disk's window of this length: it is rounded up to whole windows
    /// of the pool, which is the smallest.
    ///
    /// Source: CloudCache (Arteaga), section 3.4.3.
    pub fn whole_windows(&self, length_us: Micros) -> u64 {
        length_us.div_ceil(self.window_us.max(1)).max(1)
    }

    /// Returns how many windows of the pool make up the longest window that a disk may have that asks for this, or for
    /// nothing.
    pub fn most_windows_of_disk(&self, wanted: Option<OwnWindow>) -> u64 {
        match self.window_of_disk(wanted) {
            OwnWindow::Length(length_us) => self.whole_windows(length_us),
            OwnWindow::AtKnee => MOST_WINDOWS,
        }
    }

    /// Returns how often a block must be reused to count as demand when window lengths are tried: as often as the
    /// demand model says if that is [`DemandRule::Rwss`], otherwise once.
    pub fn reuses(&self) -> u8 {
        match self.demand {
            DemandRule::Rwss { reuses } => reuses,
            _ => 1,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A setting is invalid; the error says what was expected.
    pub fn check(&self) -> Result<(), PolicyError> {
        let (window_us, measurement_us) = (self.window_us, self.measurement_us);
        if window_us < measurement_us {
            return Err(PolicyError::WindowTooShort { window_us, measurement_us });
        }
        check_range(|| "the window in us".into(), window_us as f64, 1.0..=f64::MAX, "at least 1")?;
        // Each unit costs the solver time and memory.
        check_range(
            || "the granularity".into(),
            self.granularity as f64,
            1.0..=65_536.0,
            "1 to 65,536 units",
        )?;
        let what = || "the windows of the history".into();
        check_range(what, self.history_windows as f64, 1.0..=1000.0, "1 to 1000 windows")?;
        if self.sample_blocks > 0 {
            check_range(
                || "the number of sampled blocks".into(),
                self.sample_blocks as f64,
                16.0..=16_777_216.0,
                "16 to 16,777,216 blocks, or 0 for all",
            )?;
        }
        if !self.unit_blocks.is_power_of_two() || self.unit_blocks > MOST_UNIT_BLOCKS {
            return Err(PolicyError::BadFigure {
                what: "the blocks of a unit of distances".into(),
                found: self.unit_blocks.to_string(),
                expected: "a power of two from 1 to 256",
            });
        }
        for (what, found) in [("origin", self.origin_latency_us), ("cache", self.cache_latency_us)] {
            check_range(
                || format!("the {what} latency in us"),
                found,
                0.0..=1e12,
                "a number from 0 to 1e12",
            )?;
        }
        if let DemandRule::Rwss { reuses } = self.demand {
            self.check_reuses(reuses)?;
        }
        if let Some(choice) = &self.write_mode {
            choice.check()?;
        }
        if let AdmissionRule::Staging(staging) = &self.admission {
            self.check_reuses(staging.reuses)?;
            let what = || "the share of the pool for staging".into();
            check_range(what, staging.share_of_pool, 0.0..=0.1, "a number from 0 to 0.1")?;
        }
        match &self.allocator {
            AllocatorRule::Utility { alpha, .. } => {
                check_range(|| "alpha".into(), *alpha, 0.0..=1e6, "a number from 0 to a million")
            }
            AllocatorRule::MaxMin { chunk_blocks, weighting, .. } => {
                check_range(
                    || "a chunk in blocks".into(),
                    *chunk_blocks as f64,
                    1.0..=f64::MAX,
                    "at least 1",
                )?;
                if let Weighting::FourFactors(beta) = weighting { beta.check() } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn check_reuses(&self, reuses: u8) -> Result<(), PolicyError> {
        let most = f64::from(MOST_REUSES);
        check_range(|| "the number of reuses".into(), reuses.into(), 1.0..=most, "a number from 1 to 4")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::{SYSTEMS, named};

    #[test]
    fn every_system_passes_its_own_check_and_survives_json() {
        for name in SYSTEMS {
            let config = named(name).unwrap();
            assert_eq!(config.check(), Ok(()), "{name}");
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
        }
        let refused = named("fair").unwrap_err().to_string();
        assert!(refused.contains("'fair'") && refused.contains("max-min"), "{refused}");
    }

    #[test]
    fn admission_by_name() {
        let hybrid = Staging { kind: StagingKind::Hybrid, reuses: 2, share_of_pool: STAGING_SHARE };
        assert_eq!("hybrid(2)".parse(), Ok(AdmissionRule::Staging(hybrid)));
        assert_eq!("larc".parse(), Ok(AdmissionRule::Larc));
        for wrong in ["hybrid", "larc(1)", "hybrid(x)", "hybrid(1", ""] {
            let refused = wrong.parse::<AdmissionRule>().unwrap_err().to_string();
            assert!(refused.contains(&format!("'{wrong}'")) && refused.contains("hybrid(N)"), "{refused}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused_with_the_reason() {
        let refused = Config { window_us: 10, measurement_us: 11, ..Config::default() }.check().unwrap_err();
        assert_eq!(refused, PolicyError::WindowTooShort { window_us: 10, measurement_us: 11 });
        assert!(refused.to_string().contains("shorter than its measurement"));
        for bad in [
            Config { granularity: 0, ..Config::default() },
            Config { demand: DemandRule::Rwss { reuses: 5 }, ..Config::default() },
            Config { origin_latency_us: f64::INFINITY, ..Config::default() },
            Config { window_us: 0, measurement_us: 0, ..Config::default() },
        ] {
            assert!(matches!(bad.check(), Err(PolicyError::BadFigure { .. })), "{bad:?}");
        }
    }
}
