//! Disks that share one pool (`Target::Shared`): which disk makes room for a batch, and how segments get to the disks
//! that need them.
//!
//! Blocks are evicted in the order of the common hands, but free slots in one disk's segment cannot be used
//! by another disk. If the disk with the oldest blocks made room for every batch, segments would change
//! owners all the time, and each change would evict blocks before their turn. So a disk evicts its own blocks
//! if their turn comes soon. Only a disk that grows, whose own blocks are among the newest, gets space from
//! others: the emptiest segment of a disk that has slots to spare, or a segment whose blocks are much older
//! than those that it would evict itself.
//!
//! Invariants
//! - A disk is a sharer in the store if and only if its target is `Shared`.
//! - A sharer within its reservation loses nothing to others, and one at its limit evicts its own blocks.

use haversack_model::{DeviceNo, DiskNo};

use crate::config::Target;
use crate::core::Core;
use crate::disk::Disk;
use crate::flow::space::PENDING_SHARE;
use crate::format::geometry::SLOTS_PER_SEGMENT;

/// One of this many of a sharer's slots is kept free. Sharers keep fewer slots free than other disks, since
/// the slots that each one keeps are lost to all.
const KEPT_FREE: u64 = 128;
/// A disk gives up a segment when it has this many slots to spare.
const WORTH_A_SEGMENT: u64 = SLOTS_PER_SEGMENT as u64 * 3 / 4;

fn shares(disk: &Disk) -> bool {
    matches!(disk.target, Target::Shared { .. })
}

impl Core {
    /// Sets the target of a disk.
    pub(crate) fn change_target(&mut self, disk: DiskNo, target: Target) {
        self.disk_mut(disk).target = target;
        let reserved = match target {
            Target::Shared { at_least_blocks, .. } => Some(at_least_blocks),
            Target::Equal | Target::Blocks(_) | Target::Capped(_) => None,
        };
        self.store.share(disk, reserved);
    }

    /// Whether the disk shares the pool with others.
    pub(crate) fn shares(&self, disk: DiskNo) -> bool {
        shares(self.disk(disk))
    }

    /// Returns the number of blocks left over by targets in blocks, and the numbers of disks with the targets
    /// `Equal` and `Shared`.
    fn divided(&self) -> (u64, [u64; 2]) {
        let (mut left_blocks, mut counts) = (self.capacity_blocks(), [0; 2]);
        for disk in self.disks.iter() {
            match disk.target {
                Target::Blocks(blocks) | Target::Capped(blocks) => {
                    left_blocks = left_blocks.saturating_sub(blocks);
                }
                Target::Equal => counts[0] += 1,
                Target::Shared { .. } => counts[1] += 1,
            }
        }
        (left_blocks, counts)
    }

    /// Returns the part of a disk with the target `Equal`.
    pub(crate) fn equal_blocks(&self) -> u64 {
        let (left_blocks, [equals, sharers]) = self.divided();
        left_blocks / (equals + sharers).max(1)
    }

    /// Returns the blocks of the pool that its sharers have together.
    pub(crate) fn common_blocks(&self) -> u64 {
        let (left_blocks, [equals, sharers]) = self.divided();
        left_blocks - left_blocks / (equals + sharers).max(1) * equals
    }

    /// Returns a sharer's share in blocks, which is shown and which limits its dirty blocks: the blocks that
    /// it has, or an equal part if that is more.
    pub(crate) fn shared_blocks(&self, disk: DiskNo, at_least_blocks: u64, at_most_blocks: u64) -> u64 {
        let has = self.store.disks[disk].live;
        has.max(self.equal_blocks()).min(at_most_blocks).max(at_least_blocks)
    }

    /// Whether the sharers have less than their part, because other disks exceed their targets.
    pub(crate) fn common_is_short(&self) -> bool {
        let slots = (self.store.common.segments.len() as u64 + 1) * u64::from(SLOTS_PER_SEGMENT);
        slots < self.common_blocks()
    }

    /// Returns by how many blocks the sharers exceed their part.
    pub(crate) fn common_excess(&self) -> i64 {
        self.store.common.live as i64 - self.common_blocks() as i64
    }

    /// Makes room for a sharer's batch of `wanted` blocks while no segment is free. Evicts its own blocks if
    /// it is their turn or soon will be; otherwise evicts the blocks of all sharers whose turn it is, and
    /// asks for a segment that another disk does not need. Until that segment is free, evicts the disk's own
    /// oldest blocks.
    pub(crate) fn make_common_room(&mut self, disk: DiskNo, wanted: u64, other_than: Option<DeviceNo>) {
        let segments = self.store.disks[disk].segments.len() as u64;
        let low = wanted + segments * u64::from(SLOTS_PER_SEGMENT) / KEPT_FREE;
        let empty_handed = !self.store.owns_elsewhere(disk, other_than);
        if !empty_handed && self.is_at_limit(disk, wanted) {
            self.store.evict_blocks(disk, self.missing(disk, low));
            return;
        }
        self.store.evict_in_turn(disk, self.missing(disk, low));
        let missing = self.missing(disk, low);
        let asked = self.store.reclaims_for(disk);
        let short = missing > 0 || empty_handed;
        // Space that does not belong to the sharers is taken first.
        if short && !asked && (empty_handed || !self.ask_for_segment(disk, other_than)) {
            self.store.evict_common(missing);
            self.ask_sharers(disk, other_than, empty_handed);
        }
        self.store.evict_blocks(disk, self.missing(disk, wanted));
    }

    /// Returns how many more slots of a disk should be free.
    fn missing(&self, disk: DiskNo, low: u64) -> u64 {
        let space = &self.store.disks[disk];
        let may_wait = space.segments.len() as u64 * u64::from(SLOTS_PER_SEGMENT) / PENDING_SHARE;
        low.saturating_sub(space.free + space.pending.saturating_sub(may_wait))
    }

    fn is_at_limit(&self, disk: DiskNo, wanted: u64) -> bool {
        let Target::Shared { at_most_blocks, .. } = self.disk(disk).target else { return false };
        self.store.disks[disk].live + wanted > at_most_blocks
    }

    /// Asks for a segment that another sharer does not need. A disk that has none at all gets one in any
    /// case.
    fn ask_sharers(&mut self, disk: DiskNo, other_than: Option<DeviceNo>, empty_handed: bool) {
        let least_slots = if empty_handed { 1 } else { WORTH_A_SEGMENT };
        // What a disk has just got for its batch is not taken away before it is used.
        let (batch, staging, disks) = (self.commit_threshold(), &self.staging, &self.disks);
        let waits = |disk| staging.lists[disk].len >= batch || disks[disk].flush.staged_dirty() > 0;
        if let Some(segment) = self.store.spare_segment(disk, least_slots, other_than, waits) {
            self.store.reclaim(segment, Some(disk));
        } else if let Some(segment) = self.store.overdue_segment(disk, other_than) {
            self.store.reclaim(segment, Some(disk));
        } else if empty_handed {
            self.ask_for_segment(disk, other_than);
        }
    }
}
