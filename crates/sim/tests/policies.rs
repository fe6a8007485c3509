//! Each reference policy against a naive second implementation, and systems on the replacement of their papers.

mod naive;

use std::path::Path;

use haversack_sim::key::Key;
use haversack_sim::mix::{Load, Mix};
use haversack_sim::reference::{Policy, arc, clock, fifo, lirs, lru, min, s3_fifo, sieve, two_q};
use haversack_sim::{PolicyName, Replacement, Row, Settings, Sizes};
use haversack_trace::Op;
use haversack_trace::generate::{Generator, Mix as Requests, Pattern};
use naive::Naive;
use proptest::prelude::*;

/// A block that is used, or one that is removed.
type Step = (u64, bool);

/// Skewed, so that there are hits at any size; some scans.
fn keys() -> impl Strategy<Value = Vec<u64>> {
    let few = 0u64..12;
    let many = 0u64..150;
    let scan = (0u64..150, 1u64..40).prop_map(|(first, count)| (first..first + count).collect::<Vec<_>>());
    let some = prop_oneof![few.prop_map(|k| vec![k]), many.prop_map(|k| vec![k]), scan];
    prop::collection::vec(some, 1..300).prop_map(|parts| parts.concat())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    (keys(), prop::collection::vec(0..25u8, 1..50)).prop_map(|(keys, removals)| {
        let removed = removals.iter().cycle().map(|r| *r == 0);
        keys.into_iter().zip(removed).collect()
    })
}

fn without_removals() -> impl Strategy<Value = Vec<Step>> {
    keys().prop_map(|keys| keys.into_iter().map(|key| (key, false)).collect())
}

fn same(
    mut policy: impl Policy,
    mut naive: impl Naive,
    capacity: usize,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut evicted = Vec::new();
    for (place, (key, removed)) in steps.iter().enumerate() {
        if *removed {
            policy.remove(Key(*key));
            naive.remove(*key);
        } else {
            let before: Vec<u64> = (0..200).filter(|key| policy.contains(Key(*key))).collect();
            let hit = policy.access(Key(*key), &mut evicted);
            prop_assert_eq!(hit, naive.access(*key), "step {}, block {}", place, key);
            let gone = before.into_iter().filter(|key| !policy.contains(Key(*key)));
            evicted.sort_by_key(|key| key.0);
            prop_assert_eq!(evicted.drain(..).map(|key| key.0).collect::<Vec<_>>(), gone.collect::<Vec<_>>());
        }
        let cached = naive.cached();
        prop_assert!(cached.len() <= capacity);
        prop_assert!(cached.iter().all(|key| policy.contains(Key(*key))), "step {}: {:?}", place, cached);
        prop_assert_eq!(policy.contains(Key(*key)), cached.contains(key));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn lru(capacity in 1usize..80, steps in steps()) {
        same(lru::Lru::new(capacity), naive::Lru { capacity, list: vec![] }, capacity, &steps)?;
    }

    #[test]
    fn fifo(capacity in 1usize..80, steps in steps()) {
        same(fifo::Fifo::new(capacity), naive::Fifo { capacity, list: vec![] }, capacity, &steps)?;
    }

    #[test]
    fn clock(capacity in 1usize..80, steps in without_removals()) {
        let naive = naive::Clock { slots: vec![None; capacity], hand: 0 };
        same(clock::Clock::new(capacity), naive, capacity, &steps)?;
    }

    #[test]
    fn two_q(capacity in 1usize..80, steps in steps()) {
        let naive = naive::TwoQ { capacity, a1in: vec![], a1out: vec![], am: vec![] };
        same(two_q::TwoQ::new(capacity), naive, capacity, &steps)?;
    }

    #[test]
    fn arc(capacity in 1usize..80, steps in without_removals()) {
        same(arc::Arc::new(capacity), naive::Arc { c: capacity, ..Default::default() }, capacity, &steps)?;
    }

    #[test]
    fn lirs(capacity in 1usize..300, steps in steps()) {
        same(lirs::Lirs::new(capacity), naive::Lirs { capacity, ..Default::default() }, capacity, &steps)?;
    }

    #[test]
    fn s3_fifo(capacity in 1usize..80, steps in steps()) {
        same(s3_fifo::S3Fifo::new(capacity), naive::S3Fifo { capacity, ..Default::default() }, capacity, &steps)?;
    }

    #[test]
    fn sieve(capacity in 1usize..80, steps in steps()) {
        same(sieve::Sieve::new(capacity), naive::Sieve { capacity, ..Default::default() }, capacity, &steps)?;
    }

    #[test]
    fn min_is_the_best_that_can_be_done(capacity in 1usize..4, keys in prop::collection::vec(0u64..7, 1..40)) {
        let mut future = min::Future::default();
        for key in &keys {
            future.access(Key(*key)).unwrap();
        }
        let mut hits = 0;
        min::replay(&future, capacity, |_, step| hits += usize::from(step.hit), |_, _| {});
        prop_assert_eq!(hits, naive::best_hits(&keys, capacity));
    }

    /// With removals, the cached blocks never exceed the capacity, and an access after a removal misses.
    #[test]
    fn clock_and_arc_take_removals(capacity in 1usize..40, steps in steps()) {
        let policies: [Box<dyn Policy>; 2] = [Box::new(clock::Clock::new(capacity)), Box::new(arc::Arc::new(capacity))];
        for mut policy in policies {
            for (key, removed) in &steps {
                let before = policy.contains(Key(*key));
                if *removed {
                    policy.remove(Key(*key));
                    prop_assert!(!policy.contains(Key(*key)));
                } else {
                    prop_assert_eq!(policy.access(Key(*key), &mut Vec::new()), before);
                    prop_assert!(policy.contains(Key(*key)));
                }
                let cached = (0..200).filter(|key| policy.contains(Key(*key))).count();
                prop_assert!(cached <= capacity);
            }
        }
    }
}

/// Blocks of a pool that three disks share.
const POOL: u64 = 900;

fn load(name: &str, pattern: Pattern, blocks: u64, seed: u64) -> Load {
    let mix = Requests { read: 0.7, ..Requests::default() };
    let generator = Generator { pattern, blocks, mix, volumes: 1, requests: 8_000, rate: 100.0, seed };
    Load { generator: Some(generator), ..Load::named(name) }
}

/// A disk that reuses its blocks, one that does so in a loop, and a scan.
fn mix() -> Mix {
    let text = "title = \"three\"\nwindow-s = 10.0\ndisk = []\n";
    let mut mix: Mix = toml::from_str(text).expect("a mix");
    mix.disks = vec![
        load("zipf", Pattern::Zipf { theta: 0.9 }, 3000, 1),
        load("loop", Pattern::Scan { stride: None }, 500, 2),
        load("scan", Pattern::Scan { stride: None }, 1 << 20, 3),
    ];
    mix
}

fn run(allocator: &str, replacement: Replacement) -> Row {
    let mix = mix();
    let (_, config) = mix.configs(allocator).expect("known").remove(0);
    let settings = mix.settings(Some(config)).expect("it makes sense");
    let latency = Some(Default::default());
    let settings = Settings { replacement, latency, sizes: Sizes::Blocks(vec![POOL]), ..settings };
    let report = haversack_sim::run(&|| mix.open(Path::new(".")), &settings, &|_, _| {}).expect("simulated");
    report.of(replacement.policy()).next().expect("a row").clone()
}

/// Misses of an independent cache for all disks, by block.
fn misses(mut cache: impl Naive) -> (u64, u64) {
    let mut source = mix().open(Path::new(".")).expect("it opens");
    let (mut accesses, mut misses, mut all) = (Vec::new(), 0, 0);
    while source.read(&mut accesses).expect("generated") > 0 {}
    for access in accesses.iter().filter(|access| matches!(access.op, Op::Read | Op::Write)) {
        for block in access.blocks(4096) {
            all += 1;
            misses += u64::from(!cache.access(u64::from(access.volume.0) << 40 | block));
        }
    }
    (misses, all)
}

#[test]
fn undivided_they_are_one_lru_or_arc_cache() {
    let (capacity, list) = (POOL as usize, Vec::new());
    let (lru_misses, accesses) = misses(naive::Lru { capacity, list });
    let row = run("none", Replacement::Lru);
    assert_eq!((row.accesses, row.misses), (accesses, lru_misses));
    assert!((row.miss_ratio.unwrap() - lru_misses as f64 / accesses as f64).abs() < 1e-4);
    assert!(row.latency.is_some() && row.flash_writes > 0 && row.policy == PolicyName::Lru);
    let (arc_misses, _) = misses(naive::Arc { c: capacity, ..Default::default() });
    assert_eq!(run("none", Replacement::Arc).misses, arc_misses);
}

/// In a divided pool, the scan no longer takes the others' space, and the looping disk fits. The decisions of the
/// control loop are logged as usual.
#[test]
fn divided_each_disk_has_its_own() {
    let none = run("none", Replacement::Lru);
    for allocator in ["utility", "trd", "urd"] {
        for replacement in [Replacement::Lru, Replacement::Arc] {
            let row = run(allocator, replacement);
            let [divided, shared] = [&row, &none].map(|row| row.miss_ratio.expect("accesses"));
            assert!(divided < shared - 0.05, "{allocator} {replacement:?}: {divided} {shared}");
            let governed = row.production.expect("more").control.expect("governed");
            let last = governed.targets.last().expect("decided");
            assert!(last.usage_blocks.iter().sum::<u64>() <= POOL, "{allocator} {last:?}");
            let replayed =
                haversack_control::log::replay(governed.log.iter().map(String::as_str)).expect("a log");
            assert!(replayed.decisions > 5 && replayed.differences.is_empty(), "{replayed:?}");
        }
    }
}
