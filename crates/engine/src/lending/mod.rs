//! Pooled flash: this host reads disks' origins through the spare flash of others, and lends its own.
//!
//! The borrower's side is a layer over a disk's origin ([`crate::origin`]); a disk that does not borrow has none. The
//! lender's side stores the blocks of each loan as copies of a disk of its own, which has no origin and never gets one
//! ([`haversack_core::Call::lend_space`]).
//!
//! Invariants
//! - Only free segments are lent, and nothing more when few are left. When they become fewer, loans are given back.
//! - A disk knows only the lenders that were chosen, however many hosts there are.
//! - Loans that a crash has left are forgotten before the first one is granted.

mod lender;

use std::sync::Arc;

use haversack_core::DiskInfo;
use haversack_lend::{
    AtLender, BorrowerFigures, BorrowerSettings, Lender, LenderFigures, LoanStatus, Message,
};
use haversack_model::{DiskHandle, DiskId, HostId, SECTORS_PER_BLOCK};

use crate::config::DiskSpec;
use crate::moving::{RoomForCopies, SendToHost};
use crate::origin::{BorrowedOrigin, Origin, Port};
use crate::pool::random_id;
use crate::reactor::Reactor;

pub(crate) use lender::Lending;

/// Returns whether a host is connected, and has said on this connection that it lends to this one.
pub type LendsToMe = Arc<dyn Fn(HostId) -> bool + Send + Sync>;

/// Returns the number of the present connection to a host; `None` if it is not connected.
pub type ConnectionTo = Arc<dyn Fn(HostId) -> Option<u64> + Send + Sync>;

/// What a pool lends and borrows.
#[derive(Clone)]
pub struct LendingSettings {
    /// How messages are sent.
    pub send: SendToHost,
    /// How many blocks may be sent to a lender now.
    pub room: RoomForCopies,
    /// Which hosts lend at present.
    pub lends_to_me: LendsToMe,
    /// Whether disks may borrow at all.
    pub borrows: bool,
    /// The hosts that they borrow from, until others are chosen.
    pub lenders: Vec<HostId>,
    /// The names of the disks that borrow; all if not set.
    pub borrowing_disks: Option<Vec<String>>,
    /// The most blocks that the pool lends; 0 for none.
    pub lent_blocks: u64,
    /// The hosts that it lends to.
    pub borrowers: Vec<HostId>,
    /// The number of the present connection to a host.
    pub connection: ConnectionTo,
}

/// What a pool lends and borrows at one moment.
#[derive(Clone, Debug, Default)]
pub struct LendingStatus {
    /// Whether it lends at all.
    pub lends: bool,
    /// The most blocks that it lends.
    pub capacity_blocks: u64,
    /// Blocks that could be lent in addition: they are free, and within the capacity.
    pub spare_blocks: u64,
    /// What it lends.
    pub lent: LenderFigures,
    /// The loans.
    pub loans: Vec<LoanStatus>,
    /// What its disks borrow.
    pub borrowed: Vec<Borrowed>,
}

/// What a disk borrows.
#[derive(Clone, Debug, Default)]
pub struct Borrowed {
    /// The disk's name.
    pub disk: String,
    /// What has happened.
    pub figures: BorrowerFigures,
    /// What it has at each lender.
    pub lenders: Vec<AtLender>,
}

impl LendingStatus {
    /// Adds the status of another arena.
    pub(crate) fn add(&mut self, other: LendingStatus) {
        let (mine, its) = (&mut self.lent, other.lent);
        self.capacity_blocks += other.capacity_blocks;
        self.spare_blocks += other.spare_blocks;
        mine.loans += its.loans;
        mine.promised_blocks += its.promised_blocks;
        mine.blocks += its.blocks;
        mine.asked_blocks += its.asked_blocks;
        mine.hit_blocks += its.hit_blocks;
        mine.stored_blocks += its.stored_blocks;
        mine.bad_blocks += its.bad_blocks;
        mine.given_back += its.given_back;
        mine.left_loans += its.left_loans;
        self.lends |= other.lends;
        self.loans.extend(other.loans);
        self.borrowed.extend(other.borrowed);
    }
}

/// The first half of the identities of disks that are lent.
const LENT: [u8; 8] = *b"hs-lent\0";

fn is_lent(info: &DiskInfo) -> bool {
    info.id.0.starts_with(&LENT)
}

impl Reactor {
    /// Forgets what an earlier run of the pool has left of loans.
    pub(crate) fn forget_loans(&mut self) {
        let numbers: Vec<_> = self.core.disk_numbers().collect();
        for number in numbers {
            if self.core.disk_info(number).is_some_and(|info| is_lent(&info)) {
                // An error means that the loan is of this run, or is already being forgotten.
                let _ = self.core_call(|core, now| core.forget(now, number, None));
            }
        }
    }

    /// Begins to lend and to borrow. Disks that are attached from now on may borrow.
    pub(crate) fn join_lending(&mut self, settings: LendingSettings) {
        if self.lending.is_some() {
            return;
        }
        let lender = Lender::new(settings.lent_blocks);
        self.lending = Some(Box::new(Lending::new(settings, lender)));
    }

    /// Returns an origin that is read through lenders, if the disk borrows; otherwise the origin itself.
    pub(crate) fn with_lenders(&self, spec: &DiskSpec, origin: Box<dyn Origin>) -> Box<dyn Origin> {
        let Some(settings) = self.lending.as_ref().map(|lending| &lending.settings) else { return origin };
        let names = settings.borrowing_disks.as_ref();
        let is_named = names.is_none_or(|names| names.contains(&spec.name));
        if !(settings.borrows && spec.borrows && is_named && self.clock.runs()) {
            return origin;
        }
        let Ok(epoch) = random_id() else { return origin };
        let shift = (SECTORS_PER_BLOCK - u64::from(spec.config.phase)) % SECTORS_PER_BLOCK;
        let borrower = BorrowerSettings {
            disk: spec.config.id,
            // A block that is partly outside is not lent.
            disk_blocks: (spec.config.sectors + shift) / SECTORS_PER_BLOCK,
            epoch: u64::from_le_bytes(epoch.0[..8].try_into().expect("eight bytes")),
            lenders: settings.lenders.clone(),
        };
        let port = Port {
            send: settings.send.clone(),
            room: settings.room.clone(),
            lends_to_me: settings.lends_to_me.clone(),
        };
        Box::new(BorrowedOrigin::new(origin, borrower, shift, port))
    }

    /// Handles a message from another host about a loan.
    pub(crate) fn lend_said(&mut self, from: HostId, disk: DiskId, message: Message) {
        self.now = self.clock.now_us();
        if message.is_for_lender() {
            self.borrower_said(from, disk, message);
        } else if let Some(handle) = self.handle_of(disk) {
            self.origin(handle, |origin, context| origin.lender_said(context, from, message));
        }
    }

    fn handle_of(&self, disk: DiskId) -> Option<DiskHandle> {
        self.disks.iter().find(|live| live.spec.config.id == disk).map(|live| live.handle)
    }

    /// Stops using everything that was sent to lenders so far, because another host may have written the disk's origin.
    pub(crate) fn void_lent(&mut self, disk: DiskId) {
        if let Some(handle) = self.handle_of(disk) {
            self.origin(handle, |origin, context| origin.void_lent(context));
        }
    }

    /// Has disks borrow from these hosts and no others.
    pub(crate) fn choose_lenders(&mut self, hosts: Vec<HostId>) {
        self.now = self.clock.now_us();
        let handles: Vec<DiskHandle> = self.disks.iter().map(|live| live.handle).collect();
        for handle in handles {
            self.origin(handle, |origin, context| origin.choose_lenders(context, &hosts));
        }
        if let Some(lending) = &mut self.lending {
            lending.settings.lenders = hosts;
        }
    }

    pub(crate) fn lending_status(&self) -> LendingStatus {
        let now = self.clock.now_us();
        let borrowed = self.disks.iter().filter_map(|live| {
            let (figures, lenders) = live.origin.borrowed(now)?;
            Some(Borrowed { disk: live.spec.name.clone(), figures, lenders })
        });
        let mut status = LendingStatus { borrowed: borrowed.collect(), ..LendingStatus::default() };
        if let Some(lending) = &self.lending {
            status.lends = lending.settings.lent_blocks > 0;
            status.capacity_blocks = lending.settings.lent_blocks;
            status.lent = lending.lender.figures();
            status.loans = lending.lender.loans(now).collect();
            let left_blocks = status.capacity_blocks.saturating_sub(status.lent.promised_blocks);
            let (spare_blocks, _) = self.spare_blocks();
            // What is promised and not stored yet needs room as well.
            let unstored_blocks = status.lent.promised_blocks.saturating_sub(status.lent.blocks);
            status.spare_blocks = spare_blocks.saturating_sub(unstored_blocks).min(left_blocks);
        }
        status
    }
}
