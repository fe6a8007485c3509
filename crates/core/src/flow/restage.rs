//! Restaging: a dirty block is read from flash and staged again, to get the copies that it should have. This
//! rebuilds mirrored copies, empties devices and segments and repairs damaged first copies.
//!
//! Invariants
//! - A block is staged again only if it was verified, is still dirty in the same version, and has no staged
//!   frame. So a restage never replaces newer data.
//! - A damaged block is staged again with its valid sectors, even if there are none: the information that its
//!   other sectors are lost gets as many copies as data.
//! - A pool counts as rebuilt only when every dirty block durably has its mirrored copy, no device is leaving and the
//!   purge has ended.

use haversack_model::{BLOCK_BYTES, DiskNo};

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::io::{FlashPart, Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::store::segment::SegmentState;
use crate::store::slot::SlotNo;

/// Blocks of a disk read at a time.
const AT_A_TIME: u32 = 16;

impl Core {
    /// Whether dirty blocks should get new mirrored copies to replace those lost with a device.
    pub(crate) fn rebuilding(&self) -> bool {
        self.pool.is_degraded() && self.store.usable_devices().count() >= 2
    }
}

impl<M: Memory> Call<'_, M> {
    pub(crate) fn ask_restage(&mut self, disk: DiskNo, number: SlotNo) {
        let d = self.disk_mut(disk);
        if !d.restage.contains(&number) {
            d.restage.push_back(number);
        }
        self.queue(disk);
    }

    /// Requests a restage of all dirty blocks that should have a mirrored copy and have none.
    pub(crate) fn restage_unmirrored(&mut self) {
        if !self.pool.is_redundant() || self.store.usable_devices().count() < 2 {
            return;
        }
        for segment in self.store.segments.numbers() {
            let s = &self.store.segments[segment];
            if s.state != SegmentState::Owned || s.dirty == 0 {
                continue;
            }
            let disk = DiskNo(s.owner);
            for number in self.store.slots_of(segment) {
                let is_dirty = self.store.slot(number).primary().is_some_and(|slot| slot.dirty());
                if is_dirty && self.store.mirror_of(number).is_none() {
                    self.disk_mut(disk).restage.push_back(number);
                }
            }
        }
    }

    /// Whether every dirty block durably has the copies that it should have, no obsolete version would be
    /// trusted if a device were missing, and no device is leaving.
    pub(crate) fn rebuilt(&mut self) -> bool {
        let alone = |d: &crate::store::DiskSpace| d.mirrors < d.dirty && !planted(Bug::RebuiltTooEarly);
        let restages = self.disks.iter().any(|d| !d.restage.is_empty() || d.restaging > 0);
        let waiting = restages && !planted(Bug::RebuiltTooEarly);
        if waiting
            || self.devices.leaves_any()
            || !self.devices.purge.is_over()
            || self.store.disks.iter().any(alone)
        {
            self.pool.is_not_rebuilt();
            return false;
        }
        let last = self.disks.iter().map(|d| d.last_commit_seq).max().unwrap_or(0);
        let seq = self.pool.is_rebuilt_at(last);
        self.durability.want(seq)
    }

    /// Wakes restages of disks that are not attached, since cleaning can free space for their copies and no
    /// timer drives them.
    pub(crate) fn wake_dormant_restages(&mut self) {
        if !self.rebuilding() {
            return;
        }
        for disk in self.disks.places() {
            let waits = self.disks.contains(disk) && self.staging.lists[disk].len > 0;
            if waits && self.is_dormant(disk) {
                self.queue(disk);
            }
        }
    }

    /// Drives the restages of all disks. Returns true if there are any.
    pub(crate) fn restages_all_disks(&mut self) -> bool {
        let mut any = false;
        for disk in self.disks.places() {
            if self.disks.contains(disk) {
                self.drive_restage(disk);
                any |= !self.disk(disk).restage.is_empty() || self.disk(disk).restaging > 0;
            }
        }
        any
    }

    pub(crate) fn drive_restage(&mut self, disk: DiskNo) {
        while self.disk(disk).restaging < AT_A_TIME {
            let Some(number) = self.disk_mut(disk).restage.pop_front() else { break };
            let Some(slot) = self.store.slot(number).primary().filter(|slot| slot.dirty()) else { continue };
            if self.store.owner_of(number) != disk || self.resolve(disk, slot.block()).staged.is_some() {
                continue;
            }
            // A gathering may use all frames, since it makes room for the blocks in the other frames.
            let spared = if self.gathers(disk) { 0 } else { self.staging.capacity() / 8 };
            let room = self.staging.free() > spared;
            if room && slot.mask() == 0 {
                let frame = self.staging.allocate().expect("there is room");
                self.stage(disk, slot.block(), frame, 0, true);
                self.staging.get_mut(frame).restaged = true;
                continue;
            }
            let frame = if room { self.frames.take() } else { None };
            let Some(frame) = frame else {
                self.disk_mut(disk).restage.push_front(number);
                break;
            };
            let io = self.new_io(Purpose::Restage { part: FlashPart::of(number, slot) });
            self.ios[io].disk = Some(disk);
            self.disk_mut(disk).restaging += 1;
            self.read_slot(io, number, frame);
        }
    }

    pub(crate) fn restage_done(&mut self, io: &Io, part: FlashPart, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("a block is of a disk");
        let from = io.frames[0];
        self.disk_mut(disk).restaging -= 1;
        self.note_device_read(io, part.slot, result);
        let versions = self.resolve(disk, part.block);
        let current =
            versions.flash_of(part.seq).filter(|(_, slot)| slot.dirty() && versions.staged.is_none());
        if let Some((number, _)) = current {
            if result.is_ok() && self.verified(disk, part.block, from, part.crc) {
                self.restage(disk, number, part, from);
            } else if number != part.slot || result.is_err() {
                if number != part.slot || !self.cannot_gather(number.segment()) {
                    self.disk_mut(disk).restage.push_back(number);
                }
            } else if let Some(mirror) = self.store.fail_over(number) {
                self.disk_mut(disk).restage.push_back(mirror);
            } else {
                self.damaged(disk, number);
                self.disk_mut(disk).restage.push_back(number);
            }
        }
        self.free_frame(from, false);
        self.queue(disk);
    }

    fn restage(&mut self, disk: DiskNo, number: SlotNo, part: FlashPart, from: crate::memory::FrameNo) {
        match self.staging.allocate() {
            Some(frame) => {
                self.memory.copy(from, frame, 0, BLOCK_BYTES);
                self.stage(disk, part.block, frame, part.mask, true);
                self.staging.get_mut(frame).restaged = true;
            }
            None => self.disk_mut(disk).restage.push_front(number),
        }
    }
}
