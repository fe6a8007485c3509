//! Generators one after the other: a load that changes its nature, on the same blocks.

use std::collections::VecDeque;

use haversack_trace::generate::{GenerateError, Generator};
use haversack_trace::{Access, Source, TraceError};

/// The requests of a generator, then those of the others, each from when the one before has ended.
///
/// # Errors
/// A parameter is invalid.
pub fn source(first: &Generator, then: &[Generator]) -> Result<Box<dyn Source>, GenerateError> {
    if then.is_empty() {
        return first.source();
    }
    let all = std::iter::once(first).chain(then);
    let requests = all.clone().map(|generator| generator.requests).sum();
    let mut parts = VecDeque::new();
    for generator in all {
        parts.push_back(generator.source()?);
    }
    let names = parts[0].volumes().to_vec();
    Ok(Box::new(InTurn { parts, names, start_ns: 0, last_ns: 0, requests, given: 0 }))
}

struct InTurn {
    /// Those that have not ended; the first one is being read.
    parts: VecDeque<Box<dyn Source>>,
    names: Vec<String>,
    /// When the first of them began.
    start_ns: u64,
    last_ns: u64,
    requests: u64,
    given: u64,
}

impl Source for InTurn {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while let Some(part) = self.parts.front_mut() {
            let read = part.read(into)?;
            if read > 0 {
                into[before..].iter_mut().for_each(|access| access.time_ns += self.start_ns);
                self.last_ns = into.last().map_or(self.last_ns, |access| access.time_ns);
                self.given += read as u64;
                return Ok(read);
            }
            self.parts.pop_front();
            self.start_ns = self.last_ns;
        }
        Ok(0)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        Some(self.given as f64 / self.requests.max(1) as f64)
    }
}
