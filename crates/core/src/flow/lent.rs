//! Space that this host lends to others: blocks of a disk that has no origin here, stored as copies and read as copies.
//!
//! Such a disk is expected and never claimed. Its target is 0: it only uses space that no other disk needs.
//!
//! Invariant
//! - Under one number, a block of a lent disk never gets two different contents. So a copy that is read is the one that
//!   was stored, or there is none.

use haversack_model::{DiskNo, Micros};

use crate::action::JobId;
use crate::config::{DiskConfig, Target};
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::lifecycle::Event;
use crate::memory::Memory;

impl Core {
    /// Returns the blocks that fit in segments that no disk has, and the blocks that fit in all.
    pub fn free_blocks(&self) -> (u64, u64) {
        let segments = self.store.free_segments(None) as u64 + self.store.unprepared_segments(None);
        (segments * u64::from(SLOTS_PER_SEGMENT), self.capacity_blocks())
    }
}

impl<M: Memory> Call<'_, M> {
    /// Makes a disk whose blocks are lent: they are stored with [`Call::take_copy`] and read with [`Call::read_copy`],
    /// and a crash voids them.
    ///
    /// # Errors
    /// As for [`Call::expect_disk`].
    pub fn lend_space(&mut self, now: Micros, config: &DiskConfig) -> Result<DiskNo, ManageError> {
        let disk = self.expect_disk(now, config)?;
        self.change_target(disk, Target::Blocks(0));
        self.disk_mut(disk).moving.get_or_insert_default().lends = true;
        Ok(disk)
    }

    /// Gives up a disk whose blocks are lent: none of them is read from now on. Their space is freed step by step until
    /// the job ends.
    ///
    /// # Errors
    /// It is not lent, or is being given up.
    pub fn end_loan(&mut self, now: Micros, disk: DiskNo) -> Result<JobId, ManageError> {
        self.idle(disk)?;
        self.incoming(disk)?;
        let d = self.disk_mut(disk);
        d.moving = None;
        d.life.happened(Event::Dismiss);
        self.forget(now, disk, None)
    }

    /// Whether the disk's blocks are lent while it is expected.
    pub(crate) fn is_lent(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        d.life.is_incoming() && d.moving.as_ref().is_some_and(|moving| moving.lends)
    }
}
