//! The NBD protocol, both sides, without I/O: bytes go in, bytes and events come out.
//!
//! - Negotiation: [`ServerNegotiation`] and [`ClientNegotiation`], for a blocking thread per connection. TLS is a step
//!   that the caller carries out.
//! - Transmission: a server finds requests with [`RequestReader`], checks them with [`RequestRules`] and replies with
//!   [`Replier`] and [`ExtentWriter`]; a client has a [`ClientSession`]. Nothing is allocated per request and payloads
//!   are never copied here, so both fit a reactor.
//! - [`NbdUri`]: the address of an export.
//!
//! Examples of use: [`negotiate::server`], [`negotiate::client`], [`transmit::request`] (server), [`transmit::client`].
//!
//! Invariants: no input makes this crate panic, loop or use more memory than documented. A peer's error is either
//! answered within the protocol or ends that connection with a typed error.
//!
//! The protocol is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

pub mod constants;
mod errno;
mod error;
mod export;
mod flags;
pub mod fuzz;

pub mod negotiate;
pub mod transmit;
mod uri;
mod wire;

pub use errno::Errno;
pub use error::{ClientError, ServerError};
pub use export::{BlockSize, BlockSizeError, ExportInfo, MetaContext, MetaContexts};
pub use flags::{CommandFlags, TransmissionFlags};
pub use negotiate::{
    ClientNegotiation, ClientStep, Connected, Exports, Negotiated, ServerNegotiation, ServerStep, TlsPolicy,
};
pub use transmit::{
    ClientSession, Command, Cookie, Event, Extent, ExtentWriter, REQUEST_BYTES, Refusal, Replier, ReplyHead,
    Request, RequestReader, RequestRules, StartError, Verdict,
};
pub use uri::{NbdUri, Transport, UriError};
