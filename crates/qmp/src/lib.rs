//! QEMU's machine protocol (QMP): a client of one monitor, which executes commands and keeps the events that come in between,
//! and what a QEMU says of a migration.
//!
//! Invariants
//! - Nothing waits longer than it was told to.
//! - Whatever a monitor sends, the client returns it or an error.

mod address;
mod error;
mod message;
mod migration;
mod monitor;

pub use address::Address;
pub use error::QmpError;
pub use message::Event;
pub use migration::{Capability, Migration, Phase};
pub use monitor::Monitor;
