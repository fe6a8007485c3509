//! Cache devices and origins in memory. A power cut discards what was written to a device after its last flush.

use haversack_core::pool::{self, Member};
use haversack_core::{IoFailure, Media, OriginMedia, PREPARED_AT_FORMAT, PageRead, PoolConfig};
use haversack_model::{ArenaId, DeviceNo, DiskId, SECTOR_BYTES, Uuid};

/// The pool that all tests use.
pub const POOL: Uuid = Uuid([0xaa; 16]);

pub fn device_id(number: u8) -> Uuid {
    Uuid([0xd0 + number; 16])
}

pub fn disk_id(number: u8) -> DiskId {
    DiskId([number + 1; 16])
}

/// A cache device.
#[derive(Clone)]
pub struct Device {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Writes ever made.
    pub writes: u64,
    /// What unflushed writes overwrote, in their order.
    undo: Vec<(usize, Vec<u8>)>,
    undone: usize,
}

impl Device {
    pub fn blank(name: &str, bytes: u64) -> Device {
        let bytes = vec![0; bytes as usize];
        Device { name: name.into(), bytes, writes: 0, undo: Vec::new(), undone: 0 }
    }

    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        let at = offset_bytes as usize;
        let from = self.bytes.get(at..at + into.len()).ok_or(IoFailure::Error)?;
        into.copy_from_slice(from);
        Ok(())
    }

    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), IoFailure> {
        let at = offset_bytes as usize;
        let place = self.bytes.get_mut(at..at + bytes.len()).ok_or(IoFailure::Error)?;
        self.undo.push((at, place.to_vec()));
        place.copy_from_slice(bytes);
        self.writes += 1;
        Ok(())
    }

    /// Names the writes made so far, for a flush that is issued now.
    pub fn flush_mark(&self) -> usize {
        self.undone + self.undo.len()
    }

    /// The writes up to a mark are durable.
    pub fn flush(&mut self, mark: usize) {
        let covered = mark.saturating_sub(self.undone);
        self.undo.drain(..covered);
        self.undone += covered;
    }

    /// Reverts all writes that were not flushed.
    pub fn power_cut(&mut self) {
        for (at, bytes) in self.undo.drain(..).rev() {
            self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Changes one byte, as rot would.
    pub fn rot(&mut self, offset_bytes: u64) {
        self.bytes[offset_bytes as usize] ^= 0x5a;
    }
}

/// The devices that are given to the core or a tool, in order.
#[derive(Clone)]
pub struct Shelf(pub Vec<Device>);

impl Shelf {
    /// Blank devices of n segments each.
    pub fn blank(segments: &[u32]) -> Shelf {
        let device = |(at, segments): (usize, &u32)| {
            Device::blank(&format!("/dev/cache{at}"), pool::device_bytes(*segments))
        };
        Shelf(segments.iter().enumerate().map(device).collect())
    }

    /// A new pool.
    pub fn pool(segments: &[u32], redundancy: bool) -> Shelf {
        Shelf::pool_of(POOL, 0, segments, redundancy)
    }

    /// A new pool of a given identity, whose first device is `device_id(first)`.
    pub fn pool_of(id: Uuid, first: u8, segments: &[u32], redundancy: bool) -> Shelf {
        let mut shelf = Shelf::blank(segments);
        let device_ids = (0..segments.len() as u8).map(|at| device_id(first + at)).collect();
        let arena = ArenaId::first(id);
        let config =
            PoolConfig { arena, arenas: 1, device_ids, redundancy, prepared_segments: PREPARED_AT_FORMAT };
        pool::create(&mut shelf, &config).expect("blank devices");
        shelf
    }

    /// Takes a device out.
    pub fn take(&mut self, at: usize) -> Device {
        self.0.remove(at)
    }

    /// Writes ever made to any device.
    pub fn writes(&self) -> u64 {
        self.0.iter().map(|d| d.writes).sum()
    }

    pub fn same_bytes(&self, other: &Shelf) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a.bytes == b.bytes)
    }
}

impl Media for Shelf {
    fn devices(&self) -> usize {
        self.0.len()
    }

    fn name(&self, device: usize) -> String {
        self.0[device].name.clone()
    }

    fn capacity_bytes(&self, device: usize) -> u64 {
        self.0[device].bytes.len() as u64
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        for read in reads {
            read.result = self.0[read.device].read(read.offset_bytes, read.page);
        }
    }

    fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
        self.0[device].write(offset_bytes, pages)
    }

    fn flush(&mut self, device: usize) -> Result<(), IoFailure> {
        let mark = self.0[device].flush_mark();
        self.0[device].flush(mark);
        Ok(())
    }
}

/// A disk's origin.
#[derive(Clone, Default)]
pub struct Origin {
    pub bytes: Vec<u8>,
    /// Fails every I/O.
    pub down: bool,
    pub writes: u64,
    /// Writes when it was last flushed.
    pub flushed_writes: u64,
}

impl Origin {
    pub fn new(bytes: Vec<u8>) -> Origin {
        Origin { bytes, ..Origin::default() }
    }

    pub fn sectors(&self, sector: u64, sectors: u32) -> &[u8] {
        &self.bytes[sector as usize * SECTOR_BYTES..][..sectors as usize * SECTOR_BYTES]
    }
}

impl OriginMedia for Origin {
    fn capacity_sectors(&self) -> u64 {
        (self.bytes.len() / SECTOR_BYTES) as u64
    }

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), IoFailure> {
        if self.down {
            return Err(IoFailure::Error);
        }
        self.bytes[sector as usize * SECTOR_BYTES..][..bytes.len()].copy_from_slice(bytes);
        self.writes += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), IoFailure> {
        if self.down {
            return Err(IoFailure::Error);
        }
        self.flushed_writes = self.writes;
        Ok(())
    }
}

/// The membership of a device that joins the pool.
pub fn member(number: DeviceNo, id: Uuid) -> Member {
    Member { arena: ArenaId::first(POOL), arenas: 1, number, id }
}
