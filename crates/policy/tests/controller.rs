//! The control loop: from windows to plans, through the lifecycle of a VM, and replayed from the log.

use haversack_admission::Admit;
use haversack_model::WriteMode;
use haversack_policy::allocate::Target;
use haversack_policy::demand::working_set_window::WorkingSetWindow;
use haversack_policy::{
    Config, Controller, Curve, DemandRule, DiskFacts, DiskInput, DiskState, DiskWindow, Event, Inputs,
    Intensity, OwnWindow, Plan, PolicyError, TenantBounds, WindowStage, decide, named,
};
use proptest::prelude::*;

const WINDOW_US: u64 = 600_000_000;
const SYSTEMS: [&str; 9] = ["none", "equal", "static", "wss", "rwss", "utility", "trd", "urd", "max-min"];

/// Returns the window of a disk that reads `hot` blocks repeatedly and writes a little.
fn window(hot: u64) -> DiskWindow {
    let curve = Curve::new(vec![(hot / 2, 0.3), (hot, 0.8)]).unwrap();
    DiskWindow {
        length_us: WINDOW_US,
        reads: 9000,
        writes: 1000,
        overwrites: 500,
        read_hits: 5000,
        wss_blocks: 2 * hot,
        rwss_blocks: vec![hot, hot / 2],
        reused_blocks: hot,
        touched_blocks: 2048,
        trd: Curve::new(vec![(hot / 2, 0.3), (2 * hot, 0.9)]).unwrap(),
        urd: curve.clone(),
        read_only: curve,
        intensity: Intensity { length_us: 60_000_000, read_blocks: 900, unique_read_blocks: 90 },
        sampled: Some(0.1),
        unit_blocks: None,
        origin_latency_us: Some(4000.0),
        cache_latency_us: Some(100.0),
    }
}

fn facts(name: &str, window: Option<DiskWindow>) -> DiskFacts {
    DiskFacts {
        name: name.into(),
        vm: name.into(),
        tenant: "tenant".into(),
        priority: 1.0,
        reservation_blocks: 100,
        limit_blocks: u64::MAX,
        fixed_blocks: None,
        used_blocks: 300,
        write_mode: WriteMode::WriteBack,
        own_window: None,
        knee: None,
        window,
        goes_on: false,
    }
}

fn controller(system: &str, disks: &[&str]) -> Controller {
    let mut controller = Controller::new(named(system).unwrap()).unwrap();
    disks.iter().for_each(|disk| assert_eq!(controller.event(disk, Event::New), Ok(true)));
    controller
}

fn target(plan: &Plan, disk: &str) -> u64 {
    plan.disks[disk].target.promised_blocks()
}

/// Closes a window in which each disk has read this many hot blocks; 0 for a disk without any access.
fn close(controller: &mut Controller, pool_blocks: u64, hot: &[(&str, u64)]) -> Plan {
    let measured =
        |hot| if hot == 0 { DiskWindow { length_us: WINDOW_US, ..Default::default() } } else { window(hot) };
    let facts: Vec<_> = hot.iter().map(|(disk, hot)| facts(disk, Some(measured(*hot)))).collect();
    let (inputs, plan) = controller.close_window(0, pool_blocks, &facts).unwrap();
    assert!(plan.promised_blocks() <= pool_blocks);
    assert_eq!(decide(controller.config(), &inputs), Ok(plan.clone()));
    plan
}

/// Decides between windows.
fn decide_now(controller: &mut Controller, pool_blocks: u64, disks: &[&str]) -> Plan {
    let facts: Vec<_> = disks.iter().map(|disk| facts(disk, None)).collect();
    controller.close_window(0, pool_blocks, &facts).unwrap().1
}

#[test]
fn every_system_decides_and_decides_again_from_the_log() {
    for system in SYSTEMS {
        let mut controller = controller(system, &["a", "b", "c"]);
        for round in 1..6 {
            let facts = [(0, "a"), (1, "b"), (2, "c")]
                .map(|(at, disk)| facts(disk, Some(window(100 * (at + round)))));
            let (inputs, plan) = controller.close_window(round, 1000, &facts).unwrap();
            let logged = serde_json::to_string(&(controller.config(), &inputs, &plan)).unwrap();
            let (config, inputs, plan): (Config, Inputs, Plan) = serde_json::from_str(&logged).unwrap();
            assert_eq!(decide(&config, &inputs).unwrap(), plan, "{system}");
            assert_eq!(serde_json::to_string(&(&config, &inputs, &plan)).unwrap(), logged);
            assert!(plan.promised_blocks() <= 1000, "{system}");
            assert!(plan.disks.values().all(|disk| !disk.reason.is_empty()));
        }
    }
}

#[test]
fn rwss_gives_what_is_reused_and_shares_memory_for_staging() {
    let mut controller = controller("rwss", &["a", "b"]);
    let plan = close(&mut controller, 1000, &[("a", 200), ("b", 600)]);
    assert_eq!((target(&plan, "a"), target(&plan, "b")), (250, 750));
    assert!(
        plan.disks["a"].reason.contains("demand 200 by rwss_1 forecast by exp-self"),
        "{:?}",
        plan.disks["a"]
    );
    let bytes = |disk: &str| match plan.disks[disk].admission {
        Admit::Staging { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    };
    // 0.5 % of 1000 blocks of 4096 bytes.
    assert_eq!((bytes("a"), bytes("b")), (5120, 15_360));
}

/// Returns the window of a disk that reads these blocks in order: exact counts, and the curve from distances.
fn reading(blocks: &[u64]) -> DiskWindow {
    let mut counted = WorkingSetWindow::new(WINDOW_US, 0, 1 << 16).unwrap();
    let mut order: Vec<u64> = Vec::new();
    let mut distances = Vec::new();
    for block in blocks {
        counted.access(*block);
        if let Some(depth) = order.iter().rev().position(|other| other == block) {
            distances.push(depth as u64);
            order.remove(order.len() - 1 - depth);
        }
        order.push(*block);
    }
    let (sizes, curve) = (counted.sizes(), Curve::of_distances(distances, blocks.len() as u64));
    DiskWindow {
        length_us: WINDOW_US,
        reads: blocks.len() as u64,
        wss_blocks: sizes.wss_blocks,
        rwss_blocks: sizes.rwss_blocks.to_vec(),
        trd: curve.clone(),
        urd: curve.clone(),
        read_only: curve,
        ..DiskWindow::default()
    }
}

/// Liu's history: decisions each minute by the last thirty minutes. One busy minute is a thirtieth of the history, and
/// is forgotten after thirty more minutes.
#[test]
fn the_history_of_liu_slides() {
    // Use a measured demand, so that the history contains the largest one.
    let config = Config { demand: DemandRule::Wss, ..named("liu").unwrap() };
    assert_eq!(config.window_us, 60_000_000);
    let mut controller = Controller::new(config).unwrap();
    ["a", "b"].iter().for_each(|disk| assert_eq!(controller.event(disk, Event::New), Ok(true)));
    let minute = |reads| DiskWindow {
        length_us: 60_000_000,
        reads,
        writes: 100,
        wss_blocks: 10_000,
        ..DiskWindow::default()
    };
    let mut weight_of = |reads| {
        let facts = [facts("a", Some(minute(reads))), facts("b", Some(minute(1000)))];
        let (inputs, plan) = controller.close_window(0, 8000, &facts).unwrap();
        let history = inputs.disks[0].history.unwrap();
        assert_eq!(history.demand_blocks, 10_000);
        (history.length_us / 60_000_000, history.reads, target(&plan, "a"))
    };
    let (_, _, even) = weight_of(1000);
    for minutes in 2..=30 {
        assert_eq!(weight_of(1000), (minutes, minutes * 1000, even));
    }
    let (minutes, reads, busy) = weight_of(61_000);
    assert_eq!((minutes, reads), (30, 90_000));
    assert!(busy > even, "{busy} and {even}");
    for _ in 1..30 {
        assert_eq!(weight_of(1000), (30, 90_000, busy), "as long as the minute is among the last thirty");
    }
    assert_eq!(weight_of(1000), (30, 30_000, even));
}

/// A disk whose window is longer than the pool's: it first has the figures so far, then those of its last window with
/// new latencies. Its forecast changes only when its own window ends.
#[test]
fn a_disk_has_a_window_of_its_own() {
    let config = Config { window_us: 60_000_000, ..named("wss").unwrap() };
    let windows = [None, Some(1), Some(60_000_000), Some(60_000_001), Some(150_000_000)];
    assert_eq!(
        windows.map(|window| config.most_windows_of_disk(window.map(OwnWindow::Length))),
        [1, 1, 1, 2, 3]
    );
    let own = Config { disk_window_us: 600_000_000, ..config };
    assert_eq!(
        (own.most_windows_of_disk(None), own.most_windows_of_disk(Some(OwnWindow::Length(1)))),
        (10, 1)
    );

    let mut known = controller("wss", &["a"]);
    let seen = |blocks, latency, goes_on| {
        let used = DiskWindow { wss_blocks: blocks, origin_latency_us: latency, ..window(100) };
        let window = if blocks == 0 { DiskWindow { length_us: 1, ..Default::default() } } else { used };
        DiskFacts { goes_on, ..facts("a", Some(window)) }
    };
    let mut log = Vec::new();
    // Blocks, latency of the origin, whether the window goes on; the state, the stage, the demand and the latency then.
    use DiskState::{Active, Idle};
    use WindowStage::{Ended, GoesOn, SoFar};
    for (blocks, latency, goes_on, expected) in [
        (0, None, true, (Idle, SoFar, 0, None)),
        (200, Some(5000.0), true, (Active, SoFar, 200, Some(5000.0))),
        (500, None, true, (Active, SoFar, 500, Some(5000.0))),
        (600, Some(4000.0), false, (Active, Ended, 600, Some(4000.0))),
        (100, Some(3000.0), true, (Active, GoesOn, 600, Some(3000.0))),
        (150, None, true, (Active, GoesOn, 600, Some(3000.0))),
        (0, None, false, (Idle, Ended, 0, Some(3000.0))),
        (70, Some(2000.0), true, (Active, SoFar, 0, Some(2000.0))),
    ] {
        let (inputs, plan) = known.close_window(0, 1000, &[seen(blocks, latency, goes_on)]).unwrap();
        let input = &inputs.disks[0];
        let window = input.window.as_ref().unwrap();
        assert_eq!((input.state, input.window_stage), (expected.0, expected.1), "{blocks} blocks");
        assert_eq!(window.origin_latency_us, expected.3, "{blocks} blocks");
        // After so few windows, the forecast is the last value, or between the two values observed.
        let demand = plan.disks["a"].demand_blocks;
        assert!(demand == expected.2 || (blocks <= 70 && demand < 600), "{blocks} blocks: {demand}");
        log.push((inputs, plan));
    }
    assert_eq!(known.kept_windows("a").count(), 2, "two of its windows have ended");

    // A restart at any point, and the next decision is the same.
    for after in 1..log.len() {
        let mut again = Controller::new(known.config().clone()).unwrap();
        log[..after].iter().for_each(|(inputs, plan)| again.recall(inputs, plan, true));
        let ended = log[..after].iter().filter(|(inputs, _)| inputs.disks[0].window_stage == Ended).count();
        assert_eq!(again.kept_windows("a").count(), ended, "after {after} decisions");
        let (inputs, plan) = &log[after];
        let (blocks, latency, goes_on) = [
            (200, Some(5000.0), true),
            (500, None, true),
            (600, Some(4000.0), false),
            (100, Some(3000.0), true),
            (150, None, true),
            (0, None, false),
            (70, Some(2000.0), true),
        ][after - 1];
        let decided = again.close_window(0, 1000, &[seen(blocks, latency, goes_on)]).unwrap();
        assert_eq!(decided, (inputs.clone(), plan.clone()), "after {after} decisions");
    }
}

/// The curves of both disks cover ten minutes. A burst of one disk takes effect in the minute in which it occurs.
#[test]
fn intensity_moves_shares_between_the_ends_of_the_sampling_window() {
    let mut controller = controller("vcacheshare", &["a", "b"]);
    assert_eq!(
        (controller.config().window_us, controller.config().most_windows_of_disk(None)),
        (60_000_000, 10)
    );
    let mut decide_by = |read_blocks: u64, goes_on| {
        let intensity = Intensity { read_blocks, ..window(300).intensity };
        let of = |name: &str, intensity| DiskFacts {
            goes_on,
            ..facts(name, Some(DiskWindow { intensity, ..window(300) }))
        };
        let facts = [of("a", intensity), of("b", window(300).intensity)];
        let (inputs, plan) = controller.close_window(0, 450, &facts).unwrap();
        assert_eq!(decide(controller.config(), &inputs), Ok(plan.clone()));
        (target(&plan, "a"), target(&plan, "b"))
    };
    // There is room for one of the two curves in full.
    let calm = decide_by(90, false);
    assert!(calm.1 > calm.0, "b reads the same blocks ten times as often: {calm:?}");
    assert_eq!(decide_by(90, true), calm);
    let burst = decide_by(9000, true);
    assert!(burst.0 > burst.1, "{burst:?}");
    assert_eq!(decide_by(90, true), calm, "the burst is over");
}

#[test]
fn a_scan_takes_nothing_from_local_work() {
    let local: Vec<u64> = (0..3000).map(|access| access * 7 % 300).collect();
    let scan: Vec<u64> = (0..3000).collect();
    for system in ["rwss", "utility", "urd", "trd"] {
        let mut controller = controller(system, &["local", "scan"]);
        let facts = [facts("local", Some(reading(&local))), facts("scan", Some(reading(&scan)))];
        let (_, plan) = controller.close_window(0, 450, &facts).unwrap();
        assert!(target(&plan, "local") >= 300, "{system}: {plan:?}");
    }
    // By distinct blocks the scan demands ten times as much.
    let mut controller = controller("wss", &["local", "scan"]);
    let facts = [facts("local", Some(reading(&local))), facts("scan", Some(reading(&scan)))];
    let (_, plan) = controller.close_window(0, 450, &facts).unwrap();
    assert!(target(&plan, "local") < 150, "{plan:?}");
}

#[test]
fn bootstrapping_and_newcomers() {
    for system in ["rwss", "utility", "urd", "max-min"] {
        let mut controller = controller(system, &["a", "b"]);
        let plan = decide_now(&mut controller, 1000, &["a", "b"]);
        assert_eq!((target(&plan, "a"), target(&plan, "b")), (500, 500), "{system}");
        close(&mut controller, 1000, &[("a", 800), ("b", 800)]);
        assert_eq!(controller.event("c", Event::New), Ok(true));
        let plan = decide_now(&mut controller, 1000, &["a", "b", "c"]);
        assert_eq!(target(&plan, "c"), 100, "{system}");
        assert!(plan.disks["c"].reason.contains("nothing measured yet"));
    }
}

/// vCacheShare reclaims a newcomer's reserve of 100 blocks by priority: two thirds and one.
#[test]
fn a_newcomer_s_reserve_is_taken_by_priority() {
    let mut controller = controller("utility", &["a", "b"]);
    let with = |name: &str, priority| DiskFacts { priority, ..facts(name, None) };
    let decide =
        |controller: &mut Controller, all: &[DiskFacts]| controller.close_window(0, 1000, all).unwrap().1;
    close(&mut controller, 1000, &[("a", 800), ("b", 800)]);
    let before = decide(&mut controller, &[with("a", 2.0), with("b", 1.0)]);
    let (a, b) = (target(&before, "a"), target(&before, "b"));
    assert_eq!(a + b, 1000, "{before:?}");
    controller.event("c", Event::New).unwrap();
    for _ in 0..2 {
        let plan = decide(&mut controller, &[with("a", 2.0), with("b", 1.0), with("c", 1.0)]);
        let lost = (a - target(&plan, "a"), b - target(&plan, "b"));
        // No disk gives what is reserved for it.
        let of_b = (b - 100).min(33);
        assert_eq!((target(&plan, "c"), lost), (100, (100 - of_b, of_b)), "{before:?} {plan:?}");
    }
}

#[test]
fn an_idle_disk_gives_way() {
    let mut controller = controller("urd", &["a", "b"]);
    close(&mut controller, 1000, &[("a", 800), ("b", 800)]);
    let plan = close(&mut controller, 1000, &[("a", 0), ("b", 800)]);
    assert_eq!(controller.state("a"), Some(DiskState::Idle));
    assert_eq!((target(&plan, "a"), target(&plan, "b")), (100, 800));
}

#[test]
fn a_stunned_disk_keeps_what_it_has() {
    let mut controller = controller("rwss", &["a", "b"]);
    let before = close(&mut controller, 1000, &[("a", 300), ("b", 300)]);
    assert_eq!(controller.event("a", Event::Stunned), Ok(false));
    let plan = close(&mut controller, 1000, &[("a", 0), ("b", 5000)]);
    assert_eq!(target(&plan, "a"), target(&before, "a"));
    assert_eq!(target(&plan, "b"), 1000 - target(&before, "a"));
    assert!(plan.disks["a"].reason.contains("locked"));
    assert_eq!(controller.event("a", Event::Resumed), Ok(true));
    assert_eq!(controller.state("a"), Some(DiskState::Active));
}

#[test]
fn in_a_shared_pool_a_stunned_disk_keeps_what_it_uses() {
    let mut controller = controller("none", &["a", "b"]);
    let plan = close(&mut controller, 1000, &[("a", 300), ("b", 300)]);
    assert_eq!(plan.disks["a"].target, Target::Shared { at_least_blocks: 100, at_most_blocks: 1000 });
    controller.event("a", Event::Stunned).unwrap();
    let plan = decide_now(&mut controller, 1000, &["a", "b"]);
    assert_eq!(plan.disks["a"].target, Target::Blocks(300));
    assert_eq!(plan.disks["b"].target, Target::Shared { at_least_blocks: 100, at_most_blocks: 700 });
}

#[test]
fn gone_disks_get_nothing_and_come_back_new() {
    for (gone, back) in [(Event::Suspended, Event::Resumed), (Event::MigratingOut, Event::New)] {
        let mut controller = controller("rwss", &["a", "b"]);
        close(&mut controller, 1000, &[("a", 300), ("b", 300)]);
        assert_eq!(controller.event("a", gone), Ok(true));
        let plan = decide_now(&mut controller, 1000, &["a", "b"]);
        assert_eq!((target(&plan, "a"), target(&plan, "b")), (0, 1000));
        assert_eq!(controller.event("a", back), Ok(true));
        assert_eq!(controller.state("a"), Some(DiskState::New));
    }
}

/// The windows of a disk move with it, so the destination makes the same forecast as the source would have.
#[test]
fn a_disk_arrives_with_its_windows_and_is_sized_as_where_it_comes_from() {
    let mut source = controller("rwss", &["b"]);
    for hot in [100, 900, 300, 700, 350, 800] {
        close(&mut source, 10_000, &[("b", hot)]);
    }
    let there = decide_now(&mut source, 10_000, &["b"]);
    let windows: Vec<DiskWindow> = source.kept_windows("b").cloned().collect();
    assert_eq!(windows.len(), 6);
    let last = windows[5..].to_vec();
    let mut destination = controller("rwss", &["a", "b"]);
    close(&mut destination, 10_000, &[("a", 300)]);
    assert_eq!(destination.event("b", Event::Arriving(windows)), Ok(true));
    let here = decide_now(&mut destination, 10_000, &["a", "b"]);
    assert_eq!(here.disks["b"].demand_blocks, there.disks["b"].demand_blocks);
    // With the last window alone, the forecast is different.
    assert_eq!(destination.event("b", Event::Arriving(last)), Ok(true));
    let here = decide_now(&mut destination, 10_000, &["a", "b"]);
    assert_ne!(here.disks["b"].demand_blocks, there.disks["b"].demand_blocks);
}

/// A disk that is on its way is not used yet. That says nothing about what it needs.
#[test]
fn a_disk_that_arrives_keeps_its_share_until_its_vm_has_come() {
    let mut controller = controller("rwss", &["a", "b"]);
    controller.event("b", Event::Arriving(vec![window(300)])).unwrap();
    let before = decide_now(&mut controller, 1000, &["a", "b"]);
    let unused = DiskWindow { length_us: WINDOW_US, ..DiskWindow::default() };
    let close_unused = |controller: &mut Controller| {
        let facts = [facts("a", Some(window(300))), facts("b", Some(unused.clone()))];
        controller.close_window(0, 1000, &facts).unwrap().1
    };
    let plan = close_unused(&mut controller);
    assert_eq!(controller.state("b"), Some(DiskState::MigratedIn));
    assert_eq!(plan.disks["b"].demand_blocks, before.disks["b"].demand_blocks);
    (0..4).for_each(|_| drop(close_unused(&mut controller)));
    assert_eq!(controller.state("b"), Some(DiskState::Idle), "nobody comes");
}

/// A disk with a long window of its own arrives. Its first use shows that its VM has arrived. Until the disk's window
/// ends, its demand is known only from the measurements at the source; only intensity is new.
#[test]
fn a_disk_that_arrived_is_active_from_its_first_use_on() {
    let mut controller = controller("utility", &["a"]);
    controller.event("b", Event::Arriving(vec![window(300)])).unwrap();
    let used = |accesses: u64| DiskWindow {
        length_us: WINDOW_US,
        reads: accesses,
        intensity: Intensity { length_us: WINDOW_US, read_blocks: accesses, unique_read_blocks: accesses },
        ..DiskWindow::default()
    };
    let mut look = |accesses| {
        let facts =
            [facts("a", Some(window(300))), DiskFacts { goes_on: true, ..facts("b", Some(used(accesses))) }];
        let (inputs, _) = controller.close_window(0, 1000, &facts).unwrap();
        let b = inputs.disks.into_iter().find(|disk| disk.name == "b").unwrap();
        let known = b.window.unwrap();
        (b.state, b.window_stage, known.wss_blocks, known.intensity.read_blocks)
    };
    let travelled = (window(300).wss_blocks, window(300).intensity.read_blocks);
    assert_eq!(look(0), (DiskState::MigratedIn, WindowStage::Ended, travelled.0, travelled.1));
    assert_eq!(look(7), (DiskState::Active, WindowStage::GoesOn, travelled.0, 7));
    // A window of the pool without a use does not make the disk idle.
    assert_eq!(look(0), (DiskState::Active, WindowStage::GoesOn, travelled.0, 0));
}

#[test]
fn windows_of_another_host_that_make_no_sense_change_nothing() {
    let mut controller = controller("rwss", &["a"]);
    close(&mut controller, 1000, &[("a", 300)]);
    let before = decide_now(&mut controller, 1000, &["a"]);
    let broken = DiskWindow { overwrites: 1001, ..window(300) };
    let refused = controller.event("a", Event::Arriving(vec![window(100), broken])).unwrap_err().to_string();
    assert!(refused.contains("disk 'a'") && refused.contains("1001 of 1000"), "{refused}");
    let many = vec![window(100); haversack_policy::KEPT_WINDOWS + 1];
    let refused = controller.event("a", Event::Arriving(many)).unwrap_err().to_string();
    assert!(refused.contains("17") && refused.contains("at most 16"), "{refused}");
    assert_eq!(controller.state("a"), Some(DiskState::Active));
    assert_eq!(decide_now(&mut controller, 1000, &["a"]), before);
}

#[test]
fn a_disk_migrates_in_with_its_figures() {
    let mut controller = controller("rwss", &["a"]);
    close(&mut controller, 1000, &[("a", 300)]);
    assert_eq!(controller.event("b", Event::MigratingIn(Some(Box::new(window(300))))), Ok(true));
    let plan = decide_now(&mut controller, 1000, &["a", "b"]);
    assert_eq!((target(&plan, "a"), target(&plan, "b")), (500, 500));
    let broken = DiskWindow { overwrites: 1001, ..window(300) };
    assert!(controller.event("c", Event::MigratingIn(Some(Box::new(broken)))).is_err());
    assert_eq!(controller.state("c"), None);
}

#[test]
fn an_exchanged_origin_is_measured_anew() {
    let mut controller = controller("utility", &["a", "b"]);
    close(&mut controller, 1000, &[("a", 300), ("b", 300)]);
    assert_eq!(controller.event("a", Event::StorageMigrating), Ok(false));
    close(&mut controller, 1000, &[("a", 900), ("b", 300)]);
    assert_eq!(controller.event("a", Event::StorageMigrated), Ok(true));
    let facts = ["a", "b"].map(|disk| facts(disk, None));
    let (inputs, _) = controller.close_window(0, 1000, &facts).unwrap();
    let latency = |at: usize| inputs.disks[at].window.as_ref().unwrap().origin_latency_us;
    assert_eq!((latency(0), latency(1)), (None, Some(4000.0)));
}

#[test]
fn overwriting_disks_become_read_only() {
    let mut controller = controller("urd", &["a", "b"]);
    let overwriting = DiskWindow { reads: 100, writes: 900, overwrites: 700, read_hits: 0, ..window(300) };
    let facts = [facts("a", Some(overwriting)), facts("b", Some(window(300)))];
    let (_, plan) = controller.close_window(0, 1000, &facts).unwrap();
    assert_eq!(plan.disks["a"].write_mode, WriteMode::WriteInvalidate);
    assert_eq!(plan.disks["b"].write_mode, WriteMode::WriteBack);
    assert!(
        plan.disks["a"].reason.contains("write ratio 0.70, at least 0.5: read-only"),
        "{:?}",
        plan.disks["a"]
    );
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut controller = controller("rwss", &["a"]);
    assert!(matches!(controller.event("x", Event::Stunned), Err(PolicyError::UnknownDisk { .. })));
    let wrong = controller.event("a", Event::StorageMigrated).unwrap_err().to_string();
    assert_eq!(wrong, "disk 'a' is new: 'storage-migrated' cannot happen to it now");
    let twice = [facts("a", Some(window(10))), facts("a", Some(window(10)))];
    assert!(matches!(controller.close_window(0, 1000, &twice), Err(PolicyError::TwiceThere { .. })));
    assert_eq!(controller.state("a"), Some(DiskState::New));
    let low = [DiskFacts { limit_blocks: 50, ..facts("a", None) }];
    assert!(matches!(controller.close_window(0, 1000, &low), Err(PolicyError::LimitBelowReservation { .. })));
    let small = controller.close_window(0, 99, &[facts("a", Some(window(10)))]);
    assert!(matches!(small, Err(PolicyError::Oversubscribed { promised_blocks: 100, pool_blocks: 99 })));
    controller.event("a", Event::Ended).unwrap();
    assert_eq!(controller.state("a"), None);
    assert!(Controller::new(Config { window_us: 1, ..Config::default() }).is_err());
}

fn states() -> impl Strategy<Value = DiskState> {
    use DiskState::{Active, Idle, MigratedIn, MigratedOut, New, StorageMigrating, Stunned, Suspended};
    prop::sample::select(vec![
        New,
        Active,
        Active,
        Idle,
        MigratedIn,
        Stunned,
        StorageMigrating,
        Suspended,
        MigratedOut,
    ])
}

prop_compose! {
    fn disks()(
        all in prop::collection::vec(
            (states(), 0.1..4.0f64, 0u64..300, 0u64..3000, 2u64..5000, prop::option::of(any::<u64>()), 0u64..200),
            1..12,
        )
    ) -> Vec<DiskInput> {
        let one = |(at, (state, priority, least, room, hot, forecast_blocks, target_blocks))| DiskInput {
            window_stage: WindowStage::Ended,
            name: format!("disk{at}"),
            vm: format!("vm{}", at / 2),
            tenant: format!("tenant{}", at / 4),
            state,
            priority,
            reservation_blocks: least,
            limit_blocks: least + room,
            fixed_blocks: forecast_blocks,
            target_blocks,
            write_mode: WriteMode::WriteBack,
            forecast_blocks,
            forecast_by: None,
            window: (state != DiskState::New).then(|| window(hot)),
            knee: None,
            history: None,
        };
        all.into_iter().enumerate().map(one).collect()
    }
}

proptest! {
    /// Whatever the inputs, a decision respects reservations, limits, locks and the pool size, or is refused.
    #[test]
    fn decisions_hold_or_are_refused(disks in disks(), pool_blocks in 0u64..10_000) {
        let inputs = Inputs { time_us: 0, pool_blocks, disks, tenants: Vec::new() };
        let locked: u64 = inputs.disks.iter().filter(|disk| disk.state.locked()).map(|disk| disk.target_blocks).sum();
        let present = inputs.disks.iter().filter(|disk| !disk.state.locked() && !disk.state.gone());
        let promised = locked + present.map(|disk| disk.reservation_blocks).sum::<u64>();
        for system in SYSTEMS {
            let Ok(plan) = decide(&named(system).unwrap(), &inputs) else {
                prop_assert!(promised > pool_blocks, "{system} refuses what could be");
                continue;
            };
            prop_assert!(plan.promised_blocks() <= pool_blocks, "{system}");
            for disk in &inputs.disks {
                let got = plan.disks[&disk.name].target.promised_blocks();
                let range = match disk.state {
                    state if state.locked() => disk.target_blocks..=disk.target_blocks,
                    state if state.gone() => 0..=0,
                    _ => disk.reservation_blocks..=disk.limit_blocks,
                };
                prop_assert!(range.contains(&got), "{system}: {} has {got} of {range:?}", disk.name);
            }
        }
    }
}

fn tenant(name: &str, least_blocks: u64, most_blocks: Option<u64>) -> TenantBounds {
    TenantBounds { tenant: name.into(), least_blocks, most_blocks }
}

/// Returns facts of a disk of a tenant that reads this many hot blocks.
fn facts_of(tenant: &str, name: &str, hot: u64) -> DiskFacts {
    DiskFacts { tenant: tenant.into(), reservation_blocks: 0, ..facts(name, Some(window(hot))) }
}

/// Returns the sum of the targets of a tenant's disks, and whether all of these targets are caps.
fn together(inputs: &Inputs, plan: &Plan, tenant: &str) -> (u64, bool) {
    let own =
        inputs.disks.iter().filter(|disk| disk.tenant == tenant).map(|disk| plan.disks[&disk.name].target);
    let own: Vec<Target> = own.collect();
    let is_capped = own.iter().all(|target| matches!(target, Target::Capped(_)));
    (own.iter().map(|target| target.promised_blocks()).sum(), is_capped)
}

#[test]
fn every_system_keeps_a_tenant_within_its_bound_and_leaves_no_disk_without_space() {
    for system in haversack_policy::SYSTEMS {
        let mut controller = controller(system, &["a", "b", "c"]);
        controller.set_tenants(vec![tenant("shop", 0, Some(3000))]);
        let facts = [facts_of("shop", "a", 9000), facts_of("shop", "b", 9000), facts_of("lab", "c", 4000)];
        // Before anything is measured, and after.
        for _ in 0..2 {
            let (inputs, plan) = controller.close_window(0, 20_000, &facts).unwrap();
            let (blocks, is_capped) = together(&inputs, &plan, "shop");
            // The least that a policy gives every disk comes first.
            let most = 3000.max(2 * controller.config().least_blocks);
            assert!(blocks <= most && is_capped, "{system}: {plan:?}");
            assert!(["a", "b"].iter().all(|disk| target(&plan, disk) >= 256), "{system}: {plan:?}");
            assert!(plan.promised_blocks() <= 20_000, "{system}");
        }
        // A bound of zero, and one larger than the pool.
        controller.set_tenants(vec![tenant("shop", 0, Some(0)), tenant("lab", u64::MAX, Some(u64::MAX))]);
        let (_, plan) = controller.close_window(0, 20_000, &facts).unwrap();
        assert!(["a", "b", "c"].iter().all(|disk| target(&plan, disk) > 0), "{system}: {plan:?}");
        assert!(plan.promised_blocks() <= 20_000, "{system}");
        controller.set_tenants(Vec::new());
        let (inputs, plan) = controller.close_window(0, 20_000, &facts).unwrap();
        assert_eq!(decide(controller.config(), &inputs), Ok(plan.clone()), "{system}");
        assert!(!plan.reason.contains("cluster"), "{system}: {}", plan.reason);
    }
}

#[test]
fn what_a_tenant_has_at_least_is_its_disks_reservation_as_far_as_they_demand_it() {
    for system in haversack_policy::SYSTEMS {
        let mut controller = controller(system, &["a", "b", "c"]);
        let facts = [facts_of("shop", "a", 2000), facts_of("shop", "b", 10), facts_of("lab", "c", 90_000)];
        controller.close_window(0, 10_000, &facts).unwrap();
        controller.set_tenants(vec![tenant("shop", 2500, None), tenant("lab", 7500, None)]);
        let (inputs, plan) = controller.close_window(0, 10_000, &facts).unwrap();
        let (blocks, _) = together(&inputs, &plan, "shop");
        let demanded: u64 = ["a", "b"].iter().map(|disk| plan.disks[*disk].demand_blocks).sum();
        assert!(blocks >= demanded.min(2500), "{system}: {blocks} of {demanded}");
        assert!(plan.promised_blocks() <= 10_000, "{system}");
    }
}

#[test]
fn what_tenants_have_lasts_over_a_restart_and_another_policy() {
    let mut before = controller("none", &["a"]);
    before.set_tenants(vec![tenant("tenant", 0, Some(500))]);
    let (inputs, plan) = before.close_window(0, 1000, &[facts("a", Some(window(900)))]).unwrap();
    let mut after = Controller::new(named("none").unwrap()).unwrap();
    after.recall(&inputs, &plan, true);
    assert_eq!(after.tenants(), before.tenants());
    let mut other = after.reconfigured(named("rwss").unwrap()).unwrap();
    let (_, plan) = other.close_window(0, 1000, &[facts("a", Some(window(900)))]).unwrap();
    assert_eq!(plan.disks["a"].target, Target::Capped(500));
}
