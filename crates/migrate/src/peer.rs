//! After a claim: the new owner fetches blocks from the old one, and tells it what it may forget.
//!
//! Invariant
//! - A fetch of a dirty block fails only if the earlier owner has answered for seconds that it cannot read the block.
//!   If that host does not answer, the fetch is repeated.

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Call, Copied, IoId, ManageError, Memory, Moved};
use haversack_model::{BLOCK_BYTES, BlockNo, HostId, Micros};
use haversack_ownership::Record;

use crate::message::{Message, Question};
use crate::migration::{Fetch, Migration, Task};
use crate::output::{CopyTicket, Output};

/// A late copy is not asked for again after this many times without an answer.
const MOST_LATE_REPETITIONS: u32 = 3;
/// A fetch fails after this many answers without the block: at the usual rate of repetitions, after 5 s.
const MOST_LACKING: u32 = 25;

impl Migration {
    fn holder(&self) -> Option<(HostId, u64)> {
        match self.ownership.record() {
            Record::Owner { epoch, peers } => peers.iter().next().map(|host| (*host, *epoch)),
            _ => None,
        }
    }

    /// Carries out [`haversack_core::Action::ReadPeer`]. It is repeated until it is answered; a late copy, only a few
    /// times.
    pub fn fetch(&mut self, now: Micros, io: IoId, block: BlockNo, mask: u8, is_late: bool) {
        let late_from = if is_late { self.borrows_from(now) } else { None };
        if is_late && late_from.is_none() {
            return self.outputs.push_back(Output::FetchFailed { io });
        }
        let question = self.question();
        let fetch = Fetch { block, mask, question, late_from, asked_us: None, repeated: 0, lacking: 0 };
        self.fetches.insert(io, fetch);
        if self.limit.may_ask(io) {
            self.ask_block(io, now);
        }
    }

    /// Starts to fetch the dirty blocks that only the earlier owner has, even if the method fetches them only when
    /// they are needed.
    pub fn fetch_rest(&mut self) {
        self.fetches_rest = true;
    }

    /// Gives up a fetch; the driver completes its I/O with an error.
    pub fn cancel_fetch(&mut self, io: IoId) {
        self.fetches.remove(&io);
    }

    fn ask_block(&mut self, io: IoId, now: Micros) {
        let holder = self.holder();
        let Some(fetch) = self.fetches.get_mut(&io) else { return };
        fetch.asked_us = Some(now);
        let Fetch { question, block, late_from, .. } = *fetch;
        if let Some((host, epoch)) = late_from.or(holder) {
            self.send(host, Message::Fetch { question, epoch, block });
        }
    }

    /// Asks for blocks whose turn it is.
    pub(crate) fn tick_limit<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some((fetches, allowance)) = self.limit.next_period(now) else { return };
        for io in fetches {
            self.ask_block(io, now);
        }
        if let Some(disk) = self.disk {
            call.set_fetch_allowance(now, disk, Some(allowance));
        }
    }

    pub(crate) fn repeat_fetches(&mut self, now: Micros) {
        let repeat_us = self.timing.repeat_us;
        let is_overdue = |fetch: &Fetch| fetch.asked_us.is_some_and(|asked_us| now >= asked_us + repeat_us);
        let overdue: Vec<IoId> =
            self.fetches.iter().filter(|(_, fetch)| is_overdue(fetch)).map(|(io, _)| *io).collect();
        for io in overdue {
            let fetch = self.fetches.get_mut(&io).expect("it was just seen");
            fetch.repeated += 1;
            if fetch.late_from.is_some() && fetch.repeated >= MOST_LATE_REPETITIONS {
                self.fail_late(io);
            } else {
                self.ask_block(io, now);
            }
        }
    }

    /// Gives up a late copy: the origin has the block.
    fn fail_late(&mut self, io: IoId) {
        self.fetches.remove(&io);
        self.outputs.push_back(Output::FetchFailed { io });
        if let Some(borrowing) = &mut self.borrowing {
            borrowing.failures += 1;
        }
    }

    pub(crate) fn answer_fetch(
        &mut self,
        now: Micros,
        from: HostId,
        question: Question,
        epoch: u64,
        block: BlockNo,
    ) {
        if self.is_released_to(from, epoch) {
            self.is_borrowed_from(now);
            let ticket = CopyTicket::Answer { to: from, question, block };
            self.outputs.push_back(Output::ReadCopy(ticket));
        }
    }

    /// A copy was read into one block; `None` if the cache had none or the read failed.
    pub fn copy_read(&mut self, ticket: CopyTicket, copy: Option<(Copied, Vec<u8>)>) {
        // The destination waits for every copy: one without sectors means that there is none.
        let nothing = Copied { mask: 0, reused: false };
        let (Copied { mask, reused }, data) = copy.unwrap_or_else(|| (nothing, vec![0; BLOCK_BYTES]));
        match ticket {
            CopyTicket::Replica { .. } => self.send_replica_copy(ticket, mask, data),
            CopyTicket::Ahead { to, session, taker, at, block } => {
                self.send(to, Message::Copy { session, taker, at, block, mask, reused, data });
            }
            CopyTicket::Answer { to, question, .. } => {
                self.send(to, Message::Fetched { question, mask, data });
            }
        }
    }

    pub(crate) fn fetched(&mut self, question: Question, mask: u8, data: Vec<u8>) {
        let found = self.fetches.iter().find(|(_, fetch)| fetch.question == question);
        let Some((io, fetch)) = found.map(|(io, fetch)| (*io, *fetch)) else { return };
        if fetch.mask & !mask == 0 {
            self.fetches.remove(&io);
            self.outputs.push_back(Output::Fetched { io, data });
            if let Some(borrowing) = self.borrowing.as_mut().filter(|_| fetch.late_from.is_some()) {
                borrowing.failures = 0;
            }
        } else if fetch.late_from.is_some() {
            self.fail_late(io);
        } else {
            self.lacks(io);
        }
    }

    /// The earlier owner has answered without all sectors of a block that this host needs.
    fn lacks(&mut self, io: IoId) {
        let Some(fetch) = self.fetches.get_mut(&io) else { return };
        fetch.lacking += 1;
        if fetch.lacking >= MOST_LACKING {
            self.fetches.remove(&io);
            self.outputs.push_back(Output::FetchFailed { io });
            self.problem = Some(ManageError::PeerHasLosses(self.config.id));
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
        // While the disk is being taken back, what is held is needed here.
        let Some(disk) = self.disk.filter(|_| is_owner && self.task == Task::Idle) else { return };
        // A replica has the epoch of the disk that was here before: a late message must not empty it.
        if call.disk_info(disk).is_some_and(|info| matches!(info.moved, Moved::Replica { .. })) {
            return;
        }
        // An error means that this host has nothing left to forget.
        let _ = call.forget_held(now, disk, &blocks);
        // The question is repeated until it is answered, which takes as long as flash does.
        let waits = (from, epoch, blocks);
        if !self.forgetting.contains(&waits) {
            self.forgetting.push(waits);
        }
    }

    /// Confirms the blocks that have been durably forgotten.
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
        // A repeated answer causes no question: otherwise repeated messages would multiply without end.
        if left(call) != before {
            self.forget_us = 0;
            self.tell_what_to_forget(call, now);
        }
    }
}
