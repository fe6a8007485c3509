//! Simulates many caches with one trace: every policy with every size, and the bounds, side by side.
//!
//! The trace is read once for all. While the threads play one batch, with a separate piece of work for each
//! cache, the next batch is read. The results do not depend on the threads: caches do not affect each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use haversack_model::SECTORS_PER_BLOCK;
use haversack_trace::Access;
use rustix::time::{ClockId, clock_gettime};

use crate::cell::{Cell, CellResult};
use crate::error::SimError;
use crate::governor::{self, Governor};
use crate::grid::Grids;
use crate::meter::{Meter, MeterSettings};
use crate::outcome::{Report, Row};
use crate::production::pool::PoolMake;
use crate::production::{self, Production};
use crate::reference::governed::{Governed, Monitored};
use crate::reference::lookahead::Lookahead;
use crate::reference::partitions::{Partitions, Resizable};
use crate::reference::replay::Replay;
use crate::reference::unlimited::Unlimited;
use crate::reference::{Policy, PolicyName, arc, clock, fifo, lirs, lru, s3_fifo, sieve, two_q};
use crate::settings::{Replacement, Settings};
use crate::tape::{Opener, Survey, Tape};

/// The stage of a simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Stage {
    /// Scanning the trace.
    Survey,
    /// Playing it.
    Play,
    /// Computing the bounds.
    Finish,
}

/// Called with the completed part of a stage.
pub type Progress<'a> = dyn Fn(Stage, f64) + Sync + 'a;

/// Simulates.
///
/// # Errors
/// The settings are invalid, or the trace cannot be read.
pub fn run(opener: &Opener<'_>, settings: &Settings, progress: &Progress<'_>) -> Result<Report, SimError> {
    settings.check()?;
    run_on(&scan(opener, settings, progress)?, settings, progress)
}

/// Scans a trace for simulations with these settings.
pub(crate) fn scan<'a>(
    opener: &'a Opener<'a>,
    settings: &Settings,
    progress: &Progress<'_>,
) -> Result<Tape<'a>, SimError> {
    let seen = |part| progress(Stage::Survey, part);
    Tape::of(opener, settings, &seen)
}

/// As [`run`], with a trace that has been scanned.
pub(crate) fn run_on(
    tape: &Tape<'_>,
    settings: &Settings,
    progress: &Progress<'_>,
) -> Result<Report, SimError> {
    settings.check()?;
    let sizes = settings.sizes.blocks(settings.block_bytes, tape.survey.footprint_blocks)?;
    let cells = cells(settings, &tape.survey, &sizes)?;
    let results = play(tape, cells, threads(settings), progress)?;
    Ok(Report::new(settings, tape.survey.clone(), results))
}

/// Number of caches that are simulated at a time.
pub fn threads(settings: &Settings) -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    if settings.threads == 0 { all } else { settings.threads }
}

fn meter_settings(settings: &Settings, survey: &Survey) -> MeterSettings {
    let sample_ns = match settings.traffic.samples {
        0 => 0,
        samples => (survey.span_ns() / u64::from(samples)).max(1),
    };
    MeterSettings { warm_up_requests: (survey.requests as f64 * settings.traffic.warm_up) as u64, sample_ns }
}

/// Simulates the production cache with each of several settings, each with one size. The settings differ only
/// in the production cache, not in the trace: the first settings determine how it is played.
///
/// # Errors
/// Settings are invalid, or the trace cannot be read.
pub fn pools(tape: &Tape<'_>, pools: &[&Settings], progress: &Progress<'_>) -> Result<Vec<Row>, SimError> {
    let Some(first) = pools.first() else { return Ok(Vec::new()) };
    let meter = meter_settings(first, &tape.survey);
    let cell = |settings: &&Settings| {
        let sizes = settings.sizes.blocks(settings.block_bytes, tape.survey.footprint_blocks)?;
        governed(settings, &tape.survey, sizes[0], meter)
    };
    let cells = pools.iter().map(cell).collect::<Result<_, _>>()?;
    let results = play(tape, cells, threads(first), progress)?.into_iter().zip(pools);
    Ok(results.map(|(result, settings)| Row::new(settings, &tape.survey, result)).collect())
}

/// Simulates MIN, a cache without limit, and one LRU cache of each size.
///
/// # Errors
/// The trace cannot be read.
pub(crate) fn bounds(
    tape: &Tape<'_>,
    settings: &Settings,
    sizes: &[u64],
    progress: &Progress<'_>,
) -> Result<Vec<Row>, SimError> {
    let meter = meter_settings(settings, &tape.survey);
    let grids = &tape.survey.grids;
    let mut cells: Vec<Box<dyn Cell>> =
        vec![Box::new(Lookahead::new(sizes.to_vec(), grids.clone(), settings.mode, meter))];
    cells.push(replay(settings, grids, PolicyName::Unlimited, None, meter, Unlimited::default()));
    cells.extend(sizes.iter().map(|blocks| reference(settings, grids, PolicyName::Lru, *blocks, meter)));
    let results = play(tape, cells, threads(settings), progress)?.into_iter();
    Ok(results.map(|result| Row::new(settings, &tape.survey, result)).collect())
}

/// All caches, in the order of the results.
fn cells(settings: &Settings, survey: &Survey, sizes: &[u64]) -> Result<Vec<Box<dyn Cell>>, SimError> {
    let (meter, grids) = (meter_settings(settings, survey), &survey.grids);
    let mut cells: Vec<Box<dyn Cell>> = Vec::new();
    for policy in settings.policies.iter().filter(|policy| !policy.is_bound()) {
        for blocks in sizes {
            cells.push(match policy {
                PolicyName::Core => governed(settings, survey, *blocks, meter)?,
                policy => reference(settings, grids, *policy, *blocks, meter),
            });
        }
    }
    let of_min = sizes_of_min(settings, sizes)?;
    cells.push(Box::new(Lookahead::new(of_min, grids.clone(), settings.mode, meter)));
    cells.push(replay(settings, grids, PolicyName::Unlimited, None, meter, Unlimited::default()));
    Ok(cells)
}

/// The most blocks that a pool of this size can hold at a time. The production cache has whole segments, never fewer
/// than two on each device, and a staging area in addition.
///
/// # Errors
/// The pool is too large.
pub(crate) fn held_blocks(settings: &Settings, blocks: u64) -> Result<u64, SimError> {
    match settings.replacement {
        Replacement::Core => Ok(PoolMake::of(&settings.pool, blocks)?.held_blocks()),
        Replacement::Lru | Replacement::Arc => Ok(blocks),
    }
}

/// The sizes of MIN: those requested, each followed by what the production cache holds at that size, so that both can
/// be compared at equal memory.
fn sizes_of_min(settings: &Settings, sizes: &[u64]) -> Result<Vec<u64>, SimError> {
    let has_pools = settings.policies.contains(&PolicyName::Core);
    let mut of_min = Vec::new();
    for blocks in sizes {
        of_min.push(*blocks);
        let held = if has_pools { held_blocks(settings, *blocks)? } else { *blocks };
        if !sizes.contains(&held) && !of_min.contains(&held) {
            of_min.push(held);
        }
    }
    Ok(of_min)
}

fn reference(
    settings: &Settings,
    grids: &Grids,
    name: PolicyName,
    blocks: u64,
    meter: MeterSettings,
) -> Box<dyn Cell> {
    let (some, capacity) = (Some(blocks), blocks as usize);
    match name {
        PolicyName::Lru => replay(settings, grids, name, some, meter, lru::Lru::new(capacity)),
        PolicyName::Fifo => replay(settings, grids, name, some, meter, fifo::Fifo::new(capacity)),
        PolicyName::Clock => replay(settings, grids, name, some, meter, clock::Clock::new(capacity)),
        PolicyName::TwoQ => replay(settings, grids, name, some, meter, two_q::TwoQ::new(capacity)),
        PolicyName::Arc => replay(settings, grids, name, some, meter, arc::Arc::new(capacity)),
        PolicyName::Lirs => replay(settings, grids, name, some, meter, lirs::Lirs::new(capacity)),
        PolicyName::S3Fifo => replay(settings, grids, name, some, meter, s3_fifo::S3Fifo::new(capacity)),
        PolicyName::Sieve => replay(settings, grids, name, some, meter, sieve::Sieve::new(capacity)),
        PolicyName::Core | PolicyName::Min | PolicyName::Unlimited => {
            unreachable!("{name} is no reference policy of a size")
        }
    }
}

fn replay<P: Policy + 'static>(
    settings: &Settings,
    grids: &Grids,
    name: PolicyName,
    blocks: Option<u64>,
    meter: MeterSettings,
    policy: P,
) -> Box<dyn Cell> {
    Box::new(Replay::new(settings, grids, name, blocks, meter, policy))
}

/// The cache of a pool: the production cache, or a paper's replacement under the same control loop.
fn governed(
    settings: &Settings,
    survey: &Survey,
    blocks: u64,
    meter: MeterSettings,
) -> Result<Box<dyn Cell>, SimError> {
    match settings.replacement {
        Replacement::Core => Production::cell(settings, survey, blocks, meter),
        Replacement::Lru => partitions(settings, survey, blocks, meter, PolicyName::Lru, lru::Lru::new),
        Replacement::Arc => partitions(settings, survey, blocks, meter, PolicyName::Arc, arc::Arc::new),
    }
}

fn partitions<R: Resizable + 'static>(
    settings: &Settings,
    survey: &Survey,
    blocks: u64,
    meter: MeterSettings,
    name: PolicyName,
    make: impl Fn(usize) -> R,
) -> Result<Box<dyn Cell>, SimError> {
    let configs = production::disks(settings, survey)?;
    let names: Vec<String> = survey.volumes.iter().map(|volume| volume.name.clone()).collect();
    let sizes: Vec<u64> = configs.iter().map(|disk| disk.sectors.div_ceil(SECTORS_PER_BLOCK)).collect();
    let mut policy = Partitions::new(blocks as usize, &sizes, settings.mode, make);
    for (number, disk) in configs.iter().enumerate() {
        policy.set(number, disk.target, disk.admission, disk.mode);
    }
    let replay = Replay::new(settings, &survey.grids, name, Some(blocks), meter, policy);
    let mut cache = Monitored::new(replay, configs.len());
    let volumes = names.iter().zip(&configs).map(|(name, disk)| (name, disk.sectors, disk.target));
    let (disks, happenings) = (governor::disks(settings, volumes), &settings.pool.happenings);
    let begin = |config| Governor::new(config, blocks, disks, happenings, &mut cache, &mut Meter::new(meter));
    let governor = settings.control.as_ref().map(begin).transpose()?;
    Ok(Box::new(Governed::new(cache, governor)))
}

/// A cell, and its processor time so far.
struct Work {
    cell: Box<dyn Cell>,
    elapsed: Duration,
    failed: Option<SimError>,
}

/// Plays the tape to all cells.
fn play(
    tape: &Tape<'_>,
    cells: Vec<Box<dyn Cell>>,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<CellResult>, SimError> {
    let work = |cell| Mutex::new(Work { cell, elapsed: Duration::ZERO, failed: None });
    let works: Vec<_> = cells.into_iter().map(work).collect();
    let mut playback = tape.play()?;
    let (mut batch, mut next) = (Vec::new(), Vec::new());
    playback.next(&mut batch)?;
    while !batch.is_empty() {
        let (queue, accesses) = (AtomicUsize::new(0), &batch);
        let read = std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| work_off(&works, &queue, accesses));
            }
            let read = playback.next(&mut next);
            work_off(&works, &queue, accesses);
            read
        });
        read?;
        for work in &works {
            if let Some(error) = lock(work).failed.take() {
                return Err(error);
            }
        }
        std::mem::swap(&mut batch, &mut next);
        progress(Stage::Play, playback.progress());
    }
    finish(works, progress)
}

/// Processor time of this thread: the cost of a cache, independent of other work on the machine.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn lock(work: &Mutex<Work>) -> std::sync::MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Plays a batch to the cells that no other thread has claimed.
fn work_off(works: &[Mutex<Work>], queue: &AtomicUsize, accesses: &[Access]) {
    while let Some(work) = works.get(queue.fetch_add(1, Ordering::Relaxed)) {
        let mut work = lock(work);
        let start = thread_time();
        let played = work.cell.play(accesses);
        work.elapsed += thread_time().saturating_sub(start);
        work.failed = played.err();
    }
}

fn finish(works: Vec<Mutex<Work>>, progress: &Progress<'_>) -> Result<Vec<CellResult>, SimError> {
    let (mut results, count) = (Vec::new(), works.len());
    for (done, work) in works.into_iter().enumerate() {
        progress(Stage::Finish, done as f64 / count as f64);
        let work = work.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = thread_time();
        let mut ended = work.cell.end()?;
        let last = thread_time().saturating_sub(start) / ended.len().max(1) as u32;
        ended.iter_mut().for_each(|result| result.elapsed = work.elapsed + last);
        results.extend(ended);
    }
    progress(Stage::Finish, 1.0);
    Ok(results)
}
