//! The planted mistakes of all crates, and the simulator that must catch each.

use std::fmt;

use haversack_core::bugs as core;
use haversack_directory::bugs as cluster;

/// A mistake that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A mistake of the core, for the simulator of one host.
    Core(core::Bug),
    /// A mistake of migration, for the simulator of two hosts.
    Migration(core::Bug),
    /// A mistake of the cluster, for the simulator of five hosts and an etcd.
    Cluster(cluster::Bug),
    /// A mistake of takeovers in a cluster, for the same simulator.
    Takeover(core::Bug),
    /// Of replicas in a cluster: the same, with replicas.
    Place(core::Bug),
}

/// Mistakes of migration that the simulator of a cluster must catch as well.
const ALSO_IN_CLUSTERS: [core::Bug; 1] = [core::Bug::LoseSilently];

/// Returns all of them.
pub fn all() -> impl Iterator<Item = Bug> {
    let of_core = core::ALL.iter().copied().map(Bug::Core);
    let of_migration = core::OF_MIGRATION.iter().copied().map(Bug::Migration);
    let of_cluster = cluster::ALL.iter().copied().map(Bug::Cluster);
    let of_takeovers = core::OF_TAKEOVERS.iter().copied().map(Bug::Takeover);
    let of_takeovers = of_takeovers.chain(ALSO_IN_CLUSTERS.map(Bug::Takeover));
    let of_places = core::OF_PLACES.iter().copied().map(Bug::Place);
    of_core.chain(of_migration).chain(of_cluster).chain(of_takeovers).chain(of_places)
}

impl Bug {
    /// Plants a mistake in this thread, or removes what is planted.
    pub fn plant(bug: Option<Bug>) {
        core::plant(match bug {
            Some(Bug::Core(bug) | Bug::Migration(bug) | Bug::Takeover(bug) | Bug::Place(bug)) => Some(bug),
            _ => None,
        });
        cluster::plant(match bug {
            Some(Bug::Cluster(bug)) => Some(bug),
            _ => None,
        });
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bug::Core(bug) | Bug::Migration(bug) | Bug::Takeover(bug) | Bug::Place(bug) => {
                write!(f, "{bug:?}")
            }
            Bug::Cluster(bug) => write!(f, "{bug:?}"),
        }
    }
}
