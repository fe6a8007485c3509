//! One disk that can move: its protocol, and the requests that wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use haversack_core::{Call, Memory, Replication};
use haversack_migrate::{Message, Method, Migration, NoReplica, ReplicaStatus, ReplicationState, Status};
use haversack_model::{DiskHandle, DiskId, HostId, Micros};
use haversack_ownership::{self as ownership, Record};

use super::{MOST_OBSERVED_SECTORS, OwnedWriteCache};
use crate::front::Asked;

/// The most copies that are read and sent each time the disk is driven.
const COPIES_AT_A_TIME: usize = 32;

/// The migration state of a disk that can move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveStatus {
    /// What this host has on record.
    pub record: Record,
    /// See [`Status`].
    pub progress: Status,
    /// The host that has, or had, the disk, as far as was known when it was attached.
    pub from: HostId,
    /// The host that it is about to move to.
    pub to: Option<HostId>,
    /// The method of the migration to this host while anything is still on its way here, otherwise of the migration
    /// from here.
    pub method: Method,
    /// How often all cached blocks were listed to find what to send.
    pub passes: u32,
    /// A switchover now would leave little to do.
    pub is_ready: bool,
    /// The guest is here.
    pub is_guest_here: bool,
    /// Its vhost-user queues that run here; `None` if none has run since this process has the disk.
    pub queues: Option<usize>,
    /// How far the replica of its dirty blocks is, if one is wanted.
    pub replication: Option<ReplicationState>,
    /// Why its host has none although it answers, if that is known.
    pub no_replica: Option<NoReplica>,
    /// What that replica has and lacks, once it is being filled.
    pub replicated: Option<Replication>,
    /// The disk writes through because it has no complete replica.
    pub writes_through: bool,
    /// The replica that this host has of another host's dirty blocks.
    pub replica: Option<ReplicaStatus>,
    /// Why the disk cannot be attached or claimed here.
    pub problem: Option<String>,
}

impl MoveStatus {
    /// Returns the host that has the disk, as far as is known here, if it is another one.
    pub fn owner_elsewhere(&self) -> Option<HostId> {
        match self.record {
            Record::Owner { .. } => None,
            Record::Released { to, .. } | Record::Overtaken { by: to, .. } => Some(to),
            Record::Unknown => Some(self.from),
        }
    }
}

/// A client's read that another host is asked to answer.
pub(super) struct Observation {
    pub client: u32,
    pub asked: Asked,
    /// Sectors that have been read, from the first one on: a long read is asked for in parts.
    pub read_sectors: u32,
    /// When the owner was asked last; `None` if it was not.
    pub asked_us: Option<Micros>,
    /// When the owner was asked first; until then, when it last answered another read, or when the client asked.
    pub since_us: Micros,
    /// The last answer was a refusal, so nothing is being read for it.
    pub refused: bool,
}

impl Observation {
    /// Returns the first sector and the number of sectors that are asked for next.
    pub fn part(&self) -> (u64, u32) {
        let left = self.asked.sectors - self.read_sectors;
        (self.asked.sector.0 + u64::from(self.read_sectors), left.min(MOST_OBSERVED_SECTORS))
    }
}

/// See the module documentation.
pub(crate) struct Mover {
    pub id: DiskId,
    /// The attached disk; `None` if it is not attached, but another host may need its blocks.
    pub handle: Option<DiskHandle>,
    pub migration: Migration,
    /// Where the guest was before, as far as is known.
    pub from: HostId,
    /// The host that the disk went to, and its epoch there, as reported by an earlier owner.
    pub went_to: Option<(HostId, u64)>,
    /// The guest is here, as the protocol was told.
    pub guest: bool,
    /// A vhost-user queue has run here.
    pub has_had_queues: bool,
    /// Requests may go to the core.
    pub is_serving: bool,
    /// Requests that wait, by client.
    pub held: Vec<(u32, Asked)>,
    pub(super) observations: BTreeMap<u64, Observation>,
    /// Its guest's write cache, if it is served on a vhost-user socket.
    pub(super) write_cache: Option<Arc<OwnedWriteCache>>,
    /// The record when events were last reported.
    pub told: Record,
    driven_us: Micros,
}

impl Mover {
    pub fn new(id: DiskId, handle: Option<DiskHandle>, migration: Migration, from: HostId) -> Mover {
        let told = migration.record().clone();
        Mover {
            id,
            handle,
            migration,
            from,
            went_to: None,
            guest: false,
            has_had_queues: false,
            is_serving: false,
            held: Vec::new(),
            observations: BTreeMap::new(),
            write_cache: None,
            told,
            driven_us: 0,
        }
    }

    /// Returns when it has something to do on its own, without a message or a call.
    pub fn next_us(&self, now: Micros) -> Option<Micros> {
        let waits = self.migration.needs_time() || !self.held.is_empty() || !self.observations.is_empty();
        waits.then(|| now.max(self.migration.next_wakeup(self.driven_us)))
    }

    /// Whether this host owns the disk, or will because the guest is here: then no other host answers reads.
    pub fn is_guests(&self) -> bool {
        self.is_serving || self.guest || matches!(self.migration.record(), Record::Owner { .. })
    }

    pub fn guest_runs<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        self.guest = true;
        self.from = self.owner();
        self.migration.guest_runs(call, now, self.from);
    }

    /// Whether this host owns the disk and the disk is not attached: then any host that asks for it may have it.
    pub fn stands_by(&self) -> bool {
        self.handle.is_none() && matches!(self.migration.record(), Record::Owner { .. })
    }

    /// Reports that the guest runs here, if requests still wait at the owner after a release was aborted or failed:
    /// they come from a guest on this host.
    pub fn wake_held<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let is_owner = matches!(self.migration.record(), Record::Owner { .. });
        if is_owner && !self.guest && !self.held.is_empty() && !self.migration.is_leaving() {
            self.guest_runs(call, now);
        }
    }

    pub fn guest_stopped(&mut self) {
        if self.guest {
            self.guest = false;
            self.migration.guest_stopped();
        }
    }

    /// Whether the disk is being sent to a host and could be released to it.
    pub fn is_on_its_way_to(&self, host: HostId) -> bool {
        let depends = matches!(self.migration.record(), Record::Owner { peers, .. } if !peers.is_empty());
        self.migration.destination() == Some(host) && !depends
    }

    /// Returns the epoch under which this host owns the disk, if it does.
    pub fn owned_epoch(&self) -> Option<u64> {
        match self.migration.record() {
            Record::Owner { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }

    /// Returns the host that has the disk if this one does not, as far as is known.
    pub fn owner(&self) -> HostId {
        match self.migration.record() {
            Record::Released { to, .. } | Record::Overtaken { by: to, .. } => *to,
            _ => self.from,
        }
    }

    /// Returns the host that is asked to answer reads of clients here: the last known owner of the disk.
    pub fn reads_at(&self) -> HostId {
        let newer = self.went_to.filter(|(_, epoch)| *epoch > self.migration.record().epoch());
        newer.map_or_else(|| self.owner(), |(host, _)| host)
    }

    /// Records where the disk went. Returns false if something newer is known.
    pub fn note_went_to(&mut self, to: HostId, epoch: u64) -> bool {
        let known = self.went_to.map_or(0, |(_, epoch)| epoch).max(self.migration.record().epoch());
        if epoch > known {
            self.went_to = Some((to, epoch));
        }
        epoch > known
    }

    /// Whether the message says that the disk's owner has released the disk to this host.
    pub fn is_granted(&self, from: HostId, message: &Message) -> bool {
        let Message::Ownership(ownership::Message::Granted(grant)) = message else { return false };
        from == self.owner() && grant.epoch > self.migration.record().epoch()
    }

    pub fn tick<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        self.driven_us = now;
        self.migration.tick(call, now);
    }

    /// Starts reads of copies that may be sent, as many as there is room for. Returns true if there were any.
    pub fn send_more(&mut self, now: Micros, room: usize) -> bool {
        self.migration.send_more(now, room.min(COPIES_AT_A_TIME)) > 0
    }

    /// Returns its state, when this many of its vhost-user queues run.
    pub fn status<M: Memory>(&self, call: &Call<'_, M>, now: Micros, queues: usize) -> MoveStatus {
        let disk = self.migration.disk();
        MoveStatus {
            record: self.migration.record().clone(),
            progress: self.migration.status(call),
            from: self.from,
            to: self.migration.sends_to(),
            method: self.migration.method_of_move(),
            passes: self.migration.passes(),
            is_ready: self.migration.is_ready(),
            is_guest_here: self.guest,
            queues: self.has_had_queues.then_some(queues),
            replication: self.migration.replication(),
            no_replica: self.migration.no_replica(),
            replicated: disk.and_then(|disk| call.replication(disk)),
            writes_through: disk
                .and_then(|disk| call.disk_info(disk))
                .is_some_and(|info| info.writes_through),
            replica: self.migration.replica(call, now),
            problem: self.migration.problem().map(ToString::to_string),
        }
    }
}
