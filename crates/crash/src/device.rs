//! A fake device: its visible contents, what a power cut would leave, and the unflushed writes in between.
//!
//! Invariants
//! - A write is atomic per 512-byte sector and nothing larger.
//! - A flush covers the writes completed before it was issued, no others.
//! - Damage at rest never hits data that was unflushed at a power cut, or that was flushed but is not yet recorded as
//!   flushed: it could not be distinguished from a torn write.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK};

use crate::pattern::{self, Version};
use haversack_model::random::Random;

/// A block of data, shared until it is written to.
pub type Page = Rc<[u8; BLOCK_BYTES]>;

/// Returns a page with these bytes. There must be as many as a page has.
pub fn page_of(bytes: &[u8]) -> Page {
    Rc::<[u8]>::from(bytes).try_into().expect("it is as long as a page")
}

/// The contents of a store that was never written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blank {
    /// Zeroes.
    Zero,
    /// The given write of the given disk in every sector.
    Written {
        /// The disk.
        disk: u16,
        /// The write.
        version: Version,
    },
}

/// The data of a write.
#[derive(Clone)]
pub enum Payload {
    /// This many zeroed sectors.
    Zeroes(u32),
    /// Whole sectors.
    Bytes(Vec<u8>),
    /// Whole blocks, for a write that begins with one.
    Blocks(Vec<Page>),
}

impl Payload {
    fn sectors(&self) -> u64 {
        match self {
            Payload::Zeroes(n) => u64::from(*n),
            Payload::Bytes(bytes) => (bytes.len() / SECTOR_BYTES) as u64,
            Payload::Blocks(pages) => pages.len() as u64 * SECTORS_PER_BLOCK,
        }
    }
}

#[derive(Clone)]
struct Logged {
    serial: u64,
    sector: u64,
    payload: Payload,
    /// A power cut does not lose it.
    durable: bool,
}

/// How a crash treats unprotected writes.
#[derive(Clone, Copy, Debug)]
pub struct Tear {
    /// Sectors that are written or lost together: 1 or 8.
    pub unit: u64,
}

const CHUNK_PAGES: usize = 256;

/// Contents, cheap to copy: chunks of pages and pages are shared until they are written to.
#[derive(Clone)]
struct Image(Vec<Rc<[Option<Page>; CHUNK_PAGES]>>);

impl Image {
    fn new(pages: u64) -> Image {
        let empty = Rc::new([const { None }; CHUNK_PAGES]);
        Image(vec![empty; (pages as usize).div_ceil(CHUNK_PAGES)])
    }

    /// Returns a page that was written.
    fn get(&self, page: u64) -> Option<&Page> {
        self.0[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES].as_ref()
    }

    fn place(&mut self, page: u64) -> &mut Option<Page> {
        &mut Rc::make_mut(&mut self.0[page as usize / CHUNK_PAGES])[page as usize % CHUNK_PAGES]
    }

    /// Returns a page that is to be written in part.
    fn page(&mut self, page: u64, blank: Blank) -> &mut [u8; BLOCK_BYTES] {
        let page = self.place(page).get_or_insert_with(|| {
            let mut fresh = [0; BLOCK_BYTES];
            if let Blank::Written { disk, version } = blank {
                for (i, sector) in fresh.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                    pattern::fill(disk, page * SECTORS_PER_BLOCK + i as u64, version, sector);
                }
            }
            Rc::new(fresh)
        });
        Rc::make_mut(page)
    }

    fn put(&mut self, blank: Blank, sector: u64, payload: &Payload, from: u64, count: u64) {
        let (mut at, mut source, end) = (sector + from, from as usize, sector + from + count);
        while at < end {
            let (page, within) = (at / SECTORS_PER_BLOCK, at % SECTORS_PER_BLOCK);
            let run = (SECTORS_PER_BLOCK - within).min(end - at) as usize;
            let begin = within as usize * SECTOR_BYTES;
            match payload {
                Payload::Zeroes(_) => self.page(page, blank)[begin..][..run * SECTOR_BYTES].fill(0),
                Payload::Bytes(bytes) => {
                    let bytes = &bytes[source * SECTOR_BYTES..][..run * SECTOR_BYTES];
                    if bytes.len() == BLOCK_BYTES {
                        *self.place(page) = Some(page_of(bytes));
                    } else {
                        self.page(page, blank)[begin..][..bytes.len()].copy_from_slice(bytes);
                    }
                }
                Payload::Blocks(pages) => {
                    let block = &pages[source / SECTORS_PER_BLOCK as usize];
                    if run == SECTORS_PER_BLOCK as usize {
                        *self.place(page) = Some(block.clone());
                    } else {
                        let bytes = begin..begin + run * SECTOR_BYTES;
                        self.page(page, blank)[bytes.clone()].copy_from_slice(&block[bytes]);
                    }
                }
            }
            source += run;
            at += run as u64;
        }
    }

    /// Shares pages that are equal in another image.
    fn share_equal(&mut self, other: &Image) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            if Rc::ptr_eq(mine, theirs) {
                continue;
            }
            let mut same = true;
            for (page, other) in Rc::make_mut(mine).iter_mut().zip(theirs.iter()) {
                if *page == *other {
                    page.clone_from(other);
                } else {
                    same = false;
                }
            }
            if same {
                mine.clone_from(theirs);
            }
        }
    }

    /// Replaces a page by the one in another image.
    fn share(&mut self, page: u64, from: &Image) {
        self.place(page).clone_from(&from.0[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]);
    }
}

/// Returns the pages that a write covers, also in part.
fn pages_of(write: &Logged) -> impl Iterator<Item = u64> + use<> {
    let end = write.sector + write.payload.sectors();
    write.sector / SECTORS_PER_BLOCK..end.div_ceil(SECTORS_PER_BLOCK)
}

/// A device or origin with a volatile write cache.
#[derive(Clone)]
pub struct Store {
    sectors: u64,
    blank: Blank,
    visible: Image,
    durable: Image,
    log: VecDeque<Logged>,
    doubtful: HashSet<u64>,
    /// Writes that the pool has not recorded as flushed yet: their stamp and range.
    unmarked: Vec<(u64, std::ops::Range<u64>)>,
    serial: u64,
    /// The stamp of writes from now on.
    pub stamp: u64,
    /// Every I/O fails with `Gone`.
    pub gone: bool,
}

impl Store {
    /// Makes a store with this many sectors.
    pub fn new(sectors: u64, blank: Blank) -> Self {
        let image = Image::new(sectors.div_ceil(SECTORS_PER_BLOCK));
        Store {
            sectors,
            blank,
            visible: image.clone(),
            durable: image,
            log: VecDeque::new(),
            doubtful: HashSet::new(),
            unmarked: Vec::new(),
            serial: 0,
            stamp: 0,
            gone: false,
        }
    }

    /// Returns its size.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES as u64
    }

    /// Reads whole sectors as they are now.
    pub fn read(&self, sector: u64, bytes: &mut [u8]) {
        self.read_from(&self.visible, sector, bytes);
    }

    /// Reads whole sectors as they would be after a power cut that loses everything unflushed.
    pub fn read_durable(&self, sector: u64, bytes: &mut [u8]) {
        self.read_from(&self.durable, sector, bytes);
    }

    /// Whether each of these sectors is as in a store that has only this content.
    pub fn is_as(&self, sectors: Range<u64>, content: Blank) -> bool {
        sectors.into_iter().all(|sector| {
            let within = (sector % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            match (self.visible.get(sector / SECTORS_PER_BLOCK), content) {
                (None, _) => self.blank == content,
                // No sector is mixed from two writes, so its start identifies it.
                (Some(page), Blank::Zero) => page[within..within + 8] == [0; 8],
                (Some(page), Blank::Written { disk, version }) => {
                    let mut expected = [0; 16];
                    pattern::fill(disk, sector, version, &mut expected);
                    page[within..within + 16] == expected
                }
            }
        })
    }

    fn read_from(&self, image: &Image, sector: u64, bytes: &mut [u8]) {
        self.check_range(sector, (bytes.len() / SECTOR_BYTES) as u64);
        let (mut at, mut done) = (sector, 0);
        while done < bytes.len() {
            let within = (at % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            let run = (BLOCK_BYTES - within).min(bytes.len() - done);
            let into = &mut bytes[done..done + run];
            match (image.get(at / SECTORS_PER_BLOCK), self.blank) {
                (Some(page), _) => into.copy_from_slice(&page[within..within + run]),
                (None, Blank::Zero) => into.fill(0),
                (None, Blank::Written { disk, version }) => {
                    for (i, one) in into.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                        pattern::fill(disk, at + i as u64, version, one);
                    }
                }
            }
            at += (run / SECTOR_BYTES) as u64;
            done += run;
        }
    }

    /// Completes a write: visible, not yet durable.
    pub fn write(&mut self, sector: u64, payload: Payload) {
        let sectors = payload.sectors();
        self.check_range(sector, sectors);
        let is_aligned = sector.is_multiple_of(SECTORS_PER_BLOCK);
        assert!(is_aligned || !matches!(payload, Payload::Blocks(_)), "blocks are written to blocks");
        self.visible.put(self.blank, sector, &payload, 0, sectors);
        self.unmarked.push((self.stamp, sector..sector + sectors));
        self.log.push_back(Logged { serial: self.serial, sector, payload, durable: false });
        self.serial += 1;
    }

    /// Completes a write with force unit access: visible and durable, but not the writes before it.
    pub fn write_through(&mut self, sector: u64, payload: Payload) {
        self.write(sector, payload);
        self.log.back_mut().expect("it was just written").durable = true;
    }

    /// Cuts a write short: some units of it are written.
    pub fn write_torn(&mut self, sector: u64, payload: Payload, tear: Tear, rng: &mut Random) {
        match rng.below(4) {
            0 => {}
            1 => self.write(sector, payload),
            _ => {
                let sectors = payload.sectors();
                self.check_range(sector, sectors);
                for (from, count) in units(sector, sectors, tear.unit) {
                    if rng.one_in(2) {
                        self.write(sector + from, part(&payload, from, count));
                    }
                }
            }
        }
    }

    /// Saves memory by sharing pages with another store with similar contents.
    pub fn share_equal_pages(&mut self, other: &Store) {
        self.visible.share_equal(&other.visible);
        if self.settled() {
            self.durable = self.visible.clone();
        } else {
            self.durable.share_equal(&other.durable);
        }
    }

    /// Returns a mark for what a flush issued now will cover.
    pub fn flush_mark(&self) -> u64 {
        self.serial
    }

    /// Completes a flush.
    pub fn flush(&mut self, mark: u64) {
        let all = mark >= self.serial;
        while self.log.front().is_some_and(|first| first.serial < mark) {
            let Some(write) = self.log.pop_front() else {
                break;
            };
            let sectors = write.payload.sectors();
            if all {
                pages_of(&write).for_each(|page| self.durable.share(page, &self.visible));
            } else {
                self.durable.put(self.blank, write.sector, &write.payload, 0, sectors);
            }
            if !self.doubtful.is_empty() {
                for sector in write.sector..write.sector + sectors {
                    self.doubtful.remove(&sector);
                }
            }
        }
    }

    /// Cuts the power: each unit written since the last flush keeps its old content or gets one of its newer versions.
    pub fn power_cut(&mut self, tear: Tear, rng: &mut Random) {
        let keep = rng.pick(&[0, 0, 15, 50, 50, 85, 100]);
        let whole_writes = rng.one_in(3);
        let mut prefix = if rng.one_in(4) { rng.below(self.log.len() as u64 + 1) } else { u64::MAX };
        let log = std::mem::take(&mut self.log);
        for write in &log {
            let sectors = write.payload.sectors();
            let percent = match prefix {
                _ if write.durable => 100,
                u64::MAX => keep,
                0 => 0,
                _ => {
                    prefix -= 1;
                    100
                }
            };
            if whole_writes {
                if rng.percent(percent) {
                    self.durable.put(self.blank, write.sector, &write.payload, 0, sectors);
                }
            } else {
                for (from, count) in units(write.sector, sectors, tear.unit) {
                    if rng.percent(percent) {
                        self.durable.put(self.blank, write.sector, &write.payload, from, count);
                    }
                }
            }
        }
        for write in &log {
            let end = write.sector + write.payload.sectors();
            self.doubtful.extend(write.sector..end);
            pages_of(write).for_each(|page| self.visible.share(page, &self.durable));
        }
    }

    /// Writes as another host, durable at once.
    pub fn write_durable(&mut self, sector: u64, payload: &Payload) {
        debug_assert!(self.log.is_empty(), "another host writes only what this one has let go");
        let sectors = payload.sectors();
        self.visible.put(self.blank, sector, payload, 0, sectors);
        self.durable.put(self.blank, sector, payload, 0, sectors);
    }

    /// Returns whether everything visible is durable.
    pub fn settled(&self) -> bool {
        self.log.is_empty()
    }

    /// Makes everything visible durable, as an idle device eventually does.
    pub fn settle(&mut self) {
        self.flush(self.serial);
    }

    /// Changes the size at once and durably; new sectors are zero.
    pub fn resize(&mut self, sectors: u64) {
        self.settle();
        let kept = self.sectors.min(sectors);
        let pages = sectors.div_ceil(SECTORS_PER_BLOCK);
        let mut resized = Image::new(pages);
        for page in 0..kept.div_ceil(SECTORS_PER_BLOCK) {
            if let Blank::Written { .. } = self.blank {
                self.visible.page(page, self.blank);
            }
            resized.share(page, &self.visible);
        }
        if !kept.is_multiple_of(SECTORS_PER_BLOCK) && resized.get(kept / SECTORS_PER_BLOCK).is_some() {
            let last = resized.page(kept / SECTORS_PER_BLOCK, Blank::Zero);
            last[(kept % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES..].fill(0);
        }
        (self.visible, self.durable) = (resized.clone(), resized);
        self.blank = Blank::Zero;
        self.sectors = sectors;
    }

    /// Records that everything stamped up to `stamp` is flushed.
    pub fn marked(&mut self, stamp: u64) {
        self.unmarked.retain(|write| write.0 > stamp);
    }

    /// Damages a durable sector of a range. Only sectors qualify whose content no crash has left uncertain and that are
    /// recorded as flushed.
    pub fn rot(&mut self, within: Range<u64>, rng: &mut Random) -> Option<u64> {
        for _ in 0..32 {
            let sector = within.start + rng.below(within.end - within.start);
            let page = sector / SECTORS_PER_BLOCK;
            let unflushed =
                |write: &Logged| (write.sector..write.sector + write.payload.sectors()).contains(&sector);
            if self.durable.get(page).is_none()
                || self.doubtful.contains(&sector)
                || self.log.iter().any(unflushed)
                || self.unmarked.iter().any(|write| write.1.contains(&sector))
            {
                continue;
            }
            let begin = (sector % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            let mut rotten = [0u8; SECTOR_BYTES];
            rotten.copy_from_slice(&self.durable.page(page, self.blank)[begin..begin + SECTOR_BYTES]);
            if rng.one_in(2) {
                for _ in 0..rng.range(1, 3) {
                    rotten[rng.below(SECTOR_BYTES as u64) as usize] ^= 1 << rng.below(8);
                }
            } else {
                for chunk in rotten.as_chunks_mut::<8>().0 {
                    *chunk = rng.bits().to_le_bytes();
                }
            }
            for image in [&mut self.visible, &mut self.durable] {
                image.page(page, self.blank)[begin..begin + SECTOR_BYTES].copy_from_slice(&rotten);
            }
            return Some(sector);
        }
        None
    }

    fn check_range(&self, sector: u64, sectors: u64) {
        assert!(
            sectors > 0 && sector + sectors <= self.sectors.next_multiple_of(SECTORS_PER_BLOCK),
            "an I/O of {sectors} sectors at {sector} leaves a device of {} sectors",
            self.sectors
        );
    }
}

fn units(sector: u64, sectors: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let count = (unit - (sector + from) % unit).min(sectors - from);
        let item = (from, count);
        from += count;
        (count > 0).then_some(item)
    })
}

fn part(payload: &Payload, from: u64, count: u64) -> Payload {
    match payload {
        Payload::Zeroes(_) => Payload::Zeroes(count as u32),
        Payload::Bytes(bytes) => {
            let (from, count) = (from as usize, count as usize);
            Payload::Bytes(bytes[from * SECTOR_BYTES..(from + count) * SECTOR_BYTES].to_vec())
        }
        Payload::Blocks(pages) => {
            let sector = |at: u64| {
                let within = (at % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
                &pages[(at / SECTORS_PER_BLOCK) as usize][within..within + SECTOR_BYTES]
            };
            Payload::Bytes((from..from + count).flat_map(sector).copied().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_byte(store: &Store, sector: u64) -> u8 {
        let mut bytes = [0; SECTOR_BYTES];
        store.read(sector, &mut bytes);
        bytes[0]
    }

    #[test]
    fn a_power_cut_keeps_what_was_flushed_and_any_later_version() {
        let mut seen = HashSet::new();
        for seed in 0..200 {
            let mut store = Store::new(64, Blank::Zero);
            for value in 1..=3 {
                store.write(4, Payload::Bytes(vec![value; SECTOR_BYTES]));
                if value == 1 {
                    let mark = store.flush_mark();
                    store.write(9, Payload::Bytes(vec![9; SECTOR_BYTES]));
                    store.flush(mark);
                }
            }
            store.power_cut(Tear { unit: 1 }, &mut Random::scrambled(seed));
            seen.insert((first_byte(&store, 4), first_byte(&store, 9)));
        }
        for value in 1..=3 {
            assert!(seen.contains(&(value, 0)) && seen.contains(&(value, 9)));
        }
        assert!(seen.iter().all(|(four, _)| *four >= 1));
    }
}
