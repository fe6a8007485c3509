//! Before a release: the source sends copies of its cached blocks ahead.

use haversack_core::{Call, Copied, ManageError, Memory};
use haversack_model::{BlockNo, HostId, Micros};

use crate::copies::{Receiving, Sending};
use crate::message::{Message, Position, Session};
use crate::migration::{Migration, Task};
use crate::output::{CopyTicket, Output};
use crate::passes::Passes;

impl Migration {
    /// Starts to send copies of blocks to a host that may own the disk next.
    ///
    /// # Errors
    /// The disk is not attached here.
    pub fn start_sending<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
    ) -> Result<(), ManageError> {
        let disk = self.disk.ok_or(ManageError::NotKnown(self.config.id))?;
        call.start_export(now, disk)?;
        self.sessions += 1;
        let session = Session { incarnation: self.incarnation, count: self.sessions };
        let sending = Sending::new(to, session, self.timing.pace, now);
        let from = sending.at;
        (self.sending, self.destination) = (Some(sending), Some(to));
        self.send(to, Message::Offer { session, from });
        Ok(())
    }

    /// Stops sending: the destination no longer expects the disk.
    pub fn stop_sending<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(sending) = self.sending.take() else { return };
        if let Some(disk) = self.disk {
            call.end_export(now, disk);
        }
        self.send(sending.to, Message::Withdraw { session: sending.session });
    }

    /// Whether copies are being sent ahead.
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Adds blocks to send ahead, the most valuable first.
    pub fn send_blocks(&mut self, blocks: impl IntoIterator<Item = BlockNo>) {
        if let Some(sending) = &mut self.sending {
            sending.queue.extend(blocks);
        }
    }

    /// Starts to send as many copies as may be on their way, at most `most`: a driver that limits the rate passes how
    /// many more may be sent now. While the guest runs here, copies are paced so that it is not slowed down. They are
    /// not paced if another host already waits for the disk until all copies have been sent. Returns their number.
    pub fn send_more(&mut self, now: Micros, most: usize) -> usize {
        let limit = self.timing.copies_in_flight;
        let spares_guests = self.asker.is_none() && self.guest.is_some();
        let Some(sending) = &mut self.sending else { return 0 };
        let Some(taker) = sending.taker.filter(|_| sending.is_open && self.task == Task::Idle) else {
            return 0;
        };
        let pass = self.passes.as_ref().map_or(1, Passes::count);
        let mut pace = sending.pace.take();
        let paced =
            pace.as_mut().filter(|_| spares_guests).map_or(most, |pace| pace.room(now, pass).min(most));
        let mut sent = 0;
        while sent < paced && sending.in_flight.len() < limit {
            let Some((block, _)) = sending.next() else { break };
            let (to, session, at) = (sending.to, sending.session, sending.at);
            sending.sent(block, now);
            let ticket = CopyTicket::Ahead { to, session, taker, at, block };
            self.outputs.push_back(Output::ReadCopy(ticket));
            sent += 1;
        }
        pace.iter_mut().for_each(|pace| pace.sent(sent));
        sending.pace = pace;
        sent
    }

    /// Begins a new round if copies are overdue.
    pub(crate) fn tick_stream<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let (Some(sending), Some(disk)) = (&mut self.sending, self.disk) else { return };
        if !sending.is_overdue(now, self.timing.repeat_us) {
            return;
        }
        let (to, session) = (sending.to, sending.session);
        let lost = sending.start_over(now);
        for block in &lost {
            call.copy_lost(disk, *block);
        }
        let from = sending.at;
        sending.queue.extend(lost);
        self.send(to, Message::Offer { session, from });
    }

    pub(crate) fn offered<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
        at: Position,
    ) {
        if self.task != Task::Idle || self.ownership.record().is_owner() {
            return;
        }
        if self.has_replica_of(call, from) {
            // The replica must end before copies are accepted. This answer makes the owner end it, unless the offer is
            // an old message.
            return self.answer_unknown(from, session);
        }
        let known = self.receiving.as_mut().filter(|receiving| receiving.from == from);
        match known {
            Some(receiving) if receiving.session == session => receiving.begins(at),
            Some(receiving) if receiving.session > session => return,
            _ => {
                if self.expect(call, now).is_err() {
                    return;
                }
                self.receiving = Some(Receiving::new(from, session, at));
            }
        }
        self.acknowledge();
    }

    pub(crate) fn acknowledge(&mut self) {
        if let Some(receiving) = &self.receiving {
            let Receiving { from, session, until, .. } = *receiving;
            let is_busy = self.is_busy;
            self.send(from, Message::Arrived { session, taker: self.incarnation, until, is_busy });
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn arrived<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
        taker: u64,
        until: Position,
        is_busy: bool,
    ) {
        let mine = self.sending.as_mut().filter(|s| s.to == from && s.session == session);
        let Some(sending) = mine else { return };
        if sending.taker.is_some_and(|known| known != taker) {
            // The destination's pool was started again, so its earlier copies are gone. Earlier messages may still
            // arrive, so a new session begins.
            let queue = std::mem::take(&mut sending.queue);
            if self.task == Task::Idle && self.start_sending(call, now, from).is_ok() {
                self.send_blocks(queue);
                self.passes = self.passes.take().map(|_| Passes::new());
            }
            return;
        }
        sending.taker = Some(taker);
        let before = sending.in_flight.len();
        sending.acknowledged(until, now, is_busy || self.is_busy);
        self.copies += (before - sending.in_flight.len()) as u64;
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn copy_came(
        &mut self,
        from: HostId,
        session: Session,
        taker: u64,
        at: Position,
        block: BlockNo,
        copied: Copied,
        data: Vec<u8>,
    ) {
        let is_open = self.task == Task::Idle && taker == self.incarnation;
        let mine = self.receiving.as_mut().filter(|r| r.from == from && r.session == session);
        let Some(receiving) = mine.filter(|_| is_open) else { return };
        if receiving.takes(at) {
            self.copies += 1;
            self.outputs.push_back(Output::TakeCopy { block, copied, data });
        }
        self.owes_answer = true;
    }

    pub(crate) fn withdrawn<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        session: Session,
    ) {
        let is_mine = self.receiving.as_ref().is_some_and(|r| r.from == from && r.session == session);
        if is_mine && self.task == Task::Idle {
            self.receiving = None;
            if let Some(disk) = self.disk {
                let _ = call.dismiss_disk(now, disk);
            }
        }
    }
}
