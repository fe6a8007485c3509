//! Systems by name: allocators with their usual settings, and whole systems with the settings of their
//! papers.
//!
//! | name | paper | additions to its allocator |
//! |---|---|---|
//! | `cloudcache` | Arteaga, section 3.4 | nothing: `rwss` is it |
//! | `vcacheshare` | Meng et al., sections 4.1, 4.3 and 7.1 | `utility` with write-around, reads of at most 64 KiB, unaligned accesses discarded, and a decision each minute by a curve of ten and the intensity of the last one |
//! | `eci-cache` | Ahmadian et al., section 6.3 | `urd` with distances in blocks of 8 KiB, c_min and initial sizes, and a threshold without hysteresis |
//! | `centaur` | the same, as its baseline | `trd` with write-back, and the same blocks and sizes |
//! | `liu` | Liu et al., section 4 | `max-min` without regard to demand, with decisions each minute, by the last thirty minutes |
//!
//! Replacement is not part of a system: in the daemon it is the core's.

use haversack_admission::StagingKind;
use haversack_model::{BLOCK_BYTES, WriteMode};

use crate::allocate::{Spare, Weighting};
use crate::config::{AdmissionRule, AllocatorRule, Config, DemandRule, SolverRule, Unaligned};
use crate::demand::utility::Reading;
use crate::demand::weight::Beta;
use crate::error::PolicyError;
use crate::forecast::Method;
use crate::write_mode::WriteModeChoice;

/// All names.
pub const SYSTEMS: [&str; 15] = [
    "auto",
    "none",
    "equal",
    "static",
    "wss",
    "rwss",
    "utility",
    "trd",
    "urd",
    "max-min",
    "cloudcache",
    "vcacheshare",
    "eci-cache",
    "centaur",
    "liu",
];

/// vCacheShare caches reads of at most 64 KiB.
const SMALL_READ_BLOCKS: u8 = 16;

/// Windows of a minute that Liu's history has.
const LIU_HISTORY: u64 = 30;

/// ECI-Cache's sizes, in its blocks of 8 KiB: c_min, and the size that every VM starts with.
const ECI_LEAST: u64 = 1_000;
const ECI_FIRST: u64 = 10_000;
const ECI_BLOCK_BYTES: u64 = 8 << 10;

/// Sets ECI-Cache's sizes, and measures distances in its blocks.
fn with_eci_sizes(mut config: Config) -> Config {
    let blocks = |theirs: u64| theirs * ECI_BLOCK_BYTES / BLOCK_BYTES as u64;
    config.least_blocks = blocks(ECI_LEAST);
    config.first_blocks = blocks(ECI_FIRST);
    config.unit_blocks = blocks(1);
    config
}

/// Returns a system with its settings; `auto` is one pool with an admission that learns.
///
/// # Errors
/// `UnknownName` for any other name.
pub fn named(name: &str) -> Result<Config, PolicyError> {
    let minute = 60_000_000;
    let base = Config::default();
    let read_only = Config { demand: DemandRule::ReadOnly, window_us: minute, ..base.clone() };
    Ok(match name {
        "auto" => Config { admission: AdmissionRule::Learned, ..base },
        "none" => base,
        "equal" => Config { allocator: AllocatorRule::Equal, ..base },
        "static" => Config { allocator: AllocatorRule::Static, ..base },
        "wss" => Config {
            allocator: AllocatorRule::Proportional { spare: Spare::Shared },
            forecast: Method::ExpSelf,
            filter_outliers: true,
            ..base
        },
        "rwss" => Config {
            allocator: AllocatorRule::Proportional { spare: Spare::Shared },
            demand: DemandRule::Rwss { reuses: 1 },
            forecast: Method::ExpSelf,
            filter_outliers: true,
            admission: AdmissionRule::staging(StagingKind::Hybrid, 1),
            ..base
        },
        "utility" => Config {
            allocator: AllocatorRule::Utility {
                alpha: 1.0,
                reading: Reading::Scaled,
                solver: SolverRule::Exact,
                spare: Spare::Shared,
            },
            ..read_only
        },
        "trd" => Config {
            allocator: AllocatorRule::MinimumLatency { solver: SolverRule::Exact, spare: Spare::Idle },
            demand: DemandRule::Trd,
            ..base
        },
        "urd" => Config {
            allocator: AllocatorRule::MinimumLatency { solver: SolverRule::Exact, spare: Spare::Idle },
            demand: DemandRule::Urd,
            write_mode: Some(WriteModeChoice::default()),
            ..base
        },
        "max-min" => Config {
            allocator: AllocatorRule::MaxMin {
                weighting: Weighting::FourFactors(Beta::default()),
                chunk_blocks: (64 << 20) / BLOCK_BYTES as u64,
                spare: Spare::Shared,
            },
            window_us: 30 * minute,
            ..base
        },
        "cloudcache" => named("rwss")?,
        "vcacheshare" => Config {
            fixed_mode: Some(WriteMode::WriteAround),
            admission: AdmissionRule::SmallReads { most_blocks: SMALL_READ_BLOCKS },
            window_us: minute,
            disk_window_us: 10 * minute,
            unaligned: Unaligned::Discarded,
            ..named("utility")?
        },
        "eci-cache" => Config {
            write_mode: Some(WriteModeChoice { hysteresis: 0.0, ..WriteModeChoice::default() }),
            ..with_eci_sizes(named("urd")?)
        },
        "centaur" => Config { fixed_mode: Some(WriteMode::WriteBack), ..with_eci_sizes(named("trd")?) },
        "liu" => Config {
            demand: DemandRule::All,
            window_us: minute,
            history_windows: LIU_HISTORY,
            ..named("max-min")?
        },
        found => {
            return Err(PolicyError::UnknownName {
                what: "allocator",
                found: found.into(),
                expected: "auto, none, equal, static, wss, rwss, utility, trd, urd or max-min, or a whole system as its \
                           paper has it: cloudcache, vcacheshare, eci-cache, centaur or liu",
            });
        }
    })
}
