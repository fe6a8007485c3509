//! How a disk appears to the guest: features and the configuration space (virtio 1.2, section 5.2.4).

use crate::queue::MAX_QUEUE_SIZE;
use crate::request::{RequestLimits, SECTOR_BYTES};

/// Feature bits of virtio-blk, of virtqueues, and of vhost-user.
pub mod feature {
    #![allow(missing_docs, reason = "the names are the specifications'")]
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    pub const BLK_RO: u64 = 1 << 5;
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    pub const BLK_FLUSH: u64 = 1 << 9;
    pub const BLK_TOPOLOGY: u64 = 1 << 10;
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    pub const BLK_MQ: u64 = 1 << 12;
    pub const BLK_DISCARD: u64 = 1 << 13;
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    pub const LOG_ALL: u64 = 1 << 26;
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Feature bits of the vhost-user protocol.
pub(crate) mod protocol_feature {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    pub const ALL: u64 = MQ
        | LOG_SHMFD
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS;
}

/// Length of the configuration space that may be read, in bytes; bytes outside of fields read as zeroes.
pub(crate) const CONFIG_SPACE_BYTES: usize = 256;
/// Offset of the write-cache toggle, the only field that the guest may write.
pub(crate) const WRITE_CACHE_OFFSET: usize = 32;

/// A disk as offered to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Size in sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// Logical block size in bytes: a power of two from 512 on.
    pub block_bytes: u32,
    /// Physical block size: logical blocks per physical one, as a power of two.
    pub physical_block_exponent: u8,
    /// Smallest efficient request in logical blocks; 0: not specified.
    pub minimum_io_blocks: u16,
    /// Optimal request in logical blocks; 0: not specified.
    pub optimal_io_blocks: u32,
    /// Number of queues.
    pub queues: u16,
    /// Maximum number of data buffers of a request.
    pub segments: u32,
    /// Maximum number of ranges of a discard; 0: discards are not offered.
    pub discard_ranges: u32,
    /// Maximum number of sectors of a discarded range.
    pub discard_sectors: u32,
    /// Discards should start at multiples of this, in sectors.
    pub discard_alignment_sectors: u32,
    /// Maximum number of ranges of a write-zeroes; 0: such requests are not offered.
    pub write_zeroes_ranges: u32,
    /// Maximum number of sectors of a zeroed range.
    pub write_zeroes_sectors: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Default for DeviceConfig {
    /// Returns an empty, writable disk with one queue.
    fn default() -> Self {
        Self {
            capacity_sectors: 0,
            block_bytes: SECTOR_BYTES,
            physical_block_exponent: 3,
            minimum_io_blocks: 0,
            optimal_io_blocks: 0,
            queues: 1,
            segments: 126,
            discard_ranges: 16,
            discard_sectors: 1 << 22,
            discard_alignment_sectors: 8,
            write_zeroes_ranges: 1,
            write_zeroes_sectors: 1 << 22,
            read_only: false,
        }
    }
}

/// A configuration that cannot be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}, expected {expected}")]
pub struct ConfigError {
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// The valid values.
    pub expected: &'static str,
}

impl DeviceConfig {
    /// Checks whether the configuration is valid.
    ///
    /// # Errors
    /// A field's value cannot be offered.
    pub fn check(&self) -> Result<(), ConfigError> {
        let check = |field, found: u64, expected, good| {
            if good { Ok(()) } else { Err(ConfigError { field, found, expected }) }
        };
        let blocks = self.block_bytes;
        let good_blocks = blocks.is_power_of_two() && (512..=65536).contains(&blocks);
        check("block size", blocks.into(), "a power of two from 512 to 65536", good_blocks)?;
        check("number of queues", self.queues.into(), "1 to 256", (1..=256).contains(&self.queues))?;
        let most = u32::from(MAX_QUEUE_SIZE) - 2;
        let good_segments = (1..=most).contains(&self.segments);
        check("segments of a request", self.segments.into(), "1 to 1022", good_segments)?;
        let capacity = self.capacity_sectors;
        check("capacity in sectors", capacity, "less than 2^55", capacity < 1 << 55)
    }

    /// Returns the features offered.
    pub(crate) fn features(&self) -> u64 {
        use feature::*;
        let mut features = BLK_SEG_MAX
            | BLK_BLK_SIZE
            | BLK_TOPOLOGY
            | BLK_FLUSH
            | BLK_CONFIG_WCE
            | LOG_ALL
            | RING_INDIRECT_DESC
            | RING_EVENT_IDX
            | PROTOCOL_FEATURES
            | VERSION_1;
        let optional = [
            (self.read_only, BLK_RO),
            (self.queues > 1, BLK_MQ),
            (self.discard_ranges > 0 && !self.read_only, BLK_DISCARD),
            (self.write_zeroes_ranges > 0 && !self.read_only, BLK_WRITE_ZEROES),
        ];
        for (offered, feature) in optional {
            if offered {
                features |= feature;
            }
        }
        features
    }

    pub(crate) fn limits(&self) -> RequestLimits {
        RequestLimits {
            read_only: self.read_only,
            discard_ranges: self.discard_ranges,
            discard_sectors: self.discard_sectors,
            write_zeroes_ranges: self.write_zeroes_ranges,
            write_zeroes_sectors: self.write_zeroes_sectors,
        }
    }

    /// Returns the configuration space, with the write cache shown like this: `struct virtio_blk_config`, little-endian.
    pub(crate) fn space(&self, write_cache: bool) -> [u8; CONFIG_SPACE_BYTES] {
        let mut space = [0; CONFIG_SPACE_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.capacity_sectors.to_le_bytes());
        put(12, &self.segments.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        put(24, &[self.physical_block_exponent]);
        put(26, &self.minimum_io_blocks.to_le_bytes());
        put(28, &self.optimal_io_blocks.to_le_bytes());
        put(WRITE_CACHE_OFFSET, &[u8::from(write_cache)]);
        put(34, &self.queues.to_le_bytes());
        put(36, &self.discard_sectors.to_le_bytes());
        put(40, &self.discard_ranges.to_le_bytes());
        put(44, &self.discard_alignment_sectors.to_le_bytes());
        put(48, &self.write_zeroes_sectors.to_le_bytes());
        put(52, &self.write_zeroes_ranges.to_le_bytes());
        put(56, &[1]);
        space
    }
}
