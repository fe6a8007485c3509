//! Hosts that are off for long, or for ever, and an operator who has other hosts take their disks over.
//!
//! The operator sees in the directory which hosts are away and which disks they have, and on the hosts which disks wait
//! for one of them. A host that is only cut off may be taken for dead: it is fenced then. It is let in again when it
//! knows of every takeover; until then it is drained, and no VM is started there.

use std::collections::{BTreeMap, BTreeSet};

use haversack_directory::{Change, DrainRecord};
use haversack_model::Micros;
use haversack_model::random::Random;
use haversack_ownership::{Record, least_forced_epoch};

use super::access::Caller;
use super::daemon::{Daemon, host_name, host_named};
use super::epochs::{is_connected, record_of, witnessed};
use super::manager::Manager;
use super::own::{Outcome, Own, peer_of};
use super::plan::{DISKS, HOSTS, VMS};
use super::run::Cluster;
use crate::plan::disk_id;
use crate::run::tell;
use crate::world::Flow;

/// One run in this many has hosts that are off for long.
const RUNS_WITH_DEATHS: u64 = 2;
/// Between two looks at the directory.
const LOOK_EVERY_US: Micros = 6_000;
/// Hosts that may be off for long at the same time.
const MOST_DEAD: usize = 2;
/// After what time an attempt is repeated.
const REST_US: Micros = 30_000;
/// After what time without an owner a disk counts as left.
const LONG_US: Micros = 500_000;
/// How much later than others a message may be.
const LATEST: u64 = 100;
/// One operator in this many does not look in the directory where a replica is.
const OPERATORS_WHO_DO_NOT_LOOK: u64 = 5;
/// A host that is never repaired.
const NEVER: Micros = Micros::MAX;

/// See the module documentation.
pub struct Operator {
    pub rng: Random,
    /// For decisions about losses.
    pub losses: Random,
    pub is_awake: bool,
    /// How often a host is off for long, per 100,000 milliseconds.
    often: u64,
    /// Disks that are being taken over.
    pub owns: Vec<Own>,
    /// Takeovers of disks by hosts that have died meanwhile: whether they are on record is not known.
    unclear: Vec<(usize, usize)>,
    /// Since when a host has been absent from the directory, and for how long it must be.
    absent: Vec<Option<(Micros, Micros)>>,
    /// When a host that is off is repaired.
    repaired_at: Vec<Option<Micros>>,
    pub fenced_at: Vec<Micros>,
    /// For each disk: the host that may have to take it over instead, and when the operator looks at the disk again.
    next: Vec<(Option<usize>, Micros)>,
    /// Which host has a complete replica of a disk, as the directory says.
    replica_at: Vec<Option<usize>>,
    /// Since when a VM has waited for a disk.
    waiting: Vec<Option<Micros>>,
    /// Since when no host has a disk.
    ownerless: Vec<Option<Micros>>,
    /// Disks, and hosts on which their guests were turned off: those hosts must still be told.
    left: BTreeSet<(usize, usize)>,
    /// Disks with a loss on record. The lost sectors may have been rewritten since: the record says so only after the
    /// next flush.
    pub(super) recorded_losses: BTreeSet<usize>,
    /// Since when hosts have had obsolete blocks of disks.
    obsolete: BTreeMap<(usize, usize), Micros>,
    next_look: Micros,
    is_calm: bool,
    /// Disks that were taken over.
    pub takeovers: u64,
    /// Sectors that may have been lost with that.
    pub sectors_lost: u64,
}

impl Operator {
    pub fn new(mut rng: Random, losses: Random) -> Operator {
        Operator {
            is_awake: rng.one_in(RUNS_WITH_DEATHS),
            often: rng.pick(&[60, 200, 500]),
            rng,
            losses,
            owns: Vec::new(),
            unclear: Vec::new(),
            absent: vec![None; HOSTS],
            repaired_at: vec![None; HOSTS],
            fenced_at: vec![0; HOSTS],
            next: vec![(None, 0); DISKS],
            replica_at: vec![None; DISKS],
            waiting: vec![None; VMS.len()],
            ownerless: vec![None; DISKS],
            left: BTreeSet::new(),
            recorded_losses: BTreeSet::new(),
            obsolete: BTreeMap::new(),
            next_look: 0,
            is_calm: false,
            takeovers: 0,
            sectors_lost: 0,
        }
    }

    /// Whether a host is off, and will never be repaired.
    pub fn is_lost(&self, at: usize) -> bool {
        self.repaired_at[at] == Some(NEVER)
    }

    /// Whether a host is off for long.
    pub fn is_off(&self, at: usize) -> bool {
        self.repaired_at[at].is_some()
    }

    /// Whether a takeover of a disk is in progress, or its outcome is unknown.
    pub(super) fn is_busy_with(&self, of: usize) -> bool {
        self.owns.iter().any(|own| own.of == of) || self.unclear.iter().any(|(unclear, _)| *unclear == of)
    }

    /// Returns a disk that it has not finished with, and what is left to do.
    pub fn unfinished(&self) -> Option<(usize, String)> {
        let own =
            self.owns.first().map(|own| (own.of, format!("host {} takes disk {} over", own.at, own.of)));
        let unclear = self.unclear.first();
        own.or(unclear.map(|(of, at)| (*of, format!("it is not known whether host {at} has disk {of}"))))
    }
}

impl Cluster {
    /// Lets a millisecond pass for the operator, and for what hosts ask each other.
    pub(super) fn operate(&mut self) -> Flow {
        if !self.operator.is_awake {
            return Ok(());
        }
        self.watch()?;
        self.have_left()?;
        self.hear_of_losses()?;
        self.go_on_with_takeovers()?;
        let Cluster { operator, machines, .. } = self;
        operator.unclear.retain(|(_, at)| machines.hosts[*at].running.is_none());
        for at in 0..HOSTS {
            if machines.hosts[at].running.is_some() {
                operator.repaired_at[at] = None;
            }
        }
        if machines.shared.now >= operator.next_look {
            operator.next_look = machines.shared.now + LOOK_EVERY_US;
            self.look()?;
            self.clear_up()?;
            self.accept_losses()?;
        }
        self.bar_vms();
        Ok(())
    }

    fn instances(&self) -> Vec<Option<u64>> {
        let instance = |at: usize| self.daemons[at].as_ref().map(|daemon| daemon.instance);
        let runs = |at: &usize| self.machines.hosts[*at].running.is_some();
        (0..HOSTS).map(|at| Some(at).filter(runs).and_then(instance)).collect()
    }

    fn watch(&mut self) -> Flow {
        let instances = self.instances();
        for (at, daemon) in self.daemons.iter_mut().enumerate() {
            if let Some(daemon) = daemon.as_mut().filter(|_| instances[at].is_some()) {
                let Operator { owns, rng, .. } = &mut self.operator;
                let Daemon { watch, access, .. } = daemon;
                watch.look(at, &mut self.machines, (&instances, &access.view), owns, rng)?;
            }
        }
        Ok(())
    }

    /// Tells hosts that guests were turned off there, when their last requests are answered.
    fn have_left(&mut self) -> Flow {
        for (of, at) in std::mem::take(&mut self.operator.left) {
            let machines = &mut self.machines;
            if machines.hosts[at].running.is_none() {
                continue;
            }
            machines.guests[of].take_answers(&mut machines.hosts[at])?;
            if machines.guests[of].orphans_at().contains(&at) {
                self.operator.left.insert((of, at));
            } else if machines.guests[of].host != at || machines.guests[of].is_stopped {
                let shared = &mut machines.shared;
                machines.hosts[at].with(shared, of, |migration, _, _| migration.guest_stopped())?;
            }
        }
        Ok(())
    }

    /// Ends the VMs of a host.
    pub(super) fn turn_off_vms_of(&mut self, at: usize) -> Flow {
        for vm in (0..VMS.len()).filter(|vm| Manager::host_of(&self.machines, *vm) == at).collect::<Vec<_>>()
        {
            self.turn_off(vm)?;
        }
        Ok(())
    }

    fn turn_off(&mut self, vm: usize) -> Flow {
        let at = Manager::host_of(&self.machines, vm);
        self.operator.left.extend(VMS[vm].iter().map(|of| (*of, at)));
        self.manager.turn_off(&mut self.machines, vm)
    }

    /// Bars VMs from all hosts while a host gives up the blocks that it needs from a dead one, and from a host that has
    /// noted a takeover which then failed.
    fn bar_vms(&mut self) {
        let mut barred = BTreeSet::new();
        for (vm, disks) in VMS.iter().enumerate() {
            let is_given_up = self.is_given_up(vm);
            let is_barred = |at: &usize| is_given_up || disks.iter().any(|of| self.has_void_note(*at, *of));
            barred.extend((0..HOSTS).filter(is_barred).map(|at| (vm, at)));
        }
        self.manager.barred = barred;
    }

    /// Whether a host is giving up blocks of a dead host that a VM's disk needs.
    fn is_given_up(&self, vm: usize) -> bool {
        let gives_up =
            |own: &Own| VMS[vm].contains(&own.of) && peer_of(&self.machines, own.at, own.of).is_some();
        self.operator.owns.iter().any(gives_up)
    }

    /// Whether a host has noted that another one takes a disk over, which has not done so.
    fn has_void_note(&self, at: usize, of: usize) -> bool {
        let record = self.machines.hosts[at].record(of);
        let is_newer = |epoch: u64| epoch > self.judge.newest_epoch(of);
        matches!(record, Some(Record::Overtaken { epoch, .. }) if is_newer(*epoch))
            && !self.operator.is_busy_with(of)
    }

    fn go_on_with_takeovers(&mut self) -> Flow {
        let instances = self.instances();
        for _ in 0..self.operator.owns.len() {
            let mut own = self.operator.owns.remove(0);
            if !own.is_alive(&instances) {
                if own.may_be_taken() {
                    self.operator.unclear.push((own.of, own.at));
                }
                self.suspect_loss(&mut own);
                continue;
            }
            match self.go_on_owning(&mut own)? {
                Outcome::Goes => self.operator.owns.push(own),
                Outcome::Refused(other) => {
                    self.suspect_loss(&mut own);
                    self.operator.next[own.of].0 = other;
                }
                Outcome::Taken => {
                    self.note_loss(&mut own)?;
                    self.operator.takeovers += 1;
                    self.start_vm_of(own.of, own.at)?;
                }
            }
        }
        Ok(())
    }

    /// Starts the VM of a disk that was taken over, if it was turned off.
    fn start_vm_of(&mut self, of: usize, at: usize) -> Flow {
        let vm = VMS.iter().position(|disks| disks.contains(&of)).expect("every disk has a VM");
        if self.machines.guests[of].is_stopped && self.manager.can_run(&self.machines, vm, at) {
            self.bar_vms();
            self.manager.start_on(&mut self.machines, vm, at)?;
        }
        Ok(())
    }

    /// Looks which hosts are away, and which disks must be taken over.
    fn look(&mut self) -> Flow {
        let now = self.machines.shared.now;
        let by = self.operator.rng.below(HOSTS as u64) as usize;
        let lease_us = self.plan.times.lease_us;
        let Some(daemon) = self.daemons[by].as_ref().filter(|daemon| daemon.access.is_connected) else {
            return Ok(());
        };
        let alive: BTreeSet<usize> =
            daemon.access.view.hosts.keys().filter_map(|name| host_named(name)).collect();
        let entries: Vec<Option<usize>> = (0..DISKS)
            .map(|of| host_named(&daemon.access.view.disks.get(&disk_id(of).to_string())?.record.host))
            .collect();
        let replicas = (0..DISKS).map(|of| Cluster::replica_in_directory(&daemon.access.view, of)).collect();
        let Cluster { operator, machines, .. } = self;
        operator.replica_at = replicas;
        for at in 0..HOSTS {
            let patience_us = if operator.is_calm { 0 } else { operator.rng.skewed(2 * lease_us) };
            let since = operator.absent[at].unwrap_or((now, patience_us));
            operator.absent[at] = (!alive.contains(&at)).then_some(since);
        }
        let is_away = |at: &usize| {
            let is_down = machines.hosts[*at].running.is_none();
            let absent = operator.absent[*at];
            absent.is_some_and(|(since, patience)| now >= since + patience) && (is_down || !operator.is_calm)
        };
        let away: BTreeSet<usize> = (0..HOSTS).filter(is_away).collect();
        for at in away.iter().filter(|at| self.operator.is_off(**at)).copied().collect::<Vec<_>>() {
            self.turn_off_vms_of(at)?;
        }
        for (of, entry) in entries.into_iter().enumerate() {
            self.look_at_disk(of, entry, &away)?;
        }
        self.drain_fenced(by);
        Ok(())
    }

    fn look_at_disk(&mut self, of: usize, entry: Option<usize>, away: &BTreeSet<usize>) -> Flow {
        let now = self.machines.shared.now;
        let has_owner = (0..HOSTS).any(|at| self.owns(at, of));
        let ownerless = self.operator.ownerless[of].filter(|_| !has_owner).unwrap_or(now);
        self.operator.ownerless[of] = (!has_owner).then_some(ownerless);
        if now < self.operator.next[of].1 || self.operator.is_busy_with(of) {
            return Ok(());
        }
        let depending = (0..HOSTS).find(|at| {
            !self.machines.hosts[*at].fenced
                && peer_of(&self.machines, *at, of).is_some_and(|peer| away.contains(&peer))
        });
        let is_there = entry.is_some_and(|entry| away.contains(&entry));
        // No host has the disk: a takeover has failed.
        let is_left = !has_owner && now >= ownerless + LONG_US;
        if depending.is_none() && !is_left && !is_there {
            return Ok(());
        }
        if depending.is_none() && !has_owner && self.stop_stale(of)? {
            return Ok(());
        }
        let heirs = match depending {
            Some(at) => vec![at],
            None => self.heirs(of, away),
        };
        self.operator.next[of] = (None, now + self.operator.rng.skewed(REST_US));
        for at in heirs {
            let Some(daemon) = &self.daemons[at] else { continue };
            self.operator.owns.push(Own::new(of, at, daemon.instance, now));
            tell(|| format!("{now:>10} disk {of} is to be taken over by host {at}; away: {away:?}"));
        }
        if depending.is_some() {
            // The VM hangs while blocks that it needs are missing.
            let vm = VMS.iter().position(|disks| disks.contains(&of)).expect("every disk has a VM");
            self.turn_off(vm)?;
        }
        Ok(())
    }

    /// Whether a host owns a disk that no other one has had since.
    pub(super) fn owns(&self, at: usize, of: usize) -> bool {
        let record = self.machines.hosts[at].record(of);
        record.is_some_and(|record| record.is_owner() && record.epoch() >= self.judge.newest_epoch(of))
    }

    /// Stops a fenced host whose record says that it owns a disk that another host has taken over. The other host is
    /// off now, so no host can tell the fenced one.
    fn stop_stale(&mut self, of: usize) -> Flow<bool> {
        let is_stale = |at: &usize| {
            let host = &self.machines.hosts[*at];
            host.fenced && host.record(of).is_some_and(Record::is_owner) && !self.owns(*at, of)
        };
        let Some(at) = (0..HOSTS).find(is_stale) else { return Ok(false) };
        let until = self.machines.shared.now + LONG_US;
        tell(|| format!("{:>10} host {at} is stopped until {until}", self.machines.shared.now));
        if self.crash_until(at, Some(until))? {
            self.operator.repaired_at[at] = Some(until);
        }
        Ok(true)
    }

    /// Returns the host that is to take a disk over; rarely two.
    fn heirs(&mut self, of: usize, away: &BTreeSet<usize>) -> Vec<usize> {
        let vm = VMS.iter().position(|disks| disks.contains(&of)).expect("every disk has a VM");
        let is_given_up = self.is_given_up(vm);
        // The note of a failed takeover does not prevent the next takeover.
        let is_free = |at: usize| {
            self.manager.can_run(&self.machines, vm, at)
                || self.has_void_note(at, of) && !is_given_up && Manager::is_free_for(&self.machines, vm, at)
        };
        let is_possible = |at: &usize| !away.contains(at) && self.daemons[*at].is_some() && is_free(*at);
        let mut possible: Vec<usize> = (0..HOSTS).filter(is_possible).collect();
        self.operator.rng.shuffle(&mut possible);
        let replica_at = self.operator.replica_at[of];
        let replica_at = replica_at.filter(|_| !self.operator.rng.one_in(OPERATORS_WHO_DO_NOT_LOOK));
        let preferred = [self.operator.next[of].0, replica_at, Some(self.machines.guests[of].host)];
        for at in preferred.into_iter().flatten().rev() {
            if let Some(place) = possible.iter().position(|host| *host == at) {
                possible.swap(0, place);
            }
        }
        possible.truncate(if self.operator.rng.one_in(12) { 2 } else { 1 });
        possible
    }

    /// The balancer does not know that a host is fenced: the operator drains it.
    fn drain_fenced(&mut self, by: usize) {
        let record = DrainRecord { by: host_name(by) };
        let Some(daemon) = self.daemons[by].as_mut().filter(|_| !self.operator.is_calm) else { return };
        for at in (0..HOSTS).filter(|at| self.machines.hosts[*at].fenced) {
            let name = host_name(at);
            if !daemon.access.view.drains.contains_key(&name) && daemon.access.is_idle() {
                daemon.access.call(Caller::Nobody, Change::drain(&name, Some(&record)));
            }
        }
    }

    /// Ends the fencing of hosts that know of all takeovers, and forgets obsolete blocks.
    fn clear_up(&mut self) -> Flow {
        let now = self.machines.shared.now;
        let latest_us = LATEST * self.machines.shared.plan.delay_us;
        let is_clear = self.operator.unclear.is_empty() && self.operator.owns.is_empty();
        self.move_on()?;
        for at in 0..HOSTS {
            let host = &self.machines.hosts[at];
            if host.running.is_none() {
                continue;
            }
            let may_be_misled = |of: usize| {
                // What it knows of an earlier takeover may be forgotten.
                let knows_little = matches!(
                    self.machines.hosts[at].record(of),
                    Some(Record::Unknown | Record::Overtaken { .. })
                );
                knows_little && self.has_stale_owner(at, of)
            };
            let knows_all = (0..DISKS).all(|of| self.knows(at, of) && !may_be_misled(of));
            let is_old = now >= self.operator.fenced_at[at] + latest_us;
            if host.fenced && is_clear && is_old && knows_all {
                tell(|| format!("{now:>10} host {at} is let in again"));
                self.machines.hosts[at].fenced = false;
                if let Some(daemon) = self.daemons[at].as_mut() {
                    daemon.access.call(Caller::Nobody, Change::drain(&host_name(at), None));
                }
            }
            for of in 0..DISKS {
                self.forget(at, of)?;
            }
        }
        Ok(())
    }

    /// Whether a host that may come back still has on record that it owns a disk that was taken from it. It would pass
    /// the disk on to a host that does not know of the takeover. This does not matter if host `at`, according to its
    /// view of the directory, knows of the takeover.
    fn has_stale_owner(&self, at: usize, of: usize) -> bool {
        let daemon = self.daemons[at].as_ref().filter(|daemon| daemon.access.is_connected);
        let entry = daemon.and_then(|daemon| witnessed(&daemon.access.view, at, of));
        let witnessed = entry.map_or(0, |(_, epoch)| epoch);
        let is_stale = |other: usize| {
            let record = self.machines.hosts[other].last_record(of);
            let is_known = witnessed >= least_forced_epoch(record.epoch());
            record.is_owner() && record.epoch() < self.judge.newest_epoch(of) && !is_known
        };
        (0..HOSTS).any(|other| !self.operator.is_lost(other) && is_stale(other))
    }

    /// Whether a host knows of the last takeover of a disk, or has nothing to do with the disk.
    pub(super) fn knows(&self, at: usize, of: usize) -> bool {
        let newest = self.judge.newest_epoch(of);
        match self.machines.hosts[at].record(of) {
            // A host from which the disk was taken never uses it again, so it need not know the newest epoch: that
            // epoch may be higher if the next owner has since given up blocks of a dead host while this host was away.
            None | Some(Record::Unknown | Record::Overtaken { .. }) => true,
            Some(Record::Owner { epoch, .. }) => *epoch >= newest,
            Some(record) => newest < least_forced_epoch(record.epoch()),
        }
    }

    /// Sometimes makes a host forget obsolete blocks. If the host that has taken the disk over confirms that, this may
    /// happen at any time, since the epoch is then remembered. Otherwise it happens only when all other hosts know of
    /// the takeover and no earlier message is still on its way.
    fn forget(&mut self, at: usize, of: usize) -> Flow {
        if !self.machines.hosts[at].has_obsolete(of) {
            self.operator.obsolete.remove(&(at, of));
            return Ok(());
        }
        let now = self.machines.shared.now;
        let since = *self.operator.obsolete.entry((at, of)).or_insert(now);
        let all_know = (0..HOSTS).all(|other| {
            self.operator.is_lost(other)
                || self.machines.hosts[other].running.is_some() && self.knows(other, of)
        });
        let is_over = all_know && now >= since + LATEST * self.machines.shared.plan.delay_us;
        let confirmed = self.confirmed_epoch(at, of);
        if (is_over || confirmed.is_some()) && !self.operator.is_busy_with(of) && self.operator.rng.one_in(10)
        {
            tell(|| format!("{now:>10} disk {of} is forgotten on host {at}, confirmed: {confirmed:?}"));
            self.machines.hosts[at].remember(of, confirmed.unwrap_or(0));
            self.machines.hosts[at].forget(&mut self.machines.shared, of)?;
        }
        Ok(())
    }

    /// Another host may have had a disk since host `at` had it, or released it. The operator knows whether that is so.
    /// If it is, discards the blocks on host `at`. Otherwise, discards the notes on the other hosts.
    pub(super) fn discard_void(&mut self, at: usize, of: usize) -> Flow {
        let is_void = |record: &Record| least_forced_epoch(record.epoch()) <= self.judge.newest_epoch(of);
        let hosts = match self.machines.hosts[at].record(of).is_some_and(is_void) {
            true => vec![at],
            false => (0..HOSTS).filter(|other| self.has_void_note(*other, of)).collect(),
        };
        for at in hosts {
            let now = self.machines.shared.now;
            tell(|| format!("{now:>10} what host {at} has of disk {of} is void, and forgotten"));
            self.machines.hosts[at].forget(&mut self.machines.shared, of)?;
        }
        Ok(())
    }

    /// Returns the epoch of a takeover that a host has noted, if the host that has taken the disk over says so.
    fn confirmed_epoch(&self, at: usize, of: usize) -> Option<u64> {
        let Some(Record::Overtaken { by, epoch }) = self.machines.hosts[at].record(of) else { return None };
        let by = by.0 as usize - 1;
        let asked = is_connected(&self.machines, at, by).then(|| {
            let record = record_of(&self.machines, &self.operator.owns, by, of);
            record.held_under().is_some_and(|held| held >= *epoch)
        });
        Some(*epoch).filter(|_| asked == Some(true))
    }

    /// A VM that has long waited for a disk is started where that is.
    fn move_on(&mut self) -> Flow {
        let now = self.machines.shared.now;
        for (vm, disks) in VMS.iter().enumerate() {
            let at = Manager::host_of(&self.machines, vm);
            let missing = disks.iter().find(|of| !self.owns(at, **of));
            let owner = missing.and_then(|of| (0..HOSTS).find(|at| self.owns(*at, *of)));
            let is_busy = disks.iter().any(|of| self.operator.is_busy_with(*of));
            let since = self.operator.waiting[vm].filter(|_| missing.is_some() && !is_busy);
            self.operator.waiting[vm] = Some(since.unwrap_or(now));
            if now < since.unwrap_or(now) + LONG_US {
                continue;
            }
            self.operator.waiting[vm] = None;
            self.turn_off(vm)?;
            if let Some(owner) = owner.filter(|owner| self.manager.can_run(&self.machines, vm, *owner)) {
                self.manager.start_on(&mut self.machines, vm, owner)?;
            }
        }
        Ok(())
    }

    /// Sometimes a host goes off for long, preferably one that others need just now.
    pub(super) fn deaths(&mut self) -> Flow {
        if !self.operator.is_awake || self.operator.rng.below(100_000) >= self.operator.often {
            return Ok(());
        }
        let is_off = |at: &usize| self.operator.is_off(*at);
        if (0..HOSTS).filter(is_off).count() >= MOST_DEAD {
            return Ok(());
        }
        let at = self.needed_host();
        let is_taking = self.operator.owns.iter().any(|own| own.at == at);
        let leases = self.operator.rng.pick(&[3, 10, 40]);
        let is_repaired = is_taking || self.operator.rng.below(4) < 3;
        let now = self.machines.shared.now;
        let until = if is_repaired { now + leases * self.plan.times.lease_us } else { NEVER };
        if self.crash_until(at, Some(until))? {
            tell(|| format!("{now:>10} host {at} is off until {until}"));
            self.operator.repaired_at[at] = Some(until);
        }
        Ok(())
    }

    fn needed_host(&mut self) -> usize {
        let (machines, rng) = (&self.machines, &mut self.operator.rng);
        let peers = (0..HOSTS).flat_map(|at| (0..DISKS).filter_map(move |of| peer_of(machines, at, of)));
        let needed: Vec<usize> = match rng.below(4) {
            0 => peers.collect(),
            1 => self.manager.involved().collect(),
            2 => self.daemons.iter().flatten().filter(|daemon| daemon.is_moving()).map(|d| d.host).collect(),
            _ => machines.guests.iter().map(|guest| guest.host).collect(),
        };
        if needed.is_empty() { rng.below(HOSTS as u64) as usize } else { rng.pick(&needed) }
    }

    /// Hosts that can be repaired are, and no host is taken for dead by mistake any more.
    pub(super) fn repair(&mut self) {
        self.operator.is_calm = true;
        let now = self.machines.shared.now;
        for at in (0..HOSTS).filter(|at| !self.operator.is_lost(*at)) {
            if let Some((until, _)) = &mut self.machines.hosts[at].down {
                *until = (*until).min(now);
            }
        }
    }
}
