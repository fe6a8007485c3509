//! I/Os in flight: the purpose of each, its memory, and the blocks it carries.
//!
//! Invariants
//! - Data that only I/Os of one purpose have is in the purpose. The fields of [`Io`] mean the same for all of
//!   them.
//! - `hits` belongs to `Purpose::Hit` and `fills` to `Purpose::Fill`, one part for each frame. They are not
//!   in the purpose because their buffers are reused.
//! - The buffers of an I/O that is not in flight are empty.

use std::ops::{Index, IndexMut};

use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros};

use crate::memory::FrameNo;
use crate::slab::Slab;
use crate::store::segment::SegmentNo;
use crate::store::slot::{Live, SlotNo};

/// What an I/O is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Purpose {
    #[default]
    None,
    /// Blocks of a read request from flash.
    Hit { request: u32 },
    /// Sectors of a read request from the origin.
    Fill { request: u32 },
    /// The flash copy of a partially staged block. `version` is the frame's version when the read was issued.
    Merge { frame: FrameNo, version: u64, part: FlashPart },
    /// Data or metadata of a batch; `copy` is 0 for the first device, 1 for the second.
    Commit { batch: u32, copy: u8, seq: u64 },
    /// A metadata page alone.
    Page { segment: SegmentNo, seq: u64 },
    /// The blank pages of a segment that is being prepared.
    Prepare { seq: u64 },
    /// A pool-wide flush.
    Flush,
    /// A disk's write-intent bitmap.
    Intent { seq: u64 },
    /// The pool record.
    Record { seq: u64 },
    /// The cleaner reads block number `at` of its round.
    CleanRead { at: u32, slot: SlotNo },
    /// The cleaner writes blocks.
    CleanWrite,
    /// A request's payload to the origin.
    Around { request: u32 },
    /// A request's zeroes to the origin.
    Zero { request: u32 },
    /// The origin is flushed. This makes the first `changes` changes that guests were told of durable.
    FlushOrigin { reason: OriginFlushReason, changes: u64 },
    /// A dirty block is read to be staged again.
    Restage { part: FlashPart },
    /// Sectors of a block are read from the peer.
    Fetch { block: BlockNo, mask: u8 },
    /// A clean copy of a block that the peer has is read to become dirty.
    Adopt { part: FlashPart },
    /// A late copy is read, from the peer or the origin.
    Late { block: BlockNo, mask: u8 },
}

/// Why an origin is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OriginFlushReason {
    /// The cleaner has written blocks.
    Clean,
    /// A request discards dirty blocks.
    Zero { request: u32 },
    /// A guest's flush.
    Guest,
    /// After an attach, since writes may have been acknowledged to a guest before, and before a detach ends.
    Settle,
    /// The write-intent bitmap is about to be cleared.
    Intent,
}

/// What an I/O is for, as a driver may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoPurpose {
    /// A read request, from flash or the origin.
    Read,
    /// Data or metadata of a commit.
    Commit,
    /// A metadata page alone, or the blank pages of a segment that is being prepared.
    Page,
    /// The pool record.
    Record,
    /// A disk's write-intent bitmap.
    Intent,
    /// A block is read to be written back.
    CleanRead,
    /// Blocks are written back.
    CleanWrite,
    /// A request goes past the cache.
    Around,
    /// A block is read to be staged again, or merged with what is staged of it.
    Restage,
    /// A block of a disk that has moved here is read from its earlier owner.
    Fetch,
    /// Writes are made durable.
    Flush,
}

impl From<Purpose> for IoPurpose {
    fn from(purpose: Purpose) -> IoPurpose {
        match purpose {
            Purpose::None => unreachable!("an I/O in flight has a purpose"),
            Purpose::Hit { .. } | Purpose::Fill { .. } => IoPurpose::Read,
            Purpose::Merge { .. } | Purpose::Restage { .. } | Purpose::Adopt { .. } => IoPurpose::Restage,
            Purpose::Fetch { .. } | Purpose::Late { .. } => IoPurpose::Fetch,
            Purpose::Commit { .. } => IoPurpose::Commit,
            Purpose::Page { .. } | Purpose::Prepare { .. } => IoPurpose::Page,
            Purpose::Flush | Purpose::FlushOrigin { .. } => IoPurpose::Flush,
            Purpose::Intent { .. } => IoPurpose::Intent,
            Purpose::Record { .. } => IoPurpose::Record,
            Purpose::CleanRead { .. } => IoPurpose::CleanRead,
            Purpose::CleanWrite => IoPurpose::CleanWrite,
            Purpose::Around { .. } | Purpose::Zero { .. } => IoPurpose::Around,
        }
    }
}

impl Purpose {
    pub fn writes_device(self) -> bool {
        matches!(
            self,
            Purpose::Commit { .. }
                | Purpose::Page { .. }
                | Purpose::Prepare { .. }
                | Purpose::Intent { .. }
                | Purpose::Record { .. }
        )
    }
}

/// A version of a block on flash, as it was when a read of it was issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlashPart {
    pub block: BlockNo,
    /// Sectors wanted of it.
    pub mask: u8,
    pub slot: SlotNo,
    /// The checksum that its data must have.
    pub crc: u32,
    /// The commit that wrote it.
    pub seq: u64,
}

impl FlashPart {
    /// Returns the part with all sectors of a slot.
    pub fn of(number: SlotNo, slot: Live) -> FlashPart {
        FlashPart { block: slot.block(), mask: slot.mask(), slot: number, crc: slot.crc(), seq: slot.seq() }
    }
}

/// Sectors of a block that are read from the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginPart {
    pub block: BlockNo,
    /// Sectors that the reader wants of it.
    pub wanted: u8,
    /// Sectors that are read.
    pub mask: u8,
    /// They may enter the cache.
    pub admit: bool,
}

/// An I/O in flight.
#[derive(Default)]
pub(crate) struct Io {
    pub purpose: Purpose,
    pub disk: Option<DiskNo>,
    pub device: Option<DeviceNo>,
    /// When it was sent.
    pub sent_us: Micros,
    /// First byte in the first frame.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    pub frames: Vec<FrameNo>,
    pub hits: Vec<FlashPart>,
    pub fills: Vec<OriginPart>,
}

/// All I/Os in flight, by number.
pub(crate) struct Ios {
    /// Boxed, since each I/O is taken out of the slab when it completes, and an I/O is too large to be moved cheaply.
    slab: Slab<Box<Io>>,
    /// An empty placeholder for an I/O that is taken out. `None` until the first I/O has ended.
    spare: Option<Box<Io>>,
}

impl Ios {
    pub fn new() -> Ios {
        Ios { slab: Slab::new(), spare: None }
    }

    /// Starts an I/O; returns its number.
    #[inline]
    pub fn start(&mut self, purpose: Purpose, now: Micros) -> u32 {
        let number = self.slab.take();
        let io = &mut self.slab[number];
        debug_assert!(io.frames.is_empty() && io.hits.is_empty() && io.fills.is_empty());
        (io.purpose, io.disk, io.device, io.start, io.len) = (purpose, None, None, 0, 0);
        io.sent_us = now;
        number
    }

    /// Takes an I/O out, to be handed back to [`Ios::end`]. Its number stays in use until then.
    ///
    /// # Panics
    /// It must be in flight.
    #[inline]
    pub fn take_out(&mut self, number: u32) -> Box<Io> {
        assert!(self.slab.contains(number), "I/O {number} is in flight");
        std::mem::replace(&mut self.slab[number], self.spare.take().unwrap_or_default())
    }

    /// Ends an I/O that was taken out.
    #[inline]
    pub fn end(&mut self, number: u32, mut io: Box<Io>) {
        io.frames.clear();
        io.hits.clear();
        io.fills.clear();
        self.spare = Some(io);
        self.slab.put(number);
    }

    /// Gives up an I/O that was not sent.
    pub fn cancel(&mut self, number: u32) {
        self.slab.put(number);
    }

    /// Returns the number of I/Os in flight.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns the I/Os in flight.
    pub fn iter(&self) -> impl Iterator<Item = &Io> {
        self.slab.iter().map(|(_, io)| &**io)
    }
}

impl Index<u32> for Ios {
    type Output = Io;

    #[inline]
    fn index(&self, number: u32) -> &Io {
        &self.slab[number]
    }
}

impl IndexMut<u32> for Ios {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Io {
        &mut self.slab[number]
    }
}
