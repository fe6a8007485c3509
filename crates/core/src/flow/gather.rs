//! Gathering: dirty blocks of a disk that is not in use here move to fewer segments, so that another disk gets one.
//!
//! Dirty blocks of a disk that was handed over stay until its new owner has them, and those of a detached one until it
//! is attached again. A few of them in each segment keep all other disks out. These work without the cache
//! (`mirror_unavailable.rs`), except for a disk that needs dirty blocks of another host: its blocks have to be durable here
//! before they may be written to the origin. Two hosts that have handed over a disk to each other would wait for each other
//! for ever. So the dirty blocks of one segment are staged again, and committed to others. Then the segment is given up.
//!
//! Invariants
//! - One segment is emptied at a time. No block is committed to it meanwhile.
//! - Nothing is gathered while a device is leaving or being emptied: that moves blocks, too.

use haversack_model::{DeviceNo, DiskNo};

use crate::core::{Call, Core};
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::memory::Memory;
use crate::store::segment::{Segment, SegmentNo, SegmentState};

/// Segments of a disk, on each device, that are searched for the one with the fewest dirty blocks.
const SEGMENTS_TRIED: usize = 64;

/// A segment that is being emptied.
#[derive(Clone, Copy)]
pub(crate) struct Gathering {
    segment: SegmentNo,
    /// Its owner.
    disk: DiskNo,
    /// The disk that needs it.
    asker: DiskNo,
}

impl Core {
    /// Whether dirty blocks of the disk are moved to fewer segments.
    pub(crate) fn gathers(&self, disk: DiskNo) -> bool {
        self.devices.gathering.is_some_and(|gathering| gathering.disk == disk)
    }

    /// Returns the segment that is emptied with the least effort, of those that keep other disks out.
    fn sparsest_segment(&self) -> Option<SegmentNo> {
        let devices: Vec<DeviceNo> = self.store.usable_devices().filter(|at| !self.has_place(*at)).collect();
        let stays = |disk: &DiskNo| {
            let d = self.disk(*disk);
            (d.life.is_detached() || d.life.is_peer()) && d.job.is_none()
        };
        let disks = self.disks.numbers().filter(stays);
        let segments =
            disks.flat_map(|disk| devices.iter().filter_map(move |at| self.sparsest_of(disk, *at)));
        segments.min_by_key(|segment| self.store.segments[*segment].dirty)
    }

    /// Returns the disk's segment on a device with the fewest dirty blocks, if its other segments have room for them.
    fn sparsest_of(&self, disk: DiskNo, device: DeviceNo) -> Option<SegmentNo> {
        let segment = |number: &SegmentNo| &self.store.segments[*number];
        let room_in = |s: &Segment| SLOTS_PER_SEGMENT - u32::from(s.dirty);
        let owned = self.store.disks[disk].segments.iter().filter(|number| {
            let s = segment(number);
            s.state == SegmentState::Owned && self.store.usable_devices().any(|at| at.0 == s.device)
        });
        let (here, elsewhere): (Vec<&SegmentNo>, Vec<&SegmentNo>) =
            owned.partition(|number| segment(number).device == device.0);
        let here = &here[..here.len().min(SEGMENTS_TRIED)];
        let sparsest = here.iter().min_by_key(|number| segment(number).dirty)?;
        let dirty = u32::from(segment(sparsest).dirty);
        let others = here.iter().filter(|number| *number != sparsest);
        let room_here: u32 = others.map(|number| room_in(segment(number))).sum();
        // The other copies of blocks that are on two devices get new places as well.
        let elsewhere = elsewhere.iter().take(SEGMENTS_TRIED);
        let room_elsewhere: u32 = elsewhere.map(|number| room_in(segment(number))).sum();
        let is_room = room_here >= dirty && (self.dirty_copies() == 1 || room_elsewhere >= dirty);
        is_room.then_some(**sparsest)
    }

    fn end_gathering(&mut self) {
        self.devices.gathering = None;
        self.store.close(None);
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts to empty a segment for a disk whose blocks have to become durable here, if other disks leave it no space.
    pub(crate) fn gather_for(&mut self, asker: DiskNo) {
        let is_kept_out = self.store.disks[asker].segments.is_empty() && !self.has_space(asker);
        let is_busy = self.devices.gathering.is_some() || self.store.is_reclaiming();
        if !is_kept_out || is_busy || !self.store.all_usable() {
            return;
        }
        let Some(segment) = self.sparsest_segment() else { return };
        let disk = DiskNo(self.store.segments[segment].owner);
        self.devices.gathering = Some(Gathering { segment, disk, asker });
        self.store.close(Some(segment));
        self.store.evict_clean(segment);
        self.move_dirty(segment);
    }

    /// Goes on to empty a segment. Returns true when it is given up.
    pub(crate) fn drive_gathering(&mut self) -> bool {
        let Some(Gathering { segment, disk, asker }) = self.devices.gathering else { return false };
        let s = &self.store.segments[segment];
        let is_its = s.state == SegmentState::Owned && s.owner == disk.0;
        if !is_its || !self.store.all_usable() || self.pool.rests() {
            self.end_gathering();
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
