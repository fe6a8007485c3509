//! Known answers on real traces, and the sampled analysis against the exact one on all of them.
//!
//! `HAVERSACK_TRACES` names the folder of real traces.

use std::path::{Path, PathBuf};

use haversack_analyze::{Histogram, Kind, Parallel, Profile, Reference, Sampler};
use haversack_trace::{Access, MemorySource, Op, OpenOptions, Source, open};

/// Samples that the sampled analysis may use, and the error that it may make.
const SAMPLES: usize = 8192;
const ALLOWED_ERROR: f64 = 0.01;

fn folder() -> PathBuf {
    std::env::var_os("HAVERSACK_TRACES").expect("HAVERSACK_TRACES names the folder of real traces").into()
}

fn references(mut source: impl Source) -> Vec<Reference> {
    let (mut accesses, mut references) = (Vec::new(), Vec::new());
    while source.read(&mut accesses).expect("the trace is readable") > 0 {
        for access in accesses.drain(..) {
            let kind = match access.op {
                Op::Read => Kind::Read,
                Op::Write => Kind::Write,
                Op::Discard => Kind::Discard,
                Op::Flush => continue,
            };
            let volume = u64::from(access.volume.0) << 42;
            references.extend(access.blocks(4096).map(|block| Reference::new(volume | block, kind)));
        }
    }
    references
}

/// Loops of several lengths and a skewed part, so that the curve has cliffs and slopes.
fn generated() -> Vec<Reference> {
    let mut state = 1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let access = |n: u64| {
        let block = match n % 4 {
            0 => 1_000_000 + n / 4 % 30_000,
            1 => 2_000_000 + n / 4 % 90_000,
            _ => (random().powi(4) * 200_000.0) as u64,
        };
        let op = if random() < 0.3 { Op::Write } else { Op::Read };
        Access { time_ns: n, offset_bytes: block * 4096, length_bytes: 4096, op, ..Access::default() }
    };
    references(MemorySource::of_one("generated", (0..1_000_000).map(access).collect()))
}

fn traces(folder: &Path) -> Vec<(String, Vec<Reference>)> {
    let files = ["", "apps", "keys"].map(|sub| folder.join(sub).read_dir().expect("the folder is readable"));
    let mut files: Vec<PathBuf> =
        files.into_iter().flatten().map(|file| file.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "zst"));
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The ARC traces count sectors.
        let key_bytes = name.starts_with("arc_").then_some(512);
        let options = OpenOptions { key_bytes, ..OpenOptions::default() };
        (name, references(open(file, &options).expect("the trace opens")))
    };
    files.iter().map(read).collect()
}

fn exact(references: &[Reference], sizes: &[u64], threads: usize) -> Profile {
    let mut parallel = Parallel::new(sizes, threads);
    references.chunks(1 << 20).for_each(|batch| parallel.take(batch));
    parallel.profile()
}

#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn exact_lru_on_cloudphysics_w106() {
    let source =
        open(&folder().join("keys/cloudphysics_w106.csv.zst"), &OpenOptions::default()).expect("it opens");
    let references = references(source);
    let known = [(13_758, 0.1432), (27_517, 0.0823), (55_034, 0.0662), (110_068, 0.0621)];
    for threads in [1, 2, 3] {
        let profile = exact(&references, &known.map(|(size, _)| size), threads);
        for (size, expected) in known {
            let found = profile.miss_ratio(size).expect("there are accesses");
            assert!((found - expected).abs() < 0.00005, "{size} blocks: {found}, expected {expected}");
        }
    }
}

/// The mean error over 100 sizes evenly spaced up to the footprint, as the paper has it, and over sizes evenly spaced
/// in their logarithm, which looks closer at small caches.
fn errors(exact: &Profile, sampled: &Profile, largest: u64) -> (f64, f64) {
    let error = |size: u64| {
        let [exact, sampled] =
            [exact, sampled].map(|profile| profile.miss_ratio(size).expect("there are accesses"));
        (exact - sampled).abs()
    };
    let mean = |sizes: Vec<u64>| sizes.iter().map(|size| error(*size)).sum::<f64>() / sizes.len() as f64;
    (mean((1..=100).map(|n| (largest * n).div_ceil(100)).collect()), mean(Histogram::edges(largest, 8)))
}

#[test]
fn a_sample_is_close_to_the_whole() {
    sample_is_close(vec![("generated".to_string(), generated())]);
}

#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn a_sample_of_a_real_trace_is_close_to_the_whole() {
    sample_is_close(traces(&folder()));
}

fn sample_is_close(traces: Vec<(String, Vec<Reference>)>) {
    assert!(!traces.is_empty());
    for (name, references) in traces {
        let whole = exact(&references, &[], 2);
        let mut sampler = Sampler::fixed_size(SAMPLES);
        references.iter().for_each(|reference| sampler.access(reference.key(), reference.kind()));
        assert!(sampler.blocks() <= SAMPLES, "{name}");
        let sampled = sampler.profile();
        let largest = whole.all_distances().blocks.max(1);
        let (error, in_octaves) = errors(&whole, &sampled, largest);
        println!("{name}: error {error:.4}, {in_octaves:.4} in octaves, rate {:.4}", sampler.rate());
        assert!(error <= ALLOWED_ERROR, "{name}: {error}");
        let writes = whole.writes().max(1.0);
        let dirty = |profile: &Profile, size| profile.dirty_evictions(size) / writes;
        let sizes = Histogram::edges(largest, 8);
        let error = sizes.iter().map(|s| (dirty(&whole, *s) - dirty(&sampled, *s)).abs()).sum::<f64>()
            / sizes.len() as f64;
        println!("{name}: dirty evictions a write, error {error:.4}");
        assert!(error <= 0.05, "{name}: dirty evictions {error}");
    }
}

#[test]
fn a_fixed_rate_is_close_to_the_whole() {
    let references = generated();
    let whole = exact(&references, &[], 1);
    let mut sampler = Sampler::fixed_rate(0.05);
    references.iter().for_each(|reference| sampler.access(reference.key(), reference.kind()));
    let (error, _) = errors(&whole, &sampler.profile(), whole.all_distances().blocks);
    assert!(error <= ALLOWED_ERROR, "{error}");
    let mut all = Sampler::fixed_rate(1.0);
    references.iter().for_each(|reference| all.access(reference.key(), reference.kind()));
    assert_eq!(errors(&whole, &all.profile(), 300_000), (0.0, 0.0), "a sample of everything is exact");
}
