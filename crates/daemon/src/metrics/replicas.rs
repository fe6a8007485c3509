//! Metrics of replicas of dirty blocks, for every disk that the daemon knows by name; none without other
//! hosts.

use super::text::Text;
use crate::daemon::Daemon;

/// The states of a disk's replica, with that of a disk that is to have none.
const STATES: [&str; 5] = ["none", "missing", "filling", "complete", "ending"];

/// Writes how far the replicas of this host's disks are, and what this host has of others' disks.
pub fn replicas(out: &mut Text, daemon: &Daemon) {
    let Some(hosts) = daemon.hosts() else { return };
    let shown = |(name, disk): (String, std::sync::Arc<crate::daemon::Disk>)| {
        let (replica, kept) = hosts.replicas.shown(disk.id);
        (disk.config().pool, name, replica, kept)
    };
    let all: Vec<_> = daemon.disks().into_iter().map(shown).collect();
    let name = "haversack_disk_replica_state";
    out.head(
        name,
        "gauge",
        "1 for the current state of the replica of the disk's dirty blocks, 0 for the others.",
    );
    for (pool, disk, replica, _) in &all {
        let state = replica.as_ref().map_or_else(|| "none".to_owned(), |replica| replica.state.to_string());
        let state = STATES.into_iter().find(|known| *known == state).unwrap_or("none");
        out.states(name, &[("pool", pool), ("disk", disk)], &STATES, state);
    }
    let name = "haversack_disk_replica_behind_bytes";
    out.head(name, "gauge", "Blocks that the host with the disk's replica lacks.");
    for (pool, disk, replica, _) in &all {
        let behind_bytes = replica.as_ref().map_or(0, |replica| replica.behind_bytes);
        out.sample(name, &[("pool", pool), ("disk", disk)], behind_bytes as f64);
    }
    let name = "haversack_disk_kept_replica_bytes";
    out.head(name, "gauge", "Dirty blocks of another host's disk that are here as its replica.");
    for (pool, disk, _, kept) in &all {
        let kept_bytes = kept.as_ref().map_or(0, |kept| kept.bytes);
        out.sample(name, &[("pool", pool), ("disk", disk)], kept_bytes as f64);
    }
}
