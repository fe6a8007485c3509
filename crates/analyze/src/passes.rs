//! Passes: what looks at every access of a volume, each pass on its own so that threads can share them.

use haversack_trace::{Access, Op};

use crate::analysis::{Depth, Options};
use crate::parallel::Parallel;
use crate::popularity::Popularity;
use crate::profile::Profile;
use crate::reference::{Kind, Reference, split};
use crate::results::Traffic;
use crate::sampler::Sampler;
use crate::sequentiality::Streams;
use crate::table::AHEAD;
use crate::windows::Windows;

/// A part of the trace, of one volume or of all.
#[derive(Default)]
pub(crate) struct Part {
    pub accesses: Vec<Access>,
    pub references: Vec<Reference>,
}

impl Part {
    pub fn push(&mut self, access: &Access, references: impl Iterator<Item = Reference>) {
        self.accesses.push(*access);
        self.references.extend(references);
    }

    pub fn clear(&mut self) {
        self.accesses.clear();
        self.references.clear();
    }
}

/// What looks at every access.
pub(crate) trait Pass: Send {
    /// Looks at the next part.
    fn take(&mut self, part: &Part);
}

/// Distances, of all accesses or of reads alone.
#[derive(Clone)]
pub(crate) struct DistancePass {
    engine: Engine,
    reads_alone: bool,
}

#[derive(Clone)]
enum Engine {
    Exact(Box<Parallel>),
    Sampled(Box<Sampler>),
}

impl DistancePass {
    pub fn new(options: &Options, reads_alone: bool) -> DistancePass {
        let engine = match options.depth {
            // The passes themselves keep some threads busy.
            Depth::Exact => Engine::Exact(Box::new(Parallel::new(&options.sizes, options.threads / 2))),
            Depth::Sampled(blocks) => Engine::Sampled(Box::new(Sampler::fixed_size(blocks))),
        };
        DistancePass { engine, reads_alone }
    }

    pub fn profile(&self) -> Profile {
        match &self.engine {
            Engine::Exact(parallel) => parallel.profile(),
            Engine::Sampled(sampler) => sampler.profile(),
        }
    }

    /// Distinct blocks.
    pub fn footprint(&self) -> u64 {
        match &self.engine {
            Engine::Exact(parallel) => parallel.stack().blocks() as u64,
            Engine::Sampled(sampler) => sampler.footprint().round() as u64,
        }
    }

    pub fn popularity(&self) -> Popularity {
        match &self.engine {
            Engine::Exact(parallel) => Popularity::of(parallel.stack().counts()),
            Engine::Sampled(sampler) => Popularity::of(sampler.counts()),
        }
    }

    fn take_references(&mut self, references: &[Reference]) {
        match &mut self.engine {
            Engine::Exact(parallel) => parallel.take(references),
            Engine::Sampled(sampler) => references.iter().for_each(|r| sampler.access(r.key(), r.kind())),
        }
    }
}

impl Pass for DistancePass {
    fn take(&mut self, part: &Part) {
        if !self.reads_alone {
            return self.take_references(&part.references);
        }
        let reads = part.references.iter().filter(|reference| reference.kind() != Kind::Write);
        self.take_references(&reads.copied().collect::<Vec<_>>());
    }
}

/// Everything else: traffic, streams, windows.
pub(crate) struct RequestPass {
    pub traffic: Traffic,
    pub streams: Streams,
    pub windows: Windows,
    pub intensity: Windows,
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
}

impl Pass for RequestPass {
    fn take(&mut self, part: &Part) {
        for accesses in part.accesses.chunks(AHEAD) {
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
        }
    }
}
