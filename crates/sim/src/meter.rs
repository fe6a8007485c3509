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
    /// Of each volume, since the last sample. Volumes without an access yet may be missing at the end.
    pub volumes: Vec<VolumeSample>,
}

/// Hits and accesses of a volume, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VolumeSample {
    /// Blocks read that were cached.
    pub read_hits: u64,
    /// Blocks read.
    pub reads: u64,
    /// Blocks written that were cached.
    pub write_hits: u64,
    /// Blocks written.
    pub writes: u64,
}

impl VolumeSample {
    fn of(counts: &Counts) -> VolumeSample {
        VolumeSample {
            read_hits: counts.read_hits,
            reads: counts.blocks_read(),
            write_hits: counts.write_hits,
            writes: counts.blocks_written(),
        }
    }

    /// Hits.
    pub fn hits(&self) -> u64 {
        self.read_hits + self.write_hits
    }

    /// Accesses.
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &VolumeSample) -> VolumeSample {
        VolumeSample {
            read_hits: self.read_hits + other.read_hits,
            reads: self.reads + other.reads,
            write_hits: self.write_hits + other.write_hits,
            writes: self.writes + other.writes,
        }
    }
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
    warm_ns: u64,
    requests: u64,
    last: Vec<Counts>,
    next_sample_ns: u64,
    series: Vec<Sample>,
    latencies: Latencies,
    of_volumes: Vec<Histogram>,
}

/// The measurements.
pub struct Measured {
    /// Counts of each volume, without the warm-up.
    pub volumes: Vec<Counts>,
    /// Simulated time at which the warm-up ended.
    pub warm_ns: u64,
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
            warm_ns: 0,
            requests: 0,
            last: Vec::new(),
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

    /// Ends the warm-up at this simulated time: earlier counts are excluded.
    pub fn end_warm_up(&mut self, now_ns: u64) {
        self.warm_ns = now_ns;
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
        self.last.resize(self.counts.len(), Counts::default());
        let volumes =
            self.counts.iter().zip(&self.last).map(|(now, last)| VolumeSample::of(&now.since(last)));
        let volumes: Vec<VolumeSample> = volumes.collect();
        let all = volumes.iter().fold(VolumeSample::default(), |sum, one| sum.and(one));
        let at_ns = now_ns - now_ns % self.settings.sample_ns.max(1);
        self.next_sample_ns = at_ns + self.settings.sample_ns;
        self.series.push(Sample {
            time_seconds: at_ns as f64 / 1e9,
            hits: all.hits(),
            accesses: all.accesses(),
            usage_blocks,
            dirty_blocks,
            volumes,
        });
        self.last.clone_from(&self.counts);
    }

    /// Records the latency of a request to a volume.
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
        Measured { volumes, warm_ns: self.warm_ns, series, latencies, of_volumes }
    }
}
