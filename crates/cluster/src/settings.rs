//! When the balancer acts, by which rule, and how much at a time.

use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;

/// How moves are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The move that leaves the smallest variance of load over hosts, to a host that stays below the threshold.
    ///
    /// Source: CloudCache (Arteaga), section 4.5.
    LeastVariance,
    /// The move that lowers the cluster's expected latency most, less what the move itself costs.
    #[default]
    LeastLatency,
}

/// The settings of the balancer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The rule.
    pub rule: Rule,
    /// The part of a host's cache above which its predicted demand is too much.
    pub threshold: f64,
    /// The consecutive windows with too much demand after which VMs move away.
    pub windows: u32,
    /// With `least-latency`: the windows over which a host's highest demand counts as what its own VMs may soon need
    /// again. Only the rest of its cache is offered to other VMs, so it is not given what it must soon give back.
    pub calm_windows: u32,
    /// With `least-latency`: how many times its cost a move must earn within the horizon.
    pub hysteresis: f64,
    /// With `least-latency`: the time in which a move must earn what it costs.
    pub horizon_us: Micros,
    /// The most moves to balance in an hour, in the whole cluster. Moves off draining hosts do not count.
    pub max_moves_per_hour: u32,
    /// The most moves from or to a host that are proposed in one round.
    pub max_moves_per_host: u32,
    /// The least time between two moves of a VM. This does not apply to VMs of a draining host.
    pub min_residence_us: Micros,
    /// The time during which a VM is not moved back to a host that it left, unless its host is draining.
    pub no_return_us: Micros,
    /// The expected stall of a VM at the switch, for the cost of a move.
    pub stall_us: Micros,
    /// The part of the copied blocks that are expected to be there when the VM resumes; the rest follows.
    pub warm_ratio: f64,
    /// How much slower the VMs of both hosts are expected to be while a cache is copied.
    pub neighbour_slowdown: f64,
}

/// An hour.
pub(crate) const HOUR_US: Micros = 3_600_000_000;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rule: Rule::LeastLatency,
            threshold: 0.9,
            windows: 3,
            calm_windows: 18,
            hysteresis: 2.0,
            horizon_us: HOUR_US,
            max_moves_per_hour: 60,
            max_moves_per_host: 4,
            min_residence_us: HOUR_US,
            no_return_us: 6 * HOUR_US,
            stall_us: 50_000,
            warm_ratio: 0.9,
            neighbour_slowdown: 0.1,
        }
    }
}

impl Settings {
    /// Returns the paper's rule: one move per overloaded host and window, and no other brakes than the residence of an
    /// hour.
    pub fn cloudcache() -> Settings {
        Settings {
            rule: Rule::LeastVariance,
            max_moves_per_hour: u32::MAX,
            max_moves_per_host: 1,
            no_return_us: 0,
            ..Settings::default()
        }
    }

    /// Checks that each setting is in its range.
    ///
    /// # Errors
    /// `BadSetting` with the key, the value and what was expected.
    pub fn check(&self) -> Result<(), ClusterError> {
        let ratios = [
            ("threshold", self.threshold, 0.01..=1.0, "a number from 0.01 to 1"),
            ("hysteresis", self.hysteresis, 1.0..=1000.0, "a number from 1 to 1000"),
            ("warm_ratio", self.warm_ratio, 0.0..=1.0, "a number from 0 to 1"),
            ("neighbour_slowdown", self.neighbour_slowdown, 0.0..=10.0, "a number from 0 to 10"),
        ];
        for (key, found, range, expected) in ratios {
            if !range.contains(&found) {
                return Err(ClusterError::BadSetting { key, found: found.to_string(), expected });
            }
        }
        let counts = [
            ("windows", u64::from(self.windows)),
            ("calm_windows", u64::from(self.calm_windows)),
            ("horizon_us", self.horizon_us),
            ("max_moves_per_host", u64::from(self.max_moves_per_host)),
        ];
        match counts.into_iter().find(|(_, found)| *found == 0) {
            None => Ok(()),
            Some((key, _)) => {
                Err(ClusterError::BadSetting { key, found: "0".into(), expected: "at least 1" })
            }
        }
    }
}
