//! A request from submission to completion: it advances over its blocks, parks where it must wait, and is
//! completed when none of its I/O is outstanding.
//!
//! Invariants
//! - A request completes only when none of its I/O is outstanding.
//! - A parked request is in the waiting list that its `park` names, or nothing would wake it. A number that
//!   is left in another list only causes a needless wake-up.
//! - A successful write with FUA completes only through a flush.

pub(crate) mod state;

use haversack_model::{BlockNo, SECTOR_BYTES};

use crate::action::{Action, Op, Request, RequestError};
use crate::core::{Call, Core};
use crate::memory::{FrameNo, Memory};

pub(crate) use state::{AroundPhase, Park, RequestState};

impl Core {
    pub(crate) fn begin(&mut self, number: u32, request: Request) {
        let (sector, sectors) = (request.sector.0, request.sectors);
        let reads_base = request.op == Op::Read && self.reads_base(request.disk);
        let disk = &mut self.disks[request.disk];
        let (mut bypass, mut continues) = (false, false);
        let (mut next, mut end) = (0, 0);
        if request.op != Op::Flush {
            let (first, last) = disk.blocks(sector, sectors);
            (next, end) = (first.0, last.0 + 1);
            disk.stats.start_phases[(sector % 8) as usize] += 1;
        }
        if reads_base {
            disk.record_own_parts(self.now, sector, sectors);
        } else {
            disk.record_request(self.now, request.op, sector, sectors);
        }
        let stages = matches!(request.op, Op::Write { .. }) && disk.mode.defers_origin();
        let bytes = u64::from(sectors) * SECTOR_BYTES as u64;
        match request.op {
            Op::Read | Op::Write { .. } => {
                let cutoff = disk.tuning.sequential_cutoff_bytes;
                let noted = cutoff > 0 || disk.admission_config.needs_stay();
                let run = if noted { disk.sequential.note(sector, sectors) } else { 0 };
                bypass = cutoff > 0 && run > cutoff;
                continues = run > bytes;
                if request.op == Op::Read {
                    disk.stats.reads += 1;
                    disk.stats.read_bytes += bytes;
                } else {
                    disk.stats.writes += 1;
                    disk.stats.written_bytes += bytes;
                }
            }
            Op::Flush => disk.stats.flushes += 1,
            Op::Discard | Op::WriteZeroes => disk.stats.zeroes += 1,
        }
        if !matches!(request.op, Op::Read | Op::Flush) {
            self.note_change(request.disk, next..end);
        }
        let state = &mut self.requests[number];
        state.retries.clear();
        let retries = std::mem::take(&mut state.retries);
        *state = RequestState {
            tag: request.tag,
            disk: request.disk,
            op: request.op,
            sector,
            sectors,
            next,
            end,
            retries,
            bypass,
            continues,
            ..RequestState::default()
        };
        if stages && !bypass {
            self.requests[number].bypass = self.filters_write(number);
        }
    }

    /// Returns the part of a block that a request touches, as a sector mask.
    #[inline]
    pub(crate) fn part(&self, number: u32, block: BlockNo) -> u8 {
        let request = &self.requests[number];
        self.disk(request.disk).part(block, request.sector, request.sectors).0
    }

    #[inline]
    fn payload_at(&self, number: u32, block: BlockNo, at: u32) -> usize {
        let request = &self.requests[number];
        if request.is_copy {
            return at as usize * SECTOR_BYTES;
        }
        (self.disk(request.disk).sector(block, at) - request.sector) as usize * SECTOR_BYTES
    }
}

impl<M: Memory> Call<'_, M> {
    /// Runs a request as far as it can go.
    pub(crate) fn pump(&mut self, number: u32) {
        self.requests[number].queued = false;
        self.end_overflow(number);
        let request = &self.requests[number];
        let (disk, op) = (request.disk, request.op);
        let is_refused = !self.disk(disk).life.is_owned() && !request.is_copy;
        if is_refused && request.outstanding == 0 && request.phase == AroundPhase::Check {
            self.fail(number, RequestError::NotOwner);
            self.finish(number);
            return;
        }
        match op {
            Op::Read => self.pump_read(number),
            Op::Flush => self.join_flush(number),
            Op::Write { .. } | Op::Discard | Op::WriteZeroes if self.is_staged(number) => {
                self.pump_write(number);
            }
            Op::Write { .. } | Op::Discard | Op::WriteZeroes => self.pump_around(number),
        }
    }

    /// Whether the rest of a write, or of zeroes, is staged. Writes that the cache would choose to send past
    /// it are staged as long as the origin refuses writes, or must not have them yet.
    fn is_staged(&mut self, number: u32) -> bool {
        let RequestState { disk, op, phase, bypass, stages_zeroes, .. } = self.requests[number];
        let d = self.disk(disk);
        if !d.mode.defers_origin() || phase != AroundPhase::Check {
            return false;
        }
        let is_write = matches!(op, Op::Write { .. });
        let chosen = if is_write { !bypass } else { stages_zeroes };
        let refused = d.cleaner.origin_failed || is_write && self.dirty_groups(disk).is_some();
        (chosen || refused) && self.gets_space(disk)
    }

    /// Parks a request.
    pub(crate) fn park(&mut self, number: u32, park: Park) {
        let disk = self.requests[number].disk;
        self.requests[number].park = park;
        match park {
            Park::None | Park::Flush => {}
            Park::Lock(block) => {
                self.locks.waited(disk, block);
                self.disk_mut(disk).lock_waiters.push(number);
            }
            Park::Frames => self.frames.wait(number),
            Park::Staging => {
                self.schedule.wait_for_staging(number);
                self.queue(disk);
            }
            Park::Dirty => {
                self.disk_mut(disk).dirty_waiters.push_back(number);
                self.queue(disk);
            }
            Park::Around => {
                self.disk_mut(disk).around_waiters.push(number);
                self.queue(disk);
            }
        }
    }

    /// Completes a request if all of it is done.
    pub(crate) fn finish_if_done(&mut self, number: u32) {
        let request = &self.requests[number];
        let all_started = request.next == request.end && request.retries.is_empty();
        let running = request.outstanding > 0 || request.park != Park::None || request.queued;
        if !running && (all_started || request.error.is_some()) {
            self.finish(number);
        }
    }

    pub(crate) fn finish(&mut self, number: u32) {
        let request = &self.requests[number];
        if request.error.is_none() && request.op == (Op::Write { fua: true }) {
            self.join_flush(number);
            return;
        }
        self.answer(number);
    }

    /// Sends the completion.
    pub(crate) fn answer(&mut self, number: u32) {
        let request = &self.requests[number];
        let (tag, disk, error) = (request.tag, request.disk, request.error);
        let (parent, end) = (request.parent, request.end);
        self.requests.put(number);
        let d = self.disk_mut(disk);
        d.requests -= 1;
        d.stats.failed_requests += u64::from(error.is_some());
        let awaited = d.job.as_ref().is_some_and(|job| d.requests == 0 || job.resizes_to().is_some());
        if awaited {
            self.queue(disk);
        }
        match parent {
            Some(parent) => self.child_done(parent, end, error),
            None => self.emit(Action::Complete { tag, result: error.map_or(Ok(()), Err) }),
        }
    }

    /// Copies sectors of a block from a frame to the reader.
    pub(crate) fn give(&mut self, number: u32, block: BlockNo, mask: u8, frame: FrameNo) {
        let tag = self.requests[number].tag;
        for (first, count) in crate::disk::runs(mask) {
            let payload_at = self.payload_at(number, block, first);
            let (at, len) = (first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
            self.memory.give(tag, payload_at, frame, at, len);
        }
    }

    /// Copies sectors of a block from the writer to a frame. If the writer has lost them, fails the request
    /// and returns false.
    pub(crate) fn take(&mut self, number: u32, block: BlockNo, mask: u8, frame: FrameNo) -> bool {
        let tag = self.requests[number].tag;
        for (first, count) in crate::disk::runs(mask) {
            let payload_at = self.payload_at(number, block, first);
            let (at, len) = (first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
            if !self.memory.take(tag, payload_at, frame, at, len) {
                self.fail(number, RequestError::PayloadLost);
                return false;
            }
        }
        true
    }
}
