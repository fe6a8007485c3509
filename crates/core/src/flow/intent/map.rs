//! A disk's write-intent bitmap in memory: the marked regions, the regions to be marked, and the progress of
//! clearing.
//!
//! Invariants
//! - `marked` has the marks that are durable on every device in use. Marks that are still being written are
//!   in `on_page`.
//! - At most one page of the map is being written.

use haversack_model::{BlockNo, Micros};

use crate::format::page::{HEADER_BYTES, PAYLOAD_BYTES};
use crate::store::segment::SegmentNo;

/// Bytes of the bitmap: one bit for each region.
pub(crate) const MAP_BYTES: usize = PAYLOAD_BYTES - HEADER_BYTES;
const SMALLEST_REGION_BLOCKS_LOG2: u32 = 8;

/// A bitmap of regions.
pub(crate) type Regions = Box<[u8; MAP_BYTES]>;

pub(crate) fn no_regions() -> Regions {
    vec![0; MAP_BYTES].into_boxed_slice().try_into().expect("the length fits")
}

/// Returns the binary logarithm of the blocks in a region of a disk: the smallest with which the regions fit
/// the map, at least 8 (256 blocks).
pub(crate) fn region_blocks_log2(sectors: u64) -> u32 {
    let blocks = sectors / 8 + 2;
    let mut log2 = SMALLEST_REGION_BLOCKS_LOG2;
    while blocks >> log2 >= (MAP_BYTES * 8) as u64 {
        log2 += 1;
    }
    log2
}

pub(crate) fn has(regions: &Regions, region: u64) -> bool {
    regions[(region / 8) as usize] & 1 << (region % 8) != 0
}

pub(super) fn set(regions: &mut Regions, region: u64) {
    regions[(region / 8) as usize] |= 1 << (region % 8);
}

pub(super) fn add(regions: &mut Regions, more: &Regions) {
    for (byte, more) in regions.iter_mut().zip(more.iter()) {
        *byte |= more;
    }
}

/// The progress of clearing marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clearing {
    /// Marks are not being cleared.
    No,
    /// The origin is being flushed.
    FlushOrigin,
    /// Pages that list overtaken content are being rewritten.
    Rewrite,
    /// The map with only the fresh marks is being written.
    Write,
}

/// A disk's map. A region is a run of blocks.
pub(crate) struct IntentMap {
    /// Binary logarithm of the blocks in a region.
    log2: u32,
    /// Durably marked.
    pub(super) marked: Regions,
    /// To be marked by the next page.
    pub(super) wanted: Regions,
    /// Regions that were written past the cache since clearing began: these stay marked.
    pub(super) fresh: Regions,
    /// Whether `marked` has any region.
    pub(super) any_marked: bool,
    /// Whether a page must be written to mark more, or for a device that joined.
    pub(super) any_wanted: bool,
    /// All regions are being marked.
    pub(super) filling: bool,
    /// A device has joined since the last page was written.
    pub(super) again: bool,
    /// Generation of the last page written.
    pub generation: u64,
    /// Devices that have not answered the write of the page.
    pub(super) writing: u32,
    /// Sequence number of a page that was written and is not known to be durable.
    pub(super) written_seq: Option<u64>,
    /// The marks in the page written last.
    pub(super) on_page: Regions,
    /// The progress of clearing.
    pub(super) clearing: Clearing,
    /// A job waits for the marks to be cleared.
    pub(super) soon: bool,
    /// When marks will be cleared next.
    pub(super) next_clear_us: Micros,
    /// Failed flushes of the origin since the marks were asked to be cleared soon.
    pub failures: u64,
    /// Segments whose pages list overtaken content, and the sequence number of the page that no longer does.
    pub(super) stale: Vec<(SegmentNo, Option<u64>)>,
}

impl IntentMap {
    pub fn new(sectors: u64) -> IntentMap {
        IntentMap {
            log2: region_blocks_log2(sectors),
            marked: no_regions(),
            wanted: no_regions(),
            fresh: no_regions(),
            any_marked: false,
            any_wanted: false,
            filling: false,
            again: false,
            generation: 1,
            writing: 0,
            written_seq: None,
            on_page: no_regions(),
            clearing: Clearing::No,
            soon: false,
            next_clear_us: 0,
            failures: 0,
            stale: Vec::new(),
        }
    }

    /// Returns the region of a block. Blocks that a shrink is about to cut off share the last one.
    pub(super) fn region(&self, block: BlockNo) -> u64 {
        (block.0 >> self.log2).min((MAP_BYTES * 8 - 1) as u64)
    }

    /// Whether the origin may have been written past the cache in a block's region.
    pub fn is_marked(&self, block: BlockNo) -> bool {
        has(&self.marked, self.region(block))
    }

    /// Takes over the marks and the generation that recovery found.
    pub fn adopt(&mut self, marked: Regions, generation: u64) {
        self.any_marked = marked.iter().any(|b| *b != 0);
        (self.marked, self.generation) = (marked, generation);
    }

    /// Marks all regions before anything else is marked or written past the cache: the size of a region
    /// changes, or it is unknown what to mark. If marks are being cleared, all stay: the fresh ones may be of regions
    /// of another size.
    pub fn mark_all_durably(&mut self) {
        self.marked.fill(0);
        self.wanted.fill(0xff);
        self.fresh.fill(0xff);
        (self.any_wanted, self.filling) = (true, true);
    }

    /// Writes the marks to all devices again, for a device that joined.
    pub fn write_again(&mut self) {
        self.again = self.any_marked || self.written_seq.is_some();
        self.any_wanted |= self.again;
    }

    /// Whether every requested mark is durable.
    pub fn is_durably_marked(&self) -> bool {
        !self.any_wanted && !self.is_being_written()
    }

    /// Whether a page was written that is not durable yet.
    pub fn is_being_written(&self) -> bool {
        self.writing > 0 || self.written_seq.is_some()
    }

    /// Clears the marks as soon as the origin can be flushed, and counts failures from now on.
    pub fn clear_soon(&mut self) {
        (self.soon, self.next_clear_us, self.failures) = (true, 0, 0);
    }

    /// Clears the marks at the usual interval again.
    pub fn clear_at_leisure(&mut self) {
        self.soon = false;
    }

    /// Adapts the size of a region to the disk's size. Returns whether it changed; then all regions must be
    /// marked.
    pub fn set_size(&mut self, sectors: u64) -> bool {
        let log2 = region_blocks_log2(sectors);
        std::mem::replace(&mut self.log2, log2) != log2
    }

    /// Whether nothing is marked or about to be.
    pub fn is_clear(&self) -> bool {
        !self.any_marked && !self.any_wanted && self.idle()
    }

    pub(super) fn idle(&self) -> bool {
        !self.is_being_written() && self.clearing == Clearing::No
    }

    /// Returns when the marks will be cleared, if there are any.
    pub fn clear_due_us(&self) -> Option<Micros> {
        (self.any_marked && self.clearing == Clearing::No).then_some(self.next_clear_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_a_shrink_cuts_off_has_a_region() {
        let mut map = IntentMap::new(1 << 40);
        assert!(map.set_size(8));
        let last = map.region(BlockNo((1 << 37) - 1));
        set(&mut map.marked, last);
        assert!(map.is_marked(BlockNo(1 << 36)) && !map.is_marked(BlockNo(0)));
    }
}
