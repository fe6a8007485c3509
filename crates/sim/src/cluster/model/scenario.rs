//! A large cluster as a file describes it: how many hosts and VMs, what VMs demand over time, and what happens to
//! hosts.

use std::time::Duration;

use haversack_api::Span;
use haversack_cluster::Rule;
use serde::{Deserialize, Serialize};

use crate::cluster::table::BalancingTable;
use crate::error::SimError;

/// The most VMs of a scenario.
const MOST_VMS: usize = 10_000_000;
/// The most loads that are kept: one for each window of each host.
const MOST_SAMPLES: u64 = 1_000_000_000;
/// The most waves of a maintenance.
const MOST_WAVES: u32 = 10_000;
/// The longest event: ten years.
const MOST_LENGTH_US: u64 = 10 * 366 * 24 * 3_600 * 1_000_000;

/// A scenario. See the module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// What it shows.
    pub title: String,
    /// Hosts. All have the same cache.
    pub hosts: usize,
    /// VMs on each host at the beginning.
    pub vms_per_host: usize,
    /// Blocks of each host's cache.
    #[serde(default = "cache_blocks")]
    pub cache_blocks: u64,
    /// The time that is simulated.
    pub length: Span,
    /// The length of a window.
    #[serde(default = "window")]
    pub window: Span,
    /// The VMs.
    #[serde(default)]
    pub vms: Vms,
    /// What happens, in any order.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// When VMs move.
    #[serde(default)]
    pub balancing: BalancingTable,
    /// Mean latency of an access that hits.
    #[serde(default = "cache_us")]
    pub cache_us: f64,
    /// Mean latency of an access that misses.
    #[serde(default = "origin_us")]
    pub origin_us: f64,
    /// Mean latency of an access that another host's flash serves.
    #[serde(default = "lender_us")]
    pub lender_us: f64,
    /// The part of the VMs that cannot move.
    #[serde(default)]
    pub pinned: f64,
    /// The most that each host lends, as a part of its cache; 0 if none lends.
    #[serde(default)]
    pub lend: f64,
    /// Bytes per second that may be used to copy caches between hosts.
    #[serde(default = "link")]
    pub link_bytes_per_s: u64,
    /// How many times the VMs at the beginning fit in a host's memory.
    #[serde(default = "memory")]
    pub memory: f64,
}

/// What VMs demand.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Vms {
    /// Mean demand of a host's VMs together, as a part of its cache.
    pub load: f64,
    /// How different VMs are: sigma of the log-normal distribution of their working sets, and of their rates.
    pub sigma: f64,
    /// The amplitude of rates and working sets over a day, as a part of their means. All VMs of a host have their peak
    /// within `peaks` of a day of each other.
    pub amplitude: f64,
    /// The part of a day within which all VMs of a host have their peak.
    pub peaks: f64,
    /// The mean time after which a VM's working set changes its size; never if 0.
    pub phase: Span,
    /// Accesses per second of a block of the mean VM's working set.
    pub accesses_per_block_s: f64,
}

impl Default for Vms {
    fn default() -> Self {
        Vms {
            load: 0.7,
            sigma: 0.6,
            amplitude: 0.0,
            peaks: 1.0,
            phase: Span(Duration::ZERO),
            accesses_per_block_s: 0.001,
        }
    }
}

/// Something that happens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Event {
    /// The working sets and rates of all VMs of some hosts are multiplied, and stay so.
    Step {
        /// When.
        at: Span,
        /// The part of the hosts.
        hosts: f64,
        /// The factor.
        factor: f64,
    },
    /// Hosts fail together. Their VMs start again elsewhere, with nothing cached.
    Failure {
        /// When.
        at: Span,
        /// The part of the hosts.
        hosts: f64,
        /// How long they are away.
        lasts: Span,
    },
    /// Hosts are drained, a part after the other; each is away for a time when its last VM has left.
    Maintenance {
        /// When it begins.
        at: Span,
        /// The part of the hosts that is drained at a time.
        hosts: f64,
        /// How long each is away.
        lasts: Span,
        /// How many parts follow each other.
        waves: u32,
    },
}

fn cache_blocks() -> u64 {
    16 << 20
}

fn window() -> Span {
    Span(Duration::from_secs(600))
}

fn cache_us() -> f64 {
    100.0
}

fn origin_us() -> f64 {
    2_500.0
}

fn lender_us() -> f64 {
    300.0
}

fn link() -> u64 {
    1_250_000_000
}

fn memory() -> f64 {
    1.4
}

impl Event {
    /// When it happens.
    pub fn at(&self) -> Span {
        match self {
            Event::Step { at, .. } | Event::Failure { at, .. } | Event::Maintenance { at, .. } => *at,
        }
    }

    fn part(&self) -> f64 {
        match self {
            Event::Step { hosts, .. } | Event::Failure { hosts, .. } | Event::Maintenance { hosts, .. } => {
                *hosts
            }
        }
    }
}

impl Scenario {
    /// The number of windows.
    pub fn windows(&self) -> u64 {
        self.length.as_micros() / self.window.as_micros().max(1)
    }

    /// The window in which a time lies.
    pub fn window_of(&self, time: Span) -> u64 {
        time.as_micros() / self.window.as_micros().max(1)
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        let wrong = |why: String| Err(SimError::Settings(format!("the scenario '{}': {why}", self.title)));
        if self.hosts < 2 || self.vms_per_host == 0 {
            return wrong("expected two hosts or more, each with a VM or more".into());
        }
        if self.cache_blocks == 0 || self.window.as_micros() == 0 || self.windows() == 0 {
            return wrong(
                "'cache-blocks' and 'window' must be above 0, and 'length' at least one 'window'".into(),
            );
        }
        let vms = self.hosts.checked_mul(self.vms_per_host);
        if vms.is_none_or(|vms| vms > MOST_VMS) {
            return wrong(format!("it has more than {MOST_VMS} VMs: lower 'hosts' or 'vms-per-host'"));
        }
        let samples = self.windows().checked_mul(self.hosts as u64);
        if samples.is_none_or(|samples| samples > MOST_SAMPLES) {
            return wrong(format!(
                "it has more than {MOST_SAMPLES} windows of all hosts together: lower 'hosts' or 'length', or raise 'window'"
            ));
        }
        let figures = [
            ("load", self.vms.load, 0.01..=10.0, "0.01 to 10"),
            ("sigma", self.vms.sigma, 0.0..=3.0, "0 to 3"),
            ("amplitude", self.vms.amplitude, 0.0..=0.95, "0 to 0.95"),
            ("peaks", self.vms.peaks, 0.0..=1.0, "0 to 1"),
            ("accesses-per-block-s", self.vms.accesses_per_block_s, 1e-9..=1e3, "above 0"),
            ("cache-us", self.cache_us, 0.0..=1e9, "0 or more"),
            ("origin-us", self.origin_us, 0.0..=1e9, "0 or more"),
            ("lender-us", self.lender_us, 0.0..=1e9, "0 or more"),
            ("pinned", self.pinned, 0.0..=1.0, "0 to 1"),
            ("lend", self.lend, 0.0..=1.0, "0 to 1"),
            ("memory", self.memory, 1.0..=100.0, "1 to 100"),
        ];
        for (key, found, range, expected) in figures {
            if !range.contains(&found) {
                return wrong(format!("'{key}' is {found}: expected {expected}"));
            }
        }
        for event in &self.events {
            if !(event.part() > 0.0 && event.part() <= 0.5) {
                let found = event.part();
                return wrong(format!(
                    "'hosts' of an event is the part of them, above 0 up to 0.5, not {found}"
                ));
            }
            if self.window_of(event.at()) >= self.windows() {
                return wrong(format!("an event at {} is after its end", event.at()));
            }
            match event {
                Event::Step { factor, .. } if !(0.001..=1000.0).contains(factor) => {
                    return wrong(format!("the 'factor' of a step is from 0.001 to 1000, not {factor}"));
                }
                Event::Failure { lasts, .. } | Event::Maintenance { lasts, .. }
                    if lasts.as_micros() > MOST_LENGTH_US =>
                {
                    return wrong(format!("an event lasts {lasts}: expected at most ten years"));
                }
                Event::Maintenance { waves, .. } if *waves > MOST_WAVES => {
                    return wrong(format!(
                        "a maintenance has {waves} 'waves': expected at most {MOST_WAVES}"
                    ));
                }
                _ => {}
            }
        }
        for rule in [Rule::LeastVariance, Rule::LeastLatency] {
            let checked = self.balancing.settings(rule).check();
            checked.or_else(|error| wrong(error.to_string()))?;
        }
        Ok(())
    }
}
