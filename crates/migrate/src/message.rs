//! The messages of two hosts about a disk that moves. Messages may be lost, delayed, repeated and reordered.

use haversack_model::BlockNo;
use haversack_ownership as ownership;

use crate::method::Method;

/// Identifies the copies sent since one start of a source: its incarnation, and a count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session {
    /// The start of the source's pool.
    pub incarnation: u64,
    /// The count of sessions since.
    pub count: u64,
}

/// Identifies a question, so that an answer to another question is not mistaken for its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Question {
    /// The start of the asker's pool.
    pub incarnation: u64,
    /// The count of questions since.
    pub count: u64,
}

/// How far copies have arrived. A new round begins when copies were lost: those of earlier rounds that are still on
/// their way do not count.
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
    /// Clean blocks that may follow the disk, from this place on, in order of importance.
    Clean(u64),
}

/// What a replica has, as reported by its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplicaState {
    /// The session of the owner that this answers.
    pub session: Session,
    /// The start of the host's pool. Messages to an earlier one have no effect.
    pub taker: u64,
    /// The host has a replica of this session.
    pub is_known: bool,
    /// Every copy of this round before that order is durable there.
    pub until: Position,
    /// The last removal that is durable there.
    pub removed: u64,
    /// Counts these messages. The owner returns the last one that it has.
    pub beat: u64,
    /// The record there says that the replica is complete.
    pub is_complete: bool,
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
        /// Their start.
        from: Position,
    },
    /// Destination to source: how far copies have arrived.
    Arrived {
        /// Which copies.
        session: Session,
        /// The start of the destination's pool: earlier contents are gone.
        taker: u64,
        /// How far.
        until: Position,
        /// Guests occupy it: copies should be sent slowly.
        is_busy: bool,
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
        /// Its sectors; 0 if the source no longer has the block.
        mask: u8,
        /// The block is protected in the source's cache and has been hit recently.
        reused: bool,
        /// One block, each sector at its place.
        data: Vec<u8>,
    },
    /// Source to destination: no more copies will come.
    Withdraw {
        /// Which copies.
        session: Session,
    },
    /// New owner to old: asks for a list of blocks.
    List {
        /// Identifies the question.
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
        /// The method.
        method: Method,
        /// The part.
        part: Part,
        /// The blocks, and the sectors of dirty and of clean ones.
        blocks: Vec<(BlockNo, u8)>,
        /// The next part; `None` at the end.
        next: Option<Part>,
    },
    /// New owner to old: asks for these sectors.
    Fetch {
        /// Identifies the question.
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
    /// New owner to old: these blocks are durable there.
    Forget {
        /// The new owner's epoch.
        epoch: u64,
        /// The blocks.
        blocks: Vec<BlockNo>,
    },
    /// New owner to old: no more clean blocks are needed.
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
    /// Owner to replica: start an empty replica, or another round of copies for it.
    ReplicaOpen {
        /// Which replica. A later one replaces an earlier one.
        session: Session,
        /// The start of the replica's pool; unknown at first.
        taker: Option<u64>,
        /// The owner's epoch.
        epoch: u64,
        /// The disk's sectors.
        sectors: u64,
        /// The start of the copies.
        from: Position,
    },
    /// Owner to replica: a copy of a block's dirty sectors.
    ReplicaCopy {
        /// Which replica.
        session: Session,
        /// The start of its pool that the copy is for.
        taker: u64,
        /// The last beat that the owner has received.
        echo: u64,
        /// The round, and the copy's order.
        at: Position,
        /// The block.
        block: BlockNo,
        /// Its sectors; 0 if there was nothing to copy.
        mask: u8,
        /// One block, each sector at its place.
        data: Vec<u8>,
    },
    /// Owner to replica: the origin has these blocks, and the replica must not keep them.
    ReplicaRemove {
        /// Which replica.
        session: Session,
        /// The start of its pool.
        taker: u64,
        /// The last beat that the owner has received.
        echo: u64,
        /// Counts these messages. The next is sent when this one is answered.
        number: u64,
        /// The blocks.
        blocks: Vec<BlockNo>,
    },
    /// Owner to replica: it is still in use.
    ReplicaBeat {
        /// Which replica.
        session: Session,
        /// The start of its pool.
        taker: u64,
        /// The last beat that the owner has received.
        echo: u64,
        /// It has everything that was flushed, and from now on flushes wait for it.
        completes: bool,
    },
    /// Owner to replica: it is not needed any more.
    ReplicaEnd {
        /// This replica, and all earlier ones.
        session: Session,
        /// The start of its pool; unknown at first.
        taker: Option<u64>,
    },
    /// Replica to owner: what it has.
    ReplicaHas(ReplicaState),
    /// Replica to owner: it is dropped, and no crash brings it back.
    ReplicaDropped {
        /// The session named by [`Message::ReplicaEnd`].
        session: Session,
    },
}
