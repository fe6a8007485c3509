//! Pooled flash: a host lends spare flash to other hosts, which use it as a read cache of their disks' origins.
//!
//! The *borrower* sees all reads and writes of a disk's origin. It sends blocks that it had to read from the origin twice
//! to a *lender*, and asks the lender for them later, instead of the origin. What is where it knows from an index of Bloom
//! filters, as in Par-BF (Liu, Ge, Du and Huang, DISCS'14): a list of filters, each for one *loan*, the space for so many
//! blocks that one lender has granted. When a loan is full, the next one begins; the oldest one is given up.
//!
//! A block is named by its disk, its loan and its number. Under that name a lender never gets two different contents:
//! a block that is written at the origin is not sent again under the current loan, and what was sent before is not used
//! any more ([`Borrower`]). So messages may be lost, repeated or reordered, and a lender may forget whatever it likes. A wrong
//! answer of the index costs a question in vain.
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
pub use figures::{BorrowerFigures, LenderFigures};
pub use lender::{Lender, LenderOutput, LoanNo, LoanStatus};
pub use message::{LEAST_LOAN_BLOCKS, Loan, MOST_LOAN_BLOCKS, Message, checksum};

/// The bytes of a block.
pub const BLOCK_BYTES: usize = haversack_model::BLOCK_BYTES;
