//! From pages to a store: takes over the entries that pages list, in tasks that a driver may run on several threads.
//!
//! In the first stage, the pages of a group of segments are checked, and their entries are put into their slots. In the
//! second stage, the entries are added to a range of the index ([`Indexing`]). Between the stages, on one thread, the
//! segments are counted, and entries of the same block are compared.
//!
//! Invariants
//! - Neither groups nor ranges depend on the driver, and tasks of the same time share nothing that one of them changes.
//!   So the result does not depend on threads.
//! - Groups are counted in order, and the entries of a group are in the order of their slots.
//! - An entry is put aside unless its commit is covered by a flush mark: one of its group, of an earlier part or of the
//!   record. A list of all entries would be twice as large as the store itself.

use haversack_model::{DeviceNo, DiskNo};

use super::entries::Recovered;
use super::newest::settle;
use super::scan::{self, GROUP_SEGMENTS, Group, Pool, SegmentFound, Stages};
use crate::disk::inside;
use crate::error::PoolError;
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::format::page;
use crate::format::record::DiskRecord;
use crate::media::{Media, ReadProgress, Task};
use crate::store::segment::SegmentNo;
use crate::store::slot::{ENTRY_BYTES, Live, Slot, SlotNo};
use crate::store::{Filling, Indexing, Placed, PlacedCounts, SlotsPart};

/// A listed slot.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub number: SlotNo,
    pub slot: Live,
    /// It is listed as one of two copies.
    pub twin: bool,
}

/// What pages list and what they say besides.
pub(super) struct Listed {
    /// The entries that were put aside. All others are in the store already.
    pub entries: Vec<Entry>,
    /// The highest flush mark in the record and the pages read so far.
    pub flushed_seq: u64,
    /// Damaged segments, and the disk that may have owned each.
    pub lost: Vec<(SegmentNo, Option<u16>)>,
}

/// Reads all segments and takes over what their pages list.
pub(super) fn list(media: &mut dyn Media, pool: &Pool, r: &mut Recovered) -> Result<Listed, PoolError> {
    let listed = Listed { entries: Vec::new(), flushed_seq: pool.record.flushed_seq, lost: Vec::new() };
    let total_segments = pool.present.iter().flatten().map(|device| u64::from(device.prepared)).sum();
    let mut progress = ReadProgress { done_segments: 0, total_segments };
    let indexing = Indexing::of(&mut r.store);
    let (filled, placed) = (Vec::new(), Vec::new());
    let mut listing = Listing { disks: &pool.record.disks, r, listed, first: 0, filled, placed, indexing };
    for (at, device) in pool.present.iter().enumerate() {
        let Some(device) = device else { continue };
        let space = listing.r.store.devices[DeviceNo(at as u8)].as_ref();
        listing.first = space.map_or(0, |d| d.first_segment.0);
        scan::segments(media, device, &mut progress, &mut listing)?;
    }
    media.read_batch_while(&mut [], listing.tasks(&mut std::iter::empty()));
    listing.advance();
    let Listing { r, listed, mut indexing, .. } = listing;
    let Recovered { store, scrub, .. } = &mut *r;
    indexing.finish_all(store, &mut |store, number, other| settle(store, scrub, number, other));
    indexing.end(store);
    Ok(listed)
}

/// Adds the entries that pages list, first to the slots and then to the index.
struct Listing<'a> {
    disks: &'a [Option<DiskRecord>],
    r: &'a mut Recovered,
    listed: Listed,
    /// The number of the first segment of the device that is being read.
    first: u32,
    /// What is in the first stage, by group.
    filled: Vec<Filled>,
    /// What is in the second stage.
    placed: Vec<Filled>,
    indexing: Indexing,
}

impl Stages for Listing<'_> {
    fn tasks<'a>(&'a mut self, groups: &mut dyn Iterator<Item = Group<'a>>) -> Vec<Task<'a>> {
        let Listing { disks, r, listed, first, filled, placed, indexing } = self;
        let (disks, mark, groups) = (*disks, listed.flushed_seq, groups.collect::<Vec<_>>());
        filled.resize_with(groups.len().max(filled.len()), || Filled::new(indexing.placed()));
        let first = SegmentNo(*first + groups.first().map_or(0, Group::first));
        let parts = r.store.slots_to_fill(first, GROUP_SEGMENTS);
        let numbers = (first.0..).step_by(GROUP_SEGMENTS).map(SegmentNo);
        let groups = groups.into_iter().zip(numbers).zip(parts.zip(filled));
        let first_stage = groups.map(move |((group, first), (part, filled))| -> Task<'a> {
            Box::new(move || filled.fill(disks, &group, first, part, mark))
        });
        first_stage.chain(indexing.tasks(placed)).collect()
    }

    fn advance(&mut self) {
        let Recovered { store, scrub, .. } = &mut *self.r;
        let mut settle = |store: &mut _, number, other| settle(store, scrub, number, other);
        self.indexing.finish(&self.placed, store, &mut settle);
        for filled in &mut self.filled {
            self.r.count(filled, &mut self.listed);
        }
        self.placed.iter_mut().for_each(Filled::clear);
        std::mem::swap(&mut self.filled, &mut self.placed);
    }
}

/// What the first stage has found in a group of segments.
struct Filled {
    segments: Vec<FoundSegment>,
    aside: Vec<Entry>,
    placed: Placed,
    /// By how many bytes the table of slots has grown.
    grown_bytes: usize,
}

impl AsRef<Placed> for Filled {
    fn as_ref(&self) -> &Placed {
        &self.placed
    }
}

/// A segment whose entries are in its slots, but which was not counted yet.
struct FoundSegment {
    number: SegmentNo,
    /// The generation of its page, or what a damaged one counts as.
    generation: u64,
    page: FoundPage,
}

enum FoundPage {
    /// See [`SegmentFound::Damaged`].
    Damaged { owner: Option<u16> },
    /// The newest page is intact.
    Good(FoundEntries),
}

/// What an intact page lists.
struct FoundEntries {
    owner: u16,
    /// The owner is a disk of the pool.
    is_known: bool,
    /// The older page is intact too.
    is_paired: bool,
    is_blank: bool,
    /// It lists something that is overtaken.
    is_stale: bool,
    any_poisoned: bool,
    flushed_seq: u64,
    /// The highest sequence number that it lists.
    last_seq: u64,
    /// The entries that are in their slots.
    counts: PlacedCounts,
}

impl Filled {
    fn new(placed: Placed) -> Filled {
        Filled { segments: Vec::new(), aside: Vec::new(), placed, grown_bytes: 0 }
    }

    fn clear(&mut self) {
        self.segments.clear();
        self.aside.clear();
        self.placed.clear();
        self.grown_bytes = 0;
    }

    /// Checks the pages of a group, from segment `first` on, and puts into slots the entries that are known to be
    /// flushed by `mark` or by the marks of the group.
    fn fill(
        &mut self,
        disks: &[Option<DiskRecord>],
        group: &Group<'_>,
        first: SegmentNo,
        mut part: SlotsPart<'_>,
        mark: u64,
    ) {
        let found: Vec<SegmentFound<'_>> = group.found().collect();
        let mark_of = |found: &SegmentFound<'_>| match found {
            SegmentFound::Good { header, .. } => header.flushed_seq,
            SegmentFound::Damaged { .. } => 0,
        };
        let mark = found.iter().map(mark_of).fold(mark, u64::max);
        self.placed.reserve(found.len() * SLOTS_PER_SEGMENT as usize);
        for (number, found) in (first.0..).map(SegmentNo).zip(found) {
            let (generation, page) = match found {
                SegmentFound::Damaged { generation, owner } => (generation, FoundPage::Damaged { owner }),
                SegmentFound::Good { header, page, paired } => {
                    let is_known = disks.get(header.owner as usize).is_some_and(Option::is_some);
                    let found = FoundEntries {
                        owner: header.owner,
                        is_known,
                        is_paired: paired,
                        is_blank: true,
                        is_stale: false,
                        any_poisoned: false,
                        flushed_seq: header.flushed_seq,
                        last_seq: 0,
                        counts: PlacedCounts::default(),
                    };
                    let disk = disks.get(header.owner as usize).and_then(Option::as_ref);
                    let content = page::content(page);
                    let page = if Slot::are_possible(content.as_chunks().0) {
                        let found = self.fill_segment(disk, &content, number, &mut part, mark, found);
                        FoundPage::Good(found)
                    } else {
                        FoundPage::Damaged { owner: Some(header.owner) }
                    };
                    (header.generation, page)
                }
            };
            self.segments.push(FoundSegment { number, generation, page });
        }
        self.placed.sort();
        self.grown_bytes = part.others_bytes;
    }

    /// Takes over what a segment's page lists; returns `found` completed.
    fn fill_segment(
        &mut self,
        disk: Option<&DiskRecord>,
        content: &[u8; page::CONTENT_BYTES],
        segment: SegmentNo,
        part: &mut SlotsPart<'_>,
        mark: u64,
        mut found: FoundEntries,
    ) -> FoundEntries {
        let mut filling = Filling::begin(part, segment, DiskNo(found.owner), &mut self.placed);
        let numbers = (segment.0 * SLOTS_PER_SEGMENT..).map(SlotNo);
        for (number, entry) in numbers.zip(content.as_chunks::<ENTRY_BYTES>().0) {
            let Some((slot, twin)) = Slot::decode(entry) else { continue };
            found.is_blank = false;
            found.last_seq = found.last_seq.max(slot.seq());
            let Some(disk) = disk else { continue };
            if slot.seq() > mark {
                self.aside.push(Entry { number, slot, twin });
                continue;
            }
            let (trusted, is_stale) = trusted(disk, slot);
            found.is_stale |= is_stale;
            found.any_poisoned |= slot.poisoned();
            if filling.counts.all == 0 {
                filling.expect(&trusted);
            }
            filling.put(number, trusted);
        }
        found.counts = filling.counts;
        found
    }
}

impl Recovered {
    /// Counts the segments of a group whose slots are filled.
    fn count(&mut self, filled: &mut Filled, listed: &mut Listed) {
        self.store.filled(filled.grown_bytes);
        listed.entries.append(&mut filled.aside);
        for FoundSegment { number, generation, page } in filled.segments.drain(..) {
            self.store.segments[number].generation = generation;
            match page {
                FoundPage::Damaged { owner } => {
                    listed.lost.push((number, owner));
                    self.rebuild.push(number);
                }
                FoundPage::Good(found) => {
                    listed.flushed_seq = listed.flushed_seq.max(found.flushed_seq);
                    self.count_entries(number, &found);
                }
            }
        }
    }

    fn count_entries(&mut self, segment: SegmentNo, found: &FoundEntries) {
        if !found.is_paired {
            self.scrub.push(segment);
        }
        self.last_seq = self.last_seq.max(found.last_seq);
        self.any_poisoned |= found.any_poisoned;
        self.store.segments[segment].stale |= found.is_stale;
        if found.is_blank {
            return;
        }
        if !found.is_known {
            self.note_scrub(segment);
            return;
        }
        self.store.adopt_segment(segment, DiskNo(found.owner));
        self.store.count_placed(segment, found.counts);
    }
}

/// Returns the initial slot for a trusted entry, before other entries of its block are considered: dead if the entry is
/// void. Also returns whether the page lists something that is overtaken.
pub(super) fn trusted(disk: &DiskRecord, slot: Live) -> (Slot, bool) {
    let inside = inside(slot.block(), disk.phase, disk.sectors);
    let mask = slot.mask() & inside;
    // A lost block has no valid sectors.
    let nothing = if slot.poisoned() { inside == 0 } else { mask == 0 };
    let void = slot.seq() < disk.since_seq || nothing;
    let is_stale = void || mask != slot.mask();
    let mut slot = slot.with_mask(mask).with_protected(true).with_mirror(false);
    if slot.seq() <= disk.clean_seq {
        // The disk was detached clean after that commit, and the page was not written since.
        slot = slot.with_dirty(false);
    }
    (if void { slot.die(false).into() } else { slot.into() }, is_stale)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::Range;

    use haversack_model::random::Random;
    use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, BlockNo, DiskId, SECTORS_PER_BLOCK, Uuid};

    use super::super::compare::tables;
    use super::super::{OpenOptions, entries};
    use super::*;
    use crate::config::{Persistence, PoolConfig};
    use crate::flow::intent::map::Regions;
    use crate::format::geometry;
    use crate::format::page::{Header, Kind, Place};
    use crate::format::record::{Damage, DeviceRecord, DeviceState, Moved, PoolRecord};
    use crate::media::{IoFailure, PageRead};
    use crate::pool;
    use crate::store::slot::{IMPOSSIBLE_SEQ, SEQ_LIMIT};
    use crate::{PoolError, checksum};

    const ARENA: ArenaId = ArenaId { pool: Uuid([0x70; 16]), number: ArenaNo(0) };
    /// More than are read at a time, and fewer.
    const SEGMENTS: [u32; 2] = [1100, 70];
    const DISKS: u16 = 3;
    const BLOCKS: u64 = 40_000;

    /// How tasks are run.
    #[derive(Clone, Copy, Debug)]
    enum Running {
        InOrder,
        Shuffled(u64),
        /// On this many threads.
        Threads(usize),
    }

    type Page = [u8; BLOCK_BYTES];

    /// The pages of devices that are not zero.
    struct Pages {
        devices: Vec<HashMap<u64, Page>>,
        running: Running,
        /// The bytes of memory that were announced.
        filled_bytes: usize,
    }

    impl Media for Pages {
        fn devices(&self) -> usize {
            self.devices.len()
        }

        fn name(&self, device: usize) -> String {
            format!("device {device}")
        }

        fn capacity_bytes(&self, device: usize) -> u64 {
            geometry::device_bytes(SEGMENTS[device])
        }

        fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
            for read in reads {
                let page = self.devices[read.device].get(&read.offset_bytes);
                *read.page = page.copied().unwrap_or([0; BLOCK_BYTES]);
            }
        }

        fn read_batch_while(&mut self, reads: &mut [PageRead<'_>], mut tasks: Vec<Task<'_>>) {
            match self.running {
                Running::InOrder => tasks.into_iter().for_each(|task| task()),
                Running::Shuffled(seed) => {
                    Random::scrambled(seed).shuffle(&mut tasks);
                    tasks.into_iter().for_each(|task| task());
                }
                Running::Threads(threads) => {
                    let tasks = std::sync::Mutex::new(tasks.into_iter());
                    let next = || std::iter::from_fn(|| tasks.lock().expect("no task panics").next());
                    std::thread::scope(|scope| {
                        for _ in 0..threads {
                            scope.spawn(|| next().for_each(|task| task()));
                        }
                    });
                }
            }
            self.read_batch(reads);
        }

        fn will_fill(&mut self, tables: &[Range<usize>]) {
            self.filled_bytes = tables.iter().map(Range::len).sum();
        }

        fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
            let offsets = (offset_bytes..).step_by(BLOCK_BYTES);
            self.devices[device].extend(offsets.zip(pages.as_chunks().0.iter().copied()));
            Ok(())
        }

        fn flush(&mut self, _: usize) -> Result<(), IoFailure> {
            Ok(())
        }
    }

    fn id(device: usize) -> Uuid {
        Uuid([device as u8 + 1; 16])
    }

    fn disk_id(disk: u16) -> DiskId {
        DiskId([disk as u8; 16])
    }

    fn record(rng: &mut Random, redundancy: bool) -> PoolRecord {
        let device = |(at, segments): (usize, &u32)| {
            let state = DeviceState::Active;
            Some(DeviceRecord { id: id(at), segments: *segments, prepared: *segments, state })
        };
        let disk = |at: u16| {
            Some(DiskRecord {
                id: disk_id(at),
                // A few blocks are outside.
                sectors: (BLOCKS - 9) * SECTORS_PER_BLOCK - u64::from(at),
                phase: 0,
                owned: true,
                epoch: 1,
                may_be_dirty: true,
                origin_volatile: false,
                damage: Damage::None,
                persistence: Persistence::All,
                since_seq: if rng.one_in(2) { rng.below(300) } else { 0 },
                clean_seq: if rng.one_in(2) { rng.below(300) } else { 0 },
                moved: Moved::No,
            })
        };
        PoolRecord {
            generation: 2,
            openings: 1,
            redundancy,
            flushed_seq: 100,
            devices: SEGMENTS.iter().enumerate().map(device).collect(),
            disks: (0..DISKS).map(disk).collect(),
            ..PoolRecord::default()
        }
    }

    /// What a page of a disk lists: versions of few blocks, some in several copies. The data of half of them is zero,
    /// as on the devices.
    fn content(rng: &mut Random, owner: u16, redundancy: bool) -> Vec<u8> {
        let (zero_crc, seed) = (checksum::crc32c(&[0; BLOCK_BYTES]), checksum::disk_seed(disk_id(owner)));
        let slot = |_| {
            if rng.one_in(8) {
                return [0; ENTRY_BYTES];
            }
            let block = BlockNo(rng.below(BLOCKS));
            let seq = rng.range(1, 3000) + (u64::from(rng.one_in(9)) << 32);
            let mask = if rng.one_in(9) { rng.below(256) as u8 } else { 0xff };
            let crc = if rng.one_in(2) { checksum::bind(zero_crc, seed, block) } else { 1 };
            let slot = Live::new(block, mask, crc, seq).with_dirty(rng.one_in(3));
            slot.encode(redundancy && slot.dirty())
        };
        (0..SLOTS_PER_SEGMENT).map(slot).collect::<Vec<_>>().concat()
    }

    /// Returns the sealed page of a segment, as it was written with a generation.
    fn sealed(rng: &mut Random, place: Place, generation: u64, owner: u16, content: &[u8]) -> Page {
        let flushed_seq = rng.below(2500) | u64::from(rng.one_in(100)) << 32;
        let header = Header { generation, flushed_seq, owner, kind: Kind::Segment, opening: 1 };
        let mut page = [0; BLOCK_BYTES];
        page::seal(&mut page, header, content, place);
        page
    }

    /// A pool as crashes may leave it, and as they may not. Without `damage`, pages are whole or torn.
    fn pages(rng: &mut Random, damage: bool) -> Pages {
        let redundancy = rng.one_in(2);
        let mut media =
            Pages { devices: vec![HashMap::new(); 2], running: Running::InOrder, filled_bytes: 0 };
        let (arenas, device_ids) = (1, vec![id(0), id(1)]);
        let config = PoolConfig { arena: ARENA, arenas, device_ids, redundancy, prepared_segments: u32::MAX };
        pool::create(&mut media, &config).expect("blank devices become a pool");
        let record = record(rng, redundancy);
        for (at, segments) in SEGMENTS.into_iter().enumerate() {
            for segment in (0..segments).filter(|segment| segment % 13 > 0) {
                let owner = if rng.one_in(40) { 77 } else { rng.below(u64::from(DISKS)) as u16 };
                let (content, last) = (content(rng, owner, redundancy), 3 + rng.below(2));
                // The page before the last one, the one that it overtakes, and the last one, perhaps torn.
                for generation in last - 2..=last {
                    let offset_bytes = geometry::metadata_bytes(segment, generation);
                    let place = Place { device_seed: checksum::device_seed(ARENA, id(at)), offset_bytes };
                    let mut page = sealed(rng, place, generation, owner, &content);
                    let before = media.devices[at].get(&offset_bytes);
                    if let Some(before) = before.filter(|_| generation == last && rng.one_in(60)) {
                        page[2048..].copy_from_slice(&before[2048..]);
                    } else if damage && rng.one_in(100) {
                        page[rng.below(BLOCK_BYTES as u64) as usize] ^= 1;
                    }
                    media.devices[at].insert(offset_bytes, page);
                }
            }
            for copy in 0..2 {
                pool::write_record_copy(&mut media, at, copy, ARENA, &record).expect("memory does not fail");
            }
        }
        media
    }

    /// Everything that recovery decides, the tables byte by byte.
    #[derive(PartialEq)]
    struct Decided {
        tables: Vec<Vec<u8>>,
        segments: [Vec<SegmentNo>; 2],
        recopy: Vec<(SlotNo, SlotNo)>,
        damaged: Vec<DiskNo>,
        counts: [u64; 4],
        distrust_clean: bool,
        marked: Vec<Regions>,
    }

    fn recovered(media: &mut Pages, running: Running) -> Result<Decided, PoolError> {
        media.running = running;
        let pool = scan::pool(media, &OpenOptions::default())?;
        let r = entries::recover(media, &pool, None)?;
        r.store.check();
        let slots = (SEGMENTS.iter().sum::<u32>() * SLOTS_PER_SEGMENT) as usize;
        assert!((19 * slots..22 * slots).contains(&media.filled_bytes), "slots and index are announced");
        Ok(Decided {
            tables: tables(&r.store),
            segments: [r.scrub, r.rebuild],
            recopy: r.recopy,
            damaged: r.damaged,
            counts: [r.last_seq, r.flushed_seq, r.torn_entries, r.damaged_segments],
            distrust_clean: r.distrust_clean,
            marked: r.intents.into_iter().map(|found| found.marked).collect(),
        })
    }

    #[test]
    fn threads_and_the_order_of_tasks_decide_nothing() {
        for seed in 0..4 {
            let damage = seed % 2 == 0;
            let mut media = pages(&mut Random::scrambled(seed), damage);
            let one = recovered(&mut media, Running::InOrder).expect("it opens");
            let [_, _, torn_entries, damaged_segments] = one.counts;
            assert!(torn_entries > 0 && !one.segments[0].is_empty() && damage == (damaged_segments > 0));
            let shuffled = [seed, seed + 9].map(Running::Shuffled);
            for running in shuffled.into_iter().chain([2, 7].map(Running::Threads)) {
                let other = recovered(&mut media, running).expect("it opens");
                assert!(one == other, "seed {seed}, {running:?}");
            }
        }
    }

    /// No commit could follow it.
    #[test]
    fn a_segment_that_lists_an_impossible_number_is_damaged() {
        let rng = &mut Random::scrambled(1);
        let mut media = pages(rng, false);
        let before = recovered(&mut media, Running::InOrder).expect("it opens").counts;
        let offset_bytes = geometry::metadata_bytes(1, 9);
        let place = Place { device_seed: checksum::device_seed(ARENA, id(0)), offset_bytes };
        let entry = Live::new(BlockNo(1), 0xff, 1, SEQ_LIMIT - 1).with_dirty(true).encode(false);
        media.devices[0].insert(offset_bytes, sealed(rng, place, 9, 0, &entry));
        let after = recovered(&mut media, Running::InOrder).expect("it opens").counts;
        assert_eq!(after[3], before[3] + 1);
        assert!(after[0] < IMPOSSIBLE_SEQ);
    }
}
