//! What the replica of a disk's dirty blocks still lacks, as the owner knows it.
//!
//! Invariants
//! - A change is *open* until the replica durably has a version of the block from after the change, or has no sector of
//!   the block and the origin has it.
//! - At most one copy or removal of a block is on its way. So the replica never stores an older one over a newer one.
//! - `held` has at least the sectors that the replica may have of a block. A copy has all of them, whether they are
//!   dirty or not: otherwise the replica would keep older sectors, which the origin has overtaken, beside newer ones.
//! - A block is removed only while none of it is dirty: the replica may have the only other copy of something flushed.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use haversack_model::BlockNo;

use crate::hasher::NumberHasher;

/// What is on its way to the replica.
#[derive(Clone, Copy)]
struct OnItsWay {
    /// The first change that it covers; `None` if the block has not changed since the last copy.
    since: Option<u64>,
    removes: bool,
}

/// A block of which the replica has, lacks or is about to have something.
#[derive(Clone, Copy, Default)]
struct Tracked {
    /// The first change that nothing sent so far covers.
    since: Option<u64>,
    on_its_way: Option<OnItsWay>,
    /// It is in one of the queues.
    is_queued: bool,
    /// The origin has had it since the copy on its way was sent.
    is_cleaned: bool,
    held: u8,
}

/// See the module. It takes about 80 bytes for each block of which the replica has something.
#[derive(Default)]
pub(crate) struct Replicating {
    /// Flushes wait for the replica.
    pub guards: bool,
    /// What the replica has is not known: no flush can succeed.
    is_unknown: bool,
    /// Some change will never reach the replica, because the owner has lost it.
    is_stuck: bool,
    changes: u64,
    open: BTreeSet<u64>,
    blocks: HashMap<u64, Tracked, BuildHasherDefault<NumberHasher>>,
    /// Blocks that changed, in this order.
    queue: VecDeque<BlockNo>,
    /// Blocks that the origin has by now, so that the replica need not keep them.
    cleaned: VecDeque<BlockNo>,
}

/// What the replica is to be sent of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// A copy.
    Copy,
    /// Its removal.
    Removal,
    /// Nothing: it has none of it, and needs none.
    Nothing,
    /// Nothing now: the replica has all dirty sectors.
    Later,
}

impl Replicating {
    /// Returns the state of a disk that may have a replica, of which nothing is known.
    pub fn unknown() -> Replicating {
        Replicating { guards: true, is_unknown: true, ..Replicating::default() }
    }

    /// Returns the number of the last change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a flush that began when this was the last change may succeed.
    pub fn covers(&self, change: u64) -> bool {
        !self.guards || self.has(change)
    }

    /// Whether the replica has every change up to this one.
    pub fn has(&self, change: u64) -> bool {
        !self.is_unknown && self.open.first().is_none_or(|first| *first > change)
    }

    /// Whether some change will never reach the replica, because the owner has lost it.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Returns how many blocks the replica lacks, or must not keep.
    pub fn lacking(&self) -> usize {
        self.open.len()
    }

    /// Returns how many blocks the replica may have.
    pub fn kept(&self) -> usize {
        self.blocks.len()
    }

    /// Called when a block changes.
    pub fn changed(&mut self, block: BlockNo) {
        if self.is_unknown {
            return;
        }
        self.changes += 1;
        let tracked = self.blocks.entry(block.0).or_default();
        if tracked.since.is_none() {
            tracked.since = Some(self.changes);
            self.open.insert(self.changes);
        }
        self.enqueue(block);
    }

    fn enqueue(&mut self, block: BlockNo) {
        let Some(tracked) = self.blocks.get_mut(&block.0) else { return };
        if tracked.on_its_way.is_none() && !std::mem::replace(&mut tracked.is_queued, true) {
            self.queue.push_back(block);
        }
    }

    /// Called when the origin has a block.
    pub fn cleaned(&mut self, block: BlockNo) {
        let Some(tracked) = self.blocks.get_mut(&block.0) else { return };
        tracked.is_cleaned = tracked.on_its_way.is_some();
        if tracked.since.is_none() && !tracked.is_cleaned && !tracked.is_queued {
            tracked.is_queued = true;
            self.cleaned.push_back(block);
        }
    }

    /// Takes the next block out of the queues.
    pub fn next(&mut self) -> Option<BlockNo> {
        let block = self.queue.pop_front().or_else(|| self.cleaned.pop_front())?;
        if let Some(tracked) = self.blocks.get_mut(&block.0) {
            tracked.is_queued = false;
        }
        Some(block)
    }

    /// Returns how many blocks are queued.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.cleaned.len()
    }

    /// Returns what is due for a block with the dirty sectors `dirty`.
    pub fn due(&self, block: BlockNo, dirty: u8) -> Due {
        let tracked = self.blocks.get(&block.0).copied().unwrap_or_default();
        match (dirty, tracked.held) {
            (0, 0) => Due::Nothing,
            (0, _) => Due::Removal,
            _ if tracked.since.is_none() => Due::Later,
            _ => Due::Copy,
        }
    }

    /// Returns the sectors that the replica may have of a block.
    pub fn held(&self, block: BlockNo) -> u8 {
        self.blocks.get(&block.0).map_or(0, |tracked| tracked.held)
    }

    /// Called when nothing can be sent of a block, because the owner has lost some of it.
    pub fn cannot_send(&mut self, block: BlockNo) {
        self.is_stuck |= self.blocks.get(&block.0).is_some_and(|tracked| tracked.since.is_some());
    }

    /// Called when a block needs nothing.
    pub fn needs_nothing(&mut self, block: BlockNo) {
        if let Some(since) = self.blocks.remove(&block.0).and_then(|tracked| tracked.since) {
            self.open.remove(&since);
        }
    }

    /// Called when the removal of a block, of which nothing is dirty, is on its way.
    pub fn removes(&mut self, block: BlockNo) {
        let tracked = self.blocks.entry(block.0).or_default();
        tracked.on_its_way = Some(OnItsWay { since: tracked.since.take(), removes: true });
    }

    /// Called when a copy is about to be read and sent.
    pub fn sends(&mut self, block: BlockNo) {
        let tracked = self.blocks.entry(block.0).or_default();
        tracked.on_its_way = Some(OnItsWay { since: tracked.since.take(), removes: false });
    }

    /// Called when the copy with these sectors is being read now: it covers all changes so far.
    pub fn reads(&mut self, block: BlockNo, mask: u8) {
        let Some(tracked) = self.blocks.get_mut(&block.0) else { return };
        let Some(sent) = &mut tracked.on_its_way else { return };
        tracked.held |= mask;
        match (sent.since, tracked.since.take()) {
            (Some(_), Some(later)) => {
                self.open.remove(&later);
            }
            (before, later) => sent.since = before.or(later),
        }
    }

    /// Called when what was on its way is durable at the replica.
    pub fn arrived(&mut self, block: BlockNo) {
        let Some(tracked) = self.blocks.get_mut(&block.0) else { return };
        let Some(done) = tracked.on_its_way.take() else { return };
        if done.removes {
            tracked.held = 0;
        }
        if let Some(since) = done.since {
            self.open.remove(&since);
        }
        if tracked.since.is_some() {
            self.enqueue(block);
        } else if tracked.held == 0 {
            self.blocks.remove(&block.0);
        } else if tracked.is_cleaned {
            self.cleaned(block);
        }
    }

    /// Records that the copy or removal in flight was lost, or that there was nothing to send. The block is queued
    /// again.
    pub fn lost(&mut self, block: BlockNo) {
        if let Some(tracked) = self.blocks.get_mut(&block.0)
            && let Some(done) = tracked.on_its_way.take()
        {
            if let (Some(before), Some(now)) = (done.since, tracked.since) {
                self.open.remove(&now.max(before));
            }
            tracked.since = done.since.or(tracked.since);
        }
        self.enqueue(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockNo = BlockNo(7);

    fn guarding() -> Replicating {
        Replicating { guards: true, ..Replicating::default() }
    }

    fn send(replicating: &mut Replicating, mask: u8) {
        assert_eq!(replicating.next(), Some(BLOCK));
        assert_eq!(replicating.due(BLOCK, mask), Due::Copy);
        replicating.sends(BLOCK);
        replicating.reads(BLOCK, mask);
    }

    #[test]
    fn a_change_is_covered_when_a_copy_made_after_it_has_arrived() {
        let mut replicating = guarding();
        replicating.changed(BLOCK);
        assert!(replicating.covers(0) && !replicating.covers(1));
        send(&mut replicating, 0xff);
        replicating.changed(BLOCK);
        assert_eq!(replicating.next(), None, "a copy is on its way");
        replicating.arrived(BLOCK);
        assert!(replicating.covers(1) && !replicating.covers(2));
        send(&mut replicating, 0xff);
        replicating.arrived(BLOCK);
        assert!(replicating.covers(2));
    }

    #[test]
    fn a_lost_copy_is_sent_again_and_covers_all_changes_since_the_last_one() {
        let mut replicating = guarding();
        replicating.changed(BLOCK);
        send(&mut replicating, 1);
        replicating.changed(BLOCK);
        replicating.lost(BLOCK);
        assert!(!replicating.covers(1));
        send(&mut replicating, 1);
        replicating.arrived(BLOCK);
        assert!(replicating.covers(2));
        assert_eq!((replicating.lacking(), replicating.next()), (0, None));
    }

    #[test]
    fn a_block_is_not_removed_while_some_of_it_is_dirty() {
        let mut replicating = guarding();
        replicating.changed(BLOCK);
        send(&mut replicating, 0b0011);
        replicating.arrived(BLOCK);
        replicating.cleaned(BLOCK);
        assert_eq!(replicating.next(), Some(BLOCK));
        assert_eq!(replicating.due(BLOCK, 0b0010), Due::Later);
        assert_eq!(replicating.held(BLOCK), 0b0011, "a copy has both sectors");
        replicating.changed(BLOCK);
        send(&mut replicating, 0b0110);
        replicating.arrived(BLOCK);
        assert_eq!(replicating.held(BLOCK), 0b0111);
    }

    #[test]
    fn a_cleaned_block_is_removed_when_nothing_else_is_due() {
        let mut replicating = guarding();
        replicating.cleaned(BLOCK);
        assert_eq!(replicating.next(), None, "the replica does not have it");
        replicating.changed(BLOCK);
        send(&mut replicating, 0xff);
        replicating.cleaned(BLOCK);
        assert_eq!(replicating.next(), None, "a copy is on its way");
        replicating.arrived(BLOCK);
        assert_eq!(replicating.next(), Some(BLOCK));
        assert_eq!(replicating.due(BLOCK, 0), Due::Removal);
        replicating.removes(BLOCK);
        assert!(replicating.covers(1), "no flush waits for it");
        replicating.arrived(BLOCK);
        assert_eq!(replicating.kept(), 0);
    }

    #[test]
    fn nothing_is_covered_while_it_is_not_known_what_the_replica_has() {
        let mut replicating = Replicating::unknown();
        replicating.changed(BLOCK);
        assert!(!replicating.covers(0));
        assert_eq!(replicating.next(), None);
    }
}
