//! Two hosts, a link between them, one origin, and VMs: what happens, in order of time.
//!
//! The cores and the protocol are those of the daemon. This file carries out what they ask for, as a reactor does.
//!
//! Invariants
//! - Events at the same time happen in the order in which they were planned, so that a run can be repeated.
//! - A VM's requests reach a core only on the host where it runs, and only while that host serves the disk.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use haversack_core::{
    Action, DiskConfig, Event as CoreEvent, IoFailure, IoId, ListCursor, Op, Rejected, Request, RequestError,
    RequestTag,
};
use haversack_migrate::{Message, Output};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorNo};
use haversack_ownership::Record;
use haversack_trace::{Op as TraceOp, VolumeNo};

use super::checker::Checker;
use super::content::{Buffer, OriginContent, Version, from_bytes, to_bytes};
use super::host::{Arrived, Host, Purpose, host_id};
use super::link::{Direction, Parcel};
use super::measure::{Reads, Stretch, VmMeter};
use super::outcome::{LoadSample, OriginTraffic};
use super::plan::MigrationPlan;
use super::vm::{Role, Vm};
use crate::error::SimError;
use crate::key::{Key, KeySet};
use crate::latency::{IoKind, Stations};
use crate::production::requests;

/// Time between two looks at the timers.
const LOOK_NS: u64 = 1_000_000;
/// Copies that are read at a time, for each time that a disk is driven.
const COPIES_AT_A_TIME: usize = 32;
/// Simulated time in which everything that waits must happen.
const PATIENCE_NS: u64 = 3_600_000_000_000;
/// Reads in flight in the last look at everything.
const LAST_READS: usize = 64;

/// The host on which the VM is first.
pub const SOURCE: usize = 0;
/// The host that it moves to.
pub const DESTINATION: usize = 1;

/// What happens at a time.
enum What {
    DeviceDone { host: usize, io: IoId, device: usize, first: usize, kind: IoKind },
    OriginDone { host: usize, io: IoId, does: OriginIo },
    LinkFree { from: usize },
    Arrives { to: usize, parcel: Parcel },
    Look { host: usize },
    Comes { vm: usize },
    Frees { vm: usize },
    Begin,
    Stop,
    Resume,
    Mark,
    Sample,
}

/// An I/O of the origin.
#[derive(Clone, Copy)]
enum OriginIo {
    Read(VolumeNo, SectorNo, u32),
    Write(VolumeNo, SectorNo),
    Zero(VolumeNo, SectorNo, u32),
    Flush,
}

struct Event {
    time_ns: u64,
    number: u64,
    what: What,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The greatest comes first.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.time_ns, other.number).cmp(&(self.time_ns, self.number))
    }
}

/// When what happened to the VM that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moments {
    /// It stopped.
    pub stopped_ns: Option<u64>,
    /// Its last request at the source was answered.
    pub drained_ns: Option<u64>,
    /// It runs at the destination.
    pub resumed_ns: Option<u64>,
    /// Its disks are served there.
    pub served_ns: Option<u64>,
    /// The destination needs the source no more.
    pub alone_ns: Option<u64>,
    /// A switchover would have left little to do when it stopped.
    pub was_ready: bool,
}

/// What the VM that moves had in its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cached {
    /// Blocks when copying began.
    pub blocks: u64,
    /// Of these, used more than once.
    pub reused_blocks: u64,
    /// Dirty then.
    pub dirty_blocks: u64,
    /// Dirty when it stopped.
    pub dirty_at_stop_blocks: u64,
}

/// See the module.
pub struct World<'a> {
    pub plan: MigrationPlan,
    pub hosts: [Host; 2],
    pub vms: Vec<Vm<'a>>,
    pub meters: Vec<VmMeter>,
    /// By direction: from the source, from the destination.
    pub links: [Direction; 2],
    pub moments: Moments,
    pub cached: Cached,
    pub checker: Checker,
    /// Copies for which the destination had no room.
    pub refused_copies: u64,
    /// The origin's traffic at each mark.
    pub origin_marks: Vec<OriginTraffic>,
    pub samples: Vec<LoadSample>,
    stations: Stations,
    origin: OriginContent,
    origin_traffic: OriginTraffic,
    /// The VM of each volume.
    vm_of: Vec<usize>,
    events: BinaryHeap<Event>,
    events_planned: u64,
    now_ns: u64,
    /// Everything is attached: time counts from here on.
    zero_ns: u64,
    sample_ns: u64,
    sampled: (u64, OriginTraffic),
    seen: KeySet,
    reused: KeySet,
    /// Blocks that the VM has written since copying began.
    pub written: KeySet,
    marks: usize,
    is_over: bool,
}

fn wrong(why: String) -> SimError {
    SimError::Migration(why)
}

fn kind(op: Op) -> IoKind {
    match op {
        Op::Read => IoKind::Read,
        Op::Write { .. } => IoKind::Write,
        Op::Flush | Op::Discard | Op::WriteZeroes => IoKind::Flush,
    }
}

impl<'a> World<'a> {
    /// Attaches all disks. `disks` are the volumes' settings, in order.
    ///
    /// # Errors
    /// A disk is refused.
    pub fn new(
        plan: MigrationPlan,
        hosts: [Host; 2],
        vms: Vec<Vm<'a>>,
        disks: &[DiskConfig],
        stations: Stations,
        sample_ns: u64,
    ) -> Result<World<'a>, SimError> {
        let mut vm_of = vec![0; disks.len()];
        for (at, vm) in vms.iter().enumerate() {
            vm.volumes.iter().for_each(|volume| vm_of[volume.0 as usize] = at);
        }
        let mut world = World {
            plan,
            hosts,
            meters: vms.iter().map(|_| VmMeter::default()).collect(),
            vms,
            links: [plan.link, plan.link].map(Direction::new),
            moments: Moments::default(),
            cached: Cached::default(),
            checker: Checker::default(),
            refused_copies: 0,
            origin_marks: Vec::new(),
            samples: Vec::new(),
            stations,
            origin: OriginContent::default(),
            origin_traffic: OriginTraffic::default(),
            vm_of,
            events: BinaryHeap::new(),
            events_planned: 0,
            now_ns: 0,
            zero_ns: 0,
            sample_ns,
            sampled: (0, OriginTraffic::default()),
            seen: KeySet::default(),
            reused: KeySet::default(),
            written: KeySet::default(),
            marks: 0,
            is_over: false,
        };
        [SOURCE, DESTINATION].into_iter().for_each(|host| world.plan_at(LOOK_NS, What::Look { host }));
        disks.iter().enumerate().try_for_each(|(at, disk)| world.attach(VolumeNo(at as u32), disk))?;
        world.zero_ns = world.now_ns;
        Ok(world)
    }

    fn attach(&mut self, volume: VolumeNo, config: &DiskConfig) -> Result<(), SimError> {
        let vm = &self.vms[self.vm_of[volume.0 as usize]];
        let (role, name) = (vm.role, vm.name.clone());
        let refused = |error| SimError::Manage { disk: name.clone(), error };
        let now = self.now_us();
        if role == Role::Moves {
            let MigrationPlan { method, timing, .. } = self.plan;
            for (place, host) in self.hosts.iter_mut().enumerate() {
                host.add_mover(now, place, volume, config.clone(), method, timing);
            }
            let host = &mut self.hosts[SOURCE];
            let mover = host.movers.last_mut().expect("it was just added");
            let mut call = host.core.with(&mut host.memory);
            mover.migration.create(&mut call, now).map_err(refused)?;
            mover.migration.guest_runs(&mut call, now, host_id(SOURCE));
            self.pump(SOURCE)?;
            return self.run_until(|world| world.hosts[SOURCE].serves(volume));
        }
        let host = &mut self.hosts[role.host()];
        let (number, _) = host.core.with(&mut host.memory).attach(now, config, 1, false).map_err(refused)?;
        host.note(number, volume);
        let jobs = host.jobs_done + 1;
        self.pump(role.host())?;
        self.run_until(|world| world.hosts[role.host()].jobs_done == jobs)
    }

    /// Plays the loads, with the migration at its time, and looks at everything in the end.
    ///
    /// # Errors
    /// A load cannot be read, or the migration goes wrong.
    pub fn run(&mut self) -> Result<(), SimError> {
        let marks_ns = self.plan.marks_ns();
        marks_ns.into_iter().for_each(|ns| self.plan_at(self.zero_ns + ns, What::Mark));
        self.plan_at(self.zero_ns + marks_ns[1], What::Begin);
        self.plan_at(self.zero_ns + marks_ns[2], What::Stop);
        self.plan_at(self.zero_ns + marks_ns[0] + self.sample_ns, What::Sample);
        for vm in 0..self.vms.len() {
            if self.vms[vm].is_closed() { self.feed(vm)? } else { self.plan_next(vm)? }
        }
        let end_ns = self.zero_ns + marks_ns[3];
        self.run_until(|world| world.marks == marks_ns.len() && world.moments.served_ns.is_some())?;
        debug_assert!(self.now_ns >= end_ns);
        self.is_over = true;
        self.run_until(|world| world.hosts.iter().all(Host::is_idle))?;
        self.read_everything()
    }

    fn now_us(&self) -> u64 {
        self.now_ns / 1_000
    }

    fn plan_at(&mut self, time_ns: u64, what: What) {
        self.events_planned += 1;
        self.events.push(Event { time_ns, number: self.events_planned, what });
    }

    /// Lets things happen until something is true.
    fn run_until(&mut self, mut is_true: impl FnMut(&mut Self) -> bool) -> Result<(), SimError> {
        let since_ns = self.now_ns.max(self.zero_ns + self.plan.marks_ns()[3]);
        while !is_true(self) {
            let Some(Event { time_ns, what, .. }) = self.events.pop() else {
                return Err(wrong("nothing is left to happen".into()));
            };
            self.now_ns = self.now_ns.max(time_ns);
            if self.now_ns > since_ns + PATIENCE_NS {
                let tasks: Vec<String> = self
                    .hosts
                    .iter()
                    .flat_map(|host| host.movers.iter().map(|mover| mover.migration.describe()))
                    .collect();
                return Err(wrong(format!("it hangs: {}", tasks.join("; "))));
            }
            self.happen(what)?;
        }
        Ok(())
    }

    fn happen(&mut self, what: What) -> Result<(), SimError> {
        match what {
            What::DeviceDone { host, io, device, first, kind } => {
                if kind != IoKind::Flush {
                    self.hosts[host].device_io(io, device, first, kind == IoKind::Write);
                }
                self.io_done(host, io)
            }
            What::OriginDone { host, io, does } => {
                self.origin_io(host, io, does);
                self.io_done(host, io)
            }
            What::LinkFree { from } => {
                self.links[from].departed();
                self.depart(from);
                // Copies may have waited for room.
                self.pump(from)
            }
            What::Arrives { to, parcel } => self.message(to, parcel),
            What::Look { host } => {
                let now = self.now_us();
                self.hosts[host].look(now);
                self.plan_at(self.now_ns + LOOK_NS, What::Look { host });
                self.pump(host)
            }
            What::Comes { vm } => self.request_comes(vm),
            What::Frees { vm } => {
                self.vms[vm].in_flight -= 1;
                self.feed(vm)?;
                self.look_at_move()
            }
            What::Begin => self.begin(),
            What::Stop => self.stop(),
            What::Resume => self.resume(),
            What::Mark => {
                self.mark();
                Ok(())
            }
            What::Sample => {
                self.sample();
                Ok(())
            }
        }
    }

    fn io_done(&mut self, host: usize, io: IoId) -> Result<(), SimError> {
        let now = self.now_us();
        let at = &mut self.hosts[host];
        at.core.with(&mut at.memory).complete(now, io, Ok(()));
        self.pump(host)
    }

    fn origin_io(&mut self, host: usize, io: IoId, does: OriginIo) {
        let Host { core, memory, .. } = &mut self.hosts[host];
        match does {
            OriginIo::Read(volume, sector, sectors) => {
                let versions = self.origin.read(volume, sector, sectors as usize);
                memory.scatter(&core.pieces(io).collect::<Vec<_>>(), &versions);
            }
            OriginIo::Write(volume, sector) => {
                self.origin.write(volume, sector, &memory.gather(core.pieces(io)));
            }
            OriginIo::Zero(volume, sector, sectors) => {
                self.origin.write(volume, sector, &vec![0; sectors as usize]);
            }
            OriginIo::Flush => {}
        }
    }

    fn message(&mut self, to: usize, parcel: Parcel) -> Result<(), SimError> {
        let (now, from) = (self.now_us(), host_id(1 - to));
        let host = &mut self.hosts[to];
        let mover = host.movers.iter_mut().find(|mover| mover.id == parcel.disk);
        if let Some(mover) = mover {
            let mut call = host.core.with(&mut host.memory);
            mover.migration.message(&mut call, now, from, parcel.message);
        }
        self.pump(to)
    }

    fn send(&mut self, from: usize, mover: usize, message: Message) {
        let disk = self.hosts[from].movers[mover].id;
        self.links[from].push(Parcel { disk, message });
        self.depart(from);
    }

    fn depart(&mut self, from: usize) {
        if let Some(departure) = self.links[from].depart(self.now_ns) {
            self.plan_at(departure.free_ns, What::LinkFree { from });
            self.plan_at(departure.arrives_ns, What::Arrives { to: 1 - from, parcel: departure.parcel });
        }
    }

    /// Does what a host's core and its movers want done, until they want nothing, and what follows from it.
    fn pump(&mut self, host: usize) -> Result<(), SimError> {
        loop {
            while let Some(action) = self.hosts[host].core.poll() {
                self.act(host, action)?;
            }
            let mut is_quiet = true;
            for mover in 0..self.hosts[host].movers.len() {
                let room = self.links[host].copy_room().min(COPIES_AT_A_TIME);
                let migration = &mut self.hosts[host].movers[mover].migration;
                if migration.is_sending() {
                    is_quiet &= migration.send_more(room) == 0;
                }
                while let Some(output) = self.hosts[host].movers[mover].migration.poll() {
                    is_quiet = false;
                    self.put_out(host, mover, output)?;
                }
            }
            is_quiet &= !self.submit_waiting(host)?;
            if is_quiet {
                break;
            }
        }
        self.look_at_move()
    }

    fn act(&mut self, host: usize, action: Action) -> Result<(), SimError> {
        let bytes = |sectors: u32| u64::from(sectors) * SECTOR_BYTES as u64;
        match action {
            Action::ReadDevice { io, device, offset_bytes } => {
                self.start_device_io(host, io, device.0, offset_bytes, IoKind::Read);
            }
            Action::WriteDevice { io, device, offset_bytes } => {
                self.start_device_io(host, io, device.0, offset_bytes, IoKind::Write);
            }
            Action::FlushDevice { io, device } => self.start_device_io(host, io, device.0, 0, IoKind::Flush),
            Action::ReadOrigin { io, disk, sector, sectors } => {
                let volume = self.volume(host, disk);
                self.origin_traffic.read_bytes += bytes(sectors);
                self.start_origin_io(
                    host,
                    io,
                    OriginIo::Read(volume, sector, sectors),
                    IoKind::Read,
                    bytes(sectors),
                );
            }
            Action::WriteOrigin { io, disk, sector, sectors, .. } => {
                let volume = self.may_write(host, disk)?;
                self.origin_traffic.written_bytes += bytes(sectors);
                self.start_origin_io(
                    host,
                    io,
                    OriginIo::Write(volume, sector),
                    IoKind::Write,
                    bytes(sectors),
                );
            }
            // Zeroes and discards move no data.
            Action::ZeroOrigin { io, disk, sector, sectors, .. } => {
                let volume = self.may_write(host, disk)?;
                self.start_origin_io(host, io, OriginIo::Zero(volume, sector, sectors), IoKind::Write, 0);
            }
            Action::FlushOrigin { io, .. } => {
                self.start_origin_io(host, io, OriginIo::Flush, IoKind::Flush, 0);
            }
            Action::ReadPeer { io, disk, block, mask, is_late } => {
                let now = self.now_us();
                let mover = self.hosts[host].mover_of(disk).expect("only a disk that moves has a peer");
                self.hosts[host].movers[mover].migration.fetch(now, io, block, mask, is_late);
            }
            Action::Complete { tag, result } => self.completed(host, tag, result)?,
            Action::Event(CoreEvent::JobDone { job, result }) => {
                self.hosts[host].jobs_done += 1;
                let now = self.now_us();
                self.hosts[host].each_mover(|migration, call| migration.job_done(call, now, job, result));
            }
            Action::Event(event) => return Err(wrong(format!("{event:?}, although no device is at fault"))),
        }
        Ok(())
    }

    fn volume(&self, host: usize, disk: DiskNo) -> VolumeNo {
        self.hosts[host].volume(disk).expect("the core has disks that it was given")
    }

    /// The volume of a disk whose origin the host writes: one that moves must be its own.
    fn may_write(&self, host: usize, disk: DiskNo) -> Result<VolumeNo, SimError> {
        let record = self.hosts[host].mover_of(disk).map(|at| self.hosts[host].movers[at].migration.record());
        match record {
            None | Some(Record::Owner { .. }) => Ok(self.volume(host, disk)),
            Some(record) => {
                Err(wrong(format!("host {host} writes the origin of a disk while its record is {record:?}")))
            }
        }
    }

    fn start_device_io(&mut self, host: usize, io: IoId, device: u8, offset_bytes: u64, kind: IoKind) {
        let bytes = match kind {
            IoKind::Flush => 0,
            _ => self.hosts[host].core.pieces(io).map(|piece| piece.len as u64).sum(),
        };
        let device = usize::from(device);
        let station = host * self.hosts[host].devices() + device;
        let done_ns = self.stations.device(self.now_ns, station, kind, bytes);
        let first = (offset_bytes / SECTOR_BYTES as u64) as usize;
        self.plan_at(done_ns, What::DeviceDone { host, io, device, first, kind });
    }

    fn start_origin_io(&mut self, host: usize, io: IoId, does: OriginIo, kind: IoKind, bytes: u64) {
        let done_ns = self.stations.origin_from(host, self.now_ns, kind, bytes);
        self.plan_at(done_ns, What::OriginDone { host, io, does });
    }

    fn put_out(&mut self, host: usize, mover: usize, output: Output) -> Result<(), SimError> {
        let now = self.now_us();
        match output {
            Output::Send(_, message) => self.send(host, mover, message),
            Output::ReadCopy(ticket) => {
                let at = &mut self.hosts[host];
                let buffer = Buffer::Sectors(vec![0; SECTORS_PER_BLOCK as usize]);
                let Some(disk) = at.movers[mover].migration.disk() else { return Ok(()) };
                let tag = at.put(buffer, Purpose::Copy { mover, ticket, mask: 0 });
                let (block, order) = (ticket.block(), ticket.order());
                match at.core.with(&mut at.memory).read_copy(now, tag, disk, block, order) {
                    Ok(Some(mask)) => at.set_purpose(tag, Purpose::Copy { mover, ticket, mask }),
                    Ok(None) | Err(_) => {
                        at.take_back(tag);
                        at.movers[mover].migration.copy_read(ticket, None);
                    }
                }
            }
            Output::TakeCopy { block, mask, data } => {
                let at = &mut self.hosts[host];
                let Some(disk) = at.movers[mover].migration.disk() else { return Ok(()) };
                let tag = at.memory.put(Buffer::Sectors(from_bytes(&data)));
                // An error says that the disk is no longer expected.
                let taken = at.core.with(&mut at.memory).take_copy(now, tag, disk, block, mask);
                at.memory.take_back(tag);
                self.refused_copies += u64::from(!taken.unwrap_or(false) && mask != 0);
            }
            Output::Fetched { io, data } => {
                let at = &mut self.hosts[host];
                let pieces: Vec<_> = at.core.pieces(io).collect();
                at.memory.scatter(&pieces, &from_bytes(&data));
                at.core.with(&mut at.memory).complete(now, io, Ok(()));
            }
            Output::FetchFailed { io } => {
                let at = &mut self.hosts[host];
                at.core.with(&mut at.memory).complete(now, io, Err(IoFailure::Error));
            }
        }
        Ok(())
    }

    /// A request of a VM comes at its time.
    fn request_comes(&mut self, vm: usize) -> Result<(), SimError> {
        if self.is_over {
            return Ok(());
        }
        if self.vms[vm].stopped_ns.is_some() {
            self.vms[vm].is_due = true;
            return Ok(());
        }
        self.issue(vm)?;
        self.plan_next(vm)?;
        let host = self.vms[vm].host;
        self.pump(host)
    }

    fn plan_next(&mut self, vm: usize) -> Result<(), SimError> {
        if let Some(ns) = self.vms[vm].next_ns()?.filter(|_| !self.is_over) {
            self.plan_at(self.zero_ns + ns, What::Comes { vm });
        }
        Ok(())
    }

    /// A VM that keeps requests in flight issues new ones.
    fn feed(&mut self, vm: usize) -> Result<(), SimError> {
        let mut any = false;
        while self.vms[vm].is_hungry() && !self.is_over && self.issue(vm)? {
            any = true;
        }
        let host = self.vms[vm].host;
        if any { self.pump(host) } else { Ok(()) }
    }

    /// A VM issues its next request now. Returns false if it has none.
    fn issue(&mut self, vm: usize) -> Result<bool, SimError> {
        let Some(access) = self.vms[vm].take()? else { return Ok(false) };
        if self.vms[vm].role == Role::Moves && matches!(access.op, TraceOp::Read | TraceOp::Write) {
            for block in access.blocks(BLOCK_BYTES as u64) {
                let key = Key::new(access.volume, block);
                if self.moments.stopped_ns.is_none() {
                    if self.seen.insert(key) {
                        self.reused.insert(key);
                    }
                    if access.op == TraceOp::Write && self.marks > Stretch::Ahead as usize {
                        self.written.insert(key);
                    }
                }
            }
        }
        for request in requests::of(&access) {
            self.vms[vm].in_flight += 1;
            let arrived = Arrived { vm: Some(vm), volume: access.volume, request, time_ns: self.now_ns };
            let host = self.vms[vm].host;
            self.hosts[host].waiting.push_back(arrived);
        }
        Ok(true)
    }

    /// Submits what waits, as far as the core takes it. Returns whether it took anything.
    fn submit_waiting(&mut self, host: usize) -> Result<bool, SimError> {
        let mut any = false;
        while let Some(arrived) = self.hosts[host].waiting.pop_front() {
            if !self.hosts[host].serves(arrived.volume) {
                self.hosts[host].held.push(arrived);
            } else if self.submit(host, arrived)? {
                any = true;
            } else {
                self.hosts[host].waiting.push_front(arrived);
                break;
            }
        }
        Ok(any)
    }

    fn submit(&mut self, host: usize, arrived: Arrived) -> Result<bool, SimError> {
        let (volume, request) = (arrived.volume, arrived.request);
        let (first, sectors) = (request.sector, request.sectors as usize);
        let (mut oldest, mut buffer) = (Vec::new(), Buffer::Write(0));
        match request.op {
            Op::Read => {
                oldest = self.checker.begins_read(volume, first, sectors);
                buffer = Buffer::Sectors(vec![0; sectors]);
            }
            Op::Write { .. } => {
                buffer = Buffer::Write(self.checker.begins_write(volume, first, sectors));
            }
            Op::Discard | Op::WriteZeroes => self.checker.discarded(volume, first, sectors),
            Op::Flush => {}
        }
        let now = self.now_us();
        let at = &mut self.hosts[host];
        let disk = at.disk(volume).expect("a disk that is served has a number");
        let tag = at.put(buffer, Purpose::Guest(arrived, oldest));
        match at.core.with(&mut at.memory).submit(now, Request { tag, disk, ..request }) {
            Ok(()) => Ok(true),
            Err(Rejected::Busy) => {
                at.take_back(tag);
                if matches!(request.op, Op::Write { .. }) {
                    self.checker.takes_back_write(volume, first, sectors);
                }
                Ok(false)
            }
            Err(error) => Err(wrong(format!("a request is refused: {error}"))),
        }
    }

    fn completed(
        &mut self,
        host: usize,
        tag: RequestTag,
        result: Result<(), RequestError>,
    ) -> Result<(), SimError> {
        let (buffer, purpose) = self.hosts[host].take_back(tag);
        match purpose {
            Purpose::Copy { mover, ticket, mask } => {
                let Buffer::Sectors(versions) = buffer else { unreachable!("a copy has sectors") };
                let copy = result.is_ok().then(|| (mask, to_bytes(&versions)));
                self.hosts[host].movers[mover].migration.copy_read(ticket, copy);
            }
            Purpose::Guest(arrived, oldest) => {
                result.map_err(|error| wrong(format!("a request fails: {error}")))?;
                self.check(&arrived, &oldest, buffer)?;
                self.answered(&arrived);
            }
        }
        Ok(())
    }

    /// Compares what was read with what was written.
    fn check(&mut self, arrived: &Arrived, oldest: &[Version], buffer: Buffer) -> Result<(), SimError> {
        let (volume, first) = (arrived.volume, arrived.request.sector);
        let sectors = arrived.request.sectors as usize;
        match (arrived.request.op, buffer) {
            (Op::Read, Buffer::Sectors(found)) => {
                let checked = self.checker.ends_read(volume, first, oldest, &found);
                checked.map_err(|error| {
                    let name = &self.vms[self.vm_of[volume.0 as usize]].name;
                    let seconds = (self.now_ns - self.zero_ns) as f64 / 1e9;
                    wrong(format!("VM '{name}' reads at {seconds:.3} s what it did not write last: {error}"))
                })?;
            }
            (Op::Write { .. }, _) => self.checker.ends_write(volume, first, sectors),
            (Op::Discard | Op::WriteZeroes, _) => self.checker.discarded(volume, first, sectors),
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, arrived: &Arrived) {
        let Some(vm) = arrived.vm else { return };
        if self.vms[vm].is_closed() {
            // What the host does for a request bounds how many of them a VM issues.
            self.plan_at(self.now_ns + self.stations.host_ns(), What::Frees { vm });
        } else {
            self.vms[vm].in_flight -= 1;
        }
        if kind(arrived.request.op) != IoKind::Flush {
            let stretch = match self.marks {
                1 => Some(Stretch::Before),
                2 => Some(Stretch::Ahead),
                3 => Some(Stretch::After),
                _ => None,
            };
            self.meters[vm].record(stretch, self.now_ns - arrived.time_ns + self.stations.host_ns());
        }
    }

    /// The memory of the VM begins to be copied, and its cache to be sent ahead.
    fn begin(&mut self) -> Result<(), SimError> {
        self.look_at_cache();
        let (now, method) = (self.now_us(), self.plan.method);
        let mut begun = Ok(());
        self.hosts[SOURCE].each_mover(|migration, call| {
            if begun.is_ok() {
                begun = migration.begin(call, now, host_id(DESTINATION), method);
            }
        });
        begun.map_err(|error| wrong(format!("the disk cannot be sent: {error}")))?;
        self.pump(SOURCE)
    }

    /// Counts what is cached, and what of that was used more than once.
    fn look_at_cache(&mut self) {
        let host = &self.hosts[SOURCE];
        for mover in &host.movers {
            let Some(disk) = mover.migration.disk() else { continue };
            let mut blocks = KeySet::default();
            let mut from = Some(ListCursor::default());
            while let Some(at) = from {
                from = host.core.list_cached(disk, at, |cached| {
                    let BlockNo(block) = cached.block;
                    blocks.insert(Key::new(mover.volume, block));
                });
            }
            self.cached.blocks += blocks.len();
            self.cached.reused_blocks +=
                blocks.iter().filter(|key| self.reused.contains(*key)).count() as u64;
        }
        self.cached.dirty_blocks = self.dirty_blocks();
    }

    fn dirty_blocks(&self) -> u64 {
        let host = &self.hosts[SOURCE];
        let usages = host.movers.iter().filter_map(|mover| host.core.disk_usage(mover.migration.disk()?));
        usages.map(|usage| usage.dirty_blocks).sum()
    }

    /// The VM stops at the source.
    fn stop(&mut self) -> Result<(), SimError> {
        self.moments.stopped_ns = Some(self.now_ns);
        self.moments.was_ready = self.hosts[SOURCE].movers.iter().all(|mover| mover.migration.is_ready());
        self.cached.dirty_at_stop_blocks = self.dirty_blocks();
        let now_ns = self.now_ns;
        self.vms.iter_mut().filter(|vm| vm.role == Role::Moves).for_each(|vm| vm.stop(now_ns));
        self.look_at_move()
    }

    /// The VM runs at the destination.
    fn resume(&mut self) -> Result<(), SimError> {
        self.moments.resumed_ns = Some(self.now_ns);
        let (now, now_ns) = (self.now_us(), self.now_ns);
        self.hosts[DESTINATION]
            .each_mover(|migration, call| migration.guest_runs(call, now, host_id(SOURCE)));
        for at in 0..self.vms.len() {
            if self.vms[at].role != Role::Moves {
                continue;
            }
            self.vms[at].resume(now_ns);
            self.vms[at].host = DESTINATION;
            self.feed(at)?;
            if std::mem::take(&mut self.vms[at].is_due) {
                self.plan_next(at)?;
            }
        }
        self.pump(DESTINATION)
    }

    /// Notes how far the move is.
    fn look_at_move(&mut self) -> Result<(), SimError> {
        let Moments { stopped_ns, drained_ns, resumed_ns, served_ns, alone_ns, .. } = self.moments;
        if stopped_ns.is_some() && drained_ns.is_none() {
            let mut moving = self.vms.iter().filter(|vm| vm.role == Role::Moves);
            if moving.all(|vm| vm.in_flight == 0) {
                self.moments.drained_ns = Some(self.now_ns);
                self.hosts[SOURCE].each_mover(|migration, _| migration.guest_stopped());
                self.plan_at(self.now_ns + self.plan.downtime_ns, What::Resume);
            }
        }
        if resumed_ns.is_some() && served_ns.is_none() {
            let volumes: Vec<VolumeNo> =
                self.hosts[DESTINATION].movers.iter().map(|mover| mover.volume).collect();
            if volumes.into_iter().all(|volume| self.hosts[DESTINATION].serves(volume)) {
                self.moments.served_ns = Some(self.now_ns);
                let held = std::mem::take(&mut self.hosts[DESTINATION].held);
                self.hosts[DESTINATION].waiting.extend(held);
                return self.pump(DESTINATION);
            }
        }
        if served_ns.is_some() && alone_ns.is_none() {
            let is_alone =
                |record: &Record| matches!(record, Record::Owner { peers, .. } if peers.is_empty());
            if self.hosts[DESTINATION].movers.iter().all(|mover| is_alone(mover.migration.record())) {
                self.moments.alone_ns = Some(self.now_ns);
            }
        }
        Ok(())
    }

    /// Blocks that a VM has read so far, on both hosts.
    fn reads(&self, vm: usize) -> Reads {
        let mut reads = Reads::default();
        for host in &self.hosts {
            for volume in &self.vms[vm].volumes {
                if let Some(stats) = host.disk(*volume).and_then(|disk| host.core.disk_stats(disk)) {
                    reads.hits += stats.read_hits;
                    reads.all += stats.read_hits + stats.read_misses;
                    reads.written += stats.write_hits + stats.write_misses;
                }
            }
        }
        reads
    }

    fn mark(&mut self) {
        self.marks += 1;
        self.origin_marks.push(self.origin_traffic);
        for vm in 0..self.vms.len() {
            let reads = self.reads(vm);
            self.meters[vm].mark(reads);
        }
    }

    fn sample(&mut self) {
        let marks_ns = self.plan.marks_ns();
        let seconds = self.sample_ns as f64 / 1e9;
        let time_seconds = (self.now_ns - self.zero_ns) as f64 / 1e9 - marks_ns[2] as f64 / 1e9;
        for vm in 0..self.vms.len() {
            let reads = self.reads(vm);
            self.meters[vm].sample(time_seconds, seconds, reads);
        }
        let link_bytes = self.links.iter().map(|link| link.sent.bytes()).sum();
        let origin = self.origin_traffic.since(self.sampled.1);
        self.samples.push(LoadSample {
            time_seconds,
            link_bytes_per_second: (link_bytes - self.sampled.0) as f64 / seconds,
            origin_bytes_per_second: (origin.read_bytes + origin.written_bytes) as f64 / seconds,
        });
        self.sampled = (link_bytes, self.origin_traffic);
        if self.now_ns + self.sample_ns <= self.zero_ns + marks_ns[3] {
            self.plan_at(self.now_ns + self.sample_ns, What::Sample);
        }
    }

    /// Reads every block that the VM has ever written, at the destination.
    fn read_everything(&mut self) -> Result<(), SimError> {
        let volumes: Vec<VolumeNo> =
            self.hosts[DESTINATION].movers.iter().map(|mover| mover.volume).collect();
        for volume in volumes {
            for blocks in self.checker.written_blocks(volume).chunks(LAST_READS) {
                for block in blocks {
                    let request = Request {
                        tag: RequestTag(0),
                        disk: DiskNo(0),
                        op: Op::Read,
                        sector: SectorNo(block * SECTORS_PER_BLOCK),
                        sectors: SECTORS_PER_BLOCK as u32,
                    };
                    let arrived = Arrived { vm: None, volume, request, time_ns: self.now_ns };
                    self.hosts[DESTINATION].waiting.push_back(arrived);
                }
                self.pump(DESTINATION)?;
                self.run_until(|world| world.hosts[DESTINATION].is_idle())?;
            }
        }
        Ok(())
    }
}
