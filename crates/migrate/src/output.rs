//! What a driver must do for a migration.

use haversack_core::{Call, Copied, IoId, Memory, Rejected, RequestTag};
use haversack_model::{BlockNo, DiskNo, HostId, Micros};

use crate::message::{Message, Position, Question, Session};

/// The purpose of a copy that is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyTicket {
    /// The copy is sent ahead of the disk.
    Ahead {
        /// The destination.
        to: HostId,
        /// The session that the copy belongs to.
        session: Session,
        /// The start of the destination's pool that the copy is for.
        taker: u64,
        /// The round, and the copy's order.
        at: Position,
        /// The block.
        block: BlockNo,
    },
    /// The copy is for the replica.
    Replica {
        /// The replica's host.
        to: HostId,
        /// The session that the copy belongs to.
        session: Session,
        /// The start of that host's pool that the copy is for.
        taker: u64,
        /// The round, and the copy's order.
        at: Position,
        /// The block.
        block: BlockNo,
    },
    /// The copy answers a question.
    Answer {
        /// The host that asked.
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
            CopyTicket::Ahead { block, .. }
            | CopyTicket::Replica { block, .. }
            | CopyTicket::Answer { block, .. } => *block,
        }
    }

    /// Starts to read the copy into the buffer of `tag`, one block long. If it returns no copy, or once it is read,
    /// [`crate::Migration::copy_read`] is to be called.
    ///
    /// # Errors
    /// See [`Call::read_copy`].
    pub fn read<M: Memory>(
        &self,
        call: &mut Call<'_, M>,
        now: Micros,
        tag: RequestTag,
        disk: DiskNo,
    ) -> Result<Option<Copied>, Rejected> {
        match self {
            CopyTicket::Ahead { at, block, .. } => call.read_copy(now, tag, disk, *block, at.next),
            CopyTicket::Answer { block, .. } => call.read_copy(now, tag, disk, *block, 0),
            CopyTicket::Replica { block, .. } => call.read_dirty_copy(now, tag, disk, *block),
        }
    }
}

/// See the module documentation. Outputs are carried out in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a message.
    Send(HostId, Message),
    /// Read a copy with [`CopyTicket::read`], then call [`crate::Migration::copy_read`].
    ReadCopy(CopyTicket),
    /// Give a copy to [`haversack_core::Call::take_copy`]. It does not matter whether there was space for it.
    TakeCopy {
        /// The block.
        block: BlockNo,
        /// Its sectors.
        copied: Copied,
        /// One block.
        data: Vec<u8>,
    },
    /// Give a copy to [`haversack_core::Call::keep_copy`], then call [`crate::Migration::copy_kept`].
    KeepCopy {
        /// The copies that it belongs to.
        session: Session,
        /// Its round and order.
        at: Position,
        /// The block.
        block: BlockNo,
        /// Its sectors.
        mask: u8,
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
