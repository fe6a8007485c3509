//! I/Os in flight: what each is for, its memory, and the blocks it carries.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use crate::memory::FrameNo;
use crate::store::slot::{Slot, SlotNo};

/// What an I/O is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Purpose {
    #[default]
    None,
    /// Blocks of a read request from flash.
    Hit { request: u32 },
    /// Sectors of a read request from the origin.
    Fill { request: u32 },
    /// The flash copy of a partially staged block.
    Merge { frame: FrameNo },
    /// Data or metadata of a batch; `copy` is 0 for the first device, 1 for the second.
    Commit { batch: u32, copy: u8 },
    /// A metadata page alone.
    Page { segment: u32 },
    /// A pool-wide flush.
    Flush,
    /// A disk's intent map.
    Intent,
    /// The pool record.
    Record,
    /// The cleaner reads a block.
    CleanRead { at: u32 },
    /// The cleaner writes blocks.
    CleanWrite,
    /// The cleaner flushes the origin.
    CleanFlush,
    /// A request's payload to the origin.
    Around { request: u32 },
    /// A request's zeroes to the origin.
    Zero { request: u32 },
    /// The origin is made durable for a discard over dirty blocks.
    ZeroFlush { request: u32 },
    /// The origin is made durable for a guest's flush.
    GuestFlush,
    /// The origin is made durable after an attach, since a guest may have been acknowledged writes before, and before a
    /// detach ends.
    SettleFlush,
    /// The origin is made durable before the intent map is cleared.
    IntentFlush,
    /// A dirty block is read to be staged again.
    Restage,
}

impl Purpose {
    pub fn flushes_origin(self) -> bool {
        matches!(
            self,
            Purpose::CleanFlush
                | Purpose::ZeroFlush { .. }
                | Purpose::GuestFlush
                | Purpose::SettleFlush
                | Purpose::IntentFlush
        )
    }

    pub fn writes_device(self) -> bool {
        matches!(self, Purpose::Commit { .. } | Purpose::Page { .. } | Purpose::Intent | Purpose::Record)
    }
}

/// A block that an I/O carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockIo {
    pub block: BlockNo,
    /// Sectors wanted of it.
    pub mask: u8,
    pub slot: SlotNo,
    pub crc: u32,
    pub seq: u64,
    pub admit: bool,
}

impl BlockIo {
    /// All that a slot has.
    pub fn of(number: SlotNo, slot: Slot) -> BlockIo {
        BlockIo {
            block: slot.block(),
            mask: slot.mask(),
            slot: number,
            crc: slot.crc(),
            seq: slot.seq(),
            admit: false,
        }
    }
}

/// An I/O in flight.
#[derive(Default)]
pub(crate) struct Io {
    pub purpose: Purpose,
    pub disk: Option<DiskNo>,
    pub device: Option<DeviceNo>,
    pub seq: u64,
    /// First byte in the first frame.
    pub start: usize,
    pub len: usize,
    pub frames: Vec<FrameNo>,
    pub blocks: Vec<BlockIo>,
}
