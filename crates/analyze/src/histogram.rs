//! Histograms of distances: 64 buckets per octave, so that every value is known to 1.6 %, and the number of values
//! below a bucket's edge exactly. Sizes given in advance are edges too.

/// Bits of a value that its bucket keeps, after the leading one.
const PRECISION: u32 = 6;

/// Weights of values, by value.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: Vec<f64>,
    /// The given sizes, in order, and the weight of the values from the previous size up to below this one.
    asked: Vec<u64>,
    asked_weights: Vec<f64>,
    largest: Option<u64>,
    total: f64,
}

fn bucket_of(value: u64) -> usize {
    let shift = (63 - (value | 1).leading_zeros()).saturating_sub(PRECISION);
    ((u64::from(shift) << PRECISION) + (value >> shift)) as usize
}

/// Returns the smallest value in a bucket.
fn edge_of(bucket: usize) -> u64 {
    let shift = (bucket >> PRECISION).saturating_sub(1);
    ((bucket - (shift << PRECISION)) as u64) << shift
}

impl Histogram {
    /// Makes an empty histogram in which the number of values below each of the sizes is exact.
    pub fn new(sizes: &[u64]) -> Histogram {
        let mut asked = sizes.to_vec();
        asked.sort_unstable();
        asked.dedup();
        Histogram { asked_weights: vec![0.0; asked.len()], asked, ..Histogram::default() }
    }

    /// Adds a value with a weight.
    #[inline]
    pub fn add(&mut self, value: u64, weight: f64) {
        let bucket = bucket_of(value);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0.0);
        }
        self.buckets[bucket] += weight;
        self.total += weight;
        self.largest = self.largest.max(Some(value));
        if !self.asked.is_empty() {
            let place = self.asked.partition_point(|size| *size <= value);
            if let Some(weights) = self.asked_weights.get_mut(place) {
                *weights += weight;
            }
        }
    }

    /// Adds a weight to the values of 0, whether there are any or not: a correction, which may be negative.
    pub(crate) fn correct(&mut self, weight: f64) {
        self.add(0, weight);
        if self.total <= 0.0 {
            self.largest = None;
        }
    }

    /// Adds all of another histogram, made for the same sizes.
    pub fn merge(&mut self, other: &Histogram) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0.0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, from)| *to += from);
        self.asked_weights.iter_mut().zip(&other.asked_weights).for_each(|(to, from)| *to += from);
        self.largest = self.largest.max(other.largest);
        self.total += other.total;
    }

    /// Multiplies all weights: with a factor below 1, old values count less.
    pub fn fade(&mut self, factor: f64) {
        self.buckets.iter_mut().chain(&mut self.asked_weights).for_each(|weight| *weight *= factor);
        self.total *= factor;
        if factor == 0.0 {
            self.largest = None;
        }
    }

    /// Returns the weight of all values.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns the largest value, exactly.
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Returns the weight of values below a size: exact at edges and given sizes, otherwise as if a bucket's values
    /// were spread evenly.
    pub fn below(&self, size: u64) -> f64 {
        if let Ok(place) = self.asked.binary_search(&size) {
            return self.asked_weights[..=place].iter().sum();
        }
        let bucket = bucket_of(size);
        let whole: f64 = self.buckets.iter().take(bucket).sum();
        let (from, to) = (edge_of(bucket), edge_of(bucket + 1));
        let part =
            self.buckets.get(bucket).map_or(0.0, |weight| weight * (size - from) as f64 / (to - from) as f64);
        whole + part
    }

    /// Returns the value at or below which a share of the weight lies, to 1.6 %; `None` if there are no values.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let largest = self.largest?;
        let (wanted, mut sum) = (self.total * share, 0.0);
        for (bucket, weight) in self.buckets.iter().enumerate() {
            sum += weight;
            if sum >= wanted && *weight > 0.0 {
                return Some((edge_of(bucket + 1) - 1).min(largest));
            }
        }
        Some(largest)
    }

    /// Returns the edges of buckets up to the first above `limit`, about n per octave: sizes at which
    /// [`below`](Self::below) is exact.
    pub fn edges(limit: u64, an_octave: usize) -> Vec<u64> {
        let every = ((1 << PRECISION) / an_octave.clamp(1, 1 << PRECISION)).max(1);
        let mut edges = Vec::new();
        let mut bucket = 1;
        loop {
            let edge = edge_of(bucket);
            edges.push(edge);
            if edge >= limit || bucket >= bucket_of(u64::MAX) {
                return edges;
            }
            // Below a full octave of buckets there are few values: their density follows the value.
            bucket += if bucket < 1 << (PRECISION + 1) {
                (bucket / an_octave.max(1)).max(1).min(every)
            } else {
                every
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_seamless() {
        for bucket in 0..bucket_of(u64::MAX) {
            assert_eq!(bucket_of(edge_of(bucket)), bucket);
            assert_eq!(bucket_of(edge_of(bucket + 1) - 1), bucket);
        }
    }

    proptest! {
        #[test]
        fn counts_are_exact_where_promised(values in prop::collection::vec(0u64..100_000, 1..200), size in 0u64..100_000) {
            let mut h = Histogram::new(&[size]);
            values.iter().for_each(|v| h.add(*v, 1.0));
            let exact = |size: u64| values.iter().filter(|v| **v < size).count() as f64;
            prop_assert_eq!(h.below(size), exact(size));
            for edge in Histogram::edges(200_000, 8) {
                prop_assert_eq!(h.below(edge), exact(edge));
            }
            prop_assert_eq!(h.largest(), values.iter().max().copied());
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let median = sorted[(values.len() - 1) / 2];
            let found = h.percentile(0.5).unwrap();
            prop_assert!(found >= median && found as f64 <= median as f64 * 1.016 + 1.0);
        }
    }
}
