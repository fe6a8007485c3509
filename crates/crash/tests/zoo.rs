//! Every planted mistake is caught: those of one host by the simulator of one host, those of migration by that of two.
//! `ZOO=NAME` hunts only those whose name contains NAME.

use std::sync::atomic::{AtomicUsize, Ordering};

use haversack_core::bugs::{self, Bug};
use haversack_crash::run::{self, Options, RunReport, run_seed};
use haversack_crash::twin;

const MOST_POINTS: u64 = 200_000;

/// Mistakes that only runs with bases or checkpoints can have.
const OF_SOME_RUNS: [Bug; 5] =
    [Bug::ShareWritten, Bug::ShareDirty, Bug::ShareOldAnswer, Bug::KeepStopName, Bug::TrustCheckpoint];

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
    println!("{:<32} {:>14}  how", "bug", "caught after");
    assert!(!found.is_empty(), "no planted mistake is called {}", wanted());
    let mut survivors = Vec::new();
    for (bug, (points, how)) in found {
        match how {
            Some(how) => {
                println!("{:<32} {points:>7} points  {}", format!("{bug:?}"), shorten(&how));
            }
            None => {
                println!("{:<32} {points:>7} points  SURVIVED", format!("{bug:?}"));
                survivors.push(bug);
            }
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
    // In runs that may have the mistake, so that rare ones are met sooner.
    let plain: Run = |seed| run_seed(seed, &Options { plain: true, ..Options::default() });
    let one = |bug: Bug| if OF_SOME_RUNS.contains(&bug) { any } else { plain };
    let two: Run = twin::run_seed;
    let all =
        bugs::ALL.iter().map(|bug| (*bug, one(*bug))).chain(bugs::OF_MIGRATION.iter().map(|bug| (*bug, two)));
    all.filter(|(bug, _)| format!("{bug:?}").contains(&wanted())).collect()
}

fn hunt(bug: Bug, run: Run) -> (u64, Option<String>) {
    bugs::plant(Some(bug));
    let (mut points, mut how) = (0, None);
    for seed in 1.. {
        let report = run(seed);
        points += report.points;
        how = report.violations.into_iter().next();
        if how.is_some() {
            // It must be the planted mistake that was caught.
            bugs::plant(None);
            if !run(seed).violations.is_empty() {
                how = None;
            }
            bugs::plant(Some(bug));
        }
        if how.is_some() || points >= MOST_POINTS {
            break;
        }
    }
    bugs::plant(None);
    (points, how)
}

fn shorten(violation: &str) -> String {
    let text = violation.split_once(": ").map_or(violation, |(_, what)| what);
    text.lines().next().unwrap_or_default().chars().take(110).collect()
}
