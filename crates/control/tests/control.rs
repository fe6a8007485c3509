//! The loop from records to decisions, and its replay from the log.

use haversack_control::{
    Control, ControlError, Counters, DiskReport, Entry, MOST_RECALLED_LINES, explain, forecasts, log,
    predictions, recalled_lines,
};
use haversack_core::Records;
use haversack_core::monitor::Kind;
use haversack_model::WriteMode;
use haversack_policy::allocate::Target;
use haversack_policy::{Config, DiskFacts, DiskState, Event, OwnWindow, PolicyError, named};

const MINUTE_US: u64 = 60_000_000;
const SYSTEMS: [&str; 9] = ["none", "equal", "static", "wss", "rwss", "utility", "trd", "urd", "max-min"];

fn report(name: &str, counters: Counters) -> DiskReport {
    let facts = DiskFacts {
        name: name.into(),
        vm: name.into(),
        tenant: "tenant".into(),
        priority: 1.0,
        reservation_blocks: 10,
        limit_blocks: u64::MAX,
        fixed_blocks: None,
        used_blocks: 0,
        write_mode: WriteMode::WriteBack,
        own_window: None,
        knee: None,
        window: None,
        goes_on: false,
    };
    DiskReport { facts, counters }
}

/// A loop with a disk that reads the same 200 blocks repeatedly, and one that scans.
struct Pair {
    control: Control,
    now_us: u64,
    read: u64,
    /// Blocks after which the scanning disk starts over.
    scan_blocks: u64,
    /// The window that the scanning disk asks for.
    scan_window: Option<OwnWindow>,
    /// The same of the other disk, and the size that the operator gave it.
    local_window: Option<OwnWindow>,
    local_blocks: Option<u64>,
}

impl Pair {
    fn new(system: &str) -> Pair {
        let config = Config { window_us: MINUTE_US, ..named(system).unwrap() };
        let mut control = Control::new(config, 0).unwrap();
        for disk in ["local", "scan"] {
            assert_eq!(control.event(0, disk, 1 << 20, &Counters::default(), Event::New), Ok(true));
        }
        let scan_blocks = u64::MAX;
        Pair {
            control,
            now_us: 0,
            read: 0,
            scan_blocks,
            scan_window: None,
            local_window: None,
            local_blocks: None,
        }
    }

    fn reports(&self) -> Vec<DiskReport> {
        let counters =
            Counters { read_hits: self.read / 2, read_misses: self.read / 2, ..Counters::default() };
        let mut reports = vec![report("local", counters), report("scan", counters)];
        reports[1].facts.own_window = self.scan_window;
        reports[0].facts.own_window = self.local_window;
        reports[0].facts.fixed_blocks = self.local_blocks;
        reports
    }

    fn window(&mut self) -> haversack_control::Decision {
        for (disk, scan) in [("local", false), ("scan", true)] {
            let mut records = Records::with_room(8192);
            for at in 0..2000 {
                let block = if scan { (self.read + at) % self.scan_blocks } else { at % 200 };
                records.push(self.now_us + at * 1000, Kind::Read, block * 8, 8);
            }
            self.control.note(disk, &records);
        }
        self.read += 2000;
        self.now_us = self.control.due_us();
        self.control.close(self.now_us, 1000, &self.reports()).unwrap()
    }
}

fn lines(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(Entry::line).collect()
}

fn replayed(lines: &[String]) -> Result<log::Replay, ControlError> {
    log::replay(lines.iter().map(String::as_str))
}

#[test]
fn every_system_decides_the_same_from_its_log() {
    for system in SYSTEMS {
        let mut pair = Pair::new(system);
        (0..4).for_each(|_| drop(pair.window()));
        let entries = pair.control.take_log();
        assert_eq!(entries.len(), 1 + 2 + 4, "{system}");
        let found = replayed(&lines(&entries)).unwrap();
        assert_eq!((found.decisions, found.differences), (4, vec![]), "{system}");
        assert!(pair.control.take_log().is_empty());
    }
}

/// While its origin is being replaced, a disk copies itself: 4,000 blocks that say nothing about its demand.
#[test]
fn a_storage_migration_does_not_pollute_the_next_window() {
    let mut pair = Pair::new("wss");
    (0..2).for_each(|_| drop(pair.window()));
    let before = pair.control.window("local").unwrap().clone();
    let begin_us = pair.now_us;
    let tell = |pair: &mut Pair, us, event| {
        let counters = pair.reports()[0].counters;
        pair.control.event(begin_us + us, "local", 1 << 20, &counters, event).unwrap()
    };
    assert!(!tell(&mut pair, 1000, Event::StorageMigrating));
    let mut records = Records::with_room(8192);
    (0..4000).for_each(|at| records.push(begin_us + 2000 + at, Kind::Read, (1000 + at) * 8, 8));
    pair.control.note("local", &records);
    assert!(tell(&mut pair, 9000, Event::StorageMigrated));
    pair.window();
    let after = pair.control.window("local").unwrap();
    assert_eq!((after.accesses(), after.wss_blocks), (before.accesses(), before.wss_blocks), "{after:?}");
    // A window in which the migration goes on to the end shows nothing.
    let known = pair.control.window("local").cloned();
    tell(&mut pair, MINUTE_US + 1000, Event::StorageMigrating);
    pair.window();
    assert_eq!(pair.control.window("local").cloned(), known);
}

/// The local disk's 200 blocks fit, so that nearly all of its reads should hit; by its counters half of them do.
#[test]
fn predictions_are_compared_with_the_window_that_follows() {
    let mut pair = Pair::new("utility");
    (0..4).for_each(|_| drop(pair.window()));
    let log = lines(&pair.control.take_log());
    let found = predictions::predictions(log.iter().map(String::as_str)).unwrap();
    let local: Vec<_> = found.iter().filter(|one| one.disk == "local").collect();
    assert_eq!((found.len(), local.len()), (6, 3));
    assert!(local.iter().all(|one| one.predicted > 0.85 && one.real == 0.5), "{local:?}");
    // What happens to another disk in the midst of a window changes nothing for this one.
    let (now_us, counters) = (pair.now_us + 1000, pair.reports()[1].counters);
    assert!(!pair.control.event(now_us, "scan", 1 << 20, &counters, Event::Stunned).unwrap());
    pair.window();
    let more = lines(&pair.control.take_log());
    let longer = predictions::predictions(log.iter().chain(&more).map(String::as_str)).unwrap();
    let new: Vec<_> = longer[found.len()..].iter().map(|one| one.disk.as_str()).collect();
    assert_eq!(new, ["local"]);
    let (mean, largest) = predictions::errors(&found).unwrap();
    assert!(mean > 0.35 && mean <= largest && largest <= 0.5 + 1e-9, "{mean} {largest}");
    assert_eq!(predictions::errors(&[]), None);
}

/// The local disk cycles through 200 blocks: with 300 all its reads hit, with 100 none. Its window is two of the pool.
#[test]
fn windows_in_which_the_target_moves_are_predicted_by_the_time_at_each_size() {
    let mut pair = Pair::new("static");
    pair.local_window = Some(OwnWindow::Length(2 * MINUTE_US));
    for blocks in [300, 300, 100, 300, 300, 300, 300, 300] {
        pair.local_blocks = Some(blocks);
        pair.window();
    }
    let log = lines(&pair.control.take_log());
    let found = predictions::predictions(log.iter().map(String::as_str)).unwrap();
    let local: Vec<_> = found.iter().filter(|one| one.disk == "local").collect();
    let figures: Vec<_> = local.iter().map(|one| (one.target_blocks, one.has_moved)).collect();
    assert_eq!(figures, [(200, true), (300, false), (300, false)]);
    // In the first window the first read of each block did not hit: 5 %.
    assert!((local[0].predicted - 0.475).abs() < 0.01, "{local:?}");
    assert!(local[1..].iter().all(|one| one.predicted > 0.85), "{local:?}");
}

/// While a disk is awaited, decisions show a window that it brought along. That window is not compared with
/// predictions.
#[test]
fn an_awaited_disk_has_no_real_hit_ratio() {
    let mut pair = Pair::new("utility");
    (0..2).for_each(|_| drop(pair.window()));
    let travelled: Vec<_> = pair.control.kept_windows("local").cloned().collect();
    let mut control = Control::new(pair.control.config().clone(), 0).unwrap();
    control.event(0, "local", 1 << 20, &Counters::default(), Event::Arriving(travelled)).unwrap();
    for minute in 1..4 {
        let reports = [report("local", Counters::default())];
        control.close(minute * MINUTE_US, 1000, &reports).unwrap();
    }
    let log = lines(&control.take_log());
    assert_eq!(predictions::predictions(log.iter().map(String::as_str)), Ok(vec![]));
}

/// The local disk uses 200 blocks in each window, and once 300 more.
#[test]
fn forecasts_are_compared_with_the_window_that_follows() {
    let mut pair = Pair::new("wss");
    (0..3).for_each(|_| drop(pair.window()));
    let mut records = Records::with_room(8192);
    (0..300).for_each(|at| records.push(pair.now_us, Kind::Read, (1000 + at) * 8, 8));
    pair.control.note("local", &records);
    pair.window();
    let log = lines(&pair.control.take_log());
    let found = forecasts::forecasts(log.iter().map(String::as_str)).unwrap();
    let local: Vec<_> = found.iter().filter(|one| one.disk == "local").collect();
    let figures: Vec<_> = local.iter().map(|one| (one.forecast_blocks, one.observed_blocks)).collect();
    assert_eq!(figures, [(200, 200), (200, 200), (200, 500)]);
    assert_eq!((local[2].error(), local[2].method.as_str()), (Some(0.6), "exp-self"));
    let of_local: Vec<_> = local.into_iter().cloned().collect();
    assert!((forecasts::mean_error(&of_local).unwrap() - 0.2).abs() < 1e-12);
    assert_eq!(forecasts::mean_error(&[]), None);
}

/// The scan reads 2,000 other blocks in each window of the pool, and has a window of its own of three.
#[test]
fn each_disk_is_measured_over_its_own_window() {
    let mut pair = Pair::new("wss");
    let config = Config { sample_blocks: 0, ..pair.control.config().clone() };
    pair.control.reconfigure(0, config, |_| None).unwrap();
    pair.scan_window = Some(OwnWindow::Length(2 * MINUTE_US + 1));
    let mut found = Vec::new();
    for _ in 0..9 {
        let decision = pair.window();
        let windows = decision.inputs.disks.iter().map(|disk| disk.window.as_ref().unwrap());
        found.push(
            windows.map(|window| (window.length_us / MINUTE_US, window.wss_blocks)).collect::<Vec<_>>(),
        );
        assert_eq!(pair.control.window("scan"), decision.inputs.disks[1].window.as_ref());
        let which = if found.len() < 3 { "Window so far" } else { "Last window" };
        let (text, minutes) = (explain::explain(&decision, "scan").unwrap(), found.len().min(3));
        assert!(text.contains(&format!("{which} ({} s)", 60 * minutes)), "{text}");
    }
    let scan =
        [(1, 2000), (2, 4000), (3, 6000), (3, 6000), (3, 6000), (3, 6000), (3, 6000), (3, 6000), (3, 6000)];
    assert!(found.iter().all(|disks| disks[0] == (1, 200)), "{found:?}");
    assert_eq!(found.iter().map(|disks| disks[1]).collect::<Vec<_>>(), scan);
    assert_eq!(pair.control.kept_windows("scan").count(), 3);
    let log = lines(&pair.control.take_log());
    assert_eq!(replayed(&log).unwrap().differences, vec![]);
    let forecasts = forecasts::forecasts(log.iter().map(String::as_str)).unwrap();
    let of = |disk| forecasts.iter().filter(move |one| one.disk == disk);
    let figures: Vec<_> = of("scan").map(|one| (one.forecast_blocks, one.observed_blocks)).collect();
    assert_eq!((of("local").count(), figures), (8, vec![(6000, 6000); 2]));
    // A prediction is compared with the window that follows it.
    let predictions = predictions::predictions(log.iter().map(String::as_str)).unwrap();
    assert_eq!(predictions.iter().filter(|one| one.disk == "scan").count(), 2);
}

#[test]
fn reuse_gets_space_and_a_scan_does_not() {
    for system in ["rwss", "utility", "trd", "urd"] {
        let mut pair = Pair::new(system);
        let decision = (0..4).map(|_| pair.window()).last().unwrap();
        let blocks = |disk: &str| decision.plan.disks[disk].target.promised_blocks();
        assert!(blocks("local") >= 200, "{system}: {decision:?}");
        assert!(decision.plan.disks["scan"].demand_blocks < 50, "{system}: {decision:?}");
    }
    let mut pair = Pair::new("none");
    let shared = pair.window().plan.disks["scan"].target;
    assert_eq!(shared, Target::Shared { at_least_blocks: 10, at_most_blocks: 1000 });
}

#[test]
fn a_changed_log_is_found_out() {
    let mut pair = Pair::new("rwss");
    pair.window();
    pair.window();
    let mut written = lines(&pair.control.take_log());
    let last = written.len() - 1;
    let changed = written[last].replacen("\"pool_blocks\":1000", "\"pool_blocks\":900", 1);
    assert_ne!(changed, written[last]);
    written[last] = changed;
    let found = replayed(&written).unwrap();
    let lines: Vec<usize> = found.differences.iter().map(|difference| difference.line).collect();
    assert_eq!(lines, [written.len()]);
    assert_eq!(replayed(&written[1..]), Err(ControlError::NoConfig { line: 3 }));
    written.insert(1, "{}".into());
    assert!(matches!(replayed(&written), Err(ControlError::BadLine { line: 2, .. })));
}

#[test]
fn a_decision_is_explained() {
    let mut pair = Pair::new("urd");
    pair.window();
    let decision = pair.window();
    let text = explain::explain(&decision, "local").unwrap();
    for part in ["local is active", "2000 blocks read", "50.0 %", "Demand", "The pool of 1000 blocks"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert!(
        text.contains("One GiB more would bring this disk ") && text.contains("bring most to "),
        "{text}"
    );
    let refused = explain::explain(&decision, "other").unwrap_err().to_string();
    assert!(refused.contains("'other'") && refused.contains("local, scan"), "{refused}");
}

#[test]
fn refusals_are_logged_and_change_nothing() {
    let mut pair = Pair::new("rwss");
    let before = pair.window();
    let mut reports = pair.reports();
    reports[0].facts.limit_blocks = 1;
    let refused = pair.control.decide(pair.now_us, "test", 1000, &reports);
    assert!(matches!(refused, Err(ControlError::Policy(PolicyError::LimitBelowReservation { .. }))));
    assert_eq!(pair.control.last(), Some(&before));
    let log = pair.control.take_log();
    assert!(matches!(log.last(), Some(Entry::Refused { cause, .. }) if cause == "test"));
    assert!(replayed(&lines(&log)).unwrap().differences.is_empty());
    let short = Config { window_us: 1, measurement_us: 2, ..Config::default() };
    assert!(matches!(Control::new(short, 0), Err(ControlError::Policy(PolicyError::WindowTooShort { .. }))));
}

#[test]
fn life_of_a_disk() {
    let mut pair = Pair::new("rwss");
    pair.window();
    pair.window();
    let counters = Counters::default();
    let mut event = |disk: &str, event| pair.control.event(pair.now_us, disk, 1 << 20, &counters, event);
    assert_eq!(event("local", Event::Stunned), Ok(false));
    assert_eq!(event("local", Event::Resumed), Ok(true));
    assert_eq!(event("local", Event::MigratingOut), Ok(true));
    assert!(event("other", Event::Resumed).is_err());
    assert_eq!(event("scan", Event::Ended), Ok(true));
    assert!(pair.control.window("scan").is_none());
    let travels = pair.control.window("local").cloned().expect("it was measured");
    let mut there = Control::new(named("rwss").unwrap(), 0).unwrap();
    let comes = Event::MigratingIn(Some(Box::new(travels.clone())));
    there.event(0, "local", 1 << 20, &counters, comes).unwrap();
    assert_eq!(there.window("local"), Some(&travels));
    let decision = there.decide(1, "local migrating-in", 1000, &[report("local", counters)]).unwrap();
    assert_eq!(decision.plan.disks["local"].demand_blocks, 200);
    assert!(replayed(&lines(&there.take_log())).unwrap().differences.is_empty());
}

#[test]
fn another_configuration_keeps_what_is_known() {
    let mut pair = Pair::new("wss");
    pair.window();
    pair.window();
    let next = Config { window_us: 2 * MINUTE_US, ..named("rwss").unwrap() };
    pair.control.reconfigure(pair.now_us, next, |_| None).unwrap();
    assert_eq!(pair.control.kept_windows("local").count(), 2, "they travel with the disk");
    assert_eq!(pair.control.state("local"), Some(DiskState::Active), "it has not come from another host");
    let reports = pair.reports();
    let decision = pair.control.decide(pair.now_us, "configuration", 1000, &reports).unwrap();
    assert_eq!(decision.plan.disks["local"].demand_blocks, 200);
    let found = replayed(&lines(&pair.control.take_log())).unwrap();
    assert_eq!((found.decisions, found.differences), (3, vec![]));
}

/// A configuration changes within a window: what was counted in it before is not of the window that begins.
#[test]
fn the_first_window_of_another_configuration_counts_from_the_change() {
    let mut pair = Pair::new("wss");
    pair.window();
    pair.now_us += MINUTE_US / 2;
    pair.read += 700;
    let next = Config { window_us: MINUTE_US, ..named("rwss").unwrap() };
    let now: Vec<_> = pair.reports();
    let counters =
        |disk: &str| now.iter().find(|report| report.facts.name == disk).map(|report| report.counters);
    pair.control.reconfigure(pair.now_us, next, counters).unwrap();
    pair.window();
    for disk in ["local", "scan"] {
        let window = pair.control.window(disk).unwrap();
        assert_eq!((window.reads, window.length_us), (2000, MINUTE_US), "{disk}");
    }
}

#[test]
fn after_a_restart_decisions_go_on_from_the_log() {
    for system in SYSTEMS {
        let mut pair = Pair::new(system);
        (0..5).for_each(|_| drop(pair.window()));
        pair.control.event(pair.now_us, "scan", 1 << 20, &Counters::default(), Event::Stunned).unwrap();
        let mut written = lines(&pair.control.take_log());
        written.insert(3, "{\"torn".into());
        let reports = pair.reports();
        let mut next = Control::new(pair.control.config().clone(), pair.now_us).unwrap();
        next.recall(&written).unwrap();
        for disk in ["local", "scan"] {
            next.begin(pair.now_us, disk, 1 << 20, &Counters::default()).unwrap();
        }
        let decide = |control: &mut Control| control.decide(pair.now_us, "test", 1000, &reports).unwrap();
        assert_eq!(decide(&mut next), decide(&mut pair.control), "{system}");
        assert_eq!(next.forecast_error("local"), pair.control.forecast_error("local"), "{system}");
        assert_eq!(next.window("local"), pair.control.window("local"), "{system}");
        // A third loop learns the same from the log of the second one.
        written.extend(lines(&next.take_log()));
        let mut third = Control::new(next.config().clone(), pair.now_us).unwrap();
        third.recall(&written).unwrap();
        third.begin(pair.now_us, "local", 1 << 20, &Counters::default()).unwrap();
        third.begin(pair.now_us, "scan", 1 << 20, &Counters::default()).unwrap();
        assert_eq!(decide(&mut third), decide(&mut pair.control), "{system}");
    }
}

/// A window of twelve hours is 720 of the pool: more than any fixed number of lines that suits short ones.
#[test]
fn a_restart_looks_back_over_the_windows_of_each_disk() {
    let config = Config { window_us: MINUTE_US, disk_window_us: 10 * MINUTE_US, ..named("wss").unwrap() };
    assert_eq!(recalled_lines(&Config { disk_window_us: 0, ..config.clone() }, []), 256);
    let length = |us| [None, Some(OwnWindow::Length(us))];
    assert_eq!(recalled_lines(&config, length(MINUTE_US)), 2560);
    assert_eq!(recalled_lines(&Config { history_windows: 300, ..config.clone() }, []), 3000);
    assert_eq!(recalled_lines(&config, length(720 * MINUTE_US)), MOST_RECALLED_LINES as usize);
    assert_eq!(recalled_lines(&config, length(u64::MAX)), MOST_RECALLED_LINES as usize);
    assert_eq!(recalled_lines(&config, [Some(OwnWindow::AtKnee)]), 64 * 256);
    // Of a window of the disk of 300 minutes, three have ended and a fourth goes on.
    let mut pair = Pair::new("wss");
    pair.scan_window = Some(OwnWindow::Length(300 * MINUTE_US));
    (0..950).for_each(|_| drop(pair.window()));
    let written = lines(&pair.control.take_log());
    let mut next = Control::new(pair.control.config().clone(), pair.now_us).unwrap();
    let most = recalled_lines(next.config(), [pair.scan_window]);
    next.recall(&written[written.len().saturating_sub(most)..]).unwrap();
    for disk in ["local", "scan"] {
        next.begin(pair.now_us, disk, 1 << 20, &Counters::default()).unwrap();
    }
    assert_eq!(next.kept_windows("scan").count(), 3);
    assert_eq!(next.forecast_error("scan"), pair.control.forecast_error("scan"));
}

#[test]
fn a_restart_by_another_policy_keeps_what_was_shown_and_one_that_left_is_new() {
    let mut pair = Pair::new("rwss");
    (0..3).for_each(|_| drop(pair.window()));
    pair.control.event(pair.now_us, "scan", 1 << 20, &Counters::default(), Event::Ended).unwrap();
    let written = lines(&pair.control.take_log());
    let config = Config { window_us: MINUTE_US, ..named("urd").unwrap() };
    let mut next = Control::new(config, pair.now_us).unwrap();
    next.recall(&written).unwrap();
    for disk in ["local", "scan"] {
        next.begin(pair.now_us, disk, 1 << 20, &Counters::default()).unwrap();
    }
    assert_eq!(next.state("local"), Some(DiskState::Active));
    assert_eq!(next.window("local"), pair.control.window("local"));
    assert_eq!((next.state("scan"), next.window("scan")), (Some(DiskState::New), None));
    next.forget("local");
    next.event(pair.now_us, "local", 1 << 20, &Counters::default(), Event::Ended).unwrap();
    next.begin(pair.now_us, "local", 1 << 20, &Counters::default()).unwrap();
    assert_eq!(next.state("local"), Some(DiskState::New));
}

/// The scanning disk starts over every three windows of the pool. Windows of eight are the shortest in which a cache
/// gets a size that holds all; this shows when those of sixteen have been filled too.
#[test]
fn a_window_is_chosen_while_the_disk_runs() {
    let mut pair = Pair::new("cloudcache");
    pair.scan_blocks = 6000;
    (pair.scan_window, pair.local_window) = (Some(OwnWindow::AtKnee), Some(OwnWindow::AtKnee));
    let chosen = |decision: &haversack_control::Decision, disk: usize| {
        decision.inputs.disks[disk].knee.as_ref().map(|knee| knee.length_us / MINUTE_US)
    };
    let decisions: Vec<_> = (0..84).map(|_| pair.window()).collect();
    let scan: Vec<_> = decisions.iter().map(|decision| chosen(decision, 1)).collect();
    assert!(scan[..4].iter().all(Option::is_none), "{scan:?}");
    assert!(scan[4..64].iter().all(|minutes| *minutes == Some(1)), "{scan:?}");
    assert!(scan[64..].iter().all(|minutes| *minutes == Some(8)), "{scan:?}");
    let last = decisions.last().unwrap();
    assert_eq!(chosen(last, 0), Some(1));
    assert_eq!(last.inputs.disks[1].window.as_ref().unwrap().length_us, 8 * MINUTE_US);
    // Forecasts are of windows of this length: those before, in which nothing was used again, do not count.
    let demand_blocks = last.plan.disks["scan"].demand_blocks;
    assert!((5500..6500).contains(&demand_blocks), "{demand_blocks} blocks");
    let reason = &last.plan.disks["scan"].reason;
    assert!(reason.ends_with("; window of 480 s at the knee"), "{reason}");
    let text = explain::explain(last, "scan").unwrap();
    assert!(text.contains("Window at the knee: 480 s. Hits by length: 0.0 % at 60 s, "), "{text}");

    let written = lines(&pair.control.take_log());
    let found = replayed(&written).unwrap();
    assert_eq!((found.decisions, found.differences), (84, vec![]));

    // A restart knows the choice, and so does another policy with the same window.
    let mut next = Control::new(pair.control.config().clone(), pair.now_us).unwrap();
    next.recall(&written).unwrap();
    for disk in ["local", "scan"] {
        next.begin(pair.now_us, disk, 1 << 20, &Counters::default()).unwrap();
    }
    assert_eq!(next.forecast_error("scan"), pair.control.forecast_error("scan"));
    assert_eq!(next.kept_windows("scan").count(), pair.control.kept_windows("scan").count());
    std::mem::swap(&mut pair.control, &mut next);
    assert_eq!((0..10).map(|_| chosen(&pair.window(), 1)).collect::<Vec<_>>(), [Some(8); 10]);
    let config = Config { window_us: MINUTE_US, ..named("wss").unwrap() };
    pair.control.reconfigure(pair.now_us, config, |_| None).unwrap();
    assert_eq!((0..10).map(|_| chosen(&pair.window(), 1)).collect::<Vec<_>>(), [Some(8); 10]);
    // The operator has the last word.
    pair.scan_window = Some(OwnWindow::Length(2 * MINUTE_US));
    assert_eq!(chosen(&pair.window(), 1), None);
}

/// A policy may choose the windows of all disks that ask for none, and one that measures nothing chooses none.
#[test]
fn the_policy_chooses_the_windows_of_disks_that_ask_for_none() {
    for (system, expected) in [("cloudcache", [Some(MINUTE_US), None]), ("equal", [None, None])] {
        let config = Config { window_us: MINUTE_US, disk_window_at_knee: true, ..named(system).unwrap() };
        let mut pair = Pair::new(system);
        pair.control.reconfigure(0, config, |_| None).unwrap();
        pair.scan_window = Some(OwnWindow::Length(3 * MINUTE_US));
        let last = (0..8).map(|_| pair.window()).last().unwrap();
        let chosen = |disk: usize| last.inputs.disks[disk].knee.as_ref().map(|knee| knee.length_us);
        assert_eq!([0, 1].map(chosen), expected, "{system}");
    }
}
