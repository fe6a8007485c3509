//! The cache as a state machine: requests and completions in, actions out.
//!
//! [`Core`] owns the parts and dispatches to the flows, one file each under `flow/`. Each public call ends
//! in [`Core::settle`], which pumps the requests that can go on and drives the background work of the disks
//! that something happened to, until nothing changes any more. Everything is decided from the state, so
//! that a missed wake-up can delay but never corrupt.
//!
//! Invariants
//! - A request is completed exactly once; an action with an I/O is answered exactly once.

use std::collections::VecDeque;

use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros, Uuid};

use crate::action::{Action, Event, IoId, JobId, Op, Piece, Rejected, Request, RequestError};
use crate::config::{CoreConfig, MAX_REQUEST_SECTORS, Target};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::flow::commit::Batch;
use crate::flow::drain::Drain;
use crate::flow::leave::Leaving;
use crate::flow::pool_job::PoolJob;
use crate::flow::purge::Purge;
use crate::flow::record::RecordWriter;
use crate::flow::request::{Park, RequestState};
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::locks::Locks;
use crate::media::IoFailure;
use crate::memory::{FrameNo, Memory};
use crate::read_errors::ReadErrors;
use crate::slab::Slab;
use crate::staging::Staging;
use crate::stats::{DiskStats, DiskUsage, PoolStats};
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use crate::store::{PREFETCH_TOGETHER, Store};

/// Transfer frames that requests leave to metadata pages, merges and the cleaner.
pub(crate) const RESERVED_FRAMES: usize = 32;
/// Fewest transfer and staging frames.
pub(crate) const MIN_FRAMES: u32 = 64;

/// Steps after which a call into the core counts as not coming to an end.
const MOST_STEPS: u32 = 100_000;

/// A cache device's live state.
pub(crate) struct Device {
    /// Hash of its identity, for page tags.
    pub seed: u64,
    /// Its identity.
    pub id: Uuid,
    /// Reads that failed lately.
    pub errors: ReadErrors,
    /// Something was written since its last flush.
    pub unflushed: bool,
    /// No other may have what it has, although in this pool another should.
    pub alone: bool,
}

/// The cache. See the module.
pub struct Core<M> {
    pub(crate) memory: M,
    pub(crate) config: CoreConfig,
    pub(crate) now: Micros,
    pub(crate) pool: Uuid,
    pub(crate) redundancy: bool,
    pub(crate) degraded: bool,
    pub(crate) durability: Durability,
    /// Once this number is durable every dirty block has its second copy again.
    pub(crate) rebuilt_seq: Option<u64>,
    /// The record's version that says that the pool is degraded no more.
    pub(crate) whole_version: u64,
    pub(crate) distrust_clean: bool,
    pub(crate) store: Store,
    pub(crate) staging: Staging,
    pub(crate) disks: Vec<Option<Disk>>,
    pub(crate) devices: Vec<Option<Device>>,
    pub(crate) retired: Vec<Option<(Uuid, u32)>>,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) purge: Purge,
    pub(crate) drain: Drain,
    pub(crate) requests: Slab<RequestState>,
    pub(crate) ios: Slab<Io>,
    pub(crate) batches: Slab<Batch>,
    pub(crate) locks: Locks,
    pub(crate) record: RecordWriter,
    pub(crate) pool_job: Option<PoolJob>,
    /// Stops that were asked for and have not begun.
    pub(crate) stops: VecDeque<JobId>,
    pub(crate) next_job: u32,
    pub(crate) transfer: Vec<FrameNo>,
    pub(crate) origin_frames: usize,
    pub(crate) transfer_total: usize,
    pub(crate) starved: bool,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) touched: VecDeque<DiskNo>,
    pub(crate) frame_waiters: VecDeque<u32>,
    pub(crate) staging_waiters: VecDeque<u32>,
    /// Segments that are being emptied, and the disk that asked for them.
    pub(crate) reclaiming: Vec<(SegmentNo, Option<DiskNo>)>,
    pub(crate) intent_generations: Vec<u64>,
    pub(crate) picked_frames: Vec<FrameNo>,
    pub(crate) picked_slots: [Vec<SlotNo>; 2],
    pub(crate) stopping: bool,
    pub(crate) loss_recorded: bool,
    pub(crate) woke_stranded: bool,
}

impl<M: Memory> Core<M> {
    /// Takes a request. Its completion comes as an action.
    ///
    /// # Errors
    /// See [`Rejected`]; nothing was started then.
    pub fn submit(&mut self, now: Micros, request: Request) -> Result<(), Rejected> {
        self.now = now;
        let disk = self
            .disks
            .get_mut(request.disk.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(Rejected::NoSuchDisk(request.disk))?;
        if disk.life.is_released() {
            return Err(Rejected::NotOwner);
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
        if self.requests.len() >= self.config.max_requests as usize || self.stopping {
            return Err(Rejected::Busy);
        }
        disk.requests += 1;
        disk.last_request_us = now;
        let number = self.requests.take();
        self.begin(number, request);
        self.enqueue(number);
        self.settle();
        Ok(())
    }

    /// Tells of requests that will be submitted soon, so that what they need of the tables is read for many
    /// of them at once. A hint: nothing changes but speed, whatever follows.
    pub fn prefetch(&self, requests: &[Request]) {
        let mut blocks = [(DiskNo(0), BlockNo(0)); PREFETCH_TOGETHER];
        let mut count = 0;
        for request in requests {
            let disk = self.disks.get(request.disk.0 as usize).and_then(Option::as_ref);
            let end = request.sector.0.checked_add(u64::from(request.sectors));
            let fits = |disk: &&Disk| request.sectors > 0 && end.is_some_and(|end| end <= disk.sectors);
            let Some(disk) = disk.filter(fits) else { continue };
            let (first, last) = disk.blocks(request.sector.0, request.sectors);
            for block in first.0..=last.0 {
                blocks[count] = (request.disk, BlockNo(block));
                count += 1;
                if count == PREFETCH_TOGETHER {
                    self.store.prefetch(&blocks);
                    count = 0;
                }
            }
        }
        self.store.prefetch(&blocks[..count]);
    }

    /// Answers an action.
    pub fn complete(&mut self, now: Micros, io: IoId, result: Result<(), IoFailure>) {
        self.now = now;
        assert!(self.ios.contains(io.0), "{io:?} is in flight");
        let mut done = std::mem::take(&mut self.ios[io.0]);
        self.dispatch(&done, result);
        done.frames.clear();
        done.hits.clear();
        done.fills.clear();
        self.ios[io.0] = done;
        self.ios.put(io.0);
        self.settle();
    }

    fn dispatch(&mut self, io: &Io, result: Result<(), IoFailure>) {
        if io.purpose.writes_device()
            && let Some(device) = io.device
            && let Some(device) = self.devices[device.0 as usize].as_mut()
        {
            device.unflushed = true;
        }
        match io.purpose {
            Purpose::None => unreachable!("an I/O in flight has a purpose"),
            Purpose::Hit { request } => self.hit_done(io, request, result),
            Purpose::Fill { request } => self.fill_done(io, request, result),
            Purpose::Merge { frame, version, part } => self.merge_done(io, frame, version, part, result),
            Purpose::Commit { batch, copy, seq } => self.commit_done(io, batch, copy, seq, result),
            Purpose::Page { segment, seq } => self.page_done(io, segment, seq, result),
            Purpose::Flush => self.pool_flush_done(io, result),
            Purpose::Intent { seq } => self.intent_done(io, seq, result),
            Purpose::Record { seq } => self.record_done(io, seq, result),
            Purpose::CleanRead { at, slot } => self.clean_read_done(io, at, slot, result),
            Purpose::CleanWrite => self.clean_write_done(io, result),
            Purpose::Around { request } => self.around_done(io, request, result),
            Purpose::Zero { request } => self.zero_done(io, request, result),
            Purpose::FlushOrigin { reason, changes } => self.origin_flush_done(io, reason, changes, result),
            Purpose::Restage { part } => self.restage_done(io, part, result),
        }
    }

    fn origin_flush_done(
        &mut self,
        io: &Io,
        reason: OriginFlushReason,
        changes: u64,
        result: Result<(), IoFailure>,
    ) {
        if result.is_ok() {
            self.disk_mut(io.disk.expect("an origin is of a disk")).origin.flushed(changes);
        }
        match reason {
            OriginFlushReason::Clean => self.clean_flush_done(io, result),
            OriginFlushReason::Zero { request } => self.zero_flush_done(io, request, result),
            OriginFlushReason::Guest => self.guest_flush_done(io, result),
            OriginFlushReason::Settle => self.settle_flush_done(io, result),
            OriginFlushReason::Intent => self.intent_flush_done(io, result),
        }
    }

    /// Tells the time: background work that is due starts.
    pub fn tick(&mut self, now: Micros) {
        self.now = now;
        self.touch_all();
        self.settle();
    }

    /// When [`Core::tick`] should be called, if at all.
    pub fn next_wakeup(&self) -> Option<Micros> {
        (0..self.disks.len() as u16)
            .filter_map(|number| self.disk_wakeup(DiskNo(number)))
            .chain(self.durability.mark_due_us())
            .min()
    }

    /// When the disk's background work should next be looked at.
    fn disk_wakeup(&self, disk: DiskNo) -> Option<Micros> {
        let d = self.disks[disk.0 as usize].as_ref()?;
        if !d.life.writes_origin() {
            return None;
        }
        let clean = (self.store.disks[disk.0 as usize].dirty + d.flush.staged_dirty() > 0)
            .then_some(d.cleaner.next_look_us.max(d.cleaner.retry_us));
        [clean, d.intents.clear_due_us()].into_iter().flatten().min().map(|at| at.max(self.now + 1))
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The memory of an I/O, in order.
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

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory, to change.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Ends the core and gives the memory back.
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// The pool's identity.
    pub fn pool_id(&self) -> Uuid {
        self.pool
    }

    /// Recounts all bookkeeping and compares it with the counts kept. For tests; slow.
    ///
    /// # Panics
    /// When a count is wrong.
    pub fn check(&self) {
        self.store.check();
    }

    /// A disk's counters.
    pub fn disk_stats(&self, disk: DiskNo) -> Option<&DiskStats> {
        self.disks.get(disk.0 as usize)?.as_ref().map(|d| &d.stats)
    }

    /// A disk's share as it is now.
    pub fn disk_usage(&self, disk: DiskNo) -> Option<DiskUsage> {
        let d = self.disks.get(disk.0 as usize)?.as_ref()?;
        let space = &self.store.disks[disk.0 as usize];
        let staged = u64::from(self.staging.lists[disk.0 as usize].len);
        let oldest = self.oldest_dirty_us(disk);
        Some(DiskUsage {
            target_blocks: self.target_blocks(disk),
            usage_blocks: space.live + staged,
            dirty_blocks: space.dirty + d.flush.staged_dirty(),
            mirrored_blocks: space.mirrors,
            overtaken_blocks: space.pending,
            oldest_dirty_us: oldest.map_or(0, |since| self.now.saturating_sub(since)),
            segments: space.segments.len() as u64,
        })
    }

    /// The pool as it is now.
    pub fn pool_stats(&self) -> PoolStats {
        let in_use = |d: &&crate::store::DeviceSpace| d.alive;
        let devices = self.store.devices.iter().flatten().filter(in_use);
        let (mut count, mut segments) = (0, 0);
        for device in devices {
            count += 1;
            segments += u64::from(device.segments);
        }
        let staged_dirty: u64 = self.disks.iter().flatten().map(|d| d.flush.staged_dirty()).sum();
        PoolStats {
            capacity_blocks: segments * u64::from(crate::format::geometry::SLOTS_PER_SEGMENT),
            usage_blocks: self.store.disks.iter().map(|d| d.live).sum(),
            dirty_blocks: self.store.disks.iter().map(|d| d.dirty).sum::<u64>() + staged_dirty,
            free_segments: self.store.free_segments(None) as u64,
            devices: count,
            degraded: self.redundancy
                && (count < 2 || self.degraded || !self.record.is_durable(self.whole_version)),
            flushes: self.durability.flushes(),
            record_pages: self.record.pages(),
            memory_bytes: (self.store.bytes() + self.staging.bytes()) as u64
                + self.disks.iter().flatten().map(|d| d.side_bytes() as u64).sum::<u64>(),
        }
    }

    pub(crate) fn disk(&self, disk: DiskNo) -> &Disk {
        self.disks[disk.0 as usize].as_ref().expect("the disk is known")
    }

    pub(crate) fn disk_mut(&mut self, disk: DiskNo) -> &mut Disk {
        self.disks[disk.0 as usize].as_mut().expect("the disk is known")
    }

    /// How many blocks a disk should have.
    pub(crate) fn target_blocks(&self, disk: DiskNo) -> u64 {
        match self.disk(disk).target {
            Target::Blocks(blocks) => blocks,
            Target::Shared { at_least_blocks, at_most_blocks } => {
                self.shared_blocks(disk, at_least_blocks, at_most_blocks)
            }
            Target::Equal => {
                let sharers = self.disks.iter().flatten().filter(|d| d.target == Target::Equal).count();
                self.capacity_blocks() / sharers.max(1) as u64
            }
        }
    }

    pub(crate) fn capacity_blocks(&self) -> u64 {
        let alive = self.store.devices.iter().flatten().filter(|d| d.alive && !d.draining);
        alive.map(|d| u64::from(d.segments)).sum::<u64>()
            * u64::from(crate::format::geometry::SLOTS_PER_SEGMENT)
    }

    /// Lets the disk's background work be looked at.
    pub(crate) fn touch(&mut self, disk: DiskNo) {
        let d = self.disk_mut(disk);
        if !d.touched {
            d.touched = true;
            self.touched.push_back(disk);
        }
    }

    pub(crate) fn touch_all(&mut self) {
        for number in 0..self.disks.len() {
            if self.disks[number].is_some() {
                self.touch(DiskNo(number as u16));
            }
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.actions.push_back(Action::Event(event));
    }

    /// Does all that can be done now.
    pub(crate) fn settle(&mut self) {
        let mut steps = 0u32;
        self.woke_stranded = false;
        loop {
            steps += 1;
            assert!(steps < MOST_STEPS, "a call into the core comes to an end");
            if let Some(request) = self.ready.pop_front() {
                self.pump(request);
            } else if let Some(disk) = self.touched.pop_front() {
                if self.disks[disk.0 as usize].is_some() {
                    self.disk_mut(disk).touched = false;
                    self.drive(disk);
                }
            } else if !self.drive_pool() && !self.wake_stranded() {
                break;
            }
        }
    }

    /// A waiter that was woken for a frame may end up waiting for something else. When nothing is in flight
    /// whose end would wake the next, all that wait for what there is are woken, once a call.
    fn wake_stranded(&mut self) -> bool {
        if self.ios.len() > 0 || std::mem::replace(&mut self.woke_stranded, true) {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.frame_waiters);
        if self.staging.free() > 0 {
            waiting.append(&mut self.staging_waiters);
        }
        let any = !waiting.is_empty();
        for request in waiting {
            self.wake(request);
        }
        any
    }

    fn drive(&mut self, disk: DiskNo) {
        self.drive_intents(disk);
        self.drive_rewrites(disk);
        self.drive_restage(disk);
        self.drive_commit(disk);
        self.drive_flush(disk);
        self.drive_cleaner(disk);
        self.drive_job(disk);
    }

    fn drive_pool(&mut self) -> bool {
        self.drive_leaving()
            | self.drive_purge()
            | self.drive_record()
            | self.drive_reclaim()
            | self.drive_pool_job()
            | self.drive_mark()
            | self.drive_pool_flush()
    }

    /// Starts to describe an I/O. It is put into flight with [`Core::emit`].
    pub(crate) fn new_io(&mut self, purpose: Purpose) -> u32 {
        let number = self.ios.take();
        let io = &mut self.ios[number];
        debug_assert!(io.frames.is_empty() && io.hits.is_empty() && io.fills.is_empty());
        (io.purpose, io.disk, io.device, io.start, io.len) = (purpose, None, None, 0, 0);
        number
    }

    pub(crate) fn emit(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Reads the block of a slot.
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

    /// A transfer frame for a request, if enough are left for the rest of the core.
    pub(crate) fn request_frame(&mut self, for_origin: bool) -> Option<FrameNo> {
        if self.transfer.len() <= RESERVED_FRAMES || for_origin && !self.origin_frame_left() {
            return None;
        }
        self.origin_frames += usize::from(for_origin);
        self.transfer.pop()
    }

    /// Whether I/O with origins may take one more frame: a quarter is left to flash, however slow they are.
    pub(crate) fn origin_frame_left(&self) -> bool {
        self.origin_frames < (self.transfer_total - RESERVED_FRAMES) * 3 / 4
    }

    /// A transfer frame for the core's own work.
    pub(crate) fn own_frame(&mut self) -> Option<FrameNo> {
        let frame = self.transfer.pop();
        self.starved |= frame.is_none();
        frame
    }

    pub(crate) fn free_frame(&mut self, frame: FrameNo, for_origin: bool) {
        self.transfer.push(frame);
        self.origin_frames -= usize::from(for_origin);
        if self.starved {
            self.starved = false;
            self.touch_all();
        }
        if self.transfer.len() > RESERVED_FRAMES
            && let Some(request) = self.frame_waiters.pop_front()
        {
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

    fn enqueue(&mut self, request: u32) {
        self.requests[request].queued = true;
        self.ready.push_back(request);
    }

    /// Unlocks a block and wakes who waits for it, a change of the disk's size too.
    pub(crate) fn unlock(&mut self, disk: DiskNo, block: BlockNo) {
        if self.disk(disk).job.is_some() {
            self.touch(disk);
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

    /// An I/O of a number is completed; tells whether it was the last. Numbers that were completed before this
    /// one count as completed only now: who waited for them, on whatever disk, is woken.
    pub(crate) fn sequence_done(&mut self, seq: u64) -> bool {
        let last = self.durability.done(seq);
        if self.durability.completed() > seq {
            self.wake_around_all();
        }
        last
    }

    /// Wakes requests that wait for any disk's background work, and lets that be looked at.
    pub(crate) fn wake_around_all(&mut self) {
        for number in 0..self.disks.len() {
            if self.disks[number].is_some() {
                self.wake_around(DiskNo(number as u16));
                self.touch(DiskNo(number as u16));
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
            match self.staging_waiters.pop_front() {
                Some(request) => self.wake(request),
                None => break,
            }
        }
    }

    pub(crate) fn fail(&mut self, request: u32, error: RequestError) {
        self.requests[request].error.get_or_insert(error);
    }
}
