//! The gate to the origins: the only place that sends writes, zeroes and flushes to an origin, and keeps
//! track of them.
//!
//! [`Action::WriteOrigin`] and [`Action::ZeroOrigin`] contain a [`Passed`], which only this file can make,
//! and only for a [`Permit`]. A permit is for a run of blocks of one disk. It is used once, in the call that
//! returned it, while the conditions checked for it still hold.
//!
//! Invariants
//! - Only the owner of a disk writes its origin: after [`crate::Call::release`] was called no write is started.
//! - A write past the cache starts only when the loss of the last device, if there was one, is durably noted
//!   outside the pool; when each of its blocks is marked in the write-intent bitmap; and when no durable page
//!   calls a block dirty, unless the write replaces the whole block and its caller drops what pages list
//!   before the write counts as done.
//! - The cleaner writes a version only if it is durable in the cache. A staged version is written only if the
//!   disk owns no segment, so that no page lists an older one, and only if its region is marked: this is a
//!   write past the cache.
//! - Nothing is written to blocks that the disk's earlier owner may still list as dirty; `flow/takeover.rs` has the
//!   only exception.
//! - An origin counts as durable only if every completed change that a guest was told of was flushed, or was
//!   already durable when it was answered.

pub(crate) mod permit;

use haversack_model::{BlockNo, DiskNo, SECTOR_BYTES, SectorNo};

use crate::action::{Action, IoId};
use crate::bugs::{Bug, planted};
use crate::core::Core;
use crate::io::{OriginFlushReason, Purpose};
use permit::{Application, CleaningFrom, Passed, Permit};

impl Core {
    /// Whether this host may write the origin at all.
    pub(crate) fn may_write_origin(&self, disk: DiskNo) -> bool {
        self.disk(disk).life.writes_origin() || planted(Bug::CleanAfterRelease)
    }

    /// Starts an application for a write past the cache from this block on. Returns `None` if the disk's
    /// origin may not be written past the cache now, whatever the blocks.
    pub(crate) fn apply_for_write(&self, disk: DiskNo, first: BlockNo) -> Option<Application> {
        let permit = Permit { disk, blocks: first.0..first.0 };
        let may_write = self.may_write_origin(disk) && !self.loss_unrecorded();
        may_write.then_some(Application { permit, complete: true })
    }

    /// Checks the next block of the application; returns whether its conditions hold, and requests those that
    /// do not. `replaces` says that the write covers the whole block and its caller takes care of what
    /// durable pages list. There is a permit only if no block is left out.
    pub(crate) fn show_block(
        &mut self,
        application: &mut Application,
        block: BlockNo,
        replaces: bool,
    ) -> bool {
        let disk = application.permit.disk;
        let listed = if replaces || planted(Bug::OvertakeListed) {
            None
        } else {
            self.store.durably_dirty(disk, block)
        };
        if let Some(slot) = listed {
            self.ask_rewrite(disk, self.store.segment_of(slot));
        }
        let shown = self.intent_marked(disk, block) && listed.is_none() && !self.is_at_peer(disk, block);
        let blocks = &mut application.permit.blocks;
        application.complete &= shown && blocks.end == block.0;
        blocks.end = block.0 + 1;
        shown
    }

    /// Returns the permit for the blocks that were shown, if all conditions held.
    pub(crate) fn permit_write(&self, application: Application) -> Option<Permit> {
        application.complete.then_some(application.permit)
    }

    /// Returns a permit for the cleaner to write back a version of a block, if its conditions hold.
    pub(crate) fn permit_cleaning(
        &mut self,
        disk: DiskNo,
        block: BlockNo,
        from: CleaningFrom,
    ) -> Option<Permit> {
        let shown = self.may_write_origin(disk)
            && !self.is_kept_from_cleaner(disk, block)
            && match from {
                CleaningFrom::Flash { seq } => self.is_cleanable(seq),
                CleaningFrom::Staging => {
                    self.store.disks[disk].segments.is_empty() && self.intent_marked(disk, block)
                }
            };
        shown.then_some(Permit { disk, blocks: block.0..block.0 + 1 })
    }

    /// Whether the cleaner may write back what a commit wrote to flash.
    pub(crate) fn is_cleanable(&self, seq: u64) -> bool {
        self.durability.is_durable(seq) || planted(Bug::CleanUnflushed)
    }

    /// Sends the frames of an I/O to the origin.
    pub(crate) fn write_origin(
        &mut self,
        permit: Permit,
        number: u32,
        sector: u64,
        sectors: u32,
        durable: bool,
    ) {
        let (disk, passed) = self.pass(permit, number, sector, sectors);
        self.ios[number].len = sectors as usize * SECTOR_BYTES;
        let (io, sector) = (IoId(number), SectorNo(sector));
        self.emit(Action::WriteOrigin { io, disk, sector, sectors, durable, passed });
    }

    /// Sends zeroes to the origin.
    pub(crate) fn zero_origin(
        &mut self,
        permit: Permit,
        number: u32,
        sector: u64,
        sectors: u32,
        discard: bool,
        durable: bool,
    ) {
        let (disk, passed) = self.pass(permit, number, sector, sectors);
        let (io, sector) = (IoId(number), SectorNo(sector));
        self.emit(Action::ZeroOrigin { io, disk, sector, sectors, discard, durable, passed });
    }

    /// Lets an I/O that its permit covers through the gate.
    fn pass(&mut self, permit: Permit, number: u32, sector: u64, sectors: u32) -> (DiskNo, Passed) {
        let Permit { disk, blocks } = permit;
        assert!(self.may_write_origin(disk), "only the owner writes the origin");
        let (first, last) = self.disk(disk).blocks(sector, sectors);
        assert!(blocks.contains(&first.0) && blocks.contains(&last.0), "the permit covers the write");
        self.disk_mut(disk).origin.in_flight += 1;
        self.ios[number].disk = Some(disk);
        (disk, Passed(()))
    }

    /// Called when a write or zeroing has ended; returns whether no other is in flight. If a guest is told that it is
    /// done although it may be volatile, the guest's next flush also flushes the origin.
    pub(crate) fn origin_written(&mut self, disk: DiskNo, told_volatile: bool) -> bool {
        let account = &mut self.disk_mut(disk).origin;
        account.in_flight -= 1;
        account.changes += u64::from(told_volatile);
        account.in_flight == 0
    }

    /// Sends a flush to the origin.
    pub(crate) fn flush_origin(&mut self, reason: OriginFlushReason, disk: DiskNo) {
        let changes = self.disk(disk).origin.changes;
        let number = self.new_io(Purpose::FlushOrigin { reason, changes });
        self.ios[number].disk = Some(disk);
        self.emit(Action::FlushOrigin { io: IoId(number), disk });
    }
}
