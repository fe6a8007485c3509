//! The borrower's side, of one disk.
//!
//! Loans are numbered. At most one of them is being filled, the newest one. `newest` counts up with each loan that is
//! asked for, and each write of a block notes its value ([`Voids`]).
//!
//! Invariants
//! - A block is sent under a loan only if no write to it has overlapped the read of its data from the origin, nor was
//!   under way since the loan was asked for. So all copies of a block under one loan have the same contents, those that
//!   the origin has until the next write begins.
//! - A copy is used only if no write to the block was under way since its loan was asked for, up to the moment when all
//!   data of the read is there. So it is what a read of the origin would return.
//! - Each read that [`Borrower::read`] accepts has exactly one outcome.
//! - Memory: for each chosen lender about half a KiB, [`MOST_LOANS`] filters, [`MOST_READS`] reads of
//!   [`MOST_READ_BLOCKS`] blocks, and the table of writes.

use std::collections::{BTreeMap, VecDeque};

use haversack_model::{DiskId, HostId, Micros};

use crate::BLOCK_BYTES;
use crate::bloom::Bloom;
use crate::breaker::Breaker;
use crate::figures::{AtLender, BorrowerFigures};
use crate::message::{LEAST_LOAN_BLOCKS, Loan, MOST_LOAN_BLOCKS, Message, checksum};
use crate::times::Times;
use crate::voids::Voids;

/// The most loans of a disk.
const MOST_LOANS: usize = 32;
/// With this many probes, all filters together are wrong in 0.4 % of all cases: 32 in 2^13.
const PROBES: u32 = 13;
/// Probes of the filters that know which blocks were read before.
const SEEN_PROBES: u32 = 8;
/// The most blocks of one of these filters: half of what can be lent.
const MOST_SEEN_BLOCKS: u64 = 1 << 20;
/// The most reads that wait for lenders.
const MOST_READS: usize = 256;
/// The longest read that a lender is asked for.
const MOST_READ_BLOCKS: u64 = 16;
/// Reads that a lender is asked for at a time until it has answered some.
const TRIALS: usize = 4;
/// Answers that end its trial.
const TRIED: u32 = 8;
/// How long a lender may take to grant a loan, and how long it is not asked again after it has refused the smallest
/// loan, or has taken back a loan that was being filled.
const OPEN_US: Micros = 2_000_000;
const REFUSED_US: Micros = 5_000_000;
/// How long a read waits for a lender while it is not known how long the origin takes.
const FIRST_DEADLINE_US: Micros = 20_000;
const LONGEST_DEADLINE_US: Micros = 200_000;
const LEAST_DEADLINE_US: Micros = 1_000;
/// The origin's latency counts as known after this many reads.
const ENOUGH: u32 = 64;
/// The number of questions after which a loan is given up if more than half of them found nothing.
const QUESTIONS: u32 = 128;
/// When more blocks than this could not be sent under a loan, because they were written, the next loan is requested.
const MOST_UNSENT: u32 = 64;

/// What a borrower needs to know.
#[derive(Clone, Debug)]
pub struct BorrowerSettings {
    /// The disk.
    pub disk: DiskId,
    /// Its blocks.
    pub disk_blocks: u64,
    /// A random number.
    pub epoch: u64,
    /// The hosts that lend, at first.
    pub lenders: Vec<HostId>,
}

/// The state when a read of the origin began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTicket {
    newest: u64,
    began_us: Micros,
    /// A lender was asked for the data before and did not have it.
    was_missing: bool,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A message to send. It may be lost.
    Send(HostId, Message),
    /// The blocks of a read, in order.
    Serve {
        /// The read.
        token: u64,
        /// Their data.
        blocks: Vec<Vec<u8>>,
    },
    /// A read is to be done at the origin.
    FallBack {
        /// The read.
        token: u64,
        /// For the end of that read.
        ticket: ReadTicket,
    },
}

struct Lender {
    host: HostId,
    breaker: Breaker,
    /// No loan is requested from this lender before this time.
    ask_from_us: Micros,
    /// The most blocks to request: half of what the lender has refused, and doubled each time that the lender grants a
    /// loan.
    most_blocks: u32,
    in_flight: usize,
    asked_blocks: u64,
    hit_blocks: u64,
    ended_loans: u64,
}

impl Lender {
    fn new(host: HostId) -> Lender {
        Lender {
            host,
            breaker: Breaker::new(),
            ask_from_us: 0,
            most_blocks: MOST_LOAN_BLOCKS,
            in_flight: 0,
            asked_blocks: 0,
            hit_blocks: 0,
            ended_loans: 0,
        }
    }

    /// Records that the lender has refused a loan of this many blocks: a smaller one may be possible.
    fn refused(&mut self, now: Micros, blocks: u32) {
        if blocks > LEAST_LOAN_BLOCKS {
            self.most_blocks = (blocks / 2).max(LEAST_LOAN_BLOCKS);
        } else {
            self.most_blocks = MOST_LOAN_BLOCKS;
            self.ask_from_us = now + REFUSED_US;
        }
    }

    /// Records that reads have ended.
    fn answered(&mut self, blocks: usize) {
        self.in_flight = self.in_flight.saturating_sub(blocks);
    }

    fn granted(&mut self) {
        self.most_blocks = self.most_blocks.saturating_mul(2).min(MOST_LOAN_BLOCKS);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was asked for at this time.
    Asked(Micros),
    /// It takes blocks.
    Open,
    /// It takes no more.
    Closed,
}

/// A loan and its part of the index.
struct Part {
    loan: Loan,
    lender: HostId,
    state: State,
    since_us: Micros,
    index: Bloom,
    asked: u32,
    missing: u32,
    /// Blocks that it could not take because they were written.
    unsent: u32,
}

struct Reading {
    token: u64,
    first: u64,
    began_us: Micros,
    due_us: Micros,
    /// Loan and lender of each block, and its data.
    blocks: Vec<(u64, HostId, Option<Vec<u8>>)>,
}

/// See the module.
pub struct Borrower {
    settings: BorrowerSettings,
    lenders: Vec<Lender>,
    /// The lender that is asked for the next loan.
    next_lender: usize,
    newest: u64,
    /// Oldest first.
    parts: VecDeque<Part>,
    voids: Voids,
    seen: [Bloom; 2],
    /// Reads by the number of their first question. The question for each following block has the next number.
    reads: BTreeMap<u64, Reading>,
    next_question: u64,
    origin: Times,
    outcomes: VecDeque<Outcome>,
    figures: BorrowerFigures,
}

impl Borrower {
    /// Makes the borrower of a disk.
    pub fn new(settings: BorrowerSettings) -> Borrower {
        let lender = |host: &HostId| Lender::new(*host);
        let seen_blocks = settings.disk_blocks.clamp(LEAST_LOAN_BLOCKS.into(), MOST_SEEN_BLOCKS) as u32;
        let seen = Bloom::new(seen_blocks, SEEN_PROBES);
        Borrower {
            lenders: settings.lenders.iter().map(lender).collect(),
            next_lender: 0,
            newest: 0,
            parts: VecDeque::new(),
            voids: Voids::new(settings.disk_blocks),
            seen: [seen.clone(), seen],
            reads: BTreeMap::new(),
            next_question: 0,
            origin: Times::new(),
            outcomes: VecDeque::new(),
            figures: BorrowerFigures::default(),
            settings,
        }
    }

    /// Returns what is known of a host, if it is chosen.
    fn lender(&self, host: HostId) -> Option<&Lender> {
        self.lenders.iter().find(|lender| lender.host == host)
    }

    fn lender_mut(&mut self, host: HostId) -> Option<&mut Lender> {
        self.lenders.iter_mut().find(|lender| lender.host == host)
    }

    /// Borrows from these hosts from now on. What the others have is given back, and what is known of them forgotten.
    pub fn choose(&mut self, now: Micros, hosts: &[HostId]) {
        let is_chosen = |lender: &Lender| hosts.contains(&lender.host);
        let (kept, left) = std::mem::take(&mut self.lenders).into_iter().partition(is_chosen);
        self.lenders = kept;
        for lender in left {
            self.give_back(now, lender.host);
        }
        for host in hosts {
            if self.lender(*host).is_none() {
                self.lenders.push(Lender::new(*host));
            }
        }
    }

    /// Returns the next thing to do.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Records that a write of any kind to these blocks, including `last`, is about to be sent to the origin.
    pub fn write_begins(&mut self, first: u64, last: u64) {
        self.voids.begins(first, last, self.newest);
    }

    /// Records that such a write has ended, successfully or not.
    pub fn write_ended(&mut self, first: u64, last: u64) {
        self.voids.ended(first, last, self.newest);
    }

    /// Accepts a read if lenders have all its blocks. Returns false if the origin is to be read.
    pub fn read(
        &mut self,
        now: Micros,
        token: u64,
        first: u64,
        last: u64,
        reaches: &dyn Fn(HostId) -> bool,
    ) -> bool {
        if last - first >= MOST_READ_BLOCKS || self.reads.len() >= MOST_READS || self.parts.is_empty() {
            return false;
        }
        let mut blocks = Vec::with_capacity((last - first + 1) as usize);
        for block in first..=last {
            let Some(at) = self.find(now, block, reaches) else { return false };
            blocks.push((self.parts[at].loan.number, self.parts[at].lender, None));
        }
        let question = self.next_question;
        self.next_question += blocks.len() as u64;
        for (at, (number, lender, _)) in blocks.iter().enumerate() {
            let loan = Loan { epoch: self.settings.epoch, number: *number };
            let (block, question) = (first + at as u64, question + at as u64);
            if let Some(lender) = self.lender_mut(*lender) {
                lender.in_flight += 1;
                lender.asked_blocks += 1;
            }
            self.outcomes.push_back(Outcome::Send(*lender, Message::Get { loan, block, question }));
        }
        self.figures.asked_blocks += blocks.len() as u64;
        let due_us = now + self.deadline_us();
        self.reads.insert(question, Reading { token, first, began_us: now, due_us, blocks });
        true
    }

    /// Returns the loan under which a copy of a block can be had.
    fn find(&self, now: Micros, block: u64, reaches: &dyn Fn(HostId) -> bool) -> Option<usize> {
        for (at, part) in self.parts.iter().enumerate().rev() {
            if self.voids.is_void(block, part.loan.number) {
                // The copies under older loans are void, too.
                return None;
            }
            let Some(lender) = self.lender(part.lender) else { continue };
            let on_trial = lender.breaker.times.samples() < TRIED && lender.in_flight >= TRIALS;
            let usable = lender.breaker.is_closed(now) && !on_trial && reaches(lender.host);
            if usable && part.index.has(block) {
                return Some(at);
            }
        }
        None
    }

    /// Returns how long a read may wait for lenders: what nearly all reads of the origin take.
    fn deadline_us(&self) -> Micros {
        if self.origin.samples() < ENOUGH {
            return FIRST_DEADLINE_US;
        }
        self.origin.p99_us().clamp(LEAST_DEADLINE_US, LONGEST_DEADLINE_US)
    }

    /// Records that a read is about to be sent to the origin.
    pub fn read_begins(&self, now: Micros) -> ReadTicket {
        ReadTicket { newest: self.newest, began_us: now, was_missing: false }
    }

    /// Handles the end of a read of the origin: the whole blocks from `first` to `last`, whose contents `data` returns.
    /// `room` returns how many blocks may be sent to a lender, not counting those already taken from `poll`.
    pub fn read_ended(
        &mut self,
        now: Micros,
        ticket: ReadTicket,
        (first, last): (u64, u64),
        room: &dyn Fn(HostId) -> usize,
        reaches: &dyn Fn(HostId) -> bool,
        mut data: impl FnMut(u64) -> Vec<u8>,
    ) {
        self.origin.add(now.saturating_sub(ticket.began_us));
        if last - first >= MOST_READ_BLOCKS {
            return;
        }
        let mut sent = 0;
        for block in first..=last {
            if !self.is_wanted(block, ticket) {
                continue;
            }
            let Some(at) = self.open_part(now, reaches) else { continue };
            if self.voids.is_void(block, ticket.newest) {
                self.parts[at].unsent += 1;
                continue;
            }
            let part = &mut self.parts[at];
            let host = part.lender;
            if room(host) <= sent {
                continue;
            }
            part.index.add(block);
            let (loan, data) = (part.loan, data(block));
            let crc = checksum(self.settings.disk, loan, block, &data);
            self.outcomes.push_back(Outcome::Send(host, Message::Put { loan, block, crc, data }));
            self.figures.sent_blocks += 1;
            sent += 1;
        }
    }

    /// Whether a block was read before, and no lender has it as far as is known.
    fn is_wanted(&mut self, block: u64, ticket: ReadTicket) -> bool {
        let was_seen = self.seen.iter().any(|seen| seen.has(block));
        if !was_seen {
            if self.seen[0].is_full() {
                self.seen.swap(0, 1);
                self.seen[0].clear();
            }
            self.seen[0].add(block);
            return false;
        }
        let is_known = |part: &Part| !self.voids.is_void(block, part.loan.number) && part.index.has(block);
        ticket.was_missing || !self.parts.iter().any(is_known)
    }

    /// Returns the loan that takes blocks. If there is none, asks for one.
    fn open_part(&mut self, now: Micros, reaches: &dyn Fn(HostId) -> bool) -> Option<usize> {
        let at = self.parts.len().checked_sub(1);
        if let Some(at) = at {
            let part = &mut self.parts[at];
            let is_spent = part.index.is_full() || part.unsent > MOST_UNSENT.max(part.index.len());
            if part.state == State::Open && is_spent {
                part.state = State::Closed;
            }
            match part.state {
                State::Asked(_) => return None,
                State::Open if reaches(part.lender) => return Some(at),
                State::Open | State::Closed => {}
            }
        }
        self.ask(now, reaches);
        None
    }

    fn ask(&mut self, now: Micros, reaches: &dyn Fn(HostId) -> bool) {
        let count = self.lenders.len();
        let may_ask = |lender: &Lender| {
            lender.ask_from_us <= now && lender.breaker.is_closed(now) && reaches(lender.host)
        };
        let order = (0..count).map(|at| (self.next_lender + at) % count);
        let Some(lender) = order.into_iter().find(|at| may_ask(&self.lenders[*at])) else { return };
        self.next_lender = (lender + 1) % count;
        if self.parts.len() >= MOST_LOANS {
            self.give_up(0);
        }
        // An older loan takes no more blocks once a newer one has begun.
        self.parts.iter_mut().for_each(|part| part.state = State::Closed);
        self.newest += 1;
        let loan = Loan { epoch: self.settings.epoch, number: self.newest };
        let blocks = loan_blocks(self.settings.disk_blocks).min(self.lenders[lender].most_blocks);
        let host = self.lenders[lender].host;
        self.parts.push_back(Part {
            loan,
            lender: host,
            state: State::Asked(now),
            since_us: now,
            index: Bloom::new(blocks, PROBES),
            asked: 0,
            missing: 0,
            unsent: 0,
        });
        let open = Message::Open { loan, blocks, disk_blocks: self.settings.disk_blocks };
        self.outcomes.push_back(Outcome::Send(host, open));
    }

    /// Returns a loan to its lender.
    fn give_up(&mut self, at: usize) {
        let part = self.parts.remove(at).expect("it is there");
        self.outcomes.push_back(Outcome::Send(part.lender, Message::Close { loan: part.loan }));
    }

    /// Handles a message of a lender.
    pub fn heard(&mut self, now: Micros, from: HostId, message: Message) {
        let loan = message.loan();
        let at = self.parts.iter().position(|part| part.loan == loan && part.lender == from);
        match message {
            Message::Opened { .. } => self.opened(from, loan, at),
            Message::Ended { .. } => self.ended(now, from, loan, at),
            Message::Got { block, question, found, .. } => {
                self.got(now, from, loan, block, question, found);
            }
            Message::Open { .. } | Message::Close { .. } | Message::Put { .. } | Message::Get { .. } => {}
        }
    }

    fn opened(&mut self, from: HostId, loan: Loan, at: Option<usize>) {
        let Some(at) = at else {
            return self.outcomes.push_back(Outcome::Send(from, Message::Close { loan }));
        };
        if let State::Asked(_) = self.parts[at].state {
            self.parts[at].state = State::Open;
            self.lender_mut(from).into_iter().for_each(Lender::granted);
        }
    }

    fn ended(&mut self, now: Micros, from: HostId, loan: Loan, at: Option<usize>) {
        if let Some(Part { state, index, .. }) = at.and_then(|at| self.parts.remove(at))
            && let Some(lender) = self.lender_mut(from)
        {
            match state {
                State::Asked(_) => lender.refused(now, index.most()),
                State::Open => lender.ask_from_us = now + REFUSED_US,
                // The lender ended the loan to make space for the next one, or because it is one of the oldest.
                State::Closed => {}
            }
            lender.ended_loans += u64::from(!matches!(state, State::Asked(_)));
        }
        // Questions under it are not answered.
        self.fall_back_of(now, |number, of| of == from && number == loan.number);
    }

    fn got(
        &mut self,
        now: Micros,
        from: HostId,
        loan: Loan,
        block: u64,
        question: u64,
        found: Option<(u32, Vec<u8>)>,
    ) {
        let Some((first_question, reading)) = self.reads.range(..=question).next_back() else { return };
        let (first_question, at) = (*first_question, (question - first_question) as usize);
        let is_it = loan.epoch == self.settings.epoch && Some(block) == reading.first.checked_add(at as u64);
        let asked = reading.blocks.get(at);
        let asked = asked
            .filter(|(number, of, data)| is_it && *number == loan.number && *of == from && data.is_none());
        if asked.is_none() {
            return;
        }
        let took_us = now.saturating_sub(reading.began_us);
        let is_good = match &found {
            None => true,
            Some((crc, data)) => {
                data.len() == BLOCK_BYTES && *crc == checksum(self.settings.disk, loan, block, data)
            }
        };
        if !is_good {
            self.figures.bad_blocks += 1;
            self.lender_mut(from).into_iter().for_each(|lender| lender.breaker.failed(now));
            return self.fall_back(now, first_question, false);
        }
        if let Some(lender) = self.lenders.iter_mut().find(|lender| lender.host == from) {
            lender.breaker.answered(now, took_us, &self.origin);
        }
        self.count_answer(loan, found.is_none());
        let Some((_, data)) = found else {
            self.figures.missing_blocks += 1;
            return self.fall_back(now, first_question, true);
        };
        let reading = self.reads.get_mut(&first_question).expect("it was found above");
        reading.blocks[at].2 = Some(data);
        if reading.blocks.iter().all(|(_, _, data)| data.is_some()) {
            self.serve(now, first_question);
        }
    }

    /// Gives up a loan of which the lender has dropped most.
    fn count_answer(&mut self, loan: Loan, is_missing: bool) {
        let Some(at) = self.parts.iter().position(|part| part.loan == loan) else { return };
        let part = &mut self.parts[at];
        part.asked += 1;
        part.missing += u32::from(is_missing);
        if part.asked < QUESTIONS {
            return;
        }
        if part.missing * 2 > part.asked && part.state == State::Closed {
            return self.give_up(at);
        }
        part.asked /= 2;
        part.missing /= 2;
    }

    /// Ends a read of which all data is there.
    fn serve(&mut self, now: Micros, question: u64) {
        let reading = &self.reads[&question];
        let is_void = |(at, block): (usize, &(u64, HostId, Option<Vec<u8>>))| {
            self.voids.is_void(reading.first + at as u64, block.0)
        };
        if reading.blocks.iter().enumerate().any(is_void) {
            self.figures.overtaken_reads += 1;
            return self.fall_back(now, question, false);
        }
        let Some(reading) = self.remove(question) else { return };
        self.figures.hit_blocks += reading.blocks.len() as u64;
        for (_, host, _) in &reading.blocks {
            self.lender_mut(*host).into_iter().for_each(|lender| lender.hit_blocks += 1);
        }
        let blocks = reading.blocks.into_iter().filter_map(|(_, _, data)| data).collect();
        self.outcomes.push_back(Outcome::Serve { token: reading.token, blocks });
    }

    fn remove(&mut self, question: u64) -> Option<Reading> {
        let reading = self.reads.remove(&question)?;
        for (_, host, _) in &reading.blocks {
            // A lender that was removed and chosen again since no longer counts this read.
            self.lender_mut(*host).into_iter().for_each(|lender| lender.answered(1));
        }
        Some(reading)
    }

    fn fall_back(&mut self, now: Micros, question: u64, was_missing: bool) {
        let Some(reading) = self.remove(question) else { return };
        let ticket = ReadTicket { newest: self.newest, began_us: now, was_missing };
        self.outcomes.push_back(Outcome::FallBack { token: reading.token, ticket });
    }

    /// Ends the reads that wait for a loan or a lender.
    fn fall_back_of(&mut self, now: Micros, is_it: impl Fn(u64, HostId) -> bool) {
        let waits = |(question, reading): (&u64, &Reading)| {
            let hit =
                reading.blocks.iter().any(|(number, lender, data)| data.is_none() && is_it(*number, *lender));
            hit.then_some(*question)
        };
        let all: Vec<u64> = self.reads.iter().filter_map(waits).collect();
        all.into_iter().for_each(|question| self.fall_back(now, question, false));
    }

    /// Ends what has waited too long.
    pub fn tick(&mut self, now: Micros) {
        let late = |(question, reading): (&u64, &Reading)| (reading.due_us <= now).then_some(*question);
        let late: Vec<u64> = self.reads.iter().filter_map(late).collect();
        for question in late {
            self.figures.late_reads += 1;
            let reading = &self.reads[&question];
            let waited_us = now.saturating_sub(reading.began_us);
            let open = reading.blocks.iter().find(|(_, _, data)| data.is_none());
            let late =
                open.and_then(|(_, host, _)| self.lenders.iter_mut().find(|lender| lender.host == *host));
            if let Some(lender) = late {
                lender.breaker.late(now, waited_us, &self.origin);
            }
            self.fall_back(now, question, false);
        }
        let waits = |part: &Part| matches!(part.state, State::Asked(at) if at + OPEN_US <= now);
        if let Some(at) = self.parts.iter().position(waits) {
            let host = self.parts[at].lender;
            self.lender_mut(host).into_iter().for_each(|lender| lender.ask_from_us = now + REFUSED_US);
            self.give_up(at);
        }
    }

    /// Returns when it must be ticked.
    pub fn next_wakeup(&self) -> Option<Micros> {
        let asked = self.parts.iter().filter_map(|part| match part.state {
            State::Asked(at) => Some(at + OPEN_US),
            State::Open | State::Closed => None,
        });
        self.reads.values().map(|reading| reading.due_us).chain(asked).min()
    }

    /// Stops using everything that was sent so far, because others may have written the origin. Data of origin reads
    /// that are under way is not sent either.
    pub fn void_all(&mut self, now: Micros) {
        while !self.parts.is_empty() {
            self.give_up(0);
        }
        self.newest += 1;
        let last = self.settings.disk_blocks.saturating_sub(1);
        self.voids.begins(0, last, self.newest);
        self.voids.ended(0, last, self.newest);
        self.fall_back_of(now, |_, _| true);
        // Data of reads that begin from now on may be sent.
        self.newest += 1;
    }

    /// Gives back all that one lender has.
    fn give_back(&mut self, now: Micros, host: HostId) {
        while let Some(at) = self.parts.iter().position(|part| part.lender == host) {
            self.give_up(at);
        }
        self.fall_back_of(now, |_, of| of == host);
    }

    /// Returns whether a block is inside the size that the disk had when it was attached: others are not lent.
    pub fn covers(&self, last: u64) -> bool {
        last < self.settings.disk_blocks
    }

    /// Returns what there is at each lender.
    pub fn lenders(&self, now: Micros) -> Vec<AtLender> {
        let at = |lender: &Lender| {
            let parts = || self.parts.iter().filter(|part| part.lender == lender.host);
            AtLender {
                host: lender.host,
                loans: parts().count() as u64,
                most_blocks: parts().map(|part| u64::from(part.index.most())).sum(),
                blocks: parts().map(|part| u64::from(part.index.len())).sum(),
                oldest_us: parts().map(|part| now.saturating_sub(part.since_us)).max().unwrap_or(0),
                asked_blocks: lender.asked_blocks,
                hit_blocks: lender.hit_blocks,
                ended_loans: lender.ended_loans,
                mean_us: lender.breaker.times.mean_us(),
                pause: lender.breaker.pause(now),
                pauses: lender.breaker.pauses,
                answers: lender.breaker.answers,
            }
        };
        self.lenders.iter().map(at).collect()
    }

    /// Returns the figures.
    pub fn figures(&self) -> BorrowerFigures {
        let index_bytes: usize = self.parts.iter().map(|part| part.index.bytes()).sum();
        let seen_bytes: usize = self.seen.iter().map(Bloom::bytes).sum();
        let times = self.lenders.iter().map(|lender| lender.breaker.times.mean_us());
        BorrowerFigures {
            loans: self.parts.len() as u64,
            lent_blocks: self.parts.iter().map(|part| u64::from(part.index.len())).sum(),
            memory_bytes: (index_bytes + seen_bytes + self.voids.bytes()) as u64,
            lender_us: times
                .filter(|us| *us > 0.0)
                .fold(0.0, |least, us| if least == 0.0 { us } else { us.min(least) }),
            origin_us: self.origin.mean_us(),
            ..self.figures
        }
    }
}

/// Returns the blocks of a loan for a disk.
fn loan_blocks(disk_blocks: u64) -> u32 {
    (disk_blocks / 8).clamp(LEAST_LOAN_BLOCKS.into(), MOST_LOAN_BLOCKS.into()) as u32
}
