//! The groups that the flushes of a disk's guest form, and what is known of the origin.
//!
//! Invariants
//! - `ends` is ascending, and each of them is later than `joined_until`.
//! - The origin is in order if nothing is suspended or broken, and nothing is dirty of commits up to `doubtful_until`.

use std::collections::{BTreeMap, VecDeque};

use haversack_model::BlockNo;

/// The order in which a disk's dirty blocks are cleaned.
pub(crate) struct Order {
    /// Each commit up to this one is a group.
    apart_until: u64,
    /// All commits up to this one are one group.
    joined_until: u64,
    /// The last commits of the groups after these.
    ends: VecDeque<u64>,
    /// The origin is not known to be in order before everything up to this commit is clean.
    doubtful_until: u64,
    /// Dirty blocks get other sequence numbers.
    is_suspended: bool,
    /// Dirty blocks are lost, damaged or unreadable, so that newer ones reach the origin without them.
    is_broken: bool,
    /// Dirty blocks that no device could read, each with its commit. Other blocks do not wait for them.
    unreadable: BTreeMap<BlockNo, u64>,
    /// Something waits until all ended groups up to this commit are clean; 0: nothing does.
    wanted_until: u64,
    /// All frames that wait to be committed are held by the order, as far as is known.
    pub holds_all: bool,
}

impl Order {
    /// Returns the order of a disk whose commits up to this one were made while no flushes were noted.
    pub(super) fn after(commit: u64) -> Order {
        Order {
            apart_until: commit,
            joined_until: 0,
            ends: VecDeque::new(),
            doubtful_until: commit,
            is_suspended: false,
            is_broken: false,
            unreadable: BTreeMap::new(),
            wanted_until: 0,
            holds_all: false,
        }
    }

    /// Returns the last commit of the groups that have ended.
    pub fn last_end(&self) -> u64 {
        self.ends.back().copied().unwrap_or(0).max(self.apart_until).max(self.joined_until)
    }

    /// Called when a flush has made everything up to this commit durable.
    pub(super) fn end_group(&mut self, commit: u64) {
        if commit > self.last_end() {
            self.ends.push_back(commit);
        }
    }

    /// Whether a commit belongs to a group that has ended.
    pub fn has_ended(&self, commit: u64) -> bool {
        !self.is_suspended && commit <= self.last_end()
    }

    /// Returns the last commit of the group that `oldest` belongs to, and forgets the groups before it: nothing older
    /// is dirty.
    pub(super) fn last_of_group(&mut self, oldest: u64) -> u64 {
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
    pub(super) fn suspend(&mut self, is_suspended: bool, commit: u64) {
        if is_suspended || self.is_suspended {
            self.join(commit);
        }
        self.is_suspended = is_suspended;
    }

    /// Makes one group of everything up to a commit.
    pub(super) fn join(&mut self, commit: u64) {
        (self.joined_until, self.doubtful_until) = (commit, commit);
        self.ends.retain(|end| *end > commit);
        self.holds_all = false;
    }

    /// Records whether newer blocks may reach the origin without older ones; `commit` is the last one so far.
    pub(super) fn note_broken(&mut self, is_broken: bool, commit: u64) {
        if is_broken || self.is_broken {
            self.doubtful_until = commit;
        }
        self.is_broken = is_broken;
    }

    /// Called when a dirty block cannot be read.
    pub fn note_unreadable(&mut self, block: BlockNo, commit: u64) {
        self.unreadable.insert(block, commit);
    }

    /// Whether a dirty block of this commit cannot be read.
    pub(super) fn is_unreadable(&self, block: BlockNo, commit: u64) -> bool {
        !self.unreadable.is_empty() && self.unreadable.get(&block) == Some(&commit)
    }

    /// Returns the blocks that cannot be read.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = (BlockNo, u64)> + '_ {
        self.unreadable.iter().map(|(block, commit)| (*block, *commit))
    }

    /// Forgets a block that could not be read.
    pub(super) fn forget_unreadable(&mut self, block: BlockNo) {
        self.unreadable.remove(&block);
    }

    /// Whether the origin is in order; `oldest` is the commit of the oldest dirty block.
    pub(super) fn is_kept(&self, oldest: Option<u64>) -> bool {
        !self.is_suspended
            && !self.is_broken
            && self.unreadable.is_empty()
            && oldest.is_none_or(|oldest| oldest > self.doubtful_until)
    }

    /// Requests that the ended groups up to this commit be cleaned. Returns false if that was already requested.
    pub(super) fn want(&mut self, commit: u64) -> bool {
        let is_news = commit > self.wanted_until;
        self.wanted_until = self.wanted_until.max(commit);
        is_news
    }

    /// Whether something waits until ended groups are clean.
    pub fn is_wanted(&self) -> bool {
        self.wanted_until > 0
    }

    /// Updates the oldest dirty commit. Returns true if the groups that something waited for are now clean.
    pub(super) fn reached(&mut self, oldest: Option<u64>) -> bool {
        let is_reached = self.wanted_until > 0 && oldest.is_none_or(|oldest| oldest > self.wanted_until);
        if is_reached {
            self.wanted_until = 0;
        }
        is_reached
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

    #[test]
    fn after_a_loss_the_origin_is_in_order_when_what_was_dirty_then_is_clean() {
        let mut order = Order::after(10);
        assert!(order.is_kept(Some(11)) && !order.is_kept(Some(10)));
        order.note_broken(true, 20);
        assert!(!order.is_kept(None));
        order.note_broken(false, 25);
        assert!(order.is_kept(None) && order.is_kept(Some(26)) && !order.is_kept(Some(25)));
    }
}
