//! Where accesses come from.

use std::path::Path;

use crate::access::{Access, VolumeNo};
use crate::error::{Damage, TraceError};

/// A stream of accesses in time order.
///
/// Accesses come in batches, so that a source costs one virtual call per several thousand of them.
pub trait Source: Send {
    /// Appends the next accesses to `into`, at most a few thousand. Returns their number; 0 at the end, and from then
    /// on.
    ///
    /// # Errors
    /// Accesses before the damage have been appended by earlier calls.
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError>;

    /// Returns the names of the volumes found so far, indexed by [`VolumeNo`]. More are added while the source is read.
    fn volumes(&self) -> &[String];

    /// Returns the fraction of the source that has been read, if it is known; for progress bars.
    fn progress(&self) -> Option<f64> {
        None
    }

    /// Returns whether accesses have times. If not, their times are their numbers, from 0 on.
    fn is_timed(&self) -> bool {
        true
    }

    /// Returns the file that can be read only once, if there is one: standard input or a pipe. Opening the source a
    /// second time does not give the same accesses then.
    fn read_once(&self) -> Option<&Path> {
        None
    }

    /// Returns the damage so far that could be skipped.
    fn damage(&self) -> Damage {
        Damage::default()
    }
}

impl Source for Box<dyn Source> {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        (**self).read(into)
    }

    fn volumes(&self) -> &[String] {
        (**self).volumes()
    }

    fn progress(&self) -> Option<f64> {
        (**self).progress()
    }

    fn is_timed(&self) -> bool {
        (**self).is_timed()
    }

    fn read_once(&self) -> Option<&Path> {
        (**self).read_once()
    }

    fn damage(&self) -> Damage {
        (**self).damage()
    }
}

/// Accesses in memory.
pub struct MemorySource {
    accesses: Vec<Access>,
    volumes: Vec<String>,
    next: usize,
}

/// Accesses returned by one call of `read`.
pub(crate) const BATCH: usize = 4096;

impl MemorySource {
    /// Makes a source of the given accesses, which must be in time order.
    pub fn new(accesses: Vec<Access>, volumes: Vec<String>) -> Self {
        assert!(accesses.is_sorted_by_key(|a| a.time_ns), "accesses come in time order");
        assert!(accesses.iter().all(|a| (a.volume.0 as usize) < volumes.len()), "every volume has a name");
        MemorySource { accesses, volumes, next: 0 }
    }

    /// Makes a source of one volume.
    pub fn of_one(volume: &str, mut accesses: Vec<Access>) -> Self {
        accesses.iter_mut().for_each(|a| a.volume = VolumeNo(0));
        Self::new(accesses, vec![volume.to_string()])
    }
}

impl Source for MemorySource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let batch = &self.accesses[self.next..(self.next + BATCH).min(self.accesses.len())];
        into.extend_from_slice(batch);
        self.next += batch.len();
        Ok(batch.len())
    }

    fn volumes(&self) -> &[String] {
        &self.volumes
    }

    fn progress(&self) -> Option<f64> {
        Some(self.next as f64 / self.accesses.len().max(1) as f64)
    }
}
