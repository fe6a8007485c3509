//! Replicas of disks' dirty blocks on other hosts. Each host chooses where the replicas of its disks are, as the daemon
//! does with `replicate = "auto"`.
//!
//! The daemon's code (`haversack_migrate`) makes the decisions. When it makes them, and what it knows then, is
//! simulated.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use haversack_core::Moved;
use haversack_directory::View;
use haversack_migrate::{
    Candidate, NoReplica, ReplicationState, Unable, choose, choose_another, is_missing, leaves_drained,
};
use haversack_model::HostId;
use haversack_ownership::Record;

use super::daemon::{Daemon, host_name, host_named};
use super::epochs::is_connected;
use super::plan::{DISKS, HOSTS};
use super::run::Cluster;
use crate::hosts::host::host_id;
use crate::hosts::machines::Machines;
use crate::plan::disk_id;
use crate::run::tell;
use crate::world::{Flow, violation};

/// For how many leases a host may be unable to have a replica.
const AWAY_LEASES: u32 = 3;
/// For how many times as long it is not chosen again.
const REFUSED_TIMES: u32 = 20;
/// How often a host begins to refuse replicas, and how often an operator makes a host forget one that it has, per
/// 100,000 milliseconds.
const INTERFERENCE: u64 = 100;
/// The most leases for which a host refuses replicas.
const MOST_REFUSED_LEASES: u64 = 12;

/// What a daemon remembers of its disks' replicas.
#[derive(Default)]
pub struct Places {
    unable: BTreeMap<usize, Unable>,
}

/// Returns the host of an identity.
fn place(host: HostId) -> usize {
    host.0 as usize - 1
}

/// Returns the hosts that could have replicas of a host's disks.
fn candidates(machines: &Machines, me: usize, view: &View) -> Vec<Candidate> {
    let mut placed: HashMap<usize, u64> = HashMap::new();
    for of in 0..DISKS {
        let is_here = machines.hosts[me].record(of).is_some_and(|record| record.is_owner());
        if let Some(at) = machines.hosts[me].replica_at[of].filter(|_| is_here) {
            *placed.entry(at).or_default() += 1;
        }
    }
    let free_bytes = |host: &str| {
        let free =
            |pool: &haversack_directory::PoolRecord| pool.capacity_bytes.saturating_sub(pool.demand_bytes);
        view.pools_of(host).map(|(_, seen)| free(&seen.record)).sum()
    };
    let candidate = |at: usize| Candidate {
        host: host_id(at),
        is_connected: is_connected(machines, me, at),
        is_draining: view.drains.contains_key(&host_name(at)),
        free_bytes: free_bytes(&host_name(at)),
        replicas: placed.get(&at).copied().unwrap_or(0),
    };
    (0..HOSTS).filter(|at| *at != me).map(candidate).collect()
}

impl Cluster {
    /// Lets a host look at the replicas of its disks.
    pub(super) fn look_at_replicas(&mut self, me: usize) -> Flow {
        if self.machines.shared.plan.replica.is_none() || self.machines.hosts[me].running.is_none() {
            return Ok(());
        }
        let looks = |daemon: &&Daemon| daemon.has_looked;
        let Some(daemon) = self.daemons[me].as_ref().filter(looks) else { return Ok(()) };
        let mut all = candidates(&self.machines, me, &daemon.access.view);
        for of in 0..DISKS {
            if self.look_at_replica(me, of, &all)?
                && let Some(daemon) = &self.daemons[me]
            {
                all = candidates(&self.machines, me, &daemon.access.view);
            }
        }
        Ok(())
    }

    /// Returns whether a replica was placed.
    fn look_at_replica(&mut self, me: usize, of: usize, all: &[Candidate]) -> Flow<bool> {
        let now = self.instant();
        let away = Duration::from_micros(self.machines.shared.plan.timing.lease_us) * AWAY_LEASES;
        let Some(daemon) = self.daemons[me].as_mut() else { return Ok(false) };
        let machines = &self.machines;
        let Some(running) = &machines.hosts[me].running else { return Ok(false) };
        let migration = &running.disks[of].migration;
        let guest = &machines.guests[of];
        let is_guest_here = guest.host == me && !guest.is_stopped;
        let (state, is_sent) = (migration.replication(), migration.sends_to().is_some());
        let Some(at) = machines.hosts[me].replica_at[of] else {
            let Some(at) = choose(disk_id(of), all.iter().copied()).map(place) else { return Ok(false) };
            self.machines.hosts[me].place_replica(&mut self.machines.shared, of, at)?;
            return Ok(true);
        };
        let draining: HashSet<HostId> =
            all.iter().filter(|one| one.is_draining).map(|one| one.host).collect();
        let is_draining = draining.contains(&host_id(at));
        let mut other = None;
        if leaves_drained(is_draining, is_sent, state) {
            other = choose_another(disk_id(of), all.iter().copied(), &draining);
        }
        if is_missing(migration.record(), is_sent, state) {
            let is_unable = !is_connected(machines, me, at)
                || machines.hosts[at].refuses_replica(of, machines.shared.now)
                || migration.no_replica() == Some(NoReplica::NotStored);
            let fresh = || Unable::new(host_id(at));
            let unable = daemon.places.unable.remove(&of).unwrap_or_else(fresh);
            let mut unable =
                if unable.host() == host_id(at) { unable } else { unable.turned_to(host_id(at)) };
            if is_guest_here && unable.unable_for(is_unable, now) >= away {
                let without = unable.not_to_choose(now, away * REFUSED_TIMES);
                other = other.or_else(|| choose_another(disk_id(of), all.iter().copied(), &without));
            }
            daemon.places.unable.insert(of, unable);
        } else if state != Some(ReplicationState::Filling) {
            daemon.places.unable.remove(&of);
        }
        let may_leave = all.iter().any(|one| one.is_connected && !one.is_draining);
        // This tests only that the decision is made, not that the replica then moves.
        if is_draining && may_leave && state.is_some() && !is_sent && other.is_none() {
            return violation!("the replica of disk {of} stays on host {at}, which is being drained");
        }
        if let Some(other) = other.map(place) {
            self.machines.hosts[me].place_replica(&mut self.machines.shared, of, other)?;
            self.machines.post();
        }
        Ok(other.is_some())
    }

    /// Lets a millisecond pass for hosts that refuse replicas, and for operators who make hosts forget replicas.
    pub(super) fn interfere(&mut self) -> Flow {
        if self.machines.shared.plan.replica.is_none() {
            return Ok(());
        }
        let now = self.machines.shared.now;
        let rng = &mut self.operator.losses;
        let [begins_to_refuse, forgets] = [(); 2].map(|()| rng.below(100_000) < INTERFERENCE);
        let (at, of) = (rng.below(HOSTS as u64) as usize, rng.below(DISKS as u64) as usize);
        if begins_to_refuse {
            let until = now + rng.skewed(MOST_REFUSED_LEASES * self.machines.shared.plan.timing.lease_us);
            tell(|| format!("{now:>10} host {at} refuses replicas until {until}"));
            self.machines.hosts[at].refuses_until = until;
        }
        let keeper = (0..HOSTS).find(|at| self.machines.hosts[*at].has_replica(of));
        // A host that has forgotten a disk cannot say where the disk went. So hosts must ask each other, which they do
        // only where an operator is at work.
        let forgets = forgets && self.operator.is_awake && !self.operator.is_busy_with(of);
        if let Some(at) = keeper.filter(|_| forgets) {
            tell(|| format!("{now:>10} the replica of disk {of} is forgotten on host {at}"));
            self.machines.hosts[at].forget(&mut self.machines.shared, of)?;
            self.machines.post();
        }
        Ok(())
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.machines.shared.now)
    }

    /// Returns the host that has a complete replica, as the directory says.
    pub(super) fn replica_in_directory(view: &View, of: usize) -> Option<usize> {
        let record = &view.disks.get(&disk_id(of).to_string())?.record;
        record.replica_at.as_deref().filter(|_| record.is_replicated).and_then(host_named)
    }

    /// Returns which of `hosts` has the complete replica of a disk's last owner, with everything that was flushed. The
    /// last owner must be one of `suspects`.
    pub(super) fn replica_of_gone(
        &mut self,
        of: usize,
        suspects: &[usize],
        hosts: &[usize],
    ) -> Option<usize> {
        let newest = self.judge.newest_epoch(of);
        let owner = suspects.iter().copied().find(|suspect| {
            let record = self.machines.hosts[*suspect].remains_of(&self.machines.shared, of).record;
            record.is_owner() && record.epoch() == newest
        })?;
        let remains = self.machines.hosts[owner].remains_of(&self.machines.shared, of);
        let at = remains
            .guarded_by
            .filter(|at| hosts.contains(at) && !self.machines.hosts[*at].is_detaching(of))?;
        let Machines { hosts, shared, .. } = &mut self.machines;
        let replica = hosts[at].replica(shared, of)?;
        (replica.is_complete && replica.of == host_id(owner) && replica.epoch == newest).then_some(at)
    }

    /// Returns how many blocks the replica of a disk has that is on a host.
    pub(super) fn replica_blocks(&mut self, of: usize, at: usize) -> u64 {
        let Machines { hosts, shared, .. } = &mut self.machines;
        hosts[at].replica(shared, of).map_or(0, |replica| replica.blocks)
    }

    /// Returns a replica that was left on a host although nobody needs it.
    pub(super) fn left_replica(&self) -> Option<String> {
        (0..HOSTS).flat_map(|at| (0..DISKS).map(move |of| (at, of))).find_map(|(at, of)| {
            let running = self.machines.hosts[at].running.as_ref()?;
            let info = running.core.disk_info(running.disks[of].migration.disk()?)?;
            let Moved::Replica { of: owner, .. } = info.moved else { return None };
            let owner = place(owner);
            let record = self.machines.hosts[owner].record(of)?;
            // The host of one that has no blocks need not hear that its owner was overtaken.
            let dirty_blocks = running.core.disk_usage(running.disks[of].migration.disk()?)?.dirty_blocks;
            let is_void = matches!(record, Record::Overtaken { .. }) && dirty_blocks == 0;
            let is_wanted = record.is_owner() && self.machines.hosts[owner].replica_at[of] == Some(at);
            if is_void || self.operator.is_lost(owner) {
                return None;
            }
            (!is_wanted)
                .then(|| format!("host {at} has been left with a replica of disk {of} of host {owner}"))
        })
    }
}
