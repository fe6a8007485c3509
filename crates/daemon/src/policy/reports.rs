//! The policy's input about the disks of a pool: settings and counters.

use std::collections::BTreeMap;

use haversack_api::DiskConfig;
use haversack_control::{Counters, DiskReport};
use haversack_engine::{DiskSnapshot, Histogram, Snapshot};

/// Sum and count of a histogram's latencies at the end of a window.
type Seen = (u64, u64);

/// The latencies of earlier windows.
#[derive(Default)]
pub struct Latencies {
    origins: BTreeMap<String, Seen>,
    devices: Seen,
    /// The latencies are unknown, because the pool's clock does not advance during I/Os.
    pub unknown: bool,
}

impl Latencies {
    /// Returns a disk's counters with the mean latencies of the current window.
    pub fn counters(&self, snapshot: &Snapshot, disk: &DiskSnapshot) -> Counters {
        let counters = Counters::of(&disk.stats);
        if self.unknown {
            return counters;
        }
        let before = self.origins.get(&disk.name).copied().unwrap_or_default();
        Counters {
            origin_latency_us: mean_us(seen(&disk.origin_latency.read), before),
            cache_latency_us: mean_us(devices(snapshot), self.devices),
            ..counters
        }
    }

    /// Forgets what was measured of a disk's origin so far, because it is another one now.
    pub fn restart(&mut self, disk: &DiskSnapshot) {
        self.origins.insert(disk.name.clone(), seen(&disk.origin_latency.read));
    }

    /// Ends a window.
    pub fn close(&mut self, snapshot: &Snapshot) {
        let disks = snapshot.disks.iter();
        self.origins = disks.map(|disk| (disk.name.clone(), seen(&disk.origin_latency.read))).collect();
        self.devices = devices(snapshot);
    }
}

fn seen(histogram: &Histogram) -> Seen {
    (histogram.sum_us(), histogram.count())
}

fn devices(snapshot: &Snapshot) -> Seen {
    let all = snapshot.devices.iter().map(|device| seen(&device.latency.read));
    all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Returns the mean latency since `before`. Counters that have decreased were restarted from zero. A total time of zero
/// counts as not measured.
fn mean_us(now: Seen, before: Seen) -> Option<f64> {
    let before = if now.1 < before.1 { (0, 0) } else { before };
    let count = now.1 - before.1;
    let sum_us = now.0.saturating_sub(before.0);
    (sum_us > 0).then(|| sum_us as f64 / count as f64)
}

/// Returns the policy's input about a disk.
pub fn report(
    snapshot: &Snapshot,
    disk: &DiskSnapshot,
    config: &DiskConfig,
    latencies: &Latencies,
) -> DiskReport {
    let pool_blocks = snapshot.pool.capacity_blocks;
    let facts = haversack_control::disk::wishes(config).facts(
        &disk.name,
        pool_blocks,
        disk.usage.usage_blocks,
        disk.mode,
    );
    DiskReport { facts, counters: latencies.counters(snapshot, disk) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_what_came_since() {
        assert_eq!(mean_us((100, 4), (40, 1)), Some(20.0));
        assert_eq!(mean_us((100, 4), (100, 4)), None);
        assert_eq!(mean_us((100, 5), (100, 4)), None);
        // The disk was attached again.
        assert_eq!(mean_us((30, 3), (100, 4)), Some(10.0));
    }
}
