//! Some hosts, their guests and the network: what happens next, and what a crash does.

use haversack_core::{ListCursor, Op};
use haversack_migrate::Message;
use haversack_model::{BlockNo, Micros};
use haversack_ownership::Record;

use super::guest::Guest;
use super::host::{Host, Shared, Start, host_id};
use super::network::Network;
use crate::device::Tear;
use crate::run::{RunReport, tell};
use crate::world::{CrashKind, Flow, violation};

/// Steps of a wait that count as a hang.
pub const MOST_STEPS: u32 = 120_000;
/// Hosts are checked at this interval.
pub const TICK_US: Micros = 1_000;

/// See the module documentation.
pub struct Machines {
    /// What the hosts share.
    pub shared: Shared,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The guests, one for each disk.
    pub guests: Vec<Guest>,
    /// The network.
    pub network: Network,
    next_tick_us: Micros,
    /// Crash points so far.
    pub points: u64,
    /// What is reported of the run.
    pub report: RunReport,
}

impl Machines {
    /// Makes hosts that are down.
    pub fn new(shared: Shared, hosts: Vec<Host>, guests: Vec<Guest>) -> Machines {
        let network = Network::new(hosts.len());
        Machines { shared, hosts, guests, network, next_tick_us: 0, points: 0, report: RunReport::default() }
    }

    /// Returns the report of the run.
    pub fn into_report(mut self) -> RunReport {
        let counts = &mut self.report.counts;
        (self.report.points, counts.points) = (self.points, self.points);
        counts.checkpoints = self.hosts.iter().map(|host| host.loaded).sum();
        counts.ios = self.shared.ios;
        counts.requests = self.guests.iter().map(|guest| guest.requests).sum();
        counts.sectors = self.guests.iter().map(|guest| guest.oracle.sectors_checked).sum();
        self.report
    }

    /// Starts all hosts for the first time.
    pub fn start(&mut self) -> Flow {
        for host in &mut self.hosts {
            while host.start(&mut self.shared)? != Start::Running {}
        }
        Ok(())
    }

    /// Sometimes lets a guest issue a request, if it is served.
    pub fn work(&mut self, of: usize) -> Flow {
        let guest = &mut self.guests[of];
        let host = &mut self.hosts[guest.host];
        if !guest.is_stopped
            && guest.in_flight() < self.shared.plan.depth
            && host.may_serve(of)
            && let Some(disk) = host.disk(of)
            && self.shared.rng.one_in(3)
        {
            guest.submit_any(&mut self.shared, host, disk)?;
            self.post();
        }
        Ok(())
    }

    /// Lets the next event happen. Returns whether it was a tick of all hosts.
    pub fn next_event(&mut self) -> Flow<bool> {
        let hosts = || self.hosts.iter().enumerate();
        let next_io =
            hosts().filter_map(|(at, host)| host.next_us().map(|(us, wakes)| (us, at, wakes))).min();
        let next_start = hosts().filter_map(|(at, host)| Some((host.down.as_ref()?.0, at))).min();
        let letter = self.network.next_us();
        let first = [next_io.map(|n| n.0), next_start.map(|n| n.0), letter, Some(self.next_tick_us)];
        let now = first.into_iter().flatten().min().unwrap_or(0);
        self.shared.now = self.shared.now.max(now);
        let mut is_tick = false;
        if let Some((us, at, wakes)) = next_io
            && us == now
        {
            if wakes {
                self.hosts[at].wake(&mut self.shared)?;
            } else {
                self.hosts[at].end_io(&mut self.shared, None)?;
            }
        } else if let Some((us, at)) = next_start
            && us == now
        {
            self.start_host(at)?;
        } else if letter == Some(now) {
            let letter = self.network.take().expect("it was just seen");
            let (from, message) = (host_id(letter.from), letter.message);
            let host = &mut self.hosts[letter.to];
            let is_refused = matches!(message, Message::ReplicaOpen { .. })
                && host.refuses_replica(letter.of, self.shared.now);
            if !is_refused {
                host.with(&mut self.shared, letter.of, |migration, call, now| {
                    migration.message(call, now, from, message);
                })?;
            }
        } else {
            is_tick = true;
            self.next_tick_us = self.shared.now + TICK_US;
            for host in &mut self.hosts {
                for of in 0..self.guests.len() {
                    host.with(&mut self.shared, of, |migration, call, now| {
                        migration.tick(call, now);
                        migration.send_more(now, 16);
                    })?;
                }
            }
        }
        for guest in &mut self.guests {
            guest.take_answers(&mut self.hosts[guest.host])?;
        }
        self.post();
        Ok(is_tick)
    }

    /// Sends what hosts want to send.
    pub fn post(&mut self) {
        let Shared { mail, rng, plan, now, .. } = &mut self.shared;
        for letter in mail.drain(..) {
            self.network.send(*now, &letter, plan.delay_us, plan.lossy_percent, rng);
        }
    }

    /// Starts a host again, with the guests that ran there when it died and that were not started elsewhere.
    fn start_host(&mut self, at: usize) -> Flow {
        match self.hosts[at].start(&mut self.shared)? {
            Start::Running => {
                for of in 0..self.guests.len() {
                    if self.guests[of].host == at && !self.guests[of].is_stopped {
                        self.arrive(of, at)?;
                    }
                }
            }
            Start::Died(kind) => {
                self.points += 1;
                self.report.counts.crashes_in_open += 1;
                for of in 0..self.guests.len() {
                    if self.hosts[at].owned[of] && !self.is_owned_elsewhere(of, at) {
                        self.guests[of].crash(kind == CrashKind::Power);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the host other than `at` that owns a disk or, without an owner, the one whose record has the highest
    /// epoch.
    fn source(&self, of: usize, at: usize) -> usize {
        let others = (0..self.hosts.len()).filter(|other| *other != at);
        let knows = |other: &usize| {
            let record = self.hosts[*other].record(of);
            record.map_or((false, 0), |record| (record.is_owner(), record.epoch()))
        };
        others.max_by_key(knows).unwrap_or(at)
    }

    /// A guest starts to use its disk on a host.
    pub fn arrive(&mut self, of: usize, at: usize) -> Flow {
        tell(|| format!("{:>10} guest {of} runs on host {at}", self.shared.now));
        (self.guests[of].host, self.guests[of].is_stopped) = (at, false);
        let source = host_id(self.source(of, at));
        self.hosts[at].with(&mut self.shared, of, |m, call, now| m.guest_runs(call, now, source))?;
        self.post();
        Ok(())
    }

    /// Has the first owner of a disk create it.
    pub fn create(&mut self, of: usize) -> Flow {
        let at = self.guests[of].host;
        self.hosts[at].with(&mut self.shared, of, |migration, call, now| migration.create(call, now))?;
        self.arrive(of, at)
    }

    /// Sends copies of some cached blocks of a disk ahead to a host, or stops that.
    pub fn send_ahead(&mut self, of: usize, to: usize) -> Flow {
        let (from, stop) = (self.guests[of].host, self.shared.rng.one_in(12));
        let to = host_id(to);
        let most = self.shared.rng.range(1, 200) as usize;
        self.hosts[from].with(&mut self.shared, of, |migration, call, now| {
            let Some(disk) = migration.disk().filter(|_| migration.may_serve(call)) else { return };
            if stop {
                migration.end(call, now);
                return;
            }
            if !migration.is_sending() && migration.start_sending(call, now, to).is_err() {
                return;
            }
            let mut blocks: Vec<BlockNo> = Vec::new();
            let mut at = Some(ListCursor::default());
            while let Some(cursor) = at {
                at = call.list_cached(disk, cursor, |cached| blocks.push(cached.block));
            }
            blocks.retain(|block| !call.is_copy_good(disk, *block));
            blocks.truncate(most);
            migration.send_blocks(blocks);
        })?;
        self.post();
        Ok(())
    }

    /// Whether a guest is served where it runs.
    pub fn is_served(&mut self, of: usize) -> bool {
        self.hosts[self.guests[of].host].may_serve(of)
    }

    /// Whether another host has taken a disk over from this one, which may not know it yet.
    fn is_owned_elsewhere(&self, of: usize, at: usize) -> bool {
        let epoch = self.hosts[at].last_epoch(of);
        let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != at);
        let mut records = others.filter_map(|(_, host)| host.record(of));
        records.any(|record| record.is_owner() && record.epoch() > epoch)
    }

    /// Returns which disks a host owns.
    fn owned_by(&self, at: usize) -> Vec<bool> {
        let owns = |of: usize| self.hosts[at].owns(of) && !self.is_owned_elsewhere(of, at);
        (0..self.guests.len()).map(owns).collect()
    }

    /// Kills a host or cuts its power. Returns false if it is down.
    pub fn crash(&mut self, at: usize) -> Flow<bool> {
        self.crash_until(at, None)
    }

    /// Like [`Machines::crash`], but the host stays down until `repaired`, if given.
    pub fn crash_until(&mut self, at: usize, repaired: Option<Micros>) -> Flow<bool> {
        let kind = self.shared.rng.pick(&[CrashKind::Kill, CrashKind::Power]);
        if self.hosts[at].running.is_none() {
            return Ok(false);
        }
        self.points += 1;
        let owned = self.owned_by(at);
        let dies_inside = kind == CrashKind::Kill && self.shared.rng.one_in(2);
        if dies_inside && self.hosts[at].next_us().is_some_and(|(_, wakes)| !wakes) {
            let stores = self.shared.rng.skewed(40) - 1;
            self.hosts[at].end_io(&mut self.shared, Some(stores))?;
        }
        let delay = self.shared.rng.pick(&[1, 500, 20_000]);
        let soon = self.shared.now + self.shared.rng.range(1, delay);
        let until = repaired.unwrap_or(soon);
        self.shared.mail.clear();
        self.hosts[at].crash(&mut self.shared, kind, until);
        let power = kind == CrashKind::Power;
        self.report.counts.kills += u64::from(!power);
        self.report.counts.cuts += u64::from(power);
        self.died(at, &owned, power);
        for (of, is_owned) in owned.iter().enumerate() {
            if power && *is_owned && self.shared.rng.one_in(3) && !self.hosts[at].fenced {
                let tear = Tear { unit: self.shared.plan.tear_unit };
                self.shared.origins[of].power_cut(tear, &mut self.shared.rng);
            }
        }
        Ok(true)
    }

    /// Notes what the end of a host means for the guests.
    pub fn died(&mut self, at: usize, owned: &[bool], power: bool) {
        for guest in &mut self.guests {
            let (is_here, is_owned) = (guest.host == at, owned[guest.of]);
            guest.forget_orphans(at);
            if is_here {
                guest.die();
            }
            if is_owned {
                guest.crash(power);
            } else if is_here {
                guest.oracle.crash(false);
            }
        }
    }

    /// Stops a host in order; it starts again soon. If it takes too long, it is killed.
    pub fn stop(&mut self, at: usize) -> Flow {
        if self.hosts[at].running.is_none() {
            return Ok(());
        }
        self.points += 1;
        let owned = self.owned_by(at);
        let has_stopped = self.hosts[at].shut_down(&mut self.shared)?;
        for guest in self.guests.iter_mut().filter(|guest| guest.host == at) {
            guest.take_answers(&mut self.hosts[at])?;
        }
        self.shared.mail.clear();
        let until = self.shared.now + 500;
        if has_stopped {
            self.hosts[at].leave(&mut self.shared, until);
        } else {
            self.report.counts.kills += 1;
            self.hosts[at].crash(&mut self.shared, CrashKind::Kill, until);
        }
        self.died(at, &owned, false);
        Ok(())
    }

    /// Whether a guest's host owns its disk, needs no other host and serves it, and no request is in flight.
    pub fn is_settled(&mut self, of: usize) -> bool {
        let record = self.hosts[self.guests[of].host].record(of);
        let is_alone = matches!(record, Some(Record::Owner { peers, .. }) if peers.is_empty());
        is_alone && self.guests[of].in_flight() == 0 && self.is_served(of)
    }

    /// Says what each host has on record of a disk.
    pub fn describe(&self, of: usize) -> String {
        let host = |host: &Host| {
            let running = host.running.as_ref()?;
            let migration = &running.disks[of].migration;
            let needs = migration.disk().and_then(|disk| running.core.dependence(disk));
            Some(format!("{:?}, {}, needs {needs:?}", migration.record(), migration.describe()))
        };
        let hosts: Vec<_> = self.hosts.iter().map(host).collect();
        let guest = &self.guests[of];
        format!("guest {of} is on host {}, {} requests in flight; {hosts:?}", guest.host, guest.in_flight())
    }

    /// Has a guest read its whole disk.
    pub fn read_everything(&mut self, of: usize) -> Flow {
        let size = self.shared.plan.disks[of].sectors;
        for first in (0..size).step_by(64) {
            let sectors = 64.min(size - first) as u32;
            let guest = &mut self.guests[of];
            let host = &mut self.hosts[guest.host];
            let Some(disk) = host.disk(of) else { continue };
            guest.submit(&mut self.shared, host, disk, Op::Read, first, sectors)?;
            self.wait_for_answers(of)?;
        }
        Ok(())
    }

    /// Waits until all requests of a guest are answered.
    pub fn wait_for_answers(&mut self, of: usize) -> Flow {
        let mut steps = 0;
        while self.guests[of].in_flight() > 0 {
            self.next_event()?;
            steps += 1;
            if steps > MOST_STEPS {
                return violation!("hang: {} requests are not answered", self.guests[of].in_flight());
            }
        }
        Ok(())
    }
}
