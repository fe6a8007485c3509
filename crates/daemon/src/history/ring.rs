//! The file that history is kept in: a ring of records of equal size. docs/history.md has every byte.
//!
//! Invariants
//! - The file never grows beyond its header and its records.
//! - A record is valid only if its checksum matches and its position is that of its number; a torn or damaged record is
//!   skipped.
//! - New records overwrite the oldest ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crc_fast::{CrcAlgorithm, checksum};

/// Bytes of the header, of which most are zero.
const HEADER_BYTES: u64 = 4096;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 128;
const MAGIC: &[u8; 8] = b"HVSKHIST";
const VERSION: u32 = 1;
/// Records that are read at a time.
const READ_RECORDS: u64 = 4096;

/// What a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A pool as a whole.
    Pool,
    /// A disk, by its identity.
    Disk([u8; 16]),
}

/// What happened in an interval, and what there was at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// End of the interval, in seconds since 1970.
    pub time_s: u64,
    /// Length of the interval.
    pub interval_ms: u32,
    /// The pool, see `pool_id` in the module above.
    pub pool: [u8; 16],
    /// The pool or one of its disks.
    pub subject: Subject,
    /// Cached blocks.
    pub usage_blocks: u64,
    /// Dirty blocks.
    pub dirty_blocks: u64,
    /// Blocks read from the cache.
    pub hits: u64,
    /// Blocks read that were not cached.
    pub misses: u64,
    /// Reads, writes and flushes.
    pub requests: u64,
    /// Sum of their latencies.
    pub latency_us: u64,
    /// Blocks written to flash, with metadata.
    pub flash_blocks: u64,
}

impl Record {
    fn encode(&self, number: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let (kind, disk) = match self.subject {
            Subject::Pool => (1, [0; 16]),
            Subject::Disk(id) => (2, id),
        };
        bytes[4] = kind;
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time_s.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.interval_ms.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.pool);
        bytes[48..64].copy_from_slice(&disk);
        let figures = [
            self.usage_blocks,
            self.dirty_blocks,
            self.hits,
            self.misses,
            self.requests,
            self.latency_us,
            self.flash_blocks,
        ];
        for (at, figure) in figures.into_iter().enumerate() {
            bytes[64 + 8 * at..72 + 8 * at].copy_from_slice(&figure.to_le_bytes());
        }
        let sum = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns a record with its number, or nothing if the bytes are not a whole one.
    fn decode(bytes: &[u8]) -> Option<(u64, Record)> {
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let id_at = |at: usize| bytes.get(at..at + 16)?.try_into().ok();
        if u32_at(bytes, 0)? != crc32c(bytes.get(4..)?) {
            return None;
        }
        let subject = match bytes[4] {
            1 => Subject::Pool,
            2 => Subject::Disk(id_at(48)?),
            _ => return None,
        };
        let record = Record {
            time_s: u64_at(16)?,
            interval_ms: u32_at(bytes, 24)?,
            pool: id_at(32)?,
            subject,
            usage_blocks: u64_at(64)?,
            dirty_blocks: u64_at(72)?,
            hits: u64_at(80)?,
            misses: u64_at(88)?,
            requests: u64_at(96)?,
            latency_us: u64_at(104)?,
            flash_blocks: u64_at(112)?,
        };
        Some((u64_at(8)?, record))
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm has 32 bits.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn header(capacity: u64) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&capacity.to_le_bytes());
    let sum = crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// See the module documentation.
pub struct Ring {
    file: File,
    capacity: u64,
    /// The number of the next record.
    next: u64,
}

impl Ring {
    /// Opens a ring of at most this size, or creates it. A file with another header is emptied: history is nothing that
    /// anybody depends on.
    ///
    /// # Errors
    /// The file cannot be opened, read or written.
    pub fn open(path: &Path, size_bytes: u64) -> io::Result<Ring> {
        let capacity = (size_bytes.saturating_sub(HEADER_BYTES) / RECORD_BYTES as u64).max(1);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o640).open(path)?;
        let mut found = [0; HEADER_BYTES as usize];
        let is_ours = file.read_exact_at(&mut found, 0).is_ok() && found == header(capacity);
        let mut ring = Ring { file, capacity, next: 0 };
        if is_ours {
            ring.each(|number, _| Some(number))
                .map(|numbers| ring.next = numbers.iter().max().map_or(0, |n| n + 1))?;
        } else {
            ring.file.set_len(0)?;
            ring.file.write_all_at(&header(capacity), 0)?;
        }
        Ok(ring)
    }

    /// Returns how many records there is room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Adds records; the oldest ones make room.
    ///
    /// # Errors
    /// The file cannot be written; the records may then be lost.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        for record in records {
            let place = HEADER_BYTES + self.next % self.capacity * RECORD_BYTES as u64;
            self.file.write_all_at(&record.encode(self.next), place)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Returns the records since a time, oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn since(&self, time_s: u64) -> io::Result<Vec<Record>> {
        let mut found = self.each(|number, record| (record.time_s >= time_s).then_some((number, record)))?;
        found.sort_unstable_by_key(|(number, _)| *number);
        Ok(found.into_iter().map(|(_, record)| record).collect())
    }

    /// Reads every record and keeps what `keep` returns.
    fn each<T>(&self, keep: impl Fn(u64, Record) -> Option<T>) -> io::Result<Vec<T>> {
        let mut kept = Vec::new();
        let mut bytes = vec![0; READ_RECORDS as usize * RECORD_BYTES];
        let mut place = 0;
        while place < self.capacity {
            let read = self.file.read_at(&mut bytes, HEADER_BYTES + place * RECORD_BYTES as u64)?;
            let whole = (read / RECORD_BYTES) as u64;
            if whole == 0 {
                break;
            }
            for (at, bytes) in (place..).zip(bytes[..read].chunks_exact(RECORD_BYTES)) {
                let record = Record::decode(bytes).filter(|(number, _)| number % self.capacity == at);
                kept.extend(record.and_then(|(number, record)| keep(number, record)));
            }
            place += whole;
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_s: u64) -> Record {
        Record {
            time_s,
            interval_ms: 60_000,
            pool: [7; 16],
            subject: Subject::Disk([time_s as u8; 16]),
            usage_blocks: 1,
            dirty_blocks: 2,
            hits: 3,
            misses: 4,
            requests: 5,
            latency_us: 6,
            flash_blocks: 7,
        }
    }

    fn times(ring: &Ring, since_s: u64) -> Vec<u64> {
        ring.since(since_s).unwrap().iter().map(|record| record.time_s).collect()
    }

    #[test]
    fn a_ring_is_bounded_and_survives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let size_bytes = HEADER_BYTES + 10 * RECORD_BYTES as u64;
        let mut ring = Ring::open(&path, size_bytes).unwrap();
        for time in 0..23 {
            ring.append(&[record(time)]).unwrap();
        }
        assert_eq!(times(&ring, 0), (13..23).collect::<Vec<_>>());
        drop(ring);
        let mut ring = Ring::open(&path, size_bytes).unwrap();
        ring.append(&[record(23), record(24)]).unwrap();
        assert_eq!(times(&ring, 20), [20, 21, 22, 23, 24]);
        assert_eq!(ring.since(24).unwrap(), [record(24)]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size_bytes);
    }

    #[test]
    fn damage_takes_one_record_and_another_size_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let size_bytes = HEADER_BYTES + 10 * RECORD_BYTES as u64;
        let mut ring = Ring::open(&path, size_bytes).unwrap();
        ring.append(&[record(1), record(2), record(3)]).unwrap();
        ring.file.write_all_at(&[0xFF], HEADER_BYTES + RECORD_BYTES as u64 + 100).unwrap();
        assert_eq!(times(&ring, 0), [1, 3]);
        // A record in the place of another one is left over from an old copy of this part of the file.
        ring.file.write_all_at(&record(9).encode(3), HEADER_BYTES + 5 * RECORD_BYTES as u64).unwrap();
        assert_eq!(times(&ring, 0), [1, 3]);
        drop(ring);
        assert_eq!(times(&Ring::open(&path, size_bytes * 2).unwrap(), 0), [0; 0]);
    }
}
