//! A pattern determines what is accessed next, a clock when. Together they are a source.

use super::clock::Clock;
use super::random::Random;
use crate::access::{Access, Op, VolumeNo};
use crate::error::TraceError;
use crate::source::{BATCH, Source};

/// A request without its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Step {
    pub volume: u32,
    pub offset_bytes: u64,
    pub length_bytes: u32,
    pub op: Op,
}

/// An endless sequence of requests.
pub(super) trait Pattern: Send {
    /// Returns the next request. `share` is the part of the requests generated so far, 0 to 1.
    fn next(&mut self, share: f64, random: &mut Random) -> Step;
}

/// Several volumes, each with its own pattern; each request goes to a random one.
pub(super) struct Volumes(pub Vec<Box<dyn Pattern>>);

impl Pattern for Volumes {
    fn next(&mut self, share: f64, random: &mut Random) -> Step {
        let volume = if self.0.len() > 1 { random.below(self.0.len() as u64) } else { 0 };
        Step { volume: volume as u32, ..self.0[volume as usize].next(share, random) }
    }
}

/// A pattern on a clock.
pub(super) struct Generated {
    pattern: Box<dyn Pattern>,
    clock: Clock,
    /// Gaps use their own random numbers, so that another rate gives the same requests.
    random: [Random; 2],
    volumes: Vec<String>,
    requests: u64,
    given: u64,
}

impl Generated {
    pub fn new(
        pattern: Box<dyn Pattern>,
        clock: Clock,
        volumes: Vec<String>,
        requests: u64,
        seed: u64,
    ) -> Self {
        let random = [0, 1].map(|stream| Random::new(seed, stream));
        Generated { pattern, clock, random, volumes, requests, given: 0 }
    }
}

impl Source for Generated {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let count = (self.requests - self.given).min(BATCH as u64);
        let [random, gaps] = &mut self.random;
        for _ in 0..count {
            let share = self.given as f64 / self.requests as f64;
            let time_ns = self.clock.next_ns(gaps);
            let Step { volume, offset_bytes, length_bytes, op } = self.pattern.next(share, random);
            into.push(Access { time_ns, offset_bytes, length_bytes, volume: VolumeNo(volume), op });
            self.given += 1;
        }
        Ok(count as usize)
    }

    fn volumes(&self) -> &[String] {
        &self.volumes
    }

    fn progress(&self) -> Option<f64> {
        Some(self.given as f64 / self.requests.max(1) as f64)
    }
}
