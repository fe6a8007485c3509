//! A sliding history: the last windows of a disk counted together, for factors that should change slowly while
//! decisions are made often.
//!
//! Source: Liu, Ge, Du and Huang, "SSD as a Cloud Cache? Carefully Design about It", 2015, section 4.1: a line of the
//! history each minute, and the last thirty lines for an allocation.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::window::DiskWindow;

/// What was counted of a disk over its last windows.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The length of all windows together.
    pub length_us: u64,
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Blocks read that were in the cache.
    pub read_hits: u64,
    /// The largest demand of a window. That of all windows together is not known: they may have used the same blocks.
    pub demand_blocks: u64,
}

impl History {
    fn of(window: &DiskWindow, demand_blocks: u64) -> History {
        let DiskWindow { length_us, reads, writes, read_hits, .. } = *window;
        History { length_us, reads, writes, read_hits, demand_blocks }
    }

    fn and(self, other: &History) -> History {
        History {
            length_us: self.length_us.saturating_add(other.length_us),
            reads: self.reads.saturating_add(other.reads),
            writes: self.writes.saturating_add(other.writes),
            read_hits: self.read_hits.saturating_add(other.read_hits),
            demand_blocks: self.demand_blocks.max(other.demand_blocks),
        }
    }
}

/// The last windows, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sliding {
    windows: VecDeque<History>,
}

impl Sliding {
    /// Takes in a window, and forgets those before the last `most`.
    pub fn push(&mut self, window: &DiskWindow, demand_blocks: u64, most: u64) {
        self.windows.push_back(History::of(window, demand_blocks));
        while self.windows.len() as u64 > most {
            self.windows.pop_front();
        }
    }

    /// Returns all windows together; none if there was none.
    pub fn total(&self) -> Option<History> {
        let mut windows = self.windows.iter();
        let first = *windows.next()?;
        Some(windows.fold(first, History::and))
    }
}
