//! Whole simulations of generated traces: bounds hold, runs repeat, counts add up, in every write mode.

mod common;

use common::{memory, mixed, simulate};
use haversack_core::{AdmissionConfig, Persistence};
use haversack_model::WriteMode;
use haversack_model::random::Random;
use haversack_sim::advise::{Flash, advise};
use haversack_sim::latency::LatencyModel;
use haversack_sim::{
    PolicyName, Pool, Replacement, Report, RestartKind, Restarts, Row, Settings, SimError, Sizes, Traffic,
    run, show,
};
use haversack_trace::{Access, Op};
use proptest::prelude::*;

const VOLUMES: [&str; 2] = ["a", "b"];

fn settings() -> Settings {
    Settings { sizes: Sizes::Blocks(vec![8_000]), ..Settings::default() }
}

fn core(accesses: &[Access], settings: &Settings) -> Row {
    simulate(&memory(accesses, &VOLUMES), settings).of(PolicyName::Core).next().unwrap().clone()
}

#[test]
fn no_policy_beats_min_and_nothing_beats_no_limit() {
    let accesses = mixed(30_000, 1);
    for mode in ["wb", "wt", "wa", "wi"] {
        let settings = Settings {
            policies: PolicyName::ALL.to_vec(),
            sizes: Sizes::Blocks(vec![700, 2_000, 9_000]),
            mode: mode.parse().unwrap(),
            ..Settings::default()
        };
        let report = simulate(&memory(&accesses, &VOLUMES), &settings);
        // MIN has the sizes that were requested, and what the production cache holds at each.
        assert_eq!(report.results.len(), 9 * 3 + 2 * 3 + 1);
        let of_min: Vec<_> = report.of(PolicyName::Min).filter_map(|row| row.blocks).collect();
        assert_eq!(of_min, [700, 570, 2_000, 1_835, 9_000, 8_995], "{mode}");
        let unlimited = report.of(PolicyName::Unlimited).next().unwrap();
        for min in report.of(PolicyName::Min) {
            assert!(unlimited.hits >= min.hits, "{mode}");
            for row in
                report.policies().filter(|row| row.blocks == min.blocks && row.policy != PolicyName::Core)
            {
                assert!(
                    row.hits <= min.hits,
                    "{mode}: {} has {} hits, MIN {}",
                    row.policy,
                    row.hits,
                    min.hits
                );
                assert_eq!(row.accesses, min.accesses, "{mode}: {}", row.policy);
                assert_eq!(row.hits + row.misses, row.accesses);
            }
        }
        let largest = |policy| report.of(policy).last().unwrap().miss_ratio.expect("accesses");
        let (core, lru) = (largest(PolicyName::Core), largest(PolicyName::Lru));
        assert!(core < lru + 0.05, "{mode}: the production cache misses {core}, LRU {lru}");
    }
}

/// Reads of the blocks of a partition that begins at sector 7, in a loop.
#[test]
fn a_grid_phase_is_the_same_for_every_policy_and_bound() {
    let access = |number: u64| Access {
        time_ns: number * 1_000_000,
        offset_bytes: number % 1_000 * 8192 + 7 * 512,
        length_bytes: 4096,
        ..Access::default()
    };
    let accesses: Vec<Access> = (0..10_000).map(access).collect();
    let with = |phase, replacement| {
        let settings = Settings {
            policies: vec![PolicyName::Core, PolicyName::Lru],
            sizes: Sizes::Blocks(vec![1_265]),
            pool: Pool { phase, ..Pool::default() },
            replacement,
            ..Settings::default()
        };
        run(&memory(&accesses, &VOLUMES), &settings, &|_, _| {})
    };
    for replacement in [Replacement::Core, Replacement::Lru, Replacement::Arc] {
        let report = with(7, replacement).expect("the simulation runs");
        assert_eq!(report.trace.footprint_blocks, 1_000);
        for row in &report.results {
            assert_eq!((row.accesses, row.misses), (10_000, 1_000), "{}", row.policy);
        }
    }
    assert_eq!(with(0, Replacement::Core).expect("the simulation runs").trace.footprint_blocks, 2_000);
    let refused = with(8, Replacement::Core).expect_err("there is no such phase").to_string();
    assert!(refused.contains("from 0 to 7, not 8"), "{refused}");
}

/// Requests of one block each: some in a loop, some skewed.
fn single_blocks(requests: u64, blocks: u64, seed: u64) -> Vec<Access> {
    let mut rng = Random::new(seed);
    let mut access = |number: u64| {
        let kind = rng.bits() % 10;
        let skewed = (rng.open_unit().powi(3) * blocks as f64) as u64;
        let block = if kind < 5 { number % blocks } else { skewed };
        Access {
            time_ns: number * 1_000_000,
            offset_bytes: block * 4096,
            length_bytes: 4096,
            op: if kind.is_multiple_of(3) { Op::Write } else { Op::Read },
            ..Access::default()
        }
    };
    (0..requests).map(&mut access).collect()
}

/// The production cache of this size, and MIN with the same memory.
fn core_and_min(accesses: &[Access], settings: &Settings) -> (Row, Row) {
    let report = simulate(&memory(accesses, &VOLUMES), settings);
    let core = report.of(PolicyName::Core).next().expect("the production cache").clone();
    let min = report.of(PolicyName::Min).find(|min| min.blocks == core.held_blocks);
    let min = min.expect("MIN with what the production cache holds").clone();
    (core, min)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Small sizes too, which are below those of the smallest pool.
    #[test]
    fn the_production_cache_does_not_beat_min_at_equal_memory(
        size in 1u64..1_600,
        blocks in 20u64..3_000,
        seed in any::<u64>(),
        mode in prop::sample::select(vec!["wb", "wt", "wa", "wi"]),
    ) {
        let (mode, sizes) = (mode.parse().expect("a mode"), Sizes::Blocks(vec![size]));
        let settings = Settings { mode, sizes, ..Settings::default() };
        let (core, min) = core_and_min(&single_blocks(4_000, blocks, seed), &settings);
        prop_assert!(core.hits <= min.hits, "{} hits, MIN has {}", core.hits, min.hits);
        prop_assert_eq!(core.accesses, min.accesses);
        prop_assert_eq!(core.raised_to(), (size < 506).then_some(506));
    }
}

/// With the size that was requested, the production cache would seem to beat MIN.
#[test]
fn a_pool_that_cannot_be_so_small_is_noted_and_compared_with_what_it_holds() {
    let accesses: Vec<_> = (0..6_000u64)
        .map(|n| Access {
            time_ns: n * 1_000_000,
            offset_bytes: n % 150 * 4096,
            length_bytes: 4096,
            ..Access::default()
        })
        .collect();
    let settings = Settings { sizes: Sizes::Blocks(vec![20, 2_000]), ..Settings::default() };
    let report = simulate(&memory(&accesses, &VOLUMES), &settings);
    let (core, mut of_min) = (report.of(PolicyName::Core).next().unwrap(), report.of(PolicyName::Min));
    let (requested, equal) = (of_min.next().unwrap(), of_min.next().unwrap());
    assert_eq!((core.blocks, core.held_blocks, core.raised_to()), (Some(20), Some(570), Some(506)));
    assert_eq!((requested.blocks, equal.blocks), (Some(20), Some(570)));
    assert!(core.hits > requested.hits && core.hits <= equal.hits, "{} {}", core.hits, equal.hits);
    let table = show::table(&report, false).to_text();
    assert!(
        table.contains("No pool of the production cache is smaller than 1.98 MiB (506 blocks)"),
        "{table}"
    );
    assert!(table.contains("so at 80 KiB or less it was simulated with that."), "{table}");
    let heading = table.lines().next().unwrap();
    assert!(heading.contains("blocks  holds"), "{heading}");
    let references = Settings { policies: vec![PolicyName::Lru], ..settings };
    let table = show::table(&simulate(&memory(&accesses, &VOLUMES), &references), false).to_text();
    assert!(!table.contains("holds") && !table.contains("No pool"), "{table}");
}

/// Sizes below that of the smallest pool are that pool, with its price, and are listed once.
#[test]
fn advice_is_about_pools_that_there_can_be() {
    let accesses = single_blocks(4_000, 1_000, 1);
    let flash = Flash { price_per_gib: 1.0, full_writes: 1_000.0, write_amplification: 1.0 };
    let advice = |sizes: &[u64]| {
        let settings = Settings { sizes: Sizes::Blocks(sizes.to_vec()), ..Settings::default() };
        advise(&memory(&accesses, &VOLUMES), &settings, flash, &|_, _| {}).expect("advice")
    };
    let small = advice(&[10, 100, 400, 2_000]);
    let sizes: Vec<_> = small.choices.iter().map(|choice| choice.size_bytes / 4096).collect();
    assert_eq!(sizes, [0, 506, 2_000]);
    let held: Vec<_> = small.choices.iter().map(|choice| choice.held_bytes / 4096).collect();
    assert_eq!(held, [0, 570, 1_835]);
    assert_eq!(small.choices[1].price, 506.0 * 4096.0 / (1u64 << 30) as f64);
    assert!(small.choices.iter().all(|choice| choice.hit_ratio <= choice.most_hit_ratio));
    let note = small.note.as_deref().expect("a note");
    assert!(note.contains("at 1.56 MiB or less"), "{note}");
    assert_eq!(advice(&[600, 2_000]).note, None);
    let only = advice(&[10, 100]);
    assert_eq!((only.choices.len(), only.choices.iter().any(|choice| choice.knee)), (2, false));
    assert!(only.reasons[0].starts_with("Only 1.98 MiB was simulated"), "{:?}", only.reasons);
}

/// Requests a millisecond apart, each for a block of its own: without a cache, a thousand I/Os a second.
#[test]
fn rates_are_those_of_the_time_after_the_warm_up() {
    let access = |number: u64| Access {
        time_ns: number * 1_000_000,
        offset_bytes: number * 4096,
        length_bytes: 4096,
        ..Access::default()
    };
    let accesses: Vec<Access> = (0..4_000).map(access).collect();
    let flash = Flash { price_per_gib: 1.0, full_writes: 1_000.0, write_amplification: 1.0 };
    for warm_up in [0.0, 0.75] {
        let traffic = Traffic { warm_up, ..Traffic::default() };
        let settings = Settings { sizes: Sizes::Blocks(vec![600]), traffic, ..Settings::default() };
        let advice = advise(&memory(&accesses, &VOLUMES), &settings, flash, &|_, _| {}).expect("advice");
        for choice in &advice.choices {
            let ios = choice.origin_ios_per_second;
            assert!((ios / 1_000.0 - 1.0).abs() < 0.01, "{warm_up}: {ios} I/Os a second");
        }
    }
}

fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap()
}

#[test]
fn a_run_follows_from_its_seed_whatever_the_threads() {
    let accesses = mixed(20_000, 2);
    let once = |threads, seed| {
        let settings = Settings {
            policies: vec![PolicyName::Core, PolicyName::Lru, PolicyName::Arc],
            latency: Some(LatencyModel::default()),
            traffic: Traffic { samples: 7, ..Traffic::default() },
            threads,
            seed,
            ..settings()
        };
        json(&simulate(&memory(&accesses, &VOLUMES), &settings))
    };
    assert_eq!(once(1, 5), once(4, 5));
    assert_ne!(once(1, 5), once(1, 6));
}

#[test]
fn a_trace_too_long_to_keep_is_read_again() {
    let accesses = |source: u64| {
        (0..source).map(|n| Access {
            time_ns: n * 50,
            offset_bytes: n % 999 * 4096,
            length_bytes: 4096,
            ..Access::default()
        })
    };
    let long: Vec<_> = accesses((6 << 20) + 10_000).collect();
    let settings =
        Settings { policies: vec![PolicyName::Fifo], sizes: Sizes::Blocks(vec![999]), ..Settings::default() };
    let report = simulate(&memory(&long, &["v"]), &settings);
    assert_eq!((report.results[0].accesses, report.results[0].misses), (long.len() as u64, 999));
}

#[test]
fn warm_up_is_not_counted() {
    let accesses = mixed(20_000, 3);
    let play = |accesses: &[Access], warm_up| {
        let settings = Settings {
            policies: vec![PolicyName::Core, PolicyName::Lru],
            traffic: Traffic { warm_up, ..Traffic::default() },
            ..settings()
        };
        simulate(&memory(accesses, &VOLUMES), &settings)
    };
    let (whole, second) = (play(&accesses, 0.0), play(&accesses, 0.5));
    let first = play(&accesses[..10_000], 0.0);
    // What MIN does in the first half depends on the second.
    let rows = whole.results.iter().zip(&first.results).zip(&second.results);
    for ((whole, first), second) in rows.filter(|(rows, _)| rows.0.policy != PolicyName::Min) {
        let policy = whole.policy;
        assert_eq!(
            (second.hits, second.misses),
            (whole.hits - first.hits, whole.misses - first.misses),
            "{policy}"
        );
        let requests =
            |row: &Row| row.counts.read_requests + row.counts.write_requests + row.counts.flush_requests;
        assert_eq!(requests(second), requests(whole) - requests(first), "{policy}");
    }
}

#[test]
fn writes_reach_the_origin_when_the_mode_says() {
    let accesses = mixed(20_000, 4);
    let written: u64 =
        accesses.iter().filter(|a| a.op == Op::Write).map(|access| u64::from(access.length_bytes)).sum();
    let of = |mode: &str, policy| {
        let settings = Settings { policies: vec![policy], mode: mode.parse().unwrap(), ..settings() };
        simulate(&memory(&accesses, &VOLUMES), &settings).results[0].clone()
    };
    for mode in ["wt", "wa", "wi", "pt"] {
        let (core, lru) = (of(mode, PolicyName::Core), of(mode, PolicyName::Lru));
        assert_eq!(core.counts.origin_written_bytes, written, "{mode}");
        assert_eq!(lru.counts.origin_written_bytes, written, "{mode}");
    }
    for policy in [PolicyName::Core, PolicyName::Lru] {
        let back = of("wb", policy);
        assert!(back.counts.origin_written_bytes < written, "{policy} merges writes");
        let (past, invalidating) = (of("pt", policy).counts, of("wi", policy).counts);
        assert_eq!((past.flash_guest_blocks, past.flash_fill_blocks), (0, 0), "{policy}");
        assert_eq!(invalidating.flash_guest_blocks, 0, "{policy}");
    }
}

#[test]
fn what_passes_the_cache_is_read_as_it_was_requested() {
    let mut accesses = mixed(5_000, 4);
    accesses.retain(|access| access.op == Op::Read);
    accesses.iter_mut().for_each(|access| access.length_bytes = 1024);
    let settings = Settings {
        policies: vec![PolicyName::Core, PolicyName::Lru],
        mode: WriteMode::PassThrough,
        ..settings()
    };
    let report = simulate(&memory(&accesses, &VOLUMES), &settings);
    for row in report.policies() {
        assert_eq!(row.counts.origin_read_bytes, accesses.len() as u64 * 1024, "{}", row.policy);
    }
    for row in &report.results {
        assert_eq!(row.miss_ratio, Some(1.0), "{}", row.policy);
    }
}

#[test]
fn of_nothing_there_is_no_share_that_misses() {
    let mut accesses = mixed(5_000, 4);
    accesses.retain(|access| access.op == Op::Write);
    let of = |mode: &str| {
        let policies = vec![PolicyName::Core, PolicyName::Lru];
        let settings = Settings { policies, mode: mode.parse().unwrap(), ..settings() };
        simulate(&memory(&accesses, &VOLUMES), &settings)
    };
    assert!(of("wb").results.iter().all(|row| row.miss_ratio.is_some() && row.read_miss_ratio.is_none()));
    let around = of("wa");
    assert!(around.results.iter().all(|row| (row.accesses, row.miss_ratio) == (0, None)));
    let table = show::table(&around, false).to_text();
    let row = table.lines().find(|line| line.starts_with("min")).expect("a row of MIN");
    assert_eq!(row.split_whitespace().filter(|cell| *cell == "-").count(), 2, "{table}");
}

#[test]
fn discards_are_writes_to_the_origin_for_every_policy() {
    let mut accesses = mixed(20_000, 4);
    accesses.retain(|access| access.op == Op::Discard);
    accesses.push(Access { op: Op::Read, ..*accesses.last().expect("a discard") });
    let settings = Settings { policies: vec![PolicyName::Core, PolicyName::Lru], ..settings() };
    for row in simulate(&memory(&accesses, &VOLUMES), &settings).policies() {
        assert_eq!(row.counts.origin_writes, accesses.len() as u64 - 1, "{}", row.policy);
    }
}

/// With MIN, too, writes count among the accesses if they do not bring blocks into the cache, and update cached blocks.
#[test]
fn flash_writes_of_min_are_those_of_an_access_of_any_kind() {
    let access = |(number, op): (u64, Op)| Access {
        time_ns: number * 1_000_000,
        length_bytes: 4096,
        op,
        ..Access::default()
    };
    let accesses: Vec<Access> = (0..).zip([Op::Read, Op::Write, Op::Read]).map(access).collect();
    for (mode, expected) in [("wa", (2, 1)), ("wi", (0, 0))] {
        let settings =
            Settings { policies: vec![PolicyName::Lru], mode: mode.parse().unwrap(), ..settings() };
        let report = simulate(&memory(&accesses, &["v"]), &settings);
        let min = report.of(PolicyName::Min).next().expect("MIN");
        assert_eq!((min.flash_writes, min.counts.write_hits), expected, "{mode}");
        assert_eq!(min.flash_write_ratio, min.flash_writes as f64 / 3.0, "{mode}");
    }
}

#[test]
fn two_devices_keep_dirty_blocks_twice() {
    let accesses = mixed(10_000, 5);
    let with = |redundancy| {
        core(&accesses, &Settings { pool: Pool { devices: 2, redundancy, ..Pool::default() }, ..settings() })
    };
    assert_eq!(with(false).counts.flash_mirror_blocks, 0);
    assert!(with(true).counts.flash_mirror_blocks > 0);
    let one = Settings { pool: Pool { redundancy: true, ..Pool::default() }, ..settings() };
    assert!(matches!(run(&memory(&accesses, &VOLUMES), &one, &|_, _| {}), Err(SimError::Settings(_))));
}

/// RAID-1 below the cache: half of the space, everything written twice, otherwise the same cache.
#[test]
fn mirrored_devices_are_one_of_half_the_size() {
    let accesses = mixed(10_000, 5);
    let with = |devices, mirrored, blocks| {
        let pool = Pool { devices, mirrored, staging_blocks: Some(128), ..Pool::default() };
        core(&accesses, &Settings { pool, sizes: Sizes::Blocks(vec![blocks]), ..settings() })
    };
    let (pair, one) = (with(2, true, 16 * 506), with(1, false, 8 * 506));
    assert_eq!(pair.flash_writes, 2 * one.flash_writes);
    let mut counts = pair.counts;
    assert!(counts.flash_fill_blocks > 0 && counts.flash_guest_blocks > 0);
    counts.flash_mirror_blocks = 0;
    assert_eq!(counts, one.counts);
    for (devices, redundancy) in [(3, false), (2, true)] {
        let pool = Pool { devices, redundancy, mirrored: true, ..Pool::default() };
        let refused = run(&memory(&accesses, &VOLUMES), &Settings { pool, ..settings() }, &|_, _| {});
        assert!(matches!(refused, Err(SimError::Settings(why)) if why.contains("mirrored")));
    }
}

#[test]
fn persistence_decides_which_blocks_survive_a_restart() {
    let accesses = mixed(20_000, 6);
    let hits = |persistence, mode, kind| {
        let restarts = Some(Restarts { every_ns: 4_000_000_000, kind });
        let pool = Pool { persistence, restarts, ..Pool::default() };
        let row = core(&accesses, &Settings { pool, mode, ..settings() });
        assert_eq!(row.production.unwrap().restarts, 4);
        row.hits
    };
    let through: WriteMode = "wt".parse().unwrap();
    for kind in [RestartKind::Stop, RestartKind::Kill, RestartKind::PowerLoss] {
        let all = hits(Persistence::All, WriteMode::WriteBack, kind);
        let dirty = hits(Persistence::Dirty, WriteMode::WriteBack, kind);
        assert!(all > dirty, "{kind:?}: {all} hits with all blocks kept, {dirty} with dirty ones");
        let (all, none) = (hits(Persistence::All, through, kind), hits(Persistence::None, through, kind));
        assert!(all > none, "{kind:?}: {all} hits with all blocks kept, {none} with none");
    }
    // A stop forgets which blocks were used and which were remembered, not the blocks.
    let without = core(&accesses, &settings()).hits;
    let stopped = hits(Persistence::All, WriteMode::WriteBack, RestartKind::Stop);
    assert!(stopped > without * 3 / 4, "{stopped} hits with clean stops, {without} without");
}

#[test]
fn restarts_with_requests_in_flight_lose_none() {
    let accesses = mixed(10_000, 7);
    for kind in [RestartKind::Stop, RestartKind::Kill, RestartKind::PowerLoss] {
        let pool = Pool { restarts: Some(Restarts { every_ns: 300_000_000, kind }), ..Pool::default() };
        let row = core(&accesses, &Settings { pool, latency: Some(LatencyModel::default()), ..settings() });
        let requests = accesses.iter().filter(|a| matches!(a.op, Op::Read | Op::Write)).count() as u64;
        assert_eq!(row.latency.unwrap().all.count, requests, "{kind:?}");
    }
}

#[test]
fn admission_and_cut_off_spare_the_flash() {
    let accesses = mixed(20_000, 8);
    let with = |pool| core(&accesses, &Settings { pool, ..settings() });
    let plain = with(Pool::default());
    let reuse = with(Pool { admission: AdmissionConfig::reuse(1, 1000), ..Pool::default() });
    let cut_off = with(Pool { sequential_cutoff_bytes: 64 << 10, ..Pool::default() });
    assert_eq!(plain.counts.not_admitted, 0);
    for filtered in [reuse, cut_off] {
        assert!(filtered.counts.not_admitted > 0);
        assert!(filtered.counts.flash_fill_blocks < plain.counts.flash_fill_blocks);
    }
}

#[test]
fn a_larger_target_is_a_larger_share() {
    let accesses = mixed(20_000, 9);
    let usage = |targets: Vec<(String, u64)>| {
        let traffic = Traffic { samples: 10, ..Traffic::default() };
        let pool = Pool { targets, share_spare: false, ..Pool::default() };
        core(&accesses, &Settings { pool, traffic, ..settings() }).series.last().unwrap().usage_blocks.clone()
    };
    let equal = usage(vec![]);
    let unequal = usage(vec![("a".into(), 2_000), ("b".into(), 6_000)]);
    assert!(unequal[0] < equal[0] * 2 / 3 && unequal[1] > equal[1], "{equal:?} {unequal:?}");
    let unknown = Settings { pool: Pool { targets: vec![("c".into(), 1)], ..Pool::default() }, ..settings() };
    let error = run(&memory(&accesses, &VOLUMES), &unknown, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("'c'") && error.contains("a, b"), "{error}");
}

#[test]
fn a_better_cache_is_a_faster_disk() {
    let accesses = mixed(20_000, 10);
    let with = |blocks, policy| {
        let settings = Settings {
            policies: vec![policy],
            sizes: Sizes::Blocks(vec![blocks]),
            latency: Some(LatencyModel::default()),
            ..Settings::default()
        };
        let row = simulate(&memory(&accesses, &VOLUMES), &settings).results[0].clone();
        let latency = row.latency.unwrap();
        assert!(latency.reads.p50_us <= latency.reads.p90_us && latency.reads.p90_us <= latency.reads.p95_us);
        assert!(latency.reads.p95_us <= latency.reads.p99_us);
        latency.reads.mean_us
    };
    for policy in [PolicyName::Core, PolicyName::Lru] {
        let (small, large) = (with(1_000, policy), with(20_000, policy));
        assert!(large < small * 0.8, "{policy}: {small} us with 1,000 blocks, {large} us with 20,000");
    }
}
