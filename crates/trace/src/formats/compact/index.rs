//! The index: the blocks with their times, and the names of all volumes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use super::columns::{put_names, read_names};
use super::frame::{self, Kind};
use super::{HEADER_BYTES, TRAILER_MAGIC, checksum};
use crate::bytes::{Bytes, u32_at, u64_at};
use crate::error::TraceError;
use crate::input::Input;

const ENTRY_BYTES: usize = 28;

/// A block in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The offset of its frame in the file.
    pub offset_bytes: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    pub accesses: u32,
}

/// Appends the content of an index's frame.
pub(super) fn encode(names: &[String], entries: &[Entry], raw: &mut Vec<u8>) {
    put_names(names, raw);
    for entry in entries {
        raw.extend_from_slice(&entry.offset_bytes.to_le_bytes());
        raw.extend_from_slice(&entry.first_ns.to_le_bytes());
        raw.extend_from_slice(&entry.last_ns.to_le_bytes());
        raw.extend_from_slice(&entry.accesses.to_le_bytes());
    }
}

/// The trailer of a file.
pub(super) fn trailer(index_offset_bytes: u64, accesses: u64) -> [u8; HEADER_BYTES] {
    let mut trailer = [0; HEADER_BYTES];
    trailer[..8].copy_from_slice(&TRAILER_MAGIC);
    trailer[8..16].copy_from_slice(&index_offset_bytes.to_le_bytes());
    trailer[16..24].copy_from_slice(&accesses.to_le_bytes());
    let crc = checksum(&trailer[..28]);
    trailer[28..].copy_from_slice(&crc.to_le_bytes());
    trailer
}

/// An index that has been read.
pub(super) struct Index {
    pub entries: Vec<Entry>,
    pub names: Vec<String>,
}

impl Index {
    /// Reads the index of an uncompressed file by its trailer; `None` if it has none, which is then reported when the
    /// file is read.
    pub fn open(path: &Path) -> Result<Option<Self>, TraceError> {
        let Some(offset_bytes) = index_offset(path) else { return Ok(None) };
        let mut bytes = Bytes::new(Input::open_at(path, offset_bytes)?);
        let mut raw = Vec::new();
        let header = frame::read(&mut bytes, &mut raw)?.filter(|header| header.kind == Kind::Index);
        let Some(header) = header else { return Ok(None) };
        let mut names = Vec::new();
        let wrong = |expected| bytes.damaged(offset_bytes, expected, "fewer bytes".into());
        let at = read_names(&raw, header.names, &mut names).map_err(wrong)?;
        if raw.len() - at != header.count as usize * ENTRY_BYTES {
            return Err(wrong("an index with the number of blocks in its header"));
        }
        let entries = raw[at..].chunks_exact(ENTRY_BYTES).map(|entry| Entry {
            offset_bytes: u64_at(entry, 0),
            first_ns: u64_at(entry, 8),
            last_ns: u64_at(entry, 16),
            accesses: u32_at(entry, 24),
        });
        Ok(Some(Index { entries: entries.collect(), names }))
    }

    /// Returns the first block with accesses at or after n nanoseconds from the trace's beginning.
    pub fn first_in(&self, span_ns: &Range<u64>) -> Option<Entry> {
        let from_ns = self.entries.first()?.first_ns.saturating_add(span_ns.start);
        let at = self.entries.partition_point(|entry| entry.last_ns < from_ns);
        self.entries.get(at).copied()
    }
}

fn index_offset(path: &Path) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let mut trailer = [0; HEADER_BYTES];
    file.seek(SeekFrom::End(-(HEADER_BYTES as i64))).ok()?;
    file.read_exact(&mut trailer).ok()?;
    let good = trailer[..8] == TRAILER_MAGIC && checksum(&trailer[..28]) == u32_at(&trailer, 28);
    good.then(|| u64_at(&trailer, 8))
}
