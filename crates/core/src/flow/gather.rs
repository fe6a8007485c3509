//! Gathering: dirty blocks of a disk that is not in use here move to fewer segments, so that another disk gets one.
//!
//! If a disk was handed over, its dirty blocks stay here until the new owner has them. If a disk was detached, they
//! stay until it is attached again. If another host has taken a disk over, they stay until the operator forgets the
//! disk by name. If every segment has a few such blocks, no other disk gets space. Other disks then work without the
//! cache (`mirror_unavailable.rs`), except for a disk that needs dirty blocks of another host: its blocks must be
//! durable here before they may be written to the origin. Two hosts that have handed over a disk to each other would
//! wait for each other forever. A host that gives up a dead host would wait forever, too. Therefore the dirty blocks of
//! one segment are staged again, and committed to other segments of their disk. Then the segment is given up. That
//! needs a disk with two segments on the device.
//!
//! Blocks of a disk that was taken over are moved, not dropped, although no host asks for them any more: every host
//! with the disk has a higher epoch on record. The blocks may be the only copies of data that the new owner had to give
//! up as lost. The operator may want to see them, and only the operator destroys them (`takeover.rs`).
//!
//! Invariants
//! - One segment is emptied at a time. No block is committed to it meanwhile.
//! - Nothing is gathered while a device leaves or the pool has a job other than its stop: these move blocks, too.
//! - A gathering ends: with the segment given up, or after a time, when its disk is used again, or when a block of the
//!   segment cannot be read. Then there is a pause before the next.

use haversack_model::{DeviceNo, DiskNo, Micros};

use crate::core::{Call, Core};
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::format::record::Moved;
use crate::memory::Memory;
use crate::store::segment::{SegmentNo, SegmentState};

/// The longest time in which a segment is emptied.
const LONGEST_US: Micros = 60_000_000;

/// A segment that is being emptied.
#[derive(Clone, Copy)]
pub(crate) struct Gathering {
    segment: SegmentNo,
    /// Its owner.
    disk: DiskNo,
    /// The disk that needs it.
    asker: DiskNo,
    until_us: Micros,
}

/// The gathering of a pool.
#[derive(Default)]
pub(crate) struct Gather {
    now: Option<Gathering>,
    /// No gathering begins before this time.
    again_us: Micros,
}

impl Gather {
    /// Returns when the current gathering times out or, if there is none, when the next may begin.
    pub fn due_us(&self) -> Option<Micros> {
        self.now.map(|gathering| gathering.until_us).or(Some(self.again_us))
    }
}

impl Core {
    /// Whether dirty blocks of the disk are moved to fewer segments.
    pub(crate) fn gathers(&self, disk: DiskNo) -> bool {
        self.devices.gather.now.is_some_and(|gathering| gathering.disk == disk)
    }

    /// Whether something else moves blocks or is about to. A stop of the pool waits for what is gathered.
    fn is_pool_changing(&self) -> bool {
        let has_job = self.jobs.is_pool_busy() && !self.pool.is_stopping();
        has_job || self.devices.leaves_any() || self.devices.has_gone()
    }

    /// Whether the disk's dirty blocks only wait here: until it is attached, for its new owner, or to be forgotten.
    fn is_waiting(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        let is_dormant = d.life.is_dormant() && !d.life.is_forgotten();
        d.life.is_detached() || d.life.is_peer() || is_dormant && matches!(d.moved, Moved::Overtaken { .. })
    }

    /// Returns the segment that is emptied with the least effort, of those that keep other disks out.
    fn sparsest_segment(&self) -> Option<SegmentNo> {
        let usable: Vec<DeviceNo> = self.store.usable_devices().collect();
        let full: Vec<DeviceNo> = usable.iter().copied().filter(|at| !self.has_place(*at)).collect();
        let disks =
            self.disks.numbers().filter(|disk| self.is_waiting(*disk) && self.disk(*disk).job.is_none());
        let segments = disks.flat_map(|disk| {
            full.iter().filter_map(|at| self.sparsest_of(disk, *at, &usable)).collect::<Vec<_>>()
        });
        segments.min_by_key(|segment| self.store.segments[*segment].dirty)
    }

    /// Returns the disk's segment on a device with the fewest dirty blocks, if its other segments have room for them.
    fn sparsest_of(&self, disk: DiskNo, device: DeviceNo, usable: &[DeviceNo]) -> Option<SegmentNo> {
        let (mut sparsest, mut room_here, mut room_elsewhere) = (None, 0, 0);
        for number in &self.store.disks[disk].segments {
            let segment = &self.store.segments[*number];
            if segment.state != SegmentState::Owned || !usable.contains(&DeviceNo(segment.device)) {
                continue;
            }
            let dirty = u64::from(segment.dirty);
            let room = u64::from(SLOTS_PER_SEGMENT) - dirty;
            if segment.device != device.0 {
                room_elsewhere += room;
                continue;
            }
            room_here += room;
            if sparsest.is_none_or(|(least, _)| dirty < least) {
                sparsest = Some((dirty, *number));
            }
        }
        let (dirty, number) = sparsest?;
        let room_here = room_here - (u64::from(SLOTS_PER_SEGMENT) - dirty);
        // The other copies of blocks that are on two devices get new places as well.
        let is_room = room_here >= dirty && (self.dirty_copies() == 1 || room_elsewhere >= dirty);
        is_room.then_some(number)
    }

    fn end_gathering(&mut self) {
        self.devices.gather.now = None;
        self.store.close(None);
    }

    /// Ends a gathering that has not freed a segment, and starts the pause before the next one.
    fn stop_gathering(&mut self) {
        self.end_gathering();
        self.devices.gather.again_us = self.now + self.config.clean_retry_us;
    }

    /// Stops the gathering if it is emptying the segment `from`, whose dirty block cannot be read. Returns whether it
    /// was.
    pub(crate) fn cannot_gather(&mut self, from: SegmentNo) -> bool {
        let is_from = self.devices.gather.now.is_some_and(|gathering| gathering.segment == from);
        if is_from {
            self.stop_gathering();
        }
        is_from
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts to empty a segment for a disk whose blocks have to become durable here, if other disks leave it no space.
    pub(crate) fn gather_for(&mut self, asker: DiskNo) {
        let is_busy = self.devices.gather.now.is_some() || self.store.is_reclaiming();
        if is_busy || self.now < self.devices.gather.again_us || self.is_pool_changing() {
            return;
        }
        if !self.store.disks[asker].segments.is_empty() || self.has_space(asker) {
            return;
        }
        let Some(segment) = self.sparsest_segment() else {
            self.devices.gather.again_us = self.now + self.config.clean_retry_us;
            return;
        };
        let disk = DiskNo(self.store.segments[segment].owner);
        let until_us = self.now + LONGEST_US;
        self.devices.gather.now = Some(Gathering { segment, disk, asker, until_us });
        self.store.close(Some(segment));
        self.store.evict_clean(segment);
        self.move_dirty(segment);
    }

    /// Goes on to empty a segment. Returns true when it is given up.
    pub(crate) fn drive_gathering(&mut self) -> bool {
        let Some(Gathering { segment, disk, asker, until_us }) = self.devices.gather.now else {
            return false;
        };
        let s = &self.store.segments[segment];
        let is_its = s.state == SegmentState::Owned && s.owner == disk.0 && self.is_waiting(disk);
        if !is_its || self.is_pool_changing() || self.pool.rests() || self.now >= until_us {
            self.stop_gathering();
            return false;
        }
        self.drive_restage(disk);
        self.drive_commit(disk);
        let d = self.disk(disk);
        let is_moving = !d.restage.is_empty() || d.restaging > 0;
        if is_moving || self.staging.lists[disk].len > 0 || self.batches.of_disk(disk) > 0 {
            return false;
        }
        if self.store.slots_of(segment).any(|number| self.has_dirty_copy(number)) {
            self.move_dirty(segment);
            return false;
        }
        let s = &self.store.segments[segment];
        if s.superseded > 0 || s.page_writing {
            self.durability.want_completed();
            return false;
        }
        self.end_gathering();
        self.store.reclaim(segment, Some(asker));
        true
    }
}
