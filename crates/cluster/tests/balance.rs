//! Properties of balancing over many windows: constraints, order, oscillation, variance, changes of the leader.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use haversack_cluster::{Balancer, HostName, Rule, Settings, Snapshot, VmName};
use haversack_model::random::Random;

const RULES: [Rule; 2] = [Rule::LeastVariance, Rule::LeastLatency];

fn settings(rule: Rule) -> Settings {
    Settings { rule, max_moves_per_hour: 1000, ..Settings::default() }
}

#[test]
fn no_plan_violates_a_constraint() {
    let mut moves = 0;
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let snapshot = random_cluster(&mut random);
        for rule in RULES {
            let mut balancer = Balancer::new(Settings { windows: 1, ..settings(rule) }).unwrap();
            let plan = balancer.round(0, &snapshot).unwrap();
            check_plan(&snapshot, &plan, &format!("seed {seed}, {rule:?}"));
            moves += plan.moves.len();
        }
    }
    assert!(moves > 1000, "only {moves} moves");
}

#[test]
fn the_order_of_a_snapshot_does_not_matter() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let snapshot = random_cluster(&mut random);
        let mut shuffled = snapshot.clone();
        random.shuffle(&mut shuffled.hosts);
        random.shuffle(&mut shuffled.vms);
        for rule in RULES {
            let mut balancer = Balancer::new(Settings { windows: 1, ..settings(rule) }).unwrap();
            let plan = balancer.clone().round(0, &shuffled).unwrap();
            assert_eq!(plan, balancer.round(0, &snapshot).unwrap(), "seed {seed}, {rule:?}");
        }
    }
}

/// 20 hosts with 8 VMs each, loaded to 55 % on average.
fn cluster(random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for number in 0..20 {
        let name = format!("h{number:02}");
        snapshot.hosts.push(host(&name, 10_000));
        for _ in 0..8 {
            let demand = random.range(200, 1200);
            let mut vm = vm(&format!("vm{:03}", snapshot.vms.len()), &name, demand);
            set_demand(&mut vm, demand, random.range(100, 2000) as f64);
            snapshot.vms.push(vm);
        }
    }
    snapshot
}

/// Moves that were made: when, which VM, from where to where.
type Log = Vec<(u64, VmName, HostName, HostName)>;

/// Runs this many windows with the given demands, and checks each plan.
fn run(
    snapshot: &mut Snapshot,
    settings: &Settings,
    windows: u64,
    mut demands: impl FnMut(u64, &mut Snapshot),
) -> Log {
    let mut balancer = Balancer::new(settings.clone()).unwrap();
    let mut log = Log::new();
    for window in 0..windows {
        demands(window, snapshot);
        let now_us = window * WINDOW_US;
        let plan = balancer.round(now_us, snapshot).unwrap();
        check_plan(snapshot, &plan, &format!("window {window}"));
        log.extend(
            plan.moves.iter().map(|moved| (now_us, moved.vm.clone(), moved.from.clone(), moved.to.clone())),
        );
        carry_out(snapshot, &mut balancer, now_us, &plan);
    }
    log
}

/// Checks that no VM moves twice within an hour, and that none returns to a host too soon.
fn check_log(log: &Log, settings: &Settings, context: &str) {
    let mut last: BTreeMap<&VmName, u64> = BTreeMap::new();
    let mut left: BTreeMap<(&VmName, &HostName), u64> = BTreeMap::new();
    for (at_us, vm, from, to) in log {
        if let Some(before_us) = last.insert(vm, *at_us) {
            assert!(at_us - before_us >= HOUR_US, "{context}: {vm} moved after {} us", at_us - before_us);
        }
        if let Some(left_us) = left.get(&(vm, to)) {
            assert!(at_us - left_us >= settings.no_return_us, "{context}: {vm} returns to {to}");
        }
        left.insert((vm, from), *at_us);
    }
}

fn scale(snapshot: &mut Snapshot, base: &Snapshot, factor: impl Fn(usize) -> f64) {
    for (at, (vm, before)) in snapshot.vms.iter_mut().zip(&base.vms).enumerate() {
        let demand = before.demand_blocks() as f64 * factor(at);
        set_demand(vm, demand as u64, before.disks[0].accesses_per_s);
    }
}

/// Demands of a fifth of the hosts rise two and a half times.
#[test]
fn variance_halves_within_three_windows_after_a_step() {
    for seed in 0..20 {
        for rule in RULES {
            let mut snapshot = cluster(&mut Random::new(seed));
            let base = snapshot.clone();
            scale(&mut snapshot, &base, |at| if at / 8 % 5 == 0 { 2.5 } else { 1.0 });
            let before = variance(&snapshot);
            let log = run(&mut snapshot, &settings(rule), 3, |_, _| {});
            let after = variance(&snapshot);
            assert!(after <= before / 2.0, "seed {seed}, {rule:?}: {before} to {after}");
            check_log(&log, &settings(rule), &format!("seed {seed}, {rule:?}"));
        }
    }
}

/// If demand stays constant, nothing moves any more once the cluster is balanced.
#[test]
fn constant_demand_comes_to_rest() {
    for seed in 0..10 {
        for rule in RULES {
            let mut snapshot = cluster(&mut Random::new(seed));
            let base = snapshot.clone();
            let mut random = Random::new(seed + 1000);
            let factors: Vec<f64> = base.vms.iter().map(|_| 0.3 + 2.0 * random.unit()).collect();
            let context = format!("seed {seed}, {rule:?}");
            let log = run(&mut snapshot, &settings(rule), 150, |_, snapshot| {
                scale(snapshot, &base, |at| factors[at]);
            });
            check_log(&log, &settings(rule), &context);
            let late = log.iter().filter(|moved| moved.0 >= 50 * WINDOW_US).count();
            assert_eq!(late, 0, "{context}: of {} moves", log.len());
        }
    }
}

/// Demand varies by 40 % around a mean of 70 % of the caches: hosts are above the threshold now and then.
#[test]
fn random_demand_does_not_move_vms_to_and_fro() {
    for seed in 0..10 {
        let mut snapshot = cluster(&mut Random::new(seed));
        let base = snapshot.clone();
        let mut random = Random::new(seed + 2000);
        let settings = settings(Rule::LeastLatency);
        let log = run(&mut snapshot, &settings, 300, |_, snapshot| {
            let factors: Vec<f64> = base.vms.iter().map(|_| 1.25 * (0.6 + 0.8 * random.unit())).collect();
            scale(snapshot, &base, |at| factors[at]);
        });
        let context = format!("seed {seed}");
        check_log(&log, &settings, &context);
        // In fifty hours with 160 VMs.
        assert!(log.len() <= 40, "{context}: {} moves", log.len());
        let late = log.iter().filter(|moved| moved.0 >= 150 * WINDOW_US).count();
        assert!(late * 2 <= log.len().max(8), "{context}: {late} of {} moves in the second half", log.len());
    }
}

/// Two halves of the cluster are overloaded in turns, for each length of a turn.
#[test]
fn alternating_demand_does_not_move_vms_to_and_fro() {
    for period in 1..=18 {
        for seed in 0..3 {
            let mut snapshot = cluster(&mut Random::new(seed));
            let base = snapshot.clone();
            let settings = settings(Rule::LeastLatency);
            let log = run(&mut snapshot, &settings, 216, |window, snapshot| {
                let turn = (window / period) % 2;
                scale(snapshot, &base, |at| if (at / 8) as u64 % 2 == turn { 2.2 } else { 0.4 });
            });
            let context = format!("period {period}, seed {seed}");
            check_log(&log, &settings, &context);
            let late: BTreeSet<&VmName> =
                log.iter().filter(|moved| moved.0 >= 144 * WINDOW_US).map(|moved| &moved.1).collect();
            assert!(late.len() <= 8, "{context}: {} VMs in the last third, {} moves", late.len(), log.len());
        }
    }
}

/// An adversary raises demand wherever a VM has just gone, and lowers it where it came from.
#[test]
fn an_adversary_gets_one_move_an_hour_and_no_return() {
    for seed in 0..5 {
        for rule in RULES {
            let mut snapshot = cluster(&mut Random::new(seed));
            let base = snapshot.clone();
            let settings = Settings { no_return_us: 6 * HOUR_US, ..settings(rule) };
            let mut start: Option<BTreeMap<VmName, HostName>> = None;
            let log = run(&mut snapshot, &settings, 200, |_, snapshot| {
                let here: BTreeMap<VmName, HostName> =
                    snapshot.vms.iter().map(|vm| (vm.name.clone(), vm.host.clone())).collect();
                let before = start.get_or_insert_with(|| here.clone());
                let came: BTreeSet<&HostName> =
                    here.iter().filter(|(vm, host)| before[*vm] != **host).map(|(_, host)| host).collect();
                let factors: Vec<f64> =
                    snapshot.vms.iter().map(|vm| if came.contains(&vm.host) { 2.4 } else { 0.5 }).collect();
                let is_first = came.is_empty();
                scale(snapshot, &base, |at| if is_first && at / 8 < 4 { 2.4 } else { factors[at] });
                if !is_first {
                    start = Some(here);
                }
            });
            check_log(&log, &settings, &format!("seed {seed}, {rule:?}"));
        }
    }
}

/// The leader changes in each window; its successor has the saved state.
#[test]
fn a_new_leader_decides_as_the_old_one() {
    for seed in 0..50 {
        let mut snapshot = cluster(&mut Random::new(seed));
        let base = snapshot.clone();
        let mut random = Random::new(seed);
        let mut old = Balancer::new(settings(Rule::LeastLatency)).unwrap();
        for window in 0..20 {
            scale(&mut snapshot, &base, |at| if at < 40 { 2.0 } else { 0.5 });
            let mut new: Balancer = serde_json::from_str(&serde_json::to_string(&old).unwrap()).unwrap();
            random.shuffle(&mut snapshot.hosts);
            let now_us = window * WINDOW_US;
            let plan = new.round(now_us, &snapshot).unwrap();
            assert_eq!(plan, old.round(now_us, &snapshot).unwrap(), "seed {seed}, window {window}");
            carry_out(&mut snapshot, &mut old, now_us, &plan);
        }
        // A balancer restored only from the history of moves has the same moves on record, but starts to count windows
        // from zero.
        let restored = Balancer::restore(old.settings().clone(), old.moves().cloned().collect()).unwrap();
        assert!(restored.moves().eq(old.moves()));
        assert!(restored.plan(20 * WINDOW_US, &snapshot).unwrap().moves.is_empty());
    }
}
