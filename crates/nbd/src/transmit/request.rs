//! Requests as bytes, and the server's reader of them.
//!
//! A server reads its connection like this. Nothing is allocated, and the payload of a write goes from the stream to
//! where the caller wants it:
//!
//! ```
//! use haversack_nbd::{Request, RequestReader, RequestRules, ServerError, Verdict};
//!
//! /// Handles what came in; `destination(request)` is the memory that a write's payload goes to.
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
//!                 // The rest of the payload: receive from the socket straight into memory[here..], then call
//!                 // payload_taken again; `read` gives no request before that.
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

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows the request.
    Write,
    /// End the session; there is no reply.
    Disconnect,
    /// Make all writes that were replied to durable.
    Flush,
    /// The range is of no use any more.
    Trim,
    /// Prefetch the range.
    Cache,
    /// Write zeroes.
    WriteZeroes,
    /// Tell metadata of the range.
    BlockStatus,
    /// Anything else; servers refuse it.
    Other(u16),
}

impl Command {
    /// The command that came over the wire.
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

    /// The number as it goes over the wire.
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
    /// What it asks for.
    pub command: Command,
    /// The client's name for it, repeated in every reply. Clients may use one twice.
    pub cookie: u64,
    /// Start of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

impl Request {
    /// Reads a request.
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

    /// The request as it goes over the wire.
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

    /// The farewell of a client.
    pub const fn disconnect() -> Self {
        Self { flags: CommandFlags::NONE, command: Command::Disconnect, cookie: 0, offset: 0, length: 0 }
    }

    /// How many bytes of payload follow.
    pub const fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }
}

/// Finds requests in a stream that comes in any pieces.
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
    /// A reader at the start of the transmission phase.
    pub const fn new() -> Self {
        Self { head: [0; REQUEST_BYTES], filled: 0, payload_left: 0, skipping: false }
    }

    /// Takes the next request from the front of `input`. `None`: all input is taken and more is needed, or the payload
    /// of the last write is still to be taken.
    ///
    /// # Errors
    /// The stream is out of step; the connection must be closed.
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

    /// How many bytes of the last write's payload are next in the stream.
    pub const fn payload_left(&self) -> u32 {
        self.payload_left
    }

    /// The caller took `bytes` of payload from the stream, at most [`payload_left`](Self::payload_left).
    pub const fn payload_taken(&mut self, bytes: u32) {
        self.payload_left = self.payload_left.saturating_sub(bytes);
        if self.payload_left == 0 {
            self.skipping = false;
        }
    }

    /// What is left of the last write's payload is thrown away as it comes.
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
