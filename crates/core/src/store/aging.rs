//! How fast a block's hits are forgotten, which each disk learns.
//!
//! The main hand either takes one hit from a block when it passes, or all of them. A block that is counted down
//! outlives up to three rounds in which it is not used. That pays for blocks that are used for long. Where
//! working sets change, the blocks of the last one keep the space that those of the next one need.
//!
//! So only a share of the regions, chosen by hash, is counted down. The blocks of other regions lose all their hits.
//! The blocks of a region are treated alike: a large read is fast only if the cache has all its blocks, so a region
//! should leave the cache as a whole.
//!
//! A sampled block that stays, although it was not used in the last round, is *spared*: an evicted block could have had
//! its place. For both spared and evicted blocks, the store counts how many are used within the next round, and what
//! that saves. If spared blocks save more per block, the share of the disk grows, otherwise it shrinks. A spared block
//! is counted when it is used, passed again or evicted, since its saving is known then.
//!
//! Invariants
//! - A disk without a sample of last uses has no such share: all its blocks are counted down.
//! - At least about one region in sixteen is counted down, so that there is something to compare.

use haversack_model::{BlockNo, DiskNo};

use super::hash;
use crate::format::codec::{Reader, Writer};

/// Blocks of a region, 256 KiB: all of them are counted down, or none.
const REGION_BLOCKS: u64 = 64;

/// The share changes by this much.
const STEP: f32 = 1.0 / 16.0;
/// It changes after this many spared blocks.
const COMPARED_AT: u32 = 64;
/// At least this many sampled blocks must have been evicted for a comparison.
const LEAST_EVICTED: f32 = 16.0;
/// When more sampled blocks than this were evicted, the sums are halved.
const MOST_EVICTED: f32 = 1024.0;

/// What blocks saved, or would have saved, within a round of the main hand.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Savings {
    blocks: f32,
    saved_us: f32,
}

impl Savings {
    /// Notes that one of them was used within the round.
    pub(super) fn used(&mut self, saved_us: f32) {
        self.saved_us += saved_us;
    }

    /// Notes that a sampled block was evicted.
    pub(super) fn evicted(&mut self) {
        self.blocks += 1.0;
        if self.blocks > MOST_EVICTED {
            self.halve();
        }
    }

    /// Writes it for a checkpoint.
    pub(super) fn put(&self, w: &mut Writer) {
        w.u32(self.blocks.to_bits()).u32(self.saved_us.to_bits());
    }

    /// Reads what [`Savings::put`] wrote.
    pub(super) fn take(r: &mut Reader<'_>) -> Option<Savings> {
        Some(Savings { blocks: f32::from_bits(r.u32()?), saved_us: f32::from_bits(r.u32()?) })
    }

    fn mean_us(&self) -> f32 {
        self.saved_us / self.blocks.max(1.0)
    }

    fn halve(&mut self) {
        self.blocks /= 2.0;
        self.saved_us /= 2.0;
    }
}

/// How fast the hits of a disk's blocks are forgotten. See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Aging {
    /// The share of the blocks that are counted down.
    share: f32,
    spared: Savings,
    /// Spared blocks that were counted since the last comparison.
    since_compared: u32,
}

impl Default for Aging {
    fn default() -> Aging {
        Aging { share: 1.0, spared: Savings::default(), since_compared: 0 }
    }
}

impl Aging {
    /// Restores a value of [`Aging::saved`]. 0 means that the share is unknown.
    pub(super) fn resumed(saved: u8) -> Aging {
        let share = if saved == 0 { 1.0 } else { (f32::from(saved) / 255.0).max(STEP) };
        Aging { share, ..Aging::default() }
    }

    /// Writes it for a checkpoint.
    pub(super) fn put(&self, w: &mut Writer) {
        w.u32(self.share.to_bits()).u32(self.since_compared);
        self.spared.put(w);
    }

    /// Reads what [`Aging::put`] wrote.
    pub(super) fn take(r: &mut Reader<'_>) -> Option<Aging> {
        let (share, since_compared) = (f32::from_bits(r.u32()?), r.u32()?);
        Some(Aging { share, since_compared, spared: Savings::take(r)? })
    }

    /// Returns the share of the blocks that are counted down, in 255ths.
    pub(super) fn saved(&self) -> u8 {
        (self.share * 255.0).round() as u8
    }

    /// Returns the hits that a block has after the main hand has passed, of `hits` before.
    pub(super) fn hits_left(&self, disk: DiskNo, BlockNo(block): BlockNo, hits: u8) -> u8 {
        let region = hash(disk, BlockNo(block / REGION_BLOCKS));
        let is_counted_down = f32::from((region >> 24) as u16) < self.share * 65_536.0;
        if is_counted_down { hits.saturating_sub(1) } else { 0 }
    }

    /// Counts a spared block with what it saved within a round, 0 if it was not used. `evicted` are the blocks of all
    /// disks that share the space.
    pub(super) fn spared(&mut self, saved_us: f32, evicted: &Savings) {
        self.spared.blocks += 1.0;
        self.spared.used(saved_us);
        self.since_compared += 1;
        if self.since_compared < COMPARED_AT || evicted.blocks < LEAST_EVICTED {
            return;
        }
        let pays = self.spared.mean_us() > evicted.mean_us();
        self.share = (self.share + if pays { STEP } else { -STEP }).clamp(STEP, 1.0);
        self.spared.halve();
        self.since_compared = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Aging {
        /// Returns the number of spared blocks, and what they saved.
        pub(in super::super) fn counted(&self) -> (f32, f32) {
            (self.spared.blocks, self.spared.saved_us)
        }
    }

    /// Simulates blocks of which these shares are used in the round after they were spared, and evicted.
    fn after(mut aging: Aging, spared: f32, evicted: f32) -> Aging {
        let mut gone = Savings::default();
        for _ in 0..10_000 {
            gone.evicted();
            gone.used(evicted * 1000.0);
            aging.spared(spared * 1000.0, &gone);
        }
        aging
    }

    /// The first blocks of 16,384 regions.
    fn regions() -> impl Iterator<Item = BlockNo> {
        (0..1 << 14).map(|region| BlockNo(region * REGION_BLOCKS))
    }

    fn counted_down(aging: &Aging) -> usize {
        regions().filter(|first| aging.hits_left(DiskNo(1), *first, 3) == 2).count()
    }

    #[test]
    fn hits_are_forgotten_at_once_where_blocks_that_were_hit_are_not_used_again() {
        let at_first = Aging::default();
        assert_eq!(counted_down(&at_first), 1 << 14);
        let moving = after(at_first, 0.1, 0.2);
        let few = counted_down(&moving);
        assert!((900..1150).contains(&few), "one in sixteen is still counted down: {few}");
        assert_eq!(counted_down(&after(moving, 0.2, 0.1)), 1 << 14, "it learns again");
    }

    #[test]
    fn nothing_is_compared_before_enough_was_evicted() {
        let (mut aging, none) = (Aging::default(), Savings::default());
        (0..1000).for_each(|_| aging.spared(0.0, &none));
        assert_eq!(counted_down(&aging), 1 << 14);
    }

    #[test]
    fn a_block_without_hits_has_none_left() {
        assert!(regions().all(|first| Aging::default().hits_left(DiskNo(0), first, 0) == 0));
    }

    /// Half of the regions are counted down, each as a whole.
    #[test]
    fn the_blocks_of_a_region_are_treated_alike() {
        let aging = Aging { share: 0.5, ..Aging::default() };
        for BlockNo(first) in regions() {
            let left = |block| aging.hits_left(DiskNo(1), BlockNo(block), 3);
            assert!(
                (first..first + REGION_BLOCKS).all(|block| left(block) == left(first)),
                "region at {first}"
            );
        }
        let half = counted_down(&aging);
        assert!((7900..8500).contains(&half), "{half}");
        let of_another = |first: &BlockNo| aging.hits_left(DiskNo(2), *first, 3) == 2;
        let both = regions().filter(of_another).filter(|first| aging.hits_left(DiskNo(1), *first, 3) == 2);
        assert!((3800..4400).contains(&both.count()), "another disk's regions are chosen independently");
    }

    #[test]
    fn the_share_outlives_a_restart() {
        let moving = after(Aging::default(), 0.1, 0.2);
        for aging in [Aging::default(), moving] {
            let resumed = Aging::resumed(aging.saved());
            assert!((resumed.share - aging.share).abs() < 0.002, "{resumed:?}, {aging:?}");
        }
        assert_eq!(Aging::resumed(0), Aging::default());
    }
}
