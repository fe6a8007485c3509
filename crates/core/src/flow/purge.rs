//! The purge: rewrites pages that list obsolete versions which only one device, lost or standing alone, had
//! overtaken.
//!
//! An obsolete version may stay listed as long as a newer one is. If the last device that lists the newer one
//! is lost, the older one is the newest at the next start, and is believed.
//!
//! Invariants
//! - While any such version is listed, the record says not to believe clean blocks, if the device that
//!   overtook it is gone, or calls a redundant pool degraded, if it is not.
//! - The purge is over only when everything that was written over such versions is durable.
//! - So in a pool that is whole, every obsolete version that is listed is overtaken on its own device or on
//!   two others.

use std::collections::VecDeque;

use crate::bugs::{Bug, planted};
use crate::core::Core;
use crate::memory::Memory;
use crate::store::slot::SlotNo;

/// Slots whose pages are written at a time.
const PAGES_AT_A_TIME: usize = 16;

/// The versions that must no longer be listed.
#[derive(Default)]
pub(crate) struct Purge {
    /// Slots whose entries must leave the pages.
    slots: VecDeque<SlotNo>,
    /// Slots whose content has a higher sequence number have been reused since.
    last_seq: u64,
    /// The durable and the completed sequence number when everything possible had last been done.
    done_at: Option<(u64, u64)>,
    /// Slots are left, or content that overwrote them is not durable yet.
    under_way: bool,
    /// Once this number is durable, so is everything that overwrote slots.
    over_seq: Option<u64>,
}

impl Purge {
    pub fn is_over(&self) -> bool {
        !self.under_way
    }
}

impl<M: Memory> Core<M> {
    /// Starts the purge of slots on other devices which a device that is about to be gone has overtaken.
    pub(crate) fn purge_overtaken(&mut self, slots: Vec<SlotNo>) {
        if planted(Bug::TrustOvertaken) {
            return;
        }
        self.distrust_clean |= !slots.is_empty();
        self.list_no_more(slots);
    }

    /// Starts the purge of what a lone device has overtaken, since a degraded pool is about to have second
    /// copies again.
    pub(crate) fn purge_before_whole(&mut self) {
        if self.redundancy && self.degraded && !planted(Bug::WholeTooEarly) {
            self.list_no_more(self.store.overtaken_from_elsewhere());
        }
    }

    /// Notes that a purge is due but not done, since the pool stops: it is not whole until the next opening
    /// has done it.
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

    /// Writes some pages. Returns true when the purge has just ended.
    pub(crate) fn drive_purge(&mut self) -> bool {
        // What a leaving device lists keeps other entries listed.
        let waits = self.leaves_any() || self.stopping || !self.frames.suffices_request(1, false);
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
        // The same ones come first next time, so no more pages than these are in flight.
        for number in waiting.into_iter().rev() {
            self.purge.slots.push_front(number);
        }
    }
}
