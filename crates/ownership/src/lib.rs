//! Who may write a disk's origin when its VM moves between hosts: one host's side of the protocol, as a state
//! machine without I/O, clock or threads. Events and messages go in, messages and records to be made durable
//! come out. docs/ownership.md describes the protocol.
//!
//! Invariants, which `model` checks in every reachable state of two and three hosts
//! - At most one host may write the origin.
//! - A host serves a guest only what was acknowledged last.
//! - From every state there is a way to one in which the disk is served where its VM runs, if the hosts that
//!   have its data run again.

mod epoch;
mod machine;
mod message;
#[cfg(test)]
mod model;

pub use epoch::{forced_epoch, least_forced_epoch};
pub use machine::{Ownership, Record, Step};
pub use message::{Grant, HostId, Message};
