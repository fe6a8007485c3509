//! The profile of a sequence of accesses: distances by access class, cold accesses, and the depths of dirty versions.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::reference::Kind;
use crate::stack::Outcome;

/// The class of an access: its kind and that of the previous access to the same block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Read after read.
    Rar = 0,
    /// Read after write.
    Raw = 1,
    /// Write after read.
    War = 2,
    /// Write after write.
    Waw = 3,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 4] = [Class::Rar, Class::Raw, Class::War, Class::Waw];

    fn of(kind: Kind, previous: Kind) -> Class {
        match (kind, previous) {
            (Kind::Write, Kind::Write) => Class::Waw,
            (Kind::Write, _) => Class::War,
            (_, Kind::Write) => Class::Raw,
            _ => Class::Rar,
        }
    }
}

/// Largest distance and percentiles, in blocks. All 0 if there are no distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Distances {
    /// The largest distance.
    pub largest: u64,
    /// Half of the distances are at most this.
    pub p50: u64,
    /// 90 % of the distances are at most this.
    pub p90: u64,
    /// 95 % of the distances are at most this.
    pub p95: u64,
    /// 99 % of the distances are at most this.
    pub p99: u64,
    /// Blocks of cache that hit all of these accesses: the largest distance plus one; 0 if there are none.
    pub blocks: u64,
}

/// All counters. Weights are 1 in an exact analysis, and estimate the whole in a sampled one.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    classes: [Histogram; 4],
    /// Cold reads and cold writes.
    cold: [f64; 2],
    /// Deepest depths of the versions that were written.
    versions: Histogram,
}

impl Profile {
    /// Makes an empty profile that is also exact at the given sizes in blocks.
    pub fn new(sizes: &[u64]) -> Profile {
        let histogram = || Histogram::new(sizes);
        Profile { classes: std::array::from_fn(|_| histogram()), cold: [0.0; 2], versions: histogram() }
    }

    /// Counts an access that stands for `weight` accesses.
    #[inline]
    pub fn record(&mut self, kind: Kind, outcome: Outcome, weight: f64) {
        match (kind, outcome.previous) {
            (Kind::Discard, _) => {}
            (kind, None) => self.cold[kind as usize] += weight,
            (kind, Some((previous, distance))) => {
                self.classes[Class::of(kind, previous) as usize].add(scale(distance, weight), weight);
            }
        }
        if let Some(deepest) = outcome.ended {
            self.versions.add(deepest.into(), weight);
        }
    }

    /// Counts a version that is still dirty, with its deepest depth so far.
    pub(crate) fn record_version(&mut self, deepest: u32, weight: f64) {
        self.versions.add(deepest.into(), weight);
    }

    /// Adds another profile, made for the same sizes.
    pub fn merge(&mut self, other: &Profile) {
        self.classes.iter_mut().zip(&other.classes).for_each(|(to, from)| to.merge(from));
        self.cold.iter_mut().zip(&other.cold).for_each(|(to, from)| *to += from);
        self.versions.merge(&other.versions);
    }

    /// Multiplies all weights: with a factor below 1, old accesses count less.
    pub fn fade(&mut self, factor: f64) {
        self.classes.iter_mut().for_each(|histogram| histogram.fade(factor));
        self.versions.fade(factor);
        self.cold.iter_mut().for_each(|weight| *weight *= factor);
    }

    /// Makes the sums of reads and writes equal to their known values, by more or fewer accesses of distance 0: the
    /// surplus or deficit of a sample is due to very hot blocks, which it includes or not.
    ///
    /// Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST'15, section 3.3 (SHARDS-adj).
    pub(crate) fn adjust(&mut self, reads: f64, writes: f64) {
        for (known, seen, after_read, after_write) in
            [(reads, self.reads(), Class::Rar, Class::Raw), (writes, self.writes(), Class::War, Class::Waw)]
        {
            let totals = [after_read, after_write].map(|class| self.class(class).total());
            let sum: f64 = totals.iter().sum();
            if known == seen || sum <= 0.0 {
                continue;
            }
            for (class, total) in [after_read, after_write].into_iter().zip(totals) {
                self.classes[class as usize].correct((known - seen) * total / sum);
            }
        }
    }

    /// Returns the distances of a class.
    pub fn class(&self, class: Class) -> &Histogram {
        &self.classes[class as usize]
    }

    /// Returns the cold reads: the first accesses to their blocks, or the first after a discard.
    pub fn cold_reads(&self) -> f64 {
        self.cold[Kind::Read as usize]
    }

    /// Returns the cold writes.
    pub fn cold_writes(&self) -> f64 {
        self.cold[Kind::Write as usize]
    }

    /// Returns all reads.
    pub fn reads(&self) -> f64 {
        self.cold_reads() + self.class(Class::Rar).total() + self.class(Class::Raw).total()
    }

    /// Returns all writes.
    pub fn writes(&self) -> f64 {
        self.cold_writes() + self.class(Class::War).total() + self.class(Class::Waw).total()
    }

    /// Returns the share of reads and writes that an LRU cache of n blocks misses, if both allocate; `None` without
    /// any.
    pub fn miss_ratio(&self, blocks: u64) -> Option<f64> {
        let hits: f64 = self.classes.iter().map(|histogram| histogram.below(blocks)).sum();
        missed(hits, self.reads() + self.writes())
    }

    /// Returns the share of reads that an LRU cache of n blocks misses, if reads and writes allocate; `None` without
    /// reads.
    pub fn read_miss_ratio(&self, blocks: u64) -> Option<f64> {
        let hits = self.class(Class::Rar).below(blocks) + self.class(Class::Raw).below(blocks);
        missed(hits, self.reads())
    }

    /// Returns the blocks that a write-back LRU cache of n blocks has to write to the origin to make room.
    pub fn dirty_evictions(&self, blocks: u64) -> f64 {
        (self.versions.total() - self.versions.below(blocks)).max(0.0)
    }

    /// Returns the share of reads and writes that overwrite blocks that the cache would have: ECI-Cache's write ratio.
    pub fn overwrite_ratio(&self) -> f64 {
        let all = self.reads() + self.writes();
        let over = self.class(Class::War).total() + self.class(Class::Waw).total();
        if all > 0.0 { over / all } else { 0.0 }
    }

    /// Returns all distances: the traditional reuse distance, TRD.
    pub fn all_distances(&self) -> Distances {
        distances(&self.classes)
    }

    /// Returns the distances of reads only: the useful reuse distance, URD, of ECI-Cache.
    pub fn useful_distances(&self) -> Distances {
        distances(&self.classes[..2])
    }
}

fn scale(distance: u32, weight: f64) -> u64 {
    if weight == 1.0 { u64::from(distance) } else { (f64::from(distance) * weight) as u64 }
}

fn missed(hits: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| ((all - hits) / all).clamp(0.0, 1.0))
}

fn distances(classes: &[Histogram]) -> Distances {
    let mut sum = Histogram::default();
    classes.iter().for_each(|class| sum.merge(class));
    let at = |share| sum.percentile(share).unwrap_or(0);
    Distances {
        largest: sum.largest().unwrap_or(0),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        blocks: sum.largest().map_or(0, |largest| largest + 1),
    }
}
