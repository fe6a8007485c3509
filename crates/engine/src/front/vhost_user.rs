//! vhost-user-blk queues as clients. The protocol runs in a thread of its own (`haversack-vhost-user`), which
//! hands queues to the reactor and takes them back.
//!
//! A queue with requests is awake: the reactor polls it in every turn, and its guest need not kick. A queue
//! falls asleep when it has had no requests for a while, or when its reactor is about to sleep: it then asks
//! for kicks and listens for them, and costs nothing until a kick or a completion wakes it.
//!
//! Invariants
//! - A queue is handed back only when none of its requests is in flight.
//! - A queue falls asleep only if it has no request after kicks were asked for.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use haversack_core::{Op, RequestError};
use haversack_model::{DiskHandle, Micros, SectorNo};
use haversack_vhost_user::{
    BlkRequest, DeviceConfig, Handler, ID_BYTES, Operation, Queue, QueueUpdate, Server, SessionError, Status,
    WriteCache, WriteCacheSetting,
};

use super::nbd::Held;
use super::{Asked, Client, ClientContext, ClientKind, Wish};
use crate::arena::ArenaHandle;
use crate::error::{EngineError, Result};
use crate::message_limit::MessageLimit;
use crate::moving::OwnedWriteCache;
use crate::reactor::{Finished, Reactor};
use crate::ring::{Completion, Owner};

/// Requests taken from a queue before another queue has its turn.
const REQUESTS_AT_A_TIME: usize = 128;
/// The longest range of a discard or write-zeroes: what the core accepts in one request.
const RANGE_SECTORS: u32 = haversack_core::MAX_REQUEST_SECTORS;
const SOCKET_MODE: u32 = 0o660;
const KICK: u8 = 0;

/// How a disk is presented to its guest.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// The disk's serial number for the guest; truncated to 20 bytes.
    pub serial: String,
    /// Number of queues offered.
    pub queues: u16,
    /// Refuse writes.
    pub read_only: bool,
    /// What is known of the guest's write cache. If the disk is on another host, it is not known.
    pub write_cache: WriteCacheSetting,
    /// Told when the guest turns it on or off.
    pub on_switch: Option<WriteCacheSwitch>,
}

/// Remembers whether a guest has its write cache on, for the next server of the disk. Called before the guest is answered,
/// on a thread that may wait.
#[derive(Clone)]
pub struct WriteCacheSwitch(pub Arc<dyn Fn(bool) + Send + Sync>);

impl std::fmt::Debug for WriteCacheSwitch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WriteCacheSwitch")
    }
}

/// A disk served on a vhost-user-blk socket. Dropping it ends the service.
pub struct VhostUserServer {
    server: Server,
    write_cache: Arc<OwnedWriteCache>,
}

impl VhostUserServer {
    /// Reports a new size to the guest.
    ///
    /// # Errors
    /// The size cannot be offered.
    pub fn resize(&self, sectors: u64) -> std::result::Result<(), haversack_vhost_user::ConfigError> {
        self.server.resize(sectors)
    }

    /// Returns the epoch under which this host owns the disk, if it can move and does, and what is known of its guest's
    /// write cache under that epoch or a later one.
    pub fn write_cache(&self) -> (Option<u64>, WriteCacheSetting) {
        // In this order: under a later epoch, the setting is not known at first.
        let epoch = self.write_cache.epoch();
        (epoch, self.write_cache.setting.get())
    }

    /// Returns the processes connected as front ends, in the form `pid 17 (qemu-system-x86)`.
    pub fn connected(&self) -> Vec<String> {
        self.server.connected()
    }

    /// Keeps front ends out as long as the returned value lives: one that connects waits.
    ///
    /// # Errors
    /// The processes that are connected, if there are any.
    pub fn close_if_unused(&self) -> std::result::Result<Held, Vec<String>> {
        self.server.close_if_unused().map(|closed| -> Held { Arc::new(closed) })
    }
}

struct Shared {
    handle: ArenaHandle,
    disk: DiskHandle,
    serial: [u8; ID_BYTES as usize],
    write_cache: Arc<WriteCache>,
    on_switch: Option<WriteCacheSwitch>,
    messages: MessageLimit,
}

/// Serves a disk on a socket.
pub(crate) fn serve(
    handle: &ArenaHandle,
    disk: DiskHandle,
    sectors: u64,
    socket: &Path,
    config: &VhostUserConfig,
) -> Result<VhostUserServer> {
    let mut serial = [0; ID_BYTES as usize];
    for (to, from) in serial.iter_mut().zip(config.serial.bytes()) {
        *to = from;
    }
    let write_cache = Arc::new(OwnedWriteCache::new(config.write_cache));
    let seen = write_cache.clone();
    handle.run(move |reactor| reactor.watch_write_cache(disk, seen))?;
    let messages = MessageLimit::new(format!("front ends of {}", socket.display()));
    let on_switch = config.on_switch.clone();
    let setting = write_cache.setting.clone();
    let shared = Shared { handle: handle.clone(), disk, serial, write_cache: setting, on_switch, messages };
    let device = DeviceConfig {
        capacity_sectors: sectors,
        queues: config.queues,
        discard_sectors: RANGE_SECTORS,
        write_zeroes_sectors: RANGE_SECTORS,
        read_only: config.read_only,
        ..DeviceConfig::default()
    };
    let server = haversack_vhost_user::serve(socket, SOCKET_MODE, device, Arc::new(shared))?;
    Ok(VhostUserServer { server, write_cache })
}

impl Handler for Shared {
    fn queue_started(&self, queue: Queue) {
        let client = Box::new(QueueClient::new(self.disk, queue, self.serial));
        // The arena may have ended; the queue is then dropped.
        let _ = self.handle.run(move |reactor| reactor.add_queue(client));
    }

    fn queue_updated(&self, index: u16, update: QueueUpdate) {
        let disk = self.disk;
        let _ = self.handle.run(move |reactor| {
            with_queue(reactor, disk, index, move |client, _| {
                if let Some(Err(broken)) = client.queue.as_mut().map(|queue| queue.update(update)) {
                    tracing::warn!(%disk, %broken, "a queue is broken");
                }
            });
        });
    }

    fn queue_stopped(&self, index: u16) -> Option<Queue> {
        let (sender, stopped) = mpsc::channel();
        let disk = self.disk;
        let stop = move |reactor: &mut Reactor| {
            with_queue(reactor, disk, index, move |client, context| client.stop(context, sender));
        };
        self.handle.run(stop).ok()?;
        stopped.recv().ok()
    }

    fn write_cache(&self) -> &Arc<WriteCache> {
        &self.write_cache
    }

    fn write_cache_switched(&self, on: bool) {
        if let Some(WriteCacheSwitch(remember)) = &self.on_switch {
            remember(on);
        }
    }

    fn front_end_waits(&self) {
        self.messages.tell(|| {
            tracing::warn!(
                disk = %self.disk,
                "a vhost-user front end waits until another one that uses the disk disconnects"
            );
        });
    }

    fn disconnected(&self, cause: Option<SessionError>) {
        self.messages.tell(|| match cause {
            Some(cause) => tracing::warn!(disk = %self.disk, %cause, "a vhost-user connection ended"),
            None => tracing::info!(disk = %self.disk, "a vhost-user front end disconnected"),
        });
    }
}

fn with_queue(
    reactor: &mut Reactor,
    disk: DiskHandle,
    index: u16,
    act: impl FnOnce(&mut QueueClient, &mut ClientContext<'_>),
) {
    let mut act = Some(act);
    for client in reactor.clients_of(disk) {
        reactor.client(client, |client, context| {
            let queue = client.as_queue().filter(|q| q.index() == Some(index));
            if let (Some(queue), true) = (queue, act.is_some()) {
                act.take().expect("it is there")(queue, context);
            }
        });
    }
}

/// Makes a request for sectors from the first one on, of the guest's request `head`.
fn wish(disk: DiskHandle, head: u16, op: Op, (first, sectors): (u64, u32)) -> Wish {
    Wish::Request(Asked { slot: head.into(), disk, op, sector: SectorNo(first), sectors })
}

/// A request whose parts are not all done.
#[derive(Clone, Copy, Default)]
struct Pending {
    op: Option<Op>,
    parts: u32,
    failed: bool,
    /// A flush follows the parts: the core makes only writes durable by themselves.
    needs_flush: bool,
    started_us: Micros,
}

/// Estimates of when requests were put into the available ring: the time of the last poll that did not see
/// them. So no wait is underestimated, except by the time that a kick takes to wake the reactor.
#[derive(Default)]
struct Arrivals {
    /// Ring indices. Requests up to each index arrived after the time stored with it.
    seen: VecDeque<(u16, Micros)>,
    looked_us: Micros,
    available: u16,
}

impl Arrivals {
    /// Records that the ring was polled and has requests up to this index.
    fn look(&mut self, available: u16, now: Micros) {
        // A guest may set the index to anything.
        if available != self.available && self.seen.len() < haversack_vhost_user::MAX_QUEUE_SIZE.into() {
            self.seen.push_back((available, self.looked_us));
            self.available = available;
        }
        self.looked_us = now;
    }

    /// Returns the arrival time of the request that was just taken; `next` is the index of the one after it.
    fn of_taken(&mut self, next: u16) -> Micros {
        // Indices wrap around; a ring is much shorter than half their range.
        while self.seen.front().is_some_and(|(upto, _)| next.wrapping_sub(*upto).cast_signed() > 0) {
            self.seen.pop_front();
        }
        self.seen.front().map_or(self.looked_us, |(_, since_us)| *since_us)
    }
}

/// See the module documentation.
pub(crate) struct QueueClient {
    disk: DiskHandle,
    queue: Option<Queue>,
    serial: [u8; ID_BYTES as usize],
    /// Indexed by head.
    pending: Vec<Pending>,
    /// Completions of which the guest may have to be notified.
    completed: bool,
    awake: bool,
    /// When it last had a request or a completion.
    busy_us: Micros,
    arrivals: Arrivals,
    listening: bool,
    kick: Option<i32>,
    stopping: Option<Sender<Queue>>,
    told_broken: bool,
    /// Its disk is not served here yet: no request is taken.
    held: bool,
}

impl QueueClient {
    fn new(disk: DiskHandle, queue: Queue, serial: [u8; ID_BYTES as usize]) -> QueueClient {
        let kick = queue.kick_fd().map(|fd| fd.as_raw_fd());
        QueueClient {
            disk,
            queue: Some(queue),
            serial,
            pending: Vec::new(),
            completed: false,
            awake: true,
            busy_us: 0,
            arrivals: Arrivals::default(),
            listening: false,
            kick,
            stopping: None,
            told_broken: false,
            held: false,
        }
    }

    /// Takes no requests until it is released.
    pub(crate) fn hold(&mut self) {
        (self.held, self.awake) = (true, false);
    }

    /// Takes requests from now on.
    pub(crate) fn release(&mut self, context: &mut ClientContext<'_>) {
        if std::mem::take(&mut self.held) && self.stopping.is_none() && self.queue.is_some() {
            self.awake = true;
            self.begin(context);
        }
    }

    fn index(&self) -> Option<u16> {
        self.queue.as_ref().map(Queue::index)
    }

    fn queue(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("the queue stays until nothing of it is in flight")
    }

    fn stop(&mut self, context: &mut ClientContext<'_>, sender: Sender<Queue>) {
        self.stopping = Some(sender);
        if self.listening
            && let Some(kick) = self.kick
        {
            context.ring.cancel(kick);
        }
        self.give_back();
    }

    /// Lets go of the one who waits for the queue, if anyone does.
    pub(crate) fn abandon_stop(&mut self) {
        self.stopping = None;
    }

    /// Hands the queue back if that was requested and nothing is in flight.
    fn give_back(&mut self) {
        if self.stopping.is_none() || self.listening || self.queue.as_ref().is_none_or(|q| q.in_flight() > 0)
        {
            return;
        }
        if let (Some(sender), Some(mut queue)) = (self.stopping.take(), self.queue.take()) {
            queue.notify_if_needed();
            // The requester waits; if the whole process is ending instead, the queue may be dropped.
            let _ = sender.send(queue);
        }
    }

    fn listen(&mut self, context: &mut ClientContext<'_>) {
        if let Some(kick) = self.kick.filter(|_| !self.listening) {
            context.ring.listen(Owner::Client { client: context.client, part: KICK }, kick, context.now);
            self.listening = true;
        }
    }

    /// Takes requests. Returns true if there were any.
    fn take_requests(&mut self, context: &mut ClientContext<'_>) -> bool {
        let mut any = false;
        let available = self.queue().available();
        self.arrivals.look(available, context.now);
        for _ in 0..REQUESTS_AT_A_TIME {
            match self.queue().next() {
                Ok(Some(request)) => {
                    let next = self.queue().next_available();
                    let arrived_us = self.arrivals.of_taken(next);
                    self.ask(context, request, arrived_us);
                }
                Ok(None) => break,
                Err(broken) => {
                    if !std::mem::replace(&mut self.told_broken, true) {
                        tracing::warn!(disk = %self.disk, %broken, "a queue is broken");
                    }
                    break;
                }
            }
            any = true;
        }
        any
    }

    fn ask(&mut self, context: &mut ClientContext<'_>, request: BlkRequest, started_us: Micros) {
        let head = request.head;
        let sectors = request.len_bytes / 512;
        let op = match request.operation {
            Operation::Read => Op::Read,
            Operation::Write => Op::Write { fua: !self.queue().has_write_cache() },
            Operation::Flush => Op::Flush,
            Operation::Discard | Operation::WriteZeroes => {
                return self.ask_ranges(context, request, started_us);
            }
            Operation::GetId => {
                let (serial, len) = (self.serial, request.len_bytes as usize);
                self.queue().copy_to_guest(head, 0, &serial[..len]);
                return self.answer(head, Status::Ok);
            }
            Operation::Unsupported(_) => return self.answer(head, Status::Unsupported),
        };
        if sectors == 0 && op != Op::Flush {
            return self.answer(head, Status::Ok);
        }
        self.note(head, Pending { op: Some(op), parts: 1, started_us, ..Pending::default() });
        let range = if op == Op::Flush { (0, 0) } else { (request.sector, sectors) };
        context.asked.push(wish(self.disk, head, op, range));
    }

    fn ask_ranges(&mut self, context: &mut ClientContext<'_>, request: BlkRequest, started_us: Micros) {
        let (head, disk) = (request.head, self.disk);
        let discards = request.operation == Operation::Discard;
        let op = |unmap| if discards || unmap { Op::Discard } else { Op::WriteZeroes };
        let mut parts = 0;
        for range in self.queue().ranges(head).iter().filter(|range| range.sectors > 0) {
            context.asked.push(wish(disk, head, op(range.unmap), (range.sector, range.sectors)));
            parts += 1;
        }
        if parts == 0 {
            return self.answer(head, Status::Ok);
        }
        let needs_flush = !self.queue().has_write_cache();
        self.note(head, Pending { op: Some(op(true)), parts, needs_flush, started_us, failed: false });
    }

    fn note(&mut self, head: u16, pending: Pending) {
        if self.pending.len() <= head.into() {
            self.pending.resize(usize::from(head) + 1, Pending::default());
        }
        self.pending[usize::from(head)] = pending;
    }

    /// Wakes the queue: from now on the guest need not kick.
    fn wake_up(&mut self, now: Micros) {
        self.busy_us = now;
        if !std::mem::replace(&mut self.awake, true) {
            self.queue().set_notification(false);
            self.arrivals.looked_us = now;
        }
    }

    fn is_idle(&self, context: &ClientContext<'_>) -> bool {
        context.now > self.busy_us + context.poll_us
            && self.kick.is_some()
            && self.queue.as_ref().is_some_and(|queue| queue.in_flight() == 0)
    }

    fn answer(&mut self, head: u16, status: Status) {
        self.queue().complete(head, status);
        self.completed = true;
    }

    fn tell_guest(&mut self) {
        if std::mem::take(&mut self.completed)
            && let Some(queue) = &mut self.queue
        {
            queue.notify_if_needed();
        }
    }
}

impl Client for QueueClient {
    fn disk(&self) -> DiskHandle {
        self.disk
    }

    fn kind(&self) -> ClientKind {
        ClientKind::VhostUser
    }

    fn is_polled(&self) -> bool {
        self.awake
    }

    fn as_queue(&mut self) -> Option<&mut QueueClient> {
        Some(self)
    }

    fn begin(&mut self, context: &mut ClientContext<'_>) {
        if self.held {
            return;
        }
        self.queue().set_notification(false);
        self.busy_us = context.now;
        self.arrivals.looked_us = context.now;
        self.take_requests(context);
        self.listen(context);
    }

    fn completed(&mut self, context: &mut ClientContext<'_>, _: u8, completion: Completion) {
        self.listening = false;
        if self.stopping.is_some() {
            self.give_back();
        } else if completion.result.is_ok() {
            self.wake_up(context.now);
            self.listen(context);
        } else {
            tracing::warn!(disk = %self.disk, result = ?completion.result, "cannot wait for a queue's kicks; polling it");
            self.wake_up(context.now);
            self.kick = None;
        }
    }

    fn poll(&mut self, context: &mut ClientContext<'_>) -> bool {
        self.tell_guest();
        if self.stopping.is_some() || self.queue.is_none() {
            return false;
        }
        if !self.queue().has_work() {
            self.arrivals.looked_us = context.now;
            return self.is_idle(context) && self.fall_asleep(context);
        }
        self.busy_us = context.now;
        let any = self.take_requests(context);
        self.tell_guest();
        any
    }

    fn fall_asleep(&mut self, context: &mut ClientContext<'_>) -> bool {
        self.tell_guest();
        if self.queue.is_none() || self.stopping.is_some() {
            return false;
        }
        if self.kick.is_none() {
            // A guest that never kicks is always polled.
            self.take_requests(context);
            return true;
        }
        self.queue().set_notification(true);
        self.awake = false;
        if !self.queue().has_work() {
            return false;
        }
        self.wake_up(context.now);
        self.take_requests(context);
        true
    }

    fn complete(
        &mut self,
        context: &mut ClientContext<'_>,
        slot: u32,
        result: std::result::Result<(), RequestError>,
    ) -> Option<Finished> {
        self.wake_up(context.now);
        let pending = &mut self.pending[slot as usize];
        pending.parts -= 1;
        pending.failed |= result.is_err();
        if pending.parts > 0 {
            return None;
        }
        if std::mem::take(&mut pending.needs_flush) && !pending.failed {
            pending.parts = 1;
            context.asked.push(wish(self.disk, slot as u16, Op::Flush, (0, 0)));
            return None;
        }
        let Pending { op, failed, started_us, .. } = *pending;
        self.answer(slot as u16, if failed { Status::IoError } else { Status::Ok });
        self.give_back();
        op.map(|op| Finished { op, started_us })
    }

    fn take(&mut self, slot: u32, at: usize, into: &mut [u8]) -> bool {
        self.queue().copy_from_guest(slot as u16, at, into)
    }

    fn give(&mut self, slot: u32, at: usize, from: &[u8]) {
        self.queue().copy_to_guest(slot as u16, at, from);
    }

    fn close(&mut self, _: &mut ClientContext<'_>) {}

    fn is_closed(&self) -> bool {
        self.queue.is_none()
    }
}

impl From<haversack_vhost_user::ConfigError> for EngineError {
    fn from(error: haversack_vhost_user::ConfigError) -> EngineError {
        EngineError::Manage(haversack_core::ManageError::BadConfig(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_arrive_after_the_last_poll_wake_the_reactor() {
        let mut arrivals = Arrivals { looked_us: 10, available: 65_533, ..Arrivals::default() };
        arrivals.look(65_535, 20);
        assert_eq!(arrivals.of_taken(65_534), 10);
        // Two more requests arrive after the poll at 30; the indices wrap around.
        arrivals.look(65_535, 30);
        arrivals.look(1, 40);
        assert_eq!(arrivals.of_taken(65_535), 10);
        assert_eq!([0, 1].map(|next| arrivals.of_taken(next)), [30, 30]);
        assert_eq!(arrivals.of_taken(2), 40, "a request that arrived between the poll and the take");
        arrivals.looked_us = 90;
        arrivals.look(3, 95);
        assert_eq!(arrivals.of_taken(3), 90);
        assert!(arrivals.seen.len() <= 1);
    }
}
