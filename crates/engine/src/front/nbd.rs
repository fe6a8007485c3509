//! NBD connections in the transmission phase. Threads that may block do negotiation and TLS before that.
//!
//! Requests are parsed from one receive buffer; the payload of a long write is received directly into its slot.
//! Replies are sent in batches, one send at a time, no longer than the disk's turn allows.
//!
//! Invariants
//! - A connection has at most [`SLOTS`] requests in flight, with as much payload as the pool's [`Budget`]
//!   grants. While a request waits for the budget, or [`MOST_UNSENT`] bytes or [`MOST_REPLIES`] of the replies are
//!   unsent, nothing is received and no request is started. So a client that does not read its replies takes no more
//!   memory, even if all its requests are refused.
//! - Memory for a long payload is allocated as the data arrives, not when the header does.
//! - A slot is free again when its reply has been sent.
//! - When the peer of a Unix socket has closed a connection, no request of it starts any more. Those that have started
//!   precede the requests of any later connection.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use haversack_core::{MAX_REQUEST_SECTORS, Op, RequestError};
use haversack_model::{DiskHandle, Micros, SECTOR_BYTES, SectorNo};
use haversack_nbd::{
    Command, CommandFlags, Errno, Extent, ExtentWriter, MetaContext, MetaContexts, Negotiated, Refusal,
    Replier, ReplyHead, Request, RequestReader, RequestRules, ServerError, Verdict,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::budget::Budget;
use super::payload::Payload;
use super::{Asked, Client, ClientContext, ClientKind, Wish};
use crate::message_limit::MessageLimit;
use crate::reactor::Finished;
use crate::ring::{Completion, Owner};

/// The most requests in flight.
const SLOTS: usize = 256;
/// Bytes of unsent replies beyond which no request is started.
const MOST_UNSENT: usize = 4 << 20;
/// The same as a number of replies. Requests in flight have at most [`SLOTS`]; refused ones take no slot.
const MOST_REPLIES: usize = 2 * SLOTS;
const INPUT_BYTES: usize = 64 << 10;
/// The most replies in one send.
const REPLIES_AT_A_TIME: usize = 128;
/// A prefetch is done in parts of this many sectors.
const PREFETCH_SECTORS: u32 = 2048;
/// The minimum that is sent at a time, if there is that much.
const LEAST_SENT: usize = 16 << 10;
/// Bytes of memory that free slots keep for their next requests.
const MOST_KEPT_BYTES: usize = 4 << 20;
/// Bytes of a block status reply of one context.
const STATUS_BYTES: usize = 16 << 10;
/// The most sectors of which one reply says whether they are cached: 16 MiB. The reactor looks up each block, and
/// serves nobody else meanwhile. The client asks again for the rest.
const STATUS_SECTORS: u64 = 32 << 10;

const RECEIVE: u8 = 0;
const SEND: u8 = 1;

static MESSAGES: LazyLock<MessageLimit> =
    LazyLock::new(|| MessageLimit::new("NBD connections that break the protocol"));

/// A negotiated connection that is to become a client of a disk.
pub struct NbdClient {
    /// The disk that it reads and writes.
    pub disk: DiskHandle,
    /// The connection: a stream socket.
    pub socket: OwnedFd,
    /// The result of the negotiation.
    pub negotiated: Negotiated,
    /// The most NBD connections that the disk may have, including this one.
    pub max_connections: u32,
    /// Dropped when the connection has ended.
    pub held: Held,
    /// The peer: an address, or a process.
    pub peer: String,
}

/// A resource held as long as a connection lasts, such as its place among the connections allowed.
pub type Held = Arc<dyn Any + Send + Sync>;

struct Slot {
    request: Request,
    payload: Payload,
    /// Bytes of the payload received so far.
    received: usize,
    started_us: Micros,
    /// Sectors not yet requested, for requests that are done in parts.
    next_sector: u64,
    left_sectors: u64,
    /// A flush is due when everything else is done.
    flushes: bool,
    free: bool,
}

struct Reply {
    head: Head,
    /// The slot to free when the reply has been sent, and how many bytes of its buffer follow the header.
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

/// See the module documentation.
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
    /// The range of the input that is not parsed yet.
    unparsed: std::ops::Range<usize>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_core: usize,
    budget: Rc<Budget>,
    /// Bytes that it holds of the budget.
    payload_bytes: usize,
    /// Bytes of memory kept by free slots.
    kept_bytes: usize,
    iovecs: Vec<libc::iovec>,
    /// Bytes of unsent replies.
    unsent_bytes: usize,
    /// A request that waits for the budget.
    waiting: Option<Request>,
    /// The write whose payload is being received.
    filling: Option<u32>,
    /// A receive is in flight; the bytes that were counted for it in advance.
    receiving: Option<i64>,
    replies: VecDeque<Reply>,
    /// The replies that are being sent. They stay in place while a send is in flight: the kernel reads their heads.
    leaving: VecDeque<Reply>,
    /// Bytes of the first reply in `leaving` that have been sent.
    gone_bytes: usize,
    /// Bytes of the send in flight.
    sending_bytes: Option<usize>,
    /// No more requests are read.
    closing: bool,
    /// No more replies are sent.
    broken: bool,
    _held: Held,
}

impl NbdConnection {
    pub fn new(client: NbdClient, budget: Rc<Budget>) -> std::io::Result<NbdConnection> {
        // The ring waits for a blocking socket only.
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
            iovecs: Vec::new(),
            unsent_bytes: 0,
            waiting: None,
            filling: None,
            receiving: None,
            replies: VecDeque::new(),
            leaving: VecDeque::new(),
            gone_bytes: 0,
            sending_bytes: None,
            closing: false,
            broken: false,
            _held: client.held,
        })
    }

    fn receive(&mut self, context: &mut ClientContext<'_>) {
        if !self.may_receive() || *context.socket_bytes <= 0 {
            return;
        }
        // The size of a header is counted when it has arrived; usually it is small.
        let (into, counts) = match self.filling {
            Some(slot) => {
                let slot = &mut self.slots[slot as usize];
                (slot.payload.piece_from(slot.received), true)
            }
            None => (&mut self.input[..], false),
        };
        let iovec = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let owner = Owner::Client { client: context.client, part: RECEIVE };
        context.ring.receive(owner, self.socket.as_raw_fd(), iovec, context.now);
        let counted = if counts { iovec.iov_len as i64 } else { 0 };
        *context.socket_bytes -= counted;
        self.receiving = Some(counted);
    }

    fn may_receive(&self) -> bool {
        self.receiving.is_none() && !self.closing && self.unparsed.is_empty() && self.has_room()
    }

    fn has_room(&self) -> bool {
        let busy = self.slots.len() - self.free.len();
        let may_reply = self.unsent_bytes < MOST_UNSENT && self.replies.len() < MOST_REPLIES;
        self.filling.is_some() || busy < SLOTS && self.waiting.is_none() && may_reply
    }

    fn received(&mut self, context: &mut ClientContext<'_>, result: Result<usize, i32>) {
        *context.socket_bytes += self.receiving.take().unwrap_or(0) - result.unwrap_or(0) as i64;
        let bytes = match result {
            Ok(bytes) if bytes > 0 => bytes,
            _ => {
                self.closing = true;
                self.broken |= result.is_err();
                return;
            }
        };
        if self.is_abandoned() {
            return;
        }
        match self.filling {
            Some(slot) => self.payload_came(context, slot, bytes),
            None => self.unparsed = 0..bytes,
        }
        self.parse(context);
    }

    /// Returns whether the peer has closed the connection, and breaks it if so. The peer may send the same requests
    /// again on another connection, and then other requests for the same blocks: no request of this connection may
    /// start after those.
    fn is_abandoned(&mut self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let is_gone = poll(&mut polled, Some(&now)).is_ok()
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        if is_gone {
            (self.closing, self.broken) = (true, true);
        }
        is_gone
    }

    /// Continues with what could not be handled when it was received.
    fn resume(&mut self, context: &mut ClientContext<'_>) {
        if self.waiting.is_none() && self.unparsed.is_empty() || !self.is_abandoned() {
            self.parse(context);
        }
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
                MESSAGES.tell(|| tracing::info!(disk = self.name, %error, "closing an NBD connection"));
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

    /// Starts a request, unless it must wait for memory.
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
        self.slots[slot as usize].payload.put(0, &self.input[from..from + here]);
        self.unparsed.start += here;
        self.payload_came(context, slot, here);
    }

    fn take_slot(&mut self, request: Request, now: Micros) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                request,
                payload: Payload::default(),
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
        self.kept_bytes -= slot.payload.memory_bytes();
        slot.payload.begin(payload_bytes(&request));
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

    /// Submits the next part of a request; returns false if there is none left.
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
            // The client allows the space to be freed; it reads zeroes afterwards in any case.
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
        // Without this context, nothing needs to be looked up.
        let most_sectors = if self.contexts.cache { STATUS_SECTORS } else { 0 };
        context.asked.push(Wish::Status {
            slot: number,
            sector: SectorNo(slot.next_sector),
            sectors: slot.left_sectors.min(most_sectors),
        });
        self.in_core += 1;
        true
    }

    fn reply(&mut self, head: Head, slot: Option<u32>, data_bytes: usize) {
        self.unsent_bytes += data_bytes;
        self.replies.push_back(Reply { head, slot, data_bytes });
    }

    fn send(&mut self, context: &mut ClientContext<'_>) {
        if !self.has_to_send() || *context.socket_bytes <= 0 {
            return;
        }
        if self.broken {
            self.gone_bytes = 0;
            while let Some(reply) = self.leaving.pop_front().or_else(|| self.replies.pop_front()) {
                self.left(&reply);
            }
            return;
        }
        let count = self.replies.len().min(REPLIES_AT_A_TIME.saturating_sub(self.leaving.len()));
        self.leaving.extend(self.replies.drain(..count));
        let iovec =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let most = LEAST_SENT.max(*context.socket_bytes as usize);
        let (mut skip, mut bytes) = (self.gone_bytes, 0);
        self.iovecs.clear();
        for reply in &self.leaving {
            let head = &reply.head.bytes()[skip.min(reply.head.bytes().len())..];
            let mut at = skip.saturating_sub(reply.head.bytes().len());
            self.iovecs.extend((!head.is_empty()).then(|| iovec(head)));
            bytes += head.len();
            while at < reply.data_bytes && bytes < most {
                let slot = reply.slot.expect("data is of a slot");
                let piece = self.slots[slot as usize].payload.piece_from(at);
                let piece = &piece[..piece.len().min(most - bytes)];
                self.iovecs.push(iovec(piece));
                (at, bytes) = (at + piece.len(), bytes + piece.len());
            }
            if bytes >= most {
                break;
            }
            skip = 0;
        }
        let owner = Owner::Client { client: context.client, part: SEND };
        let iovecs = self.iovecs.iter().copied();
        context.ring.send(owner, self.socket.as_raw_fd(), iovecs, context.now);
        *context.socket_bytes -= bytes as i64;
        self.sending_bytes = Some(bytes);
    }

    fn has_to_send(&self) -> bool {
        self.sending_bytes.is_none() && !(self.replies.is_empty() && self.leaving.is_empty())
    }

    fn sent(&mut self, context: &mut ClientContext<'_>, result: Result<usize, i32>) {
        self.gone_bytes += self.sending_bytes.take().unwrap_or(0);
        while let Some(reply) = self.leaving.front() {
            let reply_bytes = reply.head.bytes().len() + reply.data_bytes;
            if self.gone_bytes < reply_bytes {
                break;
            }
            self.gone_bytes -= reply_bytes;
            let reply = self.leaving.pop_front().expect("it was there");
            self.left(&reply);
        }
        if let Some(Reply { head, slot: Some(slot), .. }) = self.leaving.front() {
            let gone = self.gone_bytes.saturating_sub(head.bytes().len());
            self.slots[*slot as usize].payload.has_left(gone);
        }
        if result.is_err() {
            (self.closing, self.broken) = (true, true);
        }
        self.resume(context);
    }

    /// Frees a reply's resources: it has been sent, or never will be.
    fn left(&mut self, reply: &Reply) {
        self.unsent_bytes -= reply.data_bytes;
        let Some(number) = reply.slot else { return };
        let slot = &mut self.slots[number as usize];
        let bytes = payload_bytes(&slot.request);
        self.payload_bytes -= bytes;
        if bytes > 0 {
            self.budget.give(self.disk, bytes);
        }
        slot.payload.end(self.kept_bytes < MOST_KEPT_BYTES);
        self.kept_bytes += slot.payload.memory_bytes();
        slot.free = true;
        self.free.push(number);
    }

    /// Closes a connection that cannot be served any more.
    fn hang_up(&mut self) {
        self.closing = true;
        // This completes all I/O on the socket. An error means that the peer has already disconnected.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Drop for NbdConnection {
    fn drop(&mut self) {
        if self.payload_bytes > 0 {
            self.budget.give(self.disk, self.payload_bytes);
        }
    }
}

/// Returns the memory that a request needs.
fn payload_bytes(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.length as usize,
        _ => 0,
    }
}

fn words(error: RequestError) -> (Errno, String) {
    let errno = match error {
        RequestError::Detached | RequestError::NotOwner => Errno::ESHUTDOWN,
        RequestError::Origin
        | RequestError::PeerLost
        | RequestError::DataLost
        | RequestError::PayloadLost => Errno::EIO,
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

    /// Returns whether there is something to send, receive or start. Replies of a turn are sent at its end; what
    /// the turn did not allow continues in the next one.
    fn is_polled(&self) -> bool {
        self.has_to_send() || self.may_receive() || self.waiting.is_some() && !self.closing
    }

    fn poll(&mut self, context: &mut ClientContext<'_>) -> bool {
        let waited = self.waiting.is_some();
        let before = *context.socket_bytes;
        if waited && !self.closing {
            self.resume(context);
        } else {
            self.send(context);
            self.receive(context);
        }
        let goes_on = self.has_to_send() || self.may_receive();
        *context.socket_bytes != before || goes_on || waited && self.waiting.is_none()
    }

    fn flush(&mut self, context: &mut ClientContext<'_>) {
        self.send(context);
    }

    fn begin(&mut self, context: &mut ClientContext<'_>) {
        self.receive(context);
    }

    fn completed(&mut self, context: &mut ClientContext<'_>, part: u8, completion: Completion) {
        match part {
            RECEIVE => self.received(context, completion.result),
            _ => self.sent(context, completion.result),
        }
    }

    fn complete(
        &mut self,
        context: &mut ClientContext<'_>,
        number: u32,
        result: Result<(), RequestError>,
    ) -> Option<Finished> {
        self.in_core -= 1;
        let has_parts_left = self.slots[number as usize].left_sectors > 0;
        if result.is_ok() && !(has_parts_left && self.is_abandoned()) && self.ask(context, number) {
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
            // Only the origin knows about holes.
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
        self.slots[slot as usize].payload.get(at, into);
        true
    }

    fn give(&mut self, slot: u32, at: usize, from: &[u8]) {
        let slot = &mut self.slots[slot as usize];
        if slot.request.command == Command::Read {
            slot.payload.put(at, from);
        }
    }

    fn close(&mut self, _: &mut ClientContext<'_>) {
        self.hang_up();
    }

    fn is_leaving(&self) -> bool {
        self.closing
    }

    fn is_closed(&self) -> bool {
        self.closing
            && self.in_core == 0
            && self.receiving.is_none()
            && self.sending_bytes.is_none()
            && self.replies.is_empty()
            && self.leaving.is_empty()
    }
}
