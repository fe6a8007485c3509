//! Several traces on one clock.

use std::collections::HashMap;
use std::path::Path;

use crate::access::{Access, VolumeNo};
use crate::error::{Damage, TraceError};
use crate::source::{BATCH, Source};

/// How traces are merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeOptions {
    /// Whether all traces begin at time 0; otherwise they keep their clocks.
    pub align: bool,
    /// Whether volumes of the same name in several traces are different volumes: the later ones are named `NAME#2`
    /// and so on. Otherwise they are one, as needed for a trace that consists of several files.
    pub separate: bool,
}

/// Several sources merged by time. Of accesses with the same time, those of earlier sources come first. Accesses
/// without times take turns, and are numbered again.
pub struct Merged {
    parts: Vec<Part>,
    options: MergeOptions,
    names: Vec<String>,
    by_name: HashMap<String, VolumeNo>,
    is_timed: bool,
    given: u64,
    /// An error to be returned after the accesses before it.
    error: Option<TraceError>,
}

/// One of the sources, with the accesses read from it.
struct Part {
    source: Box<dyn Source>,
    batch: Vec<Access>,
    next: usize,
    first_ns: Option<u64>,
    /// New numbers of its volumes.
    numbers: Vec<VolumeNo>,
    at_end: bool,
}

impl Merged {
    /// Merges sources. If only some of them have times, there is no order of all: the first read is an error.
    pub fn new(sources: Vec<Box<dyn Source>>, options: MergeOptions) -> Self {
        let part = |source| Part {
            source,
            batch: Vec::new(),
            next: 0,
            first_ns: None,
            numbers: Vec::new(),
            at_end: false,
        };
        let parts: Vec<Part> = sources.into_iter().map(part).collect();
        let is_timed = parts.iter().any(|part| part.source.is_timed());
        let some_are_not = is_timed && !parts.iter().all(|part| part.source.is_timed());
        let error = some_are_not.then_some(TraceError::SomeUntimed);
        Merged { parts, options, names: Vec::new(), by_name: HashMap::new(), is_timed, given: 0, error }
    }

    /// Reads more from a part whose batch is used up, and numbers its new volumes.
    fn fill(&mut self, at: usize) -> Result<(), TraceError> {
        let part = &mut self.parts[at];
        if part.next < part.batch.len() || part.at_end {
            return Ok(());
        }
        part.batch.clear();
        part.next = 0;
        part.at_end = part.source.read(&mut part.batch)? == 0;
        let first_ns = match (self.options.align, part.batch.first()) {
            (true, Some(access)) => *part.first_ns.get_or_insert(access.time_ns),
            _ => 0,
        };
        let known = part.numbers.len();
        let new: Vec<String> = part.source.volumes()[known..].to_vec();
        for name in new {
            let number = self.number(&name);
            self.parts[at].numbers.push(number);
        }
        let part = &mut self.parts[at];
        for access in &mut part.batch {
            access.time_ns -= first_ns;
            access.volume = part.numbers[access.volume.0 as usize];
        }
        Ok(())
    }

    fn number(&mut self, name: &str) -> VolumeNo {
        let known = self.by_name.get(name).copied();
        if let Some(number) = known.filter(|_| !self.options.separate) {
            return number;
        }
        let mut unique = name.to_string();
        for count in 2.. {
            if !self.by_name.contains_key(&unique) {
                break;
            }
            unique = format!("{name}#{count}");
        }
        let number = VolumeNo(self.names.len() as u32);
        self.names.push(unique.clone());
        self.by_name.insert(unique, number);
        number
    }
}

impl Source for Merged {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while into.len() - before < BATCH && self.error.is_none() {
            for at in 0..self.parts.len() {
                if let Err(error) = self.fill(at) {
                    self.error = Some(error);
                }
            }
            if self.error.is_some() {
                break;
            }
            let head = |part: &Part| part.batch.get(part.next).map(|access| access.time_ns);
            let times = self.parts.iter().enumerate().filter_map(|(at, part)| Some((head(part)?, at)));
            let Some((_, first)) = times.min() else { break };
            // Everything in this part before the next access of any other.
            let bound =
                |at: usize, time_ns: u64| if at < first { time_ns } else { time_ns.saturating_add(1) };
            let others = self.parts.iter().enumerate().filter(|(at, _)| *at != first);
            let end_ns = others.filter_map(|(at, part)| Some(bound(at, head(part)?))).min();
            let part = &mut self.parts[first];
            let rest = &part.batch[part.next..];
            let rest = &rest[..rest.len().min(BATCH - (into.len() - before))];
            let count = end_ns.map_or(rest.len(), |end| rest.partition_point(|a| a.time_ns < end)).max(1);
            into.extend_from_slice(&rest[..count]);
            part.next += count;
        }
        if !self.is_timed {
            into[before..].iter_mut().zip(self.given..).for_each(|(access, number)| access.time_ns = number);
            self.given += (into.len() - before) as u64;
        }
        match self.error.take_if(|_| into.len() == before) {
            Some(error) => Err(error),
            None => Ok(into.len() - before),
        }
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        let parts: Option<Vec<f64>> = self.parts.iter().map(|part| part.source.progress()).collect();
        parts.filter(|parts| !parts.is_empty()).map(|parts| parts.iter().sum::<f64>() / parts.len() as f64)
    }

    fn is_timed(&self) -> bool {
        self.is_timed
    }

    fn read_once(&self) -> Option<&Path> {
        self.parts.iter().find_map(|part| part.source.read_once())
    }

    fn damage(&self) -> Damage {
        let mut damage = Damage::default();
        self.parts.iter().for_each(|part| damage.merge(part.source.damage()));
        damage
    }
}
