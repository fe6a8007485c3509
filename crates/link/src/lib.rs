//! Connections between the daemons of two hosts, over which the cache of a disk is sent when its VM moves.
//!
//! [`Links`] runs one thread. It listens, connects to the other hosts repeatedly, and keeps at most one connection
//! for each pair of hosts: the host whose name comes first connects, the other one waits. Frames are sent with a
//! [`LinkSender`] from any thread and without waiting; received frames are passed to a callback, each with a
//! [`Receipt`]. While too many receipts of a host are held, its connection is not read. Frames to a host that is not
//! connected, or for which too much is waiting already, are dropped and counted: the protocols above repeat what is
//! not answered.
//!
//! - [`wire`]: the bytes, documented in `docs/host-protocol.md`.
//! - TLS 1.3 with certificates on both sides. Each is valid for the configured name of its host.
//!
//! Invariants
//! - Nothing that a peer sends makes this crate panic, block, or use more memory than documented.
//! - Before its certificate is checked, a peer has five seconds and one of 64 places.
//! - No frame is passed on from a host whose name was not checked, unless the configuration is `insecure`.
//! - For each host, [`Event::Connected`], frames and [`Event::Lost`] come in this order and do not overlap.

mod accept;
mod batch;
mod bucket;
mod class;
mod config;
mod connection;
mod dial;
mod error;
mod greeting;
mod host;
mod inbox;
mod links;
mod queue;
mod tls;
pub mod wire;

pub use config::{Config, HostConfig, Security, TlsFiles, host_id};
pub use error::{LinkError, SendError};
pub use haversack_model::HostId;
pub use host::HostState;
pub use inbox::Receipt;
pub use links::{Event, LinkSender, Links, Refused};
pub use wire::{Frame, MOST_NOTE_BYTES, ObserveError, WireError};
