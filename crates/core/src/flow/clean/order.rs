//! Cleaning in the order of the guest's flushes: at any moment, the origin is as some flush of the guest left it, plus
//! some of the writes that came after that flush. File systems and databases recover from such a state, as they do after
//! a power loss.
//!
//! Dirty blocks form groups, each of which ends with a flush: commits up to the last one that the flush made durable.
//! Entries have the sequence numbers of their commits, so the group of a block is known without further state. The
//! cleaner writes one group after the other, with a flush of the origin in between. Two rules keep the groups apart:
//! - A block whose version on flash belongs to an ended group is not committed again before that version is clean.
//!   So there is one dirty version of each block on flash. The newer version waits in the staging area, and a flush of the
//!   guest waits for it.
//! - A write past the cache waits until all ended groups are clean.
//!
//! When a disk is attached, its flushes are not known any more: each commit is a group of its own until then, which keeps
//! the order as well.
//!
//! The order is suspended while dirty blocks get other sequence numbers without being written: when they come from
//! another host, or are copied to another device. What is dirty then is one group afterwards.
//!
//! Invariants
//! - `ends` is ascending, and each of them is later than `joined_until`.
//! - The origin is in order if nothing is dirty of commits up to `doubtful_until`.

use std::collections::VecDeque;

use haversack_model::DiskNo;

use crate::bugs::{Bug, planted};
use crate::config::CleanOrder;
use crate::core::{Call, Core};
use crate::format::record::Moved;
use crate::jobs::Job;
use crate::memory::Memory;
use crate::store::slot::{Live, SlotNo};
use crate::versions::Versions;

/// The order in which a disk's dirty blocks are cleaned. See the module.
pub(crate) struct Order {
    /// Each commit up to this one is a group.
    apart_until: u64,
    /// All commits up to this one are one group.
    joined_until: u64,
    /// The last commits of the groups after these.
    ends: VecDeque<u64>,
    /// The origin is not known to be in order before everything up to this commit is clean.
    doubtful_until: u64,
    is_suspended: bool,
    /// Something waits until all ended groups are clean.
    pub(super) is_wanted: bool,
}

impl Order {
    /// Returns the order of a disk whose commits up to this one were made while no flushes were noted.
    fn after(commit: u64) -> Order {
        Order {
            apart_until: commit,
            joined_until: 0,
            ends: VecDeque::new(),
            doubtful_until: commit,
            is_suspended: false,
            is_wanted: false,
        }
    }

    /// Notes that a flush has made everything up to this commit durable.
    pub fn end_group(&mut self, commit: u64) {
        if commit > self.ends.back().copied().unwrap_or(self.joined_until.max(self.apart_until)) {
            self.ends.push_back(commit);
        }
    }

    /// Whether a commit belongs to a group that has ended.
    fn has_ended(&self, commit: u64) -> bool {
        let last = self.ends.back().copied().unwrap_or(0).max(self.apart_until).max(self.joined_until);
        !self.is_suspended && commit <= last
    }

    /// Returns the last commit of the group that `oldest` belongs to, and forgets the groups before it: nothing older is
    /// dirty.
    fn last_of_group(&mut self, oldest: u64) -> u64 {
        while self.ends.front().is_some_and(|end| *end < oldest) && self.ends.len() > 1 {
            self.ends.pop_front();
        }
        if self.is_suspended {
            u64::MAX
        } else if oldest <= self.joined_until {
            self.joined_until
        } else if oldest <= self.apart_until {
            oldest
        } else {
            self.ends.front().copied().filter(|end| *end >= oldest).unwrap_or(u64::MAX)
        }
    }

    /// Starts or ends a suspension; `commit` is the last one so far.
    fn suspend(&mut self, is_suspended: bool, commit: u64) {
        if is_suspended || self.is_suspended {
            (self.joined_until, self.doubtful_until) = (commit, commit);
            self.ends.retain(|end| *end > commit);
        }
        self.is_suspended = is_suspended;
    }
}

impl Core {
    /// Whether the origin is as some flush of the guest left it, plus some later writes; `None` if the disk's blocks are
    /// not cleaned in order.
    pub(crate) fn is_origin_in_order(&self, disk: DiskNo) -> Option<bool> {
        let order = self.disk(disk).cleaner.order.as_ref()?;
        let oldest = self.oldest_in_order(disk);
        Some(!order.is_suspended && oldest.is_none_or(|(seq, _)| seq > order.doubtful_until))
    }

    /// Returns the first slot in order that the cleaner should write.
    fn oldest_in_order(&self, disk: DiskNo) -> Option<(u64, SlotNo)> {
        let mut after = None;
        while let Some((seq, number, slot)) = self.store.next_in_order(disk, after) {
            if self.can_be_cleaned(disk, slot) {
                return Some((seq, number));
            }
            after = Some((seq, number));
        }
        None
    }

    /// Whether anything of a slot is to be written: nothing is of damaged blocks that were written once, and of blocks
    /// behind the end of a disk that is being shrunk.
    fn can_be_cleaned(&self, disk: DiskNo, slot: Live) -> bool {
        self.needs_cleaning(disk, slot) && slot.mask() & self.disk(disk).inside(slot.block()) != 0
    }

    /// Whether anything of an ended group is dirty.
    pub(crate) fn waits_for_order(&self, disk: DiskNo) -> bool {
        let Some(order) = &self.disk(disk).cleaner.order else { return false };
        self.oldest_in_order(disk).is_some_and(|(seq, _)| order.has_ended(seq))
            && !planted(Bug::AroundOutOfOrder)
    }

    /// Whether a newer version of a block must wait until the one on flash is clean.
    pub(crate) fn is_held_by_order(&self, disk: DiskNo, versions: &Versions) -> bool {
        let Some(order) = &self.disk(disk).cleaner.order else { return false };
        versions.flash.is_some_and(|(_, slot)| order.has_ended(slot.seq()) && self.can_be_cleaned(disk, slot))
            && !planted(Bug::CommitOutOfOrder)
    }

    /// Whether a write of this block would fill the staging area with versions that wait for the cleaner, where other
    /// disks need it.
    pub(crate) fn must_wait_for_order(&self, disk: DiskNo, versions: &Versions) -> bool {
        self.disk(disk).cleaner.order.is_some()
            && self.staging.lists[disk].len as usize > self.staging.capacity() / 8
            && versions.staged.is_none()
            && self.is_held_by_order(disk, versions)
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

    /// Has all ended groups cleaned.
    pub(crate) fn want_order(&mut self, disk: DiskNo) {
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order
            && !std::mem::replace(&mut order.is_wanted, true)
        {
            self.queue(disk);
        }
    }

    /// Suspends the order, or ends that.
    pub(crate) fn update_order(&mut self, disk: DiskNo) {
        let d = self.disk(disk);
        if d.cleaner.order.is_none() {
            return;
        }
        let leaves =
            d.life.is_frozen() || d.life.is_released() || d.job.as_ref().is_some_and(Job::hands_over);
        let suspended =
            leaves || matches!(d.moved, Moved::Depends { .. }) || !d.restage.is_empty() || d.restaging > 0;
        let last = self.durability.last();
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            order.suspend(suspended, last);
        }
    }

    /// Fills the round with blocks of the oldest group.
    pub(super) fn pick_in_order(&mut self, disk: DiskNo, room: usize, unflushed: &mut bool) {
        let oldest = self.oldest_in_order(disk);
        let Some(order) = &mut self.disk_mut(disk).cleaner.order else { return };
        let Some((first, _)) = oldest else {
            order.is_wanted = false;
            return;
        };
        order.is_wanted &= order.has_ended(first);
        let last = if planted(Bug::CleanOutOfOrder) { u64::MAX } else { order.last_of_group(first) };
        let mut after = None;
        while let Some((seq, number, slot)) = self.store.next_in_order(disk, after)
            && seq <= last
            && self.disk(disk).cleaner.blocks.len() < room
            && !*unflushed
        {
            after = Some((seq, number));
            self.pick_block(disk, slot.block(), unflushed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_end_with_flushes_and_older_commits_are_groups_of_their_own() {
        let mut order = Order::after(10);
        for end in [12, 12, 15] {
            order.end_group(end);
        }
        assert_eq!(
            [3, 10, 11, 12, 13, 15].map(|oldest| order.last_of_group(oldest)),
            [3, 10, 12, 12, 15, 15]
        );
        assert_eq!(order.last_of_group(16), u64::MAX);
        assert_eq!([1, 15, 16].map(|commit| order.has_ended(commit)), [true, true, false]);
    }

    #[test]
    fn what_was_dirty_in_a_suspension_is_one_group() {
        let mut order = Order::after(10);
        order.end_group(12);
        order.suspend(true, 20);
        assert_eq!((order.last_of_group(4), order.has_ended(4)), (u64::MAX, false));
        order.suspend(false, 30);
        order.end_group(33);
        assert_eq!([4, 30, 31].map(|oldest| order.last_of_group(oldest)), [30, 30, 33]);
        assert!(order.has_ended(30) && !order.has_ended(34));
    }
}
