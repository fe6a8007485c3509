//! What the dashboard shows: a short status of everything, and the last day.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disk::Mode;
use crate::status::{DiskState, PoolStatus};

/// The daemon at a glance. It has no settings of disks, so no address of an origin.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// The host's name.
    pub host: String,
    /// The daemon's version.
    pub version: String,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// The policy's allocator, if there is a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Whether disks can move between hosts: the configuration has `[migration]`.
    #[serde(default)]
    pub can_migrate: bool,
    /// Whether this host is in a cluster: the configuration has `[cluster]`.
    #[serde(default)]
    pub is_in_cluster: bool,
    /// Whether this host lends flash or borrows it.
    #[serde(default)]
    pub shares_flash: bool,
    /// The pools.
    pub pools: Vec<PoolStatus>,
    /// The disks.
    pub disks: Vec<DiskOverview>,
}

/// A disk at a glance. Counters begin with its attachment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskOverview {
    /// Name, or identity if the name is unknown.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// State.
    pub state: DiskState,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Current write mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether the origin is reachable.
    pub origin_up: bool,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Target in bytes.
    pub target_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Blocks read that were in the cache.
    pub read_hits: u64,
    /// Blocks read that were not.
    pub read_misses: u64,
    /// Requests of all kinds.
    pub requests: u64,
    /// Sum of their latencies in microseconds.
    pub latency_us: u64,
    /// Bytes written to flash.
    pub flash_bytes: u64,
    /// Failed requests, corrupt and lost blocks.
    pub errors: u64,
    /// Why the policy decided as it did, if there is a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What happened in the last day.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The open pools that have a history.
    pub pools: Vec<PoolHistory>,
}

/// The last day of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolHistory {
    /// The pool.
    pub pool: String,
    /// Points in time, oldest first.
    pub moments: Vec<PoolMoment>,
    /// The disks with the most cached bytes.
    pub disks: Vec<DiskHistory>,
    /// How many other disks had cached bytes.
    pub other_disks: u64,
}

/// An interval of a pool's day.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolMoment {
    /// Where the interval lies, in seconds since 1970.
    pub time_s: u64,
    /// Seconds that its counters cover.
    pub interval_s: f64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Blocks read that were in the cache.
    pub read_hits: u64,
    /// Blocks read that were not.
    pub read_misses: u64,
    /// Reads, writes and flushes.
    pub requests: u64,
    /// Sum of their latencies in microseconds.
    pub latency_us: u64,
    /// Bytes written to flash.
    pub flash_bytes: u64,
}

/// A disk's part of a pool's day.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskHistory {
    /// The disk.
    pub disk: String,
    /// Its cached bytes, for each of the pool's points in time.
    pub usage_bytes: Vec<u64>,
}
