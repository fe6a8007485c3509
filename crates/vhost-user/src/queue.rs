//! One virtqueue, driven by its owner: requests out, completions in.
//!
//! - No system call except for signalling the call and error eventfds; no allocation per request once the tables have
//!   grown.
//! - Guest memory is not trusted: a broken rule is [`Broken`], after which [`Queue::next`] returns no more requests.
//!   Requests taken before can still be completed.
//! - Segments of a request stay mapped until it is completed, even when the memory table is replaced in the meantime.
//! - Loss of shared memory ends the connection. No request is taken from then on, nothing that was read is trusted,
//!   and the in-flight region keeps listing the uncompleted requests, for the next connection.
//! - The in-flight region, if there is one, is updated whenever a request is taken or completed (see `inflight`).
//!
//! The owner's loop: `set_notification(false)`, take requests with `next` until `None`, complete them at any time and
//! in any order, `notify_if_needed` after a batch. To sleep: `set_notification(true)`, then check `has_work` once
//! more, then wait for the kick eventfd. A queue that was just handed over must be polled without waiting for a kick.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::bell::Bell;
use crate::chain;
use crate::dirty_log::DirtyLog;
use crate::fault::{Broken, Fault};
use crate::inflight::InflightQueue;
use crate::memory::{GuestMemory, Segment};
use crate::request::{BlkRequest, RequestLimits, SectorRange, Slot, Status, copy_out, for_each_part};
use crate::ring::{Ring, RingAddresses};
use crate::write_cache::WriteCache;

/// Maximum number of descriptors of a queue, as in QEMU.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// The parameters of a queue.
#[derive(Debug)]
pub struct QueueSetup {
    /// Which queue of the disk.
    pub index: u16,
    /// Number of descriptors.
    pub size: u16,
    /// Where its parts are.
    pub addresses: RingAddresses,
    /// Next available index to be taken; ignored if an in-flight region determines it.
    pub base: u16,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Whether `VIRTIO_RING_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Whether `VIRTIO_RING_F_EVENT_IDX` was negotiated.
    pub event_index: bool,
    /// What was announced to the driver about requests.
    pub limits: RequestLimits,
    /// Becomes readable when there are new buffers; without it the queue must be polled.
    pub kick: Option<Arc<OwnedFd>>,
    /// Eventfd that interrupts the guest; without it the guest polls.
    pub call: Option<Arc<Bell>>,
    /// Eventfd that notifies the front end of a broken queue.
    pub error: Option<Arc<Bell>>,
    /// The front end's connection, which is ended when shared memory is lost.
    pub connection: Option<Arc<UnixStream>>,
    /// State that survives a kill of the process.
    pub inflight: Option<InflightQueue>,
    /// Where dirty pages are marked during a migration.
    pub log: Option<Arc<DirtyLog>>,
    /// Whether the guest has a write cache.
    pub write_cache: Arc<WriteCache>,
}

/// A change to a running queue, applied by its owner between two requests.
#[derive(Clone, Debug)]
pub enum QueueUpdate {
    /// A new memory table.
    Memory(Arc<GuestMemory>),
    /// New addresses of the parts, or used-ring logging on or off.
    Rings(RingAddresses),
    /// Another eventfd to interrupt the guest.
    Call(Option<Arc<Bell>>),
    /// Another eventfd for errors.
    Error(Option<Arc<Bell>>),
    /// Dirty pages are marked there from now on, or no longer.
    Log(Option<Arc<DirtyLog>>),
}

/// A memory table that was replaced while requests were in flight in it.
#[derive(Debug)]
struct Retired {
    epoch: u32,
    requests: u16,
    memory: Arc<GuestMemory>,
}

/// A virtqueue in service.
#[derive(Debug)]
pub struct Queue {
    index: u16,
    ring: Ring,
    addresses: RingAddresses,
    indirect: bool,
    event_index: bool,
    limits: RequestLimits,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<Bell>>,
    error: Option<Arc<Bell>>,
    connection: Option<Arc<UnixStream>>,
    inflight: Option<InflightQueue>,
    log: Option<Arc<DirtyLog>>,
    write_cache: Arc<WriteCache>,
    memory: Arc<GuestMemory>,
    epoch: u32,
    retired: Vec<Retired>,
    /// Indexed by head.
    slots: Box<[Slot]>,
    /// Requests in flight in `memory`, and in all memories.
    in_current: u16,
    in_flight: u16,
    /// Heads to be returned again after a reconnect, last one first.
    resubmit: Vec<u16>,
    last_available: u16,
    used_index: u16,
    /// The used index when the guest was last interrupted; `None` if it must be interrupted at the next opportunity.
    signalled: Option<u16>,
    /// Whether kicks are enabled.
    notification: bool,
    broken: Option<Broken>,
}

impl Queue {
    /// Takes a queue into service.
    ///
    /// # Errors
    /// The size, the addresses or the in-flight region are invalid.
    pub fn new(setup: QueueSetup) -> Result<Self, Broken> {
        let queue = setup.index;
        Self::build(setup).map_err(|fault| Broken { queue, fault })
    }

    fn build(mut setup: QueueSetup) -> Result<Self, Fault> {
        let size = setup.size;
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(Fault::Size(size));
        }
        let ring = Ring::new(&setup.memory, size, &setup.addresses)?;
        let used_index = ring.used_index();
        let recovered = match &mut setup.inflight {
            Some(inflight) => inflight.recover(size, used_index)?,
            None => None,
        };
        let mut last_available = setup.base;
        let mut resubmit = Vec::new();
        if let Some(recovered) = recovered {
            last_available = used_index.wrapping_add(recovered.heads.len() as u16);
            resubmit = recovered.heads;
            resubmit.reverse();
        }
        let mut queue = Self {
            index: setup.index,
            ring,
            addresses: setup.addresses,
            indirect: setup.indirect,
            event_index: setup.event_index,
            limits: setup.limits,
            kick: setup.kick,
            call: setup.call,
            error: setup.error,
            connection: setup.connection,
            inflight: setup.inflight,
            log: setup.log,
            write_cache: setup.write_cache,
            memory: setup.memory,
            epoch: 0,
            retired: Vec::new(),
            slots: (0..size).map(|_| Slot::default()).collect(),
            in_current: 0,
            in_flight: 0,
            resubmit,
            last_available,
            used_index,
            signalled: None,
            notification: false,
            broken: None,
        };
        queue.set_notification(true);
        if let Some(what) = queue.lost() {
            return Err(Fault::Lost(what));
        }
        // The previous back end may have been killed between completing a request and interrupting the guest.
        queue.signal_call();
        Ok(queue)
    }

    /// Whether the guest certainly has a write cache: then a write need not be durable when it completes.
    pub fn has_write_cache(&self) -> bool {
        self.write_cache.is_on()
    }

    /// Returns the next request, or `None` if there is none at present. Malformed requests are failed here and not
    /// returned.
    ///
    /// # Errors
    /// The queue is broken.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<BlkRequest>, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let taken = self.take();
        if self.notes_loss() {
            // The request that was taken may consist of zeroes.
            if let Ok(Some(request)) = taken {
                self.forget(request.head);
            }
            return self.broken.map_or(Ok(None), Err);
        }
        taken.map_err(|fault| self.is_broken_by(fault))
    }

    fn is_broken_by(&mut self, fault: Fault) -> Broken {
        let broken = Broken { queue: self.index, fault };
        self.broken = Some(broken);
        if let Some(error) = &self.error {
            error.ring();
        }
        broken
    }

    /// Returns which shared memory was lost, if any.
    fn lost(&self) -> Option<&'static str> {
        if !haversack_guard::any_lost() {
            return None;
        }
        let memories = self.retired.iter().map(|retired| &retired.memory).chain([&self.memory]);
        if self.ring.is_lost() || memories.into_iter().any(|memory| memory.is_lost()) {
            return Some("guest memory");
        }
        let inflight = self.inflight.as_ref().filter(|region| region.is_lost()).map(|_| "in-flight region");
        inflight.or_else(|| self.log.as_ref().filter(|log| log.is_lost()).map(|_| "dirty log"))
    }

    /// Returns whether shared memory was lost; ends the connection when this is first noticed.
    fn notes_loss(&mut self) -> bool {
        let Some(what) = self.lost() else { return false };
        if !matches!(self.broken, Some(Broken { fault: Fault::Lost(_), .. })) {
            self.is_broken_by(Fault::Lost(what));
            if let Some(connection) = &self.connection {
                // An error means that it has already ended.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
        true
    }

    fn take(&mut self) -> Result<Option<BlkRequest>, Fault> {
        // Bounded: a driver that keeps adding malformed requests would block the caller. `has_work` reports the rest.
        for _ in 0..self.ring.size {
            let Some(head) = self.take_head()? else { return Ok(None) };
            match self.parse(head)? {
                Ok(request) => return Ok(Some(request)),
                Err(status) => self.complete(head, status),
            }
        }
        Ok(None)
    }

    fn take_head(&mut self) -> Result<Option<u16>, Fault> {
        if let Some(head) = self.resubmit.pop() {
            return Ok(Some(head));
        }
        let found = self.ring.available_index();
        let expected = self.last_available;
        match found.wrapping_sub(expected) {
            0 => return Ok(None),
            ahead if ahead > self.ring.size => return Err(Fault::AvailableIndex { found, expected }),
            _ => {}
        }
        let head = self.ring.available_head(expected);
        let slot = self.slots.get(usize::from(head));
        let slot = slot.ok_or(Fault::DescriptorIndex { index: head, table: self.ring.size })?;
        if slot.occupied {
            return Err(Fault::InFlight(head));
        }
        self.last_available = expected.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.taken(head);
        }
        if self.notification && self.event_index {
            self.ring.set_available_event(self.last_available, self.log.as_deref());
        }
        Ok(Some(head))
    }

    fn parse(&mut self, head: u16) -> Result<Result<BlkRequest, Status>, Fault> {
        let slot = &mut self.slots[usize::from(head)];
        let readable = chain::walk(&self.ring, &self.memory, head, self.indirect, &mut slot.segments)?;
        let parsed = slot.parse(head, readable, &self.memory, &self.limits)?;
        slot.occupied = true;
        slot.epoch = self.epoch;
        self.in_current += 1;
        self.in_flight += 1;
        Ok(parsed)
    }

    /// Returns the guest buffers of a request's data, in order.
    ///
    /// # Panics
    /// No request is in flight under `head`.
    pub fn segments(&self, head: u16) -> &[Segment] {
        self.slot(head).data()
    }

    /// Returns the ranges of a discard or write-zeroes request.
    ///
    /// # Panics
    /// No request is in flight under `head`.
    pub fn ranges(&self, head: u16) -> &[SectorRange] {
        &self.slot(head).ranges
    }

    /// Returns the address of a request's segment in this process: `len_bytes` bytes, shared with the guest, mapped
    /// until the request is completed. Code that writes there without [`Queue::copy_to_guest`] must call
    /// [`Queue::mark_written`].
    ///
    /// # Panics
    /// No request is in flight under `head`, or the segment is not one of its memory.
    pub fn host_address(&self, head: u16, segment: &Segment) -> *mut u8 {
        let window = self.memory_of(self.slot(head)).window(segment);
        window.address(segment.offset, segment.len_bytes as usize)
    }

    /// Copies a part of a write's data, from byte `at` on. Returns false if shared memory is lost: then the bytes are
    /// not the guest's.
    ///
    /// # Panics
    /// No request is in flight under `head`, or it has less data.
    #[must_use]
    pub fn copy_from_guest(&self, head: u16, at: usize, bytes: &mut [u8]) -> bool {
        let slot = self.slot_with(head, at, bytes.len());
        copy_out(slot.data(), self.memory_of(slot), at, bytes);
        self.lost().is_none()
    }

    /// Copies a part of a read's data, from byte `at` on, and marks it as dirty.
    ///
    /// # Panics
    /// No request for data is in flight under `head`, or it asks for less.
    pub fn copy_to_guest(&self, head: u16, at: usize, bytes: &[u8]) {
        let slot = self.slot_with(head, at, bytes.len());
        assert!(slot.to_guest, "the buffers of request {head} are not for the device to write");
        let memory = self.memory_of(slot);
        for_each_part(slot.data(), at, bytes.len(), |segment, offset, part| {
            memory.window(segment).write(segment.offset + offset, &bytes[part]);
        });
        self.mark_written(head, at, bytes.len());
    }

    /// Marks as dirty a part of a read's data that was written by other means; to be called after that.
    ///
    /// # Panics
    /// No request is in flight under `head`, or it asks for less.
    pub fn mark_written(&self, head: u16, at: usize, len: usize) {
        let slot = self.slot_with(head, at, len);
        if let Some(log) = &self.log {
            for_each_part(slot.data(), at, len, |segment, offset, part| {
                log.mark(segment.guest_address + offset as u64, part.len() as u64);
            });
        }
    }

    /// Completes a request and frees its slot. Once shared memory is lost nothing is completed any more.
    ///
    /// # Panics
    /// No request is in flight under `head`.
    pub fn complete(&mut self, head: u16, status: Status) {
        let slot = self.slot(head);
        let log = self.log.as_deref();
        if let Some(segment) = &slot.status {
            self.memory_of(slot).window(segment).write(segment.offset, &[status as u8]);
            if let Some(log) = log {
                log.mark(segment.guest_address, 1);
            }
        }
        let data_bytes = if slot.to_guest && status == Status::Ok { slot.data_bytes } else { 0 };
        let written = u32::try_from(data_bytes + 1).unwrap_or(u32::MAX);
        self.ring.put_used(self.used_index, head, written, log);
        self.publish(head);
        self.forget(head);
    }

    fn publish(&mut self, head: u16) {
        if let Some(inflight) = &mut self.inflight {
            inflight.before_used(head);
        }
        // The data, or the status, may not have reached the guest.
        if self.notes_loss() {
            return;
        }
        self.used_index = self.used_index.wrapping_add(1);
        self.ring.set_used_index(self.used_index, self.log.as_deref());
        if self.notes_loss() {
            return;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.after_used(head, self.used_index);
        }
    }

    fn forget(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        slot.occupied = false;
        self.in_flight -= 1;
        if slot.epoch == self.epoch {
            self.in_current -= 1;
            return;
        }
        let epoch = slot.epoch;
        self.retired.retain_mut(|retired| {
            retired.requests -= u16::from(retired.epoch == epoch);
            retired.requests > 0
        });
    }

    /// Interrupts the guest if requests were completed and it wants to be notified.
    pub fn notify_if_needed(&mut self) {
        if self.signalled == Some(self.used_index) {
            return;
        }
        // The used index must be visible before the driver's setting is read: the driver does it in the opposite
        // order.
        fence(Ordering::SeqCst);
        let wanted = if self.event_index {
            let passed = |old: u16| {
                let since_event = self.used_index.wrapping_sub(self.ring.used_event()).wrapping_sub(1);
                since_event < self.used_index.wrapping_sub(old)
            };
            self.signalled.is_none_or(passed)
        } else {
            !self.ring.interrupts_suppressed()
        };
        self.signalled = Some(self.used_index);
        if wanted {
            self.signal_call();
        }
    }

    /// Enables or disables the driver's kicks when it adds requests. After enabling kicks check [`Queue::has_work`]
    /// once more before waiting.
    pub fn set_notification(&mut self, wanted: bool) {
        self.notification = wanted;
        let log = self.log.as_deref();
        if self.event_index {
            // An index that was already passed is not passed again before the index wraps around.
            let event = if wanted { self.last_available } else { self.last_available.wrapping_sub(1) };
            self.ring.set_available_event(event, log);
        } else {
            self.ring.set_no_notify(!wanted, log);
        }
    }

    /// Returns whether it is worth calling [`Queue::next`]; never if the queue is broken.
    pub fn has_work(&self) -> bool {
        let more = || self.ring.available_index() != self.last_available || self.lost().is_some();
        self.broken.is_none() && (!self.resubmit.is_empty() || more())
    }

    /// Applies a change. The front end gets its reply only afterwards.
    ///
    /// # Errors
    /// New addresses are invalid; the queue is broken.
    pub fn update(&mut self, update: QueueUpdate) -> Result<(), Broken> {
        match update {
            QueueUpdate::Memory(memory) => self.replace_memory(memory),
            QueueUpdate::Rings(addresses) => {
                let ring = Ring::new(&self.memory, self.ring.size, &addresses).map_err(|fault| {
                    let broken = Broken { queue: self.index, fault };
                    self.broken = Some(broken);
                    broken
                })?;
                self.ring = ring;
                self.addresses = addresses;
            }
            QueueUpdate::Call(call) => {
                self.call = call;
                // Completions may have been signalled to the old eventfd.
                self.signal_call();
            }
            QueueUpdate::Error(error) => self.error = error,
            QueueUpdate::Log(log) => self.log = log,
        }
        Ok(())
    }

    fn replace_memory(&mut self, memory: Arc<GuestMemory>) {
        // A table without the rings is an intermediate state at the front end: they stay where they are mapped.
        if let Ok(ring) = Ring::new(&memory, self.ring.size, &self.addresses) {
            self.ring = ring;
        }
        let old = std::mem::replace(&mut self.memory, memory);
        if self.in_current > 0 {
            let requests = std::mem::take(&mut self.in_current);
            self.retired.push(Retired { epoch: self.epoch, requests, memory: old });
        }
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Returns which queue of the disk this is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Returns the eventfd that the driver kicks; `None` if the queue must be polled. QEMU makes it non-blocking, and
    /// this is not changed here: wait with a poll for it, then read it to reset it.
    pub fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_deref().map(AsFd::as_fd)
    }

    /// Returns the number of requests taken and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns the available ring's index, as set by the driver.
    pub fn available(&self) -> u16 {
        self.ring.available_index()
    }

    /// Returns the next index to be taken from the available ring, from which a successor continues.
    pub fn next_available(&self) -> u16 {
        self.last_available
    }

    /// Returns why the queue serves no more requests, if it is broken.
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    fn slot(&self, head: u16) -> &Slot {
        let slot = &self.slots[usize::from(head)];
        assert!(slot.occupied, "no request is in flight under descriptor {head}");
        slot
    }

    fn slot_with(&self, head: u16, at: usize, len: usize) -> &Slot {
        let slot = self.slot(head);
        let end = at.checked_add(len).map(|end| end as u64);
        assert!(end.is_some_and(|end| end <= slot.data_bytes), "{len} bytes at {at} of {}", slot.data_bytes);
        slot
    }

    fn memory_of(&self, slot: &Slot) -> &GuestMemory {
        let retired = || self.retired.iter().find(|r| r.epoch == slot.epoch).map(|r| &r.memory);
        if slot.epoch == self.epoch { &self.memory } else { retired().unwrap_or(&self.memory) }
    }

    fn signal_call(&self) {
        if let Some(call) = &self.call {
            call.ring();
        }
    }
}
