//! Calls of the disk's admission filter, and the effects of its answers.
//!
//! Blocks that a filter lets in are staged. Blocks that it does not let in but wants to keep go to the data
//! stage, if a staging frame is free. Later reads are served from there until the filter lets the block in or
//! forgets it.
//!
//! A filter sees each block of a read when it is looked up. It sees each block of a write when the write is
//! accepted, if it would be staged, or when the origin has it, if it goes there first. A staged write either
//! enters the cache or goes past it as a whole: it goes past if none of its blocks is cached and none may
//! enter.

use haversack_admission::{Access, Malformed, Op as Kind, Verdict};
use haversack_model::{BlockNo, DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK, WriteMode};

use crate::action::Op;
use crate::bugs::{Bug, planted};
use crate::config::{AdmissionConfig, Target};
use crate::core::{Call, Core};
use crate::disk::runs;
use crate::fill_share::FillShare;
use crate::memory::{FrameNo, Memory};

impl Core {
    /// Sets which blocks of a disk may enter. The memory of a filter of the same kind stays.
    pub(crate) fn change_admission(&mut self, disk: DiskNo, config: AdmissionConfig) {
        let staging = &mut self.staging;
        let d = &mut self.disks[disk];
        if config.is_like(&d.admission_config) {
            d.admission.resize(&config, &mut |block| staging.drop_data(disk, block));
        } else {
            staging.drop_all_data(disk);
            let (_, last) = d.blocks(d.sectors - 1, 1);
            d.admission = config.build(last.0 + 1);
        }
        d.admission_config = config;
        if !self.disk(disk).admission_config.needs_stay() {
            self.store.stop_aging(disk);
        }
    }

    /// Returns the state of a disk's learning admission filter, with or without the last accesses that it remembers;
    /// `None` if the filter does not learn. [`Core::resume_admission`] continues from it after a restart.
    /// docs/format.md describes the bytes. This allocates.
    pub fn saved_admission(&self, disk: DiskNo, with_accesses: bool) -> Option<Vec<u8>> {
        let filter = self.disks.get(disk)?.admission.saved(self.store.clock(), with_accesses)?;
        let mut bytes = self.store.saved_stay(disk).to_vec();
        bytes.extend(filter);
        Some(bytes)
    }

    /// Continues from what a disk's admission filter had learned. Returns false if its filter does not learn.
    ///
    /// # Errors
    /// The bytes are not what [`Core::saved_admission`] returned; nothing was changed.
    pub fn resume_admission(&mut self, disk: DiskNo, saved: &[u8]) -> Result<bool, Malformed> {
        let (stay, filter) = saved.split_first_chunk().ok_or(Malformed)?;
        let now = self.store.clock();
        let Some(d) = self.disks.get_mut(disk) else { return Ok(false) };
        let resumed = d.admission.resume(filter, now)?;
        if resumed {
            self.store.resume_stay(disk, stay);
        }
        Ok(resumed)
    }

    /// Returns a request's access to a block as filters see it.
    fn access(&mut self, number: u32, block: BlockNo) -> Access {
        let request = &self.requests[number];
        let kind = if request.op == Op::Read { Kind::Read } else { Kind::Write };
        let blocks = request.sectors.div_ceil(SECTORS_PER_BLOCK as u32);
        if !self.disk(request.disk).admission_config.needs_stay() {
            return Access { blocks, ..kind.into() };
        }
        let (disk, continues) = (request.disk, request.continues);
        let prices = self.disk(disk).origin_latency.prices(self.config.write_price_us);
        let mut access = Access { blocks, continues, prices, ..Access::from(kind) };
        if kind == Kind::Write && self.disk(disk).mode.defers_origin() {
            access.waits_us = self.disk(disk).origin_latency.measured_write_us();
        }
        let used = self.store.note_use(disk, block, access.saved_us());
        (access.now, access.stay) = (used.now, used.stay);
        (access.prices.space_us, access.prices.strictness) = (used.space_us, used.strictness);
        access
    }

    /// Called when a request read a block that the cache has.
    #[inline]
    pub(crate) fn read_hit(&mut self, number: u32, block: BlockNo) {
        let disk = self.requests[number].disk;
        if !self.disk(disk).admission_config.is_always() {
            let access = self.access(number, block);
            self.disk_mut(disk).admission.hit(block, access);
        }
    }

    /// Whether nothing of the disk may enter, regardless of its filter: it is capped to no blocks.
    fn is_kept_out(&self, disk: DiskNo) -> bool {
        self.disk(disk).target == Target::Capped(0)
    }

    /// Asks the filter about a block that the cache does not have. Data of the block that it forgets is
    /// dropped.
    fn miss(&mut self, number: u32, block: BlockNo) -> Verdict {
        let (disk, access) = (self.requests[number].disk, self.access(number, block));
        let mut verdict = self.disk_mut(disk).admission.miss(block, access);
        verdict.admit &= !self.is_kept_out(disk);
        if verdict.protect {
            self.store.protect_in_advance(disk, block);
        }
        if let Some(forgotten) = verdict.forget {
            self.staging.drop_data(disk, forgotten);
        }
        verdict
    }

    /// Records, for a learning filter, that it has rejected a block.
    fn note_kept_out(&mut self, disk: DiskNo, block: BlockNo) {
        if self.disk(disk).admission_config.needs_stay() {
            self.store.note_kept_out(disk, block);
        }
    }

    /// Whether a block that a request reads, and that the cache does not have, may enter.
    pub(crate) fn admits_read(&mut self, number: u32, block: BlockNo) -> bool {
        let (disk, bypass) = (self.requests[number].disk, self.requests[number].bypass);
        let asks = !bypass && self.disk(disk).mode != WriteMode::PassThrough;
        let is_wanted = asks && self.miss(number, block).admit;
        if asks && !is_wanted {
            self.note_kept_out(disk, block);
        }
        let admit = is_wanted && self.may_fill(disk, block);
        self.disk_mut(disk).stats.not_admitted += u64::from(!admit);
        admit && self.store.usable_devices().next().is_some()
    }

    /// Whether the budget of flash writes allows a clean copy of a block on flash. Always true for a learning filter,
    /// which weighs the price of a write itself.
    pub(crate) fn may_fill(&self, disk: DiskNo, block: BlockNo) -> bool {
        FillShare::new(self.config.fill_share).lets_in(disk, block)
            || self.disk(disk).admission_config.needs_stay()
    }

    /// Whether a block that was written past the cache may enter or stay.
    pub(crate) fn admits_written(&mut self, number: u32, block: BlockNo, cached: bool, bypass: bool) -> bool {
        if cached {
            let (disk, access) = (self.requests[number].disk, self.access(number, block));
            self.disk_mut(disk).admission.hit(block, access);
        }
        cached || !bypass && self.miss(number, block).admit
    }

    /// Drops a block from the data stage, since it gets newer content or enters the cache.
    pub(crate) fn drop_data(&mut self, disk: DiskNo, block: BlockNo) {
        if !planted(Bug::StaleDataStage) {
            self.staging.drop_data(disk, block);
        }
    }

    /// Whether a write that would be staged goes past the cache instead, because none of its blocks may
    /// enter.
    pub(crate) fn filters_write(&mut self, number: u32) -> bool {
        let (disk, blocks) =
            (self.requests[number].disk, self.requests[number].next..self.requests[number].end);
        if self.disk(disk).admission_config.is_always() && !self.is_kept_out(disk) {
            return false;
        }
        let (mut enters, count) = (false, blocks.end - blocks.start);
        for block in blocks.clone().map(BlockNo) {
            let cached = self.resolve(disk, block).is_cached();
            enters |= self.admits_written(number, block, cached, false);
        }
        if !enters {
            self.disk_mut(disk).stats.not_admitted += count;
            blocks.map(BlockNo).for_each(|block| self.note_kept_out(disk, block));
        }
        !enters
    }
}

impl<M: Memory> Call<'_, M> {
    /// Handles a block that was served from the data stage: it may enter now.
    pub(crate) fn data_stage_hit(&mut self, number: u32, block: BlockNo) {
        let disk = self.requests[number].disk;
        self.disk_mut(disk).stats.data_stage_hits += 1;
        // Take the data before asking the filter: asking drops the data of blocks that the filter admits.
        let (frame, mask) = self.staging.take_data(disk, block).expect("it was just read");
        let admit = self.admits_read(number, block);
        if admit && self.staging.free() >= self.spare_frames() {
            self.stage(disk, block, frame, mask, false);
            self.queue_if_due(disk);
        } else if admit {
            self.disk_mut(disk).stats.fills_skipped += 1;
            self.staging.give_back(frame);
        } else if self.disk(disk).admission.stages(block) {
            self.staging.keep_data(disk, block, frame, mask);
        } else {
            self.staging.give_back(frame);
        }
    }

    /// Whether the filter may want the data of a block that a request reads and that may not enter.
    pub(crate) fn may_keep_data(&self, number: u32, block: BlockNo) -> bool {
        let request = &self.requests[number];
        !request.bypass && self.disk(request.disk).admission.stages(block)
    }

    /// Keeps data that a read fetched of a block that may not enter, if the filter wants it.
    pub(crate) fn keep_data(&mut self, disk: DiskNo, block: BlockNo, from: FrameNo, mask: u8) {
        // If the lost dirty sectors of a block came back after a crash, clean sectors cached now would supersede them.
        let versions = self.resolve(disk, block);
        let wanted = !versions.is_cached() && versions.lost == 0 && self.disk(disk).admission.stages(block);
        if !wanted || self.staging.free() <= self.spare_frames() {
            return;
        }
        let Some(frame) = self.staging.allocate() else { return };
        for (first, count) in runs(mask) {
            self.memory.copy(from, frame, first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
        }
        self.staging.keep_data(disk, block, frame, mask);
    }
}
