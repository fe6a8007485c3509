//! Measurements of a simulated cluster: each VM, window by window and over all windows that count.

use haversack_core::DiskStats;
use haversack_model::DiskNo;
use serde::Serialize;

use super::host::Host;
use crate::latency::IoKind;
use crate::latency::histogram::{Histogram, Summary};

/// Hits and accesses in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Hits {
    /// Blocks read or written that were cached.
    pub hits: u64,
    /// Blocks read or written.
    pub accesses: u64,
}

impl Hits {
    fn of(stats: &DiskStats) -> Hits {
        let hits = stats.read_hits + stats.write_hits;
        Hits { hits, accesses: hits + stats.read_misses + stats.write_misses }
    }

    /// Their ratio; `None` without accesses.
    pub fn ratio(&self) -> Option<f64> {
        (self.accesses > 0).then(|| self.hits as f64 / self.accesses as f64)
    }

    fn since(self, before: Hits) -> Hits {
        // A disk that comes to a host may be counted from 0 there.
        let is_new = self.accesses < before.accesses;
        if is_new {
            return self;
        }
        let hits = self.hits.saturating_sub(before.hits);
        Hits { hits, accesses: self.accesses - before.accesses }
    }

    fn add(&mut self, other: Hits) {
        self.hits += other.hits;
        self.accesses += other.accesses;
    }
}

/// A window.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WindowSample {
    /// When it ended, in seconds.
    pub time_seconds: f64,
    /// Hits of each VM.
    pub hits: Vec<Hits>,
    /// Mean latency of all requests.
    pub mean_us: f64,
    /// 90 % of them took no longer.
    pub p90_us: f64,
    /// The host of each VM at its end.
    pub places: Vec<usize>,
    /// Predicted demand of each host's VMs as a part of its cache.
    pub loads: Vec<f64>,
    /// Moves done so far.
    pub moves: usize,
}

/// A VM over all windows that count.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VmOutcome {
    /// Its name.
    pub name: String,
    /// Its hits.
    pub hits: Hits,
    /// Latencies of its reads and writes.
    pub latency: Summary,
}

/// See the module.
pub struct Measure {
    /// Of each host and volume, when the last window ended.
    last: Vec<Vec<Hits>>,
    total: Vec<Hits>,
    latencies: Vec<Histogram>,
    window: Histogram,
    /// The windows.
    pub samples: Vec<WindowSample>,
}

impl Measure {
    /// Without measurements.
    pub fn new(volumes: usize, hosts: usize) -> Measure {
        Measure {
            last: vec![vec![Hits::default(); volumes]; hosts],
            total: vec![Hits::default(); volumes],
            latencies: vec![Histogram::default(); volumes],
            window: Histogram::default(),
            samples: Vec::new(),
        }
    }

    /// Records the latency of a request.
    pub fn latency(&mut self, volume: usize, kind: IoKind, ns: u64) {
        if kind != IoKind::Flush {
            self.latencies[volume].record(ns);
            self.window.record(ns);
        }
    }

    /// Counts what was used since the last time.
    fn count(&mut self, hosts: &[Host]) -> Vec<Hits> {
        let mut hits = vec![Hits::default(); self.total.len()];
        for (host, last) in hosts.iter().zip(&mut self.last) {
            for (volume, last) in last.iter_mut().enumerate() {
                let now = Hits::of(&host.stats(DiskNo(volume as u16)));
                hits[volume].add(now.since(*last));
                *last = now;
            }
        }
        self.total.iter_mut().zip(&hits).for_each(|(total, hits)| total.add(*hits));
        hits
    }

    /// Ends a window.
    pub fn sample(&mut self, now_ns: u64, hosts: &[Host], places: Vec<usize>, loads: Vec<f64>, moves: usize) {
        let hits = self.count(hosts);
        let summary = std::mem::take(&mut self.window).summary();
        self.samples.push(WindowSample {
            time_seconds: now_ns as f64 / 1e9,
            hits,
            mean_us: summary.mean_us,
            p90_us: summary.p90_us,
            places,
            loads,
            moves,
        });
    }

    /// Ends the measurements. The time after the last window is too short for a window of its own, but counts in the
    /// totals.
    pub fn end(&mut self, hosts: &[Host]) {
        self.count(hosts);
    }

    /// Ends the warm-up: what was measured so far is in the samples alone.
    pub fn end_warm_up(&mut self) {
        self.total.fill(Hits::default());
        self.latencies.fill(Histogram::default());
    }

    /// The VMs.
    pub fn vms(&self, names: &[String]) -> Vec<VmOutcome> {
        let all = names.iter().zip(&self.total).zip(&self.latencies);
        all.map(|((name, hits), latency)| VmOutcome {
            name: name.clone(),
            hits: *hits,
            latency: latency.summary(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_that_start_again_are_counted_from_there() {
        let of = |hits, accesses| Hits { hits, accesses };
        assert_eq!(of(10, 20).since(of(4, 8)), of(6, 12));
        assert_eq!(of(1, 2).since(of(4, 8)), of(1, 2));
        assert_eq!((of(1, 4).ratio(), of(0, 0).ratio()), (Some(0.25), None));
    }
}
