//! A disk without space for the mirrored copies of its dirty blocks works without the cache.
//!
//! In a redundant pool a dirty block is written to two devices. Dirty blocks of a released disk stay until
//! the disk is forgotten, and damaged blocks until they are written or given up. If their segments fill all
//! devices but one, waiting for a second place would never end. A disk in this situation cleans its blocks on
//! flash, drops damaged blocks, gives up its segments, and then has its staged blocks cleaned, like a disk
//! that gets no space at all. It returns to the cache when there are two places again.
//!
//! Invariant: staged blocks are cleaned past the cache only when the disk owns no segment. Then no page lists
//! older versions of them that a crash could bring back.

use haversack_model::{DeviceNo, DiskNo};

use crate::core::{Call, Core};
use crate::disk::Disk;
use crate::memory::Memory;
use crate::store::segment::SegmentNo;

/// Number of segments searched for two on different devices before blocks of released disks are checked.
const FIRST_LOOK: usize = 16;

impl Core {
    /// Whether dirty blocks of the disk cannot get a second place until a released disk is forgotten, or the
    /// loss of damaged blocks is accepted.
    pub(crate) fn is_mirror_unavailable(&self, disk: DiskNo) -> bool {
        if self.dirty_copies() < 2 || self.is_dormant(disk) || !self.may_be_dirty(disk) {
            return false;
        }
        let segments = &self.store.disks[disk].segments;
        let devices = segments.iter().take(FIRST_LOOK).map(|s| DeviceNo(self.store.segments[*s].device));
        let mut devices = devices.filter(|device| self.store.is_usable(*device));
        let first = devices.next();
        if devices.any(|device| Some(device) != first) {
            return false;
        }
        let leaves_dirt = |disk: DiskNo| {
            let stays = self.is_dormant(disk) || !self.disk(disk).damaged.is_empty();
            self.store.disks[disk].dirty > 0 && stays
        };
        self.disks.numbers().any(leaves_dirt)
            && self.store.usable_devices().filter(|device| self.has_place(*device)).nth(1).is_none()
    }

    fn may_be_dirty(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        d.mode.defers_origin() || d.flush.staged_dirty() > 0 || self.store.disks[disk].dirty > 0
    }

    /// Whether any segment of the device is free or could become free.
    pub(super) fn has_place(&self, device: DeviceNo) -> bool {
        self.store.numbers_on(device).any(|number| {
            let segment = &self.store.segments[number];
            let owner = self.disks.get(DiskNo(segment.owner));
            let stays = |d: &Disk| d.life.is_dormant() || !d.damaged.is_empty() && self.has_damage(number);
            segment.dirty == 0 || !owner.is_some_and(stays)
        })
    }

    /// Whether a segment has damaged blocks, which cannot be cleaned.
    fn has_damage(&self, segment: SegmentNo) -> bool {
        self.store.slots_of(segment).any(|number| self.store.live(number).is_some_and(|s| s.poisoned()))
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts to clean the disk's blocks on flash, and gives up its segments one by one. Damaged blocks do
    /// not prevent this.
    pub(crate) fn vacate_flash(&mut self, disk: DiskNo) {
        if !std::mem::replace(&mut self.disk_mut(disk).cleaner.space_needed, true) {
            self.queue(disk);
        }
        self.drop_damaged(disk);
        if !self.store.is_reclaiming()
            && let Some(segment) = self.store.coldest_segment(disk, None)
        {
            self.store.reclaim(segment, None);
        }
    }
}
