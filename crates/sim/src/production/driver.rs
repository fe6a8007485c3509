//! Drives a core through simulated time: I/Os complete at once, or when the model of time says so.
//!
//! Timers are checked once a millisecond while there is traffic, as in the daemon, and otherwise when they
//! are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use haversack_control::Counters;
use haversack_core::{
    Action, AdmissionConfig, Core, DiskConfig, DiskStats, DiskUsage, Event, IoId, ManageError, MonitorConfig,
    PoolStats, Records, Rejected, Request, Target,
};
use haversack_model::{BLOCK_BYTES, DiskNo, Micros, SECTOR_BYTES, WriteMode};
use haversack_trace::{Access, VolumeNo};

use super::media::PageMedia;
use super::memory::SimMemory;
use super::pool::PoolMake;
use super::reads::{Read, ReadTimes};
use super::requests::{self, Arrived, Requests};
use crate::counts::Counts;
use crate::error::SimError;
use crate::governor::Governable;
use crate::latency::{IoKind, Looks, Mean, Stations};
use crate::meter::Meter;
use crate::settings::RestartKind;

/// The assumed time of a read from an origin before anything was measured.
const UNKNOWN_ORIGIN_US: f64 = 1000.0;
/// The ownership epoch of all disks.
const EPOCH: u64 = 1;

/// The shape of a pool and its disks.
pub struct Make {
    /// The pool.
    pub pool: PoolMake,
    /// The disks, in the order of the trace's volumes.
    pub disks: Vec<DiskConfig>,
    /// Their names.
    pub names: Vec<String>,
}

/// An I/O in flight. I/Os are ordered by the time at which they end, then by the order in which the core asked for
/// them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    done_ns: u64,
    /// Its place in the order of emission.
    number: u64,
    io: IoId,
    /// The device and location of a write to it.
    write: Option<(u8, u64)>,
    read: Option<Read>,
}

/// See the module.
pub struct Driver<M> {
    make: Make,
    core: Core,
    /// The core's memory.
    memory: M,
    /// The content of the devices, if it will ever be read.
    media: Option<PageMedia>,
    stations: Option<Stations>,
    now_ns: u64,
    looks: Looks,
    pending: BinaryHeap<Reverse<Pending>>,
    emitted: u64,
    requests: Requests,
    /// Requests wait until all disks are attached.
    attaching: bool,
    announced: Vec<Request>,
    jobs_done: u64,
    /// Recent latencies of reads.
    reads: ReadTimes,
    /// Latencies of reads from origins since the beginning.
    all_origin_reads: Mean,
    /// Counts from before the last restart, and I/Os to the origins.
    past: Vec<Counts>,
    /// Restarts so far.
    pub restarts: u64,
    /// Flushes of cache devices so far.
    pub device_flushes: u64,
}

impl<M: SimMemory> Driver<M> {
    /// Creates the pool, opens it and attaches the disks.
    ///
    /// # Errors
    /// The pool or a disk is refused.
    pub fn open(make: Make, stations: Option<Stations>) -> Result<Self, SimError> {
        let mut media = make.pool.create(0)?;
        let mut memory = make.pool.memory();
        let core = make.pool.open(&mut media, &mut memory, 0)?;
        let past = vec![Counts::default(); make.disks.len()];
        let reads = ReadTimes::new(make.disks.len());
        let mut driver = Driver {
            make,
            core,
            memory,
            media: M::SURVIVES.then_some(media),
            stations,
            now_ns: 0,
            looks: Looks::new(0),
            pending: BinaryHeap::new(),
            emitted: 0,
            requests: Requests::default(),
            attaching: false,
            announced: Vec::new(),
            jobs_done: 0,
            reads,
            all_origin_reads: Mean::default(),
            past,
            restarts: 0,
            device_flushes: 0,
        };
        // Attaching takes no time that counts.
        let mut unmetered = Meter::new(Default::default());
        driver.attach(&mut unmetered)?;
        Ok(driver)
    }

    fn attach(&mut self, meter: &mut Meter) -> Result<(), SimError> {
        self.attaching = true;
        for disk in 0..self.make.disks.len() {
            let now = self.now_us();
            let attached = self.core.with(&mut self.memory).attach(now, &self.make.disks[disk], EPOCH, false);
            let refused = |error| SimError::Manage { disk: self.make.names[disk].clone(), error };
            let (number, _) = attached.map_err(refused)?;
            debug_assert_eq!(usize::from(number.0), disk, "disks keep their numbers");
            let jobs = self.jobs_done + 1;
            self.drain(meter);
            self.run_until(meter, |driver| driver.jobs_done == jobs);
        }
        self.attaching = false;
        self.drain(meter);
        Ok(())
    }

    fn now_us(&self) -> Micros {
        self.now_ns / 1000
    }

    /// Advances the time and performs due work.
    pub fn advance(&mut self, to_ns: u64, meter: &mut Meter) {
        while self.step(to_ns, meter) {}
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// Performs the next work that is due by then, if there is any.
    fn step(&mut self, to_ns: u64, meter: &mut Meter) -> bool {
        let done_ns = self.pending.peek().map_or(u64::MAX, |Reverse(first)| first.done_ns);
        let look_ns = self.looks.next_ns();
        if done_ns.min(look_ns) > to_ns {
            return false;
        }
        if done_ns <= look_ns
            && let Some(Reverse(first)) = self.pending.pop()
        {
            self.now_ns = self.now_ns.max(done_ns);
            self.measure(first.read);
            self.finish_io(first.io, first.write);
            self.looks.soon(self.now_ns);
        } else {
            self.now_ns = self.now_ns.max(look_ns);
            self.look();
        }
        self.drain(meter);
        true
    }

    fn look(&mut self) {
        let now = self.now_us();
        if self.core.next_wakeup().is_some_and(|due| due <= now) {
            self.core.with(&mut self.memory).tick(now);
        }
        self.looks.looked(self.now_ns, self.core.next_wakeup().map(|due| due.saturating_mul(1000)));
    }

    /// Records the latency of a read that ends now.
    fn measure(&mut self, read: Option<Read>) {
        let Some(read) = read else { return };
        self.reads.measure(self.now_ns, read);
        if read.origin_of.is_some() {
            self.all_origin_reads.add(self.now_ns - read.since_ns);
        }
    }

    /// Continues until something has happened.
    fn run_until(&mut self, meter: &mut Meter, happened: impl Fn(&Self) -> bool) {
        while !happened(self) {
            assert!(self.step(u64::MAX - 1, meter), "what is waited for happens");
        }
    }

    /// Runs until no I/O or request is in flight.
    pub fn run_out(&mut self, meter: &mut Meter) {
        self.run_until(meter, |driver| driver.pending.is_empty() && driver.requests.waiting.is_empty());
    }

    /// Announces requests that will be submitted soon.
    pub fn announce(&mut self, accesses: &[Access]) {
        self.announced.clear();
        self.announced.extend(accesses.iter().flat_map(requests::of));
        self.core.prefetch(&self.announced);
    }

    /// Submits a request.
    pub fn request(&mut self, access: &Access, meter: &mut Meter) {
        for request in requests::of(access) {
            self.submit(Arrived { request, time_ns: access.time_ns });
            self.drain(meter);
        }
        self.looks.soon(self.now_ns);
    }

    fn submit(&mut self, arrived: Arrived) -> bool {
        let request = self.requests.begin(arrived);
        match self.core.with(&mut self.memory).submit(self.now_ns / 1000, request) {
            Ok(()) => true,
            Err(Rejected::Busy) => {
                self.requests.end(request.tag);
                self.requests.waiting.push_back(arrived);
                false
            }
            Err(other) => unreachable!("the disks are as large as their traces: {other}"),
        }
    }

    /// Carries out the core's actions.
    fn drain(&mut self, meter: &mut Meter) {
        loop {
            while let Some(action) = self.core.poll() {
                self.carry_out(action, meter);
            }
            if self.attaching {
                return;
            }
            let Some(next) = self.requests.waiting.pop_front() else { return };
            if !self.submit(next) {
                // The refused request is now at the back of the queue: move it to the front again.
                self.requests.waiting.rotate_right(1);
                return;
            }
        }
    }

    fn carry_out(&mut self, action: Action, meter: &mut Meter) {
        let bytes = |sectors: u32| u64::from(sectors) * SECTOR_BYTES as u64;
        match action {
            Action::Complete { tag, result } => {
                result.unwrap_or_else(|error| unreachable!("nothing fails here: {error}"));
                let arrived = self.requests.end(tag);
                if let Some(stations) = &self.stations {
                    let volume = VolumeNo(arrived.request.disk.0.into());
                    let (kind, took_ns) = (requests::kind(arrived.request.op), self.now_ns - arrived.time_ns);
                    meter.latency(volume, kind, took_ns + stations.host_ns());
                }
            }
            Action::Event(Event::JobDone { result, .. }) => {
                result.unwrap_or_else(|error| unreachable!("nothing fails here: {error}"));
                self.jobs_done += 1;
            }
            Action::Event(event) => unreachable!("nothing fails here: {event:?}"),
            Action::ReadDevice { io, device, .. } => self.device_io(io, device.0, IoKind::Read, None),
            Action::WriteDevice { io, device, offset_bytes } => {
                self.device_io(io, device.0, IoKind::Write, Some((device.0, offset_bytes)));
            }
            Action::FlushDevice { io, device } => {
                self.device_flushes += if self.make.pool.mirrored { 2 } else { 1 };
                self.device_io(io, device.0, IoKind::Flush, None);
            }
            Action::ReadOrigin { io, disk, sectors, .. } => {
                self.past[usize::from(disk.0)].origin_reads += 1;
                self.origin_io(io, disk, IoKind::Read, bytes(sectors));
            }
            Action::WriteOrigin { io, disk, sectors, .. } => {
                self.past[usize::from(disk.0)].origin_writes += 1;
                self.origin_io(io, disk, IoKind::Write, bytes(sectors));
            }
            // Zeroes and discards move no data.
            Action::ZeroOrigin { io, disk, .. } => {
                self.past[usize::from(disk.0)].origin_writes += 1;
                self.origin_io(io, disk, IoKind::Write, 0);
            }
            Action::ReadPeer { disk, .. } => unreachable!("{disk:?} never moves between hosts"),
            Action::FlushOrigin { io, disk } => self.origin_io(io, disk, IoKind::Flush, 0),
        }
    }

    fn device_io(&mut self, io: IoId, device: u8, kind: IoKind, write: Option<(u8, u64)>) {
        let Some(stations) = &mut self.stations else { return self.finish_io(io, write) };
        let bytes = match kind {
            IoKind::Flush => 0,
            _ => self.core.pieces(io).map(|piece| piece.len as u64).sum(),
        };
        let (now_ns, device) = (self.now_ns, usize::from(device));
        let done_ns = if self.make.pool.mirrored {
            stations.mirrored(now_ns, device, kind, bytes)
        } else {
            stations.device(now_ns, device, kind, bytes)
        };
        let read = (kind == IoKind::Read).then_some(Read { since_ns: now_ns, origin_of: None });
        self.wait_for(done_ns, io, write, read);
    }

    fn origin_io(&mut self, io: IoId, disk: DiskNo, kind: IoKind, bytes: u64) {
        let Some(stations) = &mut self.stations else { return self.finish_io(io, None) };
        let done_ns = stations.origin(self.now_ns, kind, bytes);
        let read = Read { since_ns: self.now_ns, origin_of: Some(disk) };
        self.wait_for(done_ns, io, None, (kind == IoKind::Read).then_some(read));
    }

    fn wait_for(&mut self, done_ns: u64, io: IoId, write: Option<(u8, u64)>, read: Option<Read>) {
        self.emitted += 1;
        self.pending.push(Reverse(Pending { done_ns, number: self.emitted, io, write, read }));
    }

    fn finish_io(&mut self, io: IoId, write: Option<(u8, u64)>) {
        if let (Some(media), Some((device, offset_bytes))) = (&mut self.media, write) {
            let offsets = (offset_bytes..).step_by(BLOCK_BYTES);
            for (piece, offset) in self.core.pieces(io).zip(offsets) {
                media.store(usize::from(device), offset, self.memory.frame(piece.frame));
            }
        }
        self.core.with(&mut self.memory).complete(self.now_ns / 1000, io, Ok(()));
    }

    /// Ends the core and opens the pool again. Requests in flight are submitted again, as a guest would do.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub fn restart(&mut self, kind: RestartKind, meter: &mut Meter) -> Result<(), SimError> {
        if kind == RestartKind::Stop {
            let jobs = self.jobs_done + 1;
            let now = self.now_us();
            self.core.with(&mut self.memory).shutdown(now);
            self.drain(meter);
            self.run_until(meter, |driver| driver.jobs_done == jobs);
        }
        self.pending.clear();
        self.requests.restart();
        self.past = self.counts();
        self.restarts += 1;
        let mut memory: M = self.make.pool.memory();
        if kind != RestartKind::PowerLoss {
            let staged = 0..=self.make.pool.staging_blocks;
            staged.for_each(|index| memory.store_descriptor(index, self.memory.descriptor(index)));
        }
        let now = self.now_us();
        let media = self.media.as_mut().expect("a pool that is restarted keeps its metadata");
        self.core = self.make.pool.open(media, &mut memory, now)?;
        self.memory = memory;
        self.looks = Looks::new(self.now_ns);
        self.attach(meter)
    }

    /// Counters of each disk, since it was first opened.
    pub fn counts(&self) -> Vec<Counts> {
        let present = self.disk_stats();
        let mut all = self.past.clone();
        all.iter_mut().zip(&present).for_each(|(counts, stats)| counts.add(&super::counts(stats)));
        if self.make.pool.mirrored {
            // The cache knows nothing of second copies below it.
            all.iter_mut().for_each(Counts::mirror_everything);
        }
        all
    }

    /// The core's own counters of each disk.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        let disks = (0..self.make.disks.len() as u16).map(DiskNo);
        disks.map(|disk| self.core.disk_stats(disk).copied().unwrap_or_default()).collect()
    }

    /// Each disk's share.
    pub fn disk_usages(&self) -> Vec<DiskUsage> {
        let disks = (0..self.make.disks.len() as u16).map(DiskNo);
        disks.map(|disk| self.core.disk_usage(disk).unwrap_or_default()).collect()
    }

    /// The pool.
    pub fn pool_stats(&self) -> PoolStats {
        self.core.pool_stats()
    }

    /// Blocks that each disk uses, and all dirty blocks.
    pub fn usage(&self) -> (Vec<u64>, u64) {
        let usages = self.disk_usages();
        (usages.iter().map(|u| u.usage_blocks).collect(), usages.iter().map(|u| u.dirty_blocks).sum())
    }

    /// The disks, in the order of the trace's volumes.
    pub fn disk_numbers(&self) -> impl Iterator<Item = DiskNo> + use<M> {
        (0..self.make.disks.len() as u16).map(DiskNo)
    }

    /// Mean time in microseconds of reads from the origins so far; without a model of time, or before the
    /// first read, the assumed time.
    pub fn mean_origin_read_us(&self) -> f64 {
        self.all_origin_reads.us().unwrap_or(UNKNOWN_ORIGIN_US)
    }

    /// Sets the amount that a block written to flash must save, and the share of the blocks that may be
    /// filled if the admission filter does not use prices.
    pub fn set_write_price(&mut self, price_us: f32, fill_share: f64) {
        self.core.set_write_price(price_us);
        self.core.set_fill_share(fill_share);
    }

    fn refused(&self, disk: DiskNo, error: ManageError) -> SimError {
        SimError::Manage { disk: self.make.names[usize::from(disk.0)].clone(), error }
    }
}

impl<M: SimMemory> Governable for Driver<M> {
    fn monitor(&mut self, config: MonitorConfig) -> Result<(), SimError> {
        for disk in self.disk_numbers() {
            let set = self.core.set_monitor(disk, Some(config));
            set.map_err(|error| self.refused(disk, error))?;
        }
        Ok(())
    }

    fn records_fill(&self, disk: DiskNo) -> f64 {
        self.core.records_fill(disk)
    }

    fn take_records(&mut self, disk: DiskNo, into: &mut Records) {
        self.core.take_records(disk, into);
    }

    fn counters(&self, disk: DiskNo) -> Counters {
        self.reads.counters(disk, self.core.disk_stats(disk).unwrap_or(&DiskStats::default()))
    }

    fn restart_latencies(&mut self, of: Option<DiskNo>) {
        self.reads.restart(of);
    }

    fn disk_usage(&self, disk: DiskNo) -> DiskUsage {
        self.core.disk_usage(disk).unwrap_or_default()
    }

    fn mode(&self, disk: DiskNo) -> WriteMode {
        self.core.disk_info(disk).map_or(self.make.disks[usize::from(disk.0)].mode, |info| info.mode)
    }

    fn set_target(&mut self, disk: DiskNo, target: Target, meter: &mut Meter) -> Result<(), SimError> {
        let now = self.now_us();
        let set = self.core.with(&mut self.memory).set_target(now, disk, target);
        set.map_err(|error| self.refused(disk, error))?;
        self.drain(meter);
        self.looks.soon(self.now_ns);
        Ok(())
    }

    fn set_admission(&mut self, disk: DiskNo, admission: AdmissionConfig) -> Result<(), SimError> {
        let now = self.now_us();
        let set = self.core.with(&mut self.memory).set_admission(now, disk, admission);
        self.looks.soon(self.now_ns);
        set.map_err(|error| self.refused(disk, error))
    }

    /// A write mode that cannot be set while another is being set is left for the next decision.
    fn set_mode(&mut self, disk: DiskNo, mode: WriteMode, meter: &mut Meter) -> Result<(), SimError> {
        let now = self.now_us();
        match self.core.with(&mut self.memory).set_mode(now, disk, mode) {
            Ok(_) | Err(ManageError::Busy) => {}
            Err(error) => return Err(self.refused(disk, error)),
        }
        self.drain(meter);
        self.looks.soon(self.now_ns);
        Ok(())
    }
}
