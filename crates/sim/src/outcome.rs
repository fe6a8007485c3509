//! The results of a simulation: one row per policy and size, the same in tables, JSON and CSV.

use std::time::Duration;

use haversack_control::budget::Account;
use serde::Serialize;

use crate::cell::{CellResult, ProductionResult};
use crate::counts::{Counts, ratio, share};
use crate::governor::Outcome as Governed;
use crate::latency::histogram::{Histogram, Summary};
use crate::meter::Sample;
use crate::reference::PolicyName;
use crate::settings::Settings;
use crate::tape::Survey;

/// Latencies of one cache.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatencyRow {
    /// Reads.
    pub reads: Summary,
    /// Writes.
    pub writes: Summary,
    /// Both.
    pub all: Summary,
}

/// One volume with one cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VolumeRow {
    /// Its name.
    pub name: String,
    /// Misses among the accesses that count; `None` without any.
    pub miss_ratio: Option<f64>,
    /// Latencies of its reads and writes, with a model of time.
    pub latency: Option<Summary>,
    /// The counts.
    #[serde(flatten)]
    pub counts: Counts,
}

/// One cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: PolicyName,
    /// Blocks of the cache, as requested; `None` for one without limit.
    pub blocks: Option<u64>,
    /// The same in bytes.
    pub size_bytes: Option<u64>,
    /// The same as a fraction of the blocks that the trace accesses.
    pub footprint_fraction: Option<f64>,
    /// The most blocks that it can hold at a time: of the production cache, in its segments and its staging area.
    pub held_blocks: Option<u64>,
    /// Block accesses that count: all, or only reads in modes in which writes do not insert blocks.
    pub accesses: u64,
    /// Accesses that were cached.
    pub hits: u64,
    /// Accesses that were not cached.
    pub misses: u64,
    /// Misses among the accesses; `None` without any.
    pub miss_ratio: Option<f64>,
    /// Misses among the reads; `None` without any.
    pub read_miss_ratio: Option<f64>,
    /// Blocks written to flash, whatever the cause.
    pub flash_writes: u64,
    /// The same per block access.
    pub flash_write_ratio: f64,
    /// Simulated time over which it was counted: that of the trace without the warm-up.
    pub counted_seconds: f64,
    /// The counts of all volumes together.
    pub counts: Counts,
    /// Latencies, with a model of time.
    pub latency: Option<LatencyRow>,
    /// Details of the production cache.
    pub production: Option<ProductionRow>,
    /// Each volume; empty for MIN.
    pub volumes: Vec<VolumeRow>,
    /// Samples over time, if any were requested.
    pub series: Vec<Sample>,
    /// Processor time of the simulation, not part of the results.
    #[serde(skip)]
    pub elapsed: Duration,
}

/// Additional results of the production cache.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProductionRow {
    /// The pool's segments.
    pub segments: u64,
    /// Slots in them.
    pub capacity_blocks: u64,
    /// Blocks of the staging area.
    pub staging_blocks: u32,
    /// Number of restarts.
    pub restarts: u64,
    /// Blocks at the end that the origin does not have.
    pub dirty_blocks: u64,
    /// Blocks that each volume has in the end.
    pub usage_blocks: Vec<u64>,
    /// Flushes of the cache devices.
    pub device_flushes: u64,
    /// The results of the control loop, if there was one.
    pub control: Option<Governed>,
    /// The account of its budget of flash writes at the end, if there was one.
    pub flash_account: Option<Account>,
}

/// The results of a simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: Survey,
    /// The write mode.
    pub mode: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The caches, in the order of policies and sizes; then the bounds.
    pub results: Vec<Row>,
}

impl ProductionRow {
    /// The most blocks that it can hold at a time.
    fn held_blocks(&self) -> u64 {
        self.capacity_blocks + u64::from(self.staging_blocks)
    }

    fn of(result: &ProductionResult) -> Self {
        let ProductionResult { segments, capacity_blocks, staging_blocks, .. } = *result;
        let ProductionResult { restarts, device_flushes, .. } = *result;
        let dirty_blocks = result.disk_usages.iter().map(|usage| usage.dirty_blocks).sum();
        let usage_blocks = result.disk_usages.iter().map(|usage| usage.usage_blocks).collect();
        let control = result.governed.clone();
        ProductionRow {
            segments,
            capacity_blocks,
            staging_blocks,
            restarts,
            dirty_blocks,
            usage_blocks,
            device_flushes,
            control,
            flash_account: result.flash_account,
        }
    }
}

/// Accesses and hits that count.
fn counted(counts: &Counts, writes_allocate: bool) -> (u64, u64) {
    if writes_allocate {
        (counts.blocks_read() + counts.blocks_written(), counts.read_hits + counts.write_hits)
    } else {
        (counts.blocks_read(), counts.read_hits)
    }
}

impl Row {
    pub(crate) fn new(settings: &Settings, survey: &Survey, result: CellResult) -> Self {
        let mut counts = Counts::default();
        result.volumes.iter().for_each(|volume| counts.add(volume));
        let writes_allocate = settings.writes_allocate();
        let (accesses, hits) = counted(&counts, writes_allocate);
        let volume = |(number, (volume, counts)): (usize, (&crate::tape::Volume, &Counts))| {
            let (accesses, hits) = counted(counts, writes_allocate);
            let latency = result.of_volumes.get(number).map(Histogram::summary);
            VolumeRow {
                name: volume.name.clone(),
                miss_ratio: share(accesses - hits, accesses),
                latency: latency.filter(|latency| latency.count > 0),
                counts: *counts,
            }
        };
        let volumes = survey.volumes.iter().zip(&result.volumes).enumerate().map(volume).collect();
        let (reads, writes) = (result.latencies.reads.summary(), result.latencies.writes.summary());
        let all = result.latencies.all.summary();
        let production = result.production.as_ref().map(ProductionRow::of);
        Row {
            policy: result.policy,
            blocks: result.blocks,
            size_bytes: result.blocks.map(|blocks| blocks * settings.block_bytes),
            footprint_fraction: result.blocks.map(|blocks| ratio(blocks, survey.footprint_blocks)),
            held_blocks: production.as_ref().map(ProductionRow::held_blocks).or(result.blocks),
            accesses,
            hits,
            misses: accesses - hits,
            miss_ratio: share(accesses - hits, accesses),
            read_miss_ratio: share(counts.read_misses, counts.blocks_read()),
            flash_writes: counts.flash_writes(),
            flash_write_ratio: ratio(counts.flash_writes(), counts.blocks_read() + counts.blocks_written()),
            counted_seconds: (survey.span_seconds - result.warm_ns as f64 / 1e9).max(0.0),
            counts,
            latency: (all.count > 0).then_some(LatencyRow { reads, writes, all }),
            production,
            volumes: if result.policy == PolicyName::Min { Vec::new() } else { volumes },
            series: result.series,
            elapsed: result.elapsed,
        }
    }

    /// Blocks of a production cache that is larger than requested, because it cannot be smaller.
    pub fn raised_to(&self) -> Option<u64> {
        let capacity = self.production.as_ref()?.capacity_blocks;
        (Some(capacity) > self.blocks).then_some(capacity)
    }

    /// Block accesses that the simulation played per second of processor time, excluding warm-up.
    pub fn accesses_per_second(&self) -> f64 {
        let played = self.counts.blocks_read() + self.counts.blocks_written();
        played as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Report {
    /// The results of all cells.
    pub fn new(settings: &Settings, survey: Survey, results: Vec<CellResult>) -> Self {
        let rows = results.into_iter().map(|result| Row::new(settings, &survey, result)).collect();
        Report {
            mode: settings.mode.to_string(),
            block_bytes: settings.block_bytes,
            seed: settings.seed,
            results: rows,
            trace: survey,
        }
    }

    /// The rows of policies, without the bounds.
    pub fn policies(&self) -> impl Iterator<Item = &Row> {
        self.results.iter().filter(|row| !row.policy.is_bound())
    }

    /// The rows of a policy.
    pub fn of(&self, policy: PolicyName) -> impl Iterator<Item = &Row> {
        self.results.iter().filter(move |row| row.policy == policy)
    }
}
