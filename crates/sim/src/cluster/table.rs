//! The hosts of a cluster and how VMs move between them: a mix's table `[cluster]`.

use std::time::Duration;

use haversack_api::Span;
use haversack_cluster::{Rule, Settings};
use serde::{Deserialize, Serialize};

use super::system::System;
use crate::error::SimError;
use crate::migration::LatencyTable;
use crate::migration::link::{LinkModel, Speed};
use crate::mix::Mix;

/// The longest time of a step of a move: an hour.
const MOST_US: u64 = 3_600_000_000;

/// The table `[cluster]` of a mix. Every host has a pool of the mix's first size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterTable {
    /// The disks of each host at the beginning.
    pub hosts: Vec<Vec<String>>,
    /// Cache devices of each host, which together have the size of its pool.
    #[serde(default = "one")]
    pub devices: u32,
    /// The disks whose figures are compared, as the paper compares those of its first host. All of them if empty.
    #[serde(default)]
    pub judged: Vec<String>,
    /// Windows at the beginning that do not count.
    #[serde(default)]
    pub warm_up_windows: u32,
    /// How long a VM's memory is copied before it stops; meanwhile its cache is sent ahead.
    #[serde(default = "memory")]
    pub memory: Span,
    /// How long the hypervisor keeps a VM stopped.
    #[serde(default = "downtime")]
    pub downtime: Span,
    /// Speed of the link of each host to each other one.
    #[serde(default = "link")]
    pub link: Speed,
    /// Its round-trip time.
    #[serde(default = "round_trip")]
    pub round_trip: Span,
    /// When VMs move.
    #[serde(default)]
    pub balancing: BalancingTable,
    /// Latencies and speeds other than the simulator's defaults.
    #[serde(default)]
    pub latency: LatencyTable,
}

/// Settings of the balancer other than its defaults: those of time are in hours of a cluster, and simulated time is
/// often shorter.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BalancingTable {
    /// The part of a host's cache above which its predicted demand is too much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Windows with too much demand after which VMs move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<u32>,
    /// The same for the system `haversack`, which need not be as patient as the paper's rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_windows: Option<u32>,
    /// With `least-latency`: windows whose highest load a destination must be able to bear again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calm_windows: Option<u32>,
    /// The least time between two moves of a VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residence: Option<Span>,
    /// The time during which a VM does not return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_return: Option<Span>,
    /// With `least-latency`: how many times its cost a move must earn within the horizon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hysteresis: Option<f64>,
    /// The time in which a move must earn what it costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<Span>,
    /// The most moves from or to a host in one round, with `least-latency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves_per_host: Option<u32>,
    /// The most moves in an hour, with `least-latency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves_per_hour: Option<u32>,
}

impl BalancingTable {
    /// The settings of a system, if its VMs move.
    pub fn settings_of(&self, system: System) -> Option<Settings> {
        let settings = self.settings(system.rule()?);
        let own = self.own_windows.filter(|_| system == System::Haversack);
        Some(Settings { windows: own.unwrap_or(settings.windows), ..settings })
    }

    /// The settings of a rule. Those that the paper's rule does not have are not used with it.
    pub fn settings(&self, rule: Rule) -> Settings {
        let base = match rule {
            Rule::LeastVariance => Settings::cloudcache(),
            Rule::LeastLatency => Settings::default(),
        };
        let us = |span: Option<Span>, default: u64| span.map_or(default, Span::as_micros);
        let is_ours = rule == Rule::LeastLatency;
        let ours = |given: Option<u32>, default: u32| given.filter(|_| is_ours).unwrap_or(default);
        Settings {
            threshold: self.threshold.unwrap_or(base.threshold),
            windows: self.windows.unwrap_or(base.windows),
            hysteresis: self.hysteresis.unwrap_or(base.hysteresis),
            calm_windows: self.calm_windows.unwrap_or(base.calm_windows),
            min_residence_us: us(self.residence, base.min_residence_us),
            no_return_us: us(self.no_return.filter(|_| is_ours), base.no_return_us),
            horizon_us: us(self.horizon, base.horizon_us),
            max_moves_per_host: ours(self.moves_per_host, base.max_moves_per_host),
            max_moves_per_hour: ours(self.moves_per_hour, base.max_moves_per_hour),
            ..base
        }
    }
}

fn one() -> u32 {
    1
}

fn memory() -> Span {
    Span(Duration::from_secs(2))
}

fn downtime() -> Span {
    Span(Duration::from_millis(30))
}

fn link() -> Speed {
    LinkModel::default().speed
}

fn round_trip() -> Span {
    Span(Duration::from_micros(100))
}

fn ns(span: Span) -> u64 {
    span.as_micros().saturating_mul(1_000)
}

impl ClusterTable {
    /// The link between two hosts.
    pub fn link(&self) -> LinkModel {
        LinkModel { speed: self.link, round_trip_us: self.round_trip.as_micros() as f64 }
    }

    /// How long a VM's memory is copied.
    pub fn memory_ns(&self) -> u64 {
        ns(self.memory)
    }

    /// How long the hypervisor keeps a VM stopped.
    pub fn downtime_ns(&self) -> u64 {
        ns(self.downtime)
    }

    /// The host on which a disk is at the beginning.
    pub fn home(&self, disk: &str) -> Option<usize> {
        self.hosts.iter().position(|disks| disks.iter().any(|name| name == disk))
    }

    /// Checks it against the mix that it is in.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn check(&self, mix: &Mix) -> Result<(), SimError> {
        let wrong =
            |why: String| Err(SimError::Settings(format!("[cluster] of the mix '{}': {why}", mix.title)));
        if self.hosts.len() < 2 {
            return wrong("it has fewer than two hosts: list the disks of each of its hosts".into());
        }
        for load in &mix.disks {
            let homes = self.hosts.iter().flatten().filter(|name| *name == load.name()).count();
            if homes != 1 {
                return wrong(format!("disk '{}' is on {homes} hosts: expected one", load.name()));
            }
        }
        let is_known = |name: &&String| mix.disks.iter().any(|load| load.name() == *name);
        if let Some(name) = self.hosts.iter().flatten().chain(&self.judged).find(|name| !is_known(name)) {
            return wrong(format!("there is no disk '{name}' in the mix: add it, or leave it out here"));
        }
        if let Err(error) = self.latency.model().check() {
            return wrong(format!("[cluster.latency] {error}"));
        }
        if self.devices == 0 {
            return wrong("a host has at least one cache device".into());
        }
        let times = [("memory", self.memory), ("downtime", self.downtime), ("round-trip", self.round_trip)];
        if let Some((key, found)) = times.into_iter().find(|(_, time)| time.as_micros() > MOST_US) {
            return wrong(format!("'{key}' is {found}: expected at most an hour"));
        }
        if !mix.events.is_empty() || mix.migration.is_some() || !mix.policies.is_empty() {
            return wrong(
                "a cluster is simulated without [[event]], [migration] and [policy]: leave them out".into(),
            );
        }
        let has_base = mix.disks.iter().any(|load| load.base.is_some());
        if has_base || mix.disks.iter().any(|load| load.generator.as_ref().is_some_and(|g| g.volumes > 1)) {
            return wrong("each VM has one disk of its own: leave 'base' out, and set 'volumes = 1'".into());
        }
        for settings in System::ALL.into_iter().filter_map(|system| self.balancing.settings_of(system)) {
            let checked = settings.check();
            checked.or_else(|error| wrong(error.to_string()))?;
        }
        Ok(())
    }
}
