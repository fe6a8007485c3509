//! The trace as the simulator plays it: scanned once, then played from memory if it is short, or read again.
//!
//! Invariants
//! - Times begin at 0 and never decrease; they are simulated times, with speed-up and intervals applied.
//! - A trace whose last time in nanoseconds is its number of requests minus one has no times: its requests
//!   were only numbered. Files of earlier versions do not say so otherwise.
//! - What is played is what was scanned: the same number of requests, within the volumes that were found. A trace that
//!   is different when it is read again is an error, and so is a long one that can be read only once.

use haversack_model::place::spread;
use haversack_trace::{Access, Damage, Op, Source};
use serde::Serialize;

use crate::error::SimError;
use crate::grid::Grids;
use crate::key::{self, Key, KeySet};
use crate::settings::{Settings, Traffic};

/// Accesses kept in memory: 192 MiB.
const KEPT_ACCESSES: usize = 6 << 20;
/// Minimum number of accesses in a batch, except for the last one.
const BATCH_ACCESSES: usize = 1 << 17;

/// Opens the trace: once to scan it, and once more to play it if it is long.
pub type Opener<'a> = dyn Fn() -> Result<Box<dyn Source>, SimError> + Sync + 'a;

/// A volume of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The end of its last access.
    pub end_bytes: u64,
    /// Its requests.
    pub requests: u64,
    /// The time of its last request, in the trace's own time.
    #[serde(skip)]
    pub last_ns: u64,
}

/// A summary of a trace.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Survey {
    /// Requests of any kind.
    pub requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Block accesses by reads and writes.
    pub block_accesses: u64,
    /// Distinct blocks.
    pub footprint_blocks: u64,
    /// From the first to the last request, in simulated time.
    pub span_seconds: f64,
    /// The trace has times.
    pub timed: bool,
    /// Its volumes.
    pub volumes: Vec<Volume>,
    /// Number of damaged lines, which were skipped.
    pub damaged_lines: u64,
    /// The damaged lines.
    #[serde(skip)]
    pub damage: Damage,
    /// The grids of its volumes' blocks.
    #[serde(skip)]
    pub grids: Grids,
    /// A digest of all requests: traces with different ones have different digests.
    #[serde(skip)]
    pub digest: u64,
    #[serde(skip)]
    start_ns: u64,
    #[serde(skip)]
    end_ns: u64,
}

impl Survey {
    /// The last request's simulated time.
    pub fn span_ns(&self) -> u64 {
        (self.span_seconds * 1e9) as u64
    }

    /// Whether an access is possible in the trace that was scanned.
    fn includes(&self, access: &Access) -> bool {
        let end_bytes = access.offset_bytes.saturating_add(u64::from(access.length_bytes).max(1));
        let volume = self.volumes.get(access.volume.0 as usize);
        volume.is_some_and(|volume| access.op == Op::Flush || end_bytes <= volume.end_bytes)
    }

    /// When the trace begins, in its own time.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn note(&mut self, access: &Access, footprint: &mut KeySet) -> Result<(), SimError> {
        if self.requests == 0 {
            self.start_ns = access.time_ns;
        }
        self.end_ns = self.end_ns.max(access.time_ns);
        self.requests += 1;
        self.digest = digest(self.digest, access);
        let volume = access.volume.0 as usize;
        if volume >= self.volumes.len() {
            self.volumes.resize(volume + 1, Volume::default());
        }
        let volume = &mut self.volumes[volume];
        volume.requests += 1;
        volume.last_ns = volume.last_ns.max(access.time_ns);
        if access.op == Op::Flush {
            return Ok(());
        }
        let length = u64::from(access.length_bytes).max(1);
        volume.end_bytes = volume.end_bytes.max(access.offset_bytes.saturating_add(length));
        let blocks = self.grids.blocks(access);
        key::check(access.volume, *blocks.end(), self.grids.block_bytes())?;
        if matches!(access.op, Op::Read | Op::Write) {
            self.reads += u64::from(access.op == Op::Read);
            self.writes += u64::from(access.op == Op::Write);
            for block in blocks {
                self.block_accesses += 1;
                footprint.insert(Key::new(access.volume, block));
            }
        }
        Ok(())
    }
}

/// The digest of requests, with one more.
fn digest(before: u64, access: &Access) -> u64 {
    let place = u64::from(access.volume.0) << 32 | u64::from(access.length_bytes);
    let words = [access.time_ns, access.offset_bytes, place, u64::from(access.op.letter())];
    words.into_iter().fold(before, |digest, word| spread(digest.rotate_left(5) ^ word))
}

/// See the module.
pub struct Tape<'a> {
    opener: &'a Opener<'a>,
    traffic: Traffic,
    /// The summary from scanning the trace.
    pub survey: Survey,
    kept: Option<Vec<Access>>,
}

impl<'a> Tape<'a> {
    /// Scans a trace to volumes whose grids of blocks begin with them. `progress` is called with the part of it that has
    /// been read.
    ///
    /// # Errors
    /// As for [`Tape::of`].
    pub fn new(
        opener: &'a Opener<'a>,
        traffic: &Traffic,
        block_bytes: u64,
        progress: &dyn Fn(f64),
    ) -> Result<Self, SimError> {
        let settings = Settings { traffic: traffic.clone(), block_bytes, ..Settings::default() };
        Tape::of(opener, &settings, progress)
    }

    /// Scans a trace for simulations with these settings. `progress` is called with the part of it that has been read.
    ///
    /// # Errors
    /// The trace cannot be read, is empty, or exceeds the simulator's limits.
    pub fn of(opener: &'a Opener<'a>, settings: &Settings, progress: &dyn Fn(f64)) -> Result<Self, SimError> {
        Tape::keeping(KEPT_ACCESSES, opener, settings, progress)
    }

    /// Scans a trace that is kept in memory if it has at most this many accesses.
    fn keeping(
        most: usize,
        opener: &'a Opener<'a>,
        settings: &Settings,
        progress: &dyn Fn(f64),
    ) -> Result<Self, SimError> {
        let mut source = opener()?;
        let mut survey = Survey { grids: Grids::of(settings), ..Survey::default() };
        let mut footprint = KeySet::default();
        let (mut kept, mut keep) = (Vec::new(), true);
        let mut batch = Vec::new();
        loop {
            let from = if keep { kept.len() } else { 0 };
            let into = if keep { &mut kept } else { &mut batch };
            into.truncate(from);
            if source.read(into)? == 0 {
                break;
            }
            survey.grids.name(source.volumes());
            into[from..].iter().try_for_each(|access| survey.note(access, &mut footprint))?;
            if keep && kept.len() > most {
                if let Some(path) = source.read_once() {
                    return Err(SimError::ReadOnce { path: path.to_path_buf(), most });
                }
                (keep, kept) = (false, Vec::new());
            }
            progress(source.progress().unwrap_or(0.0));
        }
        if survey.block_accesses == 0 {
            return Err(SimError::Empty);
        }
        for (volume, name) in survey.volumes.iter_mut().zip(source.volumes()) {
            volume.name.clone_from(name);
        }
        survey.damage = source.damage();
        survey.damaged_lines = survey.damage.lines;
        survey.footprint_blocks = footprint.len();
        let is_counted = survey.requests > 1 && survey.end_ns - survey.start_ns == survey.requests - 1;
        survey.timed = source.is_timed() && !is_counted;
        let traffic = settings.traffic.clone();
        let clock = Clock::new(&survey, &traffic);
        survey.span_seconds = clock.time_ns(survey.end_ns, survey.requests - 1) as f64 / 1e9;
        Ok(Tape { opener, traffic, survey, kept: keep.then_some(kept) })
    }

    /// Plays the trace from its beginning.
    ///
    /// # Errors
    /// The trace cannot be read again.
    pub fn play(&self) -> Result<Playback<'_>, SimError> {
        let source = if self.kept.is_some() { None } else { Some((self.opener)()?) };
        let clock = Clock::new(&self.survey, &self.traffic);
        Ok(Playback { tape: self, source, clock, next: 0 })
    }
}

/// Converts the trace's time to simulated time.
struct Clock {
    start_ns: u64,
    speed_up: f64,
    interval_ns: Option<u64>,
}

impl Clock {
    fn new(survey: &Survey, traffic: &Traffic) -> Self {
        let counted = (!survey.timed).then_some(Traffic::TIMELESS_INTERVAL_NS);
        Clock {
            start_ns: survey.start_ns,
            speed_up: traffic.speed_up,
            interval_ns: traffic.interval_ns.or(counted),
        }
    }

    fn time_ns(&self, trace_ns: u64, request: u64) -> u64 {
        let ns = match self.interval_ns {
            Some(interval) => request.saturating_mul(interval),
            None => trace_ns.saturating_sub(self.start_ns),
        };
        if self.speed_up == 1.0 { ns } else { (ns as f64 / self.speed_up) as u64 }
    }
}

/// A trace being played.
pub struct Playback<'a> {
    tape: &'a Tape<'a>,
    source: Option<Box<dyn Source>>,
    clock: Clock,
    next: u64,
}

impl Playback<'_> {
    /// Replaces a batch with the next one, which is empty at the end.
    ///
    /// # Errors
    /// The trace cannot be read, or has changed since it was scanned.
    pub fn next(&mut self, batch: &mut Vec<Access>) -> Result<(), SimError> {
        batch.clear();
        match (&self.tape.kept, &mut self.source) {
            (Some(kept), _) => {
                let from = (self.next as usize).min(kept.len());
                batch.extend_from_slice(&kept[from..(from + BATCH_ACCESSES).min(kept.len())]);
            }
            (None, Some(source)) => {
                read_again(&mut **source, &self.tape.survey, self.next, batch)?;
            }
            (None, None) => {}
        }
        for access in batch {
            access.time_ns = self.clock.time_ns(access.time_ns, self.next);
            self.next += 1;
        }
        Ok(())
    }

    /// The part that has been played.
    pub fn progress(&self) -> f64 {
        self.next as f64 / self.tape.survey.requests as f64
    }
}

/// Reads the next accesses of a trace of which this many were read; none when as many as were scanned have been.
fn read_again(
    source: &mut dyn Source,
    survey: &Survey,
    before: u64,
    batch: &mut Vec<Access>,
) -> Result<(), SimError> {
    let left = (survey.requests - before) as usize;
    let changed = |found: usize| SimError::Changed { scanned: survey.requests, found: before + found as u64 };
    while batch.len() < BATCH_ACCESSES.min(left) {
        if source.read(batch)? == 0 {
            return Err(changed(batch.len()));
        }
    }
    batch.truncate(left);
    match batch.iter().position(|access| !survey.includes(access)) {
        Some(at) => Err(changed(at)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use haversack_trace::{MemorySource, TraceError};

    use super::*;

    fn accesses(times: &[u64]) -> Vec<Access> {
        let access = |time_ns: &u64| Access { time_ns: *time_ns, length_bytes: 4096, ..Access::default() };
        times.iter().map(access).collect()
    }

    fn played(times: &[u64], traffic: &Traffic) -> (Survey, Vec<u64>) {
        let opener = || -> Result<Box<dyn Source>, SimError> {
            Ok(Box::new(MemorySource::of_one("v", accesses(times))))
        };
        let settings = Settings { traffic: traffic.clone(), ..Settings::default() };
        let tape = Tape::of(&opener, &settings, &|_| {}).unwrap();
        let (mut playback, mut batch) = (tape.play().unwrap(), Vec::new());
        playback.next(&mut batch).unwrap();
        let times = batch.iter().map(|access| access.time_ns).collect();
        playback.next(&mut batch).unwrap();
        assert!(batch.is_empty() && playback.progress() == 1.0);
        (tape.survey.clone(), times)
    }

    #[test]
    fn time_begins_at_0_and_may_run_faster() {
        let traffic = Traffic { speed_up: 10.0, ..Traffic::default() };
        let (survey, times) = played(&[500, 700, 1500], &traffic);
        assert_eq!(times, [0, 20, 100]);
        assert!(survey.timed);
        assert_eq!((survey.requests, survey.footprint_blocks, survey.volumes[0].end_bytes), (3, 1, 4096));
    }

    #[test]
    fn requests_without_time_come_at_an_interval() {
        let (survey, times) = played(&[0, 1, 2], &Traffic::default());
        assert!(!survey.timed);
        assert_eq!(times, [0, 10_000, 20_000]);
        let traffic = Traffic { interval_ns: Some(7), ..Traffic::default() };
        assert_eq!(played(&[0, 50, 90], &traffic).1, [0, 7, 14]);
    }

    /// Plays a trace that has three accesses when it is scanned, and then these.
    fn played_again(again: &[u64]) -> Result<usize, SimError> {
        let opened = AtomicUsize::new(0);
        let opener = || -> Result<Box<dyn Source>, SimError> {
            let is_first = opened.fetch_add(1, Ordering::Relaxed) == 0;
            let accesses = accesses(if is_first { &[3, 5, 9] } else { again });
            Ok(Box::new(MemorySource::of_one("v", accesses)))
        };
        let tape = Tape::keeping(2, &opener, &Settings::default(), &|_| {}).unwrap();
        let (mut playback, mut batch, mut played) = (tape.play()?, Vec::new(), 0);
        loop {
            playback.next(&mut batch)?;
            if batch.is_empty() {
                return Ok(played);
            }
            played += batch.len();
        }
    }

    #[test]
    fn a_long_trace_that_changes_is_an_error() {
        assert_eq!(played_again(&[3, 5, 9]).unwrap(), 3);
        assert_eq!(played_again(&[3, 5, 9, 11]).unwrap(), 3, "what is added later is not played");
        for shorter in [&[][..], &[3, 5]] {
            let error = played_again(shorter).unwrap_err();
            let found = shorter.len() as u64;
            assert!(matches!(error, SimError::Changed { scanned: 3, found: n } if n == found), "{error}");
        }
    }

    #[test]
    fn a_long_trace_that_grows_beyond_its_volumes_is_an_error() {
        let opened = AtomicUsize::new(0);
        let opener = || -> Result<Box<dyn Source>, SimError> {
            let mut accesses = accesses(&[3, 5, 9]);
            accesses[1].offset_bytes = 4096 * opened.fetch_add(1, Ordering::Relaxed) as u64;
            Ok(Box::new(MemorySource::of_one("v", accesses)))
        };
        let tape = Tape::keeping(2, &opener, &Settings::default(), &|_| {}).unwrap();
        let found = tape.play().unwrap().next(&mut Vec::new());
        assert!(matches!(found, Err(SimError::Changed { scanned: 3, found: 1 })), "{found:?}");
    }

    /// A source with a property that those in memory do not have.
    struct Odd {
        source: MemorySource,
        is_timed: bool,
        read_once: bool,
    }

    impl Source for Odd {
        fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
            self.source.read(into)
        }

        fn volumes(&self) -> &[String] {
            self.source.volumes()
        }

        fn is_timed(&self) -> bool {
            self.is_timed
        }

        fn read_once(&self) -> Option<&Path> {
            self.read_once.then_some(Path::new("-"))
        }
    }

    #[test]
    fn a_long_trace_that_can_be_read_only_once_is_refused() {
        let opener = || -> Result<Box<dyn Source>, SimError> {
            let source = MemorySource::of_one("v", accesses(&[3, 5, 9]));
            Ok(Box::new(Odd { source, is_timed: true, read_once: true }))
        };
        let refused = Tape::keeping(2, &opener, &Settings::default(), &|_| {}).err().unwrap();
        assert!(refused.to_string().starts_with("-: expected a regular file"), "{refused}");
        assert!(Tape::keeping(3, &opener, &Settings::default(), &|_| {}).is_ok());
    }

    #[test]
    fn numbers_with_gaps_are_no_times() {
        let opener = || -> Result<Box<dyn Source>, SimError> {
            let source = MemorySource::of_one("v", accesses(&[3, 5, 9]));
            Ok(Box::new(Odd { source, is_timed: false, read_once: false }))
        };
        let tape = Tape::of(&opener, &Settings::default(), &|_| {}).unwrap();
        let mut batch = Vec::new();
        tape.play().unwrap().next(&mut batch).unwrap();
        let times: Vec<u64> = batch.iter().map(|access| access.time_ns).collect();
        assert_eq!((tape.survey.timed, times), (false, vec![0, 10_000, 20_000]));
    }

    #[test]
    fn a_trace_without_reads_and_writes_is_refused() {
        let opener = || -> Result<Box<dyn Source>, SimError> {
            Ok(Box::new(MemorySource::of_one("v", vec![Access { op: Op::Flush, ..Access::default() }])))
        };
        assert!(matches!(Tape::of(&opener, &Settings::default(), &|_| {}), Err(SimError::Empty)));
    }
}
