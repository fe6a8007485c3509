//! The policy that divides pools among disks: its settings, events of disks, decisions, curves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disk::Mode;
use crate::units::{Size, Span};

/// How pools are divided: `[policy]` in the daemon's file, and what the API shows and takes. A key that is not given is
/// as the allocator's system has it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySettings {
    /// The system: `none`, `equal`, `static`, `wss`, `rwss`, `utility`, `trd`, `urd` or `max-min`.
    pub allocator: String,
    /// What a disk demands: `wss`, `rwss(N)`, `trd`, `urd`, `read-only` or `touch-count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<String>,
    /// How demand is forecast: `last-value`, `exp-fixed`, `exp-self`, `double-exp-fixed`, `double-exp-self` or `best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<String>,
    /// Whether outliers are tamed before they are forecast from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_outliers: Option<bool>,
    /// Who solves, for `utility`, `trd` and `urd`: `exact`, `hull`, `annealing(SEED, MOVES)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solver: Option<String>,
    /// Into about how many units a solver cuts the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<u64>,
    /// What becomes of space that nobody asked for: `shared` or `idle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<String>,
    /// How much intensity counts, for `utility`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// How the paper's equation is read, for `utility`: `scaled` or `as-printed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
    /// What makes heavier, for `max-min`: `four-factors`, `priority` or `demand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighting: Option<String>,
    /// How much priority, ratio of reads, speed of reads and hit ratio count, for `four-factors`. They sum to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<[f64; 4]>,
    /// In what portions space is given, for `max-min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Size>,
    /// What may enter: `always`, `larc`, `hec`, `address(N)`, `data(N)` or `hybrid(N)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<String>,
    /// Memory for staging of all disks together, as a share of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging_share: Option<f64>,
    /// Who chooses write modes: `keep` to leave them alone, `auto` for the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_mode: Option<String>,
    /// From this share of overwrites on a disk becomes read-only, for `write_mode = "auto"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_threshold: Option<f64>,
    /// How far below the threshold the share has to sink before the disk is write-back again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_hysteresis: Option<f64>,
    /// How long a window is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Span>,
    /// How long intensity is measured at the end of a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Span>,
    /// Latency of an origin that was not measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_latency: Option<Span>,
    /// Latency of a cache device that was not measured yet.
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
            window: None,
            measurement: None,
            origin_latency: None,
            cache_latency: None,
        }
    }
}

/// The policy as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyStatus {
    /// Its settings; none if there is no policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<PolicySettings>,
    /// All that decisions are made by, defaults included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub effective: Option<serde_json::Value>,
    /// Whether disks are measured.
    pub measures: bool,
    /// The pools.
    pub pools: Vec<PoolPolicy>,
}

/// What the policy knows of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolPolicy {
    /// The pool.
    pub pool: String,
    /// Where its decisions are logged.
    pub log: String,
    /// Seconds until the present window ends; none without windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_left_s: Option<f64>,
    /// Decisions made.
    pub decisions: u64,
    /// Decisions refused; the plan before went on holding.
    pub refusals: u64,
    /// Why the last decision was refused, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The disks that the policy knows.
    pub disks: Vec<DiskPolicy>,
}

/// What the policy has decided for a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskPolicy {
    /// The disk.
    pub disk: String,
    /// Where it is in its life: `new`, `active`, `idle`, `suspended`, ...
    pub state: String,
    /// What it demands.
    pub demand_bytes: u64,
    /// What it was given; none while it shares the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// The write mode that it should have.
    pub mode: Mode,
    /// What may enter.
    pub admission: String,
    /// Why.
    pub reason: String,
}

/// What has happened to a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskEventKind {
    /// Its VM was powered on.
    New,
    /// Its VM was powered off.
    Ended,
    /// Its VM was suspended.
    Suspended,
    /// Its VM runs again.
    Resumed,
    /// Its VM stands still for a moment.
    Stunned,
    /// It came from another host.
    MigratingIn,
    /// It goes to another host.
    MigratingOut,
    /// Its origin is being exchanged.
    StorageMigrating,
    /// Its origin has been exchanged.
    StorageMigrated,
}

/// An event of a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskEvent {
    /// What has happened.
    pub event: DiskEventKind,
    /// With `migrating-in`: what was measured where it came from, the `figures` of its curve there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub figures: Option<serde_json::Value>,
}

/// What was measured of a disk in a window of real time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Measured {
    /// How long the window was.
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
    /// How often each block read lately was read again and how fast, in 1/s.
    pub intensity_per_s: f64,
    /// Records that found no room and are not in these figures.
    pub lost_records: u64,
}

/// A point of a curve: what share of accesses misses a cache of this size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MissPoint {
    /// The size.
    pub bytes: u64,
    /// The share that misses, 0 to 1.
    pub miss_ratio: f64,
}

/// A disk's sampled curves.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskCurve {
    /// The disk.
    pub disk: String,
    /// Whether the window has ended; else it is the present one so far.
    pub complete: bool,
    /// What was measured.
    pub measured: Measured,
    /// Reads and writes, by ordinary reuse distance.
    pub all: Vec<MissPoint>,
    /// Reads by useful reuse distance; writes that are not read again count as misses.
    pub useful: Vec<MissPoint>,
    /// Reads alone, among reads.
    pub reads_only: Vec<MissPoint>,
    /// Everything measured, as `migrating-in` takes it on another host.
    #[schema(value_type = Object)]
    pub figures: serde_json::Value,
}

/// Why a disk has what it has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The disk.
    pub disk: String,
    /// In words.
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
