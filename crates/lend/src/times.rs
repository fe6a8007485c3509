//! How long the last I/Os of a kind took: a histogram that forgets.

use haversack_model::Micros;

/// Buckets for each doubling of the time.
const PARTS: usize = 4;
const BUCKETS: usize = 24 * PARTS;
/// At this number of samples, all counts are halved.
const MOST_SAMPLES: u32 = 2048;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    counts: [u32; BUCKETS],
    samples: u32,
    mean_us: f64,
}

impl Times {
    pub fn new() -> Times {
        Times { counts: [0; BUCKETS], samples: 0, mean_us: 0.0 }
    }

    fn bucket(us: Micros) -> usize {
        (((us.max(1) as f64).log2() * PARTS as f64) as usize).min(BUCKETS - 1)
    }

    /// Adds a sample.
    pub fn add(&mut self, us: Micros) {
        if self.samples >= MOST_SAMPLES {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.counts.iter().sum();
        }
        self.counts[Self::bucket(us)] += 1;
        self.samples += 1;
        let weight = (1.0 / f64::from(self.samples)).max(1.0 / 64.0);
        self.mean_us += (us as f64 - self.mean_us) * weight;
    }

    /// Returns the samples that count.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the mean of the latest.
    pub fn mean_us(&self) -> f64 {
        self.mean_us
    }

    /// Returns the time below which 99 of 100 are, rounded up to a bucket's end.
    pub fn p99_us(&self) -> Micros {
        let mut left = u64::from(self.samples) * 99 / 100;
        for (bucket, count) in self.counts.iter().enumerate() {
            if left < u64::from(*count) {
                return ((bucket + 1) as f64 / PARTS as f64).exp2().ceil() as Micros;
            }
            left -= u64::from(*count);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_within_a_bucket_and_follows_changes() {
        let mut times = Times::new();
        (0..1000).for_each(|at| times.add(1000 + at % 10));
        times.add(1_000_000);
        assert!((1009..1250).contains(&times.p99_us()), "{}", times.p99_us());
        assert!((1000.0..30_000.0).contains(&times.mean_us()));
        (0..20_000).for_each(|_| times.add(50));
        assert!((50..65).contains(&times.p99_us()), "{}", times.p99_us());
        assert!((49.0..51.0).contains(&times.mean_us()));
    }
}
