//! A part of a trace: a span of time, some volumes, the first accesses.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use crate::access::{Access, VolumeNo};
use crate::error::{Damage, TraceError};
use crate::source::Source;

/// Which part of a trace is wanted; all of it by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Only accesses within this time, in nanoseconds since the trace's first access.
    pub span_ns: Option<Range<u64>>,
    /// Only accesses to volumes of these names.
    pub volumes: Option<Vec<String>>,
    /// At most n accesses.
    pub limit: Option<u64>,
}

/// A part of a source. Volumes are numbered in the order of their first access in the part, and so are accesses without
/// times.
pub struct Cut<S> {
    source: S,
    selection: Selection,
    /// The time of the trace's first access.
    first_ns: Option<u64>,
    names: Vec<String>,
    /// New numbers by old ones; none for volumes that are not included.
    numbers: HashMap<VolumeNo, Option<VolumeNo>>,
    given: u64,
    batch: Vec<Access>,
    at_end: bool,
}

impl<S: Source> Cut<S> {
    /// Cuts a part out of a source. The span begins at `first_ns` if that is known, otherwise at the source's first
    /// access.
    pub fn new(source: S, selection: Selection, first_ns: Option<u64>) -> Self {
        Cut {
            source,
            selection,
            first_ns,
            names: Vec::new(),
            numbers: HashMap::new(),
            given: 0,
            batch: Vec::new(),
            at_end: false,
        }
    }

    /// Returns the new number of a volume, if it is included.
    fn number(&mut self, old: VolumeNo) -> Option<VolumeNo> {
        if let Some(known) = self.numbers.get(&old) {
            return *known;
        }
        let name = &self.source.volumes()[old.0 as usize];
        let wanted = self.selection.volumes.as_ref().is_none_or(|volumes| volumes.contains(name));
        let new = wanted.then_some(VolumeNo(self.names.len() as u32));
        if wanted {
            self.names.push(name.clone());
        }
        self.numbers.insert(old, new);
        new
    }

    /// Returns the wanted part of a batch.
    fn select(&mut self, into: &mut Vec<Access>) {
        let (batch, is_timed) = (std::mem::take(&mut self.batch), self.source.is_timed());
        for access in &batch {
            let first_ns = *self.first_ns.get_or_insert(access.time_ns);
            if let Some(span_ns) = &self.selection.span_ns {
                let since_ns = access.time_ns.saturating_sub(first_ns);
                // Accesses come in time order: nothing after the span is needed.
                self.at_end |= since_ns >= span_ns.end;
                if !span_ns.contains(&since_ns) {
                    continue;
                }
            }
            if self.selection.limit.is_some_and(|limit| self.given >= limit) {
                self.at_end = true;
                break;
            }
            if let Some(volume) = self.number(access.volume) {
                let time_ns = if is_timed { access.time_ns } else { self.given };
                into.push(Access { volume, time_ns, ..*access });
                self.given += 1;
            }
        }
        self.batch = batch;
    }
}

impl<S: Source> Source for Cut<S> {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() == before && !self.at_end {
            self.batch.clear();
            self.at_end = self.source.read(&mut self.batch)? == 0;
            self.select(into);
            self.at_end |= self.selection.limit.is_some_and(|limit| self.given >= limit);
        }
        Ok(into.len() - before)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        let of_limit = self.selection.limit.map(|limit| self.given as f64 / limit.max(1) as f64);
        of_limit.into_iter().chain(self.source.progress()).reduce(f64::max)
    }

    fn is_timed(&self) -> bool {
        self.source.is_timed()
    }

    fn read_once(&self) -> Option<&Path> {
        self.source.read_once()
    }

    fn damage(&self) -> Damage {
        self.source.damage()
    }
}
