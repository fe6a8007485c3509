//! Disks whose cache moves between hosts with their VMs: one [`Migration`] for each, driven by the reactor.
//!
//! The protocol decides who serves a disk. Until this host may, the guest's requests wait: a vhost-user queue is not
//! read, and requests of NBD clients are held. A queue that starts, or an NBD client's first write, says that the guest
//! is here. An NBD client that only reads is no sign of that: a hypervisor reads from a disk long before its guest
//! arrives, so its reads are answered by the host that owns the disk, and are not cached.
//!
//! A host with dirty blocks for another one keeps its `Migration` when the disk is detached, and has it again after a
//! restart. A disk that is detached and clean *stands by*: whichever host asks for it, or reads it for a client, gets
//! it.
//!
//! Invariants
//! - No request of a guest reaches the core before the protocol lets the disk be served.
//! - A guest's write counts as one without a write cache until it is known, under the present ownership, that its write
//!   cache is on.
//! - The guest counts as gone only when no queue is left, and no request of a queue is in flight.

mod clients;
pub(crate) mod copies;
mod mover;
mod observe;
mod output;
mod takeover;
mod write_cache;

use std::any::Any;
use std::sync::Arc;

use haversack_core::{Call, DiskConfig, DiskInfo, JobError, JobId, ManageError, Moved};
use haversack_migrate::{Message, Method, Migration, PaceLimits, ReplicaPolicy, Timing};
use haversack_model::{DiskHandle, DiskId, DiskNo, HostId, Micros};
use haversack_ownership as ownership;

use crate::config::DiskSpec;
use crate::error::{EngineError, Result};
use crate::front::{ClientKind, Front};
use crate::memory::SharedMemory;
use crate::origin::OpenOrigin;
use crate::reactor::Reactor;
use crate::snapshot::Elsewhere;

pub use mover::MoveStatus;
use mover::Mover;
pub use takeover::{RecordedDisk, TakeoverLoss};
pub(crate) use write_cache::OwnedWriteCache;

/// A management job that has ended before it began.
pub(crate) const ENDED_JOB: JobId = JobId(u32::MAX);

/// What a host tells another one about a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostMessage {
    /// A message of the migration protocol.
    Protocol(Message),
    /// A host whose guest has not come yet reads sectors.
    Read {
        /// Names the question.
        question: u64,
        /// First sector.
        sector: u64,
        /// Number of sectors, at most [`MOST_OBSERVED_SECTORS`].
        sectors: u32,
    },
    /// The answer.
    ReadDone {
        /// The question.
        question: u64,
        /// The data.
        data: std::result::Result<Vec<u8>, ReadRefusal>,
    },
    /// A message about flash that one of the hosts lends to the other.
    Lend(haversack_lend::Message),
}

/// Why a host does not read sectors for another one. The question may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadRefusal {
    /// The disk is not served there.
    NotOwner,
    /// The read failed.
    Failed,
    /// The maximum amount that may be read of the disk for one host is already being read.
    Busy,
}

/// What is dropped when a message has been handled.
pub type Receipt = Arc<dyn Any + Send + Sync>;

/// The most sectors that a host reads from another one at a time.
pub const MOST_OBSERVED_SECTORS: u32 = 512;

/// The most bytes of a disk that are read for another host at a time.
const MOST_OBSERVED_BYTES: usize = 1 << 20;

/// Sends a message to a host. It may be lost.
pub type SendToHost = Arc<dyn Fn(HostId, DiskId, HostMessage) + Send + Sync>;

/// Returns how many copies may be sent to a host now.
pub type RoomForCopies = Arc<dyn Fn(HostId) -> usize + Send + Sync>;

/// This host, one of those between which disks move.
#[derive(Clone)]
pub struct HostSettings {
    /// Its identity.
    pub me: HostId,
    /// Greater than any number of an earlier start; the pool may use all numbers up to that of the next start.
    pub incarnation: u64,
    /// The method of migrations that do not name one.
    pub method: Method,
    /// See [`Timing::fetched_a_period`].
    pub fetched_a_period: Option<u32>,
    /// How messages are sent.
    pub send: SendToHost,
    /// How many copies may be sent now: more would wait for the rate limit.
    pub room: RoomForCopies,
}

/// How a disk that can move is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// The host that has, or had, the disk; `None` if no host has had it. It counts only if the pool knows nothing
    /// newer.
    pub from: Option<HostId>,
    /// The host that should keep a replica of the disk's dirty blocks while this host owns it, and what happens without
    /// a replica.
    pub replica: Option<ReplicaPolicy>,
    /// The highest epoch of the disk that is known from elsewhere than the pool's record; 0 if there is none. A disk
    /// that no host has is attached under a higher epoch. A disk that comes from another host is taken only under a
    /// higher epoch.
    pub known_epoch: u64,
}

/// The disks of an arena that can move.
#[derive(Default)]
pub(crate) struct Moving {
    host: Option<HostSettings>,
    movers: Vec<Mover>,
    /// The change count of the front ends' clients when they were last checked.
    seen_changes: u64,
    /// The number of the last read that another host was asked for.
    questions: u64,
}

impl Moving {
    fn place(&self, id: DiskId) -> Option<usize> {
        self.movers.iter().position(|mover| mover.id == id)
    }

    fn place_of(&self, disk: DiskHandle) -> Option<usize> {
        self.movers.iter().position(|mover| mover.handle == Some(disk))
    }

    /// Returns when one of the disks has something to do.
    pub fn next_us(&self, now: Micros) -> Option<Micros> {
        self.movers.iter().filter_map(|mover| mover.next_us(now)).min()
    }
}

impl Reactor {
    /// Makes this host known, and resumes what earlier migrations have left to do.
    pub(crate) fn join_hosts(&mut self, host: HostSettings) {
        self.forget_loans();
        // A late answer to a question of an earlier start of this host must not be mistaken for the answer to a
        // question of this start.
        self.moving.questions = host.incarnation;
        self.moving.host = Some(host);
        let known: Vec<_> =
            self.core.disk_numbers().filter_map(|number| self.core.disk_info(number)).collect();
        // A disk that needs blocks of another host waits until it is attached. A replica is ended even if the disk is
        // never attached.
        let has_work = |moved| !matches!(moved, Moved::No | Moved::Depends { .. });
        for info in known.into_iter().filter(|info| has_work(info.moved) && !info.attached) {
            if self.moving.place(info.id).is_none() {
                let config = DiskConfig::new(info.id, info.sectors);
                self.add_mover(config, None, None);
            }
        }
    }

    fn add_mover(&mut self, config: DiskConfig, handle: Option<DiskHandle>, from: Option<HostId>) {
        let now = self.clock.now_us();
        self.now = now;
        let Some(host) = &mut self.moving.host else { return };
        // A new `Migration` counts its questions from 1 on, so it must not have the number of an earlier one.
        host.incarnation += 1;
        let (me, incarnation, method) = (host.me, host.incarnation, host.method);
        let timing = Timing {
            fetched_a_period: host.fetched_a_period,
            pace: Some(PaceLimits::default()),
            ..Timing::default()
        };
        let id = config.id;
        let mut call = self.core.with(&mut self.memory);
        let mut migration = Migration::new(&mut call, now, me, incarnation, config, timing);
        migration.set_method(method);
        self.moving.movers.retain(|mover| mover.id != id);
        self.moving.movers.push(Mover::new(id, handle, migration, from.unwrap_or(me)));
    }

    /// Attaches a disk that can move. The job ends when the disk is attached or waits for its guest.
    pub(crate) fn attach_moving(
        &mut self,
        spec: DiskSpec,
        moves: Moves,
        origin: OpenOrigin,
    ) -> Result<(DiskHandle, JobId)> {
        if self.moving.host.is_none() {
            return Err(EngineError::DoesNotMove);
        }
        let config = spec.config.clone();
        let number =
            self.core.disk_numbers().find(|no| self.core.disk_info(*no).is_some_and(|d| d.id == config.id));
        let info = number.and_then(|number| self.core.disk_info(number));
        if info.is_some_and(|info| info.busy) || self.disks.is_ending(config.id) {
            return Err(ManageError::Busy.into());
        }
        self.check_not_overtaken(config.id)?;
        // A disk that may still have a replica is attached when the replica has ended, and one that needs blocks of
        // another host when that host has listed them.
        let is_attached_later =
            info.is_some_and(|info| matches!(info.moved, Moved::Depends { .. } | Moved::Replicates { .. }));
        let is_left = info.is_some_and(|info| !info.owned) || is_attached_later;
        let accepts_loss = spec.accept_loss && is_attached_later;
        let (disk, job) = match (info, moves.from) {
            (Some(info), _) if info.owned && info.moved == Moved::No => {
                let epoch = info.epoch.max(spec.epoch);
                self.attach(DiskSpec { epoch, ..spec }, origin)?
            }
            (None, None) => self.attach(spec.above(moves.known_epoch), origin)?,
            (Some(info), _) if is_left && info.moved != Moved::No => {
                let number = number.expect("the core knows the disk");
                if matches!(info.moved, Moved::Away { .. } | Moved::Overtaken { .. })
                    && info.sectors != config.sectors
                {
                    // The disk has grown at its owner.
                    self.core_call(|core, now| core.expect_disk(now, &config))?;
                }
                (self.add_live(number, spec, origin)?, ENDED_JOB)
            }
            (Some(_), None) => self.attach(spec.above(moves.known_epoch), origin)?,
            (_, Some(_)) => {
                let number = self.core_call(|core, now| core.expect_disk(now, &config))?;
                (self.add_live(number, spec, origin)?, ENDED_JOB)
            }
        };
        self.add_mover(config, Some(disk), moves.from);
        let at = self.mover_at(disk)?;
        self.moving.movers[at].migration.has_forgotten(moves.known_epoch);
        if accepts_loss {
            self.moving.movers[at].migration.accept_loss();
        }
        self.set_replica(disk, moves.replica)?;
        Ok((disk, job))
    }

    /// Sets which host should have a replica of a disk's dirty blocks. A replica that is no longer wanted is ended.
    pub(crate) fn set_replica(&mut self, disk: DiskHandle, replica: Option<ReplicaPolicy>) -> Result<()> {
        let at = self.mover_at(disk)?;
        self.now = self.clock.now_us();
        self.with_mover(at, |mover, call, now| {
            mover.migration.set_replica(replica);
            mover.migration.set_write_through(call, now);
        });
        Ok(())
    }

    fn add_live(&mut self, number: DiskNo, spec: DiskSpec, origin: OpenOrigin) -> Result<DiskHandle> {
        if self.disks.is_ending(spec.config.id) || self.disks.at(number).is_some() {
            return Err(ManageError::Busy.into());
        }
        let disk = self.add_disk(number, spec, origin);
        self.origin(disk, |origin, context| origin.begin(context));
        Ok(disk)
    }

    /// Returns where an attached disk is, if another host has it.
    pub(crate) fn elsewhere(&self, disk: DiskHandle, info: &DiskInfo) -> Option<Elsewhere> {
        let me = self.moving.host.as_ref().map(|host| host.me);
        let mover = &self.moving.movers[self.moving.place_of(disk)?];
        let host = Some(mover.owner()).filter(|host| !info.owned && Some(*host) != me)?;
        Some(Elsewhere {
            host,
            needs_blocks: matches!(info.moved, Moved::Peer { .. }),
            is_by_force: matches!(info.moved, Moved::Overtaken { .. }),
        })
    }

    /// Removes the state of a detached disk, unless another host needs its blocks. One that was left clean stands by.
    pub(crate) fn mover_detached(&mut self, disk: DiskHandle) {
        let Some(at) = self.moving.place_of(disk) else { return };
        self.drop_held(at, |_| true);
        self.drop_observations(at);
        let mover = &mut self.moving.movers[at];
        mover.guest_stopped();
        mover.handle = None;
        let is_away = matches!(
            mover.migration.record(),
            ownership::Record::Released { .. } | ownership::Record::Overtaken { .. }
        );
        if !is_away {
            let mover = self.moving.movers.swap_remove(at);
            if let Some(number) = mover.migration.disk() {
                // An error means that the disk is not expected here.
                let _ = self.core_call(|core, now| core.dismiss_disk(now, number));
            }
            self.stand_by(mover.id);
        }
    }

    /// Puts a detached disk that was left clean on stand-by: until it is attached again, it is released to any host
    /// that asks for it. Returns false if the disk was not left clean. **No other host may have taken the disk over by
    /// force.**
    pub(crate) fn stand_by(&mut self, id: DiskId) -> bool {
        if self.moving.place(id).is_some() {
            return true;
        }
        let infos = self.core.disk_numbers().filter_map(|number| self.core.disk_info(number));
        let found = infos.into_iter().find(|info| info.id == id && info.left_clean && !info.busy);
        let Some(info) = found.filter(|_| self.moving.host.is_some()) else { return false };
        self.add_mover(DiskConfig::new(id, info.sectors), None, None);
        true
    }

    /// Ends the stand-by of a detached disk, because the disk is about to be attached. A release that has begun still
    /// completes.
    pub(crate) fn withdraw(&mut self, id: DiskId) {
        self.moving
            .movers
            .retain(|mover| mover.id != id || !mover.stands_by() || mover.migration.is_leaving());
    }

    /// Attaches a disk that does not move.
    pub(crate) fn attach_unmoving(
        &mut self,
        spec: DiskSpec,
        origin: OpenOrigin,
    ) -> Result<(DiskHandle, JobId)> {
        let id = spec.config.id;
        let is_replicated = self
            .core
            .disk_numbers()
            .filter_map(|number| self.core.disk_info(number))
            .any(|info| info.id == id && matches!(info.moved, Moved::Replicates { .. }));
        if is_replicated {
            // Nobody would end the replica, and no flush would succeed.
            return Err(EngineError::HasReplica { disk: spec.name });
        }
        let attached = self.attach(spec, origin)?;
        self.moving.movers.retain(|mover| mover.id != id || !mover.stands_by());
        Ok(attached)
    }

    /// Starts fetching the remaining blocks from the earlier owner now, because the disk is to be detached.
    pub(crate) fn fetch_rest(&mut self, disk: DiskHandle) -> Result<()> {
        let at = self.mover_at(disk)?;
        self.moving.movers[at].migration.fetch_rest();
        Ok(())
    }

    /// Returns whether a disk can move and belongs to another host, according to the record.
    pub(crate) fn is_elsewhere(&self, disk: DiskHandle) -> bool {
        let is_left = |info: haversack_core::DiskInfo| {
            let waits = matches!(info.moved, Moved::Depends { .. } | Moved::Replicates { .. });
            !info.owned || !info.attached && waits
        };
        let info = self.core.disk_info(disk.number()).filter(|info| !info.busy);
        self.moving.place_of(disk).is_some() && info.is_some_and(is_left)
    }

    /// Refuses what would end a disk in the middle of a move.
    pub(crate) fn check_not_moving(&self, disk: DiskHandle) -> Result<()> {
        let Some(at) = self.moving.place_of(disk) else { return Ok(()) };
        let mover = &self.moving.movers[at];
        let depends =
            matches!(mover.migration.record(), ownership::Record::Owner { peers, .. } if !peers.is_empty());
        let info = self.core.disk_info(disk.number());
        let is_attached = info.is_some_and(|info| info.attached);
        if depends && is_attached || !is_attached && info.is_some_and(|info| info.busy) {
            return Err(ManageError::Migrating(mover.id).into());
        }
        Ok(())
    }

    /// Returns whether a client may connect to a disk that is not attached in the core, because it can move.
    pub(crate) fn may_wait(&self, disk: DiskHandle) -> bool {
        self.moving.place_of(disk).is_some() && !self.is_being_detached(disk)
    }

    /// Removes the state of a disk that the pool forgets.
    pub(crate) fn mover_forgotten(&mut self, id: DiskId) {
        self.moving.movers.retain(|mover| mover.id != id || mover.handle.is_some());
    }

    fn with_mover<R>(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Mover, &mut Call<'_, SharedMemory<Front>>, Micros) -> R,
    ) -> R {
        let Reactor { core, memory, moving, now, .. } = self;
        act(&mut moving.movers[at], &mut core.with(memory), *now)
    }

    fn mover_at(&self, disk: DiskHandle) -> Result<usize> {
        self.moving.place_of(disk).ok_or(EngineError::DoesNotMove)
    }

    /// Starts a migration of a disk to another host: from now on, the blocks that the method sends ahead are sent.
    pub(crate) fn start_migration(&mut self, disk: DiskHandle, to: HostId, method: Method) -> Result<()> {
        let at = self.mover_at(disk)?;
        self.now = self.clock.now_us();
        Ok(self.with_mover(at, |mover, call, now| mover.migration.begin(call, now, to, method))?)
    }

    /// Aborts a migration. Returns false if none is in progress: it never began, or the other host has the disk.
    pub(crate) fn stop_migration(&mut self, disk: DiskHandle) -> Result<bool> {
        let at = self.mover_at(disk)?;
        self.now = self.clock.now_us();
        Ok(self.with_mover(at, |mover, call, now| mover.migration.end(call, now)))
    }

    /// Returns what remains to be done of a disk's last migration, if the disk's owner is recorded.
    pub(crate) fn recorded_move(&self, disk: DiskId) -> Option<Moved> {
        let mut infos = self.core.disk_numbers().filter_map(|number| self.core.disk_info(number));
        let info = infos.find(|info| info.id == disk)?;
        (info.owned || info.moved != Moved::No).then_some(info.moved)
    }

    /// Returns the migration state of a disk that can move.
    pub(crate) fn migration_status(&mut self, disk: DiskId) -> Option<MoveStatus> {
        let at = self.moving.place(disk)?;
        Some(self.status_of(at))
    }

    fn status_of(&mut self, at: usize) -> MoveStatus {
        let queues = self.moving.movers[at].handle.map_or(0, |disk| self.queues_of(disk));
        self.with_mover(at, |mover, call, now| mover.status(call, now, queues))
    }

    /// Returns the progress of the disks that are about to move from here.
    pub(crate) fn departures(&mut self) -> Vec<(DiskId, MoveStatus)> {
        self.statuses_of(|mover| mover.migration.sends_to().is_some())
    }

    /// Returns the state of the disks that have, or should have, a replica on another host, and of the disks whose
    /// replica is on this host.
    pub(crate) fn replicas(&mut self) -> Vec<(DiskId, MoveStatus)> {
        self.statuses_of(|mover| mover.migration.replication().is_some() || mover.migration.keeps_replica())
    }

    fn statuses_of(&mut self, is_meant: impl Fn(&Mover) -> bool) -> Vec<(DiskId, MoveStatus)> {
        self.now = self.clock.now_us();
        let movers = self.moving.movers.iter().enumerate().filter(|(_, mover)| is_meant(mover));
        let meant: Vec<(usize, DiskId)> = movers.map(|(at, mover)| (at, mover.id)).collect();
        meant.into_iter().map(|(at, id)| (id, self.status_of(at))).collect()
    }

    /// Handles a message from another host.
    pub(crate) fn host_said(&mut self, from: HostId, disk: DiskId, message: HostMessage) {
        if let HostMessage::Lend(message) = message {
            return self.lend_said(from, disk, message);
        }
        let Some(at) = self.moving.place(disk) else { return };
        self.now = self.clock.now_us();
        match message {
            HostMessage::Lend(_) => {}
            HostMessage::Read { question, sector, sectors } => {
                self.read_for(at, from, question, sector, sectors);
            }
            HostMessage::ReadDone { question, data } => self.observed(at, question, data),
            HostMessage::Protocol(message) => {
                self.copies += usize::from(matches!(message, Message::Copy { .. }));
                if let Message::Ownership(ownership::Message::GoTo { to, grant }) = &message {
                    self.went_to(at, *to, grant.epoch);
                }
                let queues = self.moving.movers[at].handle.map_or(0, |disk| self.queues_of(disk));
                self.with_mover(at, |mover, call, now| {
                    if asks_for_disk(&message) && mover.is_on_its_way_to(from) && queues == 0 {
                        // NBD does not report that the guest has stopped. The guest is on its way to the asking host.
                        mover.guest_stopped();
                    }
                    if mover.is_granted(from, &message) && !mover.guest && !mover.observations.is_empty() {
                        // No other host can answer the reads of this host's clients.
                        mover.guest_runs(call, now);
                    }
                    if matches!(message, Message::Offer { .. }) {
                        mover.from = from;
                    }
                    mover.migration.message(call, now, from, message);
                });
                self.look_at_serving(at);
                if self.moving.movers[at].handle.is_none() {
                    self.drop_movers_without_work();
                }
            }
        }
    }

    pub(crate) fn queues_of(&self, disk: DiskHandle) -> usize {
        self.memory.payloads.count(disk, ClientKind::VhostUser)
    }

    /// Reports the end of a job to the disk that waits for it.
    pub(crate) fn mover_job_done(&mut self, job: JobId, result: std::result::Result<(), JobError>) {
        for at in 0..self.moving.movers.len() {
            self.with_mover(at, |mover, call, now| mover.migration.job_done(call, now, job, result));
        }
    }

    /// Does what is due at this time. Returns true if there was anything.
    pub(crate) fn tick_movers(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.moving.movers.len() {
            if self.moving.movers[at].next_us(self.now).is_some_and(|due| due <= self.now) {
                self.with_mover(at, |mover, call, now| {
                    mover.wake_held(call, now);
                    mover.tick(call, now);
                });
                self.drop_held_of_leaving(at);
                self.repeat_observations(at);
                any = true;
            }
        }
        if any {
            self.drop_movers_without_work();
        }
        any
    }

    /// Drops the state of disks that are not attached, and whose only remaining work was to end a replica.
    fn drop_movers_without_work(&mut self) {
        let Reactor { core, moving, .. } = self;
        moving.movers.retain(|mover| {
            let info = mover.migration.disk().and_then(|disk| core.disk_info(disk));
            let has_work = mover.migration.replication().is_some() || mover.migration.is_leaving();
            !mover.stands_by() || has_work || info.is_some_and(|info| info.left_clean)
        });
    }
}

fn asks_for_disk(message: &Message) -> bool {
    matches!(message, Message::Ownership(ownership::Message::Ask { .. }))
}
