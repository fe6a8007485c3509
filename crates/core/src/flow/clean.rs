//! The cleaner: writes dirty blocks back to the origin.
//!
//! A disk has one round at a time: pick blocks (first those that others wait for, then those dirty for
//! longest, with their dirty neighbours; or in the order of the guest's flushes, see `order.rs`), read and
//! verify them, write them in block order with neighbours merged, flush the origin, and only then mark them
//! clean.
//!
//! Invariants
//! - A block is written to the origin only when the written version is durable in the cache. Otherwise a power loss
//!   could leave an older clean version in the cache than the origin has. The exception is a disk that has nothing on
//!   flash and gets no space there, for example because no device is left: its staged blocks are cleaned directly. That
//!   is a write past the cache, so the region is marked first: after a crash, a device that has left may be back with
//!   an older version.
//! - A block counts as clean only after the origin was flushed, and only if it was not written in the
//!   meantime. A damaged block stays dirty: its valid sectors are written once (`damage.rs`).
//! - The rate limit holds unless something waits for the cleaner.

pub(crate) mod cleaner;

use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, Micros, SECTOR_BYTES, WriteMode, WriteThroughAck};

use crate::action::{Event, JobError};
use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::disk::runs;
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::locks::LockKind;
use crate::media::IoFailure;
use crate::memory::{FrameNo, Memory};
use crate::origin_gate::permit::Permit;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use cleaner::{Cleaning, Phase, ROUND};

/// Maximum number of blocks in one write.
const RUN: usize = 256;
/// Maximum number of segments that a round takes blocks from. The blocks that follow these may be in others.
const SEGMENTS_TRIED: usize = 64;
/// When the cleaner looks at the next segments if a peer bars all blocks of those that it has looked at.
const BARRED_LOOK_US: Micros = 20_000;
/// When the cleaner looks again if something keeps it from starting a round.
const BLOCKED_LOOK_US: Micros = 100_000;

/// Which dirty blocks of a segment the cleaner could write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Dirty {
    /// None, ever.
    No,
    /// None until a peer has forgotten them.
    Barred,
    /// Some.
    Cleanable,
}

/// Adjacent blocks that are written together.
struct Run {
    io: u32,
    permit: Permit,
    /// First sector.
    sector: u64,
    sectors: u32,
}

impl Run {
    fn end(&self) -> u64 {
        self.sector + u64::from(self.sectors)
    }
}

impl Core {
    /// Returns the time at which the disk's longest dirty block became dirty.
    pub(crate) fn oldest_dirty_us(&self, disk: DiskNo) -> Option<Micros> {
        [self.store.dirty_since_us(disk), self.oldest_staged_us(disk)].into_iter().flatten().min()
    }

    fn oldest_staged_us(&self, disk: DiskNo) -> Option<Micros> {
        let staged = self.staging.waiting(disk).map(|f| self.staging.get(f)).filter(|s| s.dirty);
        staged.map(|s| s.since_us).min()
    }

    /// Returns the blocks that the cleaner's shares are relative to: the disk's target, but at least one
    /// segment. Otherwise each write of a disk without a target would wait for the origin.
    pub(crate) fn dirty_base_blocks(&self, disk: DiskNo) -> u64 {
        self.target_blocks(disk).max(u64::from(SLOTS_PER_SEGMENT))
    }
}

impl<M: Memory> Call<'_, M> {
    /// Called when a block that has been dirty since this time is staged.
    pub(crate) fn note_staged_since(&mut self, disk: DiskNo, since_us: Micros) {
        let cleaner = &mut self.disk_mut(disk).cleaner;
        cleaner.staged_since_us = cleaner.staged_since_us.min(since_us);
    }

    /// Whether any staged block has been dirty for at least `age_us`. All staged blocks are checked only when
    /// `staged_since_us` says that one may be.
    fn is_staging_aged(&mut self, disk: DiskNo, age_us: Micros) -> bool {
        let now = self.now;
        let aged = |since_us: Micros| now >= since_us.saturating_add(age_us);
        if !aged(self.disk(disk).cleaner.staged_since_us) {
            return false;
        }
        let since_us = self.oldest_staged_us(disk).unwrap_or(Micros::MAX);
        self.disk_mut(disk).cleaner.staged_since_us = since_us;
        aged(since_us)
    }

    pub(crate) fn drive_cleaner(&mut self, disk: DiskNo) {
        self.update_order(disk);
        let d = self.disk(disk);
        let allowed = d.life.writes_origin() || planted(Bug::CleanAfterRelease) && d.life.is_released();
        // A pending device change blocks cleaning: once a single copy is clean, nothing but the record shows that its
        // device stood alone.
        let blocked = self.loss_unrecorded()
            || self.durability.record.device_change_pending()
            || self.pool.rests() && d.job.is_none();
        if d.cleaner.phase != Phase::Idle {
            self.disk_mut(disk).cleaner.next_look_us = self.now + BLOCKED_LOOK_US;
            return;
        }
        if d.cleaner.retry_us > self.now {
            return;
        }
        if blocked || !allowed {
            // The disk is driven again when it is no longer blocked. A disk that must not clean at all checks at
            // `next_look_us` whether it can get space.
            self.disk_mut(disk).cleaner.next_look_us = self.now + BLOCKED_LOOK_US;
            return;
        }
        if !self.has_space(disk) && self.store.disks[disk].segments.is_empty() {
            self.disk_mut(disk).cleaner.next_look_us = self.now + BLOCKED_LOOK_US;
            self.pick_staged(disk);
        } else {
            self.drop_done_requests(disk);
            if !self.cleaning_due(disk) {
                return;
            }
            self.pick(disk);
        }
        if self.disk(disk).cleaner.blocks.is_empty() {
            self.make_room_for_given_up(disk);
            return;
        }
        let cleaner = &mut self.disk_mut(disk).cleaner;
        (cleaner.phase, cleaner.failed) = (Phase::Reading, None);
        cleaner.budget_blocks = (cleaner.budget_blocks - cleaner.blocks.len() as f64).max(0.0);
        self.read_round(disk);
    }

    fn drop_done_requests(&mut self, disk: DiskNo) {
        let mut requested = std::mem::take(&mut self.disk_mut(disk).cleaner.requested);
        requested.retain(|block| {
            let versions = self.resolve(disk, *block);
            let on_flash = versions.flash.is_some_and(|(_, slot)| self.needs_cleaning(disk, slot));
            versions.is_staged_dirty() || on_flash
        });
        self.disk_mut(disk).cleaner.requested = requested;
    }

    fn cleaning_due(&mut self, disk: DiskNo) -> bool {
        let base = self.dirty_base_blocks(disk) as f64;
        let dirty = self.store.disks[disk].dirty as f64;
        let now = self.now;
        let config = self.disk(disk).tuning.cleaner;
        let staged = self.staging.lists[disk].len > 0 && self.disk(disk).flush.staged_dirty() > 0;
        let staging_aged = staged && self.is_staging_aged(disk, config.age_us);
        let oldest = self.store.dirty_since_us(disk);
        let aged = staging_aged || oldest.is_some_and(|since| now >= since.saturating_add(config.age_us));
        let d = self.disk_mut(disk);
        let look = config.age_us.min(config.idle_us).clamp(10_000, 4_000_000) / 4;
        d.cleaner.next_look_us = now + look;
        let idle = now >= d.last_request_us.saturating_add(config.idle_us);
        d.cleaner.overdue = staged && (idle || staging_aged || d.cleaner.space_needed && dirty == 0.0);
        d.cleaner.lowering |= dirty > base * f64::from(config.high_watermark);
        d.cleaner.lowering &= dirty > base * f64::from(config.low_watermark);
        let detaches = d.life.is_detaching();
        let due = d.cleaner.all
            || d.mode == WriteMode::WriteThrough(WriteThroughAck::Cache)
            || d.cleaner.lowering
            || idle
            || aged;
        d.cleaner.round = ROUND;
        let waits = d.cleaner.space_needed || d.cleaner.is_order_wanted();
        if waits || !d.cleaner.requested.is_empty() || detaches {
            return true;
        }
        if !due {
            return false;
        }
        let cleaner = &mut self.disk_mut(disk).cleaner;
        if config.rate_limit_blocks == 0 {
            return true;
        }
        let within = cleaner.within_limit(now, config.rate_limit_blocks);
        cleaner.round = (cleaner.budget_blocks as usize).min(ROUND);
        within
    }

    /// Fills the round. Blocks that are dirty but not durable yet are committed and flushed first.
    fn pick(&mut self, disk: DiskNo) {
        let room = (self.frames.left() / 2).min(self.disk(disk).cleaner.round);
        let mut unflushed = false;
        if self.disk(disk).cleaner.order.is_some() {
            self.pick_in_order(disk, room, &mut unflushed);
        } else {
            self.pick_by_age(disk, room, &mut unflushed);
        }
        if unflushed {
            let seq = self.disk(disk).last_commit_seq;
            self.durability.want(seq);
        }
        if self.disk(disk).commits_eagerly() {
            self.drive_commit(disk);
        }
        let cleaner = &mut self.disk_mut(disk).cleaner;
        cleaner.space_needed &= cleaner.blocks.is_empty();
    }

    fn pick_by_age(&mut self, disk: DiskNo, room: usize, unflushed: &mut bool) {
        while self.disk(disk).cleaner.blocks.len() < room {
            let Some(block) = self.disk_mut(disk).cleaner.requested.pop_front() else { break };
            if !self.pick_block(disk, block, unflushed) {
                // It is checked again after the commit or flush that it needs.
                self.disk_mut(disk).cleaner.requested.push_front(block);
                break;
            }
        }
        let mut barred_until = self.disk(disk).cleaner.barred_until;
        let (mut tried, mut next) = (0, self.store.longest_dirty(disk, barred_until));
        let mut are_barred = true;
        while let Some(segment) = next
            && tried < SEGMENTS_TRIED
            && self.disk(disk).cleaner.blocks.len() < room
        {
            match self.pick_segment(disk, segment, room, unflushed) {
                Dirty::No => {}
                Dirty::Barred => tried += 1,
                Dirty::Cleanable => (tried, are_barred) = (tried + 1, false),
            }
            if are_barred {
                barred_until = next;
            }
            next = self.store.longest_dirty(disk, next);
        }
        let now = self.now;
        let cleaner = &mut self.disk_mut(disk).cleaner;
        cleaner.barred_until = barred_until.filter(|_| next.is_some());
        if are_barred && next.is_some() {
            cleaner.next_look_us = now + BARRED_LOOK_US;
        }
    }

    /// Picks blocks from a segment. Returns which of its blocks the cleaner could write.
    fn pick_segment(&mut self, disk: DiskNo, segment: SegmentNo, room: usize, unflushed: &mut bool) -> Dirty {
        let mut found = Dirty::No;
        for number in self.store.slots_of(segment) {
            let slot = self.store.slot(number).primary();
            let Some(slot) = slot.filter(|slot| self.needs_cleaning(disk, *slot)) else { continue };
            let mut block = slot.block();
            if self.is_kept_from_cleaner(disk, block) {
                found = found.max(Dirty::Barred);
                continue;
            }
            found = Dirty::Cleanable;
            // The block and the dirty ones that follow it, wherever they are.
            while self.disk(disk).cleaner.blocks.len() < room && self.pick_block(disk, block, unflushed) {
                block = BlockNo(block.0 + 1);
            }
            if self.disk(disk).cleaner.blocks.len() >= room {
                break;
            }
        }
        found
    }

    pub(super) fn pick_block(&mut self, disk: DiskNo, block: BlockNo, unflushed: &mut bool) -> bool {
        let versions = self.resolve(disk, block);
        let Some((number, slot)) = versions.flash else { return false };
        let is_in_use = self.locks.get(disk, block).is_some() || self.is_kept_from_cleaner(disk, block);
        if !self.needs_cleaning(disk, slot) || is_in_use {
            return false;
        }
        // A staged newer version is about to replace this one, so cleaning it is useless; unless the newer version
        // waits for this version's space, or, with ordered cleaning, for this version to be clean.
        let cleaner = &self.disk(disk).cleaner;
        if !cleaner.space_needed && cleaner.order.is_none() && versions.is_staged_dirty() {
            return false;
        }
        if !self.is_cleanable(slot.seq()) {
            *unflushed = true;
            return false;
        }
        let mask = slot.mask() & self.disk(disk).inside(block);
        if mask == 0 {
            // A shrink of the disk is about to cut the block off.
            return false;
        }
        let Some(frame) = self.frames.take() else { return false };
        self.locks.lock(disk, block, LockKind::Clean);
        let cleaning =
            Cleaning { block, slot: number, seq: slot.seq(), mask, frame, good: false, staged: false };
        self.disk_mut(disk).cleaner.blocks.push(cleaning);
        true
    }

    /// Fills the round with staged blocks, for a disk that has no space on a cache device.
    fn pick_staged(&mut self, disk: DiskNo) {
        let room = (self.frames.left() / 2).min(ROUND);
        let frames: Vec<FrameNo> = self.staging.waiting(disk).take(room).collect();
        for staging_frame in frames {
            let staged = *self.staging.get(staging_frame);
            if self.commit_in_flight(staged.commit_seq) {
                continue;
            }
            if !staged.dirty {
                self.unstage(staging_frame);
                continue;
            }
            if self.is_kept_from_cleaner(disk, staged.block) {
                continue;
            }
            if self.locks.get(disk, staged.block).is_some() || !self.intent_marked(disk, staged.block) {
                continue;
            }
            // Once the frame is gone, only the record shows that other sectors of the block are lost.
            let is_lost = staged.poisoned || self.resolve_waiting(staging_frame).lost != 0;
            if is_lost && !self.has_recorded_loss(disk) {
                continue;
            }
            let inside = self.disk(disk).inside(staged.block);
            let mask = staged.mask & inside;
            if mask == 0 {
                // All sectors of the block are lost, or a shrink of the disk is about to cut the block off.
                if staged.poisoned && inside != 0 {
                    self.lose(disk, staged.block, inside);
                }
                self.unstage(staging_frame);
                continue;
            }
            let Some(frame) = self.frames.take() else { break };
            self.memory.copy(staging_frame, frame, 0, BLOCK_BYTES);
            self.locks.lock(disk, staged.block, LockKind::Clean);
            self.disk_mut(disk).cleaner.blocks.push(Cleaning {
                block: staged.block,
                slot: SlotNo(0),
                seq: staged.version,
                mask,
                frame,
                good: true,
                staged: true,
            });
        }
        self.drive_intents(disk);
    }

    fn read_round(&mut self, disk: DiskNo) {
        let count = self.disk(disk).cleaner.blocks.len();
        for at in 0..count {
            let cleaning = self.disk(disk).cleaner.blocks[at];
            if !cleaning.staged {
                self.read_cleaning(disk, at, cleaning.slot);
            }
        }
        self.round_read(disk);
    }

    fn read_cleaning(&mut self, disk: DiskNo, at: usize, slot: SlotNo) {
        let io = self.new_io(Purpose::CleanRead { at: at as u32, slot });
        self.ios[io].disk = Some(disk);
        let cleaner = &mut self.disk_mut(disk).cleaner;
        cleaner.in_flight += 1;
        let frame = cleaner.blocks[at].frame;
        self.read_slot(io, slot, frame);
    }

    pub(crate) fn clean_read_done(&mut self, io: &Io, at: u32, from: SlotNo, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the cleaner is of a disk");
        self.note_device_read(io, from, result);
        self.disk_mut(disk).cleaner.in_flight -= 1;
        let cleaning = self.disk(disk).cleaner.blocks[at as usize];
        let current = self.resolve(disk, cleaning.block).flash_of(cleaning.seq);
        if let Some((number, slot)) = current {
            let good = result.is_ok() && self.verified(disk, cleaning.block, cleaning.frame, slot.crc());
            self.disk_mut(disk).cleaner.blocks[at as usize].good = good;
            if !good {
                let mirror = self.store.mirror_of(number);
                match mirror {
                    Some(mirror) if number == from => self.read_cleaning(disk, at as usize, mirror),
                    Some(mirror) if mirror != from => self.read_cleaning(disk, at as usize, number),
                    None if number != from => self.read_cleaning(disk, at as usize, number),
                    _ if result.is_err() => {
                        self.disk_mut(disk).cleaner.failed = Some(JobError::DeviceRead);
                        self.note_unreadable(disk, slot);
                    }
                    _ => self.damaged(disk, number),
                }
            }
        }
        self.round_read(disk);
    }

    /// Writes the round if all of its blocks are read.
    fn round_read(&mut self, disk: DiskNo) {
        if self.disk(disk).cleaner.in_flight > 0 {
            return;
        }
        if !self.may_write_origin(disk) {
            self.end_round(disk, false);
            return;
        }
        let mut blocks = std::mem::take(&mut self.disk_mut(disk).cleaner.blocks);
        blocks.sort_by_key(|c| c.block);
        self.disk_mut(disk).cleaner.phase = Phase::Writing;
        let mut open: Option<Run> = None;
        for cleaning in blocks.iter_mut().filter(|c| c.good) {
            for (first, sectors) in runs(cleaning.mask) {
                let Some(permit) = self.permit_cleaning(disk, cleaning.block, cleaning.from()) else {
                    cleaning.good = false;
                    break;
                };
                let sector = self.disk(disk).sector(cleaning.block, first);
                match &mut open {
                    Some(run) if first == 0 && run.end() == sector && self.ios[run.io].frames.len() < RUN => {
                        self.ios[run.io].frames.push(cleaning.frame);
                        run.permit.join(permit);
                        run.sectors += sectors;
                    }
                    _ => {
                        let io = self.new_io(Purpose::CleanWrite);
                        self.ios[io].start = first as usize * SECTOR_BYTES;
                        self.ios[io].frames.push(cleaning.frame);
                        let before = open.replace(Run { io, permit, sector, sectors });
                        self.send_cleaning(disk, before);
                    }
                }
            }
        }
        self.send_cleaning(disk, open);
        self.disk_mut(disk).cleaner.blocks = blocks;
        if self.disk(disk).cleaner.in_flight == 0 {
            self.end_round(disk, false);
        }
    }

    fn send_cleaning(&mut self, disk: DiskNo, run: Option<Run>) {
        let Some(Run { io, permit, sector, sectors }) = run else { return };
        let d = self.disk_mut(disk);
        d.cleaner.in_flight += 1;
        d.stats.cleaned_bytes += u64::from(sectors) * SECTOR_BYTES as u64;
        self.write_origin(permit, io, sector, sectors, false);
    }

    pub(crate) fn clean_write_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the cleaner is of a disk");
        self.origin_written(disk, false);
        let d = self.disk_mut(disk);
        d.cleaner.in_flight -= 1;
        if result.is_err() {
            d.cleaner.failed = Some(JobError::Origin);
        }
        if d.cleaner.in_flight > 0 {
            return;
        }
        // Blocks that could not be read do not delay the others.
        if d.cleaner.failed == Some(JobError::Origin) {
            self.end_round(disk, false);
        } else if planted(Bug::CleanWithoutOriginFlush) {
            self.end_round(disk, true);
        } else {
            d.cleaner.phase = Phase::Flushing;
            self.flush_origin(OriginFlushReason::Clean, disk);
        }
    }

    pub(crate) fn clean_flush_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the cleaner is of a disk");
        let d = self.disk_mut(disk);
        if result.is_err() {
            d.cleaner.failed = Some(JobError::Origin);
        }
        self.end_round(disk, result.is_ok());
    }

    fn end_round(&mut self, disk: DiskNo, clean: bool) {
        let mut blocks = std::mem::take(&mut self.disk_mut(disk).cleaner.blocks);
        let mut cleaned = 0;
        for cleaning in blocks.drain(..) {
            if clean && cleaning.good && self.call_clean(disk, &cleaning) {
                cleaned += 1;
                self.note_cleaned(disk, cleaning.block);
            }
            self.free_frame(cleaning.frame, false);
            self.unlock(disk, cleaning.block);
        }
        let retry_us = self.now + self.config.clean_retry_us;
        let d = self.disk_mut(disk);
        if let Some(order) = &mut d.cleaner.order {
            order.holds_all = false;
        }
        d.cleaner.blocks = blocks;
        d.cleaner.phase = Phase::Idle;
        d.stats.cleaned_blocks += cleaned;
        d.cleaner.done_blocks += cleaned;
        d.cleaner.origin_failed =
            d.cleaner.failed == Some(JobError::Origin) || d.cleaner.origin_failed && !clean;
        if d.cleaner.failed.is_some() {
            d.cleaner.retry_us = retry_us;
            d.cleaner.failures += 1;
            d.cleaner.last_failure = d.cleaner.failed;
            self.event(Event::CleanFailed { disk });
        }
        if cleaned > 0 {
            self.wake_dormant_restages();
        }
        self.wake_dirty(disk);
        self.wake_around(disk);
        self.queue(disk);
    }

    fn call_clean(&mut self, disk: DiskNo, cleaning: &Cleaning) -> bool {
        let versions = self.resolve(disk, cleaning.block);
        if cleaning.staged {
            let written = versions.staged.filter(|s| s.version == cleaning.seq && !s.committing);
            let Some(staged) = written else { return false };
            if staged.poisoned {
                if !self.has_recorded_loss(disk) {
                    return false;
                }
                let inside = self.disk(disk).inside(cleaning.block);
                self.lose(disk, cleaning.block, inside & !cleaning.mask);
            }
            self.unstage(staged.frame);
            self.wake_staging();
            return true;
        }
        let written = versions.flash_of(cleaning.seq).filter(|(_, slot)| slot.dirty());
        let Some((number, slot)) = written else { return false };
        if slot.poisoned() && !planted(Bug::CleanDamaged) {
            self.note_valid_cleaned(disk, slot);
            return false;
        }
        self.store.cleaned(number);
        true
    }
}
