//! The daemon's answers: status, jobs, events, errors.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cluster::DirectoryStatus;
use crate::disk::{DiskConfig, Mode};
use crate::migration::{KeptReplica, ReplicaStatus};
use crate::policy::{DiskPolicy, Measured};
use crate::units::Size;

/// The daemon as a whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// It is still attaching disks for the first time, and has no policy yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// What the daemon may open; not set if it may open whatever its user may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,
    /// The state of its access to the cluster's directory; not set if it is in no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryStatus>,
    /// The pools.
    pub pools: Vec<PoolStatus>,
    /// The disks, attached or not.
    pub disks: Vec<DiskStatus>,
}

/// How the daemon is confined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxStatus {
    /// The version of Landlock that enforces the sandbox. If it is 0, the kernel has no Landlock, and only the daemon
    /// itself enforces the sandbox.
    pub landlock: u32,
    /// The configured paths: what origins may be, besides those of configured disks.
    pub paths: Vec<String>,
    /// What this kernel's version cannot restrict, though newer ones can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unrestricted: Vec<String>,
}

/// State of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PoolState {
    /// As configured.
    Ok,
    /// Redundancy is configured but currently not available, or a device is missing.
    Degraded,
    /// No cache device is left: requests go to the origins.
    Lost,
    /// The pool's thread has ended; see the log.
    Stopped,
    /// Could not be opened and is retried; see the error.
    Failed,
}

impl PoolState {
    /// All states.
    pub const ALL: &[PoolState] =
        &[PoolState::Ok, PoolState::Degraded, PoolState::Lost, PoolState::Stopped, PoolState::Failed];
}

/// As in JSON.
impl fmt::Display for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolState::Ok => "ok",
            PoolState::Degraded => "degraded",
            PoolState::Lost => "lost",
            PoolState::Stopped => "stopped",
            PoolState::Failed => "failed",
        })
    }
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// State.
    pub state: PoolState,
    /// Why it could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Warnings for the operator, such as dirty data that is not written back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The state of its budget of flash writes, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endurance: Option<EnduranceStatus>,
    /// Capacity in bytes of blocks.
    pub capacity_bytes: u64,
    /// Bytes of cached blocks.
    pub usage_bytes: u64,
    /// Bytes of dirty blocks.
    pub dirty_bytes: u64,
    /// Free segments of 1 MiB.
    pub free_segments: u64,
    /// Bytes of memory for metadata.
    pub memory_bytes: u64,
    /// Time of the pool in microseconds, as of its last check of timers.
    #[serde(default)]
    pub time_us: u64,
    /// I/Os of cache devices and origins in flight.
    #[serde(default)]
    pub ios_in_flight: u64,
    /// Only of pools of tests, whose I/Os take time by a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepped: Option<SteppedStatus>,
    /// Device flushes.
    pub flushes: u64,
    /// Pool record writes, in pages.
    pub record_pages: u64,
    /// The cache devices.
    pub devices: Vec<DeviceStatus>,
    /// Devices that were not found when the pool was opened, and where they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// What a test must know to move a pool's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SteppedStatus {
    /// When the next I/O ends or timers are checked next, in microseconds; not after the pool's time if something is
    /// left to do now.
    pub next_us: u64,
    /// I/Os that have not ended.
    pub ios: u64,
    /// Requests of clients that the pool has taken so far.
    pub requests: u64,
}

/// The state of a pool's budget of flash writes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EnduranceStatus {
    /// Bytes that may be written per day, over many days.
    pub budget_bytes_per_day: f64,
    /// Bytes that may be written at once; negative if the account is overdrawn.
    pub balance_bytes: f64,
    /// Bytes written since the budget took effect.
    pub written_bytes: u64,
    /// Mean bytes per day since then, which is also the forecast of wear; none in the first minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes_per_day: Option<f64>,
    /// What a block written to flash must save, in microseconds of latency.
    pub price_us: f64,
    /// The share of the blocks of which clean copies may be written to flash.
    pub fill_share: f64,
    /// Little is left for a burst.
    pub nearly_spent: bool,
}

/// A cache device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceStatus {
    /// Number in the pool, used to remove it.
    pub number: u8,
    /// Its path.
    pub path: String,
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// Failed I/Os.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Latencies.
    pub latency: LatencyByKind,
}

/// State of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// Being attached.
    Attaching,
    /// Could not be attached and is retried; see the error.
    Waiting,
    /// Takes requests.
    Attached,
    /// Being cleaned and detached.
    Detaching,
    /// Known to the pool, takes no requests.
    Detached,
}

impl DiskState {
    /// All states.
    pub const ALL: &[DiskState] = &[
        DiskState::Attaching,
        DiskState::Waiting,
        DiskState::Attached,
        DiskState::Detaching,
        DiskState::Detached,
    ];
}

/// As in JSON.
impl fmt::Display for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskState::Attaching => "attaching",
            DiskState::Waiting => "waiting",
            DiskState::Attached => "attached",
            DiskState::Detaching => "detaching",
            DiskState::Detached => "detached",
        })
    }
}

/// A disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// Name, or identity if the name is unknown.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// State.
    pub state: DiskState,
    /// Why the disk is not attached; or, if it is attached, why it is not served, or why the helper of its
    /// origin is no longer restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Size in bytes, 0 if not known yet.
    pub size_bytes: u64,
    /// Settings, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<DiskConfig>,
    /// Current write mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Decision of the policy for the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DiskPolicy>,
    /// Measurements in the last window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What it shares with its base, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseStatus>,
    /// The replica of its dirty blocks on another host, if it is to have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaStatus>,
    /// The replica that this host has of another host's dirty blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_replica: Option<KeptReplica>,
    /// Where it is, if another host has it and it is attached here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Elsewhere>,
    /// Whether the origin is reachable.
    pub origin_up: bool,
    /// Connected clients: NBD connections and vhost-user queues.
    pub clients: u64,
    /// Its share of the pool.
    pub usage: Usage,
    /// Its requests.
    pub requests: RequestCounters,
    /// Data transferred.
    pub blocks: BlockCounters,
    /// Errors.
    pub errors: ErrorCounters,
    /// Latencies seen by vhost-user clients.
    pub vhost_user_latency: LatencyByKind,
    /// Latencies seen by NBD clients.
    pub nbd_latency: LatencyByKind,
    /// Latencies of the origin.
    pub origin_latency: LatencyByKind,
}

/// Where a disk is that another host has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Elsewhere {
    /// That host, as far as is known here.
    pub host: String,
    /// It still needs dirty blocks that are here.
    pub needs_blocks: bool,
    /// It has taken the disk over by force.
    pub is_by_force: bool,
}

/// What a disk shares with its base.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct BaseStatus {
    /// The base.
    pub name: String,
    /// Bytes of the disk that are as the base has them, and read from its disk.
    pub shared_bytes: u64,
    /// Bytes read from the base's disk, which counts them as its own reads.
    pub read_bytes: u64,
    /// Why nothing is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A disk's share of the pool.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Target in bytes.
    pub target_bytes: u64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Dirty bytes with a second copy.
    pub mirrored_bytes: u64,
    /// How long the oldest dirty block has been dirty, in microseconds; if that was before the pool was opened,
    /// since then.
    pub oldest_dirty_us: u64,
    /// With `order = "flush"`: whether the origin is as a flush of the guest left it, plus some later writes. It is not
    /// known after a start, a move, a change of cache devices or a loss, until what was dirty then is written back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_in_order: Option<bool>,
    /// Segments owned by the disk.
    pub segments: u64,
}

/// Requests of a disk's clients.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RequestCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub zeroes: u64,
    /// Blocks read that were completely in the cache.
    pub read_hits: u64,
    /// Hits on blocks that were staged and not yet admitted.
    pub data_stage_hits: u64,
    /// Blocks read that were not completely in the cache.
    pub read_misses: u64,
    /// Blocks written that were in the cache.
    pub write_hits: u64,
    /// Blocks written that were not in the cache.
    pub write_misses: u64,
    /// Blocks kept out by admission or the sequential cut-off.
    pub not_admitted: u64,
    /// Blocks written past the cache because the dirty limit was reached.
    pub overflowed: u64,
    /// Fills not kept for lack of memory.
    pub fills_skipped: u64,
    /// The grid phase (0 to 7 sectors) that would align most requests.
    pub best_phase: u8,
}

/// Bytes transferred.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct BlockCounters {
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub written_bytes: u64,
    /// Bytes read from the origin.
    pub origin_read_bytes: u64,
    /// Bytes written to the origin past the cache.
    pub origin_written_bytes: u64,
    /// Bytes written to the origin by the cleaner.
    pub cleaned_bytes: u64,
    /// Blocks cleaned.
    pub cleaned_blocks: u64,
    /// Bytes written to flash.
    pub flash: FlashWrites,
}

/// Bytes written to flash, by cause.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlashWrites {
    /// Data written by clients.
    pub write_bytes: u64,
    /// Data filled from the origin.
    pub fill_bytes: u64,
    /// Second copies of dirty blocks.
    pub mirror_bytes: u64,
    /// Metadata pages written with batches.
    pub batch_page_bytes: u64,
    /// Metadata pages written alone.
    pub rewrite_page_bytes: u64,
    /// Pages of write-intent bitmaps.
    pub intent_page_bytes: u64,
}

impl FlashWrites {
    /// Returns the bytes of all causes.
    pub fn total_bytes(&self) -> u64 {
        self.write_bytes
            + self.fill_bytes
            + self.mirror_bytes
            + self.batch_page_bytes
            + self.rewrite_page_bytes
            + self.intent_page_bytes
    }
}

/// Errors of a disk.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ErrorCounters {
    /// Failed requests.
    pub failed_requests: u64,
    /// Failed I/Os of the origin.
    pub origin_errors: u64,
    /// Blocks read from flash that failed their checksum for a reason other than a crash.
    pub corrupt_blocks: u64,
    /// Dirty blocks among them without a valid second copy.
    pub lost_blocks: u64,
    /// Clean blocks from before a crash that failed their checksum, probably because it interrupted their writes.
    #[serde(default)]
    pub crash_dropped_blocks: u64,
}

/// Latencies of one kind of request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// 50th percentile in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
    /// 99.9th percentile in microseconds.
    pub p999_us: u64,
}

/// Latencies by kind of request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyByKind {
    /// Reads.
    pub read: Latency,
    /// Writes.
    pub write: Latency,
    /// Flushes.
    pub flush: Latency,
}

/// A cache device to add.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDevice {
    /// Path of the device. Existing data on it is lost.
    pub path: String,
    /// Size of a file that does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Overwrite existing data. A pool is never overwritten.
    #[serde(default)]
    pub force: bool,
}

/// A disk's new size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeDisk {
    /// Size in bytes; the origin must already have it.
    pub size: Size,
    /// Allow the disk to shrink: the disk's name, repeated. Data beyond the new size is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<String>,
}

/// A detached disk to forget.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetDisk {
    /// Destroy the disk's dirty data: the disk's name, repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_dirty: Option<String>,
}

/// Where data of a disk is lost: its only dirty copy is damaged, or was lost with a cache device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LostData {
    /// How much is lost.
    pub bytes: u64,
    /// Where, in order.
    pub ranges: Vec<LostRange>,
    /// Ranges that are not listed because there are too many.
    pub more_ranges: u64,
}

/// A lost range of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// Where it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Attaches a disk.
    Attach,
    /// Writes back a disk's dirty blocks and detaches it.
    Detach,
    /// Writes back a disk's dirty blocks.
    Flush,
    /// Changes a disk's size.
    Resize,
    /// Changes a disk's settings.
    Change,
    /// Forgets a detached disk.
    Forget,
    /// Adds a device to a pool.
    AddDevice,
    /// Empties a device and removes it from its pool.
    RemoveDevice,
    /// Sends a disk's cache to another host.
    Migrate,
    /// Takes a disk over from a dead host.
    Own,
}

/// State of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Running.
    Running,
    /// Done.
    Done,
    /// Failed; see the error.
    Failed,
    /// Cancelled.
    Cancelled,
}

/// A management job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// The disk, or the pool of a device.
    pub subject: String,
    /// State.
    pub state: JobState,
    /// Blocks done, if the job reports progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_blocks: Option<u64>,
    /// Total blocks as of the job's start, if the job reports progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_blocks: Option<u64>,
    /// Running time in seconds.
    pub elapsed_s: f64,
    /// Estimated remaining time in seconds, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Sequence number; consecutive.
    pub number: u64,
    /// Time in milliseconds since 1970.
    pub time_ms: u64,
    /// Kind: `device-failed`, `pool-lost`, `corruption`, `origin-away`, ...
    pub kind: String,
    /// The pool, or the disk's name.
    pub subject: String,
    /// Description.
    pub message: String,
}

/// Events after a number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Number to pass in the next request.
    pub next: u64,
}

/// An error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Code for programs: `not-found`, `conflict`, `dirty`, ...
    pub code: String,
    /// What was found and what was expected.
    pub error: String,
    /// What to do.
    pub hint: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_one_name() {
        for state in PoolState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
        for state in DiskState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
    }
}
