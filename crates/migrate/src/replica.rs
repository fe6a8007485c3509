//! The other side: this host keeps a replica of another host's dirty blocks, in case that host dies.
//!
//! Invariants
//! - What is confirmed to the owner is durable here.
//! - A copy is stored once, in the round in which it was sent, and only for this start of this host's pool. So no late
//!   message replaces a newer copy, or ends or restarts a newer replica.
//! - The replica is *certain* only while the owner cannot have continued without it: for `lease_us` after this host has
//!   sent the beat that the owner last returned. After a restart of this host it is not certain.

use std::collections::VecDeque;

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Call, Damage, JobError, JobId, Memory, Moved};
use haversack_model::{BlockNo, HostId, Micros};
use haversack_ownership::{Grant, Ownership, Record};

use crate::copies::Receiving;
use crate::message::{Message, Position, ReplicaState, Session};
use crate::migration::{Migration, Task};
use crate::output::Output;

/// After this many leases without a message, an owner is asked whether it still needs its replica.
const SILENT_LEASES: u64 = 2;
/// Beats whose return extends the lease.
const MOST_BEATS: usize = 256;

/// A replica that this host has, for people and for a takeover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// The owner.
    pub of: HostId,
    /// The owner's epoch.
    pub epoch: u64,
    /// The dirty blocks.
    pub blocks: u64,
    /// It had everything flushed when the owner was last heard.
    pub is_complete: bool,
    /// It is complete, and the owner cannot have continued without it.
    pub is_certain: bool,
    /// When the owner was last heard from, if that was since this host started.
    pub heard_us: Option<Micros>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Keeping {
    from: HostId,
    session: Session,
    receiving: Receiving,
    /// Up to where what was received is durable.
    durable: Position,
    /// The seal in progress, and up to where it covers what was received.
    seal: Option<(u64, Position)>,
    /// The last removal that was received, and the last one that is done.
    removal: [u64; 2],
    /// The owner says that the replica is complete.
    completes: bool,
    is_complete: bool,
    /// The last beat, and when the latest ones were sent.
    beat: u64,
    beats: VecDeque<(u64, Micros)>,
    certain_until_us: Option<Micros>,
    heard_us: Micros,
    owes_answer: bool,
}

/// What is being recorded of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recorded {
    Started { from: HostId, epoch: u64, session: Session, at: Position },
    Completed,
    Dropped { by: HostId, session: Session },
}

impl Keeping {
    fn new(from: HostId, session: Session, at: Position, now: Micros) -> Keeping {
        Keeping {
            from,
            session,
            receiving: Receiving::new(from, session, at),
            durable: at,
            seal: None,
            removal: [0; 2],
            completes: false,
            is_complete: false,
            beat: 0,
            beats: VecDeque::new(),
            certain_until_us: None,
            heard_us: now,
            owes_answer: true,
        }
    }

    /// Records that a beat is being sent.
    fn beats(&mut self, now: Micros) {
        self.beat += 1;
        self.beats.push_back((self.beat, now));
        if self.beats.len() > MOST_BEATS {
            self.beats.pop_front();
        }
    }

    /// Handles a beat that the owner has returned.
    fn heard(&mut self, echo: u64, now: Micros, lease_us: Micros) {
        (self.heard_us, self.owes_answer) = (now, true);
        while self.beats.front().is_some_and(|(beat, _)| *beat < echo) {
            self.beats.pop_front();
        }
        if let Some((_, sent_us)) = self.beats.front().filter(|(beat, _)| *beat == echo) {
            self.certain_until_us = self.certain_until_us.max(Some(sent_us + lease_us));
        }
    }
}

impl Migration {
    /// Returns the replica that this host has of the disk.
    pub fn replica<M: Memory>(&self, call: &Call<'_, M>, now: Micros) -> Option<ReplicaStatus> {
        let disk = self.disk?;
        let info = call.disk_info(disk)?;
        let Moved::Replica { of, is_complete, .. } = info.moved else { return None };
        let keeping = self.keeping.as_ref().filter(|keeping| keeping.is_complete);
        let until_us = keeping.and_then(|keeping| keeping.certain_until_us);
        // What is only about to be on record does not outlive a crash.
        let is_recorded = !matches!(self.recorded, Some((_, Recorded::Completed)));
        let is_complete = is_complete && is_recorded && info.damage == Damage::None;
        Some(ReplicaStatus {
            of,
            epoch: info.epoch,
            blocks: call.replica_blocks(disk),
            is_complete,
            is_certain: is_complete && until_us.is_some_and(|until_us| now <= until_us),
            heard_us: self.keeping.as_ref().map(|keeping| keeping.heard_us),
        })
    }

    /// Whether this host may have a replica of the disk.
    pub fn keeps_replica(&self) -> bool {
        self.keeping.is_some()
            || self.disk.is_some() && matches!(self.ownership.record(), Record::Released { .. })
    }

    /// Makes the next takeover use this host's replica, if the replica is complete. The owner must have died, or been
    /// fenced, before it continued without the replica: the replica was certain then, or the operator says so.
    pub fn trust_replica(&mut self) {
        self.trusts_replica = true;
    }

    /// Whether a takeover may use the blocks on this host: they are not a replica, or the replica is complete and
    /// trusted. A certain replica must be trusted, too: only the caller of [`Migration::trust_replica`] has asked the
    /// other hosts whether the disk has moved on.
    pub(crate) fn uses_replica<M: Memory>(&self, call: &Call<'_, M>, now: Micros, trusts: bool) -> bool {
        let trusts = trusts || planted(Bug::UseUncertain);
        self.replica(call, now).is_none_or(|replica| replica.is_complete && trusts)
    }

    /// Whether this host can have a replica of another host's disk.
    fn may_keep(&self) -> bool {
        let is_owner = self.ownership.record().is_owner();
        self.task == Task::Idle && self.recorded.is_none() && !is_owner
    }

    /// Whether a host may ask for a replica here under this epoch. A disk has one owner under an epoch: the one that is
    /// known, or whose replica is here.
    fn may_ask(&self, from: HostId, epoch: u64) -> bool {
        match self.ownership.record() {
            Record::Released { to, grant } => *to == from || epoch > grant.epoch,
            Record::Overtaken { by, epoch: taken } => *by == from || epoch > *taken,
            // What was forgotten counts.
            Record::Unknown => epoch >= self.ownership.known_epoch(),
            Record::Owner { .. } => true,
        }
    }

    /// Whether a host other than `from` was heard from within its lease, and may rely on the replica that is here. A
    /// new owner gets a replica only after the old owner has ended its own, or the old owner's lease has expired.
    fn is_in_use_by_another(&self, from: HostId, now: Micros) -> bool {
        let is_used =
            |keeping: &Keeping| keeping.from != from && now <= keeping.heard_us + self.timing.lease_us;
        self.keeping.as_ref().is_some_and(is_used)
    }

    /// Whether a replica of that host's blocks is here.
    pub(crate) fn has_replica_of<M: Memory>(&self, call: &Call<'_, M>, from: HostId) -> bool {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        info.is_some_and(|info| matches!(info.moved, Moved::Replica { of, .. } if of == from))
    }

    pub(crate) fn answer_unknown(&mut self, to: HostId, session: Session) {
        let state = ReplicaState { session, taker: self.incarnation, ..ReplicaState::default() };
        self.send(to, Message::ReplicaHas(state));
    }

    /// Handles a request of an owner: to start an empty replica, or to begin another round of copies for this one.
    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn replica_opened<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
        taker: Option<u64>,
        epoch: u64,
        sectors: u64,
        at: Position,
    ) {
        if !self.may_keep() || self.guest.is_some() || !self.may_ask(from, epoch) {
            return;
        }
        // If the disk is larger at its owner, this host could not keep all of it.
        if sectors != self.config.sectors || self.is_in_use_by_another(from, now) {
            return;
        }
        if taker != Some(self.incarnation) {
            return self.answer_unknown(from, session);
        }
        match self.keeping.as_mut().filter(|keeping| keeping.from == from) {
            Some(keeping) if keeping.session > session => {}
            Some(keeping) if keeping.session == session => {
                keeping.owes_answer = true;
                if at.round > keeping.receiving.until.round {
                    keeping.receiving.begins(at);
                    (keeping.durable, keeping.seal) = (at, None);
                }
            }
            _ => {
                match call.start_replica(now, &self.config, epoch, from, [session.incarnation, session.count])
                {
                    Ok((disk, job)) => {
                        (self.receiving, self.lending, self.borrowing, self.keeping) =
                            (None, None, None, None);
                        self.trusts_replica = false;
                        self.disk = Some(disk);
                        self.recorded = Some((job, Recorded::Started { from, epoch, session, at }));
                    }
                    Err(error) => self.problem = Some(error),
                }
            }
        }
    }

    /// Returns the replica to which a message belongs. If the message is for an earlier start of this
    /// host, tells the owner that the replica is unknown.
    fn kept(&mut self, from: HostId, session: Session, taker: u64) -> Option<&mut Keeping> {
        let is_known = self.keeping.as_ref().is_some_and(|one| one.from == from && one.session == session);
        if taker != self.incarnation {
            self.answer_unknown(from, session);
            return None;
        }
        self.keeping.as_mut().filter(|_| is_known && self.task == Task::Idle)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn replica_copy_came(
        &mut self,
        now: Micros,
        from: HostId,
        session: Session,
        taker: u64,
        echo: u64,
        at: Position,
        block: BlockNo,
        mask: u8,
        data: Vec<u8>,
    ) {
        let lease_us = self.timing.lease_us;
        let Some(keeping) = self.kept(from, session, taker) else { return };
        keeping.heard(echo, now, lease_us);
        if !keeping.receiving.would_take(at) {
            return;
        }
        if mask == 0 {
            keeping.receiving.takes(at);
        } else {
            self.outputs.push_back(Output::KeepCopy { session, at, block, mask, data });
        }
    }

    /// Whether [`haversack_core::Call::keep_copy`] has stored a copy. If not, the owner sends it again.
    pub fn copy_kept(&mut self, session: Session, at: Position, is_kept: bool) {
        if let Some(keeping) = self.keeping.as_mut().filter(|one| is_kept && one.session == session) {
            keeping.receiving.takes(at);
        }
    }

    /// Removes blocks because the owner says that its origin has them.
    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn replica_blocks_removed<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
        taker: u64,
        echo: u64,
        number: u64,
        blocks: &[BlockNo],
    ) {
        let (lease_us, disk) = (self.timing.lease_us, self.disk);
        let (Some(keeping), Some(disk)) = (self.kept(from, session, taker), disk) else { return };
        keeping.heard(echo, now, lease_us);
        if number == keeping.removal[0] + 1 && call.forget_held(now, disk, blocks).is_ok() {
            keeping.removal[0] = number;
        }
    }

    pub(crate) fn replica_beat(
        &mut self,
        now: Micros,
        from: HostId,
        session: Session,
        taker: u64,
        echo: u64,
        completes: bool,
    ) {
        let lease_us = self.timing.lease_us;
        if let Some(keeping) = self.kept(from, session, taker) {
            keeping.heard(echo, now, lease_us);
            keeping.completes |= completes;
        }
    }

    /// Handles the owner's message that it no longer needs its replica here.
    pub(crate) fn replica_ended<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
        taker: Option<u64>,
    ) {
        if !self.may_keep() {
            return;
        }
        if taker != Some(self.incarnation) {
            return self.answer_unknown(from, session);
        }
        if self.keeping.as_ref().is_some_and(|keeping| keeping.from == from && keeping.session > session) {
            return;
        }
        let Some(disk) = self.disk.filter(|_| self.has_replica_of(call, from)) else {
            return self.send(from, Message::ReplicaDropped { session });
        };
        // An error means that the disk has a job: the owner asks again.
        if let Ok(job) = call.end_replica(now, disk) {
            self.keeping = None;
            self.recorded = Some((job, Recorded::Dropped { by: from, session }));
        }
    }

    /// A job of the disk has ended. Returns whether it was one of the replica's.
    pub(crate) fn replica_is_recorded(
        &mut self,
        now: Micros,
        job: JobId,
        result: Result<(), JobError>,
    ) -> bool {
        let Some((_, recorded)) = self.recorded.take_if(|(mine, _)| *mine == job) else { return false };
        if result.is_err() {
            return true;
        }
        match recorded {
            Recorded::Started { from, epoch, session, at } => {
                self.keeping = Some(Keeping::new(from, session, at, now));
                let grant = Grant { epoch, holders: [self.me].into() };
                self.set_record(Record::Released { to: from, grant });
            }
            Recorded::Completed => {
                if let Some(keeping) = &mut self.keeping {
                    (keeping.is_complete, keeping.owes_answer) = (true, true);
                }
            }
            Recorded::Dropped { by, session } => {
                let epoch = self.ownership.record().epoch();
                let grant = Grant { epoch, holders: [].into() };
                self.set_record(Record::Released { to: by, grant });
                self.send(by, Message::ReplicaDropped { session });
            }
        }
        true
    }

    /// Sets what is on record, and keeps the highest epoch that this host knows.
    fn set_record(&mut self, record: Record) {
        let known = self.ownership.known_epoch();
        self.ownership = Ownership::new(self.me, record);
        self.ownership.has_forgotten(known);
    }

    /// Asks an owner that says nothing whether it still needs the replica that is here: the owner may have given it up
    /// without telling this host.
    pub(crate) fn ask_silent_owner<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        let Some(Moved::Replica { of, .. }) = info.map(|info| info.moved) else {
            self.asked_owner_us = None;
            return;
        };
        let heard_us = self.keeping.as_ref().map(|keeping| keeping.heard_us);
        let asked_us = *self.asked_owner_us.get_or_insert(now);
        if now < asked_us.max(heard_us.unwrap_or(0)) + SILENT_LEASES * self.timing.lease_us {
            return;
        }
        self.asked_owner_us = Some(now);
        match &mut self.keeping {
            Some(keeping) => keeping.owes_answer = true,
            None => self.answer_unknown(of, Session::default()),
        }
    }

    /// Makes what was received durable, and confirms what already is.
    pub(crate) fn go_on_keeping<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let (Some(keeping), Some(disk)) = (&mut self.keeping, self.disk) else { return };
        let Some(info) = call.disk_info(disk).filter(|info| matches!(info.moved, Moved::Replica { .. }))
        else {
            self.keeping = None;
            return;
        };
        if info.damage != Damage::None {
            // Flash has failed here. The owner does without this replica when it gets no answer.
            return;
        }
        loop {
            if let Some((_, until)) = keeping.seal.take_if(|(number, _)| call.sealed(disk) >= *number)
                && until.round == keeping.durable.round
            {
                (keeping.durable, keeping.owes_answer) = (until, true);
            }
            let until = keeping.receiving.until;
            if keeping.seal.is_some() || until.next <= keeping.durable.next {
                break;
            }
            let Ok(number) = call.seal(now, disk) else { break };
            keeping.seal = Some((number, until));
            if call.sealed(disk) < number {
                break;
            }
        }
        if keeping.removal[1] < keeping.removal[0] && call.forgetting(disk) == 0 {
            (keeping.removal[1], keeping.owes_answer) = (keeping.removal[0], true);
        }
        if keeping.completes
            && !keeping.is_complete
            && self.recorded.is_none()
            && let Ok(job) = call.complete_replica(now, disk)
        {
            self.recorded = Some((job, Recorded::Completed));
        }
        if std::mem::take(&mut keeping.owes_answer) {
            keeping.beats(now);
            let Keeping { from, session, durable: until, beat, is_complete, removal, .. } = *keeping;
            let (taker, removed) = (self.incarnation, removal[1]);
            let state = ReplicaState { session, taker, is_known: true, until, removed, beat, is_complete };
            self.send(from, Message::ReplicaHas(state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_US: Micros = 100;

    fn keeping() -> Keeping {
        let session = Session { incarnation: 1, count: 1 };
        Keeping::new(HostId(1), session, Position { round: 1, next: 1 }, 0)
    }

    #[test]
    fn the_lease_counts_from_when_the_beat_was_sent_that_comes_back() {
        let mut keeping = keeping();
        for now in [10, 20, 30] {
            keeping.beats(now);
        }
        keeping.heard(2, 90, LEASE_US);
        assert_eq!(keeping.certain_until_us, Some(120));
        keeping.heard(1, 95, LEASE_US);
        assert_eq!(keeping.certain_until_us, Some(120), "a late message with an earlier beat");
        keeping.heard(2, 119, LEASE_US);
        assert_eq!(keeping.certain_until_us, Some(120), "the same beat again");
        keeping.heard(3, 500, LEASE_US);
        assert_eq!(keeping.certain_until_us, Some(130), "however late it comes back");
    }

    #[test]
    fn a_beat_that_was_not_sent_extends_nothing() {
        let mut keeping = keeping();
        keeping.heard(0, 5, LEASE_US);
        keeping.heard(7, 6, LEASE_US);
        assert_eq!(keeping.certain_until_us, None);
        for now in 0..2 * MOST_BEATS as u64 {
            keeping.beats(now);
        }
        keeping.heard(1, 1_000, LEASE_US);
        assert_eq!(keeping.certain_until_us, None, "it is too long ago to be known");
        assert_eq!(keeping.beats.len(), MOST_BEATS);
    }
}
