//! The purge: pages are written anew that list versions in vain which one lost or lone device had overtaken.
//!
//! An older version may stay listed as long as a newer one is. With the last device that lists the newer one it would
//! become the newest, at the next start, and be believed.
//!
//! Invariants
//! - While any such version is listed, the record says not to believe clean blocks if the device that overtook it is
//!   gone, and calls a redundant pool degraded if it is not.
//! - It is over only when what has been written over such versions is durable.
//! - So in a pool that is whole every version that is listed in vain is overtaken on its own device or on two others.

use std::collections::VecDeque;

use crate::bugs::{Bug, planted};
use crate::core::{Core, RESERVED_FRAMES};
use crate::memory::Memory;
use crate::store::slot::SlotNo;

/// Slots whose pages are written at a time.
const PAGES_AT_A_TIME: usize = 16;

/// What is to be listed no more.
#[derive(Default)]
pub(crate) struct Purge {
    slots: VecDeque<SlotNo>,
    /// Slots with newer content than that have been written over since.
    last_seq: u64,
    /// What was durable and what was completed when all that could be done had been.
    done_at: Option<(u64, u64)>,
    /// Slots are left, or have been written over by what is not durable yet.
    under_way: bool,
    /// Once this number is durable, what was written over slots is.
    over_seq: Option<u64>,
}

impl Purge {
    pub fn is_over(&self) -> bool {
        !self.under_way
    }
}

impl<M: Memory> Core<M> {
    /// A device that has overtaken these elsewhere is about to be gone.
    pub(crate) fn purge_overtaken(&mut self, slots: Vec<SlotNo>) {
        if planted(Bug::TrustOvertaken) {
            return;
        }
        self.distrust_clean |= !slots.is_empty();
        self.list_no_more(slots);
    }

    /// A degraded pool is about to have second copies again: what a lone device has overtaken is listed yet.
    pub(crate) fn purge_before_whole(&mut self) {
        if self.redundancy && self.degraded && !planted(Bug::WholeTooEarly) {
            self.list_no_more(self.store.overtaken_from_elsewhere());
        }
    }

    /// The pool stops before it is known what is to be purged: it is not whole until the next life has done so.
    pub(crate) fn owe_purge(&mut self) {
        self.purge.under_way |= self.redundancy && self.degraded;
    }

    fn list_no_more(&mut self, slots: Vec<SlotNo>) {
        if slots.is_empty() {
            return;
        }
        self.purge.slots.extend(slots);
        self.purge.last_seq = self.durability.last();
        (self.purge.done_at, self.purge.under_way, self.purge.over_seq) = (None, true, None);
    }

    /// Writes some pages. True when it is over.
    pub(crate) fn drive_purge(&mut self) -> bool {
        // What a device lists that leaves keeps others listed.
        let waits = self.leaves_any() || self.stopping || self.transfer.len() <= RESERVED_FRAMES;
        if self.purge.is_over() || waits {
            return false;
        }
        let state = (self.durability.flushed(), self.durability.completed());
        if self.purge.done_at != Some(state) {
            self.purge_some();
            self.purge.done_at = Some((self.durability.flushed(), self.durability.completed()));
        }
        if !self.purge.slots.is_empty() {
            return false;
        }
        let seq = *self.purge.over_seq.get_or_insert(self.durability.last());
        if !self.durability.want(seq) {
            return false;
        }
        self.purge.under_way = false;
        if std::mem::take(&mut self.distrust_clean) {
            self.change_record();
        }
        true
    }

    fn purge_some(&mut self) {
        let mut waiting = Vec::new();
        while waiting.len() < PAGES_AT_A_TIME
            && let Some(number) = self.purge.slots.pop_front()
        {
            let slot = self.store.slot(number);
            if !self.store.is_listed_in_vain(number) || slot.seq() > self.purge.last_seq {
                continue;
            }
            if slot.dead().is_some_and(|dead| !dead.omitted()) {
                self.shrink_page(self.store.segment_of(number));
            } else {
                let page_seq = self.store.segments[self.store.segment_of(number)].page_seq;
                self.durability.want(page_seq.max(self.durability.completed()));
            }
            waiting.push(number);
        }
        // The same come first the next time: no more pages are on their way than these.
        for number in waiting.into_iter().rev() {
            self.purge.slots.push_front(number);
        }
    }
}
