//! Turns one disk's records of a window into figures, in bounded memory.
//!
//! Distances are estimated from samples of a fixed size (SHARDS). A sample lives for two windows: in the first
//! it learns which blocks exist, in the second its distances count. So a block last used in the previous window
//! does not count as cold, and a block not used for two windows takes no memory. The younger sample also yields
//! the working sets of its window, because both began together.
//!
//! Sources: Waldspurger et al., FAST'15 (SHARDS); CloudCache (Arteaga), section 3.4.1, for working sets;
//! ECI-Cache, section 4, for useful distances; vCacheShare, sections 4.1 to 4.3, for read-only curves and for
//! intensity.

use std::ops::Range;

use haversack_admission::{Admission, Hec, Op};
use haversack_analyze::{Class, Histogram, Kind, Profile, Sampler};
use haversack_core::Records;
use haversack_core::monitor::{self, Record};
use haversack_model::{BLOCK_BYTES, BlockNo, Micros, SECTORS_PER_BLOCK};
use haversack_policy::demand::running_knee::{Knee, RunningKnee};
use haversack_policy::demand::working_set_window::{MOST_REUSES, WorkingSetWindow};
use haversack_policy::{Curve, DiskWindow, Intensity, PolicyError};

use crate::counters::Counters;

/// Points of a curve between a size and twice that size.
const POINTS_AN_OCTAVE: usize = 8;
/// Ratios are rounded to a millionth: anything finer is noise of the sample.
const RATIO_STEPS: f64 = 1e6;
/// Distinct blocks at the end of a window are counted up to this number where distances are exact, and estimated
/// beyond.
const EXACT_PLACES: u32 = 1 << 16;
/// The size of HEC's regions and longest runs: 4 MiB.
const HEC_BLOCKS: u64 = (4 << 20) / BLOCK_BYTES as u64;

/// How a disk is observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObserverConfig {
    /// The intended length of a window of the pool.
    pub window_us: Micros,
    /// The time at the end of a window in which intensity is measured.
    pub measurement_us: Micros,
    /// Sample size in blocks; `None` for all blocks, of which distances are exact. A disk has four samples, of about
    /// 100 bytes per block.
    pub sample_blocks: Option<usize>,
    /// Blocks of the unit in which distances and working sets are measured. If only some blocks are recorded, it is
    /// one.
    pub unit_blocks: u64,
    /// Whether reads and writes count only for blocks that they cover as a whole.
    pub whole_blocks: bool,
    /// Whether HEC's touches are counted, which takes more time than everything else.
    pub touches: bool,
}

/// Samples of a disk's blocks.
struct Samples {
    /// From the previous window on: knows which blocks were used then.
    older: Sampler,
    /// From the start of the current window on.
    younger: Sampler,
    /// `None` for all blocks.
    most_blocks: Option<usize>,
    /// The highest rate of the youngest sample: no more than what is recorded at all.
    highest_rate: f64,
}

impl Samples {
    fn new(most_blocks: Option<usize>) -> Samples {
        let sampler = sampler(most_blocks, 1.0);
        Samples { older: sampler.clone(), younger: sampler, most_blocks, highest_rate: 1.0 }
    }

    /// Notes that only one block in 2 to this power is recorded from now on.
    fn thin_out(&mut self, sample_shift: u8) {
        let rate = 2f64.powi(-i32::from(sample_shift));
        if rate != self.highest_rate {
            let sampler = sampler(self.most_blocks, rate);
            *self = Samples { older: sampler.clone(), younger: sampler, highest_rate: rate, ..*self };
        }
    }

    fn access(&mut self, block: u64, kind: Kind, passed_over: u64) {
        for sampler in [&mut self.older, &mut self.younger] {
            sampler.access(block, kind);
            if passed_over > 0 {
                sampler.pass_over(kind, passed_over);
            }
        }
    }

    /// Begins a window.
    fn turn(&mut self) {
        let rate = (self.younger.rate() * 2.0).min(self.highest_rate);
        let youngest = sampler(self.most_blocks, rate);
        self.older = std::mem::replace(&mut self.younger, youngest);
        self.older.fade(0.0);
        self.older.restart_counts();
    }
}

/// Samples this share of the blocks, but no more than a limit if there is one.
fn sampler(most_blocks: Option<usize>, rate: f64) -> Sampler {
    Sampler::fixed_size_from(most_blocks.unwrap_or(usize::MAX), rate)
}

/// See the module documentation.
pub struct Observer {
    config: ObserverConfig,
    opened_us: Micros,
    /// Windows of the pool that have ended since then.
    windows: u64,
    /// When the measurement of intensity begins.
    late_from_us: Micros,
    all: Samples,
    reads: Samples,
    /// Reads at the end of the window, for intensity.
    late: WorkingSetWindow,
    late_reads: u64,
    /// One block in 2 to this power is recorded.
    sample_shift: u8,
    touches: Option<Hec>,
    before: Counters,
    lost: u64,
    /// Lengths of windows on trial, if one of them is to be chosen.
    lengths: Option<RunningKnee>,
}

impl Observer {
    /// Observes a disk of this many blocks from now on; `counters` are its current counters.
    ///
    /// # Errors
    /// The window has no length, or is shorter than its measurement.
    pub fn new(
        config: ObserverConfig,
        now_us: Micros,
        disk_blocks: u64,
        counters: &Counters,
    ) -> Result<Observer, PolicyError> {
        let ObserverConfig { window_us, measurement_us, sample_blocks, .. } = config;
        if window_us < measurement_us {
            return Err(PolicyError::WindowTooShort { window_us, measurement_us });
        }
        let late_from_us = late_from(&config, now_us.saturating_add(window_us));
        Ok(Observer {
            config,
            opened_us: now_us,
            windows: 0,
            late_from_us,
            all: Samples::new(sample_blocks),
            reads: Samples::new(sample_blocks),
            late: late(&config, late_from_us)?,
            late_reads: 0,
            sample_shift: 0,
            touches: config.touches.then(|| touches(disk_blocks)),
            before: *counters,
            lost: 0,
            lengths: None,
        })
    }

    /// Notes that the first window will be shorter: a disk that joins others takes part in their windows.
    ///
    /// # Errors
    /// Only the errors of [`new`](Self::new).
    pub fn ending_at(self, closes_us: Micros) -> Result<Observer, PolicyError> {
        let late_from_us = late_from(&self.config, closes_us);
        Ok(Observer { late: late(&self.config, late_from_us)?, late_from_us, ..self })
    }

    /// Returns how many records were lost since the window began; its figures do not include them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Notes the disk's new size in blocks. Touches are counted from zero again.
    pub fn resized(&mut self, disk_blocks: u64) {
        self.touches = self.config.touches.then(|| touches(disk_blocks));
    }

    /// Returns the counters at the start of the window.
    pub fn counters(&self) -> Counters {
        self.before
    }

    /// Adds records.
    pub fn note(&mut self, records: &Records) {
        self.lost += records.lost();
        let shift = records.sample_shift();
        if shift != self.sample_shift {
            self.sample_shift = shift;
            self.late.thin_out(shift);
            self.late_reads = 0;
        }
        self.all.thin_out(shift);
        self.reads.thin_out(shift);
        if let Some(lengths) = &mut self.lengths {
            lengths.thin_out(shift);
        }
        // Each recorded block stands for those that were not recorded.
        let passed_over = (1u64 << shift) - 1;
        let unit = self.unit_blocks();
        for record in records.iter() {
            let blocks = self.counted(records, record);
            // Blocks of one request in the same unit are one access to it.
            let touched = blocks.start / unit..if blocks.is_empty() { 0 } else { blocks.end.div_ceil(unit) };
            match record.kind {
                monitor::Kind::Read => {
                    self.late_read(record.time_us, blocks.clone());
                    self.touch(blocks, Op::Read);
                    touched.for_each(|unit| {
                        self.all.access(unit, Kind::Read, passed_over);
                        self.reads.access(unit, Kind::Read, passed_over);
                        self.try_lengths(unit);
                    });
                }
                monitor::Kind::Write => {
                    self.touch(blocks, Op::Write);
                    touched.for_each(|unit| {
                        self.all.access(unit, Kind::Write, passed_over);
                        self.try_lengths(unit);
                    });
                }
                monitor::Kind::Discard => (blocks.start.div_ceil(unit)..blocks.end / unit).for_each(|unit| {
                    self.all.access(unit, Kind::Discard, 0);
                    self.reads.access(unit, Kind::Discard, 0);
                }),
                monitor::Kind::Flush => {}
            }
        }
    }

    /// Returns the blocks for which a record counts. Only what is discarded as a whole is gone.
    fn counted(&self, records: &Records, record: Record) -> Range<u64> {
        let touched = records.blocks(record);
        if record.kind != monitor::Kind::Discard && !self.config.whole_blocks {
            return touched;
        }
        let first_sector =
            record.sector + (SECTORS_PER_BLOCK - u64::from(records.phase())) % SECTORS_PER_BLOCK;
        let end = (first_sector + u64::from(record.sectors)) / SECTORS_PER_BLOCK;
        let start = first_sector.div_ceil(SECTORS_PER_BLOCK);
        start..end.max(start)
    }

    /// Returns the blocks of a unit of distances and working sets.
    fn unit_blocks(&self) -> u64 {
        if self.sample_shift == 0 { self.config.unit_blocks.max(1) } else { 1 }
    }

    /// Notes blocks read for intensity, if it is measured at that time.
    fn late_read(&mut self, time_us: Micros, blocks: Range<u64>) {
        if time_us < self.late_from_us {
            return;
        }
        for block in blocks {
            self.late.access(block);
            self.late_reads += 1;
        }
    }

    /// Counts HEC's touches, if they are counted.
    fn touch(&mut self, blocks: Range<u64>, op: Op) {
        if let Some(touches) = &mut self.touches {
            blocks.for_each(|block| touches.hit(BlockNo(block), op.into()));
        }
    }

    fn try_lengths(&mut self, unit: u64) {
        if let Some(lengths) = &mut self.lengths {
            lengths.access(unit);
        }
    }

    /// With `at_knee`, the length of the disk's window is found by trying several lengths: ends a window of the pool
    /// for the lengths on trial, and returns the chosen one. The first call only begins the trial. Until it leads
    /// to a choice, the earlier choice `chosen` holds. Without `at_knee`, ends the trial.
    ///
    /// # Errors
    /// The number of reuses is not one that is counted.
    pub fn knee(
        &mut self,
        at_knee: bool,
        reuses: u8,
        chosen: Option<&Knee>,
    ) -> Result<Option<Knee>, PolicyError> {
        if !at_knee {
            self.lengths = None;
            return Ok(None);
        }
        match &mut self.lengths {
            Some(lengths) => lengths.turn(self.config.window_us),
            None => self.lengths = Some(RunningKnee::new(reuses, self.sample_shift, chosen.cloned())?),
        }
        Ok(self.lengths.as_ref().and_then(RunningKnee::present).cloned())
    }

    /// Returns the figures of the window so far.
    pub fn window(&self, now_us: Micros, counters: &Counters) -> DiskWindow {
        let counted = counters.since(&self.before);
        let (reads, writes) = (counted.read_hits + counted.read_misses, counted.writes);
        let (all, only_reads) = (self.all.older.profile(), self.reads.older.profile());
        let unit = self.unit_blocks();
        let (wss_blocks, rwss_blocks) = working_sets(&self.all.younger, unit);
        let length_us = now_us.saturating_sub(self.opened_us);
        let is_exact = self.config.sample_blocks.is_none();
        let curve = |profile: &Profile, classes: &[Class], accesses| {
            curve(profile, classes, accesses, unit, is_exact)
        };
        let overwrites = (all.overwrite_ratio() * (reads + writes) as f64).round() as u64;
        DiskWindow {
            length_us,
            reads,
            writes,
            overwrites: overwrites.min(writes),
            read_hits: counted.read_hits,
            wss_blocks,
            rwss_blocks,
            reused_blocks: reused(&self.all.older, unit),
            touched_blocks: self.touches.as_ref().map_or(0, Hec::touched_again_blocks),
            trd: curve(&all, &Class::ALL, all.reads() + all.writes()),
            urd: curve(&all, &[Class::Rar, Class::Raw], all.reads() + all.writes()),
            read_only: curve(&only_reads, &[Class::Rar], only_reads.reads()),
            intensity: self.intensity(now_us, length_us),
            sampled: Some(self.all.older.rate().min(1.0)),
            unit_blocks: Some(unit).filter(|unit| *unit > 1),
            origin_latency_us: counted.origin_latency_us,
            cache_latency_us: counted.cache_latency_us,
        }
    }

    fn intensity(&self, now_us: Micros, length_us: Micros) -> Intensity {
        let measured_us = now_us.saturating_sub(self.late_from_us).min(length_us);
        // The window scales what it counts itself.
        let unique = self.late.sizes().wss_blocks;
        let read_blocks = self.late_reads << self.sample_shift;
        Intensity { length_us: measured_us, read_blocks, unique_read_blocks: unique.min(read_blocks) }
    }

    /// Ends a window of the pool; the disk's own window consists of `windows` of these. Returns the figures of the
    /// disk's window, and whether that window continues: then the figures are those so far.
    ///
    /// # Errors
    /// Only the errors of [`new`](Self::new).
    pub fn turn(
        &mut self,
        now_us: Micros,
        counters: &Counters,
        windows: u64,
    ) -> Result<(DiskWindow, bool), PolicyError> {
        self.windows += 1;
        if self.windows >= windows {
            return Ok((self.close(now_us, counters)?, false));
        }
        let window = self.window(now_us, counters);
        self.measure_intensity(now_us)?;
        Ok((window, true))
    }

    /// Begins to measure intensity for the window of the pool that begins now.
    fn measure_intensity(&mut self, now_us: Micros) -> Result<(), PolicyError> {
        self.late_from_us = late_from(&self.config, now_us.saturating_add(self.config.window_us));
        self.late = late(&self.config, self.late_from_us)?.sampled(self.sample_shift);
        self.late_reads = 0;
        Ok(())
    }

    /// Ends the disk's window, returns its figures, and begins the next one.
    ///
    /// # Errors
    /// Only the errors of [`new`](Self::new).
    pub fn close(&mut self, now_us: Micros, counters: &Counters) -> Result<DiskWindow, PolicyError> {
        let window = self.window(now_us, counters);
        self.all.turn();
        self.reads.turn();
        self.measure_intensity(now_us)?;
        (self.opened_us, self.windows, self.lost, self.before) = (now_us, 0, 0, *counters);
        Ok(window)
    }
}

/// Makes HEC's touch counter for a disk of this many blocks.
fn touches(disk_blocks: u64) -> Hec {
    Hec::new(disk_blocks, HEC_BLOCKS, HEC_BLOCKS)
}

/// Returns when the measurement of intensity begins in a window that ends then.
fn late_from(config: &ObserverConfig, closes_us: Micros) -> Micros {
    closes_us.saturating_sub(config.measurement_us)
}

fn late(config: &ObserverConfig, late_from_us: Micros) -> Result<WorkingSetWindow, PolicyError> {
    let places =
        config.sample_blocks.map_or(EXACT_PLACES, |blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
    WorkingSetWindow::new(config.measurement_us.max(1), late_from_us, places)
}

/// Returns WSS, and RWSS_1 to RWSS_4, of a sample that began with the window.
fn working_sets(sample: &Sampler, unit_blocks: u64) -> (u64, Vec<u64>) {
    let mut reused = [0u64; MOST_REUSES as usize];
    for accesses in sample.counts() {
        reused.iter_mut().take(accesses.saturating_sub(1) as usize).for_each(|blocks| *blocks += 1);
    }
    let weight = 1.0 / sample.rate();
    let scaled = |units: u64| (units as f64 * weight).round() as u64 * unit_blocks;
    (sample.footprint().round() as u64 * unit_blocks, reused.map(scaled).to_vec())
}

/// Returns the number of blocks used again since the window began, from the sample that also knows those used in the
/// window before.
fn reused(sample: &Sampler, unit_blocks: u64) -> u64 {
    let again = sample.counts().filter(|accesses| *accesses > 1).count();
    (again as f64 / sample.rate()).round() as u64 * unit_blocks
}

/// Returns the hits of some classes of accesses by cache size, as shares of this many accesses. The last size is one
/// more than the largest distance if that is exact, and otherwise the next one at which a histogram is.
fn curve(profile: &Profile, classes: &[Class], accesses: f64, unit_blocks: u64, is_exact: bool) -> Curve {
    let mut distances = Histogram::default();
    classes.iter().for_each(|class| distances.merge(profile.class(*class)));
    let Some(largest) = distances.largest().filter(|_| accesses > 0.0 && distances.total() > 0.0) else {
        return Curve::default();
    };
    let rounded = |ratio: f64| (ratio * RATIO_STEPS).round() / RATIO_STEPS;
    let mut sizes = Histogram::edges(largest + 1, POINTS_AN_OCTAVE);
    if is_exact && let Some(last) = sizes.last_mut() {
        *last = largest + 1;
    }
    let all = |units| is_exact && units > largest;
    let below = |units| if all(units) { distances.total() } else { distances.below(units) };
    let ratio = |units| rounded(below(units) / accesses).clamp(0.0, 1.0);
    let points = sizes.into_iter().map(|units| (units * unit_blocks, ratio(units)));
    // Points without a gain are left out.
    let mut highest = 0.0;
    Curve::estimated(points.filter(|(_, ratio)| {
        let gained = *ratio > highest;
        highest = ratio.max(highest);
        gained
    }))
}

#[cfg(test)]
mod tests;
