//! The errors of a simulation.

use std::path::PathBuf;

use haversack_core::{ManageError, PoolError};
use haversack_trace::TraceError;

/// A simulation cannot be run, or cannot continue.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum SimError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A block for which there is no key.
    #[error(
        "volume {volume} is accessed at byte {offset_bytes}: the simulator takes {most_volumes} volumes of at most \
         {most_bytes} bytes; use a larger block size, or cut the trace"
    )]
    TooLarge {
        /// The volume's number.
        volume: u32,
        /// Where it is accessed.
        offset_bytes: u64,
        /// Bytes of the largest volume.
        most_bytes: u64,
        /// Maximum number of volumes.
        most_volumes: u32,
    },
    /// A trace too long for MIN.
    #[error("the trace has more than {most} block accesses, the most that MIN can look ahead: cut the trace")]
    TooLong {
        /// Maximum number of accesses.
        most: u64,
    },
    /// A long trace that cannot be read again.
    #[error(
        "{path}: expected a regular file, since the trace has more than {most} requests and is read twice; \
         save it in a file first"
    )]
    ReadOnce {
        /// The file.
        path: PathBuf,
        /// The most requests of a trace that is read once.
        most: usize,
    },
    /// A trace that is another one when it is read again.
    #[error(
        "the trace changed while it was simulated: it had {scanned} requests at first, but only {found} of them when it \
         was read again; simulate a copy that nothing writes to"
    )]
    Changed {
        /// Requests that were found at first.
        scanned: u64,
        /// Requests that were the same when it was read again, as far as can be said.
        found: u64,
    },
    /// A policy that does not exist.
    #[error("unknown policy '{name}': expected {known}, or all")]
    UnknownPolicy {
        /// The given name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// Settings that are invalid, alone or in combination.
    #[error("{0}")]
    Settings(String),
    /// The trace has nothing to simulate.
    #[error("the trace has no reads or writes")]
    Empty,
    /// A simulated migration broke a rule.
    #[error("the simulated migration went wrong: {0}")]
    Migration(String),
    /// The production cache's pool cannot be created or opened.
    #[error("the simulated pool: {0}")]
    Pool(#[from] PoolError),
    /// The production cache refuses a disk or a setting.
    #[error("disk '{disk}' of the simulated pool: {error}")]
    Manage {
        /// The disk.
        disk: String,
        /// The reason.
        error: ManageError,
    },
}

impl From<haversack_latency::LatencyError> for SimError {
    fn from(error: haversack_latency::LatencyError) -> Self {
        SimError::Settings(error.to_string())
    }
}
