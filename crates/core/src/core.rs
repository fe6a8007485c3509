//! The cache as a state machine: requests and completions in, actions out.
//!
//! [`Core`] owns the components, each with its invariants in its own file. It does not own the memory that it works in:
//! the caller lends the memory for each call ([`Call`], `call.rs`). The flows, one file each under `flow/`, are methods
//! of [`Call`], or of [`Core`] where they need no memory.

use std::ops::{Deref, DerefMut};

use haversack_admission::Figures;
use haversack_model::{ArenaId, BlockNo, DeviceNo, DiskNo, Micros};

use crate::action::{Action, Event, IoId, Op, Piece, Rejected, Request, RequestError};
use crate::config::{CoreConfig, MAX_REQUEST_SECTORS, Target};
use crate::devices::Devices;
use crate::disk::Disk;
use crate::disks::Disks;
use crate::durability::Durability;
use crate::flow::commit::batches::Batches;
use crate::flow::request::state::{Park, RequestState};
use crate::io::{Ios, Purpose};
use crate::jobs::{Job, Jobs};
use crate::locks::Locks;
use crate::memory::{FrameNo, Memory};
use crate::pool_state::PoolState;
use crate::schedule::Schedule;
use crate::slab::Slab;
use crate::staging::Staging;
use crate::stats::{DiskStats, DiskUsage, PoolStats};
use crate::store::Store;
use crate::store::slot::SlotNo;
use crate::transfer::TransferFrames;

/// A core and the memory that it works in, for the time of a call.
pub struct Call<'a, M> {
    core: &'a mut Core,
    /// Staging and transfer frames, and the payloads of requests.
    pub(crate) memory: &'a mut M,
}

impl<M> Deref for Call<'_, M> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        self.core
    }
}

impl<M> DerefMut for Call<'_, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        self.core
    }
}

/// The cache. See the module.
pub struct Core {
    pub(crate) config: CoreConfig,
    /// The time of the current call.
    pub(crate) now: Micros,
    /// The state of the pool as a whole.
    pub(crate) pool: PoolState,
    /// Sequence numbers, the pool's flush, and flush marks.
    pub(crate) durability: Durability,
    pub(crate) store: Store,
    pub(crate) staging: Staging,
    pub(crate) disks: Disks,
    pub(crate) devices: Devices,
    /// Requests in flight.
    pub(crate) requests: Slab<RequestState>,
    /// I/Os in flight.
    pub(crate) ios: Ios,
    /// Commits in flight.
    pub(crate) batches: Batches,
    pub(crate) locks: Locks,
    pub(crate) jobs: Jobs,
    /// Memory for data in transit.
    pub(crate) frames: TransferFrames,
    /// What to do next.
    pub(crate) schedule: Schedule,
}

impl Core {
    /// Returns the core together with the memory to work in, for calls. It must always be the same memory.
    #[inline]
    pub fn with<'a, M: Memory>(&'a mut self, memory: &'a mut M) -> Call<'a, M> {
        Call { core: self, memory }
    }

    /// Takes a request and queues it to be run.
    #[inline]
    pub(crate) fn accept(&mut self, now: Micros, request: Request) -> Result<(), Rejected> {
        self.now = now;
        let disk = self.disks.get_mut(request.disk).ok_or(Rejected::NoSuchDisk(request.disk))?;
        if disk.life.is_released() {
            return Err(Rejected::NotOwner);
        }
        if disk.life.is_frozen() {
            return Err(Rejected::Busy);
        }
        if !disk.life.is_active() {
            return Err(Rejected::NoSuchDisk(request.disk));
        }
        let (sector, sectors) = (request.sector.0, request.sectors);
        let end = sector.checked_add(u64::from(sectors));
        let disk_sectors = disk.open_sectors();
        let fits = end.is_some_and(|end| end <= disk_sectors);
        if request.op != Op::Flush && (sectors == 0 || sectors > MAX_REQUEST_SECTORS || !fits) {
            return Err(Rejected::OutOfRange { sector, sectors, disk_sectors });
        }
        let of_clients = self.requests.len() - self.schedule.children();
        if of_clients >= self.config.max_requests as usize || self.pool.is_stopping() {
            return Err(Rejected::Busy);
        }
        disk.requests += 1;
        disk.last_request_us = now;
        let number = self.requests.take();
        self.begin(number, request);
        self.enqueue(number);
        Ok(())
    }

    /// Announces requests that will be submitted soon, so that the table entries that they need are read into
    /// the processor's cache together. A hint: it changes nothing but speed.
    pub fn prefetch(&self, requests: &[Request]) {
        let blocks = requests.iter().filter_map(|request| {
            let disk = self.disks.get(request.disk);
            let end = request.sector.0.checked_add(u64::from(request.sectors));
            let fits = |disk: &&Disk| request.sectors > 0 && end.is_some_and(|end| end <= disk.sectors);
            let (first, last) = disk.filter(fits)?.blocks(request.sector.0, request.sectors);
            Some((first.0..=last.0).map(|block| (request.disk, BlockNo(block))))
        });
        self.store.prefetch(blocks.flatten());
    }

    /// Whether [`Call::go_on`] has something to do: a flush of the devices has not taken effect yet as a whole. Guests
    /// may wait for that, so a caller that has nothing else to do should go on at once.
    pub fn has_steps_left(&self) -> bool {
        self.durability.ended_flush().is_some()
    }

    /// Returns when [`Call::tick`] should be called, if at all.
    pub fn next_wakeup(&self) -> Option<Micros> {
        let works = !self.pool.rests();
        self.disks
            .numbered()
            .filter_map(|(disk, d)| self.disk_wakeup(disk, d))
            .chain(self.durability.mark_due_us())
            .chain(self.devices.gather.due_us().filter(|at| *at > self.now))
            .filter(|_| works)
            .chain(self.devices.has_lost_segments().then_some(self.now + 1))
            .chain(self.durability.ended_flush().map(|_| self.now + 1))
            .chain(self.devices.waits_to_leave_until_us().filter(|at| *at > self.now))
            .min()
    }

    /// Returns when the disk's background work should be driven next.
    fn disk_wakeup(&self, disk: DiskNo, d: &Disk) -> Option<Micros> {
        let staged = d.flush.staged_dirty() > 0;
        let looks = if d.life.writes_origin() {
            staged || self.store.disks[disk].dirty > 0
        } else {
            // Staged blocks may wait until another disk gives up a segment, and that does not wake this disk.
            staged && self.is_commit_due(disk)
        };
        let look = (looks && (d.cleaner.is_idle() || self.is_commit_due(disk)))
            .then(|| d.cleaner.next_look_us.max(d.cleaner.retry_us));
        if !d.life.writes_origin() {
            let goes_on = d.job.as_ref().is_some_and(Job::goes_on);
            return look.into_iter().chain(goes_on.then_some(self.now)).min().map(|at| at.max(self.now + 1));
        }
        let peer = d.moving.as_ref().and_then(|moving| moving.peer.as_ref());
        let fetch = peer.map(|peer| peer.retry_us).filter(|at| *at > self.now);
        [look, fetch, d.intents.clear_due_us()].into_iter().flatten().min().map(|at| at.max(self.now + 1))
    }

    /// Returns the next action to carry out.
    #[inline]
    pub fn poll(&mut self) -> Option<Action> {
        self.schedule.next_action()
    }

    /// Returns the memory of an I/O, in order.
    pub fn pieces(&self, io: IoId) -> impl Iterator<Item = Piece> + '_ {
        let io = &self.ios[io.0];
        let mut left = io.len;
        io.frames.iter().enumerate().map_while(move |(index, frame)| {
            let at = if index == 0 { io.start } else { 0 };
            let len = left.min(haversack_model::BLOCK_BYTES - at);
            left -= len;
            (len > 0).then_some(Piece { frame: *frame, at, len })
        })
    }

    /// Returns the identity of the arena, and of its pool.
    pub fn arena(&self) -> ArenaId {
        self.pool.arena()
    }

    /// Recounts all bookkeeping and compares it with the counts kept. For tests; slow.
    ///
    /// # Panics
    /// A count is wrong.
    pub fn check(&self) {
        self.store.check();
    }

    /// Returns a disk's counters.
    pub fn disk_stats(&self, disk: DiskNo) -> Option<&DiskStats> {
        self.disks.get(disk).map(|d| &d.stats)
    }

    /// Returns the current state of a disk's share.
    pub fn disk_usage(&self, disk: DiskNo) -> Option<DiskUsage> {
        let d = self.disks.get(disk)?;
        let space = &self.store.disks[disk];
        let staged = u64::from(self.staging.lists[disk].len);
        let oldest = self.oldest_dirty_us(disk);
        Some(DiskUsage {
            target_blocks: self.target_blocks(disk),
            usage_blocks: space.live + staged,
            dirty_blocks: space.dirty + d.flush.staged_dirty(),
            mirrored_blocks: space.mirrors,
            overtaken_blocks: space.pending,
            oldest_dirty_us: oldest.map_or(0, |since| self.now.saturating_sub(since)),
            origin_in_order: self.is_origin_in_order(disk),
            segments: space.segments.len() as u64,
        })
    }

    /// Sets the price of a flash write: the latency, in microseconds, that a block must be expected to save so that a
    /// learning filter admits it to flash. A higher price reduces flash writes, to keep within a budget. The initial
    /// price is [`haversack_admission::WRITE_PRICE_US`].
    pub fn set_write_price(&mut self, price_us: f32) {
        self.config.write_price_us = price_us.max(0.0);
    }

    /// Returns the price of a flash write.
    pub fn write_price(&self) -> f32 {
        self.config.write_price_us
    }

    /// Returns the figures that a disk's admission filter uses, if it learns. This allocates.
    pub fn admission_figures(&self, disk: DiskNo) -> Option<Figures> {
        self.disks.get(disk)?.admission.figures()
    }

    /// Sets the share of the blocks, from 0 to 1, whose clean copies may be written to flash. Learning filters ignore
    /// it: they weigh prices. A lower share reduces flash writes, to keep within a budget. The initial share is 1.
    /// Writes in modes that defer origin writes are not affected.
    pub fn set_fill_share(&mut self, share: f64) {
        self.config.fill_share = share;
    }

    /// Returns the share of the blocks that may be filled.
    pub fn fill_share(&self) -> f64 {
        self.config.fill_share
    }

    /// Returns the current state of the pool.
    pub fn pool_stats(&self) -> PoolStats {
        let in_use = |d: &&crate::store::DeviceSpace| d.alive;
        let devices = self.store.devices.iter().flatten().filter(in_use);
        let (mut count, mut segments) = (0, 0);
        for device in devices {
            count += 1;
            segments += u64::from(device.segments);
        }
        let staged_dirty: u64 = self.disks.iter().map(|d| d.flush.staged_dirty()).sum();
        PoolStats {
            capacity_blocks: segments * u64::from(crate::format::geometry::SLOTS_PER_SEGMENT),
            usage_blocks: self.store.disks.iter().map(|d| d.live).sum(),
            dirty_blocks: self.store.disks.iter().map(|d| d.dirty).sum::<u64>() + staged_dirty,
            free_segments: self.store.free_segments(None) as u64 + self.store.unprepared_segments(None),
            devices: count,
            degraded: self.pool.is_redundant()
                && (count < 2
                    || self.pool.is_degraded()
                    || !self.durability.is_recorded(self.pool.whole_version())),
            flushes: self.durability.flushes(),
            record_pages: self.durability.record.pages(),
            memory_bytes: (self.store.bytes() + self.staging.bytes()) as u64
                + self.disks.iter().map(|d| d.side_bytes() as u64).sum::<u64>(),
        }
    }

    #[inline]
    pub(crate) fn disk(&self, disk: DiskNo) -> &Disk {
        &self.disks[disk]
    }

    #[inline]
    pub(crate) fn disk_mut(&mut self, disk: DiskNo) -> &mut Disk {
        &mut self.disks[disk]
    }

    /// Returns how many blocks a disk should have.
    pub(crate) fn target_blocks(&self, disk: DiskNo) -> u64 {
        match self.disk(disk).target {
            Target::Blocks(blocks) | Target::Capped(blocks) => blocks,
            Target::Shared { at_least_blocks, at_most_blocks } => {
                self.shared_blocks(disk, at_least_blocks, at_most_blocks)
            }
            Target::Equal => self.equal_blocks(),
        }
    }

    pub(crate) fn capacity_blocks(&self) -> u64 {
        let alive = self.store.devices.iter().flatten().filter(|d| d.alive && !d.draining);
        alive.map(|d| u64::from(d.segments)).sum::<u64>()
            * u64::from(crate::format::geometry::SLOTS_PER_SEGMENT)
    }

    /// Queues the disk, so that its background work is driven.
    #[inline]
    pub(crate) fn queue(&mut self, disk: DiskNo) {
        self.schedule.queue_disk(disk);
    }

    pub(crate) fn queue_all(&mut self) {
        for disk in self.disks.places() {
            if self.disks.contains(disk) {
                self.queue(disk);
            }
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.schedule.emit(Action::Event(event));
    }

    /// Wakes all requests that wait for frames, once per call, if no I/O is in flight whose completion would wake them.
    /// This is needed because a request that was woken for a frame may end up waiting for something else, so that the
    /// frame stays unused.
    #[inline]
    pub(crate) fn wake_stranded(&mut self) -> bool {
        self.ios.len() == 0 && self.schedule.may_wake_stranded() && self.wake_all_for_frames()
    }

    fn wake_all_for_frames(&mut self) -> bool {
        let mut waiting = self.frames.take_waiters();
        if self.staging.free() > 0 {
            waiting.extend(std::iter::from_fn(|| self.schedule.next_for_staging()));
        }
        let any = !waiting.is_empty();
        for request in waiting {
            self.wake(request);
        }
        any
    }

    /// Starts to describe an I/O. It is sent with [`Core::emit`].
    #[inline]
    pub(crate) fn new_io(&mut self, purpose: Purpose) -> u32 {
        self.ios.start(purpose, self.now)
    }

    #[inline]
    pub(crate) fn emit(&mut self, action: Action) {
        self.schedule.emit(action);
    }

    /// Sends the read of a slot's block.
    pub(crate) fn read_slot(&mut self, number: u32, slot: SlotNo, into: FrameNo) {
        let (device, offset_bytes) = self.store.location(slot);
        let io = &mut self.ios[number];
        (io.device, io.len) = (Some(device), haversack_model::BLOCK_BYTES);
        io.frames.push(into);
        self.emit(Action::ReadDevice { io: IoId(number), device, offset_bytes });
    }

    pub(crate) fn write_device(&mut self, number: u32, device: DeviceNo, offset_bytes: u64) {
        let io = &mut self.ios[number];
        (io.device, io.len) = (Some(device), io.frames.len() * haversack_model::BLOCK_BYTES);
        self.emit(Action::WriteDevice { io: IoId(number), device, offset_bytes });
    }

    #[inline]
    pub(crate) fn free_frame(&mut self, frame: FrameNo, for_origin: bool) {
        let freed = self.frames.put(frame, for_origin);
        if freed.own_work {
            self.queue_all();
        }
        if let Some(request) = freed.request {
            self.wake(request);
        }
    }

    pub(crate) fn wake(&mut self, request: u32) {
        if self.requests.contains(request) && !matches!(self.requests[request].park, Park::None | Park::Flush)
        {
            self.requests[request].park = Park::None;
            self.enqueue(request);
        }
    }

    pub(crate) fn enqueue(&mut self, request: u32) {
        self.requests[request].queued = true;
        self.schedule.enqueue(request);
    }

    /// Unlocks a block, and wakes the requests that wait for it and a job of the disk.
    pub(crate) fn unlock(&mut self, disk: DiskNo, block: BlockNo) {
        let d = self.disk(disk);
        if d.job.is_some() || d.cleaner.is_order_wanted() {
            self.queue(disk);
        }
        if !self.locks.unlock(disk, block) {
            return;
        }
        let mut waiters = std::mem::take(&mut self.disk_mut(disk).lock_waiters);
        waiters.retain(|request| {
            let waits = self.requests[*request].park == Park::Lock(block);
            if waits {
                self.wake(*request);
            }
            !waits
        });
        self.disk_mut(disk).lock_waiters = waiters;
    }

    /// Called when an I/O of a sequence number is completed; returns whether it was the last. If numbers after it count
    /// as completed only now, requests of all disks that may wait for them are woken.
    pub(crate) fn sequence_done(&mut self, seq: u64) -> bool {
        let last = self.durability.done(seq);
        if self.durability.completed() > seq {
            self.wake_around_all();
        }
        last
    }

    /// Wakes requests that wait for any disk's background work, and queues all disks.
    pub(crate) fn wake_around_all(&mut self) {
        for disk in self.disks.places() {
            if self.disks.contains(disk) {
                self.wake_around(disk);
                self.queue(disk);
            }
        }
    }

    /// Wakes requests that wait for the disk's background work.
    pub(crate) fn wake_around(&mut self, disk: DiskNo) {
        let mut waiters = std::mem::take(&mut self.disk_mut(disk).around_waiters);
        for request in waiters.drain(..) {
            self.wake(request);
        }
        let disk = self.disk_mut(disk);
        if disk.around_waiters.is_empty() {
            disk.around_waiters = waiters;
        }
    }

    pub(crate) fn wake_dirty(&mut self, disk: DiskNo) {
        while let Some(request) = self.disk_mut(disk).dirty_waiters.pop_front() {
            self.wake(request);
        }
    }

    /// Wakes as many requests that wait for staging frames as there are frames.
    pub(crate) fn wake_staging(&mut self) {
        for _ in 0..self.staging.free() {
            match self.schedule.next_for_staging() {
                Some(request) => self.wake(request),
                None => break,
            }
        }
    }

    pub(crate) fn fail(&mut self, request: u32, error: RequestError) {
        self.requests[request].error.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    /// A new field belongs to a component; [`super::Core`] gets one only for a new component.
    #[test]
    fn the_core_has_at_most_15_fields() {
        let (_, after) = include_str!("core.rs").split_once("pub struct Core {").expect("the core is here");
        let (fields, _) = after.split_once("\n}").expect("the struct ends");
        let fields = fields.lines().filter(|line| line.trim_start().starts_with("pub(crate) ")).count();
        assert!((1..=15).contains(&fields), "{fields} fields");
    }
}
