//! Miss ratios and metadata writes on real traces, or on a generated one where there are none.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use haversack_core::{CoreConfig, DiskStats, NullMemory, Target};
use haversack_model::Micros;

use crate::driver::{Driver, Setup, disk_of_blocks};
use crate::output::say;
use crate::table::{self, grouped, row};
use haversack_model::random::Random;

/// Staging frames, few beside the smallest cache.
pub const STAGING_FRAMES: u32 = 256;
const TRANSFER_FRAMES: u32 = 128;
/// Blocks of a segment.
const SEGMENT_BLOCKS: u64 = 253;
/// Time between two requests.
const STEP_US: Micros = 10;
/// The generated trace: requests, blocks, and the exponent of their popularity.
const ZIPF: (usize, u64, f64) = (2_000_000, 500_000, 0.9);

/// Reads of a trace: first block, number of blocks.
type Reads = Vec<(u64, u32)>;

/// A trace and the caches to try it with: blocks, miss ratio of exact LRU, goal.
struct Trace {
    name: &'static str,
    caches: &'static [(u64, f64, f64)],
}

static TRACES: [Trace; 3] = [
    Trace { name: "cloudphysics_w106", caches: &[(13_758, 0.143, 0.130), (55_034, 0.066, 0.071)] },
    Trace { name: "arc_P3", caches: &[(10_234, 0.735, 0.62)] },
    Trace { name: "arc_P12", caches: &[(40_159, 0.417, 0.39)] },
];

/// Replays all traces under `folder`, or a generated one, and prints.
pub fn run(folder: Option<&Path>, staging_frames: u32) {
    let mut rows = vec![row([
        "trace",
        "cache blocks",
        "miss ratio",
        "goal",
        "exact LRU",
        "most in use",
        "beyond data %",
        "2nd half %",
        "goal",
        "blocks/page",
        "batch pages",
        "rewritten",
        "fills skipped",
        "requests/s",
    ])];
    let files = folder.into_iter().flat_map(|folder| {
        TRACES.iter().map(move |trace| (trace, folder.join(format!("keys/{}.csv.zst", trace.name))))
    });
    for (trace, path) in files {
        match load(&path) {
            Ok(reads) => {
                for (blocks, lru, goal) in trace.caches {
                    let (lru, goal) = (lru.to_string(), goal.to_string());
                    rows.push(replay(trace.name, &reads, *blocks, staging_frames, [&goal, &lru]));
                }
            }
            Err(error) => say!("no trace {}: {error}", path.display()),
        }
    }
    if rows.len() == 1 {
        say!("using a generated trace: its miss ratio has no goal");
        let reads = zipf();
        for blocks in [10_000, 50_000] {
            rows.push(replay("generated, Zipf", &reads, blocks, staging_frames, ["-", "-"]));
        }
    }
    let title = format!("traces: admission 'always', {staging_frames} staging frames");
    table::print(&title, &rows);
}

/// Reads a trace of block numbers, or of first sector and number of sectors.
fn load(path: &Path) -> io::Result<Reads> {
    let mut lines = BufReader::new(zstd::Decoder::new(File::open(path)?)?).lines();
    lines.next().transpose()?;
    let mut reads = Vec::new();
    for line in lines {
        let line = line?;
        let number = |text: &str| {
            let bad = |error| io::Error::other(format!("'{line}' in {}: {error}", path.display()));
            text.trim().parse::<u64>().map_err(bad)
        };
        reads.push(match line.split_once(',') {
            None => (number(&line)?, 1),
            Some((start, count)) => {
                let (start, count) = (number(start)?, number(count)?.max(1));
                let (first, last) = (start / 8, (start + count - 1) / 8);
                (first, (last - first + 1) as u32)
            }
        });
    }
    Ok(reads)
}

fn zipf() -> Reads {
    let (requests, blocks, exponent) = ZIPF;
    let mut sum = 0.0;
    let weights = (1..=blocks).map(|rank| {
        sum += (rank as f64).powf(-exponent);
        sum
    });
    let weights: Vec<f64> = weights.collect();
    let total = *weights.last().expect("there are blocks");
    let mut rng = Random::new(42);
    let mut draw = || {
        let at = rng.unit() * total;
        (weights.partition_point(|w| *w < at) as u64, 1)
    };
    (0..requests).map(|_| draw()).collect()
}

/// Pages written beside the data, and blocks of data.
fn written(stats: &DiskStats, record_pages: u64) -> (u64, u64) {
    let pages = stats.flash_batch_pages + stats.flash_rewrite_pages + stats.flash_intent_pages;
    let blocks = stats.flash_fill_blocks + stats.flash_write_blocks;
    (pages + record_pages, blocks)
}

fn percent(pages: u64, blocks: u64) -> String {
    format!("{:.2}", 100.0 * pages as f64 / blocks.max(1) as f64)
}

fn open(reads: &Reads, blocks: u64, staging_frames: u32) -> Driver<NullMemory> {
    let end = reads.iter().map(|(b, n)| b + u64::from(*n)).max();
    let mut disk = disk_of_blocks(end.unwrap_or(1));
    disk.target = Target::Blocks(blocks);
    let setup = Setup {
        segments: blocks.div_ceil(SEGMENT_BLOCKS) as u32,
        config: CoreConfig { share_spare: false, ..CoreConfig::default() },
        disk,
        zero_reads: false,
    };
    Driver::open(&setup, NullMemory::new(staging_frames, TRANSFER_FRAMES))
}

/// Replays a trace; `watch` sees the cache after each request.
fn play(driver: &mut Driver<NullMemory>, reads: &Reads, mut watch: impl FnMut(usize, &Driver<NullMemory>)) {
    for (at, (block, count)) in reads.iter().enumerate() {
        driver.read(at as u64, *block, *count);
        watch(at, driver);
        driver.pass(STEP_US);
    }
}

fn replay(
    name: &str,
    reads: &Reads,
    blocks: u64,
    staging_frames: u32,
    [goal, lru]: [&str; 2],
) -> Vec<String> {
    let mut timed = open(reads, blocks, staging_frames);
    let start = Instant::now();
    play(&mut timed, reads, |_, _| {});
    let rate = reads.len() as f64 / start.elapsed().as_secs_f64();

    // A second run watches the cache: watching takes time, so the first run is the timed one.
    let mut driver = open(reads, blocks, staging_frames);
    let (mut most, mut misses, mut half) = (0, 0, (0, 0));
    play(&mut driver, reads, |at, driver| {
        let now = driver.stats().read_misses;
        if now > misses {
            misses = now;
            most = most.max(driver.usage().usage_blocks);
        }
        if at == reads.len() / 2 {
            half = written(&driver.stats(), driver.core.pool_stats().record_pages);
        }
    });
    let stats = driver.stats();
    assert_eq!(stats, timed.stats(), "a run can be repeated exactly");
    let (pages, data) = written(&stats, driver.core.pool_stats().record_pages);
    let own_pages = stats.flash_batch_pages + stats.flash_rewrite_pages;
    let accesses = stats.read_hits + stats.read_misses;
    vec![
        name.into(),
        grouped(blocks),
        format!("{:.4}", stats.read_misses as f64 / accesses as f64),
        goal.into(),
        lru.into(),
        grouped(most),
        percent(pages, data),
        percent(pages - half.0, data - half.1),
        "4".into(),
        format!("{:.1}", data as f64 / own_pages.max(1) as f64),
        grouped(stats.flash_batch_pages),
        grouped(stats.flash_rewrite_pages),
        grouped(stats.fills_skipped),
        grouped(rate as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_written_beyond_data() {
        let reads = zipf();
        for blocks in [10_000, 50_000] {
            let mut driver = open(&reads, blocks, STAGING_FRAMES);
            play(&mut driver, &reads, |_, _| {});
            let (pages, data) = written(&driver.stats(), driver.core.pool_stats().record_pages);
            assert!(data > 4 * blocks && pages * 100 < 4 * data, "{pages} pages beside {data} blocks");
            let used = driver.usage().usage_blocks;
            assert!(used <= blocks && used > blocks * 95 / 100, "{used} of {blocks} blocks are used");
        }
    }
}
