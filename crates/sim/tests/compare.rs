//! Comparisons of all systems on one mix, with the bounds that no system can exceed.

use std::path::Path;

use haversack_sim::compare::verdict::verdict;
use haversack_sim::compare::{
    Choices, Comparison, Kept, RankedBy, System, compare, page, ranking_table, rankings, table,
};
use haversack_sim::mix::{Load, Mix};
use haversack_trace::generate::{Generator, Mix as Requests, Pattern};

fn load(name: &str, pattern: Pattern, blocks: u64, seed: u64) -> Load {
    let mix = Requests { read: 0.8, ..Requests::default() };
    let generator = Generator { pattern, blocks, mix, volumes: 1, requests: 20_000, rate: 500.0, seed };
    Load { generator: Some(generator), ..Load::named(name) }
}

fn mix() -> Mix {
    Mix {
        title: "A scan beside local work".into(),
        fractions: vec![0.1, 0.3],
        window_s: Some(5.0),
        speed_up: 1.0,
        policies: Vec::new(),
        events: Vec::new(),
        migration: None,
        cluster: None,
        disks: vec![
            load("local", Pattern::Zipf { theta: 0.8 }, 2000, 1),
            load("scan", Pattern::Scan { stride: None }, 1 << 20, 2),
        ],
    }
}

fn choices() -> Choices {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    Choices {
        allocators: names(&["none", "rwss", "urd"]),
        admissions: names(&["always", "larc"]),
        write_modes: names(&["wb", "auto"]),
        ..Choices::default()
    }
}

fn compared(choices: &Choices) -> Comparison {
    compare(&mix(), Path::new("."), choices, &mut Kept::nothing(), &|_, _| {}).expect("it is compared")
}

#[test]
fn every_system_stays_within_the_bounds() {
    let comparison = compared(&choices());
    assert_eq!(comparison.combinations.len(), 3 * 2 * 2 * 2);
    for row in &comparison.combinations {
        let bound =
            comparison.bounds.iter().find(|bound| bound.blocks == row.blocks).expect("a bound for each size");
        let drawn = row.fraction == 0.1;
        assert!(row.refusal.is_none() && (row.targets.len() > 5) == drawn, "{row:?}");
        assert!(row.hit_ratio <= bound.min + 1e-9, "{} of {}: {bound:?}", row.hit_ratio, row.system.label());
        assert_eq!(row.disks.len(), 2);
        let blocks: u64 = row.disks.iter().map(|disk| disk.flash_writes).sum();
        assert_eq!(blocks, row.flash_writes);
        // Both disks have as many requests.
        let mean_us = row.disks.iter().map(|disk| disk.mean_us).sum::<f64>() / 2.0;
        assert!((mean_us / row.mean_us - 1.0).abs() < 1e-9, "{mean_us} and {}", row.mean_us);
        let [local, scan] = &row.disks[..] else { panic!("two disks: {row:?}") };
        assert!(local.p95_us > 0.0 && local.mean_us < scan.mean_us, "{row:?}");
    }
    for bound in &comparison.bounds {
        assert!(
            bound.static_split.hit_ratio <= bound.min + 1e-9 && bound.min <= bound.unlimited + 1e-9,
            "{bound:?}"
        );
        assert!(bound.static_split.hit_ratio + 1e-9 >= bound.global_lru, "{bound:?}");
        let [local, scan] = bound.static_split.blocks[..] else { panic!("two disks: {bound:?}") };
        assert!(local > 10 * scan && local + scan <= bound.held_blocks, "{bound:?}");
    }
    let text = table(&comparison).to_text();
    let marked: Vec<&str> = text.lines().filter(|line| line.ends_with(" <")).collect();
    for size in ["10.0 %", "30.0 %"] {
        let winners = marked.iter().filter(|line| line.contains(size) && line.contains("latency"));
        assert!(winners.count() >= 1, "{text}");
    }
    assert!(!text.contains("MIN") && text.contains("Marked: the lowest mean latency"), "{text}");
    let html = page(&[comparison], None).to_html();
    assert!(html.contains("<tr class=\"marked\">") && html.contains("Hits over the size of the pool"));
    assert!(html.contains("best static split") && html.contains("urd") && html.contains("scan"));
    assert!(html.contains("Mean latency and 95th percentile of each disk"));
}

/// One disk whose requests are not aligned to its blocks. All of the pool is its share: one LRU cache.
#[test]
fn the_static_split_counts_the_blocks_of_the_disk_s_own_grid() {
    let mut local = load("local", Pattern::Zipf { theta: 0.8 }, 2000, 1);
    local.config.phase = 7;
    let mix = Mix { disks: vec![local], fractions: vec![0.3], ..mix() };
    let none = Choices { allocators: vec!["none".into()], ..choices() };
    let comparison =
        compare(&mix, Path::new("."), &none, &mut Kept::nothing(), &|_, _| {}).expect("compared");
    let [bound] = &comparison.bounds[..] else { panic!("one size: {:?}", comparison.bounds) };
    let difference = bound.static_split.hit_ratio - bound.global_lru;
    assert!(difference.abs() < 0.01, "{bound:?}");
}

#[test]
fn where_nothing_is_read_there_are_no_read_hits() {
    let mut written = load("written", Pattern::Zipf { theta: 0.8 }, 2000, 1);
    written.generator.as_mut().expect("it is generated").mix.read = 0.0;
    let mix = Mix { disks: vec![written], fractions: vec![0.3], ..mix() };
    let none = Choices { allocators: vec!["none".into()], ..choices() };
    let comparison =
        compare(&mix, Path::new("."), &none, &mut Kept::nothing(), &|_, _| {}).expect("compared");
    for row in &comparison.combinations {
        assert_eq!((row.read_hit_ratio, row.disks[0].read_hit_ratio), (None, None), "{row:?}");
    }
    assert!(table(&comparison).to_text().lines().nth(2).is_some_and(|row| row.contains(" - ")));
}

/// Three systems. Ranked by hits, the first and the second change places with another seed.
#[test]
fn a_ranking_names_the_pairs_that_change_their_order() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    let some = Choices { admissions: names(&["always"]), write_modes: names(&["wb"]), ..choices() };
    let mut comparison = compared(&some);
    assert!(rankings(&comparison).is_empty(), "one seed shows no stability");
    comparison.mix.fractions = vec![0.1];
    comparison.combinations.retain(|row| row.fraction == 0.1);
    assert_eq!(comparison.combinations.len(), 3);
    let mut again = comparison.combinations.clone();
    for (at, (row, hits)) in comparison.combinations.iter_mut().zip([0.6, 0.5, 0.4]).enumerate() {
        (row.hit_ratio, row.mean_us) = (hits, 100.0 * (at + 1) as f64);
    }
    for (at, (row, hits)) in again.iter_mut().zip([0.58, 0.61, 0.4]).enumerate() {
        (row.seed, row.hit_ratio, row.mean_us) = (2, hits, 110.0 * (at + 1) as f64);
    }
    comparison.combinations.extend(again);
    let found = rankings(&comparison);
    assert_eq!(found.iter().map(|ranking| ranking.by).collect::<Vec<_>>(), RankedBy::ALL);
    let [by_hits, by_latency] = &found[..] else { panic!("{found:?}") };
    assert_eq!((by_hits.systems, by_hits.seeds, by_hits.swaps.len()), (3, 2, 1));
    // Two of three pairs agree.
    assert!((by_hits.least_tau - 1.0 / 3.0).abs() < 1e-9, "{by_hits:?}");
    let swap = &by_hits.swaps[0];
    assert_eq!((swap.one.allocator.as_str(), swap.other.allocator.as_str()), ("none", "rwss"));
    assert!((swap.largest_difference - 0.1).abs() < 1e-9);
    assert_eq!((by_latency.least_tau, by_latency.swaps.len()), (1.0, 0));
    let text = ranking_table(&found).to_text();
    assert!(text.contains("none, always, wb (5 s) and rwss, always, wb (5 s): 10.0 points"), "{text}");
}

#[test]
fn threads_change_nothing() {
    let of = |threads| {
        let mut comparison = compared(&Choices { threads, ..choices() });
        comparison.combinations.iter_mut().for_each(|row| row.decision_ms = 0.0);
        comparison
    };
    assert_eq!(of(1), of(3));
}

/// A sweep over seeds, sizes and windows. The verdict covers each point, and an interrupted sweep continues.
#[test]
fn a_sweep_is_judged_and_goes_on_after_an_interruption() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results");
    let subject = System { admission: "learned".into(), ..System::own("none") };
    let choices = Choices {
        subject: Some(subject.clone()),
        allocators: vec!["none".into(), "rwss".into()],
        admissions: vec!["always".into()],
        write_modes: vec!["wb".into()],
        windows_s: vec![2.0, 5.0],
        seeds: vec![1, 2],
        ..Choices::default()
    };
    let run = |build: &[u8], fractions: Vec<f64>| {
        let mut kept = Kept::open(&path, build).expect("it can be read");
        compare(&Mix { fractions, ..mix() }, Path::new("."), &choices, &mut kept, &|_, _| {})
            .expect("it is compared")
    };
    let lines = || std::fs::read_to_string(&path).map_or(0, |text| text.matches("\"key\"").count());
    // For each seed and size: the subject, `none` with one window, `rwss` with two; and the bounds.
    let some = run(b"one", vec![0.3]);
    assert_eq!((some.combinations.len(), lines()), (8, 10));
    // A line that was cut short is simulated again.
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::write(&path, &text[..text.len() - 20]).expect("it is cut");
    let all = run(b"one", vec![0.1, 0.3]);
    // Ten more for the other size, one for the line that was cut, and two for the bounds, which are worked out
    // together.
    let expected = 10 + 10 + 1 + 2;
    assert_eq!((all.combinations.len(), lines()), (16, expected));
    let again = run(b"one", vec![0.1, 0.3]);
    assert_eq!((again == all, lines()), (true, expected));
    run(b"two", vec![0.3]);
    assert_eq!(lines(), expected + 10, "results of another build count");

    let seeds: Vec<_> = all.combinations.iter().filter(|row| row.system == subject).collect();
    assert_ne!(seeds[0].hit_ratio, seeds[2].hit_ratio, "another seed is another load");
    let verdict = verdict(std::slice::from_ref(&all), &subject).expect("the subject has rivals");
    assert_eq!(verdict.points.len(), 2);
    assert!(verdict.points.iter().all(|point| point.at_equal_writes.len() == 3));
    assert!(verdict.points.iter().all(|point| point.subject.hit_ratio.half_width.is_some()));
    let html = page(&[all], Some(&verdict)).to_html();
    assert!(html.contains("no rival has both") && html.contains("one LRU cache"));
}

/// With a recorded load, another seed changes only the latencies. Results that do not depend on the seed are computed
/// once.
#[test]
fn seeds_of_a_recorded_load_are_of_latencies_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (trace, results) = (folder.path().join("t.csv"), folder.path().join("results"));
    let write = |blocks: u64| {
        let row = |at: u64| format!("{},v,r,{},4096\n", at * 1_000_000, at * at % blocks * 4096);
        let rows: String = (0..5000).map(row).collect();
        let text = format!("timestamp_ns,volume,op,offset_bytes,length_bytes\n{rows}");
        std::fs::write(&trace, text).expect("it is written");
    };
    write(500);
    let disks = vec![Load { trace: Some(trace.clone()), ..Load::named("v") }];
    let recorded = Mix { fractions: vec![0.3], disks, ..mix() };
    let choices = Choices {
        allocators: vec!["none".into()],
        admissions: vec!["always".into()],
        write_modes: vec!["wb".into()],
        seeds: vec![1, 2],
        ..Choices::default()
    };
    let mut kept = Kept::open(&results, b"one").expect("it can be read");
    let found = compare(&recorded, Path::new("."), &choices, &mut kept, &|_, _| {}).expect("it is compared");
    let [one, two] = &found.combinations[..] else { panic!("two seeds: {:?}", found.combinations) };
    assert_eq!((one.hit_ratio, one.seed, two.seed), (two.hit_ratio, 1, 2));
    assert_ne!(one.mean_us, two.mean_us);
    assert_eq!(found.bounds.iter().map(|bounds| bounds.seed).collect::<Vec<_>>(), [1, 2]);
    // A third of some hundred blocks is less than the smallest pool has.
    let bound = &found.bounds[0];
    assert!(bound.blocks < 506 && (bound.held_blocks, bound.raised_to) == (570, Some(506)), "{bound:?}");
    let text = table(&found).to_text();
    assert!(text.contains("smaller than 1.98 MiB (506 blocks), so at 30.0 % or less"), "{text}");
    let lines = std::fs::read_to_string(&results).expect("it was written");
    assert_eq!(lines.matches("\"key\"").count(), 3, "two pools, and the bounds once");
    // Another trace under the same name.
    write(700);
    let changed =
        compare(&recorded, Path::new("."), &choices, &mut kept, &|_, _| {}).expect("it is compared");
    assert_ne!(changed.bounds[0].unlimited, found.bounds[0].unlimited);
    assert_ne!(changed.combinations[0].hit_ratio, one.hit_ratio);
}

/// With its rivals' flash writes as budgets, the subject writes less to flash than without a budget.
#[test]
fn the_subject_is_simulated_at_its_rivals_flash_writes() {
    let subject = System::own("none");
    let choices = Choices {
        subject: Some(subject.clone()),
        allocators: vec!["rwss".into()],
        admissions: vec!["larc".into()],
        write_modes: vec!["wb".into()],
        equal_writes: true,
        ..Choices::default()
    };
    let comparison = compared(&choices);
    for fraction in [0.1, 0.3] {
        let own = comparison.combinations.iter();
        let own: Vec<_> = own.filter(|row| row.system == subject && row.fraction == fraction).collect();
        assert!(own[0].write_budget.is_none() && own.len() > 1, "{fraction}");
        for row in &own[1..] {
            assert!(row.write_budget.expect("a budget") < own[0].flash_write_ratio);
            assert!(row.flash_write_ratio < own[0].flash_write_ratio * 0.95, "{row:?}");
        }
    }
}

#[test]
fn invalid_settings_are_refused_with_the_reason() {
    let refused = |mix: &Mix, choices: &Choices| {
        compare(mix, Path::new("."), choices, &mut Kept::nothing(), &|_, _| {}).unwrap_err().to_string()
    };
    let both =
        Mix { disks: vec![Load { like: Some("msr:web_0".into()), ..mix().disks[0].clone() }], ..mix() };
    assert!(refused(&both, &choices()).contains("disk 'local' of the mix: give one of"));
    let twice = Mix { disks: vec![mix().disks[0].clone(), mix().disks[0].clone()], ..mix() };
    assert!(refused(&twice, &choices()).contains("two of this name"));
    let unknown = Load { generator: None, like: Some("msr:none".into()), ..mix().disks[0].clone() };
    assert!(refused(&Mix { disks: vec![unknown], ..mix() }, &choices()).contains("msr:none"));
    let fair = Choices { allocators: vec!["fair".into()], ..choices() };
    assert!(refused(&mix(), &fair).contains("unknown allocator 'fair'"));
    assert!(refused(&Mix { disks: Vec::new(), ..mix() }, &choices()).contains("no disk"));
    assert!(refused(&mix(), &Choices { seeds: Vec::new(), ..choices() }).contains("at least one seed"));
}

/// The mixes of the repository can be opened. Mixes with recorded traces are opened only if the traces are present.
#[test]
fn the_mixes_that_come_along_can_be_opened() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mixes");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the mixes") {
        let path = entry.expect("an entry").path();
        // The folder of clusters, which tests/cluster.rs reads.
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a mix");
        let mix: Mix = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        mix.check().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let there = |load: &Load| load.trace.as_ref().is_none_or(|trace| folder.join(trace).exists());
        if mix.disks.iter().all(there) {
            mix.open(&folder).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        seen += 1;
    }
    assert!(seen >= 6, "{seen} mixes");
}

/// Frequent use in the past says little where working sets move: there one LRU cache is hard to beat.
#[test]
fn auto_follows_working_sets_that_move() {
    let mix: Mix = toml::from_str(include_str!("../../../mixes/phases.toml")).expect("the mix is valid");
    let mix = Mix { fractions: vec![0.2], ..mix };
    let own = || vec!["own".to_string()];
    let choices = Choices {
        allocators: vec!["auto".into()],
        admissions: own(),
        write_modes: own(),
        ..Choices::default()
    };
    let comparison =
        compare(&mix, Path::new("."), &choices, &mut Kept::nothing(), &|_, _| {}).expect("it is compared");
    let (auto, lru) = (comparison.combinations[0].hit_ratio, comparison.bounds[0].global_lru);
    assert!(auto > lru - 0.022, "{auto} of all accesses hit, {lru} with one LRU cache");
}
