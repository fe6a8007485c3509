//! Writes flush marks that are due: see [`crate::durability`].

use crate::core::{Call, Core};
use crate::memory::Memory;
use crate::store::segment::{Segment, SegmentNo, SegmentState};

impl Core {
    /// Returns the number up to which commits are durable and durably marked as such: damage to them is not
    /// mistaken for tearing.
    pub fn marked_seq(&self) -> u64 {
        self.durability.marked()
    }

    /// Returns the number of the newest commit or other write of the core itself.
    pub fn last_seq(&self) -> u64 {
        self.durability.last()
    }
}

impl<M: Memory> Call<'_, M> {
    /// Writes a page to record a flush mark if one is due. Any page that is ready can be used.
    pub(crate) fn drive_mark(&mut self) -> bool {
        if self.durability.mark_due_us().is_none_or(|due_us| due_us > self.now) || self.pool.rests() {
            return false;
        }
        let again_us = self.now + self.config.flush_mark_us;
        if self.durability.is_mark_held() {
            self.durability.put_off_mark(Some(again_us));
            return false;
        }
        let flushed_seq = self.durability.flushed();
        let is_owned = |s: &&Segment| s.state == SegmentState::Owned;
        let any_owned = self.store.segments.iter().any(|s| is_owned(&s));
        self.durability.put_off_mark(any_owned.then_some(again_us));
        let is_ready = |number: &SegmentNo| {
            let s = &self.store.segments[*number];
            is_owned(&s) && s.page_ready(flushed_seq)
        };
        let ready = self.store.segments.numbers().find(is_ready);
        match ready {
            Some(segment) => self.rewrite_page(segment),
            None => {
                self.durability.want_completed();
                any_owned
            }
        }
    }
}
