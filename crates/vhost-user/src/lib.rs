//! A vhost-user-blk back end in two halves.
//!
//! - The *protocol half* ([`serve`]) is a blocking thread per front end (QEMU): it owns the connection, negotiates,
//!   maps the guest's memory, and hands complete queues to a [`Handler`].
//! - The *data half* ([`Queue`]) belongs to the thread that drives the I/O: it takes requests out of a virtqueue and
//!   completes them, without system calls (except for eventfds) and without allocations.
//!
//! The two share only immutable data: a running queue is changed by a [`QueueUpdate`] that its owner applies between
//! two requests, and the protocol half answers the front end afterwards.
//!
//! The other side can only break its own disk: see [`Broken`] for queues, [`SessionError`] for connections.

mod bell;
mod chain;
mod config;
mod connection;
mod dirty_log;
mod fault;
mod front_ends;
pub mod fuzz;
mod inflight;
mod mapping;
mod memory;
mod message;
mod peer;
mod queue;
mod quota;
mod request;
mod ring;
mod server;
mod session;
pub mod socket;
mod write_cache;

pub use bell::Bell;
pub use config::{ConfigError, DeviceConfig, feature};
pub use dirty_log::DirtyLog;
pub use fault::{Broken, Fault};
pub use inflight::{InflightQueue, InflightShape};
pub use memory::{GuestMemory, MAX_MEMORY_REGIONS, MemoryError, RegionDescription, Segment};
pub use message::MessageError;
pub use peer::peer;
pub use queue::{MAX_QUEUE_SIZE, Queue, QueueSetup, QueueUpdate};
pub use quota::{MAX_MAPPINGS, Quota};
pub use request::{BlkRequest, ID_BYTES, Operation, RequestLimits, SECTOR_BYTES, SectorRange, Status};
pub use ring::RingAddresses;
pub use server::{Closed, Handler, ServeError, Server, serve};
pub use session::SessionError;
pub use write_cache::{WriteCache, WriteCacheSetting};
