//! QEMU's machine protocol (QMP): a client of one monitor, which executes commands and keeps events received
//! meanwhile, and QEMU's status of a migration; and a client of the guest agent, which speaks nearly the same.
//!
//! Invariants
//! - No wait exceeds its time limit.
//! - Whatever a monitor or an agent sends, the client returns it or an error.

mod address;
mod agent;
mod error;
mod lines;
mod message;
mod migration;
mod monitor;

pub use address::Address;
pub use agent::{AgentError, GuestAgent};
pub use error::QmpError;
pub use message::Event;
pub use migration::{Capability, Migration, Phase};
pub use monitor::Monitor;
