//! NBD servers as origins: several connections, reconnected indefinitely, with requests waiting while there is
//! none.
//!
//! A separate thread (`connector.rs`) connects and negotiates, since both may block; the reactor gets
//! connections in the transmission phase. A request may be sent several times: all origin requests can be
//! repeated.
//!
//! Invariants
//! - A request is answered when its reply has arrived, or when its time is over and no I/O in flight uses its
//!   memory.
//! - Writes that a server acknowledged and did not flush may be lost with the connection. The next flush by
//!   their writer then fails, so that they are not taken for durable. The cleaner writes them again; a guest,
//!   whose writes went past the cache, gets the error.
//! - A request that must be durable is sent with FUA or, if the server has no FUA, written and then flushed; if
//!   any connection is lost before that flush has ended, it is written again. Without a connection it is
//!   refused soon, since the cache takes its data.
//! - A server that says it is shutting down counts as gone: an answer that says so counts as no answer, and the
//!   connection ends.
//! - A connection whose other host no longer answers at all ends, even if others work: requests on it would wait.
//! - A server reports an export's size once for each connection. When the disk has grown, each connection is
//!   replaced. The new one is made before the old one is closed, so a server that has gone away is noticed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use haversack_core::{IoFailure, OriginMedia, Writer};
use haversack_model::{DiskHandle, Micros};
use haversack_nbd::{Command, CommandFlags, Errno, TransmissionFlags};

use super::connector::{self, Connection, Server};
use super::link::{Link, Part};
use super::{OpenOrigin, Origin, OriginAnswer, OriginContext, OriginOp, OriginRequest, check_size};
use crate::arena::ArenaHandle;
use crate::config::{DiskSpec, OriginSpec, TlsFiles};
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::ring::Completion;

/// The size of the longest part that a request is split into.
const MOST_PART_BYTES: u64 = 1 << 20;
/// How long flushes fail after a reconnect, if the lost connection had unflushed writes.
const DOUBT_US: Micros = 1_000_000;
/// How long a request that must be durable waits if there is no connection.
const REFUSE_AFTER_US: Micros = 1_000_000;

/// How often connections with requests are checked for whether the other host still answers.
const LOOK_EVERY_US: Micros = 1_000_000;

/// A request in progress.
struct Job {
    request: OriginRequest,
    /// Bytes of it that have been queued on a connection.
    next_bytes: u64,
    outstanding: u32,
    failed: Option<IoFailure>,
    /// The number of writes acknowledged when a flush began.
    covers: u64,
    /// Every part sent so far is durable once the server acknowledges it.
    durable: bool,
    /// All is written but not durable, and must be: the next thing to send is a flush.
    flushing: bool,
}

impl Job {
    /// Returns the operation to send next.
    fn op(&self) -> OriginOp {
        if self.flushing { OriginOp::Flush } else { self.request.op }
    }

    /// Returns whether a flush is still needed to make it durable.
    fn needs_flush(&self) -> bool {
        self.request.durable && !self.durable
    }

    /// Returns the number of bytes to send.
    fn len_bytes(&self) -> u64 {
        if self.flushing { 0 } else { self.request.len_bytes }
    }
}

/// The durability of one writer's writes.
#[derive(Default)]
struct Durability {
    /// Number of acknowledged writes, and how many of them were flushed.
    written: u64,
    flushed: u64,
    /// Set when a connection was lost with unflushed writes: flushes fail until then, and at least one does.
    doubt_until_us: Option<Micros>,
}

impl Durability {
    fn connection_lost(&mut self) {
        if self.flushed < self.written {
            (self.flushed, self.doubt_until_us) = (self.written, Some(Micros::MAX));
        }
    }

    /// Returns whether a flush must fail. One flush fails even after `doubt_until_us`, which is set by the
    /// reconnect.
    fn fails_flush(&mut self, now: Micros) -> bool {
        self.doubt_until_us.take_if(|until| now > *until).is_some() || self.doubt_until_us.is_some()
    }
}

/// See the module documentation.
pub(crate) struct NbdOrigin {
    uri: String,
    /// The disk's size, shared with the connector.
    needed_bytes: Arc<AtomicU64>,
    links: Vec<Option<Link>>,
    jobs: Vec<Option<Job>>,
    /// Jobs with parts left to send.
    waiting: VecDeque<u32>,
    wait_us: Micros,
    /// Requests connections from the connector; dropping it ends the thread.
    wanted: Sender<usize>,
    arrived: Receiver<std::result::Result<Connection, String>>,
    told_away: bool,
    /// When connections are checked next.
    next_look_us: Micros,
    of_cleaner: Durability,
    of_guest: Durability,
    closing: bool,
}

fn bad(uri: &str, why: impl std::fmt::Display) -> EngineError {
    EngineError::Origin { origin: uri.to_string(), why: why.to_string() }
}

fn connect(uri: &str, tls: &TlsFiles, wait: Duration) -> Result<(Server, Connection)> {
    let server = Server { uri: uri.parse().map_err(|e| bad(uri, e))?, tls: tls.clone(), context: None };
    let connection = connector::connect_within(&server, wait).map_err(|e| bad(uri, e))?;
    let minimum_bytes = connection.connected.block_size.minimum_bytes();
    if minimum_bytes > 512 {
        let why = format!("serves only whole blocks of {minimum_bytes} bytes; the disk needs 512");
        return Err(bad(uri, why));
    }
    Ok((server, connection))
}

fn check_writable(uri: &str, connection: &Connection) -> Result<()> {
    if connection.connected.flags.contains(TransmissionFlags::READ_ONLY) {
        return Err(bad(uri, "is read-only; export it writable"));
    }
    Ok(())
}

/// Connects to a disk's origin.
pub(super) fn open(spec: &DiskSpec, needed_bytes: u64, handle: &ArenaHandle) -> Result<OpenOrigin> {
    let OriginSpec::Nbd { uri, connections, tls } = &spec.origin else {
        unreachable!("the caller has looked")
    };
    let (server, first) = connect(uri, tls, spec.origin_wait)?;
    if !spec.read_only {
        check_writable(uri, &first)?;
    }
    check_size(uri, first.connected.size_bytes, needed_bytes)?;
    let several = first.connected.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
    let count = if several { usize::from((*connections).max(1)) } else { 1 };
    let (uri, handle) = (uri.clone(), handle.clone());
    let wait_us = spec.origin_wait.as_micros() as Micros;
    let make = move |disk: DiskHandle| -> Box<dyn Origin> {
        let needed_bytes = Arc::new(AtomicU64::new(needed_bytes));
        let (wanted, arrived) = connector::start(server, needed_bytes.clone(), disk, handle);
        let links = std::iter::once(Some(Link::new(first))).chain((1..count).map(|_| None)).collect();
        for place in 1..count {
            let _ = wanted.send(place);
        }
        Box::new(NbdOrigin {
            uri,
            needed_bytes,
            links,
            jobs: Vec::new(),
            waiting: VecDeque::new(),
            wait_us,
            wanted,
            arrived,
            told_away: false,
            next_look_us: 0,
            of_cleaner: Durability::default(),
            of_guest: Durability::default(),
            closing: false,
        })
    };
    Ok(OpenOrigin { make: Box::new(make) })
}

/// Returns the size of an export.
pub(super) fn size_bytes(uri: &str, tls: &TlsFiles, wait: Duration) -> Result<u64> {
    Ok(connect(uri, tls, wait)?.1.connected.size_bytes)
}

/// Connects for work without a reactor.
pub(super) fn open_offline(uri: &str, tls: &TlsFiles) -> Result<Box<dyn OriginMedia>> {
    let (_, connection) = connect(uri, tls, Duration::from_secs(10))?;
    check_writable(uri, &connection)?;
    Ok(Box::new(super::offline_nbd::OfflineNbd::new(connection)))
}

impl NbdOrigin {
    fn take_job(&mut self, request: OriginRequest) -> u32 {
        let at = self.jobs.iter().position(Option::is_none).unwrap_or(self.jobs.len());
        if at == self.jobs.len() {
            self.jobs.push(None);
        }
        let covers = self.durability(request.writer).written;
        self.jobs[at] = Some(Job {
            request,
            next_bytes: 0,
            outstanding: 0,
            failed: None,
            covers,
            durable: true,
            flushing: false,
        });
        at as u32
    }

    fn job(&mut self, number: u32) -> &mut Job {
        self.jobs[number as usize].as_mut().expect("a job that waits or has parts is known")
    }

    /// Sends waiting jobs, as far as the connections have room.
    fn send_waiting(&mut self, context: &mut OriginContext<'_>) {
        while let Some(number) = self.waiting.front().copied() {
            if self.in_doubt(number, context.now) {
                self.waiting.pop_front();
                self.job(number).failed = Some(IoFailure::Error);
                self.finish_if_done(context, number);
                continue;
            }
            match self.send_part(number) {
                Sent::All => {
                    self.waiting.pop_front();
                    self.finish_if_done(context, number);
                }
                Sent::Some => {}
                Sent::NoRoom => break,
            }
        }
        for (place, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                let jobs = &self.jobs;
                link.send(context, place, |job| {
                    jobs[job as usize].as_ref().map_or(&[], |job| &job.request.iovecs[..])
                });
            }
        }
    }

    fn durability(&mut self, writer: Writer) -> &mut Durability {
        if writer == Writer::Cleaner { &mut self.of_cleaner } else { &mut self.of_guest }
    }

    /// Returns whether the job is a flush that must fail because writes that it should cover may be lost.
    fn in_doubt(&mut self, number: u32, now: Micros) -> bool {
        let request = &self.job(number).request;
        let (flushes, writer) = (request.op == OriginOp::Flush, request.writer);
        flushes && self.durability(writer).fails_flush(now)
    }

    fn send_part(&mut self, number: u32) -> Sent {
        let best = self.links.iter().enumerate().filter_map(|(at, l)| Some((l.as_ref()?.room(), at))).max();
        let Some((room, place)) = best else { return Sent::NoRoom };
        if room == 0 {
            return Sent::NoRoom;
        }
        let job = self.jobs[number as usize].as_mut().expect("a job that waits is known");
        let link = self.links[place].as_mut().expect("it was just chosen");
        let flags = link.features();
        let has_fua = flags.contains(TransmissionFlags::SEND_FUA);
        let is_zeroing = matches!(job.request.op, OriginOp::Zero { .. });
        // Zeroes are always made durable immediately: a guest does not regard them as writes that it has to flush.
        let fua = if has_fua && (job.request.durable || is_zeroing) {
            CommandFlags::FUA
        } else {
            CommandFlags::NONE
        };
        let (command, command_flags) = match job.op() {
            OriginOp::Read => (Command::Read, CommandFlags::NONE),
            OriginOp::Write => (Command::Write, fua),
            OriginOp::Flush if !flags.contains(TransmissionFlags::SEND_FLUSH) => return Sent::All,
            OriginOp::Flush => (Command::Flush, CommandFlags::NONE),
            OriginOp::Zero { .. } if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) => {
                (Command::Write, fua)
            }
            OriginOp::Zero { discard } => {
                let no_hole = if discard { CommandFlags::NONE } else { CommandFlags::NO_HOLE };
                (Command::WriteZeroes, fua | no_hole)
            }
        };
        let most = MOST_PART_BYTES.min(link.most_payload_bytes());
        let left = job.len_bytes() - job.next_bytes;
        let length = if command == Command::WriteZeroes { left } else { left.min(most) };
        let offset_bytes = job.request.offset_bytes + job.next_bytes;
        let part = Part { job: number, at_bytes: job.next_bytes, offset_bytes, length: length as u32 };
        if !link.start(command, command_flags, part, is_zeroing) {
            job.failed = Some(IoFailure::Error);
            return Sent::All;
        }
        job.durable &= job.flushing || command_flags.contains(CommandFlags::FUA);
        job.outstanding += 1;
        job.next_bytes += length;
        if job.next_bytes == job.len_bytes() { Sent::All } else { Sent::Some }
    }

    fn finish_if_done(&mut self, context: &mut OriginContext<'_>, number: u32) {
        let job = self.job(number);
        let waits = job.failed.is_none() && job.next_bytes < job.len_bytes();
        if job.outstanding > 0 || waits {
            return;
        }
        if job.failed.is_none() && job.needs_flush() && !job.flushing {
            (job.flushing, job.next_bytes) = (true, 0);
            self.waiting.retain(|waiting| *waiting != number);
            self.waiting.push_back(number);
            return;
        }
        let job = self.jobs[number as usize].take().expect("it was just looked at");
        self.waiting.retain(|waiting| *waiting != number);
        if job.failed.is_none() {
            match job.request.op {
                OriginOp::Write | OriginOp::Zero { .. } if job.durable || job.flushing => {}
                OriginOp::Write | OriginOp::Zero { .. } => self.durability(job.request.writer).written += 1,
                OriginOp::Flush => {
                    let durability = self.durability(job.request.writer);
                    durability.flushed = durability.flushed.max(job.covers);
                }
                OriginOp::Read => {}
            }
        }
        context.answers.push(OriginAnswer { request: job.request, result: job.failed.map_or(Ok(()), Err) });
    }

    /// Handles the end of a connection: its requests in flight wait for the next one.
    fn link_ended(&mut self, context: &mut OriginContext<'_>, place: usize) {
        let Some(link) = self.links[place].take_if(|link| link.is_over()) else { return };
        let replaced = link.is_retired() && self.has_successor();
        if !self.closing && !link.is_retired() {
            tracing::warn!(
                origin = self.uri,
                disk = %context.id,
                why = link.why(),
                "connection to the origin lost"
            );
            let _ = self.wanted.send(place);
        }
        // A server whose connections are coherent flushes writes of all of them.
        if !(replaced && link.features().contains(TransmissionFlags::CAN_MULTI_CONN)) {
            self.of_cleaner.connection_lost();
            self.of_guest.connection_lost();
            self.write_again();
        }
        for part in link.into_parts() {
            self.send_again(context, part);
        }
        if self.links.iter().all(Option::is_none) && !self.closing && !self.told_away {
            self.told_away = true;
            let why = "all connections are lost".to_string();
            context.events.push(EngineEvent::OriginAway { disk: context.id, why });
        }
        self.send_waiting(context);
    }

    /// Queues a part again whose connection ended without a reply.
    fn send_again(&mut self, context: &mut OriginContext<'_>, part: Part) {
        let job = self.job(part.job);
        job.outstanding -= 1;
        if job.failed.is_some() {
            self.finish_if_done(context, part.job);
            return;
        }
        // Resend from the lowest part on; repeating the others is harmless.
        job.next_bytes = job.next_bytes.min(part.at_bytes);
        if !self.waiting.contains(&part.job) {
            self.waiting.push_back(part.job);
        }
    }

    /// Restarts requests that were written but not flushed, since the data may be lost with a connection.
    fn write_again(&mut self) {
        for (number, job) in self.jobs.iter_mut().enumerate() {
            let Some(job) = job.as_mut().filter(|job| job.needs_flush() && job.failed.is_none()) else {
                continue;
            };
            (job.flushing, job.next_bytes) = (false, 0);
            if !self.waiting.contains(&(number as u32)) {
                self.waiting.push_back(number as u32);
            }
        }
    }

    /// Returns when a request is given up.
    fn deadline_us(&self, request: &OriginRequest) -> Micros {
        let away = self.links.iter().all(Option::is_none);
        let most_us = if away && request.durable { REFUSE_AFTER_US } else { Micros::MAX };
        request.started_us + self.wait_us.min(most_us)
    }

    fn take_arrivals(&mut self, context: &mut OriginContext<'_>) {
        while let Ok(arrival) = self.arrived.try_recv() {
            match arrival {
                // The disk is detached: nothing would end the connection any more.
                _ if self.closing => {}
                Ok(connection) => {
                    let mut link = Link::new(connection);
                    let place = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
                    if place == self.links.len() {
                        self.links.push(None);
                    }
                    if link.size_bytes() < self.needed_bytes.load(Ordering::Relaxed) {
                        // The disk has grown while this connection was being made.
                        let _ = self.wanted.send(place);
                        continue;
                    }
                    link.begin(context, place);
                    self.links[place] = Some(link);
                    // The cleaner has one flush at a time, and that one fails.
                    self.of_cleaner.doubt_until_us = self.of_cleaner.doubt_until_us.map(|_| context.now);
                    self.of_guest.doubt_until_us =
                        self.of_guest.doubt_until_us.map(|_| context.now + DOUBT_US);
                    if std::mem::take(&mut self.told_away) {
                        context.events.push(EngineEvent::OriginBack { disk: context.id });
                    }
                }
                Err(why) => context.events.push(EngineEvent::OriginAway { disk: context.id, why }),
            }
        }
        self.end_retired();
        self.send_waiting(context);
    }

    fn has_successor(&self) -> bool {
        self.links.iter().flatten().any(|link| !link.is_retired())
    }

    /// Closes retired connections that are idle, once there is a new one.
    fn end_retired(&mut self) {
        if self.has_successor() {
            let retired = self.links.iter_mut().flatten().filter(|link| link.is_retired() && link.is_idle());
            retired.for_each(|link| link.hang_up("the disk has grown"));
        }
    }

    /// Ends connections to a host that no longer answers.
    fn end_cut(&mut self, context: &OriginContext<'_>) {
        if context.now < self.next_look_us {
            return;
        }
        self.next_look_us = context.now + LOOK_EVERY_US;
        for link in self.links.iter_mut().flatten().filter(|link| link.needs_watch() && link.is_cut()) {
            link.hang_up("the server's host does not answer");
        }
    }

    /// Gives up requests that have timed out. If one is on a connection, that connection is closed first.
    fn give_up_old(&mut self, context: &mut OriginContext<'_>) {
        for number in 0..self.jobs.len() as u32 {
            let Some(job) = self.jobs[number as usize].as_ref() else { continue };
            if context.now < self.deadline_us(&job.request) {
                continue;
            }
            let job = self.job(number);
            job.failed = Some(IoFailure::Gone);
            let is_sent = job.outstanding > 0;
            if is_sent {
                for link in self.links.iter_mut().flatten().filter(|link| link.carries(number)) {
                    link.hang_up("no reply in time");
                }
            }
            self.finish_if_done(context, number);
        }
    }
}

enum Sent {
    All,
    Some,
    NoRoom,
}

impl Origin for NbdOrigin {
    fn begin(&mut self, context: &mut OriginContext<'_>) {
        for (place, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                link.begin(context, place);
            }
        }
    }

    fn start(&mut self, context: &mut OriginContext<'_>, request: OriginRequest) {
        let job = self.take_job(request);
        self.waiting.push_back(job);
        self.send_waiting(context);
    }

    fn completed(&mut self, context: &mut OriginContext<'_>, token: u64, completion: Completion) {
        let place = (token / 2) as usize;
        let Some(link) = self.links[place].as_mut() else { return };
        let jobs = &self.jobs;
        link.completed(context, place, token.is_multiple_of(2), completion.result, |job| {
            jobs[job as usize].as_ref().map_or(&[], |job| &job.request.iovecs[..])
        });
        while let Some((part, result)) = self.links[place].as_mut().and_then(Link::next_done) {
            if result == Err(Errno::ESHUTDOWN) {
                if let Some(link) = self.links[place].as_mut().filter(|link| link.why().is_empty()) {
                    link.hang_up("the server is shutting down");
                    context.events.push(EngineEvent::OriginShutsDown { disk: context.id });
                }
                self.send_again(context, part);
                continue;
            }
            let job = self.job(part.job);
            job.outstanding -= 1;
            if result.is_err() {
                job.failed.get_or_insert(IoFailure::Error);
            }
            self.finish_if_done(context, part.job);
        }
        self.end_retired();
        self.link_ended(context, place);
        self.send_waiting(context);
    }

    fn grown(&mut self, _: &mut OriginContext<'_>, needed_bytes: u64) {
        self.needed_bytes.store(needed_bytes, Ordering::Relaxed);
        for (place, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link.as_mut().filter(|link| link.size_bytes() < needed_bytes) {
                link.retire();
                let _ = self.wanted.send(place);
            }
        }
    }

    fn tick(&mut self, context: &mut OriginContext<'_>) {
        self.take_arrivals(context);
        self.end_cut(context);
        self.give_up_old(context);
    }

    fn next_wakeup(&self) -> Option<Micros> {
        // If a part has failed, the others still have to be answered in time. What was given up waits only for the end
        // of its connection.
        let waits = |job: &&Job| !matches!(job.failed, Some(IoFailure::Gone));
        let deadlines = self.jobs.iter().flatten().filter(waits).map(|job| self.deadline_us(&job.request));
        let is_watched = self.links.iter().flatten().any(Link::needs_watch);
        deadlines.chain(is_watched.then_some(self.next_look_us)).min()
    }

    fn is_up(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }

    fn close(&mut self, context: &mut OriginContext<'_>) {
        self.closing = true;
        for place in 0..self.links.len() {
            if let Some(link) = &mut self.links[place] {
                link.hang_up("the disk is detached");
            }
            self.link_ended(context, place);
        }
    }

    fn is_closed(&self) -> bool {
        self.links.iter().all(Option::is_none)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    use haversack_core::IoId;
    use haversack_model::{ArenaNo, DiskId, DiskNo};
    use haversack_nbd::{BlockSize, Connected, REQUEST_BYTES};

    use super::super::wire::{self, Wire};
    use super::*;
    use crate::ring::{Owner, Ring};

    const WAIT_US: Micros = 1000;

    type Arrivals = Sender<std::result::Result<Connection, String>>;

    /// Returns a connection to an export of 1 MiB.
    pub fn connection(socket: UnixStream) -> Connection {
        Connection { socket: socket.into(), connected: connected(), wire: None }
    }

    /// Returns an origin that is not connected, and where its connections come from.
    pub fn away() -> (NbdOrigin, Arrivals) {
        let (arrivals, arrived) = channel();
        let origin = NbdOrigin {
            uri: "nbd://host/disk".into(),
            needed_bytes: Arc::default(),
            links: Vec::new(),
            jobs: Vec::new(),
            waiting: VecDeque::new(),
            wait_us: WAIT_US,
            wanted: channel().0,
            arrived,
            told_away: false,
            next_look_us: 0,
            of_cleaner: Durability::default(),
            of_guest: Durability::default(),
            closing: false,
        };
        (origin, arrivals)
    }

    fn with_context(ring: &mut Ring, now: Micros, call: impl FnOnce(&mut OriginContext<'_>)) {
        let (mut answers, mut events) = (Vec::new(), Vec::new());
        let (disk, id) = (DiskHandle::new(ArenaNo(0), DiskNo(0), 1), DiskId([1; 16]));
        call(&mut OriginContext { ring, disk, id, now, answers: &mut answers, events: &mut events });
        assert!(answers.is_empty());
    }

    fn tick(origin: &mut NbdOrigin, ring: &mut Ring, now: Micros) {
        with_context(ring, now, |context| origin.tick(context));
    }

    fn connected() -> Connected {
        Connected {
            size_bytes: 1 << 20,
            flags: TransmissionFlags::HAS_FLAGS,
            block_size: BlockSize::CLIENT_DEFAULT,
            structured_replies: false,
            context_id: None,
            tls: false,
        }
    }

    fn read(len_bytes: u64) -> OriginRequest {
        OriginRequest {
            io: IoId(1),
            op: OriginOp::Read,
            writer: Writer::Guest,
            durable: false,
            offset_bytes: 0,
            len_bytes,
            iovecs: Vec::new(),
            started_us: 0,
        }
    }

    #[test]
    fn a_connection_that_comes_after_the_detach_is_not_used() {
        let (mut origin, arrivals) = away();
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        arrivals.send(Ok(connection(socket))).unwrap();
        origin.closing = true;
        tick(&mut origin, &mut Ring::new().unwrap(), 0);
        assert!(origin.is_closed(), "nothing ends it, so the disk can never be attached again");
        assert_eq!(std::io::Read::read(&mut theirs, &mut [0]).unwrap(), 0, "it is closed");
    }

    #[test]
    fn a_request_of_which_a_part_has_failed_is_given_up_in_time() {
        let (mut origin, _arrivals) = away();
        let number = origin.take_job(read(2 * MOST_PART_BYTES));
        let job = origin.job(number);
        (job.next_bytes, job.outstanding, job.failed) = (2 * MOST_PART_BYTES, 1, Some(IoFailure::Error));
        assert_eq!(origin.next_wakeup(), Some(WAIT_US), "the other part is not answered yet");
        tick(&mut origin, &mut Ring::new().unwrap(), WAIT_US);
        assert_eq!(origin.next_wakeup(), None, "it waits for the end of its connection");
    }

    #[test]
    fn a_request_on_a_cut_connection_is_repeated_on_another() {
        let (mut origin, arrivals) = away();
        (origin.wait_us, origin.wanted) = (Micros::MAX / 2, channel().0);
        let mut ring = Ring::new().unwrap();
        let (ours, cut) = wire::tests::pair();
        wire::tests::cut(&cut);
        let wire = Some(Wire::watch_for(&ours, Duration::from_millis(500)).unwrap());
        arrivals.send(Ok(Connection { socket: ours.into(), connected: connected(), wire })).unwrap();
        tick(&mut origin, &mut ring, 0);
        with_context(&mut ring, 0, |context| origin.start(context, read(4096)));
        let (socket, mut good) = UnixStream::pair().unwrap();
        arrivals.send(Ok(connection(socket))).unwrap();
        tick(&mut origin, &mut ring, 0);

        let mut now = 0;
        assert!(origin.next_wakeup() <= Some(LOOK_EVERY_US));
        while origin.links.iter().flatten().count() == 2 {
            now += LOOK_EVERY_US;
            assert!(now < 1000 * LOOK_EVERY_US, "the request waits");
            ring.wait(Some(Duration::from_millis(20)));
            while let Some(completion) = ring.completed() {
                let Owner::Origin { token, .. } = completion.owner else { unreachable!("nobody else") };
                with_context(&mut ring, now, |context| origin.completed(context, token, completion));
            }
            tick(&mut origin, &mut ring, now);
        }
        ring.submit();
        std::io::Read::read_exact(&mut good, &mut [0; REQUEST_BYTES]).unwrap();
    }
}
