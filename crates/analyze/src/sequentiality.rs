//! Sequentiality: requests that begin where a recent one of the same volume ended.

use haversack_trace::{Access, Op};
use serde::{Deserialize, Serialize};

/// Streams tracked at once: programs, and readahead within them, interleave.
const STREAMS: usize = 32;

/// The sequentiality of requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Runs {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that begin where the request before them ended.
    pub next_requests: u64,
    /// Those that begin where one of the last 32 streams ended.
    pub sequential_requests: u64,
    /// Their bytes.
    pub sequential_bytes: u64,
    /// The longest run in bytes.
    pub longest_bytes: u64,
}

impl Runs {
    fn merge(&mut self, other: &Runs) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.next_requests += other.next_requests;
        self.sequential_requests += other.sequential_requests;
        self.sequential_bytes += other.sequential_bytes;
        self.longest_bytes = self.longest_bytes.max(other.longest_bytes);
    }

    /// Returns the mean length of a run in bytes: a request that continues no run begins one.
    pub fn mean_bytes(&self) -> f64 {
        let runs = self.requests - self.sequential_requests;
        if runs == 0 { self.bytes as f64 } else { self.bytes as f64 / runs as f64 }
    }
}

/// The sequentiality of reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sequentiality {
    /// Reads.
    pub reads: Runs,
    /// Writes.
    pub writes: Runs,
}

impl Sequentiality {
    /// Adds another volume's.
    pub(crate) fn merge(&mut self, other: &Sequentiality) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
    }
}

/// Tracks the streams of one volume.
#[derive(Clone, Default)]
pub(crate) struct Streams {
    /// The end of each stream and its length so far, the most recent last.
    ends: Vec<(u64, u64)>,
    pub found: Sequentiality,
}

impl Streams {
    /// Records a request.
    pub fn access(&mut self, access: &Access) {
        let runs = match access.op {
            Op::Read => &mut self.found.reads,
            Op::Write => &mut self.found.writes,
            Op::Flush | Op::Discard => return,
        };
        let length = u64::from(access.length_bytes);
        runs.requests += 1;
        runs.bytes = runs.bytes.saturating_add(length);
        let mut run = length;
        if let Some(stream) = self.ends.iter().rposition(|(end, _)| *end == access.offset_bytes) {
            runs.next_requests += u64::from(stream + 1 == self.ends.len());
            runs.sequential_requests += 1;
            runs.sequential_bytes = runs.sequential_bytes.saturating_add(length);
            run = run.saturating_add(self.ends.remove(stream).1);
        } else if self.ends.len() == STREAMS {
            self.ends.remove(0);
        }
        runs.longest_bytes = runs.longest_bytes.max(run);
        self.ends.push((access.offset_bytes.saturating_add(length), run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_streams_are_sequential() {
        let mut streams = Streams::default();
        for n in 0..10 {
            for base in [0, 1 << 30] {
                let access =
                    Access { offset_bytes: base + n * 4096, length_bytes: 4096, ..Access::default() };
                streams.access(&access);
            }
        }
        let runs = streams.found.reads;
        assert_eq!((runs.requests, runs.sequential_requests, runs.next_requests), (20, 18, 0));
        assert_eq!((runs.longest_bytes, runs.mean_bytes()), (40960, 40960.0));
        assert_eq!(streams.found.writes, Runs::default());
    }
}
