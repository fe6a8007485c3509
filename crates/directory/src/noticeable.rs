//! Which differences between two records are worth a write to etcd.
//!
//! Names, states and settings in a record are always exact. Figures of load and use change all the time: it is enough
//! to know them within a few percent.

use crate::record::{DiskRecord, Load, PoolRecord, Worth};

/// The part by which sizes may differ.
const SIZES: f64 = 0.1;
/// The part by which rates may differ: they vary more from one report to the next.
const RATES: f64 = 0.3;
/// Amounts of dirty data below this, in bytes, count as equal, except for none.
const LEAST_DIRTY: f64 = 64e6;
/// Rates below this, per second, count as equal.
const LEAST_REQUESTS: f64 = 10.0;
/// The same in bytes.
const LEAST_BYTES: f64 = 1e6;
/// The same for latencies, in microseconds.
const LEAST_US: f64 = 50.0;
/// The hit ratio by which curves may differ.
const RATIOS: f64 = 0.05;

/// See the module.
pub(crate) trait Noticeable {
    /// Returns whether the difference is worth a write.
    fn differs_noticeably(&self, from: &Self) -> bool;
}

/// Returns whether two figures differ by more than a part of the larger one, and one of them is not small.
fn differ(a: f64, b: f64, part: f64, least: f64) -> bool {
    let larger = a.max(b);
    larger >= least && (a - b).abs() > larger * part
}

fn sizes_differ(a: u64, b: u64) -> bool {
    differ(a as f64, b as f64, SIZES, 0.0)
}

/// The amount of dirty data varies; whether there is any matters when the host dies.
fn dirty_differs(a: u64, b: u64) -> bool {
    (a == 0) != (b == 0) || differ(a as f64, b as f64, RATES, LEAST_DIRTY)
}

impl Noticeable for Load {
    fn differs_noticeably(&self, from: &Load) -> bool {
        let requests = |a, b| differ(a, b, RATES, LEAST_REQUESTS);
        let bytes = |a, b| differ(a, b, RATES, LEAST_BYTES);
        requests(self.requests_per_s, from.requests_per_s)
            || requests(self.read_hits_per_s, from.read_hits_per_s)
            || requests(self.read_misses_per_s, from.read_misses_per_s)
            || bytes(self.bytes_per_s, from.bytes_per_s)
            || bytes(self.origin_bytes_per_s, from.origin_bytes_per_s)
            || bytes(self.flash_bytes_per_s, from.flash_bytes_per_s)
            || differ(self.latency_us, from.latency_us, RATES, LEAST_US)
    }
}

impl Noticeable for Worth {
    fn differs_noticeably(&self, from: &Worth) -> bool {
        let settings = |worth: &Worth| (worth.reservation_bytes, worth.limit_bytes, worth.priority);
        let points = self.curve.iter().zip(&from.curve);
        let latencies = |a, b| differ(a, b, RATES, LEAST_US);
        settings(self) != settings(from)
            || sizes_differ(self.reused_bytes, from.reused_bytes)
            || self.curve.len() != from.curve.len()
            || points.into_iter().any(|(a, b)| sizes_differ(a.0, b.0) || (a.1 - b.1).abs() > RATIOS)
            || latencies(self.origin_latency_us, from.origin_latency_us)
            || latencies(self.cache_latency_us, from.cache_latency_us)
    }
}

impl Noticeable for PoolRecord {
    fn differs_noticeably(&self, from: &PoolRecord) -> bool {
        (&self.state, self.capacity_bytes, &self.tenant_limits)
            != (&from.state, from.capacity_bytes, &from.tenant_limits)
            || sizes_differ(self.demand_bytes, from.demand_bytes)
            || sizes_differ(self.usage_bytes, from.usage_bytes)
            || dirty_differs(self.dirty_bytes, from.dirty_bytes)
            || self.load.differs_noticeably(&from.load)
    }
}

impl Noticeable for DiskRecord {
    fn differs_noticeably(&self, from: &DiskRecord) -> bool {
        let exact = |disk: &DiskRecord| DiskRecord {
            demand_bytes: 0,
            usage_bytes: 0,
            dirty_bytes: 0,
            load: Load::default(),
            worth: Worth::default(),
            ..disk.clone()
        };
        exact(self) != exact(from)
            || sizes_differ(self.demand_bytes, from.demand_bytes)
            || sizes_differ(self.usage_bytes, from.usage_bytes)
            || dirty_differs(self.dirty_bytes, from.dirty_bytes)
            || self.load.differs_noticeably(&from.load)
            || self.worth.differs_noticeably(&from.worth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::disk;

    #[test]
    fn figures_may_be_a_little_off_and_all_else_is_exact() {
        let before = DiskRecord { usage_bytes: 1000, dirty_bytes: 0, ..disk("alpha", 3) };
        let is_noticed = |change: &dyn Fn(&mut DiskRecord)| {
            let mut after = before.clone();
            change(&mut after);
            after.differs_noticeably(&before)
        };
        assert!(!is_noticed(&|_| {}));
        assert!(!is_noticed(&|disk| disk.usage_bytes = 1050));
        assert!(is_noticed(&|disk| disk.usage_bytes = 1200));
        assert!(is_noticed(&|disk| disk.usage_bytes = 0));
        assert!(is_noticed(&|disk| disk.dirty_bytes = 1));
        assert!(is_noticed(&|disk| disk.epoch = 4));
        assert!(is_noticed(&|disk| disk.moving_to = Some("beta".into())));
        assert!(is_noticed(&|disk| disk.worth.limit_bytes = Some(1)));
        assert!(!is_noticed(&|disk| disk.load.requests_per_s = 9.0));
        assert!(is_noticed(&|disk| disk.load.requests_per_s = 90.0));
        assert!(is_noticed(&|disk| disk.worth.curve = vec![(1, 0.5)]));
        let curve = |ratio| DiskRecord {
            worth: Worth { curve: vec![(1000, ratio)], ..Worth::default() },
            ..before.clone()
        };
        assert!(!curve(0.52).differs_noticeably(&curve(0.5)) && curve(0.6).differs_noticeably(&curve(0.5)));
    }
}
