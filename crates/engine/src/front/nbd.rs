//! NBD connections in their transmission phase. Negotiation and TLS are done before, by threads that may wait.
//!
//! Requests are read from one receive buffer; the payload of a long write is received straight into its slot. Replies
//! leave in batches, one send at a time.
//!
//! Invariants
//! - At most [`SLOTS`] requests of a connection are in flight, with as much payload as the pool's [`Budget`] grants. While
//!   a request waits for that, or [`MOST_UNSENT`] bytes of replies for the client, nothing is received and nothing started.
//! - Memory of a long payload is given by the system as the data comes, not when the header does.
//! - A slot is free again when its reply has left.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use haversack_core::{MAX_REQUEST_SECTORS, Op, RequestError};
use haversack_model::{DiskHandle, Micros, SECTOR_BYTES, SectorNo};
use haversack_nbd::{
    Command, CommandFlags, Errno, Extent, ExtentWriter, MetaContext, MetaContexts, Negotiated, Refusal,
    Replier, ReplyHead, Request, RequestReader, RequestRules, ServerError, Verdict,
};

use super::budget::Budget;
use super::{Asked, Client, ClientContext, ClientKind, Wish};
use crate::reactor::Finished;
use crate::ring::{Landing, Owner};

/// Requests in flight.
const SLOTS: usize = 256;
/// Bytes of replies that have not left, beyond which no request is started.
const MOST_UNSENT: usize = 4 << 20;
/// Bytes of a payload that are received at a time: the reactor has other clients.
const RECEIVED_AT_A_TIME: usize = 256 << 10;
const INPUT_BYTES: usize = 64 << 10;
/// Most replies of one send.
const REPLIES_AT_A_TIME: usize = 128;
/// A prefetch goes on in parts of so many sectors.
const PREFETCH_SECTORS: u32 = 2048;
/// Buffers larger than this are given back when their request is done, others if there are as many bytes of them.
const KEPT_BYTES: usize = 256 << 10;
const MOST_KEPT_BYTES: usize = 4 << 20;
/// Bytes of a block status reply of one context.
const STATUS_BYTES: usize = 16 << 10;

const RECEIVE: u8 = 0;
const SEND: u8 = 1;

/// A connection, past its negotiation, to become a client of a disk.
pub struct NbdClient {
    /// The disk that it reads and writes.
    pub disk: DiskHandle,
    /// The connection: a stream socket.
    pub socket: OwnedFd,
    /// What was agreed on.
    pub negotiated: Negotiated,
    /// Most NBD connections that the disk may have, this one included.
    pub max_connections: u32,
    /// Dropped when the connection has ended.
    pub held: Held,
    /// Who is at the other end: an address, or a process.
    pub peer: String,
}

/// What somebody holds on behalf of a connection, as long as that lasts: a place among those that there may be.
pub type Held = Arc<dyn Any + Send + Sync>;

struct Slot {
    request: Request,
    buffer: Vec<u8>,
    /// Bytes of the payload received.
    received: usize,
    started_us: Micros,
    /// Sectors that are not asked for yet, of requests that go in parts.
    next_sector: u64,
    left_sectors: u64,
    /// A flush is due when the rest is done.
    flushes: bool,
    free: bool,
}

struct Reply {
    head: Head,
    /// The slot that is free when the reply has left, and how much of its buffer follows the head.
    slot: Option<u32>,
    data_bytes: usize,
}

enum Head {
    Fixed(ReplyHead),
    Extents(Box<[u8]>),
}

impl Head {
    fn bytes(&self) -> &[u8] {
        match self {
            Head::Fixed(head) => head,
            Head::Extents(bytes) => bytes,
        }
    }
}

/// See the module.
pub(crate) struct NbdConnection {
    disk: DiskHandle,
    /// The export's name.
    name: String,
    peer: String,
    socket: OwnedFd,
    rules: RequestRules,
    replier: Replier,
    contexts: MetaContexts,
    reader: RequestReader,
    input: Box<[u8]>,
    /// What of the input is not parsed yet.
    unparsed: std::ops::Range<usize>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_core: usize,
    budget: Rc<Budget>,
    /// What it has of the budget.
    payload_bytes: usize,
    /// Bytes of buffers of slots that are free.
    kept_bytes: usize,
    /// Bytes of replies that have not left.
    unsent_bytes: usize,
    /// A request that waits for the budget.
    waiting: Option<Request>,
    /// The write whose payload is being received.
    filling: Option<u32>,
    receiving: bool,
    replies: VecDeque<Reply>,
    leaving: Vec<Reply>,
    is_sending: bool,
    /// No more requests are read.
    closing: bool,
    /// No more replies are sent.
    broken: bool,
    _held: Held,
}

impl NbdConnection {
    pub fn new(client: NbdClient, budget: Rc<Budget>) -> std::io::Result<NbdConnection> {
        // The ring waits for a socket only if the socket would.
        let socket = UnixStream::from(client.socket);
        socket.set_nonblocking(false)?;
        Ok(NbdConnection {
            disk: client.disk,
            name: client.negotiated.export.name.clone(),
            peer: client.peer,
            socket: socket.into(),
            rules: client.negotiated.rules(),
            replier: client.negotiated.replier(),
            contexts: client.negotiated.meta_contexts,
            reader: RequestReader::new(),
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            unparsed: 0..0,
            slots: Vec::new(),
            free: Vec::new(),
            in_core: 0,
            budget,
            payload_bytes: 0,
            kept_bytes: 0,
            unsent_bytes: 0,
            waiting: None,
            filling: None,
            receiving: false,
            replies: VecDeque::new(),
            leaving: Vec::new(),
            is_sending: false,
            closing: false,
            broken: false,
            _held: client.held,
        })
    }

    fn receive(&mut self, context: &mut ClientContext<'_>) {
        if self.receiving || self.closing || !self.unparsed.is_empty() || !self.has_room() {
            return;
        }
        let into = match self.filling {
            Some(slot) => {
                let slot = &mut self.slots[slot as usize];
                let end = (slot.request.length as usize).min(slot.received + RECEIVED_AT_A_TIME);
                &mut slot.buffer[slot.received..end]
            }
            None => &mut self.input[..],
        };
        let iovec = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let owner = Owner::Client { client: context.client, part: RECEIVE };
        context.ring.receive(owner, self.socket.as_raw_fd(), iovec, context.now);
        self.receiving = true;
    }

    fn has_room(&self) -> bool {
        let busy = self.slots.len() - self.free.len();
        self.filling.is_some() || busy < SLOTS && self.waiting.is_none() && self.unsent_bytes < MOST_UNSENT
    }

    fn received(&mut self, context: &mut ClientContext<'_>, result: Result<usize, i32>) {
        self.receiving = false;
        let bytes = match result {
            Ok(bytes) if bytes > 0 => bytes,
            _ => {
                self.closing = true;
                self.broken |= result.is_err();
                return;
            }
        };
        match self.filling {
            Some(slot) => self.payload_came(context, slot, bytes),
            None => self.unparsed = 0..bytes,
        }
        self.parse(context);
    }

    fn payload_came(&mut self, context: &mut ClientContext<'_>, slot: u32, bytes: usize) {
        self.reader.payload_taken(bytes as u32);
        let state = &mut self.slots[slot as usize];
        state.received += bytes;
        if state.received == state.request.length as usize {
            self.filling = None;
            self.ask(context, slot);
        } else {
            self.filling = Some(slot);
        }
    }

    fn parse(&mut self, context: &mut ClientContext<'_>) {
        if let Some(request) = self.waiting.take()
            && !self.closing
        {
            self.serve(context, request);
        }
        while !self.closing && self.has_room() && !self.unparsed.is_empty() {
            if let Err(error) = self.parse_one(context) {
                tracing::info!(disk = self.name, %error, "closing an NBD connection");
                self.closing = true;
            }
        }
        self.send(context);
        self.receive(context);
    }

    fn parse_one(&mut self, context: &mut ClientContext<'_>) -> Result<(), ServerError> {
        let mut input = &self.input[self.unparsed.clone()];
        let request = self.reader.read(&mut input)?;
        self.unparsed.start = self.unparsed.end - input.len();
        let Some(request) = request else { return Ok(()) };
        match self.rules.check(&request)? {
            Verdict::Serve => self.serve(context, request),
            Verdict::Nothing => self.reply(Head::Fixed(self.replier.success(&request)), None, 0),
            Verdict::Refuse(Refusal { errno, reason }) => {
                self.reader.skip_payload();
                self.reply(Head::Fixed(self.replier.error(&request, errno, reason)), None, 0);
            }
            Verdict::Disconnect => self.closing = true,
        }
        Ok(())
    }

    /// Starts a request, unless it has to wait for memory.
    fn serve(&mut self, context: &mut ClientContext<'_>, request: Request) {
        let bytes = payload_bytes(&request);
        if bytes > 0 && !self.budget.take(self.disk, self.payload_bytes, bytes) {
            self.waiting = Some(request);
            return;
        }
        self.payload_bytes += bytes;
        let slot = self.take_slot(request, context.now);
        if request.command != Command::Write {
            self.ask(context, slot);
            return;
        }
        let here = self.unparsed.len().min(request.length as usize);
        let from = self.unparsed.start;
        self.slots[slot as usize].buffer[..here].copy_from_slice(&self.input[from..from + here]);
        self.unparsed.start += here;
        self.payload_came(context, slot, here);
    }

    fn take_slot(&mut self, request: Request, now: Micros) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                request,
                buffer: Vec::new(),
                received: 0,
                started_us: 0,
                next_sector: 0,
                left_sectors: 0,
                flushes: false,
                free: true,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[number as usize];
        let bytes = payload_bytes(&request);
        self.kept_bytes -= slot.buffer.len();
        if slot.buffer.len() < bytes {
            // Zeroes of the system's: pages that are not there before they are written.
            slot.buffer = vec![0; bytes];
        }
        (slot.request, slot.received, slot.started_us, slot.free) = (request, 0, now, false);
        slot.next_sector = request.offset / SECTOR_BYTES as u64;
        slot.left_sectors = u64::from(request.length) / SECTOR_BYTES as u64;
        slot.flushes = match request.command {
            Command::Flush => true,
            Command::Trim | Command::WriteZeroes => request.flags.contains(CommandFlags::FUA),
            _ => false,
        };
        number
    }

    /// Asks for the next part of a request; false if all of it has been.
    fn ask(&mut self, context: &mut ClientContext<'_>, number: u32) -> bool {
        let slot = &mut self.slots[number as usize];
        let flags = slot.request.flags;
        let (op, most_sectors) = match slot.request.command {
            Command::Read => (Op::Read, MAX_REQUEST_SECTORS),
            Command::Cache => (Op::Read, PREFETCH_SECTORS),
            Command::Write => (Op::Write { fua: flags.contains(CommandFlags::FUA) }, MAX_REQUEST_SECTORS),
            Command::WriteZeroes if flags.contains(CommandFlags::NO_HOLE) => {
                (Op::WriteZeroes, MAX_REQUEST_SECTORS)
            }
            // Where the client lets the space be freed it gets zeroes either way.
            Command::WriteZeroes | Command::Trim => (Op::Discard, MAX_REQUEST_SECTORS),
            Command::BlockStatus => return self.ask_status(context, number),
            Command::Flush | Command::Disconnect | Command::Other(_) => (Op::Flush, 0),
        };
        let (op, sectors) = match slot.left_sectors.min(u64::from(most_sectors)) as u32 {
            0 if !std::mem::take(&mut slot.flushes) => return false,
            0 => (Op::Flush, 0),
            sectors => (op, sectors),
        };
        let sector = SectorNo(if op == Op::Flush { 0 } else { slot.next_sector });
        slot.next_sector += u64::from(sectors);
        slot.left_sectors -= u64::from(sectors);
        context.asked.push(Wish::Request(Asked { slot: number, disk: self.disk, op, sector, sectors }));
        self.in_core += 1;
        true
    }

    fn ask_status(&mut self, context: &mut ClientContext<'_>, number: u32) -> bool {
        let slot = &self.slots[number as usize];
        context.asked.push(Wish::Status {
            slot: number,
            sector: SectorNo(slot.next_sector),
            sectors: slot.left_sectors,
        });
        self.in_core += 1;
        true
    }

    fn reply(&mut self, head: Head, slot: Option<u32>, data_bytes: usize) {
        self.unsent_bytes += data_bytes;
        self.replies.push_back(Reply { head, slot, data_bytes });
    }

    fn send(&mut self, context: &mut ClientContext<'_>) {
        if self.is_sending || self.replies.is_empty() {
            return;
        }
        if self.broken {
            while let Some(reply) = self.replies.pop_front() {
                self.left(&reply);
            }
            return;
        }
        let count = self.replies.len().min(REPLIES_AT_A_TIME);
        self.leaving.extend(self.replies.drain(..count));
        let iovec =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let slots = &self.slots;
        let iovecs = self.leaving.iter().flat_map(|reply| {
            let data = reply.slot.map_or(&[][..], |slot| &slots[slot as usize].buffer[..reply.data_bytes]);
            [iovec(reply.head.bytes()), iovec(data)]
        });
        let owner = Owner::Client { client: context.client, part: SEND };
        context.ring.send(owner, self.socket.as_raw_fd(), iovecs.filter(|i| i.iov_len > 0), context.now);
        self.is_sending = true;
    }

    fn sent(&mut self, context: &mut ClientContext<'_>, result: Result<usize, i32>) {
        self.is_sending = false;
        while let Some(reply) = self.leaving.pop() {
            self.left(&reply);
        }
        if result.is_err() {
            (self.closing, self.broken) = (true, true);
        }
        self.parse(context);
    }

    /// A reply has left, or never will.
    fn left(&mut self, reply: &Reply) {
        self.unsent_bytes -= reply.data_bytes;
        let Some(number) = reply.slot else { return };
        let slot = &mut self.slots[number as usize];
        let bytes = payload_bytes(&slot.request);
        self.payload_bytes -= bytes;
        if bytes > 0 {
            self.budget.give(self.disk, bytes);
        }
        if slot.buffer.len() > KEPT_BYTES || self.kept_bytes + slot.buffer.len() > MOST_KEPT_BYTES {
            slot.buffer = Vec::new();
        }
        self.kept_bytes += slot.buffer.len();
        slot.free = true;
        self.free.push(number);
    }

    /// The client cannot be served any more.
    fn hang_up(&mut self) {
        self.closing = true;
        // SAFETY: the descriptor is open. Flights on it land.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Drop for NbdConnection {
    fn drop(&mut self) {
        if self.payload_bytes > 0 {
            self.budget.give(self.disk, self.payload_bytes);
        }
    }
}

/// Memory that a request needs.
fn payload_bytes(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.length as usize,
        _ => 0,
    }
}

fn words(error: RequestError) -> (Errno, String) {
    let errno = match error {
        RequestError::Detached | RequestError::NotOwner => Errno::ESHUTDOWN,
        RequestError::Origin | RequestError::DataLost | RequestError::PayloadLost => Errno::EIO,
    };
    (errno, error.to_string())
}

impl Client for NbdConnection {
    fn disk(&self) -> DiskHandle {
        self.disk
    }

    fn kind(&self) -> ClientKind {
        ClientKind::Nbd
    }

    fn peer(&self) -> Option<&str> {
        Some(&self.peer)
    }

    /// What is done in one turn leaves together in the next.
    fn is_polled(&self) -> bool {
        !self.is_sending && !self.replies.is_empty() || self.waiting.is_some() && !self.closing
    }

    fn poll(&mut self, context: &mut ClientContext<'_>) -> bool {
        let (had_replies, waited) = (!self.is_sending && !self.replies.is_empty(), self.waiting.is_some());
        if waited && !self.closing {
            self.parse(context);
        } else {
            self.send(context);
        }
        had_replies || waited && self.waiting.is_none()
    }

    fn begin(&mut self, context: &mut ClientContext<'_>) {
        self.receive(context);
    }

    fn landed(&mut self, context: &mut ClientContext<'_>, part: u8, landing: Landing) {
        match part {
            RECEIVE => self.received(context, landing.result),
            _ => self.sent(context, landing.result),
        }
    }

    fn complete(
        &mut self,
        context: &mut ClientContext<'_>,
        number: u32,
        result: Result<(), RequestError>,
    ) -> Option<Finished> {
        self.in_core -= 1;
        if result.is_ok() && self.ask(context, number) {
            return None;
        }
        let slot = &self.slots[number as usize];
        let request = slot.request;
        let done = Finished {
            op: match request.command {
                Command::Read | Command::Cache | Command::BlockStatus => Op::Read,
                Command::Flush => Op::Flush,
                _ => Op::Write { fua: false },
            },
            started_us: slot.started_us,
        };
        match result {
            Ok(()) if request.command == Command::Read => {
                self.reply(
                    Head::Fixed(self.replier.read_data(&request)),
                    Some(number),
                    request.length as usize,
                );
            }
            Ok(()) => self.reply(Head::Fixed(self.replier.success(&request)), Some(number), 0),
            Err(error) => {
                let (errno, reason) = words(error);
                self.reply(Head::Fixed(self.replier.error(&request, errno, &reason)), Some(number), 0);
            }
        }
        Some(done)
    }

    fn status(&mut self, _: &mut ClientContext<'_>, number: u32, runs: &[(u64, u32)]) {
        self.in_core -= 1;
        let request = self.slots[number as usize].request;
        let mut reply = Vec::new();
        let mut contexts = self.contexts.iter().peekable();
        while let Some(meta) = contexts.next() {
            let mut memory = vec![0; STATUS_BYTES];
            let mut writer =
                ExtentWriter::new(&mut memory, &request, meta).expect("there is room for an extent");
            let whole = [(u64::from(request.length) / SECTOR_BYTES as u64, 0)];
            // What is a hole only the origin knows, if anybody.
            let runs = if meta == MetaContext::Cache { runs } else { &whole };
            for (sectors, flags) in runs {
                let length = (sectors * SECTOR_BYTES as u64).min(u64::from(u32::MAX)) as u32;
                if !writer.push(Extent { length, flags: *flags }) {
                    break;
                }
            }
            let length = writer.finish(contexts.peek().is_none()).unwrap_or(0);
            reply.extend_from_slice(&memory[..length]);
        }
        self.reply(Head::Extents(reply.into_boxed_slice()), Some(number), 0);
    }

    fn resized(&mut self, sectors: u64) {
        self.rules.size_bytes = sectors * SECTOR_BYTES as u64;
    }

    fn take(&mut self, slot: u32, at: usize, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.slots[slot as usize].buffer[at..at + into.len()]);
        true
    }

    fn give(&mut self, slot: u32, at: usize, from: &[u8]) {
        let slot = &mut self.slots[slot as usize];
        if slot.request.command == Command::Read {
            slot.buffer[at..at + from.len()].copy_from_slice(from);
        }
    }

    fn close(&mut self, _: &mut ClientContext<'_>) {
        self.hang_up();
    }

    fn is_closed(&self) -> bool {
        self.closing && self.in_core == 0 && !self.receiving && !self.is_sending && self.replies.is_empty()
    }
}
