//! Counters of disks and of the pool. They only increase, except those that are described as a current state.

use haversack_model::Micros;

/// Counters of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskStats {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard and write-zeroes requests.
    pub zeroes: u64,
    /// Bytes read by the guest.
    pub read_bytes: u64,
    /// Bytes written by the guest.
    pub written_bytes: u64,
    /// Blocks read that were completely in the cache.
    pub read_hits: u64,
    /// Of these, blocks that were in the data stage: admission had not let them in yet.
    pub data_stage_hits: u64,
    /// Blocks read that were not, or not completely, in the cache.
    pub read_misses: u64,
    /// Blocks written that were in the cache.
    pub write_hits: u64,
    /// Blocks written that were not.
    pub write_misses: u64,
    /// Bytes read from the origin.
    pub origin_read_bytes: u64,
    /// Blocks read from the disk's base, which counts them as its own reads.
    pub base_blocks: u64,
    /// Blocks read from the host that owned the disk before.
    pub peer_read_blocks: u64,
    /// Clean blocks that followed the disk here, from that host or the origin.
    pub late_blocks: u64,
    /// Bytes written to the origin by writes past or through the cache.
    pub origin_written_bytes: u64,
    /// Bytes written to the origin by the cleaner.
    pub cleaned_bytes: u64,
    /// Blocks cleaned.
    pub cleaned_blocks: u64,
    /// Flash writes: blocks that the guest wrote.
    pub flash_write_blocks: u64,
    /// Flash writes: blocks filled from the origin.
    pub flash_fill_blocks: u64,
    /// Flash writes: mirrored copies of dirty blocks.
    pub flash_mirror_blocks: u64,
    /// Flash writes: metadata pages with batches.
    pub flash_batch_pages: u64,
    /// Flash writes: metadata pages alone.
    pub flash_rewrite_pages: u64,
    /// Flash writes: write-intent bitmap pages.
    pub flash_intent_pages: u64,
    /// Fills that found no staging frame and were not kept.
    pub fills_skipped: u64,
    /// Blocks that admission or the sequential cut-off kept out.
    pub not_admitted: u64,
    /// Blocks written past the cache because the limit of dirty blocks was reached.
    pub overflowed_blocks: u64,
    /// Blocks read from flash that failed their checksum, without those of [`Self::crash_dropped_blocks`].
    pub corrupt_blocks: u64,
    /// Of these, dirty ones without a good mirrored copy.
    pub lost_blocks: u64,
    /// Clean blocks from before a crash that failed their checksum: most likely a commit that the crash cut short wrote
    /// over them. They do not count as corrupt.
    pub crash_dropped_blocks: u64,
    /// Requests that failed.
    pub failed_requests: u64,
    /// Requests by their first sector modulo 8: shows the grid phase that would align the most.
    pub start_phases: [u64; 8],
}

/// The current state of a disk's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskUsage {
    /// Blocks it should have.
    pub target_blocks: u64,
    /// Blocks it has on flash and staged.
    pub usage_blocks: u64,
    /// Dirty blocks, staged ones too.
    pub dirty_blocks: u64,
    /// Dirty blocks with a mirrored copy.
    pub mirrored_blocks: u64,
    /// Slots with overtaken versions of blocks, which a durable page may still list.
    pub overtaken_blocks: u64,
    /// How long the origin has lacked the disk's longest dirty block, or since the pool was opened if that is less.
    pub oldest_dirty_us: Micros,
    /// Whether the origin is as a flush of the guest left it, plus some later writes, if blocks are cleaned in the
    /// order of the guest's flushes.
    pub origin_in_order: Option<bool>,
    /// Segments it owns.
    pub segments: u64,
}

/// The current state of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Slots on all devices in use.
    pub capacity_blocks: u64,
    /// Live blocks.
    pub usage_blocks: u64,
    /// Dirty blocks.
    pub dirty_blocks: u64,
    /// Free segments.
    pub free_segments: u64,
    /// Devices in use.
    pub devices: u64,
    /// Redundancy is configured, and the loss of a device could lose data: fewer than two devices are in use,
    /// or mirrored copies are being rebuilt.
    pub degraded: bool,
    /// Device flushes.
    pub flushes: u64,
    /// Pool record writes, in pages.
    pub record_pages: u64,
    /// Bytes of memory for all bookkeeping, frames not counted.
    pub memory_bytes: u64,
}

impl PoolStats {
    /// Adds the figures of another arena of the pool.
    pub fn add(&mut self, other: &PoolStats) {
        self.capacity_blocks += other.capacity_blocks;
        self.usage_blocks += other.usage_blocks;
        self.dirty_blocks += other.dirty_blocks;
        self.free_segments += other.free_segments;
        self.devices = self.devices.max(other.devices);
        self.degraded |= other.degraded;
        self.flushes += other.flushes;
        self.record_pages += other.record_pages;
        self.memory_bytes += other.memory_bytes;
    }
}
