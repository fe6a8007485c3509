//! A disk of the guest, or a part of it, with the oracle of its sectors. All requests go past the page cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::oracle::{Oracle, Start};
use crate::pattern::{self, SECTOR_BYTES};
use crate::tally::{Kind, Trouble};
use haversack_model::random::Random;

/// The longest request in sectors: 128 KiB.
pub const LONGEST_SECTORS: usize = 256;
/// Buffers for direct I/O must be aligned to this many bytes.
const ALIGNMENT_BYTES: usize = 4096;

/// A disk, or neighbouring sectors of it.
#[derive(Debug)]
pub struct Disk {
    file: Arc<File>,
    oracle: Oracle,
    /// Sectors of the smallest request.
    unit: usize,
    can_discard: bool,
    can_zero: bool,
}

impl Disk {
    /// Opens `/dev/NAME` whose content is made with `key`.
    ///
    /// # Errors
    /// The kernel's, if there is no such disk or its queue limits cannot be read.
    pub fn open(name: &str, key: u64, start: Start) -> io::Result<Self> {
        let queue = Path::new("/sys/block").join(name).join("queue");
        let limit = |file: &str| -> io::Result<usize> {
            fs::read_to_string(queue.join(file))?.trim().parse().map_err(io::Error::other)
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(Path::new("/dev").join(name))?;
        Ok(Self {
            file: Arc::new(file),
            oracle: Oracle::new(key, sectors_of(name)?, start),
            unit: limit("logical_block_size")? / SECTOR_BYTES,
            can_discard: limit("discard_max_bytes")? > 0,
            can_zero: limit("write_zeroes_max_bytes")? > 0,
        })
    }

    /// Adds the sectors by which this disk, `/dev/NAME`, has grown. They are zeroes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn grow(&mut self, name: &str) -> io::Result<()> {
        self.oracle.grow(sectors_of(name)?);
        Ok(())
    }

    /// Returns the range of sectors that this disk, or part of a disk, covers.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.oracle.range()
    }

    /// Bytes of the smallest request.
    pub fn unit_bytes(&self) -> usize {
        self.unit * SECTOR_BYTES
    }

    /// Whether the disk takes this kind of request at all.
    pub fn offers(&self, kind: Kind) -> bool {
        match kind {
            Kind::Discard => self.can_discard,
            Kind::Zeroes => self.can_zero,
            Kind::Read | Kind::Write | Kind::Flush => true,
        }
    }

    /// Makes `parts` disks of one, for as many threads.
    pub fn split(self, parts: usize) -> Vec<Self> {
        let Self { file, oracle, unit, can_discard, can_zero } = self;
        // Parts start on 4 KiB boundaries, so that aligned requests stay aligned.
        let oracles = oracle.split(parts, unit.max(8));
        oracles
            .into_iter()
            .map(|oracle| Self { file: file.clone(), oracle, unit, can_discard, can_zero })
            .collect()
    }

    /// Undoes [`Disk::split`].
    ///
    /// # Panics
    /// If there are no parts.
    pub fn join(mut parts: Vec<Self>) -> Self {
        let Self { file, unit, can_discard, can_zero, .. } = &parts[0];
        let (file, unit, can_discard, can_zero) = (file.clone(), *unit, *can_discard, *can_zero);
        let oracle = Oracle::join(parts.drain(..).map(|part| part.oracle).collect());
        Self { file, oracle, unit, can_discard, can_zero }
    }

    /// Carries out a request and checks its answer.
    ///
    /// # Errors
    /// An I/O error or wrong bytes.
    pub fn run(
        &mut self,
        kind: Kind,
        sector: u64,
        sectors: usize,
        buffer: &mut Buffer,
    ) -> Result<(), Trouble> {
        let bytes = &mut buffer.bytes()[..sectors * SECTOR_BYTES];
        let at_bytes = sector * SECTOR_BYTES as u64;
        let result = match kind {
            Kind::Read => self.file.read_exact_at(bytes, at_bytes),
            Kind::Write => {
                let version = self.oracle.next(sector, bytes);
                let result = self.file.write_all_at(bytes, at_bytes);
                if result.is_ok() {
                    self.oracle.wrote(sector, sectors, version);
                }
                result
            }
            Kind::Zeroes => self.zero(sector, sectors),
            Kind::Discard => self.discard(sector, sectors),
            Kind::Flush => self.file.sync_all(),
        };
        result.map_err(|source| Trouble::Io { kind, sector, sectors, source })?;
        if kind == Kind::Read {
            self.oracle.check(sector, bytes)?;
        }
        Ok(())
    }

    /// Writes zeroes, with permission to unmap. The kernel does not replace such a request by writes.
    fn zero(&mut self, sector: u64, sectors: usize) -> io::Result<()> {
        let (start, length) = (sector * SECTOR_BYTES as u64, (sectors * SECTOR_BYTES) as u64);
        self.oracle.forget(sector, sectors);
        fallocate(&*self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length)?;
        self.oracle.zeroed(sector, sectors);
        Ok(())
    }

    fn discard(&mut self, sector: u64, sectors: usize) -> io::Result<()> {
        let range = [sector * SECTOR_BYTES as u64, (sectors * SECTOR_BYTES) as u64];
        self.oracle.discarded(sector, sectors);
        /// BLKDISCARD of `linux/fs.h`.
        const DISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
        // SAFETY: BLKDISCARD reads two 64-bit words, the start and length in bytes, from its argument.
        unsafe {
            let discard = rustix::ioctl::Setter::<DISCARD, [u64; 2]>::new(range);
            rustix::ioctl::ioctl(&*self.file, discard)?;
        }
        Ok(())
    }

    /// A random request's place: half of them on 4 KiB boundaries, most of them short.
    pub fn place(&self, random: &mut Random) -> (u64, usize) {
        let range = self.range();
        let align = if random.below(2) == 0 { 8.max(self.unit) } else { self.unit };
        let longest = [align, 2 * align, 16.max(align), LONGEST_SECTORS][random.below(4) as usize];
        let sectors = (1 + random.below((longest / align) as u64) as usize) * align;
        let units = (range.end - range.start).saturating_sub(sectors as u64) / align as u64;
        (range.start + random.below(units.max(1)) * align as u64, sectors)
    }

    /// The place of one to four whole blocks of 4 KiB.
    pub fn blocks(&self, random: &mut Random) -> (u64, usize) {
        let block = 8.max(self.unit);
        let range = self.range();
        let count = 1 + random.below(4);
        let blocks = (range.end - range.start) / block as u64;
        let count = count.min(blocks.max(1));
        let first = random.below(blocks.saturating_sub(count) + 1);
        (range.start + first * block as u64, count as usize * block)
    }

    /// Reads everything. Returns the digest of all bytes.
    ///
    /// `judge` is called with the length and the result of each request.
    pub fn verify(&mut self, buffer: &mut Buffer, mut judge: impl FnMut(usize, Result<(), Trouble>)) -> u64 {
        let mut digest = pattern::DIGEST_START;
        for sector in self.range().step_by(LONGEST_SECTORS) {
            let sectors = (self.range().end - sector).min(LONGEST_SECTORS as u64) as usize;
            let result = self.run(Kind::Read, sector, sectors, buffer);
            digest = pattern::digest_more(digest, &buffer.bytes()[..sectors * SECTOR_BYTES]);
            judge(sectors, result);
        }
        digest
    }
}

fn sectors_of(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/sys/block/{name}/size"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Memory for the longest request, as direct I/O wants it.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Memory full of zeroes.
    pub fn new() -> Self {
        let memory = vec![0; LONGEST_SECTORS * SECTOR_BYTES + ALIGNMENT_BYTES];
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + LONGEST_SECTORS * SECTOR_BYTES]
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}
