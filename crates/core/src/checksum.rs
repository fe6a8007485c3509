//! CRC-32C of block data, bound to the block's identity.
//!
//! A block's stored checksum is the CRC-32C of its 4,096 bytes, with invalid sectors as zeroes, combined with
//! a hash of the disk's identity and the block number. So a block that was written or read at the wrong
//! place, or that belongs to another disk, fails as surely as a damaged one.

use haversack_model::{ArenaId, BlockNo, DiskId, Uuid};

/// Returns the CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Mixes a 64-bit number with full avalanche (the finaliser of MurmurHash3).
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Returns the hash of an identity.
fn seed(id: &[u8; 16]) -> u64 {
    let (low, high) = id.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    mix(word(low) ^ mix(word(high)))
}

/// Returns the hash of a disk's identity that goes into the checksums of its blocks.
pub fn disk_seed(id: DiskId) -> u64 {
    seed(&id.0)
}

/// Returns the hash of an arena's identity that goes into the checksum of its record.
pub fn arena_seed(arena: ArenaId) -> u64 {
    seed(&arena.pool.0) ^ mix(arena.number.0.into())
}

/// Returns the hash of the identities of a device and an arena that goes into the tags of the arena's pages on the
/// device. Pool and device are new each time a device is formatted, so no page from before is taken for one of the
/// pool's; and no page of another arena is taken for one of this arena's.
pub fn device_seed(arena: ArenaId, device: Uuid) -> u64 {
    mix(seed(&device.0) ^ mix(arena_seed(arena)))
}

/// Returns the hash of the identity of a clean stop that goes into the checksums of its checkpoint.
pub fn stop_seed(stop: Uuid) -> u32 {
    seed(&stop.0) as u32
}

/// Combines a content checksum with the block that the content belongs to.
pub fn bind(content_crc: u32, disk_seed: u64, block: BlockNo) -> u32 {
    content_crc ^ mix(disk_seed ^ block.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_known_answer() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn another_disk_or_block_has_another_checksum() {
        let a = disk_seed(DiskId([1; 16]));
        let b = disk_seed(DiskId([2; 16]));
        assert_ne!(bind(7, a, BlockNo(1)), bind(7, b, BlockNo(1)));
        assert_ne!(bind(7, a, BlockNo(1)), bind(7, a, BlockNo(2)));
    }
}
