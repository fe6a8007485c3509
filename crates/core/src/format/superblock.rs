//! The superblock: the identity of a device, and the arena that its extent belongs to. Written once, in two copies.
//!
//! A device is divided into extents of equal size, one for each arena of its pool, in the order of their numbers. Each
//! has a superblock of its own and is laid out as if it were a device; all offsets are from its beginning.

use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, DeviceNo, Uuid};

use super::FORMAT_VERSION;
use super::codec::{Reader, Writer};
use crate::checksum::crc32c;

const MAGIC: &[u8; 8] = b"HAVRSACK";

/// Identity of an extent of a cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The arena.
    pub arena: ArenaId,
    /// The device.
    pub device: Uuid,
    /// The device's number in the pool.
    pub number: DeviceNo,
    /// Segments in the extent.
    pub segments: u32,
    /// How the device is divided.
    pub division: Division,
}

/// How a device is divided into extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The number of arenas of the pool, and of extents of the device.
    pub arenas: u8,
    /// The size of each extent.
    pub extent_bytes: u64,
}

/// The result of reading a superblock page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A valid superblock.
    Valid(Superblock),
    /// A superblock of a version that this program does not know.
    OtherVersion(u32),
    /// It begins like a superblock, but its checksum is wrong.
    Damaged,
    /// Something else.
    Foreign,
}

impl Superblock {
    /// Returns the page.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(FORMAT_VERSION).bytes(&self.arena.pool.0).bytes(&self.device.0);
        w.u8(self.number.0).u32(self.segments);
        w.u8(self.arena.number.0).u8(self.division.arenas).u64(self.division.extent_bytes);
        let crc = crc32c(&w.0);
        w.u32(crc);
        let mut page = [0; BLOCK_BYTES];
        page[..w.0.len()].copy_from_slice(&w.0);
        page
    }

    /// Reads a page.
    pub fn decode(page: &[u8; BLOCK_BYTES]) -> Found {
        let mut r = Reader(page);
        let decoded = (|| {
            let magic: [u8; 8] = r.array()?;
            let version = r.u32()?;
            let (pool, device) = (Uuid(r.array()?), Uuid(r.array()?));
            let (number, segments) = (DeviceNo(r.u8()?), r.u32()?);
            let arena = ArenaId { pool, number: ArenaNo(r.u8()?) };
            let division = Division { arenas: r.u8()?, extent_bytes: r.u64()? };
            let superblock = Superblock { arena, device, number, segments, division };
            let length = BLOCK_BYTES - r.0.len();
            Some((magic, version, superblock, length, r.u32()?))
        })();
        match decoded {
            Some((magic, version, superblock, length, crc)) if &magic == MAGIC => {
                if version != FORMAT_VERSION {
                    Found::OtherVersion(version)
                } else if crc == crc32c(&page[..length]) {
                    Found::Valid(superblock)
                } else {
                    Found::Damaged
                }
            }
            _ => Found::Foreign,
        }
    }
}
