//! The analysis of a whole trace: one thread reads it, others process it in parts, in bounded memory apart from the
//! state of each block.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use haversack_trace::{Access, Source, TraceError};

use crate::error::AnalyzeError;
use crate::histogram::Histogram;
use crate::intervals::Intervals;
use crate::passes::{AllPass, Found, ReadsPass, RequestPass};
use crate::reference::{Reference, split};
use crate::results::{Analysis, Classes, CurvePoint, Intensity, Traffic, VolumeAnalysis, add_windows};
use crate::sequentiality::Sequentiality;

/// How closely a trace is examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// At every block. Memory grows with the blocks accessed: at most 90 bytes each, 110 with several volumes.
    Exact,
    /// At a sample of at most n blocks of each volume, and of all together.
    Sampled(usize),
}

/// The settings of an analysis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The size of a block: a power of two from 512 bytes to 16 MiB.
    pub block_bytes: u64,
    /// The accuracy.
    pub depth: Depth,
    /// The length of windows for working sets, in nanoseconds.
    pub window_ns: u64,
    /// The length of windows for reuse intensity, in nanoseconds.
    pub intensity_window_ns: u64,
    /// The length of intervals with figures of their own, in nanoseconds; none if not given. They take memory
    /// for each block again.
    pub interval_ns: Option<u64>,
    /// Cache sizes in blocks for which exact results are wanted, in addition to the curve.
    pub sizes: Vec<u64>,
    /// Points of the curve per octave of sizes.
    pub points_an_octave: usize,
    /// Threads that process accesses, besides the one that reads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            block_bytes: 4096,
            depth: Depth::Exact,
            window_ns: 600_000_000_000,
            intensity_window_ns: 60_000_000_000,
            interval_ns: None,
            sizes: Vec::new(),
            points_an_octave: 8,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), AnalyzeError> {
        if !self.block_bytes.is_power_of_two() || !(512..=16 << 20).contains(&self.block_bytes) {
            return Err(AnalyzeError::BlockSize(self.block_bytes));
        }
        match self.depth {
            Depth::Sampled(blocks) if blocks < 16 => Err(AnalyzeError::SampleSize(blocks)),
            _ => Ok(()),
        }
    }
}

/// Approximate number of accesses read at once.
const ACCESSES: usize = 1 << 18;
/// Approximate number of references processed at once: large requests have many each.
const REFERENCES: usize = 1 << 20;

/// Sent by the reading thread: accesses and the share of the source that has been read, at the end the names.
enum Message {
    Accesses(Vec<Access>, Option<f64>),
    Names(Vec<String>),
}

/// Analyses a trace. `progress` is called with the share that has been read, if it is known, and the number of
/// requests.
///
/// # Errors
/// Errors of the source, accesses beyond the address range, and invalid options.
pub fn analyze(
    source: &mut dyn Source,
    options: &Options,
    mut progress: impl FnMut(Option<f64>, u64),
) -> Result<Analysis, AnalyzeError> {
    options.check()?;
    let (sender, receiver) = sync_channel(1);
    let mut volumes = Volumes::new(options);
    let is_timed = source.is_timed();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(source, &sender));
        let looked = volumes.take_all(receiver, &mut progress);
        // The receiver has been dropped by now, so the reader ends even if the processing failed.
        let read = reader.join().expect("the reader runs to its end");
        read?;
        looked
    })?;
    let mut analysis = volumes.finish();
    if !is_timed {
        analysis.leave_out_times();
    }
    Ok(analysis)
}

fn read(source: &mut dyn Source, sender: &SyncSender<Message>) -> Result<(), TraceError> {
    loop {
        let mut accesses = Vec::with_capacity(ACCESSES);
        let mut more = true;
        while more && accesses.len() < ACCESSES {
            more = source.read(&mut accesses)? > 0;
        }
        // If nothing receives any more, there is an error already.
        if sender.send(Message::Accesses(accesses, source.progress())).is_err() {
            return Ok(());
        }
        if !more {
            let _ = sender.send(Message::Names(source.volumes().to_vec()));
            return Ok(());
        }
    }
}

/// The state of one volume.
struct Volume {
    requests: RequestPass,
    /// Its accesses in the current part.
    part: Vec<Access>,
}

struct Volumes<'a> {
    options: &'a Options,
    names: Vec<String>,
    volumes: Vec<Volume>,
    all: AllPass,
    reads: ReadsPass,
    /// Of all volumes, in the current part.
    part: Vec<Reference>,
    origin_ns: Option<u64>,
}

impl<'a> Volumes<'a> {
    fn new(options: &'a Options) -> Self {
        Volumes {
            options,
            names: Vec::new(),
            volumes: Vec::new(),
            all: AllPass::new(options),
            reads: ReadsPass::new(options),
            part: Vec::new(),
            origin_ns: None,
        }
    }

    fn take_all(
        &mut self,
        receiver: Receiver<Message>,
        progress: &mut impl FnMut(Option<f64>, u64),
    ) -> Result<(), AnalyzeError> {
        let mut requests = 0;
        for message in receiver {
            match message {
                Message::Names(names) => self.names = names,
                Message::Accesses(accesses, share) => {
                    requests += accesses.len() as u64;
                    self.take(&accesses)?;
                    progress(share, requests);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, mut accesses: &[Access]) -> Result<(), AnalyzeError> {
        while !accesses.is_empty() {
            let taken = self.fill(accesses)?;
            self.look();
            accesses = &accesses[taken..];
        }
        Ok(())
    }

    /// Makes a part from as many accesses as are processed together, and returns their number.
    fn fill(&mut self, accesses: &[Access]) -> Result<usize, AnalyzeError> {
        let origin_ns = *self.origin_ns.get_or_insert(accesses[0].time_ns);
        self.volumes.iter_mut().for_each(|volume| volume.part.clear());
        self.part.clear();
        let mut taken = 0;
        while taken < accesses.len() && self.part.len() < REFERENCES {
            let access = &accesses[taken];
            // Splitting is checked first, so that a damaged volume number does not determine the length of a list.
            self.part.extend(split(access, self.options.block_bytes)?);
            let volume = access.volume.0 as usize;
            while self.volumes.len() <= volume {
                self.add_volume(origin_ns);
            }
            self.volumes[volume].part.push(*access);
            taken += 1;
        }
        Ok(taken)
    }

    fn add_volume(&mut self, origin_ns: u64) {
        if self.volumes.len() == 1 {
            self.all.tell_apart();
            self.reads.tell_apart();
        }
        self.volumes.push(Volume { requests: RequestPass::new(self.options, origin_ns), part: Vec::new() });
    }

    /// Runs all passes on the part, the longest first.
    fn look(&mut self) {
        let (all, reads, part) = (&mut self.all, &mut self.reads, &self.part);
        let mut tasks: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
        tasks.push(Box::new(|| all.take(part)));
        tasks.push(Box::new(|| reads.take(part)));
        for Volume { requests, part } in self.volumes.iter_mut().filter(|volume| !volume.part.is_empty()) {
            tasks.push(Box::new(|| requests.take(part)));
        }
        let threads = self.options.threads.clamp(1, tasks.len());
        let tasks = Mutex::new(tasks.into_iter());
        let work = || {
            // The lock is poisoned only if one of our own assertions failed.
            while let Some(task) = { tasks.lock().expect("no other thread failed").next() } {
                task();
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }

    fn finish(self) -> Analysis {
        let options = self.options;
        let mut names = self.names.into_iter();
        let mut volumes = Vec::new();
        let mut intensities = Vec::new();
        // Each pass drops its state of blocks as it ends: the next ones need memory for lists.
        for (number, Volume { requests, .. }) in self.volumes.into_iter().enumerate() {
            let intensity = requests.intensity.finish();
            volumes.push(VolumeAnalysis {
                name: names.next().unwrap_or_else(|| format!("volume {number}")),
                traffic: requests.traffic,
                windows: requests.windows.finish(),
                intervals: requests.intervals.map(Intervals::finish).unwrap_or_default(),
                intensity: Some(Intensity::of(&intensity, options.intensity_window_ns as f64 / 1e9)),
                sequentiality: requests.streams.found,
                ..VolumeAnalysis::default()
            });
            intensities.push(intensity);
        }
        let reads = self.reads.finish(volumes.len());
        let all = self.all.finish(volumes.len());
        let of_blocks = |number: usize, rest| with_distances(&all[number], &reads[number], options, rest);
        let several = volumes.len() > 1;
        for (number, volume) in volumes.iter_mut().enumerate() {
            let rest = std::mem::take(volume);
            *volume = of_blocks(if several { 1 + number } else { 0 }, rest);
        }
        let overall = if !several {
            VolumeAnalysis { name: "all".into(), ..volumes.first().cloned().unwrap_or_default() }
        } else {
            let (mut traffic, mut sequentiality) = (Traffic::default(), Sequentiality::default());
            volumes.iter().filter(|v| v.traffic.requests() > 0).for_each(|v| traffic.merge(&v.traffic));
            volumes.iter().for_each(|volume| sequentiality.merge(&volume.sequentiality));
            let intensity = add_windows(intensities.iter());
            let rest = VolumeAnalysis {
                name: "all".into(),
                traffic,
                windows: add_windows(volumes.iter().map(|volume| &volume.windows)),
                intensity: Some(Intensity::of(&intensity, options.intensity_window_ns as f64 / 1e9)),
                sequentiality,
                ..VolumeAnalysis::default()
            };
            of_blocks(0, rest)
        };
        Analysis {
            block_bytes: options.block_bytes,
            sampled_blocks: match options.depth {
                Depth::Exact => None,
                Depth::Sampled(blocks) => Some(blocks),
            },
            window_s: options.window_ns as f64 / 1e9,
            intensity_window_s: options.intensity_window_ns as f64 / 1e9,
            interval_s: options.interval_ns.map(|length_ns| length_ns as f64 / 1e9),
            timed: true,
            overall,
            volumes,
        }
    }
}

/// Adds the results from the distances of all accesses and of reads alone.
fn with_distances(all: &Found, reads: &Found, options: &Options, rest: VolumeAnalysis) -> VolumeAnalysis {
    let (profile, reads_alone) = (&all.profile, &reads.profile);
    let all_distances = profile.all_distances();
    let reads_alone_distances = reads_alone.all_distances();
    let point = |blocks: &u64| CurvePoint::of(profile, reads_alone, *blocks, options.block_bytes);
    let largest = all_distances.blocks.max(reads_alone_distances.blocks);
    VolumeAnalysis {
        footprint_blocks: all.footprint,
        read_footprint_blocks: reads.footprint,
        classes: Classes::of(profile),
        overwrite_ratio: profile.overwrite_ratio(),
        all_distances,
        useful_distances: profile.useful_distances(),
        reads_alone_distances,
        curve: Histogram::edges(largest, options.points_an_octave).iter().map(point).collect(),
        asked: options.sizes.iter().map(point).collect(),
        popularity: all.popularity.clone(),
        ..rest
    }
}
