//! What the disk's admission filter is told, and what comes of its answers.
//!
//! A filter is told of each block of a read when it is looked up, and of each block of a write: when the write is
//! accepted where it would be staged, when the origin has it where it goes there first. Staged writes either enter or go
//! past the cache whole: a write goes past it if none of its blocks is cached and none may enter.

use haversack_admission::Op as Access;
use haversack_model::{BlockNo, WriteMode};

use crate::config::AdmissionConfig;
use crate::core::Core;
use crate::disk::Disk;
use crate::memory::Memory;

impl Disk {
    /// Sets which blocks may enter. What a filter of the same kind remembers stays.
    pub fn set_admission(&mut self, config: AdmissionConfig) {
        if config.is_like(&self.admission_config) {
            self.admission.resize(&config, &mut |_| {});
        } else {
            let (_, last) = self.blocks(self.sectors - 1, 1);
            self.admission = config.build(last.0 + 1);
        }
        self.admission_config = config;
    }

    /// A block was read that the cache has.
    #[inline]
    pub fn read_hit(&mut self, block: BlockNo) {
        if !self.admission_config.is_always() {
            self.admission.hit(block, Access::Read);
        }
    }

    /// Whether a block may enter that was read and that the cache has not.
    pub fn admits_read(&mut self, block: BlockNo) -> bool {
        self.mode != WriteMode::PassThrough && self.admission.miss(block, Access::Read).admit
    }

    /// Whether a block may enter, or stay, that was written past the cache.
    pub fn admits_written(&mut self, block: BlockNo, cached: bool, bypass: bool) -> bool {
        if cached {
            self.admission.hit(block, Access::Write);
        }
        cached || !bypass && self.admission.miss(block, Access::Write).admit
    }
}

impl<M: Memory> Core<M> {
    /// Whether a write that would be staged goes past the cache instead.
    pub(crate) fn filters_write(&mut self, number: u32) -> bool {
        let (disk, blocks) =
            (self.requests[number].disk, self.requests[number].next..self.requests[number].end);
        if self.disk(disk).admission_config.is_always() {
            return false;
        }
        let (mut enters, count) = (false, blocks.end - blocks.start);
        for block in blocks.map(BlockNo) {
            let cached = self.staging.find(disk, block).is_some() || self.store.lookup(disk, block).is_some();
            enters |= self.disk_mut(disk).admits_written(block, cached, false);
        }
        if !enters {
            self.disk_mut(disk).stats.not_admitted += count;
        }
        !enters
    }
}
