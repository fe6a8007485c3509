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

/// The front of a peer's text, for error messages: a peer shall not fill logs.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(256)]).into_owned()
}
