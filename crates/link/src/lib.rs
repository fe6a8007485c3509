//! Connections between the daemons of hosts between which disks move.
//!
//! One connection for each pair of hosts carries everything: the messages of the migration protocol with the data of blocks,
//! reads for a host whose guest has not come yet, and notes that daemons exchange. It is encrypted, and both hosts show
//! certificates of one authority. The format is in docs/host-protocol.md.
//!
//! Messages may be lost: whatever does not get through while a host is away, or while its queue is full, is dropped. Those
//! who send them repeat what they need.
//!
//! Invariants
//! - A frame is delivered only if its host has proved its name, and the frame's checksum is right.
//! - Nothing that another host sends makes this one allocate more than a frame's maximum length.
//! - Sending never waits.

mod bytes;
mod config;
mod connection;
mod frame;
mod hello;
mod links;
mod message;
mod peer;
mod queue;
mod tls;

pub use config::{LinkConfig, LinkError, PeerConfig, Security, host_id};
pub use frame::{Frame, MOST_NOTE_BYTES};
pub use links::{HostState, LinkSender, Links};
