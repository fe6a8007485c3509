//! What each sector of a disk may read as. Every write has a stamp. The content of a sector identifies the stamp, the
//! sector and the disk. If writes overlap in time, any of them may be the last; the first read determines which.

use haversack_model::SECTOR_BYTES;

/// The write that a sector shows. [`ZERO`] and [`ORIGINAL`] are not writes.
pub type Stamp = u32;

pub const ZERO: Stamp = 0;
/// What the origin had at first.
pub const ORIGINAL: Stamp = 1;

/// The content of a sector.
pub fn content(disk: usize, sector: u64, stamp: Stamp) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if stamp != ZERO {
        let word = u64::from(stamp) << 40 | (disk as u64) << 32 | sector;
        for (at, place) in bytes.chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&(word ^ (at as u64) << 56).to_le_bytes());
        }
    }
    bytes
}

/// The contents of many sectors.
pub fn contents(disk: usize, sector: u64, sectors: u32, stamp: Stamp) -> Vec<u8> {
    (sector..sector + u64::from(sectors)).flat_map(|s| content(disk, s, stamp)).collect()
}

/// The stamp of a sector, which must be whole, of this disk and of this place.
pub fn stamp(disk: usize, sector: u64, bytes: &[u8]) -> Stamp {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let stamp = (word >> 40) as Stamp;
    assert!(bytes == content(disk, sector, stamp), "disk {disk} sector {sector} shows foreign or torn data");
    stamp
}

#[derive(Clone, Copy, Debug)]
struct Version {
    stamp: Stamp,
    began: u64,
    ended: Option<u64>,
}

/// The sectors of one disk.
pub struct Sectors {
    disk: usize,
    clock: u64,
    versions: Vec<Vec<Version>>,
}

impl Sectors {
    pub fn new(disk: usize, sectors: u64, stamp: Stamp) -> Sectors {
        let mut new = Sectors { disk, clock: 0, versions: Vec::new() };
        new.resize(sectors, stamp);
        new
    }

    pub fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Changes the size; new sectors show `stamp`.
    pub fn resize(&mut self, sectors: u64, stamp: Stamp) {
        self.versions.resize(sectors as usize, vec![Version { stamp, began: 0, ended: Some(0) }]);
    }

    /// A write begins.
    pub fn begin(&mut self, sector: u64, sectors: u32, stamp: Stamp) {
        self.clock += 1;
        for at in sector..sector + u64::from(sectors) {
            self.versions[at as usize].push(Version { stamp, began: self.clock, ended: None });
        }
    }

    /// A write was acknowledged: versions that had ended before it began can no longer be read.
    pub fn end(&mut self, sector: u64, sectors: u32, stamp: Stamp) {
        self.clock += 1;
        let clock = self.clock;
        for at in sector..(sector + u64::from(sectors)).min(self.len()) {
            let versions = &mut self.versions[at as usize];
            let own = versions.iter_mut().find(|v| v.stamp == stamp && v.ended.is_none());
            let own = own.expect("the write began");
            own.ended = Some(clock);
            let began = own.began;
            versions.retain(|v| v.ended.is_none_or(|ended| ended >= began));
        }
    }

    /// What a sector may show now.
    pub fn possible(&self, sector: u64) -> Vec<Stamp> {
        self.versions[sector as usize].iter().map(|v| v.stamp).collect()
    }

    /// Checks sectors that were read while no write to them was in flight. The versions that were read are final.
    pub fn settle(&mut self, sector: u64, bytes: &[u8], what: &str) {
        for (at, bytes) in (sector..).zip(bytes.chunks(SECTOR_BYTES)) {
            let shown = stamp(self.disk, at, bytes);
            let versions = &mut self.versions[at as usize];
            assert!(
                versions.iter().any(|v| v.stamp == shown),
                "{what}: disk {} sector {at} shows {shown}, it may show {versions:?}",
                self.disk
            );
            if versions.iter().all(|v| v.ended.is_some()) {
                versions.retain(|v| v.stamp == shown);
            }
        }
    }
}
