//! The picture of a run: what requests took, report by report, first without the cache and then through it.

use haversack_report::{Axis, LineChart, Unit};

use crate::fio::Done;
use crate::workload::WORKLOADS;

/// What the loads did over time.
#[derive(Debug, Default)]
pub struct Course {
    /// Seconds since the beginning, and mean latencies in seconds since the report before, by load.
    latencies: [Vec<(f64, f64)>; WORKLOADS.len()],
    /// Seconds that earlier runs of fio have taken.
    offset_seconds: f64,
    last: Vec<Done>,
}

impl Course {
    /// Adds a report.
    pub fn add(&mut self, report: &[Done]) {
        for (index, (now, points)) in report.iter().zip(&mut self.latencies).enumerate() {
            let before = self.last.get(index).copied().unwrap_or_default();
            let at = self.offset_seconds + now.runtime_ms as f64 / 1000.0;
            points.extend(now.since(before).mean_us().map(|mean_us| (at, mean_us / 1e6)));
        }
        self.last = report.to_vec();
    }

    /// The run of fio is over; another follows.
    pub fn next_run(&mut self) {
        let run_ms = self.last.iter().map(|done| done.runtime_ms).max().unwrap_or(0);
        self.offset_seconds += run_ms as f64 / 1000.0;
        self.last.clear();
    }

    /// The picture; `cached_from_seconds` is when the cache came in.
    pub fn to_svg(&self, cached_from_seconds: f64) -> String {
        let all =
            || self.latencies.iter().flatten().map(|(_, latency)| *latency).filter(|latency| *latency > 0.0);
        let (lowest, highest) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        // Whole decades, so that the axis has more than its ends for ticks.
        let latency = Axis::log("latency", Unit::Seconds);
        let latency = if highest > 0.0 {
            latency.range(decade(lowest.log10().floor()), decade(highest.log10().ceil()))
        } else {
            latency
        };
        let title = "Mean latency of four disks on a slow store, without the cache and through it";
        let mut chart = LineChart::new(title, Axis::linear("time", Unit::Seconds), latency);
        for (workload, points) in WORKLOADS.iter().zip(&self.latencies) {
            chart = chart.line(&format!("{} ({})", workload.disk, workload.load), points.clone());
        }
        chart.mark(cached_from_seconds, highest, "cache").to_svg()
    }
}

fn decade(exponent: f64) -> f64 {
    10f64.powf(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_continues_the_first() {
        let done = |ios: u64, runtime_ms| Done { ios, latency_us: ios as f64 * 500.0, runtime_ms };
        let mut course = Course::default();
        course.add(&[done(10, 1000), done(0, 1000)]);
        course.add(&[done(30, 2000), done(0, 2000)]);
        course.next_run();
        course.add(&[done(5, 1000), done(5, 1000)]);
        assert_eq!(course.latencies[0], [(1.0, 5e-4), (2.0, 5e-4), (3.0, 5e-4)]);
        assert_eq!(course.latencies[1], [(3.0, 5e-4)]);
        assert!(course.to_svg(2.0).contains("database"));
    }
}
