//! Errors of analysing a trace.

use haversack_trace::TraceError;

/// A trace that cannot be analysed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An access is beyond the range of keys.
    #[error(
        "volume '{volume}': an access at offset {offset_bytes} of {length_bytes} bytes ends beyond {limit_bytes} \
         bytes, the largest volume with blocks of {block_bytes} bytes; is the offset damaged, or in another unit?"
    )]
    TooFarOut {
        /// The volume's name.
        volume: String,
        /// Its offset.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u32,
        /// The size of a block.
        block_bytes: u64,
        /// The largest volume.
        limit_bytes: u64,
    },
    /// There are more volumes than keys can distinguish.
    #[error("the trace has more than {limit} volumes; cut it into traces of fewer")]
    TooManyVolumes {
        /// The largest number of volumes.
        limit: u64,
    },
    /// The block size is invalid.
    #[error("blocks of {0} bytes: expected a power of two from 512 bytes to 16 MiB")]
    BlockSize(u64),
    /// The sample is empty.
    #[error("a sample of {0} blocks: expected at least 16")]
    SampleSize(usize),
}
