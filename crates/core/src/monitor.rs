//! Records of what a disk's guest does, for whoever decides how much cache it gets, and for traces.
//!
//! A record is eight bytes: what is done, where, how far. Time is told by marks between records, at most one a
//! millisecond. Whether the cache had a block is in the disk's counters, not here: a record is made when a request is
//! accepted, before anything is looked up.
//!
//! Invariants
//! - Off, a disk has no buffer and a request costs one comparison.
//! - On, a record is written into memory that was taken before. Nothing waits and nothing is allocated; what finds no
//!   room is counted.
//! - A buffer begins with a mark, so it can be read without the one before it.

use haversack_model::place::spread;
use haversack_model::{BlockNo, DiskNo, Micros};

use crate::action::Op;
use crate::core::Core;
use crate::disk::Disk;
use crate::error::ManageError;
use crate::memory::Memory;

/// Most records of a buffer: 128 MiB.
pub const MOST_RECORDS: usize = 1 << 24;
/// Time between two marks at least.
const MARK_US: Micros = 1000;

/// A word holds the kind in the lowest bits, then the length in sectors, then the first sector; or a mark's time.
const KIND_BITS: u32 = 3;
const LENGTH_BITS: u32 = 17;
const MARK: u64 = 7;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It reads.
    Read = 0,
    /// It writes.
    Write = 1,
    /// It discards, or writes zeroes: no data goes to the cache, and what was there is gone.
    Discard = 2,
    /// It makes durable what was written; it has no place and no length.
    Flush = 3,
}

/// A request, or with sampling the part of one that touches a sampled block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it was accepted, to a millisecond; never later than that.
    pub time_us: Micros,
    /// What it does.
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
    /// Requests are recorded only as far as they touch one block of 2 to this power, chosen by address; 0 records all.
    pub sample_shift: u8,
}

impl Default for MonitorConfig {
    /// 64 KiB and all requests.
    fn default() -> Self {
        MonitorConfig { records: 8192, sample_shift: 0 }
    }
}

impl MonitorConfig {
    fn check(&self) -> Result<(), ManageError> {
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
    words: Box<[u64]>,
    used: usize,
    /// The next mark is due.
    mark_us: Micros,
    lost: u64,
    phase: u8,
    sample_shift: u8,
}

impl Records {
    /// An empty buffer for so many records, to be swapped in by [`Core::take_records`].
    pub fn with_room(records: usize) -> Records {
        Records { words: vec![0; records].into_boxed_slice(), ..Records::default() }
    }

    /// The same room for records of one block of 2 to this power.
    pub fn sampled(self, sample_shift: u8) -> Records {
        Records { sample_shift, ..self }
    }

    /// Records that found no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The grid phase of the disk, in sectors: 7 if a block begins at sector 7.
    pub fn phase(&self) -> u8 {
        self.phase
    }

    /// One block of 2 to this power was recorded.
    pub fn sample_shift(&self) -> u8 {
        self.sample_shift
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Share of the room that is taken, from 0 to 1.
    pub fn fill(&self) -> f64 {
        if self.words.is_empty() { 0.0 } else { self.used as f64 / self.words.len() as f64 }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// The records in their order.
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

    /// The first block that a record touches and how many, on the grid of the disk. A record without length touches
    /// none.
    pub fn blocks(&self, record: Record) -> std::ops::Range<u64> {
        let shift = (8 - u64::from(self.phase)) % 8;
        let first = record.sector + shift;
        if record.sectors == 0 {
            return first / 8..first / 8;
        }
        first / 8..(first + u64::from(record.sectors)).div_ceil(8)
    }

    /// Adds a record if there is room, and counts it as lost otherwise. Times do not go back.
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

    /// Forgets all records. The room stays.
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

/// Whether a block is among the one of 2 to the `shift` that are recorded.
#[inline]
fn is_sampled(block: BlockNo, shift: u8) -> bool {
    spread(block.0) >> (64 - shift) == 0
}

/// The monitor of a disk.
pub(crate) struct Monitor {
    records: Records,
}

impl Monitor {
    fn new(config: MonitorConfig, phase: u8) -> Monitor {
        let records = Records { phase, ..Records::with_room(config.records).sampled(config.sample_shift) };
        Monitor { records }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
    }
}

impl Disk {
    /// Records an accepted request if anybody wants to know.
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

    /// Most requests are of one block, and most blocks are not sampled: only that is inlined.
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

impl<M: Memory> Core<M> {
    /// Begins to record what a disk's guest does, anew if it was recorded before, or ends it with `None`. Attaching a
    /// disk ends it too.
    ///
    /// # Errors
    /// The disk is not known or the setting is wrong.
    pub fn set_monitor(&mut self, disk: DiskNo, config: Option<MonitorConfig>) -> Result<(), ManageError> {
        let phase = self.known(disk)?.phase;
        config.as_ref().map_or(Ok(()), MonitorConfig::check)?;
        self.disk_mut(disk).monitor = config.map(|config| Monitor::new(config, phase));
        Ok(())
    }

    /// Swaps a disk's records for an empty buffer: `into` has what was recorded since the last time. The buffer that is
    /// swapped in keeps its room if it has as much as the monitor was set to; otherwise this allocates. False, and
    /// `into` empty, if the disk is not monitored.
    pub fn take_records(&mut self, disk: DiskNo, into: &mut Records) -> bool {
        into.clear();
        let known = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut);
        let Some(monitor) = known.and_then(|disk| disk.monitor.as_mut()) else { return false };
        let records = &mut monitor.records;
        if into.words.len() != records.words.len() {
            *into = Records::with_room(records.words.len());
        }
        (into.phase, into.sample_shift) = (records.phase, records.sample_shift);
        std::mem::swap(records, into);
        true
    }

    /// Share of a disk's room for records that is taken, from 0 to 1; 0 if it is not monitored.
    pub fn records_fill(&self, disk: DiskNo) -> f64 {
        let known = self.disks.get(disk.0 as usize).and_then(Option::as_ref);
        known.and_then(|disk| disk.monitor.as_ref()).map_or(0.0, |monitor| monitor.records.fill())
    }
}
