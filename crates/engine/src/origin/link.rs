//! One negotiated connection to an NBD server, driven by the reactor.
//!
//! Invariant
//! - The receive buffer, the request headers and the memory of requests being sent stay in place until their
//!   I/O has completed; only then is a link over.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

use haversack_nbd::{
    ClientSession, Command, CommandFlags, Connected, Errno, Event, REQUEST_BYTES, TransmissionFlags,
};

use super::OriginContext;
use super::connector::Connection;
use super::wire::Wire;
use crate::ring::{Owner, Ring};

/// The most requests in flight on a connection.
const SLOTS: usize = 128;
const INPUT_BYTES: usize = 256 << 10;
/// The most requests in one send.
const REQUESTS_AT_A_TIME: usize = 64;
/// The payload of a write of zeroes.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// A piece of a job that is one request of the protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub job: u32,
    /// Its offset in the job's range, and on the export.
    pub at_bytes: u64,
    pub offset_bytes: u64,
    pub length: u32,
}

struct Outgoing {
    head: [u8; REQUEST_BYTES],
    part: Part,
    payload: Payload,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Payload {
    None,
    /// From the job's memory.
    Data,
    Zeroes,
}

/// See the module documentation.
pub(super) struct Link {
    socket: OwnedFd,
    wire: Option<Wire>,
    connected: Connected,
    session: ClientSession,
    parts: Vec<Option<Part>>,
    input: Box<[u8]>,
    receiving: bool,
    outgoing: VecDeque<Outgoing>,
    leaving: Vec<Outgoing>,
    is_sending: bool,
    done: VecDeque<(Part, Result<(), Errno>)>,
    /// It takes no more requests: another connection takes its place.
    retired: bool,
    over: Option<String>,
}

/// Returns part of the memory that iovecs describe.
fn cut(iovecs: &[libc::iovec], at_bytes: u64, length: u64) -> impl Iterator<Item = libc::iovec> {
    let (mut skip, mut left) = (at_bytes as usize, length as usize);
    iovecs.iter().filter_map(move |iovec| {
        let start = skip.min(iovec.iov_len);
        skip -= start;
        let len = (iovec.iov_len - start).min(left);
        left -= len;
        // SAFETY: `start` is inside, or one past the end of, the memory that the iovec describes.
        let iov_base = unsafe { iovec.iov_base.cast::<u8>().add(start) }.cast();
        (len > 0).then_some(libc::iovec { iov_base, iov_len: len })
    })
}

fn zeroes(length: u32) -> impl Iterator<Item = libc::iovec> {
    let mut left = length as usize;
    std::iter::from_fn(move || {
        let iov_len = left.min(ZEROES.len());
        left -= iov_len;
        (iov_len > 0).then_some(libc::iovec { iov_base: ZEROES.as_ptr().cast_mut().cast(), iov_len })
    })
}

impl Link {
    pub fn new(connection: Connection) -> Link {
        let Connection { socket, connected, wire } = connection;
        Link {
            socket,
            wire,
            session: ClientSession::new(&connected, SLOTS),
            connected,
            parts: vec![None; SLOTS],
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            receiving: false,
            outgoing: VecDeque::new(),
            leaving: Vec::new(),
            is_sending: false,
            done: VecDeque::new(),
            retired: false,
            over: None,
        }
    }

    pub fn begin(&mut self, context: &mut OriginContext<'_>, place: usize) {
        self.receive(
            context.ring,
            Owner::Origin { disk: context.disk, token: place as u64 * 2 },
            context.now,
        );
    }

    fn receive(&mut self, ring: &mut Ring, owner: Owner, now: u64) {
        let iovec = libc::iovec { iov_base: self.input.as_mut_ptr().cast(), iov_len: self.input.len() };
        ring.receive(owner, self.socket.as_raw_fd(), iovec, now);
        self.receiving = true;
    }

    /// Returns how many more requests it can take.
    pub fn room(&self) -> usize {
        if self.over.is_some() || self.retired { 0 } else { self.session.free_slots() }
    }

    /// Returns the export's size at connection time.
    pub fn size_bytes(&self) -> u64 {
        self.connected.size_bytes
    }

    /// Stops the link from taking more requests.
    pub fn retire(&mut self) {
        self.retired = true;
    }

    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Returns whether every request has its reply.
    pub fn is_idle(&self) -> bool {
        self.parts.iter().all(Option::is_none) && self.done.is_empty()
    }

    /// Returns whether requests wait for a host that may have been cut off.
    pub fn needs_watch(&self) -> bool {
        self.wire.is_some() && self.over.is_none() && !self.is_idle()
    }

    /// Returns whether the server's host no longer answers.
    pub fn is_cut(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::is_cut)
    }

    pub fn features(&self) -> TransmissionFlags {
        self.connected.flags
    }

    pub fn most_payload_bytes(&self) -> u64 {
        self.connected.block_size.maximum_payload_bytes().into()
    }

    /// Queues a request to be sent. Returns false if the server would refuse it.
    pub fn start(&mut self, command: Command, flags: CommandFlags, part: Part, zeroes: bool) -> bool {
        match self.session.start(command, flags, part.offset_bytes, part.length) {
            Ok((cookie, head)) => {
                self.parts[cookie.slot()] = Some(part);
                let payload = match command {
                    Command::Write if zeroes => Payload::Zeroes,
                    Command::Write => Payload::Data,
                    _ => Payload::None,
                };
                self.outgoing.push_back(Outgoing { head, part, payload });
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot send a request to the origin");
                false
            }
        }
    }

    /// Sends what is queued. `memory` returns a job's memory.
    pub fn send<'a>(
        &mut self,
        context: &mut OriginContext<'_>,
        place: usize,
        memory: impl Fn(u32) -> &'a [libc::iovec],
    ) {
        if self.is_sending || self.outgoing.is_empty() || self.over.is_some() {
            return;
        }
        let count = self.outgoing.len().min(REQUESTS_AT_A_TIME);
        self.leaving.extend(self.outgoing.drain(..count));
        let mut iovecs: Vec<libc::iovec> = Vec::with_capacity(2 * count);
        for outgoing in &self.leaving {
            let head = outgoing.head.as_ptr().cast_mut().cast();
            iovecs.push(libc::iovec { iov_base: head, iov_len: REQUEST_BYTES });
            let part = outgoing.part;
            match outgoing.payload {
                Payload::None => {}
                Payload::Data => iovecs.extend(cut(memory(part.job), part.at_bytes, part.length.into())),
                Payload::Zeroes => iovecs.extend(zeroes(part.length)),
            }
        }
        let owner = Owner::Origin { disk: context.disk, token: place as u64 * 2 + 1 };
        context.ring.send(owner, self.socket.as_raw_fd(), iovecs.into_iter(), context.now);
        self.is_sending = true;
    }

    /// Handles a completion: bytes were received, or a batch was sent.
    pub fn completed<'a>(
        &mut self,
        context: &mut OriginContext<'_>,
        place: usize,
        received: bool,
        result: Result<usize, i32>,
        memory: impl Fn(u32) -> &'a [libc::iovec],
    ) {
        if !received {
            self.is_sending = false;
            self.leaving.clear();
            if let Err(errno) = result {
                self.hang_up(&format!("send failed: {}", std::io::Error::from_raw_os_error(errno)));
            }
            return;
        }
        self.receiving = false;
        match result {
            Ok(0) => self.hang_up("the server closed it"),
            Err(errno) => {
                self.hang_up(&format!("receive failed: {}", std::io::Error::from_raw_os_error(errno)));
            }
            Ok(bytes) => {
                let input = std::mem::take(&mut self.input);
                if let Err(error) = self.read_replies(&input[..bytes], memory) {
                    self.hang_up(&error.to_string());
                }
                self.input = input;
                if self.over.is_none() {
                    self.begin(context, place);
                }
            }
        }
    }

    fn read_replies<'a>(
        &mut self,
        mut input: &[u8],
        memory: impl Fn(u32) -> &'a [libc::iovec],
    ) -> Result<(), haversack_nbd::ClientError> {
        while let Some(event) = self.session.receive(&mut input)? {
            match event {
                Event::Data { cookie, offset, length } => {
                    let here = input.len().min(length as usize);
                    if here == 0 {
                        break;
                    }
                    let at = self.place_of(cookie.slot(), offset);
                    if let Some((job, at)) = at {
                        fill(cut(memory(job), at, here as u64), Some(&input[..here]));
                    }
                    input = &input[here..];
                    self.session.data_taken(here as u32);
                }
                Event::Zero { cookie, offset, length } => {
                    if let Some((job, at)) = self.place_of(cookie.slot(), offset) {
                        fill(cut(memory(job), at, length.into()), None);
                    }
                }
                Event::Extent { .. } => {}
                Event::Error { errno, .. } => {
                    tracing::warn!(%errno, message = self.session.message(), "the origin failed a request");
                }
                Event::Done { cookie, result } => {
                    let part = self.parts[cookie.slot()].take().expect("a request in flight is a part");
                    self.done.push_back((part, result));
                }
            }
        }
        Ok(())
    }

    /// Returns the job of a request, and the position in the job's range of an offset on the export.
    fn place_of(&self, slot: usize, offset: u64) -> Option<(u32, u64)> {
        let part = self.parts[slot]?;
        Some((part.job, part.at_bytes + (offset - part.offset_bytes)))
    }

    /// Returns the next part that is done.
    pub fn next_done(&mut self) -> Option<(Part, Result<(), Errno>)> {
        self.done.pop_front()
    }

    /// Ends the connection.
    pub fn hang_up(&mut self, why: &str) {
        if self.over.is_none() {
            self.over = Some(why.to_string());
            // This completes all I/O on the socket. An error means that the peer has already disconnected.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Returns whether the connection has ended and has no I/O in flight.
    pub fn is_over(&self) -> bool {
        self.over.is_some() && !self.receiving && !self.is_sending && self.done.is_empty()
    }

    /// Returns whether it carries a part of a job.
    pub fn carries(&self, job: u32) -> bool {
        self.parts.iter().flatten().any(|part| part.job == job)
    }

    pub fn why(&self) -> &str {
        self.over.as_deref().unwrap_or_default()
    }

    /// Returns the parts that had no reply.
    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.parts.into_iter().flatten()
    }
}

/// Fills memory with bytes, or with zeroes.
fn fill(iovecs: impl Iterator<Item = libc::iovec>, bytes: Option<&[u8]>) {
    let mut done = 0;
    for iovec in iovecs {
        let target: *mut u8 = iovec.iov_base.cast();
        // SAFETY: the iovec is part of the memory of a request in flight. Nobody else uses that memory until
        // the request is answered, and no byte buffer overlaps it.
        unsafe {
            match bytes {
                Some(bytes) => target.copy_from_nonoverlapping(bytes[done..].as_ptr(), iovec.iov_len),
                None => target.write_bytes(0, iovec.iov_len),
            }
        }
        done += iovec.iov_len;
    }
}
