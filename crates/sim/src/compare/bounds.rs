//! Bounds that no system can exceed on a mix: a cache without limit, one that knows the future, and the best
//! static split.
//!
//! The static split is found by exact search on the true LRU curves of all disks. It is a bound only for
//! static divisions of LRU caches: a system that follows phases, or a replacement better than LRU, may exceed
//! it.
//!
//! All of them have the memory that the systems' pool has: of the production cache its segments, which are whole, and
//! its staging area.

use haversack_analyze::{Histogram, Kind, Stack};
use haversack_policy::allocate::Claim;
use haversack_policy::allocate::exact::Exact;
use haversack_policy::allocate::problem::{Problem, Solver};
use haversack_policy::demand::weight::Counts;
use haversack_trace::Op;
use serde::{Deserialize, Serialize};

use crate::counts::ratio;
use crate::error::SimError;
use crate::outcome::Row;
use crate::production::pool::PoolMake;
use crate::reference::PolicyName;
use crate::settings::{Replacement, Settings, Sizes};
use crate::sweep::{self, Progress};
use crate::tape::Tape;

/// Number of units into which the search divides the pool.
const UNITS: u64 = 2048;
/// Number of points of a curve between a size and twice that size.
const POINTS_AN_OCTAVE: usize = 64;

/// The best static split of a pool among LRU caches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StaticSplit {
    /// Hits among the blocks read and written.
    pub hit_ratio: f64,
    /// Blocks of each disk.
    pub blocks: Vec<u64>,
}

/// A size of the pool.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PoolSize {
    /// The size as a fraction of the footprint.
    pub fraction: f64,
    /// The size in blocks, as requested.
    pub blocks: u64,
    /// The most blocks that the pool can hold at a time.
    pub held_blocks: u64,
    /// Blocks of the pool if it is larger than requested, because no pool is smaller.
    pub raised_to: Option<u64>,
}

/// The sizes of the pool that these settings give.
///
/// # Errors
/// A size is 0 blocks, or too large.
pub fn sizes(
    settings: &Settings,
    fractions: &[f64],
    footprint_blocks: u64,
) -> Result<Vec<PoolSize>, SimError> {
    let blocks = Sizes::Fractions(fractions.to_vec()).blocks(settings.block_bytes, footprint_blocks)?;
    let is_core = settings.replacement == Replacement::Core;
    let size = |(fraction, blocks): (&f64, u64)| {
        let fewest = PoolMake::fewest_blocks(&settings.pool);
        Ok(PoolSize {
            fraction: *fraction,
            blocks,
            held_blocks: sweep::held_blocks(settings, blocks)?,
            raised_to: (is_core && blocks < fewest).then_some(fewest),
        })
    };
    fractions.iter().zip(blocks).map(size).collect()
}

/// The bounds of a size. Hits are among the blocks read and written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// Seed of generated loads.
    pub seed: u64,
    /// Size of the pool as a fraction of the footprint.
    pub fraction: f64,
    /// Blocks of the pool, as requested.
    pub blocks: u64,
    /// The most blocks that the pool can hold at a time, which is also the size of the caches here.
    pub held_blocks: u64,
    /// Blocks of the pool if it is larger than requested, because no pool is smaller.
    pub raised_to: Option<u64>,
    /// Hits of a cache without limit.
    pub unlimited: f64,
    /// Hits of a cache that knows the future.
    pub min: f64,
    /// Hits of one LRU cache for all: not a bound, but the baseline of the papers.
    pub global_lru: f64,
    /// Flash writes of that cache, per block read or written.
    pub global_lru_flash_writes: f64,
    /// Hits of the best static split.
    pub static_split: StaticSplit,
}

/// Distances of all reads and writes of each disk, each in its own stack, and how many there are.
fn curves(tape: &Tape<'_>) -> Result<Vec<(Histogram, u64)>, SimError> {
    let volumes = tape.survey.volumes.len();
    let mut stacks: Vec<(Stack, Histogram, u64)> =
        (0..volumes).map(|_| (Stack::default(), Histogram::default(), 0)).collect();
    let (mut playback, mut batch) = (tape.play()?, Vec::new());
    playback.next(&mut batch)?;
    while !batch.is_empty() {
        for access in &batch {
            let (stack, distances, accesses) = &mut stacks[access.volume.0 as usize];
            let kind = match access.op {
                Op::Read => Kind::Read,
                Op::Write => Kind::Write,
                Op::Flush | Op::Discard => continue,
            };
            for block in tape.survey.grids.blocks(access) {
                *accesses += 1;
                if let Some((_, distance)) = stack.touch(block, kind).previous {
                    distances.add(distance.into(), 1.0);
                }
            }
        }
        playback.next(&mut batch)?;
    }
    Ok(stacks.into_iter().map(|(_, distances, accesses)| (distances, accesses)).collect())
}

fn split(names: &[String], curves: &[(Histogram, u64)], blocks: u64) -> StaticSplit {
    let claim = |(name, (distances, _)): (&String, &(Histogram, u64))| {
        let largest = distances.largest().map_or(0, |largest| largest + 1);
        let sizes = Histogram::edges(largest, POINTS_AN_OCTAVE).into_iter();
        Claim {
            disk: name.clone(),
            vm: name.clone(),
            tenant: name.clone(),
            reservation_blocks: 0,
            limit_blocks: blocks,
            demand_blocks: largest,
            fixed_blocks: None,
            priority: 1.0,
            worth: sizes.map(|size| (size, distances.below(size))).collect(),
            counts: Counts::default(),
        }
    };
    let claims: Vec<Claim> = names.iter().zip(curves).map(claim).collect();
    let problem = Problem::new(blocks, &claims, UNITS, 1);
    let solution = Exact.solve(&problem);
    let accesses: u64 = curves.iter().map(|curve| curve.1).sum();
    StaticSplit {
        hit_ratio: solution.worth / accesses.max(1) as f64,
        blocks: problem.blocks(&claims, &solution),
    }
}

/// The bounds of each size.
///
/// # Errors
/// The trace cannot be read.
pub fn bounds(
    tape: &Tape<'_>,
    settings: &Settings,
    sizes: &[PoolSize],
    seed: u64,
    progress: &Progress<'_>,
) -> Result<Vec<Bounds>, SimError> {
    let held: Vec<u64> = sizes.iter().map(|size| size.held_blocks).collect();
    let rows = sweep::bounds(tape, settings, &held, progress)?;
    let curves = curves(tape)?;
    let names: Vec<String> = tape.survey.volumes.iter().map(|volume| volume.name.clone()).collect();
    let figure = |policy: PolicyName, blocks: Option<u64>, of: fn(&Row) -> u64| {
        let row = rows.iter().find(|row| row.policy == policy && row.blocks == blocks);
        row.map_or(0.0, |row| ratio(of(row), row.counts.blocks_read() + row.counts.blocks_written()))
    };
    let hits = |row: &Row| row.counts.read_hits + row.counts.write_hits;
    let bound = |size: &PoolSize| {
        let held = Some(size.held_blocks);
        Bounds {
            seed,
            fraction: size.fraction,
            blocks: size.blocks,
            held_blocks: size.held_blocks,
            raised_to: size.raised_to,
            unlimited: figure(PolicyName::Unlimited, None, hits),
            min: figure(PolicyName::Min, held, hits),
            global_lru: figure(PolicyName::Lru, held, hits),
            global_lru_flash_writes: figure(PolicyName::Lru, held, |row| row.flash_writes),
            static_split: split(&names, &curves, size.held_blocks),
        }
    };
    Ok(sizes.iter().map(bound).collect())
}
