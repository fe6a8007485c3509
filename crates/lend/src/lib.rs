//! Pooled flash: a host lends spare flash to other hosts, which use it as a read cache of their disks' origins.
//!
//! The *borrower* sees all reads and writes of a disk's origin. It sends blocks that it had to read from the origin
//! twice to a *lender*, and asks the lender for them later, instead of the origin. An index of Bloom filters says which
//! lender has a block, as in Par-BF (Liu, Ge, Du and Huang, DISCS'14): a list of filters, one for each *loan*. A loan
//! is space for a number of blocks, granted by one lender. When a loan is full, the next one begins; the oldest one is
//! given up.
//!
//! A block is named by its disk, its loan and its number. Under that name a lender never gets two different contents: a
//! block that is written at the origin is not sent again under the current loan, and what was sent before is not used
//! any more ([`Borrower`]). So messages may be lost, repeated or reordered, and a lender may forget whatever it likes.
//! A false positive of the index costs one round trip to the lender.
//!
//! Both sides are state machines without I/O, clock, threads or randomness; the engine runs them.

mod bloom;
mod borrower;
mod breaker;
mod figures;
mod lender;
mod message;
mod times;
mod voids;

pub use bloom::Bloom;
pub use borrower::{Borrower, BorrowerSettings, Outcome, ReadTicket};
pub use breaker::{Cause, Pause};
pub use figures::{AtLender, BorrowerFigures, LenderFigures};
pub use lender::{Lender, LenderOutput, LoanNo, LoanStatus};
pub use message::{LEAST_LOAN_BLOCKS, Loan, MOST_LOAN_BLOCKS, Message, checksum};

/// The bytes of a block.
pub const BLOCK_BYTES: usize = haversack_model::BLOCK_BYTES;
