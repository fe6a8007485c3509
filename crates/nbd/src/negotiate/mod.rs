//! Option negotiation, up to the transmission phase.

pub mod client;
mod option;
pub mod server;

pub use client::{ClientNegotiation, ClientStep, Connected};
pub use server::{Exports, Negotiated, ServerNegotiation, ServerStep};

/// Whether a session is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// TLS is refused (server) or not requested (client).
    Off,
    /// The peer chooses.
    Allowed,
    /// Nothing proceeds without TLS.
    Required,
}

/// Returns the front of a peer's text, for error messages: a peer must not fill logs.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(256)]).into_owned()
}
