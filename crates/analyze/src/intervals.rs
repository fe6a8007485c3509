//! What a volume shows interval by interval: classes of accesses, the sizes that TRD and URD ask for, hits of LRU
//! caches of given sizes, and reuse intensity.
//!
//! Blocks are known from the beginning of the trace, as to a cache that has run since then: an access is cold only if
//! its block was never used before, and distances reach across the borders of intervals.
//!
//! Sources: ECI-Cache (Ahmadian et al., 2018), figures 12 and 13, for classes; vCacheShare (Meng et al., ATC'14),
//! figures 4 and 7, for hits and intensity over time.

use serde::{Deserialize, Serialize};

use crate::analysis::{Depth, Options};
use crate::profile::Profile;
use crate::reference::{Kind, Reference};
use crate::results::{Classes, CurvePoint};
use crate::sampler::Sampler;
use crate::windows::{Window, Windows};

/// The figures of an interval of time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Its beginning, in nanoseconds on the trace's clock.
    pub start_ns: u64,
    /// Accesses to blocks by class.
    pub classes: Classes,
    /// The share of accesses that overwrite: (WAR + WAW) / all.
    pub overwrite_ratio: f64,
    /// Blocks of cache for all reuse in it: the largest distance plus one; 0 without reuse.
    pub trd_blocks: u64,
    /// Blocks of cache for all reads of it that are reuse.
    pub urd_blocks: u64,
    /// Miss ratios at the given sizes, without dirty evictions: a version that stays dirty is in more than one interval.
    pub asked: Vec<CurvePoint>,
    /// Reuse intensity, per second: blocks read, divided by the interval's length and the distinct blocks read.
    pub intensity_per_s: f64,
}

/// Takes in accesses in order of time.
pub(crate) struct Intervals {
    length_ns: u64,
    block_bytes: u64,
    sizes: Vec<u64>,
    current: Option<u64>,
    /// Whether the current interval has reads or writes, sampled or not.
    has_accesses: bool,
    origin_ns: u64,
    all: Sampler,
    reads: Sampler,
    /// The same intervals, for the distinct blocks read.
    windows: Windows,
    done: Vec<Interval>,
}

impl Intervals {
    /// Intervals of this length in nanoseconds, the first from `origin_ns` on.
    pub fn new(options: &Options, length_ns: u64, origin_ns: u64) -> Intervals {
        let (sampler, most_blocks) = match options.depth {
            Depth::Exact => (Sampler::fixed_rate(1.0), usize::MAX),
            Depth::Sampled(blocks) => (Sampler::fixed_size(blocks), blocks),
        };
        let sampler = sampler.exact_at(&options.sizes);
        Intervals {
            length_ns: length_ns.max(1),
            block_bytes: options.block_bytes,
            sizes: options.sizes.clone(),
            current: None,
            has_accesses: false,
            origin_ns,
            all: sampler.clone(),
            reads: sampler,
            windows: Windows::new(length_ns, origin_ns, most_blocks),
            done: Vec::new(),
        }
    }

    /// Records accesses and their times, in order. Times do not decrease; one that does counts for the current
    /// interval.
    pub fn access_all(&mut self, accesses: &[(u64, Reference)]) {
        for (time_ns, reference) in accesses {
            let number = time_ns.saturating_sub(self.origin_ns) / self.length_ns;
            if self.current.is_some_and(|current| current < number) {
                self.end();
            }
            self.current = Some(self.current.unwrap_or(number).max(number));
            let (key, kind) = (reference.key(), reference.kind());
            self.has_accesses |= kind != Kind::Discard;
            self.all.access(key, kind);
            if kind != Kind::Write {
                self.reads.access(key, kind);
            }
        }
        self.windows.access_all(accesses);
    }

    /// Ends the current interval.
    fn end(&mut self) {
        let Some(number) = self.current.take() else { return };
        let (all, reads) = (self.all.profile(), self.reads.profile());
        self.all.fade(0.0);
        self.reads.fade(0.0);
        // Discards alone show nothing.
        if std::mem::take(&mut self.has_accesses) {
            let start_ns = self.origin_ns.saturating_add(number.saturating_mul(self.length_ns));
            self.done.push(self.interval(start_ns, &all, &reads));
        }
    }

    fn interval(&self, start_ns: u64, all: &Profile, reads: &Profile) -> Interval {
        let point = |blocks: &u64| CurvePoint {
            dirty_eviction_ratio: None,
            ..CurvePoint::of(all, reads, *blocks, self.block_bytes)
        };
        Interval {
            start_ns,
            classes: Classes::of(all),
            overwrite_ratio: all.overwrite_ratio(),
            trd_blocks: all.all_distances().blocks,
            urd_blocks: all.useful_distances().blocks,
            asked: self.sizes.iter().map(point).collect(),
            intensity_per_s: 0.0,
        }
    }

    /// Returns all intervals with accesses.
    pub fn finish(mut self) -> Vec<Interval> {
        self.end();
        let seconds = self.length_ns as f64 / 1e9;
        let intensity = |window: &Window| window.reads as f64 / (seconds * window.read_blocks.max(1) as f64);
        // Both leave out intervals without accesses.
        for (interval, window) in self.done.iter_mut().zip(self.windows.finish()) {
            debug_assert_eq!(interval.start_ns, window.start_ns, "they are the same intervals");
            interval.intensity_per_s = intensity(&window);
        }
        self.done
    }
}
