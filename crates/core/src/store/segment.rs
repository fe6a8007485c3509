//! A segment's bookkeeping, and the lists that find the segment with the most free slots.

use haversack_model::Micros;

use crate::bugs::{Bug, planted};
use crate::format::codec::{Reader, Writer};
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::format::page::NO_OWNER;
use crate::table::{Number, Table};

/// A segment of the pool. Segments of all devices are numbered consecutively, device by device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SegmentNo(pub u32);

impl Number for SegmentNo {
    #[inline]
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> SegmentNo {
        SegmentNo(at as u32)
    }
}

/// No segment.
pub const NONE: SegmentNo = SegmentNo(u32::MAX);

/// Bytes of a segment in a checkpoint.
pub const SAVED_BYTES: usize = 32;

/// The state of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// Belongs to no disk and holds nothing.
    Free,
    /// Belongs to a disk.
    Owned,
    /// Is being emptied and becomes free then.
    Leaving,
    /// Its device is no longer used. Until the device is forgotten, a crash may bring back the entries in the
    /// segment's page.
    Dead,
}

/// A segment of a cache device. The counts are of its slots.
#[derive(Clone)]
// One cache line: every lookup reads its owner and state.
#[repr(align(64))]
pub struct Segment {
    /// Its state.
    pub state: SegmentState,
    /// The disk that owns it, or `NO_OWNER`.
    pub owner: u16,
    /// The device it is on.
    pub device: u8,
    /// Its number on the device.
    pub on_device: u32,
    /// Generation of the last metadata page written.
    pub generation: u64,
    /// Sequence number of the last metadata page written.
    pub page_seq: u64,
    /// A metadata page is being written.
    pub page_writing: bool,
    /// Since the last page was composed, a slot stopped being dirty.
    pub cleaned_since: bool,
    /// A durable page may list content that the origin has overtaken.
    pub stale: bool,
    /// The time at which its longest dirty slot became dirty. It has no meaning if no slot is dirty.
    pub dirty_since_us: Micros,
    /// Live slots.
    pub live: u8,
    /// Live slots that are dirty.
    pub dirty: u8,
    /// Superseded slots.
    pub superseded: u8,
    /// Slots that a batch may use.
    pub free: u8,
    /// Dead slots that a batch may not use yet.
    pub pending: u8,
    /// Index in the owner's list of segments.
    pub place: u32,
    /// Index in the list of common segments, if its owner shares the pool.
    pub common_place: u32,
    /// It is in the owner's free lists.
    listed: bool,
    /// The neighbours in its free list, or `NONE`.
    previous: SegmentNo,
    next: SegmentNo,
}

impl Segment {
    /// Returns a free segment.
    pub fn new(device: u8, on_device: u32) -> Segment {
        Segment {
            state: SegmentState::Free,
            owner: NO_OWNER,
            device,
            on_device,
            generation: 1,
            page_seq: 0,
            page_writing: false,
            cleaned_since: false,
            stale: false,
            dirty_since_us: 0,
            live: 0,
            dirty: 0,
            superseded: 0,
            free: SLOTS_PER_SEGMENT as u8,
            pending: 0,
            place: 0,
            common_place: 0,
            listed: false,
            previous: NONE,
            next: NONE,
        }
    }

    /// Returns it as a checkpoint has it. A segment that is being emptied is one that its owner may use.
    pub fn bytes(&self, swept: u64) -> [u8; SAVED_BYTES] {
        let mut w = Writer::default();
        w.bytes(&self.owner.to_le_bytes()).u8(u8::from(self.stale)).u8(0);
        w.u8(self.live).u8(self.dirty).u8(self.free).u8(self.pending);
        w.u32(self.place).u32(self.common_place).u64(self.generation).u64(swept);
        w.0.try_into().expect("the fields have that many bytes")
    }

    /// Takes over what [`Segment::bytes`] returned; returns when it was swept. Nothing is superseded, and its page is
    /// durable. Returns `None` if no segment can be like that.
    pub fn resume(&mut self, bytes: &[u8; SAVED_BYTES]) -> Option<u64> {
        let mut r = Reader(bytes);
        (self.owner, self.stale) = (u16::from_le_bytes(r.array()?), r.flag()?);
        r.u8()?;
        (self.live, self.dirty, self.free, self.pending) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        (self.place, self.common_place, self.generation) = (r.u32()?, r.u32()?, r.u64()?);
        self.state = if self.owner == NO_OWNER { SegmentState::Free } else { SegmentState::Owned };
        let slots = [self.live, self.free, self.pending].map(u32::from).iter().sum::<u32>();
        (slots == SLOTS_PER_SEGMENT && self.dirty <= self.live).then_some(())?;
        r.u64()
    }

    /// Whether its metadata page may be written now. Only one page of the pair may be unflushed.
    pub fn page_ready(&self, flushed_seq: u64) -> bool {
        let idle = !self.page_writing && self.state != SegmentState::Dead;
        idle && (self.page_seq <= flushed_seq || planted(Bug::TwoUnflushedPages))
    }
}

/// A disk's segments that may take a batch, by their number of free slots.
pub struct FreeLists {
    /// The first segment of each list, by number of free slots, or `NONE`.
    heads: Vec<SegmentNo>,
    /// A bit for each list that is not empty.
    occupied: [u64; 4],
}

impl Default for FreeLists {
    fn default() -> Self {
        FreeLists { heads: vec![NONE; SLOTS_PER_SEGMENT as usize + 1], occupied: [0; 4] }
    }
}

impl FreeLists {
    /// Moves a segment to the list of its free count, or removes it if it may not take a batch.
    pub fn place(
        &mut self,
        segments: &mut Table<SegmentNo, Segment>,
        number: SegmentNo,
        was_free: u8,
        eligible: bool,
    ) {
        if segments[number].listed {
            self.unlink(segments, number, was_free);
        }
        let segment = &segments[number];
        if eligible && segment.free > 0 {
            self.link(segments, number);
        }
    }

    fn link(&mut self, segments: &mut Table<SegmentNo, Segment>, number: SegmentNo) {
        let free = segments[number].free as usize;
        let head = self.heads[free];
        if head != NONE {
            segments[head].previous = number;
        }
        let segment = &mut segments[number];
        (segment.listed, segment.previous, segment.next) = (true, NONE, head);
        self.heads[free] = number;
        self.occupied[free / 64] |= 1 << (free % 64);
    }

    fn unlink(&mut self, segments: &mut Table<SegmentNo, Segment>, number: SegmentNo, free: u8) {
        let free = free as usize;
        let (previous, next) = (segments[number].previous, segments[number].next);
        if previous == NONE {
            self.heads[free] = next;
            if next == NONE {
                self.occupied[free / 64] &= !(1 << (free % 64));
            }
        } else {
            segments[previous].next = next;
        }
        if next != NONE {
            segments[next].previous = previous;
        }
        segments[number].listed = false;
    }

    /// Returns the segments, from the most free slots down.
    pub fn most_free<'a>(
        &'a self,
        segments: &'a Table<SegmentNo, Segment>,
    ) -> impl Iterator<Item = SegmentNo> + 'a {
        (0..4)
            .rev()
            .flat_map(move |word| {
                let mut bits = self.occupied[word];
                std::iter::from_fn(move || {
                    let bit = bits.checked_ilog2()?;
                    bits &= !(1 << bit);
                    Some(word * 64 + bit as usize)
                })
            })
            .flat_map(move |free| {
                let mut at = self.heads[free];
                std::iter::from_fn(move || {
                    let number = at;
                    at = segments.get(number)?.next;
                    Some(number)
                })
            })
    }
}
