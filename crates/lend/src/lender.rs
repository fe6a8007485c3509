//! The lender's side: who has which loan, and what is given back when the space is needed.
//!
//! Invariants
//! - All loans together have at most the configured number of blocks, and at most as many blocks are stored as the
//!   caller says are spare.
//! - When space is short, the host that has most loses its oldest loan first: the hosts' parts tend to equal ones
//!   (max-min).
//! - A loan that is refused costs no other loan.
//! - Unused loans end: those of a host that has been disconnected for a while, and those that a host has not used for a
//!   while after it reconnected, because a restarted host no longer knows them. If it does know them, it loses only
//!   copies.
//! - Memory: [`MOST_LOANS`] loans and [`MOST_READS`] reads, whatever other hosts send. The caller takes only hosts that
//!   may borrow.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use haversack_model::{DiskId, HostId, Micros};

use crate::BLOCK_BYTES;
use crate::figures::LenderFigures;
use crate::message::{LEAST_LOAN_BLOCKS, Loan, MOST_LOAN_BLOCKS, Message, checksum};

/// The most loans. Those that are being freed need a place in the pool's table of disks too, as do the host's own
/// disks.
const MOST_LOANS: usize = 224;
/// This many loans fit into the capacity at least.
const LEAST_LOANS: u64 = 4;
/// How often a host may open a loan in the long run, and how many more at once.
const OPEN_EVERY_US: Micros = 50_000;
const OPENS_AT_ONCE: u64 = 32;
/// How long loans are kept for a host that is not connected.
const GONE_AFTER_US: Micros = 60_000_000;
/// How long to keep a loan that its host has not used since it reconnected.
const UNUSED_AFTER_US: Micros = 600_000_000;
/// How often that is looked at.
const LOOK_EVERY_US: Micros = 5_000_000;
/// The most reads at a time.
const MOST_READS: usize = 512;
/// The most blocks of a disk: 1 PiB.
const MOST_DISK_BLOCKS: u64 = 1 << 38;

/// A loan's number here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LoanNo(pub u64);

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LenderOutput {
    /// A message to send about a disk. It may be lost.
    Send(HostId, DiskId, Message),
    /// Make space for a loan; [`Lender::failed`] if that cannot be done.
    Make {
        /// The loan.
        no: LoanNo,
        /// Its block numbers are below.
        disk_blocks: u64,
    },
    /// Free the space of a loan.
    Drop(LoanNo),
    /// Store a block, if possible.
    Store {
        /// The loan.
        no: LoanNo,
        /// The block.
        block: u64,
        /// Its data.
        data: Vec<u8>,
    },
    /// Read a block; [`Lender::read_done`] ends that.
    Read {
        /// The loan.
        no: LoanNo,
        /// The block.
        block: u64,
        /// Names the read.
        ticket: u64,
    },
}

/// A loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoanStatus {
    /// The borrower.
    pub host: HostId,
    /// The disk.
    pub disk: DiskId,
    /// Its name.
    pub loan: Loan,
    /// The most blocks that are stored.
    pub most_blocks: u32,
    /// Blocks that were stored.
    pub blocks: u32,
    /// How long ago it was granted.
    pub age_us: Micros,
    /// Blocks that were asked for.
    pub asked_blocks: u64,
    /// Blocks of these that were there.
    pub hit_blocks: u64,
}

struct Held {
    status: LoanStatus,
    since_us: Micros,
    /// When a block was stored or asked for last.
    used_us: Micros,
    disk_blocks: u64,
}

/// Whether a host that has loans is there.
struct Presence {
    /// The number of its connection.
    connection: Option<u64>,
    /// When this connection was first seen; 0 if there was no other one before.
    began_us: Micros,
    /// When it was connected last.
    seen_us: Micros,
}

impl Presence {
    /// Updates the state from the present connection.
    fn look(&mut self, now: Micros, connection: Option<u64>) {
        let Some(number) = connection else { return };
        if self.connection != Some(number) {
            (self.connection, self.began_us) = (connection, now);
        }
        self.seen_us = now;
    }

    /// Returns whether a loan that was used last at this time ends.
    fn ends(&self, now: Micros, used_us: Micros) -> bool {
        let is_gone = now.saturating_sub(self.seen_us) >= GONE_AFTER_US;
        is_gone || used_us < self.began_us && now.saturating_sub(self.began_us) >= UNUSED_AFTER_US
    }
}

struct Read {
    host: HostId,
    disk: DiskId,
    loan: Loan,
    block: u64,
    question: u64,
}

/// See the module.
pub struct Lender {
    capacity_blocks: u64,
    /// By number: oldest first.
    loans: BTreeMap<LoanNo, Held>,
    numbers: HashMap<(HostId, DiskId, Loan), LoanNo>,
    next_no: u64,
    reads: HashMap<u64, Read>,
    next_ticket: u64,
    /// From when on a host may open its next loan in the long run.
    opens: HashMap<HostId, Micros>,
    /// The hosts that have loans.
    present: BTreeMap<HostId, Presence>,
    look_us: Micros,
    outputs: VecDeque<LenderOutput>,
    figures: LenderFigures,
}

impl Lender {
    /// Makes a lender of at most this many blocks.
    pub fn new(capacity_blocks: u64) -> Lender {
        Lender {
            capacity_blocks,
            loans: BTreeMap::new(),
            numbers: HashMap::new(),
            next_no: 0,
            reads: HashMap::new(),
            next_ticket: 0,
            opens: HashMap::new(),
            present: BTreeMap::new(),
            look_us: 0,
            outputs: VecDeque::new(),
            figures: LenderFigures::default(),
        }
    }

    /// Returns the next thing to do.
    pub fn poll(&mut self) -> Option<LenderOutput> {
        self.outputs.pop_front()
    }

    fn send(&mut self, host: HostId, disk: DiskId, message: Message) {
        self.outputs.push_back(LenderOutput::Send(host, disk, message));
    }

    /// Handles a message of a host that may borrow. `spare_blocks` can be stored without taking space from anyone.
    pub fn heard(&mut self, now: Micros, from: HostId, disk: DiskId, message: Message, spare_blocks: u64) {
        let loan = message.loan();
        let no = self.numbers.get(&(from, disk, loan)).copied();
        match (message, no) {
            (Message::Open { .. }, Some(_)) => self.send(from, disk, Message::Opened { loan }),
            (Message::Open { blocks, disk_blocks, .. }, None) => {
                let is_valid = (LEAST_LOAN_BLOCKS..=MOST_LOAN_BLOCKS).contains(&blocks)
                    && (1..=MOST_DISK_BLOCKS).contains(&disk_blocks);
                let may_open = is_valid && self.may_open(now, from);
                if may_open {
                    self.end_earlier(from, disk, loan.epoch);
                }
                if may_open && spare_blocks > 0 && self.make_room(from, blocks) {
                    self.grant(now, (from, disk, loan), blocks, disk_blocks);
                } else {
                    self.send(from, disk, Message::Ended { loan });
                }
            }
            (Message::Close { .. }, Some(no)) => self.forget(no),
            (Message::Put { block, crc, data, .. }, Some(no)) => {
                self.put(now, no, block, crc, data, spare_blocks);
            }
            (Message::Get { block, question, .. }, Some(no)) => self.get(now, no, block, question),
            (Message::Put { .. } | Message::Get { .. }, None) => {
                self.send(from, disk, Message::Ended { loan });
            }
            (Message::Close { .. }, None)
            | (Message::Opened { .. } | Message::Ended { .. } | Message::Got { .. }, _) => {}
        }
    }

    fn grant(
        &mut self,
        now: Micros,
        (host, disk, loan): (HostId, DiskId, Loan),
        most_blocks: u32,
        disk_blocks: u64,
    ) {
        let no = LoanNo(self.next_no);
        self.next_no += 1;
        let status = LoanStatus {
            host,
            disk,
            loan,
            most_blocks,
            blocks: 0,
            age_us: 0,
            asked_blocks: 0,
            hit_blocks: 0,
        };
        self.loans.insert(no, Held { status, since_us: now, used_us: now, disk_blocks });
        self.numbers.insert((host, disk, loan), no);
        self.outputs.push_back(LenderOutput::Make { no, disk_blocks });
        self.send(host, disk, Message::Opened { loan });
    }

    /// Makes room for a loan of a host, if that is fair. Returns whether there is room.
    fn make_room(&mut self, host: HostId, blocks: u32) -> bool {
        let Some(victims) = self.victims(host, blocks) else { return false };
        victims.into_iter().for_each(|no| self.end(no));
        true
    }

    /// Returns the loans that must end for a loan of a host; `None` if it would not be fair, or not enough.
    fn victims(&self, host: HostId, blocks: u32) -> Option<Vec<LoanNo>> {
        let blocks = u64::from(blocks);
        // Such a large loan could cost the disk all its other loans, or leave no room for other hosts.
        if blocks > (self.capacity_blocks / LEAST_LOANS).max(LEAST_LOAN_BLOCKS.into()) {
            return None;
        }
        // Oldest first.
        let mut left: BTreeMap<HostId, VecDeque<(LoanNo, u64)>> = BTreeMap::from([(host, VecDeque::new())]);
        for (no, held) in &self.loans {
            left.entry(held.status.host).or_default().push_back((*no, held.status.most_blocks.into()));
        }
        let (mut loans, mut promised) = (self.loans.len(), self.promised_blocks());
        let mut victims = Vec::new();
        while promised + blocks > self.capacity_blocks || loans >= MOST_LOANS {
            let (most, its) =
                left.iter().map(|(of, its)| (*of, its.len())).max_by_key(|(_, count)| *count)?;
            // If another host would then have less than this one, its own oldest loan goes, if it has one.
            let loser = if its <= left[&host].len() + 1 { host } else { most };
            let (no, freed_blocks) = left.get_mut(&loser)?.pop_front()?;
            victims.push(no);
            (loans, promised) = (loans - 1, promised - freed_blocks);
        }
        Some(victims)
    }

    fn promised_blocks(&self) -> u64 {
        self.loans.values().map(|held| u64::from(held.status.most_blocks)).sum()
    }

    /// Frees what a borrower had before its daemon ended, or the disk was attached again.
    fn end_earlier(&mut self, host: HostId, disk: DiskId, epoch: u64) {
        let is_earlier =
            |status: &LoanStatus| status.host == host && status.disk == disk && status.loan.epoch != epoch;
        let earlier = self.loans.iter().filter(|(_, held)| is_earlier(&held.status));
        let earlier: Vec<LoanNo> = earlier.map(|(no, _)| *no).collect();
        earlier.into_iter().for_each(|no| self.end(no));
    }

    /// Returns whether a host may open a loan now: making and freeing one is work.
    fn may_open(&mut self, now: Micros, host: HostId) -> bool {
        let next_us = self.opens.entry(host).or_default();
        *next_us = now.max(*next_us);
        let may_open = *next_us <= now + OPEN_EVERY_US * OPENS_AT_ONCE;
        *next_us += if may_open { OPEN_EVERY_US } else { 0 };
        may_open
    }

    fn oldest_of(&self, host: HostId) -> Option<LoanNo> {
        self.loans.iter().find(|(_, held)| held.status.host == host).map(|(no, _)| *no)
    }

    /// Returns the host with most loans, and the oldest of them.
    fn richest(&self) -> Option<(HostId, LoanNo)> {
        let mut counts: BTreeMap<HostId, usize> = BTreeMap::new();
        for held in self.loans.values() {
            *counts.entry(held.status.host).or_default() += 1;
        }
        let (host, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        Some((host, self.oldest_of(host)?))
    }

    fn put(&mut self, now: Micros, no: LoanNo, block: u64, crc: u32, data: Vec<u8>, spare_blocks: u64) {
        let held = self.loans.get_mut(&no).expect("a number is of a loan");
        held.used_us = now;
        let status = &mut held.status;
        if data.len() != BLOCK_BYTES || checksum(status.disk, status.loan, block, &data) != crc {
            self.figures.bad_blocks += 1;
            return;
        }
        if block >= held.disk_blocks || status.blocks >= status.most_blocks || spare_blocks == 0 {
            return;
        }
        status.blocks += 1;
        self.figures.stored_blocks += 1;
        self.outputs.push_back(LenderOutput::Store { no, block, data });
    }

    fn get(&mut self, now: Micros, no: LoanNo, block: u64, question: u64) {
        let held = self.loans.get_mut(&no).expect("a number is of a loan");
        held.used_us = now;
        held.status.asked_blocks += 1;
        let LoanStatus { host, disk, loan, .. } = held.status;
        self.figures.asked_blocks += 1;
        if block >= held.disk_blocks || self.reads.len() >= MOST_READS {
            return self.send(host, disk, Message::Got { loan, block, question, found: None });
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.reads.insert(ticket, Read { host, disk, loan, block, question });
        self.outputs.push_back(LenderOutput::Read { no, block, ticket });
    }

    /// Handles the end of a read: the block's data, if the block is there.
    pub fn read_done(&mut self, ticket: u64, data: Option<Vec<u8>>) {
        let Some(Read { host, disk, loan, block, question }) = self.reads.remove(&ticket) else { return };
        self.figures.hit_blocks += u64::from(data.is_some());
        let no = self.numbers.get(&(host, disk, loan));
        if let Some(held) = no.and_then(|no| self.loans.get_mut(no)) {
            held.status.hit_blocks += u64::from(data.is_some());
        }
        let found = data.map(|data| (checksum(disk, loan, block, &data), data));
        self.send(host, disk, Message::Got { loan, block, question, found });
    }

    /// Records that no space could be made for a loan.
    pub fn failed(&mut self, no: LoanNo) {
        if let Some(held) = self.take(no) {
            let LoanStatus { host, disk, loan, .. } = held.status;
            self.send(host, disk, Message::Ended { loan });
        }
    }

    /// Takes a loan back, because the space is needed. Returns false if there is none.
    pub fn give_back(&mut self) -> bool {
        let Some((_, no)) = self.richest() else { return false };
        self.figures.given_back += 1;
        self.end(no);
        true
    }

    /// Ends the loans of hosts that are gone, from time to time. `connection` returns the number of a host's present
    /// connection.
    pub fn look(&mut self, now: Micros, connection: &dyn Fn(HostId) -> Option<u64>) {
        if now < self.look_us {
            return;
        }
        self.look_us = now + LOOK_EVERY_US;
        let hosts: BTreeSet<HostId> = self.loans.values().map(|held| held.status.host).collect();
        self.present.retain(|host, _| hosts.contains(host));
        for host in hosts {
            let connection = connection(host);
            let new = Presence { connection, began_us: 0, seen_us: now };
            self.present.entry(host).or_insert(new).look(now, connection);
        }
        let present = &self.present;
        let ends = |held: &Held| present[&held.status.host].ends(now, held.used_us);
        let ended: Vec<LoanNo> =
            self.loans.iter().filter(|(_, held)| ends(held)).map(|(no, _)| *no).collect();
        self.figures.left_loans += ended.len() as u64;
        ended.into_iter().for_each(|no| self.end(no));
    }

    /// Returns when [`Lender::look`] has to be called.
    pub fn next_look(&self) -> Option<Micros> {
        (!self.loans.is_empty()).then_some(self.look_us)
    }

    fn take(&mut self, no: LoanNo) -> Option<Held> {
        let held = self.loans.remove(&no)?;
        let LoanStatus { host, disk, loan, .. } = held.status;
        self.numbers.remove(&(host, disk, loan));
        Some(held)
    }

    /// Frees a loan and tells its borrower.
    fn end(&mut self, no: LoanNo) {
        self.outputs.push_back(LenderOutput::Drop(no));
        self.failed(no);
    }

    fn forget(&mut self, no: LoanNo) {
        self.outputs.push_back(LenderOutput::Drop(no));
        self.take(no);
    }

    /// Returns the loans, oldest first.
    pub fn loans(&self, now: Micros) -> impl Iterator<Item = LoanStatus> + '_ {
        let status =
            move |held: &Held| LoanStatus { age_us: now.saturating_sub(held.since_us), ..held.status };
        self.loans.values().map(status)
    }

    /// Returns the figures.
    pub fn figures(&self) -> LenderFigures {
        let blocks = self.loans.values().map(|held| u64::from(held.status.blocks)).sum();
        let (loans, promised_blocks) = (self.loans.len() as u64, self.promised_blocks());
        LenderFigures { loans, blocks, promised_blocks, ..self.figures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DiskId = DiskId([7; 16]);
    const LEAST: u32 = LEAST_LOAN_BLOCKS;

    /// Opens a loan. Returns whether it was granted.
    fn opens(lender: &mut Lender, now: Micros, host: u64, loan: Loan, blocks: u32) -> bool {
        lender.heard(now, HostId(host), DISK, Message::Open { loan, blocks, disk_blocks: 1 << 20 }, 1000);
        let answers: Vec<LenderOutput> = std::iter::from_fn(|| lender.poll()).collect();
        let has = |message| answers.contains(&LenderOutput::Send(HostId(host), DISK, message));
        assert!(has(Message::Opened { loan }) != has(Message::Ended { loan }));
        has(Message::Opened { loan })
    }

    fn loan(epoch: u64, number: u64) -> Loan {
        Loan { epoch, number }
    }

    fn held(lender: &Lender) -> Vec<(u64, Loan)> {
        lender.loans(0).map(|status| (status.host.0, status.loan)).collect()
    }

    #[test]
    fn a_loan_that_is_refused_costs_no_other_loan() {
        let mut lender = Lender::new(5 * u64::from(LEAST));
        (1..=4).for_each(|number| assert!(opens(&mut lender, 0, 1, loan(1, number), LEAST)));
        assert!(opens(&mut lender, 0, 2, loan(1, 1), LEAST));
        let before = held(&lender);
        for blocks in [MOST_LOAN_BLOCKS, 2 * LEAST, LEAST - 1, 1, 0] {
            assert!(!opens(&mut lender, 0, 1, loan(1, 5), blocks), "{blocks}");
            assert_eq!(held(&lender), before);
        }
        assert!(opens(&mut lender, 0, 1, loan(1, 5), LEAST));
        assert!(!held(&lender).contains(&(1, loan(1, 1))), "its oldest loan has to go");
    }

    #[test]
    fn a_loan_for_which_not_enough_would_be_freed_costs_no_other_loan() {
        let mut lender = Lender::new(8 * u64::from(LEAST));
        (1..=2).for_each(|number| assert!(opens(&mut lender, 0, 1, loan(1, number), LEAST)));
        (2..=4).for_each(|host| assert!(opens(&mut lender, 0, host, loan(1, 1), 2 * LEAST)));
        let before = held(&lender);
        // The first host could lose one of its two loans; that is not enough.
        assert!(!opens(&mut lender, 0, 5, loan(1, 1), 2 * LEAST));
        assert_eq!(held(&lender), before);
        assert!(opens(&mut lender, 0, 5, loan(1, 1), LEAST));
        assert_eq!(held(&lender).iter().filter(|(host, _)| *host == 1).count(), 1);
    }

    #[test]
    fn loans_of_an_earlier_epoch_end() {
        let mut lender = Lender::new(64 * u64::from(LEAST));
        assert!(opens(&mut lender, 0, 1, loan(1, 1), LEAST) && opens(&mut lender, 0, 1, loan(1, 2), LEAST));
        assert!(opens(&mut lender, 0, 2, loan(1, 1), LEAST));
        assert!(opens(&mut lender, 0, 1, loan(2, 1), LEAST));
        assert_eq!(held(&lender), [(2, loan(1, 1)), (1, loan(2, 1))]);
    }

    /// Lets the time pass, and returns the loans that are left.
    fn after(lender: &mut Lender, times: std::ops::Range<u64>, connection: Option<u64>) -> usize {
        for second in times {
            lender.look(second * 1_000_000, &|host| if host == HostId(1) { connection } else { Some(1) });
        }
        while lender.poll().is_some() {}
        lender.loans(0).filter(|status| status.host == HostId(1)).count()
    }

    /// Two loans of a host, and one of another one.
    fn three_loans() -> Lender {
        let mut lender = Lender::new(64 * u64::from(LEAST));
        for (host, number) in [(1, 1), (1, 2), (2, 1)] {
            assert!(opens(&mut lender, 0, host, loan(1, number), LEAST));
        }
        lender
    }

    #[test]
    fn loans_of_a_host_that_is_gone_end_after_a_minute_and_no_others() {
        let mut lender = three_loans();
        assert_eq!(after(&mut lender, 0..100, Some(7)), 2);
        assert_eq!(after(&mut lender, 100..155, None), 2);
        // It was back for a moment: the same process may use them on.
        assert_eq!(after(&mut lender, 155..160, Some(8)), 2);
        assert_eq!(after(&mut lender, 160..210, None), 2);
        assert_eq!(after(&mut lender, 210..230, None), 0);
        assert_eq!(lender.loans(0).count(), 1, "the other host's");
        assert_eq!(lender.figures().left_loans, 2);
    }

    #[test]
    fn loans_that_are_not_used_after_a_reconnection_end_after_ten_minutes() {
        let mut lender = three_loans();
        assert_eq!(after(&mut lender, 0..2000, Some(7)), 2, "an unused loan of a host that was never away");
        assert_eq!(after(&mut lender, 2000..2300, Some(8)), 2);
        lender.heard(
            2_300_000_000,
            HostId(1),
            DISK,
            Message::Get { loan: loan(1, 2), block: 7, question: 0 },
            1,
        );
        assert_eq!(after(&mut lender, 2300..2590, Some(8)), 2);
        assert_eq!(after(&mut lender, 2590..2620, Some(8)), 1);
        assert!(held(&lender).contains(&(1, loan(1, 2))));
        assert_eq!(after(&mut lender, 2620..9000, Some(8)), 1);
    }

    #[test]
    fn a_loan_says_how_old_it_is_and_what_it_was_good_for() {
        let mut lender = Lender::new(5 * u64::from(LEAST));
        assert!(opens(&mut lender, 100, 1, loan(1, 1), LEAST));
        for question in 0..3 {
            lender.heard(200, HostId(1), DISK, Message::Get { loan: loan(1, 1), block: 7, question }, 1000);
            let Some(LenderOutput::Read { ticket, .. }) = lender.poll() else { panic!("it is read") };
            lender.read_done(ticket, (question > 0).then(|| vec![0; BLOCK_BYTES]));
            while lender.poll().is_some() {}
        }
        let shown: Vec<LoanStatus> = lender.loans(1100).collect();
        let [LoanStatus { most_blocks, age_us, asked_blocks, hit_blocks, .. }] = shown[..] else {
            panic!("{shown:?}")
        };
        assert_eq!((most_blocks, age_us, asked_blocks, hit_blocks), (LEAST, 1000, 3, 2));
        assert_eq!(lender.figures().promised_blocks, u64::from(LEAST));
    }

    #[test]
    fn a_host_that_opens_loans_without_end_is_slowed_down() {
        let mut lender = Lender::new(1 << 30);
        let mut granted = 0;
        for number in 1..=1000 {
            // One each millisecond.
            let loan = loan(1, number);
            granted += u64::from(opens(&mut lender, number * 1000, 1, loan, LEAST));
            lender.heard(number * 1000, HostId(1), DISK, Message::Close { loan }, 1000);
            while lender.poll().is_some() {}
        }
        assert!((40..=1_000_000 / OPEN_EVERY_US + OPENS_AT_ONCE + 2).contains(&granted), "{granted}");
        assert!(opens(&mut lender, 1_000_000, 2, loan(1, 1), LEAST), "another host");
    }
}
