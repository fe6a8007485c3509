//! A driver for tests: devices and origins in memory, I/Os that end when the test says so, a clock that
//! stands still.

pub mod sectors;
mod storage;

use std::collections::HashMap;

use haversack_core::{
    Action, Call, CheckpointSource, CleanOrder, CleanerConfig, Core, CoreConfig, DiskConfig, DiskStats,
    DiskUsage, Event, HeapMemory, IoFailure, IoId, IoPurpose, JobError, JobId, Memory, MemoryCheckpoint, Op,
    OpenOptions, OpenReport, Payloads, Piece, Rejected, Request, RequestError, RequestTag, Target, Unsaved,
};
use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros, SECTOR_BYTES, SectorNo, Uuid, WriteMode};

pub use storage::{Device, Origin, POOL, Shelf, device_id, disk_id, member};

/// The guests' buffers.
#[derive(Default)]
pub struct Buffers(pub HashMap<RequestTag, Vec<u8>>);

impl Payloads for Buffers {
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.0[&tag][at..at + into.len()]);
        true
    }

    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]) {
        let buffer = self.0.get_mut(&tag).expect("the guest reads into a buffer");
        buffer[at..at + from.len()].copy_from_slice(from);
    }
}

pub type TestMemory = HeapMemory<Buffers>;

/// Never cleans without being asked.
pub const LAZY: CleanerConfig = CleanerConfig {
    low_watermark: 1.0,
    high_watermark: 1.0,
    dirty_limit: 1.0,
    age_us: 1 << 40,
    idle_us: 1 << 40,
    rate_limit_blocks: 0,
    order: CleanOrder::Age,
};

/// What an origin contains at first.
pub const OF_ORIGIN: u8 = 7;

pub fn memory() -> TestMemory {
    HeapMemory::new(128, 192, Buffers::default())
}

/// Something that the core asked for.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    pub action: Action,
    /// The purpose, if the action is an I/O.
    pub purpose: Option<IoPurpose>,
    /// Whose blocks it carries.
    pub disk: Option<DiskNo>,
}

impl Requested {
    /// The device that it writes.
    pub fn written_device(&self) -> Option<DeviceNo> {
        match self.action {
            Action::WriteDevice { device, .. } => Some(device),
            _ => None,
        }
    }
}

/// An I/O that the core asked for and that has not ended.
pub struct Pending {
    pub asked: Requested,
    io: IoId,
    pieces: Vec<Piece>,
    /// What it writes: memory in flight must not change.
    bytes: Vec<u8>,
    /// What a device flush covers.
    mark: usize,
}

/// The outcome of an I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    Hold,
    Fail(IoFailure),
}

pub struct Rig {
    core: Option<Core>,
    memory: TestMemory,
    pub shelf: Shelf,
    /// Where the pool's devices are on the shelf.
    pub places: HashMap<DeviceNo, usize>,
    pub origins: HashMap<DiskNo, Origin>,
    /// What a disk's earlier owner has: a byte for all sectors of a block. A read of any other block fails.
    pub peer: HashMap<BlockNo, u8>,
    pub now: Micros,
    pub pending: Vec<Pending>,
    pub answers: HashMap<RequestTag, Result<(), RequestError>>,
    pub jobs: HashMap<JobId, Result<(), JobError>>,
    pub events: Vec<Event>,
    /// Everything that the core asked for, in order.
    pub log: Vec<Requested>,
    pub report: OpenReport,
    next_tag: u64,
}

impl Rig {
    /// A new pool, opened.
    pub fn new(segments: &[u32], redundancy: bool, config: CoreConfig) -> Rig {
        Rig::open(Shelf::pool(segments, redundancy), memory(), config)
    }

    pub fn open(shelf: Shelf, memory: TestMemory, config: CoreConfig) -> Rig {
        Rig::open_with(shelf, memory, config, OpenOptions::default())
    }

    pub fn open_with(shelf: Shelf, memory: TestMemory, config: CoreConfig, options: OpenOptions) -> Rig {
        Rig::open_from(shelf, memory, None, config, options)
    }

    /// Opens a pool, with a checkpoint if there is one.
    pub fn open_from(
        mut shelf: Shelf,
        mut memory: TestMemory,
        checkpoint: Option<&mut MemoryCheckpoint>,
        config: CoreConfig,
        options: OpenOptions,
    ) -> Rig {
        let checkpoint = checkpoint.map(|pieces| pieces as &mut dyn CheckpointSource);
        let opened = Core::open_with(&mut shelf, &mut memory, checkpoint, config, &options, 0);
        let (core, report) = opened.unwrap_or_else(|error| panic!("{error}"));
        Rig {
            core: Some(core),
            memory,
            shelf,
            places: report.devices.iter().copied().collect(),
            origins: HashMap::new(),
            peer: HashMap::new(),
            now: 0,
            pending: Vec::new(),
            answers: HashMap::new(),
            jobs: HashMap::new(),
            events: Vec::new(),
            log: Vec::new(),
            report,
            next_tag: 0,
        }
    }

    pub fn core(&mut self) -> Call<'_, TestMemory> {
        self.core.as_mut().expect("the core is running").with(&mut self.memory)
    }

    pub fn staging_frames(&self) -> u32 {
        self.memory.staging_frames()
    }

    pub fn running(&self) -> &Core {
        self.core.as_ref().expect("the core is running")
    }

    pub fn stats(&self, disk: DiskNo) -> DiskStats {
        *self.running().disk_stats(disk).expect("the disk is known")
    }

    pub fn usage(&self, disk: DiskNo) -> DiskUsage {
        self.running().disk_usage(disk).expect("the disk is known")
    }

    /// Attaches a disk and waits until it is attached. The origin of a new disk is full of [`OF_ORIGIN`].
    pub fn attach(&mut self, config: &DiskConfig, epoch: u64) -> DiskNo {
        let now = self.now;
        let (disk, job) = self.core().attach(now, config, epoch, false).expect("the disk may be attached");
        let bytes = config.sectors as usize * SECTOR_BYTES;
        self.origins.entry(disk).or_insert_with(|| Origin::new(vec![OF_ORIGIN; bytes]));
        self.finish(job);
        disk
    }

    /// Attaches disk number `number` with this mode and otherwise default settings.
    pub fn disk(&mut self, number: u8, sectors: u64, mode: WriteMode) -> DiskNo {
        self.attach(&DiskConfig { mode, ..DiskConfig::new(disk_id(number), sectors) }, 1)
    }

    /// Runs until a job that must succeed has ended.
    pub fn finish(&mut self, job: JobId) {
        assert_eq!(self.outcome(job), Ok(()), "{job:?}");
    }

    /// Runs until a job has ended.
    pub fn outcome(&mut self, job: JobId) -> Result<(), JobError> {
        for _ in 0..100 {
            self.run();
            if let Some(result) = self.jobs.get(&job) {
                return *result;
            }
            self.wait(1_000_000);
        }
        panic!("{job:?} does not end");
    }

    pub fn try_submit(
        &mut self,
        disk: DiskNo,
        op: Op,
        sector: u64,
        payload: Vec<u8>,
    ) -> Result<RequestTag, Rejected> {
        let sectors = (payload.len() / SECTOR_BYTES) as u32;
        self.submit_sized(disk, op, sector, sectors, payload)
    }

    pub fn submit_sized(
        &mut self,
        disk: DiskNo,
        op: Op,
        sector: u64,
        sectors: u32,
        payload: Vec<u8>,
    ) -> Result<RequestTag, Rejected> {
        let (tag, now) = (RequestTag(self.next_tag), self.now);
        self.next_tag += 1;
        self.memory.payloads.0.insert(tag, payload);
        let submitted = self.core().submit(now, Request { tag, disk, op, sector: SectorNo(sector), sectors });
        self.collect();
        submitted.map(|()| tag)
    }

    /// Starts a request that must be taken.
    pub fn submit(&mut self, disk: DiskNo, op: Op, sector: u64, payload: Vec<u8>) -> RequestTag {
        self.try_submit(disk, op, sector, payload).expect("the request is taken")
    }

    /// Starts a write of sectors full of `value`.
    pub fn start_write(&mut self, disk: DiskNo, sector: u64, sectors: u32, value: u8) -> RequestTag {
        self.submit(disk, Op::Write { fua: false }, sector, vec![value; sectors as usize * SECTOR_BYTES])
    }

    pub fn start_read(&mut self, disk: DiskNo, sector: u64, sectors: u32) -> RequestTag {
        self.submit(disk, Op::Read, sector, vec![0xee; sectors as usize * SECTOR_BYTES])
    }

    pub fn start_flush(&mut self, disk: DiskNo) -> RequestTag {
        self.submit(disk, Op::Flush, 0, Vec::new())
    }

    /// Writes sectors full of `value`.
    pub fn write(&mut self, disk: DiskNo, sector: u64, sectors: u32, value: u8) {
        let tag = self.start_write(disk, sector, sectors, value);
        self.answered(tag);
    }

    /// Reads sectors; all bytes of a sector must be the same. Returns one byte for each.
    pub fn read(&mut self, disk: DiskNo, sector: u64, sectors: u32) -> Vec<u8> {
        let tag = self.start_read(disk, sector, sectors);
        self.answered(tag);
        let bytes = self.buffer(tag);
        assert!(bytes.chunks(SECTOR_BYTES).all(|s| s.iter().all(|b| *b == s[0])), "a torn sector");
        bytes.chunks(SECTOR_BYTES).map(|s| s[0]).collect()
    }

    pub fn flush(&mut self, disk: DiskNo) {
        let tag = self.start_flush(disk);
        self.answered(tag);
    }

    pub fn clean(&mut self, disk: DiskNo) {
        let now = self.now;
        let job = self.core().clean(now, disk).expect("the disk may be cleaned");
        self.finish(job);
    }

    /// Lends a buffer to a call that names it by a tag.
    pub fn give_buffer(&mut self, tag: RequestTag, buffer: Vec<u8>) {
        self.memory.payloads.0.insert(tag, buffer);
    }

    /// Takes a request's buffer.
    pub fn buffer(&mut self, tag: RequestTag) -> Vec<u8> {
        self.memory.payloads.0.remove(&tag).expect("the request had a buffer")
    }

    /// Runs until a request is answered, which must have succeeded.
    pub fn answered(&mut self, tag: RequestTag) {
        assert_eq!(self.answer(tag), Ok(()), "{tag:?}");
    }

    /// Runs until a request is answered.
    pub fn answer(&mut self, tag: RequestTag) -> Result<(), RequestError> {
        for _ in 0..100 {
            self.run();
            if let Some(answer) = self.answers.get(&tag) {
                return *answer;
            }
            self.wait(100_000);
        }
        panic!("{tag:?} is not answered");
    }

    pub fn is_answered(&self, tag: RequestTag) -> bool {
        self.answers.contains_key(&tag)
    }

    /// Carries out all I/O, in order, until there is none.
    pub fn run(&mut self) {
        self.run_with(|_| Fate::Done);
    }

    /// Carries out all I/O except what `held` selects.
    pub fn run_without(&mut self, mut held: impl FnMut(&Requested) -> bool) {
        self.run_with(|asked| if held(asked) { Fate::Hold } else { Fate::Done });
    }

    /// Ends I/Os in order until only those that are held are left.
    pub fn run_with(&mut self, mut fate: impl FnMut(&Requested) -> Fate) {
        self.collect();
        let (mut at, mut steps) = (0, 0);
        while at < self.pending.len() {
            match fate(&self.pending[at].asked) {
                Fate::Hold => at += 1,
                Fate::Done => self.end(at, Ok(())),
                Fate::Fail(failure) => self.end(at, Err(failure)),
            }
            steps += 1;
            let last = &self.log[self.log.len().saturating_sub(24)..];
            assert!(steps < 200_000, "the core does not go idle: {last:#?}");
        }
    }

    /// Advances the time, and carries out all I/O.
    pub fn wait(&mut self, micros: Micros) {
        self.wait_with(micros, |_| Fate::Done);
    }

    pub fn wait_with(&mut self, micros: Micros, mut fate: impl FnMut(&Requested) -> Fate) {
        let until = self.now + micros;
        let mut ticks = 0;
        loop {
            self.run_with(&mut fate);
            let next = self.core().next_wakeup().filter(|at| *at < until);
            self.now = next.map_or(until, |at| at.max(self.now));
            let now = self.now;
            self.core().tick(now);
            self.run_with(&mut fate);
            if next.is_none() {
                return;
            }
            ticks += 1;
            assert!(ticks < 100_000, "the core wants to be woken all the time");
        }
    }

    /// Takes what the core wants done.
    pub fn collect(&mut self) {
        while let Some(action) = self.core().poll() {
            let io = match action {
                Action::ReadDevice { io, .. }
                | Action::WriteDevice { io, .. }
                | Action::FlushDevice { io, .. }
                | Action::ReadOrigin { io, .. }
                | Action::WriteOrigin { io, .. }
                | Action::ZeroOrigin { io, .. }
                | Action::FlushOrigin { io, .. }
                | Action::ReadPeer { io, .. } => Some(io),
                Action::Complete { .. } | Action::Event(_) => None,
            };
            let (purpose, disk) = io.map(|io| self.running().purpose(io)).unzip();
            let asked = Requested { action, purpose, disk: disk.flatten() };
            self.log.push(asked);
            if let Some(io) = io {
                self.launch(io, asked);
            }
            match action {
                Action::Complete { tag, result } => {
                    let again = self.answers.insert(tag, result);
                    assert_eq!(again, None, "{tag:?} is answered once");
                }
                Action::Event(Event::JobDone { job, result }) => {
                    let again = self.jobs.insert(job, result);
                    assert_eq!(again, None, "{job:?} ends once");
                }
                Action::Event(event) => self.events.push(event),
                _ => {}
            }
        }
    }

    fn launch(&mut self, io: IoId, asked: Requested) {
        let action = asked.action;
        let pieces: Vec<Piece> = self.running().pieces(io).collect();
        let writes = matches!(action, Action::WriteDevice { .. } | Action::WriteOrigin { .. });
        let bytes = if writes { self.gather(&pieces) } else { Vec::new() };
        let mark = match action {
            Action::FlushDevice { device, .. } => self.device(device).flush_mark(),
            _ => 0,
        };
        self.pending.push(Pending { asked, io, pieces, bytes, mark });
    }

    /// Ends one of the pending I/Os.
    pub fn end(&mut self, at: usize, result: Result<(), IoFailure>) {
        let pending = self.pending.remove(at);
        let result = result.and_then(|()| self.perform(&pending));
        let now = self.now;
        self.core().complete(now, pending.io, result);
        self.collect();
    }

    pub fn device(&mut self, device: DeviceNo) -> &mut Device {
        &mut self.shelf.0[self.places[&device]]
    }

    fn origin(&mut self, disk: DiskNo) -> Result<&mut Origin, IoFailure> {
        let origin = self.origins.get_mut(&disk).expect("the disk has an origin");
        if origin.down { Err(IoFailure::Error) } else { Ok(origin) }
    }

    fn perform(&mut self, pending: &Pending) -> Result<(), IoFailure> {
        if !pending.bytes.is_empty() {
            assert!(
                self.gather(&pending.pieces) == pending.bytes,
                "memory in flight changed: {:?}",
                pending.asked.action
            );
        }
        let length = pending.pieces.iter().map(|p| p.len).sum();
        let range = |sector: SectorNo, sectors: u32| {
            let at = sector.0 as usize * SECTOR_BYTES;
            at..at + sectors as usize * SECTOR_BYTES
        };
        match pending.asked.action {
            Action::ReadDevice { device, offset_bytes, .. } => {
                let mut bytes = vec![0; length];
                self.device(device).read(offset_bytes, &mut bytes)?;
                self.scatter(&pending.pieces, &bytes);
            }
            Action::WriteDevice { device, offset_bytes, .. } => {
                self.device(device).write(offset_bytes, &pending.bytes)?;
            }
            Action::FlushDevice { device, .. } => self.device(device).flush(pending.mark),
            Action::ReadOrigin { disk, sector, sectors, .. } => {
                let bytes = self.origin(disk)?.bytes[range(sector, sectors)].to_vec();
                self.scatter(&pending.pieces, &bytes);
            }
            Action::WriteOrigin { disk, sector, sectors, .. } => {
                let origin = self.origin(disk)?;
                origin.bytes[range(sector, sectors)].copy_from_slice(&pending.bytes);
                origin.writes += 1;
            }
            Action::ZeroOrigin { disk, sector, sectors, .. } => {
                let origin = self.origin(disk)?;
                origin.bytes[range(sector, sectors)].fill(0);
                origin.writes += 1;
            }
            Action::FlushOrigin { disk, .. } => {
                let origin = self.origin(disk)?;
                origin.flushed_writes = origin.writes;
            }
            Action::ReadPeer { block, .. } => {
                let value = *self.peer.get(&block).ok_or(IoFailure::Error)?;
                self.scatter(&pending.pieces, &vec![value; length]);
            }
            Action::Complete { .. } | Action::Event(_) => unreachable!("no I/O"),
        }
        Ok(())
    }

    fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|p| self.memory.frame(p.frame)[p.at..p.at + p.len].iter().copied()).collect()
    }

    fn scatter(&mut self, pieces: &[Piece], bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces {
            let (now, later) = rest.split_at(piece.len);
            self.memory.frame_mut(piece.frame)[piece.at..piece.at + piece.len].copy_from_slice(now);
            rest = later;
        }
    }

    /// Adds a formatted device of n segments and waits until the pool has it.
    pub fn add_device(&mut self, segments: u32) -> DeviceNo {
        let (number, job) = self.start_adding(segments);
        self.finish(job);
        number
    }

    pub fn start_adding(&mut self, segments: u32) -> (DeviceNo, JobId) {
        let place = self.shelf.0.len();
        let name = format!("/dev/cache{place}");
        self.shelf.0.push(Device::blank(&name, haversack_core::pool::device_bytes(segments)));
        let number = self.core().next_device_no().expect("the pool takes another device");
        let id = device_id(place as u8);
        let device =
            haversack_core::pool::prepare_device(&mut self.shelf, place, &member(number, id), u32::MAX, 256);
        self.places.insert(number, place);
        let now = self.now;
        let job = self.core().add_device(now, device.expect("a blank device")).expect("no other job runs");
        (number, job)
    }

    /// Stops the core cleanly.
    pub fn shutdown(&mut self) -> Shelf {
        let now = self.now;
        let job = self.core().shutdown(now);
        self.finish(job);
        self.core = None;
        std::mem::replace(&mut self.shelf, Shelf(Vec::new()))
    }

    /// Stops the core cleanly, under a name.
    pub fn stop(&mut self, name: Uuid) {
        self.core().name_stop(name);
        let now = self.now;
        let job = self.core().shutdown(now);
        self.finish(job);
    }

    /// Stops the core cleanly, under a name, and makes a checkpoint of it.
    pub fn checkpoint(&mut self, name: Uuid) -> (Shelf, Result<MemoryCheckpoint, Unsaved<()>>) {
        self.stop(name);
        let core = self.core.take().expect("the core is running");
        let mut pieces = MemoryCheckpoint::default();
        let saved = core.checkpoint(&mut |piece| {
            pieces.push(piece);
            Ok(())
        });
        (std::mem::replace(&mut self.shelf, Shelf(Vec::new())), saved.map(|()| pieces))
    }

    /// Returns the core as it is.
    pub fn into_core(mut self) -> Core {
        self.core.take().expect("the core is running")
    }

    /// Kills the core. I/O in flight has no effect.
    pub fn kill(mut self) -> (Shelf, TestMemory) {
        self.core.take().expect("the core is running");
        (self.shelf, self.memory)
    }

    /// Kills the core and opens the pool again, with what was staged and before the same origins.
    pub fn after_kill(mut self, config: CoreConfig) -> Rig {
        let origins = std::mem::take(&mut self.origins);
        let (shelf, memory) = self.kill();
        Rig { origins, ..Rig::open(shelf, memory, config) }
    }

    /// Cuts the power and opens the pool again before the same origins.
    pub fn after_power_cut(mut self, config: CoreConfig) -> Rig {
        let origins = std::mem::take(&mut self.origins);
        Rig { origins, ..Rig::open(self.power_cut(), memory(), config) }
    }

    /// Cuts the power: what was not flushed is gone, and so is the memory.
    pub fn power_cut(mut self) -> Shelf {
        for device in &mut self.shelf.0 {
            device.power_cut();
        }
        self.shelf
    }
}

/// I/Os of the log by kind.
pub fn is_origin_write(asked: &Requested) -> bool {
    matches!(asked.action, Action::WriteOrigin { .. } | Action::ZeroOrigin { .. })
}

pub fn is_origin_read(asked: &Requested) -> bool {
    matches!(asked.action, Action::ReadOrigin { .. })
}

pub fn is_origin_flush(asked: &Requested) -> bool {
    matches!(asked.action, Action::FlushOrigin { .. })
}

pub fn is_device_read(asked: &Requested) -> bool {
    matches!(asked.action, Action::ReadDevice { .. })
}

pub fn is_device_write(asked: &Requested) -> bool {
    matches!(asked.action, Action::WriteDevice { .. })
}

pub fn is_device_flush(asked: &Requested) -> bool {
    matches!(asked.action, Action::FlushDevice { .. })
}

/// I/Os by purpose.
pub fn is_record(asked: &Requested) -> bool {
    asked.purpose == Some(IoPurpose::Record)
}

/// Writes of data and metadata to segments.
pub fn is_segment_write(asked: &Requested) -> bool {
    matches!(asked.purpose, Some(IoPurpose::Commit | IoPurpose::Page))
}

pub fn is_segment_write_to(asked: &Requested, to: DeviceNo) -> bool {
    is_segment_write(asked) && asked.written_device() == Some(to)
}

pub const SHARED: Target = Target::Shared { at_least_blocks: 0, at_most_blocks: u64::MAX };

/// A disk that only its reads fill.
pub fn reader(rig: &mut Rig, number: u8, target: Target) -> DiskNo {
    let mode = WriteMode::WriteInvalidate;
    rig.attach(&DiskConfig { mode, target, ..DiskConfig::new(disk_id(number), 40_000) }, 1)
}

/// Reads the first blocks of a disk, eight at a time.
pub fn fill(rig: &mut Rig, disk: DiskNo, blocks: u64) {
    for block in (0..blocks).step_by(8) {
        rig.read(disk, block * 8, 64);
    }
}
