//! The policy that divides pools among disks: its settings, events of disks, decisions, curves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disk::Mode;
use crate::units::{Size, Span, WindowSetting};

/// How pools are divided: `[policy]` in the configuration file, and the policy in the API. Keys that are not given have
/// the values of the allocator's system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySettings {
    /// Allocator: `none`, `equal`, `static`, `wss`, `rwss`, `utility`, `trd`, `urd` or `max-min`; or a paper's whole
    /// system: `cloudcache`, `vcacheshare`, `eci-cache`, `centaur` or `liu`.
    pub allocator: String,
    /// Demand of a disk: `wss`, `rwss(N)`, `trd`, `urd`, `read-only`, `touch-count`, `reused-addresses` or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<String>,
    /// How demand is forecast: `last-value`, `exp-fixed`, `exp-self`, `double-exp-fixed`, `double-exp-self` or `best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<String>,
    /// Whether outliers are limited before forecasting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_outliers: Option<bool>,
    /// Solver for `utility`, `trd` and `urd`: `exact`, `hull` or `annealing(SEED, MOVES)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solver: Option<String>,
    /// Approximate number of units into which a solver divides the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<u64>,
    /// Use of space that no disk demands: `shared`, or `idle` to keep disks within their targets and spare the flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<String>,
    /// Weight of intensity, for `utility`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Interpretation of the paper's equation, for `utility`: `scaled` or `as-printed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
    /// Weights for `max-min`: `four-factors`, `priority` or `demand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighting: Option<String>,
    /// Weights of priority, read ratio, read speed and hit ratio, for `four-factors`. They sum to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<[f64; 4]>,
    /// Portions in which space is assigned, for `max-min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Size>,
    /// Which blocks may enter the cache: `always`, `learned`, `larc`, `hec`, `small-reads(BLOCKS)`, `address(N)`,
    /// `data(N)` or `hybrid(N)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<String>,
    /// Memory for staging of all disks together, as a fraction of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging_share: Option<f64>,
    /// Choice of write modes: `keep` for no change, `auto` for a choice by the policy, or a mode for all disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_mode: Option<String>,
    /// Fraction of overwrites at which a disk becomes read-only, for `write_mode = "auto"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_threshold: Option<f64>,
    /// How far below the threshold the fraction must fall before the disk becomes write-back again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_hysteresis: Option<f64>,
    /// Smallest share of every disk, whatever its reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Size>,
    /// Share of a disk that has not been measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Size>,
    /// Number of windows, including the last one, whose counts determine the weights of `max-min`: a sliding
    /// history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<u64>,
    /// Length of a window of the pool: the time between two decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Span>,
    /// Time over which a disk without a `window` of its own is measured, rounded up to whole windows of the pool;
    /// `knee` for one that is chosen while the disk runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_window: Option<WindowSetting>,
    /// Length of the measurement of intensity at the end of a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Span>,
    /// Blocks of each disk from which reuse distances are estimated; 0 for all: distances are exact then, and memory
    /// grows with the blocks used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_blocks: Option<u64>,
    /// Unit in which reuse distances and working sets are measured: a power of two from 4KiB to 1MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Size>,
    /// Accesses that cover only part of a block: `counted` for each block that they touch, or `discarded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaligned: Option<String>,
    /// Latency assumed for an origin that has not been measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_latency: Option<Span>,
    /// Latency assumed for a cache device that has not been measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_latency: Option<Span>,
}

impl PolicySettings {
    /// Returns the settings of a system from the papers, unchanged.
    pub fn named(allocator: &str) -> PolicySettings {
        PolicySettings {
            allocator: allocator.into(),
            demand: None,
            forecast: None,
            filter_outliers: None,
            solver: None,
            granularity: None,
            spare: None,
            alpha: None,
            reading: None,
            weighting: None,
            beta: None,
            chunk: None,
            admission: None,
            staging_share: None,
            write_mode: None,
            write_threshold: None,
            write_hysteresis: None,
            least: None,
            first: None,
            history: None,
            window: None,
            disk_window: None,
            measurement: None,
            sample_blocks: None,
            block: None,
            unaligned: None,
            origin_latency: None,
            cache_latency: None,
        }
    }
}

/// State of the policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyStatus {
    /// Its settings; none if there is no policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<PolicySettings>,
    /// All settings in effect, including defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub effective: Option<serde_json::Value>,
    /// Whether disks are measured.
    pub measures: bool,
    /// What was decided but not started yet: changes of write modes, new sizes of filters.
    #[serde(default)]
    pub orders: u64,
    /// The pools.
    pub pools: Vec<PoolPolicy>,
}

/// State of the policy for a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolPolicy {
    /// The pool.
    pub pool: String,
    /// Path of the decision log.
    pub log: String,
    /// Seconds until the current window ends; none without windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_left_s: Option<f64>,
    /// Decisions made.
    pub decisions: u64,
    /// Refused decisions; the previous plan stayed in effect.
    pub refusals: u64,
    /// Why the last decision was refused, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The disks that the policy knows.
    pub disks: Vec<DiskPolicy>,
}

/// Decision for a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskPolicy {
    /// The disk.
    pub disk: String,
    /// State of the disk: `new`, `active`, `idle`, `suspended`, ...
    pub state: String,
    /// Demand in bytes.
    pub demand_bytes: u64,
    /// Assigned share in bytes; none while the disk shares the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// Planned write mode.
    pub mode: Mode,
    /// Admission filter.
    pub admission: String,
    /// Reason for the decision.
    pub reason: String,
}

/// Event of a disk's VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskEventKind {
    /// Its VM was powered on.
    New,
    /// Its VM was powered off.
    Ended,
    /// Its VM was suspended.
    Suspended,
    /// Its VM was resumed.
    Resumed,
    /// Its VM is paused briefly.
    Stunned,
    /// The disk arrived from another host.
    MigratingIn,
    /// The disk is leaving for another host.
    MigratingOut,
    /// Its origin is being migrated.
    StorageMigrating,
    /// Its origin has been migrated.
    StorageMigrated,
}

/// An event of a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskEvent {
    /// The event.
    pub event: DiskEventKind,
    /// With `migrating-in`: the `figures` of the disk's curve on the source host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub figures: Option<serde_json::Value>,
}

/// Measurements of a disk in a window.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Measured {
    /// Length of the window in microseconds.
    pub length_us: u64,
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Blocks written that had been accessed before.
    pub overwrites: u64,
    /// Distinct blocks accessed, in bytes: WSS.
    pub wss_bytes: u64,
    /// Distinct blocks reused at least once, twice and so on, in bytes: RWSS_1, RWSS_2, ...
    pub rwss_bytes: Vec<u64>,
    /// Reuse intensity of recently read blocks, in 1/s.
    pub intensity_per_s: f64,
    /// Requests that were not recorded for lack of space and are not included.
    pub lost_records: u64,
}

/// Point of a curve: miss ratio for a cache size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MissPoint {
    /// Cache size in bytes.
    pub bytes: u64,
    /// Miss ratio, 0 to 1.
    pub miss_ratio: f64,
}

/// Sampled miss-ratio curves of a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskCurve {
    /// The disk.
    pub disk: String,
    /// Whether the window is complete; otherwise the figures are those of the current window so far.
    pub complete: bool,
    /// Measurements.
    pub measured: Measured,
    /// Reads and writes, by ordinary reuse distance.
    pub all: Vec<MissPoint>,
    /// Reads by useful reuse distance; writes that are not read again count as misses.
    pub useful: Vec<MissPoint>,
    /// Reads only, with distances among reads.
    pub reads_only: Vec<MissPoint>,
    /// All measurements, in the form that `migrating-in` accepts on another host.
    #[schema(value_type = Object)]
    pub figures: serde_json::Value,
}

/// Explanation of a disk's share and settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The disk.
    pub disk: String,
    /// Explanation in words.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_refuse_unknown_keys_and_events_have_the_papers_names() {
        let text = r#"{"allocator": "rwss", "window": "5min"}"#;
        let five = PolicySettings { window: Some("5min".parse().unwrap()), ..PolicySettings::named("rwss") };
        assert_eq!(serde_json::from_str::<PolicySettings>(text).unwrap(), five);
        let unknown = r#"{"allocator": "rwss", "windows": "5min"}"#;
        assert!(serde_json::from_str::<PolicySettings>(unknown).unwrap_err().to_string().contains("windows"));
        let event = r#"{"event": "storage-migrating"}"#;
        let event: DiskEvent = serde_json::from_str(event).unwrap();
        assert_eq!(event.event, DiskEventKind::StorageMigrating);
    }
}
