//! An origin that is read through the flash of other hosts. [`Borrower`] decides which reads lenders serve. This layer
//! sends all other requests to the origin, and reports every request to the borrower.
//!
//! Invariants
//! - No request reaches the origin without the borrower having been told.
//! - A read that lenders serve has the same blocks as the origin would return, or goes to the origin.

use std::collections::HashMap;

use haversack_core::IoId;
use haversack_lend::{AtLender, Borrower, BorrowerFigures, BorrowerSettings, Message, Outcome, ReadTicket};
use haversack_model::{BLOCK_BYTES, HostId, Micros, SECTOR_BYTES};

use super::{Origin, OriginAnswer, OriginContext, OriginOp, OriginRequest};
use crate::lending::LendsToMe;
use crate::moving::{HostMessage, RoomForCopies, SendToHost};
use crate::ring::Completion;

/// How lenders are reached.
pub(crate) struct Port {
    pub send: SendToHost,
    pub room: RoomForCopies,
    pub lends_to_me: LendsToMe,
}

/// What a request at the origin is.
#[derive(Clone, Copy)]
enum AtOrigin {
    /// A read from this byte on, counted from the start of block 0.
    Read(ReadTicket, u64),
    /// A change of these blocks.
    Change(u64, u64),
    Flush,
}

/// See the module.
pub(crate) struct BorrowedOrigin {
    inner: Box<dyn Origin>,
    borrower: Borrower,
    /// Bytes of block 0 that are before the disk.
    shift_bytes: u64,
    port: Port,
    /// Requests at the origin, by I/O.
    at_origin: HashMap<IoId, AtOrigin>,
    /// Reads that wait for lenders, by token.
    lent: HashMap<u64, OriginRequest>,
    next_token: u64,
    answers: Vec<OriginAnswer>,
}

impl BorrowedOrigin {
    /// `shift` is the number of sectors of block 0 that are before the disk.
    pub fn new(inner: Box<dyn Origin>, settings: BorrowerSettings, shift: u64, port: Port) -> BorrowedOrigin {
        BorrowedOrigin {
            inner,
            borrower: Borrower::new(settings),
            shift_bytes: shift * SECTOR_BYTES as u64,
            port,
            at_origin: HashMap::new(),
            lent: HashMap::new(),
            next_token: 0,
            answers: Vec::new(),
        }
    }

    /// Returns the blocks that a request touches, the last one included.
    fn blocks(&self, request: &OriginRequest) -> (u64, u64) {
        let start = request.offset_bytes + self.shift_bytes;
        let end = start + request.len_bytes.max(1) - 1;
        (start / BLOCK_BYTES as u64, end / BLOCK_BYTES as u64)
    }

    /// Lets the underlying origin act, and handles its answers.
    fn inner(
        &mut self,
        context: &mut OriginContext<'_>,
        act: impl FnOnce(&mut dyn Origin, &mut OriginContext<'_>),
    ) {
        let mut answers = std::mem::take(&mut self.answers);
        let OriginContext { disk, id, now, .. } = *context;
        let (ring, events) = (&mut *context.ring, &mut *context.events);
        act(self.inner.as_mut(), &mut OriginContext { ring, disk, id, now, answers: &mut answers, events });
        for answer in answers.drain(..) {
            self.answered(context.now, &answer);
            context.answers.push(answer);
        }
        self.answers = answers;
    }

    fn at_origin(&mut self, context: &mut OriginContext<'_>, request: OriginRequest, what: AtOrigin) {
        self.at_origin.insert(request.io, what);
        self.inner(context, |origin, context| origin.start(context, request));
    }

    fn answered(&mut self, now: Micros, answer: &OriginAnswer) {
        match self.at_origin.remove(&answer.request.io) {
            Some(AtOrigin::Read(ticket, start)) if answer.result.is_ok() => {
                self.was_read(now, ticket, start, &answer.request.iovecs);
            }
            Some(AtOrigin::Change(first, last)) => self.borrower.write_ended(first, last),
            Some(AtOrigin::Read(..) | AtOrigin::Flush) | None => {}
        }
    }

    /// Shows the borrower the whole blocks that were read.
    fn was_read(&mut self, now: Micros, ticket: ReadTicket, start: u64, iovecs: &[libc::iovec]) {
        let len: u64 = iovecs.iter().map(|iovec| iovec.iov_len as u64).sum();
        let block_bytes = BLOCK_BYTES as u64;
        let (first, end) = (start.div_ceil(block_bytes), (start + len) / block_bytes);
        if first >= end || !self.borrower.covers(end - 1) {
            return;
        }
        let Port { room, lends_to_me, .. } = &self.port;
        self.borrower.read_ended(now, ticket, (first, end - 1), &**room, &**lends_to_me, |block| {
            let mut data = vec![0; BLOCK_BYTES];
            copy(iovecs, (block * block_bytes - start) as usize, &mut data, Direction::Out);
            data
        });
    }

    /// Carries out the borrower's outcomes.
    fn drive(&mut self, context: &mut OriginContext<'_>) {
        while let Some(outcome) = self.borrower.poll() {
            match outcome {
                Outcome::Send(host, message) => {
                    (self.port.send)(host, context.id, HostMessage::Lend(message));
                }
                Outcome::Serve { token, blocks } => {
                    let request = self.lent.remove(&token).expect("a read has one outcome");
                    self.give(&request, &blocks);
                    context.answers.push(OriginAnswer { request, result: Ok(()) });
                }
                Outcome::FallBack { token, ticket } => {
                    let request = self.lent.remove(&token).expect("a read has one outcome");
                    let start = request.offset_bytes + self.shift_bytes;
                    self.at_origin(context, request, AtOrigin::Read(ticket, start));
                }
            }
        }
    }

    /// Copies blocks into a request's memory.
    fn give(&self, request: &OriginRequest, blocks: &[Vec<u8>]) {
        let (first, _) = self.blocks(request);
        let start = request.offset_bytes + self.shift_bytes;
        let end = start + request.len_bytes;
        for (block, data) in (first..).zip(blocks) {
            let block_start = block * BLOCK_BYTES as u64;
            let (from, to) = (start.max(block_start), end.min(block_start + BLOCK_BYTES as u64));
            let mut part = data[(from - block_start) as usize..(to - block_start) as usize].to_vec();
            copy(&request.iovecs, (from - start) as usize, &mut part, Direction::In);
        }
    }
}

impl Origin for BorrowedOrigin {
    fn begin(&mut self, context: &mut OriginContext<'_>) {
        self.inner(context, |origin, context| origin.begin(context));
    }

    fn start(&mut self, context: &mut OriginContext<'_>, request: OriginRequest) {
        let (first, last) = self.blocks(&request);
        let what = match request.op {
            OriginOp::Read => {
                self.next_token += 1;
                let lends_to_me = &*self.port.lends_to_me;
                if self.borrower.covers(last)
                    && self.borrower.read(context.now, self.next_token, first, last, lends_to_me)
                {
                    self.lent.insert(self.next_token, request);
                    return self.drive(context);
                }
                let ticket = self.borrower.read_begins(context.now);
                AtOrigin::Read(ticket, request.offset_bytes + self.shift_bytes)
            }
            OriginOp::Write | OriginOp::Zero { .. } => {
                self.borrower.write_begins(first, last);
                AtOrigin::Change(first, last)
            }
            OriginOp::Flush => AtOrigin::Flush,
        };
        self.at_origin(context, request, what);
        self.drive(context);
    }

    fn completed(&mut self, context: &mut OriginContext<'_>, token: u64, completion: Completion) {
        self.inner(context, |origin, context| origin.completed(context, token, completion));
        self.drive(context);
    }

    fn tick(&mut self, context: &mut OriginContext<'_>) {
        // Not only when it is due: it may have been told to look, as when a connection has arrived.
        self.inner(context, |origin, context| origin.tick(context));
        self.borrower.tick(context.now);
        self.drive(context);
    }

    fn grown(&mut self, context: &mut OriginContext<'_>, needed_bytes: u64) {
        self.void_lent(context);
        self.inner(context, |origin, context| origin.grown(context, needed_bytes));
        self.drive(context);
    }

    fn next_wakeup(&self) -> Option<Micros> {
        self.inner.next_wakeup().into_iter().chain(self.borrower.next_wakeup()).min()
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn close(&mut self, context: &mut OriginContext<'_>) {
        self.void_lent(context);
        self.inner(context, |origin, context| origin.close(context));
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn lender_said(&mut self, context: &mut OriginContext<'_>, from: HostId, message: Message) {
        self.borrower.heard(context.now, from, message);
        self.drive(context);
    }

    fn void_lent(&mut self, context: &mut OriginContext<'_>) {
        self.borrower.void_all(context.now);
        self.drive(context);
    }

    fn choose_lenders(&mut self, context: &mut OriginContext<'_>, hosts: &[HostId]) {
        self.borrower.choose(context.now, hosts);
        self.drive(context);
    }

    fn borrowed(&self, now: Micros) -> Option<(BorrowerFigures, Vec<AtLender>)> {
        Some((self.borrower.figures(), self.borrower.lenders(now)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Into the request's memory.
    In,
    /// Out of it.
    Out,
}

/// Copies between bytes and the memory of a request, from its byte `at` on.
fn copy(iovecs: &[libc::iovec], at: usize, bytes: &mut [u8], direction: Direction) {
    let (mut skip, mut done) = (at, 0);
    for iovec in iovecs {
        let start = skip.min(iovec.iov_len);
        skip -= start;
        let len = (iovec.iov_len - start).min(bytes.len() - done);
        // SAFETY: the iovec is part of the memory of a request that the origin has answered, or has not been given.
        // Nobody else uses that memory until the answer is passed on. `start` and `len` are inside it, and `done` and
        // `len` inside `bytes`.
        unsafe {
            let memory = iovec.iov_base.cast::<u8>().add(start);
            let place = bytes.as_mut_ptr().add(done);
            match direction {
                Direction::In => memory.copy_from_nonoverlapping(place, len),
                Direction::Out => place.copy_from_nonoverlapping(memory, len),
            }
        }
        done += len;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use haversack_model::{ArenaNo, DiskHandle, DiskId, DiskNo};

    use super::*;
    use crate::origin::nbd;
    use crate::ring::Ring;

    #[test]
    fn a_new_connection_of_the_origin_is_used() {
        let (inner, arrivals) = nbd::tests::away();
        let id = DiskId([1; 16]);
        let settings = BorrowerSettings { disk: id, disk_blocks: 256, epoch: 1, lenders: Vec::new() };
        let port =
            Port { send: Arc::new(|_, _, _| {}), room: Arc::new(|_| 0), lends_to_me: Arc::new(|_| false) };
        let mut origin = BorrowedOrigin::new(Box::new(inner), settings, 0, port);
        assert!(!origin.is_up(), "its connection was lost");

        let (socket, _server) = UnixStream::pair().unwrap();
        arrivals.send(Ok(nbd::tests::connection(socket))).unwrap();
        let (mut ring, disk) = (Ring::new().unwrap(), DiskHandle::new(ArenaNo(0), DiskNo(0), 1));
        let (mut answers, mut events) = (Vec::new(), Vec::new());
        let (ring, answers, events) = (&mut ring, &mut answers, &mut events);
        origin.tick(&mut OriginContext { ring, disk, id, now: 0, answers, events });
        assert!(origin.is_up());
    }

    #[test]
    fn pieces_of_memory_are_one_range() {
        let mut memory = [[0u8; 5], [0; 5], [0; 5]];
        let iovecs: Vec<libc::iovec> = memory
            .iter_mut()
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect();
        let mut bytes: Vec<u8> = (1..=8).collect();
        copy(&iovecs, 3, &mut bytes, Direction::In);
        let mut found = [0; 15];
        copy(&iovecs, 0, &mut found, Direction::Out);
        assert_eq!(found, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
    }
}
