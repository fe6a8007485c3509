//! The client's side of the transmission phase.
//!
//! A client sends the bytes that [`ClientSession::start`] returns, followed by the payload of a write, and reads
//! replies as shown below. Nothing is allocated per request, and data goes directly from the stream to the caller's
//! memory:
//!
//! ```
//! use haversack_nbd::{ClientError, ClientSession, Event};
//!
//! /// Handles received bytes; `memory[cookie.slot()]` is where a read's data goes, `starts` the reads' offsets.
//! fn received(
//!     session: &mut ClientSession,
//!     mut input: &[u8],
//!     memory: &mut [Vec<u8>],
//!     starts: &[u64],
//! ) -> Result<(), ClientError> {
//!     while let Some(event) = session.receive(&mut input)? {
//!         match event {
//!             Event::Data { cookie, offset, length } => {
//!                 let at = (offset - starts[cookie.slot()]) as usize;
//!                 let here = input.len().min(length as usize);
//!                 memory[cookie.slot()][at..at + here].copy_from_slice(&input[..here]);
//!                 input = &input[here..];
//!                 session.data_taken(here as u32);
//!                 if here < length as usize {
//!                     // Receive the rest from the socket directly into memory, then call data_taken again.
//!                     break;
//!                 }
//!             }
//!             Event::Zero { cookie, offset, length } => {
//!                 let at = (offset - starts[cookie.slot()]) as usize;
//!                 memory[cookie.slot()][at..at + length as usize].fill(0);
//!             }
//!             Event::Extent { length, flags, .. } => println!("{length} bytes: {flags:#x}"),
//!             Event::Error { errno, .. } => eprintln!("{errno}: {}", session.message()),
//!             Event::Done { cookie, result } => println!("{} is done: {result:?}", cookie.slot()),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Invariants: data and zeroes of one read never overlap and lie within it; a read is done without an error only when
//! all its data was received. A cookie is used once in 2^32 requests of its slot, so a late reply is not taken for
//! another's.

use super::coverage::{Coverage, MAX_RANGES, Misfit};
use super::request::{Command, REQUEST_BYTES, Request};
use super::rules::{Refusal, RequestRules, Verdict};
use crate::constants as c;
use crate::errno::Errno;
use crate::error::ClientError;
use crate::flags::CommandFlags;
use crate::negotiate::Connected;
use crate::wire::{Collector, Fields};

/// Longest error chunk that is accepted: a text of 4,096 bytes and as much again for future extensions.
const MAX_ERROR_BYTES: u32 = 8 << 10;
const MAX_MESSAGE_BYTES: usize = 256;
const SIMPLE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 20;
const EXTENT_BYTES: usize = 8;
/// Longest BLOCK_STATUS chunk that is accepted: 2^20 extents, as the protocol allows.
const MAX_STATUS_BYTES: u32 = 4 + (8 << 20);

/// The identifier of a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Cookie(u64);

impl Cookie {
    /// Returns its slot, from 0 up to the session's capacity: an index for the caller's tables.
    pub const fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// Returns the number on the wire.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What a server's bytes mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The next `length` bytes of the stream are the read's data at `offset` of the export. Take them, and report it
    /// with [`ClientSession::data_taken`].
    Data {
        /// The read.
        cookie: Cookie,
        /// Where in the export.
        offset: u64,
        /// How many bytes.
        length: u32,
    },
    /// These bytes of the read are zeroes.
    Zero {
        /// The read.
        cookie: Cookie,
        /// Where in the export.
        offset: u64,
        /// How many bytes.
        length: u32,
    },
    /// The next bytes from the offset of the BLOCK_STATUS request on have these flags. The last extent may reach beyond
    /// the request, or end before it.
    Extent {
        /// The request.
        cookie: Cookie,
        /// How many bytes.
        length: u32,
        /// What the metadata context says of them.
        flags: u32,
    },
    /// The server reports a failure; [`ClientSession::message`] has its text. `Done` will follow.
    Error {
        /// The request.
        cookie: Cookie,
        /// The failure.
        errno: Errno,
    },
    /// The request is over and its slot is free.
    Done {
        /// The request.
        cookie: Cookie,
        /// Success, or the first failure reported.
        result: Result<(), Errno>,
    },
}

/// Why a request cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// All slots are taken.
    #[error("{capacity} requests are in flight, expected fewer; wait for one to be done")]
    Full {
        /// How many slots there are.
        capacity: usize,
    },
    /// The server would refuse it.
    #[error("{command:?} of {length} bytes at byte {offset}: {reason}", reason = refusal.reason)]
    Refused {
        /// What was requested.
        command: Command,
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Why, and the error number that a server would send.
        refusal: Refusal,
    },
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// None: free.
    request: Option<Request>,
    coverage: Coverage,
    error: Option<Errno>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    slot: usize,
    kind: u16,
    length: u32,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    /// The fields at the front of a chunk's payload.
    Chunk(Chunk),
    Data {
        slot: usize,
        offset: u64,
        left: u32,
        done: bool,
    },
    /// Extents of a reply to BLOCK_STATUS follow.
    Extents {
        slot: usize,
        left: u32,
        done: bool,
    },
    Done {
        slot: usize,
    },
}

/// Requests in flight on one connection, and the reader of its replies.
#[derive(Debug)]
pub struct ClientSession {
    rules: RequestRules,
    structured_replies: bool,
    context_id: Option<u32>,
    slots: Box<[Slot]>,
    free: Vec<usize>,
    collector: Collector,
    state: State,
    message: String,
}

impl ClientSession {
    /// Makes a session with room for `capacity` requests in flight, at most 2^32.
    pub fn new(connected: &Connected, capacity: usize) -> Self {
        let slot = || Slot { generation: 0, request: None, coverage: Coverage::new(), error: None };
        Self {
            rules: connected.rules(),
            structured_replies: connected.structured_replies,
            context_id: connected.context_id,
            slots: std::iter::repeat_with(slot).take(capacity).collect(),
            free: (0..capacity).rev().collect(),
            collector: Collector::new(MAX_ERROR_BYTES as usize),
            state: State::Head,
            message: String::with_capacity(MAX_MESSAGE_BYTES),
        }
    }

    /// Starts a request and returns the bytes to send; a write's payload follows them.
    ///
    /// # Errors
    /// The export does not support such a request, its range is empty, or no slot is free.
    pub fn start(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u32,
    ) -> Result<(Cookie, [u8; REQUEST_BYTES]), StartError> {
        let mut request = Request { flags, command, cookie: 0, offset, length };
        let reason = match self.rules.check(&request) {
            Ok(Verdict::Serve) => None,
            Ok(Verdict::Refuse(refusal)) => Some(refusal),
            Ok(Verdict::Nothing) => Some(Refusal { errno: Errno::EINVAL, reason: "the range is empty" }),
            Ok(Verdict::Disconnect) => {
                Some(Refusal { errno: Errno::EINVAL, reason: "a farewell is no request; it has no reply" })
            }
            Err(_) => Some(Refusal { errno: Errno::EINVAL, reason: "it is longer than the maximum payload" }),
        };
        if let Some(refusal) = reason {
            return Err(StartError::Refused { command, offset, length, refusal });
        }
        let slot = self.free.pop().ok_or(StartError::Full { capacity: self.slots.len() })?;
        let taken = &mut self.slots[slot];
        request.cookie = u64::from(taken.generation) << 32 | slot as u64;
        taken.request = Some(request);
        taken.coverage.clear();
        taken.error = None;
        Ok((Cookie(request.cookie), request.encode()))
    }

    /// Returns the requests in flight, for example to send them again on another connection.
    pub fn in_flight(&self) -> impl Iterator<Item = (Cookie, &Request)> {
        self.slots
            .iter()
            .filter_map(|slot| slot.request.as_ref())
            .map(|request| (Cookie(request.cookie), request))
    }

    /// Returns how many requests can be started.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Returns the server's message for the last [`Event::Error`], at most 256 bytes, empty if it had none.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Notes that the caller took `bytes` of the data announced by the last [`Event::Data`] from the stream.
    pub fn data_taken(&mut self, bytes: u32) {
        if let State::Data { offset, left, .. } = &mut self.state {
            let taken = bytes.min(*left);
            *offset += u64::from(taken);
            *left -= taken;
        }
    }

    /// Takes bytes from the front of `input` up to the next event. `None`: all input is taken and more is needed.
    /// While announced data is not taken, the event for the rest of it is returned again.
    ///
    /// # Errors
    /// The server violates the protocol: the connection must be closed and the session dropped.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Event>, ClientError> {
        loop {
            match self.state {
                State::Head => {
                    if !self.head(input)? {
                        return Ok(None);
                    }
                }
                State::Chunk(chunk) => {
                    if !self.collector.fill(input, fixed_bytes(&chunk)) {
                        return Ok(None);
                    }
                    let event = self.chunk(chunk);
                    self.collector.clear();
                    if let Some(event) = event? {
                        return Ok(Some(event));
                    }
                }
                State::Data { slot, offset, left, .. } if left > 0 => {
                    return Ok(Some(Event::Data { cookie: self.cookie(slot), offset, length: left }));
                }
                State::Data { slot, done, .. } => self.state = after(slot, done),
                State::Extents { slot, left, done } => {
                    if !self.collector.fill(input, EXTENT_BYTES) {
                        return Ok(None);
                    }
                    let left = left - EXTENT_BYTES as u32;
                    self.state =
                        if left > 0 { State::Extents { slot, left, done } } else { after(slot, done) };
                    let extent = self.extent(slot);
                    self.collector.clear();
                    return extent.map(Some);
                }
                State::Done { slot } => return self.finish(slot).map(Some),
            }
        }
    }

    /// Reads the header of a reply; `false` if it is not complete.
    fn head(&mut self, input: &mut &[u8]) -> Result<bool, ClientError> {
        if !self.collector.fill(input, 4) {
            return Ok(false);
        }
        let found = Fields(self.collector.bytes()).u32().unwrap_or_default();
        let need = match found {
            c::SIMPLE_REPLY_MAGIC => SIMPLE_BYTES,
            c::STRUCTURED_REPLY_MAGIC => CHUNK_BYTES,
            _ => return Err(ClientError::ReplyMagic { found }),
        };
        if !self.collector.fill(input, need) {
            return Ok(false);
        }
        self.state = if found == c::SIMPLE_REPLY_MAGIC { self.simple_head()? } else { self.chunk_head()? };
        self.collector.clear();
        Ok(true)
    }

    fn simple_head(&mut self) -> Result<State, ClientError> {
        let mut fields = Fields(&self.collector.bytes()[4..]);
        let error = fields.u32().unwrap_or_default();
        let cookie = fields.u64().unwrap_or_default();
        let (slot, request) = self.find(cookie)?;
        let read = request.command == Command::Read;
        if read && self.structured_replies {
            return Err(ClientError::UnexpectedSimpleReply { cookie });
        }
        self.slots[slot].error = Errno::from_wire(error);
        if !read || error != 0 {
            return Ok(State::Done { slot });
        }
        self.cover(slot, &request, request.offset, request.length)?;
        Ok(State::Data { slot, offset: request.offset, left: request.length, done: true })
    }

    fn chunk_head(&mut self) -> Result<State, ClientError> {
        let mut fields = Fields(&self.collector.bytes()[4..]);
        let flags = fields.u16().unwrap_or_default();
        let kind = fields.u16().unwrap_or_default();
        let cookie = fields.u64().unwrap_or_default();
        let length = fields.u32().unwrap_or_default();
        if !self.structured_replies {
            return Err(ClientError::UnexpectedChunk { cookie });
        }
        let (slot, request) = self.find(cookie)?;
        let done = flags & c::REPLY_FLAG_DONE != 0;
        let read = request.command == Command::Read;
        let fault = match kind {
            c::REPLY_TYPE_NONE if length != 0 => Some("it has no payload"),
            c::REPLY_TYPE_NONE if !done => Some("it ends a reply"),
            c::REPLY_TYPE_OFFSET_DATA | c::REPLY_TYPE_OFFSET_HOLE if !read => Some("it answers reads only"),
            c::REPLY_TYPE_OFFSET_DATA if length < 9 => Some("it has at least 9 bytes"),
            c::REPLY_TYPE_OFFSET_HOLE if length != 12 => Some("it has 12 bytes"),
            c::REPLY_TYPE_BLOCK_STATUS if request.command != Command::BlockStatus => {
                Some("it answers BLOCK_STATUS only")
            }
            c::REPLY_TYPE_BLOCK_STATUS if length < 12 || length % 8 != 4 || length > MAX_STATUS_BYTES => {
                Some("it has 4 bytes, and 8 for each of 1 to 1048576 extents")
            }
            c::REPLY_TYPE_ERROR_OFFSET if length < 14 => Some("it has at least 14 bytes"),
            c::REPLY_TYPE_ERROR_BIT.. if length < 6 => Some("it has at least 6 bytes"),
            c::REPLY_TYPE_ERROR_BIT.. if length > MAX_ERROR_BYTES => Some("it has at most 8192 bytes"),
            c::REPLY_TYPE_NONE
            | c::REPLY_TYPE_OFFSET_DATA
            | c::REPLY_TYPE_OFFSET_HOLE
            | c::REPLY_TYPE_BLOCK_STATUS
            | c::REPLY_TYPE_ERROR_BIT.. => None,
            _ => Some("the kind is unknown or was not asked for"),
        };
        match fault {
            Some(reason) => Err(ClientError::Chunk { cookie, kind, length_bytes: length, reason }),
            None => Ok(State::Chunk(Chunk { slot, kind, length, done })),
        }
    }

    /// Processes a chunk whose fixed part is complete.
    fn chunk(&mut self, chunk: Chunk) -> Result<Option<Event>, ClientError> {
        let Chunk { slot, kind, length, done } = chunk;
        let cookie = self.cookie(slot);
        let (_, request) = self.find(cookie.0)?;
        let mut fields = Fields(self.collector.bytes());
        self.state = after(slot, done);
        match kind {
            c::REPLY_TYPE_NONE => Ok(None),
            c::REPLY_TYPE_OFFSET_DATA => {
                let offset = fields.u64().unwrap_or_default();
                let length = length - 8;
                self.cover(slot, &request, offset, length)?;
                self.state = State::Data { slot, offset, left: length, done };
                Ok(None)
            }
            c::REPLY_TYPE_OFFSET_HOLE => {
                let offset = fields.u64().unwrap_or_default();
                let length = fields.u32().unwrap_or_default();
                self.cover(slot, &request, offset, length)?;
                Ok(Some(Event::Zero { cookie, offset, length }))
            }
            c::REPLY_TYPE_BLOCK_STATUS => {
                if fields.u32() != self.context_id {
                    let reason = "its metadata context was not requested";
                    return Err(ClientError::Chunk { cookie: cookie.0, kind, length_bytes: length, reason });
                }
                self.state = State::Extents { slot, left: length - 4, done };
                Ok(None)
            }
            _ => {
                let fault =
                    |reason| ClientError::Chunk { cookie: cookie.0, kind, length_bytes: length, reason };
                let errno = Errno::from_wire(fields.u32().unwrap_or_default())
                    .ok_or_else(|| fault("its error number is 0"))?;
                let text_bytes = usize::from(fields.u16().unwrap_or_default());
                let after_text = if kind == c::REPLY_TYPE_ERROR_OFFSET { 8 } else { 0 };
                let text = fields
                    .bytes(text_bytes + after_text)
                    .ok_or_else(|| fault("its text is longer than the chunk"))?;
                let text = &text[..text_bytes.min(MAX_MESSAGE_BYTES)];
                self.message.clear();
                for shown in text.utf8_chunks() {
                    self.message.push_str(shown.valid());
                }
                self.slots[slot].error.get_or_insert(errno);
                Ok(Some(Event::Error { cookie, errno }))
            }
        }
    }

    fn extent(&self, slot: usize) -> Result<Event, ClientError> {
        let mut fields = Fields(self.collector.bytes());
        let (length, flags) = (fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default());
        let cookie = self.cookie(slot);
        if length == 0 {
            let (kind, reason) = (c::REPLY_TYPE_BLOCK_STATUS, "an extent is not empty");
            return Err(ClientError::Chunk { cookie: cookie.0, kind, length_bytes: 0, reason });
        }
        Ok(Event::Extent { cookie, length, flags })
    }

    fn finish(&mut self, slot: usize) -> Result<Event, ClientError> {
        let cookie = self.cookie(slot);
        let (_, request) = self.find(cookie.0)?;
        let done = &mut self.slots[slot];
        let missing_bytes = request.length - done.coverage.bytes();
        if request.command == Command::Read && done.error.is_none() && missing_bytes > 0 {
            return Err(ClientError::Incomplete { cookie: cookie.0, missing_bytes });
        }
        done.request = None;
        done.generation = done.generation.wrapping_add(1);
        self.free.push(slot);
        self.state = State::Head;
        Ok(Event::Done { cookie, result: done.error.map_or(Ok(()), Err) })
    }

    fn cookie(&self, slot: usize) -> Cookie {
        Cookie(u64::from(self.slots[slot].generation) << 32 | slot as u64)
    }

    fn find(&self, cookie: u64) -> Result<(usize, Request), ClientError> {
        let slot = Cookie(cookie).slot();
        self.slots
            .get(slot)
            .and_then(|slot| slot.request)
            .filter(|request| request.cookie == cookie)
            .map(|request| (slot, request))
            .ok_or(ClientError::UnknownCookie { cookie })
    }

    /// Notes that a part of a read was received; it must lie within the read and not be a repeat.
    fn cover(&mut self, slot: usize, request: &Request, offset: u64, length: u32) -> Result<(), ClientError> {
        let cookie = request.cookie;
        let outside = ClientError::OutsideRequest { cookie, offset_bytes: offset, length_bytes: length };
        let start = offset.checked_sub(request.offset).filter(|start| *start < u64::from(request.length));
        let Some(start) = start.map(|start| start as u32) else {
            return Err(outside);
        };
        if length == 0 || length > request.length - start {
            return Err(outside);
        }
        self.slots[slot].coverage.add(start, start + length).map_err(|misfit| match misfit {
            Misfit::Overlap => ClientError::Overlap { cookie, offset_bytes: offset, length_bytes: length },
            Misfit::TooMany => ClientError::TooFragmented { cookie, limit: MAX_RANGES },
        })
    }
}

/// Returns how much of a chunk's payload is collected before it is processed.
const fn fixed_bytes(chunk: &Chunk) -> usize {
    match chunk.kind {
        c::REPLY_TYPE_OFFSET_DATA => 8,
        c::REPLY_TYPE_BLOCK_STATUS => 4,
        _ => chunk.length as usize,
    }
}

const fn after(slot: usize, done: bool) -> State {
    if done { State::Done { slot } } else { State::Head }
}
