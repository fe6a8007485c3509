//! Clusters for tests, and what must hold for every plan.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

use haversack_cluster::{
    Balancer, Disk, Host, HostName, HostState, Move, MoveRecord, Plan, Snapshot, Vm, VmName,
};
use haversack_model::random::Random;
use haversack_policy::Curve;

pub const MINUTE_US: u64 = 60_000_000;
pub const HOUR_US: u64 = 60 * MINUTE_US;
/// The window of the tests.
pub const WINDOW_US: u64 = 10 * MINUTE_US;

pub fn host(name: &str, capacity_blocks: u64) -> Host {
    Host { name: name.into(), capacity_blocks, link_bytes_per_s: 1_000_000_000, ..Host::default() }
}

/// A VM with one disk, whose hits rise with its cache up to its demand.
pub fn vm(name: &str, on: &str, demand_blocks: u64) -> Vm {
    let mut vm = Vm { name: name.into(), host: on.into(), disks: vec![Disk::default()], ..Vm::default() };
    vm.disks[0] = Disk {
        name: name.into(),
        priority: 1.0,
        origin_latency_us: 2000.0,
        cache_latency_us: 100.0,
        ..Disk::default()
    };
    set_demand(&mut vm, demand_blocks, 1000.0);
    vm
}

/// Sets the demand of a VM, with a concave curve up to it.
pub fn set_demand(vm: &mut Vm, demand_blocks: u64, accesses_per_s: f64) {
    let disk = &mut vm.disks[0];
    disk.demand_blocks = demand_blocks;
    disk.accesses_per_s = accesses_per_s;
    disk.reused_blocks = demand_blocks / 2;
    disk.dirty_blocks = demand_blocks / 20;
    disk.curve =
        Curve::estimated((1..=10).map(|at| (demand_blocks * at / 10, 0.8 * (at as f64 / 10.0).sqrt())));
}

/// A cluster with VMs of random sizes.
pub fn random_cluster(random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let hosts = random.range(2, 12);
    for number in 0..hosts {
        let mut host = host(&format!("h{number}"), random.range(500, 2000));
        host.memory_bytes = random.percent(80).then(|| random.range(20, 60));
        host.vcpus = random.percent(50).then(|| random.range(10, 40) as u32);
        host.state = match random.below(8) {
            0 => HostState::Draining,
            1 => HostState::Away,
            _ => HostState::Serving,
        };
        snapshot.hosts.push(host);
    }
    for number in 0..random.range(hosts, hosts * 8) {
        let on = format!("h{}", random.below(hosts));
        let mut vm = vm(&format!("vm{number}"), &on, random.skewed(600));
        vm.disks[0].accesses_per_s = random.skewed(5000) as f64;
        vm.memory_bytes = random.range(1, 12);
        vm.vcpus = random.range(1, 8) as u32;
        vm.disks[0].reservation_blocks = if random.percent(30) { random.below(200) } else { 0 };
        vm.pinned = random.percent(10).then(|| "it has a device of its host".into());
        vm.moving_to = random.percent(5).then(|| HostName(format!("h{}", random.below(hosts))));
        vm.anti_affinity =
            (0..3).filter(|_| random.percent(10)).map(|group| format!("group{group}")).collect();
        snapshot.vms.push(vm);
    }
    snapshot
}

/// Carries out a plan, and tells the balancer.
pub fn carry_out(snapshot: &mut Snapshot, balancer: &mut Balancer, now_us: u64, plan: &Plan) {
    for moved in &plan.moves {
        balancer.record(MoveRecord::of(now_us, moved));
        let vm = snapshot.vms.iter_mut().find(|vm| vm.name == moved.vm).unwrap();
        assert_eq!(vm.host, moved.from);
        vm.host = moved.to.clone();
    }
}

/// Variance of load over serving hosts.
pub fn variance(snapshot: &Snapshot) -> f64 {
    let loads: Vec<f64> = loads(snapshot).into_values().collect();
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64
}

pub fn loads(snapshot: &Snapshot) -> BTreeMap<&HostName, f64> {
    let serving = snapshot.hosts.iter().filter(|host| host.state == HostState::Serving);
    serving
        .map(|host| {
            let here =
                snapshot.vms.iter().filter(|vm| vm.moving_to.as_ref().unwrap_or(&vm.host) == &host.name);
            (&host.name, here.map(Vm::demand_blocks).sum::<u64>() as f64 / host.capacity_blocks as f64)
        })
        .collect()
}

/// Checks that a plan violates no constraint.
pub fn check_plan(snapshot: &Snapshot, plan: &Plan, context: &str) {
    if let Some(violation) = violation(snapshot, plan) {
        panic!("{context}: {violation}");
    }
}

/// Returns a constraint that a plan violates, if there is one, even if all VMs are on both of their hosts at the same
/// time.
pub fn violation(snapshot: &Snapshot, plan: &Plan) -> Option<String> {
    let mut on: BTreeMap<&HostName, Vec<&Vm>> = BTreeMap::new();
    let mut reserved_at: BTreeMap<&HostName, u64> = BTreeMap::new();
    for vm in &snapshot.vms {
        let at: BTreeSet<&HostName> = std::iter::once(&vm.host).chain(&vm.moving_to).collect();
        at.into_iter().for_each(|host| on.entry(host).or_default().push(vm));
        *reserved_at.entry(vm.moving_to.as_ref().unwrap_or(&vm.host)).or_default() += vm.reservation_blocks();
    }
    let mut seen: BTreeSet<&VmName> = BTreeSet::new();
    for Move { vm: name, from, to, .. } in &plan.moves {
        let vm = snapshot.vms.iter().find(|vm| vm.name == *name).unwrap();
        let host = snapshot.hosts.iter().find(|host| host.name == *to).unwrap();
        let there = on.entry(&host.name).or_default();
        let groups: Vec<&String> = there.iter().flat_map(|other| &other.anti_affinity).collect();
        let is_apart = !vm.anti_affinity.iter().any(|group| groups.contains(&group));
        there.push(vm);
        let (memory, vcpus) =
            there.iter().fold((0, 0), |(memory, vcpus), vm| (memory + vm.memory_bytes, vcpus + vm.vcpus));
        *reserved_at.get_mut(&vm.host).unwrap() -= vm.reservation_blocks();
        let reserved = reserved_at.entry(&host.name).or_default();
        *reserved += vm.reservation_blocks();
        let rules = [
            ("it is moved once", seen.insert(name)),
            ("it is where it is said to be", vm.host == *from && from != to),
            ("it can be moved", vm.pinned.is_none() && vm.moving_to.is_none()),
            ("the host serves", host.state == HostState::Serving),
            ("anti-affinity", is_apart),
            ("memory", host.memory_bytes.is_none_or(|most| memory <= most)),
            ("processors", host.vcpus.is_none_or(|most| vcpus <= most)),
            ("reservations", *reserved <= host.capacity_blocks),
        ];
        if let Some((rule, _)) = rules.into_iter().find(|(_, holds)| !holds) {
            return Some(format!("{name} from {from} to {to}: {rule}"));
        }
    }
    None
}
