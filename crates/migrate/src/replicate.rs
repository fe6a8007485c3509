//! The owner's side of a replica: it streams copies of dirty blocks to another host, and a flush of the guest waits
//! until that host has them on flash.
//!
//! Invariants
//! - A new replica starts empty. The owner tells it that it is complete only when it has everything that any flush so
//!   far promised. Flushes already wait for the replica before that moment.
//! - The owner continues without such a replica only when the replica's host has recorded that it dropped it, or when
//!   that host has, by its own clock, counted it as uncertain: it counts it as certain for at most `lease_us` after the
//!   *beat* that the owner last returned, and the owner waits longer than that after it received that beat.
//! - While the owner has lost dirty blocks, it does not ask a host to drop a replica that was complete, which may have
//!   them. After a restart, an owner that has lost some with a device or with metadata does not end its replica until
//!   the loss is accepted.
//! - A host with an old replica asks the owner when it has heard nothing from the owner for a while. The owner then
//!   tells the host to drop the replica, even if the disk has moved on. An owner that has lost dirty blocks does not.
//! - After a restart, the owner serves the disk only when its replica has ended. Otherwise a guest could read an older
//!   version than the replica has, and a takeover would bring the replica's version back.

use std::collections::BTreeSet;

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Call, Damage, JobError, JobId, ManageError, Memory, Moved, ToReplicate};
use haversack_model::{BlockNo, HostId, Micros};
use haversack_ownership::Record;

use crate::copies::Sending;
use crate::message::{Message, Position, ReplicaState, Session};
use crate::migration::{Migration, Task};
use crate::output::{CopyTicket, Output};

/// Which host keeps a replica of a disk's dirty blocks, and what happens without a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaPolicy {
    /// The host that has the replica.
    pub at: HostId,
    /// What is promised without a replica.
    pub on_loss: OnLoss,
}

/// What a flush promises while there is no complete replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// The data is at the origin: the disk is in mode `wt`.
    WriteThrough,
    /// The data is on this host's flash.
    Continue,
}

/// The progress of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicationState {
    /// There is none: its host does not answer, or cannot have one.
    Missing,
    /// It is being filled. Flushes do not count on it.
    Filling,
    /// It has everything flushed.
    Complete,
    /// It is being given up. Flushes wait until it is certain that it will not be used.
    Ending,
}

/// Why a host that answers has no replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoReplica {
    /// It did not store what it was sent. It is asked again later.
    NotStored,
    /// The owner has lost dirty blocks.
    Losses,
}

/// How long to wait before asking a host again that did not store what it was sent: at first, and at most.
const LEFT_ALONE_US: [Micros; 2] = [15_000_000, 240_000_000];

/// What stands in the way of a replica.
#[derive(Debug, Default)]
pub(crate) struct Hindrance {
    why: Option<NoReplica>,
    /// The host that is not asked again for now, and until when.
    left_alone: Option<(HostId, Micros)>,
    /// For how long it is left alone next time.
    next_us: Option<Micros>,
}

impl Hindrance {
    /// Records that the host did not store what it was sent.
    fn not_stored(&mut self, at: HostId, now: Micros) {
        let [first_us, most_us] = LEFT_ALONE_US;
        let is_same = self.left_alone.is_some_and(|(host, _)| host == at);
        let for_us = self.next_us.filter(|_| is_same).unwrap_or(first_us);
        self.next_us = Some((for_us * 2).min(most_us));
        (self.why, self.left_alone) = (Some(NoReplica::NotStored), Some((at, now + for_us)));
    }

    fn of(&self, at: HostId) -> Option<NoReplica> {
        let is_of_it = self.left_alone.is_some_and(|(host, _)| host == at);
        self.why.filter(|why| *why == NoReplica::Losses || is_of_it)
    }

    fn leaves_alone(&self, at: HostId, now: Micros) -> bool {
        self.left_alone.is_some_and(|(host, until_us)| host == at && now < until_us)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its host is asked whether it answers.
    Probing,
    /// The record that there may be a replica is being written.
    Recording(JobId),
    /// Its host is asked to start an empty one.
    Opening,
    Streaming,
    /// Its host is asked to drop it. From `until_us` on, the replica counts as dropped even without an answer.
    Ending {
        is_dropped: bool,
        until_us: Micros,
    },
}

/// Blocks that are being removed from the replica.
#[derive(Debug)]
struct Removal {
    number: u64,
    blocks: Vec<BlockNo>,
    sent_us: Micros,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Replicating {
    at: HostId,
    stage: Stage,
    session: Session,
    /// The start of the pool of the replica's host, once it is known.
    taker: Option<u64>,
    sending: Sending,
    /// Orders of copies for which there turned out to be nothing to copy.
    nothing: BTreeSet<u64>,
    removal: Option<Removal>,
    removals: u64,
    to_remove: Vec<BlockNo>,
    /// The last beat of the replica's host, and when it came.
    beat: u64,
    beat_us: Micros,
    heard_us: Micros,
    told_us: Option<Micros>,
    /// Since when the replica has not kept up.
    behind_us: Option<Micros>,
    /// The replica is complete when it has this change.
    complete_from: Option<u64>,
    is_complete: bool,
}

impl Replicating {
    pub fn new(at: HostId, session: Session, now: Micros) -> Replicating {
        Replicating {
            at,
            stage: Stage::Probing,
            session,
            taker: None,
            sending: Sending::new(at, session, None, now),
            nothing: BTreeSet::new(),
            removal: None,
            removals: 0,
            to_remove: Vec::new(),
            beat: 0,
            beat_us: now,
            heard_us: now,
            told_us: None,
            behind_us: None,
            complete_from: None,
            is_complete: false,
        }
    }

    /// Returns the state after a restart of an owner that may have a replica: the replica must end.
    pub fn restarted(at: HostId, session: Session, now: Micros, lease_us: Micros) -> Replicating {
        let stage = Stage::Ending { is_dropped: false, until_us: now + wait_us(lease_us) };
        Replicating { stage, ..Replicating::new(at, session, now) }
    }

    fn is_due(&mut self, now: Micros, every_us: Micros) -> bool {
        let is_due = self.told_us.is_none_or(|told_us| now >= told_us + every_us);
        if is_due {
            self.told_us = Some(now);
        }
        is_due
    }
}

/// Returns how long the owner waits until a host that hears nothing from it counts its replica as uncertain. The clocks
/// of the two hosts may run at rates that differ by an eighth.
fn wait_us(lease_us: Micros) -> Micros {
    lease_us + lease_us / 8 + 1
}

impl Migration {
    /// Sets which host should have a replica of the disk's dirty blocks, if any. [`Migration::set_write_through`] is to
    /// be called afterwards.
    pub fn set_replica(&mut self, policy: Option<ReplicaPolicy>) {
        self.replica = policy;
    }

    /// Returns the progress of the replica; `None` if none is wanted and there is none.
    pub fn replication(&self) -> Option<ReplicationState> {
        let Some(replicating) = &self.replicating else {
            return self.replica.map(|_| ReplicationState::Missing);
        };
        Some(match replicating.stage {
            Stage::Probing | Stage::Recording(_) => ReplicationState::Missing,
            Stage::Streaming if replicating.is_complete => ReplicationState::Complete,
            Stage::Opening | Stage::Streaming => ReplicationState::Filling,
            Stage::Ending { .. } => ReplicationState::Ending,
        })
    }

    /// Returns the host of the replica that is there, is being begun or is being given up.
    pub fn replica_host(&self) -> Option<HostId> {
        self.replicating.as_ref().map(|one| one.at)
    }

    /// Returns why there is no replica although its host answers, if that is known. With [`NoReplica::Losses`], an old
    /// one may be there, which stays until the loss is accepted.
    pub fn no_replica(&self) -> Option<NoReplica> {
        if self.awaits_end_of_replica() && matches!(self.problem, Some(ManageError::LostHere(_))) {
            return Some(NoReplica::Losses);
        }
        let is_missing = self.replication() == Some(ReplicationState::Missing);
        self.hindrance.of(self.replica?.at).filter(|_| is_missing)
    }

    /// The operator accepts that dirty blocks are lost here, and does not want the replica that may have them. What
    /// another host still has for this one is not lost. It holds until the disk is attached.
    pub fn accept_loss(&mut self) {
        self.accepts_loss = true;
    }

    /// Whether a replica must end before the disk may be served, released or attached.
    pub(crate) fn awaits_end_of_replica(&self) -> bool {
        let ends = |one: &Replicating| matches!(one.stage, Stage::Ending { .. });
        self.replicating.as_ref().is_some_and(ends)
    }

    /// Makes the disk write through while its policy requires it: when there is no complete replica, and the disk is
    /// not about to move.
    pub fn set_write_through<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(disk) = self.disk.filter(|_| self.ownership.record().is_owner()) else { return };
        let wants = self.replica.is_some_and(|policy| policy.on_loss == OnLoss::WriteThrough);
        let is_complete = self.replication() == Some(ReplicationState::Complete);
        call.write_through(now, disk, wants && !is_complete && self.destination.is_none());
    }

    /// Ends the replica, before the disk leaves this host or is detached. Returns whether the replica has ended;
    /// otherwise the call must be repeated.
    pub fn end_replica<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        let Some(replicating) = &self.replicating else { return true };
        match replicating.stage {
            Stage::Probing => {
                self.replicating = None;
                true
            }
            Stage::Recording(_) | Stage::Ending { .. } => false,
            Stage::Opening | Stage::Streaming => {
                self.give_up_replica(call, now);
                false
            }
        }
    }

    /// Gives up the replica. If it was never told that it is complete, it is never used.
    fn give_up_replica<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let lease_us = self.timing.lease_us;
        let (Some(replicating), Some(disk)) = (&mut self.replicating, self.disk) else { return };
        let guards = call.replication(disk).is_some_and(|one| one.guards);
        replicating.told_us = None;
        if guards {
            let until_us = replicating.beat_us + wait_us(lease_us);
            replicating.stage = Stage::Ending { is_dropped: false, until_us };
            return;
        }
        // The other host can use the replica's space for something else.
        let (at, session, taker) = (replicating.at, replicating.session, replicating.taker);
        self.replicating = None;
        call.end_replication(now, disk);
        self.send(at, Message::ReplicaEnd { session, taker });
    }

    /// Whether the disk is on its way to another host. Then it has no replica: that host gets its dirty blocks.
    fn is_leaving_here(&self) -> bool {
        self.destination.is_some() || self.asker.is_some() || self.guest.is_none()
    }

    /// A job of the disk has ended. Returns whether it was one of the replica's.
    pub(crate) fn replica_recorded<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        job: JobId,
        result: Result<(), JobError>,
    ) -> bool {
        let Some(replicating) = self.replicating.as_mut().filter(|one| one.stage == Stage::Recording(job))
        else {
            return false;
        };
        replicating.stage = Stage::Opening;
        (replicating.told_us, replicating.heard_us) = (None, now);
        let is_tracked = self.disk.is_some_and(|disk| result.is_ok() && call.replicate(now, disk).is_ok());
        if !is_tracked {
            self.give_up_replica(call, now);
        }
        true
    }

    /// Continues the owner's work for its replica.
    pub(crate) fn tick_replicating<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Record::Owner { epoch, peers } = self.ownership.record().clone() else {
            (self.replicating, self.accepts_loss) = (None, false);
            return;
        };
        if self.replica.is_some() || self.replicating.is_some() {
            self.set_write_through(call, now);
        }
        if self.replicating.is_none()
            && let Some(policy) = self.replica.filter(|_| peers.is_empty() && !self.is_leaving_here())
            && self.is_attached_here(call)
            && !self.hindrance.leaves_alone(policy.at, now)
        {
            self.sessions += 1;
            let session = Session { incarnation: self.incarnation, count: self.sessions };
            self.replicating = Some(Replicating::new(policy.at, session, now));
        }
        let (repeat_us, lease_us) = (self.timing.repeat_us, self.timing.lease_us);
        let stays = self.destination.is_none();
        let is_wanted = |one: &Replicating| stays && self.replica.is_some_and(|policy| policy.at == one.at);
        let Some(replicating) = &mut self.replicating else { return };
        let (at, session) = (replicating.at, replicating.session);
        match replicating.stage {
            Stage::Recording(_) => {}
            Stage::Probing | Stage::Opening => {
                let is_stale = replicating.stage == Stage::Opening && now > replicating.heard_us + lease_us;
                if is_stale || !is_wanted(replicating) {
                    self.give_up_replica(call, now);
                } else if replicating.is_due(now, repeat_us) {
                    let taker = replicating.taker.filter(|_| replicating.stage == Stage::Opening);
                    let from = replicating.sending.at;
                    let sectors = self.sectors(call);
                    self.send(at, Message::ReplicaOpen { session, taker, epoch, sectors, from });
                }
            }
            Stage::Streaming => {
                let is_late = |since: Micros| now > since + lease_us;
                let is_behind = replicating.behind_us.is_some_and(is_late);
                let answers = now <= replicating.heard_us + lease_us / 2;
                let is_stuck =
                    self.disk.and_then(|disk| call.replication(disk)).is_some_and(|one| one.is_stuck);
                // If no copy is on its way, the cause is this host: it could not send any.
                let is_awaited = !replicating.sending.in_flight.is_empty();
                if is_behind && answers && is_awaited && !is_stuck {
                    self.hindrance.not_stored(at, now);
                }
                if is_behind || is_stuck || is_late(replicating.heard_us) || !is_wanted(replicating) {
                    self.give_up_replica(call, now);
                } else {
                    self.keep_streaming(call, now);
                }
            }
            Stage::Ending { is_dropped, until_us } => {
                // Until the promise holds, the replica may have the only other copy of flushed data.
                if self.is_kept_for_losses(call) || !self.is_promise_kept(call, now) {
                    return;
                }
                let may_drop = self.accepts_loss || !self.has_losses(call);
                let Some(replicating) = &mut self.replicating else { return };
                if is_dropped || now >= until_us {
                    self.end_without_replica(call, now);
                } else if may_drop && replicating.is_due(now, repeat_us) {
                    let taker = replicating.taker;
                    self.send(at, Message::ReplicaEnd { session, taker });
                }
            }
        }
    }

    fn sectors<M: Memory>(&self, call: &Call<'_, M>) -> u64 {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        info.map_or(self.config.sectors, |info| info.sectors)
    }

    /// Whether dirty data of the disk is lost here, as far as is known.
    pub(crate) fn has_losses<M: Memory>(&self, call: &Call<'_, M>) -> bool {
        self.disk.is_some_and(|disk| call.has_losses(disk))
    }

    /// Whether the replica stays because it may have dirty blocks that this host has lost: the disk is not attached,
    /// and nobody has accepted the loss.
    fn is_kept_for_losses<M: Memory>(&mut self, call: &Call<'_, M>) -> bool {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        let is_damaged = info.is_some_and(|info| !info.attached && info.damage != Damage::None);
        let stays = is_damaged && !self.accepts_loss;
        if stays {
            self.problem = Some(ManageError::LostHere(self.config.id));
        }
        stays
    }

    /// Whether the promise of the policy for a disk without a replica holds. If not, continues the work for it. Lost
    /// blocks cannot reach the origin, so this does not wait for them.
    fn is_promise_kept<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        let writes_through = self.replica.is_some_and(|policy| policy.on_loss == OnLoss::WriteThrough);
        let is_here = self.is_attached_here(call) && !self.is_leaving_here();
        let Some(disk) = self.disk.filter(|_| writes_through && is_here) else { return true };
        let is_through = call.disk_info(disk).is_some_and(|info| info.writes_through);
        let is_clean =
            call.disk_usage(disk).is_some_and(|usage| usage.dirty_blocks == 0) || call.only_lost_left(disk);
        if is_through && !is_clean && self.cleaning.is_none() {
            // An error means that the disk has a job: this is repeated.
            self.cleaning = call.clean(now, disk).ok();
        }
        is_through && is_clean
    }

    /// Whether the replica's host may have been asked to drop it.
    pub fn may_have_dropped_replica(&self) -> bool {
        let asked = |one: &Replicating| matches!(one.stage, Stage::Ending { .. }) && one.told_us.is_some();
        self.replicating.as_ref().is_some_and(asked)
    }

    fn end_without_replica<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(disk) = self.disk else { return };
        self.replicating = None;
        call.end_replication(now, disk);
        self.want_disk(call, now);
        if self.replica.is_some() && self.task == Task::Idle && !self.is_attached_here(call) {
            // This happens after a restart, with a disk that the driver has attached. Its dirty blocks are cleaned
            // although no guest has arrived yet.
            self.attach_again(call, now);
        }
    }

    /// Repeats what was not answered, tells the replica that it is complete when it is, and keeps its lease.
    fn keep_streaming<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let (repeat_us, lease_us) = (self.timing.repeat_us, self.timing.lease_us);
        let most_left = self.timing.copies_in_flight;
        let sectors = self.sectors(call);
        let (Some(replicating), Some(disk)) = (&mut self.replicating, self.disk) else { return };
        let Some(taker) = replicating.taker else { return };
        let (at, session, echo) = (replicating.at, replicating.session, replicating.beat);
        if replicating.sending.is_overdue(now, repeat_us) {
            let lost = replicating.sending.start_over(now);
            replicating.nothing.clear();
            lost.iter().for_each(|block| call.not_sent(disk, *block));
            let (from, epoch) = (replicating.sending.at, self.ownership.record().epoch());
            self.outputs.push_back(Output::Send(
                at,
                Message::ReplicaOpen { session, taker: Some(taker), epoch, sectors, from },
            ));
        }
        if let Some(removal) = &mut replicating.removal
            && now >= removal.sent_us + repeat_us
        {
            removal.sent_us = now;
            let (number, blocks) = (removal.number, removal.blocks.clone());
            let message = Message::ReplicaRemove { session, taker, echo, number, blocks };
            self.outputs.push_back(Output::Send(at, message));
        }
        let Some(state) = call.replication(disk) else { return };
        if replicating.complete_from.is_none() && state.lacking <= most_left {
            call.guard(disk);
            replicating.complete_from = Some(state.changes);
        }
        let completes = replicating.complete_from.is_some_and(|change| call.has_replicated(disk, change))
            && !replicating.is_complete;
        let every_us = if completes { repeat_us } else { (lease_us / 8).max(1) };
        if replicating.is_due(now, every_us) {
            let completes = completes || replicating.is_complete;
            self.outputs
                .push_back(Output::Send(at, Message::ReplicaBeat { session, taker, echo, completes }));
        }
        if state.lacking == 0 {
            replicating.behind_us = None;
        } else if replicating.behind_us.is_none() {
            replicating.behind_us = Some(now);
        }
    }

    /// Sends the replica what it lacks, as much as may be on its way. Returns whether there was anything.
    pub(crate) fn send_to_replica<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        let (limit, most_removed) = (self.timing.copies_in_flight, self.timing.blocks_a_message);
        let (Some(replicating), Some(disk)) = (&mut self.replicating, self.disk) else { return false };
        let Some(taker) = replicating.taker.filter(|_| replicating.stage == Stage::Streaming) else {
            return false;
        };
        let (to, session, echo) = (replicating.at, replicating.session, replicating.beat);
        let before = self.outputs.len();
        while replicating.sending.is_open
            && replicating.sending.in_flight.len() < limit
            && replicating.to_remove.len() < most_removed
        {
            match call.next_to_replicate(now, disk) {
                None => break,
                Some(ToReplicate::Removal(block)) => replicating.to_remove.push(block),
                Some(ToReplicate::Copy(block)) => {
                    let at = replicating.sending.at;
                    replicating.sending.sent(block, now);
                    let ticket = CopyTicket::Replica { to, session, taker, at, block };
                    self.outputs.push_back(Output::ReadCopy(ticket));
                }
            }
        }
        if replicating.removal.is_none() && !replicating.to_remove.is_empty() {
            replicating.removals += 1;
            let (number, blocks) = (replicating.removals, std::mem::take(&mut replicating.to_remove));
            replicating.removal = Some(Removal { number, blocks: blocks.clone(), sent_us: now });
            let message = Message::ReplicaRemove { session, taker, echo, number, blocks };
            self.outputs.push_back(Output::Send(to, message));
        }
        self.outputs.len() > before
    }

    /// Sends a copy for the replica that was read; `None` if there was nothing to copy, or it could not be read.
    pub(crate) fn send_replica_copy(&mut self, ticket: CopyTicket, mask: u8, data: Vec<u8>) {
        let CopyTicket::Replica { to, session, taker, at, block } = ticket else { return };
        let Some(replicating) = self.replicating.as_mut().filter(|one| one.session == session) else {
            return;
        };
        if mask == 0 && at.round == replicating.sending.at.round {
            // The block is checked again when this copy is acknowledged.
            replicating.nothing.insert(at.next);
        }
        let echo = replicating.beat;
        if replicating.stage == Stage::Streaming {
            self.send(to, Message::ReplicaCopy { session, taker, echo, at, block, mask, data });
        }
    }

    /// Handles a message of the replica's host about what the replica has.
    pub(crate) fn heard_of_replica<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        state: ReplicaState,
    ) {
        let Some(disk) = self.disk else { return };
        let is_sent_there = |sending: &Sending| sending.to == from && sending.session == state.session;
        if self.replicating.is_none() && self.sending.as_ref().is_some_and(is_sent_there) {
            // The destination still has an earlier replica, which must end before the move's copies are
            // accepted.
            let taker = Some(state.taker);
            return self.send(from, Message::ReplicaEnd { session: state.session, taker });
        }
        let Some(replicating) = self.replicating.as_mut().filter(|one| one.at == from) else {
            return self.end_left_replica(call, from, &state);
        };
        if state.session != replicating.session {
            return;
        }
        let is_other = replicating.taker.is_some_and(|taker| taker != state.taker);
        match replicating.stage {
            Stage::Recording(_) => {}
            Stage::Ending { .. } => {
                if replicating.taker.replace(state.taker) != Some(state.taker) {
                    replicating.told_us = None;
                }
            }
            Stage::Probing => {
                replicating.taker = Some(state.taker);
                match call.start_replication(now, disk, from) {
                    Ok(job) => {
                        replicating.stage = Stage::Recording(job);
                        self.hindrance.why = self.hindrance.why.filter(|why| *why != NoReplica::Losses);
                    }
                    Err(ManageError::Lost(_)) => self.hindrance.why = Some(NoReplica::Losses),
                    // The disk has a job, or cannot have a replica now.
                    Err(_) => {}
                }
            }
            Stage::Opening | Stage::Streaming if is_other || !state.is_known => {
                // The replica's earlier contents can no longer be used.
                if is_other || replicating.stage == Stage::Streaming {
                    replicating.taker = Some(state.taker);
                    self.give_up_replica(call, now);
                }
            }
            Stage::Opening | Stage::Streaming => self.replica_has(call, now, &state),
        }
    }

    /// Asks another host to drop a replica that this host has given up without notice. The replica is kept if it
    /// may have blocks that are lost here. It is dropped even if the disk has moved on: the disk leaves a host only
    /// when that host's current replica has ended.
    fn end_left_replica<M: Memory>(&mut self, call: &Call<'_, M>, from: HostId, state: &ReplicaState) {
        let record = self.ownership.record();
        let is_over = record.is_owner() || matches!(record, Record::Released { .. });
        if is_over && !self.has_losses(call) && !planted(Bug::LeaveReplica) {
            let (session, taker) = (state.session, Some(state.taker));
            self.send(from, Message::ReplicaEnd { session, taker });
        }
    }

    fn replica_has<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros, state: &ReplicaState) {
        let (Some(replicating), Some(disk)) = (&mut self.replicating, self.disk) else { return };
        replicating.stage = Stage::Streaming;
        replicating.heard_us = now;
        if state.beat > replicating.beat {
            (replicating.beat, replicating.beat_us) = (state.beat, now);
        }
        if state.is_complete && replicating.complete_from.is_some() {
            replicating.is_complete = true;
            self.hindrance = Hindrance::default();
        }
        let Position { round, next } = state.until;
        let sending = &mut replicating.sending;
        let (mut arrived, mut removed) = (Vec::new(), Vec::new());
        if round == sending.at.round && next <= sending.at.next {
            for (order, (block, _)) in sending.in_flight.range(..next) {
                if replicating.nothing.remove(order) {
                    call.not_sent(disk, *block);
                } else {
                    arrived.push(*block);
                }
            }
        }
        sending.acknowledged(state.until, now, self.is_busy);
        if let Some(removal) = replicating.removal.take_if(|removal| removal.number <= state.removed) {
            // A removal needs no space on the other host, so it does not show that copies are stored there.
            if sending.in_flight.is_empty() {
                replicating.behind_us = None;
            }
            removed = removal.blocks;
        }
        if !arrived.is_empty() {
            replicating.behind_us = None;
        }
        arrived.extend(removed);
        if !arrived.is_empty() {
            call.replicated(now, disk, &arrived);
        }
    }

    /// Handles the message that the replica's host has dropped the replica, so that no crash there brings it back.
    pub(crate) fn replica_dropped<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
    ) {
        let mine = self.replicating.as_mut().filter(|one| one.at == from && one.session == session);
        let Some(Replicating { stage: Stage::Ending { is_dropped, .. }, .. }) = mine else { return };
        *is_dropped = true;
        self.tick_replicating(call, now);
    }

    /// Called after a start: if this host may have a replica on another host from before, that replica must end first.
    pub(crate) fn ends_replica_of_before(&mut self, moved: Moved, now: Micros) {
        if let Moved::Replicates { at } = moved {
            self.sessions += 1;
            let session = Session { incarnation: self.incarnation, count: self.sessions };
            self.replicating = Some(Replicating::restarted(at, session, now, self.timing.lease_us));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_stores_nothing_is_left_alone_for_longer_each_time() {
        let (host, mut hindrance) = (HostId(2), Hindrance::default());
        let mut now = 0;
        for seconds in [15, 30, 60, 120, 240, 240] {
            hindrance.not_stored(host, now);
            let until_us = now + seconds * 1_000_000;
            assert!(hindrance.leaves_alone(host, until_us - 1) && !hindrance.leaves_alone(host, until_us));
            now = until_us;
        }
        assert_eq!(hindrance.of(host), Some(NoReplica::NotStored));
        assert!(!hindrance.leaves_alone(HostId(3), 0) && hindrance.of(HostId(3)).is_none());
    }
}
