//! Writing our own form, block by block: memory holds one block and the index.

use std::io::{self, Write};

use super::frame::{self, FrameHeader, Kind};
use super::index::Entry;
use super::{BLOCK_ACCESSES, columns, header, index};
use crate::access::Access;

/// A file of our own form being written.
pub(crate) struct CompactWriter<W> {
    file: W,
    pending: Vec<Access>,
    /// Names already written in blocks.
    names: Vec<String>,
    entries: Vec<Entry>,
    offset_bytes: u64,
    last_ns: u64,
    raw: Vec<u8>,
    frame: Vec<u8>,
}

impl<W: Write> CompactWriter<W> {
    /// Writes the header, which says whether accesses have times.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(mut file: W, is_timed: bool) -> io::Result<Self> {
        let header = header(is_timed);
        file.write_all(&header)?;
        Ok(CompactWriter {
            file,
            pending: Vec::new(),
            names: Vec::new(),
            entries: Vec::new(),
            offset_bytes: header.len() as u64,
            last_ns: 0,
            raw: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Appends accesses. `names` are those of all volumes so far; only new ones are ever added.
    ///
    /// # Errors
    /// The file cannot be written; `InvalidInput` if accesses are not in time order or a volume has no name.
    pub fn write(&mut self, accesses: &[Access], names: &[String]) -> io::Result<()> {
        for access in accesses {
            if access.time_ns < self.last_ns || access.volume.0 as usize >= names.len() {
                let why = format!("accesses in time order to volumes with a name are needed, not {access:?}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            self.last_ns = access.time_ns;
            self.pending.push(*access);
            if self.pending.len() == BLOCK_ACCESSES {
                self.block(names)?;
            }
        }
        Ok(())
    }

    /// Writes what is pending, the index and the trailer. Returns the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, names: &[String]) -> io::Result<W> {
        if !self.pending.is_empty() {
            self.block(names)?;
        }
        let accesses = self.entries.iter().map(|entry| u64::from(entry.accesses)).sum();
        let offset_bytes = self.offset_bytes;
        self.raw.clear();
        index::encode(&self.names, &self.entries, &mut self.raw);
        let header = FrameHeader {
            kind: Kind::Index,
            count: self.entries.len() as u32,
            first_ns: self.entries.first().map_or(0, |entry| entry.first_ns),
            last_ns: self.last_ns,
            volumes: self.names.len() as u32,
            names: self.names.len() as u32,
        };
        self.frame(&header)?;
        self.file.write_all(&index::trailer(offset_bytes, accesses))?;
        Ok(self.file)
    }

    /// Writes the pending accesses as a block.
    fn block(&mut self, names: &[String]) -> io::Result<()> {
        let new = &names[self.names.len()..];
        self.raw.clear();
        columns::encode(new, &self.pending, &mut self.raw);
        self.names.extend_from_slice(new);
        let (first_ns, last_ns) = (self.pending[0].time_ns, self.last_ns);
        let header = FrameHeader {
            kind: Kind::Block,
            count: self.pending.len() as u32,
            first_ns,
            last_ns,
            volumes: self.names.len() as u32,
            names: new.len() as u32,
        };
        let (offset_bytes, accesses) = (self.offset_bytes, header.count);
        self.entries.push(Entry { offset_bytes, first_ns, last_ns, accesses });
        self.pending.clear();
        self.frame(&header)
    }

    fn frame(&mut self, header: &FrameHeader) -> io::Result<()> {
        self.frame.clear();
        frame::write(header, &self.raw, &mut self.frame)?;
        self.offset_bytes += self.frame.len() as u64;
        self.file.write_all(&self.frame)
    }
}
