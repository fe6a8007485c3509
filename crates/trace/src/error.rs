//! What can go wrong with a trace.

use std::io;
use std::path::PathBuf;

/// A trace that cannot be read, or cannot be read on.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}
