//! Events: the directory is lost or back, and hosts come and go.

use std::collections::BTreeSet;

use super::Cluster;
use crate::daemon::Daemon;

/// The state of the cluster at the last check.
#[derive(Default)]
pub struct Watch {
    was_connected: Option<bool>,
    hosts: Option<BTreeSet<String>>,
    was_name_taken: bool,
    conflicts: BTreeSet<String>,
}

impl Watch {
    /// Adds events for changes since the last check.
    pub fn look(&mut self, daemon: &Daemon, cluster: &Cluster) {
        let status = cluster.directory.status();
        let is_connected = status.endpoint.is_some();
        match (self.was_connected, is_connected) {
            (Some(true) | None, false) => {
                // At the start it may just need a moment.
                if self.was_connected.is_some() || status.since > super::LOOK_EVERY * 4 {
                    let why = status.error.clone().unwrap_or_default();
                    let what = format!("{why}. Guests and disks continue without it; nothing is balanced");
                    daemon.events.add("directory-away", "daemon", what);
                    self.was_connected = Some(false);
                }
            }
            (before, true) => {
                if before == Some(false) {
                    let endpoint = status.endpoint.clone().unwrap_or_default();
                    daemon.events.add("directory-back", "daemon", format!("connected to etcd at {endpoint}"));
                }
                self.was_connected = Some(true);
            }
            (Some(false), false) => {}
        }
        if status.is_name_taken && !self.was_name_taken {
            let what = format!(
                "another daemon is in the directory as '{}': this one stays out until that one is gone. Every host needs a unique name",
                cluster.directory.name()
            );
            daemon.events.add("directory-name-taken", "daemon", what);
        }
        self.was_name_taken = status.is_name_taken;
        let conflicts = status.conflicts.iter().map(|conflict| conflict.disk.clone()).collect();
        for conflict in status.conflicts.iter().filter(|conflict| !self.conflicts.contains(&conflict.disk)) {
            daemon.events.add("directory-conflict", &conflict.disk, super::show::conflict(conflict));
        }
        self.conflicts = conflicts;
        if is_connected {
            self.look_at_hosts(daemon, cluster);
        }
    }

    fn look_at_hosts(&mut self, daemon: &Daemon, cluster: &Cluster) {
        let view = cluster.directory.view();
        let now: BTreeSet<String> = view.hosts.keys().cloned().collect();
        if let Some(before) = &self.hosts {
            let me = cluster.directory.name();
            for name in now.difference(before).filter(|name| *name != me) {
                daemon.events.add("host-joined", "daemon", format!("host '{name}' is in the cluster"));
            }
            for name in before.difference(&now).filter(|name| *name != me) {
                let what = format!("host '{name}' is away: its lease has expired. It keeps its disks");
                daemon.events.add("host-away", "daemon", what);
            }
        }
        self.hosts = Some(now);
    }
}
