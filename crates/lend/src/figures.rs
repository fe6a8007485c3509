//! What is counted on both sides, and what an operator is told of them.

use haversack_model::{HostId, Micros};

use crate::breaker::Pause;

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
    /// The mean time of the latest reads from the lender that answers fastest, in microseconds; 0 if there is none. A
    /// late one counts with the time that the origin takes besides.
    pub lender_us: f64,
    /// The mean time of the latest reads of the origin.
    pub origin_us: f64,
}

/// What has happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LenderFigures {
    /// Loans that there are.
    pub loans: u64,
    /// The most blocks that are stored in them.
    pub promised_blocks: u64,
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
    /// Loans that ended because their host was gone, or did not use them after it was back.
    pub left_loans: u64,
}

/// What a disk has at one lender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AtLender {
    /// The lender.
    pub host: HostId,
    /// Loans that there are.
    pub loans: u64,
    /// The most blocks that are sent under them.
    pub most_blocks: u64,
    /// Blocks that the index has.
    pub blocks: u64,
    /// The age of the oldest loan, in microseconds; 0 if there is none.
    pub oldest_us: Micros,
    /// Blocks that it was asked for since it was chosen.
    pub asked_blocks: u64,
    /// Blocks that it has sent.
    pub hit_blocks: u64,
    /// Loans that it has ended: it needed the space, or was started again.
    pub ended_loans: u64,
    /// The mean time of its latest answers, in microseconds; 0 if there is none.
    pub mean_us: f64,
    /// It is left alone for now.
    pub pause: Option<Pause>,
    /// How often it was left alone.
    pub pauses: u64,
    /// It has answered since it was left alone last, or never was.
    pub answers: bool,
}
