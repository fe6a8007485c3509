//! The blocks that a source sends ahead, and their order.
//!
//! The blocks on flash are listed in passes: each pass sends the blocks of which the destination has no valid
//! copy, the dirty ones first, then those that have been used again. The first pass sends all cached blocks; later
//! ones send those that the guest has changed since, until a pass finds few, or not fewer than the pass before.
//!
//! Invariant
//! - A pass begins only when all copies of the one before have arrived.

use std::cmp::Reverse;

use haversack_core::{CachedBlock, ListCursor};
use haversack_model::{BlockNo, Micros};

/// The pause before another pass.
const PAUSE_US: Micros = 100_000;
/// A pass that finds no more blocks than this has caught up with the guest.
const FEW_BLOCKS: usize = 256;
/// The guest changes blocks as fast as they are sent if a pass finds more than this share of the pass before, in
/// percent.
const NOT_FEWER_PERCENT: usize = 80;
/// Number of passes before that counts.
const LEAST_PASSES: u32 = 3;

enum Pass {
    Listing { from: ListCursor, found: Vec<(Rank, BlockNo)> },
    Sending,
    Pausing { until: Micros },
}

/// The order in which blocks are sent: the greatest first.
type Rank = (bool, bool, u8);

fn rank(block: &CachedBlock) -> Rank {
    (block.dirty, block.protected, block.hits)
}

/// See the module documentation.
pub(crate) struct Passes {
    pass: Pass,
    passes: u32,
    /// How many blocks the last complete pass found, and the one before.
    found: Option<usize>,
    found_before: usize,
}

impl Passes {
    pub fn new() -> Passes {
        Passes {
            pass: Pass::Listing { from: ListCursor::default(), found: Vec::new() },
            passes: 1,
            found: None,
            found_before: 0,
        }
    }

    /// Returns the number of the current pass.
    pub fn count(&self) -> u32 {
        self.passes
    }

    /// Returns whether a switchover now would leave little to do, or as much as any later one.
    pub fn is_ready(&self) -> bool {
        let Some(found) = self.found.filter(|_| self.passes > 1) else { return false };
        let keeps_up = found * 100 >= self.found_before * NOT_FEWER_PERCENT;
        found <= FEW_BLOCKS || self.passes > LEAST_PASSES && keeps_up
    }

    /// Returns whether all blocks were listed at least once.
    pub fn has_listed(&self) -> bool {
        self.found.is_some()
    }

    /// Returns whether the blocks are being listed.
    pub fn is_listing(&self) -> bool {
        matches!(self.pass, Pass::Listing { .. })
    }

    /// Continues the pass: `list` lists a part of the cached blocks and reports those that are to be sent. Returns
    /// the blocks to send, once the pass has listed all.
    pub fn go_on(
        &mut self,
        now: Micros,
        all_arrived: bool,
        list: impl FnOnce(ListCursor, &mut dyn FnMut(CachedBlock)) -> Option<ListCursor>,
    ) -> Vec<BlockNo> {
        match &mut self.pass {
            Pass::Listing { from, found } => {
                match list(*from, &mut |block| found.push((rank(&block), block.block))) {
                    Some(next) => *from = next,
                    None => {
                        let mut found = std::mem::take(found);
                        found.sort_unstable_by_key(|(rank, block)| (Reverse(*rank), block.0));
                        self.found_before = self.found.unwrap_or(0);
                        (self.found, self.pass) = (Some(found.len()), Pass::Sending);
                        return found.into_iter().map(|(_, block)| block).collect();
                    }
                }
            }
            Pass::Sending if all_arrived => self.pass = Pass::Pausing { until: now + PAUSE_US },
            Pass::Pausing { until } if now >= *until => {
                self.passes += 1;
                self.pass = Pass::Listing { from: ListCursor::default(), found: Vec::new() };
            }
            Pass::Sending | Pass::Pausing { .. } => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, dirty: bool, hits: u8) -> CachedBlock {
        CachedBlock { block: BlockNo(number), mask: 0xff, dirty, protected: false, hits, seq: number }
    }

    #[test]
    fn dirty_blocks_are_sent_first_then_those_that_are_used_most() {
        let mut passes = Passes::new();
        let sent = passes.go_on(0, true, |_, each| {
            [block(1, false, 0), block(2, false, 3), block(3, true, 0)].into_iter().for_each(each);
            None
        });
        assert_eq!(sent, [3, 2, 1].map(BlockNo));
    }

    #[test]
    fn it_is_ready_when_the_guest_changes_as_much_as_is_sent() {
        let mut passes = Passes::new();
        let mut now = 0;
        let mut ready = Vec::new();
        for found in [10_000, 2_000, 1_000, 900, 880] {
            passes.go_on(now, true, |_, each| {
                (0..found).for_each(|number| each(block(number, true, 0)));
                None
            });
            ready.push(passes.is_ready());
            passes.go_on(now, true, |_, _| None);
            now += PAUSE_US;
            passes.go_on(now, true, |_, _| None);
        }
        assert_eq!(ready, [false, false, false, true, true]);
    }

    #[test]
    fn it_is_ready_when_a_later_pass_finds_little() {
        let mut passes = Passes::new();
        let few = |_: ListCursor, each: &mut dyn FnMut(CachedBlock)| {
            each(block(1, true, 0));
            None
        };
        assert_eq!(passes.go_on(0, true, few).len(), 1);
        assert!(!passes.is_ready(), "nothing is known of what the guest changes");
        assert!(passes.go_on(10, false, few).is_empty());
        assert!(passes.go_on(20, true, few).is_empty());
        passes.go_on(20 + PAUSE_US, true, few);
        assert_eq!((passes.count(), passes.go_on(20 + PAUSE_US, true, few).len()), (2, 1));
        assert!(passes.is_ready());
    }
}
