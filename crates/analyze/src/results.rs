//! The results of an analysis, as written in JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::intervals::Interval;
use crate::popularity::Popularity;
use crate::profile::{Class, Distances, Profile};
use crate::sequentiality::Sequentiality;
use crate::windows::Window;

/// The results of an analysis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Analysis {
    /// The size of a block.
    pub block_bytes: u64,
    /// Blocks of each sample, if the analysis is sampled.
    pub sampled_blocks: Option<usize>,
    /// The length of windows for working sets, in seconds.
    pub window_s: f64,
    /// The length of windows for reuse intensity, in seconds.
    pub intensity_window_s: f64,
    /// The length of intervals, in seconds, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<f64>,
    /// Whether the trace has times. Without them there are no working sets and no reuse intensity.
    #[serde(default = "with_times")]
    pub timed: bool,
    /// All volumes together, as if they shared one cache.
    pub overall: VolumeAnalysis,
    /// Each volume.
    pub volumes: Vec<VolumeAnalysis>,
}

/// What results of earlier versions are.
fn with_times() -> bool {
    true
}

impl Analysis {
    /// Leaves out what follows from times, which the trace does not have.
    pub(crate) fn leave_out_times(&mut self) {
        (self.timed, self.interval_s) = (false, None);
        for volume in self.volumes.iter_mut().chain([&mut self.overall]) {
            volume.windows.clear();
            volume.intervals.clear();
            volume.intensity = None;
        }
    }
}

/// The results for one volume.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeAnalysis {
    /// The volume's name.
    pub name: String,
    /// Its requests.
    pub traffic: Traffic,
    /// Distinct blocks read or written.
    pub footprint_blocks: u64,
    /// Distinct blocks read.
    pub read_footprint_blocks: u64,
    /// Accesses to blocks by class.
    pub classes: Classes,
    /// The share of accesses that overwrite: (WAR + WAW) / all.
    pub overwrite_ratio: f64,
    /// Distances of all accesses: TRD.
    pub all_distances: Distances,
    /// Distances of reads, among all accesses: URD.
    pub useful_distances: Distances,
    /// Distances of reads as if there were no writes.
    pub reads_alone_distances: Distances,
    /// Miss ratios over sizes spaced evenly in their logarithm.
    pub curve: Vec<CurvePoint>,
    /// Miss ratios at the given sizes.
    pub asked: Vec<CurvePoint>,
    /// Working sets.
    pub windows: Vec<Window>,
    /// Figures by interval, of a volume; those of several together are not computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// Reuse intensity.
    pub intensity: Option<Intensity>,
    /// Popularity of blocks.
    pub popularity: Popularity,
    /// Sequentiality of requests.
    pub sequentiality: Sequentiality,
}

impl VolumeAnalysis {
    /// The points of the curve and the given ones, by size, each once.
    pub fn points(&self) -> Vec<&CurvePoint> {
        let mut points: Vec<&CurvePoint> = self.curve.iter().chain(&self.asked).collect();
        points.sort_by_key(|point| point.blocks);
        points.dedup_by_key(|point| point.blocks);
        points
    }
}

/// The requests of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Blocks read, each as often as it was read.
    pub read_references: u64,
    /// Blocks written, each as often as it was written.
    pub write_references: u64,
    /// The time of the first request.
    pub first_ns: u64,
    /// The time of the last request.
    pub last_ns: u64,
}

impl Traffic {
    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }

    pub(crate) fn merge(&mut self, other: &Traffic) {
        let empty = self.requests() == 0;
        self.first_ns = if empty { other.first_ns } else { self.first_ns.min(other.first_ns) };
        self.last_ns = self.last_ns.max(other.last_ns);
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.discards += other.discards;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.read_references += other.read_references;
        self.write_references += other.write_references;
    }
}

/// Accesses to blocks by class; estimates in a sampled analysis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Classes {
    /// First reads of blocks.
    pub cold_reads: u64,
    /// First writes of blocks.
    pub cold_writes: u64,
    /// Reads after reads.
    pub rar: u64,
    /// Reads after writes.
    pub raw: u64,
    /// Writes after reads.
    pub war: u64,
    /// Writes after writes.
    pub waw: u64,
}

impl Classes {
    /// Returns the names and numbers of all classes.
    pub(crate) fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("cold reads", self.cold_reads),
            ("cold writes", self.cold_writes),
            ("RAR", self.rar),
            ("RAW", self.raw),
            ("WAR", self.war),
            ("WAW", self.waw),
        ]
    }

    pub(crate) fn of(profile: &Profile) -> Classes {
        let class = |class: Class| profile.class(class).total().max(0.0).round() as u64;
        Classes {
            cold_reads: profile.cold_reads().round() as u64,
            cold_writes: profile.cold_writes().round() as u64,
            rar: class(Class::Rar),
            raw: class(Class::Raw),
            war: class(Class::War),
            waw: class(Class::Waw),
        }
    }
}

/// The result of an LRU cache of a given size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The cache's size in blocks.
    pub blocks: u64,
    /// The cache's size in bytes.
    pub bytes: u64,
    /// The share of all accesses that miss.
    pub miss_ratio: Option<f64>,
    /// The share of reads that miss.
    pub read_miss_ratio: Option<f64>,
    /// The share of reads that miss if only reads enter the cache and writes leave it as it is.
    pub reads_alone_miss_ratio: Option<f64>,
    /// Blocks written to the origin by a write-back cache to make room, for each block written to the cache.
    pub dirty_eviction_ratio: Option<f64>,
}

impl CurvePoint {
    pub(crate) fn of(all: &Profile, reads: &Profile, blocks: u64, block_bytes: u64) -> CurvePoint {
        let writes = all.writes();
        CurvePoint {
            blocks,
            bytes: blocks.saturating_mul(block_bytes),
            miss_ratio: all.miss_ratio(blocks),
            read_miss_ratio: all.read_miss_ratio(blocks),
            reads_alone_miss_ratio: reads.read_miss_ratio(blocks),
            dirty_eviction_ratio: (writes > 0.0).then(|| (all.dirty_evictions(blocks) / writes).min(1.0)),
        }
    }
}

/// How often data that is read is read again within a window: bytes read, divided by the window's length and the
/// distinct bytes read (vCacheShare's reuse intensity).
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Intensity {
    /// The mean over all windows with reads, per second.
    pub mean_per_s: f64,
    /// The largest, per second.
    pub largest_per_s: f64,
}

impl Intensity {
    pub(crate) fn of(windows: &[Window], window_s: f64) -> Intensity {
        let value = |window: &Window| window.reads as f64 / (window_s * window.read_blocks as f64);
        let values: Vec<f64> = windows.iter().filter(|window| window.read_blocks > 0).map(value).collect();
        Intensity {
            mean_per_s: values.iter().sum::<f64>() / values.len().max(1) as f64,
            largest_per_s: values.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Working sets of all volumes: they share no blocks, so those of the same time are added.
pub(crate) fn add_windows<'a>(volumes: impl Iterator<Item = &'a Vec<Window>>) -> Vec<Window> {
    let mut sums: BTreeMap<u64, Window> = BTreeMap::new();
    for window in volumes.flatten() {
        let sum = sums.entry(window.start_ns).or_default();
        sum.start_ns = window.start_ns;
        sum.references += window.references;
        sum.reads += window.reads;
        sum.blocks += window.blocks;
        sum.read_blocks += window.read_blocks;
        sum.reused_blocks.iter_mut().zip(window.reused_blocks).for_each(|(to, from)| *to += from);
    }
    sums.into_values().collect()
}
