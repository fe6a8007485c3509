//! Permits to change an origin, and the account of what was sent to it. Only the gate makes permits.

use std::ops::Range;

use haversack_model::DiskNo;

/// Proof that the gate let an action through. Nothing else can make one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed(pub(super) ());

/// Permission to write a run of blocks of a disk's origin, once and now.
#[must_use]
pub(crate) struct Permit {
    pub(super) disk: DiskNo,
    pub(super) blocks: Range<u64>,
}

impl Permit {
    /// Extends the permit by the run of another one, which must start where this one ends.
    pub fn join(&mut self, next: Permit) {
        let Permit { disk, blocks } = next;
        assert!(self.disk == disk && self.blocks.end == blocks.start, "the runs are neighbours");
        self.blocks.end = blocks.end;
    }
}

/// An application for a permit to write past the cache: the conditions are checked block by block.
pub(crate) struct Application {
    pub(super) permit: Permit,
    /// All conditions held for all blocks shown so far.
    pub(super) complete: bool,
}

/// The place from which the cleaner takes a version of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CleaningFrom {
    /// Flash, where the commit with this number wrote it.
    Flash { seq: u64 },
    /// The staging area, for a disk that gets no space on flash.
    Staging,
}

/// The changes that were sent to a disk's origin, and how many of them may be in its volatile cache alone.
pub(crate) struct OriginAccount {
    /// Writes and zeroes in flight.
    pub(super) in_flight: u32,
    /// Completed changes that a guest was told of and that were not durable when they were answered, and how
    /// many of them are durable by now. The cleaner's writes are not counted: their blocks stay dirty until
    /// they are durable.
    pub(super) changes: u64,
    durable: u64,
    /// Some changes that are not durable are from an earlier time, and no write-intent bitmap marks them.
    unmarked: bool,
}

impl OriginAccount {
    /// Returns the account as the record has it: `unmarked` if an earlier time may have left volatile writes
    /// that no map marks.
    pub fn new(unmarked: bool) -> OriginAccount {
        OriginAccount { in_flight: 0, changes: u64::from(unmarked), durable: 0, unmarked }
    }

    /// Called when an earlier time may have left volatile writes.
    pub fn suspect(&mut self) {
        self.changes += 1;
    }

    /// Called when an earlier time may have left volatile writes that no durable map marks.
    pub fn suspect_unmarked(&mut self) {
        self.suspect();
        self.unmarked = true;
    }

    /// Whether everything that a guest was told of is durable at the origin.
    pub fn is_durable(&self) -> bool {
        self.durable >= self.changes
    }

    /// Whether the record must say that the origin may hold volatile writes.
    pub fn is_unmarked(&self) -> bool {
        self.unmarked
    }

    /// Called when a flush is done that was sent after this many changes.
    pub fn flushed(&mut self, changes: u64) {
        self.durable = self.durable.max(changes);
        self.unmarked &= !self.is_durable();
    }
}
