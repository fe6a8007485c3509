//! One front end's session: its state so far, and what each message changes.
//!
//! - A queue is *running* when the handler has it. It runs from the moment it has been started by a kick message and
//!   enabled until it is disabled, asked for its base, or the session ends.
//! - A message is answered only after its effect is complete: a changed memory table or log reaches every running
//!   queue first, a stopped queue has nothing in flight.
//! - The first queue starts once no other front end's queues run, and the disk is free for another when the last has
//!   stopped.
//! - Any error ends the session. Running queues are stopped in an orderly way, so the next session finds them stopped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::net::SendFlags;

use crate::bell::Bell;
use crate::config::{CONFIG_SPACE_BYTES, WRITE_CACHE_OFFSET, feature, protocol_feature};
use crate::connection::{self, Envelope};
use crate::dirty_log::DirtyLog;
use crate::fault::{Broken, Fault};
use crate::front_ends::FrontEndId;
use crate::inflight::{InflightRegion, InflightShape};
use crate::memory::{GuestMemory, MAX_MEMORY_REGIONS, MemoryError, RegionDescription};
use crate::message::{self, MessageError, Request};
use crate::queue::{Queue, QueueSetup, QueueUpdate};
use crate::ring::RingAddresses;
use crate::server::{Handler, Shared};
use crate::write_cache::{WriteCache, WriteCacheSetting};

/// Why a session ended other than because the front end closed it.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket failed, or ended within a message.
    #[error("the connection to the front end failed: {0}")]
    Socket(#[from] io::Error),
    /// A message that cannot be parsed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// More file descriptors than any message may have.
    #[error("a message came with more than {} file descriptors", message::MAX_FILES)]
    TooManyFiles,
    /// The guest's memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The log or the in-flight region cannot be mapped.
    #[error("the {what} cannot be mapped: {source}")]
    Shared {
        /// Which memory.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Shared memory was lost while it was in use.
    #[error("the {0} is lost: the front end has cut its file short, or the memory has failed")]
    MemoryLost(&'static str),
    /// A queue cannot be started.
    #[error(transparent)]
    Queue(#[from] Broken),
    /// A descriptor that could block the thread that drives the queue.
    #[error("the {what} descriptor of a queue is {found:?}, not an eventfd")]
    NoEventfd {
        /// What it is for.
        what: &'static str,
        /// What it is.
        found: PathBuf,
    },
    /// A queue number beyond the disk's queues.
    #[error("queue {found} is not one of the disk's {queues}")]
    NoSuchQueue {
        /// The number.
        found: u32,
        /// How many there are.
        queues: usize,
    },
    /// An invalid value for a field.
    #[error("queue {queue} cannot have {found} as its {what}")]
    QueueValue {
        /// Which queue.
        queue: u16,
        /// Which value.
        what: &'static str,
        /// The value.
        found: u32,
    },
    /// A queue was started without its addresses.
    #[error("queue {0} was started without a size or addresses")]
    Incomplete(u16),
    /// A parameter was changed that must not change while queues run.
    #[error("the {0} changed while a queue was running")]
    Running(&'static str),
    /// Another front end's queues kept running until this one gave up or the service ended.
    #[error("queue {0} was not started: another front end's queues run on this disk")]
    InUse(u16),
    /// The handler has not returned a queue.
    #[error("queue {0} was not given back")]
    Lost(u16),
    /// Features that were not offered.
    #[error("features {found:#x} were acknowledged, {offered:#x} offered")]
    Features {
        /// The acknowledged ones.
        found: u64,
        /// The offered ones.
        offered: u64,
    },
    /// The log has no bits for a part of the memory.
    #[error("the dirty log ends at guest address {log:#x}, the memory at {memory:#x}")]
    LogTooSmall {
        /// First address without a bit.
        log: u64,
        /// First address without memory.
        memory: u64,
    },
    /// The guest may not write this part of the configuration space.
    #[error("{len} bytes at {offset} of the configuration space are not to be written")]
    ConfigWrite {
        /// Where.
        offset: u32,
        /// How many.
        len: usize,
    },
}

/// The reply to a message, other than an acknowledgement.
struct Reply {
    body: Vec<u8>,
    file: Option<OwnedFd>,
}

impl From<Vec<u8>> for Reply {
    fn from(body: Vec<u8>) -> Self {
        Self { body, file: None }
    }
}

/// The state of one queue.
#[derive(Default)]
struct RingState {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    /// The kick message was received, perhaps without an eventfd.
    kicked_off: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<Bell>>,
    error: Option<Arc<Bell>>,
    enabled: bool,
    running: bool,
}

pub(crate) struct Session<'a> {
    shared: &'a Shared,
    handler: &'a dyn Handler,
    id: FrontEndId,
    socket: Arc<UnixStream>,
    features: u64,
    protocol_features: u64,
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    inflight: Option<InflightRegion>,
    rings: Vec<RingState>,
    /// The copy of the write-cache toggle that the front end has; `None` if it has not read it in this session.
    shown: Option<bool>,
    /// Shared memory that was lost.
    lost: Option<&'static str>,
}

impl<'a> Session<'a> {
    pub fn new(shared: &'a Shared, handler: &'a dyn Handler, id: FrontEndId, socket: UnixStream) -> Self {
        let queues = shared.config().queues;
        Self {
            shared,
            handler,
            id,
            socket: Arc::new(socket),
            features: 0,
            protocol_features: 0,
            memory: Arc::new(GuestMemory::counted(shared.quota.clone())),
            log: None,
            inflight: None,
            rings: (0..queues).map(|_| RingState::default()).collect(),
            shown: None,
            lost: None,
        }
    }

    /// Serves messages until the front end closes the connection or an error ends it.
    pub fn run(&mut self) -> Result<(), SessionError> {
        let served = self.serve();
        let stopped = self.stop_all();
        // Any other error was a consequence of the loss.
        self.lost.map_or(Ok(()), |what| Err(SessionError::MemoryLost(what))).and(served).and(stopped)
    }

    fn serve(&mut self) -> Result<(), SessionError> {
        let socket = self.socket.clone();
        while let Some(envelope) = connection::receive(&socket)? {
            let number = envelope.number;
            let acknowledge =
                envelope.need_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
            let outcome = self.handle(envelope);
            let reply = match &outcome {
                Ok(Some(reply)) => Some(message::encode_reply(number, &reply.body)),
                outcome if acknowledge => {
                    let failed = u64::from(outcome.is_err());
                    Some(message::encode_reply(number, &message::number(failed)))
                }
                _ => None,
            };
            if let Some(bytes) = reply {
                let file = outcome.as_ref().ok().and_then(Option::as_ref).and_then(|r| r.file.as_ref());
                connection::send(&socket, &bytes, file.map(AsFd::as_fd), SendFlags::empty())?;
            }
            outcome?;
        }
        Ok(())
    }

    fn handle(&mut self, envelope: Envelope) -> Result<Option<Reply>, SessionError> {
        let mut files = envelope.files;
        match envelope.request {
            Request::GetFeatures => return reply(message::number(self.shared.config().features())),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::GetProtocolFeatures => return reply(message::number(protocol_feature::ALL)),
            Request::SetProtocolFeatures(features) => {
                check_offered(features, protocol_feature::ALL)?;
                self.protocol_features = features;
            }
            Request::GetQueueNumber => return reply(message::number(self.rings.len() as u64)),
            Request::GetMaxMemorySlots => return reply(message::number(MAX_MEMORY_REGIONS as u64)),
            // Nothing to do: the front end whose queues run owns the disk, and a mapped log needs no other
            // notification.
            Request::SetOwner | Request::ResetOwner | Request::SetLogFile => {}
            Request::ResetDevice => self.reset()?,
            Request::SetMemoryTable(regions) => self.set_memory_table(&regions, &files)?,
            Request::AddMemoryRegion(region) => {
                let file = files.pop().ok_or(io::ErrorKind::InvalidData).map_err(io::Error::from)?;
                self.set_memory(self.memory.with(region, file)?)?;
            }
            Request::RemoveMemoryRegion(region) => self.set_memory(self.memory.without(region)?)?,
            Request::SetLogBase { size_bytes, file_offset } => {
                self.set_log(size_bytes, file_offset, &files[0])?;
                return reply(message::pair(size_bytes, file_offset));
            }
            Request::GetInflight(asked) => return self.get_inflight(asked).map(Some),
            Request::SetInflight(shape) => self.set_inflight(shape, &files[0])?,
            Request::SetBackendChannel => {
                self.shared.front_ends.set_channel(self.id, files.pop().map(UnixStream::from));
            }
            Request::GetConfig { offset, size, flags } => return reply(self.get_config(offset, size, flags)),
            Request::SetConfig { offset, bytes, migration } => self.set_config(offset, &bytes, migration)?,
            other => return self.handle_ring(&other, files.pop()),
        }
        Ok(None)
    }

    fn handle_ring(
        &mut self,
        request: &Request,
        file: Option<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        match *request {
            Request::SetRingSize { index, size } => {
                let index = self.stopped_ring(index, "size")?;
                let size = fit(index, "size", size)?;
                self.ring(index).size = size;
            }
            Request::SetRingBase { index, base } => {
                let index = self.stopped_ring(index, "base")?;
                let base = fit(index, "base", base)?;
                if std::mem::replace(&mut self.ring(index).base, base) != 0 && base == 0 {
                    self.driver_has_restarted();
                }
            }
            Request::SetRingAddresses { index, addresses } => {
                let index = self.ring_index(index)?;
                self.ring(index).addresses = Some(addresses);
                self.update(index, QueueUpdate::Rings(addresses));
            }
            Request::SetRingKick { index, .. } => {
                let index = self.ring_index(index.into())?;
                self.stop(index)?;
                let kick = file.map(|file| eventfd("kick", file)).transpose()?;
                let ring = self.ring(index);
                (ring.kick, ring.kicked_off) = (kick.map(Arc::new), true);
                self.start_if_ready(index)?;
            }
            Request::SetRingCall { index, .. } => {
                let index = self.ring_index(index.into())?;
                let call = file.map(|file| bell("call", file)).transpose()?;
                self.ring(index).call.clone_from(&call);
                self.update(index, QueueUpdate::Call(call));
            }
            Request::SetRingError { index, .. } => {
                let index = self.ring_index(index.into())?;
                let error = file.map(|file| bell("error", file)).transpose()?;
                self.ring(index).error.clone_from(&error);
                self.update(index, QueueUpdate::Error(error));
            }
            Request::SetRingEnable { index, enable } => {
                let index = self.ring_index(index)?;
                self.ring(index).enabled = enable;
                if enable { self.start_if_ready(index)? } else { self.stop(index)? }
            }
            Request::GetRingBase { index } => {
                let index = self.ring_index(index)?;
                self.stop(index)?;
                let ring = self.ring(index);
                (ring.kick, ring.kicked_off) = (None, false);
                let base = ring.base.into();
                return reply(message::ring_state(index.into(), base));
            }
            _ => {}
        }
        Ok(None)
    }

    fn ring_index(&self, found: u32) -> Result<u16, SessionError> {
        let queues = self.rings.len();
        u16::try_from(found)
            .ok()
            .filter(|i| usize::from(*i) < queues)
            .ok_or(SessionError::NoSuchQueue { found, queues })
    }

    fn stopped_ring(&self, index: u32, what: &'static str) -> Result<u16, SessionError> {
        let index = self.ring_index(index)?;
        if self.rings[usize::from(index)].running { Err(SessionError::Running(what)) } else { Ok(index) }
    }

    fn ring(&mut self, index: u16) -> &mut RingState {
        &mut self.rings[usize::from(index)]
    }

    fn start_if_ready(&mut self, index: u16) -> Result<(), SessionError> {
        let always_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        let ring = &self.rings[usize::from(index)];
        if ring.running || !ring.kicked_off || !(ring.enabled || always_enabled) {
            return Ok(());
        }
        self.take_disk(index)?;
        let (log, write_cache) = (self.effective_log(), self.write_cache());
        let ring = &mut self.rings[usize::from(index)];
        let addresses = ring.addresses.filter(|_| ring.size > 0).ok_or(SessionError::Incomplete(index))?;
        let queue = Queue::new(QueueSetup {
            index,
            size: ring.size,
            addresses,
            base: ring.base,
            memory: self.memory.clone(),
            indirect: self.features & feature::RING_INDIRECT_DESC != 0,
            event_index: self.features & feature::RING_EVENT_IDX != 0,
            limits: self.shared.config().limits(),
            kick: ring.kick.clone(),
            call: ring.call.clone(),
            error: ring.error.clone(),
            connection: Some(self.socket.clone()),
            inflight: self.inflight.as_ref().and_then(|region| region.queue(index)),
            log,
            write_cache,
        })?;
        ring.running = true;
        self.handler.queue_started(queue);
        Ok(())
    }

    /// Acquires the disk for this front end before its first queue starts.
    fn take_disk(&mut self, index: u16) -> Result<(), SessionError> {
        if self.is_running() {
            return Ok(());
        }
        if !self.shared.front_ends.acquire(self.id, || self.handler.front_end_waits()) {
            return Err(SessionError::InUse(index));
        }
        Ok(())
    }

    fn stop(&mut self, index: u16) -> Result<(), SessionError> {
        let ring = &mut self.rings[usize::from(index)];
        if std::mem::take(&mut ring.running) {
            let queue = self.handler.queue_stopped(index).ok_or(SessionError::Lost(index))?;
            ring.base = queue.next_available();
            if let Some(Broken { fault: Fault::Lost(what), .. }) = queue.broken() {
                self.lost = Some(what);
            }
            if !self.is_running() {
                self.shared.front_ends.release(self.id);
            }
        }
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.rings.iter().any(|ring| ring.running)
    }

    fn stop_all(&mut self) -> Result<(), SessionError> {
        // All of them, even if one fails.
        (0..self.rings.len() as u16).map(|index| self.stop(index)).fold(Ok(()), Result::and)
    }

    fn reset(&mut self) -> Result<(), SessionError> {
        self.stop_all()?;
        let has_run = self.rings.iter().any(|ring| ring.base != 0);
        for ring in &mut self.rings {
            (ring.kick, ring.kicked_off, ring.enabled, ring.base) = (None, false, false, 0);
        }
        if has_run {
            self.driver_has_restarted();
        }
        Ok(())
    }

    fn update(&self, index: u16, update: QueueUpdate) {
        if self.rings[usize::from(index)].running {
            self.handler.queue_updated(index, update);
        }
    }

    fn update_all(&self, update: &QueueUpdate) {
        for index in 0..self.rings.len() as u16 {
            self.update(index, update.clone());
        }
    }

    fn set_features(&mut self, features: u64) -> Result<(), SessionError> {
        check_offered(features, self.shared.config().features())?;
        if self.is_running() && (features ^ self.features) & !feature::LOG_ALL != 0 {
            return Err(SessionError::Running("features"));
        }
        self.features = features;
        self.logging_changed()
    }

    fn set_memory_table(
        &mut self,
        regions: &[RegionDescription],
        files: &[OwnedFd],
    ) -> Result<(), SessionError> {
        let mut memory = GuestMemory::counted(self.shared.quota.clone());
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(*region, file)?;
        }
        self.set_memory(memory)
    }

    fn set_memory(&mut self, memory: GuestMemory) -> Result<(), SessionError> {
        self.memory = Arc::new(memory);
        self.check_log()?;
        self.update_all(&QueueUpdate::Memory(self.memory.clone()));
        Ok(())
    }

    fn effective_log(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features & feature::LOG_ALL != 0)
    }

    fn check_log(&self) -> Result<(), SessionError> {
        let memory = self.memory.end_address();
        match self.effective_log().map(|log| log.end_address()) {
            Some(log) if log < memory => Err(SessionError::LogTooSmall { log, memory }),
            _ => Ok(()),
        }
    }

    fn logging_changed(&self) -> Result<(), SessionError> {
        self.check_log()?;
        self.update_all(&QueueUpdate::Log(self.effective_log()));
        Ok(())
    }

    fn set_log(&mut self, size_bytes: u64, file_offset: u64, file: &OwnedFd) -> Result<(), SessionError> {
        let log = DirtyLog::new(file, file_offset, size_bytes, &self.shared.quota);
        let log = log.map_err(|source| SessionError::Shared { what: "dirty log", source })?;
        self.log = Some(Arc::new(log));
        self.logging_changed()
    }

    fn get_inflight(&mut self, asked: InflightShape) -> Result<Reply, SessionError> {
        let InflightShape { queues, queue_size, .. } = asked;
        if usize::from(queues) > self.rings.len() {
            return Err(SessionError::NoSuchQueue { found: queues.into(), queues: self.rings.len() });
        }
        let created = InflightRegion::create(queues, queue_size);
        let (shape, file) =
            created.map_err(|source| SessionError::Shared { what: "in-flight region", source })?;
        Ok(Reply { body: message::inflight(&shape), file: Some(file) })
    }

    fn set_inflight(&mut self, shape: InflightShape, file: &OwnedFd) -> Result<(), SessionError> {
        if self.is_running() {
            return Err(SessionError::Running("in-flight region"));
        }
        let region = InflightRegion::map(shape, file, &self.shared.quota);
        let region = region.map_err(|source| SessionError::Shared { what: "in-flight region", source })?;
        self.inflight = Some(region);
        Ok(())
    }

    /// In the protocol an empty body means that there is no such part.
    fn get_config(&mut self, offset: u32, size: u32, flags: u32) -> Vec<u8> {
        let write_cache = self.handler.write_cache().is_shown_on();
        let space = self.shared.config().space(write_cache);
        let end = (offset as usize).checked_add(size as usize).filter(|end| *end <= CONFIG_SPACE_BYTES);
        let Some(read) = end.map(|end| offset as usize..end) else { return Vec::new() };
        if read.contains(&WRITE_CACHE_OFFSET) {
            // It may have kept what it read before.
            self.shown = Some(write_cache && self.shown != Some(false));
        }
        message::config(offset, flags, &space[read])
    }

    /// The guest may switch the write cache; a migration may send the whole space, of which only the toggle is used.
    fn set_config(&mut self, offset: u32, bytes: &[u8], migration: bool) -> Result<(), SessionError> {
        let at = WRITE_CACHE_OFFSET.checked_sub(offset as usize);
        let only_that = at == Some(0) && bytes.len() == 1;
        if !only_that && !migration {
            return Err(SessionError::ConfigWrite { offset, len: bytes.len() });
        }
        if let Some(byte) = at.and_then(|at| bytes.get(at)) {
            self.shown = Some(*byte != 0);
            self.switch_write_cache(*byte != 0);
        }
        Ok(())
    }

    fn switch_write_cache(&self, on: bool) {
        let (write_cache, setting) = (self.handler.write_cache(), WriteCacheSetting::of(on));
        if write_cache.get() != setting {
            self.handler.write_cache_switched(on);
            write_cache.set(setting);
        }
    }

    /// A driver reads the toggle when it starts, from the front end's copy. So if the setting was not known, it is now.
    fn driver_has_restarted(&self) {
        let is_unknown = self.handler.write_cache().get() == WriteCacheSetting::Unknown;
        if is_unknown && self.shown == Some(true) {
            self.switch_write_cache(true);
        }
    }

    /// Returns the write cache of the guest's queues. Without a negotiated toggle it is on exactly if the guest can
    /// flush it (virtio 1.2, 5.2.5.2).
    fn write_cache(&self) -> Arc<WriteCache> {
        if self.features & feature::BLK_CONFIG_WCE != 0 {
            return self.handler.write_cache().clone();
        }
        let can_flush = self.features & feature::BLK_FLUSH != 0;
        Arc::new(WriteCache::new(WriteCacheSetting::of(can_flush)))
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the shape of a handled message")]
fn reply(body: Vec<u8>) -> Result<Option<Reply>, SessionError> {
    Ok(Some(body.into()))
}

fn check_offered(found: u64, offered: u64) -> Result<(), SessionError> {
    if found & !offered == 0 { Ok(()) } else { Err(SessionError::Features { found, offered }) }
}

fn fit(queue: u16, what: &'static str, found: u32) -> Result<u16, SessionError> {
    u16::try_from(found).map_err(|_| SessionError::QueueValue { queue, what, found })
}

/// Checks that a descriptor is an eventfd: the thread that drives the queue uses it, and any other kind may block it.
fn eventfd(what: &'static str, file: OwnedFd) -> Result<OwnedFd, SessionError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let found = std::fs::read_link(link)?;
    if found.as_os_str() == "anon_inode:[eventfd]" {
        return Ok(file);
    }
    Err(SessionError::NoEventfd { what, found })
}

fn bell(what: &'static str, file: OwnedFd) -> Result<Arc<Bell>, SessionError> {
    let file = eventfd(what, file)?;
    Ok(Arc::new(Bell::new(file.as_fd())?))
}
