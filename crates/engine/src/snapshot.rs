//! All figures of a shard at one point in time.

use haversack_core::{DiskStats, DiskUsage, PoolStats};
use haversack_model::{DeviceNo, DiskHandle, DiskId, Micros, WriteMode};

use crate::histogram::Histogram;

/// A shard's figures.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The pool.
    pub pool: PoolStats,
    /// The shard's time. Everything that was due up to then has been started.
    pub time_us: Micros,
    /// Device and origin I/Os in flight.
    pub ios_in_flight: u64,
    /// How long turns of the shard's thread took. Other clients are not served during a turn.
    pub turns: Histogram,
    /// How long the shard's thread was ready to run but had no processor.
    pub processor_wait_us: Micros,
    /// The cache devices in use.
    pub devices: Vec<DeviceSnapshot>,
    /// The attached disks.
    pub disks: Vec<DiskSnapshot>,
}

/// A cache device's figures.
#[derive(Clone, Debug)]
pub struct DeviceSnapshot {
    /// Its number in the pool.
    pub device: DeviceNo,
    /// Its path.
    pub path: String,
    /// Its capacity in bytes.
    pub capacity_bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Latencies of reads, writes and flushes.
    pub latency: Latencies,
}

/// A disk's figures.
#[derive(Clone, Debug)]
pub struct DiskSnapshot {
    /// The disk's handle, valid as long as it is attached.
    pub disk: DiskHandle,
    /// Its identity.
    pub id: DiskId,
    /// Its name.
    pub name: String,
    /// Its size in sectors.
    pub sectors: u64,
    /// Its write mode.
    pub mode: WriteMode,
    /// Counters.
    pub stats: DiskStats,
    /// Its share.
    pub usage: DiskUsage,
    /// The origin is reachable.
    pub origin_up: bool,
    /// I/Os of the origin that failed.
    pub origin_errors: u64,
    /// Clients connected: NBD connections and vhost-user queues.
    pub clients: u64,
    /// Latencies that vhost-user clients saw.
    pub vhost_user_latency: Latencies,
    /// Latencies that NBD clients saw.
    pub nbd_latency: Latencies,
    /// Latencies of the origin.
    pub origin_latency: Latencies,
}

/// Latencies by kind of request.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads.
    pub read: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Flushes.
    pub flush: Histogram,
}
