//! Creates the intents of moves that this daemon drives, and removes intents of moves that have ended.
//! `haversack-moves` decides which have ended.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use haversack_api::JobKind;
use haversack_directory::{DirectoryError, IntentRecord, Key, Leadership, Seen, View};
use haversack_link::host_id;
use haversack_model::DiskId;
use haversack_moves::{Claimed, claim};

use super::{Cluster, report};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;

/// How long a proposed move must be missing from the directory before its source stops sending the disk: the VM may
/// have arrived at the destination just now.
const GIVEN_UP: Duration = Duration::from_secs(5);
/// The displayed reason of a move that an operator has ordered.
const ORDERED: &str = "an operator's order";

/// The balancer's moves of this host's disks that have not ended, by the id of the disk.
pub struct Proposed {
    moves: Mutex<HashMap<String, ProposedMove>>,
    /// How long nobody must have driven a move for it to count as abandoned.
    abandoned_after: Duration,
}

#[derive(Clone)]
struct ProposedMove {
    /// The name of the disk.
    name: String,
    to: String,
    /// When the directory last had the move.
    seen: Instant,
    /// Which history of etcd had it, see [`haversack_etcd::Status::other_histories`].
    history: u64,
    /// When certainly nothing drives it any more; none if that is not known.
    ends: Option<Instant>,
}

impl Proposed {
    pub fn new(abandoned_after: Duration) -> Proposed {
        Proposed { moves: Mutex::default(), abandoned_after }
    }

    /// Records that the directory has a move of a disk of this host. An operator's move is not recorded: it ends only
    /// on the operator's request.
    fn note(&self, disk: &str, intent: &Seen<IntentRecord>, history: u64, now: Instant) {
        let IntentRecord { name, to, is_ordered, most_ms, .. } = &intent.record;
        if *is_ordered {
            return self.forget(disk);
        }
        let most = most_ms.map(Duration::from_millis);
        let ends = most.and_then(|most| intent.at.checked_add(most)?.checked_add(self.abandoned_after));
        let proposed = ProposedMove { name: name.clone(), to: to.clone(), seen: now, history, ends };
        self.moves.locked().insert(disk.into(), proposed);
    }

    /// Returns the moves that have ended: those that the directory does not have any more. If etcd has lost its data,
    /// that says nothing: such a move ends when nothing can drive it any more.
    fn ended(&self, view: &View, history: u64, now: Instant) -> Vec<(String, ProposedMove)> {
        let has_ended = |disk: &str, proposed: &ProposedMove| {
            let is_removed = proposed.history == history || proposed.ends.is_some_and(|ends| now >= ends);
            let is_missing = now.saturating_duration_since(proposed.seen) >= GIVEN_UP;
            !view.intents.contains_key(disk) && is_missing && is_removed
        };
        let moves = self.moves.locked();
        let ended = moves.iter().filter(|(disk, proposed)| has_ended(disk, proposed));
        ended.map(|(disk, proposed)| (disk.clone(), proposed.clone())).collect()
    }

    /// Forgets a move of a disk: the operator moves it.
    fn forget(&self, disk: &str) {
        self.moves.locked().remove(disk);
    }

    /// Whether the balancer moves a disk to the host `to`.
    pub(super) fn is_moved_to(&self, disk: DiskId, to: &str) -> bool {
        self.moves.locked().get(&disk.to_string()).is_some_and(|proposed| proposed.to == to)
    }

    /// Marks all moves as seen now: while the directory is unreachable, no move counts as missing from it.
    fn see_again(&self) {
        self.moves.locked().values_mut().for_each(|proposed| proposed.seen = Instant::now());
    }
}

/// A move that this daemon drives. Dropping it removes the intent, if it is in the directory.
pub struct Driven<'a> {
    cluster: &'a Cluster,
    disk: String,
    intent: IntentRecord,
}

impl<'a> Driven<'a> {
    /// Marks the move as one that this daemon drives. Call it before the intent is in the directory, from which
    /// [`Cluster::tidy`] removes intents that nothing drives.
    fn new(cluster: &'a Cluster, disk: &str, intent: IntentRecord) -> Driven<'a> {
        cluster.intents.locked().drive(disk);
        Driven { cluster, disk: disk.into(), intent }
    }
}

impl Drop for Driven<'_> {
    fn drop(&mut self) {
        self.cluster.intents.locked().let_go(&self.disk);
        if let Err(error) = self.cluster.directory.end_move(&self.disk, &self.intent) {
            tracing::debug!(disk = self.disk, "the intent of the move stays for now: {error}");
        }
    }
}

impl Daemon {
    /// Puts a move that an operator has requested into the directory. Returns `None` if the move proceeds
    /// without an entry: etcd cannot be reached or does not know the disk, or the move is already in the
    /// directory.
    ///
    /// # Errors
    /// Another move of the disk is in the directory.
    pub(crate) fn begin_intent(
        &self,
        name: &str,
        id: DiskId,
        to: &str,
        epoch: u64,
    ) -> Result<Option<Driven<'_>>> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let (directory, disk, to) = (&cluster.directory, id.to_string(), to.to_ascii_lowercase());
        let (history, view) = (directory.status().other_histories, directory.view());
        match claim(&view, &disk, &to) {
            Claimed::Free => cluster.proposed.forget(&disk),
            Claimed::Same(_) => {
                let intent = &view.intents[&disk];
                cluster.proposed.note(&disk, intent, history, Instant::now());
                return Ok(None);
            }
            Claimed::Elsewhere(intent) => {
                return Err(DaemonError::conflict(
                    format!(
                        "host '{}' is moving disk '{name}' to host '{}': {}",
                        intent.by, intent.to, intent.reason
                    ),
                    "see 'haversack cluster status'; wait, or end that move first",
                ));
            }
        }
        let intent = IntentRecord {
            name: name.into(),
            from: directory.name().into(),
            epoch,
            to,
            by: directory.name().into(),
            instance: directory.instance(),
            reason: ORDERED.into(),
            is_ordered: true,
            most_ms: None,
        };
        let driven = Driven::new(cluster, &disk, intent);
        match directory.begin_move(&disk, &driven.intent, None) {
            Ok(()) => Ok(Some(driven)),
            // It has just begun, and is not in this host's view yet.
            Err(DirectoryError::Changed { key: Key::Intent(_) })
                if directory
                    .view()
                    .intents
                    .get(&disk)
                    .is_some_and(|intent| intent.record.to == driven.intent.to) =>
            {
                Ok(None)
            }
            Err(DirectoryError::Changed { key: Key::Intent(_) }) => Err(DaemonError::conflict(
                format!("another host has just begun to move disk '{name}'"),
                "see 'haversack cluster status'; wait, or end that move first",
            )),
            Err(error) => {
                let what = format!("the move is not in the directory: {error}");
                self.events.add("move-without-intent", name, what);
                Ok(None)
            }
        }
    }
}

impl Cluster {
    /// Puts a move of the balancer into the directory.
    ///
    /// # Errors
    /// Another host has moved the disk, is moving it, or is now the one that balances; or etcd cannot be reached.
    pub(super) fn begin_proposed(
        &self,
        disk: &str,
        intent: IntentRecord,
        leadership: Leadership,
    ) -> std::result::Result<Driven<'_>, DirectoryError> {
        let driven = Driven::new(self, disk, intent);
        self.directory.begin_move(disk, &driven.intent, Some(leadership))?;
        Ok(driven)
    }

    /// Removes intents of moves that have ended: those that name this host, and those of its disks.
    pub(super) fn tidy(&self) {
        if !self.is_current() {
            return;
        }
        let over = self.intents.locked().over(&self.directory.view(), Instant::now());
        for (disk, intent) in over {
            match self.directory.end_move(&disk, &intent) {
                Ok(()) => tracing::info!(disk = intent.name, to = intent.to, "a move has ended"),
                Err(error) => tracing::debug!(disk = intent.name, "the intent stays for now: {error}"),
            }
        }
    }

    /// Stops sending disks that the balancer had moved, and that are still here although their moves are no
    /// longer in the directory: the program that should move the VM has failed, and may have been killed.
    /// Otherwise they would be sent forever.
    pub(super) fn stop_given_up(&self, daemon: &Daemon) {
        if !self.is_current() {
            self.proposed.see_again();
            return;
        }
        // Asked before the view: if the data is lost in between, the next look knows.
        let history = self.directory.status().other_histories;
        let (view, me, now) = (self.directory.view(), self.directory.name(), Instant::now());
        for (disk, intent) in view.intents.iter().filter(|(_, intent)| intent.record.from == me) {
            self.proposed.note(disk, intent, history, now);
        }
        for (disk, proposed) in self.proposed.ended(&view, history, now) {
            match give_up(daemon, &proposed) {
                Ok(true) => {}
                Ok(false) => self.proposed.forget(&disk),
                Err(error) => tracing::debug!(
                    disk = proposed.name,
                    to = proposed.to,
                    "cannot determine whether the disk is still being sent, trying again: {error}"
                ),
            }
        }
    }
}

/// Stops sending a disk whose move is no longer in the directory. Returns true if the disk is still being sent: a
/// hypervisor at the destination has the disk open, so the VM may be running there without having written yet.
fn give_up(daemon: &Daemon, proposed: &ProposedMove) -> Result<bool> {
    let (Some(hosts), Ok(disk)) = (daemon.hosts(), daemon.disk(&proposed.name)) else { return Ok(false) };
    let is_sent = match report::sent_to(daemon, &disk)? {
        Some(to) => hosts.name_of(to) == proposed.to,
        None => daemon.jobs.is_running(JobKind::Migrate, &proposed.name),
    };
    if !is_sent {
        return Ok(false);
    }
    if hosts.is_wanted(disk.id, host_id(&proposed.to)) {
        return Ok(true);
    }
    daemon.give_up_migration(&proposed.name)?;
    tracing::info!(disk = proposed.name, to = proposed.to, "the move was given up: the disk stays here");
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(60);
    const ABANDONED: Duration = Duration::from_secs(40);

    /// Returns after how many seconds a move that a directory has lost has ended, if within a day. The history that has
    /// the data is number 0.
    fn ends_after(most: Option<Duration>, history: u64) -> Option<u64> {
        let (proposed, start) = (Proposed::new(ABANDONED), Instant::now());
        let intent = IntentRecord {
            name: "vm1".into(),
            from: "alpha".into(),
            epoch: 1,
            to: "beta".into(),
            by: "gamma".into(),
            instance: 1,
            reason: "a test".into(),
            is_ordered: false,
            most_ms: most.map(|most| most.as_millis() as u64),
        };
        let intent = Seen { record: intent, created: 1, revision: 1, lease: 0, at: start };
        proposed.note("id", &intent, 0, start);
        let mut seconds = 0..86_400;
        seconds
            .find(|s| !proposed.ended(&View::default(), history, start + Duration::from_secs(*s)).is_empty())
    }

    #[test]
    fn a_move_that_was_removed_ends_soon_and_one_that_etcd_has_lost_goes_on() {
        assert_eq!(ends_after(Some(MOST), 0), Some(5), "it was removed");
        assert_eq!(ends_after(Some(MOST), 1), Some(100), "its program may still run");
        assert_eq!(ends_after(None, 1), None, "nobody knows how long its program runs");
    }

    #[test]
    fn a_move_that_an_operator_orders_is_not_given_up() {
        let (proposed, now) = (Proposed::new(ABANDONED), Instant::now());
        let intent = |is_ordered| {
            let record = serde_json::from_value(serde_json::json!({
                "name": "vm1", "from": "alpha", "epoch": 1, "to": "beta", "by": "alpha", "instance": 1, "reason": "",
                "is_ordered": is_ordered,
            }));
            Seen { record: record.unwrap(), created: 1, revision: 1, lease: 0, at: now }
        };
        proposed.note("id", &intent(false), 0, now);
        proposed.note("id", &intent(true), 0, now);
        assert!(proposed.ended(&View::default(), 0, now + Duration::from_secs(100)).is_empty());
    }
}
