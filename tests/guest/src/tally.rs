//! What was done to a disk and what went wrong, counted.

use std::fmt;
use std::time::Duration;

use crate::oracle::Wrong;

/// What a request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A read, compared with the oracle.
    Read,
    /// A write.
    Write,
    /// A write of zeroes.
    Zeroes,
    /// A discard.
    Discard,
    /// A flush.
    Flush,
}

/// Why a request counts as gone wrong.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The disk answered with an error.
    #[error("{kind:?} of {sectors} sectors at {sector}: {source}")]
    Io {
        /// The request.
        kind: Kind,
        /// Its first sector.
        sector: u64,
        /// Its length.
        sectors: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The disk answered with the wrong bytes.
    #[error(transparent)]
    Wrong(#[from] Wrong),
}

/// The sums.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    requests: [u64; 5],
    sectors: u64,
    errors: u64,
    wrong: u64,
    longest: Duration,
    first: Option<String>,
}

impl Tally {
    /// Counts one request that took `time`.
    pub fn count(&mut self, kind: Kind, sectors: usize, time: Duration, result: &Result<(), Trouble>) {
        self.requests[kind as usize] += 1;
        self.sectors += sectors as u64;
        self.longest = self.longest.max(time);
        match result {
            Ok(()) => return,
            Err(Trouble::Io { .. }) => self.errors += 1,
            Err(Trouble::Wrong(_)) => self.wrong += 1,
        }
        if let (None, Err(trouble)) = (&self.first, result) {
            self.first = Some(trouble.to_string());
        }
    }
}

impl fmt::Display for Tally {
    /// Fields as the harness parses them; `first` is the last one and takes the rest of the line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reads, writes, zeroes, discards, flushes] = self.requests;
        let requests: u64 = self.requests.iter().sum();
        let (errors, wrong, longest_ms) = (self.errors, self.wrong, self.longest.as_millis());
        write!(
            out,
            "requests={requests} reads={reads} writes={writes} zeroes={zeroes} discards={discards} "
        )?;
        write!(out, "flushes={flushes} sectors={} longest_ms={longest_ms} ", self.sectors)?;
        write!(out, "errors={errors} wrong={wrong} first={}", self.first.as_deref().unwrap_or("none"))
    }
}
