//! An operator takes a disk over with `haversack disk own` on one of the hosts: step by step what the daemon does
//! there.
//!
//! - All other hosts are asked. One that is connected and does not answer, or objects, ends the attempt.
//! - Those that are not connected are fenced, and their VMs are off from then on.
//! - The others note the takeover.
//! - The host takes the disk, under an epoch taken by force. What only the fenced hosts had is lost, and the oracle
//!   hears of it then.
//!
//! If the host already owns the disk and needs blocks of a dead one, nothing is fenced.
//!
//! If another host may have had the disk since, the attempt ends. The operator knows whether it has, and discards what
//! is void: the blocks of the host that was to take the disk, or the notes of a takeover that failed.

use std::collections::BTreeSet;

use haversack_core::{Core, PeerLoss};
use haversack_migrate::{
    HostRecord, KnownOwner, ReplicaStatus, complete_replica, later_takeover, newest_epoch, objection,
    objection_of_peer, objection_of_third, relies_on_epoch,
};
use haversack_model::{HostId, Micros};
use haversack_ownership::{Record, forced_epoch, least_forced_epoch};

use super::epochs::{is_connected, record_of, recorded, yield_to};
use super::run::Cluster;
use crate::hosts::host::host_id;
use crate::hosts::machines::Machines;
use crate::pattern;
use crate::run::tell;
use crate::world::{Flow, violation};
use haversack_model::SECTOR_BYTES;

/// How long hosts have to answer.
const PATIENCE_US: Micros = 20_000;
/// The operator's clock in seconds when a run begins. It runs a thousand times as fast as the clock of the run.
const CLOCK_S: u64 = 1_000_000;
/// One operator in this many does not know whether the owner of a disk has gone on without its replica.
const OPERATORS_WHO_DO_NOT_KNOW: u64 = 4;
/// One fencing in this many fails.
const FENCES_THAT_FAIL: u64 = 15;

/// From whom a disk is taken, and how.
#[derive(Clone)]
pub(super) struct Plan {
    /// The dead host whose blocks this host needs, if this host already owns the disk.
    depends: Option<usize>,
    /// Hosts that do not answer, and may own the disk.
    suspects: Vec<usize>,
    /// The hosts that note the takeover before it happens.
    noting: Vec<usize>,
    epoch: u64,
    /// The highest epoch under which a host may have had the disk.
    newest: u64,
    /// Whether a loss is recorded or accepted if the operator does not decide that.
    pub(super) loss: PeerLoss,
    /// The replica that this host has is used.
    uses_replica: bool,
    /// Another host that answers had the complete replica of the dead owner when that was fenced.
    better: Option<usize>,
}

/// Why a disk cannot be taken over.
enum Objection {
    /// Another host may have had the disk since.
    MayBeVoid,
    /// Something else. The named host, if any, may be the right one for the takeover.
    Other(Option<usize>),
}

#[derive(Clone)]
enum Stage {
    Asking { answers: Vec<(usize, HostRecord)> },
    Fencing { until: Micros, plan: Plan },
    Noting { left: Vec<usize>, plan: Plan },
    Taking { epoch: u64 },
}

/// A disk that is being taken over.
pub struct Own {
    pub of: usize,
    /// The host that takes it, and its daemon.
    pub at: usize,
    instance: u64,
    stage: Stage,
    begun: Micros,
    /// The sectors that may count as lost when the takeover is on record, if the loss is recorded.
    pub only_there: Option<BTreeSet<u64>>,
}

/// How an attempt goes on.
pub enum Outcome {
    /// It is not over.
    Goes,
    /// The disk was taken.
    Taken,
    /// It was not, and another host may be the right one.
    Refused(Option<usize>),
}

/// Whether a host is taking a disk over.
pub fn is_taking(owns: &[Own], at: usize, of: usize) -> bool {
    owns.iter().any(|own| (own.at, own.of) == (at, of))
}

/// Returns the host whose blocks another one needs, which owns a disk.
pub fn peer_of(machines: &Machines, at: usize, of: usize) -> Option<usize> {
    match machines.hosts[at].record(of)? {
        Record::Owner { peers, .. } => peers.iter().next().map(|peer| peer.0 as usize - 1),
        _ => None,
    }
}

impl Own {
    /// Begins.
    pub fn new(of: usize, at: usize, instance: u64, now: Micros) -> Own {
        Own { of, at, instance, stage: Stage::Asking { answers: Vec::new() }, begun: now, only_there: None }
    }

    /// Whether the daemon that does it is still there.
    pub fn is_alive(&self, instances: &[Option<u64>]) -> bool {
        instances[self.at] == Some(self.instance)
    }

    /// Whether the takeover may already be on record.
    pub fn may_be_taken(&self) -> bool {
        matches!(self.stage, Stage::Taking { .. })
    }

    fn others(&self, machines: &Machines) -> Vec<usize> {
        (0..machines.hosts.len()).filter(|other| *other != self.at).collect()
    }

    fn plan(&self, machines: &Machines, answers: &[(usize, HostRecord)]) -> Result<Plan, Objection> {
        let Some(record) = machines.hosts[self.at].record(self.of) else {
            return Err(Objection::Other(None));
        };
        let depends = peer_of(machines, self.at, self.of);
        if record.is_owner() && depends.is_none() {
            return Err(Objection::Other(None));
        }
        let mine = record.epoch();
        let replica = recorded(machines, self.at, self.of).and_then(|(info, _)| complete_replica(&info));
        for (answering, record) in answers {
            let objection = match depends {
                None => objection(record, replica),
                Some(peer) if peer == *answering => objection_of_peer(record, host_id(self.at)),
                Some(_) => objection_of_third(record, mine),
            };
            if objection.is_some() {
                let is_holder = !matches!(record.owner, KnownOwner::Me { .. }) && !record.is_taking;
                return Err(Objection::Other(is_holder.then_some(*answering)));
            }
        }
        let named: Vec<_> = answers.iter().map(|(host, record)| (host_id(*host), record.clone())).collect();
        self.check_not_void(machines, mine, &named)?;
        let known = machines.hosts[self.at].known_before(self.of).map_or(0, |before| before.epoch);
        let is_suspect =
            |host: &usize| depends.is_none() && answers.iter().all(|(answering, _)| answering != host);
        let notes = |(_, record): &&(usize, HostRecord)| objection(record, replica).is_none();
        Ok(Plan {
            depends,
            suspects: self.others(machines).into_iter().filter(is_suspect).collect(),
            noting: answers.iter().filter(notes).map(|(host, _)| *host).collect(),
            epoch: answers.iter().map(|(_, record)| record.epoch()).fold(mine.max(known), u64::max),
            newest: newest_epoch(host_id(self.at), &named).max(known),
            loss: self.loss(machines),
            uses_replica: false,
            better: None,
        })
    }

    fn check_not_void(
        &self,
        machines: &Machines,
        mine: u64,
        answers: &[(HostId, HostRecord)],
    ) -> Result<(), Objection> {
        let here = recorded(machines, self.at, self.of);
        let relies = here.is_some_and(|(info, dirty_blocks)| relies_on_epoch(&info, dirty_blocks));
        match later_takeover(host_id(self.at), mine, answers).filter(|_| relies) {
            Some(_) => Err(Objection::MayBeVoid),
            None => Ok(()),
        }
    }

    /// The operator accepts a loss if there is one, or if it is not known.
    fn loss(&self, machines: &Machines) -> PeerLoss {
        let host = &machines.hosts[self.at];
        let (Some(running), Some(disk)) = (&host.running, host.disk(self.of)) else {
            return PeerLoss::Accepted;
        };
        if self.is_listed(machines) && Core::only_at_peer(&running.core, disk).is_empty() {
            return PeerLoss::Recorded;
        }
        PeerLoss::Accepted
    }

    /// Whether the host has a list of what it needs from the dead one.
    pub(super) fn is_listed(&self, machines: &Machines) -> bool {
        machines.hosts[self.at].has_attached(self.of) && peer_of(machines, self.at, self.of).is_some()
    }
}

impl Cluster {
    /// Goes on with a takeover.
    pub(super) fn go_on_owning(&mut self, own: &mut Own) -> Flow<Outcome> {
        let now = self.machines.shared.now;
        let is_late = now >= own.begun + PATIENCE_US;
        match own.stage.clone() {
            Stage::Asking { mut answers } => {
                let asked = own.others(&self.machines);
                let is_new = |host: &&usize| answers.iter().all(|(answering, _)| answering != *host);
                let silent: Vec<usize> = asked.iter().filter(is_new).copied().collect();
                let connected: Vec<usize> =
                    silent.into_iter().filter(|host| is_connected(&self.machines, own.at, *host)).collect();
                for host in &connected {
                    if self.operator.rng.one_in(3) {
                        let record = record_of(&self.machines, &self.operator.owns, *host, own.of);
                        answers.push((*host, record));
                    }
                }
                let plan = own.plan(&self.machines, &answers);
                own.stage = Stage::Asking { answers };
                match plan {
                    _ if !connected.is_empty() && is_late => Ok(Outcome::Refused(None)),
                    _ if !connected.is_empty() || now < own.begun + 2_000 => Ok(Outcome::Goes),
                    Err(Objection::Other(other)) => Ok(Outcome::Refused(other)),
                    Err(Objection::MayBeVoid) => {
                        // The next attempt may succeed.
                        self.discard_void(own.at, own.of)?;
                        Ok(Outcome::Refused(Some(own.at)))
                    }
                    Ok(plan) => {
                        let until = now + self.operator.rng.skewed(10_000);
                        own.stage = Stage::Fencing { until, plan };
                        Ok(Outcome::Goes)
                    }
                }
            }
            Stage::Fencing { until, .. } if now < until => Ok(Outcome::Goes),
            Stage::Fencing { plan, .. } => {
                for suspect in &plan.suspects {
                    if self.operator.rng.one_in(FENCES_THAT_FAIL) {
                        return Ok(Outcome::Refused(None));
                    }
                    self.fence(*suspect)?;
                }
                let left = plan.noting.clone();
                let uses_replica = self.uses_replica(own, &plan);
                let better = self.better_replica(own, &plan, uses_replica)?;
                let epoch = forced_epoch(plan.epoch, CLOCK_S + now / 1_000, host_id(own.at));
                own.stage = Stage::Noting { left, plan: Plan { epoch, uses_replica, better, ..plan } };
                own.begun = now;
                Ok(Outcome::Goes)
            }
            Stage::Noting { mut left, plan } => {
                for host in std::mem::take(&mut left) {
                    if !is_connected(&self.machines, own.at, host) || is_late {
                        return Ok(Outcome::Refused(None));
                    }
                    match yield_to(&mut self.machines, host, own.of, own.at, plan.epoch)? {
                        Ok(true) => {}
                        Ok(false) => left.push(host),
                        Err(()) => return Ok(Outcome::Refused(None)),
                    }
                }
                if left.is_empty() {
                    return self.take(own, &plan);
                }
                own.stage = Stage::Noting { left, plan };
                Ok(Outcome::Goes)
            }
            Stage::Taking { epoch } => Ok(self.look_whether_taken(own, epoch)),
        }
    }

    fn take(&mut self, own: &mut Own, plan: &Plan) -> Flow<Outcome> {
        let Own { of, at, .. } = *own;
        if peer_of(&self.machines, at, of) != plan.depends || self.machines.guests[of].in_flight() > 0 {
            // A host that is back has given the disk away meanwhile.
            return Ok(Outcome::Refused(None));
        }
        if let Some(better) = plan.better {
            return violation!(
                "host {at} takes disk {of} over although host {better} had a complete replica of it"
            );
        }
        let lost = if plan.uses_replica { BTreeSet::new() } else { self.lost_by(own, plan) };
        let (epoch, loss) = (plan.epoch, self.decide_loss(own, plan));
        let only_there =
            plan.depends.filter(|_| loss == PeerLoss::Recorded).map(|dead| self.only_at(dead, own));
        let Machines { hosts, shared, .. } = &mut self.machines;
        let begun = hosts[at].with(shared, of, |migration, call, now| {
            if !plan.uses_replica {
                return migration.take_over(call, now, epoch, loss).is_ok();
            }
            // As the engine does.
            let is_complete = migration.replica(call, now).is_some_and(|replica| replica.is_complete);
            if is_complete {
                migration.trust_replica();
            }
            is_complete && migration.take_over(call, now, epoch, PeerLoss::Recorded).is_ok()
        })?;
        self.machines.post();
        if begun != Some(true) {
            return Ok(Outcome::Refused(None));
        }
        tell(|| {
            format!(
                "{:>10} host {at} takes disk {of} over under {epoch}, {}without {:?} of {:?}, {:?}; {} sectors may be lost",
                self.machines.shared.now,
                if plan.uses_replica { "with its replica, " } else { "" },
                plan.suspects,
                plan.depends,
                loss,
                lost.len()
            )
        });
        if plan.uses_replica {
            // What was flushed is there; everything else may be older.
            self.machines.guests[of].crash(true);
            self.machines.report.counts.replicas += 1;
        }
        if plan.depends.is_none() {
            self.machines.guests[of].lost.clear();
        }
        if only_there.is_none() {
            self.forgive(of, &lost);
        }
        own.only_there = only_there;
        own.stage = Stage::Taking { epoch };
        Ok(Outcome::Goes)
    }

    /// Whether the host's replica is used: it is certain, or the operator knows that the owner stopped before it could
    /// continue without the replica.
    fn uses_replica(&mut self, own: &Own, plan: &Plan) -> bool {
        let Machines { hosts, shared, .. } = &mut self.machines;
        let Some(replica) = hosts[own.at].replica(shared, own.of).filter(|_| plan.depends.is_none()) else {
            return false;
        };
        if !replica.is_complete || plan.newest > replica.epoch {
            return false;
        }
        let has_stopped = self.replica_of_gone(own.of, &plan.suspects, &[own.at]).is_some();
        replica.is_certain || has_stopped && !self.operator.rng.one_in(OPERATORS_WHO_DO_NOT_KNOW)
    }

    /// Returns another host that answers, and that had the dead owner's complete replica.
    fn better_replica(&mut self, own: &Own, plan: &Plan, uses_replica: bool) -> Flow<Option<usize>> {
        // A suspect that runs may still tell the other host to drop the replica.
        let runs = |suspect: &usize| self.machines.hosts[*suspect].running.is_some();
        let dead: Vec<usize> = plan.suspects.iter().copied().filter(|suspect| !runs(suspect)).collect();
        let Own { of, at, .. } = *own;
        let is_certain = |replica: ReplicaStatus| replica.is_certain && replica.blocks > 0;
        let Machines { hosts, shared, .. } = &mut self.machines;
        let is_certain_here = hosts[at].replica(shared, of).is_some_and(is_certain);
        // If another host does not answer, the disk might be there.
        let is_clear = plan.suspects.len() == 1 && !uses_replica && is_certain_here;
        if is_clear && self.replica_of_gone(of, &dead, &[at]).is_some() {
            return violation!("host {at} would take disk {of} over without its certain replica");
        }
        let better = self.replica_of_gone(of, &dead, &plan.noting);
        // If the replica is empty, no flushed data is lost without it.
        Ok(better.filter(|at| self.replica_blocks(of, *at) > 0))
    }

    /// Returns the sectors that exist only on hosts from which the disk is taken. Obsolete sectors do not count.
    fn lost_by(&self, own: &Own, plan: &Plan) -> BTreeSet<u64> {
        let (machines, of) = (&self.machines, own.of);
        let newest = self.judge.newest_epoch(of);
        let dirty = |host: &usize| {
            let remains = machines.hosts[*host].remains_of(&machines.shared, of);
            let is_obsolete = least_forced_epoch(remains.record.epoch()) <= newest
                || matches!(remains.record, Record::Overtaken { .. } | Record::Unknown);
            if is_obsolete { BTreeSet::new() } else { remains.dirty }
        };
        let mut lost: BTreeSet<u64> = plan.suspects.iter().chain(&plan.depends).flat_map(dirty).collect();
        if plan.depends.is_some() {
            let here = machines.hosts[own.at].sectors_of(&machines.shared, of, |state| state.cached);
            lost.retain(|sector| !here.contains(sector));
        }
        lost
    }

    /// Updates the oracle for sectors whose only copy is lost: they now have the origin's version or a newer one.
    pub(super) fn forgive(&mut self, of: usize, lost: &BTreeSet<u64>) {
        self.operator.sectors_lost += lost.len() as u64;
        for sector in lost {
            // A host that has taken the disk over may have written an older version than the durable one: the newer one
            // was never answered.
            let (origin, mut bytes) = (&self.machines.shared.origins[of], [[0; SECTOR_BYTES]; 2]);
            origin.read_durable(*sector, &mut bytes[0]);
            origin.read(*sector, &mut bytes[1]);
            let contents = bytes.map(|bytes| pattern::recognise(&bytes));
            self.machines.guests[of].oracle.forgive(of, *sector, &contents);
        }
    }

    fn look_whether_taken(&self, own: &Own, epoch: u64) -> Outcome {
        let host = &self.machines.hosts[own.at];
        let has_problem = || {
            let running = host.running.as_ref();
            running.is_some_and(|running| running.disks[own.of].migration.problem().is_some())
        };
        match host.record(own.of) {
            Some(Record::Owner { epoch: mine, peers }) if *mine >= epoch && peers.is_empty() => {
                Outcome::Taken
            }
            // The host had taken the disk over, and has since passed it on in answer to a late question.
            Some(record) if record.epoch() > epoch => Outcome::Taken,
            _ if has_problem() => Outcome::Refused(None),
            _ => Outcome::Goes,
        }
    }

    /// Cuts a host off from all origins, and ends the VMs there.
    fn fence(&mut self, at: usize) -> Flow {
        let Machines { hosts, shared, .. } = &mut self.machines;
        hosts[at].fence(shared);
        tell(|| format!("{:>10} host {at} is fenced", self.machines.shared.now));
        self.operator.fenced_at[at] = self.machines.shared.now;
        self.turn_off_vms_of(at)
    }
}
