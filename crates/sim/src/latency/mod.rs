//! The model of time, and latencies of requests.

pub mod histogram;

use histogram::Histogram;

pub use haversack_latency::distribution;
pub use haversack_latency::{IoKind, LatencyModel, Looks, Mean, StationModel, Stations};

/// Latencies of requests.
#[derive(Clone, Default)]
pub struct Latencies {
    /// Reads.
    pub reads: Histogram,
    /// Writes.
    pub writes: Histogram,
    /// Both.
    pub all: Histogram,
}

impl Latencies {
    /// Counts a request.
    pub fn record(&mut self, kind: IoKind, ns: u64) {
        match kind {
            IoKind::Read => self.reads.record(ns),
            IoKind::Write => self.writes.record(ns),
            IoKind::Flush => return,
        }
        self.all.record(ns);
    }
}
