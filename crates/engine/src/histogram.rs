//! A latency histogram of fixed size: power-of-two buckets of microseconds, each split in four.
//!
//! Recording takes a few instructions and does not allocate; a bucket's width is at most a quarter of its lower bound.

/// Sub-buckets of a power of two, as a power of two.
const SPLIT_LOG2: u32 = 2;
/// Buckets: up to 2^32 microseconds, over an hour.
const BUCKETS: usize = ((32 - SPLIT_LOG2 as usize) + 1) << SPLIT_LOG2;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], count: 0, sum_us: 0 }
    }
}

fn bucket(value_us: u64) -> usize {
    let value = value_us.min(u64::from(u32::MAX));
    let split = 1u64 << SPLIT_LOG2;
    if value < split {
        return value as usize;
    }
    let log2 = 63 - value.leading_zeros();
    let shift = log2 - SPLIT_LOG2;
    ((shift as usize + 1) << SPLIT_LOG2) + ((value >> shift) - split) as usize
}

/// Returns the lowest value above a bucket.
fn upper_us(bucket: usize) -> u64 {
    let split = 1usize << SPLIT_LOG2;
    if bucket < split {
        return bucket as u64 + 1;
    }
    let (shift, part) = ((bucket >> SPLIT_LOG2) - 1, bucket & (split - 1));
    ((split + part + 1) as u64) << shift
}

impl Histogram {
    /// Adds a value.
    pub fn record(&mut self, value_us: u64) {
        self.counts[bucket(value_us)] += 1;
        self.count += 1;
        self.sum_us += value_us;
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all values.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Returns the mean, 0 without values.
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_us as f64 / self.count as f64 }
    }

    /// Returns an upper bound of the given share (0 to 1) of the values, 0 without values.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && self.count > 0 {
                return upper_us(at) - 1;
            }
        }
        0
    }

    /// Returns the number of values up to `limit_us`, to the precision of the buckets; for cumulative export.
    pub fn at_most(&self, limit_us: u64) -> u64 {
        self.counts.iter().enumerate().filter(|(at, _)| upper_us(*at) - 1 <= limit_us).map(|(_, c)| c).sum()
    }

    /// Returns the values recorded after `before`, an earlier copy of this histogram.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut since = self.clone();
        since.counts.iter_mut().zip(&before.counts).for_each(|(now, then)| *now -= then);
        since.count -= before.count;
        since.sum_us -= before.sum_us;
        since
    }

    /// Adds another histogram's values.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_us += other.sum_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_below_its_buckets_upper_bound() {
        for value in (0..5000).chain([1 << 20, (1 << 31) + 12345, u64::from(u32::MAX)]) {
            let at = bucket(value);
            assert!(value < upper_us(at), "{value}");
            assert!(at == 0 || value >= upper_us(at - 1), "{value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile_us(0.5), 0);
        for value in 1..=1000 {
            h.record(value);
        }
        assert!((500..640).contains(&h.quantile_us(0.5)));
        assert!((990..1280).contains(&h.quantile_us(0.99)));
        assert_eq!(h.at_most(u64::MAX), 1000);
        assert!((h.mean_us() - 500.5).abs() < 1e-9);
        let before = h.clone();
        h.record(7);
        assert_eq!((h.since(&before).count(), h.since(&before).sum_us()), (1, 7));
        assert_eq!(h.since(&before).quantile_us(0.5), 7);
    }
}
