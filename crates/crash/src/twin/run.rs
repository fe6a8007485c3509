//! One seed, one run: the virtual machine moves back and forth, hosts die, and in the end everything is read.

use std::panic::{self, AssertUnwindSafe};

use haversack_core::{ListCursor, Op};
use haversack_migrate::PaceLimits;
use haversack_model::random::Random;
use haversack_model::{BlockNo, Micros};
use haversack_ownership::Record;

use super::base::Base;
use super::guest::Guest;
use super::host::{Host, Shared, Start, host_id};
use super::network::Network;
use super::plan::Plan;
use crate::checkpoint::Checkpoints;
use crate::device::{Blank, Store, Tear};
use crate::oracle::Oracle;
use crate::run::{RunReport, tell};
use crate::world::{CrashKind, Flow, Stop, violation};

/// One run in this many prepares segments while it runs.
const RUNS_THAT_PREPARE: u64 = 3;
/// One run in this many moves the disk by the default method in any case.
const RUNS_BY_DEFAULT: u64 = 3;
/// One run in this many sends copies at a pace that spares guests.
const RUNS_WITH_A_PACE: u64 = 3;
/// One run in this many ends with a host that dies permanently.
const RUNS_WITH_FORCE: u64 = 3;
/// One guest in this many is shut down instead of moved: its disk is detached before it starts again, there or elsewhere.
const GUESTS_THAT_SHUT_DOWN: u64 = 4;
/// One run in this many has a disk that shares blocks with its base.
const RUNS_WITH_A_BASE: u64 = 5;
/// One run in this many has a replica of the disk's dirty blocks at the other host.
const RUNS_WITH_A_REPLICA: u64 = 4;
/// One run in this many has hosts that are stopped in order, and leave checkpoints.
const RUNS_WITH_STOPS: u64 = 2;
/// Then, a host stops once in this many events.
const EVENTS_FOR_A_STOP: u64 = 300;
/// Steps of a wait that count as a hang.
pub(super) const MOST_STEPS: u32 = 120_000;
/// Hosts are checked at this interval.
const TICK_US: Micros = 1_000;

/// Returns the maximum number of crash points of a run.
pub fn most_points_of_a_run() -> u64 {
    24
}

pub(super) struct Twin {
    pub shared: Shared,
    pub hosts: [Host; 2],
    pub guest: Guest,
    pub network: Network,
    next_tick_us: Micros,
    /// The choices of the operator, who detaches disks of guests that have stopped.
    operator: Random,
    pub points: u64,
    pub report: RunReport,
}

/// Runs everything that one seed determines.
pub fn run_seed(seed: u64) -> RunReport {
    let mut report = RunReport::default();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| one_run(seed, &mut report)));
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(what),
        Err(payload) => Some(crate::run::panic_text(payload.as_ref())),
    };
    if let Some(what) = failure {
        report.points += 1;
        report.violations.push(format!(
            "VIOLATION at seed {seed}, point {}: {what}\n  again: cargo run --release -p haversack-crash -- --twin --seed {seed} --runs 1",
            report.points
        ));
    }
    report
}

fn one_run(seed: u64, report: &mut RunReport) -> Result<(), String> {
    let mut rng = Random::scrambled(seed);
    let mut plan = Plan::random(&mut rng);
    let mut apart = Random::scrambled(seed.rotate_left(48));
    if apart.one_in(RUNS_THAT_PREPARE) {
        plan.preparing(&mut apart);
    }
    if !apart.one_in(RUNS_BY_DEFAULT) {
        plan.moving_by(&mut apart);
    }
    if apart.one_in(RUNS_WITH_A_PACE) {
        plan.timing.pace = Some(PaceLimits::default());
    }
    let mut apart = Random::scrambled(seed.rotate_left(56));
    let mut heir = apart.one_in(RUNS_WITH_A_REPLICA).then(|| {
        plan.replicating(&mut apart);
        apart
    });
    let told = format!("{plan:?}");
    let points = rng.range(2, most_points_of_a_run());
    let mut oracle = Oracle::default();
    let blank = match oracle.add_disk(plan.disk.sectors, plan.blank) {
        Some(version) => Blank::Written { disk: 0, version },
        None => Blank::Zero,
    };
    let mut apart = Random::scrambled(seed.rotate_left(8));
    let (origin, base) = if apart.one_in(RUNS_WITH_A_BASE) && heir.is_none() {
        let of_base = match oracle.add_disk(plan.disk.sectors, plan.blank) {
            Some(version) => Blank::Written { disk: 1, version },
            None => Blank::Zero,
        };
        oracle.begins_as(0, 1);
        (Store::new(plan.disk.sectors, of_base), Some(Base::new(&plan.disk, of_base, apart)))
    } else {
        (Store::new(plan.disk.sectors, blank), None)
    };
    let mut shared = Shared { origin, base, now: 1, sequence: 0, rng, plan, ios: 0, mail: Vec::new() };
    let hosts = [0, 1].map(|place| Host::new(place, &mut shared));
    let result = (|| {
        let [a, b] = hosts;
        let mut twin = Twin {
            shared,
            hosts: [a?, b?],
            guest: Guest::new(oracle),
            network: Network::default(),
            next_tick_us: 0,
            operator: Random::scrambled(seed.rotate_left(16)),
            points: 0,
            report: RunReport::default(),
        };
        // Apart from the other choices, so that seeds keep their meaning.
        let mut force = Random::scrambled(seed.rotate_left(24));
        let is_forced = force.one_in(RUNS_WITH_FORCE);
        let mut soon = Random::scrambled(seed.rotate_left(32));
        for host in &mut twin.hosts {
            let mut apart = Random::scrambled((!seed).rotate_left(8 * host.place as u32));
            host.checkpoints = apart.one_in(RUNS_WITH_STOPS).then(|| Checkpoints::new(apart));
        }
        let outcome = match &mut heir {
            Some(apart) => twin.live_with_replica(points, apart),
            None => twin.live(points, is_forced.then_some([&mut force, &mut soon])),
        };
        twin.report.points = twin.points;
        twin.report.counts.points = twin.points;
        twin.report.counts.checkpoints = twin.hosts.iter().map(|host| host.loaded).sum();
        twin.report.counts.ios = twin.shared.ios;
        twin.report.counts.requests = twin.guest.requests;
        twin.report.counts.sectors = twin.guest.oracle.sectors_checked;
        *report = twin.report;
        outcome
    })();
    match result {
        Ok(()) | Err(Stop::End) => Ok(()),
        Err(Stop::Violation(what)) => Err(format!("{what}\n  plan: {told}")),
        Err(Stop::Crash(_)) => Err("a crash that nobody planned".into()),
    }
}

impl Twin {
    fn live(&mut self, points: u64, force: Option<[&mut Random; 2]>) -> Flow {
        self.live_until(points)?;
        if let Some([apart, soon]) = force {
            (self.network.cut_until, self.shared.plan.lossy_percent) = (0, [0, 0]);
            return self.take_over(apart, soon);
        }
        self.settle()?;
        self.read_everything()
    }

    /// Lets the virtual machine live and move, and its hosts crash.
    pub(super) fn live_until(&mut self, points: u64) -> Flow {
        for host in &mut self.hosts {
            while host.start(&mut self.shared)? != Start::Running {}
        }
        self.hosts[0].with(&mut self.shared, |migration, call, now| migration.create(call, now))?;
        self.arrive(0, 0)?;
        while !self.is_served() {
            self.step(false)?;
        }
        while self.points < points {
            self.step(true)?;
            let [moves, crashes] = self.shared.plan.unrest_permille;
            if self.shared.rng.below(1_000) < moves {
                self.move_guest()?;
            }
            if self.shared.rng.below(1_000) < crashes {
                let at = self.shared.rng.below(2) as usize;
                self.crash(at)?;
            }
            for at in [0, 1] {
                if self.hosts[at].checkpoints.as_mut().is_some_and(|c| c.stops(EVENTS_FOR_A_STOP)) {
                    self.stop(at)?;
                }
            }
            if self.shared.rng.below(1_000) < 4 {
                self.network.cut_until = self.shared.now + self.shared.rng.range(100, 60_000);
            }
            // A disk that is about to move has no replica.
            if self.shared.plan.replica.is_none() && self.shared.rng.below(1_000) < 20 {
                self.send_ahead()?;
            }
        }
        Ok(())
    }

    /// Lets the next event happen; with `works` the guest issues requests.
    pub(super) fn step(&mut self, works: bool) -> Flow {
        if works {
            self.share_something();
        }
        let host = &mut self.hosts[self.guest.host];
        if works
            && !self.guest.is_stopped
            && self.guest.in_flight() < self.shared.plan.depth
            && let Some(running) = &mut host.running
            && running.migration.may_serve(&running.core.with(&mut running.memory))
            && let Some(disk) = running.migration.disk()
            && self.shared.rng.one_in(3)
        {
            self.guest.submit_any(&mut self.shared, host, disk)?;
            self.post();
        }
        self.next_event()
    }

    fn next_event(&mut self) -> Flow {
        let ios = [0, 1].map(|at| self.hosts[at].next_us());
        let starts = [0, 1].map(|at| self.hosts[at].down.as_ref().map(|(until, _)| *until));
        let next_io = [0, 1].into_iter().filter_map(|at| ios[at].map(|(us, wakes)| (us, at, wakes))).min();
        let next_start = [0, 1].into_iter().filter_map(|at| starts[at].map(|us| (us, at))).min();
        let parcel = self.network.next_us();
        let first = [next_io.map(|n| n.0), next_start.map(|n| n.0), parcel, Some(self.next_tick_us)];
        let now = first.into_iter().flatten().min().unwrap_or(0);
        self.shared.now = self.shared.now.max(now);
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
            match self.hosts[at].start(&mut self.shared)? {
                Start::Running => self.welcome(at)?,
                Start::Died(kind) => {
                    self.points += 1;
                    self.report.counts.crashes_in_open += 1;
                    if self.hosts[at].owned {
                        self.guest.oracle.crash(kind == CrashKind::Power);
                    }
                }
            }
        } else if parcel == Some(now) {
            let parcel = self.network.take().expect("it was just seen");
            let from = host_id(1 - parcel.to);
            let message = parcel.message;
            let host = &mut self.hosts[parcel.to];
            host.with(&mut self.shared, |migration, call, now| migration.message(call, now, from, message))?;
        } else {
            self.next_tick_us = self.shared.now + TICK_US;
            for host in &mut self.hosts {
                host.with(&mut self.shared, |migration, call, now| {
                    migration.tick(call, now);
                    migration.send_more(now, 16);
                })?;
            }
        }
        for at in [0, 1] {
            if self.guest.host == at {
                self.guest.take_answers(&mut self.hosts[at])?;
            }
        }
        self.post();
        Ok(())
    }

    pub(super) fn post(&mut self) {
        let Shared { mail, rng, plan, now, .. } = &mut self.shared;
        for (to, message) in mail.drain(..) {
            self.network.send(*now, to, &message, plan.delay_us, plan.lossy_percent, rng);
        }
    }

    /// The guest runs on a host that has just started.
    fn welcome(&mut self, at: usize) -> Flow {
        if self.guest.host == at && !self.guest.is_stopped { self.arrive(at, 1 - at) } else { Ok(()) }
    }

    /// The guest starts to use the disk on a host.
    pub(super) fn arrive(&mut self, at: usize, source: usize) -> Flow {
        tell(|| format!("{:>10} the guest runs on host {at}", self.shared.now));
        (self.guest.host, self.guest.is_stopped) = (at, false);
        let source = host_id(source);
        self.hosts[at].with(&mut self.shared, |m, call, now| m.guest_runs(call, now, source))?;
        self.post();
        Ok(())
    }

    /// Sends copies of some cached blocks ahead, or stops that.
    fn send_ahead(&mut self) -> Flow {
        let (from, stop) = (self.guest.host, self.shared.rng.one_in(12));
        let to = host_id(1 - from);
        let most = self.shared.rng.range(1, 200) as usize;
        self.hosts[from].with(&mut self.shared, |migration, call, now| {
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

    /// Sends copies ahead while the guest works. Its destination may die meanwhile.
    pub(super) fn pre_copy(&mut self) -> Flow {
        for _ in 0..self.shared.rng.range(1, 6) {
            self.send_ahead()?;
            for _ in 0..self.shared.rng.skewed(80) {
                self.step(true)?;
            }
            if self.shared.rng.one_in(10) {
                self.crash(1 - self.guest.host)?;
            }
        }
        Ok(())
    }

    /// Waits a while for the guest to be served. Then it may read the whole disk, and soon after one of the hosts dies.
    fn look_after_move(&mut self) -> Flow {
        let mut patience = self.shared.rng.skewed(1_000);
        while patience > 0 && !self.is_served() {
            self.step(false)?;
            patience -= 1;
        }
        if self.is_served() && self.shared.rng.one_in(2) {
            self.read_everything()?;
        }
        if self.shared.rng.one_in(2) {
            for _ in 0..self.shared.rng.skewed(30) {
                self.step(true)?;
            }
            let at = self.shared.rng.below(2) as usize;
            self.crash(at)?;
        }
        Ok(())
    }

    /// Stops the guest, and starts it on the other host or, if that is rolled back, on the same.
    fn move_guest(&mut self) -> Flow {
        if self.shared.rng.one_in(2) {
            self.pre_copy()?;
        }
        let from = self.guest.host;
        self.stop_guest()?;
        if self.operator.one_in(GUESTS_THAT_SHUT_DOWN) {
            self.detach(from)?;
            if !self.guest.is_stopped {
                // A manager has started it elsewhere.
                return Ok(());
            }
        }
        for _ in 0..self.shared.rng.skewed(30) {
            self.step(false)?;
        }
        let back = self.shared.rng.one_in(4);
        let to = if back { from } else { 1 - from };
        self.arrive(to, 1 - to)?;
        if !back && self.shared.rng.one_in(4) {
            // The destination fails while it asks: the guest is started at its source again.
            for _ in 0..self.shared.rng.skewed(120) {
                self.step(false)?;
            }
            let is_served = self.is_served();
            if self.guest.in_flight() == 0 && !is_served {
                self.hosts[to].with(&mut self.shared, |migration, _, _| migration.guest_stopped())?;
                self.arrive(from, to)?;
            }
        }
        if self.shared.rng.one_in(3) {
            self.look_after_move()?;
        }
        Ok(())
    }

    /// Stops the guest when its requests are answered, or its host has died.
    pub(super) fn stop_guest(&mut self) -> Flow {
        let from = self.guest.host;
        self.guest.is_stopped = true;
        let mut steps = 0;
        while self.guest.in_flight() > 0 {
            self.step(false)?;
            steps += 1;
            if steps > MOST_STEPS {
                return violation!("hang: requests on host {from} are not answered");
            }
            if self.hosts[from].running.is_none() {
                self.guest.die();
            }
        }
        tell(|| format!("{:>10} the guest has stopped on host {from}", self.shared.now));
        self.hosts[from].with(&mut self.shared, |migration, _, _| migration.guest_stopped())?;
        Ok(())
    }

    /// Detaches the disk on the host where the guest has stopped. One of the hosts may die meanwhile, or afterwards.
    fn detach(&mut self, at: usize) -> Flow {
        self.hosts[at].detach(&mut self.shared)?;
        let dies_after = self.operator.one_in(4).then(|| self.operator.skewed(60));
        let mut steps = 0;
        while self.hosts[at].is_detaching() {
            self.step(false)?;
            steps += 1;
            if Some(steps) == dies_after {
                self.crash(at)?;
            }
            if steps > u64::from(MOST_STEPS) {
                return violation!("hang: host {at} does not detach the disk");
            }
        }
        if self.operator.one_in(4) {
            let dead = self.operator.below(2) as usize;
            self.crash(dead)?;
        }
        Ok(())
    }

    pub(super) fn is_served(&mut self) -> bool {
        let running = self.hosts[self.guest.host].running.as_mut();
        running.is_some_and(|r| r.migration.may_serve(&r.core.with(&mut r.memory)))
    }

    pub(super) fn crash(&mut self, at: usize) -> Flow {
        let kind = self.shared.rng.pick(&[CrashKind::Kill, CrashKind::Power]);
        if self.hosts[at].running.is_none() {
            return Ok(());
        }
        self.points += 1;
        let is_owner = self.hosts[at].owns();
        let dies_inside = kind == CrashKind::Kill && self.shared.rng.one_in(2);
        if dies_inside && self.hosts[at].next_us().is_some_and(|(_, wakes)| !wakes) {
            let stores = self.shared.rng.skewed(40) - 1;
            self.hosts[at].end_io(&mut self.shared, Some(stores))?;
        }
        let delay = self.shared.rng.pick(&[1, 500, 20_000]);
        let until = self.shared.now + self.shared.rng.range(1, delay);
        self.shared.mail.clear();
        self.hosts[at].crash(&mut self.shared, kind, until);
        let power = kind == CrashKind::Power;
        self.report.counts.kills += u64::from(!power);
        self.report.counts.cuts += u64::from(power);
        if self.guest.host == at {
            self.guest.die();
        }
        if is_owner || self.guest.host == at {
            self.guest.oracle.crash(power && is_owner);
            if power && is_owner && self.shared.rng.one_in(3) {
                let tear = Tear { unit: self.shared.plan.tear_unit };
                self.shared.origin.power_cut(tear, &mut self.shared.rng);
            }
        }
        if self.guest.host == at && self.shared.rng.one_in(3) {
            // A manager starts it elsewhere.
            self.arrive(1 - at, at)?;
        }
        Ok(())
    }

    /// Stops a host in order; it starts again soon. If it takes too long, it is killed.
    fn stop(&mut self, at: usize) -> Flow {
        if self.hosts[at].running.is_none() {
            return Ok(());
        }
        self.points += 1;
        let is_owner = self.hosts[at].owns();
        let has_stopped = self.hosts[at].shut_down(&mut self.shared)?;
        if self.guest.host == at {
            self.guest.take_answers(&mut self.hosts[at])?;
            self.guest.die();
        }
        self.shared.mail.clear();
        let until = self.shared.now + 500;
        if has_stopped {
            self.hosts[at].leave(&mut self.shared, until);
        } else {
            self.report.counts.kills += 1;
            self.hosts[at].crash(&mut self.shared, CrashKind::Kill, until);
        }
        if is_owner || self.guest.host == at {
            self.guest.oracle.crash(false);
        }
        Ok(())
    }

    /// Waits, without crashes and with a network that works, until one host serves the disk and needs no other.
    pub(super) fn settle(&mut self) -> Flow {
        (self.network.cut_until, self.shared.plan.lossy_percent) = (0, [0, 0]);
        if self.guest.is_stopped {
            self.arrive(self.guest.host, 1 - self.guest.host)?;
        }
        let mut steps = 0;
        loop {
            self.hosts[self.guest.host].with(&mut self.shared, |migration, _, _| migration.fetch_rest())?;
            self.step(false)?;
            let record = self.hosts[self.guest.host].running.as_ref().map(|r| r.migration.record().clone());
            let is_alone = matches!(&record, Some(Record::Owner { peers, .. }) if peers.is_empty());
            if is_alone && self.is_served() && self.guest.in_flight() == 0 {
                break;
            }
            steps += 1;
            if steps > MOST_STEPS {
                let records = [0, 1].map(|at| {
                    let running = self.hosts[at].running.as_ref();
                    running.map(|r| format!("{:?}, {}", r.migration.record(), r.migration.describe()))
                });
                let needs = self.hosts[self.guest.host]
                    .running
                    .as_ref()
                    .and_then(|r| r.migration.disk().and_then(|disk| r.core.dependence(disk)));
                return violation!(
                    "hang: host {} does not own the disk alone; {records:?}, needs {needs:?}, {} requests in flight",
                    self.guest.host,
                    self.guest.in_flight()
                );
            }
        }
        Ok(())
    }

    pub(super) fn read_everything(&mut self) -> Flow {
        let size = self.shared.plan.disk.sectors;
        for first in (0..size).step_by(64) {
            let sectors = 64.min(size - first) as u32;
            let host = &mut self.hosts[self.guest.host];
            let Some(disk) = host.running.as_ref().and_then(|r| r.migration.disk()) else { continue };
            self.guest.submit(&mut self.shared, host, disk, Op::Read, first, sectors)?;
            self.wait_for_answers()?;
        }
        Ok(())
    }

    pub(super) fn wait_for_answers(&mut self) -> Flow {
        let mut steps = 0;
        while self.guest.in_flight() > 0 {
            self.step(false)?;
            steps += 1;
            if steps > MOST_STEPS {
                return violation!("hang: {} requests are not answered", self.guest.in_flight());
            }
        }
        Ok(())
    }
}
