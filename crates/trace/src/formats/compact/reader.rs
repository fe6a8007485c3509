//! Reading our own form, from the beginning or from a given time.

use std::ops::Range;
use std::path::Path;

use super::columns::Columns;
use super::frame::{self, Kind};
use super::index::Index;
use super::{HEADER_BYTES, MAGIC, TRAILER_MAGIC, UNTIMED_AT, VERSION, checksum};
use crate::access::Access;
use crate::bytes::{Bytes, u16_at, u32_at, u64_at};
use crate::error::TraceError;
use crate::input::Input;
use crate::source::Source;

/// The accesses of a file in our own form. The first damage ends it.
pub(crate) struct CompactSource {
    bytes: Bytes,
    columns: Columns,
    /// The offset of the block being read.
    block_offset: u64,
    volumes: Vec<String>,
    /// Accesses returned so far; unknown after a start in the middle.
    given: Option<u64>,
    first_ns: Option<u64>,
    is_timed: bool,
    at_end: bool,
}

impl CompactSource {
    /// Reads the file from its beginning.
    ///
    /// # Errors
    /// The header is damaged or of another version.
    pub fn new(input: Input) -> Result<Self, TraceError> {
        let mut bytes = Bytes::new(input);
        let is_timed = check_header(&mut bytes)?;
        Ok(CompactSource {
            bytes,
            columns: Columns::default(),
            block_offset: 0,
            volumes: Vec::new(),
            given: Some(0),
            first_ns: None,
            is_timed,
            at_end: false,
        })
    }

    /// Reads the file from the first block that reaches into a span of time, relative to the trace's beginning; a
    /// file that is compressed or has no index is read from its beginning.
    ///
    /// # Errors
    /// The header or the index is damaged.
    pub fn within(input: Input, span_ns: &Range<u64>) -> Result<Self, TraceError> {
        let path = input.path().to_path_buf();
        let plain = input.is_plain_file();
        let mut source = Self::new(input)?;
        let index = if plain { Index::open(&path)? } else { None };
        if let Some(index) = index
            && let Some(entry) = index.first_in(span_ns)
        {
            source.bytes = Bytes::at(Input::open_at(&path, entry.offset_bytes)?, entry.offset_bytes);
            source.first_ns = index.entries.first().map(|entry| entry.first_ns);
            source.volumes = index.names;
            source.given = None;
        }
        Ok(source)
    }

    /// Returns the time of the trace's first access, if it is known before reading.
    pub fn first_ns(&self) -> Option<u64> {
        self.first_ns
    }

    /// Begins with the next block; false after the last.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        self.block_offset = self.bytes.offset();
        let header = frame::read(&mut self.bytes, self.columns.raw())?;
        let Some(header) = header else {
            let (expected, found) =
                ("a block or an index", "the file's end: it was not finished or has been cut");
            return Err(self.bytes.damaged(self.block_offset, expected, found.into()));
        };
        if header.kind == Kind::Index {
            self.check_trailer()?;
            return Ok(false);
        }
        // Checked before memory is taken for them: volumes are those known before and the new ones.
        let known = match self.given {
            Some(_) => self.volumes.len() as u64 + u64::from(header.names),
            None => self.volumes.len() as u64,
        };
        if u64::from(header.volumes) > known {
            return Err(self.wrong("a name for every volume"));
        }
        let mut names = Vec::new();
        let begun =
            self.columns.begin(header.count, header.first_ns, header.volumes, header.names, &mut names);
        begun.map_err(|expected| self.wrong(expected))?;
        // After a start in the middle, the names are known from the index.
        if self.given.is_some() {
            self.volumes.append(&mut names);
        }
        Ok(true)
    }

    /// Checks what follows the index.
    fn check_trailer(&mut self) -> Result<(), TraceError> {
        let offset = self.bytes.offset();
        let expected = "a trailer that fits its checksum and the accesses before it";
        let Some(trailer) = self.bytes.take(HEADER_BYTES, expected)? else {
            return Err(self.bytes.damaged(offset, expected, "the file's end".into()));
        };
        let good = trailer[..8] == TRAILER_MAGIC && checksum(&trailer[..28]) == u32_at(trailer, 28);
        let accesses = u64_at(trailer, 16);
        if good && self.given.is_none_or(|given| given == accesses) {
            return Ok(());
        }
        let found = trailer[..24].escape_ascii().to_string();
        Err(self.bytes.damaged(offset, expected, found))
    }

    fn wrong(&self, expected: &'static str) -> TraceError {
        self.bytes.damaged(self.block_offset, expected, "a block that says otherwise".into())
    }
}

impl Source for CompactSource {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        while !self.at_end {
            match self.columns.next(into) {
                Ok(0) => {}
                Ok(count) => {
                    self.given = self.given.map(|given| given + count as u64);
                    return Ok(count);
                }
                Err(expected) => {
                    into.truncate(before);
                    self.at_end = true;
                    return Err(self.wrong(expected));
                }
            }
            match self.next_block() {
                Ok(more) => self.at_end = !more,
                Err(error) => {
                    self.at_end = true;
                    return Err(error);
                }
            }
        }
        Ok(0)
    }

    fn volumes(&self) -> &[String] {
        &self.volumes
    }

    fn is_timed(&self) -> bool {
        self.is_timed
    }

    fn read_once(&self) -> Option<&Path> {
        self.bytes.input().read_once()
    }

    fn progress(&self) -> Option<f64> {
        self.bytes.input().progress()
    }
}

/// Checks the header. Returns whether accesses have times.
fn check_header(bytes: &mut Bytes) -> Result<bool, TraceError> {
    let expected = "the header of a Haversack trace, version 1";
    let Some(header) = bytes.take(HEADER_BYTES, expected)? else {
        return Err(bytes.damaged(0, expected, "an empty file".into()));
    };
    let good = header[..8] == MAGIC && checksum(&header[..28]) == u32_at(header, 28);
    let version = u16_at(header, 8);
    if good && version == VERSION {
        return Ok(header[UNTIMED_AT] == 0);
    }
    let found = if good { format!("version {version}") } else { header.escape_ascii().to_string() };
    Err(bytes.damaged(0, expected, found))
}
