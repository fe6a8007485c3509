//! Latencies counted in buckets: powers of two, each split into 64, so percentiles are accurate within 1 %.

use serde::Serialize;

const SPLIT_LOG2: u32 = 6;
const BUCKETS: usize = (64 - SPLIT_LOG2 as usize + 1) << SPLIT_LOG2;

/// See the module.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
}

/// The summary of a distribution of latencies, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Requests.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 95 % took no longer.
    pub p95_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
}

fn bucket(ns: u64) -> usize {
    let split = 1u64 << SPLIT_LOG2;
    if ns < split {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() - SPLIT_LOG2;
    ((shift as usize + 1) << SPLIT_LOG2) + ((ns >> shift) - split) as usize
}

/// The middle of a bucket.
fn middle_ns(bucket: usize) -> f64 {
    let split = 1usize << SPLIT_LOG2;
    if bucket < split {
        return bucket as f64;
    }
    let (shift, part) = ((bucket >> SPLIT_LOG2) - 1, bucket & (split - 1));
    ((split + part) as f64 + 0.5) * (shift as f64).exp2() - 0.5
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], count: 0, sum_ns: 0 }
    }
}

impl Histogram {
    /// Counts a latency.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
    }

    /// The latency that this share of all requests does not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle_ns(bucket) / 1000.0;
            }
        }
        0.0
    }

    /// The summary.
    pub fn summary(&self) -> Summary {
        let [p50_us, p90_us, p95_us, p99_us] = [0.5, 0.9, 0.95, 0.99].map(|share| self.quantile_us(share));
        let mean_us = self.sum_ns as f64 / self.count.max(1) as f64 / 1000.0;
        Summary { count: self.count, mean_us, p50_us, p90_us, p95_us, p99_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_within_one_percent() {
        let mut histogram = Histogram::default();
        for ns in 1..=100_000u64 {
            histogram.record(ns * 1000);
        }
        let summary = histogram.summary();
        assert_eq!(summary.count, 100_000);
        assert!((summary.mean_us - 50_000.5).abs() < 1e-6);
        for (found, expected) in [(summary.p50_us, 5e4), (summary.p90_us, 9e4), (summary.p99_us, 9.9e4)] {
            assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
        }
        histogram.record(u64::MAX);
        assert_eq!(Histogram::default().summary(), Summary::default());
    }
}
