//! Late copies: after the claim, clean blocks of the previous owner are read in the background or when a read
//! needs them, from that host or from the origin.
//!
//! Invariants
//! - A late copy is staged as clean while its block is locked, and only if no part of the block is cached. So
//!   no write of the guest can happen in between, and none is overwritten.
//! - It is never required: a read whose late copy is not available goes to the origin.
//! - A disk that is about to be released, resized or detached reads no more late copies.

use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, Micros, SECTOR_BYTES, SectorNo, WriteMode};

use crate::action::{Action, IoId};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::flow::moving::late::{LateCopies, LateSource};
use crate::io::{Io, Purpose};
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::Memory;

impl Core {
    fn late(&self, disk: DiskNo) -> Option<&LateCopies> {
        self.disks.get(disk)?.moving.as_ref()?.late.as_ref()
    }

    fn late_mut(&mut self, disk: DiskNo) -> Option<&mut LateCopies> {
        self.disks.get_mut(disk)?.moving.as_mut()?.late.as_mut()
    }

    /// Returns how many listed late copies have not arrived yet, with those that are being read; `None` if no more are
    /// expected.
    pub fn late_copies(&self, disk: DiskNo) -> Option<usize> {
        self.late(disk).map(LateCopies::missing)
    }
}

impl<M: Memory> Call<'_, M> {
    /// Announces that late copies will be listed for a disk that is about to be claimed: from the claim on,
    /// changed blocks are tracked.
    pub fn await_late_copies(&mut self, disk: DiskNo, source: LateSource) {
        if let Some(d) = self.disks.get_mut(disk).filter(|d| d.life.is_incoming()) {
            d.moving.get_or_insert_default().late = Some(LateCopies::new(source));
        }
    }

    /// Lists late copies, the most valuable first. With `last` the list is complete.
    pub fn list_late_copies(&mut self, now: Micros, disk: DiskNo, blocks: &[(BlockNo, u8)], last: bool) {
        self.now = now;
        let Some(d) = self.disks.get(disk) else { return };
        // The numbers come from another host.
        let inside = |(block, mask): &(BlockNo, u8)| (*block, mask & d.inside_checked(*block));
        let blocks: Vec<(BlockNo, u8)> = blocks.iter().map(inside).collect();
        let Some(late) = self.late_mut(disk) else { return };
        for (block, mask) in blocks {
            late.list(block, mask);
        }
        if last {
            late.complete();
        }
        self.queue(disk);
        self.settle();
    }

    /// Sets how many late copies are read at a time in the background.
    pub fn set_late_window(&mut self, now: Micros, disk: DiskNo, blocks: u32) {
        self.now = now;
        if let Some(late) = self.late_mut(disk) {
            late.window = blocks;
            self.queue(disk);
            self.settle();
        }
    }

    /// Stops reading late copies. Those that are being read still arrive.
    pub fn end_late_copies(&mut self, disk: DiskNo) {
        if let Some(moving) = self.disks.get_mut(disk).and_then(|d| d.moving.as_mut()) {
            moving.late = None;
        }
    }

    pub(crate) fn drive_late(&mut self, disk: DiskNo) {
        if self.late(disk).is_none() {
            return;
        }
        if self.late(disk).is_some_and(LateCopies::is_over) {
            return self.end_late_copies(disk);
        }
        if self.is_full_for_late(disk)
            && self.late(disk).is_some_and(|late| late.source != LateSource::OwnerOnDemand)
        {
            return self.end_late_copies(disk);
        }
        while self.has_room_for_late(disk)
            && let Some((block, mask)) = self.late_mut(disk).and_then(LateCopies::next)
        {
            self.read_late(disk, block, mask);
        }
    }

    /// Whether the disk has its full share: from then on, colder blocks would replace hotter ones.
    fn is_full_for_late(&self, disk: DiskNo) -> bool {
        let usage = self.store.disks[disk].live + u64::from(self.staging.lists[disk].len);
        usage >= self.target_blocks(disk)
    }

    /// Whether another late copy may be read in the background: enough frames are left for writes, and the fetch
    /// allowance is not used up.
    fn has_room_for_late(&self, disk: DiskNo) -> bool {
        let from_owner = self.late(disk).is_some_and(|late| late.source != LateSource::Origin);
        let allowed = self.disk(disk).moving.as_ref().is_some_and(|moving| moving.may_fetch());
        (allowed || !from_owner) && !self.is_full_for_late(disk) && self.may_stage_late(disk)
    }

    fn may_stage_late(&self, disk: DiskNo) -> bool {
        let has_room =
            self.staging.free() > self.spare_frames() && self.store.usable_devices().next().is_some();
        has_room && self.disk(disk).mode != WriteMode::PassThrough && self.disk(disk).life.is_active()
    }

    /// Reads a late copy because a request needs it; returns whether it is being read now.
    pub(crate) fn read_late_for_request(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        let on_demand = |late: &LateCopies| late.source == LateSource::OwnerOnDemand;
        if !self.late(disk).is_some_and(on_demand) || !self.may_stage_late(disk) {
            return false;
        }
        let Some(mask) = self.late_mut(disk).and_then(|late| late.take(block)) else { return false };
        self.read_late(disk, block, mask)
    }

    /// Reads a late copy, which was taken off the list. Returns false if it is not needed: the block is cached, or is
    /// locked, so that it is about to be cached or changed.
    fn read_late(&mut self, disk: DiskNo, block: BlockNo, mask: u8) -> bool {
        let versions = self.resolve(disk, block);
        let mask = mask & self.disk(disk).inside(block);
        let is_needed = !versions.is_cached() && versions.lost == 0 && !self.is_at_peer(disk, block);
        if !is_needed || mask == 0 || self.locks.get(disk, block).is_some() {
            return false;
        }
        let Some(frame) = self.staging.allocate() else { return false };
        if !planted(Bug::LateWithoutLock) {
            self.locks.lock(disk, block, LockKind::Fill);
        }
        let late = self.late_mut(disk).expect("the block was on its list");
        late.reading += 1;
        let source = late.source;
        let io = self.new_io(Purpose::Late { block, mask });
        self.ios[io].disk = Some(disk);
        self.ios[io].frames.push(frame);
        if source == LateSource::Origin {
            let first = mask.trailing_zeros();
            let count = 8 - mask.leading_zeros() - first;
            self.ios[io].start = first as usize * SECTOR_BYTES;
            self.ios[io].len = count as usize * SECTOR_BYTES;
            let d = self.disk_mut(disk);
            d.stats.origin_read_bytes += u64::from(count) * SECTOR_BYTES as u64;
            let sector = SectorNo(d.sector(block, first));
            self.emit(Action::ReadOrigin { io: IoId(io), disk, sector, sectors: count });
        } else {
            self.ios[io].len = BLOCK_BYTES;
            let d = self.disk_mut(disk);
            d.stats.peer_read_blocks += 1;
            if let Some(moving) = &mut d.moving {
                moving.fetches_one();
            }
            self.emit(Action::ReadPeer { io: IoId(io), disk, block, mask, is_late: true });
        }
        true
    }

    pub(crate) fn late_done(&mut self, io: &Io, block: BlockNo, mask: u8, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("a block is of a disk");
        let frame = io.frames[0];
        // The disk may have shrunk in the meantime.
        let mask = mask & self.disk(disk).inside_checked(block);
        let is_wanted = self.disk(disk).life.writes_origin() && mask != 0;
        if result.is_ok() && is_wanted {
            self.stage(disk, block, frame, mask, false);
            self.disk_mut(disk).stats.late_blocks += 1;
        } else {
            self.staging.give_back(frame);
        }
        if let Some(late) = self.late_mut(disk) {
            late.reading -= 1;
        }
        if !planted(Bug::LateWithoutLock) {
            self.unlock(disk, block);
        }
        self.wake_staging();
        self.queue(disk);
    }

    /// Ends the lending of a released disk: its clean blocks are no longer read as copies.
    pub fn stop_lending(&mut self, disk: DiskNo) {
        if let Some(moving) = self.disks.get_mut(disk).and_then(|d| d.moving.as_mut()) {
            moving.lends = false;
        }
    }
}
