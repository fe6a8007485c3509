//! What a read may return: every write of every sector, and which of them are allowed after time, crashes and flushes.
//!
//! A sector has a list of versions. A version is *gone* once a write that began after its end has been acknowledged,
//! or once a read has returned a later one; a read that began before that may still return it. It is *buried* once a
//! flush has covered this: then no power cut brings it back.
//!
//! Invariants
//! - The list of a sector is never empty, and holds every version that any legal history could return.
//! - What has been read stays: each observation removes the alternatives that had ended before it began.

mod order;

use haversack_model::SECTOR_BYTES;

use crate::pattern::{self, Content, Version};

/// The oracle's own time: one tick per event.
pub type Tick = u64;

const NEVER: Tick = Tick::MAX;
/// Stands for "anything that was ever written here", after a loss that the operator accepted.
const WILD: Version = 0;

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Acknowledged.
    Done,
    /// Acknowledged and durable.
    DoneDurable,
    /// Failed or cut off: it may or may not have happened.
    Unknown,
}

struct Write {
    disk: u16,
    zero: bool,
    sector: u64,
    sectors: u32,
    start: Tick,
    end: Tick,
    /// It was acknowledged, and no power cut came before a flush.
    acknowledged: bool,
}

#[derive(Clone, Copy)]
struct Candidate {
    version: Version,
    gone: Tick,
    covered_from: Tick,
    buried: bool,
    /// Read after an accepted loss: it is unknown when this version reached the devices.
    undated: bool,
}

impl Candidate {
    fn new(version: Version) -> Self {
        Candidate { version, gone: NEVER, covered_from: NEVER, buried: false, undated: false }
    }
}

#[derive(Default)]
struct Sector {
    /// The only version while `more` is empty.
    sole: Version,
    listed: bool,
    more: Vec<Candidate>,
    /// Start of the write that the origin held when a loss was accepted: no older one may come back.
    origin_start: Tick,
}

struct Disk {
    sectors: Vec<Sector>,
    /// Sectors with more than one version.
    open: Vec<u32>,
    reads: Vec<Tick>,
    zero: Version,
    /// The content that the disk began with is another disk's: that disk and the write that made it.
    began_as: Option<(u16, Version)>,
    first: Version,
    /// Beginnings and ends of flushes that were acknowledged.
    flushes: Vec<(Tick, Tick)>,
    /// When others last changed the origin, or a loss was accepted.
    ordered_since: Tick,
    /// Its size was changed, so that zeroes need not have been written.
    is_resized: bool,
}

/// The oracle.
pub struct Oracle {
    clock: Tick,
    last_cut: Tick,
    writes: Vec<Write>,
    flying: Vec<Version>,
    disks: Vec<Disk>,
    /// Sectors checked so far.
    pub sectors_checked: u64,
}

impl Default for Oracle {
    fn default() -> Self {
        let wild = Write {
            disk: u16::MAX,
            zero: false,
            sector: 0,
            sectors: 0,
            start: 0,
            end: 0,
            acknowledged: true,
        };
        Oracle {
            clock: 1,
            last_cut: 0,
            writes: vec![wild],
            flying: Vec::new(),
            disks: Vec::new(),
            sectors_checked: 0,
        }
    }
}

impl Oracle {
    /// Adds a disk; returns the version that its origin contains, `None` for zeroes.
    pub fn add_disk(&mut self, sectors: u64, blank: bool) -> Option<Version> {
        let disk = self.disks.len() as u16;
        let zero = self.old_version(disk, true);
        let first = if blank { zero } else { self.old_version(disk, false) };
        let sectors = (0..sectors).map(|_| Sector { sole: first, ..Sector::default() }).collect();
        self.disks.push(Disk {
            sectors,
            open: Vec::new(),
            reads: Vec::new(),
            zero,
            began_as: None,
            first,
            flushes: Vec::new(),
            ordered_since: 0,
            is_resized: false,
        });
        (!blank).then_some(first)
    }

    /// Called when a disk was made from another one, its base: it begins with that disk's first version.
    pub fn begins_as(&mut self, disk: usize, base: usize) {
        self.disks[disk].began_as = Some((base as u16, self.disks[base].first));
    }

    /// Translates the content of a sector: content that the disk has from its base counts as the disk's own first
    /// version.
    fn of_disk(&self, disk: usize, content: Content) -> Content {
        let d = &self.disks[disk];
        match content {
            Content::Data { disk: from, sector, version } if d.began_as == Some((from, version)) => {
                Content::Data { disk: disk as u16, sector, version: d.first }
            }
            other => other,
        }
    }

    fn old_version(&mut self, disk: u16, zero: bool) -> Version {
        self.writes.push(Write { disk, zero, sector: 0, sectors: 0, start: 0, end: 0, acknowledged: true });
        (self.writes.len() - 1) as Version
    }

    fn tick(&mut self) -> Tick {
        self.clock += 1;
        self.clock
    }

    /// Returns the current time.
    pub fn now(&mut self) -> Tick {
        self.tick()
    }

    /// Assigns a version to a write that is about to be submitted; `zero` for discard and write-zeroes.
    pub fn new_version(&mut self, disk: usize, sector: u64, sectors: u32, zero: bool) -> Version {
        let start = self.tick();
        let disk = disk as u16;
        self.writes.push(Write { disk, zero, sector, sectors, start, end: NEVER, acknowledged: false });
        (self.writes.len() - 1) as Version
    }

    /// Called when the core accepted the write.
    pub fn begin_write(&mut self, version: Version) {
        let write = &self.writes[version as usize];
        let disk = &mut self.disks[write.disk as usize];
        for at in write.sector..write.sector + u64::from(write.sectors) {
            let sector = &mut disk.sectors[at as usize];
            if sector.more.is_empty() {
                sector.more.push(Candidate::new(sector.sole));
            }
            if !sector.listed {
                sector.listed = true;
                disk.open.push(at as u32);
            }
            sector.more.push(Candidate::new(version));
        }
        self.flying.push(version);
    }

    /// Called when the write ended.
    pub fn end_write(&mut self, version: Version, outcome: Outcome) {
        let now = self.tick();
        self.flying.retain(|v| *v != version);
        self.writes[version as usize].end = now;
        if outcome == Outcome::Unknown {
            return;
        }
        self.writes[version as usize].acknowledged = true;
        let write = &self.writes[version as usize];
        let (start, disk) = (write.start, &mut self.disks[write.disk as usize]);
        let oldest_read = disk.reads.iter().copied().min().unwrap_or(now);
        for at in write.sector..write.sector + u64::from(write.sectors) {
            let sector = &mut disk.sectors[at as usize];
            for old in &mut sector.more {
                if self.writes[old.version as usize].end < start {
                    old.gone = old.gone.min(now);
                    old.covered_from = old.covered_from.min(now);
                    old.buried |= outcome == Outcome::DoneDurable;
                }
            }
            sector.more.retain(|c| !c.buried || c.gone > oldest_read);
        }
    }

    /// Called when a flush is submitted; pass the result to [`Oracle::end_flush`].
    pub fn begin_flush(&mut self) -> Tick {
        self.tick()
    }

    /// Called when the flush was acknowledged.
    pub fn end_flush(&mut self, disk: usize, start: Tick) {
        let now = self.tick();
        let disk = &mut self.disks[disk];
        disk.flushes.push((start, now));
        let oldest_read = disk.reads.iter().copied().min().unwrap_or(now);
        let sectors = &mut disk.sectors;
        disk.open.retain(|at| {
            let sector = &mut sectors[*at as usize];
            for old in &mut sector.more {
                old.buried |= old.covered_from < start;
            }
            sector.more.retain(|c| !c.buried || c.gone > oldest_read);
            if let [only] = sector.more[..] {
                sector.sole = only.version;
                sector.more.clear();
            }
            sector.listed = !sector.more.is_empty();
            sector.listed
        });
    }

    /// Called when a read is submitted; pass the result to [`Oracle::end_read`].
    pub fn begin_read(&mut self, disk: usize) -> Tick {
        let start = self.tick();
        self.disks[disk].reads.push(start);
        start
    }

    /// Called when a read failed and returned nothing.
    pub fn drop_read(&mut self, disk: usize, start: Tick) {
        self.disks[disk].reads.retain(|s| *s != start);
    }

    /// Checks the data that a read returned.
    ///
    /// # Errors
    /// What was read and what was allowed.
    pub fn end_read(&mut self, disk: usize, start: Tick, first: u64, bytes: &[u8]) -> Result<(), String> {
        let now = self.tick();
        self.drop_read(disk, start);
        for (i, one) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let at = first + i as u64;
            self.observe(disk, start, now, at, pattern::recognise(one)).map_err(|what| {
                format!("disk {disk} sector {at} (read of {first}+{}): {what}", bytes.len() / SECTOR_BYTES)
            })?;
        }
        self.sectors_checked += (bytes.len() / SECTOR_BYTES) as u64;
        Ok(())
    }

    fn shows(&self, version: Version, disk: usize, at: u64, content: Content) -> bool {
        if version == WILD {
            let oldest = self.disks[disk].sectors[at as usize].origin_start;
            return match content {
                Content::Zero => oldest == 0 || self.was_zeroed_since(oldest, disk, at),
                Content::Data { disk: d, sector, version } => {
                    let end = self.writes.get(version as usize).map_or(0, |write| write.end);
                    usize::from(d) == disk && sector == at && end >= oldest
                }
                _ => false,
            };
        }
        match content {
            Content::Zero => self.writes[version as usize].zero,
            Content::Data { disk: d, sector, version: v } => {
                v == version && usize::from(d) == disk && sector == at && !self.writes[version as usize].zero
            }
            _ => false,
        }
    }

    fn was_zeroed_since(&self, oldest: Tick, disk: usize, at: u64) -> bool {
        let zeroes = |w: &&Write| w.zero && usize::from(w.disk) == disk && w.end >= oldest;
        self.writes.iter().filter(zeroes).any(|w| (w.sector..w.sector + u64::from(w.sectors)).contains(&at))
    }

    fn observe(
        &mut self,
        disk: usize,
        start: Tick,
        now: Tick,
        at: u64,
        content: Content,
    ) -> Result<(), String> {
        let content = self.of_disk(disk, content);
        let sole = self.disks[disk].sectors[at as usize].sole;
        if self.disks[disk].sectors[at as usize].more.is_empty() {
            if sole != WILD && self.shows(sole, disk, at, content) {
                return Ok(());
            }
            if !self.shows(sole, disk, at, content) {
                return Err(self.describe(disk, start, at, content));
            }
        }
        let mut list = std::mem::take(&mut self.disks[disk].sectors[at as usize].more);
        if list.is_empty() {
            list.push(Candidate::new(sole));
        }
        let allowed = |c: &Candidate| c.gone > start && self.shows(c.version, disk, at, content);
        let explicit = list.iter().any(|c| c.version != WILD && allowed(c));
        let (mut seen, mut ended, mut before_cut) = (false, false, true);
        let last_cut = self.last_cut;
        if !explicit && list.iter().any(allowed) {
            let version = match content {
                Content::Data { version, .. } => version,
                _ => self.disks[disk].zero,
            };
            list.push(Candidate { undated: true, ..Candidate::new(version) });
        }
        for c in list.iter().filter(|c| c.version != WILD && allowed(c)) {
            seen = true;
            ended |= self.writes[c.version as usize].end != NEVER;
            before_cut &= !c.undated && self.writes[c.version as usize].end <= last_cut;
        }
        if seen {
            for c in &mut list {
                let end = self.writes[c.version as usize].end;
                let other = c.version == WILD || !self.shows(c.version, disk, at, content);
                if other && end < start {
                    c.gone = c.gone.min(now);
                    if ended {
                        c.covered_from = c.covered_from.min(now);
                    }
                    c.buried |= before_cut && end <= last_cut;
                }
            }
        }
        let disk_state = &mut self.disks[disk];
        let sector = &mut disk_state.sectors[at as usize];
        match list[..] {
            [only] if !sector.listed => sector.sole = only.version,
            _ => {
                sector.more = list;
                if !sector.listed {
                    sector.listed = true;
                    disk_state.open.push(at as u32);
                }
            }
        }
        if seen { Ok(()) } else { Err(self.describe(disk, start, at, content)) }
    }

    fn describe(&self, disk: usize, start: Tick, at: u64, content: Content) -> String {
        use std::fmt::Write as _;
        let sector = &self.disks[disk].sectors[at as usize];
        let mut text = format!("read {content}");
        if let Content::Data { disk: d, sector: s, version } = content {
            if usize::from(d) != disk {
                text.push_str(", ANOTHER DISK'S DATA");
            } else if s != at {
                text.push_str(", another sector's data");
            } else if let Some(write) = self.writes.get(version as usize) {
                let _ = write!(text, " (began {}, ended {})", write.start, tick(write.end));
            }
        }
        let _ = write!(text, ", read began {start}, last power cut {}; allowed:", self.last_cut);
        let one = [Candidate::new(sector.sole)];
        let list = if sector.more.is_empty() { &one[..] } else { &sector.more[..] };
        for c in list {
            let write = &self.writes[c.version as usize];
            let kind = if write.zero { "zeroes" } else { "write" };
            let state = if c.gone <= start { ", superseded" } else { "" };
            let (began, ended) = (write.start, tick(write.end));
            let _ = write!(text, " [{kind} {} began {began}, ended {ended}{state}]", c.version);
        }
        text
    }

    /// Called when the process died, or with `power` the host. Requests in flight will never be completed.
    pub fn crash(&mut self, power: bool) {
        let now = self.tick();
        for version in std::mem::take(&mut self.flying) {
            self.writes[version as usize].end = now;
        }
        if power {
            self.last_cut = now;
            self.lose_unflushed();
        }
        for disk in &mut self.disks {
            disk.reads.clear();
            if !power {
                continue;
            }
            let sectors = &mut disk.sectors;
            disk.open.retain(|at| {
                let sector = &mut sectors[*at as usize];
                sector.more.retain(|c| !c.buried);
                for c in &mut sector.more {
                    (c.gone, c.covered_from) = (NEVER, NEVER);
                }
                if let [only] = sector.more[..] {
                    sector.sole = only.version;
                    sector.more.clear();
                }
                sector.listed = !sector.more.is_empty();
                sector.listed
            });
        }
    }

    /// Returns the sectors of a disk that have more than one possible version.
    pub fn open_sectors(&self, disk: usize) -> &[u32] {
        &self.disks[disk].open
    }

    /// Returns whether a power cut or a read in flight may still show more than one version of the sector. False for
    /// a sector that was cut off the disk.
    pub fn is_undecided(&self, disk: usize, at: u64) -> bool {
        self.disks[disk].sectors.get(at as usize).is_some_and(|sector| !sector.more.is_empty())
    }

    /// Returns whether the content is a current version of the sector, as far as is known.
    pub fn is_current(&self, disk: usize, at: u64, content: Content) -> bool {
        let content = self.of_disk(disk, content);
        let sector = &self.disks[disk].sectors[at as usize];
        if sector.more.is_empty() {
            return self.shows(sector.sole, disk, at, content);
        }
        sector.more.iter().any(|c| c.gone == NEVER && self.shows(c.version, disk, at, content))
    }

    /// Returns whether no write to the disk was in flight or began since then.
    pub fn quiet_since(&self, disk: usize, since: Tick) -> bool {
        let of_disk = |v: &&Version| usize::from(self.writes[**v as usize].disk) == disk;
        self.flying.iter().find(of_disk).is_none()
            && self
                .writes
                .iter()
                .rev()
                .take(4096)
                .all(|w| usize::from(w.disk) != disk || (w.start < since && w.end != NEVER && w.end < since))
    }

    /// Sets the sector to this content, durably; nothing may be in flight.
    ///
    /// # Errors
    /// The content never was a version of this sector.
    pub fn adopt(&mut self, disk: usize, at: u64, content: Content) -> Result<(), String> {
        let content = self.of_disk(disk, content);
        if !self.shows(WILD, disk, at, content) {
            return Err(format!("disk {disk} sector {at}: the origin holds {content}"));
        }
        let version = match content {
            Content::Data { version, .. } => version,
            _ => self.disks[disk].zero,
        };
        self.set(disk, at, version);
        Ok(())
    }

    /// Has the operator accept a loss: the sector may be any version, and the next read determines which. Versions that
    /// ended before the write of each of the contents that the origin may have began are excluded; none are if no content
    /// is given.
    pub fn forgive(&mut self, disk: usize, at: u64, origin: &[Content]) {
        let start = |content: &Content| match self.of_disk(disk, *content) {
            Content::Data { version, .. } => self.writes[version as usize].start,
            _ => 0,
        };
        self.disks[disk].sectors[at as usize].origin_start = origin.iter().map(start).min().unwrap_or(0);
        self.set(disk, at, WILD);
    }

    /// Writes as another host, durably; returns the version of the write.
    pub fn foreign_write(&mut self, disk: usize, first: u64, sectors: u32) -> Version {
        let version = self.new_version(disk, first, sectors, false);
        self.writes[version as usize].end = self.tick();
        for at in first..first + u64::from(sectors) {
            self.set(disk, at, version);
        }
        version
    }

    /// Changes the disk's size; new sectors are zero.
    pub fn resize(&mut self, disk: usize, sectors: u64) {
        let now = self.tick();
        let disk = &mut self.disks[disk];
        (disk.ordered_since, disk.is_resized) = (now, true);
        let zero = disk.zero;
        disk.open.retain(|at| u64::from(*at) < sectors);
        disk.sectors.resize_with(sectors as usize, || Sector { sole: zero, ..Sector::default() });
    }

    fn set(&mut self, disk: usize, at: u64, version: Version) {
        self.disks[disk].ordered_since = self.clock;
        let sector = &mut self.disks[disk].sectors[at as usize];
        sector.sole = version;
        sector.more.clear();
    }
}

fn tick(at: Tick) -> String {
    if at == NEVER { "never".into() } else { at.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(oracle: &mut Oracle, version: Option<Version>) -> Result<(), String> {
        let start = oracle.begin_read(0);
        let mut bytes = [0; SECTOR_BYTES];
        if let Some(version) = version {
            pattern::fill(0, 5, version, &mut bytes);
        }
        oracle.end_read(0, start, 5, &bytes)
    }

    fn write(oracle: &mut Oracle, outcome: Outcome) -> Version {
        let version = oracle.new_version(0, 5, 1, false);
        oracle.begin_write(version);
        oracle.end_write(version, outcome);
        version
    }

    fn oracle() -> Oracle {
        let mut oracle = Oracle::default();
        oracle.add_disk(16, true);
        oracle
    }

    #[test]
    fn only_the_last_acknowledged_write_is_current() {
        let mut o = oracle();
        let a = write(&mut o, Outcome::Done);
        let b = write(&mut o, Outcome::Done);
        assert!(read(&mut o, Some(a)).is_err());
        assert!(read(&mut o, None).is_err());
        assert!(read(&mut o, Some(b)).is_ok());
    }

    #[test]
    fn a_power_cut_brings_back_unflushed_versions_and_the_first_read_decides() {
        let mut o = oracle();
        let a = write(&mut o, Outcome::Done);
        let flush = o.begin_flush();
        o.end_flush(0, flush);
        let b = write(&mut o, Outcome::Done);
        o.crash(true);
        assert!(read(&mut o, None).is_err());
        assert!(read(&mut o, Some(a)).is_ok());
        assert!(read(&mut o, Some(b)).is_err());
        o.crash(true);
        assert!(read(&mut o, Some(b)).is_err());
        assert!(read(&mut o, Some(a)).is_ok());
    }

    #[test]
    fn a_kill_keeps_acknowledged_writes_and_leaves_those_in_flight_open() {
        let mut o = oracle();
        let a = write(&mut o, Outcome::Done);
        let b = o.new_version(0, 5, 1, false);
        o.begin_write(b);
        o.crash(false);
        assert!(read(&mut o, None).is_err());
        assert!(read(&mut o, Some(b)).is_ok());
        assert!(read(&mut o, Some(a)).is_err());
    }

    #[test]
    fn a_version_read_after_an_accepted_loss_is_not_durable_before_a_flush() {
        let mut o = oracle();
        let a = write(&mut o, Outcome::Done);
        o.forgive(0, 5, &[]);
        assert!(read(&mut o, Some(a)).is_ok());
        assert!(read(&mut o, None).is_err());
        o.crash(true);
        assert!(read(&mut o, None).is_ok());
        assert!(read(&mut o, Some(a)).is_err());
        let b = write(&mut o, Outcome::Done);
        let flush = o.begin_flush();
        o.end_flush(0, flush);
        o.crash(true);
        assert!(read(&mut o, None).is_err());
        assert!(read(&mut o, Some(b)).is_ok());
    }

    #[test]
    fn nothing_older_than_what_the_origin_holds_comes_back_after_an_accepted_loss() {
        let mut o = oracle();
        let [a, b, c] = [(); 3].map(|()| write(&mut o, Outcome::Done));
        for (version, allowed) in [(None, false), (Some(a), false), (Some(b), true), (Some(c), true)] {
            o.forgive(0, 5, &[Content::Data { disk: 0, sector: 5, version: b }]);
            assert_eq!(read(&mut o, version).is_ok(), allowed);
        }
    }

    #[test]
    fn a_flush_covers_only_what_completed_before_it_began() {
        let mut o = oracle();
        let flush = o.begin_flush();
        let a = write(&mut o, Outcome::Done);
        o.end_flush(0, flush);
        o.crash(true);
        assert!(read(&mut o, None).is_ok());
        assert!(read(&mut o, Some(a)).is_err());
        let b = write(&mut o, Outcome::DoneDurable);
        o.crash(true);
        assert!(read(&mut o, Some(b)).is_ok());
    }
}
