//! The owner's side of a replica of its dirty blocks on another host's flash.
//!
//! Invariants
//! - The record says that there may be a replica before anything of it counts, and until it can no longer be used: so
//!   after a crash no flush succeeds before that is settled.
//! - A copy has the dirty sectors of a block, and those that the replica has already. If a block has no dirty ones, the
//!   origin has it durably, and the replica must not keep it.
//! - If the owner has lost sectors of a block, the replica keeps its version of the block. Each change of the block
//!   then counts as missing from the replica, since the lost version may be newer than the replica's.
//! - While flushes wait for the replica, they succeed only when it has, durably, every change that was made before, or
//!   when it can no longer be used.

use haversack_model::{BlockNo, DiskNo, HostId, Micros};

use crate::action::{JobId, Rejected};
use crate::bugs::{Bug, planted};
use crate::config::{CleanOrder, CleanerConfig};
use crate::core::{Call, Core};
use crate::error::ManageError;
use crate::flow::export::Copied;
use crate::flow::moving::replicating::{Due, Replicating};
use crate::format::record::Moved;
use crate::jobs::JobKind;
use crate::locks::LockKind;
use crate::memory::{Memory, RequestTag};

const NO_ORDER: &str = "order = \"flush\" cannot be combined with a replica: the host that uses a replica does not know the order of its blocks";

/// What a replica is to be sent next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToReplicate {
    /// A copy of a block: [`Call::read_dirty_copy`].
    Copy(BlockNo),
    /// The removal of a block, which the origin has.
    Removal(BlockNo),
}

/// What a replica lacks, as the owner knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replication {
    /// Flushes wait for it.
    pub guards: bool,
    /// Blocks that it lacks, or must not keep.
    pub lacking: usize,
    /// Blocks that it may have.
    pub kept: usize,
    /// The number of the last change.
    pub changes: u64,
    /// It will never have some change, because the owner has lost it.
    pub is_stuck: bool,
}

impl Core {
    fn replicating(&mut self, disk: DiskNo) -> Option<&mut Replicating> {
        self.disks.get_mut(disk)?.moving.as_mut()?.replicating.as_mut()
    }

    /// Returns what the replica of a disk lacks, if there may be one.
    pub fn replication(&self, disk: DiskNo) -> Option<Replication> {
        let replicating = self.disks.get(disk)?.moving.as_ref()?.replicating.as_ref()?;
        Some(Replication {
            guards: replicating.guards,
            lacking: replicating.lacking(),
            kept: replicating.kept(),
            changes: replicating.changes(),
            is_stuck: replicating.is_stuck(),
        })
    }

    /// Checks that a disk has no replica.
    pub(crate) fn not_replicated(&self, disk: DiskNo) -> Result<(), ManageError> {
        let d = self.disk(disk);
        if matches!(d.moved, Moved::Replicates { .. }) { Err(ManageError::Replicated(d.id)) } else { Ok(()) }
    }

    /// Checks that a disk is cleaned in the order of flushes only if it has no replica.
    pub(crate) fn may_be_ordered(&self, disk: DiskNo, cleaner: CleanerConfig) -> Result<(), ManageError> {
        match cleaner.order {
            CleanOrder::Flush if self.not_replicated(disk).is_err() => {
                Err(ManageError::BadConfig(NO_ORDER.into()))
            }
            _ => Ok(()),
        }
    }

    /// Whether the replica has every change up to this one.
    pub fn has_replicated(&self, disk: DiskNo, change: u64) -> bool {
        let moving = self.disks.get(disk).and_then(|d| d.moving.as_ref());
        moving.and_then(|moving| moving.replicating.as_ref()).is_some_and(|one| one.has(change))
    }

    /// Whether the replica, if there is one, has all that the flushes in progress need.
    pub(crate) fn is_replicated(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        let replicating = d.moving.as_ref().and_then(|moving| moving.replicating.as_ref());
        replicating.is_none_or(|replicating| replicating.covers(d.flush.replicated_until()))
            || planted(Bug::FlushUnreplicated)
    }

    /// Called when the origin has a block: a replica need not keep it.
    pub(crate) fn note_cleaned(&mut self, disk: DiskNo, block: BlockNo) {
        if let Some(moving) = &mut self.disk_mut(disk).moving
            && let Some(replicating) = &mut moving.replicating
        {
            replicating.cleaned(block);
        }
    }

    fn next_replicated(&mut self, disk: DiskNo, frees: &mut bool) -> Option<ToReplicate> {
        let queued = self.replicating(disk)?.queued();
        for _ in 0..queued {
            let block = self.replicating(disk)?.next()?;
            let dirty = self.cached_and_dirty(disk, block).1 & self.disk(disk).inside(block);
            let is_changing = self.locks.get(disk, block) == Some(LockKind::Around);
            let is_lost = self.is_block_lost(disk, block);
            let replicating = self.replicating(disk)?;
            match replicating.due(block, dirty) {
                _ if is_lost => replicating.cannot_send(block),
                // Zeroes are about to overtake it.
                Due::Copy if is_changing => replicating.lost(block),
                Due::Copy => {
                    replicating.sends(block);
                    return Some(ToReplicate::Copy(block));
                }
                Due::Removal if !planted(Bug::KeepReplicated) => {
                    replicating.removes(block);
                    return Some(ToReplicate::Removal(block));
                }
                Due::Later => {}
                Due::Removal | Due::Nothing => {
                    replicating.needs_nothing(block);
                    *frees = true;
                }
            }
        }
        None
    }
}

impl<M: Memory> Call<'_, M> {
    /// Takes the next block of which the replica is to be sent something. [`Call::replicated`] or [`Call::not_sent`] is
    /// to be called for it, in any order.
    pub fn next_to_replicate(&mut self, now: Micros, disk: DiskNo) -> Option<ToReplicate> {
        self.now = now;
        let mut frees = false;
        let next = self.next_replicated(disk, &mut frees);
        if frees {
            self.queue(disk);
            self.settle();
        }
        next
    }

    /// Records that another host may have a replica of a disk's dirty blocks. When the job has ended, that host may be
    /// told to start one, and then [`Call::replicate`] is to be called.
    ///
    /// # Errors
    /// The disk is not attached, has a job, needs blocks of another host or has a replica, it has lost dirty blocks, or
    /// it is cleaned in the order of flushes, which a replica does not keep.
    pub fn start_replication(&mut self, now: Micros, disk: DiskNo, at: HostId) -> Result<JobId, ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.idle(disk)?;
        let d = self.disk(disk);
        if d.moved != Moved::No {
            return Err(ManageError::Migrating(d.id));
        }
        if d.tuning.cleaner.order == CleanOrder::Flush {
            return Err(ManageError::BadConfig(NO_ORDER.into()));
        }
        if self.has_losses(disk) {
            return Err(ManageError::Lost(d.id));
        }
        self.disk_mut(disk).moved = Moved::Replicates { at };
        let version = self.change_record();
        Ok(self.start_job(disk, JobKind::Record, Some(version)))
    }

    /// Starts to track what a new and empty replica lacks: all dirty blocks. Flushes do not wait for it yet.
    ///
    /// # Errors
    /// The record does not say that there may be a replica, or the disk is not attached.
    pub fn replicate(&mut self, now: Micros, disk: DiskNo) -> Result<(), ManageError> {
        self.now = now;
        let d = self.attached(disk)?;
        if !matches!(d.moved, Moved::Replicates { .. }) {
            return Err(ManageError::Migrating(d.id));
        }
        let mut replicating = Replicating::default();
        for block in self.all_dirty(disk) {
            replicating.changed(block);
        }
        self.disk_mut(disk).moving.get_or_insert_default().replicating = Some(replicating);
        self.queue(disk);
        self.settle();
        Ok(())
    }

    fn all_dirty(&self, disk: DiskNo) -> Vec<BlockNo> {
        let mut blocks = Vec::new();
        for segment in &self.store.disks[disk].segments {
            if self.store.segments[*segment].dirty > 0 {
                let slots = self.store.slots_of(*segment).filter_map(|number| self.store.live(number));
                blocks.extend(slots.filter(|slot| slot.dirty()).map(|slot| slot.block()));
            }
        }
        let staged = self.staging.all_of(disk).map(|frame| self.staging.get(frame));
        blocks.extend(staged.filter(|staged| staged.dirty).map(|staged| staged.block));
        blocks
    }

    /// From now on, flushes wait for the replica.
    pub fn guard(&mut self, disk: DiskNo) {
        if let Some(replicating) = self.replicating(disk) {
            replicating.guards = true;
        }
    }

    /// Starts to read a copy of a block's dirty sectors, and of those that the replica has, into the buffer of `tag`,
    /// as [`Call::read_copy`] does. `None` if there is nothing to copy, or not yet.
    ///
    /// # Errors
    /// As for requests.
    pub fn read_dirty_copy(
        &mut self,
        now: Micros,
        tag: RequestTag,
        disk: DiskNo,
        block: BlockNo,
    ) -> Result<Option<Copied>, Rejected> {
        self.now = now;
        let d = self.disks.get(disk).ok_or(Rejected::NoSuchDisk(disk))?;
        if !d.life.writes_origin() {
            return Err(Rejected::NotOwner);
        }
        let of_clients = self.requests.len() - self.schedule.children();
        if of_clients >= self.config.max_requests as usize || self.pool.is_stopping() {
            return Err(Rejected::Busy);
        }
        let (dirty, inside) = (self.cached_and_dirty(disk, block).1, self.disk(disk).inside_checked(block));
        let is_changing = self.locks.get(disk, block) == Some(LockKind::Around);
        let Some(replicating) = self.replicating(disk) else { return Ok(None) };
        if is_changing || dirty & inside == 0 {
            return Ok(None);
        }
        let mask = (dirty | replicating.held(block)) & inside;
        replicating.reads(block, mask);
        self.start_copy(tag, disk, block, mask);
        Ok(Some(Copied { mask, reused: false }))
    }

    /// Called when the replica has durably stored what it was sent of these blocks.
    pub fn replicated(&mut self, now: Micros, disk: DiskNo, blocks: &[BlockNo]) {
        self.now = now;
        let Some(replicating) = self.replicating(disk) else { return };
        blocks.iter().for_each(|block| replicating.arrived(*block));
        self.queue(disk);
        self.settle();
    }

    /// Called when a copy or removal for the replica did not arrive, or may not have arrived.
    pub fn not_sent(&mut self, disk: DiskNo, block: BlockNo) {
        if let Some(replicating) = self.replicating(disk) {
            replicating.lost(block);
        }
    }

    /// Ends a replica, of which it is certain that no host will use it any more. Flushes do not wait for it from now
    /// on.
    pub fn end_replication(&mut self, now: Micros, disk: DiskNo) {
        self.now = now;
        let Some(d) = self.disks.get_mut(disk) else { return };
        if !matches!(d.moved, Moved::Replicates { .. }) {
            return;
        }
        d.moved = Moved::No;
        if let Some(moving) = &mut d.moving {
            moving.replicating = None;
            if moving.is_over() {
                d.moving = None;
            }
        }
        self.change_record();
        self.queue(disk);
        self.settle();
    }
}
