//! All figures of a pool at one point in time.

use haversack_core::{BaseUsage, DiskStats, DiskUsage, PoolStats};
use haversack_model::{DeviceNo, DiskHandle, DiskId, HostId, Micros, WriteMode};

use crate::histogram::Histogram;

/// A pool's figures, or those of one of its arenas.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The pool.
    pub pool: PoolStats,
    /// The pool's time. Everything that was due up to then has been started.
    pub time_us: Micros,
    /// Device and origin I/Os in flight.
    pub ios_in_flight: u64,
    /// Only in tests, if I/Os take time by a model.
    pub stepped: Option<Stepped>,
    /// How long turns of the pool's threads took. Other clients are not served during a turn.
    pub turns: Histogram,
    /// How long the pool's threads were ready to run but had no processor.
    pub processor_wait_us: Micros,
    /// The cache devices in use.
    pub devices: Vec<DeviceSnapshot>,
    /// The attached disks.
    pub disks: Vec<DiskSnapshot>,
}

impl Snapshot {
    /// Adds the figures of another arena of the pool.
    pub(crate) fn add(&mut self, other: Snapshot) {
        self.pool.add(&other.pool);
        self.time_us = self.time_us.min(other.time_us);
        self.ios_in_flight += other.ios_in_flight;
        if let (Some(mine), Some(theirs)) = (&mut self.stepped, other.stepped) {
            mine.next_us = mine.next_us.min(theirs.next_us);
            mine.ios += theirs.ios;
            mine.requests += theirs.requests;
        }
        self.turns.merge(&other.turns);
        self.processor_wait_us += other.processor_wait_us;
        for device in other.devices {
            match self.devices.iter_mut().find(|known| known.device == device.device) {
                Some(known) => known.add(&device),
                None => self.devices.push(device),
            }
        }
        self.disks.extend(other.disks);
    }
}

/// The state needed to advance the clock of a pool whose I/Os have modelled durations.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// When the next I/O ends or timers are checked next; not after the pool's time if something is left to do now.
    pub next_us: Micros,
    /// I/Os that have not ended.
    pub ios: u64,
    /// Requests of clients that the pool has taken so far.
    pub requests: u64,
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

impl DeviceSnapshot {
    /// Adds the figures of another extent of the device.
    fn add(&mut self, other: &DeviceSnapshot) {
        self.capacity_bytes += other.capacity_bytes;
        self.errors += other.errors;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.latency.read.merge(&other.latency.read);
        self.latency.write.merge(&other.latency.write);
        self.latency.flush.merge(&other.latency.flush);
    }
}

/// The location of a disk that another host owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// That host.
    pub host: HostId,
    /// It still needs dirty blocks that are here.
    pub needs_blocks: bool,
    /// It has taken the disk over by force.
    pub is_by_force: bool,
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
    /// The disk serves requests here, rather than waiting for its guest to arrive from another host.
    pub is_served: bool,
    /// The other host that has it, as far as is known here.
    pub elsewhere: Option<Elsewhere>,
    /// Its write mode.
    pub mode: WriteMode,
    /// Counters.
    pub stats: DiskStats,
    /// Its share.
    pub usage: DiskUsage,
    /// What it shares with its base.
    pub base: Option<BaseUsage>,
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
