//! virtio-blk requests (virtio 1.2, section 5.2.6): from a chain's pieces to the operation for the disk.
//!
//! The frame may be split anywhere: the first 16 readable bytes are the header, the last writable byte is the status,
//! everything in between is data.

use crate::fault::Fault;
use crate::memory::{GuestMemory, Segment};

/// Unit of sector numbers and counts in the protocol, in bytes.
pub const SECTOR_BYTES: u32 = 512;
/// Length of the name that [`Operation::GetId`] asks for, in bytes; shorter names end with a zero byte.
pub const ID_BYTES: u32 = 20;

const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
const RANGE_UNMAP: u32 = 1;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the guest's buffers from the disk.
    Read,
    /// Write the guest's buffers to the disk.
    Write,
    /// Make all completed writes durable.
    Flush,
    /// The ranges' contents are no longer needed.
    Discard,
    /// The ranges read as zeroes from now on.
    WriteZeroes,
    /// Return the disk's name: at most [`ID_BYTES`] bytes.
    GetId,
    /// An unknown type; to be answered with [`Status::Unsupported`].
    Unsupported(u32),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed.
    IoError = 1,
    /// Unknown or not offered.
    Unsupported = 2,
}

/// A request to be carried out and then completed under its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkRequest {
    /// Its first descriptor: identifies the request within its queue until it is completed.
    pub head: u16,
    /// What to do.
    pub operation: Operation,
    /// First sector, of reads and writes. Not checked against the disk's size.
    pub sector: u64,
    /// Bytes of data: whole sectors of reads and writes, at most [`ID_BYTES`] for the name, otherwise zero.
    pub len_bytes: u32,
}

/// A range of a discard or write-zeroes request. Not checked against the disk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    /// First sector.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Whether the zeroes may be made by deallocating; always true for discards.
    pub unmap: bool,
}

/// What the device announced to the driver about ranges, and whether writes are allowed.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Writes, discards and write-zeroes fail.
    pub read_only: bool,
    /// Ranges in a discard; zero if there are no discards.
    pub discard_ranges: u32,
    /// Sectors in a discarded range.
    pub discard_sectors: u32,
    /// Ranges in a write-zeroes; zero if there are no such requests.
    pub write_zeroes_ranges: u32,
    /// Sectors in a zeroed range.
    pub write_zeroes_sectors: u32,
}

/// State of a request in flight.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub occupied: bool,
    /// Which of the queue's memories the segments are in.
    pub epoch: u32,
    /// All pieces of the chain, split so that the data is without header and status.
    pub segments: Vec<Segment>,
    /// The data in `segments`.
    pub data: std::ops::Range<usize>,
    /// Where the status byte goes.
    pub status: Option<Segment>,
    /// Bytes of `data`.
    pub data_bytes: u64,
    /// Whether the data goes to the guest.
    pub to_guest: bool,
    pub ranges: Vec<SectorRange>,
}

impl Slot {
    /// Returns the pieces of data.
    pub fn data(&self) -> &[Segment] {
        &self.segments[self.data.clone()]
    }

    /// Parses the slot's segments, of which the first `readable` are device-readable.
    ///
    /// Returns `Ok(Err(status))` if the request is to be failed with that status.
    pub fn parse(
        &mut self,
        head: u16,
        readable: usize,
        memory: &GuestMemory,
        limits: &RequestLimits,
    ) -> Result<Result<BlkRequest, Status>, Fault> {
        let mut header = [0; HEADER_BYTES];
        let data_out = take_front(&mut self.segments[..readable], memory, &mut header);
        let data_out = data_out.ok_or(Fault::Frame(head))?..readable;
        let mut writable_end = self.segments.len();
        let status = self.segments[readable..].last_mut().ok_or(Fault::Frame(head))?;
        let last = status.len_bytes - 1;
        if last == 0 {
            self.status = Some(*status);
            writable_end -= 1;
        } else {
            self.status = Some(status.skip(last));
            status.len_bytes = last;
        }
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let kind = u32::from_le_bytes([t0, t1, t2, t3]);
        let sector = u64::from_le_bytes(sector);
        let operation = match kind {
            0 => Operation::Read,
            1 => Operation::Write,
            4 => Operation::Flush,
            8 => Operation::GetId,
            11 => Operation::Discard,
            13 => Operation::WriteZeroes,
            other => Operation::Unsupported(other),
        };
        self.to_guest = matches!(operation, Operation::Read | Operation::GetId);
        self.data = if self.to_guest { readable..writable_end } else { data_out };
        self.data_bytes = self.data().iter().map(|s| u64::from(s.len_bytes)).sum();
        self.ranges.clear();
        let len_bytes = self.check(operation, sector, memory, limits);
        Ok(len_bytes.map(|len_bytes| BlkRequest { head, operation, sector, len_bytes }))
    }

    /// Checks what can be checked without the disk; returns the request's length in bytes.
    fn check(
        &mut self,
        operation: Operation,
        sector: u64,
        memory: &GuestMemory,
        limits: &RequestLimits,
    ) -> Result<u32, Status> {
        let modifies = matches!(operation, Operation::Write | Operation::Discard | Operation::WriteZeroes);
        if modifies && limits.read_only {
            return Err(Status::IoError);
        }
        match operation {
            Operation::Read | Operation::Write => {
                let len = u32::try_from(self.data_bytes).map_err(|_| Status::IoError)?;
                let end = sector.checked_add(u64::from(len / SECTOR_BYTES));
                let fits = end.is_some_and(|end| end.checked_mul(SECTOR_BYTES.into()).is_some());
                if len == 0 || !len.is_multiple_of(SECTOR_BYTES) || !fits {
                    return Err(Status::IoError);
                }
                Ok(len)
            }
            Operation::Discard => {
                self.read_ranges(memory, limits.discard_ranges, limits.discard_sectors, false)?;
                Ok(0)
            }
            Operation::WriteZeroes => {
                self.read_ranges(memory, limits.write_zeroes_ranges, limits.write_zeroes_sectors, true)?;
                Ok(0)
            }
            Operation::GetId => Ok(self.data_bytes.min(ID_BYTES.into()) as u32),
            Operation::Flush | Operation::Unsupported(_) => Ok(0),
        }
    }

    fn read_ranges(
        &mut self,
        memory: &GuestMemory,
        max_ranges: u32,
        max_sectors: u32,
        may_choose_unmap: bool,
    ) -> Result<(), Status> {
        if max_ranges == 0 {
            return Err(Status::Unsupported);
        }
        let count = self.data_bytes / RANGE_BYTES as u64;
        let whole = self.data_bytes.is_multiple_of(RANGE_BYTES as u64);
        if !whole || !(1..=u64::from(max_ranges)).contains(&count) {
            return Err(Status::IoError);
        }
        for index in 0..count as usize {
            let mut bytes = [0; RANGE_BYTES];
            copy_out(self.data(), memory, index * RANGE_BYTES, &mut bytes);
            let [sector @ .., s0, s1, s2, s3, f0, f1, f2, f3] = bytes;
            let sector = u64::from_le_bytes(sector);
            let sectors = u32::from_le_bytes([s0, s1, s2, s3]);
            let flags = u32::from_le_bytes([f0, f1, f2, f3]);
            if flags & !RANGE_UNMAP != 0 || (flags != 0 && !may_choose_unmap) {
                return Err(Status::Unsupported);
            }
            if sectors > max_sectors || sector.checked_add(sectors.into()).is_none() {
                return Err(Status::IoError);
            }
            self.ranges.push(SectorRange { sector, sectors, unmap: !may_choose_unmap || flags != 0 });
        }
        Ok(())
    }
}

/// Copies the first bytes out and removes them; returns the index of the first segment with bytes left.
fn take_front(segments: &mut [Segment], memory: &GuestMemory, bytes: &mut [u8]) -> Option<usize> {
    let mut taken = 0;
    for (index, segment) in segments.iter_mut().enumerate() {
        if taken == bytes.len() {
            return Some(index);
        }
        let count = (bytes.len() - taken).min(segment.len_bytes as usize);
        memory.window(segment).read(segment.offset, &mut bytes[taken..taken + count]);
        taken += count;
        if count < segment.len_bytes as usize {
            *segment = segment.skip(count as u32);
            return Some(index);
        }
    }
    (taken == bytes.len()).then_some(segments.len())
}

/// Copies data from the guest; bytes beyond the segments stay unchanged.
pub(crate) fn copy_out(segments: &[Segment], memory: &GuestMemory, at: usize, bytes: &mut [u8]) {
    for_each_part(segments, at, bytes.len(), |segment, offset, part| {
        memory.window(segment).read(segment.offset + offset, &mut bytes[part]);
    });
}

/// Visits the parts of segments that hold the bytes `at..at + len` of their data: the segment, the offset in it, and
/// the position among the `len` bytes.
pub(crate) fn for_each_part(
    segments: &[Segment],
    at: usize,
    len: usize,
    mut visit: impl FnMut(&Segment, usize, std::ops::Range<usize>),
) {
    let mut skip = at;
    let mut done = 0;
    for segment in segments {
        if done == len {
            return;
        }
        let segment_bytes = segment.len_bytes as usize;
        if skip >= segment_bytes {
            skip -= segment_bytes;
            continue;
        }
        let count = (segment_bytes - skip).min(len - done);
        visit(segment, skip, done..done + count);
        done += count;
        skip = 0;
    }
}
