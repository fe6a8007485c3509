//! How long reads of cache devices and of origins take, for the control loop.

use haversack_control::Counters;
use haversack_core::DiskStats;
use haversack_model::DiskNo;

use crate::latency::Mean;

/// A read in flight, which is measured when it ends: when it began, and whose origin it reads, if not a cache device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Read {
    /// When it began.
    pub since_ns: u64,
    /// The disk whose origin it reads.
    pub origin_of: Option<DiskNo>,
}

/// Mean times of reads, since each was last restarted.
pub struct ReadTimes {
    /// By disk.
    origins: Vec<Mean>,
    devices: Mean,
}

impl ReadTimes {
    /// Returns the times of a pool with this many disks, none measured yet.
    pub fn new(disks: usize) -> ReadTimes {
        ReadTimes { origins: vec![Mean::default(); disks], devices: Mean::default() }
    }

    /// Records the latency of a read that ends now.
    pub fn measure(&mut self, now_ns: u64, read: Read) {
        let took_ns = now_ns - read.since_ns;
        match read.origin_of {
            Some(disk) => self.origins[usize::from(disk.0)].add(took_ns),
            None => self.devices.add(took_ns),
        }
    }

    /// Returns a disk's counters with its times.
    pub fn counters(&self, disk: DiskNo, stats: &DiskStats) -> Counters {
        Counters {
            origin_latency_us: self.origins[usize::from(disk.0)].us(),
            cache_latency_us: self.devices.us(),
            ..Counters::of(stats)
        }
    }

    /// Measures a disk's origin from now on, or all origins and devices.
    pub fn restart(&mut self, of: Option<DiskNo>) {
        match of {
            Some(disk) => self.origins[usize::from(disk.0)] = Mean::default(),
            None => {
                self.origins.fill(Mean::default());
                self.devices = Mean::default();
            }
        }
    }
}
