//! What borrower and lender say to each other about a disk. `docs/host-protocol.md` documents the bytes.

use haversack_model::DiskId;

/// The least blocks of a loan: 4 MiB. Each loan has segments of its own.
pub const LEAST_LOAN_BLOCKS: u32 = 1 << 10;
/// The most blocks of a loan: 256 MiB.
pub const MOST_LOAN_BLOCKS: u32 = 1 << 16;

/// Names a loan among all of one disk, also across restarts of the borrower.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Loan {
    /// A random number, chosen by the borrower each time that the disk is attached.
    pub epoch: u64,
    /// Counts the loans of the epoch.
    pub number: u64,
}

/// A message about a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The borrower asks for a loan.
    Open {
        /// Its name.
        loan: Loan,
        /// The most blocks that will be sent.
        blocks: u32,
        /// The blocks of the disk: all numbers are below.
        disk_blocks: u64,
    },
    /// The lender grants it.
    Opened {
        /// The loan.
        loan: Loan,
    },
    /// The lender does not have the loan, or not any more.
    Ended {
        /// The loan.
        loan: Loan,
    },
    /// The borrower does not need the loan any more.
    Close {
        /// The loan.
        loan: Loan,
    },
    /// The borrower sends a block.
    Put {
        /// The loan.
        loan: Loan,
        /// The block.
        block: u64,
        /// See [`checksum`].
        crc: u32,
        /// Its data.
        data: Vec<u8>,
    },
    /// The borrower asks for a block.
    Get {
        /// The loan.
        loan: Loan,
        /// The block.
        block: u64,
        /// Names the question.
        question: u64,
    },
    /// The answer.
    Got {
        /// The loan.
        loan: Loan,
        /// The block.
        block: u64,
        /// The question.
        question: u64,
        /// Its checksum and its data; `None` if it is not there.
        found: Option<(u32, Vec<u8>)>,
    },
}

impl Message {
    /// Returns the loan.
    pub fn loan(&self) -> Loan {
        match self {
            Message::Open { loan, .. }
            | Message::Opened { loan }
            | Message::Ended { loan }
            | Message::Close { loan }
            | Message::Put { loan, .. }
            | Message::Get { loan, .. }
            | Message::Got { loan, .. } => *loan,
        }
    }

    /// Returns whether it goes to the lender.
    pub fn is_for_lender(&self) -> bool {
        match self {
            Message::Open { .. } | Message::Close { .. } | Message::Put { .. } | Message::Get { .. } => true,
            Message::Opened { .. } | Message::Ended { .. } | Message::Got { .. } => false,
        }
    }
}

/// Returns the CRC-32C of a block's name and data.
pub fn checksum(disk: DiskId, loan: Loan, block: u64, data: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&disk.0);
    for number in [loan.epoch, loan.number, block] {
        digest.update(&number.to_le_bytes());
    }
    digest.update(data);
    digest.finalize() as u32
}
