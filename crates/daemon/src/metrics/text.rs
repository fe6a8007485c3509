//! The text format of Prometheus.

use std::fmt::Write;

use haversack_engine::histogram::Histogram;

/// Upper bounds of latency buckets, in microseconds.
const BUCKETS_US: [u64; 18] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];

/// Metrics as text.
#[derive(Default)]
pub struct Text(String);

/// Writing to a string cannot fail.
impl Text {
    /// Begins a metric with its type and help.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (key, value)) in labels.iter().enumerate() {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{key}=\"{escaped}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Writes a sample for every state: 1 for the current one.
    pub fn states<S: Copy + PartialEq + std::fmt::Display>(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        all: &[S],
        current: S,
    ) {
        for state in all {
            let text = state.to_string();
            let value = f64::from(u8::from(*state == current));
            self.sample(name, &[labels, &[("state", text.as_str())]].concat(), value);
        }
    }

    /// Writes a histogram of times.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        for bound_us in BUCKETS_US {
            let bound_s = (bound_us as f64 / 1e6).to_string();
            let labels = [labels, &[("le", bound_s.as_str())]].concat();
            self.sample(&bucket, &labels, histogram.at_most(bound_us) as f64);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), histogram.count() as f64);
        self.sample(&format!("{name}_sum"), labels, histogram.sum_us() as f64 / 1e6);
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }

    /// Returns what was written.
    pub fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_histograms_accumulate() {
        let mut out = Text::default();
        let mut histogram = Histogram::default();
        [5, 15, 15, 3_000_000].into_iter().for_each(|us| histogram.record(us));
        out.histogram("h_seconds", &[("disk", "a\"b\\")], &histogram);
        assert!(out.0.contains("h_seconds_bucket{disk=\"a\\\"b\\\\\",le=\"0.00001\"} 1\n"), "{}", out.0);
        assert!(
            out.0.contains("le=\"+Inf\"} 4\n") && out.0.contains("h_seconds_count{disk=\"a\\\"b\\\\\"} 4\n")
        );
        let counts: Vec<f64> = out
            .0
            .lines()
            .filter(|l| l.contains("_bucket"))
            .map(|l| l.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted());
    }
}
