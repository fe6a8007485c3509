//! A host: its core, cache devices and the migrations of its disks, what is in flight, and its crashes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use haversack_core::{
    Action, CacheState, Call, CheckpointSource, CheckpointUse, Copied, Core, Damage, DiskInfo, Event,
    IoFailure, JobId, Moved, OpenOptions, Piece, PoolConfig, PoolError, Rejected, RequestTag, pool,
};
use haversack_migrate::{
    CopyTicket, HostId, KnownBefore, KnownOwner, Migration, Output, Position, ReplicaPolicy, ReplicaStatus,
    Session,
};
use haversack_model::{ArenaId, BLOCK_BYTES, BlockNo, DiskNo, Micros, SECTOR_BYTES, SectorNo, Uuid};
use haversack_ownership::Record;

use super::base::{Asked, Base};
use super::io::{Flight, What, change_origin, scatter};
use super::network::Letter;
use super::plan::Plan;
use crate::checkpoint::Checkpoints;
use crate::created::{self, Created, Shape};
use crate::device::{Store, Tear};
use crate::media::FakeMedia;
use crate::memory::{Buffer, SimMemory};
use crate::run::tell;
use crate::world::{CrashKind, Device, Flow, device_id, device_store, violation};
use haversack_model::random::Random;

/// A copy that is being read.
struct Reading {
    of: usize,
    tag: RequestTag,
    ticket: CopyTicket,
    copied: Copied,
}

/// Events within which a clean stop of a host completes, unless the host needs another host for it.
const STEPS_OF_A_STOP: u32 = 3_000;

/// What a host has of a disk, or had when its process ended.
#[derive(Clone, Default)]
pub struct Remains {
    /// Its record.
    pub record: Record,
    /// The sectors that are dirty.
    pub dirty: BTreeSet<u64>,
    /// The host of the replica that its flushes waited for, until it was fenced or died.
    pub guarded_by: Option<usize>,
}

/// A disk on a host that runs.
pub struct Here {
    /// Its migration.
    pub migration: Migration,
    /// It is being detached or forgotten.
    detaching: Option<JobId>,
    /// What its origin was last asked.
    pub(super) asked: Option<Asked>,
}

/// The state of a running process.
pub struct Running {
    /// The core.
    pub core: Core,
    /// The memory that it works in.
    pub memory: SimMemory,
    /// The disks.
    pub disks: Vec<Here>,
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) due: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    readings: Vec<Reading>,
    /// The base of the disks.
    pub(super) base: Option<DiskNo>,
    /// The pool is being stopped.
    stopping: Option<JobId>,
    /// Answers for the guests.
    pub answers: Vec<(RequestTag, Result<(), haversack_core::RequestError>)>,
    /// When the core wants to be woken. Stored after each call of the core, because it is read far more often than it
    /// changes.
    wakeup: Option<Micros>,
}

impl Running {
    /// The core was called: it may want to be woken at another time.
    pub(super) fn note_wakeup(&mut self) {
        self.wakeup = self.core.next_wakeup();
    }

    /// Sends what replicas lack. Returns whether that led to more work.
    fn replicate(&mut self, now: Micros) -> bool {
        let Running { core, memory, disks, .. } = self;
        let mut is_more = false;
        for disk in disks {
            is_more |= disk.migration.replicate(&mut core.with(memory), now);
        }
        is_more
    }
}

/// How an attempt to start ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It runs.
    Running,
    /// It died again while it opened the pool.
    Died(CrashKind),
}

/// See the module documentation.
pub struct Host {
    /// Which one it is, from 0.
    pub place: usize,
    pub(super) devices: Vec<Device>,
    /// It runs.
    pub running: Option<Running>,
    /// Nothing that it sends to the origin arrives.
    pub fenced: bool,
    /// Which disks it owned when it last died.
    pub owned: Vec<bool>,
    remains: Vec<Remains>,
    /// By disk, the epochs of its records before it was forgotten or taken over. They survive crashes.
    before: Vec<KnownBefore>,
    /// Until this time, it refuses new replicas.
    pub refuses_until: Micros,
    /// By disk, the host that should hold its replica while this host owns the disk.
    pub replica_at: Vec<Option<usize>>,
    /// When it starts again, if it is down; what survived of its memory.
    pub down: Option<(Micros, Option<SimMemory>)>,
    /// Checkpoints of clean stops; not in all runs.
    pub checkpoints: Option<Checkpoints>,
    /// Starts from a checkpoint.
    pub loaded: u64,
    starts: u64,
    tags: u64,
    frames: [u32; 2],
    pub(super) unit: u64,
}

/// What all hosts share.
pub struct Shared {
    /// The origins of the disks.
    pub origins: Vec<Store>,
    /// What the disks were made from; not in all runs.
    pub base: Option<Base>,
    /// The time.
    pub now: Micros,
    /// Numbers events.
    pub sequence: u64,
    /// Random choices.
    pub rng: Random,
    /// The parameters of the run.
    pub plan: Plan,
    /// I/Os so far.
    pub ios: u64,
    /// Messages to send.
    pub mail: Vec<Letter>,
}

/// Returns the name of a host in the protocol.
pub fn host_id(place: usize) -> HostId {
    HostId(place as u64 + 1)
}

impl Host {
    /// Makes a host with a new pool. It is down.
    pub fn new(place: usize, shared: &mut Shared) -> Flow<Host> {
        let (plan, unit) = (&shared.plan, shared.plan.tear_unit);
        let shape = Shape::Host {
            place,
            segments: plan.devices[place].clone(),
            redundancy: plan.redundancy[place],
            prepared: plan.prepared,
        };
        let created = match created::devices(shape, || create(place, plan)) {
            Ok(created) => created,
            Err(error) => return violation!("creating a pool failed: {error}"),
        };
        let device = |(at, created): (usize, Created)| Device {
            store: created.store,
            id: device_id(at + 8 * place),
            no: None,
            plugged: true,
        };
        let devices = created.into_iter().enumerate().map(device).collect();
        let down = Some((0, None));
        let frames = plan.frames;
        Ok(Host {
            place,
            devices,
            running: None,
            fenced: false,
            owned: vec![false; shared.plan.disks.len()],
            remains: vec![Remains::default(); shared.plan.disks.len()],
            before: vec![KnownBefore::default(); shared.plan.disks.len()],
            refuses_until: 0,
            // If there are only two hosts, there is no choice.
            replica_at: vec![(shared.plan.devices.len() == 2).then(|| 1 - place); shared.plan.disks.len()],
            down,
            checkpoints: None,
            loaded: 0,
            starts: 0,
            tags: 0,
            frames,
            unit,
        })
    }

    /// Starts the host, with what survived of its memory.
    pub fn start(&mut self, shared: &mut Shared) -> Flow<Start> {
        let Some((_, memory)) = self.down.take() else { return Ok(Start::Running) };
        let mut memory = memory.unwrap_or_else(|| SimMemory::new(self.frames[0], self.frames[1]));
        self.starts += 1;
        let budget = (self.starts > 1 && shared.rng.one_in(6)).then(|| shared.rng.below(30));
        let order: Vec<usize> = (0..self.devices.len()).collect();
        let fork = shared.rng.fork();
        let mut media = FakeMedia::new(&mut self.devices, order, budget, fork, self.unit);
        let options = OpenOptions::default();
        let mut found = self.checkpoints.as_mut().and_then(Checkpoints::found);
        let pieces = found.as_mut().map(|pieces| pieces as &mut dyn CheckpointSource);
        let opened = Core::open_with(&mut media, &mut memory, pieces, shared.plan.core, &options, shared.now);
        let dead = media.dead;
        let (mut core, report) = match opened {
            Ok(opened) if !dead => opened,
            _ if dead => {
                let power = shared.rng.one_in(2);
                if power {
                    self.cut_power(shared);
                }
                self.down = Some((shared.now + 1, (!power).then_some(memory)));
                return Ok(Start::Died(if power { CrashKind::Power } else { CrashKind::Kill }));
            }
            Err(error) => return violation!("the pool of host {} does not open: {error}", self.place),
            Ok(_) => unreachable!("a start that is not dead has opened"),
        };
        tell(|| format!("{:>10} host {} opened {:?}", shared.now, self.place, report.disks));
        self.loaded += u64::from(report.checkpoint == CheckpointUse::Loaded);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.opened();
        }
        for (no, at) in &report.devices {
            self.devices[*at].no = Some(*no);
        }
        let disks = (0..shared.plan.disks.len()).map(|of| Here {
            migration: self.migration(shared, of, &mut core.with(&mut memory)),
            detaching: None,
            asked: None,
        });
        let disks = disks.collect();
        let base = attach_base(shared, &mut core.with(&mut memory))?;
        self.running = Some(Running {
            core,
            memory,
            disks,
            flights: Vec::new(),
            due: BinaryHeap::new(),
            readings: Vec::new(),
            base,
            stopping: None,
            answers: Vec::new(),
            wakeup: None,
        });
        self.pump(shared)?;
        Ok(Start::Running)
    }

    /// Returns the migration of a disk as recorded by the core.
    fn migration(&self, shared: &Shared, of: usize, call: &mut Call<'_, SimMemory>) -> Migration {
        let (config, timing) = (shared.plan.disks[of].clone(), shared.plan.timing);
        let me = host_id(self.place);
        let mut migration = Migration::new(call, shared.now, me, self.starts, config, timing);
        migration.set_method(shared.plan.method);
        migration.has_forgotten(self.before[of].epoch);
        migration.set_replica(self.replica_policy(shared, of));
        migration
    }

    fn replica_policy(&self, shared: &Shared, of: usize) -> Option<ReplicaPolicy> {
        let at = host_id(self.replica_at[of]?);
        shared.plan.replica.map(|on_loss| ReplicaPolicy { at, on_loss })
    }

    /// Places a disk's replica on another host. That applies while this host owns the disk.
    pub fn place_replica(&mut self, shared: &mut Shared, of: usize, at: usize) -> Flow {
        tell(|| {
            format!("{:>10} host {} wants the replica of disk {of} on host {at}", shared.now, self.place)
        });
        self.replica_at[of] = Some(at);
        let policy = self.replica_policy(shared, of);
        self.with(shared, of, |migration, call, now| {
            migration.set_replica(policy);
            migration.set_write_through(call, now);
        })?;
        Ok(())
    }

    /// Starts to detach a disk, if it is attached here, its guest is not and it needs no other host.
    pub fn detach(&mut self, shared: &mut Shared, of: usize) -> Flow {
        let job = self.with(shared, of, |migration, call, now| {
            let is_alone = matches!(migration.record(), Record::Owner { peers, .. } if peers.is_empty());
            let disk = migration.disk().filter(|_| is_alone)?;
            // An error says that it is not attached, or about to leave.
            call.detach(now, disk).ok()
        })?;
        if let Some(running) = &mut self.running {
            running.disks[of].detaching = job.flatten();
        }
        Ok(())
    }

    /// Returns what was on record of a disk before it was forgotten or taken over.
    pub fn known_before(&self, of: usize) -> Option<KnownBefore> {
        Some(self.before[of]).filter(|before| before.epoch > 0)
    }

    /// Remembers the epochs of a disk's record, and `epoch`, which is known from elsewhere; 0 if none is.
    pub fn remember(&mut self, of: usize, epoch: u64) {
        let running = self.running.as_ref();
        let info = running.zip(self.disk(of)).and_then(|(running, disk)| running.core.disk_info(disk));
        let recorded = info.and_then(|info| KnownBefore::of(KnownOwner::of(&info))).unwrap_or_default();
        self.before[of] = self.before[of].and(recorded).and(KnownBefore { epoch, had: None });
    }

    /// Starts to forget a disk and everything that this host has of it, if the disk is not in use.
    pub fn forget(&mut self, shared: &mut Shared, of: usize) -> Flow {
        let id = shared.plan.disks[of].id;
        self.remember(of, 0);
        let job = self.with(shared, of, |migration, call, now| {
            // An error says that it is attached, or busy.
            migration.disk().and_then(|disk| call.forget(now, disk, Some(id)).ok())
        })?;
        if let (Some(running), Some(Some(job))) = (&mut self.running, job) {
            running.disks[of].detaching = Some(job);
        }
        Ok(())
    }

    /// Fences the host: from now on, none of its writes reaches an origin. Each write in flight arrives or is lost, at
    /// random.
    pub fn fence(&mut self, shared: &mut Shared) {
        if self.fenced {
            return;
        }
        if self.running.is_some() {
            self.note_remains(shared);
        }
        self.fenced = true;
        let Some(running) = &self.running else { return };
        for flight in running.flights.iter().flatten() {
            if shared.rng.one_in(2) {
                change_origin(shared, &running.memory, flight);
            }
        }
    }

    /// Whether this host has dirty blocks of a disk that another host has taken over: the disk cannot be served here
    /// until they are forgotten.
    pub fn has_obsolete(&self, of: usize) -> bool {
        let running = self.running.as_ref();
        running.zip(self.disk(of)).is_some_and(|(running, disk)| running.core.overtaken_blocks(disk) > 0)
    }

    /// Whether a disk is being detached or forgotten.
    pub fn is_detaching(&self, of: usize) -> bool {
        self.running.as_ref().is_some_and(|running| running.disks[of].detaching.is_some())
    }

    /// Returns what a running host has on record of a disk.
    pub fn record(&self, of: usize) -> Option<&Record> {
        self.running.as_ref().map(|running| running.disks[of].migration.record())
    }

    /// Returns a disk's number in the pool of a running host that knows it.
    pub fn disk(&self, of: usize) -> Option<DiskNo> {
        self.running.as_ref().and_then(|running| running.disks[of].migration.disk())
    }

    /// Whether a running host may serve a disk's guest.
    pub fn may_serve(&mut self, of: usize) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|r| r.disks[of].migration.may_serve(&r.core.with(&mut r.memory)))
    }

    /// As the engine does, starts over with the record of a disk that was detached.
    fn detached(&mut self, shared: &Shared, of: usize) {
        self.starts += 1;
        let Some(mut running) = self.running.take() else { return };
        running.disks[of].detaching = None;
        running.disks[of].migration = self.migration(shared, of, &mut running.core.with(&mut running.memory));
        self.running = Some(running);
    }

    fn cut_power(&mut self, shared: &mut Shared) {
        for device in &mut self.devices {
            device.store.power_cut(Tear { unit: self.unit }, &mut shared.rng);
        }
    }

    /// Whether this host owns a disk, as far as its core knows.
    pub fn owns(&self, of: usize) -> bool {
        let Some(running) = &self.running else { return false };
        let info = running.disks[of].migration.disk().and_then(|disk| running.core.disk_info(disk));
        info.is_some_and(|info| info.owned)
    }

    fn owns_which(&self) -> Vec<bool> {
        (0..self.owned.len()).map(|of| self.owns(of)).collect()
    }

    /// Returns the sectors of a disk that a running host has cached and whose state `wanted` accepts.
    pub fn sectors_of(
        &self,
        shared: &Shared,
        of: usize,
        wanted: impl Fn(CacheState) -> bool,
    ) -> BTreeSet<u64> {
        let mut sectors = BTreeSet::new();
        let (Some(running), Some(disk)) = (&self.running, self.disk(of)) else { return sectors };
        let mut from = 0;
        running.core.cache_runs(
            disk,
            SectorNo(0),
            shared.plan.disks[of].sectors,
            usize::MAX,
            |count, state| {
                if wanted(state) {
                    sectors.extend(from..from + count);
                }
                from += count;
            },
        );
        sectors
    }

    /// Returns the sectors of a disk that a running host says are lost.
    pub fn lost_sectors(&self, of: usize) -> BTreeSet<u64> {
        let known = self.running.as_ref().zip(self.disk(of));
        let runs = known.map_or_else(Vec::new, |(running, disk)| running.core.lost_runs(disk));
        runs.into_iter().flat_map(|(first, count)| first.0..first.0 + count).collect()
    }

    /// Returns what a running host's pool has on record of a disk.
    fn info(&self, of: usize) -> Option<DiskInfo> {
        self.running.as_ref()?.core.disk_info(self.disk(of)?)
    }

    /// Whether a running host has attached a disk.
    pub fn has_attached(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| info.attached)
    }

    /// Whether a running host owns a disk that it does not attach before somebody accepts that blocks of it are lost.
    pub fn is_damaged(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| info.owned && !info.attached && info.damage != Damage::None)
    }

    /// Whether a running host has a replica of another host's blocks of a disk.
    pub fn has_replica(&self, of: usize) -> bool {
        self.info(of).is_some_and(|info| matches!(info.moved, Moved::Replica { .. }))
    }

    /// Whether it refuses to have a replica of a disk.
    pub fn refuses_replica(&self, of: usize, now: Micros) -> bool {
        now < self.refuses_until && !self.has_replica(of)
    }

    /// Returns what the host has of a disk or, if the host is down, what it had when it died. A power cut may have lost
    /// some of that.
    pub fn remains_of(&self, shared: &Shared, of: usize) -> Remains {
        match self.record(of) {
            Some(record) => {
                let dirty = self.sectors_of(shared, of, |state| state.dirty);
                let before = self.remains[of].guarded_by;
                let guarded_by = if self.fenced { before } else { self.guarded_by(of) };
                Remains { record: record.clone(), dirty, guarded_by }
            }
            None => self.remains[of].clone(),
        }
    }

    /// Returns what is on record of a disk, or was last.
    pub fn last_record(&self, of: usize) -> &Record {
        self.record(of).unwrap_or(&self.remains[of].record)
    }

    /// Returns the epoch that is on record of a disk, or was last.
    pub fn last_epoch(&self, of: usize) -> u64 {
        self.last_record(of).epoch()
    }

    /// Whether flushes of a disk wait here for a replica.
    pub fn guards(&self, of: usize) -> bool {
        let Some(running) = &self.running else { return false };
        let replication = self.disk(of).and_then(|disk| running.core.replication(disk));
        replication.is_some_and(|replication| replication.guards)
    }

    /// Returns the host of the replica that flushes of a disk wait for here, unless that host was asked to drop the
    /// replica.
    pub fn guarded_by(&self, of: usize) -> Option<usize> {
        let migration = &self.running.as_ref()?.disks[of].migration;
        let is_kept = self.guards(of) && !migration.may_have_dropped_replica();
        migration.replica_host().filter(|_| is_kept).map(|host| host.0 as usize - 1)
    }

    /// Returns the replica that this host has of another host's dirty blocks of a disk, if this host runs.
    pub fn replica(&mut self, shared: &Shared, of: usize) -> Option<ReplicaStatus> {
        let Running { core, memory, disks, .. } = self.running.as_mut()?;
        disks[of].migration.replica(&core.with(memory), shared.now)
    }

    fn note_remains(&mut self, shared: &Shared) {
        self.owned = self.owns_which();
        self.remains = (0..self.owned.len()).map(|of| self.remains_of(shared, of)).collect();
    }

    /// Runs something in the process, and then carries out what the core and the migrations request.
    pub fn with<T>(
        &mut self,
        shared: &mut Shared,
        of: usize,
        what: impl FnOnce(&mut Migration, &mut Call<'_, SimMemory>, Micros) -> T,
    ) -> Flow<Option<T>> {
        let Some(Running { core, memory, disks, .. }) = &mut self.running else { return Ok(None) };
        let done = what(&mut disks[of].migration, &mut core.with(memory), shared.now);
        self.pump(shared)?;
        Ok(Some(done))
    }

    /// Runs something in the core, and then carries out what the core and the migrations request.
    fn with_core(
        &mut self,
        shared: &mut Shared,
        what: impl FnOnce(&mut Call<'_, SimMemory>, Micros),
    ) -> Flow {
        let Some(Running { core, memory, .. }) = &mut self.running else { return Ok(()) };
        what(&mut core.with(memory), shared.now);
        self.pump(shared)
    }

    /// Carries out what the core and the migrations request, until they request nothing more.
    pub fn pump(&mut self, shared: &mut Shared) -> Flow {
        loop {
            let Some(running) = &mut self.running else { return Ok(()) };
            if let Some(action) = running.core.poll() {
                tell(|| format!("{:>10} host {} {action:?}", shared.now, self.place));
                self.act(shared, action)?;
                continue;
            }
            let polled = running.disks.iter_mut().enumerate();
            let Some((of, output)) =
                polled.filter_map(|(of, disk)| Some((of, disk.migration.poll()?))).next()
            else {
                if running.replicate(shared.now) {
                    continue;
                }
                running.note_wakeup();
                return Ok(());
            };
            tell(|| format!("{:>10} host {} disk {of} {}", shared.now, self.place, brief(&output)));
            self.put_out(shared, of, output)?;
        }
    }

    fn act(&mut self, shared: &mut Shared, action: Action) -> Flow {
        let device = |host: &Host, no| host.devices.iter().position(|d| d.no == Some(no)).expect("it has it");
        let sector = |offset_bytes: u64| offset_bytes / SECTOR_BYTES as u64;
        match action {
            Action::ReadOrigin { io, disk, sector, sectors } if self.is_base(disk) => {
                self.launch(shared, io, What::BaseRead { sector: sector.0, sectors });
            }
            Action::FlushOrigin { io, disk } if self.is_base(disk) => {
                let running = self.run();
                running.core.with(&mut running.memory).complete(shared.now, io, Ok(()));
            }
            Action::WriteOrigin { disk, .. } | Action::ZeroOrigin { disk, .. } if self.is_base(disk) => {
                return violation!("host {} does {action:?}, but nobody writes the base", self.place);
            }
            Action::WriteOrigin { io, .. }
            | Action::ZeroOrigin { io, .. }
            | Action::FlushOrigin { io, .. }
                if self.fenced =>
            {
                self.launch(shared, io, What::Refused);
            }
            Action::ReadDevice { io, device: no, offset_bytes } => {
                let device = device(self, no);
                self.launch(shared, io, What::DeviceRead { device, sector: sector(offset_bytes) });
            }
            Action::WriteDevice { io, device: no, offset_bytes } => {
                let device = device(self, no);
                self.launch(shared, io, What::DeviceWrite { device, sector: sector(offset_bytes) });
            }
            Action::FlushDevice { io, device: no } => {
                let device = device(self, no);
                let mark = self.devices[device].store.flush_mark();
                self.launch(shared, io, What::DeviceFlush { device, mark });
            }
            Action::ReadOrigin { io, disk, sector, sectors } => {
                let of = self.place_of(disk);
                self.launch(shared, io, What::OriginRead { of, sector: sector.0, sectors });
            }
            Action::WriteOrigin { io, disk, sector, durable, .. } => {
                let of = self.place_of(disk);
                self.may_write(&action, of)?;
                self.launch(shared, io, What::OriginWrite { of, sector: sector.0, durable });
            }
            Action::ZeroOrigin { io, disk, sector, sectors, durable, .. } => {
                let of = self.place_of(disk);
                self.may_write(&action, of)?;
                self.launch(shared, io, What::OriginZero { of, sector: sector.0, sectors, durable });
            }
            Action::FlushOrigin { io, disk } => {
                let of = self.place_of(disk);
                let mark = shared.origins[of].flush_mark();
                self.launch(shared, io, What::OriginFlush { of, mark });
            }
            Action::ReadPeer { io, disk, block, mask, is_late, .. } => {
                let of = self.place_of(disk);
                self.run().disks[of].migration.fetch(shared.now, io, block, mask, is_late);
            }
            Action::Complete { tag, result } => self.answered(tag, result),
            Action::Event(Event::JobDone { job, result }) => {
                let Running { core, memory, disks, .. } = self.run();
                for disk in disks {
                    disk.migration.job_done(&mut core.with(memory), shared.now, job, result);
                }
                if self.run().stopping == Some(job) {
                    self.run().stopping = None;
                }
                let detaching = self.run().disks.iter().position(|disk| disk.detaching == Some(job));
                match (detaching, result) {
                    (Some(of), Ok(())) => self.detached(shared, of),
                    (Some(of), Err(_)) => self.run().disks[of].detaching = None,
                    (None, _) => {}
                }
                self.check_released()?;
            }
            Action::Event(Event::CleanFailed { .. }) => {}
            Action::Event(event) => {
                return violation!("host {}: {event:?} although no device is at fault", self.place);
            }
        }
        Ok(())
    }

    fn is_base(&self, disk: DiskNo) -> bool {
        self.running.as_ref().is_some_and(|running| running.base == Some(disk))
    }

    /// Returns which disk has this number in the pool.
    fn place_of(&mut self, disk: DiskNo) -> usize {
        let place = self.run().disks.iter().position(|here| here.migration.disk() == Some(disk));
        place.expect("the core does I/O for disks that it was told of")
    }

    fn run(&mut self) -> &mut Running {
        self.running.as_mut().expect("the host runs")
    }

    /// The origin is written only by the host whose durable record says that it owns the disk.
    fn may_write(&self, action: &Action, of: usize) -> Flow {
        match self.record(of) {
            Some(Record::Owner { .. }) => Ok(()),
            other => violation!("host {} does {action:?} while its record is {other:?}", self.place),
        }
    }

    /// Checks that no write to the origin of a released disk is in flight.
    fn check_released(&self) -> Flow {
        let Some(running) = &self.running else { return Ok(()) };
        let is_released = |of: usize| {
            let record = running.disks[of].migration.record();
            matches!(record, Record::Released { .. } | Record::Overtaken { .. })
        };
        let is_wrong = |flight: &Flight| match flight.what {
            What::OriginWrite { of, .. } | What::OriginZero { of, .. } => is_released(of),
            _ => false,
        };
        if running.flights.iter().flatten().any(is_wrong) {
            return violation!("host {} has released a disk and still writes its origin", self.place);
        }
        Ok(())
    }

    fn answered(&mut self, tag: RequestTag, result: Result<(), haversack_core::RequestError>) {
        let running = self.run();
        let Some(place) = running.readings.iter().position(|reading| reading.tag == tag) else {
            running.answers.push((tag, result));
            return;
        };
        let Reading { of, ticket, copied, .. } = running.readings.swap_remove(place);
        let buffer = &mut running.memory.buffers().0[(tag.0 & 0xFFFF) as usize];
        buffer.tag = 0;
        let copy = result.is_ok().then(|| (copied, buffer.bytes.clone()));
        running.disks[of].migration.copy_read(ticket, copy);
    }

    /// Returns a free buffer of the guest's, with a tag.
    pub fn buffer(&mut self) -> (RequestTag, &mut Buffer) {
        self.tags += 1;
        let tags = self.tags;
        let buffers = &mut self.run().memory.buffers().0;
        let slot = buffers.iter().position(|buffer| buffer.tag == 0).unwrap_or(buffers.len());
        if slot == buffers.len() {
            buffers.push(Buffer::default());
        }
        let tag = RequestTag(tags << 16 | slot as u64);
        let buffer = &mut buffers[slot];
        *buffer = Buffer { tag: tag.0, bytes: std::mem::take(&mut buffer.bytes), ..Buffer::default() };
        (tag, buffer)
    }

    fn put_out(&mut self, shared: &mut Shared, of: usize, output: Output) -> Flow {
        match output {
            Output::Send(to, message) => {
                let (from, to) = (self.place, to.0 as usize - 1);
                shared.mail.push(Letter { from, to, of, message });
            }
            Output::ReadCopy(ticket) => self.read_copy(shared, of, ticket),
            Output::TakeCopy { block, copied, data } => self.take_copy(shared, of, block, copied, data),
            Output::KeepCopy { session, at, block, mask, data } => {
                self.keep_copy(shared, of, (session, at), (block, mask), data);
            }
            Output::FetchFailed { io } => {
                let Running { core, memory, .. } = self.run();
                core.with(memory).complete(shared.now, io, Err(IoFailure::Error));
            }
            Output::Fetched { io, data } => {
                let running = self.run();
                let pieces: Vec<Piece> = running.core.pieces(io).collect();
                scatter(&mut running.memory, &pieces, &data);
                running.core.with(&mut running.memory).complete(shared.now, io, Ok(()));
            }
        }
        Ok(())
    }

    fn read_copy(&mut self, shared: &Shared, of: usize, ticket: CopyTicket) {
        let (tag, buffer) = self.buffer();
        buffer.bytes.clear();
        buffer.bytes.resize(BLOCK_BYTES, 0xEE);
        let Running { core, memory, disks, readings, .. } = self.run();
        let migration = &mut disks[of].migration;
        let Some(disk) = migration.disk() else { return };
        match ticket.read(&mut core.with(memory), shared.now, tag, disk) {
            Ok(Some(copied)) => readings.push(Reading { of, tag, ticket, copied }),
            Err(Rejected::Busy) if matches!(ticket, CopyTicket::Answer { .. }) => {
                memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
            }
            Ok(None) | Err(_) => {
                memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
                migration.copy_read(ticket, None);
            }
        }
    }

    fn take_copy(&mut self, shared: &Shared, of: usize, block: BlockNo, copied: Copied, data: Vec<u8>) {
        let (tag, buffer) = self.buffer();
        (buffer.bytes, buffer.is_copy) = (data, true);
        let Running { core, memory, disks, .. } = self.run();
        if let Some(disk) = disks[of].migration.disk() {
            // An error says that the disk is no longer expected.
            let _ = core.with(memory).take_copy(shared.now, tag, disk, block, copied);
        }
        memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
    }

    fn keep_copy(
        &mut self,
        shared: &Shared,
        of: usize,
        (session, at): (Session, Position),
        (block, mask): (BlockNo, u8),
        data: Vec<u8>,
    ) {
        let (tag, buffer) = self.buffer();
        (buffer.bytes, buffer.is_copy) = (data, true);
        let Running { core, memory, disks, .. } = self.run();
        let migration = &mut disks[of].migration;
        let Some(disk) = migration.disk() else { return };
        let is_kept = core.with(memory).keep_copy(shared.now, tag, disk, block, mask) == Ok(true);
        migration.copy_kept(session, at, is_kept);
        memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
    }

    /// Returns when the next I/O ends or the core wants to be woken, and whether it is the latter.
    pub fn next_us(&self) -> Option<(Micros, bool)> {
        let running = self.running.as_ref()?;
        let io = running.due.peek().map(|Reverse((at, ..))| (*at, false));
        let wakeup = running.wakeup.map(|at| (at, true));
        [io, wakeup].into_iter().flatten().min()
    }

    /// Lets the core do what its timer is for.
    pub fn wake(&mut self, shared: &mut Shared) -> Flow {
        self.with_core(shared, |call, now| call.tick(now))
    }

    /// Ends the next I/O. With `dies_after`, the process dies in the call that reports the I/O: all but the first
    /// `dies_after` stores of that call to surviving memory are undone.
    pub fn end_io(&mut self, shared: &mut Shared, dies_after: Option<u64>) -> Flow {
        let Some(Reverse((_, _, slot))) = self.run().due.pop() else { return Ok(()) };
        let flight = self.run().flights[slot].take().expect("an I/O ends once");
        shared.ios += 1;
        let result = self.perform(shared, &flight);
        if let Some(stores) = dies_after {
            self.run().memory.arm(stores);
            let running = self.run();
            running.core.with(&mut running.memory).complete(shared.now, flight.io, result);
            return Ok(());
        }
        self.with_core(shared, |call, now| call.complete(now, flight.io, result))
    }

    /// Stops the pool in order. Returns false if that takes too long: it may need the other host.
    pub fn shut_down(&mut self, shared: &mut Shared) -> Flow<bool> {
        let name = self.checkpoints.as_mut().map(Checkpoints::name);
        let mut job = None;
        self.with_core(shared, |call, now| {
            name.into_iter().for_each(|name| call.name_stop(name));
            job = Some(call.shutdown(now));
        })?;
        self.run().stopping = job;
        for _ in 0..STEPS_OF_A_STOP {
            let Some((us, wakes)) = self.next_us().filter(|_| self.is_stopping()) else { break };
            shared.now = shared.now.max(us);
            if wakes { self.wake(shared)? } else { self.end_io(shared, None)? }
        }
        Ok(!self.is_stopping())
    }

    fn is_stopping(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.stopping.is_some())
    }

    /// Ends a process whose pool has stopped, and leaves a checkpoint. The host starts again at `until`.
    pub fn leave(&mut self, shared: &mut Shared, until: Micros) {
        self.note_remains(shared);
        let Some(running) = self.running.take() else { return };
        tell(|| format!("{:>10} host {} has stopped", shared.now, self.place));
        self.land(shared, &running.memory, running.flights);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.save(running.core);
        }
        self.down = Some((until, None));
    }

    /// Kills the process or cuts the host's power. The host starts again at `until`.
    pub fn crash(&mut self, shared: &mut Shared, kind: CrashKind, until: Micros) {
        self.note_remains(shared);
        let Some(mut running) = self.running.take() else { return };
        tell(|| format!("{:>10} host {} {kind:?}", shared.now, self.place));
        self.land(shared, &running.memory, std::mem::take(&mut running.flights));
        let memory = match kind {
            CrashKind::Kill => {
                let torn = shared.rng.one_in(2);
                running.memory.kill(torn, &mut shared.rng);
                Some(running.memory)
            }
            CrashKind::Power => {
                self.cut_power(shared);
                None
            }
        };
        self.down = Some((until, memory));
    }
}

/// Starts to attach the base, if there is one.
fn attach_base(shared: &Shared, call: &mut Call<'_, SimMemory>) -> Flow<Option<DiskNo>> {
    let Some(base) = &shared.base else { return Ok(None) };
    match call.attach(shared.now, &base.config, 1, false) {
        Ok((disk, _)) => Ok(Some(disk)),
        Err(error) => violation!("the base is not attached: {error}"),
    }
}

/// Creates the pool of a host.
fn create(place: usize, plan: &Plan) -> Result<Vec<Created>, PoolError> {
    let device = |(at, segments): (usize, &u32)| Device {
        store: device_store(*segments),
        id: device_id(at + 8 * place),
        no: None,
        plugged: true,
    };
    let mut devices: Vec<Device> = plan.devices[place].iter().enumerate().map(device).collect();
    let config = PoolConfig {
        arena: ArenaId::first(Uuid([place as u8 + 1; 16])),
        arenas: 1,
        device_ids: devices.iter().map(|d| d.id).collect(),
        redundancy: plan.redundancy[place],
        prepared_segments: plan.prepared,
    };
    let order = (0..devices.len()).collect();
    let mut media = FakeMedia::new(&mut devices, order, None, Random::scrambled(0), plan.tear_unit);
    pool::create(&mut media, &config)?;
    Ok(devices.into_iter().map(|device| Created { store: device.store, joins: None }).collect())
}

/// Returns an output without its data.
fn brief(output: &Output) -> String {
    let mut text = format!("{output:?}");
    if let Some(at) = text.find("data: [") {
        text.truncate(at);
    }
    text
}
