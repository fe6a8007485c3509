//! The lender's side: carries out what [`Lender`] decides.

use std::collections::HashMap;

use haversack_core::{Copied, DiskConfig, ManageError, RequestError};
use haversack_lend::{Lender, LenderOutput, LoanNo, Message};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskId, DiskNo, HostId, Micros, SECTORS_PER_BLOCK};

use super::{LENT, LendingSettings, is_lent};
use crate::moving::HostMessage;
use crate::moving::copies::Purpose;
use crate::pool::random_id;
use crate::reactor::Reactor;

/// The reserve is the number of all blocks divided by this. Nothing more is lent when fewer blocks than the reserve are
/// free. Loans are given back when fewer than half of the reserve are free.
const KEPT_SHARE: u64 = 32;
/// The minimum reserve: eight segments.
const LEAST_KEPT_BLOCKS: u64 = 8 * 253;
/// The minimum time between giving back two loans. The space of earlier loans must be free, too.
const GIVE_BACK_EVERY_US: Micros = 20_000;
/// How long to wait for the space of earlier loans.
const FREE_WITHIN_US: Micros = 1_000_000;
/// The most disks that loans may use, including disks that are being forgotten. The rest of the disk table is for the
/// host's own disks.
const MOST_LENT_DISKS: usize = 256;

/// See the module.
pub(crate) struct Lending {
    pub settings: LendingSettings,
    pub lender: Lender,
    disks: HashMap<LoanNo, DiskNo>,
    /// Disks of loans that have ended and could not be given up yet.
    ending: Vec<DiskNo>,
    given_back_us: Micros,
}

impl Lending {
    pub fn new(settings: LendingSettings, lender: Lender) -> Lending {
        Lending { settings, lender, disks: HashMap::new(), ending: Vec::new(), given_back_us: 0 }
    }
}

impl Reactor {
    /// Returns how many blocks can be lent, and whether so few are free that some must be given back.
    pub(super) fn spare_blocks(&self) -> (u64, bool) {
        let (free, all) = self.core.free_blocks();
        let kept = (all / KEPT_SHARE).max(LEAST_KEPT_BLOCKS);
        (free.saturating_sub(kept), free < kept / 2)
    }

    pub(super) fn borrower_said(&mut self, from: HostId, disk: DiskId, message: Message) {
        let (spare_blocks, _) = self.spare_blocks();
        let Some(lending) = &mut self.lending else { return };
        if lending.settings.borrowers.contains(&from) && lending.settings.lent_blocks > 0 {
            lending.lender.heard(self.now, from, disk, message, spare_blocks);
            self.drive_lending();
        }
    }

    /// Carries out the lender's outputs.
    fn drive_lending(&mut self) {
        while let Some(output) = self.lending.as_mut().and_then(|lending| lending.lender.poll()) {
            match output {
                LenderOutput::Send(host, disk, message) => {
                    if let Some(lending) = &self.lending {
                        (lending.settings.send)(host, disk, HostMessage::Lend(message));
                    }
                }
                LenderOutput::Make { no, disk_blocks } => self.make_loan(no, disk_blocks),
                LenderOutput::Drop(no) => {
                    let number = self.lending.as_mut().and_then(|lending| lending.disks.remove(&no));
                    number.into_iter().for_each(|number| self.end_loan(number));
                }
                LenderOutput::Store { no, block, data } => self.store_lent(no, block, data),
                LenderOutput::Read { no, block, ticket } => self.read_lent(no, block, ticket),
            }
        }
    }

    /// Returns the disks of loans that the core has, with those that are being forgotten.
    fn lent_disks(&self) -> usize {
        let is_loan = |number: &DiskNo| self.core.disk_info(*number).is_some_and(|info| is_lent(&info));
        self.core.disk_numbers().filter(is_loan).count()
    }

    fn make_loan(&mut self, no: LoanNo, disk_blocks: u64) {
        let has_place = self.lent_disks() < MOST_LENT_DISKS;
        let random = has_place.then(random_id).and_then(Result::ok);
        let made = random.and_then(|random| {
            let mut id = DiskId(random.0);
            id.0[..LENT.len()].copy_from_slice(&LENT);
            let config = DiskConfig::new(id, disk_blocks * SECTORS_PER_BLOCK);
            self.core_call(|core, now| core.lend_space(now, &config)).ok()
        });
        let Some(lending) = &mut self.lending else { return };
        match made {
            Some(number) => drop(lending.disks.insert(no, number)),
            None => lending.lender.failed(no),
        }
    }

    fn end_loan(&mut self, number: DiskNo) {
        let ended = self.core_call(|core, now| core.end_loan(now, number));
        if let (Err(ManageError::Busy), Some(lending)) = (ended, &mut self.lending) {
            lending.ending.push(number);
        }
    }

    fn loan_disk(&self, no: LoanNo) -> Option<DiskNo> {
        self.lending.as_ref()?.disks.get(&no).copied()
    }

    fn store_lent(&mut self, no: LoanNo, block: u64, data: Vec<u8>) {
        let Some(number) = self.loan_disk(no) else { return };
        let tag = self.memory.payloads.copies.put(Purpose::Take, data);
        let (now, copied) = (self.now, Copied { mask: u8::MAX, reused: false });
        // If there is no room for the block now, it is dropped.
        let _ = self.core.with(&mut self.memory).take_copy(now, tag, number, BlockNo(block), copied);
        self.memory.payloads.copies.drop_buffer(tag);
    }

    fn read_lent(&mut self, no: LoanNo, block: u64, ticket: u64) {
        let tag = self.memory.payloads.copies.put(Purpose::Lent { ticket }, vec![0; BLOCK_BYTES]);
        let (now, number) = (self.now, self.loan_disk(no));
        let started = number.and_then(|number| {
            self.core.with(&mut self.memory).read_copy(now, tag, number, BlockNo(block), ticket).ok()?
        });
        match started {
            Some(Copied { mask: u8::MAX, .. }) => {}
            // Only part of the block is cached, so the borrower gets nothing. The result of this read is not used.
            Some(_) => self.lent_read(ticket, None),
            None => {
                self.memory.payloads.copies.drop_buffer(tag);
                self.lent_read(ticket, None);
            }
        }
    }

    /// Handles the end of a read of a lent block.
    pub(crate) fn lent_read_done(&mut self, ticket: u64, bytes: Vec<u8>, result: Result<(), RequestError>) {
        self.lent_read(ticket, result.ok().map(|()| bytes));
        self.drive_lending();
    }

    fn lent_read(&mut self, ticket: u64, data: Option<Vec<u8>>) {
        if let Some(lending) = &mut self.lending {
            lending.lender.read_done(ticket, data);
        }
    }

    /// Gives loans back if other disks need the space. Returns true if there was anything to do.
    pub(crate) fn tick_lending(&mut self) -> bool {
        let Some(lending) = &mut self.lending else { return false };
        let ending = std::mem::take(&mut lending.ending);
        let any = !ending.is_empty();
        ending.into_iter().for_each(|number| self.end_loan(number));
        any | self.end_left_loans() | self.give_back()
    }

    /// Ends loans of hosts that are gone. Returns whether it did.
    fn end_left_loans(&mut self) -> bool {
        let (now, Some(lending)) = (self.now, &mut self.lending) else { return false };
        if lending.lender.next_look().is_none_or(|due_us| due_us > now) {
            return false;
        }
        let before = lending.disks.len();
        lending.lender.look(now, &*lending.settings.connection);
        self.drive_lending();
        self.lending.as_ref().is_some_and(|lending| lending.disks.len() < before)
    }

    /// Returns when loans must be checked next.
    pub(crate) fn next_look_at_loans(&self) -> Option<Micros> {
        self.lending.as_ref()?.lender.next_look()
    }

    /// Takes a loan back if space is short. Returns whether it did.
    fn give_back(&mut self) -> bool {
        let (_, is_short) = self.spare_blocks();
        let (now, Some(lending)) = (self.now, &self.lending) else { return false };
        let (since_us, used) = (now.saturating_sub(lending.given_back_us), lending.disks.len());
        if !is_short || used == 0 || since_us < GIVE_BACK_EVERY_US {
            return false;
        }
        // Loans that are being forgotten will free space soon.
        if since_us < FREE_WITHIN_US && self.lent_disks() > used {
            return false;
        }
        let given_back = self.lending.as_mut().is_some_and(|lending| {
            lending.given_back_us = now;
            lending.lender.give_back()
        });
        self.drive_lending();
        given_back
    }
}
