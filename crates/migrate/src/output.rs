//! What a driver has to do for a migration.

use haversack_core::{Copied, IoId};
use haversack_model::{BlockNo, HostId};

use crate::message::{Message, Position, Question, Session};

/// The purpose of a copy that is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyTicket {
    /// It is sent ahead.
    Ahead {
        /// To this host.
        to: HostId,
        /// As one of these copies.
        session: Session,
        /// For this start of its pool.
        taker: u64,
        /// The round, and the copy's order.
        at: Position,
        /// The block.
        block: BlockNo,
    },
    /// It answers a question.
    Answer {
        /// Of this host.
        to: HostId,
        /// The question.
        question: Question,
        /// The block.
        block: BlockNo,
    },
}

impl CopyTicket {
    /// Returns the block.
    pub fn block(&self) -> BlockNo {
        match self {
            CopyTicket::Ahead { block, .. } | CopyTicket::Answer { block, .. } => *block,
        }
    }

    /// Returns the copy's order, as the core wants it; 0 for an answer.
    pub fn order(&self) -> u64 {
        match self {
            CopyTicket::Ahead { at, .. } => at.next,
            CopyTicket::Answer { .. } => 0,
        }
    }
}

/// See the module documentation. Outputs are carried out in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a message.
    Send(HostId, Message),
    /// Read a copy with [`haversack_core::Call::read_copy`], then call [`crate::Migration::copy_read`].
    ReadCopy(CopyTicket),
    /// Give a copy to [`haversack_core::Call::take_copy`]. Whether there was room does not matter.
    TakeCopy {
        /// The block.
        block: BlockNo,
        /// Its sectors.
        copied: Copied,
        /// One block.
        data: Vec<u8>,
    },
    /// Put these bytes into the frame of an I/O that [`crate::Migration::fetch`] was called for, and complete it.
    Fetched {
        /// The I/O.
        io: IoId,
        /// One block.
        data: Vec<u8>,
    },
    /// Complete such an I/O with an error: the earlier owner does not have the block, does not answer, or is
    /// dead.
    FetchFailed {
        /// The I/O.
        io: IoId,
    },
}
