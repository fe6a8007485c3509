//! Reads: each sector comes from the newest place that has it: staging, flash or the origin.
//!
//! A hit is read into a transfer frame and verified against the checksum that the slot had when the read was
//! issued. Slots are not pinned. If the check fails and the slot has changed in the meantime, the block is
//! looked up again. If it has not changed, the flash is damaged: a clean block is dropped and fetched again;
//! a dirty one is read from its mirrored copy or, if there is none, its sectors fail with an error until they
//! are written again.
//!
//! Invariants
//! - Data from flash reaches a reader only if it matches the checksum that its entry had when the read was
//!   issued.
//! - Sectors are fetched from the origin, and staged as clean, while their block is locked, so that no write
//!   happens in between.
//! - A block that a read brings into the cache is fetched whole, whichever part of it was requested. Sectors
//!   that were not requested do not make the read fail.
//! - Where dirty sectors are lost, the read fails. The origin's older sectors are never returned instead.
//! - Requests leave the reserved transfer frames for the core's own work. All frames that a block needs are
//!   available before its first I/O is described.

use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo, SECTOR_BYTES, SectorNo};

use crate::action::{Action, Event, IoId, RequestError};
use crate::bugs::{Bug, planted};
use crate::checksum;
use crate::core::Call;
use crate::flow::base::Shared;
use crate::flow::request::Park;
use crate::io::{FlashPart, Io, OriginPart, Purpose};
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::{FrameNo, Memory};
use crate::store::slot::{Live, SlotNo};

/// Maximum number of blocks in one I/O.
const MAX_RUN: usize = 256;

/// An I/O under construction. Adjacent blocks join it.
#[derive(Clone, Copy)]
enum Run {
    None,
    Flash { io: u32, device: DeviceNo, offset_bytes: u64 },
    Origin { io: u32, sector: u64, sectors: u32 },
}

/// The outcome of starting a part of a block.
enum Step {
    Started,
    Parked(Park),
}

impl<M: Memory> Call<'_, M> {
    pub(crate) fn pump_read(&mut self, number: u32) {
        let mut run = Run::None;
        while self.requests[number].error.is_none() {
            let retry = self.requests[number].retries.pop();
            let (block, mask) = match retry {
                Some(part) => part,
                None if self.requests[number].next < self.requests[number].end => {
                    match self.read_shared(number) {
                        Shared::No => {}
                        Shared::Started => continue,
                        Shared::Wait => break,
                    }
                    let block = BlockNo(self.requests[number].next);
                    (block, self.part(number, block))
                }
                None => break,
            };
            match self.read_block(number, block, mask, retry.is_none(), &mut run) {
                Step::Started if retry.is_none() => self.requests[number].next += 1,
                Step::Started => {}
                Step::Parked(park) => {
                    if let Some(part) = retry {
                        self.requests[number].retries.push(part);
                    }
                    self.park(number, park);
                    break;
                }
            }
        }
        self.close_run(number, run);
        self.finish_if_done(number);
    }

    fn read_block(&mut self, number: u32, block: BlockNo, mask: u8, first_try: bool, run: &mut Run) -> Step {
        let disk = self.requests[number].disk;
        let sources = self.resolve_sectors(disk, block, mask);
        let is_copy = self.requests[number].is_copy;
        if is_copy && self.disk(disk).life.is_incoming() && !self.is_lent(disk) {
            // The cache no longer has the contents that the copy was requested from.
            self.fail(number, RequestError::NotOwner);
            return Step::Started;
        }
        if sources.damaged != 0 {
            self.fail(number, RequestError::DataLost);
            return Step::Started;
        }
        if sources.peer != 0 {
            self.requests[number].fetched = Some(block);
        }
        let is_hit = sources.is_hit();
        if !is_hit && self.locks.get(disk, block).is_some() {
            return Step::Parked(Park::Lock(block));
        }
        if sources.peer != 0 {
            if self.is_giving_up(disk) {
                // They are lost when the record says so.
                return Step::Parked(Park::Around);
            }
            return Step::Parked(self.obtain(disk, block).err().unwrap_or(Park::Lock(block)));
        }
        if sources.origin != 0
            && self.disk(disk).moving.is_some()
            && !is_copy
            && self.read_late_for_request(disk, block)
        {
            self.requests[number].fetched = Some(block);
            return Step::Parked(Park::Lock(block));
        }
        if sources.origin != 0 && !self.disk(disk).life.is_owned() {
            self.fail(number, RequestError::NotOwner);
            return Step::Started;
        }
        let fetches = sources.origin != 0;
        let frames = usize::from(sources.flash.is_some()) + usize::from(fetches);
        if frames > 0 && !self.frames.suffices_request(frames, fetches) {
            return Step::Parked(Park::Frames);
        }
        if first_try && !is_copy {
            let was_here = !fetches && self.requests[number].fetched != Some(block);
            self.count_read(disk, was_here);
            if is_hit {
                self.read_hit(number, block);
            }
        }
        if let Some((frame, staged)) = sources.staged {
            self.give(number, block, staged, frame);
            if staged == mask && !is_copy {
                self.staging.hit(frame);
            }
        }
        if let Some((slot_no, slot, on_flash)) = sources.flash {
            if !is_copy {
                self.store.hit(slot_no);
            }
            self.add_hit(number, slot_no, slot, on_flash, run);
        }
        if let Some((frame, kept)) = sources.data {
            self.give(number, block, kept, frame);
            self.data_stage_hit(number, block);
        }
        if fetches {
            self.add_fill(number, block, sources.origin, run);
        }
        Step::Started
    }

    fn count_read(&mut self, disk: DiskNo, hit: bool) {
        let stats = &mut self.disk_mut(disk).stats;
        if hit {
            stats.read_hits += 1;
        } else {
            stats.read_misses += 1;
        }
    }

    fn add_hit(&mut self, number: u32, slot_no: SlotNo, slot: Live, mask: u8, run: &mut Run) {
        let (device, at) = self.store.location(slot_no);
        let frame = self.frames.take_for_request(false).expect("frames were counted");
        let io = match *run {
            Run::Flash { io, device: d, offset_bytes }
                if d == device
                    && offset_bytes + (self.ios[io].frames.len() * BLOCK_BYTES) as u64 == at
                    && self.ios[io].frames.len() < MAX_RUN =>
            {
                io
            }
            other => {
                self.close_run(number, other);
                let io = self.new_io(Purpose::Hit { request: number });
                *run = Run::Flash { io, device, offset_bytes: at };
                io
            }
        };
        self.ios[io].frames.push(frame);
        self.ios[io].hits.push(FlashPart { mask, ..FlashPart::of(slot_no, slot) });
    }

    fn add_fill(&mut self, number: u32, block: BlockNo, missing: u8, run: &mut Run) {
        let disk = self.requests[number].disk;
        let frame = self.frames.take_for_request(true).expect("frames were counted");
        if !planted(Bug::FillWithoutLock) {
            self.locks.lock(disk, block, LockKind::Fill);
        }
        let admit = self.admits_read(number, block);
        let fetched = if admit || self.may_keep_data(number, block) {
            self.resolve_sectors(disk, block, self.disk(disk).inside(block)).origin
        } else {
            missing
        };
        assert!(fetched & missing == missing, "what is missing is fetched");
        let first = fetched.trailing_zeros();
        let count = 8 - fetched.leading_zeros() - first;
        let start = self.disk(disk).sector(block, first);
        let io = match *run {
            Run::Origin { io, sector, sectors }
                if sector + u64::from(sectors) == start
                    && first == 0
                    && self.ios[io].frames.len() < MAX_RUN =>
            {
                *run = Run::Origin { io, sector, sectors: sectors + count };
                io
            }
            other => {
                self.close_run(number, other);
                let io = self.new_io(Purpose::Fill { request: number });
                self.ios[io].start = first as usize * SECTOR_BYTES;
                *run = Run::Origin { io, sector: start, sectors: count };
                io
            }
        };
        self.ios[io].frames.push(frame);
        self.ios[io].fills.push(OriginPart { block, wanted: missing, mask: fetched, admit });
    }

    fn close_run(&mut self, number: u32, run: Run) {
        match run {
            Run::None => return,
            Run::Flash { io, device, offset_bytes } => {
                self.ios[io].device = Some(device);
                self.ios[io].len = self.ios[io].frames.len() * BLOCK_BYTES;
                self.emit(Action::ReadDevice { io: IoId(io), device, offset_bytes });
            }
            Run::Origin { io, sector, sectors } => {
                let disk = self.requests[number].disk;
                self.ios[io].disk = Some(disk);
                self.ios[io].len = sectors as usize * SECTOR_BYTES;
                self.disk_mut(disk).stats.origin_read_bytes += u64::from(sectors) * SECTOR_BYTES as u64;
                let sector = SectorNo(sector);
                self.emit(Action::ReadOrigin { io: IoId(io), disk, sector, sectors });
            }
        }
        self.requests[number].outstanding += 1;
    }

    pub(crate) fn hit_done(&mut self, io: &Io, number: u32, result: Result<(), IoFailure>) {
        let disk = self.requests[number].disk;
        self.note_device_read(io, io.hits[0].slot, result);
        self.requests[number].outstanding -= 1;
        for (part, frame) in io.hits.iter().zip(&io.frames) {
            let good = result.is_ok() && self.verified(disk, part.block, *frame, part.crc);
            if good {
                self.give(number, part.block, part.mask, *frame);
                let slot = self.store.slot(part.slot);
                if slot.mirror() && slot.seq() == part.seq {
                    self.repair(disk, part);
                }
            }
            self.free_frame(*frame, false);
            if !good && self.requests[number].error.is_none() {
                self.read_again(number, disk, *part, result.is_err());
            }
        }
        self.read_on(number);
    }

    pub(crate) fn verified(&self, disk: DiskNo, block: BlockNo, frame: FrameNo, crc: u32) -> bool {
        planted(Bug::IgnoreChecksum)
            || checksum::bind(self.memory.crc(frame), self.disk(disk).seed, block) == crc
    }

    /// Handles a part of a block that could not be read from its slot: the device failed the read, or the
    /// data does not match its checksum.
    fn read_again(&mut self, number: u32, disk: DiskNo, part: FlashPart, failed: bool) {
        let current = self.resolve(disk, part.block).flash_of(part.seq);
        if let Some((slot_no, slot)) = current {
            let mirror = self.store.mirror_of(slot_no);
            match mirror {
                Some(mirror) if slot_no == part.slot => {
                    self.read_mirror(number, part, mirror);
                    return;
                }
                _ if slot_no == part.slot || mirror == Some(part.slot) => {
                    if failed && slot.dirty() {
                        self.fail(number, RequestError::DataLost);
                        return;
                    }
                    self.damaged(disk, slot_no);
                }
                _ => {}
            }
        }
        self.requests[number].retries.push((part.block, part.mask));
    }

    fn read_mirror(&mut self, number: u32, part: FlashPart, mirror: SlotNo) {
        let frame = self.frames.take().expect("the frame of the first copy was just freed");
        let io = self.new_io(Purpose::Hit { request: number });
        self.ios[io].hits.push(FlashPart { slot: mirror, ..part });
        self.requests[number].outstanding += 1;
        self.read_slot(io, mirror, frame);
    }

    /// Handles a live slot that turned out to be damaged, as did its mirrored copy, if it has one.
    pub(crate) fn damaged(&mut self, disk: DiskNo, slot_no: SlotNo) {
        let slot = self.store.slot(slot_no);
        let lost = self.store.live(slot_no).is_some_and(|slot| slot.dirty());
        self.disk_mut(disk).stats.lost_blocks += u64::from(lost);
        if !lost && slot.seq() <= self.durability.crashed_seq() {
            // A commit of a process that died may have overwritten it. That is no fault of the device.
            self.disk_mut(disk).stats.crash_dropped_blocks += 1;
        } else {
            self.report_corruption(disk, slot_no, lost);
        }
        if lost {
            let block = self.store.slot(slot_no).block();
            self.note_damaged(disk, block);
            self.store.poison(slot_no);
        } else {
            self.store.evict(slot_no);
        }
    }

    fn report_corruption(&mut self, disk: DiskNo, slot_no: SlotNo, lost: bool) {
        let (device, offset_bytes) = self.store.location(slot_no);
        let block = self.store.slot(slot_no).block();
        let d = self.disk_mut(disk);
        d.stats.corrupt_blocks += 1;
        let sector = SectorNo(d.sector(block, d.inside(block).trailing_zeros()));
        self.event(Event::Corruption { disk, sector, device, offset_bytes, lost });
    }

    /// Handles a dirty block whose first copy is bad and mirrored copy is good: both are rewritten. A newer
    /// version, committed during the read, is in other slots, which are not suspect.
    fn repair(&mut self, disk: DiskNo, mirrored: &FlashPart) {
        if let Some((slot_no, slot)) = self.resolve(disk, mirrored.block).flash_of(mirrored.seq) {
            self.report_corruption(disk, slot_no, false);
            if slot.dirty()
                && let Some(mirror) = self.store.fail_over(slot_no)
            {
                self.disk_mut(disk).restage.push_back(mirror);
                self.queue(disk);
            }
        }
    }

    pub(crate) fn fill_done(&mut self, io: &Io, number: u32, result: Result<(), IoFailure>) {
        let disk = self.requests[number].disk;
        self.requests[number].outstanding -= 1;
        let exceeds = io.fills.iter().any(|part| part.mask != part.wanted);
        let again = result == Err(IoFailure::Error) && exceeds && self.requests[number].error.is_none();
        if again {
            // Bypass the cache, so that the next attempt reads only the requested sectors.
            let request = &mut self.requests[number];
            request.bypass = true;
            request.retries.extend(io.fills.iter().map(|part| (part.block, part.wanted)));
        } else if result.is_err() {
            self.fail(number, RequestError::Origin);
        }
        for (part, frame) in io.fills.iter().zip(&io.frames) {
            if result.is_ok() {
                self.give(number, part.block, part.wanted, *frame);
                if part.admit {
                    self.stage_clean(disk, part.block, *frame, part.mask);
                } else {
                    self.keep_data(disk, part.block, *frame, part.mask);
                }
            }
            self.free_frame(*frame, true);
            if !planted(Bug::FillWithoutLock) {
                self.unlock(disk, part.block);
            }
        }
        self.read_on(number);
    }

    /// Continues a read after one of its I/Os, or of its children, has ended.
    pub(crate) fn read_on(&mut self, number: u32) {
        let request = &self.requests[number];
        let is_started = request.next == request.end || request.error.is_some();
        if request.retries.is_empty() && is_started {
            self.finish_if_done(number);
        } else if self.requests[number].park == Park::None && !self.requests[number].queued {
            self.pump_read(number);
        }
    }
}
