//! Every planted mistake is caught: those of one host by the simulator of one host, those of migration by that of two,
//! those of a cluster by that of five. `ZOO=NAME` hunts only those whose name contains NAME.

use std::sync::atomic::{AtomicUsize, Ordering};

use haversack_core::bugs::Bug as Core;
use haversack_crash::run::{self, Options, RunReport, run_seed};
use haversack_crash::zoo::{Bug, all};
use haversack_crash::{cluster, twin};

const MOST_POINTS: u64 = 200_000;

/// Mistakes that show only in runs with bases, with checkpoints, or with cleaning in order.
const OF_SOME_RUNS: [Core; 8] = [
    Core::ShareWritten,
    Core::ShareDirty,
    Core::ShareOldAnswer,
    Core::KeepStopName,
    Core::TrustCheckpoint,
    Core::CleanOutOfOrder,
    Core::CommitOutOfOrder,
    Core::AroundOutOfOrder,
];

/// Seeds that have caught rare mistakes: they are tried first.
const KEPT_SEEDS: [(Bug, u64); 4] = [
    (Bug::Core(Core::LossUnrecorded), 778),
    (Bug::Core(Core::TrustCheckpoint), 601),
    (Bug::Migration(Core::RetakeStaged), 22176),
    (Bug::Takeover(Core::TakeFromHolder), 490),
];

#[test]
fn every_planted_mistake_is_caught() {
    run::quiet_panics();
    let hunts = hunts();
    let next = AtomicUsize::new(0);
    let hunter = || {
        let mine = std::iter::from_fn(|| hunts.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(|(bug, run)| (*bug, hunt(*bug, *run))).collect::<Vec<_>>()
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let hunters = [scope.spawn(hunter), scope.spawn(hunter)];
        hunters.into_iter().flat_map(|one| one.join().expect("a hunt catches panics")).collect()
    });
    println!("{:<32} {:>14} {:>8}  how", "bug", "caught after", "by seed");
    assert!(!found.is_empty(), "no planted mistake is called {}", wanted());
    let mut survivors = Vec::new();
    for (bug, (points, caught)) in found {
        let (seed, how) = match &caught {
            Some((seed, how)) => (seed.to_string(), shorten(how)),
            None => (String::new(), "SURVIVED".into()),
        };
        println!("{:<32} {points:>7} points {seed:>8}  {how}", bug.to_string());
        if caught.is_none() {
            survivors.push(bug);
        }
    }
    assert!(survivors.is_empty(), "the simulator is too weak for {survivors:?}");
}

fn wanted() -> String {
    std::env::var("ZOO").unwrap_or_default()
}

type Run = fn(u64) -> RunReport;

/// Returns the mistakes to hunt, and the simulator that must catch each.
fn hunts() -> Vec<(Bug, Run)> {
    let any: Run = |seed| run_seed(seed, &Options::default());
    // Other mistakes of the core show in plain runs, where rare ones are found sooner.
    let plain: Run = |seed| run_seed(seed, &Options { plain: true, ..Options::default() });
    // A disk that is taken from a host with dirty blocks is found sooner where the blocks may be those of a replica.
    let replicas_in_brief: Run = |seed| cluster::run(seed, cluster::Options { brief: true, replicas: true });
    let run = |bug: Bug| match bug {
        Bug::Core(bug) if OF_SOME_RUNS.contains(&bug) => any,
        Bug::Core(_) => plain,
        Bug::Migration(_) => twin::run_seed_with_replicas,
        Bug::Takeover(Core::TakeFromHolder) => replicas_in_brief,
        Bug::Place(_) => cluster::run_seed_with_replicas,
        Bug::Cluster(_) | Bug::Takeover(_) => cluster::run_seed,
    };
    let all = all().map(|bug| (bug, run(bug)));
    all.filter(|(bug, _)| bug.to_string().contains(&wanted())).collect()
}

/// Returns the number of crash points that were tried, and the seed that caught the mistake with what it found.
fn hunt(bug: Bug, run: Run) -> (u64, Option<(u64, String)>) {
    let mut points = 0;
    let kept = KEPT_SEEDS.iter().filter(|(kept, _)| bug == *kept).map(|(_, seed)| *seed);
    for seed in kept.chain(1..) {
        Bug::plant(Some(bug));
        let report = run(seed);
        Bug::plant(None);
        points += report.points;
        let found = report.violations.into_iter().next();
        // It must be the planted mistake that was caught.
        if let Some(how) = found.filter(|_| run(seed).violations.is_empty()) {
            return (points, Some((seed, how)));
        }
        if points >= MOST_POINTS {
            break;
        }
    }
    (points, None)
}

fn shorten(violation: &str) -> String {
    let text = violation.split_once(": ").map_or(violation, |(_, what)| what);
    text.lines().next().unwrap_or_default().chars().take(110).collect()
}
