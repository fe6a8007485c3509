//! A fake device: what it shows, what a power cut would leave, and the unflushed writes in between.
//!
//! Invariants
//! - A write is atomic per 512-byte sector and nothing larger.
//! - A flush covers the writes completed before it was issued, no others.
//! - Damage at rest never hits what was unflushed at a power cut: it could not be told from a torn write.

use std::collections::{HashSet, VecDeque};

use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK};

use crate::pattern::{self, Version};
use crate::rng::Rng;

type Page = Box<[u8; BLOCK_BYTES]>;

/// What a store that was never written contains.
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

/// What a write puts down.
pub enum Payload {
    /// So many zeroed sectors.
    Zeroes(u32),
    /// Whole sectors.
    Bytes(Vec<u8>),
}

impl Payload {
    fn sectors(&self) -> u64 {
        match self {
            Payload::Zeroes(n) => u64::from(*n),
            Payload::Bytes(bytes) => (bytes.len() / SECTOR_BYTES) as u64,
        }
    }
}

struct Logged {
    serial: u64,
    sector: u64,
    payload: Payload,
}

/// How a crash treats writes that nothing protects.
#[derive(Clone, Copy, Debug)]
pub struct Tear {
    /// Sectors that land or are lost together: 1 or 8.
    pub unit: u64,
}

struct Image(Vec<Option<Page>>);

impl Image {
    fn page(&mut self, page: u64, blank: Blank) -> &mut [u8; BLOCK_BYTES] {
        self.0[page as usize].get_or_insert_with(|| {
            let mut fresh: Page = Box::new([0; BLOCK_BYTES]);
            if let Blank::Written { disk, version } = blank {
                for (i, sector) in fresh.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                    pattern::fill(disk, page * SECTORS_PER_BLOCK + i as u64, version, sector);
                }
            }
            fresh
        })
    }

    fn put(&mut self, blank: Blank, sector: u64, payload: &Payload, from: u64, count: u64) {
        let (mut at, mut source, end) = (sector + from, from as usize, sector + from + count);
        while at < end {
            let within = at % SECTORS_PER_BLOCK;
            let run = (SECTORS_PER_BLOCK - within).min(end - at) as usize;
            let begin = within as usize * SECTOR_BYTES;
            let into = &mut self.page(at / SECTORS_PER_BLOCK, blank)[begin..begin + run * SECTOR_BYTES];
            match payload {
                Payload::Zeroes(_) => into.fill(0),
                Payload::Bytes(bytes) => {
                    into.copy_from_slice(&bytes[source * SECTOR_BYTES..(source + run) * SECTOR_BYTES]);
                }
            }
            source += run;
            at += run as u64;
        }
    }
}

/// A device or origin with a volatile write cache.
pub struct Store {
    sectors: u64,
    blank: Blank,
    visible: Image,
    durable: Image,
    log: VecDeque<Logged>,
    doubtful: HashSet<u64>,
    serial: u64,
    /// Every I/O fails with `Gone`.
    pub gone: bool,
}

impl Store {
    /// A store of so many sectors.
    pub fn new(sectors: u64, blank: Blank) -> Self {
        let pages = sectors.div_ceil(SECTORS_PER_BLOCK) as usize;
        let image = || Image((0..pages).map(|_| None).collect());
        Store {
            sectors,
            blank,
            visible: image(),
            durable: image(),
            log: VecDeque::new(),
            doubtful: HashSet::new(),
            serial: 0,
            gone: false,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES as u64
    }

    /// Reads whole sectors as they are now.
    pub fn read(&self, sector: u64, bytes: &mut [u8]) {
        self.check_range(sector, (bytes.len() / SECTOR_BYTES) as u64);
        let (mut at, mut done) = (sector, 0);
        while done < bytes.len() {
            let within = (at % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            let run = (BLOCK_BYTES - within).min(bytes.len() - done);
            let into = &mut bytes[done..done + run];
            match (&self.visible.0[(at / SECTORS_PER_BLOCK) as usize], self.blank) {
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

    /// A write completes: visible, not yet durable.
    pub fn write(&mut self, sector: u64, payload: Payload) {
        let sectors = payload.sectors();
        self.check_range(sector, sectors);
        self.visible.put(self.blank, sector, &payload, 0, sectors);
        self.log.push_back(Logged { serial: self.serial, sector, payload });
        self.serial += 1;
    }

    /// A write is cut short: some units of it land.
    pub fn write_torn(&mut self, sector: u64, payload: Payload, tear: Tear, rng: &mut Rng) {
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

    /// What a flush issued now will cover.
    pub fn flush_mark(&self) -> u64 {
        self.serial
    }

    /// A flush completes.
    pub fn flush(&mut self, mark: u64) {
        while self.log.front().is_some_and(|first| first.serial < mark) {
            let Some(write) = self.log.pop_front() else {
                break;
            };
            let sectors = write.payload.sectors();
            self.durable.put(self.blank, write.sector, &write.payload, 0, sectors);
            if !self.doubtful.is_empty() {
                for sector in write.sector..write.sector + sectors {
                    self.doubtful.remove(&sector);
                }
            }
        }
    }

    /// The power fails: each unit written since the last flush stays old or gets one of its newer versions.
    pub fn power_cut(&mut self, tear: Tear, rng: &mut Rng) {
        let keep = rng.pick(&[0, 0, 15, 50, 50, 85, 100]);
        let whole_writes = rng.one_in(3);
        let mut prefix = if rng.one_in(4) { rng.below(self.log.len() as u64 + 1) } else { u64::MAX };
        let log = std::mem::take(&mut self.log);
        for write in &log {
            let sectors = write.payload.sectors();
            let percent = match prefix {
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
            for page in write.sector / SECTORS_PER_BLOCK..=(end - 1) / SECTORS_PER_BLOCK {
                let durable = self.durable.page(page, self.blank);
                self.visible.page(page, self.blank).copy_from_slice(durable);
            }
        }
    }

    /// A write by somebody else, durable at once.
    pub fn write_durable(&mut self, sector: u64, payload: &Payload) {
        debug_assert!(self.log.is_empty(), "another host writes only what this one has let go");
        let sectors = payload.sectors();
        self.visible.put(self.blank, sector, payload, 0, sectors);
        self.durable.put(self.blank, sector, payload, 0, sectors);
    }

    /// Whether everything visible is durable.
    pub fn settled(&self) -> bool {
        self.log.is_empty()
    }

    /// Makes everything visible durable, as an idle device does in time.
    pub fn settle(&mut self) {
        self.flush(self.serial);
    }

    /// Changes the size at once and for good; new sectors are zero.
    pub fn resize(&mut self, sectors: u64) {
        self.settle();
        let kept = self.sectors.min(sectors);
        let pages = sectors.div_ceil(SECTORS_PER_BLOCK);
        for image in [&mut self.visible, &mut self.durable] {
            if let Blank::Written { .. } = self.blank {
                for page in 0..image.0.len() as u64 {
                    image.page(page, self.blank);
                }
            }
            image.0.resize_with(pages as usize, || None);
            if let Some(Some(last)) = image.0.get_mut((kept / SECTORS_PER_BLOCK) as usize) {
                last[(kept % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES..].fill(0);
            }
        }
        self.blank = Blank::Zero;
        self.sectors = sectors;
    }

    /// Damages a durable sector that no crash has made doubtful; tells which.
    pub fn rot(&mut self, rng: &mut Rng) -> Option<u64> {
        for _ in 0..32 {
            let sector = rng.below(self.sectors);
            let page = (sector / SECTORS_PER_BLOCK) as usize;
            let unflushed =
                |write: &Logged| (write.sector..write.sector + write.payload.sectors()).contains(&sector);
            if self.durable.0[page].is_none()
                || self.doubtful.contains(&sector)
                || self.log.iter().any(unflushed)
            {
                continue;
            }
            let begin = (sector % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            let mut rotten = [0u8; SECTOR_BYTES];
            rotten.copy_from_slice(&self.durable.page(page as u64, self.blank)[begin..begin + SECTOR_BYTES]);
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
                image.page(page as u64, self.blank)[begin..begin + SECTOR_BYTES].copy_from_slice(&rotten);
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
            store.power_cut(Tear { unit: 1 }, &mut Rng::new(seed));
            seen.insert((first_byte(&store, 4), first_byte(&store, 9)));
        }
        for value in 1..=3 {
            assert!(seen.contains(&(value, 0)) && seen.contains(&(value, 9)));
        }
        assert!(seen.iter().all(|(four, _)| *four >= 1));
    }
}
