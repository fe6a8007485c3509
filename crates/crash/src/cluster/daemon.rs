//! A host's daemon, as far as the cluster is concerned: it reports, observes, clears intents away, and balances if it
//! leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use haversack_cluster::Balancer;
use haversack_directory::{
    BalanceRecord, Change, DirectoryError, DiskRecord, HostRecord, IntentRecord, Key, Lead, Leadership, Load,
    PoolRecord, Report, View, VmNeeds, Worth,
};
use haversack_migrate::ReplicationState;
use haversack_model::{BLOCK_BYTES, Micros};
use haversack_moves::{Act, Claimed, Intents, Mover, Observed, Order, Rests, claim, snapshot};
use haversack_ownership::Record;

use super::access::{Access, Caller};
use super::epochs::Watch;
use super::plan::{ClusterPlan, Times, VMS};
use super::replicas::Places;
use crate::hosts::machines::Machines;
use crate::plan::disk_id;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often a daemon tries to begin a move whose disk's entry is rewritten by a report at the same time.
const MOST_ATTEMPTS: u32 = 5;

/// The reason of a move by hand.
const BY_HAND: &str = "an operator's order";

/// Returns the name of a host.
pub fn host_name(at: usize) -> String {
    format!("h{}", at + 1)
}

/// Returns the host of that name.
pub fn host_named(name: &str) -> Option<usize> {
    name.strip_prefix('h')?.parse::<usize>().ok()?.checked_sub(1)
}

/// Returns the name of a VM.
pub fn vm_name(vm: usize) -> String {
    format!("vm{vm}")
}

/// What the thread waits for that balances.
enum Wait {
    Lead,
    Begin { disk: String, intent: IntentRecord, leadership: Leadership, attempt: u32 },
    HandOn { record: BalanceRecord },
    Hook,
}

/// A round of the host that balances.
#[derive(Default)]
struct Round {
    wait: Option<Wait>,
    driven: Vec<(String, IntentRecord)>,
}

/// A move by hand.
pub struct ByHand {
    pub vm: usize,
    pub to: usize,
    disk: String,
    intent: IntentRecord,
    is_in_directory: bool,
    /// It has begun.
    pub is_moving: bool,
}

/// What a daemon wants from the manager of the VMs.
pub enum Wish {
    /// The program is called.
    Call(Order),
    /// An operator's move.
    ByHand { vm: usize, to: usize },
}

/// See the module documentation.
pub struct Daemon {
    pub host: usize,
    pub name: String,
    pub instance: u64,
    pub access: Access,
    observed: Observed,
    mover: Mover,
    pub intents: Intents,
    reports: u64,
    next_report: Micros,
    next_window: Micros,
    next_look: Micros,
    next_round: Micros,
    round: Option<Round>,
    pub by_hand: Option<ByHand>,
    /// What it asks other hosts.
    pub watch: Watch,
    pub wishes: Vec<Wish>,
    /// Where its disks' replicas could not be.
    pub places: Places,
    /// It has looked at the directory in this tick.
    pub has_looked: bool,
    base: Instant,
    times: Times,
}

impl Daemon {
    pub fn new(host: usize, instance: u64, base: Instant, now: Micros, plan: &ClusterPlan) -> Daemon {
        let (name, times) = (host_name(host), plan.times);
        let micros = Duration::from_micros;
        let balancer = Balancer::new(plan.settings.clone()).expect("the settings are valid");
        let rests = Rests {
            after_failure: micros(times.failure_us),
            reports: 2.0,
            least: micros(times.report_us / 4),
            until_followed: micros(6 * times.failure_us),
        };
        Daemon {
            host,
            instance,
            access: Access::new(host, &name, instance, base, times),
            observed: Observed::new(balancer, base + micros(now)),
            mover: Mover::new(&name, instance, rests, micros(times.program_us), |_| Ok(())),
            intents: Intents::new(&name, instance, micros(times.abandoned_us)),
            name,
            reports: 0,
            next_report: now,
            next_window: now + times.window_us,
            next_look: now,
            next_round: now + times.report_us,
            round: None,
            by_hand: None,
            watch: Watch::default(),
            wishes: Vec::new(),
            places: Places::default(),
            has_looked: false,
            base,
            times,
        }
    }

    fn at(&self, now: Micros) -> Instant {
        self.base + Duration::from_micros(now)
    }

    /// Whether it is about to move a VM, or moves one.
    pub fn is_moving(&self) -> bool {
        self.round.as_ref().is_some_and(|round| !round.driven.is_empty())
    }

    /// Whether it drives a move of the disk.
    pub fn drives(&self, disk: &str) -> bool {
        let is_it = |driven: &(String, IntentRecord)| driven.0 == disk;
        self.round.as_ref().is_some_and(|round| round.driven.iter().any(is_it))
            || self.by_hand.as_ref().is_some_and(|move_| move_.disk == disk)
    }

    /// Does what is due.
    pub fn tick(&mut self, machines: &Machines, demands: &[u64], capacity_blocks: u64, now: Micros) {
        for (caller, result) in std::mem::take(&mut self.access.answers) {
            match caller {
                Caller::Mover => self.answered(result, now),
                Caller::Operator => self.began_by_hand(&result),
                Caller::Nobody => {}
            }
        }
        if now >= self.next_report {
            self.next_report = now + self.times.report_us;
            let report = self.report(machines, demands, capacity_blocks, now);
            self.access.report(report);
        }
        if now >= self.next_window {
            self.next_window = now + self.times.window_us;
            if self.access.is_connected {
                // What the directory has may contradict itself for a moment.
                let _ = self.observed.observe(&self.access.view);
            }
        }
        self.has_looked = now >= self.next_look;
        if self.has_looked {
            self.next_look = now + self.times.look_us;
            let at = self.at(now);
            self.observed.follow(&self.access.view, at);
            if self.access.is_connected && self.access.is_idle() {
                let over = self.intents.over(&self.access.view, at);
                over.iter().for_each(|(disk, intent)| self.end(disk, intent));
            }
        }
        if now >= self.next_round && self.round.is_none() {
            self.next_round = now + self.times.report_us;
            self.round = Some(Round::default());
            let act = self.mover.round(self.access.is_connected);
            self.go_on(act, now);
        }
    }

    fn end(&mut self, disk: &str, intent: &IntentRecord) {
        if let Some(change) = Change::end_move(&self.access.view, disk, intent) {
            self.access.call(Caller::Nobody, change);
        }
    }

    /// Does what the mover says, until something is to be waited for.
    fn go_on(&mut self, mut act: Option<Act>, now: Micros) {
        let at = self.at(now);
        while let Some(next) = act {
            let wait = match next {
                Act::Lead => match self.lead(now) {
                    Ok(led) => {
                        act = self.led(led, now);
                        continue;
                    }
                    Err(change) => {
                        self.access.call(Caller::Mover, change);
                        Wait::Lead
                    }
                },
                Act::Plan => {
                    let (balancer, now_us) = self.observed.balancer(at);
                    let plan = balancer.plan(now_us, &snapshot::of(&self.access.view));
                    act = self.mover.planned(plan, &self.observed, &self.access.view, at);
                    continue;
                }
                Act::Begin { disk, intent, leadership } => {
                    self.intents.drive(&disk);
                    self.round().driven.push((disk.clone(), intent.clone()));
                    match Change::begin_move(&self.access.view, &disk, &intent, Some(leadership)) {
                        Ok(change) => self.access.call(Caller::Mover, change),
                        Err(error) => {
                            act = self.mover.began(Err(error), &mut self.observed, at);
                            continue;
                        }
                    }
                    Wait::Begin { disk, intent, leadership, attempt: 1 }
                }
                Act::HandOn { record, leadership } => {
                    self.access.call(Caller::Mover, Change::balance(leadership, &record));
                    Wait::HandOn { record }
                }
                Act::Call(order) => {
                    self.wishes.push(Wish::Call(order));
                    Wait::Hook
                }
                Act::Refuse { .. } => break,
            };
            self.round().wait = Some(wait);
            return;
        }
        self.end_round();
    }

    fn round(&mut self) -> &mut Round {
        self.round.get_or_insert_default()
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        for (disk, intent) in round.driven {
            self.intents.let_go(&disk);
            self.end(&disk, &intent);
        }
    }

    fn led(&mut self, led: Result<Option<Leadership>, DirectoryError>, now: Micros) -> Option<Act> {
        let at = self.at(now);
        self.mover.led(led, &mut self.observed, &self.access.view, at)
    }

    /// Returns whether it leads, or what it asks etcd for.
    fn lead(&self, now: Micros) -> Result<Result<Option<Leadership>, DirectoryError>, Change> {
        let lease = self.access.lease.filter(|(_, until)| now < *until);
        let Some((lease, _)) = lease else {
            return Ok(Err(DirectoryError::Away { why: "this host has no lease".into() }));
        };
        match Lead::of(&self.access.view, &self.name, self.instance, lease) {
            Lead::Is(leadership) => Ok(Ok(Some(leadership))),
            Lead::Other => Ok(Ok(None)),
            Lead::Ask(change) => Err(change),
        }
    }

    fn answered(&mut self, result: Result<i64, DirectoryError>, now: Micros) {
        let at = self.at(now);
        let Some(wait) = self.round.as_mut().and_then(|round| round.wait.take()) else { return };
        let act = match wait {
            Wait::Lead => {
                let led = match result {
                    Ok(created) => Ok(Some(Leadership::since(created))),
                    Err(DirectoryError::Changed { .. }) => Ok(None),
                    Err(error) => Err(error),
                };
                self.led(led, now)
            }
            Wait::Begin { disk, intent, leadership, attempt } => {
                // The disk's owner has reported it meanwhile.
                let is_reported = matches!(&result, Err(DirectoryError::Changed { key: Key::Disk(_) }));
                let again = Change::begin_move(&self.access.view, &disk, &intent, Some(leadership));
                if is_reported
                    && attempt < MOST_ATTEMPTS
                    && let Ok(change) = again
                {
                    self.access.call(Caller::Mover, change);
                    self.round().wait = Some(Wait::Begin { disk, intent, leadership, attempt: attempt + 1 });
                    return;
                }
                self.mover.began(result.map(drop), &mut self.observed, at)
            }
            Wait::HandOn { record } => self.mover.handed_on(record, result.map(drop), &mut self.observed, at),
            Wait::Hook => {
                self.round().wait = Some(Wait::Hook);
                return;
            }
        };
        self.go_on(act, now);
    }

    /// The program has ended.
    pub fn called(&mut self, is_done: bool, now: Micros) {
        if self.round.as_ref().is_some_and(|round| matches!(round.wait, Some(Wait::Hook))) {
            let at = self.at(now);
            self.mover.moved(is_done, at);
            self.end_round();
        }
    }

    /// An operator orders a move of a VM with one disk from this host.
    pub fn order(&mut self, vm: usize, to: usize, epoch: u64) {
        let [of] = *VMS[vm] else { return };
        if self.by_hand.is_some() {
            return;
        }
        let (disk, name) = (disk_id(of).to_string(), host_name(to));
        let intent = IntentRecord {
            name: format!("disk{of}"),
            from: self.name.clone(),
            epoch,
            to: name.clone(),
            by: self.name.clone(),
            instance: self.instance,
            reason: BY_HAND.into(),
            is_ordered: true,
            most_ms: None,
        };
        let mut by_hand =
            ByHand { vm, to, disk: disk.clone(), intent, is_in_directory: false, is_moving: false };
        match claim(&self.access.view, &disk, &name) {
            Claimed::Elsewhere(_) => return,
            Claimed::Same(_) => by_hand.is_moving = true,
            Claimed::Free => {
                match Change::begin_move(&self.access.view, &disk, &by_hand.intent, None) {
                    Ok(change) => {
                        self.intents.drive(&disk);
                        self.access.call(Caller::Operator, change);
                    }
                    // It goes on without.
                    Err(_) => by_hand.is_moving = true,
                }
            }
        }
        if by_hand.is_moving {
            self.wishes.push(Wish::ByHand { vm, to });
        }
        self.by_hand = Some(by_hand);
    }

    fn began_by_hand(&mut self, result: &Result<i64, DirectoryError>) {
        let Some(by_hand) = &mut self.by_hand else { return };
        by_hand.is_in_directory = result.is_ok();
        if let Err(DirectoryError::Changed { key: Key::Intent(_) }) = result {
            return self.end_by_hand();
        }
        by_hand.is_moving = true;
        let (vm, to) = (by_hand.vm, by_hand.to);
        self.wishes.push(Wish::ByHand { vm, to });
    }

    /// The operator's move has ended.
    pub fn end_by_hand(&mut self) {
        if let Some(by_hand) = self.by_hand.take() {
            self.intents.let_go(&by_hand.disk);
            self.end(&by_hand.disk, &by_hand.intent);
        }
    }

    fn report(&mut self, machines: &Machines, demands: &[u64], capacity_blocks: u64, now: Micros) -> Report {
        self.reports += 1;
        let (mut disks, mut other_disks) = (BTreeMap::new(), BTreeSet::new());
        for (of, demand) in demands.iter().enumerate() {
            let id = disk_id(of).to_string();
            match machines.hosts[self.host].record(of) {
                Some(Record::Owner { epoch, .. }) => {
                    disks.insert(id, self.record(machines, of, *epoch, *demand));
                }
                None | Some(Record::Unknown) => {}
                Some(_) => drop(other_disks.insert(id)),
            }
        }
        let others = (0..machines.hosts.len()).filter(|other| {
            machines.hosts[*other].running.is_some() && !machines.network.is_cut(self.host, *other, now)
        });
        let host = HostRecord {
            instance: self.instance,
            reports: self.reports,
            report_every_s: self.times.report_us as f64 / 1e6,
            software: "0".into(),
            reaches: others.filter(|other| *other != self.host).map(host_name).collect(),
            moves_disks: true,
            link_bytes_per_s: None,
            memory_bytes: None,
            processors: None,
            lends: None,
            borrows: None,
        };
        let pool = PoolRecord {
            state: "ok".into(),
            capacity_bytes: capacity_blocks * BLOCK,
            demand_bytes: disks.values().map(|disk: &DiskRecord| disk.demand_bytes).sum(),
            usage_bytes: 0,
            dirty_bytes: 0,
            load: Load::default(),
            tenant_limits: BTreeMap::new(),
        };
        let pools = BTreeMap::from([("main".into(), pool)]);
        Report { host, pools, closed_pools: BTreeSet::new(), disks, other_disks }
    }

    fn record(&self, machines: &Machines, of: usize, epoch: u64, demand_blocks: u64) -> DiskRecord {
        let vm = VMS.iter().position(|disks| disks.contains(&of)).expect("every disk has a VM");
        let host = &machines.hosts[self.host];
        let is_attached = host.running.as_ref().is_some_and(|running| {
            host.disk(of).and_then(|disk| running.core.disk_info(disk)).is_some_and(|info| info.attached)
        });
        let replication = host.running.as_ref().and_then(|running| running.disks[of].migration.replication());
        let moving_to = host.running.as_ref().and_then(|running| running.disks[of].migration.sends_to());
        let bytes = demand_blocks * BLOCK;
        DiskRecord {
            name: format!("disk{of}"),
            vm: Some(vm_name(vm)),
            tenant: None,
            host: self.name.clone(),
            epoch,
            pool: "main".into(),
            state: if is_attached { "attached" } else { "detached" }.into(),
            can_move: true,
            vm_needs: VmNeeds::default(),
            size_bytes: bytes,
            demand_bytes: bytes,
            usage_bytes: BLOCK,
            dirty_bytes: 0,
            clients: 1,
            moving_to: moving_to.map(|to| host_name(to.0 as usize - 1)),
            replica_at: replication.and(host.replica_at[of]).map(host_name),
            is_replicated: replication == Some(ReplicationState::Complete),
            load: Load { requests_per_s: 1_000.0, ..Load::default() },
            worth: Worth {
                priority: 1.0,
                curve: vec![(bytes / 4, 0.4), (bytes / 2, 0.6), (bytes, 0.9)],
                origin_latency_us: 5_000.0,
                cache_latency_us: 100.0,
                ..Worth::default()
            },
        }
    }

    /// The moves that the directory's record has, as this host sees it.
    pub fn balance(view: &View) -> Option<&BalanceRecord> {
        view.balance.as_ref().map(|seen| &seen.record)
    }
}
