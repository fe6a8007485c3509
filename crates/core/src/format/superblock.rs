//! The superblock: the identity of a device and the pool it belongs to. Written once, in two copies.

use haversack_model::{BLOCK_BYTES, DeviceNo, Uuid};

use super::FORMAT_VERSION;
use super::codec::{Reader, Writer};
use crate::checksum::crc32c;

const MAGIC: &[u8; 8] = b"HAVRSACK";

/// Identity of a cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The pool.
    pub pool: Uuid,
    /// The device.
    pub device: Uuid,
    /// The device's number in the pool.
    pub number: DeviceNo,
    /// Segments on the device.
    pub segments: u32,
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
        w.bytes(MAGIC).u32(FORMAT_VERSION).bytes(&self.pool.0).bytes(&self.device.0);
        w.u8(self.number.0).u32(self.segments);
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
            let superblock = Superblock {
                pool: Uuid(r.array()?),
                device: Uuid(r.array()?),
                number: DeviceNo(r.u8()?),
                segments: r.u32()?,
            };
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
