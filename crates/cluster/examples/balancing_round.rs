//! Measures a balancing round, the planning of loans and a division among tenants of a large cluster, in processor
//! time: `cargo run --release -p haversack-cluster --example balancing_round [HOSTS] [SEED]`.

use haversack_cluster::{
    Balancer, Borrows, Demand, Disk, Host, HostName, Lends, Offers, Plan, Rule, Settings, Snapshot, Tenant,
    TenantName, Vm, VmName, demands, divide,
};
use haversack_model::random::Random;
use haversack_policy::Curve;

const VMS_A_HOST: u64 = 15;
const CAPACITY_BLOCKS: u64 = 200 << 20;
const TENANTS: u64 = 500;

/// Seconds of processor time that this thread has used: other programs on the machine do not matter.
fn processor_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let hosts = arguments.next().unwrap_or(10_000);
    let seed = arguments.next().unwrap_or(1);
    println!("{hosts} hosts, {} VMs, seed {seed}", hosts * VMS_A_HOST);
    for overloaded_percent in [2, 20, 60] {
        for is_tight in [false, true] {
            let snapshot = cluster(hosts, overloaded_percent, is_tight, &mut Random::new(seed));
            for rule in [Rule::LeastVariance, Rule::LeastLatency] {
                for limit in [Settings::default().max_moves_per_hour, u32::MAX] {
                    let tight = if is_tight { ", little memory" } else { "" };
                    print!("{overloaded_percent} % overloaded{tight}, {rule:?}: ");
                    measure(&snapshot, rule, limit);
                }
            }
        }
    }
    for overloaded_percent in [2, 20, 60] {
        plan_loans(overloaded_percent, &cluster(hosts, overloaded_percent, false, &mut Random::new(seed)));
    }
    divide_tenants(hosts, &mut Random::new(seed));
}

fn measure(snapshot: &Snapshot, rule: Rule, max_moves_per_hour: u32) {
    let settings = Settings { rule, max_moves_per_hour, ..Settings::default() };
    let mut balancer = Balancer::new(settings).unwrap();
    balancer.observe(snapshot).unwrap();
    balancer.observe(snapshot).unwrap();
    let start = processor_s();
    let Plan { moves, held, variance_before, variance_after } = balancer.round(0, snapshot).unwrap();
    println!(
        "{:.3} s, {} moves, {} hosts held, variance {variance_before:.4} to {variance_after:.4}",
        processor_s() - start,
        moves.len(),
        held.len(),
    );
}

/// Plans the loans of a cluster in which all hosts lend, borrow, and reach a hundred others.
fn plan_loans(overloaded_percent: u64, snapshot: &Snapshot) {
    let mut balancer = Balancer::new(Settings::default()).unwrap();
    (0..3).for_each(|_| balancer.observe(snapshot).unwrap());
    let names: Vec<&HostName> = snapshot.hosts.iter().map(|host| &host.name).collect();
    let lends = Lends { spare_blocks: CAPACITY_BLOCKS, to: None };
    let borrows = |at: usize| {
        let reaches = (1..=100).map(|step| names[(at + step) % names.len()].clone()).collect();
        Borrows { reaches, ..Borrows::default() }
    };
    let offers = Offers {
        lenders: names.iter().map(|name| ((*name).clone(), lends.clone())).collect(),
        borrowers: names.iter().enumerate().map(|(at, name)| ((*name).clone(), borrows(at))).collect(),
        moves_are_made: false,
    };
    let start = processor_s();
    let plan = balancer.plan(0, snapshot).unwrap();
    let planned = processor_s();
    let loans = balancer.loans(snapshot, &plan, &offers).unwrap();
    println!(
        "{overloaded_percent} % overloaded: {} loans, {:.3} s after {:.3} s for the moves",
        loans.len(),
        processor_s() - planned,
        planned - start
    );
}

fn cluster(hosts: u64, overloaded_percent: u64, is_tight: bool, random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for number in 0..hosts {
        let name = HostName(format!("host-{number:05}"));
        // In a tight cluster, a host in ten has room for a VM more.
        let more = if is_tight && !random.percent(10) { 0 } else { 4 };
        snapshot.hosts.push(Host {
            name: name.clone(),
            capacity_blocks: CAPACITY_BLOCKS,
            memory_bytes: Some((VMS_A_HOST + more) * (8 << 30)),
            vcpus: Some(200),
            link_bytes_per_s: 1_250_000_000,
            ..Host::default()
        });
        let load = if random.percent(overloaded_percent) { 1.3 } else { 0.3 + 0.5 * random.unit() };
        for vm in 0..VMS_A_HOST {
            let demand = load * (0.5 + random.unit()) * (CAPACITY_BLOCKS / VMS_A_HOST) as f64;
            snapshot.vms.push(vm_of(number * VMS_A_HOST + vm, &name, demand as u64, random));
        }
    }
    snapshot
}

fn vm_of(number: u64, host: &HostName, demand_blocks: u64, random: &mut Random) -> Vm {
    let highest = 0.3 + 0.6 * random.unit();
    let bend = 0.4 + 0.2 * random.unit();
    let point = |at: u64| (demand_blocks * at / 16 + at, highest * (at as f64 / 16.0).powf(bend));
    let disk = Disk {
        name: format!("disk-{number}").as_str().into(),
        demand_blocks,
        priority: 1.0,
        cached_blocks: demand_blocks,
        reused_blocks: demand_blocks / 4,
        dirty_blocks: demand_blocks / 50,
        accesses_per_s: 100.0 + 5000.0 * random.unit().powi(3),
        curve: Curve::estimated((1..=16).map(point)),
        origin_latency_us: 2000.0,
        cache_latency_us: 100.0,
        ..Disk::default()
    };
    Vm {
        name: VmName(format!("vm-{number:06}")),
        tenant: TenantName(format!("tenant-{}", random.below(TENANTS))),
        host: host.clone(),
        memory_bytes: 8 << 30,
        vcpus: 8,
        disks: vec![disk],
        ..Vm::default()
    }
}

fn divide_tenants(hosts: u64, random: &mut Random) {
    let snapshot = cluster(hosts, 20, false, random);
    let tenants: Vec<Tenant> = (0..TENANTS)
        .map(|number| Tenant {
            name: TenantName(format!("tenant-{number}")),
            weight: 1.0 + random.below(8) as f64,
            reservation_blocks: random.below(hosts * CAPACITY_BLOCKS / TENANTS / 2),
            limit_blocks: random.percent(20).then_some(hosts * CAPACITY_BLOCKS / TENANTS),
        })
        .collect();
    for percent in [100, 60, 30] {
        let caches: Vec<(HostName, u64)> = snapshot
            .hosts
            .iter()
            .map(|host| (host.name.clone(), host.capacity_blocks / 100 * percent))
            .collect();
        let start = processor_s();
        let demands: Vec<Demand> = demands(&snapshot);
        let division = divide(&caches, &tenants, &demands, 16384).unwrap();
        let met = division.totals.iter().filter(|total| total.blocks == total.demand_blocks).count();
        println!(
            "{TENANTS} tenants, {} demands, caches of {percent} %: {:.3} s, {met} have all that they demand",
            demands.len(),
            processor_s() - start
        );
    }
}
