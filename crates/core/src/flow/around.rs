//! Writes past the cache: wa, wi, pt, wt acknowledged by the origin, the sequential cut-off, blocks that
//! admission rejects, overflow (`overflow.rs`), discard and write-zeroes.
//!
//! A request proceeds in windows of blocks. A window starts when, at one instant, all of the following holds
//! for its blocks. If something does not hold, it is requested, and the request waits:
//! - no other I/O or commit of them is in flight;
//! - none is dirty (they are cleaned first), unless zeroes cover the whole block;
//! - no durable page lists one as dirty (the page is rewritten first), with the same exception;
//! - the region is durably marked in the write-intent bitmap;
//! - where blocks are cleaned in order, everything that the guest has flushed is clean (`order.rs`).
//!
//! Then the blocks are locked and leave the cache, and the origin is written. For zeroes over dirty blocks,
//! the origin is zeroed and flushed first; then the dirty entries are dropped and their pages rewritten. So
//! at every instant either the origin or the cache has the valid content.
//!
//! Invariants
//! - The origin is written only with a permit of the gate (`origin_gate.rs`), and only while all blocks of
//!   the window are locked.
//! - A clean version that the write overtakes has left the cache before the write is sent.
//! - Dirty content leaves the cache only when the origin has its replacement: durably, if a durable page may
//!   list the old content as dirty.
//! - While a device is in use, dirty staged blocks of the window are dropped only when no durable page lists
//!   as dirty the versions that they superseded: a crash must not bring those back.

use haversack_model::{BlockNo, DiskNo, SECTOR_BYTES};

use crate::action::{Op, RequestError};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::flow::request::{AroundPhase, Park, RequestState};
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::origin_gate::permit::Permit;

/// Maximum number of blocks in a window of a write, and of zeroes.
const WRITE_WINDOW: u64 = 64;
const ZERO_WINDOW: u64 = 2048;

impl Core {
    fn window(&self, number: u32) -> impl Iterator<Item = BlockNo> + Clone + use<> {
        let request = &self.requests[number];
        (request.next..request.next + request.window).map(BlockNo)
    }

    fn pump_window_end(&mut self, number: u32) {
        self.requests[number].park = Park::Around;
        self.wake(number);
    }

    /// Ends the window. `done` blocks of it are finished.
    pub(crate) fn leave_window(&mut self, number: u32, done: u64) {
        let disk = self.requests[number].disk;
        for block in self.window(number) {
            self.unlock(disk, block);
        }
        let request = &mut self.requests[number];
        request.next += done;
        (request.window, request.phase) = (0, AroundPhase::Check);
        // Zeroes may have dropped dirty blocks, so that writers at the dirty limit can proceed.
        self.wake_dirty(disk);
        let request = &self.requests[number];
        if request.park == Park::None && !request.queued {
            self.pump_window_end(number);
        }
    }

    pub(crate) fn is_zero_op(&self, number: u32) -> bool {
        matches!(self.requests[number].op, Op::Discard | Op::WriteZeroes)
    }
}

impl<M: Memory> Call<'_, M> {
    pub(crate) fn pump_around(&mut self, number: u32) {
        if self.requests[number].phase == AroundPhase::Purge {
            self.purge(number);
            if self.requests[number].queued {
                return;
            }
        }
        while self.requests[number].outstanding == 0
            && self.requests[number].phase == AroundPhase::Check
            && self.requests[number].error.is_none()
            && self.requests[number].next < self.requests[number].end
        {
            debug_assert_ne!(self.requests[number].overflow_end, Some(self.requests[number].next));
            if let Err(park) = self.start_window(number) {
                if self.requests[number].error.is_none() {
                    self.park(number, park);
                }
                break;
            }
        }
        if self.requests[number].phase == AroundPhase::Check {
            self.finish_if_done(number);
        }
    }

    fn start_window(&mut self, number: u32) -> Result<(), Park> {
        let request = &self.requests[number];
        let end = request.overflow_end.unwrap_or(request.end);
        let (disk, next, left) = (request.disk, request.next, end - request.next);
        let zeroes = self.is_zero_op(number);
        let window = if zeroes {
            left.min(ZERO_WINDOW)
        } else {
            left.min(WRITE_WINDOW).min(self.frames.left_for_request() as u64)
        };
        if window == 0 {
            return Err(Park::Frames);
        }
        let permit = self.window_permit(number, disk, next..next + window, zeroes)?;
        let mut cached = 0u64;
        for index in 0..window {
            let block = BlockNo(next + index);
            self.locks.lock(disk, block, LockKind::Around);
            let part = self.part(number, block);
            self.note_changed(disk, block, 0);
            if self.leave_cache(disk, block, part) && !zeroes {
                cached |= 1 << index;
            }
        }
        let request = &mut self.requests[number];
        (request.window, request.cached, request.phase) = (window, cached, AroundPhase::Origin);
        self.send_window(number, disk, permit);
        Ok(())
    }

    /// Whether the request must wait until the writes flushed before it are clean. If so, requests their cleaning.
    fn waits_for_order(&mut self, number: u32, disk: DiskNo) -> bool {
        let Some(dirty) = self.dirty_groups(disk) else { return false };
        let until = *self.requests[number].order_until.get_or_insert(*dirty.end());
        let waits = *dirty.start() <= until;
        if waits {
            self.want_order(disk, until);
        }
        waits
    }

    /// Checks the conditions for starting the window and requests those that do not hold. Returns the permit
    /// to write it.
    fn window_permit(
        &mut self,
        number: u32,
        disk: DiskNo,
        blocks: std::ops::Range<u64>,
        zeroes: bool,
    ) -> Result<Permit, Park> {
        let Some(mut application) = self.apply_for_write(disk, BlockNo(blocks.start)) else {
            return Err(Park::Around);
        };
        if self.waits_for_order(number, disk) {
            return Err(Park::Around);
        }
        let mut wait = false;
        for block in blocks.map(BlockNo) {
            if self.locks.get(disk, block).is_some() {
                return Err(Park::Lock(block));
            }
            if self.disk(disk).moving.is_some() && self.ask_peer(disk, block) {
                wait = true;
                continue;
            }
            let covered = self.part(number, block) == self.disk(disk).inside(block);
            let versions = self.resolve(disk, block);
            if self.commit_in_flight(versions.commit_seq()) {
                wait = true;
                continue;
            }
            let poisoned = versions.is_damaged(self.disk(disk).inside(block));
            if poisoned && !covered {
                self.fail(number, RequestError::DataLost);
                return Err(Park::None);
            }
            if versions.is_dirty() && !poisoned && !(zeroes && covered) {
                self.disk_mut(disk).cleaner.ask(block);
                self.intent_marked(disk, block);
                wait = true;
            } else {
                wait |= !self.show_block(&mut application, block, poisoned || zeroes && covered);
            }
        }
        if wait { Err(Park::Around) } else { self.permit_write(application).ok_or(Park::Around) }
    }

    /// Removes a block from the cache before the origin overtakes it. Dirty content stays for now: zeroes, or
    /// a write over lost data, drop it when the origin has them. Clean data staged over it is dropped at
    /// once. Returns whether the block was cached.
    fn leave_cache(&mut self, disk: DiskNo, block: BlockNo, part: u8) -> bool {
        let versions = self.resolve(disk, block);
        if planted(Bug::StaleAfterAround) {
            return false;
        }
        self.drop_data(disk, block);
        if let Some(staged) = versions.staged.filter(|s| !s.dirty) {
            self.unstage(staged.frame);
        }
        if !versions.is_dirty() {
            self.store.narrow(disk, block, part);
        }
        versions.is_cached()
    }

    fn send_window(&mut self, number: u32, disk: DiskNo, permit: Permit) {
        let request = &self.requests[number];
        let (next, window, op) = (request.next, request.window, request.op);
        let durable = self.could_stage(disk);
        let (sector, end) = (request.sector, request.sector + u64::from(request.sectors));
        let first = self.disk(disk).part(BlockNo(next), request.sector, request.sectors).1;
        let after = BlockNo(next + window);
        let stop = if next + window == request.end { end } else { self.disk(disk).sector(after, 0) };
        let sectors = (stop - first) as u32;
        debug_assert!(first >= sector);
        self.requests[number].outstanding += 1;
        self.requests[number].durable = durable;
        let durable = durable && !planted(Bug::BypassUndurably);
        if !self.is_zero_op(number) {
            let io = self.new_io(Purpose::Around { request: number });
            let lead = self.part(number, BlockNo(next)).trailing_zeros() as usize;
            self.ios[io].start = lead * SECTOR_BYTES;
            for block in (next..next + window).map(BlockNo) {
                let frame = self.frames.take_for_request(true).expect("the window fits the frames");
                let part = self.part(number, block);
                self.ios[io].frames.push(frame);
                if !self.take(number, block, part, frame) {
                    self.drop_window(number, io);
                    return;
                }
            }
            self.disk_mut(disk).stats.origin_written_bytes += u64::from(sectors) * SECTOR_BYTES as u64;
            self.write_origin(permit, io, first, sectors, durable);
            return;
        }
        let io = self.new_io(Purpose::Zero { request: number });
        self.zero_origin(permit, io, first, sectors, op == Op::Discard, durable);
    }

    /// Ends a window whose payload the client has lost. Nothing was sent.
    fn drop_window(&mut self, number: u32, io: u32) {
        for frame in std::mem::take(&mut self.ios[io].frames) {
            self.free_frame(frame, true);
        }
        self.ios.cancel(io);
        self.requests[number].outstanding -= 1;
        self.end_window(number);
    }

    pub(crate) fn around_done(&mut self, io: &Io, number: u32, result: Result<(), IoFailure>) {
        let disk = self.requests[number].disk;
        self.window_written(number);
        let is_clear = result.is_ok() && self.drop_overtaken(number, disk);
        for (index, frame) in io.frames.iter().enumerate() {
            let block = BlockNo(self.requests[number].next + index as u64);
            let cached = self.requests[number].cached & 1 << index != 0;
            let part = self.part(number, block);
            let RequestState { bypass, overflow_end, .. } = self.requests[number];
            let d = self.disk_mut(disk);
            d.stats.overflowed_blocks += u64::from(overflow_end.is_some() && is_clear);
            d.stats.write_hits += u64::from(cached);
            d.stats.write_misses += u64::from(!cached);
            let keep = is_clear && d.mode.caches_write(cached);
            if keep && self.admits_written(number, block, cached, bypass) && self.may_fill(disk, block) {
                self.stage_clean(disk, block, *frame, part);
            }
            self.free_frame(*frame, true);
        }
        self.end_of_origin(number, disk, result, is_clear);
    }

    fn window_written(&mut self, number: u32) {
        let RequestState { disk, durable, .. } = self.requests[number];
        if self.origin_written(disk, !durable) && self.disk(disk).job.is_some() {
            self.queue(disk);
        }
    }

    pub(crate) fn zero_done(&mut self, _: &Io, number: u32, result: Result<(), IoFailure>) {
        let disk = self.requests[number].disk;
        self.window_written(number);
        let is_clear = result.is_ok() && self.drop_overtaken(number, disk);
        self.end_of_origin(number, disk, result, is_clear);
    }

    /// Drops what the origin has overtaken in the window. Returns false, and drops nothing, while a durable
    /// page lists any of it as dirty.
    fn drop_overtaken(&mut self, number: u32, disk: DiskNo) -> bool {
        let mut window = self.window(number);
        if window.any(|block| self.store.durably_dirty(disk, block).is_some())
            && !planted(Bug::OvertakeListed)
        {
            return false;
        }
        self.drop_slots(number, disk);
        self.drop_staged(number, disk);
        true
    }

    /// Continues after the origin has written the window or failed to.
    fn end_of_origin(&mut self, number: u32, disk: DiskNo, result: Result<(), IoFailure>, is_clear: bool) {
        self.requests[number].outstanding -= 1;
        if result.is_err() {
            self.refused(number);
            return;
        }
        if !is_clear {
            self.requests[number].phase = AroundPhase::Flush;
            self.requests[number].outstanding += 1;
            self.flush_origin(OriginFlushReason::Zero { request: number }, disk);
            return;
        }
        self.end_window(number);
    }

    /// Stages the window or fails the request, because the origin failed the write.
    fn refused(&mut self, number: u32) {
        let disk = self.requests[number].disk;
        let owned = self.disk(disk).life.is_owned();
        if owned && self.could_stage(disk) {
            self.take_back(number);
        } else {
            self.fail(number, if owned { RequestError::Origin } else { RequestError::NotOwner });
            self.end_window(number);
        }
    }

    pub(crate) fn zero_flush_done(&mut self, _: &Io, number: u32, result: Result<(), IoFailure>) {
        let disk = self.requests[number].disk;
        self.requests[number].outstanding -= 1;
        if result.is_err() {
            self.refused(number);
            return;
        }
        self.drop_slots(number, disk);
        self.requests[number].phase = AroundPhase::Purge;
        self.pump_around(number);
    }

    /// Drops what is left on flash in the window, dirty or under a dirty staged block: the origin has the
    /// valid content. Staged blocks stay until no durable page lists what they superseded: a kill must not
    /// bring that back.
    fn drop_slots(&mut self, number: u32, disk: DiskNo) {
        for block in self.window(number) {
            let covered = self.part(number, block) == self.disk(disk).inside(block);
            if covered && self.resolve(disk, block).flash.is_some() {
                self.store.invalidate(disk, block);
            }
        }
    }

    /// Drops what is staged in the window, before the write's own data is staged.
    fn drop_staged(&mut self, number: u32, disk: DiskNo) {
        for block in self.window(number) {
            if self.part(number, block) != self.disk(disk).inside(block) {
                continue;
            }
            if let Some(staged) = self.resolve(disk, block).staged {
                self.unstage(staged.frame);
            }
            let d = self.disk_mut(disk);
            d.lost.remove(block);
            d.damaged.remove(block);
        }
    }

    /// Waits until no durable page lists a block of the window as dirty.
    fn purge(&mut self, number: u32) {
        let disk = self.requests[number].disk;
        let mut left = false;
        for block in self.window(number) {
            if let Some(slot_no) = self.store.durably_dirty(disk, block) {
                let segment = self.store.segment_of(slot_no);
                self.ask_rewrite(disk, segment);
                left = true;
            }
        }
        if left && !planted(Bug::DiscardKeepsDirty) && self.alive_devices().next().is_some() {
            self.park(number, Park::Around);
        } else {
            self.drop_staged(number, disk);
            self.end_window(number);
        }
    }

    fn end_window(&mut self, number: u32) {
        let window = self.requests[number].window;
        self.leave_window(number, window);
    }
}
