//! One seed, one run: the virtual machine moves back and forth, hosts die, and in the end everything is read.

use haversack_migrate::PaceLimits;
use haversack_model::random::Random;

use crate::checkpoint::Checkpoints;
use crate::device::{Blank, Store};
use crate::hosts::base::Base;
use crate::hosts::guest::Guest;
use crate::hosts::host::{Host, Shared};
use crate::hosts::machines::{MOST_STEPS, Machines};
use crate::hosts::plan::{Plan, RUNS_BY_DEFAULT};
use crate::oracle::Oracle;
use crate::run::{RUNS_THAT_PREPARE, RunReport, outcome, reported, tell};
use crate::world::{Flow, violation};

/// One run in this many sends copies at a pace that spares guests.
const RUNS_WITH_A_PACE: u64 = 3;
/// One run in this many ends with a host that dies permanently.
const RUNS_WITH_FORCE: u64 = 3;
/// One guest in this many is shut down instead of moved: its disk is detached before it starts again, there or
/// elsewhere.
const GUESTS_THAT_SHUT_DOWN: u64 = 4;
/// One run in this many has a disk that shares blocks with its base.
const RUNS_WITH_A_BASE: u64 = 5;
/// One run in this many has a replica of the disk's dirty blocks at the other host, if replicas are simulated.
const RUNS_WITH_A_REPLICA: u64 = 4;
/// One run in this many has hosts that are stopped in order, and leave checkpoints.
const RUNS_WITH_STOPS: u64 = 2;
/// Then, a host stops once in this many events.
const EVENTS_FOR_A_STOP: u64 = 300;

/// Returns the maximum number of crash points of a run.
pub fn most_points_of_a_run() -> u64 {
    24
}

pub(super) struct Twin {
    pub machines: Machines,
    /// The choices of the operator, who detaches disks of guests that have stopped.
    operator: Random,
}

/// Runs everything that one seed determines. No disk has a replica.
pub fn run_seed(seed: u64) -> RunReport {
    reported(seed, "--twin ", |report| one_run(seed, false, report))
}

/// Like [`run_seed`], but in one run of four the disk's dirty blocks have a replica.
pub fn run_seed_with_replicas(seed: u64) -> RunReport {
    reported(seed, "--twin --replicas ", |report| one_run(seed, true, report))
}

fn one_run(seed: u64, has_replicas: bool, report: &mut RunReport) -> Result<(), String> {
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
    let mut heir = (apart.one_in(RUNS_WITH_A_REPLICA) && has_replicas).then(|| {
        plan.replicating(&mut apart);
        apart
    });
    let told = format!("{plan:?}");
    let points = rng.range(2, most_points_of_a_run());
    let mut oracle = Oracle::default();
    let blank = match oracle.add_disk(plan.disks[0].sectors, plan.blank) {
        Some(version) => Blank::Written { disk: 0, version },
        None => Blank::Zero,
    };
    let mut apart = Random::scrambled(seed.rotate_left(8));
    let (origin, base) = if apart.one_in(RUNS_WITH_A_BASE) && heir.is_none() {
        let of_base = match oracle.add_disk(plan.disks[0].sectors, plan.blank) {
            Some(version) => Blank::Written { disk: 1, version },
            None => Blank::Zero,
        };
        oracle.begins_as(0, 1);
        (Store::new(plan.disks[0].sectors, of_base), Some(Base::new(&plan.disks[0], of_base, apart)))
    } else {
        (Store::new(plan.disks[0].sectors, blank), None)
    };
    let mut shared =
        Shared { origins: vec![origin], base, now: 1, sequence: 0, rng, plan, ios: 0, mail: Vec::new() };
    let hosts: Flow<Vec<Host>> = (0..2).map(|place| Host::new(place, &mut shared)).collect();
    let result = hosts.and_then(|hosts| {
        let machines = Machines::new(shared, hosts, vec![Guest::new(0, 0, oracle)]);
        let mut twin = Twin { machines, operator: Random::scrambled(seed.rotate_left(16)) };
        // Apart from the other choices, so that seeds keep their meaning.
        let mut force = Random::scrambled(seed.rotate_left(24));
        let is_forced = force.one_in(RUNS_WITH_FORCE);
        let mut soon = Random::scrambled(seed.rotate_left(32));
        for host in &mut twin.machines.hosts {
            let mut apart = Random::scrambled((!seed).rotate_left(8 * host.place as u32));
            host.checkpoints = apart.one_in(RUNS_WITH_STOPS).then(|| Checkpoints::new(apart));
        }
        let lived = match &mut heir {
            Some(apart) => twin.live_with_replica(points, apart),
            None => twin.live(points, is_forced.then_some([&mut force, &mut soon])),
        };
        *report = twin.machines.into_report();
        lived
    });
    outcome(result, &told)
}

impl Twin {
    pub(super) fn guest(&mut self) -> &mut Guest {
        &mut self.machines.guests[0]
    }

    fn rng(&mut self) -> &mut Random {
        &mut self.machines.shared.rng
    }

    fn live(&mut self, points: u64, force: Option<[&mut Random; 2]>) -> Flow {
        self.live_until(points)?;
        if let Some([apart, soon]) = force {
            self.heal();
            return self.take_over(apart, soon);
        }
        self.settle()?;
        self.machines.read_everything(0)
    }

    /// Lets the virtual machine live and move, and its hosts crash.
    pub(super) fn live_until(&mut self, points: u64) -> Flow {
        self.machines.start()?;
        self.machines.create(0)?;
        while !self.machines.is_served(0) {
            self.step(false)?;
        }
        while self.machines.points < points {
            self.step(true)?;
            let [moves, crashes] = self.machines.shared.plan.unrest_permille;
            if self.machines.shared.rng.below(1_000) < moves {
                self.move_guest()?;
            }
            if self.machines.shared.rng.below(1_000) < crashes {
                let at = self.machines.shared.rng.below(2) as usize;
                self.crash(at)?;
            }
            for at in [0, 1] {
                if self.machines.hosts[at].checkpoints.as_mut().is_some_and(|c| c.stops(EVENTS_FOR_A_STOP)) {
                    self.machines.stop(at)?;
                }
            }
            if self.machines.shared.rng.below(1_000) < 4 {
                let until = self.machines.shared.now + self.rng().range(100, 60_000);
                self.machines.network.cut(0, 1, until);
            }
            // A disk that is about to move has no replica.
            let is_replicated = self.machines.shared.plan.replica.is_some();
            if !is_replicated && self.machines.shared.rng.below(1_000) < 20 {
                self.send_ahead()?;
            }
        }
        Ok(())
    }

    /// Lets the next event happen; with `works` the guest issues requests.
    pub(super) fn step(&mut self, works: bool) -> Flow {
        if works {
            self.machines.share_something();
            self.machines.work(0)?;
        }
        self.machines.next_event()?;
        Ok(())
    }

    /// Sends copies ahead while the guest works. Its destination may die meanwhile.
    pub(super) fn pre_copy(&mut self) -> Flow {
        for _ in 0..self.machines.shared.rng.range(1, 6) {
            self.send_ahead()?;
            for _ in 0..self.machines.shared.rng.skewed(80) {
                self.step(true)?;
            }
            if self.machines.shared.rng.one_in(10) {
                self.crash(1 - self.machines.guests[0].host)?;
            }
        }
        Ok(())
    }

    /// Waits a while for the guest to be served. Then it may read the whole disk, and soon after one of the hosts dies.
    fn look_after_move(&mut self) -> Flow {
        let mut patience = self.machines.shared.rng.skewed(1_000);
        while patience > 0 && !self.machines.is_served(0) {
            self.step(false)?;
            patience -= 1;
        }
        if self.machines.is_served(0) && self.machines.shared.rng.one_in(2) {
            self.machines.read_everything(0)?;
        }
        if self.machines.shared.rng.one_in(2) {
            for _ in 0..self.machines.shared.rng.skewed(30) {
                self.step(true)?;
            }
            let at = self.machines.shared.rng.below(2) as usize;
            self.crash(at)?;
        }
        Ok(())
    }

    /// Stops the guest, and starts it on the other host or, if that is rolled back, on the same.
    fn move_guest(&mut self) -> Flow {
        if self.machines.shared.rng.one_in(2) {
            self.pre_copy()?;
        }
        let from = self.machines.guests[0].host;
        self.stop_guest()?;
        if self.operator.one_in(GUESTS_THAT_SHUT_DOWN) {
            self.detach(from)?;
            if !self.machines.guests[0].is_stopped {
                // A manager has started the guest elsewhere.
                return Ok(());
            }
        }
        for _ in 0..self.machines.shared.rng.skewed(30) {
            self.step(false)?;
        }
        let back = self.machines.shared.rng.one_in(4);
        let to = if back { from } else { 1 - from };
        self.machines.arrive(0, to)?;
        if !back && self.machines.shared.rng.one_in(4) {
            // The destination fails before it serves the disk: the guest is started on its source again.
            for _ in 0..self.machines.shared.rng.skewed(120) {
                self.step(false)?;
            }
            let is_served = self.machines.is_served(0);
            if self.machines.guests[0].in_flight() == 0 && !is_served {
                self.machines.hosts[to]
                    .with(&mut self.machines.shared, 0, |migration, _, _| migration.guest_stopped())?;
                self.machines.arrive(0, from)?;
            }
        }
        if self.machines.shared.rng.one_in(3) {
            self.look_after_move()?;
        }
        Ok(())
    }

    /// Stops the guest when its requests are answered, or its host has died.
    pub(super) fn stop_guest(&mut self) -> Flow {
        let from = self.machines.guests[0].host;
        self.machines.guests[0].is_stopped = true;
        let mut steps = 0;
        while self.machines.guests[0].in_flight() > 0 {
            self.step(false)?;
            steps += 1;
            if steps > MOST_STEPS {
                return violation!("hang: requests on host {from} are not answered");
            }
            if self.machines.hosts[from].running.is_none() {
                self.machines.guests[0].die();
            }
        }
        tell(|| format!("{:>10} the guest has stopped on host {from}", self.machines.shared.now));
        self.machines.hosts[from]
            .with(&mut self.machines.shared, 0, |migration, _, _| migration.guest_stopped())?;
        Ok(())
    }

    /// Detaches the disk on the host where the guest has stopped. One of the hosts may die meanwhile, or afterwards.
    fn detach(&mut self, at: usize) -> Flow {
        self.machines.hosts[at].detach(&mut self.machines.shared, 0)?;
        let dies_after = self.operator.one_in(4).then(|| self.operator.skewed(60));
        let mut steps = 0;
        while self.machines.hosts[at].is_detaching(0) {
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

    /// Kills a host or cuts its power. A manager may start the guest elsewhere.
    pub(super) fn crash(&mut self, at: usize) -> Flow {
        if self.machines.crash(at)? && self.guest().host == at && self.rng().one_in(3) {
            self.machines.arrive(0, 1 - at)?;
        }
        Ok(())
    }

    /// Waits, without crashes and with a network that works, until one host serves the disk and needs no other.
    pub(super) fn settle(&mut self) -> Flow {
        self.heal();
        if self.guest().is_stopped {
            let at = self.guest().host;
            self.machines.arrive(0, at)?;
        }
        let mut steps = 0;
        loop {
            let Machines { hosts, shared, guests, .. } = &mut self.machines;
            hosts[guests[0].host].with(shared, 0, |migration, _, _| migration.fetch_rest())?;
            self.step(false)?;
            if self.machines.is_settled(0) {
                return Ok(());
            }
            steps += 1;
            if steps > MOST_STEPS {
                return violation!("hang: no host owns the disk alone: {}", self.machines.describe(0));
            }
        }
    }

    /// The network works from now on.
    pub(super) fn heal(&mut self) {
        self.machines.network.heal();
        self.machines.shared.plan.lossy_percent = [0, 0];
    }

    /// Sends copies of some cached blocks ahead to the other host, or stops that.
    fn send_ahead(&mut self) -> Flow {
        let to = 1 - self.guest().host;
        self.machines.send_ahead(0, to)
    }
}
