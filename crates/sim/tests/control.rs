//! The control loop over the production cache: the shares of the disks, and their hits.

use haversack_policy::{Config, named};
use haversack_sim::{PolicyName, Pool, RestartKind, Restarts, Row, Settings, SimError, Sizes, Traffic};
use haversack_trace::generate::{Generator, Mix, Pattern};
use haversack_trace::{MergeOptions, Merged, Source};

const SECOND_US: u64 = 1_000_000;
/// The local disk's working set, and the pool: twice that.
const WORKING_SET: u64 = 4_000;
const POOL: u64 = 2 * WORKING_SET;

fn generated(pattern: Pattern, blocks: u64, requests: u64, rate: f64, seed: u64) -> Box<dyn Source> {
    let mix = Mix { read: 1.0, ..Mix::default() };
    Generator { pattern, blocks, mix, volumes: 1, requests, rate, seed }.source().expect("it makes sense")
}

/// A disk that reads its working set again and again, at 500 requests a second for 400 s.
fn local() -> Box<dyn Source> {
    generated(Pattern::Zipf { theta: 0.5 }, WORKING_SET, 200_000, 500.0, 1)
}

/// A disk that scans without reuse, four times as fast.
fn scan() -> Box<dyn Source> {
    generated(Pattern::Scan { stride: None }, 1 << 22, 800_000, 2000.0, 2)
}

fn config(system: &str) -> Config {
    let config = named(system).expect("it is known");
    Config { window_us: 40 * SECOND_US, measurement_us: 10 * SECOND_US, ..config }
}

fn row(sources: &(dyn Fn() -> Vec<Box<dyn Source>> + Sync), control: Option<Config>) -> Row {
    let opener = || -> Result<Box<dyn Source>, SimError> {
        let mut sources = sources();
        if sources.len() == 1 {
            return Ok(sources.remove(0));
        }
        Ok(Box::new(Merged::new(sources, MergeOptions { align: true, separate: true })))
    };
    let sizes = Sizes::Blocks(vec![POOL]);
    // What is learnt and filled in the first half is not counted.
    let traffic = Traffic { warm_up: 0.5, ..Traffic::default() };
    let settings = Settings { sizes, control, traffic, ..Settings::default() };
    let report = haversack_sim::run(&opener, &settings, &|_, _| {}).expect("it is simulated");
    report.of(PolicyName::Core).next().expect("the production cache").clone()
}

fn local_hits(row: &Row) -> f64 {
    1.0 - row.volumes[0].miss_ratio.expect("accesses")
}

/// Alone, the local disk has the pool to itself; beside a scan it keeps its working set, with or without a policy.
#[test]
fn a_scan_beside_local_work() {
    let alone = local_hits(&row(&|| vec![local()], None));
    let beside = |system| local_hits(&row(&|| vec![local(), scan()], Some(config(system))));
    let (none, rwss, utility) = (beside("none"), beside("rwss"), beside("utility"));
    let told = format!("alone {alone:.3}, none {none:.3}, rwss {rwss:.3}, utility {utility:.3}");
    println!("{told}");
    assert!(alone > 0.9, "{told}");
    assert!(none.min(rwss).min(utility) > alone - 0.02, "{told}");
}

#[test]
fn the_same_simulation_decides_the_same() {
    let run = || row(&|| vec![local(), scan()], Some(config("urd")));
    let (one, other) = (run(), run());
    let log =
        |row: &Row| row.production.clone().and_then(|production| production.control).expect("governed").log;
    assert_eq!(log(&one), log(&other));
    let replayed = haversack_control::log::replay(log(&one).iter().map(String::as_str)).expect("a log");
    assert!(replayed.decisions > 8 && replayed.differences.is_empty(), "{replayed:?}");
    assert_eq!(one.volumes, other.volumes);
}

/// After a restart, the daemon first decides by the last window in its log. Its windows start again at the restart.
#[test]
fn the_control_loop_goes_on_after_a_restart() {
    let opener = || -> Result<Box<dyn Source>, SimError> {
        Ok(Box::new(Merged::new(vec![local(), scan()], MergeOptions { align: true, separate: true })))
    };
    let restarts = Restarts { every_ns: 99 * SECOND_US * 1000, kind: RestartKind::Kill };
    let pool = Pool { restarts: Some(restarts), ..Pool::default() };
    let (sizes, control) = (Sizes::Blocks(vec![POOL]), Some(config("rwss")));
    let settings = Settings { sizes, control, pool, ..Settings::default() };
    let report = haversack_sim::run(&opener, &settings, &|_, _| {}).expect("it is simulated");
    let row = report.of(PolicyName::Core).next().expect("the production cache");
    let production = row.production.as_ref().expect("the production cache tells more");
    let governed = production.control.as_ref().expect("governed");
    assert_eq!((production.restarts, governed.targets.len()), (4, 13));
    // After each start there is a decision at the start itself, and one at the ends of the windows 40 s and 80 s later.
    let lives = governed.targets.chunks_exact(3).map(|life| life.iter().map(|sample| sample.time_seconds));
    let found: Vec<Vec<f64>> = lives.map(Iterator::collect).collect();
    let life = |start: f64| vec![start, start + 40.0, start + 80.0];
    assert_eq!(found, [life(0.0), life(99.0), life(198.0), life(297.0)]);
    let mut known = [0, 0];
    for life in governed.targets.chunks_exact(3) {
        assert_eq!(life[0].demand_blocks, known, "{life:?}");
        known = [life[2].demand_blocks[0], life[2].demand_blocks[1]];
        assert!(life[1].demand_blocks[0] > WORKING_SET / 2 && life[1].demand_blocks[1] == 0, "{life:?}");
    }
    let replayed = haversack_control::log::replay(governed.log.iter().map(String::as_str)).expect("a log");
    assert!(replayed.decisions == 13 && replayed.differences.is_empty(), "{replayed:?}");
}

#[test]
fn a_window_shorter_than_its_measurement_is_refused() {
    let opener = || -> Result<Box<dyn Source>, SimError> { Ok(local()) };
    let control = Some(Config { window_us: 1, ..config("rwss") });
    let settings = Settings { sizes: Sizes::Blocks(vec![POOL]), control, ..Settings::default() };
    let refused = haversack_sim::run(&opener, &settings, &|_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("shorter than its measurement"), "{refused}");
}
