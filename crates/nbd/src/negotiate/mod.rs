//! Option haggling, up to the transmission phase.

pub mod client;
mod option;
pub mod server;

pub use client::{ClientNegotiation, ClientStep, Connected};
pub use server::{Exports, Negotiated, ServerNegotiation, ServerStep};

/// Whether a session is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// TLS is refused (server) or not asked for (client).
    Off,
    /// The peer chooses.
    Allowed,
    /// Nothing goes on without TLS.
    Required,
}
