//! The measurements of each VM: before anything is sent, while the cache is sent ahead of the VM, after the
//! VM has stopped at the source, and over time.

use serde::Serialize;

use crate::counts::ratio;
use crate::latency::histogram::{Histogram, Summary};

/// Blocks read, those of them that were cached, and blocks written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Blocks read that were cached.
    pub hits: u64,
    /// All blocks read.
    pub all: u64,
    /// Blocks written.
    pub written: u64,
}

impl Reads {
    fn since(self, earlier: Reads) -> Reads {
        // A host that has forgotten the disk counts from 0 again.
        Reads {
            hits: self.hits.saturating_sub(earlier.hits),
            all: self.all.saturating_sub(earlier.all),
            written: self.written.saturating_sub(earlier.written),
        }
    }

    fn ratio(self) -> f64 {
        ratio(self.hits, self.all)
    }
}

/// A period of the migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch {
    /// Before anything is sent.
    Before,
    /// While copies are sent ahead.
    Ahead,
    /// After the VM has stopped at the source.
    After,
}

/// All periods, in order.
const STRETCHES: [Stretch; 3] = [Stretch::Before, Stretch::Ahead, Stretch::After];

/// A VM in a period.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// Its length.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Hits among the blocks read.
    pub hit_ratio: f64,
    /// Reads among the blocks read and written.
    pub read_share: f64,
    /// Latencies of reads and writes.
    pub latency: Summary,
}

/// A VM in a short sample.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Its end, in seconds from the time at which the VM stops at the source.
    pub time_seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Hits among the blocks read; `None` if no block was read.
    pub hit_ratio: Option<f64>,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
}

/// The measurements of a VM. See the module.
#[derive(Default)]
pub struct VmMeter {
    latencies: [Histogram; 3],
    /// Reads at the beginning of each period, and at the end of the last one.
    marks: Vec<Reads>,
    interval: Histogram,
    /// Reads at its beginning.
    interval_reads: Option<Reads>,
    samples: Vec<Sample>,
}

impl VmMeter {
    /// Records a completed request.
    pub fn record(&mut self, stretch: Option<Stretch>, ns: u64) {
        self.interval.record(ns);
        if let Some(stretch) = stretch {
            self.latencies[stretch as usize].record(ns);
        }
    }

    /// Starts a period, or ends the last one.
    pub fn mark(&mut self, reads: Reads) {
        self.marks.push(reads);
    }

    /// Ends a sample and starts the next one. The first call only starts one.
    pub fn sample(&mut self, time_seconds: f64, length_seconds: f64, reads: Reads) {
        if let Some(earlier) = self.interval_reads {
            let latency = self.interval.summary();
            let new = reads.since(earlier);
            self.samples.push(Sample {
                time_seconds,
                iops: latency.count as f64 / length_seconds,
                hit_ratio: (new.all > 0).then(|| new.ratio()),
                mean_us: latency.mean_us,
                p99_us: latency.p99_us,
            });
        }
        (self.interval, self.interval_reads) = (Histogram::default(), Some(reads));
    }

    /// The measurements of each period, and over time. `seconds` are the lengths of the periods.
    pub fn end(self, seconds: [f64; 3]) -> ([Figures; 3], Vec<Sample>) {
        let figures = STRETCHES.map(|stretch| {
            let at = stretch as usize;
            let latency = self.latencies[at].summary();
            let reads = match (self.marks.get(at), self.marks.get(at + 1)) {
                (Some(from), Some(to)) => to.since(*from),
                _ => Reads::default(),
            };
            let iops = if seconds[at] > 0.0 { latency.count as f64 / seconds[at] } else { 0.0 };
            let read_share = ratio(reads.all, reads.all + reads.written);
            Figures { seconds: seconds[at], iops, hit_ratio: reads.ratio(), read_share, latency }
        });
        (figures, self.samples)
    }
}

/// When the hit ratio was again at least this share of the earlier one, in seconds after the VM has stopped
/// at the source: the end of the first of three consecutive samples that reach it. All samples have the same
/// length, one of them ends at the stop, and only later samples count, from the one in which the VM runs
/// again: at `from_seconds`.
pub fn recovered_seconds(samples: &[Sample], before: f64, share: f64, from_seconds: f64) -> Option<f64> {
    const IN_A_ROW: usize = 3;
    let is_after = |sample: &&Sample| sample.time_seconds > from_seconds.max(0.0);
    let after: Vec<&Sample> = samples.iter().filter(is_after).collect();
    let reaches = |sample: &&Sample| sample.hit_ratio.is_some_and(|ratio| ratio >= before * share);
    let first = after.windows(IN_A_ROW).find(|some| some.iter().all(reaches))?;
    Some(first[0].time_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_their_stretch() {
        let mut meter = VmMeter::default();
        let reads = |hits, all| Reads { hits, all, written: all / 5 };
        for (mark, stretch, ns) in [
            (reads(5, 10), Some(Stretch::Before), 1_000),
            (reads(14, 20), Some(Stretch::Ahead), 2_000),
            (reads(14, 20), Some(Stretch::After), 9_000),
        ] {
            meter.mark(mark);
            meter.record(stretch, ns);
        }
        meter.mark(reads(15, 30));
        meter.record(None, 1);
        meter.sample(-1.5, 0.5, reads(15, 30));
        (0..4).for_each(|_| meter.record(None, 1));
        meter.sample(-1.0, 0.5, reads(18, 34));
        meter.sample(-0.5, 0.5, reads(18, 34));
        let (figures, samples) = meter.end([2.0, 0.0, 4.0]);
        assert_eq!(figures.map(|figures| figures.iops), [0.5, 0.0, 0.25]);
        assert_eq!(figures.map(|figures| figures.hit_ratio), [0.9, 0.0, 0.1]);
        assert_eq!(figures[2].latency.count, 1);
        assert_eq!(figures[0].read_share, 10.0 / 12.0);
        assert_eq!((samples[0].iops, samples[0].hit_ratio), (8.0, Some(0.75)));
        assert_eq!((samples[1].iops, samples[1].hit_ratio), (0.0, None));
    }

    #[test]
    fn a_single_good_sample_is_no_recovery() {
        let sample = |(time_seconds, hit_ratio): (f64, f64)| Sample {
            time_seconds,
            iops: 0.0,
            hit_ratio: Some(hit_ratio),
            mean_us: 0.0,
            p99_us: 0.0,
        };
        let ratios = [0.9, 0.9, 0.9, 0.9, 0.1, 0.8, 0.8, 0.8, 0.9];
        let samples: Vec<Sample> = (0..).map(|at| f64::from(at) - 2.0).zip(ratios).map(sample).collect();
        assert_eq!(recovered_seconds(&samples, 0.8, 0.9, 0.0), Some(3.0));
        assert_eq!(recovered_seconds(&samples, 2.0, 0.9, 0.0), None);
    }
}
