//! Chooses the host for the replica of a disk's dirty blocks.
//!
//! Invariants
//! - Another host is chosen only while this host serves the disk and is not sending it.
//! - A host that could not hold the replica is not chosen again for a while, so that every host is tried.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use haversack_core::bugs::{Bug, planted};
use haversack_model::{DiskId, HostId};
use haversack_ownership::Record;

use crate::replicate::ReplicationState;

/// A host that could have a replica.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The host.
    pub host: HostId,
    /// This host is connected to it.
    pub is_connected: bool,
    /// It is being drained.
    pub is_draining: bool,
    /// Its free cache, if that is known; otherwise 0.
    pub free_bytes: u64,
    /// Replicas of this host's disks that it should have.
    pub replicas: u64,
}

/// Chooses a host for a disk's replica. Connected hosts come first, then hosts that are not being drained. Among these,
/// the host with the most free cache per replica of this host's disks is chosen; of equals, the one with the fewest
/// such replicas. A hash of the disk and the host decides the remaining ties, which spreads the replicas.
pub fn choose(disk: DiskId, candidates: impl IntoIterator<Item = Candidate>) -> Option<HostId> {
    let rank = |one: &Candidate| {
        let mut hasher = DefaultHasher::new();
        (disk, one.host).hash(&mut hasher);
        let is_fit = (one.is_connected, !one.is_draining);
        (is_fit, one.free_bytes / (one.replicas + 1), Reverse(one.replicas), hasher.finish())
    };
    candidates.into_iter().max_by_key(rank).map(|one| one.host)
}

/// Chooses a host for a disk's replica among the connected hosts that are not in `without`.
pub fn choose_another(
    disk: DiskId,
    candidates: impl IntoIterator<Item = Candidate>,
    without: &HashSet<HostId>,
) -> Option<HostId> {
    choose(disk, candidates.into_iter().filter(|one| one.is_connected && !without.contains(&one.host)))
}

/// Whether the disk is served here and its replica is missing, although nothing on this host prevents a replica.
/// `is_sent` says that the disk is being sent to another host.
pub fn is_missing(record: &Record, is_sent: bool, state: Option<ReplicationState>) -> bool {
    let is_owner = matches!(record, Record::Owner { peers, .. } if peers.is_empty());
    is_owner && !is_sent && state == Some(ReplicationState::Missing)
}

/// Whether a replica leaves a host that is being drained.
pub fn leaves_drained(is_draining: bool, is_sent: bool, state: Option<ReplicationState>) -> bool {
    is_draining && state.is_some() && !is_sent && !planted(Bug::StayOnDrained)
}

/// How long the chosen host has been unable to hold a replica, and which hosts could not hold it before.
#[derive(Debug)]
pub struct Unable {
    host: HostId,
    since: Option<Instant>,
    refused: HashMap<HostId, Instant>,
}

impl Unable {
    /// Returns the state of a host that was not asked yet.
    pub fn new(host: HostId) -> Unable {
        Unable { host, since: None, refused: HashMap::new() }
    }

    /// Returns the host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Starts over with a host that is asked for the first time or again. Earlier refusals are kept.
    #[must_use]
    pub fn turned_to(self, host: HostId) -> Unable {
        Unable { host, since: None, refused: self.refused }
    }

    /// Notes whether the host is unable to have the replica at present. Returns for how long it has been.
    pub fn unable_for(&mut self, is_unable: bool, now: Instant) -> Duration {
        self.since = is_unable.then(|| self.since.unwrap_or(now));
        self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    /// Returns the hosts that must not be chosen now: the current host, and those that were unable in the last
    /// `within`.
    pub fn not_to_choose(&mut self, now: Instant, within: Duration) -> HashSet<HostId> {
        self.refused.retain(|_, since| now.duration_since(*since) < within);
        self.refused.insert(self.host, now);
        self.refused.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DiskId = DiskId([7; 16]);

    fn candidate(host: u64) -> Candidate {
        let host = HostId(host);
        Candidate { host, is_connected: true, is_draining: false, free_bytes: 100, replicas: 0 }
    }

    #[test]
    fn the_host_with_the_most_room_for_each_replica_is_chosen() {
        let full = Candidate { free_bytes: 10, ..candidate(1) };
        let used = Candidate { free_bytes: 150, replicas: 1, ..candidate(2) };
        assert_eq!(choose(DISK, [full, used, candidate(3)]), Some(HostId(3)));
        let drained = Candidate { is_draining: true, ..candidate(3) };
        assert_eq!(choose(DISK, [full, drained]), Some(HostId(1)));
        let away = Candidate { is_connected: false, ..full };
        assert_eq!(choose(DISK, [away, drained]), Some(HostId(3)), "a drained host is better than none");
        assert_eq!(choose(DISK, [away]), Some(HostId(1)), "it may come back");
        assert_eq!(choose_another(DISK, [away], &HashSet::new()), None);
        assert_eq!(choose_another(DISK, [full, drained], &HashSet::from([HostId(1)])), Some(HostId(3)));
    }

    #[test]
    fn a_replica_leaves_a_drained_host_unless_the_disk_is_on_its_way() {
        let filling = Some(ReplicationState::Filling);
        assert!(leaves_drained(true, false, filling));
        assert!(!leaves_drained(true, true, filling) && !leaves_drained(true, false, None));
        assert!(!leaves_drained(false, false, filling));
    }
}
