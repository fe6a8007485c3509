//! Descriptors of the staging area: which block each staging frame holds. They survive the process.
//!
//! Invariant: a torn descriptor does not decode, since its checksum does not match.

use haversack_model::{ArenaId, ArenaNo, BlockNo, DiskNo, Uuid};

use super::FORMAT_VERSION;
use super::codec::Reader;
use crate::checksum::crc32c;
use crate::memory::DESCRIPTOR_BYTES;

const USED: u32 = 0x5347_4148;
const HEADER: u32 = 0x4448_5348;

/// A staged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The disk's number in the pool.
    pub disk: DiskNo,
    /// The block.
    pub block: BlockNo,
    /// Increases with every staged block. Of two descriptors of a block, the one with the higher version has
    /// the newer data.
    pub version: u64,
    /// Valid sectors.
    pub mask: u8,
    /// The origin does not have it yet.
    pub dirty: bool,
    /// Sectors outside the mask are lost and must not be read from elsewhere.
    pub poisoned: bool,
    /// The frame's checksum, bound to disk and block.
    pub crc: u32,
}

fn seal(bytes: &mut [u8; DESCRIPTOR_BYTES]) {
    let crc = crc32c(&bytes[..DESCRIPTOR_BYTES - 4]);
    bytes[DESCRIPTOR_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
}

fn opened(bytes: &[u8; DESCRIPTOR_BYTES], magic: u32) -> Option<Reader<'_>> {
    let (body, crc) = bytes.split_at(DESCRIPTOR_BYTES - 4);
    let mut r = Reader(body);
    let whole = crc == crc32c(body).to_le_bytes() && r.u32()? == magic;
    whole.then_some(r)
}

impl Descriptor {
    /// Returns the stored form.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&USED.to_le_bytes());
        bytes[4..8].copy_from_slice(&u32::from(self.disk.0).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.block.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.to_le_bytes());
        bytes[24..27].copy_from_slice(&[self.mask, u8::from(self.dirty), u8::from(self.poisoned)]);
        bytes[27..31].copy_from_slice(&self.crc.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads a descriptor. Returns `None` for an unused or torn one.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Option<Descriptor> {
        let mut r = opened(bytes, USED)?;
        Some(Descriptor {
            disk: DiskNo(u16::try_from(r.u32()?).ok()?),
            block: BlockNo(r.u64()?),
            version: r.u64()?,
            mask: r.u8()?,
            dirty: r.flag()?,
            poisoned: r.flag()?,
            crc: r.u32()?,
        })
    }
}

/// Header of the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagingHeader {
    /// The arena.
    pub arena: ArenaId,
    /// Which life of the staging area this is, as the pool record counts them.
    pub staging_id: u64,
}

impl StagingHeader {
    /// Returns the stored form.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&HEADER.to_le_bytes());
        bytes[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.arena.pool.0);
        bytes[24..32].copy_from_slice(&self.staging_id.to_le_bytes());
        bytes[32] = self.arena.number.0;
        seal(&mut bytes);
        bytes
    }

    /// Reads the header. Returns `None` if there is none, or one of another version.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Option<StagingHeader> {
        let mut r = opened(bytes, HEADER)?;
        if r.u32()? != FORMAT_VERSION {
            return None;
        }
        let (pool, staging_id, number) = (Uuid(r.array()?), r.u64()?, ArenaNo(r.u8()?));
        Some(StagingHeader { arena: ArenaId { pool, number }, staging_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_tear() {
        let descriptor = Descriptor {
            disk: DiskNo(3),
            block: BlockNo(1 << 37),
            version: 9,
            mask: 0x81,
            dirty: true,
            poisoned: false,
            crc: 77,
        };
        let whole = descriptor.encode();
        assert_eq!(Descriptor::decode(&whole), Some(descriptor));
        for cut in 1..DESCRIPTOR_BYTES {
            let mut torn = whole;
            torn[cut..].fill(0);
            assert_eq!(Descriptor::decode(&torn), None);
        }
        let header =
            StagingHeader { arena: ArenaId { pool: Uuid([5; 16]), number: ArenaNo(2) }, staging_id: 6 };
        assert_eq!(StagingHeader::decode(&header.encode()), Some(header));
    }
}
