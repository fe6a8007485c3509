//! Commits: staged blocks go to flash in batches, data and metadata page in one submission.
//!
//! A batch takes the disk's oldest staged blocks of one kind (dirty or clean), the segment with the most free
//! slots, and that segment's next metadata page. The writes are not ordered. Until the page and the data are
//! both durable, recovery finds either the older page or checksums that do not match, and falls back to the
//! older versions, which stay listed until then. Dirty blocks of a redundant pool go to segments on two
//! devices under one sequence number.
//!
//! Invariants
//! - All I/Os of a batch have one sequence number. Its frames are given back only after all of them have
//!   ended.
//! - The two copies of a dirty block are on different devices.
//! - A frame that lacks sectors which flash has is merged with them before it is committed. So the new
//!   version never has fewer valid sectors than the version it supersedes.
//! - While an older version of a block is being committed, a newer one is not committed. Otherwise the newer commit
//!   could end first and free its frame, and a crash would find only the older version staged and trust it.
//! - A batch that lost one of its two copies stays staged while any device is leaving: until the record says
//!   that the device is gone, recovery treats a single copy as a torn commit.
//! - While a flush waits for a group of blocks, only dirty blocks of that group or an older one are
//!   committed.
//! - Where blocks are cleaned in order, a version is not committed while it is held by that order (`order.rs`).
//! - A disk has at most [`MOST_BATCHES`] commits in flight, unless a flush waits for its blocks.

pub(crate) mod batches;

use haversack_model::{DeviceNo, DiskNo, SECTOR_BYTES};

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::disk::runs;
use crate::format::page::{self, Header, Kind, Place};
use crate::io::{FlashPart, Io, Purpose};
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::{FrameNo, Memory};
use crate::staging::Staged;
use crate::store::PageContent;
use crate::store::segment::SegmentNo;
use crate::store::slot::{Live, SlotNo};

/// The most commits of a disk in flight. They contain more than a segment of 1 MiB, which keeps a device busy. With
/// more batches, a guest that overwrites the same blocks repeatedly would soon have thousands of staged blocks whose
/// older versions are in flight. Each call would have to skip all of them while other disks wait, and blocks that are
/// already overwritten would be written to flash.
const MOST_BATCHES: u32 = 4;

impl Core {
    /// Whether staged blocks of the disk should be committed now. Only this function decides that.
    pub(crate) fn is_commit_due(&self, disk: DiskNo) -> bool {
        let d = self.disk(disk);
        let waiting = self.staging.lists[disk].len;
        let restaged = d.restage.is_empty() && d.restaging == 0;
        let full = || self.schedule.waits_for_staging() || self.staging.free() < self.staging.capacity() / 4;
        waiting > 0
            && (self.pool.is_stopping() || !d.cleaner.order.as_ref().is_some_and(|order| order.holds_all))
            && (self.batches.of_disk(disk) < MOST_BATCHES || d.flush.must_commit())
            && (waiting >= self.commit_threshold()
                || d.flush.must_commit()
                || d.commit_all()
                || self.pool.is_stopping()
                || self.devices.leave_waits_for(disk)
                || restaged && (self.rebuilding() || self.jobs.empties().is_some() || self.gathers(disk))
                || full())
    }
}

impl<M: Memory> Call<'_, M> {
    /// Starts the batches that are due.
    pub(crate) fn drive_commit(&mut self, disk: DiskNo) {
        self.update_order(disk);
        if self.store.usable_devices().next().is_none() {
            self.drop_clean_staged(disk);
            return;
        }
        while self.is_commit_due(disk) {
            if self.is_mirror_unavailable(disk) {
                self.vacate_flash(disk);
                self.drop_clean_staged(disk);
                break;
            }
            if !self.commit_batch(disk) {
                if !self.has_space(disk) {
                    self.drop_clean_staged(disk);
                }
                break;
            }
        }
    }

    /// Drops clean staged blocks of a disk that has no space on flash: nothing is lost, and they need not
    /// wait for space.
    fn drop_clean_staged(&mut self, disk: DiskNo) {
        let droppable = |f: &FrameNo| {
            let staged = self.staging.get(*f);
            !staged.dirty && !staged.merging && !self.commit_in_flight(staged.commit_seq)
        };
        let frames: Vec<FrameNo> = self.staging.waiting(disk).filter(droppable).collect();
        // If no frame was freed, do not wake the waiting requests: they would wait again and trigger this function
        // again.
        if frames.is_empty() {
            return;
        }
        for frame in frames {
            self.unstage(frame);
        }
        self.wake_staging();
    }

    fn commit_batch(&mut self, disk: DiskNo) -> bool {
        let Some(dirty) = self.pick_frames(disk) else {
            return false;
        };
        let copies = if dirty { self.dirty_copies() } else { 1 };
        let copies = if planted(Bug::ForgetMirror) { 1 } else { copies };
        let segments = self.find_segments(disk, self.batches.picked_frames.len(), copies);
        self.disk_mut(disk).flush.no_space = segments.is_none() && !self.space_comes(disk);
        let Some(segments) = segments else {
            return false;
        };
        if !self.frames.suffices(copies) {
            return false;
        }
        let mut count = self.batches.picked_frames.len();
        for (copy, segment) in segments.iter().enumerate().take(copies) {
            let mut slots = std::mem::take(&mut self.batches.picked_slots[copy]);
            slots.clear();
            self.store.pick_slots(*segment, count, &mut slots);
            count = slots.len();
            self.batches.picked_slots[copy] = slots;
        }
        if count == 0 {
            // The free slots turned out to be unusable until their page is rewritten.
            return self.rewrite_some(disk);
        }
        self.write_batch(disk, count, copies, segments);
        true
    }

    /// Picks the disk's oldest frames of the same kind as the oldest one; returns whether they are dirty.
    /// Frames that lack sectors which flash has are merged first instead.
    fn pick_frames(&mut self, disk: DiskNo) -> Option<bool> {
        let mut picked = std::mem::take(&mut self.batches.picked_frames);
        picked.clear();
        // Blocks that wait for the cleaner do not hold up the others.
        let waits = self.disk(disk).cleaner.is_order_wanted();
        let flush_group = self.disk(disk).flush.closing_group().filter(|_| !waits);
        let mut kind = None;
        let mut merges = [None; 16];
        let mut merge_count = 0;
        let (mut held_until, mut held, mut unneeded) = (0, 0, None);
        let oldest = self.staging.waiting(disk).take(self.config.commit_blocks as usize);
        self.store.prefetch(oldest.map(|frame| (disk, self.staging.get(frame).block)));
        for frame in self.staging.waiting(disk) {
            let staged = self.staging.get(frame);
            if staged.merging || self.locks.get(disk, staged.block) == Some(LockKind::Around) {
                continue;
            }
            if flush_group.is_some_and(|group| !(staged.dirty && staged.group <= group)) {
                continue;
            }
            let versions = self.resolve_waiting(frame);
            // If the commit of this version ended before that of the older one, a kill would leave only the older one
            // staged.
            if self.commit_in_flight(versions.commit_seq()) {
                continue;
            }
            if let Some((_, slot)) = versions.flash
                && !staged.restaged
                && self.is_held_by_order(disk, versions.flash)
            {
                held += 1;
                if staged.dirty {
                    held_until = slot.seq().max(held_until);
                } else {
                    unneeded = Some(frame);
                }
                continue;
            }
            if let Some((slot_no, slot)) = versions.flash
                && slot.mask() & !staged.mask != 0
            {
                if merge_count < merges.len() {
                    merges[merge_count] = Some((frame, slot_no));
                    merge_count += 1;
                }
                continue;
            }
            let dirty = versions.is_dirty();
            if *kind.get_or_insert(dirty) == dirty {
                picked.push(frame);
                if picked.len() == crate::format::geometry::SLOTS_PER_SEGMENT as usize {
                    break;
                }
            }
        }
        self.batches.picked_frames = picked;
        if held > 0 {
            self.note_held(disk, held, held_until, unneeded);
        }
        for (frame, slot_no) in merges.into_iter().flatten() {
            self.start_merge(disk, frame, slot_no);
        }
        kind
    }

    /// Requests the cleaning that held frames wait for, and drops a held clean frame: it was only read, so it can be
    /// dropped.
    fn note_held(&mut self, disk: DiskNo, held: u32, until: u64, unneeded: Option<FrameNo>) {
        if until > 0 {
            self.want_order(disk, until);
        }
        let holds_all = held == self.staging.lists[disk].len && unneeded.is_none();
        if let Some(order) = &mut self.disk_mut(disk).cleaner.order {
            order.holds_all = holds_all;
        }
        if let Some(frame) = unneeded {
            self.unstage(frame);
            self.wake_staging();
        }
    }

    fn write_batch(&mut self, disk: DiskNo, count: usize, copies: usize, segments: [SegmentNo; 2]) {
        let seq = self.durability.take_commit();
        let batch = self.batches.start(disk);
        let b = &mut self.batches.in_flight[batch];
        (b.seq, b.failed) = (seq, [false; 2]);
        b.segments.clear();
        b.segments.extend_from_slice(&segments[..copies]);
        let mut frames = std::mem::take(&mut b.frames);
        frames.clear();
        frames.extend_from_slice(&self.batches.picked_frames[..count]);
        let mut on_probation = false;
        for (index, frame) in frames.iter().enumerate() {
            on_probation |= self.install(disk, *frame, index, copies, seq);
            self.staging.start_commit(*frame, seq);
        }
        if frames.iter().any(|frame| self.staging.get(*frame).restaged) {
            self.join_groups(disk, seq);
        }
        if on_probation {
            self.store.note_filled(disk, segments[0], seq);
        }
        for (copy, segment) in segments.iter().enumerate().take(copies) {
            self.write_copy(batch, copy, *segment, seq, &frames);
        }
        self.thin_out(disk, &frames, copies);
        self.batches.in_flight[batch].frames = frames;
        self.disk_mut(disk).last_commit_seq = seq;
        self.disk_mut(disk).stats.flash_batch_pages += copies as u64;
    }

    /// Writes pages that drop old versions of the blocks that were just written. Dropping an old version with two
    /// copies takes three page writes.
    fn thin_out(&mut self, disk: DiskNo, frames: &[FrameNo], copies: usize) {
        for _ in 0..2 * copies - 1 {
            let blocks = frames.iter().map(|frame| self.staging.get(*frame).block);
            match self.store.crowded(disk, blocks) {
                Some(segment) if self.rewrite_page(segment) => {}
                _ => break,
            }
        }
    }

    fn install(&mut self, disk: DiskNo, frame: FrameNo, index: usize, copies: usize, seq: u64) -> bool {
        let staged = *self.staging.get(frame);
        let versions = self.resolve_waiting(frame);
        let older = versions.flash;
        // A version that was lost with a device may be back after a crash. This version supersedes it, and must say
        // that the other sectors of the block are lost.
        let poisoned = (versions.lost != 0 || staged.poisoned || older.is_some_and(|o| o.1.poisoned()))
            && !self.disk(disk).is_whole(staged.block, staged.mask);
        let dirty = staged.dirty || older.is_some_and(|o| o.1.dirty());
        let entry = Live::new(staged.block, staged.mask, staged.crc, seq)
            .with_dirty(dirty)
            .with_poisoned(poisoned)
            .with_protected(staged.protected)
            .with_hits(staged.hits);
        if let Some((number, _)) = older {
            self.store.supersede(number, seq);
        }
        if poisoned {
            self.note_damaged(disk, staged.block);
        }
        let stats = &mut self.disk_mut(disk).stats;
        if dirty {
            stats.flash_write_blocks += 1;
        } else {
            stats.flash_fill_blocks += 1;
        }
        stats.flash_mirror_blocks += copies as u64 - 1;
        let primary = self.batches.picked_slots[0][index];
        self.store.install_over(older.map(|older| older.0), primary, entry, staged.since_us);
        if copies == 2 {
            let mirror = self.batches.picked_slots[1][index];
            self.store.install(mirror, entry.with_mirror(true), staged.since_us);
            self.store.pair(primary, mirror);
        }
        !staged.protected
    }

    /// Writes one copy of a batch: each run of adjacent slots, and the page.
    fn write_copy(&mut self, batch: u32, copy: usize, segment: SegmentNo, seq: u64, frames: &[FrameNo]) {
        let slots = std::mem::take(&mut self.batches.picked_slots[copy]);
        let mut start = 0;
        while start < frames.len() {
            let mut end = start + 1;
            while end < frames.len() && slots[end].0 == slots[end - 1].0 + 1 {
                end += 1;
            }
            let io = self.new_io(Purpose::Commit { batch, copy: copy as u8, seq });
            self.ios[io].frames.extend_from_slice(&frames[start..end]);
            self.durability.expect_io(seq);
            let (device, offset) = self.store.location(slots[start]);
            self.write_device(io, device, offset);
            start = end;
        }
        self.batches.picked_slots[copy] = slots;
        let io = self.new_io(Purpose::Commit { batch, copy: copy as u8, seq });
        let page = self.compose(segment, seq, io);
        self.batches.in_flight[batch].pages.push(page);
    }

    /// Composes a segment's next page in a frame and writes it as `io`.
    pub(crate) fn compose(&mut self, segment: SegmentNo, seq: u64, io: u32) -> FrameNo {
        let frame = self.frames.take().expect("the caller made sure of a frame");
        let mut content: PageContent = [0; _];
        let write = self.store.compose_page(segment, seq, &mut content);
        let header = Header {
            generation: write.generation,
            flushed_seq: self.durability.carry_mark(seq),
            owner: write.owner,
            kind: Kind::Segment,
            opening: self.durability.record.opening(),
        };
        let place = Place { device_seed: self.devices.seed(write.device), offset_bytes: write.offset_bytes };
        page::seal(self.memory.frame_mut(frame), header, &content, place);
        self.ios[io].frames.push(frame);
        self.durability.expect_io(seq);
        self.write_device(io, write.device, write.offset_bytes);
        frame
    }

    pub(crate) fn commit_done(
        &mut self,
        io: &Io,
        batch: u32,
        copy: u8,
        seq: u64,
        result: Result<(), IoFailure>,
    ) {
        if result.is_err() {
            self.batches.in_flight[batch].failed[copy as usize] = true;
            self.device_failed(io.device.expect("a commit is on a device"));
        }
        if self.sequence_done(seq) {
            self.finish_batch(batch);
        }
    }

    fn finish_batch(&mut self, number: u32) {
        let mut batch = std::mem::take(&mut self.batches.in_flight[number]);
        let disk = batch.disk.expect("a batch is of a disk");
        let copies = batch.segments.len();
        // A device that has failed since then holds nothing, whatever it answered.
        let device = |copy: usize| DeviceNo(self.store.segments[batch.segments[copy]].device);
        let has = |copy: usize| !batch.failed[copy] && self.is_alive(device(copy));
        let landed = (0..copies).any(has);
        // Until the record says that the other copy's device is gone, recovery takes a single copy for a torn
        // commit.
        let counts = landed && ((0..copies).all(has) || !self.devices.leaves_any());
        for page in batch.pages.drain(..) {
            self.free_frame(page, false);
        }
        for segment in batch.segments.drain(..) {
            self.store.page_written(segment);
        }
        for frame in batch.frames.drain(..) {
            if landed && !self.disk(disk).damaged.is_empty() {
                self.forget_repaired(disk, self.staging.get(frame).block);
            }
            if counts || self.staging.get(frame).superseded {
                if !counts {
                    self.pass_on_group(frame);
                }
                self.unstage(frame);
            } else {
                self.staging.restart(frame);
                self.note_staged_since(disk, self.staging.get(frame).since_us);
            }
        }
        if !landed && batch.seq >= self.disk(disk).since_seq {
            self.store.revive(batch.seq);
        }
        self.batches.in_flight[number] = batch;
        self.batches.end(number);
        let unflushed = self.store.unflushed_pages();
        if unflushed as u64 * u64::from(self.config.commit_blocks)
            >= u64::from(self.config.flush_after_blocks)
        {
            self.durability.want_completed();
        }
        self.wake_staging();
        if self.disk(disk).cleaner.order.is_some() {
            self.wake_dirty(disk);
        }
        self.wake_around(disk);
        self.queue(disk);
    }

    /// Replaces an older frame whose commit failed by the newest frame of the block: a flush that waits for
    /// the older one waits for the newest instead.
    fn pass_on_group(&mut self, frame: FrameNo) {
        let Staged { disk, block, dirty, group, .. } = *self.staging.get(frame);
        let Some(newest) = self.staging.find(disk, block).filter(|(_, newest)| dirty && newest.dirty) else {
            return;
        };
        let (newest, later) = (newest.0, newest.1.group);
        self.staging.get_mut(newest).group = group;
        let flush = &mut self.disk_mut(disk).flush;
        flush.staged(group);
        flush.unstaged(later);
    }

    /// Reads the flash copy of a block whose staged frame lacks sectors that flash has.
    fn start_merge(&mut self, disk: DiskNo, frame: FrameNo, slot_no: SlotNo) {
        let Some(into) = self.frames.take() else { return };
        let slot = self.store.live(slot_no).expect("what is merged is live");
        let staged = self.staging.get_mut(frame);
        staged.merging = true;
        let version = staged.version;
        let part = FlashPart::of(slot_no, slot);
        let io = self.new_io(Purpose::Merge { frame, version, part });
        self.ios[io].disk = Some(disk);
        self.read_slot(io, slot_no, into);
    }

    pub(crate) fn merge_done(
        &mut self,
        io: &Io,
        frame: FrameNo,
        version: u64,
        part: FlashPart,
        result: Result<(), IoFailure>,
    ) {
        let disk = io.disk.expect("a merge is of a disk");
        let from = io.frames[0];
        self.note_device_read(io, part.slot, result);
        let current = self.staging.is_used(frame) && self.staging.get(frame).version == version;
        if current {
            self.staging.get_mut(frame).merging = false;
            if let Some((slot_no, slot)) = self.resolve(disk, part.block).flash_of(part.seq) {
                if result.is_ok() && self.verified(disk, part.block, from, part.crc) {
                    self.merge(disk, frame, from, slot);
                } else if slot_no == part.slot {
                    self.merge_other(disk, frame, slot_no, result.is_err());
                }
            }
        }
        self.free_frame(from, false);
        self.queue(disk);
    }

    /// Handles a flash copy that could not be read: retries with the mirrored copy, or continues without it.
    fn merge_other(&mut self, disk: DiskNo, frame: FrameNo, slot_no: SlotNo, failed: bool) {
        if let Some(mirror) = self.store.fail_over(slot_no) {
            self.start_merge(disk, frame, mirror);
        } else if !(failed && self.store.live(slot_no).is_some_and(|slot| slot.dirty())) {
            self.damaged(disk, slot_no);
        }
    }

    fn merge(&mut self, disk: DiskNo, frame: FrameNo, from: FrameNo, slot: Live) {
        let staged = *self.staging.get(frame);
        let old_over_new = planted(Bug::MergeOldOverNew);
        let add = if old_over_new { slot.mask() } else { slot.mask() & !staged.mask };
        let Some(merged) = self.staging.allocate() else {
            return;
        };
        for (first, count) in runs(add) {
            self.memory.copy(from, merged, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
        }
        self.stage(disk, slot.block(), merged, add, slot.dirty());
        let merged = self.staging.get_mut(merged);
        merged.hits = staged.hits;
        merged.since_us = staged.since_us.min(merged.since_us);
        let since_us = merged.since_us;
        self.note_staged_since(disk, since_us);
    }
}
