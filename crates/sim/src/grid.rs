//! The grids of the volumes' blocks: which blocks an access touches.
//!
//! A disk's grid may begin up to seven sectors before the disk, so that its blocks are those of a guest's partition that
//! is not aligned. The production cache has such grids; here the reference policies, the bounds and the footprint have
//! the same, so that all of them count the same blocks.

use std::ops::{Range, RangeInclusive};

use haversack_core::DiskConfig;
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK};
use haversack_trace::{Access, VolumeNo};

use crate::key::Key;
use crate::mix::is_of;
use crate::settings::Settings;

/// See the module.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Grids {
    block_bytes: u64,
    /// The phase of volumes without their own, in sectors.
    phase: u8,
    /// The phases of disks, by name.
    of_disks: Vec<(String, u8)>,
    /// How many bytes before its volume each grid begins, for the volumes that are known.
    shifts_bytes: Vec<u64>,
}

impl Grids {
    /// The grids of these settings. The volumes are not known yet.
    pub fn of(settings: &Settings) -> Grids {
        let own = settings.pool.disks.iter().map(|disk| (disk.name.clone(), disk.phase));
        Grids::new(settings.block_bytes, settings.pool.phase, own.collect())
    }

    /// Grids with this phase, except of disks with their own.
    pub(crate) fn new(block_bytes: u64, phase: u8, of_disks: Vec<(String, u8)>) -> Grids {
        Grids { block_bytes, phase, of_disks, shifts_bytes: Vec::new() }
    }

    /// The grids of the production cache's disks, which are the volumes in order.
    pub(crate) fn of_volumes(disks: &[DiskConfig]) -> Grids {
        let mut grids = Grids::new(BLOCK_BYTES as u64, 0, Vec::new());
        grids.shifts_bytes = disks.iter().map(|disk| grids.shift_bytes(disk.phase)).collect();
        grids
    }

    /// Sets the phases of volumes that have been found since the last call. Takes the names of all volumes found so far.
    pub fn name(&mut self, volumes: &[String]) {
        for name in volumes.iter().skip(self.shifts_bytes.len()) {
            let own = self.of_disks.iter().find(|(disk, _)| is_of(name, disk));
            let phase = own.map_or(self.phase, |(_, phase)| *phase);
            self.shifts_bytes.push(self.shift_bytes(phase));
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The blocks that an access touches.
    pub fn blocks(&self, access: &Access) -> RangeInclusive<u64> {
        self.shifted(access).blocks(self.block_bytes)
    }

    /// The blocks that an access covers completely. Of the first block it need only cover what is in the volume.
    pub fn whole_blocks(&self, access: &Access) -> Range<u64> {
        let shifted = self.shifted(access);
        let first =
            if access.offset_bytes == 0 { 0 } else { shifted.offset_bytes.div_ceil(self.block_bytes) };
        let end = shifted.offset_bytes.saturating_add(u64::from(access.length_bytes)) / self.block_bytes;
        first..end.max(first)
    }

    /// The block of a sector.
    pub(crate) fn key(&self, volume: VolumeNo, sector: u64) -> Key {
        let offset_bytes = sector * SECTOR_BYTES as u64;
        let access = Access { volume, offset_bytes, length_bytes: 1, ..Access::default() };
        Key::new(volume, *self.blocks(&access).start())
    }

    /// Where a block begins in its volume. The first one begins with it.
    pub(crate) fn start_bytes(&self, volume: VolumeNo, block: u64) -> u64 {
        (block * self.block_bytes).saturating_sub(self.shift_bytes_of(volume))
    }

    /// The access as it is on a grid that begins at 0.
    pub(crate) fn shifted(&self, access: &Access) -> Access {
        let shift_bytes = self.shift_bytes_of(access.volume);
        Access { offset_bytes: access.offset_bytes.saturating_add(shift_bytes), ..*access }
    }

    fn shift_bytes_of(&self, volume: VolumeNo) -> u64 {
        let known = self.shifts_bytes.get(volume.0 as usize).copied();
        known.unwrap_or_else(|| self.shift_bytes(self.phase))
    }

    /// How many bytes before its volume a grid of this phase begins.
    fn shift_bytes(&self, phase: u8) -> u64 {
        let start_bytes = u64::from(phase) % SECTORS_PER_BLOCK * SECTOR_BYTES as u64;
        (self.block_bytes - start_bytes % self.block_bytes) % self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(volume: u32, sector: u64, sectors: u32) -> Access {
        Access {
            offset_bytes: sector * 512,
            length_bytes: sectors * 512,
            volume: VolumeNo(volume),
            ..Access::default()
        }
    }

    fn named(block_bytes: u64) -> Grids {
        let mut grids = Grids::new(block_bytes, 7, vec![("own".into(), 0)]);
        grids.name(&["plain".into()]);
        grids.name(&["plain".into(), "own/1".into()]);
        grids
    }

    #[test]
    fn blocks_begin_at_the_phase_of_their_volume() {
        let grids = named(4096);
        assert_eq!(grids.blocks(&access(0, 7, 8)), 1..=1);
        assert_eq!(grids.blocks(&access(0, 6, 2)), 0..=1);
        assert_eq!(grids.blocks(&access(1, 7, 8)), 0..=1);
        assert_eq!([0, 1, 2].map(|block| grids.start_bytes(VolumeNo(0), block)), [0, 7 * 512, 15 * 512]);
        assert_eq!(named(512).blocks(&access(0, 7, 1)), 7..=7);
        assert_eq!(named(8192).blocks(&access(0, 7, 16)), 1..=1);
    }

    #[test]
    fn whole_blocks_are_those_that_are_covered() {
        let grids = named(4096);
        assert_eq!(grids.whole_blocks(&access(0, 7, 16)), 1..3);
        assert_eq!(grids.whole_blocks(&access(0, 0, 7)), 0..1, "the first block has only seven sectors");
        assert_eq!(grids.whole_blocks(&access(0, 1, 7)), 1..1);
        assert_eq!(grids.whole_blocks(&access(1, 7, 16)), 1..2);
        assert!(grids.whole_blocks(&access(1, 1, 3)).is_empty());
    }
}
