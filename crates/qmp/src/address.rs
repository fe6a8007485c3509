//! Where a monitor listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a monitor listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    /// Parses a path, or `HOST:PORT`; `unix:` or `tcp:` in front says which.
    fn from_str(text: &str) -> Result<Address, String> {
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_host =
            |text: &str| text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
        if let Some(host) = text.strip_prefix("tcp:") {
            return match is_host(host) {
                true => Ok(Address::Tcp(host.into())),
                false => Err(format!("'{text}' is not tcp:HOST:PORT")),
            };
        }
        let path = text.strip_prefix("unix:");
        match path.unwrap_or(text) {
            "" => Err("a path of a socket or HOST:PORT is expected".into()),
            host if path.is_none() && !host.contains('/') && is_host(host) => Ok(Address::Tcp(host.into())),
            path => Ok(Address::Unix(path.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without the prefix, the path might look like a host.
            Address::Unix(path) if !path.to_string_lossy().contains('/') => {
                write!(f, "unix:{}", path.display())
            }
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Tcp(host) => f.write_str(host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_hosts_are_told_apart() {
        let unix = |path: &str| Ok(Address::Unix(path.into()));
        let tcp = |host: &str| Ok(Address::Tcp(host.into()));
        assert_eq!("/run/vm1.sock".parse(), unix("/run/vm1.sock"));
        assert_eq!("unix:/run/vm1.sock".parse(), unix("/run/vm1.sock"));
        assert_eq!("vm1.sock".parse(), unix("vm1.sock"));
        assert_eq!("./a:1".parse(), unix("./a:1"));
        assert_eq!("beta:4444".parse(), tcp("beta:4444"));
        assert_eq!("tcp:[::1]:4444".parse(), tcp("[::1]:4444"));
        for bad in ["", "unix:", "tcp:beta", "tcp::1", "tcp:beta:0", "tcp:beta:70000"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
        for text in ["/run/vm1.sock", "unix:beta:4444", "beta:4444", "[::1]:4444"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }
}
