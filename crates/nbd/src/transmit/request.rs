//! Requests as bytes, and the server's parser of them.
//!
//! A server reads its connection as shown below. Nothing is allocated, and the payload of a write goes directly from
//! the stream to the caller's memory:
//!
//! ```
//! use haversack_nbd::{Request, RequestReader, RequestRules, ServerError, Verdict};
//!
//! /// Handles received bytes; `destination(request)` is the memory that a write's payload goes to.
//! fn received(
//!     reader: &mut RequestReader,
//!     rules: &RequestRules,
//!     mut input: &[u8],
//!     mut destination: impl FnMut(&Request) -> Vec<u8>,
//! ) -> Result<(), ServerError> {
//!     while let Some(request) = reader.read(&mut input)? {
//!         match rules.check(&request)? {
//!             Verdict::Serve if reader.payload_left() > 0 => {
//!                 let mut memory = destination(&request);
//!                 let here = input.len().min(memory.len());
//!                 memory[..here].copy_from_slice(&input[..here]);
//!                 input = &input[here..];
//!                 reader.payload_taken(here as u32);
//!                 // The rest of the payload: receive from the socket directly into memory[here..], then call
//!                 // payload_taken again; `read` returns no request before that.
//!             }
//!             Verdict::Serve => { /* hand the request to the engine */ }
//!             Verdict::Nothing => { /* reply with success */ }
//!             Verdict::Refuse(_refusal) => reader.skip_payload(), // and reply with the error
//!             Verdict::Disconnect => break,
//!         }
//!     }
//!     Ok(())
//! }
//! ```

use crate::constants::REQUEST_MAGIC;
use crate::error::ServerError;
use crate::flags::CommandFlags;
use crate::wire::Fields;

/// Length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;

/// The command of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows the request.
    Write,
    /// End the session; there is no reply.
    Disconnect,
    /// Make all writes with a sent reply durable.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// Prefetch the range.
    Cache,
    /// Write zeroes.
    WriteZeroes,
    /// Report metadata of the range.
    BlockStatus,
    /// Anything else; servers refuse it.
    Other(u16),
}

impl Command {
    /// Returns the command for a received number.
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Other(other),
        }
    }

    /// Returns the number as sent over the wire.
    pub const fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Other(other) => other,
        }
    }
}

/// A request, not yet checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its flags, unknown ones included.
    pub flags: CommandFlags,
    /// Its command.
    pub command: Command,
    /// The client's identifier for it, repeated in every reply. Clients may use one twice.
    pub cookie: u64,
    /// Start of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    /// The magic number is wrong.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, ServerError> {
        let mut fields = Fields(bytes);
        let found = fields.u32().unwrap_or_default();
        if found != REQUEST_MAGIC {
            return Err(ServerError::RequestMagic { found });
        }
        Ok(Self {
            flags: CommandFlags::from_bits(fields.u16().unwrap_or_default()),
            command: Command::from_wire(fields.u16().unwrap_or_default()),
            cookie: fields.u64().unwrap_or_default(),
            offset: fields.u64().unwrap_or_default(),
            length: fields.u32().unwrap_or_default(),
        })
    }

    /// Returns the request as sent over the wire.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.number().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Returns the request with which a client ends the session.
    pub const fn disconnect() -> Self {
        Self { flags: CommandFlags::NONE, command: Command::Disconnect, cookie: 0, offset: 0, length: 0 }
    }

    /// Returns how many bytes of payload follow.
    pub const fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }
}

/// Finds requests in a stream that arrives in pieces of any size.
#[derive(Debug)]
pub struct RequestReader {
    head: [u8; REQUEST_BYTES],
    filled: usize,
    payload_left: u32,
    skipping: bool,
}

impl Default for RequestReader {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestReader {
    /// Makes a reader for the start of the transmission phase.
    pub const fn new() -> Self {
        Self { head: [0; REQUEST_BYTES], filled: 0, payload_left: 0, skipping: false }
    }

    /// Takes the next request from the front of `input`. `None`: all input is taken and more is needed, or the payload
    /// of the last write has not been taken yet.
    ///
    /// # Errors
    /// The stream is out of sync; the connection must be closed.
    pub fn read(&mut self, input: &mut &[u8]) -> Result<Option<Request>, ServerError> {
        if self.skipping {
            let here = self.payload_left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
            *input = &input[here as usize..];
            self.payload_taken(here);
        }
        if self.payload_left > 0 {
            return Ok(None);
        }
        let here = (REQUEST_BYTES - self.filled).min(input.len());
        self.head[self.filled..self.filled + here].copy_from_slice(&input[..here]);
        self.filled += here;
        *input = &input[here..];
        if self.filled < REQUEST_BYTES {
            return Ok(None);
        }
        self.filled = 0;
        let request = Request::parse(&self.head)?;
        self.payload_left = request.payload_bytes();
        Ok(Some(request))
    }

    /// Returns how many bytes of the last write's payload are next in the stream.
    pub const fn payload_left(&self) -> u32 {
        self.payload_left
    }

    /// Notes that the caller took `bytes` of payload from the stream, at most [`payload_left`](Self::payload_left).
    pub const fn payload_taken(&mut self, bytes: u32) {
        self.payload_left = self.payload_left.saturating_sub(bytes);
        if self.payload_left == 0 {
            self.skipping = false;
        }
    }

    /// Discards the rest of the last write's payload as it arrives.
    pub const fn skip_payload(&mut self) {
        self.skipping = self.payload_left > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(length: u32) -> Request {
        Request { flags: CommandFlags::FUA, command: Command::Write, cookie: 7, offset: 512, length }
    }

    #[test]
    fn a_refused_payload_is_skipped_in_any_pieces() {
        let mut stream = write(100).encode().to_vec();
        stream.extend_from_slice(&[0xff; 100]);
        stream.extend_from_slice(&Request::disconnect().encode());
        for piece in 1..stream.len() {
            let mut reader = RequestReader::new();
            let mut seen = Vec::new();
            for mut input in stream.chunks(piece) {
                while let Some(request) = reader.read(&mut input).unwrap() {
                    reader.skip_payload();
                    seen.push(request);
                }
                assert!(input.is_empty());
            }
            assert_eq!(seen, [write(100), Request::disconnect()]);
        }
    }

    #[test]
    fn no_request_before_the_payload_is_taken() {
        let mut stream = write(4).encode().to_vec();
        stream.extend_from_slice(b"data");
        stream.extend_from_slice(&Request::disconnect().encode());
        let mut reader = RequestReader::new();
        let mut input = &stream[..];
        assert_eq!(reader.read(&mut input).unwrap(), Some(write(4)));
        assert_eq!((reader.read(&mut input).unwrap(), reader.payload_left()), (None, 4));
        assert_eq!(&input[..4], b"data");
        input = &input[4..];
        reader.payload_taken(4);
        assert_eq!(reader.read(&mut input).unwrap(), Some(Request::disconnect()));
    }

    #[test]
    fn a_stream_out_of_step_is_an_error() {
        let mut bytes = write(4).encode();
        bytes[0] = 0;
        let found = 0x0060_9513;
        assert_eq!(Request::parse(&bytes), Err(ServerError::RequestMagic { found }));
    }

    #[test]
    fn commands_keep_their_numbers() {
        for number in 0..12 {
            assert_eq!(Command::from_wire(number).number(), number);
        }
    }
}
