//! Checks that reads return the last write: for each sector the version that had been acknowledged when the
//! read arrived, or a newer one. Concurrent writes of a sector may be carried out in any order.

use haversack_model::SectorNo;
use haversack_trace::VolumeNo;

use super::content::{Block, SECTORS, Version, places};
use crate::key::{Key, NumberMap};

/// The known versions of each sector of a block.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The oldest version that a read may return.
    oldest: [Version; SECTORS],
    /// The newest version that was written.
    newest: [Version; SECTORS],
    /// Writes in flight, and the oldest of these that overlap.
    in_flight: [u16; SECTORS],
    first: [Version; SECTORS],
}

/// See the module.
#[derive(Default)]
pub struct Checker {
    blocks: NumberMap<Known>,
    versions: Version,
    /// Sectors compared so far.
    pub checked_sectors: u64,
}

/// A read returned a version that is not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("sector {sector} has version {found}, expected one from {oldest} to {newest}")]
pub struct Wrong {
    /// The sector.
    pub sector: u64,
    /// The version that it returned.
    pub found: Version,
    /// The oldest one allowed.
    pub oldest: Version,
    /// The newest one allowed.
    pub newest: Version,
}

impl Checker {
    /// Records the start of a write; returns its version.
    pub fn begins_write(&mut self, volume: VolumeNo, first: SectorNo, sectors: usize) -> Version {
        self.versions += 1;
        for (key, at) in places(volume, first, sectors) {
            let known = self.blocks.entry(key).or_default();
            known.newest[at] = self.versions;
            if known.in_flight[at] == 0 {
                known.first[at] = self.versions;
            }
            known.in_flight[at] += 1;
        }
        self.versions
    }

    /// Records the completion of a write.
    pub fn ends_write(&mut self, volume: VolumeNo, first: SectorNo, sectors: usize) {
        for (key, at) in places(volume, first, sectors) {
            let known = self.blocks.entry(key).or_default();
            known.oldest[at] = known.first[at];
            known.in_flight[at] -= 1;
        }
    }

    /// Records that a write was refused and will be submitted again.
    pub fn takes_back_write(&mut self, volume: VolumeNo, first: SectorNo, sectors: usize) {
        for (key, at) in places(volume, first, sectors) {
            self.blocks.entry(key).or_default().in_flight[at] -= 1;
        }
    }

    /// Records that sectors were discarded, or are about to be: their content is undefined.
    pub fn discarded(&mut self, volume: VolumeNo, first: SectorNo, sectors: usize) {
        for (key, at) in places(volume, first, sectors) {
            if let Some(known) = self.blocks.get_mut(&key) {
                known.oldest[at] = 0;
            }
        }
    }

    /// Records the start of a read; returns the oldest versions allowed, for [`Checker::ends_read`].
    pub fn begins_read(&self, volume: VolumeNo, first: SectorNo, sectors: usize) -> Vec<Version> {
        let oldest = |(key, at): (u64, usize)| self.blocks.get(&key).map_or(0, |known| known.oldest[at]);
        places(volume, first, sectors).map(oldest).collect()
    }

    /// Checks a read that returned these versions.
    ///
    /// # Errors
    /// The first sector that is wrong.
    pub fn ends_read(
        &mut self,
        volume: VolumeNo,
        first: SectorNo,
        oldest: &[Version],
        found: &[Version],
    ) -> Result<(), Wrong> {
        self.checked_sectors += found.len() as u64;
        for (((key, at), oldest), found) in places(volume, first, found.len()).zip(oldest).zip(found) {
            let newest = self.blocks.get(&key).map_or(0, |known| known.newest[at]);
            if !(*oldest..=newest).contains(found) {
                let sector = Key(key).block() * SECTORS as u64 + at as u64;
                return Err(Wrong { sector, found: *found, oldest: *oldest, newest });
            }
        }
        Ok(())
    }

    /// The blocks of a volume that were ever written, with the oldest version that a read of each sector may
    /// return now.
    pub fn answered(&self, volume: VolumeNo) -> impl Iterator<Item = (u64, Block)> + '_ {
        let blocks = self.blocks.iter().map(|(key, known)| (Key(*key), known.oldest));
        blocks.filter(move |(key, _)| key.volume() == volume).map(|(key, oldest)| (key.block(), oldest))
    }

    /// The numbers of these blocks, in order.
    pub fn written_blocks(&self, volume: VolumeNo) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.answered(volume).map(|(block, _)| block).collect();
        blocks.sort_unstable();
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeNo = VolumeNo(3);

    #[test]
    fn a_read_sees_what_was_answered_or_what_is_being_written() {
        let mut checker = Checker::default();
        let first = checker.begins_write(VOLUME, SectorNo(8), 2);
        checker.ends_write(VOLUME, SectorNo(8), 2);
        let second = checker.begins_write(VOLUME, SectorNo(9), 2);
        let oldest = checker.begins_read(VOLUME, SectorNo(8), 3);
        assert_eq!(oldest, [first, first, 0]);
        let mut read = |found: [Version; 3]| checker.ends_read(VOLUME, SectorNo(8), &oldest, &found);
        assert_eq!(read([first, first, 0]), Ok(()));
        assert_eq!(read([first, second, second]), Ok(()));
        let wrong = Wrong { sector: 9, found: 0, oldest: first, newest: second };
        assert_eq!(read([first, 0, 0]), Err(wrong), "an older version");
        let wrong = Wrong { sector: 8, found: second, oldest: first, newest: first };
        assert_eq!(read([second, second, 0]), Err(wrong), "a version of another sector");
        assert_eq!(checker.written_blocks(VOLUME), [1]);
        assert!(checker.written_blocks(VolumeNo(2)).is_empty());
    }

    #[test]
    fn writes_in_flight_together_may_end_in_any_order() {
        let mut checker = Checker::default();
        let read = |checker: &mut Checker, found: Version| {
            let oldest = checker.begins_read(VOLUME, SectorNo(0), 1);
            checker.ends_read(VOLUME, SectorNo(0), &oldest, &[found]).is_ok()
        };
        let first = checker.begins_write(VOLUME, SectorNo(0), 1);
        let second = checker.begins_write(VOLUME, SectorNo(0), 1);
        assert!(read(&mut checker, 0));
        checker.ends_write(VOLUME, SectorNo(0), 1);
        checker.ends_write(VOLUME, SectorNo(0), 1);
        assert!(read(&mut checker, first) && read(&mut checker, second) && !read(&mut checker, 0));
        let third = checker.begins_write(VOLUME, SectorNo(0), 1);
        assert!(read(&mut checker, second) && read(&mut checker, third));
        checker.ends_write(VOLUME, SectorNo(0), 1);
        assert!(!read(&mut checker, second) && read(&mut checker, third));
        checker.begins_write(VOLUME, SectorNo(0), 1);
        checker.takes_back_write(VOLUME, SectorNo(0), 1);
        let last = checker.begins_write(VOLUME, SectorNo(0), 1);
        checker.ends_write(VOLUME, SectorNo(0), 1);
        assert!(!read(&mut checker, third) && read(&mut checker, last));
    }

    #[test]
    fn what_was_discarded_may_be_anything_until_it_is_written() {
        let mut checker = Checker::default();
        let first = checker.begins_write(VOLUME, SectorNo(0), 1);
        checker.ends_write(VOLUME, SectorNo(0), 1);
        checker.discarded(VOLUME, SectorNo(0), 1);
        let oldest = checker.begins_read(VOLUME, SectorNo(0), 1);
        assert_eq!(checker.ends_read(VOLUME, SectorNo(0), &oldest, &[0]), Ok(()));
        checker.begins_write(VOLUME, SectorNo(0), 1);
        checker.ends_write(VOLUME, SectorNo(0), 1);
        let oldest = checker.begins_read(VOLUME, SectorNo(0), 1);
        assert!(checker.ends_read(VOLUME, SectorNo(0), &oldest, &[first]).is_err());
    }
}
