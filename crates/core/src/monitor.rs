//! Records of the requests of a disk's guest, for the control loop, which decides how much cache it gets, and
//! for traces.
//!
//! A record is eight bytes: operation, position and length. Time is recorded by marks between records, at
//! most one per millisecond. Whether the cache had a block is in the disk's counters, not here: a record is
//! made when a request is accepted, before any lookup.
//!
//! Invariants
//! - When off, a disk has no buffer and a request costs one comparison.
//! - When on, a record is written into memory that was allocated before. Nothing waits and nothing is
//!   allocated. Records for which there is no room are counted.
//! - A buffer begins with a mark, so it can be read without the previous one.

use haversack_model::place::spread;
use haversack_model::{BlockNo, Micros};

use crate::action::Op;
use crate::disk::Disk;
use crate::error::ManageError;

/// Maximum number of records in a buffer: 128 MiB.
pub const MOST_RECORDS: usize = 1 << 24;
/// Minimum time between two marks.
const MARK_US: Micros = 1000;

/// A word holds the kind in its lowest bits, then the length in sectors, then the first sector. A mark holds
/// its time instead.
const KIND_BITS: u32 = 3;
const LENGTH_BITS: u32 = 17;
const MARK: u64 = 7;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It reads.
    Read = 0,
    /// It writes.
    Write = 1,
    /// It discards, or writes zeroes: no data goes to the cache, and the old content is gone.
    Discard = 2,
    /// It makes earlier writes durable; it has no position and no length.
    Flush = 3,
}

/// A request or, with sampling, the part of one that touches a sampled block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it was accepted, or up to a millisecond before that.
    pub time_us: Micros,
    /// Its operation.
    pub kind: Kind,
    /// Its first sector.
    pub sector: u64,
    /// Its sectors.
    pub sectors: u32,
}

/// How a disk is monitored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MonitorConfig {
    /// Records that there is room for, marks included: 1 to [`MOST_RECORDS`].
    pub records: usize,
    /// One in 2^`sample_shift` blocks is sampled, chosen by address, and requests are recorded only as far as
    /// they touch one; 0 records everything.
    pub sample_shift: u8,
}

impl Default for MonitorConfig {
    /// 64 KiB and all requests.
    fn default() -> Self {
        MonitorConfig { records: 8192, sample_shift: 0 }
    }
}

impl MonitorConfig {
    pub(crate) fn check(&self) -> Result<(), ManageError> {
        let (records, shift) = (self.records, self.sample_shift);
        if records == 0 || records > MOST_RECORDS {
            let message = format!("a monitor has room for 1 to {MOST_RECORDS} records, not {records}");
            return Err(ManageError::BadConfig(message));
        }
        if shift > 32 {
            let message = format!("a monitor samples one block of 2^0 to 2^32, not of 2^{shift}");
            return Err(ManageError::BadConfig(message));
        }
        Ok(())
    }
}

/// A buffer of records.
#[derive(Clone, Default)]
pub struct Records {
    /// The room: records and marks.
    words: Box<[u64]>,
    /// Words in use.
    used: usize,
    /// When the next mark is due.
    mark_us: Micros,
    /// Records for which there was no room.
    lost: u64,
    /// The grid phase of the disk, in sectors.
    phase: u8,
    /// One in 2 to this power blocks is sampled.
    sample_shift: u8,
}

impl Records {
    /// Returns an empty buffer for this many records, to be swapped in by [`crate::Core::take_records`].
    pub fn with_room(records: usize) -> Records {
        Records { words: vec![0; records].into_boxed_slice(), ..Records::default() }
    }

    /// Returns the same room for records of one in 2^`sample_shift` blocks.
    pub fn sampled(self, sample_shift: u8) -> Records {
        Records { sample_shift, ..self }
    }

    /// Returns the number of records for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the grid phase of the disk, in sectors: 7 if a block begins at sector 7.
    pub fn phase(&self) -> u8 {
        self.phase
    }

    /// Returns the binary logarithm of how many blocks there are to each recorded one.
    pub fn sample_shift(&self) -> u8 {
        self.sample_shift
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the share of the room that is used, from 0 to 1.
    pub fn fill(&self) -> f64 {
        if self.words.is_empty() { 0.0 } else { self.used as f64 / self.words.len() as f64 }
    }

    /// Returns the bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record> + '_ {
        let mut time_us = 0;
        self.words[..self.used].iter().filter_map(move |word| match kind_of(*word) {
            None => {
                time_us = word >> KIND_BITS;
                None
            }
            Some(kind) => Some(Record {
                time_us,
                kind,
                sector: word >> (KIND_BITS + LENGTH_BITS),
                sectors: (word >> KIND_BITS & ((1 << LENGTH_BITS) - 1)) as u32,
            }),
        })
    }

    /// Returns the blocks that a record touches, on the grid of the disk. A record without length touches
    /// none.
    pub fn blocks(&self, record: Record) -> std::ops::Range<u64> {
        let shift = (8 - u64::from(self.phase)) % 8;
        let first = record.sector + shift;
        if record.sectors == 0 {
            return first / 8..first / 8;
        }
        first / 8..(first + u64::from(record.sectors)).div_ceil(8)
    }

    /// Adds a record if there is room, and otherwise counts it as lost. Times do not decrease.
    #[inline]
    pub fn push(&mut self, now: Micros, kind: Kind, sector: u64, sectors: u32) {
        if now >= self.mark_us || self.used == 0 {
            self.mark_us = now + MARK_US;
            self.push_word(now << KIND_BITS | MARK);
        }
        self.push_word(sector << (KIND_BITS + LENGTH_BITS) | u64::from(sectors) << KIND_BITS | kind as u64);
    }

    #[inline]
    fn push_word(&mut self, word: u64) {
        match self.words.get_mut(self.used) {
            Some(place) => {
                *place = word;
                self.used += 1;
            }
            None => self.lost += u64::from(word & MARK != MARK),
        }
    }

    /// Removes all records. The room stays.
    pub fn clear(&mut self) {
        (self.used, self.lost) = (0, 0);
    }
}

fn kind_of(word: u64) -> Option<Kind> {
    match word & ((1 << KIND_BITS) - 1) {
        0 => Some(Kind::Read),
        1 => Some(Kind::Write),
        2 => Some(Kind::Discard),
        3 => Some(Kind::Flush),
        _ => None,
    }
}

/// Whether a block is one of those that are recorded: one in 2^`shift`.
#[inline]
fn is_sampled(block: BlockNo, shift: u8) -> bool {
    spread(block.0) >> (64 - shift) == 0
}

/// The monitor of a disk.
pub(crate) struct Monitor {
    records: Records,
}

impl Monitor {
    pub fn new(config: MonitorConfig, phase: u8) -> Monitor {
        let records = Records { phase, ..Records::with_room(config.records).sampled(config.sample_shift) };
        Monitor { records }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// Swaps the records for an empty buffer. `into`'s buffer is reused if it has the capacity of the monitor.
    pub fn swap(&mut self, into: &mut Records) {
        let records = &mut self.records;
        if into.words.len() != records.words.len() {
            *into = Records::with_room(records.words.len());
        }
        (into.phase, into.sample_shift) = (records.phase, records.sample_shift);
        std::mem::swap(records, into);
    }

    /// Returns the share of the room for records that is used, from 0 to 1.
    pub fn fill(&self) -> f64 {
        self.records.fill()
    }
}

impl Disk {
    /// Records an accepted request if the disk is monitored.
    #[inline]
    pub(crate) fn record_request(&mut self, now: Micros, op: Op, sector: u64, sectors: u32) {
        let Some(monitor) = &mut self.monitor else { return };
        let kind = match op {
            Op::Read => Kind::Read,
            Op::Write { .. } => Kind::Write,
            Op::Discard | Op::WriteZeroes => Kind::Discard,
            Op::Flush => return monitor.records.push(now, Kind::Flush, 0, 0),
        };
        match monitor.records.sample_shift {
            0 => monitor.records.push(now, kind, sector, sectors),
            shift => self.record_sample(shift, now, kind, sector, sectors),
        }
    }

    /// Records a request with sampling. Most requests are for one block, and most blocks are not sampled:
    /// only that case is inlined.
    #[inline]
    fn record_sample(&mut self, shift: u8, now: Micros, kind: Kind, sector: u64, sectors: u32) {
        let (first, last) = self.blocks(sector, sectors);
        if first != last || is_sampled(first, shift) {
            self.record_blocks(shift, now, kind, sector, sectors);
        }
    }

    #[cold]
    fn record_blocks(&mut self, shift: u8, now: Micros, kind: Kind, sector: u64, sectors: u32) {
        let (first, last) = self.blocks(sector, sectors);
        for block in (first.0..=last.0).map(BlockNo).filter(|block| is_sampled(*block, shift)) {
            let (part, start) = self.part(block, sector, sectors);
            if let Some(monitor) = &mut self.monitor {
                monitor.records.push(now, kind, start, part.count_ones());
            }
        }
    }
}
