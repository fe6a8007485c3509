//! Moving a disk's cache between hosts: one host's side for one disk, as a state machine without I/O, clock or
//! threads. Its inputs are messages, the start and stop of the guest, and the time; its outputs are messages and
//! reads of copies. It calls the core itself, so that a driver only carries messages and buffers.
//!
//! `haversack-ownership` decides who owns the disk. This crate carries out its decisions: freezing, listing,
//! claiming, and moving the blocks.
//!
//! Invariants
//! - A step of the ownership protocol counts as recorded only when the core says that its record is durable.
//! - Copies that arrive before a claim count only if the source says, after it has released the disk, which of them
//!   are out of date. If it does not know, all are dropped.
//! - After the first question for that list, no copy is taken.
//! - A host lends clean blocks only as it had them when it released the disk. The new owner takes such a late copy only
//!   of a block that it has not changed since its claim.
//! - An answer counts only for the question that it names, and a question only under the epoch of its asker.

mod copies;
mod known;
mod late;
mod leave;
mod limit;
mod message;
mod method;
mod migration;
mod ordered;
mod output;
mod owner;
mod pace;
mod passes;
mod peer;
mod place;
mod replica;
mod replicate;
mod stream;
mod takeover;
mod witness;
mod write_cache;

pub use haversack_model::HostId;
pub use known::{
    HostRecord, KnownBefore, KnownOwner, LaterTakeover, ReplicaAge, complete_replica, has_complete_replica,
    is_concerned, is_news, is_void_under_any, later_takeover, may_yield, newest_epoch, objection,
    objection_of_peer, objection_of_third, relies_on_epoch,
};
pub use limit::blocks_a_period;
pub use message::{Message, Part, Position, Question, ReplicaState, Session};
pub use method::{Ahead, Late, Method, Plan, UnknownMethod};
pub use migration::{Migration, Status, Timing};
pub use output::{CopyTicket, Output};
pub use pace::PaceLimits;
pub use place::{Candidate, Unable, choose, choose_another, is_missing, leaves_drained};
pub use replica::ReplicaStatus;
pub use replicate::{NoReplica, OnLoss, ReplicaPolicy, ReplicationState};
pub use witness::{Heed, heed};
pub use write_cache::{AsOf, ToldWriteCache, WriteCacheMemory};
