//! The daemon's answers: status, jobs, events, errors.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disk::{DiskConfig, Mode};
use crate::policy::{DiskPolicy, Measured};
use crate::units::Size;

/// The daemon as a whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// The pools.
    pub pools: Vec<PoolStatus>,
    /// The disks, attached or not.
    pub disks: Vec<DiskStatus>,
}

/// How a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PoolState {
    /// As configured.
    Ok,
    /// Redundancy is asked for and not given at present, or a device is missing.
    Degraded,
    /// No cache device is left: requests go to the origins.
    Lost,
    /// Its thread has ended: see the log.
    Stopped,
    /// It could not be opened; that is tried again. The error says why.
    Failed,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: PoolState,
    /// Why it could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What somebody should look at, such as dirty data that nothing writes back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Bytes of blocks that fit.
    pub capacity_bytes: u64,
    /// Bytes of blocks cached.
    pub usage_bytes: u64,
    /// Bytes of blocks that the origins do not have.
    pub dirty_bytes: u64,
    /// Segments of 1 MiB that are free.
    pub free_segments: u64,
    /// Bytes of memory for bookkeeping.
    pub memory_bytes: u64,
    /// The pool's time, in microseconds: that of its last look at what is due.
    #[serde(default)]
    pub time_us: u64,
    /// I/Os of cache devices and origins that have not ended.
    #[serde(default)]
    pub ios_in_flight: u64,
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

/// A cache device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceStatus {
    /// Its number in the pool, to remove it by.
    pub number: u8,
    /// Its path.
    pub path: String,
    /// Its bytes.
    pub capacity_bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Latencies.
    pub latency: LatencyByKind,
}

/// Where a disk is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// Being attached.
    Attaching,
    /// Could not be attached; it is tried again. The error says why.
    Waiting,
    /// Takes requests.
    Attached,
    /// Being cleaned and detached.
    Detaching,
    /// Known to the pool, takes no requests.
    Detached,
}

/// A disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// Its name; its identity if the name is not known.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// Where it is in its life.
    pub state: DiskState,
    /// Why it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its bytes, 0 if not known yet.
    pub size_bytes: u64,
    /// Its settings, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<DiskConfig>,
    /// The write mode that it has at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// What the policy has decided for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DiskPolicy>,
    /// What was measured of it in the last window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// The origin answers.
    pub origin_up: bool,
    /// Clients connected: NBD connections and vhost-user queues.
    pub clients: u64,
    /// Its share of the pool.
    pub usage: Usage,
    /// Its requests.
    pub requests: RequestCounters,
    /// Its blocks on their ways.
    pub blocks: BlockCounters,
    /// What went wrong.
    pub errors: ErrorCounters,
    /// Latencies that vhost-user clients saw.
    pub vhost_user_latency: LatencyByKind,
    /// Latencies that NBD clients saw.
    pub nbd_latency: LatencyByKind,
    /// Latencies of the origin.
    pub origin_latency: LatencyByKind,
}

/// A disk's share of the pool.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Bytes it should have.
    pub target_bytes: u64,
    /// Bytes it has.
    pub usage_bytes: u64,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// Of these, with a second copy.
    pub mirrored_bytes: u64,
    /// Microseconds that the oldest dirty block has been dirty.
    pub oldest_dirty_us: u64,
    /// Segments it owns.
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
    /// Blocks read that were wholly in the cache.
    pub read_hits: u64,
    /// Of these, blocks that admission had not let in yet and whose data was staged.
    pub data_stage_hits: u64,
    /// Blocks read that were not.
    pub read_misses: u64,
    /// Blocks written that were in the cache.
    pub write_hits: u64,
    /// Blocks written that were not.
    pub write_misses: u64,
    /// Blocks that admission or the sequential cut-off kept out.
    pub not_admitted: u64,
    /// Blocks written past the cache because as much was dirty as may be.
    pub overflowed: u64,
    /// Fills that found no memory and were not kept.
    pub fills_skipped: u64,
    /// The grid phase (0 to 7 sectors) that would align most requests.
    pub best_phase: u8,
}

/// Bytes on their ways.
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
    /// What was written to flash.
    pub flash: FlashWrites,
}

/// Bytes written to flash, by cause.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlashWrites {
    /// What clients wrote.
    pub write_bytes: u64,
    /// Filled from the origin.
    pub fill_bytes: u64,
    /// Second copies of dirty blocks.
    pub mirror_bytes: u64,
    /// Metadata pages with batches.
    pub batch_page_bytes: u64,
    /// Metadata pages alone.
    pub rewrite_page_bytes: u64,
    /// Intent map pages.
    pub intent_page_bytes: u64,
}

/// What went wrong with a disk.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ErrorCounters {
    /// Requests that failed.
    pub failed_requests: u64,
    /// I/Os of the origin that failed.
    pub origin_errors: u64,
    /// Blocks read from flash that failed their checksum.
    pub corrupt_blocks: u64,
    /// Of these, dirty ones without a good second copy.
    pub lost_blocks: u64,
}

/// Latencies of one kind of request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Half of the requests took at most so long.
    pub p50_us: u64,
    /// 99 of 100 requests did.
    pub p99_us: u64,
    /// 999 of 1,000 requests did.
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
    /// Its path. What is on it is lost.
    pub path: String,
    /// The size of a file that does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Overwrite what is on it. A pool is never overwritten.
    #[serde(default)]
    pub force: bool,
}

/// A disk's new size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeDisk {
    /// Bytes; the origin must have them already.
    pub size: Size,
    /// The disk's name, repeated: it may become smaller, and what it has beyond is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<String>,
}

/// A detached disk to forget.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetDisk {
    /// The disk's name, repeated: its dirty data may be destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_dirty: Option<String>,
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Attaches a disk.
    Attach,
    /// Cleans a disk and detaches it.
    Detach,
    /// Cleans a disk.
    Flush,
    /// Changes a disk's size.
    Resize,
    /// Changes a disk's settings.
    Change,
    /// Forgets a detached disk.
    Forget,
    /// Takes a device into a pool.
    AddDevice,
    /// Empties a device and takes it out of its pool.
    RemoveDevice,
}

/// Where a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Under way.
    Running,
    /// Done.
    Done,
    /// Failed: the error says why.
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
    /// Where it is.
    pub state: JobState,
    /// Blocks done, if it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_blocks: Option<u64>,
    /// Blocks in all as of the job's start, if it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_blocks: Option<u64>,
    /// Seconds that it has run, or ran.
    pub elapsed_s: f64,
    /// Seconds that it will still take at the pace so far, if that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; they rise by one.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// What kind: `device-failed`, `pool-lost`, `corruption`, `origin-away`, ...
    pub kind: String,
    /// The pool, or the disk's name.
    pub subject: String,
    /// In words.
    pub message: String,
}

/// Events after a number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The number to ask after next.
    pub next: u64,
}

/// An error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A word for programs: `not-found`, `conflict`, `dirty`, ...
    pub code: String,
    /// What was found and what was expected.
    pub error: String,
    /// What to do.
    pub hint: String,
}
