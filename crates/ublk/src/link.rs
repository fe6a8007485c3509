//! A queue's connection to the daemon: which waiting requests are sent next, and what received bytes mean. The queue
//! does the I/O.
//!
//! Invariants
//! - The requests of a connection that has ended return to the slots only when no send and no receive is in flight, so
//!   late bytes never reach the memory of another request.
//! - Nothing is allocated per request: memory for results, headers and input is reserved at the start.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use haversack_nbd::{ClientError, ClientSession, Errno, Event, StartError};

use crate::memory::Buffers;
use crate::outbox::Outbox;
use crate::request::{Operation, failure};
use crate::slots::Slots;
use crate::upstream::Connection;

const INPUT_BYTES: usize = 128 << 10;
/// If at least this many bytes of a read are missing, they are received directly into its buffer, without a copy.
const DIRECT_BYTES: usize = 8 << 10;

/// The part of a read that is received next.
#[derive(Clone, Copy, Debug)]
struct Rest {
    tag: u16,
    at: usize,
    bytes: usize,
}

struct Live {
    socket: UnixStream,
    session: ClientSession,
    rest: Option<Rest>,
    is_sending: bool,
    is_receiving: bool,
    over: Option<String>,
}

/// See the module documentation.
pub struct Link {
    live: Option<Live>,
    depth: u16,
    outbox: Outbox,
    input: Box<[u8]>,
    results: Vec<(u16, i32)>,
}

impl Link {
    pub fn new(depth: u16) -> Self {
        Self {
            live: None,
            depth,
            outbox: Outbox::new(),
            input: vec![0; INPUT_BYTES].into(),
            results: Vec::with_capacity(usize::from(depth)),
        }
    }

    /// Begins with a new connection. There must be no other.
    pub fn begin(&mut self, connection: Connection) {
        debug_assert!(self.live.is_none());
        let session = ClientSession::new(&connection.connected, usize::from(self.depth));
        self.outbox.clear();
        self.live = Some(Live {
            socket: connection.socket,
            session,
            rest: None,
            is_sending: false,
            is_receiving: false,
            over: None,
        });
    }

    /// Ends the connection; what is in flight on it completes.
    pub fn hang_up(&mut self, why: &str) {
        if let Some(live) = self.live.as_mut().filter(|live| live.over.is_none()) {
            live.over = Some(why.to_owned());
            // It is no failure if the peer has closed the connection already.
            let _ = live.socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether there is no connection, or one that has ended.
    pub fn is_down(&self) -> bool {
        self.live.as_ref().is_none_or(|live| live.over.is_some())
    }

    /// Returns whether no I/O of a connection is in flight.
    pub fn is_quiet(&self) -> bool {
        self.live.as_ref().is_none_or(|live| !live.is_sending && !live.is_receiving)
    }

    /// Drops a connection that has ended and has no I/O in flight, and returns why it ended.
    pub fn take_over(&mut self) -> Option<String> {
        let is_gone = self.live.as_ref().is_some_and(|live| live.over.is_some()) && self.is_quiet();
        if is_gone { self.live.take()?.over } else { None }
    }

    /// Returns the next request to be answered to the kernel, with its result.
    pub fn next_result(&mut self) -> Option<(u16, i32)> {
        self.results.pop()
    }

    /// Returns the message to send, if one is due: what is left of the last one, or all requests that wait and fit.
    pub fn outgoing(
        &mut self,
        slots: &mut Slots,
        buffers: &Buffers,
    ) -> Option<(BorrowedFd<'_>, *const libc::msghdr)> {
        let live = self.live.as_mut().filter(|live| !live.is_sending && live.over.is_none())?;
        while !self.outbox.is_full() && live.session.free_slots() > 0 {
            let Some((tag, request)) = slots.next_waiting() else { break };
            let started = request.command().map(|(command, flags)| {
                live.session.start(command, flags, request.offset_bytes, request.bytes)
            });
            match started {
                Some(Ok((cookie, head))) => {
                    let has_data = request.operation == Operation::Write;
                    self.outbox.push(head, has_data.then(|| buffers.iovec(tag, 0, request.data_bytes())));
                    slots.sent(cookie.slot());
                }
                Some(Err(StartError::Full { .. })) => break,
                Some(Err(StartError::Refused { refusal, .. })) => {
                    self.results.extend(slots.refused().map(|tag| (tag, failure(refusal.errno))));
                }
                None => self.results.extend(slots.refused().map(|tag| (tag, -libc::EOPNOTSUPP))),
            }
        }
        if self.outbox.is_empty() {
            return None;
        }
        live.is_sending = true;
        Some((live.socket.as_fd(), self.outbox.message()))
    }

    /// Returns where to receive bytes, if no receive is in flight.
    pub fn incoming(&mut self, buffers: &Buffers) -> Option<(BorrowedFd<'_>, libc::iovec)> {
        let live = self.live.as_mut().filter(|live| !live.is_receiving && live.over.is_none())?;
        live.is_receiving = true;
        let into = match live.rest {
            Some(rest) => buffers.iovec(rest.tag, rest.at, rest.bytes),
            None => libc::iovec { iov_base: self.input.as_mut_ptr().cast(), iov_len: self.input.len() },
        };
        Some((live.socket.as_fd(), into))
    }

    /// A send has completed.
    pub fn sent(&mut self, result: i32) {
        if let Some(live) = self.live.as_mut() {
            live.is_sending = false;
        }
        match usize::try_from(result) {
            Ok(bytes) => drop(self.outbox.sent(bytes)),
            Err(_) if is_passing(result) => {}
            Err(_) => self.hang_up(&format!("send failed: {}", std::io::Error::from_raw_os_error(-result))),
        }
    }

    /// A receive has completed.
    pub fn received(&mut self, result: i32, slots: &mut Slots, buffers: &Buffers) {
        let Some(live) = self.live.as_mut() else { return };
        live.is_receiving = false;
        let read = match usize::try_from(result) {
            Ok(0) => return self.hang_up("the daemon closed it"),
            Err(_) if is_passing(result) => return,
            Err(_) => {
                return self
                    .hang_up(&format!("receive failed: {}", std::io::Error::from_raw_os_error(-result)));
            }
            Ok(bytes) => match live.rest.take() {
                Some(rest) => {
                    let bytes = bytes.min(rest.bytes);
                    live.session.data_taken(bytes as u32);
                    let left = rest.bytes - bytes;
                    live.rest =
                        (left >= DIRECT_BYTES).then_some(Rest { at: rest.at + bytes, bytes: left, ..rest });
                    read_replies(live, &[], &mut self.results, slots, buffers)
                }
                None => read_replies(live, &self.input[..bytes], &mut self.results, slots, buffers),
            },
        };
        match read {
            Ok(()) => {}
            Err(error) => self.hang_up(&error.to_string()),
        }
    }

    /// Answers all waiting requests with an error.
    pub fn fail_waiting(&mut self, slots: &mut Slots) {
        self.results.extend(std::iter::from_fn(|| slots.refused()).map(|tag| (tag, -libc::EIO)));
    }
}

/// Why a connection cannot be continued.
#[derive(Debug, thiserror::Error)]
enum ReplyError {
    #[error(transparent)]
    Nbd(#[from] ClientError),
    #[error("the daemon gives up the disk for now")]
    ShuttingDown,
    #[error("data for no request")]
    NoRequest,
}

fn is_passing(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

fn read_replies(
    live: &mut Live,
    mut input: &[u8],
    results: &mut Vec<(u16, i32)>,
    slots: &mut Slots,
    buffers: &Buffers,
) -> Result<(), ReplyError> {
    // The session guarantees that data lies within its request, and that a slot is in use.
    let place = |slots: &Slots, slot: usize, offset: u64| {
        let tag = slots.tag_of(slot)?;
        Some((tag, (offset - slots.request(tag).offset_bytes) as usize))
    };
    while live.rest.is_none()
        && let Some(event) = live.session.receive(&mut input)?
    {
        match event {
            Event::Data { cookie, offset, length } => {
                let here = input.len().min(length as usize);
                let (tag, at) = place(slots, cookie.slot(), offset).ok_or(ReplyError::NoRequest)?;
                buffers.fill(tag, at, &input[..here]);
                input = &input[here..];
                live.session.data_taken(here as u32);
                let left = length as usize - here;
                if left >= DIRECT_BYTES {
                    live.rest = Some(Rest { tag, at: at + here, bytes: left });
                } else if left > 0 {
                    break;
                }
            }
            Event::Zero { cookie, offset, length } => {
                let (tag, at) = place(slots, cookie.slot(), offset).ok_or(ReplyError::NoRequest)?;
                buffers.zero(tag, at, length as usize);
            }
            Event::Extent { .. } | Event::Error { .. } => {}
            // The request is sent again on the next connection.
            Event::Done { result: Err(Errno::ESHUTDOWN), .. } => return Err(ReplyError::ShuttingDown),
            Event::Done { cookie, result } => {
                if let Some(tag) = slots.tag_of(cookie.slot()) {
                    let result = result.map_or_else(failure, |()| slots.request(tag).success());
                    results.extend(slots.answered(cookie.slot()).map(|tag| (tag, result)));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
