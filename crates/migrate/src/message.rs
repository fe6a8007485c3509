//! What two hosts tell each other about a disk that moves. Messages may be lost, delayed, repeated and reordered.

use haversack_model::BlockNo;
use haversack_ownership as ownership;

use crate::method::Method;

/// Copies that were sent from one start of a source on: its incarnation, and a count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session {
    /// The start of the source's pool.
    pub incarnation: u64,
    /// The count of sessions since.
    pub count: u64,
}

/// Names a question, so that no answer to another one is taken for its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Question {
    /// The start of the asker's pool.
    pub incarnation: u64,
    /// The count of questions since.
    pub count: u64,
}

/// Up to where copies have arrived. A new round begins when copies were lost: those of earlier rounds that are still
/// on their way do not count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The round.
    pub round: u64,
    /// Every copy of the session with a lower order has arrived, or was lost in an earlier round.
    pub next: u64,
}

/// A part of a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// Dirty blocks, from this one on.
    Held(BlockNo),
    /// Blocks whose copies are out of date, from this one on.
    Outdated(BlockNo),
    /// Clean blocks that may follow the disk, from this place on, in the order in which they matter.
    Clean(u64),
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Who owns the disk.
    Ownership(ownership::Message),
    /// Source to destination: copies are about to come, in this round and from this order on.
    Offer {
        /// Which copies.
        session: Session,
        /// From where on.
        from: Position,
    },
    /// Destination to source: up to where copies have arrived.
    Arrived {
        /// Which copies.
        session: Session,
        /// The start of the destination's pool: what it had before that is gone.
        taker: u64,
        /// Up to where.
        until: Position,
    },
    /// Source to destination: a copy of a block.
    Copy {
        /// Which copies.
        session: Session,
        /// The start of the destination's pool that the copy is for.
        taker: u64,
        /// The round, and the copy's order.
        at: Position,
        /// The block.
        block: BlockNo,
        /// Its sectors; 0 if the source has nothing of the block any more.
        mask: u8,
        /// The block was used again after it had entered the source's cache.
        reused: bool,
        /// One block, each sector at its place.
        data: Vec<u8>,
    },
    /// Source to destination: no more copies will come.
    Withdraw {
        /// Which copies.
        session: Session,
    },
    /// New owner to old: which blocks do you have?
    List {
        /// Names the question.
        question: Question,
        /// The new owner's epoch.
        epoch: u64,
        /// The copies that the new owner has, if any.
        session: Option<Session>,
        /// Which part.
        part: Part,
    },
    /// The answer to [`Message::List`].
    Listed {
        /// The question.
        question: Question,
        /// Whether the answering host knows which copies are out of date.
        knows_session: bool,
        /// What travels with the disk.
        method: Method,
        /// The part.
        part: Part,
        /// The blocks, and the sectors of dirty and of clean ones.
        blocks: Vec<(BlockNo, u8)>,
        /// The next part; `None` at the end.
        next: Option<Part>,
    },
    /// New owner to old: I need these sectors.
    Fetch {
        /// Names the question.
        question: Question,
        /// The new owner's epoch.
        epoch: u64,
        /// The block.
        block: BlockNo,
    },
    /// The answer to [`Message::Fetch`].
    Fetched {
        /// The question.
        question: Question,
        /// The sectors; 0 if there is nothing of the block, or it cannot be read now.
        mask: u8,
        /// One block, each sector at its place.
        data: Vec<u8>,
    },
    /// New owner to old: I have these blocks durably.
    Forget {
        /// The new owner's epoch.
        epoch: u64,
        /// The blocks.
        blocks: Vec<BlockNo>,
    },
    /// New owner to old: I need no more of the clean blocks.
    Enough {
        /// The new owner's epoch.
        epoch: u64,
    },
    /// The answer to [`Message::Forget`]: they are durably forgotten.
    Forgotten {
        /// The new owner's epoch.
        epoch: u64,
        /// The blocks.
        blocks: Vec<BlockNo>,
    },
}
