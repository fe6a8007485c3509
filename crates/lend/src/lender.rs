//! The lender's side: who has which loan, and what is given back when the space is needed.
//!
//! Invariants
//! - All loans together have at most the configured number of blocks, and at most as many blocks are stored as the caller says
//!   are spare.
//! - When space is short, the host that has most loses its oldest loan first: the hosts' parts tend to equal ones (max-min).
//! - Memory: [`MOST_LOANS`] loans and [`MOST_READS`] reads, whatever other hosts send.

use std::collections::{BTreeMap, HashMap, VecDeque};

use haversack_model::{DiskId, HostId};

use crate::BLOCK_BYTES;
use crate::message::{Loan, Message, checksum};

/// The most loans.
const MOST_LOANS: usize = 512;
/// The most reads at a time.
const MOST_READS: usize = 512;
/// The most blocks of a loan.
const MOST_LOAN_BLOCKS: u32 = 1 << 16;
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

/// What has happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LenderFigures {
    /// Loans that there are.
    pub loans: u64,
    /// Blocks that were stored in them.
    pub blocks: u64,
    /// Blocks that were asked for.
    pub asked_blocks: u64,
    /// Blocks that were there.
    pub hit_blocks: u64,
    /// Blocks that were taken in.
    pub stored_blocks: u64,
    /// Blocks with a wrong checksum.
    pub bad_blocks: u64,
    /// Loans that were given back because the space was needed.
    pub given_back: u64,
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
    /// Blocks that were stored.
    pub blocks: u32,
}

struct Held {
    status: LoanStatus,
    most_blocks: u32,
    disk_blocks: u64,
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

    /// Takes in a message of a host that may borrow. `spare_blocks` can be stored without taking space from anyone.
    pub fn heard(&mut self, from: HostId, disk: DiskId, message: Message, spare_blocks: u64) {
        let loan = message.loan();
        let no = self.numbers.get(&(from, disk, loan)).copied();
        match (message, no) {
            (Message::Open { .. }, Some(_)) => self.send(from, disk, Message::Opened { loan }),
            (Message::Open { blocks, disk_blocks, .. }, None) => {
                let is_valid =
                    (1..=MOST_LOAN_BLOCKS).contains(&blocks) && (1..=MOST_DISK_BLOCKS).contains(&disk_blocks);
                if is_valid && spare_blocks > 0 && self.has_room(from, blocks) {
                    self.grant(from, disk, loan, blocks, disk_blocks);
                } else {
                    self.send(from, disk, Message::Ended { loan });
                }
            }
            (Message::Close { .. }, Some(no)) => self.forget(no),
            (Message::Put { block, crc, data, .. }, Some(no)) => {
                self.put(no, block, crc, data, spare_blocks);
            }
            (Message::Get { block, question, .. }, Some(no)) => self.get(no, block, question),
            (Message::Put { .. } | Message::Get { .. }, None) => {
                self.send(from, disk, Message::Ended { loan });
            }
            (Message::Close { .. }, None)
            | (Message::Opened { .. } | Message::Ended { .. } | Message::Got { .. }, _) => {}
        }
    }

    fn grant(&mut self, host: HostId, disk: DiskId, loan: Loan, most_blocks: u32, disk_blocks: u64) {
        let no = LoanNo(self.next_no);
        self.next_no += 1;
        let status = LoanStatus { host, disk, loan, blocks: 0 };
        self.loans.insert(no, Held { status, most_blocks, disk_blocks });
        self.numbers.insert((host, disk, loan), no);
        self.outputs.push_back(LenderOutput::Make { no, disk_blocks });
        self.send(host, disk, Message::Opened { loan });
    }

    /// Makes room for a loan of a host, if that is fair. Returns whether there is room.
    fn has_room(&mut self, host: HostId, blocks: u32) -> bool {
        loop {
            let promised: u64 = self.loans.values().map(|held| u64::from(held.most_blocks)).sum();
            if promised + u64::from(blocks) <= self.capacity_blocks && self.loans.len() < MOST_LOANS {
                return true;
            }
            let Some((most, no)) = self.richest() else { return false };
            let of_host = |held: &&Held| held.status.host == host;
            let mine = self.loans.values().filter(of_host).count();
            let its = self.loans.values().filter(|held| held.status.host == most).count();
            if most != host && its <= mine + 1 {
                // Its own oldest loan goes, if it has one.
                let Some(no) = self.oldest_of(host) else { return false };
                self.end(no);
            } else {
                self.end(no);
            }
        }
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

    fn put(&mut self, no: LoanNo, block: u64, crc: u32, data: Vec<u8>, spare_blocks: u64) {
        let held = self.loans.get_mut(&no).expect("a number is of a loan");
        let status = &mut held.status;
        if data.len() != BLOCK_BYTES || checksum(status.disk, status.loan, block, &data) != crc {
            self.figures.bad_blocks += 1;
            return;
        }
        if block >= held.disk_blocks || status.blocks >= held.most_blocks || spare_blocks == 0 {
            return;
        }
        status.blocks += 1;
        self.figures.stored_blocks += 1;
        self.outputs.push_back(LenderOutput::Store { no, block, data });
    }

    fn get(&mut self, no: LoanNo, block: u64, question: u64) {
        let held = &self.loans[&no];
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

    /// Takes in the end of a read: the block's data, if it is there.
    pub fn read_done(&mut self, ticket: u64, data: Option<Vec<u8>>) {
        let Some(Read { host, disk, loan, block, question }) = self.reads.remove(&ticket) else { return };
        self.figures.hit_blocks += u64::from(data.is_some());
        let found = data.map(|data| (checksum(disk, loan, block, &data), data));
        self.send(host, disk, Message::Got { loan, block, question, found });
    }

    /// Notes that there can be no space for a loan.
    pub fn failed(&mut self, no: LoanNo) {
        if let Some(held) = self.take(no) {
            let LoanStatus { host, disk, loan, .. } = held.status;
            self.send(host, disk, Message::Ended { loan });
        }
    }

    /// Gives a loan back, because the space is needed. Returns false if there is none.
    pub fn give_back(&mut self) -> bool {
        let Some((_, no)) = self.richest() else { return false };
        self.figures.given_back += 1;
        self.end(no);
        true
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
    pub fn loans(&self) -> impl Iterator<Item = LoanStatus> + '_ {
        self.loans.values().map(|held| held.status)
    }

    /// Returns the figures.
    pub fn figures(&self) -> LenderFigures {
        let blocks = self.loans.values().map(|held| u64::from(held.status.blocks)).sum();
        LenderFigures { loans: self.loans.len() as u64, blocks, ..self.figures }
    }
}
