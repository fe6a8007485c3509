//! Frames as sent: with a header, and with the link's own keep-alive.

use haversack_migrate::Message;

use super::fields::{Reader, Writer};
use super::{
    Frame, HEADER_BYTES, MOST_BODY_BYTES, PACKED_SINCE, REPLICAS_AND_LOANS_SINCE, WireError, crc32c,
};

const PING: u8 = 1;
const PONG: u8 = 2;
/// The kind of packed frames.
pub const PACKED: u8 = 3;

/// The packets on a connection after the greetings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// Asks whether the peer is alive. The number is returned in the answer.
    Ping(u64),
    /// The answer to [`Packet::Ping`].
    Pong(u64),
    /// A frame.
    Frame(Frame),
}

/// The header of a body.
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

    /// Whether the body has packed frames: see [`super::Unpacker`].
    pub fn is_packed(&self) -> bool {
        self.kind() == PACKED
    }

    /// Returns the header of a body with packed frames.
    pub(super) fn of_packed(body: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        Header::fill(&mut bytes, PACKED, body);
        bytes
    }

    fn fill(header: &mut [u8], kind: u8, body: &[u8]) {
        header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[4] = kind;
        let crc = crc32c(&header[..8], body);
        header[8..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks the length and the checksum of the body that follows.
    pub(super) fn check(&self, body: &[u8]) -> Result<(), WireError> {
        match body.len().cmp(&self.body_bytes()) {
            std::cmp::Ordering::Less => return Err(WireError::Short),
            std::cmp::Ordering::Greater => {
                return Err(WireError::Trailing(body.len() - self.body_bytes()));
            }
            std::cmp::Ordering::Equal => {}
        }
        let (found, expected) = (self.word(8), crc32c(&self.bytes[..8], body));
        if found == expected { Ok(()) } else { Err(WireError::Checksum { found, expected }) }
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
        Header::fill(header, kind, body);
        Ok(())
    }

    /// Removes fields that a peer with an older version does not know.
    pub fn adapt(&mut self, version: u32) {
        if version < PACKED_SINCE
            && let Packet::Frame(Frame::Migrate { message: Message::Copy { reused, .. }, .. }) = self
        {
            *reused = false;
        }
        if version < REPLICAS_AND_LOANS_SINCE
            && let Packet::Frame(Frame::Migrate { message: Message::Arrived { is_busy, .. }, .. }) = self
        {
            *is_busy = false;
        }
    }

    /// Whether a peer with this version knows the kind of this packet.
    pub fn suits(&self, version: u32) -> bool {
        let is_new = |frame: &Frame| frame.is_of_replica() || matches!(frame, Frame::Lend { .. });
        version >= REPLICAS_AND_LOANS_SINCE || !matches!(self, Packet::Frame(frame) if is_new(frame))
    }

    /// Decodes the body that follows a header.
    ///
    /// # Errors
    /// It is not exactly one valid packet.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Packet, WireError> {
        header.check(body)?;
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
    /// The bytes are something else.
    pub fn decode_whole(bytes: &[u8]) -> Result<Packet, WireError> {
        match Packet::decode_first(bytes)? {
            (packet, []) => Ok(packet),
            (_, more) => Err(WireError::Trailing(more.len())),
        }
    }

    /// Decodes the packet with its header at the start of some bytes, and returns the bytes after it.
    ///
    /// # Errors
    /// There is no packet at the start.
    pub fn decode_first(bytes: &[u8]) -> Result<(Packet, &[u8]), WireError> {
        let (header, rest) = bytes.split_first_chunk().ok_or(WireError::Short)?;
        let header = Header::read(*header)?;
        let (body, rest) = rest.split_at_checked(header.body_bytes()).ok_or(WireError::Short)?;
        Ok((Packet::decode(&header, body)?, rest))
    }
}
