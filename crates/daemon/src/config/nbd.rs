//! The settings of the NBD server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_api::Span;
use serde::Deserialize;

use super::check::{Taken, claim};

/// The NBD server.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdConfig {
    /// The addresses to listen on: `unix:/path` or `tcp:address:port`.
    pub listen: Vec<NbdListen>,
    /// Certificate chain for TLS, PEM.
    pub tls_certificate: Option<PathBuf>,
    /// Private key for TLS, PEM.
    pub tls_key: Option<PathBuf>,
    /// Accept TLS only from clients that present a certificate of these authorities, PEM.
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse TCP clients that do not start TLS.
    #[serde(default)]
    pub tls_required: bool,
    /// The most concurrent connections of one export.
    #[serde(default = "max_connections_per_disk")]
    pub max_connections_per_disk: u32,
    /// The most concurrent connections of one listener.
    #[serde(default = "max_connections")]
    pub max_connections: u32,
    /// The most of these connections from one IPv4 address, IPv6 /64 network or process.
    #[serde(default = "max_connections_per_peer")]
    pub max_connections_per_peer: u32,
    /// The most connections of one listener that are still negotiating; a quarter of them from one peer.
    #[serde(default = "max_negotiations")]
    pub max_negotiations: u32,
    /// How long the negotiation may take, including TLS.
    #[serde(default = "negotiation_time")]
    pub negotiation_time: Span,
}

fn max_connections_per_disk() -> u32 {
    64
}

fn max_connections() -> u32 {
    1024
}

fn max_connections_per_peer() -> u32 {
    256
}

fn max_negotiations() -> u32 {
    256
}

fn negotiation_time() -> Span {
    Span(Duration::from_secs(30))
}

/// An address that the NBD server listens on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum NbdListen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::fmt::Display for NbdListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NbdListen::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdListen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl TryFrom<String> for NbdListen {
    type Error = String;

    fn try_from(text: String) -> Result<NbdListen, String> {
        let wrong =
            || format!("'{text}' is not an address to listen on: expected unix:/PATH or tcp:ADDRESS:PORT");
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Ok(NbdListen::Unix(path.into())),
            Some(("tcp", address)) => address.parse().map(NbdListen::Tcp).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl NbdConfig {
    /// Returns the Unix sockets.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.listen.iter().filter_map(|listen| match listen {
            NbdListen::Unix(path) => Some(path.as_path()),
            NbdListen::Tcp(_) => None,
        })
    }

    /// Checks consistency. Returns what is wrong and what to do.
    pub(super) fn check(&self, taken: &mut Taken) -> Result<(), String> {
        for socket in self.sockets() {
            claim(taken, format!("path {}", socket.display()), "[nbd]".into())?;
        }
        if self.listen.is_empty() {
            return Err("[nbd] listens nowhere: give listen = [\"unix:/PATH\"], or leave [nbd] out".into());
        }
        let limits = [
            ("max_connections_per_disk", self.max_connections_per_disk),
            ("max_connections", self.max_connections),
            ("max_connections_per_peer", self.max_connections_per_peer),
            ("max_negotiations", self.max_negotiations),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, most)| *most == 0) {
            return Err(format!(
                "{key} = 0 would refuse every connection: give at least 1, or leave [nbd] out"
            ));
        }
        if self.negotiation_time.0.is_zero() {
            return Err(
                "negotiation_time = \"0s\" would refuse every connection: give a time such as 30s".into()
            );
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err("tls_certificate and tls_key belong together: give both or none".into());
        }
        if (self.tls_required || self.tls_client_ca.is_some()) && self.tls_key.is_none() {
            return Err("tls_required and tls_client_ca need tls_certificate and tls_key".into());
        }
        if self.tls_client_ca.is_some() && !self.tls_required {
            return Err(
                "tls_client_ca needs tls_required = true: clients without TLS show no certificate".into()
            );
        }
        Ok(())
    }
}
