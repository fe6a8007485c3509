//! Settings of the connections, and what can be wrong with them.

use std::net::SocketAddr;
use std::path::PathBuf;

use haversack_model::HostId;
use uuid::Uuid;

/// The namespace of hosts' identities.
const HOST_NAMESPACE: Uuid = Uuid::from_u128(0x6a09_1f0e_52d3_4c7b_9d2e_8f11_c0de_4b57);

/// Returns the identity of a host of this name. It is the same on every host, and never 0.
pub fn host_id(name: &str) -> HostId {
    let id = Uuid::new_v5(&HOST_NAMESPACE, name.as_bytes());
    let (high, _) = id.as_u64_pair();
    HostId(high.max(1))
}

/// Settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// This host's name.
    pub name: String,
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The other hosts.
    pub peers: Vec<PeerConfig>,
    /// How hosts prove who they are.
    pub security: Security,
    /// The most that is sent ahead to one host, in bytes a second; 0 for no limit.
    pub copy_rate_bytes: u64,
}

/// Another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerConfig {
    /// Its name.
    pub name: String,
    /// Its address, `HOST:PORT`.
    pub address: String,
}

/// How hosts prove who they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Security {
    /// Each has a certificate for its name, PEM.
    Tls {
        /// This host's certificate, with its chain.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
        /// The authorities that sign certificates of hosts.
        authority: PathBuf,
    },
    /// Not at all.
    Insecure,
}

/// Why connections cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A file cannot be used.
    #[error("{path}: cannot read the {what}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The certificate cannot be used.
    #[error("{certificate}: {why}")]
    Certificate {
        /// The file.
        certificate: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A name cannot be in a certificate.
    #[error("'{0}' cannot be the name of a host in a certificate: use letters, digits, '-' and '.'")]
    Name(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread for connections to other hosts: {0}")]
    Thread(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The identity is on record in pools: it must never change.
    #[test]
    fn a_name_always_has_the_same_identity() {
        assert_eq!(host_id("alpha"), HostId(18_133_278_666_888_142_761));
        assert_ne!(host_id("alpha"), host_id("beta"));
    }
}
