//! One disk that may move: its protocol, what is sent ahead of it, and the requests that wait.

use std::collections::BTreeMap;

use haversack_core::{Call, ManageError, Memory};
use haversack_migrate::{Migration, Status};
use haversack_model::{DiskHandle, DiskId, HostId, Micros};
use haversack_ownership::Record;

use super::ahead::Ahead;
use crate::front::Asked;

/// Copies that are read and sent at a time, for each time that the disk is driven.
const COPIES_AT_A_TIME: usize = 32;
/// How often a disk with something to do is driven, and while its blocks are listed.
const EVERY_US: Micros = 10_000;
const LISTING_EVERY_US: Micros = 1_000;

/// How far a disk is that may move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveStatus {
    /// What this host has on record.
    pub record: Record,
    /// See [`Status`].
    pub progress: Status,
    /// The host that has, or had, the disk, as far as was known when it was attached.
    pub from: HostId,
    /// The host that copies are sent to.
    pub to: Option<HostId>,
    /// How often all cached blocks were listed to find what to send.
    pub passes: u32,
    /// A switchover now would leave little to do.
    pub is_ready: bool,
    /// The guest is here.
    pub is_guest_here: bool,
    /// Why the disk cannot be attached or claimed here.
    pub problem: Option<String>,
}

/// A read that another host is asked for.
pub(super) struct Observation {
    pub client: u32,
    pub asked: Asked,
    pub asked_us: Micros,
    pub first_us: Micros,
}

/// See the module.
pub(crate) struct Mover {
    pub id: DiskId,
    /// The attached disk; `None` if it is not attached, but another host may need its blocks.
    pub handle: Option<DiskHandle>,
    pub migration: Migration,
    /// Where the guest was before, as far as is known.
    pub from: HostId,
    /// The guest is here, as the protocol was told.
    pub guest: bool,
    /// Requests may go to the core.
    pub is_serving: bool,
    /// Requests that wait, by client.
    pub held: Vec<(u32, Asked)>,
    pub(super) observations: BTreeMap<u64, Observation>,
    /// The record when events were last reported.
    pub told: Record,
    ahead: Option<Ahead>,
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
            guest: false,
            is_serving: false,
            held: Vec::new(),
            observations: BTreeMap::new(),
            told,
            ahead: None,
            driven_us: 0,
        }
    }

    /// Returns when it has something to do, if not only then when somebody says something.
    pub fn next_us(&self, now: Micros) -> Option<Micros> {
        let ahead = self.ahead.as_ref().and_then(|ahead| ahead.next_us(now));
        let waits = self.migration.needs_time() || !self.held.is_empty() || !self.observations.is_empty();
        let every_us = match &self.ahead {
            Some(ahead) if ahead.is_listing() => LISTING_EVERY_US,
            _ => EVERY_US,
        };
        let due = [ahead, waits.then_some(now)].into_iter().flatten().min();
        due.map(|due| due.max(self.driven_us + every_us))
    }

    pub fn guest_runs<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        self.guest = true;
        self.migration.guest_runs(call, now, self.from);
    }

    /// Requests that wait at the owner, after a release that was called off or failed, are of a guest that is here.
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

    pub fn start_sending<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
    ) -> Result<(), ManageError> {
        if self.migration.destination() == Some(to) {
            return Ok(());
        }
        self.migration.stop_sending(call, now);
        self.migration.start_sending(call, now, to)?;
        self.ahead = Some(Ahead::new());
        Ok(())
    }

    pub fn stop_sending<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        let was_sending = self.migration.destination().is_some();
        self.migration.stop_sending(call, now);
        self.ahead = None;
        was_sending
    }

    pub fn tick<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        self.driven_us = now;
        self.migration.tick(call, now);
        self.go_ahead(call, now);
    }

    /// Finds blocks to send ahead.
    fn go_ahead<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        if self.migration.destination().is_none() {
            self.ahead = None;
        }
        let (Some(ahead), Some(disk)) = (&mut self.ahead, self.migration.disk()) else { return };
        let all_arrived = self.migration.status(call).copies_left == 0;
        let blocks = ahead.go_on(now, all_arrived, |from, each| {
            call.list_cached(disk, from, |block| {
                if !call.is_copy_good(disk, block.block) {
                    each(block);
                }
            })
        });
        self.migration.send_blocks(blocks);
    }

    /// Has copies read that may be on their way, as many as there is room for. Returns true if there were any.
    pub fn send_more(&mut self, room: usize) -> bool {
        self.ahead.is_some() && self.migration.send_more(room.min(COPIES_AT_A_TIME)) > 0
    }

    pub fn status<M: Memory>(&self, call: &Call<'_, M>) -> MoveStatus {
        MoveStatus {
            record: self.migration.record().clone(),
            progress: self.migration.status(call),
            from: self.from,
            to: self.migration.destination(),
            passes: self.ahead.as_ref().map_or(0, Ahead::passes),
            is_ready: self.ahead.as_ref().is_some_and(Ahead::is_ready),
            is_guest_here: self.guest,
            problem: self.migration.problem().map(ToString::to_string),
        }
    }
}
