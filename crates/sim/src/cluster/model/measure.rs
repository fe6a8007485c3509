//! Measurements of a model, window by window.

use serde::Serialize;

/// A window.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Sample {
    /// When it ended, in hours.
    pub time_hours: f64,
    /// Accesses of all VMs.
    pub accesses: f64,
    /// Mean latency of all accesses.
    pub mean_us: f64,
    /// 90 % of the accesses were made by VMs whose mean latency did not exceed this.
    pub p90_us: f64,
    /// Accesses that hit.
    pub hit_ratio: f64,
    /// Accesses that another host's flash served.
    pub lent_hit_ratio: f64,
    /// Bytes that hosts have in other hosts' caches.
    pub lent_bytes: u64,
    /// Hosts that borrow.
    pub borrowers: usize,
    /// Variance of load over the serving hosts, after the moves.
    pub variance: f64,
    /// Serving hosts with more demand than the threshold, after the moves.
    pub overloaded: usize,
    /// Hosts that are away.
    pub away: usize,
    /// VMs that were moved at its end.
    pub moves: u64,
    /// Those among them that left a draining host.
    pub drained: u64,
    /// Bytes that the moves copied.
    pub moved_bytes: u64,
}

/// The VMs' mean latencies in a window.
#[derive(Default)]
pub struct Latencies {
    /// Accesses, and their mean latency.
    of_vms: Vec<(f64, f64)>,
    accesses: f64,
    hits: f64,
    lent_hits: f64,
    sum_us: f64,
}

impl Latencies {
    /// Begins again.
    pub fn clear(&mut self) {
        self.of_vms.clear();
        (self.accesses, self.hits, self.lent_hits, self.sum_us) = (0.0, 0.0, 0.0, 0.0);
    }

    /// Called when another host's flash served these accesses.
    pub fn add_lent(&mut self, accesses: f64) {
        self.lent_hits += accesses;
    }

    /// Adds a VM.
    pub fn add(&mut self, accesses: f64, hit_ratio: f64, mean_us: f64) {
        self.of_vms.push((mean_us, accesses));
        self.accesses += accesses;
        self.hits += accesses * hit_ratio;
        self.sum_us += accesses * mean_us;
    }

    /// The window, with this much latency more.
    pub fn sample(&mut self, time_hours: f64, more_us: f64) -> Sample {
        self.of_vms.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = self.accesses * 0.9;
        let mut seen = 0.0;
        let p90 = self.of_vms.iter().find(|(_, accesses)| {
            seen += accesses;
            seen >= wanted
        });
        let all = self.accesses.max(f64::MIN_POSITIVE);
        Sample {
            time_hours,
            accesses: self.accesses,
            mean_us: (self.sum_us + more_us) / all,
            p90_us: p90.map_or(0.0, |(mean_us, _)| *mean_us),
            hit_ratio: self.hits / all,
            lent_hit_ratio: self.lent_hits / all,
            ..Sample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_weigh_as_much_as_they_access() {
        let mut latencies = Latencies::default();
        latencies.add(90.0, 0.5, 100.0);
        latencies.add(10.0, 0.0, 1000.0);
        let sample = latencies.sample(1.0, 1000.0);
        assert_eq!((sample.mean_us, sample.p90_us, sample.hit_ratio), (200.0, 100.0, 0.45));
        latencies.add(1.0, 0.0, 2000.0);
        assert_eq!(latencies.sample(1.0, 0.0).p90_us, 1000.0);
    }
}
