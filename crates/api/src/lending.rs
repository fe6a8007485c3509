//! Flash that hosts lend each other.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What this host lends and borrows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Loans {
    /// The pools of this host that lend.
    pub lends: Vec<LendingPool>,
    /// The loans that other hosts have here, by host and disk.
    pub lent: Vec<LentLoans>,
    /// The loans that disks of this host have from others, by disk and host.
    pub borrowed: Vec<BorrowedLoans>,
}

/// A pool that lends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LendingPool {
    /// Its name.
    pub pool: String,
    /// The most bytes that it lends.
    pub capacity_bytes: u64,
    /// The bytes that all loans may take up.
    pub promised_bytes: u64,
    /// Bytes that could be lent in addition: they are free now.
    pub spare_bytes: u64,
    /// Loans that were taken back since the daemon was started, because disks of this host needed the space.
    pub taken_back: u64,
}

/// What another host has here for one of its disks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LentLoans {
    /// The pool that lends.
    pub pool: String,
    /// The borrower.
    pub host: String,
    /// Its disk: the name, or the identity if the name is not known here.
    pub disk: String,
    /// Loans.
    pub loans: u64,
    /// The bytes that they may take up.
    pub capacity_bytes: u64,
    /// Bytes that were stored in them.
    pub used_bytes: u64,
    /// The age of the oldest, in seconds.
    pub age_s: f64,
    /// Blocks that were asked for under these loans.
    pub asked_blocks: u64,
    /// Those of them that were there.
    pub hit_blocks: u64,
}

/// The state of a disk's borrowing from a lender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LenderState {
    /// The lender is asked for blocks.
    Asked,
    /// The lender is not asked for a while, because it did not answer in time or was slower than the origin.
    Paused,
    /// The pause has ended, and no answer has arrived since.
    Trial,
    /// It is not connected, or does not lend to this host.
    Unreachable,
    /// Nothing is borrowed from it for now (`from = "auto"`).
    Unused,
}

/// As in JSON.
impl std::fmt::Display for LenderState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            LenderState::Asked => "asked",
            LenderState::Paused => "paused",
            LenderState::Trial => "trial",
            LenderState::Unreachable => "unreachable",
            LenderState::Unused => "unused",
        })
    }
}

/// What a disk of this host borrows from another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct BorrowedLoans {
    /// The disk.
    pub disk: String,
    /// The lender.
    pub host: String,
    /// The state of borrowing from it.
    pub state: LenderState,
    /// For how many more seconds the lender is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_left_s: Option<f64>,
    /// How often it was paused since the disk was attached.
    pub pauses: u64,
    /// Loans.
    pub loans: u64,
    /// The bytes that may be sent under them.
    pub capacity_bytes: u64,
    /// Bytes that were sent, as far as the index knows.
    pub used_bytes: u64,
    /// The age of the oldest, in seconds.
    pub age_s: f64,
    /// Blocks that were asked for since the disk was attached.
    pub asked_blocks: u64,
    /// Blocks that came and were used.
    pub hit_blocks: u64,
    /// Loans that the lender has ended.
    pub ended_loans: u64,
    /// The mean time of its latest answers in microseconds; 0 if there is none.
    pub latency_us: f64,
}
