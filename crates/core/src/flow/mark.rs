//! Flush marks: pages and the record say up to which number everything was durable when they were written.
//! Recovery believes commits up to the highest mark; a newer one that does not verify counts as torn by a
//! power loss. So that damage at rest is not taken for that, a commit is marked soon after its flush: by the
//! next page that is written anyway, or else by one written for the purpose.
//!
//! Invariant
//! - While a flushed commit is not durably marked, a time is set at which its mark will be written.

use std::collections::VecDeque;

use haversack_model::Micros;

use crate::core::Core;
use crate::memory::Memory;
use crate::store::segment::{Segment, SegmentState};

/// Which commits are durably marked as flushed.
#[derive(Default)]
pub(crate) struct FlushMark {
    /// The newest commit.
    newest_commit: u64,
    /// The highest mark that is durable.
    durable: u64,
    /// Marks on their way: number of the write that carries it, and the mark.
    carried: VecDeque<(u64, u64)>,
    due_us: Option<Micros>,
}

impl FlushMark {
    /// After recovery: all up to a number is durable, and the devices say so up to another.
    pub fn after_recovery(flushed_seq: u64, marked_seq: u64) -> FlushMark {
        FlushMark { newest_commit: flushed_seq, durable: marked_seq, ..FlushMark::default() }
    }

    pub fn committed(&mut self, seq: u64) {
        self.newest_commit = self.newest_commit.max(seq);
    }

    /// A write with this number carries a mark.
    pub fn carry(&mut self, seq: u64, mark: u64) {
        if mark > self.carried.back().map_or(self.durable, |c| c.1) {
            self.carried.push_back((seq, mark));
        }
    }

    /// Everything up to a number is durable.
    fn flushed(&mut self, seq: u64, due_us: Micros) {
        while let Some((_, mark)) = self.carried.front().filter(|c| c.0 <= seq) {
            self.durable = *mark;
            self.carried.pop_front();
        }
        let behind = self.durable < self.newest_commit.min(seq);
        self.due_us = behind.then(|| self.due_us.unwrap_or(due_us));
    }

    /// When a mark must be written for its own sake.
    pub fn due_us(&self) -> Option<Micros> {
        self.due_us
    }
}

impl<M: Memory> Core<M> {
    /// Commits up to this number are durable, and durably marked so: damage to them is told from tearing.
    pub fn marked_seq(&self) -> u64 {
        self.mark.durable
    }

    /// The number of the newest commit or other write of the core's own.
    pub fn last_seq(&self) -> u64 {
        self.sequence.last()
    }

    pub(crate) fn mark_flushed(&mut self) {
        self.mark.flushed(self.store.flushed_seq, self.now + self.config.flush_mark_us);
    }

    /// Writes a page for its mark if one is due. Whichever is ready will do.
    pub(crate) fn drive_mark(&mut self) -> bool {
        if self.mark.due_us.is_none_or(|due_us| due_us > self.now) {
            return false;
        }
        let flushed_seq = self.store.flushed_seq;
        let is_owned = |s: &&Segment| s.state == SegmentState::Owned;
        let any_owned = self.store.segments.iter().any(|s| is_owned(&s));
        self.mark.due_us = any_owned.then(|| self.now + self.config.flush_mark_us);
        let ready = self.store.segments.iter().position(|s| is_owned(&s) && s.page_ready(flushed_seq));
        match ready {
            Some(segment) => self.rewrite_page(segment as u32),
            None => {
                self.want_flush(self.sequence.completed());
                any_owned
            }
        }
    }
}
