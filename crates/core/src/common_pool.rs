//! A pool shared by many disks: the share of each depends on how much it filled recently.
//!
//! In one queue that all disks fill and whose oldest blocks are evicted, each disk has as much as it recently
//! put in. So the share of a disk that takes part is its fraction of about the last pool-sized amount of
//! blocks that went to flash. These shares are then enforced like targets. Within its share a disk's own two
//! hands decide.
//!
//! Invariant: the filled blocks of all disks together are at most twice the pool, so old fills count less and
//! less.

use haversack_model::DiskNo;

use crate::config::Target;
use crate::core::Core;
use crate::disk::Disk;
use crate::memory::Memory;

fn shares(disk: &Disk) -> bool {
    matches!(disk.target, Target::Shared { .. })
}

impl<M: Memory> Core<M> {
    /// Notes that this many blocks of a disk went to flash.
    pub(crate) fn note_filled(&mut self, disk: DiskNo, blocks: u64) {
        if !shares(self.disk(disk)) {
            return;
        }
        self.disk_mut(disk).filled_blocks += blocks;
        let all: u64 = self.disks.iter().map(|disk| disk.filled_blocks).sum();
        if all > 2 * self.capacity_blocks() {
            self.disks.iter_mut().for_each(|disk| disk.filled_blocks /= 2);
        }
    }

    /// Returns the present share, in blocks, of a disk that shares the pool.
    pub(crate) fn shared_blocks(&self, disk: DiskNo, at_least_blocks: u64, at_most_blocks: u64) -> u64 {
        let own = |disk: &Disk| if let Target::Blocks(blocks) = disk.target { blocks } else { 0 };
        let owned: u64 = self.disks.iter().map(own).fold(0, u64::saturating_add);
        let pool = self.capacity_blocks().saturating_sub(owned);
        let sharers = || self.disks.iter().filter(|disk| shares(disk));
        let all: u64 = sharers().map(|disk| disk.filled_blocks).sum();
        let share = match all {
            0 => pool / sharers().count().max(1) as u64,
            all => (u128::from(pool) * u128::from(self.disk(disk).filled_blocks) / u128::from(all)) as u64,
        };
        share.min(at_most_blocks).max(at_least_blocks)
    }
}
