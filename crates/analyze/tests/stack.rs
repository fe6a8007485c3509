//! Distances and dirty evictions against a naive second implementation: a list, and an LRU cache of each size.

use haversack_analyze::{Class, Kind, Profile, Stack};
use proptest::prelude::*;

/// The naive stack: the most recent block first.
#[derive(Default)]
struct List(Vec<(u64, Kind)>);

impl List {
    fn touch(&mut self, key: u64, kind: Kind) -> Option<(Kind, u32)> {
        let found = self.0.iter().position(|(known, _)| *known == key);
        let previous = found.map(|depth| (self.0.remove(depth).1, depth as u32));
        if kind != Kind::Discard {
            self.0.insert(0, (key, kind));
        }
        previous
    }
}

/// A write-back LRU cache: hits, and blocks evicted dirty. The least recent block comes first.
struct Cache {
    blocks: Vec<(u64, bool)>,
    size: usize,
    hits: u32,
    dirty_evictions: u32,
}

impl Cache {
    fn touch(&mut self, key: u64, write: bool) {
        let found = self.blocks.iter().position(|(known, _)| *known == key);
        let dirty = found.is_some_and(|at| self.blocks.remove(at).1);
        self.hits += u32::from(found.is_some());
        self.blocks.push((key, dirty || write));
        if self.blocks.len() > self.size {
            self.dirty_evictions += u32::from(self.blocks.remove(0).1);
        }
    }
}

fn kinds(discards: u32) -> impl Strategy<Value = Kind> {
    prop_oneof![10 => Just(Kind::Read), 6 => Just(Kind::Write), discards => Just(Kind::Discard)]
}

fn run(accesses: &[(u64, Kind)]) -> Profile {
    let (mut stack, mut profile) = (Stack::default(), Profile::default());
    for (key, kind) in accesses {
        profile.record(*kind, stack.touch(*key, *kind), 1.0);
    }
    stack.dirty().for_each(|deepest| {
        let ended = haversack_analyze::Outcome { previous: None, ended: Some(deepest) };
        profile.record(Kind::Discard, ended, 1.0);
    });
    profile
}

proptest! {
    #[test]
    fn distances_agree_with_a_list(accesses in prop::collection::vec((0u64..100, kinds(1)), 0..2000)) {
        let (mut stack, mut list) = (Stack::default(), List::default());
        for (key, kind) in accesses {
            prop_assert_eq!(stack.touch(key, kind).previous, list.touch(key, kind));
        }
    }

    #[test]
    fn curves_agree_with_a_cache_of_each_size(accesses in prop::collection::vec((0u64..60, kinds(0)), 1..1500)) {
        let profile = run(&accesses);
        for size in 1..70 {
            let mut cache = Cache { blocks: Vec::new(), size, hits: 0, dirty_evictions: 0 };
            accesses.iter().for_each(|(key, kind)| cache.touch(*key, *kind == Kind::Write));
            let hits: f64 = Class::ALL.iter().map(|class| profile.class(*class).below(size as u64)).sum();
            prop_assert_eq!(hits, f64::from(cache.hits));
            prop_assert_eq!(profile.dirty_evictions(size as u64), f64::from(cache.dirty_evictions));
        }
    }
}
