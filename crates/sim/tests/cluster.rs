//! The cluster simulator: the claims that docs/compare-cluster.md makes, with built-in scenarios, some of them with
//! fewer hosts.

use std::path::Path;

use haversack_sim::cluster::{System, model};
use haversack_sim::compare_cluster::{
    ClusterChoices, ClusterComparison, Details, Goal, Scenario, built_in, compare_cluster, goals, page, table,
};
use haversack_sim::mix::Mix;

fn mix(name: &str) -> Mix {
    toml::from_str(built_in(name).unwrap()).unwrap()
}

fn model_of(name: &str, hosts: usize) -> model::Scenario {
    let scenario: model::Scenario = toml::from_str(built_in(name).unwrap()).unwrap();
    model::Scenario { hosts, ..scenario }
}

fn compared(scenario: &Scenario, systems: &[System], seeds: &[u64]) -> ClusterComparison {
    let choices = ClusterChoices { systems: systems.to_vec(), seeds: seeds.to_vec(), threads: 0 };
    compare_cluster(scenario, Path::new("."), &choices, &|_, _| {}).unwrap()
}

fn of_model(scenario: model::Scenario, seeds: &[u64]) -> ClusterComparison {
    compared(&Scenario::Model(Box::new(scenario)), &[], seeds)
}

fn mean(
    comparison: &ClusterComparison,
    system: System,
    figure: fn(&haversack_sim::compare_cluster::Run) -> f64,
) -> f64 {
    let figures: Vec<f64> = comparison.of(system).map(figure).collect();
    figures.iter().sum::<f64>() / figures.len() as f64
}

fn goal<'a>(goals: &'a [Goal], start: &str) -> &'a Goal {
    goals
        .iter()
        .find(|goal| goal.measure.starts_with(start))
        .unwrap_or_else(|| panic!("no goal {start}: {goals:?}"))
}

/// Shortens the loads to a tenth, so that a test takes seconds. The size of the gains is not judged with them.
fn short(mix: &Mix) -> Mix {
    let mut mix = mix.clone();
    for disk in &mut mix.disks {
        for generator in disk.generator.iter_mut().chain(&mut disk.then) {
            generator.requests /= 10;
        }
    }
    mix.window_s = mix.window_s.map(|seconds| seconds / 10.0);
    mix
}

/// CloudCache reports 28 % more hits with moves and 17 % more without, and a 90th percentile that is 27 % lower with
/// moves and 13 % lower without. So over its allocation alone, its moves gain 9.4 % hits and 16.1 % of the 90th
/// percentile.
#[test]
fn twelve_vms_gain_by_moves_and_ours_gains_more() {
    let scenario = Scenario::Traced(Box::new(mix("cloudcache-12")));
    let systems = [
        System::Local,
        System::LeastVariance,
        System::LeastLatency,
        System::HaversackLocal,
        System::Haversack,
    ];
    let comparison = compared(&scenario, &systems, &[1]);
    let text = table(&comparison).to_text();
    let hits = |system| mean(&comparison, system, |run| run.hit_ratio);
    let p90_us = |system| mean(&comparison, system, |run| run.p90_us);
    let mean_us = |system| mean(&comparison, system, |run| run.mean_us);
    // The paper's rule gains over no moves: measured over three seeds, 5 % more hits.
    assert!(hits(System::LeastVariance) > hits(System::Local) * 1.02, "{text}");
    assert!(mean_us(System::LeastVariance) < mean_us(System::Local) * 0.98, "{text}");
    // Our system gains more over the paper's allocation than the paper's moves do: measured, 27 % more hits.
    assert!(hits(System::Haversack) > hits(System::Local) * 1.094, "{text}");
    assert!(p90_us(System::Haversack) < p90_us(System::Local) * (1.0 - 0.161), "{text}");
    // Our system is also better than the paper's rule: measured, 21 % more hits and 29 % less latency.
    assert!(hits(System::Haversack) > hits(System::LeastVariance) * 1.1, "{text}");
    assert!(mean_us(System::Haversack) < mean_us(System::LeastVariance) * 0.85, "{text}");
    // Our rule with the paper's allocation and patience is better than the paper's rule with each of three seeds, by at
    // least 0.6 % of the hits.
    assert!(hits(System::LeastLatency) > hits(System::LeastVariance), "{text}");
    assert!(mean_us(System::LeastLatency) < mean_us(System::LeastVariance), "{text}");
    // Part of our gain comes from moves: measured, 10 % more hits.
    assert!(hits(System::Haversack) > hits(System::HaversackLocal) * 1.03, "{text}");
    for run in &comparison.runs {
        let Details::Traced(outcome) = &run.details else { panic!("it has requests") };
        assert_eq!(outcome.moves.is_empty(), run.system.rule().is_none(), "{text}");
        for moved in &outcome.moves {
            // The cached blocks move with the VM, and its stall is short.
            assert!(moved.blocks[1] > 0 && moved.sent_bytes > moved.blocks[1] * 4096 / 2, "{moved:?}");
            assert!(moved.stopped_seconds < 1.0, "{moved:?}");
        }
    }
    assert!(page(&[comparison]).to_html().contains("Load over hosts and time"));
}

#[test]
fn the_same_seed_gives_the_same_cluster() {
    let scenario = Scenario::Traced(Box::new(short(&mix("cloudcache-12"))));
    let systems = [System::LeastVariance, System::Haversack];
    let [one, again] = [0, 0].map(|_| compared(&scenario, &systems, &[3]));
    assert_eq!(one, again);
    assert_ne!(one.runs[0].mean_us, compared(&scenario, &systems, &[4]).runs[0].mean_us);
    let scenario = model_of("diurnal", 20);
    let json = |seed| {
        let outcome = model::simulate(&scenario, System::LeastLatency, seed).unwrap();
        serde_json::to_string(&outcome).unwrap()
    };
    assert_eq!(json(7), json(7));
    assert_ne!(json(7), json(8));
}

/// Windows with more accesses weigh more.
#[test]
fn figures_of_all_accesses_are_weighted_by_them() {
    let outcome = model::simulate(&model_of("step", 20), System::Local, 1).unwrap();
    let of_all = |figure: fn(&model::Sample) -> f64| outcome.windows.iter().map(figure).sum::<f64>();
    let all = of_all(|window| window.accesses);
    let hits = of_all(|window| window.hit_ratio * window.accesses) / all;
    assert!((outcome.hit_ratio - hits).abs() < 1e-9);
    assert!((outcome.mean_us - of_all(|window| window.mean_us * window.accesses) / all).abs() < 1e-6);
    let of_windows = of_all(|window| window.hit_ratio) / outcome.windows.len() as f64;
    assert!((of_windows - hits).abs() > 1e-6, "after the step there are more accesses: {of_windows} {hits}");
}

#[test]
fn a_step_in_demand_is_levelled_within_three_windows() {
    let comparison = of_model(model_of("step", 100), &[1, 2, 3]);
    let goals = goals(&comparison);
    let text = table(&comparison).to_text();
    for start in ["variance of load 3 windows after a step: least-latency", "VMs moved twice", "VMs lost"] {
        let goal = goal(&goals, start);
        assert_eq!(goal.reached, Some(true), "{goal:?}\n{text}");
    }
    // The number of hosts above the threshold is not tested: our rule stops when another move would cost more than it
    // gains.
    let variance = |system| mean(&comparison, system, |run| run.variance);
    assert!(variance(System::LeastLatency) * 2.0 < variance(System::Local), "{text}");
    let mean_us = |system| mean(&comparison, system, |run| run.mean_us);
    assert!(mean_us(System::LeastLatency) < mean_us(System::Local), "{text}");
}

#[test]
fn no_vm_is_lost_and_none_moves_twice_in_an_hour() {
    for name in ["failures", "maintenance", "diurnal"] {
        let comparison = of_model(model_of(name, 40), &[1, 2]);
        let goals = goals(&comparison);
        let text = table(&comparison).to_text();
        for start in ["VMs moved twice", "VMs lost"] {
            let goal = goal(&goals, start);
            assert_eq!(goal.reached, Some(true), "{name}: {goal:?}\n{text}");
        }
        let mean_us = |system| mean(&comparison, system, |run| run.mean_us);
        assert!(mean_us(System::LeastLatency) < mean_us(System::Local), "{name}\n{text}");
        assert!(mean_us(System::Local) < mean_us(System::Equal), "{name}\n{text}");
    }
}

/// Rules are compared under the same demand and the same failures.
#[test]
fn events_do_not_depend_on_the_rule() {
    for name in ["step", "failures"] {
        let of = |system| model::simulate(&model_of(name, 40), system, 1).unwrap();
        let (equal, ours) = (of(System::Equal), of(System::LeastLatency));
        assert!(ours.moves > 0, "{name}: nothing moved");
        let away =
            |outcome: &model::Outcome| outcome.windows.iter().map(|window| window.away).collect::<Vec<_>>();
        assert_eq!(away(&equal), away(&ours), "{name}");
        let demand = |loads: &Vec<f32>| loads.iter().filter(|load| load.is_finite()).sum::<f32>();
        for (window, (a, b)) in equal.loads.iter().zip(&ours.loads).enumerate() {
            let (a, b) = (demand(a), demand(b));
            assert!((a - b).abs() < a * 1e-3, "{name}, window {window}: {a} and {b}");
        }
    }
}

#[test]
fn a_failure_and_maintenance_take_hosts_away_and_bring_them_back() {
    for name in ["failures", "maintenance"] {
        let outcome = model::simulate(&model_of(name, 40), System::LeastLatency, 1).unwrap();
        assert!(outcome.windows.iter().any(|window| window.away > 0), "{name}: no host was away");
        assert_eq!(outcome.windows.last().unwrap().away, 0, "{name}: a host is not back");
    }
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let scenario = model_of("step", 10);
    let error = model::simulate(&scenario, System::Haversack, 1).unwrap_err().to_string();
    assert!(error.contains("least-variance"), "{error}");
    let none = model::Scenario { hosts: 1, ..scenario };
    assert!(model::simulate(&none, System::Local, 1).is_err());
    for (key, value) in [("hosts", "1000000000000"), ("length", "\"100000000h\""), ("window", "\"1us\"")] {
        let mut text: toml::Table = toml::from_str(built_in("step").unwrap()).unwrap();
        text.insert(key.into(), toml::from_str::<toml::Table>(&format!("v = {value}")).unwrap()["v"].clone());
        let absurd: model::Scenario = text.try_into().unwrap();
        let error = absurd.check().unwrap_err().to_string();
        assert!(error.contains("more than"), "{key}: {error}");
    }
    for (key, value) in
        [("factor = 2.0", "factor = 1e300"), ("kind = \"step\"", "kind = \"failure\"\nlasts = \"1000000h\"")]
    {
        let text = built_in("step").unwrap().replace(key, value).replace("factor = 2.0", "");
        let absurd: model::Scenario = toml::from_str(&text).unwrap();
        assert!(absurd.check().is_err(), "{value}");
    }
    let mut wrong = mix("cloudcache-12");
    wrong.cluster.as_mut().unwrap().hosts[0].push("vm13".into());
    let error = Scenario::Traced(Box::new(wrong)).check().unwrap_err().to_string();
    assert!(error.contains("vm13"), "{error}");
}

/// Some windows after the step, hosts whose VMs cannot move borrow flash from the lenders that the production plan
/// names.
#[test]
fn hosts_whose_vms_cannot_move_gain_by_borrowing() {
    let comparison = of_model(model_of("lending", 50), &[1, 2]);
    let text = table(&comparison).to_text();
    let mean_us = |system| mean(&comparison, system, |run| run.mean_us);
    assert!(text.contains("lent hits %"), "{text}");
    assert!(mean_us(System::Lending) < mean_us(System::LeastLatency), "{text}");
    for run in &comparison.runs {
        let Details::Model(outcome) = &run.details else { panic!("it has no requests") };
        let lends = run.system == System::Lending;
        assert_eq!(outcome.moves, 0, "{text}");
        assert_eq!(outcome.lent_hit_ratio > 0.0, lends, "{text}");
        let borrowers: Vec<usize> = outcome.windows.iter().map(|window| window.borrowers).collect();
        // The step is in window 12; a host counts as overloaded at the end of the third window from then on.
        assert!(!lends || borrowers[15..].iter().all(|count| *count >= 5), "{borrowers:?}");
        assert!(outcome.windows.iter().all(|window| (window.lent_bytes > 0) <= (window.borrowers > 0)));
        let served = |window: &model::Sample| window.hit_ratio + window.lent_hit_ratio;
        assert!(outcome.windows.iter().all(|window| served(window) <= 1.0));
    }
    assert!(page(std::slice::from_ref(&comparison)).to_html().contains("Flash lent"));
}

#[test]
fn lending_is_refused_where_no_host_lends() {
    for scenario in [
        Scenario::Model(Box::new(model_of("step", 20))),
        Scenario::Traced(Box::new(short(&mix("cloudcache-12")))),
    ] {
        let choices = ClusterChoices { systems: vec![System::Lending], ..ClusterChoices::default() };
        let error = compare_cluster(&scenario, Path::new("."), &choices, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("lending") && !scenario.systems().contains(&System::Lending), "{error}");
    }
}
