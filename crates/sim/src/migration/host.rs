//! One of the two hosts: its core, its cache devices, and the protocol's side for each disk that moves.

use std::collections::VecDeque;

use haversack_core::{Call, Copied, Core, DiskConfig, IoId, Piece, Request, RequestTag, pool};
use haversack_migrate::{CopyTicket, Method, Migration, Timing};
use haversack_model::{DiskId, DiskNo, HostId, Micros, SECTOR_BYTES};
use haversack_trace::VolumeNo;

use super::content::{Buffer, ContentMemory, Version};
use crate::error::SimError;
use crate::production::pool::PoolMake;

/// The number of a host in the protocol.
pub fn host_id(place: usize) -> HostId {
    HostId(place as u64 + 1)
}

/// A request of a VM, or of the final check.
#[derive(Clone, Copy)]
pub struct Arrived {
    /// The VM; `None` for the final check.
    pub vm: Option<usize>,
    /// The disk.
    pub volume: VolumeNo,
    /// The request. Its disk and tag are set when it is submitted.
    pub request: Request,
    /// When it arrived.
    pub time_ns: u64,
}

/// The purpose of a buffer.
pub enum Purpose {
    /// A request and, for a read, the oldest versions that it may return.
    Guest(Arrived, Vec<Version>),
    /// A copy of a block that is read for the other host.
    Copy {
        /// The mover's index.
        mover: usize,
        /// Its purpose.
        ticket: CopyTicket,
        /// What it will have, once that is known.
        copied: Option<Copied>,
    },
}

/// A disk that moves, on this host.
pub struct Mover {
    /// The disk.
    pub volume: VolumeNo,
    /// The protocol's side.
    pub migration: Migration,
    /// Its identity.
    pub id: DiskId,
    driven_us: Micros,
}

impl Mover {
    /// Whether the protocol has something to do now.
    pub fn is_due(&self, now: Micros) -> bool {
        self.migration.needs_time() && self.migration.next_wakeup(self.driven_us) <= now
    }
}

/// See the module.
pub struct Host {
    /// Its core.
    pub core: Core,
    /// Its memory.
    pub memory: ContentMemory,
    /// The content of each cache device, by sector.
    devices: Vec<Vec<Version>>,
    /// By tag.
    purposes: Vec<Option<Purpose>>,
    /// Requests that the core has not accepted yet, in the order of arrival.
    pub waiting: VecDeque<Arrived>,
    /// Requests to disks that are not served here yet.
    pub held: Vec<Arrived>,
    /// Disks that move.
    pub movers: Vec<Mover>,
    /// The disks' volumes, by number.
    volumes: Vec<Option<VolumeNo>>,
    /// Jobs that have ended.
    pub jobs_done: u64,
}

impl Host {
    /// Creates a host with a new pool and no disks.
    ///
    /// # Errors
    /// The pool is refused.
    pub fn new(place: usize, make: &PoolMake) -> Result<Host, SimError> {
        let mut media = make.create(place as u8)?;
        let mut memory: ContentMemory = make.memory();
        let core = make.open(&mut media, &mut memory, 0)?;
        let sectors = (pool::device_bytes(make.segments) / SECTOR_BYTES as u64) as usize;
        Ok(Host {
            core,
            memory,
            devices: (0..make.devices).map(|_| vec![0; sectors]).collect(),
            purposes: Vec::new(),
            waiting: VecDeque::new(),
            held: Vec::new(),
            movers: Vec::new(),
            volumes: Vec::new(),
            jobs_done: 0,
        })
    }

    /// Adds a disk that moves from or to this host.
    pub fn add_mover(
        &mut self,
        now: Micros,
        place: usize,
        volume: VolumeNo,
        config: DiskConfig,
        method: Method,
        timing: Timing,
    ) {
        let mut call = self.core.with(&mut self.memory);
        let id = config.id;
        let mut migration = Migration::new(&mut call, now, host_id(place), 1, config, timing);
        migration.set_method(method);
        self.movers.push(Mover { volume, migration, id, driven_us: now });
    }

    /// Records the number of a volume's disk.
    pub fn note(&mut self, disk: DiskNo, volume: VolumeNo) {
        let at = usize::from(disk.0);
        if at >= self.volumes.len() {
            self.volumes.resize(at + 1, None);
        }
        self.volumes[at] = Some(volume);
    }

    /// The number of a volume's disk.
    pub fn disk(&self, volume: VolumeNo) -> Option<DiskNo> {
        let noted = self.volumes.iter().position(|known| *known == Some(volume)).map(|at| DiskNo(at as u16));
        let mover = || self.movers.iter().find(|mover| mover.volume == volume)?.migration.disk();
        noted.or_else(mover)
    }

    /// The mover of a disk, if it moves.
    pub fn mover_of(&self, disk: DiskNo) -> Option<usize> {
        self.movers.iter().position(|mover| mover.migration.disk() == Some(disk))
    }

    /// The volume of a disk.
    pub fn volume(&self, disk: DiskNo) -> Option<VolumeNo> {
        let noted = self.volumes.get(usize::from(disk.0)).copied().flatten();
        noted.or_else(|| self.mover_of(disk).map(|at| self.movers[at].volume))
    }

    /// Whether a volume is served here. One that does not move always is.
    pub fn serves(&mut self, volume: VolumeNo) -> bool {
        let call = self.core.with(&mut self.memory);
        let mover = self.movers.iter().find(|mover| mover.volume == volume);
        mover.is_none_or(|mover| mover.migration.may_serve(&call))
    }

    /// Calls the protocol for each disk that moves.
    pub fn each_mover(&mut self, mut what: impl FnMut(&mut Migration, &mut Call<'_, ContentMemory>)) {
        for mover in &mut self.movers {
            what(&mut mover.migration, &mut self.core.with(&mut self.memory));
        }
    }

    /// Runs timers that are due.
    pub fn look(&mut self, now: Micros) {
        if self.core.next_wakeup().is_some_and(|due| due <= now) {
            self.core.with(&mut self.memory).tick(now);
        }
        for mover in &mut self.movers {
            if mover.is_due(now) {
                mover.driven_us = now;
                mover.migration.tick(&mut self.core.with(&mut self.memory), now);
            }
        }
    }

    /// Stores a buffer and its purpose.
    pub fn put(&mut self, buffer: Buffer, purpose: Purpose) -> RequestTag {
        let tag = self.memory.put(buffer);
        let at = tag.0 as usize;
        if at >= self.purposes.len() {
            self.purposes.resize_with(at + 1, || None);
        }
        self.purposes[at] = Some(purpose);
        tag
    }

    /// Changes the purpose of a buffer.
    pub fn set_purpose(&mut self, tag: RequestTag, purpose: Purpose) {
        self.purposes[tag.0 as usize] = Some(purpose);
    }

    /// The number of cache devices.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Removes a buffer and returns it with its purpose.
    ///
    /// # Panics
    /// If the tag is not in use.
    pub fn take_back(&mut self, tag: RequestTag) -> (Buffer, Purpose) {
        let purpose = self.purposes[tag.0 as usize].take().expect("a tag in use");
        (self.memory.take_back(tag), purpose)
    }

    /// Whether no request is in flight or waiting.
    pub fn is_idle(&self) -> bool {
        let is_guest = |purpose: &Option<Purpose>| matches!(purpose, Some(Purpose::Guest(..)));
        self.waiting.is_empty() && self.held.is_empty() && !self.purposes.iter().any(is_guest)
    }

    /// Moves data between memory and a device, from a sector on.
    pub fn device_io(&mut self, io: IoId, device: usize, first: usize, writes: bool) {
        let device = &mut self.devices[device];
        if writes {
            let versions = self.memory.gather(self.core.pieces(io));
            device[first..first + versions.len()].copy_from_slice(&versions);
            return;
        }
        let pieces: Vec<Piece> = self.core.pieces(io).collect();
        self.memory.scatter(&pieces, &device[first..]);
    }
}
