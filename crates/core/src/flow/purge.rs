//! The purge: rewrites pages that list obsolete versions which only one device, lost or standing alone, had
//! overtaken.
//!
//! An obsolete version may stay listed as long as a newer one is. If the last device that lists the newer one
//! is lost, the older one is the newest at the next start, and is trusted.
//!
//! Invariants
//! - While any such version is listed, the record says not to trust clean blocks, if the device that
//!   overtook it is gone, or calls a redundant pool degraded, if it is not.
//! - The purge ends only when everything that was written over such versions is durable.
//! - So in a pool that is whole, every obsolete version that is listed is overtaken on its own device or on
//!   two others.

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::memory::Memory;
use crate::store::slot::SlotNo;

/// Slots whose pages are written at a time.
const PAGES_AT_A_TIME: usize = 16;

impl Core {
    /// Starts the purge of slots on other devices which a device that is about to be gone has overtaken.
    pub(crate) fn purge_overtaken(&mut self, slots: Vec<SlotNo>) {
        if planted(Bug::TrustOvertaken) {
            return;
        }
        if !slots.is_empty() {
            self.pool.distrust_clean();
        }
        self.devices.purge.add(slots, self.durability.last());
    }

    /// Starts the purge of versions that a lone device has overtaken, since a degraded pool is about to have
    /// second copies again.
    pub(crate) fn purge_before_whole(&mut self) {
        if self.pool.is_degraded() && !planted(Bug::WholeTooEarly) {
            self.devices.purge.add(self.store.overtaken_from_elsewhere(), self.durability.last());
        }
    }

    /// Records that a purge is due but will not be done, since the pool is stopping: the pool is not whole until the
    /// next opening has done it.
    pub(crate) fn owe_purge(&mut self) {
        if self.pool.is_degraded() {
            self.devices.purge.owe();
        }
    }
}

impl<M: Memory> Call<'_, M> {
    /// Writes some pages. Returns true when the purge has just ended.
    pub(crate) fn drive_purge(&mut self) -> bool {
        // Entries of a leaving or gone device that the store still knows would keep other entries listed.
        let waits = self.devices.leaves_any()
            || self.devices.has_gone()
            || self.pool.is_stopping()
            || !self.frames.suffices_request(1, false);
        if self.devices.purge.is_over() || waits {
            return false;
        }
        let state = (self.durability.flushed(), self.durability.completed());
        if !self.devices.purge.is_done_at(state) {
            self.purge_some();
            let state = (self.durability.flushed(), self.durability.completed());
            self.devices.purge.done_at(state);
        }
        let last_seq = self.durability.last();
        let Some(seq) = self.devices.purge.ends_with(last_seq) else { return false };
        if !self.durability.want(seq) {
            return false;
        }
        self.devices.purge.end();
        if self.pool.trust_clean() {
            self.change_record();
        }
        true
    }

    fn purge_some(&mut self) {
        let mut waiting = Vec::new();
        while waiting.len() < PAGES_AT_A_TIME
            && let Some(number) = self.devices.purge.next()
        {
            let slot = self.store.slot(number);
            if !self.store.is_stale_listing(number) || self.devices.purge.is_reused(slot.seq()) {
                continue;
            }
            if slot.dead().is_some_and(|dead| !dead.omitted()) {
                self.shrink_page(self.store.segment_of(number));
            } else {
                let page_seq = self.store.segments[self.store.segment_of(number)].page_seq;
                self.durability.want_completed_and(page_seq);
            }
            waiting.push(number);
        }
        self.devices.purge.put_back(waiting);
    }
}
