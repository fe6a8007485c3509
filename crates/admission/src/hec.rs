//! HEC: touch count (TC) and rejection of sequential runs (SSEQR).
//!
//! *TC*: a bitmap over the regions of a disk remembers permanently which regions were touched. A block is
//! admitted if its region was touched before. An access that continues a run within a region belongs to the
//! same touch, so a scan of new regions does not admit itself. *SSEQR*: blocks that continue a run longer than
//! a limit are rejected.
//!
//! Memory: two bits per region and sixteen runs, independent of the accesses.
//!
//! Source: HEC (Yang, Plasson, Gillis, Talagala, SYSTOR'13) as used for comparison by CloudCache (Arteaga),
//! section 3.4.4: regions and runs of 4 MiB. The text is brief there; that a run counts as one touch is our
//! interpretation. With regions of one block, the bitmap has one bit per block, which is the other
//! interpretation.

use haversack_model::BlockNo;

use crate::{Access, Admission, Admit, Verdict};

/// The number of runs tracked at a time.
const RUNS: usize = 16;
/// The most regions, in two bitmaps of 8 MiB; regions of a larger disk are larger.
const MOST_REGIONS: u64 = 1 << 26;

#[derive(Clone, Copy, Default)]
struct Run {
    next: u64,
    blocks: u64,
    /// Whether its current region was touched before the run.
    known: bool,
    /// When it was last continued; 0 for never.
    used: u64,
}

/// A set of regions.
#[derive(Clone)]
struct Regions(Vec<u64>);

impl Regions {
    fn contains(&self, region: u64) -> bool {
        self.0.get((region / 64) as usize).is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    fn insert(&mut self, region: u64) {
        if let Some(word) = self.0.get_mut((region / 64) as usize) {
            *word |= 1 << (region % 64);
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// See the module documentation.
pub struct Hec {
    region_blocks: u64,
    longest_run_blocks: u64,
    touched: Regions,
    touched_again: Regions,
    runs: [Run; RUNS],
    clock: u64,
}

impl Hec {
    /// Makes a filter for a disk of this many blocks. Blocks beyond that are never admitted.
    pub fn new(disk_blocks: u64, region_blocks: u64, longest_run_blocks: u64) -> Hec {
        let region_blocks = region_blocks.max(disk_blocks.div_ceil(MOST_REGIONS)).max(1);
        let words = disk_blocks.div_ceil(region_blocks).div_ceil(64) as usize;
        let none = Regions(vec![0; words]);
        Hec {
            region_blocks,
            longest_run_blocks,
            touched: none.clone(),
            touched_again: none,
            runs: [Run::default(); RUNS],
            clock: 0,
        }
    }

    /// Returns the blocks of all regions that were touched more than once: HEC's demand.
    pub fn touched_again_blocks(&self) -> u64 {
        self.touched_again.count() * self.region_blocks
    }

    /// Notes an access. Returns whether the block may be in the cache.
    fn note(&mut self, block: u64) -> bool {
        self.clock += 1;
        let region = block / self.region_blocks;
        let runs = self.runs.iter().enumerate();
        let fitting = runs.filter(|(_, run)| run.used > 0 && run.next == block);
        let continued = fitting.max_by_key(|(_, run)| run.used).map(|(at, _)| at);
        let at = continued.unwrap_or_else(|| {
            let oldest = self.runs.iter().enumerate().min_by_key(|(_, run)| run.used);
            oldest.map_or(0, |(at, _)| at)
        });
        let before = self.runs[at];
        let same_touch = continued.is_some() && (block - 1) / self.region_blocks == region;
        let known = if same_touch { before.known } else { self.touch(region) };
        let blocks = if continued.is_some() { before.blocks.saturating_add(1) } else { 1 };
        self.runs[at] = Run { next: block.saturating_add(1), blocks, known, used: self.clock };
        known && blocks <= self.longest_run_blocks
    }

    /// Touches a region. Returns whether it was touched before.
    fn touch(&mut self, region: u64) -> bool {
        if self.touched.contains(region) {
            self.touched_again.insert(region);
            return true;
        }
        self.touched.insert(region);
        false
    }
}

impl Admission for Hec {
    fn hit(&mut self, block: BlockNo, _: Access) {
        self.note(block.0);
    }

    fn miss(&mut self, block: BlockNo, _: Access) -> Verdict {
        Verdict { admit: self.note(block.0), ..Verdict::default() }
    }

    fn resize(&mut self, _: &Admit, _: &mut dyn FnMut(BlockNo)) {}

    fn bytes(&self) -> usize {
        (self.touched.0.capacity() + self.touched_again.0.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn admitted(hec: &mut Hec, blocks: &[u64]) -> Vec<bool> {
        blocks.iter().map(|block| hec.miss(BlockNo(*block), Op::Read.into()).admit).collect()
    }

    #[test]
    fn the_second_touch_of_a_region_lets_its_blocks_in() {
        let mut hec = Hec::new(64, 4, 8);
        // Regions 0, 1, 0, 1; then block 3 continues the run of block 2 and belongs to the same touch.
        assert_eq!(admitted(&mut hec, &[0, 6, 2, 4, 3, 9]), [false, false, true, true, true, false]);
        assert_eq!(hec.touched_again_blocks(), 8);
    }

    #[test]
    fn a_scan_of_new_ground_stays_out_and_counts_once() {
        let mut hec = Hec::new(64, 4, 100);
        let scan: Vec<u64> = (0..12).collect();
        assert!(admitted(&mut hec, &scan).iter().all(|admitted| !admitted));
        assert_eq!(hec.touched_again_blocks(), 0);
        assert!(admitted(&mut hec, &scan).iter().all(|admitted| *admitted));
    }

    #[test]
    fn a_long_run_is_cut_off() {
        let mut hec = Hec::new(64, 4, 3);
        admitted(&mut hec, &[0, 4]);
        // The run 8, 9 ends, so 0 to 4 is a new run: its first three blocks are admitted.
        assert_eq!(
            admitted(&mut hec, &[8, 9, 0, 1, 2, 3, 4]),
            [false, false, true, true, true, false, false]
        );
    }

    #[test]
    fn beyond_the_disk_nothing_enters() {
        let mut hec = Hec::new(4, 4, 8);
        assert_eq!(admitted(&mut hec, &[u64::MAX, u64::MAX, 1000, 1000]), [false; 4]);
    }
}
