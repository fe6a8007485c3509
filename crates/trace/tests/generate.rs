//! Generated traces amount to what was asked for.

use haversack_trace::generate::{Profile, preset, presets};
use haversack_trace::{Access, Source, Summaries, Summary};

/// The share of a figure by which a generated trace may be off.
const TOLERANCE: f64 = 0.05;

fn all(source: &mut dyn Source) -> Vec<Access> {
    let mut accesses = Vec::new();
    while source.read(&mut accesses).unwrap() > 0 {}
    accesses
}

/// The reuse distances of all references in blocks of 4 KiB, in order of length; cold ones are left out.
fn distances(accesses: &[Access]) -> Vec<u64> {
    let blocks: Vec<u64> = accesses.iter().flat_map(|access| access.blocks(4096)).collect();
    // A Fenwick tree over references: 1 where a block was last referenced.
    let mut tree = vec![0i64; blocks.len() + 1];
    let add = |tree: &mut Vec<i64>, mut at: usize, by: i64| {
        while at < tree.len() {
            tree[at] += by;
            at += at & at.wrapping_neg();
        }
    };
    let sum = |tree: &Vec<i64>, mut at: usize| {
        let mut sum = 0;
        while at > 0 {
            sum += tree[at];
            at &= at - 1;
        }
        sum
    };
    let mut last = std::collections::HashMap::new();
    let mut distances = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        if let Some(before) = last.insert(*block, at + 1) {
            distances.push((sum(&tree, at) - sum(&tree, before)) as u64);
            add(&mut tree, before, -1);
        }
        add(&mut tree, at + 1, 1);
    }
    distances.sort_unstable();
    distances
}

/// What is off by more than the tolerance: figure, found, wanted.
fn off(profile: &Profile, seed: u64) -> Vec<String> {
    let mut source = profile.source(seed).unwrap();
    let accesses = all(&mut *source);
    assert!(accesses.is_sorted_by_key(|access| access.time_ns));
    let mut summaries = Summaries::default();
    summaries.add(&accesses);
    let found: Summary = summaries.overall();
    let mut figures = vec![
        ("requests", found.requests, profile.requests()),
        ("reads", found.reads, profile.reads.requests),
        ("writes", found.writes, profile.writes.requests),
        ("refs", found.refs_4k, profile.refs()),
        ("read refs", found.read_refs_4k, profile.reads.refs),
        ("write refs", found.write_refs_4k, profile.writes.refs),
        ("unique", found.unique_4k, profile.unique),
        ("unique read", found.unique_read_4k, profile.unique_read),
        ("unique write", found.unique_write_4k, profile.unique_write),
        ("span", found.address_span_4k, profile.span_blocks),
        ("seconds", found.span_s as u64, profile.span_s as u64),
    ];
    for (name, found, kind) in [
        ("read bytes", found.read_bytes, &profile.reads),
        ("write bytes", found.write_bytes, &profile.writes),
    ] {
        figures.push((name, found, kind.bytes.unwrap_or(kind.refs * 4096)));
    }
    let near = |found: u64, wanted: u64| found.abs_diff(wanted) as f64 <= TOLERANCE * wanted as f64;
    let mut off: Vec<String> = figures
        .iter()
        .filter(|(_, found, wanted)| !near(*found, *wanted))
        .map(|(name, found, wanted)| format!("{name}: {found}, not {wanted}"))
        .collect();
    let distances = distances(&accesses);
    let within = |upto: f64| distances.partition_point(|distance| *distance as f64 <= upto) as f64;
    let sum: f64 = profile.distances.iter().map(|range| range.share).sum();
    let mut wanted = 0.0;
    for (at, range) in profile.distances.iter().enumerate() {
        wanted += range.share / sum;
        if range.share == 0.0 || profile.distances.get(at + 1).is_some_and(|next| next.upto == range.upto) {
            continue;
        }
        // Within 5 % of the hit ratio at a size within 5 %.
        let upto = range.upto as f64;
        let [less, hits, more] =
            [0.95, 1.0, 1.05].map(|factor| within(upto * factor) / distances.len().max(1) as f64);
        if more < wanted * (1.0 - TOLERANCE) || less > wanted * (1.0 + TOLERANCE) {
            off.push(format!("{hits:.4} within {upto} blocks, not {wanted:.3}"));
        }
    }
    off
}

#[test]
#[ignore]
fn survey() {
    let n: f64 = std::env::var("N").map_or(1e5, |n| n.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for name in presets().iter().filter(|name| name.contains(&only)) {
        let profile = preset(name).unwrap();
        let scale = (n / profile.requests() as f64).min(1.0);
        let begin = std::time::Instant::now();
        let off = off(&profile.scaled(scale), 1);
        println!(
            "{name} x{scale:.5} {:.1}s {}",
            begin.elapsed().as_secs_f64(),
            if off.is_empty() { "ok".into() } else { off.join("; ") }
        );
    }
}
