//! The state of a disk's cleaner: its round, what waits for it, and when it runs next.
//!
//! Invariants
//! - A disk has at most one round. While the cleaner is idle, the round has no blocks and no I/O in flight.
//! - The rate limit never accumulates more blocks than a tenth of a second allows.

use std::collections::VecDeque;

use haversack_model::{BlockNo, Micros, WriteMode, WriteThroughAck};

use crate::action::JobError;
use crate::flow::order::groups::Order;
use crate::memory::FrameNo;
use crate::origin_gate::permit::CleaningFrom;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;

/// Maximum number of blocks in a round.
pub(super) const ROUND: usize = 256;

/// A block in a round.
#[derive(Clone, Copy)]
pub(super) struct Cleaning {
    pub block: BlockNo,
    /// Its slot when it was picked; unused for a staged block.
    pub slot: SlotNo,
    /// Sequence number of its commit; for a staged block the version of its frame.
    pub seq: u64,
    /// Sectors to write.
    pub mask: u8,
    /// Transfer frame that its data is read into.
    pub frame: FrameNo,
    /// Its data was read and verified.
    pub good: bool,
    /// It comes from a staging frame: the disk has no space on a cache device.
    pub staged: bool,
}

impl Cleaning {
    pub fn from(&self) -> CleaningFrom {
        if self.staged { CleaningFrom::Staging } else { CleaningFrom::Flash { seq: self.seq } }
    }
}

/// The step that a round is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    Reading,
    Writing,
    Flushing,
}

/// A disk's cleaner.
#[derive(Default)]
pub(crate) struct Cleaner {
    /// The step that the round is in.
    pub(super) phase: Phase,
    /// The blocks of the round.
    pub(super) blocks: Vec<Cleaning>,
    /// Reads or writes of the round that have not ended.
    pub(super) in_flight: u32,
    /// The failure in this round.
    pub(super) failed: Option<JobError>,
    /// Blocks that others wait for, oldest request first.
    pub(super) requested: VecDeque<BlockNo>,
    /// A peer bars all dirty blocks of the segments up to this one, from the longest dirty on: the next search begins
    /// after it. It begins at the first again when it has come to the last, or the peer has forgotten blocks.
    pub barred_until: Option<SegmentNo>,
    /// Something waits for clean blocks.
    pub space_needed: bool,
    /// The order of the guest's flushes, if blocks are cleaned in it.
    pub order: Option<Box<Order>>,
    /// Everything should be cleaned.
    pub all: bool,
    /// No staged block became dirty before this time.
    pub staged_since_us: Micros,
    /// Dirty blocks exceeded the high watermark and still exceed the low watermark.
    pub(super) lowering: bool,
    /// Staged blocks have been dirty for long enough, or are all that could be cleaned.
    pub(super) overdue: bool,
    /// When the cleaner checks again whether cleaning is due.
    pub next_look_us: Micros,
    /// No round starts before this time, since the last one failed.
    pub retry_us: Micros,
    /// The origin refused the last write.
    pub origin_failed: bool,
    /// Blocks that the rate limit allowed at `budget_us`.
    pub(super) budget_blocks: f64,
    /// When the budget was last refilled.
    budget_us: Micros,
    /// Maximum number of blocks in the next round.
    pub(super) round: usize,
    /// Blocks cleaned since the last `all` was set.
    pub done_blocks: u64,
    /// Rounds that failed since then, and what failed last.
    pub failures: u64,
    pub last_failure: Option<JobError>,
}

impl Cleaner {
    /// Requests that a block be cleaned soon.
    pub fn ask(&mut self, block: BlockNo) {
        if !self.requested.contains(&block) {
            self.requested.push_back(block);
        }
    }

    /// Requests that everything be cleaned, and counts from now on.
    pub fn clean_all(&mut self) {
        (self.all, self.done_blocks, self.failures, self.last_failure) = (true, 0, 0, None);
    }

    /// Whether something waits until all ended groups are clean.
    pub fn is_order_wanted(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.is_wanted())
    }

    /// Returns the number of blocks in the round.
    pub fn picked(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Returns the staged blocks that are being written to the origin.
    pub fn staged_blocks(&self) -> impl Iterator<Item = BlockNo> + '_ {
        self.blocks.iter().filter(|c| c.staged).map(|c| c.block)
    }

    /// Whether the rate limit lets a round start: it must allow a tenth of a second's blocks, or a full
    /// round.
    pub(super) fn within_limit(&mut self, now: Micros, blocks_a_second: u32) -> bool {
        let rate = f64::from(blocks_a_second);
        let portion = (rate / 10.0).max(1.0);
        let refill = now.saturating_sub(self.budget_us) as f64 * rate / 1e6;
        self.budget_blocks = (self.budget_blocks + refill).min(portion);
        self.budget_us = now;
        let missing = portion.min(ROUND as f64) - self.budget_blocks;
        if missing > 0.0 {
            self.next_look_us = now + (missing / rate * 1e6).ceil() as Micros;
        }
        missing <= 0.0
    }

    /// Whether staged blocks should be committed now so that they can be cleaned.
    pub fn wants_commit(&self, mode: WriteMode) -> bool {
        self.all
            || self.overdue
            || !self.requested.is_empty()
            || self.is_order_wanted()
            || mode == WriteMode::WriteThrough(WriteThroughAck::Cache)
    }
}
