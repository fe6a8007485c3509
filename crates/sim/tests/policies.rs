//! Each reference policy against a naive second implementation.

mod naive;

use haversack_sim::key::Key;
use haversack_sim::reference::{Policy, arc, clock, fifo, lirs, lru, min, s3_fifo, sieve, two_q};
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
    for (place, (key, removed)) in steps.iter().enumerate() {
        if *removed {
            policy.remove(Key(*key));
            naive.remove(*key);
        } else {
            prop_assert_eq!(policy.access(Key(*key)), naive.access(*key), "step {}, block {}", place, key);
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
        min::replay(&future, capacity, |_, step| hits += usize::from(step.hit));
        prop_assert_eq!(hits, naive::best_hits(&keys, capacity));
    }

    /// Removals take room: what is cached never exceeds the capacity, and an access after a removal misses.
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
                    prop_assert_eq!(policy.access(Key(*key)), before);
                    prop_assert!(policy.contains(Key(*key)));
                }
                let cached = (0..200).filter(|key| policy.contains(Key(*key))).count();
                prop_assert!(cached <= capacity);
            }
        }
    }
}
