//! One seed, one run: VMs move between hosts that die, while etcd fails; in the end everything must be in order, and
//! all is read.

use std::time::{Duration, Instant};

use haversack_directory::{Change, Key};
use haversack_model::Micros;
use haversack_model::random::Random;
use haversack_moves::Order;
use haversack_ownership::Record;

use super::access::Caller;
use super::daemon::{Daemon, Wish, host_name, host_named, vm_name};
use super::etcd::Etcd;
use super::judge::{Judge, disk};
use super::manager::{Manager, Waiter};
use super::operator::Operator;
use super::plan::{ClusterPlan, DISKS, HOSTS, VMS};
use crate::checkpoint::Checkpoints;
use crate::device::{Blank, Store};
use crate::hosts::guest::Guest;
use crate::hosts::host::{Host, Shared};
use crate::hosts::machines::Machines;
use crate::hosts::plan::{Plan, RUNS_BY_DEFAULT};
use crate::oracle::Oracle;
use crate::plan::disk_id;
use crate::run::{RUNS_THAT_PREPARE, RunReport, outcome, reported, tell};
use crate::world::{Flow, violation};

/// One run in this many has hosts that leave checkpoints when they are stopped in order.
const RUNS_WITH_CHECKPOINTS: u64 = 2;
/// The longest time of a run, without its end.
const MOST_US: Micros = 8_000_000;
/// How often a guest looks again for its disk.
const SEEK_EVERY_US: Micros = 30_000;
/// How long it may take until everything is in order.
const PATIENCE_US: Micros = 10_000_000;

/// After how many requests of its guests a brief run ends. One run in fifteen has more requests than that: its I/O is
/// fast, and its hosts hardly ever crash.
const REQUESTS_OF_A_BRIEF_RUN: u64 = 8_000;

/// Returns the maximum number of crash points of a run.
pub fn most_points_of_a_run() -> u64 {
    120
}

/// See the module documentation.
pub(super) struct Cluster {
    pub machines: Machines,
    pub daemons: Vec<Option<Daemon>>,
    pub etcd: Etcd,
    pub manager: Manager,
    pub judge: Judge,
    pub operator: Operator,
    pub plan: ClusterPlan,
    /// What the disks demand, in blocks.
    pub demands: Vec<u64>,
    /// Until when hosts are cut off from etcd.
    pub cut_etcd: Vec<Micros>,
    /// How late the watches of hosts are.
    pub lag_us: Vec<Micros>,
    pub rng: Random,
    next_seek_us: Micros,
    instances: u64,
    /// Where the time of a run begins on the clock that the directory's view is stamped with.
    pub(super) base: Instant,
}

/// What to run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// A run ends early when its guests have made a certain number of requests: its time is then better spent on other
    /// seeds.
    pub brief: bool,
    /// Disks have replicas of their dirty blocks on other hosts.
    pub replicas: bool,
}

/// Runs everything that one seed determines. No disk has a replica.
pub fn run_seed(seed: u64) -> RunReport {
    run(seed, Options::default())
}

/// The same with replicas.
pub fn run_seed_with_replicas(seed: u64) -> RunReport {
    run(seed, Options { replicas: true, ..Options::default() })
}

/// Runs everything that one seed determines.
pub fn run(seed: u64, options: Options) -> RunReport {
    let replicas = if options.replicas { "--replicas " } else { "" };
    let brief = if options.brief { "--brief " } else { "" };
    reported(seed, &format!("--cluster {replicas}{brief}"), |report| one_run(seed, options, report))
}

fn one_run(seed: u64, options: Options, report: &mut RunReport) -> Result<(), String> {
    let mut rng = Random::scrambled(seed.rotate_left(40));
    let mut plan = Plan::random(&mut rng);
    plan.of_cluster(HOSTS, DISKS, &mut rng);
    if rng.one_in(RUNS_THAT_PREPARE) {
        plan.preparing(&mut rng);
    }
    if !rng.one_in(RUNS_BY_DEFAULT) {
        plan.moving_by(&mut rng);
    }
    if options.replicas {
        // Apart from the other choices, so that seeds keep their meaning.
        plan.replicating(&mut Random::scrambled(seed.rotate_left(56)));
    }
    let mut apart = rng.fork();
    let of_cluster = ClusterPlan::random(&mut apart);
    let told = format!("{plan:?}\n  {of_cluster:?}");
    let points = apart.range(4, most_points_of_a_run());
    let (mut origins, mut guests) = (Vec::new(), Vec::new());
    for of in 0..DISKS {
        let sectors = plan.disks[of].sectors;
        let mut oracle = Oracle::default();
        // Each has a number of its own, so that the data of disks are told apart.
        for _ in 0..of {
            oracle.add_disk(0, true);
        }
        let version = oracle.add_disk(sectors, plan.blank);
        let written = |version| Blank::Written { disk: of as u16, version };
        origins.push(Store::new(sectors, version.map_or(Blank::Zero, written)));
        guests.push(Guest::new(of, 0, oracle));
    }
    for disks in VMS {
        let at = apart.below(HOSTS as u64) as usize;
        disks.iter().for_each(|of| guests[*of].host = at);
    }
    let mut shared = Shared { origins, base: None, now: 1, sequence: 0, rng, plan, ios: 0, mail: Vec::new() };
    let hosts: Flow<Vec<Host>> = (0..HOSTS).map(|place| Host::new(place, &mut shared)).collect();
    let result = hosts.and_then(|mut hosts| {
        for host in &mut hosts {
            let own = apart.fork();
            host.checkpoints = apart.one_in(RUNS_WITH_CHECKPOINTS).then(|| Checkpoints::new(own));
        }
        let mut cluster = Cluster {
            machines: Machines::new(shared, hosts, guests),
            daemons: (0..HOSTS).map(|_| None).collect(),
            etcd: Etcd::default(),
            manager: Manager::new(apart.fork(), of_cluster.failing_percent),
            judge: Judge::new(&of_cluster),
            // Apart from the other choices, so that seeds keep their meaning.
            operator: Operator::new(
                Random::scrambled(seed.rotate_left(24)),
                Random::scrambled(seed.rotate_left(12)),
            ),
            demands: (0..DISKS).map(|_| apart.range(10, of_cluster.capacity_blocks * 9 / 10)).collect(),
            plan: of_cluster,
            cut_etcd: vec![0; HOSTS],
            lag_us: vec![0; HOSTS],
            rng: apart,
            next_seek_us: 0,
            instances: 0,
            base: Instant::now(),
        };
        let most_requests = if options.brief { REQUESTS_OF_A_BRIEF_RUN } else { u64::MAX };
        let lived = cluster.live(points, most_requests);
        let counts = &mut cluster.machines.report.counts;
        (counts.jobs, counts.takeovers) = (cluster.manager.moves, cluster.operator.takeovers);
        *report = cluster.machines.into_report();
        lived
    });
    outcome(result, &told)
}

impl Cluster {
    fn live(&mut self, points: u64, most_requests: u64) -> Flow {
        self.machines.start()?;
        for of in 0..DISKS {
            self.machines.create(of)?;
        }
        while (0..DISKS).any(|of| !self.machines.is_served(of)) {
            self.machines.next_event()?;
        }
        let requests = |machines: &Machines| machines.guests.iter().map(|guest| guest.requests).sum::<u64>();
        while self.machines.points < points
            && self.machines.shared.now < MOST_US
            && requests(&self.machines) < most_requests
        {
            if self.rng.one_in(self.plan.events_for_a_request) {
                let of = self.rng.below(DISKS as u64) as usize;
                self.machines.work(of)?;
            }
            if self.machines.next_event()? {
                self.tick()?;
                self.unrest()?;
            }
        }
        if self.settle()? {
            (0..DISKS).try_for_each(|of| self.machines.read_everything(of))?;
        }
        Ok(())
    }

    /// Lets a millisecond pass for everything that belongs to the cluster.
    fn tick(&mut self) -> Flow {
        let now = self.machines.shared.now;
        self.etcd.tick(now, self.plan.times.lease_us);
        self.judge.look_at_owners(&self.machines)?;
        for at in 0..HOSTS {
            if self.machines.hosts[at].running.is_none() {
                continue;
            }
            if self.daemons[at].is_none() {
                self.instances += 1;
                self.daemons[at] = Some(Daemon::new(at, self.instances, self.base, now, &self.plan));
            }
            let Some(daemon) = &mut self.daemons[at] else { continue };
            daemon.access.lag_us = self.lag_us[at];
            let is_cut = now < self.cut_etcd[at];
            daemon.access.tick(&mut self.etcd, is_cut, now, &mut self.rng);
            daemon.tick(&self.machines, &self.demands, self.plan.capacity_blocks, now);
            let (instance, wishes) = (daemon.instance, std::mem::take(&mut daemon.wishes));
            self.look_at_replicas(at)?;
            self.judge.look_at_etcd(&mut self.etcd, &self.daemons, now)?;
            self.judge.look_at_views(&self.daemons, now);
            for wish in wishes {
                self.grant(at, instance, wish)?;
            }
        }
        self.operate()?;
        self.manager.tick(&mut self.machines)?;
        for (waiter, is_done) in std::mem::take(&mut self.manager.ended) {
            let daemon = self.daemons[waiter.host].as_mut();
            match daemon.filter(|daemon| daemon.instance == waiter.instance) {
                Some(daemon) if waiter.is_by_hand => daemon.end_by_hand(),
                Some(daemon) => daemon.called(is_done, now),
                None => {}
            }
        }
        self.seek()
    }

    /// Has the manager move a VM.
    fn grant(&mut self, host: usize, instance: u64, wish: Wish) -> Flow {
        let waiter = |is_by_hand| Waiter { host, instance, is_by_hand };
        match wish {
            Wish::ByHand { vm, to } => self.manager.begin(&self.machines, vm, host, to, waiter(true)),
            Wish::Call(order) => {
                tell(|| format!("{:>10} {}", self.machines.shared.now, order.reason));
                self.judge.called(&order, instance, self.etcd.cluster, self.machines.shared.now)?;
                self.is_not_fenced(host, &order)?;
                let vm = (0..VMS.len()).find(|vm| vm_name(*vm) == order.vm);
                let (Some(vm), Some(from), Some(to)) = (vm, host_named(&order.from), host_named(&order.to))
                else {
                    return violation!("the program is called for something unknown: {order:?}");
                };
                self.manager.begin(&self.machines, vm, from, to, waiter(false));
            }
        }
        Ok(())
    }

    /// The balancer moves nothing to a host of which it knows that it is fenced, since it is drained.
    fn is_not_fenced(&self, leader: usize, order: &Order) -> Flow {
        let is_fenced = host_named(&order.to).is_some_and(|to| self.machines.hosts[to].fenced);
        let view = self.daemons[leader].as_ref().map(|daemon| &daemon.access.view);
        let since = view.and_then(|view| view.drains.get(&order.to)).map(|seen| seen.at);
        let now = self.base + Duration::from_micros(self.machines.shared.now);
        // It was planned a little earlier.
        let most = Duration::from_micros(self.plan.times.lease_us * 4);
        if is_fenced && since.is_some_and(|since| now.duration_since(since) > most) {
            return violation!("{} is moved to a host that is fenced: {}", order.vm, order.reason);
        }
        Ok(())
    }

    /// A guest that runs on a host that has never heard of its disk asks all hosts for it, from time to time.
    fn seek(&mut self) -> Flow {
        if self.machines.shared.now < self.next_seek_us {
            return Ok(());
        }
        self.next_seek_us = self.machines.shared.now + SEEK_EVERY_US;
        let runs = |at: usize| self.machines.hosts[at].running.is_some() || self.operator.is_off(at);
        let all_run = (0..HOSTS).all(runs);
        for of in 0..DISKS {
            let guest = &self.machines.guests[of];
            let (at, is_stopped) = (guest.host, guest.is_stopped);
            let is_unknown = matches!(self.machines.hosts[at].record(of), Some(Record::Unknown));
            if all_run && is_unknown && !is_stopped {
                let Machines { hosts, shared, .. } = &mut self.machines;
                hosts[at].with(shared, of, |migration, _, _| migration.guest_stopped())?;
                self.machines.arrive(of, at)?;
            }
        }
        Ok(())
    }

    /// Kills a host or cuts its power.
    pub(super) fn crash(&mut self, at: usize) -> Flow {
        self.crash_until(at, None).map(drop)
    }

    /// The same; the host stays down until then, if that is given. Returns false if it is down already.
    pub(super) fn crash_until(&mut self, at: usize, repaired: Option<Micros>) -> Flow<bool> {
        let has_died = self.machines.crash_until(at, repaired)?;
        if has_died {
            self.ended(at)?;
            self.manager.died(&mut self.machines, at)?;
        }
        Ok(has_died)
    }

    /// Stops a host in order: it gives its lease back, if it can.
    pub(super) fn stop(&mut self, at: usize) -> Flow {
        let now = self.machines.shared.now;
        let lease = self.daemons[at].as_ref().filter(|daemon| daemon.access.is_connected);
        let lease = lease.and_then(|daemon| daemon.access.lease);
        if let Some((lease, _)) = lease.filter(|_| now >= self.cut_etcd[at] && self.etcd.answers(now)) {
            self.etcd.revoke(lease, now, Some(at));
        }
        self.ended(at)?;
        self.machines.stop(at)
    }

    /// A daemon has ended, and perhaps the program that it has called.
    fn ended(&mut self, at: usize) -> Flow {
        match self.daemons[at].take() {
            Some(daemon) => self.manager.lost(&mut self.machines, daemon.instance),
            None => Ok(()),
        }
    }

    /// Waits, without faults, until one host serves each disk and needs no other, the directory says so, and has no
    /// intents. Returns false if a disk is out of reach.
    fn settle(&mut self) -> Flow<bool> {
        self.calm();
        let until = self.machines.shared.now + PATIENCE_US;
        loop {
            for of in 0..DISKS {
                let Machines { hosts, shared, guests, .. } = &mut self.machines;
                hosts[guests[of].host].with(shared, of, |migration, _, _| migration.fetch_rest())?;
                self.rewrite_lost(of)?;
            }
            while !self.machines.next_event()? {}
            self.tick()?;
            self.end_drains();
            let Some(why) = self.disorder() else { return Ok(true) };
            if self.machines.shared.now > until {
                return if self.is_out_of_reach() { Ok(false) } else { violation!("hang: {why}") };
            }
        }
    }

    /// Whether a disk's last owner is lost for ever, and had all other hosts fenced when it took the disk over. If
    /// nobody has learned of that, no host may be let in before an operator has made all of them forget the disk, and
    /// this operator does not do that.
    fn is_out_of_reach(&self) -> bool {
        let is_out = |at: usize| self.operator.is_lost(at) || self.machines.hosts[at].fenced;
        let is_of_lost_one = |of: usize| {
            self.operator.is_lost(self.judge.newest_owner(of)) && !(0..HOSTS).any(|at| self.owns(at, of))
        };
        (0..HOSTS).all(is_out) && (0..DISKS).any(is_of_lost_one)
    }

    fn end_drains(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            if daemon.access.is_connected && daemon.access.is_idle() {
                let drained: Vec<String> = daemon.access.view.drains.keys().cloned().collect();
                for host in drained {
                    daemon.access.call(Caller::Nobody, Change::drain(&host, None));
                }
            }
        }
    }

    /// Returns what is not in order.
    fn disorder(&mut self) -> Option<String> {
        let is_lost = |at: usize| self.operator.is_lost(at);
        let is_down = |at: &usize| self.machines.hosts[*at].running.is_none() && !is_lost(*at);
        if let Some(at) = (0..HOSTS).find(is_down) {
            return Some(format!("host {at} is down"));
        }
        if let Some(at) = (0..HOSTS).find(|at| self.machines.hosts[*at].fenced && !is_lost(*at)) {
            let unknown: Vec<usize> = (0..DISKS).filter(|of| !self.knows(at, *of)).collect();
            return Some(format!(
                "host {at} is fenced, and does not know of the takeovers of disks {unknown:?}; {:?}",
                self.operator
                    .unfinished()
                    .map(|(of, what)| format!("{what}: {}", self.machines.describe(of)))
            ));
        }
        if let Some((of, what)) = self.operator.unfinished() {
            return Some(format!("{what}: {}", self.machines.describe(of)));
        }
        if !self.manager.is_idle() {
            return Some("a VM is on its way".into());
        }
        for of in 0..DISKS {
            if let Some(sector) = self.machines.guests[of].lost.first() {
                return Some(format!("sector {sector} of disk {of} is lost: {}", self.machines.describe(of)));
            }
            if !self.machines.is_settled(of) {
                return Some(format!("no host has disk {of} alone: {}", self.machines.describe(of)));
            }
            let owner = self.machines.guests[of].host;
            let epoch = self.machines.hosts[owner].record(of).map_or(0, Record::epoch);
            let entry = self.etcd.get(&Key::Disk(disk_id(of).to_string()));
            let said = entry.and_then(disk).map(|entry| (entry.host.clone(), entry.epoch));
            if said != Some((host_name(owner), epoch)) {
                return Some(format!(
                    "host {owner} owns disk {of} under {epoch}, and the directory says {said:?}"
                ));
            }
        }
        if let Some(what) = self.left_replica() {
            return Some(what);
        }
        let is_intent = |key: &&Key| matches!(key, Key::Intent(_));
        if let Some(key) = self.etcd.all().map(|(key, _)| key).find(is_intent) {
            return Some(format!("{key} is left: {}", self.describe_intent(key)));
        }
        let is_there = |at: &usize| self.etcd.get(&Key::Host(host_name(*at))).is_some();
        let absent = (0..HOSTS).find(|at| !is_there(at) && !self.operator.is_lost(*at));
        absent.map(|at| format!("host {at} is not in the directory"))
    }

    /// Says what an intent is, and how hosts see it.
    fn describe_intent(&self, key: &Key) -> String {
        let Key::Intent(id) = key else { return String::new() };
        let view = |daemon: &Daemon| {
            let view = &daemon.access.view;
            let intent = view.intents.get(id).map(|seen| &seen.record);
            let progress = intent.map(|intent| view.progress(id, intent));
            format!("{} ({}): {progress:?} {intent:?}", daemon.name, daemon.instance)
        };
        self.daemons.iter().flatten().map(view).collect::<Vec<_>>().join("; ")
    }
}
