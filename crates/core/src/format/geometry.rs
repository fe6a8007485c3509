//! The layout of a cache device.
//!
//! ```text
//! page 0, 1        superblock, two copies
//! page 2..34       pool record, copy A
//! page 34..66      pool record, copy B
//! page 66, 67      labels of devices: a sector for each
//! page 128..2176   write-intent bitmaps: pages A and B of each of 1,024 disks
//! page 2176..2304  labels of disks: a sector for each
//! page 2304...     segments of 256 pages: metadata pages A and B, 253 slots, one page unused
//! ```

use haversack_model::{BLOCK_BYTES, DiskNo};

use crate::config::{MAX_DEVICES, MAX_DISKS};

/// Bytes of a page, which is also the size of a block.
pub const PAGE_BYTES: u64 = BLOCK_BYTES as u64;
/// Blocks that a segment holds.
pub const SLOTS_PER_SEGMENT: u32 = 253;
/// Pages of a segment.
pub const SEGMENT_PAGES: u64 = 256;
/// Minimum number of segments of a device.
pub const MIN_SEGMENTS: u32 = 2;
/// Maximum number of segments of an arena, on all of its devices together: slots are numbered in 32 bits.
pub const MAX_SEGMENTS: u32 = u32::MAX / SLOTS_PER_SEGMENT;
/// Pages of one copy of the pool record.
pub const RECORD_PAGES: u64 = 32;

const RECORD_START: u64 = 2;
const INTENT_START: u64 = 128;
const SEGMENT_START: u64 = 2304;
/// The first page of device labels, which the core neither reads nor writes.
pub const DEVICE_LABEL_START: u64 = 66;
/// The first page of disk labels, which the core neither reads nor writes.
pub const DISK_LABEL_START: u64 = 2176;

const _: () = assert!(RECORD_START + 2 * RECORD_PAGES <= DEVICE_LABEL_START);
const _: () = assert!(DEVICE_LABEL_START + MAX_DEVICES as u64 / 8 <= INTENT_START);
const _: () = assert!(INTENT_START + 2 * MAX_DISKS as u64 <= DISK_LABEL_START);
const _: () = assert!(DISK_LABEL_START + MAX_DISKS as u64 / 8 <= SEGMENT_START);

/// Returns the byte offset of superblock copy 0 or 1.
pub fn superblock_bytes(copy: u64) -> u64 {
    copy * PAGE_BYTES
}

/// Returns the byte offset of pool-record copy 0 or 1.
pub fn record_bytes(copy: u64) -> u64 {
    (RECORD_START + copy * RECORD_PAGES) * PAGE_BYTES
}

/// Returns the byte offset of a disk's intent page: A for even generations, B for odd ones.
pub fn intent_bytes(disk: DiskNo, generation: u64) -> u64 {
    (INTENT_START + 2 * u64::from(disk.0) + generation % 2) * PAGE_BYTES
}

/// Returns the byte offset of a segment's metadata page: A for even generations, B for odd ones.
pub fn metadata_bytes(segment: u32, generation: u64) -> u64 {
    (SEGMENT_START + u64::from(segment) * SEGMENT_PAGES + generation % 2) * PAGE_BYTES
}

/// Returns the byte offset of a slot of a segment.
pub fn slot_bytes(segment: u32, slot: u32) -> u64 {
    (SEGMENT_START + u64::from(segment) * SEGMENT_PAGES + 2 + u64::from(slot)) * PAGE_BYTES
}

/// Returns the bytes that a device with this many segments needs.
pub fn device_bytes(segments: u32) -> u64 {
    (SEGMENT_START + u64::from(segments) * SEGMENT_PAGES) * PAGE_BYTES
}

/// Returns the number of segments that fit on a device of this size.
pub fn segments_in(capacity_bytes: u64) -> u32 {
    let pages = capacity_bytes / PAGE_BYTES;
    u32::try_from(pages.saturating_sub(SEGMENT_START) / SEGMENT_PAGES).unwrap_or(u32::MAX)
}
