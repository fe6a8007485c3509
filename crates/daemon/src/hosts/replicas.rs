//! Replicas of disks' dirty blocks on other hosts: which host is to have one, whether it has one, and what is shown of
//! that.
//!
//! Invariants
//! - A setting that no replica can follow is refused, with the reason.
//! - The host of a replica is asked to attach the disk only while the disk is served here and is not on its way there.
//! - A disk is resized only when its replica has ended, and detached only then or while the replica stays because of
//!   blocks that are lost here.
//! - What is shown is at most as old as the last look.

mod asked;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use haversack_api::{ANY_HOST, DiskConfig, KeptReplica, ReplicaState, ReplicaStatus, WithoutReplica};
use haversack_engine::{self as engine, MoveStatus, NoReplica, OnLoss, ReplicaPolicy, ReplicationState};
use haversack_migrate::{Candidate, choose, choose_another, is_missing, leaves_drained};
use haversack_model::{DiskHandle, DiskId, HostId, Micros};

use super::migrate::preparation;
use super::movable::why_it_stays;
use super::{Hosts, LOOK_EVERY, bytes};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::origin::Origin;
use asked::Asked;

/// The most questions that may wait for an answer: a host answers at most 64 questions of all hosts at a time.
const MOST_ASKED: usize = 16;
/// How long a host may be unable to have a replica before `auto` takes another one.
const AWAY: Duration = Duration::from_secs(15);
/// How long a replica may take to end: the lease, and what is recorded.
const END_TIME: Duration = Duration::from_secs(30);
const END_POLL: Duration = Duration::from_millis(20);
const HAS_LOSSES: &str = "dirty blocks of the disk are lost on this host; a replica begins when they have been written again, or when \
     the loss is accepted";

/// What was seen of a disk's replica.
#[derive(Clone)]
struct Seen {
    status: MoveStatus,
    /// The pool's time at that moment.
    at_us: Micros,
    /// Since when it has been in this state at this place.
    since: Instant,
    /// Where the replica is to be; `error` says why it is not there.
    at: Option<HostId>,
    place: Option<String>,
    of: Option<String>,
    error: Option<String>,
}

/// The replicas of this host's disks, and those that this host has.
#[derive(Default)]
pub(crate) struct Replicas {
    places: Mutex<HashMap<DiskId, HostId>>,
    /// Disks that another host owns: `places` says where their replicas will be once this host owns them.
    elsewhere: Mutex<HashSet<DiskId>>,
    seen: Mutex<HashMap<DiskId, Seen>>,
}

impl Replicas {
    /// Records which host is to have the replica of a disk.
    pub fn place(&self, id: DiskId, policy: Option<ReplicaPolicy>) {
        match policy {
            Some(policy) => drop(self.places.locked().insert(id, policy.at)),
            None => drop(self.places.locked().remove(&id)),
        }
    }

    fn place_of(&self, id: DiskId) -> Option<HostId> {
        self.places.locked().get(&id).copied()
    }

    /// Returns how many replicas of this host's disks each host should have.
    fn placed(&self) -> HashMap<HostId, u64> {
        let elsewhere = self.elsewhere.locked();
        let mut placed = HashMap::new();
        for (_, host) in self.places.locked().iter().filter(|(id, _)| !elsewhere.contains(id)) {
            *placed.entry(*host).or_default() += 1;
        }
        placed
    }

    /// Returns what was last seen of a disk's replica elsewhere, and of the one that is here.
    pub fn shown(&self, id: DiskId) -> (Option<ReplicaStatus>, Option<KeptReplica>) {
        let Some(seen) = self.seen.locked().get(&id).cloned() else { return (None, None) };
        (replica(&seen), seen.of.and_then(|of| kept(&seen.status, seen.at_us, of, 0)))
    }
}

/// Describes the replica of a disk on another host.
fn replica(seen: &Seen) -> Option<ReplicaStatus> {
    let state = state_of(seen.status.replication?);
    let blocks = |count: usize| bytes(count as u64);
    Some(ReplicaStatus {
        host: seen.place.clone()?,
        state,
        since_s: seen.since.elapsed().as_secs_f64(),
        behind_bytes: seen.status.replicated.map_or(0, |one| blocks(one.lacking)),
        kept_bytes: seen.status.replicated.map_or(0, |one| blocks(one.kept)),
        writes_through: seen.status.writes_through,
        error: match state {
            ReplicaState::Missing => seen.error.clone(),
            _ => seen.status.problem.clone().filter(|_| is_kept_for_losses(&seen.status)),
        },
    })
}

fn state_of(state: ReplicationState) -> ReplicaState {
    match state {
        ReplicationState::Missing => ReplicaState::Missing,
        ReplicationState::Filling => ReplicaState::Filling,
        ReplicationState::Complete => ReplicaState::Complete,
        ReplicationState::Ending => ReplicaState::Ending,
    }
}

/// Describes this host's replica at the pool's time `now_us`. `epoch` is the highest epoch under which any host may
/// have had the disk.
pub(super) fn kept(status: &MoveStatus, now_us: Micros, of: String, epoch: u64) -> Option<KeptReplica> {
    let engine::ReplicaStatus { epoch: its, blocks, is_complete, is_certain, heard_us, .. } =
        status.replica?;
    Some(KeptReplica {
        of,
        bytes: bytes(blocks),
        is_complete,
        is_certain,
        heard_s: heard_us.map(|heard_us| now_us.saturating_sub(heard_us) as f64 / 1e6),
        is_void: epoch > its,
    })
}

impl Daemon {
    /// Returns which host is to have a replica of a disk, if one is to.
    ///
    /// # Errors
    /// No other host can have one, or the host is not one of the others.
    pub(crate) fn replica_policy(&self, config: &DiskConfig, id: DiskId) -> Result<Option<ReplicaPolicy>> {
        let Some(wanted) = config.replica_host() else { return Ok(None) };
        let refuse = |why: &str, hint| {
            DaemonError::conflict(format!("disk '{}' cannot have a replica: {why}", config.name), hint)
        };
        let configure = "configure [migration] and [[host]], or set replicate to none";
        let hosts = self.hosts().ok_or_else(|| refuse("this host knows no other hosts", configure))?;
        let origin = Origin::parse(&config.origin).map_err(DaemonError::Bad)?;
        if let Some(why) = why_it_stays(config, &origin) {
            let why = format!("it does not move between hosts, since {why}");
            return Err(refuse(&why, "set replicate to none"));
        }
        let at = if wanted == ANY_HOST {
            let chosen = hosts.replicas.place_of(id).or_else(|| choose(id, self.candidates(&hosts)));
            chosen.ok_or_else(|| {
                refuse("no other host is configured", "configure [[host]], or set replicate to none")
            })?
        } else if wanted.eq_ignore_ascii_case(&hosts.my_name()) {
            return Err(refuse("it would be on this host itself", "name another host, or auto"));
        } else {
            let unknown = format!("host '{wanted}' is in no [[host]]");
            hosts
                .find(wanted)
                .ok_or_else(|| refuse(&unknown, "name one of 'haversack host list', or auto"))?
        };
        let on_loss = match config.without_replica {
            WithoutReplica::WriteThrough => OnLoss::WriteThrough,
            WithoutReplica::Continue => OnLoss::Continue,
        };
        Ok(Some(ReplicaPolicy { at, on_loss }))
    }

    /// Returns the hosts that could have replicas of this host's disks.
    fn candidates(&self, hosts: &Hosts) -> Vec<Candidate> {
        let free = self.cluster().map(|cluster| cluster.free_bytes()).unwrap_or_default();
        let draining = self.draining(hosts);
        let placed = hosts.replicas.placed();
        let candidate = |host: HostId| Candidate {
            host,
            is_connected: hosts.is_connected(host),
            is_draining: draining.contains(&host),
            free_bytes: free.get(&hosts.name_of(host)).copied().unwrap_or(0),
            replicas: placed.get(&host).copied().unwrap_or(0),
        };
        hosts.others().into_iter().map(candidate).collect()
    }

    /// Returns the hosts that are being drained, as far as the directory of a cluster says so.
    fn draining(&self, hosts: &Hosts) -> HashSet<HostId> {
        let draining = self.cluster().map(|cluster| cluster.draining()).unwrap_or_default();
        draining.iter().filter_map(|name| hosts.find(name)).collect()
    }

    /// Places the replica of an attached disk where the policy says, from now on.
    pub(crate) fn set_replica(
        &self,
        disk: &Disk,
        handle: DiskHandle,
        policy: Option<ReplicaPolicy>,
    ) -> Result<()> {
        self.pool(&disk.config().pool)?.backend.set_replica(handle, policy)?;
        if let Some(hosts) = self.hosts() {
            hosts.replicas.place(disk.id, policy);
        }
        Ok(())
    }

    /// Ends the replica of a disk that is about to be detached or resized.
    ///
    /// # Errors
    /// It does not end.
    pub(crate) fn end_replica(&self, disk: &Disk, handle: DiskHandle) -> Result<()> {
        let config = disk.config();
        let backend = &self.pool(&config.pool)?.backend;
        let is_over = || -> Result<bool> {
            let status = backend.migration_status(disk.id)?;
            Ok(status.is_none_or(|status| status.replication.is_none() || is_kept_for_losses(&status)))
        };
        if is_over()? {
            return Ok(());
        }
        self.set_replica(disk, handle, None)?;
        let deadline = Instant::now() + END_TIME;
        while !is_over()? {
            if Instant::now() >= deadline || self.is_stopping() {
                self.renew_replica(disk, handle);
                return Err(DaemonError::conflict(
                    format!("the replica of disk '{}' on another host has not ended", config.name),
                    "see 'haversack disk show', and try again",
                ));
            }
            std::thread::sleep(END_POLL);
        }
        Ok(())
    }

    /// Refuses to resize a disk that is not served, since its replica is kept for what is lost here.
    pub(crate) fn check_not_kept(&self, disk: &Disk) -> Result<()> {
        let config = disk.config();
        let status = self.pool(&config.pool)?.backend.migration_status(disk.id)?;
        if !status.is_some_and(|status| is_kept_for_losses(&status)) {
            return Ok(());
        }
        let at = self.hosts().and_then(|hosts| Some(hosts.name_of(hosts.replicas.place_of(disk.id)?)));
        let at = at.map_or_else(|| "another host".to_owned(), |name| format!("host '{name}'"));
        let name = &config.name;
        Err(DaemonError::conflict(
            format!(
                "disk '{name}' is not served and cannot be resized: dirty blocks of it are lost on this host, and its replica on {at} \
                 may have them"
            ),
            "stop haversackd here, and take the disk over there with 'haversack disk own'; or detach it, and attach it with \
             --accept-loss and its name",
        ))
    }

    /// Restarts a disk's replica after the operation for which it was ended has completed or failed.
    pub(crate) fn renew_replica(&self, disk: &Disk, handle: DiskHandle) {
        let config = disk.config();
        let renewed = self.replica_policy(&config, disk.id).and_then(|policy| match policy {
            Some(_) => self.set_replica(disk, handle, policy),
            None => Ok(()),
        });
        if let Err(error) = renewed {
            tracing::error!(disk = config.name, "it has no replica any more: {error}");
        }
    }

    /// Returns whether a disk must not be sent to a host that has just attached it, because that host is only to have
    /// the replica.
    pub(super) fn only_replicates_to(
        &self,
        hosts: &Hosts,
        id: DiskId,
        to: HostId,
        status: Option<&MoveStatus>,
    ) -> bool {
        let replication = status.and_then(|status| status.replication);
        hosts.replicas.place_of(id) == Some(to)
            && replication.is_some_and(|state| state != ReplicationState::Complete)
    }
}

/// Watches the replicas until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let mut watch = Watch::default();
    let part = ("replicas", "watching replicas");
    super::watch(daemon, part, LOOK_EVERY, move |daemon, hosts| watch.look(daemon, hosts))
}

#[derive(Default)]
struct Watch {
    asked: HashMap<DiskId, Asked>,
    /// How many more may be asked in this look.
    free: usize,
    /// The hosts that are connected, and since when.
    connected: HashMap<HostId, SystemTime>,
    /// The hosts that are being drained.
    draining: HashSet<HostId>,
}

impl Watch {
    fn look(&mut self, daemon: &Daemon, hosts: &Hosts) {
        let (mut found, mut elsewhere) = (HashMap::new(), HashSet::new());
        for pool in daemon.pools() {
            // An error says that the pool has stopped.
            let Ok(statuses) = pool.backend.replicas() else { continue };
            let at_us = pool.backend.now_us();
            for (id, mut status) in statuses {
                // This host waits for the disk. The disk will have a replica elsewhere once this host owns it.
                if !status.record.is_owner() {
                    status.replication = None;
                    elsewhere.insert(id);
                }
                if status.replication.is_some() || status.replica.is_some() {
                    found.insert(id, (status, at_us));
                }
            }
        }
        *hosts.replicas.elsewhere.locked() = elsewhere;
        self.asked.retain(|id, _| found.contains_key(id));
        let now = Instant::now();
        let waiting = self.asked.values().filter(|asked| asked.is_waiting(now)).count();
        self.free = MOST_ASKED.saturating_sub(waiting);
        self.connected = hosts.connections().into_iter().collect();
        self.draining = daemon.draining(hosts);
        let known: HashMap<DiskId, (String, Arc<Disk>)> = if found.is_empty() {
            HashMap::new()
        } else {
            daemon.disks().into_iter().map(|(name, disk)| (disk.id, (name, disk))).collect()
        };
        let mut seen = HashMap::new();
        for (id, (status, at_us)) in found {
            let before = hosts.replicas.seen.locked().get(&id).cloned();
            let present = self.look_at(daemon, hosts, (id, known.get(&id)), status, at_us, before.as_ref());
            seen.insert(id, present);
        }
        *hosts.replicas.seen.locked() = seen;
    }

    fn look_at(
        &mut self,
        daemon: &Daemon,
        hosts: &Hosts,
        (id, known): (DiskId, Option<&(String, Arc<Disk>)>),
        status: MoveStatus,
        at_us: Micros,
        before: Option<&Seen>,
    ) -> Seen {
        let place = hosts.replicas.place_of(id);
        let is_same = |seen: &Seen| seen.status.replication == status.replication && seen.at == place;
        let since = before.filter(|seen| is_same(seen)).map_or_else(Instant::now, |seen| seen.since);
        let last = before.and_then(|seen| seen.place.clone());
        let mut seen = Seen {
            at: place,
            place: place.map(|host| hosts.name_of(host)).or(last),
            of: status.replica.map(|replica| hosts.name_of(replica.of)),
            error: None,
            status,
            at_us,
            since,
        };
        let Some((name, disk)) = known else { return seen };
        tell(daemon, name, before, &seen);
        let (is_sent, state) = (seen.status.to.is_some(), seen.status.replication);
        let leaves = |place: &HostId| leaves_drained(self.draining.contains(place), is_sent, state);
        if let Some(place) = place.filter(leaves) {
            let why = format!("host '{}' is being drained", hosts.name_of(place));
            replace(daemon, hosts, disk, &self.draining, &why);
        }
        if let Some(place) = place.filter(|_| is_missing(&seen.status.record, is_sent, state)) {
            seen.error = Some(if seen.status.is_guest_here {
                self.ask(daemon, hosts, disk, place, seen.status.no_replica)
            } else {
                "it begins when a client is connected".to_owned()
            });
        } else if seen.status.replication == Some(ReplicationState::Filling) {
            self.asked.entry(id).and_modify(|asked| asked.begun(Instant::now()));
        } else {
            self.asked.remove(&id);
            seen.error = seen.status.to.map(|to| is_on_its_way(name, &hosts.name_of(to)));
        }
        seen
    }

    /// Asks the host that is to have a replica to attach the disk. Returns why it has none.
    fn ask(
        &mut self,
        daemon: &Daemon,
        hosts: &Hosts,
        disk: &Disk,
        place: HostId,
        no_replica: Option<NoReplica>,
    ) -> String {
        let now = Instant::now();
        let connected = self.connected.get(&place).copied();
        let is_connected = connected.is_some();
        let asked = self.asked.entry(disk.id).or_insert_with(|| Asked::new(place, now));
        asked.turn_to(place, connected, now);
        asked.hear();
        if asked.is_due(now) && self.free > 0 {
            self.free -= 1;
            asked.ask(hosts.ask_now(&[place], disk.id, &preparation(hosts, disk, place)), now);
        }
        let name = hosts.name_of(place);
        let why = match asked.refusal() {
            _ if !is_connected => format!("host '{name}' is not connected"),
            Some(why) => format!("host '{name}' cannot attach the disk: it {why}"),
            None if no_replica == Some(NoReplica::Losses) => HAS_LOSSES.to_owned(),
            None if no_replica == Some(NoReplica::NotStored) => {
                format!("host '{name}' did not store what it was sent; it is tried again later")
            }
            None => format!("host '{name}' has not begun yet"),
        };
        let is_unable =
            !is_connected || asked.refusal().is_some() || no_replica == Some(NoReplica::NotStored);
        if asked.unable_for(is_unable, now) >= AWAY {
            let without = asked.not_to_choose(now);
            replace(daemon, hosts, disk, &without, &why);
        }
        why
    }
}

/// Returns whether the replica of a disk that is not served is kept until the loss of dirty blocks here is accepted.
fn is_kept_for_losses(status: &MoveStatus) -> bool {
    status.replication == Some(ReplicationState::Ending) && status.no_replica == Some(NoReplica::Losses)
}

/// Returns why a disk that is being sent to another host has no replica.
fn is_on_its_way(disk: &str, to: &str) -> String {
    format!(
        "the disk is being sent to host '{to}', and flushes are not replicated meanwhile; 'haversack migrate abort {disk}' ends that"
    )
}

/// Chooses another host for a disk's replica, if the disk's setting leaves the choice to the daemon.
fn replace(daemon: &Daemon, hosts: &Hosts, disk: &Disk, without: &HashSet<HostId>, why: &str) {
    let config = disk.config();
    let (Some(ANY_HOST), Ok(handle)) = (config.replica_host(), disk.attached()) else { return };
    let Some(at) = choose_another(disk.id, daemon.candidates(hosts), without) else { return };
    let policy = daemon.replica_policy(&config, disk.id).ok().flatten();
    let Some(policy) = policy.map(|policy| ReplicaPolicy { at, ..policy }) else { return };
    match daemon.set_replica(disk, handle, Some(policy)) {
        Ok(()) => {
            let what = format!("to host '{}', since {why}", hosts.name_of(at));
            daemon.events.add("replica-moved", &config.name, what);
        }
        Err(error) => tracing::error!(disk = config.name, "cannot move the replica: {error}"),
    }
}

/// Reports that a disk has a complete replica, or lost it although it is to have one.
fn tell(daemon: &Daemon, name: &str, before: Option<&Seen>, seen: &Seen) {
    let is_complete = |seen: &Seen| seen.status.replication == Some(ReplicationState::Complete);
    let was = before.is_some_and(is_complete);
    let host = seen.place.as_deref().unwrap_or("unknown");
    if is_complete(seen) && !was {
        tracing::info!(disk = name, host, "it has a complete replica");
        daemon.events.add(
            "replicated",
            name,
            format!("host '{host}' has everything that is flushed from now on"),
        );
    } else if was && !is_complete(seen) && seen.at.is_some() && seen.status.to.is_none() {
        let through = if seen.status.writes_through { "; the disk writes through meanwhile" } else { "" };
        tracing::warn!(disk = name, host, "it has no complete replica any more");
        daemon.events.add(
            "replica-lost",
            name,
            format!("host '{host}' does not have everything any more{through}"),
        );
    }
}
