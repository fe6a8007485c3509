//! A VM moves between two simulated hosts with its cache, with every method.

use std::path::Path;

use haversack_sim::SimError;
use haversack_sim::compare_migration::{MigrationChoices, compare_migration, goals, page, summaries, table};
use haversack_sim::migration::{Method, MigrationTable, Outcome, Setup, simulate};
use haversack_sim::mix::Mix;
use haversack_sim::tape::Tape;

/// A VM that reads and writes moves, beside one that stays on each host.
const MIX: &str = r#"
title = "A small move"
fractions = [0.5]

[migration]
disk = "vm"
at = "6s"
window = "3s"
memory = "1s"
link = "1Gbit"

[[disk]]
name = "vm"
generator = { pattern = { kind = "zipf", theta = 0.9 }, blocks = 4000, mix = { read = 0.7, sizes = [[4096, 1.0]] }, volumes = 1, requests = 45000, rate = 4000.0, seed = 1 }

[[disk]]
name = "source-neighbour"
generator = { pattern = { kind = "zipf", theta = 0.9 }, blocks = 2000, volumes = 1, requests = 9000, rate = 900.0, seed = 2 }

[[disk]]
name = "destination-neighbour"
host = "b"
generator = { pattern = { kind = "zipf", theta = 0.9 }, blocks = 2000, volumes = 1, requests = 9000, rate = 900.0, seed = 3 }
"#;

fn moved_by(mix: &Mix, table: &MigrationTable, method: Method, seed: u64) -> Result<Outcome, SimError> {
    let folder = Path::new(".");
    let mix = mix.with_seed(seed);
    let opener = || mix.open(folder);
    let settings = mix.settings_of_migration()?;
    let tape = Tape::new(&opener, &settings.traffic, settings.block_bytes, &|_| {})?;
    let latency = table.latency.model();
    let setup = Setup::of_mix(&mix, table, folder, &tape.survey, &settings, &latency)?;
    simulate(&setup, &table.plan(method, mix.speed_up), seed)
}

fn mix() -> (Mix, MigrationTable) {
    let mix: Mix = toml::from_str(MIX).unwrap();
    let table = mix.migration.clone().unwrap();
    (mix, table)
}

/// Every read is checked by the simulator, and in the end every block that was written is read at the destination: an error
/// says what was wrong.
#[test]
fn every_method_gives_the_vm_its_own_data() {
    let (mix, table) = mix();
    let outcomes = Method::ALL.map(|method| {
        let outcome = moved_by(&mix, &table, method, 1).unwrap_or_else(|error| panic!("{method}: {error}"));
        assert!(outcome.checked_sectors > 100_000, "{method}: reads are checked");
        assert!(outcome.dirty_at_stop_bytes > 0, "{method}: there is something to lose");
        let (sent, moving) = (outcome.there, outcome.moving());
        assert!(moving.after.iops > 3_000.0, "{method}: the VM goes on, {moving:?}");
        match method {
            Method::None | Method::Preload => {
                assert_eq!((sent.copy_bytes, sent.answer_bytes), (0, 0), "{method}");
            }
            Method::StopCopy | Method::PreCopy => assert!(sent.copy_bytes > 4_000_000, "{method}: {sent:?}"),
            _ => assert!(sent.copy_bytes == 0 && sent.answer_bytes > 100_000, "{method}: {sent:?}"),
        }
        outcome
    });
    let of = |method| outcomes.iter().find(|outcome| outcome.method == method).unwrap();
    let (none, pre_copy, stop_copy) = (of(Method::None), of(Method::PreCopy), of(Method::StopCopy));
    assert!(pre_copy.moving().after.hit_ratio > none.moving().after.hit_ratio);
    assert!(pre_copy.stall_us * 2 < stop_copy.stall_us, "{} {}", pre_copy.stall_us, stop_copy.stall_us);
    assert!(pre_copy.alone_seconds.is_some_and(|seconds| seconds < 1.0));
    assert_eq!(none.moving().before, stop_copy.moving().before, "nothing differs before");
}

#[test]
fn the_same_seed_gives_the_same_migration() {
    let (mix, table) = mix();
    let [first, again, other] = [1, 1, 2].map(|seed| moved_by(&mix, &table, Method::PreCopy, seed).unwrap());
    assert_eq!(first, again);
    assert_ne!(first.moving().after, other.moving().after);
}

#[test]
fn a_slower_link_takes_longer() {
    let (mix, table) = mix();
    let [fast, slow] = ["1Gbit", "100Mbit"].map(|speed| {
        let table = MigrationTable { link: speed.parse().unwrap(), ..table.clone() };
        moved_by(&mix, &table, Method::StopCopy, 1).unwrap()
    });
    assert!(slow.stall_us > 5 * fast.stall_us, "{} {}", slow.stall_us, fast.stall_us);
}

#[test]
fn a_benchmark_keeps_its_requests_in_flight() {
    let (mut mix, table) = mix();
    mix.disks.iter_mut().for_each(|load| load.depth = Some(8));
    let outcome = moved_by(&mix, &table, Method::OnDemandRws, 1).unwrap();
    for vm in &outcome.vms {
        // Little's law: requests in flight are the rate times the time that each takes.
        let in_flight = vm.before.iops * vm.before.latency.mean_us / 1e6;
        assert!((7.8..8.2).contains(&in_flight), "{}: {in_flight}", vm.name);
    }
}

#[test]
fn what_cannot_move_is_refused() {
    let (mix, table) = mix();
    let refused = |mix: &Mix, table: &MigrationTable| {
        moved_by(mix, table, Method::PreCopy, 1).map(|_| ()).expect_err("it is refused").to_string()
    };
    let stays = MigrationTable { disk: "destination-neighbour".into(), ..table.clone() };
    assert!(refused(&mix, &stays).contains("on host 'a'"));
    let late = MigrationTable { at: "10s".parse().unwrap(), ..table.clone() };
    assert!(refused(&mix, &late).contains("move earlier"), "{}", refused(&mix, &late));
    let error = mix.settings(None).unwrap_err().to_string();
    assert!(error.contains("'destination-neighbour'") && error.contains("compare-migration"), "{error}");
    for (from, to, expected) in [
        ("window = \"3s\"", "window = \"6s\"", "move it later"),
        ("link = \"1Gbit\"", "link = \"1GB\"", "10Gbit"),
        ("host = \"b\"", "host = \"c\"", "unknown variant"),
        ("host = \"b\"", "depth = 0", "a depth is 1 or more"),
        ("memory =", "memories =", "unknown field"),
    ] {
        let read = toml::from_str::<Mix>(&MIX.replace(from, to)).map_err(|error| error.to_string());
        let error = read.and_then(|mix| mix.check().map_err(|error| error.to_string())).expect_err(to);
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn methods_are_compared() {
    let (mix, _) = mix();
    let choices = MigrationChoices {
        methods: vec![Method::None, Method::PreCopy],
        links: ["1Gbit", "10Gbit"].map(|speed| speed.parse().unwrap()).to_vec(),
        seeds: vec![1, 2],
        ..MigrationChoices::default()
    };
    let compared = compare_migration(&mix, Path::new("."), &choices, &|_, _| {}).unwrap();
    assert_eq!(compared.moves.len(), 8);
    let summaries = summaries(&compared);
    assert_eq!(summaries.len(), 4);
    let [none, pre_copy] = &summaries[..2] else { panic!("two methods") };
    assert_eq!((none.method, pre_copy.method, pre_copy.seeds), (Method::None, Method::PreCopy, 2));
    assert_eq!(none.iops_over_none.unwrap().mean, 0.0);
    assert!(pre_copy.hits_after.mean > none.hits_after.mean);
    let goals = goals(&summaries);
    let reached = |measure: &str| goals.iter().find(|goal| goal.measure.contains(measure)).unwrap().reached;
    assert_eq!(reached("longest stall"), Some(true));
    assert_eq!(reached("invalidation-filter"), None);
    let page = page(std::slice::from_ref(&compared)).to_html();
    for expected in
        ["A small move", "Hits of the moving VM", "Stall that the cache adds", "destination-neighbour"]
    {
        assert!(page.contains(expected), "{expected}");
    }
    let text = table(&compared).to_text();
    assert!(text.contains("pre-copy") && text.contains("10Gbit"), "{text}");
}
