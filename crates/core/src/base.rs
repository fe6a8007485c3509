//! A disk that was made from a base image shares the base's blocks: while a block is identical to the base's block,
//! reads of the block are sent to the base's disk, so that one cached copy serves all disks of that base.
//! `flow/base.rs` handles the requests.
//!
//! The disk's own origin has the same content, so sharing is never needed to read correctly, and can end at any time.
//!
//! Invariants
//! - A block is shared only if the disk's origin had not stored it itself at some moment after sharing began, and if it
//!   was not dirty when sharing began and has not been written since.
//! - A block that is not shared any more is not shared again.
//! - An answer of the origin is used only for the sharing that had begun when the origin was asked. If sharing has
//!   begun again since, the answer is ignored.
//! - Sharing is valid under the ownership epochs of both disks under which it began.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.5: virtual desktops with shared master images.

use haversack_model::{BlockNo, DiskId, DiskNo, SECTORS_PER_BLOCK};

const WORD_BITS: u64 = u64::BITS as u64;

/// Returns how many words have a bit for each block of that many sectors, whatever the grid phase.
fn words_for(sectors: u64) -> usize {
    (sectors + SECTORS_PER_BLOCK).div_ceil(SECTORS_PER_BLOCK).div_ceil(WORD_BITS) as usize
}

/// The blocks of a disk that its origin reads from the base image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaseBlocks {
    /// Sectors of the disk.
    sectors: u64,
    phase: u8,
    /// A bit for each block.
    words: Vec<u64>,
    /// The sectors added last, which the next ones may continue.
    run: std::ops::Range<u64>,
}

impl BaseBlocks {
    /// Returns an empty set for a disk of this size, in sectors, and this grid phase, of which only blocks within the
    /// first `base_sectors` can be in it.
    pub fn new(sectors: u64, phase: u8, base_sectors: u64) -> BaseBlocks {
        BaseBlocks { sectors, phase, words: vec![0; words_for(sectors.min(base_sectors))], run: 0..0 }
    }

    /// Adds the blocks that lie within these sectors, which follow those of the last call. A block of which only some
    /// sectors are added is not in the set.
    ///
    /// # Panics
    /// The sectors begin before the end of those of the last call.
    pub fn add(&mut self, sector: u64, sectors: u64) {
        assert!(sector >= self.run.end, "extents come in order");
        let end = sector.saturating_add(sectors).min(self.sectors);
        if sector != self.run.end {
            self.close_run();
            self.run = sector..sector;
        }
        self.run.end = end.max(self.run.start);
    }

    /// Whether the set was made for a disk of this size and phase.
    pub(crate) fn is_for(&self, sectors: u64, phase: u8) -> bool {
        (self.sectors, self.phase) == (sectors, phase)
    }

    fn close_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run.is_empty() {
            return;
        }
        let shift = (SECTORS_PER_BLOCK - u64::from(self.phase)) % SECTORS_PER_BLOCK;
        // The first and the last block of a disk may have fewer sectors than the others.
        let first = if run.start == 0 { 0 } else { (run.start + shift).div_ceil(SECTORS_PER_BLOCK) };
        let end = match run.end == self.sectors {
            true => (run.end + shift).div_ceil(SECTORS_PER_BLOCK),
            false => (run.end + shift) / SECTORS_PER_BLOCK,
        };
        // What is added beyond the end of the base is not in the set.
        for block in first..end.min(self.words.len() as u64 * WORD_BITS) {
            self.words[(block / WORD_BITS) as usize] |= 1 << (block % WORD_BITS);
        }
    }

    /// Returns the set as words of bits.
    fn into_words(mut self) -> Vec<u64> {
        self.close_run();
        self.words
    }
}

/// Identifies one call of [`crate::Core::share_base`], so that [`crate::Core::share_blocks`] can ignore an outdated
/// answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharingId(pub u32);

/// What a disk shares with its base. See the module.
pub(crate) struct Base {
    /// The call of [`crate::Core::share_base`] that began this sharing.
    pub sharing: SharingId,
    /// The base: its number, and its identity, since the number may already belong to another disk.
    pub disk: DiskNo,
    pub id: DiskId,
    /// The ownership epochs of the disk and of the base when sharing began.
    pub epochs: (u64, u64),
    /// A bit for each block of the base; 1: the block is not shared. Blocks beyond the end of the base have no bit.
    own: Vec<u64>,
    /// Whether it is known which blocks the origin reads from the base. Until then, no block is shared.
    pub is_known: bool,
    /// Blocks that are shared.
    pub shared_blocks: u64,
}

impl Base {
    /// Begins to track which of the first `sectors` of a disk, the size of its base, are not shared.
    pub fn new(sharing: SharingId, disk: DiskNo, id: DiskId, epochs: (u64, u64), sectors: u64) -> Base {
        let own = vec![0; words_for(sectors)];
        Base { sharing, disk, id, epochs, own, is_known: false, shared_blocks: 0 }
    }

    /// Called when a block is, or is about to be, different from the base's.
    pub fn differs(&mut self, block: BlockNo) {
        let (word, bit) = ((block.0 / WORD_BITS) as usize, 1 << (block.0 % WORD_BITS));
        // Blocks beyond the end of the base are not here; they are not shared.
        if let Some(word) = self.own.get_mut(word) {
            self.shared_blocks -= u64::from(self.is_known && *word & bit == 0);
            *word |= bit;
        }
    }

    /// Shares these blocks, except for those that already differ.
    pub fn share(&mut self, blocks: BaseBlocks) {
        let blocks = blocks.into_words();
        for (index, own) in self.own.iter_mut().enumerate() {
            *own |= !blocks.get(index).copied().unwrap_or(0);
        }
        self.is_known = true;
        self.shared_blocks = self.own.iter().map(|own| u64::from(own.count_zeros())).sum();
    }

    /// Whether a block is shared with the base.
    #[inline]
    pub fn is_shared(&self, block: BlockNo) -> bool {
        let own = self.own.get((block.0 / WORD_BITS) as usize);
        self.is_known && own.is_some_and(|own| own >> (block.0 % WORD_BITS) & 1 == 0)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.own.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_of(map: BaseBlocks) -> Vec<u64> {
        let words = map.into_words();
        (0..words.len() as u64 * 64)
            .filter(|block| words[(block / 64) as usize] >> (block % 64) & 1 == 1)
            .collect()
    }

    #[test]
    fn only_blocks_that_lie_within_the_extents_are_shared() {
        let mut map = BaseBlocks::new(100, 0, 100);
        map.add(4, 10); // Part of block 0, part of block 1.
        map.add(14, 3); // The rest of block 1.
        map.add(40, 8);
        map.add(97, 50); // The last block, of 4 sectors, in part.
        assert_eq!(blocks_of(map), [1, 5]);
        let mut map = BaseBlocks::new(100, 0, 100);
        map.add(90, 50);
        assert_eq!(blocks_of(map), [12], "the last block has only 4 sectors");
    }

    #[test]
    fn the_grid_follows_the_phase() {
        // Block 0 has sectors 0 to 6, block 1 has 7 to 14.
        let mut map = BaseBlocks::new(64, 7, 64);
        map.add(0, 7);
        map.add(8, 14);
        assert_eq!(blocks_of(map), [0]);
        let mut map = BaseBlocks::new(64, 7, 64);
        map.add(1, 63);
        assert_eq!(blocks_of(map), [1, 2, 3, 4, 5, 6, 7, 8], "block 8 has one sector");
    }

    #[test]
    fn what_differs_is_not_shared_again() {
        let mut base = Base::new(SharingId(1), DiskNo(1), DiskId([1; 16]), (1, 1), 800);
        assert!(!base.is_shared(BlockNo(3)), "nothing is known yet");
        base.differs(BlockNo(3));
        let mut map = BaseBlocks::new(800, 0, 800);
        map.add(0, 400);
        base.share(map);
        assert_eq!(base.shared_blocks, 49);
        assert!(!base.is_shared(BlockNo(3)) && base.is_shared(BlockNo(4)) && !base.is_shared(BlockNo(50)));
        base.differs(BlockNo(4));
        base.differs(BlockNo(4));
        base.differs(BlockNo(60));
        base.differs(BlockNo(1 << 40));
        assert_eq!(base.shared_blocks, 48);
        assert!(!base.is_shared(BlockNo(4)) && !base.is_shared(BlockNo(1 << 40)));
    }
}
