//! After a claim: the new owner fetches blocks from the old one, and tells it what it may forget.

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Call, IoId, Memory};
use haversack_model::{BLOCK_BYTES, BlockNo, HostId, Micros};
use haversack_ownership::Record;

use crate::message::{Message, Question};
use crate::migration::{Fetch, Migration, Task};
use crate::output::{CopyTicket, Output};

impl Migration {
    fn holder(&self) -> Option<(HostId, u64)> {
        match self.ownership.record() {
            Record::Owner { epoch, peers } => peers.iter().next().map(|host| (*host, *epoch)),
            _ => None,
        }
    }

    /// Carries out [`haversack_core::Action::ReadPeer`]. It is repeated until it is answered.
    pub fn fetch(&mut self, now: Micros, io: IoId, block: BlockNo, mask: u8) {
        let question = self.question();
        self.fetches.insert(io, Fetch { block, mask, question, asked_us: now });
        self.ask_block(question, block);
    }

    /// Gives up a fetch, whose I/O the driver completes with an error.
    pub fn cancel_fetch(&mut self, io: IoId) {
        self.fetches.remove(&io);
    }

    fn ask_block(&mut self, question: Question, block: BlockNo) {
        if let Some((host, epoch)) = self.holder() {
            self.send(host, Message::Fetch { question, epoch, block });
        }
    }

    pub(crate) fn repeat_fetches(&mut self, now: Micros) {
        let repeat_us = self.timing.repeat_us;
        let overdue = self.fetches.values_mut().filter(|fetch| now >= fetch.asked_us + repeat_us);
        let overdue: Vec<Fetch> = overdue
            .map(|fetch| {
                fetch.asked_us = now;
                *fetch
            })
            .collect();
        for Fetch { question, block, .. } in overdue {
            self.ask_block(question, block);
        }
    }

    pub(crate) fn answer_fetch(&mut self, from: HostId, question: Question, epoch: u64, block: BlockNo) {
        if self.is_released_to(from, epoch) {
            let ticket = CopyTicket::Answer { to: from, question, block };
            self.outputs.push_back(Output::ReadCopy(ticket));
        }
    }

    /// A copy was read into one block, with these sectors; `None` if the cache had none or the read failed.
    pub fn copy_read(&mut self, ticket: CopyTicket, copy: Option<(u8, Vec<u8>)>) {
        let (mask, data) = match copy {
            Some(copy) => copy,
            // The destination waits for every copy of a round: one without sectors says that there is none.
            None if matches!(ticket, CopyTicket::Ahead { .. }) => (0, vec![0; BLOCK_BYTES]),
            None => return,
        };
        match ticket {
            CopyTicket::Ahead { to, session, taker, at, block } => {
                self.send(to, Message::Copy { session, taker, at, block, mask, data });
            }
            CopyTicket::Answer { to, question, .. } => {
                self.send(to, Message::Fetched { question, mask, data });
            }
        }
    }

    pub(crate) fn fetched(&mut self, question: Question, mask: u8, data: Vec<u8>) {
        let is_it = |fetch: &Fetch| fetch.question == question && fetch.mask & !mask == 0;
        let io = self.fetches.iter().find(|(_, fetch)| is_it(fetch)).map(|(io, _)| *io);
        if let Some(io) = io {
            self.fetches.remove(&io);
            self.outputs.push_back(Output::Fetched { io, data });
        }
    }

    /// Reports to the earlier owner which blocks are durable here, so that it can forget them. Once it has none left,
    /// records that this host no longer depends on it.
    pub(crate) fn tell_what_to_forget<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let (Some((host, epoch)), Some(disk)) = (self.holder(), self.disk) else { return };
        if self.task != Task::Idle || !call.disk_info(disk).is_some_and(|info| info.attached) {
            return;
        }
        if call.dependence(disk).is_none_or(|(_, blocks)| blocks == 0) {
            let step = self.ownership.drained();
            self.step(call, now, step);
            return;
        }
        if now < self.forget_us + self.timing.repeat_us / 4 {
            return;
        }
        let blocks = call.ready_to_forget(disk, self.timing.blocks_a_message);
        if !blocks.is_empty() {
            self.forget_us = now;
            self.send(host, Message::Forget { epoch, blocks });
        }
    }

    pub(crate) fn asked_to_forget<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        epoch: u64,
        blocks: Vec<BlockNo>,
    ) {
        let is_owner = self.is_released_to(from, epoch) || planted(Bug::ForgetForAnyEpoch);
        let Some(disk) = self.disk.filter(|_| is_owner) else { return };
        // An error says that this host has nothing left to forget.
        let _ = call.forget_held(now, disk, &blocks);
        self.forgetting.push((from, epoch, blocks));
    }

    /// Answers what is durably forgotten by now.
    pub(crate) fn answer_forgotten<M: Memory>(&mut self, call: &Call<'_, M>) {
        let is_busy = self.disk.is_some_and(|disk| call.forgetting(disk) > 0);
        if is_busy {
            return;
        }
        for (to, epoch, blocks) in std::mem::take(&mut self.forgetting) {
            self.send(to, Message::Forgotten { epoch, blocks });
        }
    }

    pub(crate) fn forgotten<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        epoch: u64,
        blocks: &[BlockNo],
    ) {
        let Some(disk) = self.disk.filter(|_| self.holder().is_some_and(|(_, mine)| mine == epoch)) else {
            return;
        };
        let left = |call: &Call<'_, M>| call.dependence(disk).map(|(_, blocks)| blocks);
        let before = left(call);
        call.forgotten_by_peer(now, disk, blocks);
        // A repeated answer asks for nothing: otherwise messages that are repeated would multiply without end.
        if left(call) != before {
            self.forget_us = 0;
            self.tell_what_to_forget(call, now);
        }
    }
}
