//! Cleaning in the order of the guest's flushes: at any moment, the origin is as some flush of the guest left it, plus
//! some of the writes that came after that flush. File systems and databases recover from such a state, as they do
//! after a power loss.
//!
//! Dirty blocks form groups, each of which ends with a flush: commits up to the last one that the flush made durable.
//! Entries have the sequence numbers of their commits, so the group of a block is known without further state. The
//! cleaner writes one group after the other, with a flush of the origin in between. Two rules keep the groups apart:
//! - A block whose version on flash belongs to an ended group is not committed again before that version is clean. So
//!   there is one dirty version of each block on flash. The newer version waits in the staging area, and a flush of the
//!   guest waits for it.
//! - A write past the cache waits until all groups are clean that had ended at its first check. A write that the cache
//!   itself would send past it is staged instead.
//!
//! When a disk is attached, its earlier flushes are no longer known: each commit up to then is a group of its
//! own, which keeps the order as well.
//!
//! Dirty blocks that are copied to another device get a new sequence number although the guest has not written them.
//! Then all dirty blocks become one group. The same happens while the order is suspended, that is, while blocks are
//! fetched from another host or the disk is about to be handed over. The order is broken while dirty blocks are lost,
//! damaged or unreadable: others do not wait for them.
//!
//! Invariants
//! - Versions that wait for the cleaner take an eighth of the staging area at most, and what is staged for a flush in
//!   progress another eighth: the rest is for other disks.
//! - A disk that waits for its origin commits everything that need not wait.

pub(crate) mod groups;

use std::ops::RangeInclusive;

use haversack_model::DiskNo;

use crate::bugs::{Bug, planted};
use crate::config::CleanOrder;
use crate::core::{Call, Core};
use crate::format::record::Moved;
use crate::jobs::Job;
use crate::memory::Memory;
use crate::store::slot::{Live, SlotNo};
use crate::versions::Versions;
use groups::Order;

/// Maximum number of dirty slots that one search for blocks of a group looks at.
const SLOTS_TRIED: usize = 16_384;

impl Core {
    /// Whether the origin is as some flush of the guest left it, plus some later writes; `None` if the disk's blocks
    /// are not cleaned in order.
    pub(crate) fn is_origin_in_order(&self, disk: DiskNo) -> Option<bool> {
        let order = self.disk(disk).cleaner.order.as_ref()?;
        Some(order.is_kept(self.oldest_in_order(disk)))
    }

    /// Returns the commit of the oldest block that the cleaner should write and can read.
    fn oldest_in_order(&self, disk: DiskNo) -> Option<u64> {
        let order = self.disk(disk).cleaner.order.as_ref()?;
        let mut after = None;
        while let Some((seq, number, slot)) = self.store.next_in_order(disk, after) {
            if self.can_be_cleaned(disk, slot) && !order.is_unreadable(slot.block(), seq) {
                return Some(seq);
            }
            after = Some((seq, number));
        }
        None
    }

    /// Whether the cleaner should write any sector of a slot. It writes none of a damaged block whose valid sectors it
    /// has written before, and none of a block behind the new end of a disk that is being shrunk.
    fn can_be_cleaned(&self, disk: DiskNo, slot: Live) -> bool {
        self.needs_cleaning(disk, slot) && slot.mask() & self.disk(disk).inside(slot.block()) != 0
    }

    /// Returns the commits from the oldest dirty block of the ended groups to the last one of these groups; `None` if
    /// they are clean.
    pub(crate) fn dirty_groups(&self, disk: DiskNo) -> Option<RangeInclusive<u64>> {
        let order = self.disk(disk).cleaner.order.as_ref()?;
        let oldest = self.oldest_in_order(disk)?;
        (order.has_ended(oldest) && !planted(Bug::AroundOutOfOrder)).then(|| oldest..=order.last_end())
    }

    /// Whether a newer version of a block must wait until the version on flash is clean. A stop of the pool does not
    /// wait for an unreachable origin.
    pub(crate) fn is_held_by_order(&self, disk: DiskNo, flash: Option<(SlotNo, Live)>) -> bool {
        let cleaner = &self.disk(disk).cleaner;
        let Some(order) = &cleaner.order else { return false };
        let waits = |slot: Live| {
            order.has_ended(slot.seq())
                && self.can_be_cleaned(disk, slot)
                && !order.is_unreadable(slot.block(), slot.seq())
        };
        flash.is_some_and(|(_, slot)| waits(slot))
            && !(self.pool.is_stopping() && cleaner.origin_failed)
            && !planted(Bug::CommitOutOfOrder)
    }

    /// Whether a write must wait because the disk's staged blocks, which wait for the cleaner or a flush, already use
    /// its share of the staging frames.
    pub(crate) fn must_wait_for_order(&self, disk: DiskNo, versions: &Versions) -> bool {
        let Some(order) = &self.disk(disk).cleaner.order else { return false };
        let (staged, capacity) = (self.staging.lists[disk].len as usize, self.staging.capacity());
        let waits = order.is_wanted() && staged > capacity / 8;
        versions.staged.is_none() && (waits || staged > capacity / 4)
    }
}

impl<M: Memory> Call<'_, M> {
    /// Takes over the order from the disk's settings.
    pub(crate) fn change_order(&mut self, disk: DiskNo) {
        let ordered = self.disk(disk).tuning.cleaner.order == CleanOrder::Flush;
        if ordered == self.disk(disk).cleaner.order.is_some() {
            return;
        }
        self.store.keep_order(disk, ordered);
        let last = self.durability.last();
        self.disk_mut(disk).cleaner.order = ordered.then(|| Box::new(Order::after(last)));
    }

    /// Ends the current group: a flush of the guest has succeeded.
    pub(crate) fn end_group(&mut self, disk: DiskNo) {
        let last = self.disk(disk).last_commit_seq;
        let Some(order) = &self.disk(disk).cleaner.order else { return };
        // A group without dirty blocks needs no end.
        let after = Some((order.last_end(), SlotNo(u32::MAX)));
        let is_dirty = self.store.next_in_order(disk, after).is_some_and(|(seq, ..)| seq <= last);
        if let Some(order) = self.disk_mut(disk).cleaner.order.as_mut().filter(|_| is_dirty) {
            order.end_group(last);
        }
    }

    /// Records that dirty blocks are copied under the number of this commit, although the guest has not written them.
    pub(crate) fn join_groups(&mut self, disk: DiskNo, commit: u64) {
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            order.join(commit);
        }
    }

    /// Requests that the ended groups up to this commit be cleaned.
    pub(crate) fn want_order(&mut self, disk: DiskNo, commit: u64) {
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order
            && order.want(commit)
        {
            self.queue(disk);
        }
    }

    /// Suspends or resumes the order as needed, and updates whether it is broken.
    pub(crate) fn update_order(&mut self, disk: DiskNo) {
        if self.disk(disk).cleaner.order.is_none() {
            return;
        }
        self.forget_read_again(disk);
        let d = self.disk(disk);
        let leaves =
            d.life.is_frozen() || d.life.is_released() || d.job.as_ref().is_some_and(Job::hands_over);
        let suspended = leaves || matches!(d.moved, Moved::Depends { .. });
        let broken = !d.lost.is_empty() || !d.damaged.is_empty();
        let last = self.durability.last();
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            order.suspend(suspended, last);
            order.note_broken(broken, last);
        }
    }

    /// Forgets unreadable blocks that have been written again, or are not dirty any more.
    fn forget_read_again(&mut self, disk: DiskNo) {
        let Some(order) = &self.disk(disk).cleaner.order else { return };
        let is_left = |(block, seq): &(_, u64)| {
            self.resolve(disk, *block).flash_of(*seq).is_some_and(|(_, slot)| slot.dirty())
        };
        let gone: Vec<_> = order.unreadable().filter(|entry| !is_left(entry)).collect();
        if gone.is_empty() {
            return;
        }
        let last = self.durability.last();
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            gone.into_iter().for_each(|(block, _)| order.forget_unreadable(block));
            order.note_broken(true, last);
        }
    }

    /// Called when a dirty block cannot be read for cleaning.
    pub(super) fn note_unreadable(&mut self, disk: DiskNo, slot: Live) {
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            order.note_unreadable(slot.block(), slot.seq());
        }
    }

    /// Fills the round with blocks of the oldest group. Blocks that could not be read are tried again with it.
    pub(super) fn pick_in_order(&mut self, disk: DiskNo, room: usize, unflushed: &mut bool) {
        let oldest = self.oldest_in_order(disk);
        let first = oldest.or_else(|| self.store.next_in_order(disk, None).map(|(seq, ..)| seq));
        let Some(order) = &mut self.disk_mut(disk).cleaner.order else { return };
        let is_reached = order.reached(oldest);
        order.holds_all &= !is_reached;
        let last = first.map_or(0, |first| order.last_of_group(first));
        let last = if planted(Bug::CleanOutOfOrder) { u64::MAX } else { last };
        if is_reached {
            self.wake_around(disk);
            self.wake_dirty(disk);
        }
        let (mut after, mut tried) = (None, 0);
        while let Some((seq, number, slot)) = self.store.next_in_order(disk, after)
            && seq <= last
            && tried < SLOTS_TRIED
            && self.disk(disk).cleaner.picked() < room
            && !*unflushed
        {
            after = Some((seq, number));
            tried += 1;
            self.pick_block(disk, slot.block(), unflushed);
        }
    }
}
