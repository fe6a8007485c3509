//! The first bytes in each direction: the protocol, the sender, and the intended peer.
//!
//! Invariants
//! - The version is checked before everything that follows it, so a later version may change all of that.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::MOST_NAME_BYTES;
use crate::wire::{OLDEST_VERSION, VERSION, crc32c};

const MAGIC: [u8; 8] = *b"HAVRLINK";
/// Magic and version.
const FRONT_BYTES: usize = 12;
/// Kind, zero, and length of the body.
const HEAD_BYTES: usize = 4;
const MOST_BODY_BYTES: usize = 1_024;

/// A greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// The sender is `name`, and wants to connect to `peer`.
    Hello { name: String, peer: String },
    /// The sender refuses the connection.
    Refusal { why: String },
}

/// A greeting that ends the connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("the peer is not a Haversack host, or only one side uses TLS")]
    Magic,
    #[error(
        "the peer speaks version {0} of the protocol between hosts: expected {OLDEST_VERSION} to {VERSION}"
    )]
    Version(u32),
    #[error("the peer refused the connection: it speaks only version {0} of the protocol between hosts")]
    Older(u32),
    #[error("the peer's greeting is malformed")]
    Malformed,
    #[error("the peer's greeting is damaged: its checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum { found: u32, expected: u32 },
    #[error("the peer refused the connection: {0}")]
    Refused(String),
    #[error("the peer says that it is '{found}': expected '{expected}'")]
    OtherPeer { found: String, expected: String },
    #[error("host '{0}' is not in the configuration")]
    Unknown(String),
    #[error("host '{name}' wants to speak to '{wanted}': this is '{me}'")]
    NotMe { name: String, wanted: String, me: String },
    #[error(
        "host '{0}' has connected, though its name comes after this host's: the hosts disagree on their names"
    )]
    WrongDirection(String),
    #[error("the peer closed the connection before its greeting was complete, as if only one side uses TLS")]
    Closed,
    #[error("the connection failed during the greeting: {0}")]
    Io(io::Error),
}

impl From<io::Error> for GreetingError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => GreetingError::Closed,
            _ => GreetingError::Io(error),
        }
    }
}

impl Greeting {
    fn encode(&self, version: u32) -> Vec<u8> {
        let (kind, body) = match self {
            Greeting::Hello { name, peer } => {
                let length = u8::try_from(name.len()).expect("a name was checked");
                (0, [&[length], name.as_bytes(), peer.as_bytes()].concat())
            }
            Greeting::Refusal { why } => (1, why.bytes().take(MOST_BODY_BYTES).collect::<Vec<u8>>()),
        };
        let mut bytes = [&MAGIC[..], &version.to_le_bytes(), &[kind, 0]].concat();
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&body);
        let crc = crc32c(&bytes, &[]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Greeting> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if kind == 1 {
            return Some(Greeting::Refusal { why: text(body) });
        }
        let (length, rest) = body.split_first()?;
        let (name, peer) = rest.split_at_checked((*length).into())?;
        let is_valid = kind == 0 && name.len() <= MOST_NAME_BYTES && peer.len() <= MOST_NAME_BYTES;
        is_valid.then(|| Greeting::Hello { name: text(name), peer: text(peer) })
    }

    /// Sends the greeting in a given version of the protocol.
    pub async fn send(
        &self,
        version: u32,
        stream: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), GreetingError> {
        stream.write_all(&self.encode(version)).await?;
        Ok(stream.flush().await?)
    }

    /// Reads the peer's greeting. Also returns its version.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<(u32, Greeting), GreetingError> {
        let mut bytes = vec![0; FRONT_BYTES];
        stream.read_exact(&mut bytes).await?;
        let (magic, version) = bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(GreetingError::Magic);
        }
        let version = u32::from_le_bytes(version.try_into().expect("four bytes"));
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(GreetingError::Version(version));
        }
        bytes.resize(FRONT_BYTES + HEAD_BYTES, 0);
        stream.read_exact(&mut bytes[FRONT_BYTES..]).await?;
        let [kind, zero, length @ ..] = &bytes[FRONT_BYTES..] else { return Err(GreetingError::Malformed) };
        let (kind, zero) = (*kind, *zero);
        let length: usize = u16::from_le_bytes(length.try_into().expect("two bytes")).into();
        if zero != 0 || length > MOST_BODY_BYTES {
            return Err(GreetingError::Malformed);
        }
        let body = FRONT_BYTES + HEAD_BYTES;
        bytes.resize(body + length, 0);
        stream.read_exact(&mut bytes[body..]).await?;
        let (found, expected) = (stream.read_u32_le().await?, crc32c(&bytes, &[]));
        if found != expected {
            return Err(GreetingError::Checksum { found, expected });
        }
        let greeting = Greeting::decode(kind, &bytes[body..]).ok_or(GreetingError::Malformed)?;
        Ok((version, greeting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(u32, Greeting), GreetingError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { Greeting::read(&mut &*bytes).await })
    }

    fn hello() -> Greeting {
        Greeting::Hello { name: "a.example".into(), peer: "b.example".into() }
    }

    #[test]
    fn greetings_round_trip() {
        for greeting in [hello(), Greeting::Refusal { why: "no".into() }] {
            for version in [OLDEST_VERSION, VERSION] {
                assert_eq!(read(&greeting.encode(version)).unwrap(), (version, greeting.clone()));
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let bytes = hello().encode(VERSION);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            read(&damaged).unwrap_err();
        }
    }

    #[test]
    fn every_shorter_greeting_is_incomplete() {
        let bytes = hello().encode(VERSION);
        for length in 0..bytes.len() {
            assert!(matches!(read(&bytes[..length]), Err(GreetingError::Closed)));
        }
    }
}
