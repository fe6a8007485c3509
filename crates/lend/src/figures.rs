//! What is counted on both sides.

/// What has happened since the disk was attached.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BorrowerFigures {
    /// Blocks that lenders were asked for.
    pub asked_blocks: u64,
    /// Blocks that were used.
    pub hit_blocks: u64,
    /// Blocks that were not there: the lender has dropped them, or the index was wrong.
    pub missing_blocks: u64,
    /// Reads that no lender has answered in time.
    pub late_reads: u64,
    /// Blocks with a wrong checksum.
    pub bad_blocks: u64,
    /// Reads whose answers were not used, because a block was being written.
    pub overtaken_reads: u64,
    /// Blocks that were sent.
    pub sent_blocks: u64,
    /// Loans that there are.
    pub loans: u64,
    /// Blocks that the index has.
    pub lent_blocks: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// The mean time of the latest reads from the lender that answers fastest, in microseconds; 0 if there is none. A late one
    /// counts with the time that the origin takes besides.
    pub lender_us: f64,
    /// The mean time of the latest reads of the origin.
    pub origin_us: f64,
}

/// What has happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LenderFigures {
    /// Loans that there are.
    pub loans: u64,
    /// Blocks that were stored in them.
    pub blocks: u64,
    /// Blocks that were asked for.
    pub asked_blocks: u64,
    /// Blocks that were there.
    pub hit_blocks: u64,
    /// Blocks that were taken in.
    pub stored_blocks: u64,
    /// Blocks with a wrong checksum.
    pub bad_blocks: u64,
    /// Loans that were given back because the space was needed.
    pub given_back: u64,
}
