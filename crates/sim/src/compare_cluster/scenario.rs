//! Scenarios: a mix with the hosts of a cluster, or a model; those that are built in.

use haversack_cluster::{Rule, Settings};
use serde::{Deserialize, Serialize};

use crate::cluster::traced::table_of;
use crate::cluster::{System, model};
use crate::error::SimError;
use crate::mix::Mix;

/// The scenarios that are built in, by name, as files.
pub const BUILT_IN: [(&str, &str); 6] = [
    ("cloudcache-12", include_str!("../../../../mixes/clusters/cloudcache-12.toml")),
    ("step", include_str!("../../../../mixes/clusters/step.toml")),
    ("diurnal", include_str!("../../../../mixes/clusters/diurnal.toml")),
    ("failures", include_str!("../../../../mixes/clusters/failures.toml")),
    ("maintenance", include_str!("../../../../mixes/clusters/maintenance.toml")),
    ("lending", include_str!("../../../../mixes/clusters/lending.toml")),
];

/// The file of a built-in scenario.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A scenario.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scenario {
    /// A mix with a table `[cluster]`, which is simulated request by request.
    Traced(Box<Mix>),
    /// A model.
    Model(Box<model::Scenario>),
}

impl Scenario {
    /// What it shows.
    pub fn title(&self) -> &str {
        match self {
            Scenario::Traced(mix) => &mix.title,
            Scenario::Model(scenario) => &scenario.title,
        }
    }

    /// The rules that it can compare.
    pub fn systems(&self) -> &'static [System] {
        match self {
            Scenario::Traced(_) => &System::TRACED,
            Scenario::Model(scenario) if scenario.lend > 0.0 => &model::LENDING_SYSTEMS,
            Scenario::Model(_) => &model::SYSTEMS,
        }
    }

    /// The same with this many hosts.
    ///
    /// # Errors
    /// The scenario is a mix, which lists its hosts.
    pub fn with_hosts(mut self, hosts: usize) -> Result<Scenario, SimError> {
        match &mut self {
            Scenario::Traced(mix) => Err(SimError::Settings(format!(
                "the hosts of '{}' are listed in it, with their disks: leave the number of hosts out",
                mix.title
            ))),
            Scenario::Model(scenario) => {
                scenario.hosts = hosts;
                Ok(self)
            }
        }
    }

    /// The load above which a host has too much demand.
    pub fn threshold(&self) -> f64 {
        let balancing = match self {
            Scenario::Traced(mix) => mix.cluster.as_ref().map(|table| &table.balancing),
            Scenario::Model(scenario) => Some(&scenario.balancing),
        };
        balancing.map_or(Settings::default().threshold, |table| table.settings(Rule::LeastLatency).threshold)
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn check(&self) -> Result<(), SimError> {
        match self {
            Scenario::Traced(mix) => {
                mix.check()?;
                table_of(mix)?.check(mix)
            }
            Scenario::Model(scenario) => scenario.check(),
        }
    }
}
