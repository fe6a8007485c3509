//! Reads of NBD clients that open a disk before its guest has arrived: the host that owns the disk answers them.
//!
//! Invariants
//! - For each host, at most [`MOST_OBSERVED_BYTES`] of a disk are being read, regardless of how many requests the host
//!   sends, and each question is read only once at a time. So reads of a disk whose origin is unreachable do not block
//!   reads of other disks.
//! - A host keeps no more than that in open questions about a disk. Refused questions do not count, so that other
//!   questions need not wait for them.

use haversack_core::{Op, Request, RequestError};
use haversack_migrate::Message;
use haversack_model::{DiskId, HostId, Micros, SECTOR_BYTES, SectorNo};
use haversack_ownership::{self as ownership, Record};

use super::copies::Purpose;
use super::mover::Observation;
use super::{HostMessage, MOST_OBSERVED_BYTES, MOST_OBSERVED_SECTORS, ReadRefusal};
use crate::front::Asked;
use crate::reactor::Reactor;

/// A question is repeated after this time.
const REPEAT_US: Micros = 1_000_000;
/// A read fails if no host answers it for this long. While it waits for its turn, answers to other reads restart the
/// time.
const PATIENCE_US: Micros = 20_000_000;

impl Reactor {
    /// Asks the owner to read for a client.
    pub(super) fn observe(&mut self, at: usize, client: u32, asked: Asked) {
        self.ask_from(at, client, asked, 0);
        self.ask_more(at);
    }

    /// Adds a question for the rest of a read after `read_sectors` sectors. Each part has its own number, so that a
    /// repeated answer is not mistaken for the answer to another part.
    fn ask_from(&mut self, at: usize, client: u32, asked: Asked, read_sectors: u32) {
        self.moving.questions += 1;
        let (question, since_us) = (self.moving.questions, self.now);
        let observation =
            Observation { client, asked, read_sectors, asked_us: None, since_us, refused: false };
        self.moving.movers[at].observations.insert(question, observation);
    }

    /// Asks what has not been asked yet, in order, as much as the owner reads for this host at a time.
    fn ask_more(&mut self, at: usize) {
        let mover = &mut self.moving.movers[at];
        let (mut bytes, mut ask) = (0, Vec::new());
        for (question, observation) in mover.observations.iter_mut().filter(|(_, its)| !its.refused) {
            bytes += observation.part().1 as usize * SECTOR_BYTES;
            if bytes > MOST_OBSERVED_BYTES {
                break;
            }
            if observation.asked_us.is_none() {
                (observation.asked_us, observation.since_us) = (Some(self.now), self.now);
                ask.push(*question);
            }
        }
        ask.into_iter().for_each(|question| self.ask_owner(at, question));
    }

    fn ask_owner(&self, at: usize, question: u64) {
        let mover = &self.moving.movers[at];
        if let Some(observation) = mover.observations.get(&question) {
            let (sector, sectors) = observation.part();
            self.send_to(mover.reads_at(), mover.id, HostMessage::Read { question, sector, sectors });
        }
    }

    /// Handles a report from an earlier owner of where the disk went: sends the open questions to that host
    /// immediately.
    pub(super) fn went_to(&mut self, at: usize, to: HostId, epoch: u64) {
        if self.moving.movers[at].note_went_to(to, epoch) {
            for observation in self.moving.movers[at].observations.values_mut() {
                (observation.asked_us, observation.refused) = (None, false);
            }
            self.ask_more(at);
        }
    }

    /// Submits reads that wait for the owner's answer again, because this host owns the disk by now, or is about to.
    pub(super) fn end_observations(&mut self, at: usize) {
        for (_, observation) in std::mem::take(&mut self.moving.movers[at].observations) {
            self.ask_again(observation.client, observation.asked);
        }
    }

    /// Repeats questions, and gives up those that are not answered.
    pub(super) fn repeat_observations(&mut self, at: usize) {
        if self.moving.movers[at].is_guests() {
            return self.end_observations(at);
        }
        let now = self.now;
        let all: Vec<u64> = self.moving.movers[at].observations.keys().copied().collect();
        for question in all {
            let Some(observation) = self.moving.movers[at].observations.get_mut(&question) else { continue };
            if now >= observation.since_us + PATIENCE_US {
                self.give_up(at, question);
            } else if observation.asked_us.is_some_and(|asked_us| now >= asked_us + REPEAT_US) {
                observation.asked_us = Some(now);
                self.ask_owner(at, question);
            }
        }
        self.ask_more(at);
    }

    /// Fails a read that no host has answered.
    fn give_up(&mut self, at: usize, question: u64) {
        if let Some(Observation { client, asked, .. }) = self.moving.movers[at].observations.remove(&question)
        {
            self.answer(client, asked, Err(RequestError::NotOwner));
        }
    }

    /// Fails all reads that wait for the owner's answer.
    pub(super) fn drop_observations(&mut self, at: usize) {
        let all: Vec<u64> = self.moving.movers[at].observations.keys().copied().collect();
        all.into_iter().for_each(|question| self.give_up(at, question));
    }

    /// Handles the owner's answer. After a refusal, the question is repeated later: this host or another one may have
    /// the data then.
    pub(super) fn observed(&mut self, at: usize, question: u64, data: Result<Vec<u8>, ReadRefusal>) {
        let mover = &mut self.moving.movers[at];
        let is_guests = mover.is_guests();
        let Some(observation) = mover.observations.get_mut(&question) else { return };
        let (client, asked, read_sectors) = (observation.client, observation.asked, observation.read_sectors);
        let (_, sectors) = observation.part();
        if is_guests {
            // What the other host has read may be old.
            mover.observations.remove(&question);
            return self.ask_again(client, asked);
        }
        let Some(data) = data.ok().filter(|data| data.len() == sectors as usize * SECTOR_BYTES) else {
            observation.refused = true;
            return self.ask_more(at);
        };
        mover.observations.remove(&question);
        let waiting = mover.observations.values_mut().filter(|its| its.asked_us.is_none());
        waiting.for_each(|its| its.since_us = self.now);
        if let Some(payloads) = self.memory.payloads.get_mut(client) {
            payloads.give(asked.slot, read_sectors as usize * SECTOR_BYTES, &data);
        }
        if read_sectors + sectors == asked.sectors {
            self.answer(client, asked, Ok(()));
        } else {
            self.ask_from(at, client, asked, read_sectors + sectors);
        }
        self.ask_more(at);
    }

    /// Reads sectors for a host whose guest has not arrived yet. If the disk was released to that host, but the host
    /// has lost this fact in a crash, the grant is sent again. If the disk was released to a third host, the asking
    /// host is told which. A disk that is not attached here cannot be read, so it is released to the asking host. At
    /// most [`MOST_OBSERVED_BYTES`] of a disk are read for a host at a time.
    pub(super) fn read_for(&mut self, at: usize, from: HostId, question: u64, sector: u64, sectors: u32) {
        let mover = &self.moving.movers[at];
        let (id, number) = (mover.id, mover.migration.disk());
        let is_owner = matches!(mover.migration.record(), Record::Owner { .. }) && mover.handle.is_some();
        if let Record::Released { to, grant } = mover.migration.record() {
            let (to, grant) = (*to, grant.clone());
            let told = if to == from {
                ownership::Message::Granted(grant)
            } else {
                ownership::Message::GoTo { to, grant }
            };
            self.send_to(from, id, HostMessage::Protocol(Message::Ownership(told)));
        }
        if self.moving.movers[at].stands_by() {
            let ask = Message::Ownership(ownership::Message::Ask { granted: None });
            self.with_mover(at, |mover, call, now| mover.migration.message(call, now, from, ask));
        }
        let Some(disk) = number.filter(|_| is_owner && (1..=MOST_OBSERVED_SECTORS).contains(&sectors)) else {
            return self.refuse_read(from, id, question, ReadRefusal::NotOwner);
        };
        let bytes = sectors as usize * SECTOR_BYTES;
        let Some(others_bytes) = self.memory.payloads.copies.observed_bytes(id, from, question) else {
            // It is being read, and will be answered.
            return;
        };
        if others_bytes + bytes > MOST_OBSERVED_BYTES {
            return self.refuse_read(from, id, question, ReadRefusal::Busy);
        }
        let purpose = Purpose::Observe { disk: id, from, question };
        let buffer = vec![0; bytes];
        let tag = self.memory.payloads.copies.put(purpose, buffer);
        let request = Request { tag, disk, op: Op::Read, sector: SectorNo(sector), sectors };
        if self.core.with(&mut self.memory).submit(self.now, request).is_err() {
            self.memory.payloads.copies.drop_buffer(tag);
            self.refuse_read(from, id, question, ReadRefusal::Failed);
        }
    }

    fn refuse_read(&self, from: HostId, disk: DiskId, question: u64, why: ReadRefusal) {
        self.send_to(from, disk, HostMessage::ReadDone { question, data: Err(why) });
    }
}
