//! Reading a pool's devices: their identities, the record, and the entries that pages list. Writes nothing.
//!
//! Invariants
//! - A device belongs to the pool only if the record lists its identity under its number, as in use. The
//!   record with the highest generation on any device counts.
//! - The older page of a pair counts only if the newer one was torn. If the newer one may be damaged, the
//!   segment counts as damaged.
//! - A repair first overwrites the page that the damaged one overtook. A write may be torn, and while the
//!   damaged page is there, the older one is not trusted.
//! - A disk's marks are those of all devices together. If the write-intent bitmap of a device is damaged, that of
//!   another must be at least as new to count: that device may just have joined. If none counts, every region is
//!   marked.

use std::ops::Range;

use haversack_model::{ArenaId, BLOCK_BYTES, DeviceNo, DiskNo};

use super::OpenOptions;
use crate::bugs::{Bug, planted};
use crate::checksum;
use crate::error::PoolError;
use crate::flow::intent::map::{MAP_BYTES, Regions, no_regions};
use crate::format::FORMAT_VERSION;
use crate::format::geometry::{self, RECORD_PAGES};
use crate::format::page::{self, Found, Header, Kind, Place};
use crate::format::record::{DeviceState, PoolRecord};
use crate::format::superblock::{self, Superblock};
use crate::media::{AlignedPage, IoFailure, Media, PageRead, ReadProgress, Task};
use crate::pool::{arena_full, io_error};

/// The generation of a disk's first write-intent bitmap. Those before it are blank, as on a device that just joined.
const FIRST_MAP: u64 = 2;
/// The fewest and the most segments read at a time: 4 and 16 MiB of pages.
const AT_A_TIME: [u32; 2] = [512, 2048];
/// Between these bounds, one of this many parts of a device's segments is read at a time, so that buffers are small
/// compared with the tables.
const PARTS: u32 = 128;

/// How many neighbouring segments are in the first stage together, as one task: 128 KiB of pages. The result depends on
/// this number, and so must not depend on the machine.
pub(crate) const GROUP_SEGMENTS: usize = 16;

/// A device of the pool that is present.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    /// Its index in the media list.
    pub index: usize,
    pub superblock: Superblock,
    /// Hash of its identity, for the tags of pages.
    pub seed: u64,
    /// How many of its segments are prepared for use.
    pub prepared: u32,
}

/// What is known of the pool before its segments are read.
pub(crate) struct Pool {
    pub record: PoolRecord,
    /// By device number.
    pub present: Vec<Option<Present>>,
    /// Indices in the media list of devices that no longer belong to the pool.
    pub ignored: Vec<usize>,
    /// Devices of the pool that are not in the media list.
    pub missing: Vec<DeviceNo>,
    /// Every dirty block of a missing device has its mirrored copy on another.
    pub covered: bool,
}

/// A segment's metadata as found.
pub(crate) enum SegmentFound<'a> {
    /// The newest page is intact.
    Good {
        header: Header,
        page: &'a [u8; BLOCK_BYTES],
        /// The older page is intact too.
        paired: bool,
    },
    /// The newest page is damaged. `generation` is such that the next one goes to the page that must be
    /// overwritten first.
    Damaged { generation: u64, owner: Option<u16> },
}

/// A disk's write-intent bitmap as found.
pub(crate) struct IntentFound {
    /// The marks of all devices together.
    pub marked: Regions,
    /// The highest generation on any device.
    pub generation: u64,
    /// Both pages must be rewritten on all devices.
    pub repair: bool,
    /// The generations that the repair begins with, by device.
    pub first_repairs: Vec<u64>,
}

fn read(media: &mut dyn Media, device: usize, offset: u64) -> Result<[u8; BLOCK_BYTES], PoolError> {
    let mut page = [0; BLOCK_BYTES];
    media.read(device, offset, &mut page).map_err(|f| io_error(media, device, offset, f))?;
    Ok(page)
}

fn read_superblock(media: &mut dyn Media, device: usize) -> Result<Superblock, PoolError> {
    let (found_bytes, needed_bytes) =
        (media.capacity_bytes(device), geometry::device_bytes(geometry::MIN_SEGMENTS));
    if found_bytes < geometry::superblock_bytes(2) {
        return Err(PoolError::TooSmall { device: media.name(device), found_bytes, needed_bytes });
    }
    let mut version = None;
    let mut damaged = false;
    for copy in 0..2 {
        let page = read(media, device, geometry::superblock_bytes(copy))?;
        match Superblock::decode(&page) {
            superblock::Found::Valid(superblock) => return Ok(superblock),
            superblock::Found::OtherVersion(found) => version = Some(found),
            superblock::Found::Damaged => damaged = true,
            superblock::Found::Foreign => {}
        }
    }
    let name = media.name(device);
    Err(match version {
        Some(found) => PoolError::Version { device: name, found, expected: FORMAT_VERSION },
        None if damaged => PoolError::DamagedSuperblock { device: name },
        None => PoolError::NotACacheDevice { device: name },
    })
}

pub(crate) fn read_record(
    media: &mut dyn Media,
    device: usize,
    arena: ArenaId,
) -> Result<Option<PoolRecord>, PoolError> {
    let mut newest: Option<PoolRecord> = None;
    for copy in 0..2 {
        let start = geometry::record_bytes(copy);
        let mut area = read(media, device, start)?.to_vec();
        let length = u32::from_le_bytes(area[8..12].try_into().expect("four bytes")) as u64;
        let pages = (length + 16).div_ceil(BLOCK_BYTES as u64).min(RECORD_PAGES);
        for at in 1..pages {
            area.extend_from_slice(&read(media, device, start + at * BLOCK_BYTES as u64)?);
        }
        if let Some(record) = PoolRecord::decode(&area, arena)
            && newest.as_ref().is_none_or(|n| n.generation < record.generation)
        {
            newest = Some(record);
        }
    }
    Ok(newest)
}

/// Reads superblocks and record, and determines which devices belong to the pool.
pub(crate) fn pool(media: &mut dyn Media, options: &OpenOptions) -> Result<Pool, PoolError> {
    if media.devices() == 0 {
        return Err(PoolError::DeviceCount { devices: 0, ids: 0 });
    }
    let mut superblocks: Vec<Superblock> = Vec::new();
    let mut record: Option<PoolRecord> = None;
    for device in 0..media.devices() {
        let superblock = read_superblock(media, device)?;
        if let Some(first) = superblocks.first()
            && first.arena != superblock.arena
        {
            let (found, expected) = (superblock.arena.pool, first.arena.pool);
            return Err(PoolError::OtherPool { device: media.name(device), found, expected });
        }
        if let Some(other) = superblocks.iter().position(|s| s.device == superblock.device) {
            let (device, other, id) = (media.name(device), media.name(other), superblock.device);
            return Err(PoolError::Duplicate { device, other, id });
        }
        let (found_bytes, expected_bytes) =
            (media.capacity_bytes(device), geometry::device_bytes(superblock.segments));
        if found_bytes < expected_bytes {
            return Err(PoolError::Truncated { device: media.name(device), found_bytes, expected_bytes });
        }
        if let Some(found) = read_record(media, device, superblock.arena)?
            && record.as_ref().is_none_or(|r| r.generation < found.generation)
        {
            record = Some(found);
        }
        superblocks.push(superblock);
    }
    let record = record.ok_or_else(|| PoolError::NoRecord { device: media.name(0) })?;
    let mut pool = Pool {
        present: vec![None; record.devices.len()],
        record,
        ignored: vec![],
        missing: vec![],
        covered: true,
    };
    for (index, superblock) in superblocks.iter().enumerate() {
        let at = superblock.number.0 as usize;
        let recorded = pool.record.devices.get(at).copied().flatten();
        let Some(recorded) = recorded.filter(|d| d.id == superblock.device && d.state.is_in_use()) else {
            pool.ignored.push(index);
            continue;
        };
        let seed = checksum::device_seed(superblock.arena, superblock.device);
        let prepared = recorded.prepared.min(superblock.segments);
        pool.present[at] = Some(Present { index, superblock: *superblock, seed, prepared });
    }
    let segments = pool.present.iter().flatten().map(|device| u64::from(device.superblock.segments));
    if segments.sum::<u64>() > u64::from(geometry::MAX_SEGMENTS) {
        return Err(arena_full(media.name(media.devices() - 1)));
    }
    find_missing(&mut pool, superblocks[0], options)?;
    if pool.present.iter().all(Option::is_none) {
        return Err(PoolError::NoRecord { device: media.name(0) });
    }
    Ok(pool)
}

fn find_missing(pool: &mut Pool, first: Superblock, options: &OpenOptions) -> Result<(), PoolError> {
    for (at, device) in pool.record.devices.iter().enumerate() {
        let Some(device) = device.filter(|d| d.state.is_in_use()) else { continue };
        if pool.present[at].is_none() {
            let number = DeviceNo(at as u8);
            pool.missing.push(number);
            pool.covered =
                pool.record.redundancy && device.state != DeviceState::Alone && pool.missing.len() == 1;
            let risky = pool.record.disks.iter().flatten().any(|d| d.may_be_dirty);
            if risky && !pool.covered && !options.accept_missing {
                return Err(PoolError::MissingDevice {
                    pool: first.arena.pool,
                    device: number,
                    id: device.id,
                });
            }
        }
    }
    Ok(())
}

fn inspect_pair(
    pages: [&[u8; BLOCK_BYTES]; 2],
    places: [Place; 2],
    kind: Kind,
) -> ([Found; 2], Option<usize>) {
    let mut found = [0, 1].map(|at| page::inspect(pages[at], places[at], kind, None));
    let generation = |f: &Found| match f {
        Found::Intact(header) => Some(header.generation),
        _ => None,
    };
    for at in 0..2 {
        if let Some(sibling) = generation(&found[1 - at]) {
            found[at] = page::inspect(pages[at], places[at], kind, Some(sibling));
        }
    }
    let newest = [0, 1].into_iter().filter(|at| generation(&found[*at]).is_some());
    let newest = newest.max_by_key(|at| generation(&found[*at]));
    (found, newest)
}

/// Whether a damaged page may be newer than its intact sibling.
fn may_be_newer(damaged: &Found, intact: u64) -> bool {
    match damaged {
        Found::Rotten { generation } => generation.is_none_or(|g| g > intact),
        Found::Intact(_) | Found::Torn => false,
    }
}

/// The metadata pages of some neighbouring segments.
struct Part {
    segments: Range<u32>,
    /// Two for each segment.
    pages: Vec<AlignedPage>,
}

impl Part {
    fn new(most_segments: u32) -> Part {
        Part { segments: 0..0, pages: vec![AlignedPage::BLANK; 2 * most_segments as usize] }
    }

    /// Reads the pages of segments of a device, and runs tasks. A page that cannot be read is rotten.
    fn read(
        &mut self,
        media: &mut dyn Media,
        device: &Present,
        segments: Range<u32>,
        tasks: Vec<Task<'_>>,
    ) -> Result<(), PoolError> {
        self.segments = segments;
        let places = self.segments.clone().flat_map(|segment| [(segment, 0), (segment, 1)]);
        let mut reads: Vec<PageRead<'_>> = places
            .zip(&mut self.pages)
            .map(|((segment, copy), page)| {
                let offset_bytes = geometry::metadata_bytes(segment, copy);
                PageRead { device: device.index, offset_bytes, page: &mut page.0, result: Ok(()) }
            })
            .collect();
        media.read_batch_while(&mut reads, tasks);
        for read in &mut reads {
            match read.result {
                Ok(()) => {}
                Err(IoFailure::Error) => read.page.fill(0xff),
                Err(gone @ IoFailure::Gone) => {
                    return Err(io_error(media, device.index, read.offset_bytes, gone));
                }
            }
        }
        Ok(())
    }

    /// Returns the segments in groups of [`GROUP_SEGMENTS`].
    fn groups<'a>(&'a self, device: &'a Present) -> impl Iterator<Item = Group<'a>> {
        let firsts = self.segments.clone().step_by(GROUP_SEGMENTS);
        let pages = &self.pages[..2 * self.segments.len()];
        let groups = pages.as_chunks().0.chunks(GROUP_SEGMENTS);
        firsts.zip(groups).map(|(first, pages)| Group { device, first, pages })
    }
}

/// The pages of some neighbouring segments of a device, which were not checked yet.
pub(crate) struct Group<'a> {
    device: &'a Present,
    first: u32,
    pages: &'a [[AlignedPage; 2]],
}

impl<'a> Group<'a> {
    /// Returns the number of its first segment on the device.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Checks the pages.
    pub fn found(&self) -> impl Iterator<Item = SegmentFound<'a>> {
        let device = self.device;
        (self.first..).zip(self.pages).map(move |(number, pair)| segment(pair, device, number))
    }
}

/// Processes segments as they are read, in two stages. While one part is in the second stage, the next part is in the
/// first stage, and the part after that is being read.
pub(crate) trait Stages {
    /// Returns the tasks of both stages: of the first stage for the groups of a part, and of the second stage for the
    /// part that has been in the first.
    fn tasks<'a>(&'a mut self, groups: &mut dyn Iterator<Item = Group<'a>>) -> Vec<Task<'a>>;

    /// Ends the second stage, and moves the part that was in the first one to it. All tasks have run.
    fn advance(&mut self);
}

/// Reads the metadata pages of a device's prepared segments, in order. When it returns, the last part has only been
/// through the first stage.
pub(crate) fn segments(
    media: &mut dyn Media,
    device: &Present,
    progress: &mut ReadProgress,
    taking: &mut impl Stages,
) -> Result<(), PoolError> {
    let count = device.prepared;
    let part_segments = (count / PARTS).clamp(AT_A_TIME[0], AT_A_TIME[1]).min(count);
    // Nothing is known while the first part is being read.
    let (mut known, mut next) = (Part::new(part_segments), Part::new(part_segments));
    for start in (0..count).step_by(part_segments.max(1) as usize) {
        let segments = start..(start + part_segments).min(count);
        let tasks = taking.tasks(&mut known.groups(device));
        next.read(media, device, segments, tasks)?;
        taking.advance();
        progress.done_segments += next.segments.len() as u64;
        media.progress(*progress);
        std::mem::swap(&mut known, &mut next);
    }
    media.read_batch_while(&mut [], taking.tasks(&mut known.groups(device)));
    taking.advance();
    Ok(())
}

fn segment<'a>([a, b]: &'a [AlignedPage; 2], device: &Present, segment: u32) -> SegmentFound<'a> {
    let pages = [&a.0, &b.0];
    let place = |generation| Place {
        device_seed: device.seed,
        offset_bytes: geometry::metadata_bytes(segment, generation),
    };
    let (found, newest) = inspect_pair(pages, [place(0), place(1)], Kind::Segment);
    let Some(newest) = newest else {
        return SegmentFound::Damaged { generation: known_generation(&found) + 1, owner: None };
    };
    let Found::Intact(header) = found[newest] else { unreachable!("the newest page is intact") };
    if may_be_newer(&found[1 - newest], header.generation) && !planted(Bug::AcceptOldPage) {
        let first = first_repaired(&found, Some(newest));
        let generation = next_generation(known_generation(&found), first) - 1;
        // A segment changes its owner only after a page that lists nothing.
        let listed = page::content(pages[newest]).iter().any(|byte| *byte != 0);
        return SegmentFound::Damaged { generation, owner: listed.then_some(header.owner) };
    }
    let paired = matches!(found[1 - newest], Found::Intact(_));
    SegmentFound::Good { header, page: pages[newest], paired }
}

/// Returns the highest generation that a pair of pages shows.
fn known_generation(found: &[Found; 2]) -> u64 {
    let known = found.iter().filter_map(|f| match f {
        Found::Intact(header) => Some(header.generation),
        Found::Rotten { generation } => *generation,
        Found::Torn => None,
    });
    known.max().unwrap_or(0)
}

/// Returns the page of a pair that a repair must overwrite first. A damaged page that may be newer is all
/// that prevents its intact sibling from being trusted, and a write may be torn.
fn first_repaired(found: &[Found; 2], newest: Option<usize>) -> Option<usize> {
    let newest = newest?;
    let Found::Intact(header) = &found[newest] else { return None };
    Some(if may_be_newer(&found[1 - newest], header.generation) { newest } else { 1 - newest })
}

/// Returns the lowest generation above another that goes to this page of the pair.
fn next_generation(above: u64, place: Option<usize>) -> u64 {
    let next = above + 1;
    next + u64::from(place.is_some_and(|place| next % 2 != place as u64))
}

/// Reads a disk's write-intent bitmaps on all devices and merges them.
pub(crate) fn intents(media: &mut dyn Media, pool: &Pool, disk: DiskNo) -> Result<IntentFound, PoolError> {
    let mut out =
        IntentFound { marked: no_regions(), generation: 0, repair: false, first_repairs: Vec::new() };
    let (mut newest_sound, mut least, mut generations, mut places) = (None, 0, Vec::new(), Vec::new());
    for device in pool.present.iter().flatten() {
        let mut pages = [[0; BLOCK_BYTES]; 2];
        for (copy, page) in pages.iter_mut().enumerate() {
            let offset = geometry::intent_bytes(disk, copy as u64);
            if media.read(device.index, offset, page).is_err() {
                page.fill(0xff);
            }
        }
        let place = |g| Place { device_seed: device.seed, offset_bytes: geometry::intent_bytes(disk, g) };
        let (found, newest) = inspect_pair(pages.each_ref(), [place(0), place(1)], Kind::Intent);
        let known = known_generation(&found);
        generations.push(known);
        places.push(first_repaired(&found, newest));
        out.generation = out.generation.max(known);
        out.repair |= found.iter().any(|f| !matches!(f, Found::Intact(_)));
        let intact = newest.and_then(|at| match found[at] {
            Found::Intact(header) => Some((at, header.generation)),
            _ => None,
        });
        let sound = intact.filter(|(at, generation)| !may_be_newer(&found[1 - at], *generation));
        let Some((newest, generation)) = sound else {
            // A page is written when the one before it is on all devices.
            let durable = intact.map_or(known.saturating_sub(1), |(_, generation)| generation);
            least = least.max(durable).max(FIRST_MAP);
            continue;
        };
        newest_sound = newest_sound.max(Some(generation));
        for (byte, marked) in out.marked.iter_mut().zip(&page::content(&pages[newest])[..MAP_BYTES]) {
            *byte |= marked;
        }
    }
    out.repair |= generations.iter().any(|g| *g != out.generation);
    out.first_repairs = places.into_iter().map(|place| next_generation(out.generation, place)).collect();
    if newest_sound.is_none_or(|generation| generation < least) {
        out.marked.fill(0xff);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(generation: u64, place: Place) -> [u8; BLOCK_BYTES] {
        let mut page = [0; BLOCK_BYTES];
        let header = Header { generation, flushed_seq: 0, owner: 0, kind: Kind::Segment, opening: 1 };
        page::seal(&mut page, header, &[9; 64], place);
        page
    }

    /// If it were overwritten first and torn, the older page would pass for the newest.
    #[test]
    fn the_older_page_is_overwritten_before_the_damaged_one() {
        let place = |at: u64| Place { device_seed: 1, offset_bytes: geometry::metadata_bytes(0, at) };
        let places = [place(0), place(1)];
        for older in [2, 3] {
            let newer = older + 1;
            let mut pages = [[0; BLOCK_BYTES]; 2];
            pages[older % 2] = sealed(older as u64, places[older % 2]);
            pages[newer % 2] = sealed(newer as u64, places[newer % 2]);
            pages[newer % 2][700] ^= 1;
            let (found, newest) = inspect_pair(pages.each_ref(), places, Kind::Segment);
            let first = first_repaired(&found, newest);
            assert_eq!(first, Some(older % 2));
            assert!(next_generation(known_generation(&found), first) > newer as u64);
            // A torn page never counted: the intact one does, and stays.
            let torn = sealed(older as u64 - 1, places[newer % 2]);
            pages[newer % 2] = sealed(newer as u64, places[newer % 2]);
            pages[newer % 2][2048..].copy_from_slice(&torn[2048..]);
            let (found, newest) = inspect_pair(pages.each_ref(), places, Kind::Segment);
            assert_eq!(first_repaired(&found, newest), Some(newer % 2));
        }
    }
}
