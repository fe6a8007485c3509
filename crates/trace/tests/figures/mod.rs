//! The figures of a generated trace against those of its profile.

use haversack_trace::generate::Profile;
use haversack_trace::{Access, Source, Summaries, Summary};

/// The relative error that a figure of a generated trace may have.
const TOLERANCE: f64 = 0.05;
/// The absolute error that is always allowed: in a few requests, sizes do not average out.
const FEW: f64 = 3.0;
const BLOCK_BYTES: u64 = 4096;

pub fn all(source: &mut dyn Source) -> Vec<Access> {
    let mut accesses = Vec::new();
    while source.read(&mut accesses).unwrap() > 0 {}
    accesses
}

/// Figures that are off by more than the tolerance: name, found and wanted value. `distances` tells whether reuse
/// distances are checked.
pub fn off(profile: &Profile, seed: u64, distances: bool) -> Vec<String> {
    off_from(profile, profile, seed, distances)
}

/// Like [`off`], but compares a trace of one profile with the figures of another.
pub fn off_from(made: &Profile, profile: &Profile, seed: u64, distances: bool) -> Vec<String> {
    let accesses = all(&mut *made.source(seed).unwrap());
    assert!(accesses.is_sorted_by_key(|access| access.time_ns));
    let mut summaries = Summaries::default();
    summaries.add(&accesses);
    let mut off = counts_off(profile, &summaries.overall());
    if distances {
        off.extend(distances_off(profile, &reuse_distances(&accesses, profile.refs())));
    }
    off
}

fn counts_off(profile: &Profile, found: &Summary) -> Vec<String> {
    let (reads, writes) = (&profile.reads, &profile.writes);
    let figures = [
        ("requests", found.requests, profile.requests()),
        ("reads", found.reads, reads.requests),
        ("writes", found.writes, writes.requests),
        ("references", found.refs_4k, profile.refs()),
        ("references of reads", found.read_refs_4k, reads.refs),
        ("references of writes", found.write_refs_4k, writes.refs),
        ("bytes read", found.read_bytes, reads.bytes.unwrap_or(reads.refs * BLOCK_BYTES)),
        ("bytes written", found.write_bytes, writes.bytes.unwrap_or(writes.refs * BLOCK_BYTES)),
        ("blocks", found.unique_4k, profile.unique),
        ("blocks read", found.unique_read_4k, profile.unique_read),
        ("blocks written", found.unique_write_4k, profile.unique_write),
        ("address span in blocks", found.address_span_4k, profile.span_blocks),
        ("seconds", found.span_s.unwrap_or(0.0) as u64, profile.span_s as u64),
    ];
    let near =
        |found: u64, wanted: u64| found.abs_diff(wanted) as f64 <= (TOLERANCE * wanted as f64).max(FEW);
    let off = figures.into_iter().filter(|(_, found, wanted)| !near(*found, *wanted));
    off.map(|(name, found, wanted)| format!("{name}: {found}, not {wanted}")).collect()
}

/// Distances are off if no size within the tolerance has a hit ratio within the tolerance.
fn distances_off(profile: &Profile, distances: &[u64]) -> Vec<String> {
    let within = |upto: f64| {
        let hits = distances.partition_point(|distance| *distance as f64 <= upto);
        hits as f64 / distances.len().max(1) as f64
    };
    let sum: f64 = profile.distances.iter().map(|range| range.share).sum();
    let (mut wanted, mut off) = (0.0, Vec::new());
    for (at, range) in profile.distances.iter().enumerate() {
        wanted += range.share / sum;
        let goes_on = profile.distances.get(at + 1).is_some_and(|next| next.upto == range.upto);
        if range.share == 0.0 || goes_on {
            continue;
        }
        let upto = range.upto as f64;
        let [less, hits, more] = [1.0 - TOLERANCE, 1.0, 1.0 + TOLERANCE].map(|factor| within(upto * factor));
        if more < wanted * (1.0 - TOLERANCE) || less > wanted * (1.0 + TOLERANCE) {
            off.push(format!("hit ratio of {upto} blocks: {hits:.4}, not {wanted:.4}"));
        }
    }
    off
}

/// The reuse distances of all references in blocks of 4 KiB, in order of length; first ones are left out.
fn reuse_distances(accesses: &[Access], refs: u64) -> Vec<u64> {
    let highest = accesses.iter().map(|access| *access.blocks(BLOCK_BYTES).end()).max().unwrap_or(0);
    // When a block was last referenced, counted from 1.
    let mut last = vec![0u32; highest as usize + 1];
    let mut latest = Latest::new(refs as usize * 2);
    let mut distances = Vec::new();
    for (at, block) in (1..).zip(accesses.iter().flat_map(|access| access.blocks(BLOCK_BYTES))) {
        let before = std::mem::replace(&mut last[block as usize], at);
        if before != 0 {
            distances.push(latest.after(before as usize));
            latest.remove(before as usize);
        }
        latest.push(at as usize);
    }
    distances.sort_unstable();
    distances
}

/// Which references are the last ones of their blocks: a bit for each, and a Fenwick tree over words of bits.
struct Latest {
    bits: Vec<u64>,
    tree: Vec<u32>,
    sum: u64,
}

impl Latest {
    fn new(refs: usize) -> Self {
        let words = refs / 64 + 2;
        Latest { bits: vec![0; words], tree: vec![0; words + 1], sum: 0 }
    }

    fn push(&mut self, at: usize) {
        self.bits[at / 64] |= 1 << (at % 64);
        self.add(at / 64, 1);
        self.sum += 1;
    }

    fn remove(&mut self, at: usize) {
        self.bits[at / 64] &= !(1 << (at % 64));
        self.add(at / 64, u32::MAX);
        self.sum -= 1;
    }

    /// How many came later than one of them.
    fn after(&self, at: usize) -> u64 {
        let mut upto = u64::from((self.bits[at / 64] << (63 - at % 64)).count_ones());
        let mut word = at / 64;
        while word > 0 {
            upto += u64::from(self.tree[word]);
            word &= word - 1;
        }
        self.sum - upto
    }

    fn add(&mut self, word: usize, by: u32) {
        let mut word = word + 1;
        while word < self.tree.len() {
            self.tree[word] = self.tree[word].wrapping_add(by);
            word += word & word.wrapping_neg();
        }
    }
}
