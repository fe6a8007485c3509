//! The content of blocks, for checking: each sector has the number of the write that produced it.
//!
//! Invariants
//! - Writes are numbered from 1; 0 stands for zeroes.
//! - Data moves exactly as bytes would, so that a block in the wrong place or with an old version is
//!   detected.

use haversack_core::{DESCRIPTOR_BYTES, FrameNo, Memory, Piece, RequestTag};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorNo};
use haversack_trace::VolumeNo;

use crate::key::{Key, NumberMap};
use crate::production::memory::SimMemory;

/// Sectors of a block.
pub const SECTORS: usize = SECTORS_PER_BLOCK as usize;

/// The write that produced a sector.
pub type Version = u32;
/// A block's sectors.
pub type Block = [Version; SECTORS];

/// The sectors of a volume from a given one on, as places in blocks.
pub fn places(volume: VolumeNo, first: SectorNo, sectors: usize) -> impl Iterator<Item = (u64, usize)> {
    let sectors = first.0..first.0 + sectors as u64;
    sectors.map(move |sector| {
        let key = Key::new(volume, sector / SECTORS_PER_BLOCK).0;
        (key, (sector % SECTORS_PER_BLOCK) as usize)
    })
}

/// The content of the origin.
#[derive(Default)]
pub struct OriginContent(NumberMap<Block>);

impl OriginContent {
    /// Reads sectors.
    pub fn read(&self, volume: VolumeNo, first: SectorNo, sectors: usize) -> Vec<Version> {
        let version = |(key, at): (u64, usize)| self.0.get(&key).map_or(0, |block| block[at]);
        places(volume, first, sectors).map(version).collect()
    }

    /// Writes sectors.
    pub fn write(&mut self, volume: VolumeNo, first: SectorNo, versions: &[Version]) {
        for ((key, at), version) in places(volume, first, versions.len()).zip(versions) {
            self.0.entry(key).or_default()[at] = *version;
        }
    }
}

/// The buffer of a request, or of a block that is sent.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// A write: all its sectors have this version.
    Write(Version),
    /// Sectors that are read into it or taken from it.
    Sectors(Vec<Version>),
}

/// Frames and buffers. Metadata is written but never read, so all its pages may share one.
pub struct ContentMemory {
    staging_frames: u32,
    frames: Vec<Block>,
    page: Box<[u8; BLOCK_BYTES]>,
    descriptor: [u8; DESCRIPTOR_BYTES],
    buffers: Vec<Buffer>,
    free: Vec<u32>,
}

fn sectors(bytes: usize) -> usize {
    bytes / SECTOR_BYTES
}

impl ContentMemory {
    /// Stores a buffer; returns its tag.
    pub fn put(&mut self, buffer: Buffer) -> RequestTag {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Buffer::Write(0));
            self.buffers.len() as u32 - 1
        });
        self.buffers[slot as usize] = buffer;
        RequestTag(u64::from(slot))
    }

    /// Removes a buffer and returns it.
    pub fn take_back(&mut self, tag: RequestTag) -> Buffer {
        self.free.push(tag.0 as u32);
        std::mem::replace(&mut self.buffers[tag.0 as usize], Buffer::Write(0))
    }

    /// The content that an I/O writes.
    pub fn gather(&self, pieces: impl Iterator<Item = Piece>) -> Vec<Version> {
        let mut all = Vec::new();
        for piece in pieces {
            let from = sectors(piece.at);
            all.extend_from_slice(&self.frames[piece.frame.0 as usize][from..from + sectors(piece.len)]);
        }
        all
    }

    /// The content that an I/O reads.
    pub fn scatter(&mut self, pieces: &[Piece], versions: &[Version]) {
        let mut rest = versions;
        for piece in pieces {
            let (now, later) = rest.split_at(sectors(piece.len));
            let from = sectors(piece.at);
            self.frames[piece.frame.0 as usize][from..from + now.len()].copy_from_slice(now);
            rest = later;
        }
    }
}

impl SimMemory for ContentMemory {
    fn of(staging_frames: u32, transfer_frames: u32) -> ContentMemory {
        ContentMemory {
            staging_frames,
            frames: vec![Block::default(); (staging_frames + transfer_frames) as usize],
            page: Box::new([0; BLOCK_BYTES]),
            descriptor: [0; DESCRIPTOR_BYTES],
            buffers: Vec::new(),
            free: Vec::new(),
        }
    }

    const SURVIVES: bool = false;
}

impl Memory for ContentMemory {
    fn staging_frames(&self) -> u32 {
        self.staging_frames
    }

    fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    fn frame(&self, _: FrameNo) -> &[u8; BLOCK_BYTES] {
        &self.page
    }

    fn frame_mut(&mut self, _: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        &mut self.page
    }

    fn take(&mut self, tag: RequestTag, at: usize, frame: FrameNo, frame_at: usize, len: usize) -> bool {
        let (at, from, len) = (sectors(at), sectors(frame_at), sectors(len));
        let into = &mut self.frames[frame.0 as usize][from..from + len];
        match &self.buffers[tag.0 as usize] {
            Buffer::Write(version) => into.fill(*version),
            Buffer::Sectors(versions) => into.copy_from_slice(&versions[at..at + len]),
        }
        true
    }

    fn give(&mut self, tag: RequestTag, at: usize, frame: FrameNo, frame_at: usize, len: usize) {
        let (at, from, len) = (sectors(at), sectors(frame_at), sectors(len));
        if let Buffer::Sectors(versions) = &mut self.buffers[tag.0 as usize] {
            versions[at..at + len].copy_from_slice(&self.frames[frame.0 as usize][from..from + len]);
        }
    }

    fn copy(&mut self, from: FrameNo, to: FrameNo, at: usize, len: usize) {
        let source = self.frames[from.0 as usize];
        let (at, len) = (sectors(at), sectors(len));
        self.frames[to.0 as usize][at..at + len].copy_from_slice(&source[at..at + len]);
    }

    fn zero(&mut self, frame: FrameNo, at: usize, len: usize) {
        let (at, len) = (sectors(at), sectors(len));
        self.frames[frame.0 as usize][at..at + len].fill(0);
    }

    /// The core compares it when it reads a block from a device, as it does with bytes.
    fn crc(&self, frame: FrameNo) -> u32 {
        let sum = self.frames[frame.0 as usize]
            .iter()
            .fold(0, |sum, version| Key(sum ^ u64::from(*version)).hash());
        sum as u32
    }

    fn descriptor(&self, _: u32) -> &[u8; DESCRIPTOR_BYTES] {
        &self.descriptor
    }

    fn store_descriptor(&mut self, _: u32, _: &[u8; DESCRIPTOR_BYTES]) {}
}

/// A block as the bytes of a message.
pub fn to_bytes(versions: &[Version]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    for (sector, version) in bytes.chunks_exact_mut(SECTOR_BYTES).zip(versions) {
        sector[..size_of::<Version>()].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// The block encoded in the bytes of a message.
pub fn from_bytes(bytes: &[u8]) -> Vec<Version> {
    let first = |sector: &[u8]| sector.first_chunk().map_or(0, |bytes| Version::from_le_bytes(*bytes));
    bytes.chunks_exact(SECTOR_BYTES).map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_moves_as_bytes_would() {
        let mut memory = ContentMemory::of(2, 2);
        let write = memory.put(Buffer::Write(7));
        let copy = memory.put(Buffer::Sectors((10..18).collect()));
        assert!(memory.take(copy, 0, FrameNo(0), 0, BLOCK_BYTES));
        assert!(memory.take(write, 0, FrameNo(0), SECTOR_BYTES, 2 * SECTOR_BYTES));
        memory.copy(FrameNo(0), FrameNo(3), 0, 4 * SECTOR_BYTES);
        memory.zero(FrameNo(3), 3 * SECTOR_BYTES, SECTOR_BYTES);
        let piece = |at, len| Piece { frame: FrameNo(3), at: at * SECTOR_BYTES, len: len * SECTOR_BYTES };
        assert_eq!(memory.gather([piece(0, 2), piece(2, 3)].into_iter()), [10, 7, 7, 0, 0]);
        memory.scatter(&[piece(6, 1), piece(4, 2)], &[3, 1, 2]);
        let read = memory.put(Buffer::Sectors(vec![0; 8]));
        memory.give(read, 0, FrameNo(3), 0, BLOCK_BYTES);
        let Buffer::Sectors(versions) = memory.take_back(read) else { panic!("a read") };
        assert_eq!(versions, [10, 7, 7, 0, 1, 2, 3, 0]);
        assert_eq!(from_bytes(&to_bytes(&versions)), versions);
        assert_ne!(memory.crc(FrameNo(0)), memory.crc(FrameNo(3)));
    }

    #[test]
    fn the_origin_has_what_was_written() {
        let mut origin = OriginContent::default();
        origin.write(VolumeNo(1), SectorNo(6), &[1, 2, 3]);
        origin.write(VolumeNo(0), SectorNo(7), &[9]);
        assert_eq!(origin.read(VolumeNo(1), SectorNo(5), 5), [0, 1, 2, 3, 0]);
    }
}
