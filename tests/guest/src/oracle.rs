//! What each sector of a disk, or of a part of it, may hold.
//!
//! A sector has one version; or it was discarded, and has that version or zeroes; or a write to it failed, and its
//! version is unknown. Versions only increase, so data from before a discard or a write of zeroes never looks new.

use crate::pattern::{self, Found, SECTOR_BYTES};

/// The sector was discarded: zeroes are right as well.
const DISCARDED: u32 = 1 << 31;
/// Nothing is known of the sector except that it is one of its own versions.
const UNKNOWN: u32 = u32::MAX;

/// A sector that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sector {sector}: found {found}, expected {expected}")]
pub struct Wrong {
    /// The sector.
    pub sector: u64,
    /// What was read.
    pub found: Found,
    /// What may be read.
    pub expected: String,
}

/// What a disk holds before anything is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Zeroes.
    Zeroes,
    /// The pattern's version 1 in every sector.
    Pattern,
    /// Any version of every sector, for a disk that was written by an earlier guest.
    Unknown,
}

/// The oracle of neighbouring sectors.
#[derive(Debug)]
pub struct Oracle {
    key: u64,
    first_sector: u64,
    states: Vec<u32>,
    /// The newest version given out.
    newest: u32,
}

impl Oracle {
    /// The oracle of a whole disk.
    pub fn new(key: u64, sectors: u64, start: Start) -> Self {
        let (state, newest) = match start {
            Start::Zeroes => (0, 0),
            Start::Pattern => (1, 1),
            Start::Unknown => (UNKNOWN, 1 << 24),
        };
        Self { key, first_sector: 0, states: vec![state; sectors as usize], newest }
    }

    /// The sectors that this oracle knows.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.first_sector..self.first_sector + self.states.len() as u64
    }

    /// Makes `parts` oracles of one; each but the last has a multiple of `unit` sectors.
    pub fn split(mut self, parts: usize, unit: usize) -> Vec<Self> {
        let each = self.states.len() / parts / unit * unit;
        let mut tails: Vec<Self> = (1..parts)
            .rev()
            .map(|part| Self {
                key: self.key,
                first_sector: self.first_sector + (part * each) as u64,
                states: self.states.split_off(part * each),
                newest: self.newest,
            })
            .collect();
        tails.push(self);
        tails.reverse();
        tails
    }

    /// Undoes [`Oracle::split`].
    ///
    /// # Panics
    /// If there are no parts.
    pub fn join(parts: Vec<Self>) -> Self {
        parts
            .into_iter()
            .reduce(|mut whole, part| {
                whole.states.extend(part.states);
                whole.newest = whole.newest.max(part.newest);
                whole
            })
            .expect("an oracle splits into at least one")
    }

    /// The disk has `sectors` now; those that are new are zeroes.
    pub fn grow(&mut self, sectors: u64) {
        let known = self.states.len();
        self.states.resize(known.max((sectors - self.first_sector) as usize), 0);
    }

    fn states(&mut self, first: u64, sectors: usize) -> &mut [u32] {
        let at = (first - self.first_sector) as usize;
        &mut self.states[at..at + sectors]
    }

    /// Fills `bytes` with a new version of their sectors and returns it. Nothing is known of these sectors until
    /// [`Oracle::wrote`].
    pub fn next(&mut self, first: u64, bytes: &mut [u8]) -> u32 {
        self.newest += 1;
        pattern::fill(bytes, self.key, first, self.newest);
        self.forget(first, bytes.len() / SECTOR_BYTES);
        self.newest
    }

    /// The write of [`Oracle::next`] has succeeded.
    pub fn wrote(&mut self, first: u64, sectors: usize, version: u32) {
        self.states(first, sectors).fill(version);
    }

    /// Nothing is known of these sectors any more.
    pub fn forget(&mut self, first: u64, sectors: usize) {
        self.states(first, sectors).fill(UNKNOWN);
    }

    /// These sectors are zeroes.
    pub fn zeroed(&mut self, first: u64, sectors: usize) {
        self.states(first, sectors).fill(0);
    }

    /// These sectors were discarded.
    pub fn discarded(&mut self, first: u64, sectors: usize) {
        for state in self.states(first, sectors) {
            *state |= if *state == UNKNOWN { 0 } else { DISCARDED };
        }
    }

    /// Compares what was read from sector `first` on. If a sector could have several contents, the one
    /// that was read is the only valid one from then on.
    ///
    /// # Errors
    /// The first sector that is wrong.
    pub fn check(&mut self, first: u64, bytes: &[u8]) -> Result<(), Wrong> {
        let key = self.key;
        let states = self.states(first, bytes.len() / SECTOR_BYTES);
        for ((sector, bytes), state) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)).zip(states) {
            let found = pattern::identify(bytes, key, sector);
            let allowed = match &found {
                Found::Version(version) => {
                    *state == UNKNOWN
                        || *version == *state & !DISCARDED
                        || (*version == 0 && *state & DISCARDED != 0)
                }
                Found::Foreign(_) => false,
            };
            match found {
                Found::Version(version) if allowed => *state = version,
                _ => return Err(Wrong { sector, found, expected: describe(*state) }),
            }
        }
        Ok(())
    }
}

fn describe(state: u32) -> String {
    match state {
        UNKNOWN => "any version of this sector".into(),
        state if state & DISCARDED != 0 => format!("zeroes or version {}", state & !DISCARDED),
        state => Found::Version(state).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(oracle: &mut Oracle, first: u64, sectors: usize) -> Vec<u8> {
        let mut bytes = vec![0; sectors * SECTOR_BYTES];
        let version = oracle.next(first, &mut bytes);
        oracle.wrote(first, sectors, version);
        bytes
    }

    #[test]
    fn only_the_newest_version_is_right() {
        let mut oracle = Oracle::new(7, 64, Start::Zeroes);
        let old = written(&mut oracle, 8, 4);
        oracle.check(8, &old).unwrap();
        let new = written(&mut oracle, 9, 2);
        assert_eq!(oracle.check(8, &old).unwrap_err().sector, 9, "stale data");
        oracle.check(9, &new).unwrap();
        assert!(oracle.check(9, &[0; SECTOR_BYTES]).is_err(), "lost data");
        oracle.zeroed(9, 1);
        assert!(oracle.check(9, &new[..SECTOR_BYTES]).is_err(), "zeroes that did not arrive");
        let newest = written(&mut oracle, 9, 1);
        assert_ne!(newest, new[..SECTOR_BYTES], "versions only grow");
    }

    #[test]
    fn a_discarded_sector_reads_as_old_or_zero_but_always_the_same() {
        for settles_on_zeroes in [false, true] {
            let mut oracle = Oracle::new(7, 64, Start::Zeroes);
            let data = written(&mut oracle, 0, 1);
            let zeroes = vec![0; SECTOR_BYTES];
            oracle.discarded(0, 1);
            let (first, second) = if settles_on_zeroes { (zeroes, data) } else { (data, zeroes) };
            oracle.check(0, &first).unwrap();
            assert!(oracle.check(0, &second).is_err());
        }
    }

    #[test]
    fn a_failed_write_leaves_one_of_the_sectors_versions() {
        let mut oracle = Oracle::new(7, 64, Start::Zeroes);
        let old = written(&mut oracle, 5, 1);
        let mut new = vec![0; SECTOR_BYTES];
        oracle.next(5, &mut new);
        oracle.check(5, &old).unwrap();
        assert!(oracle.check(5, &new).is_err(), "it has changed its mind");
    }

    #[test]
    fn a_grown_disk_ends_in_zeroes() {
        let mut oracle = Oracle::new(7, 8, Start::Pattern);
        oracle.grow(10);
        oracle.grow(9);
        assert_eq!(oracle.range(), 0..10);
        oracle.check(8, &[0; 2 * SECTOR_BYTES]).unwrap();
        assert!(oracle.check(7, &[0; SECTOR_BYTES]).is_err(), "it was there before");
    }

    #[test]
    fn parts_join_to_the_whole() {
        let mut oracle = Oracle::new(7, 61, Start::Zeroes);
        let data = written(&mut oracle, 10, 30);
        let parts = oracle.split(3, 8);
        assert_eq!(parts.iter().map(Oracle::range).collect::<Vec<_>>(), [0..16, 16..32, 32..61]);
        let mut joined = Oracle::join(parts);
        assert_eq!(joined.range(), 0..61);
        joined.check(10, &data).unwrap();
    }
}
