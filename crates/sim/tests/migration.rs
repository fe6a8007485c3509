//! A VM moves between two simulated hosts with its cache, with every method.

use std::path::Path;

use haversack_sim::SimError;
use haversack_sim::compare_migration::{
    MigrationChoices, compare_migration, goals, neighbours_table, page, summaries, table,
};
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
    let tape = Tape::of(&opener, &settings, &|_| {})?;
    let latency = table.latency.model();
    let setup = Setup::of_mix(&mix, table, folder, &tape.survey, &settings, &latency)?;
    simulate(&setup, &table.plan(method, mix.speed_up), seed)
}

fn mix() -> (Mix, MigrationTable) {
    let mix: Mix = toml::from_str(MIX).unwrap();
    let table = mix.migration.clone().unwrap();
    (mix, table)
}

/// Every read is checked by the simulator, and in the end every block that was written is read at the destination: an
/// error says what was wrong.
#[test]
fn every_method_gives_the_vm_its_own_data() {
    let (mix, table) = mix();
    let outcomes = Method::ALL.map(|method| {
        let outcome = moved_by(&mix, &table, method, 1).unwrap_or_else(|error| panic!("{method}: {error}"));
        assert!(outcome.checked_sectors > 100_000, "{method}: reads are checked");
        assert!(outcome.dirty_bytes > 0, "{method}: there is something to lose");
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
fn what_the_check_at_the_end_fetches_is_not_measured() {
    let (mix, table) = mix();
    let table = MigrationTable { window: "200ms".parse().unwrap(), ..table };
    let outcome = moved_by(&mix, &table, Method::OnDemand, 1).unwrap();
    let fetched = outcome.there.answer_bytes;
    assert!((1..outcome.dirty_bytes / 2).contains(&fetched), "{fetched} of {}", outcome.dirty_bytes);
}

#[test]
fn samples_are_of_either_before_the_stop_or_after_it() {
    let (mix, table) = mix();
    let outcome = moved_by(&mix, &table, Method::PreCopy, 1).unwrap();
    for vm in &outcome.vms {
        assert!(vm.samples.iter().any(|sample| sample.time_seconds == 0.0), "{}", vm.name);
        let (first, mean) = (vm.samples[0].iops, vm.before.iops);
        assert!((0.5..1.5).contains(&(first / mean)), "{}: {first} at first, {mean} on average", vm.name);
    }
    assert!(outcome.samples.iter().any(|sample| sample.time_seconds == 0.0));
}

#[test]
fn each_block_that_is_needed_counts_once() {
    let (mut mix, table) = mix();
    let outcome = moved_by(&mix, &table, Method::PreCopy, 1).unwrap();
    let Outcome { cached_bytes, reused_bytes, dirty_bytes, needed_bytes, .. } = outcome;
    assert!(needed_bytes <= cached_bytes, "{needed_bytes} of {cached_bytes}");
    assert!(needed_bytes >= reused_bytes.max(dirty_bytes), "{needed_bytes} {reused_bytes} {dirty_bytes}");
    assert!(needed_bytes < reused_bytes + dirty_bytes, "blocks are dirty and used more than once");
    // All blocks are rewritten all the time: many have a version on flash and a newer one that is staged.
    let rewritten = MIX.replace("blocks = 4000, mix = { read = 0.7", "blocks = 200, mix = { read = 0.0");
    let rewritten: Mix = toml::from_str(&rewritten).unwrap();
    let outcome = moved_by(&rewritten, &table, Method::PreCopy, 1).unwrap();
    assert_eq!((outcome.reused_bytes, outcome.needed_bytes), (200 << 12, 200 << 12));
    mix.disks[0].config.mode = "wi".parse().unwrap();
    let outcome = moved_by(&mix, &table, Method::PreCopy, 1).unwrap();
    assert_eq!((outcome.dirty_bytes, outcome.needed_bytes), (0, outcome.reused_bytes), "no write is cached");
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
    // The others' loads are longer.
    let short = MIX.replace("requests = 45000, rate = 4000.0", "requests = 30000, rate = 4000.0");
    let short: Mix = toml::from_str(&short).unwrap();
    let why = refused(&short, &table);
    assert!(why.contains("the load of 'vm' ends after 7."), "{why}");
    let error = mix.settings(None).unwrap_err().to_string();
    assert!(error.contains("'destination-neighbour'") && error.contains("compare-migration"), "{error}");
    for (from, to, expected) in [
        ("window = \"3s\"", "window = \"6s\"", "move it later"),
        ("link = \"1Gbit\"", "link = \"1GB\"", "10Gbit"),
        ("host = \"b\"", "host = \"c\"", "unknown variant"),
        ("host = \"b\"", "depth = 0", "a depth is 1 or more"),
        ("memory =", "memories =", "unknown field"),
        (
            "window = \"3s\"",
            "window = \"3s\"\nlatency = { origin-servers = 0 }",
            "origin-servers: expected 1 to",
        ),
        ("window = \"3s\"", "window = \"3s\"\nlatency = { network-speed = 0 }", "network-speed: expected"),
    ] {
        let read = toml::from_str::<Mix>(&MIX.replace(from, to)).map_err(|error| error.to_string());
        let error = read.and_then(|mix| mix.check().map_err(|error| error.to_string())).expect_err(to);
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn methods_are_compared() {
    let (mut mix, _) = mix();
    let choices = MigrationChoices {
        methods: vec![Method::None, Method::PreCopy],
        links: ["1Gbit", "10Gbit"].map(|speed| speed.parse().unwrap()).to_vec(),
        seeds: vec![1, 2],
        ..MigrationChoices::default()
    };
    let compared = compare_migration(&mix, Path::new("."), &choices, &|_, _| {}).unwrap();
    assert_eq!(compared.moves.len(), 8);
    let of_links = summaries(&compared);
    assert_eq!(of_links.len(), 4);
    let [none, pre_copy] = &of_links[..2] else { panic!("two methods") };
    assert_eq!((none.method, pre_copy.method, pre_copy.seeds), (Method::None, Method::PreCopy, 2));
    assert_eq!((none.iops_over_none, none.iops_ahead), (None, None), "requests come at their times");
    for rise in none.neighbours_ahead.iter().chain(&none.neighbours_after) {
        assert_eq!(rise.unwrap().mean, 0.0, "over itself");
    }
    assert!(pre_copy.hits_after.mean > none.hits_after.mean);
    let goals = goals(&compared);
    let reached = |measure: &str| goals.iter().find(|goal| goal.measure.contains(measure)).unwrap().reached;
    assert_eq!(reached("longest stall"), Some(true));
    assert_eq!((reached("invalidation-filter"), reached("guest IOPS while")), (None, None));
    let page = page(std::slice::from_ref(&compared)).to_html();
    for expected in
        ["A small move", "Hits of the moving VM", "Stall that the cache adds", "destination-neighbour"]
    {
        assert!(page.contains(expected), "{expected}");
    }
    let text = table(&compared).to_text();
    assert!(text.contains("pre-copy") && text.contains("10Gbit"), "{text}");
    assert!(neighbours_table(&compared).is_none(), "the model is of VMs that keep requests in flight");
    mix.disks.iter_mut().for_each(|load| load.depth = Some(8));
    let choices = MigrationChoices { links: Vec::new(), seeds: vec![1], ..choices };
    let compared = compare_migration(&mix, Path::new("."), &choices, &|_, _| {}).unwrap();
    let [none, pre_copy] = &summaries(&compared)[..] else { panic!("two methods") };
    assert!(pre_copy.iops_over_none.is_some() && pre_copy.iops_ahead.is_some());
    assert_eq!((none.iops_over_none.unwrap().mean, none.iops_ahead.unwrap().mean), (0.0, 0.0));
    let text = neighbours_table(&compared).unwrap().to_text();
    assert!(text.starts_with("Each host's VMs with "), "{text}");
}
