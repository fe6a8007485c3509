//! Errors of reading traces.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

/// A trace that cannot be read, or not to its end.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file system refused, or a compressed file is damaged.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No format fits the file.
    #[error(
        "{path}: the trace's format is not recognised; it begins with {found:?}; name it, one of: {formats}"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The beginning of its content.
        found: String,
        /// The formats that can be given by name.
        formats: String,
    },
    /// The format is not part of this program.
    #[error(
        "{path}: reading this format is not built in; build with the feature '{feature}', or convert to csv"
    )]
    NotBuilt {
        /// The file.
        path: PathBuf,
        /// The feature that is missing.
        feature: &'static str,
    },
    /// The format can only be read from its end, which needs a file.
    #[error(
        "{path}: expected a file that is not compressed as a whole, since Parquet is read from its end; unpack it"
    )]
    NotPlain {
        /// The file.
        path: PathBuf,
    },
    /// Traces without a common clock.
    #[error(
        "only some of the merged traces have times, and the others have no place among them: merge those with times \
         and those without (lists of block numbers, tables without a time) separately"
    )]
    SomeUntimed,
    /// A line is damaged, and damage is not accepted.
    #[error("{0}")]
    Line(BadLine),
    /// A binary trace is damaged.
    #[error("{path}: byte {offset_bytes}: expected {expected}, found {found}; the trace ends here")]
    Binary {
        /// The file.
        path: PathBuf,
        /// The offset, after decompression of the whole file.
        offset_bytes: u64,
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// An access is too far out of time order, and damage is not accepted.
    #[error(
        "access {access} at {time_ns} ns came after one at {last_ns} ns and more than {window} accesses late; \
         sort within a larger window"
    )]
    Late {
        /// Its number, from 0.
        access: u64,
        /// Its time.
        time_ns: u64,
        /// The time that had been reached.
        last_ns: u64,
        /// The window within which accesses are sorted.
        window: usize,
    },
}

/// A line that should be an access and is not.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug, Serialize)]
#[error("{path}:{line}: expected {expected}, found {found:?}")]
pub struct BadLine {
    /// The file.
    pub path: PathBuf,
    /// Its number, from 1.
    pub line: u64,
    /// What was expected.
    pub expected: &'static str,
    /// The beginning of the line.
    pub found: String,
}

/// Damage found so far that could be skipped.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Damage {
    /// Damaged lines, which were skipped.
    pub lines: u64,
    /// Accesses outside the sort window; they get the latest time reached before them.
    pub late: u64,
    /// The first damaged lines.
    pub examples: Vec<BadLine>,
}

impl Damage {
    /// The most damaged lines that are kept as examples.
    pub const EXAMPLES: usize = 8;

    /// Returns whether there was no damage.
    pub fn is_none(&self) -> bool {
        self.lines == 0 && self.late == 0
    }

    /// Counts a damaged line.
    pub fn add(&mut self, line: impl FnOnce() -> BadLine) {
        self.lines += 1;
        if self.examples.len() < Self::EXAMPLES {
            self.examples.push(line());
        }
    }

    /// Adds another source's damage.
    pub fn merge(&mut self, other: Damage) {
        self.lines += other.lines;
        self.late += other.late;
        let room = Self::EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}
