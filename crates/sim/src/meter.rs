//! Measurements that every simulated cache keeps in addition to its blocks: counts for each volume, those of
//! the warm-up, a series over time, latencies.

use haversack_trace::VolumeNo;
use serde::Serialize;

use crate::counts::Counts;
use crate::latency::histogram::Histogram;
use crate::latency::{IoKind, Latencies};

/// One sample of a cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// When, in seconds of simulated time.
    pub time_seconds: f64,
    /// Hits since the last sample.
    pub hits: u64,
    /// Accesses since the last sample.
    pub accesses: u64,
    /// Blocks in use, for each volume; empty if unknown.
    pub usage_blocks: Vec<u64>,
    /// Blocks that the origin does not have; 0 if unknown.
    pub dirty_blocks: u64,
}

/// The extent of measurement.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MeterSettings {
    /// Number of requests before counting begins.
    pub warm_up_requests: u64,
    /// Time between two samples; 0 for none.
    pub sample_ns: u64,
}

/// See the module.
pub struct Meter {
    settings: MeterSettings,
    counts: Vec<Counts>,
    warm: Vec<Counts>,
    requests: u64,
    last: (u64, u64),
    next_sample_ns: u64,
    series: Vec<Sample>,
    latencies: Latencies,
    of_volumes: Vec<Histogram>,
}

/// The measurements.
pub struct Measured {
    /// Counts of each volume, without the warm-up.
    pub volumes: Vec<Counts>,
    /// The samples.
    pub series: Vec<Sample>,
    /// Latencies, without the warm-up.
    pub latencies: Latencies,
    /// Latencies of the reads and writes of each volume that had any.
    pub of_volumes: Vec<Histogram>,
}

impl Meter {
    /// A meter without measurements.
    pub fn new(settings: MeterSettings) -> Self {
        Meter {
            settings,
            counts: Vec::new(),
            warm: Vec::new(),
            requests: 0,
            last: (0, 0),
            next_sample_ns: settings.sample_ns,
            series: Vec::new(),
            latencies: Latencies::default(),
            of_volumes: Vec::new(),
        }
    }

    /// Whether the warm-up ends before this request, which is counted. Counts must be up to date when it does.
    pub fn request(&mut self) -> bool {
        let ends = self.requests == self.settings.warm_up_requests && self.requests > 0;
        self.requests += 1;
        ends
    }

    /// Ends the warm-up: earlier counts are excluded.
    pub fn end_warm_up(&mut self) {
        self.warm.clone_from(&self.counts);
    }

    /// The counts of a volume.
    pub fn volume(&mut self, volume: VolumeNo) -> &mut Counts {
        let at = volume.0 as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, Counts::default());
        }
        &mut self.counts[at]
    }

    /// The counts of a volume so far.
    pub fn of(&self, volume: VolumeNo) -> Counts {
        self.counts.get(volume.0 as usize).copied().unwrap_or_default()
    }

    /// Whether it is time for a sample.
    pub fn sample_due(&self, now_ns: u64) -> bool {
        self.settings.sample_ns > 0 && now_ns >= self.next_sample_ns
    }

    /// Takes a sample.
    pub fn sample(&mut self, now_ns: u64, usage_blocks: Vec<u64>, dirty_blocks: u64) {
        let total = self.counts.iter().fold((0, 0), |(hits, accesses), c| {
            (hits + c.read_hits + c.write_hits, accesses + c.blocks_read() + c.blocks_written())
        });
        let at_ns = now_ns - now_ns % self.settings.sample_ns.max(1);
        self.next_sample_ns = at_ns + self.settings.sample_ns;
        self.series.push(Sample {
            time_seconds: at_ns as f64 / 1e9,
            hits: total.0 - self.last.0,
            accesses: total.1 - self.last.1,
            usage_blocks,
            dirty_blocks,
        });
        self.last = total;
    }

    /// Notes the latency of a request to a volume.
    pub fn latency(&mut self, volume: VolumeNo, kind: IoKind, ns: u64) {
        if self.requests <= self.settings.warm_up_requests {
            return;
        }
        self.latencies.record(kind, ns);
        if kind != IoKind::Flush {
            let at = volume.0 as usize;
            if at >= self.of_volumes.len() {
                self.of_volumes.resize_with(at + 1, Histogram::default);
            }
            self.of_volumes[at].record(ns);
        }
    }

    /// The measurements.
    pub fn end(mut self) -> Measured {
        self.warm.resize(self.counts.len(), Counts::default());
        let volumes = self.counts.iter().zip(&self.warm).map(|(all, warm)| all.since(warm)).collect();
        let (series, latencies, of_volumes) = (self.series, self.latencies, self.of_volumes);
        Measured { volumes, series, latencies, of_volumes }
    }
}
