//! What is compared: how each host divides its cache, and by which rule VMs move.

use std::fmt;
use std::str::FromStr;

use haversack_cluster::Rule;
use haversack_policy::forecast::Method;
use haversack_policy::write_mode::WriteModeChoice;
use haversack_policy::{Config, DemandRule, named};
use serde::Serialize;

use crate::error::SimError;

/// A system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// No allocation and no moves: each host's VMs share its cache, which is what the paper compares with.
    Shared,
    /// Equal shares that never change, and no moves.
    Equal,
    /// CloudCache's allocation by reused working sets on each host, and no moves.
    Local,
    /// CloudCache's allocation, and moves by CloudCache's rule.
    LeastVariance,
    /// CloudCache's allocation, and moves by our rule.
    LeastLatency,
    /// Our own allocation, which is one pool with an admission that learns, and no moves.
    HaversackLocal,
    /// Our own allocation, and moves by our rule.
    Haversack,
    /// As `least-latency`; and hosts that stay overloaded read through the spare flash of others.
    Lending,
}

impl System {
    /// All of them.
    pub const ALL: [System; 8] = [
        System::Shared,
        System::Equal,
        System::Local,
        System::LeastVariance,
        System::LeastLatency,
        System::HaversackLocal,
        System::Haversack,
        System::Lending,
    ];

    /// Those that can be simulated request by request.
    pub const TRACED: [System; 7] = [
        System::Shared,
        System::Equal,
        System::Local,
        System::LeastVariance,
        System::LeastLatency,
        System::HaversackLocal,
        System::Haversack,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Shared => "shared",
            System::Equal => "equal",
            System::Local => "local",
            System::LeastVariance => "least-variance",
            System::LeastLatency => "least-latency",
            System::HaversackLocal => "haversack-local",
            System::Haversack => "haversack",
            System::Lending => "lending",
        }
    }

    /// The rule by which VMs move.
    pub fn rule(self) -> Option<Rule> {
        match self {
            System::LeastVariance => Some(Rule::LeastVariance),
            System::LeastLatency | System::Haversack | System::Lending => Some(Rule::LeastLatency),
            System::Shared | System::Equal | System::Local | System::HaversackLocal => None,
        }
    }

    /// The configuration of each host's control loop.
    ///
    /// # Errors
    /// None: every system has a valid configuration.
    pub fn config(self) -> Result<Config, SimError> {
        let of = |name: &str| named(name).map_err(|error| SimError::Settings(error.to_string()));
        match self {
            System::Shared => of("none"),
            System::Equal => of("equal"),
            System::Local | System::LeastVariance | System::LeastLatency | System::Lending => {
                of("cloudcache")
            }
            System::HaversackLocal | System::Haversack => Ok(Config {
                // The pool is not divided, but demands are measured and forecast for the balancer. Write modes are
                // fixed.
                demand: DemandRule::Rwss { reuses: 1 },
                forecast: Method::ExpSelf,
                filter_outliers: true,
                write_mode: Some(WriteModeChoice::default()),
                ..of("auto")?
            }),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(text: &str) -> Result<System, String> {
        let found = System::ALL.into_iter().find(|system| system.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = System::ALL.iter().map(|system| system.name()).collect();
            format!("there is no rule '{text}': expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_systems_and_configurations_are_valid() {
        for system in System::ALL {
            assert_eq!(system.name().parse(), Ok(system));
            let config = system.config().unwrap();
            config.check().unwrap();
            assert!(
                system.rule().is_none() || haversack_control::measures(&config),
                "{system} knows no demand"
            );
        }
        assert!("best".parse::<System>().unwrap_err().contains("least-variance"));
    }
}
