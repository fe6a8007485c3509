//! A host: its core, cache devices and the migrations of its disks, what is in flight, and its crashes.

mod carry;
mod has;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use haversack_core::{
    Call, CheckpointSource, CheckpointUse, Copied, Core, JobId, OpenOptions, PoolConfig, PoolError,
    RequestTag, pool,
};
use haversack_migrate::{CopyTicket, HostId, KnownBefore, KnownOwner, Migration, ReplicaPolicy};
use haversack_model::{ArenaId, DiskNo, Micros, Uuid};
use haversack_ownership::Record;

use super::base::{Asked, Base};
use super::io::{Flight, change_origin};
use super::network::Letter;
use super::plan::Plan;
use crate::checkpoint::Checkpoints;
use crate::created::{self, Created, Shape};
use crate::device::{Store, Tear};
use crate::media::FakeMedia;
use crate::memory::SimMemory;
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

    fn note_remains(&mut self, shared: &Shared) {
        self.owned = self.owns_which();
        self.remains = (0..self.owned.len()).map(|of| self.remains_of(shared, of)).collect();
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
