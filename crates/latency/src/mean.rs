//! The mean of latencies since a point in time.

/// A running mean.
#[derive(Clone, Copy, Default)]
pub struct Mean {
    sum_ns: u64,
    count: u64,
}

impl Mean {
    /// Adds a latency.
    pub fn add(&mut self, ns: u64) {
        self.sum_ns += ns;
        self.count += 1;
    }

    /// Returns the mean in microseconds; `None` without latencies. If all latencies are whole microseconds, the result
    /// is exactly their sum in microseconds divided by their number: counting in nanoseconds adds no rounding error.
    pub fn us(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / 1000.0 / self.count as f64)
    }
}
