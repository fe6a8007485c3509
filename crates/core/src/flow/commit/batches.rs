//! Commits in flight, and the one that is being assembled.
//!
//! Invariants
//! - The buffers of a batch are reused, and empty while no batch uses them.
//! - `of_disks` counts the batches in flight.

use haversack_model::DiskNo;

use crate::memory::FrameNo;
use crate::slab::Slab;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use crate::table::Table;

/// A batch in flight.
#[derive(Default)]
pub(crate) struct Batch {
    /// Sequence number of all its I/Os.
    pub(super) seq: u64,
    /// The disk that all its blocks belong to.
    pub(super) disk: Option<DiskNo>,
    /// The staging frames being written, in the order of the picked slots.
    pub(super) frames: Vec<FrameNo>,
    /// Transfer frames with the composed metadata pages, one for each copy.
    pub(super) pages: Vec<FrameNo>,
    /// The segments being written, one for each copy.
    pub(super) segments: Vec<SegmentNo>,
    /// Whether any I/O of the first or the mirrored copy failed.
    pub(super) failed: [bool; 2],
}

/// All commits in flight.
pub(crate) struct Batches {
    pub(super) in_flight: Slab<Batch>,
    /// How many batches of each disk are in flight.
    of_disks: Table<DiskNo, u32>,
    /// The frames of the batch that is being assembled.
    pub(super) picked_frames: Vec<FrameNo>,
    /// Its slots, for each copy.
    pub(super) picked_slots: [Vec<SlotNo>; 2],
}

impl Batches {
    pub fn new() -> Batches {
        Batches {
            in_flight: Slab::new(),
            of_disks: Table::new(),
            picked_frames: Vec::new(),
            picked_slots: [Vec::new(), Vec::new()],
        }
    }

    /// Starts a batch of a disk's blocks.
    pub(super) fn start(&mut self, disk: DiskNo) -> u32 {
        let batch = self.in_flight.take();
        self.in_flight[batch].disk = Some(disk);
        self.of_disks.reach(disk, || 0);
        self.of_disks[disk] += 1;
        batch
    }

    /// Ends a batch.
    pub(super) fn end(&mut self, batch: u32) {
        let disk = self.in_flight[batch].disk.expect("a batch is of a disk");
        self.of_disks[disk] -= 1;
        self.in_flight.put(batch);
    }

    /// Returns how many batches of a disk's blocks are in flight.
    pub fn of_disk(&self, disk: DiskNo) -> u32 {
        self.of_disks.get(disk).copied().unwrap_or(0)
    }

    /// Returns the disk that all blocks of a batch in flight belong to.
    pub fn disk(&self, batch: u32) -> Option<DiskNo> {
        self.in_flight[batch].disk
    }

    /// Whether no commit is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.len() == 0
    }

    /// Returns the first frame of the batch that is being assembled.
    pub fn first_picked(&self) -> Option<FrameNo> {
        self.picked_frames.first().copied()
    }
}
