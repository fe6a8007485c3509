//! Ownership of segments: disks take free ones, give them up, and lose them with a device.
//!
//! Invariants
//! - A segment is in its owner's list, at index `place`, if and only if it has an owner.
//! - A segment becomes free only when all of its slots are blank and its last page is durable: no page lists
//!   anything in it.
//! - No disk takes a segment of a device that is being emptied, not on record yet, or no longer used, or one that
//!   is not prepared.
//! - After a device is lost, the store keeps what its pages list as dead entries until the record says that
//!   the device is gone: a crash may bring them back. Clean blocks become dead one segment at a time; until
//!   then no lookup finds them.
//! - A batch may write over a dead slot only if it is the only entry of its block.

use haversack_model::{DeviceNo, DiskNo};

use super::segment::{Segment, SegmentNo, SegmentState};
use super::slot::{Live, Slot, SlotNo, Status, View};
use super::{DeviceSpace, Store, hash};
use crate::format::page::NO_OWNER;
use crate::table::Table;

/// The remains of a lost device.
#[derive(Default)]
pub struct LostDevice {
    /// Older versions elsewhere that pages may list, as found so far.
    pub overtaken: Vec<SlotNo>,
    /// Its segments without dirty blocks: call [`Store::lose_clean`] for each.
    pub clean: Vec<SegmentNo>,
}

impl Store {
    /// Returns the devices that new blocks may go to.
    pub fn usable_devices(&self) -> impl Iterator<Item = DeviceNo> + '_ {
        let usable = |d: &DeviceSpace| d.alive && !d.draining;
        self.devices.numbered().filter(move |(_, d)| d.as_ref().is_some_and(usable)).map(|(number, _)| number)
    }

    /// Whether new blocks may go to a device.
    pub fn is_usable(&self, device: DeviceNo) -> bool {
        self.devices.get(device).and_then(Option::as_ref).is_some_and(|d| d.alive && !d.draining)
    }

    /// Returns the numbers of the segments of a device.
    pub fn numbers_on(&self, device: DeviceNo) -> impl Iterator<Item = SegmentNo> + use<> {
        self.devices[device].as_ref().map(DeviceSpace::numbers).into_iter().flatten()
    }

    /// Returns how many segments are free on usable devices other than `other_than`.
    pub fn free_segments(&self, other_than: Option<DeviceNo>) -> usize {
        self.usable_devices()
            .filter(|d| Some(*d) != other_than)
            .map(|d| self.devices[d].as_ref().map_or(0, |d| d.free_segments.len()))
            .sum()
    }

    /// Returns how many segments of usable devices other than `other_than` are not prepared for use yet.
    pub fn unprepared_segments(&self, other_than: Option<DeviceNo>) -> u64 {
        let devices = self.usable_devices().filter(|d| Some(*d) != other_than);
        let unprepared = |space: &DeviceSpace| u64::from(space.segments - space.prepared);
        devices.map(|d| self.devices[d].as_ref().map_or(0, unprepared)).sum()
    }

    /// Notes that the first segments of a device, up to `end`, are prepared for use. Segments that were used before
    /// are taken first.
    pub fn prepared(&mut self, device: DeviceNo, end: u32) {
        let Some(space) = self.devices[device].as_mut() else { return };
        let new = (space.prepared..end).rev().map(|at| SegmentNo(space.first_segment.0 + at));
        space.free_segments.splice(0..0, new);
        space.prepared = end;
        self.free_changed = true;
    }

    /// Assigns a free segment to a disk, from the device with the most of them.
    pub fn take_segment(&mut self, disk: DiskNo, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        let device = self.usable_devices().filter(|d| Some(*d) != other_than).max_by_key(|d| {
            let free = self.devices[*d].as_ref().map_or(0, |d| d.free_segments.len());
            (free, std::cmp::Reverse(d.0))
        })?;
        let number = self.devices[device].as_mut()?.free_segments.pop()?;
        self.own(number, disk);
        self.relist(number, 0);
        Some(number)
    }

    /// Assigns a particular segment to a disk, if it is free.
    pub fn take_this(&mut self, number: SegmentNo, disk: DiskNo) {
        let device = self.segments[number].device;
        let Some(device) = self.devices[DeviceNo(device)].as_mut().filter(|d| d.alive && !d.draining) else {
            return;
        };
        let Some(at) = device.free_segments.iter().rposition(|free| *free == number) else {
            return;
        };
        device.free_segments.swap_remove(at);
        self.own(number, disk);
        self.relist(number, 0);
    }

    pub(crate) fn own(&mut self, number: SegmentNo, disk: DiskNo) {
        self.assign(number, disk);
        if self.disks[disk].shares {
            self.join_common(number);
        } else {
            self.ghosts.clear(number);
        }
    }

    /// Makes a disk the owner of a segment, nothing else.
    pub(super) fn assign(&mut self, number: SegmentNo, disk: DiskNo) {
        self.free_changed = true;
        let space = &mut self.disks[disk];
        let segment = &mut self.segments[number];
        (segment.state, segment.owner, segment.place) =
            (SegmentState::Owned, disk.0, space.segments.len() as u32);
        space.segments.push(number);
        let free = u64::from(segment.free);
        space.free += free;
        self.common.free += if space.shares { free } else { 0 };
    }

    /// Returns the disk's coldest segment that it could give up, among some from the main hand on. One that a
    /// failed device holds is the last choice.
    pub fn coldest_segment(&self, disk: DiskNo, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        let space = &self.disks[disk];
        let count = space.segments.len();
        (1..=count)
            .map(|step| space.segments[(space.hand + step) % count])
            .filter(|number| self.could_go(*number, other_than))
            .take(8)
            .min_by_key(|number| {
                let worth = |n: SlotNo| self.live(n).map_or(0, |slot| 1 + u32::from(slot.hits()));
                (self.is_held(*number), self.slots_of(*number).map(worth).sum::<u32>())
            })
    }

    /// Whether a disk could give the segment up now, and it is on a usable device other than `other_than`.
    pub(super) fn could_go(&self, number: SegmentNo, other_than: Option<DeviceNo>) -> bool {
        let s = &self.segments[number];
        let usable = self.usable_devices().any(|d| d.0 == s.device && Some(d) != other_than);
        usable
            && s.state == SegmentState::Owned
            && s.dirty == 0
            && s.superseded == 0
            && !s.page_writing
            && !self.slots_of(number).any(|n| self.live(n).is_some_and(|slot| slot.mirror()))
    }

    /// Starts to empty a segment that holds nothing dirty. It is free once its pages list nothing.
    pub fn give_up(&mut self, number: SegmentNo) {
        let free = self.segments[number].free;
        self.segments[number].state = SegmentState::Leaving;
        self.relist(number, free);
        for slot in self.slots_of(number) {
            if self.live(slot).is_some() {
                self.evict(slot);
            }
        }
        self.try_free(number);
    }

    /// Frees a leaving segment whose durable page lists nothing.
    pub(super) fn try_free(&mut self, number: SegmentNo) {
        let s = &self.segments[number];
        let blank = self.slots_of(number).all(|n| self.slot(n).status() == Status::Blank);
        if s.state != SegmentState::Leaving || !blank || !s.page_ready(self.flushed_seq) {
            return;
        }
        let (owner, device, place, free) = (s.owner, s.device, s.place, s.free);
        let disk = &mut self.disks[DiskNo(owner)];
        disk.free -= u64::from(free);
        Self::unplace(&mut disk.segments, &mut self.segments, place);
        if disk.shares {
            self.common.free -= u64::from(free);
            self.leave_common(number);
            self.leave_round_if_empty(DiskNo(owner));
        }
        let s = &mut self.segments[number];
        (s.state, s.owner, s.stale) = (SegmentState::Free, NO_OWNER, false);
        if let Some(device) = self.devices[DeviceNo(device)].as_mut() {
            device.free_segments.push(number);
        }
    }

    fn unplace(list: &mut Vec<SegmentNo>, segments: &mut Table<SegmentNo, Segment>, place: u32) {
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize) {
            segments[*moved].place = place;
        }
    }

    /// Stops using a device: nothing on it is live any more. Dirty blocks with a mirrored copy elsewhere are
    /// served from it from then on. `lost` is called with each dirty block that had none. Lookups no longer
    /// find clean blocks; the caller removes them from the tables. The entries in the device's pages stay
    /// known until [`Store::forget_segment`].
    pub fn lose_device(&mut self, device: DeviceNo, mut lost: impl FnMut(DiskNo, Live)) -> LostDevice {
        let mut result = LostDevice::default();
        let Some(space) = self.devices[device].as_mut() else { return result };
        space.alive = false;
        space.free_segments.clear();
        self.free_changed = true;
        for number in space.numbers() {
            let s = &mut self.segments[number];
            s.state = SegmentState::Dead;
            if s.owner == NO_OWNER {
                continue;
            }
            let (clean, free) = (s.dirty == 0 && s.superseded == 0, s.free);
            if clean {
                result.clean.push(number);
                self.relist(number, free);
            } else {
                self.lose_segment(number, &mut lost);
                self.find_overtaken(number, &mut result.overtaken);
                let free = self.segments[number].free;
                self.relist(number, free);
            }
        }
        let elsewhere = |segment: SegmentNo| self.segments[segment].device != device.0;
        self.superseded.retain(|s| elsewhere(s.1.segment()));
        self.written_pages.retain(|p| elsewhere(p.1));
        result
    }

    /// Takes a segment without dirty blocks of a device that was lost out of the counts. Adds the older
    /// versions elsewhere that may be listed to `overtaken`.
    pub fn lose_clean(&mut self, number: SegmentNo, overtaken: &mut Vec<SlotNo>) {
        self.lose_segment(number, &mut |_, _| unreachable!("nothing in it is dirty"));
        self.find_overtaken(number, overtaken);
    }

    fn lose_segment(&mut self, number: SegmentNo, lost: &mut impl FnMut(DiskNo, Live)) {
        let owner = DiskNo(self.segments[number].owner);
        for slot_no in self.slots_of(number) {
            self.release(slot_no);
            let Some(slot) = self.live(slot_no) else { continue };
            if slot.mirror() {
                if let Some((primary, _)) = self.lookup(owner, slot.block()) {
                    self.mirrors.remove(&primary);
                }
            } else if self.fail_over(slot_no).is_some() {
                continue;
            } else if slot.dirty() {
                lost(owner, slot);
            }
            self.drop_live(slot_no, false);
        }
    }

    /// Collects the entries in other segments that are older than a segment's entries, obsolete, and may be
    /// listed.
    fn find_overtaken(&self, segment: SegmentNo, overtaken: &mut Vec<SlotNo>) {
        let disk = DiskNo(self.segments[segment].owner);
        for number in self.slots_of(segment) {
            let slot = self.slot(number);
            if slot.status() == Status::Blank {
                continue;
            }
            self.entries(disk, slot.block(), |other, entry| {
                if entry.seq() < slot.seq() && self.is_stale_listing(other) {
                    overtaken.push(other);
                }
            });
        }
    }

    /// Whether the slot is obsolete and a page on a device in use may list it.
    pub fn is_stale_listing(&self, number: SlotNo) -> bool {
        let dead = self.segments[self.segment_of(number)].state == SegmentState::Dead;
        matches!(self.slot(number).view(), View::Superseded(_) | View::Dead(_)) && !dead
    }

    /// Whether the slot is obsolete and a page on a device in use may list it as dirty.
    pub fn is_stale_dirty_listing(&self, number: SlotNo) -> bool {
        self.slot(number).durable_dirty() && self.is_stale_listing(number)
    }

    /// Whether a device has dirty blocks without a mirrored copy.
    pub fn has_single_copies(&self, device: DeviceNo) -> bool {
        let owned = |s: &&super::Segment| s.device == device.0 && s.dirty > 0;
        let numbers = self.segments.iter().enumerate().filter(|(_, s)| owned(s));
        let mut slots = numbers.flat_map(|(at, _)| self.slots_of(SegmentNo(at as u32)));
        slots.any(|number| {
            let is_dirty = self.slot(number).primary().is_some_and(|slot| slot.dirty());
            is_dirty && self.mirror_of(number).is_none()
        })
    }

    /// Returns the obsolete entries that may be listed and were overtaken on other devices, but not on their
    /// own.
    pub fn overtaken_from_elsewhere(&self) -> Vec<SlotNo> {
        let owned = self.segments.numbered().filter(|(_, s)| s.owner != NO_OWNER);
        let slots = owned.flat_map(|(segment, _)| self.slots_of(segment));
        let listed = slots.filter(|number| self.is_stale_listing(*number));
        let overtaken = |number: &SlotNo| {
            let device_of = |number| self.segments[self.segment_of(number)].device;
            let (slot, device) = (self.slot(*number), device_of(*number));
            let (mut here, mut elsewhere) = (false, false);
            self.entries(self.owner_of(*number), slot.block(), |other, entry| {
                let newer = entry.seq() > slot.seq();
                here |= newer && device_of(other) == device;
                elsewhere |= newer && device_of(other) != device;
            });
            elsewhere && !here
        };
        listed.filter(overtaken).collect()
    }

    /// Forgets the contents of a segment of a device that is gone.
    pub fn forget_segment(&mut self, number: SegmentNo) {
        let owner = self.segments[number].owner;
        if owner == NO_OWNER {
            return;
        }
        for slot_no in self.slots_of(number) {
            let slot = self.slot(slot_no);
            if slot.status() != Status::Blank {
                self.index.remove(hash(DiskNo(owner), slot.block()), slot_no);
                self.set(slot_no, Slot::default());
            }
        }
        self.adjust(number, |s| {
            (s.live, s.dirty, s.superseded, s.free, s.pending) = (0, 0, 0, 0, 0);
        });
        self.drop_dirty_times(number);
        let place = self.segments[number].place;
        let disk = &mut self.disks[DiskNo(owner)];
        Self::unplace(&mut disk.segments, &mut self.segments, place);
        if disk.shares {
            self.leave_common(number);
            self.leave_round_if_empty(DiskNo(owner));
        }
        let s = &mut self.segments[number];
        (s.state, s.owner) = (SegmentState::Dead, NO_OWNER);
    }

    /// Picks up to `wanted` slots of a segment that a batch may write. Dead slots that recovery may still
    /// need are skipped.
    pub fn pick_slots(&mut self, segment: SegmentNo, wanted: usize, picked: &mut Vec<SlotNo>) {
        let disk = DiskNo(self.segments[segment].owner);
        for number in self.slots_of(segment) {
            if picked.len() == wanted {
                break;
            }
            match self.slot(number).view() {
                View::Blank => picked.push(number),
                View::Dead(slot) if slot.reusable() => {
                    let mut entries = 0;
                    self.entries(disk, slot.block(), |_, _| entries += 1);
                    if entries == 1 || crate::bugs::planted(crate::bugs::Bug::ReuseSlotTooEarly) {
                        picked.push(number);
                    } else {
                        self.set(number, slot.with_reusable(false));
                        self.adjust(segment, |s| {
                            s.free -= 1;
                            s.pending += 1;
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the disk's segments on usable devices other than `other_than`.
    pub fn owned_elsewhere(
        &self,
        disk: DiskNo,
        other_than: Option<DeviceNo>,
    ) -> impl Iterator<Item = SegmentNo> {
        self.disks[disk].segments.iter().copied().filter(move |number| {
            let s = &self.segments[*number];
            let device = DeviceNo(s.device);
            s.state == SegmentState::Owned
                && Some(device) != other_than
                && self.usable_devices().any(|d| d == device)
        })
    }

    /// Whether the disk owns a segment on a usable device other than `other_than`.
    pub fn owns_elsewhere(&self, disk: DiskNo, other_than: Option<DeviceNo>) -> bool {
        self.best_segment(disk, other_than).is_some()
            || self.owned_elsewhere(disk, other_than).next().is_some()
    }

    /// Whether a flush gives the disk space on a device other than `other_than`.
    pub fn flush_makes_room(&self, disk: DiskNo, other_than: Option<DeviceNo>) -> bool {
        self.owned_elsewhere(disk, other_than).any(|number| {
            let s = &self.segments[number];
            !s.page_ready(self.flushed_seq) && (s.free > 0 || s.pending > 0 || s.superseded > 0)
        })
    }

    /// Evicts the clean blocks of a segment.
    pub fn evict_clean(&mut self, segment: SegmentNo) {
        for number in self.slots_of(segment) {
            if self.slot(number).primary().is_some_and(|slot| !slot.dirty()) {
                self.evict(number);
            }
        }
    }

    /// Returns the disk's segment with the most free slots that may take a batch now and is not on
    /// `other_than`.
    pub fn best_segment(&self, disk: DiskNo, other_than: Option<DeviceNo>) -> Option<SegmentNo> {
        self.disks[disk]
            .free_lists
            .most_free(&self.segments)
            .find(|number| Some(DeviceNo(self.segments[*number].device)) != other_than)
    }

    /// Sends no new blocks to a segment from now on, and again to the one for which this was called before.
    pub fn close(&mut self, segment: Option<SegmentNo>) {
        let before = std::mem::replace(&mut self.closed, segment);
        for number in before.into_iter().chain(segment) {
            let (owner, free) = (self.segments[number].owner, self.segments[number].free);
            if owner != NO_OWNER {
                self.relist(number, free);
            }
        }
    }

    /// Stops sending new blocks to the device.
    pub fn drain_device(&mut self, device: DeviceNo) {
        self.set_draining(device, true);
    }

    /// Allows new blocks on the device.
    pub fn use_device(&mut self, device: DeviceNo) {
        self.set_draining(device, false);
    }

    fn set_draining(&mut self, device: DeviceNo, draining: bool) {
        let Some(space) = self.devices[device].as_mut() else { return };
        space.draining = draining;
        self.free_changed = true;
        for number in space.numbers() {
            let s = &self.segments[number];
            if s.owner != NO_OWNER {
                let free = s.free;
                self.relist(number, free);
            }
        }
    }

    /// Removes sectors beyond the end of the disk, which is now inside the block, from the slot.
    pub fn trim(&mut self, number: SlotNo, inside: u8) {
        let segment = self.segment_of(number);
        self.segments[segment].stale = true;
        let slot = self.expect_live(number);
        self.set(number, slot.with_mask(slot.mask() & inside));
    }

    /// Collects the free segments, after recovery has assigned the others to disks.
    pub(crate) fn collect_free_segments(&mut self) {
        for device in self.devices.iter_mut().flatten() {
            let free = |s: &SegmentNo| self.segments[*s].state == SegmentState::Free;
            device.free_segments = if device.alive {
                device.prepared_numbers().rev().filter(free).collect()
            } else {
                Vec::new()
            };
        }
    }
}
