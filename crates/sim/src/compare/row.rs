//! The results of one simulated pool.

use serde::{Deserialize, Serialize};

use super::system::{System, Variant};
use crate::counts::{ratio, share};
use crate::governor::TargetSample;
use crate::outcome::{Row, VolumeRow};

/// A disk with a system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskRow {
    /// Its name.
    pub name: String,
    /// Hits among the blocks read; `None` if none was.
    pub read_hit_ratio: Option<f64>,
    /// Hits among the blocks read and written.
    pub hit_ratio: f64,
    /// Mean latency of its reads and writes.
    pub mean_us: f64,
    /// 95th percentile of latency.
    pub p95_us: f64,
    /// Blocks written to flash.
    pub flash_writes: u64,
    /// Bytes read from and written to its origin.
    pub origin_bytes: u64,
}

impl DiskRow {
    fn of(volume: &VolumeRow) -> DiskRow {
        let counts = &volume.counts;
        DiskRow {
            name: volume.name.clone(),
            read_hit_ratio: share(counts.read_hits, counts.blocks_read()),
            hit_ratio: ratio(
                counts.read_hits + counts.write_hits,
                counts.blocks_read() + counts.blocks_written(),
            ),
            mean_us: volume.latency.map_or(0.0, |latency| latency.mean_us),
            p95_us: volume.latency.map_or(0.0, |latency| latency.p95_us),
            flash_writes: counts.flash_writes(),
            origin_bytes: counts.origin_read_bytes + counts.origin_written_bytes,
        }
    }
}

/// A system on the mix, in a pool of one size, with one seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Combination {
    /// The system.
    #[serde(flatten)]
    pub system: System,
    /// Length of a window of its control loop in seconds.
    pub window_s: f64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Size of the pool as a fraction of the footprint.
    pub fraction: f64,
    /// Its budget of flash writes, in blocks per block accessed.
    pub write_budget: Option<f64>,
    /// Blocks of the pool.
    pub blocks: u64,
    /// Hits among the blocks read; `None` if none was.
    pub read_hit_ratio: Option<f64>,
    /// Hits among the blocks read and written.
    pub hit_ratio: f64,
    /// Mean latency of requests.
    pub mean_us: f64,
    /// 95th percentile of latency.
    pub p95_us: f64,
    /// Blocks written to flash, whatever the cause.
    pub flash_writes: u64,
    /// The same per block read or written.
    pub flash_write_ratio: f64,
    /// Bytes read from and written to the origins.
    pub origin_bytes: u64,
    /// Blocks in use, the mean over the decisions.
    pub usage_blocks: f64,
    /// Processor time of the longest decision in milliseconds.
    pub decision_ms: f64,
    /// Each disk.
    pub disks: Vec<DiskRow>,
    /// The shares of each disk over time; kept only for the first size and seed.
    pub targets: Vec<TargetSample>,
    /// Why no decision was possible, if that happened.
    pub refusal: Option<String>,
}

impl Combination {
    /// The results of a simulated pool.
    pub(super) fn of(variant: &Variant, row: &Row) -> Combination {
        let governed =
            row.production.as_ref().and_then(|production| production.control.clone()).unwrap_or_default();
        let used = |sample: &TargetSample| sample.usage_blocks.iter().sum::<u64>() as f64;
        let used: f64 = governed.targets.iter().map(used).sum();
        let counts = &row.counts;
        let accesses = counts.blocks_read() + counts.blocks_written();
        Combination {
            system: variant.system.clone(),
            window_s: variant.window_s,
            seed: variant.settings.seed,
            fraction: variant.fraction,
            write_budget: variant.write_budget,
            blocks: row.blocks.unwrap_or(0),
            read_hit_ratio: share(counts.read_hits, counts.blocks_read()),
            hit_ratio: ratio(counts.read_hits + counts.write_hits, accesses),
            mean_us: row.latency.map_or(0.0, |latency| latency.all.mean_us),
            p95_us: row.latency.map_or(0.0, |latency| latency.all.p95_us),
            flash_writes: row.flash_writes,
            flash_write_ratio: ratio(row.flash_writes, accesses),
            origin_bytes: counts.origin_read_bytes + counts.origin_written_bytes,
            usage_blocks: used / governed.targets.len().max(1) as f64,
            decision_ms: governed.longest_decision.as_secs_f64() * 1000.0,
            disks: row.volumes.iter().map(DiskRow::of).collect(),
            targets: governed.targets,
            refusal: governed.refusal,
        }
    }
}
