//! A host of a simulated cluster: its core, one side of the migration protocol for every disk of the cluster, and what
//! its control loop asks for.
//!
//! Invariant
//! - A disk has the number of its volume on every host, whether it is there or only expected.

use std::collections::VecDeque;

use haversack_control::Counters;
use haversack_core::{
    AdmissionConfig, Copied, Core, DiskConfig, DiskStats, DiskUsage, ManageError, MonitorConfig, NullMemory,
    Records, Rejected, Request, RequestTag, Target,
};
use haversack_migrate::{CopyTicket, Migration, Timing};
use haversack_model::{DiskId, DiskNo, HostId, Micros, WriteMode};

use crate::error::SimError;
use crate::governor::Governable;
use crate::meter::Meter;
use crate::production::pool::PoolMake;
use crate::production::reads::{Read, ReadTimes};

/// The number of a host in the protocol.
pub fn host_id(host: usize) -> HostId {
    HostId(host as u64 + 1)
}

/// The host with a number in the protocol.
pub fn place_of(id: HostId) -> usize {
    id.0 as usize - 1
}

/// A request of a VM.
#[derive(Clone, Copy)]
pub struct Arrived {
    /// The volume's number.
    pub volume: usize,
    /// The request. Its tag is set when it is submitted.
    pub request: Request,
    /// When it arrived.
    pub time_ns: u64,
}

/// What the core is asked for under a tag.
pub enum Purpose {
    /// A request of a VM.
    Guest(Arrived),
    /// A copy of a block for another host.
    Copy { volume: usize, ticket: CopyTicket, copied: Copied },
}

/// One side of the protocol for a disk.
pub struct Mover {
    pub migration: Migration,
    pub id: DiskId,
    driven_us: Micros,
}

/// See the module.
pub struct Host {
    pub core: Core,
    pub memory: NullMemory,
    /// By volume.
    pub movers: Vec<Mover>,
    /// Requests that the core has not accepted yet, or whose disk is not served yet, in the order of arrival.
    pub waiting: VecDeque<Arrived>,
    /// The time that the core is given with the control loop's changes.
    pub now_us: Micros,
    purposes: Vec<Option<Purpose>>,
    free_tags: Vec<u32>,
    names: Vec<String>,
    modes: Vec<WriteMode>,
    reads: ReadTimes,
}

impl Host {
    /// Creates a host with a new pool that expects every disk. `disks` are the volumes' settings, in order.
    ///
    /// # Errors
    /// The pool or a disk is refused.
    pub fn new(
        number: usize,
        make: &PoolMake,
        disks: &[DiskConfig],
        names: &[String],
    ) -> Result<Host, SimError> {
        let mut media = make.create((number % 15) as u8)?;
        let mut memory: NullMemory = make.memory();
        let core = make.open(&mut media, &mut memory, 0)?;
        Ok(Host {
            core,
            memory,
            movers: Vec::new(),
            waiting: VecDeque::new(),
            now_us: 0,
            purposes: Vec::new(),
            free_tags: Vec::new(),
            names: names.to_vec(),
            modes: disks.iter().map(|disk| disk.mode).collect(),
            reads: ReadTimes::new(disks.len()),
        })
    }

    /// Adds the next volume's disk: as its first owner, or as one that may come.
    ///
    /// # Errors
    /// The disk is refused.
    pub fn add(
        &mut self,
        host: HostId,
        config: &DiskConfig,
        owns: bool,
        timing: Timing,
    ) -> Result<(), SimError> {
        let volume = self.movers.len();
        let mut call = self.core.with(&mut self.memory);
        if !owns {
            let expected = call.expect_disk(0, config);
            let number = expected.map_err(|error| refused(&self.names[volume], error))?;
            debug_assert_eq!(usize::from(number.0), volume, "disks keep their numbers");
        }
        let mut migration = Migration::new(&mut call, 0, host, 1, config.clone(), timing);
        if owns {
            migration.create(&mut call, 0).map_err(|error| refused(&self.names[volume], error))?;
            migration.guest_runs(&mut call, 0, host);
        }
        self.movers.push(Mover { migration, id: config.id, driven_us: 0 });
        Ok(())
    }

    /// Whether a volume is served here.
    pub fn serves(&mut self, volume: usize) -> bool {
        let call = self.core.with(&mut self.memory);
        self.movers[volume].migration.may_serve(&call)
    }

    /// Runs timers that are due.
    pub fn look(&mut self, now: Micros) {
        if self.core.next_wakeup().is_some_and(|due| due <= now) {
            self.core.with(&mut self.memory).tick(now);
        }
        for mover in &mut self.movers {
            if mover.migration.needs_time() && mover.migration.next_wakeup(mover.driven_us) <= now {
                mover.driven_us = now;
                mover.migration.tick(&mut self.core.with(&mut self.memory), now);
            }
        }
    }

    /// Assigns a tag to a purpose.
    pub fn put(&mut self, purpose: Purpose) -> RequestTag {
        let slot = self.free_tags.pop().unwrap_or_else(|| {
            self.purposes.push(None);
            (self.purposes.len() - 1) as u32
        });
        self.purposes[slot as usize] = Some(purpose);
        RequestTag(u64::from(slot))
    }

    /// Notes what a copy that is being read will have.
    pub fn set_copied(&mut self, tag: RequestTag, found: Copied) {
        if let Some(Purpose::Copy { copied, .. }) = &mut self.purposes[tag.0 as usize] {
            *copied = found;
        }
    }

    /// Removes the purpose of a tag.
    ///
    /// # Panics
    /// If the tag is not in use.
    pub fn take_back(&mut self, tag: RequestTag) -> Purpose {
        let purpose = self.purposes[tag.0 as usize].take().expect("a tag in use");
        self.free_tags.push(tag.0 as u32);
        purpose
    }

    /// Submits a request. Returns false if the core does not accept it now.
    pub fn submit(&mut self, now: Micros, arrived: Arrived) -> bool {
        let tag = self.put(Purpose::Guest(arrived));
        match self.core.with(&mut self.memory).submit(now, Request { tag, ..arrived.request }) {
            Ok(()) => true,
            Err(Rejected::Busy) => {
                self.take_back(tag);
                false
            }
            Err(other) => unreachable!("the disks are as large as their traces: {other}"),
        }
    }

    /// Records the latency of a read that ends now.
    pub fn measure(&mut self, now_ns: u64, read: Option<Read>) {
        if let Some(read) = read {
            self.reads.measure(now_ns, read);
        }
    }

    /// A disk's counters.
    pub fn stats(&self, disk: DiskNo) -> DiskStats {
        self.core.disk_stats(disk).copied().unwrap_or_default()
    }

    /// Starts to record the requests of a disk.
    ///
    /// # Errors
    /// The core refuses.
    pub fn monitor_disk(&mut self, disk: DiskNo, config: MonitorConfig) -> Result<(), SimError> {
        let set = self.core.set_monitor(disk, Some(config));
        set.map_err(|error| refused(&self.names[usize::from(disk.0)], error))
    }

    /// Checks the result of a setting: it may be refused while the disk is elsewhere, busy or about to come.
    fn settable<T>(&self, disk: DiskNo, result: Result<T, ManageError>) -> Result<(), SimError> {
        match result {
            // It is elsewhere, or busy: what was decided is set again when it has come, or with the next decision.
            Ok(_) | Err(ManageError::NotAttached(_) | ManageError::Busy | ManageError::Migrating(_)) => {
                Ok(())
            }
            Err(error) => Err(refused(&self.names[usize::from(disk.0)], error)),
        }
    }
}

fn refused(name: &str, error: ManageError) -> SimError {
    SimError::Manage { disk: name.to_owned(), error }
}

/// Settings of a disk that is elsewhere have no effect. The core keeps its actions until the host is driven.
impl Governable for Host {
    fn monitor(&mut self, config: MonitorConfig) -> Result<(), SimError> {
        (0..self.movers.len()).try_for_each(|volume| self.monitor_disk(DiskNo(volume as u16), config))
    }

    fn records_fill(&self, disk: DiskNo) -> f64 {
        self.core.records_fill(disk)
    }

    fn take_records(&mut self, disk: DiskNo, into: &mut Records) {
        self.core.take_records(disk, into);
    }

    fn counters(&self, disk: DiskNo) -> Counters {
        self.reads.counters(disk, &self.stats(disk))
    }

    fn restart_latencies(&mut self, of: Option<DiskNo>) {
        self.reads.restart(of);
    }

    fn disk_usage(&self, disk: DiskNo) -> DiskUsage {
        self.core.disk_usage(disk).unwrap_or_default()
    }

    fn mode(&self, disk: DiskNo) -> WriteMode {
        self.core.disk_info(disk).map_or(self.modes[usize::from(disk.0)], |info| info.mode)
    }

    fn set_target(&mut self, disk: DiskNo, target: Target, _: &mut Meter) -> Result<(), SimError> {
        let set = self.core.with(&mut self.memory).set_target(self.now_us, disk, target);
        self.settable(disk, set)
    }

    fn set_admission(&mut self, disk: DiskNo, admission: AdmissionConfig) -> Result<(), SimError> {
        let set = self.core.with(&mut self.memory).set_admission(self.now_us, disk, admission);
        self.settable(disk, set)
    }

    fn set_mode(&mut self, disk: DiskNo, mode: WriteMode, _: &mut Meter) -> Result<(), SimError> {
        let set = self.core.with(&mut self.memory).set_mode(self.now_us, disk, mode);
        self.settable(disk, set)
    }
}
