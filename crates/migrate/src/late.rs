//! After a claim: clean blocks that follow the disk, *late copies*. The earlier owner lists what it has, in the order
//! that the method requires, and lends its blocks for a while; the new owner reads them from there, or from the
//! origin.
//!
//! Invariants
//! - A host lends only what it had when it released the disk, only to the host to which it released it, under that
//!   epoch, and until its next start.
//! - The new owner asks for the list of one claim only, and never after a restart: it has tracked what it has changed
//!   since that claim, and nothing else.
//! - No read of the guest waits for a late copy for longer than a few repetitions: then the origin is read.

use haversack_core::{CachedBlock, Call, LateSource, ListCursor, Memory};
use haversack_model::{BlockNo, HostId, Micros};

use crate::message::{Message, Part, Question};
use crate::method::Late;
use crate::migration::{Migration, Task};
use crate::ordered::{Ordered, Rank};

/// A question for the list is repeated this often before it is given up.
const MOST_QUESTIONS: u32 = 25;
/// Lending ends when no late copy was asked for during this many repetitions.
const LENDS_FOR: u64 = 300;
/// After this many consecutive late copies that were not available, the others are not tried.
const MOST_FAILURES: u32 = 64;

/// The earlier owner's side.
#[derive(Debug)]
pub(crate) struct Lending {
    to: HostId,
    epoch: u64,
    late: Late,
    /// Where the listing continues; `None` if it is complete.
    from: Option<ListCursor>,
    found: Ordered,
    /// A part that was asked for before the list was complete.
    asked: Option<(Question, u64)>,
    asked_us: Micros,
}

/// The new owner's side.
#[derive(Debug)]
pub(crate) struct Borrowing {
    holder: HostId,
    epoch: u64,
    question: Question,
    /// The next part to ask for; `None` if all is listed.
    next: Option<u64>,
    asked_us: Micros,
    questions: u32,
    /// When the earlier owner was last needed.
    used_us: Micros,
    /// Consecutive late copies that were not available.
    pub failures: u32,
}

fn rank(late: Late, block: &CachedBlock) -> Option<Rank> {
    let is_reused = block.protected || block.hits > 0;
    match late {
        Late::None => None,
        Late::FromOrigin | Late::FromOwner => Some((block.protected, block.hits, block.seq)),
        // The counters of hits fall as time passes, so a high one says that the last hit was not long ago.
        Late::ReusedFromOwner => is_reused.then_some((false, block.hits, block.seq)),
    }
}

impl Migration {
    /// Starts to lend clean blocks, if the method requires it, to the host that the disk is being released to.
    pub(crate) fn lend<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros, to: HostId, epoch: u64) {
        let late = self.method().plan().late;
        let Some(disk) = self.disk else { return };
        if late == Late::None {
            return call.stop_lending(disk);
        }
        let from = Some(ListCursor::default());
        self.lending =
            Some(Lending { to, epoch, late, from, found: Ordered::default(), asked: None, asked_us: now });
    }

    fn stop_lending<M: Memory>(&mut self, call: &mut Call<'_, M>) {
        self.lending = None;
        if let Some(disk) = self.disk {
            call.stop_lending(disk);
        }
    }

    /// Lists some more of what is lent, and stops lending when no more requests come.
    pub(crate) fn tick_lending<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(lending) = &mut self.lending else { return };
        let (to, epoch) = (lending.to, lending.epoch);
        let is_over = now > lending.asked_us + LENDS_FOR * self.timing.repeat_us;
        if is_over || !self.is_released_to(to, epoch) && self.task == Task::Idle {
            return self.stop_lending(call);
        }
        let (Some(lending), Some(disk)) = (&mut self.lending, self.disk) else { return };
        let Some(from) = lending.from else { return };
        let mut found = Vec::new();
        lending.from = call.list_cached(disk, from, |block| {
            if let Some(rank) = rank(lending.late, &block).filter(|_| !block.dirty) {
                found.push((rank, block.block, block.mask));
            }
        });
        lending.found.add(found);
        if lending.from.is_none()
            && let Some((question, part)) = lending.asked.take()
        {
            self.answer_late_list(question, part, now);
        }
    }

    /// Whether blocks to lend are being listed.
    pub(crate) fn lists_late_copies(&self) -> bool {
        self.lending.as_ref().is_some_and(|lending| lending.from.is_some())
    }

    /// Answers a question for a part of the list, or answers it later if the list is not complete yet.
    pub(crate) fn late_list_asked(
        &mut self,
        from: HostId,
        epoch: u64,
        question: Question,
        part: u64,
        now: Micros,
    ) {
        let is_released = self.is_released_to(from, epoch);
        match &mut self.lending {
            Some(lending) if (lending.to, lending.epoch) == (from, epoch) => {
                lending.asked_us = now;
                if lending.from.is_some() {
                    lending.asked = Some((question, part));
                    // Listing takes a while: this tells the asker that it continues.
                    self.answer_late_list_with(question, part, Vec::new(), Some(Part::Clean(part)));
                } else {
                    self.answer_late_list(question, part, now);
                }
            }
            _ if is_released => {
                // This host has been restarted since.
                let (part, method) = (Part::Clean(part), self.method());
                let message = Message::Listed {
                    question,
                    knows_session: false,
                    method,
                    part,
                    blocks: vec![],
                    next: None,
                };
                self.send(from, message);
            }
            _ => {}
        }
    }

    fn answer_late_list(&mut self, question: Question, part: u64, now: Micros) {
        let Some(lending) = &mut self.lending else { return };
        lending.asked_us = now;
        let at = usize::try_from(part).unwrap_or(usize::MAX);
        let (blocks, next) = lending.found.part(at, self.timing.blocks_a_message);
        let (blocks, next) = (blocks.to_vec(), next.map(|at| Part::Clean(at as u64)));
        self.answer_late_list_with(question, part, blocks, next);
    }

    fn answer_late_list_with(
        &mut self,
        question: Question,
        part: u64,
        blocks: Vec<(BlockNo, u8)>,
        next: Option<Part>,
    ) {
        let method = self.method();
        let Some(to) = self.lending.as_ref().map(|lending| lending.to) else { return };
        let part = Part::Clean(part);
        self.send(to, Message::Listed { question, knows_session: true, method, part, blocks, next });
    }

    /// The host that the disk was released to needs no more clean blocks.
    pub(crate) fn nothing_more_needed<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        from: HostId,
        epoch: u64,
    ) {
        if self.lending.as_ref().is_some_and(|lending| (lending.to, lending.epoch) == (from, epoch)) {
            self.stop_lending(call);
        }
    }

    /// Records that a late copy was requested, so that lending continues.
    pub(crate) fn is_borrowed_from(&mut self, now: Micros) {
        if let Some(lending) = &mut self.lending {
            lending.asked_us = now;
        }
    }

    /// Prepares for late copies of the disk, which is about to be claimed from a host.
    pub(crate) fn borrow<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        holder: HostId,
        epoch: u64,
    ) {
        let source = match self.inherited.plan().late {
            Late::None => return,
            Late::FromOrigin => LateSource::Origin,
            Late::FromOwner => LateSource::Owner,
            Late::ReusedFromOwner => LateSource::OwnerOnDemand,
        };
        let Some(disk) = self.disk else { return };
        call.await_late_copies(disk, source);
        let question = self.question();
        self.borrowing = Some(Borrowing {
            holder,
            epoch,
            question,
            next: Some(0),
            asked_us: 0,
            questions: 0,
            used_us: now,
            failures: 0,
        });
    }

    /// Asks for the list of late copies until it is complete, and reports when no more of them are needed.
    pub(crate) fn tick_borrowing<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(disk) = self.disk.filter(|_| self.is_attached_here(call)) else { return };
        let Some(borrowing) = &mut self.borrowing else { return };
        let is_over = borrowing.questions > MOST_QUESTIONS
            || borrowing.failures > MOST_FAILURES
            || now > borrowing.used_us + LENDS_FOR * self.timing.repeat_us
            || call.late_copies(disk).is_none();
        // Late copies read from the origin need only the list.
        let has_all = borrowing.next.is_none() && self.inherited.plan().late == Late::FromOrigin;
        if is_over || has_all {
            let (host, epoch) = (borrowing.holder, borrowing.epoch);
            if is_over {
                call.end_late_copies(disk);
            }
            self.borrowing = None;
            return self.send(host, Message::Enough { epoch });
        }
        let is_due = borrowing.questions == 0 || now >= borrowing.asked_us + self.timing.repeat_us;
        if borrowing.next.is_some() && is_due {
            self.ask_late_list(now);
        }
    }

    fn ask_late_list(&mut self, now: Micros) {
        let Some(borrowing) = &mut self.borrowing else { return };
        let Some(part) = borrowing.next else { return };
        borrowing.questions += 1;
        borrowing.asked_us = now;
        let (host, question, epoch) = (borrowing.holder, borrowing.question, borrowing.epoch);
        self.send(host, Message::List { question, epoch, session: None, part: Part::Clean(part) });
    }

    /// Returns the host from which a late copy is about to be fetched, and the epoch.
    pub(crate) fn borrows_from(&mut self, now: Micros) -> Option<(HostId, u64)> {
        let borrowing = self.borrowing.as_mut()?;
        borrowing.used_us = now;
        Some((borrowing.holder, borrowing.epoch))
    }

    /// Handles a part of the list of late copies.
    pub(crate) fn late_copies_listed<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        question: Question,
        part: u64,
        blocks: &[(BlockNo, u8)],
        next: Option<Part>,
    ) {
        let Some(disk) = self.disk.filter(|_| self.is_attached_here(call)) else { return };
        let Some(borrowing) = &mut self.borrowing else { return };
        if borrowing.question != question || borrowing.next != Some(part) {
            return;
        }
        if next == Some(Part::Clean(part)) {
            // The list is not complete yet: the question is repeated.
            (borrowing.questions, borrowing.used_us) = (1, now);
            return;
        }
        borrowing.next = match next {
            Some(Part::Clean(next)) if next > part => Some(next),
            _ => None,
        };
        (borrowing.questions, borrowing.used_us) = (0, now);
        let is_last = borrowing.next.is_none();
        call.list_late_copies(now, disk, blocks, is_last);
        self.ask_late_list(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, protected: bool, hits: u8, seq: u64) -> CachedBlock {
        CachedBlock { block: BlockNo(number), mask: 0xff, dirty: false, protected, hits, seq }
    }

    fn order(late: Late) -> Vec<u64> {
        let cached = [
            block(1, false, 0, 9),
            block(2, false, 2, 1),
            block(3, true, 0, 5),
            block(4, true, 3, 2),
            block(5, true, 3, 7),
        ];
        let mut found = Ordered::default();
        found.add(cached.iter().filter_map(|b| Some((rank(late, b)?, b.block, b.mask))));
        found.part(0, cached.len()).0.iter().map(|(block, _)| block.0).collect()
    }

    #[test]
    fn the_hottest_blocks_come_first() {
        assert_eq!(order(Late::FromOrigin), [5, 4, 3, 2, 1]);
        assert_eq!(order(Late::FromOwner), [5, 4, 3, 2, 1]);
    }

    #[test]
    fn of_those_that_were_used_again_the_most_recently_used_come_first_and_no_others() {
        assert_eq!(order(Late::ReusedFromOwner), [5, 4, 2, 3]);
        assert!(order(Late::None).is_empty());
    }
}
