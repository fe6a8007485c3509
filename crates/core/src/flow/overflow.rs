//! Overflow: writes that would make more of a disk's share dirty than its limit allows.
//!
//! Such a write bypasses the cache up to its first dirty block: otherwise it would wait until the cleaner has
//! written other blocks to the origin. A dirty block must not be written to the origin before it is clean;
//! that block is staged, which does not make any other block dirty.
//!
//! Invariants, for modes that defer the origin
//! - No request fails because the cache chose to go to the origin. Data that the origin refuses is staged as
//!   soon as there is space. This holds for overflow, the sequential cut-off, admission, discards and zeroes.
//! - A write past the cache is durable at the origin when it is acknowledged, so that no flush of the guest
//!   needs the origin.

use haversack_model::{BlockNo, DiskNo};

use crate::config::Target;
use crate::core::Core;

impl Core {
    /// Whether the disk has reached its limit of dirty blocks, both in its own share and with its part of the
    /// unassigned space; or in its own share, while all that share the pool have reached theirs together.
    pub(crate) fn dirty_full(&self, disk: DiskNo) -> bool {
        let limit = f64::from(self.disk(disk).tuning.cleaner.dirty_limit);
        let least = u64::from(self.commit_threshold());
        let dirty = self.dirty_blocks(disk);
        if dirty < least {
            return false;
        }
        let part = |blocks: u64| (blocks as f64 * limit) as u64;
        let base_blocks = self.dirty_base_blocks(disk);
        let full = dirty >= part(base_blocks);
        match self.disk(disk).target {
            Target::Shared { .. } => full && self.store.common.dirty >= part(self.common_blocks()),
            _ => full && dirty >= part(base_blocks + self.unassigned_blocks_a_disk()),
        }
    }

    /// Returns the blocks that no disk's target claims, divided by the number of attached disks. Targets
    /// `Equal` and `Shared` claim everything that others leave, so nothing is unassigned then.
    fn unassigned_blocks_a_disk(&self) -> u64 {
        let (mut assigned, mut attached) = (0u64, 0);
        for (disk, d) in self.disks.numbered() {
            if self.is_dormant(disk) {
                assigned += self.store.disks[disk].live;
                continue;
            }
            let (Target::Blocks(blocks) | Target::Capped(blocks)) = d.target else { return 0 };
            assigned = assigned.saturating_add(blocks);
            attached += 1;
        }
        self.capacity_blocks().saturating_sub(assigned) / attached.max(1)
    }

    /// Sends the rest of a write that found the limit reached to the origin, up to its first dirty block, if
    /// possible. Returns whether it does.
    pub(crate) fn overflows(&mut self, number: u32) -> bool {
        let request = &self.requests[number];
        let disk = request.disk;
        let (next, end) = (request.next, request.end);
        let is_limit = self.dirty_full(disk) && self.dirty_groups(disk).is_none();
        if self.disk(disk).cleaner.origin_failed || !is_limit {
            return false;
        }
        let dirty = (next..end).find(|block| self.resolve(disk, BlockNo(*block)).is_dirty());
        if dirty.is_some_and(|dirty| dirty == next || self.is_zero_op(number)) {
            return false;
        }
        let request = &mut self.requests[number];
        (request.bypass, request.overflow_end, request.stages_zeroes) = (true, dirty.or(Some(end)), false);
        self.queue(disk);
        true
    }

    /// Stages the rest of a write whose blocks up to the first dirty one have gone past the cache.
    pub(crate) fn end_overflow(&mut self, number: u32) {
        let request = &mut self.requests[number];
        let is_over = request.overflow_end.is_some_and(|end| request.next == end && end < request.end);
        if is_over && request.outstanding == 0 {
            (request.bypass, request.overflow_end) = (false, None);
        }
    }

    /// Whether a write past the cache could be staged instead.
    pub(crate) fn could_stage(&self, disk: DiskNo) -> bool {
        self.disk(disk).mode.defers_origin()
            && self.alive_devices().next().is_some()
            && !self.is_mirror_unavailable(disk)
    }

    /// Stages the window after all: the origin refused it.
    pub(crate) fn take_back(&mut self, number: u32) {
        let disk = self.requests[number].disk;
        self.disk_mut(disk).cleaner.origin_failed = true;
        let zeroes = self.is_zero_op(number);
        let request = &mut self.requests[number];
        (request.bypass, request.overflow_end, request.stages_zeroes) = (false, None, zeroes);
        self.leave_window(number, 0);
    }
}
