//! Miss ratios that others have published, and a pin of those of the production cache.

mod common;

use std::path::{Path, PathBuf};

use common::{memory, mixed, simulate};
use haversack_sim::{PolicyName, Pool, Report, Settings, SimError, Sizes};
use haversack_trace::{Source, open};

/// A real trace, in the folder that HAVERSACK_TRACES names.
fn real(name: &str) -> PathBuf {
    let folder =
        std::env::var_os("HAVERSACK_TRACES").expect("HAVERSACK_TRACES names the folder of real traces");
    PathBuf::from(folder).join(name)
}

/// Opens a trace file as often as asked for.
fn file(path: &Path) -> impl Fn() -> Result<Box<dyn Source>, SimError> + Sync {
    move || Ok(open(path, &Default::default())?)
}

fn miss_ratio(report: &Report, policy: PolicyName, blocks: u64) -> f64 {
    let row = report.of(policy).find(|row| row.blocks == Some(blocks));
    row.and_then(|row| row.miss_ratio).expect("the policy was simulated with this size")
}

/// libCacheSim's figures for this trace.
#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn lru_and_s3_fifo_on_cloudphysics_w106() {
    let path = real("keys/cloudphysics_w106.csv.zst");
    let answers = [
        (13_758, 0.1432, 0.1231),
        (27_517, 0.0823, 0.0783),
        (55_034, 0.0662, 0.0674),
        (110_068, 0.0621, 0.0590),
    ];
    let settings = Settings {
        policies: vec![PolicyName::Lru, PolicyName::S3Fifo],
        sizes: Sizes::Blocks(answers.map(|answer| answer.0).to_vec()),
        ..Settings::default()
    };
    let report = simulate(&file(&path), &settings);
    assert_eq!((report.trace.block_accesses, report.trace.footprint_blocks), (5_292_456, 275_171));
    for (blocks, lru, s3_fifo) in answers {
        let found = miss_ratio(&report, PolicyName::Lru, blocks);
        assert!((found - lru).abs() <= 0.000_05, "LRU, {blocks} blocks: {found}");
        let found = miss_ratio(&report, PolicyName::S3Fifo, blocks);
        assert!((found - s3_fifo).abs() <= 0.003, "S3-FIFO, {blocks} blocks: {found}");
    }
}

#[test]
fn no_policy_misses_less_than_min() {
    let accesses = mixed(20_000, 3);
    let settings = Settings { policies: vec![PolicyName::Lru, PolicyName::S3Fifo], ..Settings::default() };
    let report = simulate(&memory(&accesses, &["a", "b"]), &settings);
    let blocks = report.results[0].blocks.unwrap();
    let min = miss_ratio(&report, PolicyName::Min, blocks);
    for policy in [PolicyName::Lru, PolicyName::S3Fifo] {
        let found = miss_ratio(&report, policy, blocks);
        assert!((min..1.0).contains(&found), "{policy}: {found}");
    }
}

/// A regression pin, not a known answer: earlier miss ratios of the core, in whole segments. A failure shows only that
/// they have changed.
#[test]
#[ignore = "needs real traces: see `make test-traces`"]
fn the_production_cache_s_miss_ratios_on_cloudphysics_w106_are_as_before() {
    let path = real("keys/cloudphysics_w106.csv.zst");
    let settings = Settings {
        policies: vec![PolicyName::Core],
        sizes: Sizes::Blocks(vec![55 * 253, 218 * 253]),
        pool: Pool { staging_blocks: Some(256), transfer_blocks: 128, ..Pool::default() },
        ..Settings::default()
    };
    let report = simulate(&file(&path), &settings);
    for (blocks, known) in [(55 * 253, 0.1238), (218 * 253, 0.0672)] {
        let found = miss_ratio(&report, PolicyName::Core, blocks);
        assert!((found - known).abs() < 0.000_3, "{blocks} blocks: {found}");
    }
}
