//! Which obsolete versions the pages must no longer list. The flow, and why, is `flow/purge.rs`.
//!
//! Invariants
//! - A slot stays in the list until no page lists the content that the slot had when it was added.
//! - The purge is over only when everything that was written over such versions is durable.

use std::collections::VecDeque;

use crate::store::slot::SlotNo;

/// See the module.
#[derive(Default)]
pub(crate) struct Purge {
    /// Slots whose entries must leave the pages.
    slots: VecDeque<SlotNo>,
    /// The last sequence number when slots were added. A slot whose content has a higher number has been reused since.
    last_seq: u64,
    /// The durable and the completed sequence number when the last pass ended. Until one of them changes, another pass
    /// is useless.
    done_at: Option<(u64, u64)>,
    /// Slots are left, or content that overwrote them is not durable yet.
    under_way: bool,
    /// Once this number is durable, so is everything that overwrote slots.
    over_seq: Option<u64>,
}

impl Purge {
    /// Adds slots whose current content, of commits up to `last_seq`, must no longer be listed.
    pub fn add(&mut self, slots: Vec<SlotNo>, last_seq: u64) {
        if slots.is_empty() {
            return;
        }
        self.slots.extend(slots);
        self.last_seq = last_seq;
        (self.done_at, self.under_way, self.over_seq) = (None, true, None);
    }

    /// Records that a purge is due but will be done only after the next opening of the pool.
    pub fn owe(&mut self) {
        self.under_way = true;
    }

    pub fn is_over(&self) -> bool {
        !self.under_way
    }

    /// Whether nothing more can be done in this state of the sequence numbers.
    pub fn is_done_at(&self, state: (u64, u64)) -> bool {
        self.done_at == Some(state)
    }

    /// Called when everything possible in this state has been done.
    pub fn done_at(&mut self, state: (u64, u64)) {
        self.done_at = Some(state);
    }

    /// Takes the next slot.
    pub fn next(&mut self) -> Option<SlotNo> {
        self.slots.pop_front()
    }

    /// Puts slots back at the front, in the same order. So they come first in the next call, which bounds the number of
    /// pages in flight.
    pub fn put_back(&mut self, slots: Vec<SlotNo>) {
        for number in slots.into_iter().rev() {
            self.slots.push_front(number);
        }
    }

    /// Whether a slot that was added has been reused since for content with this number.
    pub fn is_reused(&self, seq: u64) -> bool {
        seq > self.last_seq
    }

    /// If no slot is left, returns the number that must be durable before the purge is over. `last_seq` is
    /// the last number handed out.
    pub fn ends_with(&mut self, last_seq: u64) -> Option<u64> {
        self.slots.is_empty().then(|| *self.over_seq.get_or_insert(last_seq))
    }

    /// Records that the purge has ended.
    pub fn end(&mut self) {
        self.under_way = false;
    }
}
