//! Passes: each processes every access, independently, so that threads can share them.

use haversack_trace::{Access, Op};

use crate::analysis::{Depth, Options};
use crate::intervals::Intervals;
use crate::orders::order_of;
use crate::parallel::ParallelStacks;
use crate::popularity::Popularity;
use crate::profile::Profile;
use crate::reference::{Kind, Reference, split};
use crate::results::Traffic;
use crate::sampler::Sampler;
use crate::sequentiality::Streams;
use crate::table::AHEAD;
use crate::windows::Windows;

/// Distances, of all volumes together and of each: with depths of versions for one volume and for several.
pub(crate) enum DistancePass<const ONE: usize, const EACH: usize> {
    /// With one volume, the figures of all are its figures.
    One(Box<ParallelStacks<1, ONE>>),
    Each(Box<ParallelStacks<2, EACH>>),
    /// Of all together, then of each volume if there are several.
    Sampled {
        samplers: Vec<Sampler>,
        blocks: usize,
    },
}

/// Distances of all accesses.
pub(crate) type AllPass = DistancePass<1, 2>;
/// Distances of reads alone.
pub(crate) type ReadsPass = DistancePass<0, 0>;

/// The results for all volumes together or for one.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub profile: Profile,
    /// Distinct blocks.
    pub footprint: u64,
    /// Not needed for reads alone.
    pub popularity: Popularity,
}

impl<const ONE: usize, const EACH: usize> DistancePass<ONE, EACH> {
    const READS_ALONE: bool = ONE == 0;

    pub fn new(options: &Options) -> Self {
        match options.depth {
            // The passes themselves occupy some threads.
            Depth::Exact => Self::One(Box::new(ParallelStacks::new(&options.sizes, options.threads / 2))),
            Depth::Sampled(blocks) => Self::Sampled { samplers: vec![Sampler::fixed_size(blocks)], blocks },
        }
    }

    /// From now on also treats each volume separately: everything so far belongs to the first.
    pub fn tell_apart(&mut self) {
        match self {
            Self::One(parallel) => *self = Self::Each(Box::new(parallel.told_apart())),
            Self::Sampled { samplers, .. } => samplers.push(samplers[0].clone()),
            Self::Each(_) => unreachable!("volumes are told apart once"),
        }
    }

    pub fn take(&mut self, references: &[Reference]) {
        if !Self::READS_ALONE {
            return self.take_all(references);
        }
        let reads = references.iter().filter(|reference| reference.kind() != Kind::Write);
        self.take_all(&reads.copied().collect::<Vec<_>>());
    }

    fn take_all(&mut self, references: &[Reference]) {
        match self {
            Self::One(parallel) => parallel.take(references),
            Self::Each(parallel) => parallel.take(references),
            Self::Sampled { samplers, blocks } => {
                for reference in references {
                    let (key, kind) = (reference.key(), reference.kind());
                    samplers[0].access(key, kind);
                    if samplers.len() > 1 {
                        let own = order_of(key, 1);
                        while samplers.len() <= own {
                            samplers.push(Sampler::fixed_size(*blocks));
                        }
                        samplers[own].access(key, kind);
                    }
                }
            }
        }
    }

    /// Returns the results: of all together, then of each of n volumes if they were distinguished.
    pub fn finish(self, volumes: usize) -> Vec<Found> {
        let apart = match &self {
            Self::One(_) => false,
            Self::Each(_) => true,
            Self::Sampled { samplers, .. } => samplers.len() > 1,
        };
        let mut found = self.found();
        if apart {
            // The last volumes may have no accesses of this kind.
            found.resize(1 + volumes, Found::default());
        }
        found
    }

    fn found(self) -> Vec<Found> {
        match self {
            Self::One(parallel) => found(*parallel, Self::READS_ALONE),
            Self::Each(parallel) => found(*parallel, Self::READS_ALONE),
            Self::Sampled { samplers, .. } => {
                let found = |sampler: Sampler| Found {
                    profile: sampler.profile(),
                    footprint: sampler.footprint().round() as u64,
                    popularity: Popularity::of(sampler.counts()),
                };
                samplers.into_iter().map(found).collect()
            }
        }
    }
}

fn found<const ORDERS: usize, const DEPTHS: usize>(
    parallel: ParallelStacks<ORDERS, DEPTHS>,
    reads_alone: bool,
) -> Vec<Found> {
    let (profiles, stacks) = (parallel.profiles(), parallel.stack());
    let footprints = stacks.blocks_in_orders();
    let mut counts = if reads_alone { Vec::new() } else { stacks.counts_in_orders() };
    // Sorting counts takes as much memory again: the state of blocks is dropped first.
    drop(parallel);
    counts.resize(profiles.len(), Vec::new());
    let popularities = counts.into_iter().map(|counts| Popularity::of(counts.into_iter()));
    let found = |((profile, footprint), popularity)| Found { profile, footprint, popularity };
    profiles.into_iter().zip(footprints).zip(popularities).map(found).collect()
}

/// Everything else of a volume: traffic, streams, windows.
pub(crate) struct RequestPass {
    pub traffic: Traffic,
    pub streams: Streams,
    pub windows: Windows,
    pub intensity: Windows,
    pub intervals: Option<Intervals>,
    block_bytes: u64,
    /// Some references and their times.
    timed: Vec<(u64, Reference)>,
}

impl RequestPass {
    /// Windows begin at `origin_ns`.
    pub fn new(options: &Options, origin_ns: u64) -> RequestPass {
        let most_blocks = match options.depth {
            Depth::Exact => usize::MAX,
            Depth::Sampled(blocks) => blocks,
        };
        let windows = |length_ns| Windows::new(length_ns, origin_ns, most_blocks);
        RequestPass {
            traffic: Traffic::default(),
            streams: Streams::default(),
            windows: windows(options.window_ns),
            intensity: windows(options.intensity_window_ns),
            intervals: options.interval_ns.map(|length_ns| Intervals::new(options, length_ns, origin_ns)),
            block_bytes: options.block_bytes,
            timed: Vec::new(),
        }
    }

    fn count(&mut self, access: &Access, references: u64) {
        let traffic = &mut self.traffic;
        if traffic.requests() == 0 {
            traffic.first_ns = access.time_ns;
        }
        traffic.last_ns = traffic.last_ns.max(access.time_ns);
        let bytes = u64::from(access.length_bytes);
        match access.op {
            Op::Read => {
                traffic.reads += 1;
                traffic.read_bytes = traffic.read_bytes.saturating_add(bytes);
                traffic.read_references += references;
            }
            Op::Write => {
                traffic.writes += 1;
                traffic.written_bytes = traffic.written_bytes.saturating_add(bytes);
                traffic.write_references += references;
            }
            Op::Flush => traffic.flushes += 1,
            Op::Discard => traffic.discards += 1,
        }
    }

    pub fn take(&mut self, accesses: &[Access]) {
        for accesses in accesses.chunks(AHEAD) {
            self.timed.clear();
            for access in accesses {
                // What cannot be split never becomes a part.
                let Ok(references) = split(access, self.block_bytes) else { continue };
                let before = self.timed.len();
                self.timed.extend(references.map(|reference| (access.time_ns, reference)));
                self.count(access, (self.timed.len() - before) as u64);
                self.streams.access(access);
            }
            self.windows.access_all(&self.timed);
            self.intensity.access_all(&self.timed);
            if let Some(intervals) = &mut self.intervals {
                intervals.access_all(&self.timed);
            }
        }
    }
}
