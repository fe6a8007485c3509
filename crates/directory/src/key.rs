//! The keys.

use std::fmt;

use crate::record::is_name;

/// What all keys begin with. A layout that older daemons cannot read gets another number.
pub const PREFIX: &str = "/haversack/v1/";

/// A key of the directory.
///
/// | key | | with a lease | written by |
/// |---|---|---|---|
/// | `hosts/HOST` | a host that is alive | yes | the host |
/// | `pools/HOST/POOL` | a pool | no | its host |
/// | `disks/ID` | a disk, its owner and epoch; `ID` is the disk's identity | no | its owner |
/// | `intents/ID` | a move that is planned or under way | no | the host that began it |
/// | `drain/HOST` | the host is draining | no | an operator |
/// | `tenants/TENANT` | what a tenant may use | no | an operator |
/// | `leader` | the host that balances | yes | that host |
/// | `balance` | what it has observed, for the next one | no | that host |
///
/// A disk's key is its identity and not its name, since that is what the hosts agree on when a disk moves. Unless a
/// disk's configuration gives another one, the identity follows from the name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// A host that is alive.
    Host(String),
    /// A pool.
    Pool {
        /// Its host.
        host: String,
        /// Its name on that host.
        pool: String,
    },
    /// A disk.
    Disk(String),
    /// A move of a disk.
    Intent(String),
    /// A host that is draining.
    Drain(String),
    /// A tenant.
    Tenant(String),
    /// The host that balances.
    Leader,
    /// What that host has observed.
    Balance,
}

impl Key {
    /// Parses a key. Returns none for keys of other layouts, and those with names that cannot be shown.
    pub fn parse(text: &str) -> Option<Key> {
        let rest = text.strip_prefix(PREFIX)?;
        match rest {
            "leader" => return Some(Key::Leader),
            "balance" => return Some(Key::Balance),
            _ => {}
        }
        let (kind, name) = rest.split_once('/')?;
        let (first, second) = match name.split_once('/') {
            Some((first, second)) => (first, Some(second)),
            None => (name, None),
        };
        if !is_name(first) || second.is_some_and(|second| !is_name(second)) {
            return None;
        }
        let first = first.to_string();
        Some(match (kind, second) {
            ("hosts", None) => Key::Host(first),
            ("pools", Some(pool)) => Key::Pool { host: first, pool: pool.to_string() },
            ("disks", None) => Key::Disk(first),
            ("intents", None) => Key::Intent(first),
            ("drain", None) => Key::Drain(first),
            ("tenants", None) => Key::Tenant(first),
            _ => return None,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Host(name) => write!(f, "{PREFIX}hosts/{name}"),
            Key::Pool { host, pool } => write!(f, "{PREFIX}pools/{host}/{pool}"),
            Key::Disk(id) => write!(f, "{PREFIX}disks/{id}"),
            Key::Intent(id) => write!(f, "{PREFIX}intents/{id}"),
            Key::Drain(name) => write!(f, "{PREFIX}drain/{name}"),
            Key::Tenant(name) => write!(f, "{PREFIX}tenants/{name}"),
            Key::Leader => write!(f, "{PREFIX}leader"),
            Key::Balance => write!(f, "{PREFIX}balance"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_they_are_parsed_from() {
        let keys = [
            Key::Host("alpha".into()),
            Key::Pool { host: "alpha".into(), pool: "fast".into() },
            Key::Disk("0c6b".into()),
            Key::Intent("0c6b".into()),
            Key::Drain("beta".into()),
            Key::Tenant("blue".into()),
            Key::Leader,
            Key::Balance,
        ];
        for key in keys {
            assert_eq!(Key::parse(&key.to_string()), Some(key));
        }
    }

    #[test]
    fn other_keys_are_none() {
        for text in [
            "",
            "/haversack/v1/",
            "/haversack/v1/hosts",
            "/haversack/v1/hosts/",
            "/haversack/v1/hosts/a/b",
            "/haversack/v1/pools/a",
            "/haversack/v1/pools/a/b/c",
            "/haversack/v1/pools/a/",
            "/haversack/v1/leader/a",
            "/haversack/v2/hosts/a",
            "/haversack/v1/hosts/a\u{1b}",
            "/haversack/v1/others/a",
        ] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }
}
