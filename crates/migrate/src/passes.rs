//! The blocks that a source sends ahead, and their order.
//!
//! The blocks on flash are listed in passes: each pass sends the blocks of which the destination has no valid
//! copy, the dirty ones first, then those that have been used again. The first pass sends all cached blocks; later
//! ones send those that the guest has changed since, until a pass finds few, or not fewer than the pass before.
//!
//! A disk may have tens of millions of cached blocks, and other disks wait while a step is done. So blocks are put in
//! order while they are listed, and are handed out a part at a time.
//!
//! Invariants
//! - A pass begins only when all copies of the one before have arrived.
//! - No step takes time in proportion to the disk's cached blocks.

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
/// Blocks that are handed out at a time.
const PART_BLOCKS: usize = 16_384;
/// A dirty block has one of the higher ranks, of those a protected one, of those the one with the most hits.
const RANKS: usize = 16;
const MOST_HITS: u8 = 3;

enum Pass {
    Listing { from: ListCursor, found: Ranked },
    Sending { left: Ranked },
    Pausing { until: Micros },
}

fn rank(block: &CachedBlock) -> usize {
    usize::from(block.dirty) << 3 | usize::from(block.protected) << 2 | usize::from(block.hits.min(MOST_HITS))
}

/// Blocks by rank.
#[derive(Default)]
struct Ranked {
    blocks: [Vec<BlockNo>; RANKS],
    len: usize,
}

impl Ranked {
    fn push(&mut self, block: &CachedBlock) {
        self.blocks[rank(block)].push(block.block);
        self.len += 1;
    }

    /// Removes a part of the blocks, those with the highest rank first.
    fn take_part(&mut self) -> Vec<BlockNo> {
        let mut part = Vec::new();
        for blocks in self.blocks.iter_mut().rev() {
            let at = blocks.len().saturating_sub(PART_BLOCKS - part.len());
            part.extend(blocks.drain(at..));
        }
        self.len -= part.len();
        part
    }
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
            pass: Pass::Listing { from: ListCursor::default(), found: Ranked::default() },
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

    /// Returns how many of the listed blocks are still to be handed out.
    pub fn left(&self) -> usize {
        match &self.pass {
            Pass::Sending { left } => left.len,
            Pass::Listing { .. } | Pass::Pausing { .. } => 0,
        }
    }

    /// Continues the pass: `list` lists a part of the cached blocks and reports those that are to be sent. Once the
    /// pass has listed all, returns blocks to send whenever few of those that were returned are `left`.
    pub fn go_on(
        &mut self,
        now: Micros,
        left: usize,
        list: impl FnOnce(ListCursor, &mut dyn FnMut(CachedBlock)) -> Option<ListCursor>,
    ) -> Vec<BlockNo> {
        match &mut self.pass {
            Pass::Listing { from, found } => match list(*from, &mut |block| found.push(&block)) {
                Some(next) => *from = next,
                None => {
                    let mut found = std::mem::take(found);
                    self.found_before = self.found.replace(found.len).unwrap_or(0);
                    let part = found.take_part();
                    self.pass = Pass::Sending { left: found };
                    return part;
                }
            },
            Pass::Sending { left: more } if more.len > 0 && left < PART_BLOCKS => return more.take_part(),
            Pass::Sending { left: more } if more.len == 0 && left == 0 => {
                self.pass = Pass::Pausing { until: now + PAUSE_US };
            }
            Pass::Pausing { until } if now >= *until => {
                self.passes += 1;
                self.pass = Pass::Listing { from: ListCursor::default(), found: Ranked::default() };
            }
            Pass::Sending { .. } | Pass::Pausing { .. } => {}
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
        let sent = passes.go_on(0, 0, |_, each| {
            [block(1, false, 0), block(2, false, 3), block(3, true, 0)].into_iter().for_each(each);
            None
        });
        assert_eq!(sent, [3, 2, 1].map(BlockNo));
    }

    #[test]
    fn many_blocks_are_handed_out_in_parts_and_the_next_pass_waits_for_them() {
        let mut passes = Passes::new();
        let many = PART_BLOCKS as u64 + 10;
        let mut sent = passes.go_on(0, 0, |_, each| {
            (0..many).for_each(|number| each(block(number, number % 2 == 1, 0)));
            None
        });
        assert_eq!((sent.len(), passes.left()), (PART_BLOCKS, 10));
        assert!(passes.go_on(1, PART_BLOCKS, |_, _| None).is_empty(), "enough are on their way");
        sent.extend(passes.go_on(2, PART_BLOCKS - 1, |_, _| None));
        let dirty = sent.iter().position(|block| block.0 % 2 == 0);
        assert_eq!((dirty, passes.left()), (Some(many as usize / 2), 0));
        sent.sort_unstable();
        assert_eq!(sent, (0..many).map(BlockNo).collect::<Vec<_>>());
        assert!(passes.go_on(3, 1, |_, _| None).is_empty());
        passes.go_on(3 + PAUSE_US, 1, |_, _| None);
        assert_eq!(passes.count(), 1, "a copy has not arrived");
    }

    #[test]
    fn it_is_ready_when_the_guest_changes_as_much_as_is_sent() {
        let mut passes = Passes::new();
        let mut now = 0;
        let mut ready = Vec::new();
        for found in [10_000, 2_000, 1_000, 900, 880] {
            passes.go_on(now, 0, |_, each| {
                (0..found).for_each(|number| each(block(number, true, 0)));
                None
            });
            ready.push(passes.is_ready());
            passes.go_on(now, 0, |_, _| None);
            now += PAUSE_US;
            passes.go_on(now, 0, |_, _| None);
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
        assert_eq!(passes.go_on(0, 0, few).len(), 1);
        assert!(!passes.is_ready(), "nothing is known of what the guest changes");
        assert!(passes.go_on(10, 1, few).is_empty());
        assert!(passes.go_on(20, 0, few).is_empty());
        passes.go_on(20 + PAUSE_US, 0, few);
        assert_eq!((passes.count(), passes.go_on(20 + PAUSE_US, 0, few).len()), (2, 1));
        assert!(passes.is_ready());
    }
}
