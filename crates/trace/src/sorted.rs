//! Sorts accesses that are nearly in time order.
//!
//! Up to two windows of accesses are held. When both are full they are sorted, and the earlier window is released. So
//! an access that is at most one window from its place gets there; accesses with the same time keep their order.

use std::path::Path;

use crate::access::Access;
use crate::error::{Damage, TraceError};
use crate::source::{BATCH, Source};

/// A source sorted within a window.
pub(crate) struct Sorted<S> {
    source: S,
    window: usize,
    strict: bool,
    held: Vec<Access>,
    /// How many accesses of `held` have been returned already, and how many may be.
    given: usize,
    ready: usize,
    /// An error to be returned after the held accesses.
    error: Option<TraceError>,
    at_end: bool,
    last_ns: u64,
    late: u64,
    count: u64,
}

impl<S: Source> Sorted<S> {
    /// Sorts within n accesses. A strict source ends at an access outside the window; in other sources it gets the
    /// latest time reached.
    pub fn new(source: S, window: usize, strict: bool) -> Self {
        Sorted {
            source,
            window: window.max(1),
            strict,
            held: Vec::new(),
            given: 0,
            ready: 0,
            error: None,
            at_end: false,
            last_ns: 0,
            late: 0,
            count: 0,
        }
    }

    fn fill(&mut self) {
        self.held.drain(..self.given);
        self.given = 0;
        while self.held.len() < 2 * self.window && !self.at_end {
            match self.source.read(&mut self.held) {
                Ok(0) => self.at_end = true,
                Ok(_) => {}
                Err(error) => {
                    self.error = Some(error);
                    self.at_end = true;
                }
            }
        }
        if !self.held.is_sorted_by_key(|a| a.time_ns) {
            self.held.sort_by_key(|a| a.time_ns);
        }
        self.ready = if self.at_end { self.held.len() } else { self.held.len() - self.window };
    }
}

impl<S: Source> Source for Sorted<S> {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        if self.given == self.ready && !self.at_end {
            self.fill();
        }
        let batch = &mut self.held[self.given..self.ready.min(self.given + BATCH)];
        if batch.is_empty() {
            return self.error.take().map_or(Ok(0), Err);
        }
        let mut good = 0;
        for access in batch.iter_mut() {
            if access.time_ns < self.last_ns {
                if self.strict {
                    break;
                }
                self.late += 1;
                access.time_ns = self.last_ns;
            }
            self.last_ns = access.time_ns;
            good += 1;
        }
        if good == 0 {
            let (access, time_ns) = (self.count, batch[0].time_ns);
            (self.at_end, self.ready) = (true, self.given);
            return Err(TraceError::Late { access, time_ns, last_ns: self.last_ns, window: self.window });
        }
        into.extend_from_slice(&batch[..good]);
        self.given += good;
        self.count += good as u64;
        Ok(good)
    }

    fn volumes(&self) -> &[String] {
        self.source.volumes()
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }

    fn is_timed(&self) -> bool {
        self.source.is_timed()
    }

    fn read_once(&self) -> Option<&Path> {
        self.source.read_once()
    }

    fn damage(&self) -> Damage {
        let mut damage = self.source.damage();
        damage.late += self.late;
        damage
    }
}
