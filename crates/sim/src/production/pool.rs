//! The pool of a simulated host: its shape, creation and opening.

use haversack_core::format::geometry::SLOTS_PER_SEGMENT;
use haversack_core::{Core, CoreConfig, OpenOptions, PoolConfig, pool};
use haversack_model::{ArenaId, Micros, Uuid};

use super::media::PageMedia;
use super::memory::SimMemory;
use crate::error::SimError;
use crate::settings::Pool;

/// Staging blocks of the daemon's defaults.
const STAGING_BLOCKS: u32 = 16_384;
/// Minimum number of staging blocks that the core accepts.
const FEWEST_STAGING_BLOCKS: u32 = 64;
/// Minimum number of segments of a device.
const FEWEST_SEGMENTS: u64 = 2;

/// The shape of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolMake {
    /// Cache devices, as the cache sees them: a mirrored pair is one.
    pub devices: u32,
    /// Each of them is a pair.
    pub mirrored: bool,
    /// Segments of each device.
    pub segments: u32,
    /// Dirty blocks are written to two devices.
    pub redundancy: bool,
    /// Staging frames.
    pub staging_blocks: u32,
    /// Transfer frames.
    pub transfer_blocks: u32,
    /// The core's settings.
    pub core: CoreConfig,
}

impl PoolMake {
    /// The shape of a pool of n blocks, or up to one segment per device fewer; of half as many if they are mirrored.
    /// A size below [`PoolMake::fewest_blocks`] counts as that.
    ///
    /// # Errors
    /// It is too large.
    pub fn of(pool: &Pool, blocks: u64) -> Result<PoolMake, SimError> {
        let segments = blocks / u64::from(SLOTS_PER_SEGMENT) / u64::from(pool.devices.max(1));
        let devices = if pool.mirrored { pool.devices / 2 } else { pool.devices }.max(1);
        let segments = u32::try_from(segments.max(FEWEST_SEGMENTS)).map_err(|_| {
            SimError::Settings(format!("a pool of {blocks} blocks is larger than the core takes"))
        })?;
        let some = u32::try_from(blocks / 64).unwrap_or(u32::MAX);
        let some = some.clamp(FEWEST_STAGING_BLOCKS, STAGING_BLOCKS);
        Ok(PoolMake {
            devices,
            segments,
            mirrored: pool.mirrored,
            redundancy: pool.redundancy,
            staging_blocks: pool.staging_blocks.unwrap_or(some),
            transfer_blocks: pool.transfer_blocks,
            core: CoreConfig { share_spare: pool.share_spare, ..CoreConfig::default() },
        })
    }

    /// The smallest size of a pool with as many devices.
    pub fn fewest_blocks(pool: &Pool) -> u64 {
        FEWEST_SEGMENTS * u64::from(SLOTS_PER_SEGMENT) * u64::from(pool.devices.max(1))
    }

    /// Devices that serve I/Os.
    pub fn stations(&self) -> usize {
        self.devices as usize * if self.mirrored { 2 } else { 1 }
    }

    /// Segments of all devices.
    pub fn all_segments(&self) -> u64 {
        u64::from(self.segments) * u64::from(self.devices)
    }

    /// Number of blocks that fit.
    pub fn capacity_blocks(&self) -> u64 {
        self.all_segments() * u64::from(SLOTS_PER_SEGMENT)
    }

    /// The most blocks that the pool can hold at a time: in its slots, and in its staging area.
    pub fn held_blocks(&self) -> u64 {
        self.capacity_blocks() + u64::from(self.staging_blocks)
    }

    /// The devices of a new pool. `host` distinguishes the pools of several hosts.
    ///
    /// # Errors
    /// The pool is refused.
    pub fn create(&self, host: u8) -> Result<PageMedia, SimError> {
        let mut media = PageMedia::new(self.devices, pool::device_bytes(self.segments));
        let id = |device: u32| Uuid([16 * host + device as u8 + 1; 16]);
        let config = PoolConfig {
            arena: ArenaId::first(Uuid([0x70 + host; 16])),
            arenas: 1,
            device_ids: (0..self.devices).map(id).collect(),
            redundancy: self.redundancy,
            prepared_segments: u32::MAX,
        };
        pool::create(&mut media, &config)?;
        Ok(media)
    }

    /// Empty memory for the pool.
    pub fn memory<M: SimMemory>(&self) -> M {
        M::of(self.staging_blocks, self.transfer_blocks)
    }

    /// Opens the pool.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub fn open<M: SimMemory>(
        &self,
        media: &mut PageMedia,
        memory: &mut M,
        now: Micros,
    ) -> Result<Core, SimError> {
        let (core, _) = Core::open(media, memory, self.core, &OpenOptions::default(), now)?;
        Ok(core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_whole_segments_and_the_staging_area() {
        let of = |pool: &Pool, blocks| {
            let make = PoolMake::of(pool, blocks).unwrap();
            (make.capacity_blocks(), make.held_blocks())
        };
        let one = Pool::default();
        assert_eq!(PoolMake::fewest_blocks(&one), 506);
        assert_eq!(of(&one, 1), (506, 570));
        assert_eq!(of(&one, 506), (506, 570));
        assert_eq!(of(&one, 2000), (1771, 1835));
        assert_eq!(of(&one, 13_758), (13_662, 13_876));
        let three = Pool { devices: 3, staging_blocks: Some(100), ..Pool::default() };
        assert_eq!((PoolMake::fewest_blocks(&three), of(&three, 1)), (1518, (1518, 1618)));
    }
}
