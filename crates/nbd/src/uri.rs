//! NBD URIs: `nbd://host:port/export`, `nbds://`, `nbd+unix:///export?socket=/path`, `nbds+unix://`.
//!
//! Follows <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>. An unknown parameter is an error, so
//! that no typing mistake goes unnoticed. A printed URI parses to the same URI.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use crate::constants::{DEFAULT_PORT, MAX_STRING_BYTES};

/// The address of an export.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct NbdUri {
    /// How to reach the server.
    pub transport: Transport,
    /// Whether TLS is required.
    pub tls: bool,
    /// Name of the export, empty for the default one.
    pub export: String,
    /// User name for TLS.
    pub user: Option<String>,
    /// The host name that the server's certificate must have, if it is not the URI's host.
    pub tls_hostname: Option<String>,
    /// Whether the server's certificate is checked, if the URI says so.
    pub tls_verify_peer: Option<bool>,
}

/// How to reach a server.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Host name or address; IPv6 addresses are without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Its path.
        socket: PathBuf,
    },
}

/// Why a text is not a valid NBD URI.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UriError {
    /// The scheme is unknown.
    #[error("{uri:?}: scheme {found:?}, expected nbd, nbds, nbd+unix or nbds+unix")]
    Scheme {
        /// The text.
        uri: String,
        /// Its scheme.
        found: String,
    },
    /// A part is invalid.
    #[error("{uri:?}: {part} {found:?}: {expected}")]
    Part {
        /// The text.
        uri: String,
        /// Which part.
        part: &'static str,
        /// What was found.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The socket is missing.
    #[error("{uri:?}: no socket, expected a path after '?socket='")]
    NoSocket {
        /// The text.
        uri: String,
    },
    /// A parameter is unknown.
    #[error("{uri:?}: parameter {found:?}, expected socket, tls-hostname, tls-verify-peer or tls-type=x509")]
    Parameter {
        /// The text.
        uri: String,
        /// The parameter.
        found: String,
    },
}

#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    tls_hostname: Option<String>,
    tls_verify_peer: Option<bool>,
}

/// A URI being parsed, for errors that quote it.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn part(&self, part: &'static str, found: &str, expected: &'static str) -> UriError {
        UriError::Part { uri: self.0.to_owned(), part, found: found.to_owned(), expected }
    }

    /// Resolves percent-encoding.
    fn bytes(&self, part: &'static str, encoded: &str) -> Result<Vec<u8>, UriError> {
        let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        let source = encoded.as_bytes();
        let mut bytes = Vec::with_capacity(source.len());
        let mut at = 0;
        while let Some(byte) = source.get(at) {
            if *byte == b'%' {
                let (Some(high), Some(low)) = (digit(source.get(at + 1)), digit(source.get(at + 2))) else {
                    return Err(self.part(part, encoded, "expected two hexadecimal digits after '%'"));
                };
                bytes.push((high * 16 + low) as u8);
                at += 3;
            } else {
                bytes.push(*byte);
                at += 1;
            }
        }
        if bytes.contains(&0) {
            return Err(self.part(part, encoded, "expected no NUL; abstract sockets are not supported"));
        }
        Ok(bytes)
    }

    fn string(&self, part: &'static str, encoded: &str) -> Result<String, UriError> {
        let bytes = self.bytes(part, encoded)?;
        String::from_utf8(bytes).map_err(|_| self.part(part, encoded, "expected UTF-8"))
    }

    fn parameters(&self, query: &str) -> Result<Parameters, UriError> {
        let mut parameters = Parameters::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "socket" => {
                    let path = self.bytes("socket", value)?;
                    parameters.socket = Some(PathBuf::from(OsString::from_vec(path)));
                }
                "tls-hostname" => parameters.tls_hostname = Some(self.string("tls-hostname", value)?),
                "tls-verify-peer" => match value {
                    "0" => parameters.tls_verify_peer = Some(false),
                    "1" => parameters.tls_verify_peer = Some(true),
                    _ => return Err(self.part("tls-verify-peer", value, "expected 0 or 1")),
                },
                "tls-type" if value == "x509" => {}
                _ => return Err(UriError::Parameter { uri: self.0.to_owned(), found: pair.to_owned() }),
            }
        }
        Ok(parameters)
    }

    fn tcp(&self, address: &str) -> Result<Transport, UriError> {
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let expected = "expected ']' after an IPv6 address, then ':' and a port or nothing";
                let misshapen = || self.part("address", address, expected);
                let (host, after) = rest.split_once(']').ok_or_else(misshapen)?;
                let port = match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or_else(misshapen)?),
                };
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(self.part("address", host, "expected an IPv6 address between brackets"));
                }
                (host.to_owned(), port)
            }
            None => {
                let (host, port) = address.split_once(':').map_or((address, None), |(h, p)| (h, Some(p)));
                (self.string("host", host)?, port)
            }
        };
        if host.is_empty() {
            return Err(self.part("address", address, "expected a host name or address"));
        }
        let port = match port {
            None | Some("") => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|parsed| *parsed > 0 && port.bytes().all(|byte| byte.is_ascii_digit()))
                .ok_or_else(|| self.part("port", port, "expected a number from 1 to 65535"))?,
        };
        Ok(Transport::Tcp { host, port })
    }

    fn parse(&self) -> Result<NbdUri, UriError> {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            let found = self.0.split(':').next().unwrap_or_default().to_owned();
            return Err(UriError::Scheme { uri: self.0.to_owned(), found });
        };
        let (unix, tls) = match scheme {
            "nbd" => (false, false),
            "nbds" => (false, true),
            "nbd+unix" => (true, false),
            "nbds+unix" => (true, true),
            _ => return Err(UriError::Scheme { uri: self.0.to_owned(), found: scheme.to_owned() }),
        };
        if let Some((_, fragment)) = rest.split_once('#') {
            return Err(self.part("fragment", fragment, "expected none; write '#' in a name as %23"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, address) =
            authority.rsplit_once('@').map_or((None, authority), |(user, address)| (Some(user), address));
        let parameters = self.parameters(query)?;
        let transport = match parameters.socket {
            Some(socket) if unix && !socket.as_os_str().is_empty() && address.is_empty() => {
                Transport::Unix { socket }
            }
            _ if unix && !address.is_empty() => {
                return Err(self.part(
                    "host",
                    address,
                    "expected none before a socket's export: three slashes",
                ));
            }
            _ if unix => return Err(UriError::NoSocket { uri: self.0.to_owned() }),
            Some(_) => {
                return Err(self.part("scheme", scheme, "expected nbd+unix or nbds+unix with a socket"));
            }
            None => self.tcp(address)?,
        };
        let export = self.string("export", path)?;
        if export.len() > MAX_STRING_BYTES {
            return Err(self.part("export", path, "expected at most 4096 bytes"));
        }
        Ok(NbdUri {
            transport,
            tls,
            export,
            user: user.map(|user| self.string("user", user)).transpose()?,
            tls_hostname: parameters.tls_hostname,
            tls_verify_peer: parameters.tls_verify_peer,
        })
    }
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Text(text).parse()
    }
}

/// Bytes with everything percent-encoded that is not safe in any part of a URI, except for the bytes in the second
/// field.
struct Encoded<'a>(&'a [u8], &'static [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || self.1.contains(byte) {
                write!(f, "{}", char::from(*byte))
            } else {
                write!(f, "%{byte:02X}")
            }
        })
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { "s" } else { "" };
        let unix = if matches!(self.transport, Transport::Unix { .. }) { "+unix" } else { "" };
        write!(f, "nbd{tls}{unix}://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", Encoded(user.as_bytes(), b""))?;
        }
        if let Transport::Tcp { host, port } = &self.transport {
            if host.contains(':') {
                write!(f, "[{host}]")?;
            } else {
                write!(f, "{}", Encoded(host.as_bytes(), b""))?;
            }
            if *port != DEFAULT_PORT {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", Encoded(self.export.as_bytes(), b"/:@+,="))?;
        let mut separator = '?';
        let mut parameter = |f: &mut fmt::Formatter<'_>, key: &str, value: &[u8]| {
            let before = std::mem::replace(&mut separator, '&');
            write!(f, "{before}{key}={}", Encoded(value, b"/:@+,"))
        };
        if let Transport::Unix { socket } = &self.transport {
            parameter(f, "socket", socket.as_os_str().as_bytes())?;
        }
        if let Some(hostname) = &self.tls_hostname {
            parameter(f, "tls-hostname", hostname.as_bytes())?;
        }
        if let Some(verify) = self.tls_verify_peer {
            parameter(f, "tls-verify-peer", if verify { b"1" } else { b"0" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> NbdUri {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn tcp(host: &str, port: u16) -> Transport {
        Transport::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn the_documents_examples() {
        for (text, export) in [
            ("nbd://example.com/disk", "disk"),
            ("nbd+unix:///disk?socket=sock", "disk"),
            ("nbd://example.com/", ""),
            ("nbd://example.com", ""),
            ("nbd://example.com//disk", "/disk"),
            ("nbd://example.com/hello%20world", "hello world"),
        ] {
            assert_eq!(parsed(text).export, export);
        }
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(parsed("nbd://h/x").transport, tcp("h", 10809));
        assert_eq!(parsed("nbds://h:7/x").transport, tcp("h", 7));
        assert_eq!(parsed("nbd://[::1]:7/x").transport, tcp("::1", 7));
        assert_eq!(parsed("nbd://[fe80::2]").to_string(), "nbd://[fe80::2]/");
        let uri =
            parsed("nbds+unix://me@/a/b?socket=/run/n%20b&tls-hostname=h&tls-verify-peer=0&tls-type=x509");
        let socket = PathBuf::from("/run/n b");
        assert_eq!((uri.transport, uri.tls, uri.user), (Transport::Unix { socket }, true, Some("me".into())));
        assert_eq!((uri.tls_hostname.as_deref(), uri.tls_verify_peer), (Some("h"), Some(false)));
    }

    #[test]
    fn errors_say_what_is_expected() {
        for (text, part) in [
            ("http://h/x", "scheme \"http\""),
            ("/dev/sda", "expected nbd, nbds"),
            ("nbd:unix:/x", "scheme \"nbd\""),
            ("nbd:///x", "expected a host"),
            ("nbd://h:0/x", "1 to 65535"),
            ("nbd://h:65536/x", "1 to 65535"),
            ("nbd://h:+1/x", "1 to 65535"),
            ("nbd://[::1/x", "']'"),
            ("nbd://[::1]7/x", "']'"),
            ("nbd://[h]/x", "IPv6"),
            ("nbd://h/%2", "hexadecimal"),
            ("nbd://h/%g0", "hexadecimal"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd://h/%00", "NUL"),
            ("nbd://h/x#y", "%23"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd+unix:///x", "no socket"),
            ("nbd+unix:///x?socket=", "no socket"),
            ("nbd+unix://h/x?socket=/s", "three slashes"),
            ("nbd://h/x?sokcet=/s", "parameter \"sokcet=/s\""),
            ("nbds://h/x?tls-type=psk", "tls-type=x509"),
            ("nbds://h/x?tls-verify-peer=no", "0 or 1"),
        ] {
            let error = text.parse::<NbdUri>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
        assert!(format!("nbd://h/{}", "x".repeat(5000)).parse::<NbdUri>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(
            host in "[a-z][a-z0-9.-]{0,9}|::1|fe80::[1-9a-f]",
            port in 1_u16..,
            socket in prop::option::of(prop::collection::vec(1_u8.., 1..20)),
            tls: bool,
            export in "[^\0]{0,20}",
            user in prop::option::of("[^\0]{0,9}"),
            tls_hostname in prop::option::of("[^\0]{0,9}"),
            tls_verify_peer: Option<bool>,
        ) {
            let transport = match socket {
                Some(path) => Transport::Unix { socket: PathBuf::from(OsString::from_vec(path)) },
                None => Transport::Tcp { host, port },
            };
            let uri = NbdUri { transport, tls, export, user, tls_hostname, tls_verify_peer };
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }

        #[test]
        fn no_text_panics(text in "(nbds?(\\+unix)?://)?\\PC{0,60}") {
            let _ = text.parse::<NbdUri>();
        }
    }
}
