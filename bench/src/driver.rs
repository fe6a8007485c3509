//! Drives a core with one device and one disk. Every I/O completes at once, in the order of emission.

use haversack_core::{
    Action, Call, Core, CoreConfig, DiskConfig, DiskStats, DiskUsage, Event, IoId, Memory, Op, OpenOptions,
    Piece, PoolConfig, Request, RequestTag, pool,
};
use haversack_model::{ArenaId, DiskId, DiskNo, Micros, SECTORS_PER_BLOCK, SectorNo, Uuid};

use std::time::Instant;

use crate::media::SparseMedia;

/// What a cache is made of.
pub struct Setup {
    /// Segments of the one device.
    pub segments: u32,
    /// The core's settings.
    pub config: CoreConfig,
    /// The one disk's settings.
    pub disk: DiskConfig,
    /// Reads leave zeroes in their frames; otherwise frames are left as they are.
    pub zero_reads: bool,
}

/// The settings of a disk of n blocks.
pub fn disk_of_blocks(blocks: u64) -> DiskConfig {
    DiskConfig::new(DiskId([0xD1; 16]), blocks * SECTORS_PER_BLOCK)
}

/// A core with devices that do nothing.
pub struct Driver<M> {
    /// The core.
    pub core: Core,
    /// What the core works in.
    pub memory: M,
    /// The time.
    pub now: Micros,
    /// Reads leave zeroes in their frames.
    pub zero_reads: bool,
    /// Reads and writes of the cache device so far.
    pub device_ios: u64,
    disk: DiskNo,
    completed: u64,
    jobs_done: u64,
    scratch: Vec<Piece>,
    /// Durations of calls into the core in nanoseconds, if they are recorded.
    pub calls_ns: Option<Vec<u32>>,
}

impl<M: Memory> Driver<M> {
    /// Makes a pool, opens it and attaches the disk.
    ///
    /// # Panics
    /// When the core refuses any of it.
    pub fn open(setup: &Setup, mut memory: M) -> Self {
        let mut media = SparseMedia::new(pool::device_bytes(setup.segments));
        let config = PoolConfig {
            arena: ArenaId::first(Uuid([0x70; 16])),
            arenas: 1,
            device_ids: vec![Uuid([0xDE; 16])],
            redundancy: false,
            prepared_segments: u32::MAX,
        };
        pool::create(&mut media, &config).expect("a blank device becomes a pool");
        let opened = Core::open(&mut media, &mut memory, setup.config, &OpenOptions::default(), 0);
        let (mut core, _) = opened.unwrap_or_else(|error| panic!("opening: {error}"));
        let (disk, _) =
            core.with(&mut memory).attach(0, &setup.disk, 1, false).expect("a new disk can be attached");
        let mut driver = Driver {
            core,
            memory,
            now: 0,
            zero_reads: setup.zero_reads,
            device_ios: 0,
            disk,
            completed: 0,
            jobs_done: 0,
            scratch: Vec::new(),
            calls_ns: None,
        };
        driver.drain();
        assert_eq!(driver.jobs_done, 1, "the attach job is done");
        driver
    }

    /// A read of whole blocks.
    pub fn read_request(&self, tag: u64, block: u64, blocks: u32) -> Request {
        Request {
            tag: RequestTag(tag),
            disk: self.disk,
            op: Op::Read,
            sector: SectorNo(block * SECTORS_PER_BLOCK),
            sectors: blocks * SECTORS_PER_BLOCK as u32,
        }
    }

    /// Calls the core, and records how long that takes.
    fn call<T>(&mut self, call: impl FnOnce(&mut Call<'_, M>, Micros) -> T) -> T {
        let mut core = self.core.with(&mut self.memory);
        let Some(calls_ns) = &mut self.calls_ns else { return call(&mut core, self.now) };
        let start = Instant::now();
        let result = call(&mut core, self.now);
        calls_ns.push(start.elapsed().as_nanos() as u32);
        result
    }

    /// Submits a request without carrying out its I/Os.
    pub fn submit(&mut self, request: Request) {
        let taken = self.call(|core, now| core.submit(now, request));
        taken.unwrap_or_else(|rejected| panic!("request {request:?}: {rejected}"));
    }

    /// Reads whole blocks.
    ///
    /// # Panics
    /// When the request is not complete in the end.
    pub fn read(&mut self, tag: u64, block: u64, blocks: u32) {
        let before = self.completed;
        self.submit(self.read_request(tag, block, blocks));
        self.drain();
        assert_eq!(self.completed, before + 1, "the read of {blocks} blocks at {block} hangs");
    }

    /// Advances the time and does what is due.
    pub fn pass(&mut self, time: Micros) {
        self.now += time;
        if self.core.next_wakeup().is_some_and(|due| due <= self.now) {
            self.call(|core, now| core.tick(now));
            self.drain();
        }
    }

    /// Carries out all I/Os.
    pub fn drain(&mut self) {
        while let Some(action) = self.core.poll() {
            match action {
                Action::Complete { tag, result } => {
                    result.unwrap_or_else(|error| panic!("request {tag:?}: {error}"));
                    self.completed += 1;
                }
                Action::Event(Event::JobDone { job, result }) => {
                    result.unwrap_or_else(|error| panic!("job {job:?}: {error}"));
                    self.jobs_done += 1;
                }
                Action::Event(event) => panic!("with faultless devices: {event:?}"),
                Action::ReadDevice { io, .. } => {
                    self.device_ios += 1;
                    self.read_done(io);
                }
                Action::ReadOrigin { io, .. } | Action::ReadPeer { io, .. } => self.read_done(io),
                Action::WriteDevice { io, .. } => {
                    self.device_ios += 1;
                    self.call(|core, now| core.complete(now, io, Ok(())));
                }
                Action::FlushDevice { io, .. }
                | Action::WriteOrigin { io, .. }
                | Action::ZeroOrigin { io, .. }
                | Action::FlushOrigin { io, .. } => {
                    self.call(|core, now| core.complete(now, io, Ok(())));
                }
            }
        }
    }

    fn read_done(&mut self, io: IoId) {
        if self.zero_reads {
            self.scratch.clear();
            self.scratch.extend(self.core.pieces(io));
            for piece in &self.scratch {
                let frame = self.memory.frame_mut(piece.frame);
                frame[piece.at..piece.at + piece.len].fill(0);
            }
        }
        self.call(|core, now| core.complete(now, io, Ok(())));
    }

    /// Requests completed so far.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The disk.
    pub fn disk(&self) -> DiskNo {
        self.disk
    }

    /// The disk's counters.
    pub fn stats(&self) -> DiskStats {
        *self.core.disk_stats(self.disk).expect("the disk is attached")
    }

    /// The disk's share.
    pub fn usage(&self) -> DiskUsage {
        self.core.disk_usage(self.disk).expect("the disk is attached")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_core::NullMemory;

    #[test]
    fn any_hint_is_taken() {
        let blocks = 1000;
        let setup = Setup {
            segments: 8,
            config: CoreConfig::default(),
            disk: disk_of_blocks(blocks),
            zero_reads: false,
        };
        let mut driver = Driver::open(&setup, NullMemory::new(64, 128));
        let cached = driver.read_request(0, 0, 40);
        let read = |disk, sector, sectors| Request {
            disk: DiskNo(disk),
            sector: SectorNo(sector),
            sectors,
            ..cached
        };
        let end = blocks * SECTORS_PER_BLOCK;
        let all = read(0, 0, end as u32);
        let hints = [cached, all, read(9, 0, 8), read(0, 0, 0), read(0, end, 8), read(0, u64::MAX, u32::MAX)];
        driver.core.prefetch(&hints);
        driver.read(0, 0, 40);
        driver.core.prefetch(&hints);
        driver.read(0, 0, 40);
        driver.core.prefetch(&[]);
    }
}
