//! Frames as they travel: with a header, and with the link's own keep-alive.

use super::fields::{Reader, Writer};
use super::{Frame, HEADER_BYTES, MOST_BODY_BYTES, WireError, crc32c};

const PING: u8 = 1;
const PONG: u8 = 2;

/// What travels over a connection after the greetings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// Are you there? The number returns in the answer.
    Ping(u64),
    /// The answer to [`Packet::Ping`].
    Pong(u64),
    /// A frame.
    Frame(Frame),
}

/// What precedes a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    bytes: [u8; HEADER_BYTES],
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// The body would be longer than [`MOST_BODY_BYTES`], or a byte that must be zero is not.
    pub fn read(bytes: [u8; HEADER_BYTES]) -> Result<Header, WireError> {
        let header = Header { bytes };
        if header.body_bytes() > MOST_BODY_BYTES {
            return Err(WireError::TooLong(header.body_bytes()));
        }
        match bytes[5..8] {
            [0, 0, 0] => Ok(header),
            [a, b, c] => Err(WireError::Value { field: "zero", value: (a | b | c).into() }),
            _ => unreachable!("three bytes"),
        }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    }

    /// Returns the length of the body in bytes.
    pub fn body_bytes(&self) -> usize {
        self.word(0) as usize
    }

    fn kind(&self) -> u8 {
        self.bytes[4]
    }
}

impl Packet {
    /// Appends the bytes of the packet.
    ///
    /// # Errors
    /// See [`Frame::check`]. Nothing was appended.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<(), WireError> {
        if let Packet::Frame(frame) = self {
            frame.check()?;
        }
        let start = to.len();
        to.resize(start + HEADER_BYTES, 0);
        let mut body = Writer(to);
        let kind = match self {
            Packet::Ping(number) => {
                body.u64(*number);
                PING
            }
            Packet::Pong(number) => {
                body.u64(*number);
                PONG
            }
            Packet::Frame(frame) => {
                frame.write(&mut body);
                frame.kind()
            }
        };
        let (header, body) = to[start..].split_at_mut(HEADER_BYTES);
        debug_assert!(body.len() <= MOST_BODY_BYTES, "a checked frame fits");
        header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[4] = kind;
        let crc = crc32c(&header[..8], body);
        header[8..].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    /// Decodes the body that follows a header.
    ///
    /// # Errors
    /// It is not exactly one valid packet.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Packet, WireError> {
        match body.len().cmp(&header.body_bytes()) {
            std::cmp::Ordering::Less => return Err(WireError::Short),
            std::cmp::Ordering::Greater => {
                return Err(WireError::Trailing(body.len() - header.body_bytes()));
            }
            std::cmp::Ordering::Equal => {}
        }
        let (found, expected) = (header.word(8), crc32c(&header.bytes[..8], body));
        if found != expected {
            return Err(WireError::Checksum { found, expected });
        }
        let mut fields = Reader(body);
        let packet = match header.kind() {
            PING => Packet::Ping(fields.u64()?),
            PONG => Packet::Pong(fields.u64()?),
            kind => Packet::Frame(Frame::read(kind, &mut fields)?),
        };
        fields.end()?;
        Ok(packet)
    }

    /// Decodes bytes that are exactly one packet with its header.
    ///
    /// # Errors
    /// They are not.
    pub fn decode_whole(bytes: &[u8]) -> Result<Packet, WireError> {
        let (header, body) = bytes.split_first_chunk().ok_or(WireError::Short)?;
        Packet::decode(&Header::read(*header)?, body)
    }
}
