//! The simulated host: a core, its memory, its cache devices, the origins, and everything in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::Range;

use haversack_core::{Call, Core, DiskConfig, IoId, JobId, Piece, PoolConfig, pool};
use haversack_model::{ArenaId, DeviceNo, DiskNo, Micros, SECTOR_BYTES, SECTORS_PER_BLOCK, Uuid};

use crate::base::Sharing;
use crate::checkpoint::Checkpoints;
use crate::created::{self, Created, Shape};
use crate::device::{Blank, Store, Tear};
use crate::job::Job;
use crate::loans::Loans;
use crate::media::FakeMedia;
use crate::memory::SimMemory;
use crate::oracle::{Oracle, Tick};
use crate::plan::Plan;
use crate::request::Pending;
use haversack_model::random::Random;

/// How a run is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashKind {
    /// The process dies; staging memory survives.
    Kill,
    /// The host loses power.
    Power,
}

/// Why the simulation stops its current work.
#[derive(Debug)]
pub enum Stop {
    /// The planned crash is due.
    Crash(CrashKind),
    /// An invariant is broken.
    Violation(String),
    /// Nothing more can be learned: the last cache device is gone.
    End,
}

/// Ordinary progress, or a reason to stop.
pub type Flow<T = ()> = Result<T, Stop>;

/// Returns a violation with a formatted text.
macro_rules! violation {
    ($($text:tt)*) => { Err($crate::world::Stop::Violation(format!($($text)*))) };
}
pub(crate) use violation;

/// A cache device of the host.
pub struct Device {
    /// Its contents.
    pub store: Store,
    /// Its identity.
    pub id: Uuid,
    /// Its number in the pool; `None` while it is not a member.
    pub no: Option<DeviceNo>,
    /// Passed to the core at the next start.
    pub plugged: bool,
}

impl Device {
    /// Returns a copy.
    pub(crate) fn copy(&self) -> Device {
        Device { store: self.store.clone(), id: self.id, no: self.no, plugged: self.plugged }
    }
}

/// A disk's state on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Not attached.
    Detached,
    /// An attach is in progress.
    Attaching,
    /// Serving requests.
    Attached,
    /// A detach is in progress.
    Leaving,
    /// A release is in progress.
    Releasing,
    /// Another host owns it.
    Released,
}

/// A disk and its origin.
pub struct Disk {
    /// Its settings as of the last call.
    pub config: DiskConfig,
    /// The origin.
    pub origin: Store,
    /// The ownership epoch of this host.
    pub epoch: u64,
    /// Its state.
    pub life: Life,
    /// Its number in the pool while the core runs.
    pub no: Option<DiskNo>,
    /// Writes to the origin violate ownership.
    pub origin_forbidden: bool,
    /// Another host has had the disk since this one held it.
    pub handed_over: bool,
    /// Others have written its origin while it was detached, and it has not been attached since.
    pub is_outdated: bool,
    /// The size that requests comply with.
    pub sectors: u64,
    /// A mode that defers origin writes is on, or a change from or to one is in progress.
    pub deferring: bool,
    /// Blocks of eight sectors that may have been dirty since the last detach.
    pub deferred: Vec<bool>,
    /// Sectors whose only dirty copy was lost with a device, since losses were last accepted.
    pub lost: HashSet<u64>,
    /// Lost sectors whose loss the operator has accepted for an attach that has not ended.
    pub accepted: HashSet<u64>,
    /// Blocks whose only dirty copy on flash was found damaged: one sector of each, and the time. Until the next flush,
    /// the data that the core has staged may be all that is left of such a block.
    pub damaged: Vec<(u64, Tick)>,
    /// The origin fails until then.
    pub outage_until: Micros,
    /// The origin is slow until then.
    pub slow_until: Micros,
    /// When an origin I/O last failed.
    pub last_error: Tick,
    /// When the origin last took a guest's write that it did not have to make durable; after a restart the core does
    /// not know whether one was flushed.
    pub volatile_since: Tick,
    /// Volatile writes up to here were flushed for the guest.
    pub volatile_until: Tick,
    /// Mode changes so far.
    pub mode_changes: u64,
    /// Where sequential requests continue.
    pub cursor: u64,
    /// A job of the disk is in progress.
    pub busy: bool,
}

impl Disk {
    /// Returns whether any of the sectors may have been dirty.
    pub fn may_be_dirty(&self, sector: u64, sectors: u64) -> bool {
        let end = ((sector + sectors).div_ceil(8) as usize + 1).min(self.deferred.len());
        self.deferred[((sector / 8) as usize).saturating_sub(1)..end].contains(&true)
    }

    /// Returns the sectors of all blocks that these are in.
    pub fn whole_blocks(&self, sectors: Range<u64>) -> Range<u64> {
        let shift = (SECTORS_PER_BLOCK - u64::from(self.config.phase)) % SECTORS_PER_BLOCK;
        let start = (sectors.start + shift) / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
        let end = (sectors.end + shift).next_multiple_of(SECTORS_PER_BLOCK);
        start.saturating_sub(shift)..end - shift
    }

    /// Records a write.
    pub fn note_write(&mut self, sector: u64, sectors: u64) {
        if self.deferring {
            let end = (sector + sectors).div_ceil(8) as usize;
            self.deferred[(sector / 8) as usize..end].fill(true);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    DeviceRead { device: usize, sector: u64 },
    DeviceWrite { device: usize, sector: u64 },
    DeviceFlush { device: usize, mark: u64 },
    OriginRead { disk: usize, sector: u64, sectors: u32 },
    OriginWrite { disk: usize, sector: u64, sectors: u32, durable: bool },
    OriginZero { disk: usize, sector: u64, sectors: u32, durable: bool },
    OriginFlush { disk: usize, mark: u64 },
}

pub(crate) struct Flight {
    pub io: IoId,
    pub what: What,
    pub pieces: Vec<Piece>,
}

/// Counters of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Crashes survived and verified.
    pub points: u64,
    /// Kills among them.
    pub kills: u64,
    /// Power cuts among them.
    pub cuts: u64,
    /// Crashes while opening the pool.
    pub crashes_in_open: u64,
    /// Starts from a checkpoint.
    pub checkpoints: u64,
    /// I/Os of devices and origins.
    pub ios: u64,
    /// Guest requests completed.
    pub requests: u64,
    /// Management jobs done.
    pub jobs: u64,
    /// Times that a disk began to share blocks with its base.
    pub shared: u64,
    /// Blocks stored under loans.
    pub lent: u64,
    /// Blocks read under loans.
    pub lent_reads: u64,
    /// Loans of which all space was freed.
    pub freed_loans: u64,
    /// Owners that died while the replica of their dirty blocks was complete.
    pub replicas: u64,
    /// Disks taken over by force in a cluster.
    pub takeovers: u64,
    /// Of these takeovers, those in which a loss was recorded.
    pub losses: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Faults injected.
    pub faults: u64,
    /// Sectors compared with the oracle.
    pub sectors: u64,
}

/// A host under test.
pub struct World {
    pub(crate) rng: Random,
    /// The parameters of the run.
    pub plan: Plan,
    pub(crate) now: Micros,
    pub(crate) core: Option<Core>,
    /// The memory of the core; present while it runs.
    pub(crate) memory: Option<SimMemory>,
    pub(crate) devices: Vec<Device>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) disk_of: HashMap<DiskNo, usize>,
    /// The oracle.
    pub oracle: Oracle,
    pub(crate) flights: Vec<Option<Flight>>,
    pub(crate) free_flights: Vec<usize>,
    pub(crate) due: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    pub(crate) sequence: u64,
    pub(crate) requests: Vec<Option<Pending>>,
    pub(crate) pending: usize,
    pub(crate) jobs: Vec<(JobId, Job)>,
    pub(crate) trigger: Option<(u64, CrashKind)>,
    /// Chooses crashes that come while the pool record is being written; not in all runs.
    pub(crate) record_crashes: Option<Random>,
    /// Checkpoints of clean stops; not in all runs.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Chooses losses of any device that the pool can do without; not in all runs.
    pub(crate) losses: Option<Random>,
    /// Chooses what rots; only in runs with damaged media.
    pub(crate) damages: Option<Random>,
    /// Disks that share blocks with their base; not in all runs.
    pub(crate) sharing: Option<Sharing>,
    /// Space that is lent to other hosts; not in all runs.
    pub(crate) loans: Option<Loans>,
    /// The pool reported that every dirty block has two copies when it last ran, and nothing was lost since.
    pub(crate) whole: bool,
    pub(crate) torn_store: bool,
    /// Dirty data may have been destroyed by an injected fault.
    pub(crate) unprotected_fault: bool,
    /// The host has recorded that all devices were lost.
    pub(crate) contents_void: bool,
    pub(crate) recent: Vec<(usize, u64, u32)>,
    pub(crate) idle_wakeups: u32,
    pub(crate) stopping: bool,
    pub(crate) scratch: Vec<u8>,
    /// Counters so far.
    pub counts: Counts,
    arena: ArenaId,
}

impl World {
    /// Makes a host with a freshly created pool, not yet open.
    pub fn new(plan: Plan, mut rng: Random) -> Flow<World> {
        let arena = ArenaId::first(Uuid([0x70; 16]));
        let devices: Vec<Device> = plan
            .devices
            .iter()
            .enumerate()
            .map(|(i, segments)| Device {
                store: device_store(*segments),
                id: device_id(i),
                no: None,
                plugged: true,
            })
            .collect();
        let mut oracle = Oracle::default();
        let (disks, sharing) = new_disks(&plan, &mut oracle);
        let mut world = World {
            now: rng.below(1_000_000),
            rng,
            plan,
            core: None,
            memory: None,
            devices,
            disks,
            disk_of: HashMap::new(),
            oracle,
            flights: Vec::new(),
            free_flights: Vec::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            requests: Vec::new(),
            pending: 0,
            jobs: Vec::new(),
            trigger: None,
            record_crashes: None,
            checkpoints: None,
            losses: None,
            damages: None,
            sharing,
            loans: None,
            whole: false,
            torn_store: false,
            unprotected_fault: false,
            contents_void: false,
            recent: Vec::new(),
            idle_wakeups: 0,
            stopping: false,
            scratch: Vec::new(),
            counts: Counts::default(),
            arena,
        };
        world.create_pool()?;
        let tear = world.tear();
        for device in &mut world.devices {
            device.store.power_cut(tear, &mut world.rng);
        }
        Ok(world)
    }

    /// Formats the devices.
    fn create_pool(&mut self) -> Flow {
        let (segments, redundancy) = (self.plan.devices.clone(), self.plan.redundancy);
        let (prepared, remains) = (self.plan.prepared, self.plan.remains);
        let shape = Shape::Pool { segments, redundancy, prepared, remains };
        let devices = created::devices(shape, || {
            let device_ids = self.devices.iter().map(|d| d.id).collect();
            let config = PoolConfig {
                arena: self.arena,
                arenas: 1,
                device_ids,
                redundancy,
                prepared_segments: prepared,
            };
            for (device, segments) in self.devices.iter_mut().zip(&self.plan.devices) {
                remains.leave(&mut device.store, *segments, self.arena, device.id);
            }
            let order = (0..self.devices.len()).collect();
            let unit = self.plan.tear_unit;
            let mut media = FakeMedia::new(&mut self.devices, order, None, Random::scrambled(0), unit);
            pool::create(&mut media, &config)?;
            Ok(self.devices.iter().map(|d| Created { store: d.store.clone(), joins: None }).collect())
        });
        match devices {
            Ok(created) => {
                for (device, created) in self.devices.iter_mut().zip(created) {
                    device.store = created.store;
                }
                Ok(())
            }
            Err(error) => violation!("creating the pool failed: {error}"),
        }
    }

    pub(crate) fn arena(&self) -> ArenaId {
        self.arena
    }

    pub(crate) fn tear(&self) -> Tear {
        Tear { unit: self.plan.tear_unit }
    }

    pub(crate) fn core(&mut self) -> Call<'_, SimMemory> {
        let memory = self.memory.as_mut().expect("the core is running");
        self.core.as_mut().expect("the core is running").with(memory)
    }

    pub(crate) fn memory(&mut self) -> &mut SimMemory {
        self.memory.as_mut().expect("the core is running")
    }

    pub(crate) fn fresh_memory(&self) -> SimMemory {
        SimMemory::new(self.plan.staging_frames, self.plan.transfer_frames)
    }
}

/// Returns the identity of the simulator's device with that index.
pub fn device_id(place: usize) -> Uuid {
    let mut id = [0xDE; 16];
    id[15] = place as u8;
    Uuid(id)
}

/// Makes a blank cache device with room for this many segments.
pub fn device_store(segments: u32) -> Store {
    Store::new(pool::device_bytes(segments) / SECTOR_BYTES as u64, Blank::Zero)
}

/// Makes the disks: the content of each, and what the oracle knows of it.
fn new_disks(plan: &Plan, oracle: &mut Oracle) -> (Vec<Disk>, Option<Sharing>) {
    let from = |place| plan.base_of(place).unwrap_or(place);
    let size = |place: usize| plan.disks[place].sectors;
    let contents =
        (0..plan.disks.len()).map(|place| match oracle.add_disk(size(place), plan.blank[from(place)]) {
            Some(version) => Blank::Written { disk: place as u16, version },
            None => Blank::Zero,
        });
    let contents: Vec<Blank> = contents.collect();
    let disks = plan.disks.iter().enumerate().map(|(place, config)| {
        let base_size = size(from(place)).min(size(place));
        let mut origin = Store::new(base_size, contents[from(place)]);
        if from(place) != place {
            oracle.begins_as(place, from(place));
        }
        if base_size < size(place) {
            // Behind the end of its base it is zero.
            origin.resize(size(place));
            oracle.resize(place, base_size);
            oracle.resize(place, size(place));
        }
        new_disk(config, origin)
    });
    let disks = disks.collect();
    let sharing = plan.made.clone().map(|made| {
        let (content, sectors) = (contents[made.from], size(made.from));
        Sharing::new(made, content, sectors, plan.disks.len())
    });
    (disks, sharing)
}

fn new_disk(config: &DiskConfig, origin: Store) -> Disk {
    Disk {
        config: config.clone(),
        origin,
        epoch: 1,
        life: Life::Detached,
        no: None,
        origin_forbidden: false,
        handed_over: false,
        is_outdated: false,
        sectors: config.sectors,
        deferring: config.mode.defers_origin(),
        deferred: vec![false; config.sectors.div_ceil(8) as usize],
        outage_until: 0,
        slow_until: 0,
        last_error: 0,
        volatile_since: 0,
        volatile_until: 0,
        mode_changes: 0,
        cursor: 0,
        lost: HashSet::new(),
        accepted: HashSet::new(),
        damaged: Vec::new(),
        busy: false,
    }
}
