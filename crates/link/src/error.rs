//! Errors at the start, of sending, and of a connection.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use haversack_model::HostId;

use crate::greeting::GreetingError;
use crate::wire::WireError;

/// Links cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A name for which no certificate can be valid.
    #[error(
        "host '{0}': expected a DNS name or an IP address of at most 253 bytes, without a dot at its end"
    )]
    Name(String),
    /// An address with an invalid form.
    #[error("host '{host}': the address '{address}' is not HOST:PORT")]
    Address {
        /// The host.
        host: String,
        /// Its address.
        address: String,
    },
    /// Two hosts have the same number.
    #[error("hosts '{first}' and '{second}' have the same number: rename one of them")]
    SameId {
        /// One host.
        first: String,
        /// The other.
        second: String,
    },
    /// There is no address to listen on, although another host is the one that connects.
    #[error("no address to listen on: host '{host}' connects to this one, since its name comes first")]
    NoListener {
        /// The other host.
        host: String,
    },
    /// A listener cannot be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be used.
    #[error("{path}: cannot read the {what}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// `authority`, `certificate` or `private key`.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// Certificate and key do not match.
    #[error("{certificate} and {key}: {source}")]
    Unfit {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The certificate is not valid for this host's name.
    #[error("{certificate}: not valid for this host's name '{name}': {source}")]
    OtherName {
        /// The certificate's file.
        certificate: PathBuf,
        /// This host's name.
        name: String,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread of the connections between hosts: {0}")]
    Thread(io::Error),
}

/// A frame was dropped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The configuration has no such host.
    #[error("no host has the number {}", .0.0)]
    UnknownHost(HostId),
    /// The host is not connected.
    #[error("the host is not connected")]
    NotConnected,
    /// Too much is waiting to be sent.
    #[error("the host's queue is full")]
    Full,
    /// The frame breaks the rules of the protocol.
    #[error(transparent)]
    Frame(#[from] WireError),
}

/// Why there is no connection, or why one ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no connection within {0} s")]
    ConnectTime(u64),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("no TLS handshake and greeting within {0} s")]
    HandshakeTime(u64),
    #[error("the peer presented no certificate")]
    NoCertificate,
    #[error("the certificate of a host that says it is '{name}' is not valid for that name: {source}")]
    OtherName { name: String, source: rustls::Error },
    #[error(transparent)]
    Credentials(#[from] LinkError),
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error(transparent)]
    Frame(#[from] WireError),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer closed the connection in the middle of a frame")]
    ClosedInFrame,
    #[error("nothing was received from the peer for {0} s")]
    Silent(u64),
    #[error("a frame did not arrive within {0} s")]
    SlowFrame(u64),
    #[error("the peer read nothing for {0} s")]
    Stalled(u64),
    #[error("the peer has connected again")]
    Replaced,
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl ConnectionError {
    /// Classifies errors of a stream: its end is not a failure.
    pub fn io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ConnectionError::Closed,
            _ => ConnectionError::Io(error),
        }
    }
}
