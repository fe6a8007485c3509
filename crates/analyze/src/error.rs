//! What can go wrong while a trace is analysed.

use haversack_trace::TraceError;

/// A trace that cannot be analysed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// The trace cannot be read on.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An access lies further out than keys reach.
    #[error(
        "volume '{volume}': an access at offset {offset_bytes} of {length_bytes} bytes ends beyond {limit_bytes} \
         bytes, the largest volume with blocks of {block_bytes} bytes; is the offset damaged, or in another unit?"
    )]
    TooFarOut {
        /// The volume's name.
        volume: String,
        /// Where the access begins.
        offset_bytes: u64,
        /// How long it is.
        length_bytes: u32,
        /// The size of a block.
        block_bytes: u64,
        /// The largest volume.
        limit_bytes: u64,
    },
    /// More volumes than keys can tell apart.
    #[error("the trace has more than {limit} volumes; cut it into traces of fewer")]
    TooManyVolumes {
        /// The largest number of volumes.
        limit: u64,
    },
    /// A size of blocks that is invalid.
    #[error("blocks of {0} bytes: expected a power of two from 512 bytes to 16 MiB")]
    BlockSize(u64),
    /// A sample of nothing.
    #[error("a sample of {0} blocks: expected at least 16")]
    SampleSize(usize),
}
