//! The configured hosts, and how they prove their identity.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use haversack_model::HostId;
use rustls::pki_types::ServerName;
use uuid::Uuid;

use crate::error::LinkError;

/// The namespace of the UUIDs from which hosts' numbers are derived.
const HOST_NAMESPACE: Uuid = Uuid::from_u128(0x3d1f_7c52_90b4_5e8a_8a6e_41c7_d20f_95b3);

/// The most bytes of a name, as in DNS.
pub(crate) const MOST_NAME_BYTES: usize = 253;

/// The configuration for [`crate::Links::start`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this host: a DNS name or an IP address, the same in the configuration of every host.
    pub name: String,
    /// Where to listen. May be empty if every other host's name comes after this one's.
    pub listen: Vec<SocketAddr>,
    /// The other hosts.
    pub hosts: Vec<HostConfig>,
    /// How hosts prove their identity.
    pub security: Security,
    /// Whether data is compressed if the link is the bottleneck.
    pub compresses: bool,
}

/// Another host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its name, for which its certificate must be valid.
    pub name: String,
    /// Where it listens: `HOST:PORT`.
    pub address: String,
    /// The most bytes of copies sent ahead per second; 0 for no limit.
    pub copy_bytes_per_second: u64,
}

/// How hosts prove their identity.
#[derive(Clone, Debug)]
pub enum Security {
    /// TLS 1.3 with certificates on both sides.
    Tls(TlsFiles),
    /// Plain TCP, for closed test networks: whoever can reach the port can be any host, read and change everything.
    Insecure,
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The authorities that sign the hosts' certificates.
    pub authority: PathBuf,
    /// This host's certificate, with those between it and the authority. It is presented when connecting and when
    /// being connected to, so it must be usable for clients and servers.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// Returns the number of a host: the first eight bytes, little-endian, of a UUID (version 5) of its name in lower case.
/// It is never 0, since these bytes contain the UUID's version.
pub fn host_id(name: &str) -> HostId {
    let uuid = Uuid::new_v5(&HOST_NAMESPACE, name.to_ascii_lowercase().as_bytes());
    let (number, _) = uuid.as_bytes().split_first_chunk().expect("a UUID has sixteen bytes");
    HostId(u64::from_le_bytes(*number))
}

impl Config {
    /// Checks everything that can be wrong before anything starts, and returns the names in lower case by number.
    pub(crate) fn check(&self) -> Result<BTreeMap<HostId, String>, LinkError> {
        let mut names = BTreeMap::new();
        for name in std::iter::once(&self.name).chain(self.hosts.iter().map(|host| &host.name)) {
            check_name(name)?;
            if let Some(first) = names.insert(host_id(name), name.to_ascii_lowercase()) {
                return Err(LinkError::SameId { first, second: name.clone() });
            }
        }
        for host in &self.hosts {
            check_address(host)?;
        }
        let me = self.name.to_ascii_lowercase();
        match names.values().find(|name| **name < me) {
            Some(before) if self.listen.is_empty() => Err(LinkError::NoListener { host: before.clone() }),
            _ => Ok(names),
        }
    }
}

fn check_name(name: &str) -> Result<(), LinkError> {
    let is_valid =
        name.len() <= MOST_NAME_BYTES && !name.ends_with('.') && ServerName::try_from(name).is_ok();
    if is_valid { Ok(()) } else { Err(LinkError::Name(name.to_owned())) }
}

fn check_address(host: &HostConfig) -> Result<(), LinkError> {
    let port = host.address.rsplit_once(':').filter(|(name, _)| !name.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(1..) => Ok(()),
        _ => Err(LinkError::Address { host: host.name.clone(), address: host.address.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, others: &[&str]) -> Config {
        let host = |name: &&str| HostConfig {
            name: (*name).into(),
            address: "127.0.0.1:9000".into(),
            copy_bytes_per_second: 0,
        };
        Config {
            name: name.into(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            hosts: others.iter().map(host).collect(),
            security: Security::Insecure,
            compresses: true,
        }
    }

    #[test]
    fn a_hosts_number_never_changes() {
        // Records on cache devices contain these numbers.
        assert_eq!(host_id("a.example").0, 0x6753_a774_e1b5_931c);
        assert_eq!(host_id("A.Example"), host_id("a.example"));
        assert_ne!(host_id("b.example"), host_id("a.example"));
    }

    #[test]
    fn a_hosts_number_contains_the_version_and_is_not_zero() {
        for n in 0..1_000 {
            assert_eq!(host_id(&format!("host{n}")).0 >> 52 & 0xf, 5);
        }
    }

    #[test]
    fn one_name_twice_is_refused() {
        assert!(config("a", &["b", "c"]).check().is_ok());
        for config in [config("a", &["b", "B"]), config("a", &["A"])] {
            assert!(matches!(config.check(), Err(LinkError::SameId { .. })));
        }
    }

    #[test]
    fn names_and_addresses_are_checked() {
        for name in ["", "a b", "a.", "-", "[::1]", &"a".repeat(300)] {
            assert!(matches!(config(name, &[]).check(), Err(LinkError::Name(_))), "{name}");
        }
        for address in ["", "host", ":1", "host:", "host:0", "host:65536", "host:http"] {
            let mut config = config("a", &["b"]);
            config.hosts[0].address = address.into();
            assert!(matches!(config.check(), Err(LinkError::Address { .. })), "{address}");
        }
    }

    #[test]
    fn a_host_that_others_connect_to_must_listen() {
        let mut config = config("b", &["a", "c"]);
        config.listen.clear();
        assert!(matches!(config.check(), Err(LinkError::NoListener { host }) if host == "a"));
        config.hosts.remove(0);
        assert!(config.check().is_ok());
    }
}
