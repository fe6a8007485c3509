//! From listed entries to a store: decides which version of each block counts.
//!
//! Invariants
//! - Every entry that a durable page lists is in the store, as a live or dead slot, except those of commits
//!   that did not become durable: their pages are rewritten before anything else is.
//! - The decisions do not depend on the order in which segments are read.
//! - A commit that is not known to be flushed counts only if its data verifies. If it should have two copies,
//!   both must be listed and one of them whole, unless the other may be listed where nothing can be read, or
//!   the device stands alone.
//! - There are two exceptions for dirty blocks. If the staging area survived, a commit was still being written
//!   only if its block is staged: otherwise its data was damaged since, and it counts as a damaged block. If
//!   it did not survive, and the page that marked the commit as flushed may be one of those that are damaged,
//!   the disk may have lost the block.
//! - A sequence number that a page or the record mentions is not used again: a new commit with it would pass
//!   for durable, void or clean.
//! - Of the versions of a block on flash, the one with the highest sequence number counts. Of two copies of
//!   it, a clean one shows that both are clean.
//! - Commits before a disk's `since_seq` are void, and what commits up to its `clean_seq` wrote is clean,
//!   whatever the pages say.

use std::collections::{HashMap, HashSet};

use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo};

use super::listing::{Entry, Listed, list, trusted};
use super::newest::{note_once, settle};
use super::scan::{self, IntentFound, Pool};
use crate::bugs::{Bug, planted};
use crate::checksum;
use crate::config::Persistence;
use crate::error::PoolError;
use crate::flow::intent::map::{has, region_blocks_log2};
use crate::format::page::NO_OWNER;
use crate::format::record::{DeviceState, DiskRecord};
use crate::media::{Media, PageRead};
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use crate::store::{Placed, Store};

/// The recovered store, and what must be written before it is used.
pub(crate) struct Recovered {
    pub store: Store,
    /// By disk number.
    pub intents: Vec<IntentFound>,
    /// Segments whose next page must be written: they list entries that never became durable, list as one of
    /// two copies an entry that stands alone, or list as dirty an entry that another page knows to be clean.
    pub scrub: Vec<SegmentNo>,
    /// Damaged segments: both pages must be rewritten.
    pub rebuild: Vec<SegmentNo>,
    /// Second copies that must be written again: source and destination.
    pub recopy: Vec<(SlotNo, SlotNo)>,
    /// Disks that may have lost dirty blocks.
    pub damaged: Vec<DiskNo>,
    /// The highest sequence number seen.
    pub last_seq: u64,
    /// Every commit up to it is known to be durable.
    pub flushed_seq: u64,
    /// Entries of commits that did not become durable.
    pub torn_entries: u64,
    /// Segments whose metadata is damaged.
    pub damaged_segments: u64,
    /// Clean blocks are not to be trusted.
    pub distrust_clean: bool,
    /// A flush mark may have been on a page that is damaged, and on no other.
    marks_lost: bool,
    /// A page lists a damaged block.
    pub(super) any_poisoned: bool,
}

/// The blocks in a staging area that survived.
pub(crate) type StagedBlocks = HashSet<(DiskNo, BlockNo)>;

/// Reads all segments and decides which entries count. Writes nothing. `staged` is `None` if the staging area
/// did not survive.
pub(crate) fn recover(
    media: &mut dyn Media,
    pool: &Pool,
    staged: Option<&StagedBlocks>,
) -> Result<Recovered, PoolError> {
    let mut store = Store::new();
    store.second_copies = pool.record.redundancy;
    for (at, device) in pool.present.iter().enumerate() {
        if let Some(device) = device {
            let s = device.superblock;
            store.add_device(DeviceNo(at as u8), s.device, s.segments, device.prepared);
        }
    }
    media.will_fill(&store.memory_to_fill());
    let mut r = Recovered::with(store, media, pool)?;
    let listed = list(media, pool, &mut r)?;
    r.segments_lost(pool, &listed.lost);
    // Never reuse a number that was once durable: a new commit with it would count as durable. Never reuse a number
    // that the record mentions: a new commit with it would count as void or clean.
    let told = pool.record.disks.iter().flatten().map(DiskRecord::last_seq).max().unwrap_or(0);
    r.last_seq = r.last_seq.max(listed.flushed_seq).max(told);
    r.flushed_seq = listed.flushed_seq;
    let verified = verify(media, pool, &mut r, listed, staged);
    r.adopt(pool, &verified);
    r.scrub.sort_unstable();
    r.scrub.dedup();
    r.keep(pool);
    r.store.collect_free_segments();
    Ok(r)
}

impl Recovered {
    /// Returns a store with the write-intent bitmaps on the devices, and with nothing to be repaired.
    pub fn with(mut store: Store, media: &mut dyn Media, pool: &Pool) -> Result<Recovered, PoolError> {
        let disks = pool.record.disks.len();
        let mut intents = Vec::with_capacity(disks);
        for disk in 0..disks {
            intents.push(scan::intents(media, pool, DiskNo(disk as u16))?);
            store.add_disk(DiskNo(disk as u16));
        }
        Ok(Recovered {
            store,
            intents,
            scrub: Vec::new(),
            rebuild: Vec::new(),
            recopy: Vec::new(),
            damaged: Vec::new(),
            last_seq: pool.record.flushed_seq,
            flushed_seq: pool.record.flushed_seq,
            torn_entries: 0,
            damaged_segments: 0,
            distrust_clean: pool.record.distrust_clean || !pool.covered,
            marks_lost: false,
            any_poisoned: false,
        })
    }

    /// Takes over entries that were put aside, and are trusted now.
    fn adopt(&mut self, pool: &Pool, entries: &[Entry]) {
        let mut placed = Placed::of(&self.store);
        for entry in entries {
            let segment = self.store.segment_of(entry.number);
            let owner = self.store.owner_of(entry.number);
            let disk = pool.record.disks[owner.0 as usize].as_ref();
            let disk = disk.expect("listed segments belong to known disks");
            let (slot, is_stale) = trusted(disk, entry.slot);
            self.store.segments[segment].stale |= is_stale;
            self.any_poisoned |= entry.slot.poisoned();
            self.store.place(entry.number, slot, &mut placed);
        }
        let Recovered { store, scrub, .. } = self;
        store.index_placed(&mut placed, |store, number, other| settle(store, scrub, number, other));
    }

    pub(super) fn note_scrub(&mut self, segment: SegmentNo) {
        note_once(&mut self.scrub, segment);
    }

    /// Notes segments whose newest pages are damaged. If all are on one device and dirty blocks have second
    /// copies, nothing dirty is lost; otherwise dirty blocks may be. Either way an overtaken entry elsewhere
    /// could pass for the newest, so clean blocks are not trusted.
    fn segments_lost(&mut self, pool: &Pool, lost: &[(SegmentNo, Option<u16>)]) {
        self.distrust_clean |= !lost.is_empty();
        self.damaged_segments = lost.len() as u64;
        let mut devices = lost.iter().map(|(segment, _)| self.store.segments[*segment].device);
        let first = devices.next();
        let record = first.and_then(|device| pool.record.devices[device as usize]);
        let copies = pool.record.redundancy
            && record.is_some_and(|device| device.state != DeviceState::Alone)
            && pool.missing.is_empty()
            && pool.present.iter().flatten().count() >= 2
            && devices.all(|device| Some(device) == first);
        if copies {
            return;
        }
        self.marks_lost = !lost.is_empty();
        for (_, owner) in lost {
            for (at, disk) in pool.record.disks.iter().enumerate() {
                let concerned = owner.is_none_or(|o| o == NO_OWNER || o as usize == at);
                if concerned && disk.is_some_and(|d| d.may_be_dirty) {
                    self.damaged.push(DiskNo(at as u16));
                }
            }
        }
    }

    /// Drops blocks that must not be kept because of persistence, write-intent bitmaps or doubt. A damaged block that
    /// is clean is one whose loss was accepted: the origin counts.
    fn keep(&mut self, pool: &Pool) {
        let has_marks = |found: &IntentFound| found.marked.iter().any(|regions| *regions != 0);
        let is_marked: Vec<bool> = self.intents.iter().map(has_marks).collect();
        for segment in self.store.segments.numbers() {
            let owner = self.store.segments[segment].owner;
            let Some(record) = pool.record.disks.get(owner as usize).copied().flatten() else { continue };
            let disk = DiskNo(owner);
            if record.persistence == Persistence::All
                && !(is_marked[owner as usize] || self.distrust_clean || self.any_poisoned)
            {
                continue;
            }
            let log2 = region_blocks_log2(record.sectors);
            for number in self.store.slots_of(segment) {
                let Some(slot) = self.store.slot(number).primary() else { continue };
                let marked = has(&self.intents[owner as usize].marked, slot.block().0 >> log2);
                let accepted = slot.poisoned() && !slot.dirty();
                let drop = match record.persistence {
                    Persistence::All => !slot.dirty() && (marked || self.distrust_clean),
                    Persistence::Dirty => !slot.dirty(),
                    Persistence::None => true,
                };
                if drop || accepted {
                    self.store.invalidate(disk, slot.block());
                }
            }
        }
    }
}

/// The result of reading a doubtful entry's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is there.
    Whole,
    /// Other data is there.
    Torn,
    /// Unknown: the read failed.
    Unreadable,
}

/// Reads the data of entries that may not have been durable, and drops those whose data is not there.
///
/// A commit that should have two copies and has one was never durable. It is dropped too; otherwise a device
/// that fails later could take a version with it that was already seen. The exception is a copy whose sibling
/// may be listed on a device or page that cannot be read. A copy that is listed but not whole may have been
/// damaged at rest, and is written again.
fn verify(
    media: &mut dyn Media,
    pool: &Pool,
    r: &mut Recovered,
    listed: Listed,
    staged: Option<&StagedBlocks>,
) -> Vec<Entry> {
    let (mut kept, doubtful): (Vec<_>, Vec<_>) =
        listed.entries.into_iter().partition(|entry| entry.slot.seq() <= listed.flushed_seq);
    if planted(Bug::TrustTornCommit) || planted(Bug::IgnoreChecksum) {
        kept.extend(doubtful);
        return kept;
    }
    let verdicts = read_doubtful(media, pool, r, &doubtful);
    let key = |entry: &Entry| (r.store.owner_of(entry.number), entry.slot.block(), entry.slot.seq());
    let mut twins: HashMap<_, Vec<usize>> = HashMap::new();
    for (at, entry) in doubtful.iter().enumerate().filter(|(_, entry)| entry.twin) {
        twins.entry(key(entry)).or_default().push(at);
    }
    let device = |segment: SegmentNo| r.store.segments[segment].device;
    let alone = |at: u8| pool.record.devices[at as usize].is_some_and(|d| d.state == DeviceState::Alone);
    let lone = |entry: &Entry| {
        let own = device(r.store.segment_of(entry.number));
        let others_are_whole = pool.missing.is_empty() && r.rebuild.iter().all(|s| device(*s) == own);
        entry.twin && others_are_whole && !alone(own)
    };
    // A frame is freed only when its commit has been written.
    let was_written = |entry: &Entry| {
        let block = (r.store.owner_of(entry.number), entry.slot.block());
        entry.slot.dirty() && staged.is_some_and(|staged| !staged.contains(&block))
    };
    let (mut torn, mut relist, mut recopy) = (Vec::new(), Vec::new(), Vec::new());
    for (at, entry) in doubtful.iter().enumerate() {
        let twin = twins.get(&key(entry)).and_then(|both| both.iter().copied().find(|other| *other != at));
        let twin = twin.filter(|_| entry.twin).map(|other| (doubtful[other], verdicts[other]));
        let keeps = match (verdicts[at], twin) {
            (Verdict::Whole, Some((other, Verdict::Torn))) => {
                recopy.push((entry.number, other.number));
                true
            }
            (Verdict::Whole, None) => !lone(entry) || planted(Bug::KeepLoneCopy),
            (Verdict::Torn, Some((_, Verdict::Whole))) => true,
            (Verdict::Torn, _) => was_written(entry),
            _ => true,
        };
        if !keeps {
            torn.push(*entry);
            continue;
        }
        kept.push(*entry);
        if entry.twin && twin.is_none() {
            // Rewrite the page: once the damage is repaired, nothing else shows that this copy stands alone.
            relist.push(entry.number);
        }
    }
    r.recopy = recopy;
    r.torn_entries += torn.len() as u64;
    if r.marks_lost && staged.is_none() {
        let dirty = torn.iter().filter(|entry| entry.slot.dirty());
        r.damaged.extend(dirty.map(|entry| r.store.owner_of(entry.number)));
    }
    for number in torn.into_iter().map(|entry| entry.number).chain(relist) {
        r.note_scrub(r.store.segment_of(number));
    }
    kept
}

fn read_doubtful(media: &mut dyn Media, pool: &Pool, r: &Recovered, doubtful: &[Entry]) -> Vec<Verdict> {
    const AT_A_TIME: usize = 256;
    let mut verdicts = Vec::with_capacity(doubtful.len());
    let mut pages = vec![[0u8; BLOCK_BYTES]; doubtful.len().min(AT_A_TIME)];
    for chunk in doubtful.chunks(AT_A_TIME) {
        let mut reads: Vec<PageRead<'_>> = pages
            .iter_mut()
            .zip(chunk)
            .map(|(page, entry)| {
                let (device, offset_bytes) = r.store.location(entry.number);
                let device = pool.present[device.0 as usize].as_ref().expect("the device is here").index;
                PageRead { device, offset_bytes, page, result: Ok(()) }
            })
            .collect();
        media.read_batch(&mut reads);
        let results: Vec<bool> = reads.iter().map(|read| read.result.is_ok()).collect();
        for ((entry, page), is_read) in chunk.iter().zip(&pages).zip(results) {
            let disk = r.store.owner_of(entry.number);
            let record = pool.record.disks[disk.0 as usize].as_ref().expect("the disk is known");
            let seed = checksum::disk_seed(record.id);
            let whole = checksum::bind(checksum::crc32c(page), seed, entry.slot.block()) == entry.slot.crc();
            verdicts.push(match (is_read, whole) {
                (false, _) => Verdict::Unreadable,
                (true, true) => Verdict::Whole,
                (true, false) => Verdict::Torn,
            });
        }
    }
    verdicts
}
