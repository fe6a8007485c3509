//! The store in a checkpoint: its tables, with slots of 16 bytes, and the state of its disks.
//!
//! What can be derived is not written: lists of free slots and segments, the order of dirty segments, sums of sharers.
//! Times at which blocks became dirty are not kept either, as after any other start. A disk that shared the pool is on
//! its own until its target says otherwise; the place of each segment among the common ones is kept, so that what the
//! sharers have forgotten lately is found again once all of them share.
//!
//! Invariants
//! - Only a store at rest is written: nothing is superseded, every page is durable, every device is in use.
//! - What is read is what was written: checksums say so. Numbers that index a table are checked nevertheless, and so
//!   are sums over segments.

use std::collections::VecDeque;

use haversack_model::DiskNo;

use super::aging::Aging;
use super::batches::Batches;
use super::dirty::DirtyTimes;
use super::segment::{NONE, SAVED_BYTES, SegmentNo, SegmentState};
use super::slot::{Slot, SlotNo, Status};
use super::stay::{Stay, USE_BYTES};
use super::{DiskSpace, Store};
use crate::format::checkpoint::{Piece, PieceWriter, Section};
use crate::format::codec::{Reader, Writer};
use crate::format::geometry::SLOTS_PER_SEGMENT;
use crate::format::page::NO_OWNER;

const SLOT_BYTES: usize = 16;
const LINE_BYTES: usize = 16;
const GHOST_BYTES: usize = 2;

/// What was read of a store besides its tables.
#[derive(Default)]
pub(crate) struct Loading {
    /// The section with the state of disks, as far as it was read.
    state: Vec<u8>,
    /// Segments that were read.
    segments: usize,
    /// The number of the next slot to read: slots come in order.
    next_slot: usize,
    /// Slots that were read and are not blank.
    used_slots: usize,
    /// The segment of the last of them.
    segment: Option<SegmentNo>,
}

/// The bytes of two words.
fn slot_bytes(words: &[u64; 2]) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

/// The bytes of four words.
fn line_bytes(words: &[u32; 4]) -> [u8; LINE_BYTES] {
    let mut bytes = [0; LINE_BYTES];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

/// Returns the index of the first item of a piece and the items, if the piece has whole ones.
fn items<'a, const N: usize>(piece: &Piece<'a>) -> Option<(usize, &'a [[u8; N]])> {
    let at = usize::try_from(piece.offset_bytes).ok().filter(|at| at % N == 0)? / N;
    let (items, rest) = piece.payload.as_chunks();
    rest.is_empty().then_some((at, items))
}

/// Returns the part of a table that begins at an index and has this many items.
fn part<T>(table: &mut [T], at: usize, count: usize) -> Option<&mut [T]> {
    table.get_mut(at..)?.get_mut(..count)
}

impl Store {
    /// Whether nothing is in progress, and no device has left since the pool was opened: the segments of one that has
    /// still have numbers here, and none after the next start.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.superseded.is_empty()
            && self.written_pages.is_empty()
            && self.devices.iter().flatten().all(|d| d.alive && !d.draining)
            && self.segments.iter().all(|s| !s.page_writing && s.state != SegmentState::Dead)
    }

    /// Writes the store. It must be at rest.
    pub(crate) fn save<E>(&self, pieces: &mut PieceWriter<'_, E>) -> Result<(), E> {
        pieces.bytes(Section::State, &self.state())?;
        let swept: Vec<_> = self.segments.iter().zip(self.swept.iter()).map(|(s, at)| s.bytes(*at)).collect();
        pieces.table(Section::Segments, swept.len(), false, |at| swept[at])?;
        let (uses, lines, ghosts) = (self.last_uses.all().1, self.index.all(), self.ghosts.all());
        pieces.table(Section::Uses, uses.len(), false, |at| uses[at].bytes())?;
        let slot = |at| self.slots.get(SlotNo(at as u32)).words();
        pieces.table(Section::Slots, self.slots.len(), true, |at| slot_bytes(&slot(at)))?;
        pieces.table(Section::Index, lines.len(), true, |at| line_bytes(&lines[at]))?;
        pieces.table(Section::Ghosts, ghosts.len(), true, |at| ghosts[at].to_le_bytes())
    }

    fn state(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.index.buckets() as u64).u64(self.newest_filled).u64(self.last_uses.all().0);
        self.common.stay.put(&mut w);
        w.u32(self.disks.len() as u32);
        for disk in self.disks.iter() {
            disk.put(&mut w);
        }
        w.u32(self.mirrors.len() as u32);
        // In order: the same store gives the same bytes.
        let mut mirrors: Vec<_> = self.mirrors.iter().map(|(first, second)| (first.0, second.0)).collect();
        mirrors.sort_unstable();
        for (first, second) in mirrors {
            w.u32(first).u32(second);
        }
        w.0
    }

    /// Takes over a piece of a store with the same devices. This store is blank otherwise. Returns `None` if there is
    /// no place for it.
    pub(crate) fn load(&mut self, loading: &mut Loading, piece: &Piece<'_>) -> Option<()> {
        match piece.section {
            Section::State => loading.state.extend_from_slice(piece.payload),
            Section::Segments => loading.segments += self.load_segments(items(piece)?)?,
            Section::Uses => {
                let (at, items) = items::<USE_BYTES>(piece)?;
                self.last_uses.fill(at, items).then_some(())?;
            }
            Section::Slots => self.load_slots(loading, items(piece)?)?,
            Section::Index => {
                let (at, items) = items::<LINE_BYTES>(piece)?;
                self.index.fill(at, items, self.slots.len() as u32).then_some(())?;
            }
            Section::Ghosts => {
                let (at, items) = items::<GHOST_BYTES>(piece)?;
                let to = part(self.ghosts.all_mut(), at, items.len())?;
                to.iter_mut().zip(items).for_each(|(to, bytes)| *to = u16::from_le_bytes(*bytes));
            }
            Section::Head | Section::End => return None,
        }
        Some(())
    }

    fn load_segments(&mut self, (at, items): (usize, &[[u8; SAVED_BYTES]])) -> Option<usize> {
        for (on, bytes) in items.iter().enumerate() {
            let number = SegmentNo(u32::try_from(at + on).ok()?);
            *self.swept.get_mut(number)? = self.segments.get_mut(number)?.resume(bytes)?;
        }
        Some(items.len())
    }

    fn load_slots(&mut self, loading: &mut Loading, (at, items): (usize, &[[u8; SLOT_BYTES]])) -> Option<()> {
        let end = at.checked_add(items.len()).filter(|end| *end <= self.slots.len())?;
        // So every slot is blank before it is read.
        (at >= loading.next_slot).then_some(())?;
        loading.next_slot = end;
        for (at, bytes) in (at..end).zip(items) {
            let words = bytes.as_chunks::<8>().0;
            let slot = Slot::from_words([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]);
            if slot.status() != Status::Blank {
                let number = SlotNo(at as u32);
                if loading.segment.replace(number.segment()) != Some(number.segment()) {
                    self.slots.expect(number.segment(), &slot);
                }
                self.slots.fill(number, slot);
                loading.used_slots += 1;
            }
        }
        Some(())
    }

    /// Completes a store whose pieces were all read. Returns `None` if they do not fit together.
    pub(crate) fn finish_loading(&mut self, loading: &Loading) -> Option<()> {
        let is_whole = loading.segments == self.segments.len() && loading.used_slots == self.index.len();
        is_whole.then_some(())?;
        let mut r = Reader(&loading.state);
        (r.u64()? == self.index.buckets() as u64).then_some(())?;
        self.newest_filled = r.u64()?;
        let now = r.u64()?;
        self.last_uses.resume(now);
        self.common.stay = Stay::take(&mut r, now)?;
        let count = r.u32()? as usize;
        (count <= self.disks.len()).then_some(())?;
        let mut sharers = vec![false; count];
        for (at, shares) in sharers.iter_mut().enumerate() {
            let (disk, shared) = DiskSpace::take(&mut r, self.segments.len(), now)?;
            (self.disks[DiskNo(at as u16)], *shares) = (disk, shared);
        }
        self.load_mirrors(&mut r)?;
        self.place_segments()?;
        self.note_former_sharers(&sharers);
        self.collect_free_segments();
        Some(())
    }

    fn load_mirrors(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let slots = self.slots.len() as u32;
        for _ in 0..r.u32()? {
            let (first, second) = (r.u32()?, r.u32()?);
            (first < slots && second < slots).then_some(())?;
            let (first, second) = (SlotNo(first), SlotNo(second));
            self.live(first).filter(|slot| !slot.mirror())?;
            self.live(second).filter(|slot| slot.mirror())?;
            self.mirrors.insert(first, second);
        }
        r.0.is_empty().then_some(())
    }

    /// Puts the segments into the lists of their owners, and derives what follows from that.
    fn place_segments(&mut self) -> Option<()> {
        let mut dirty: Vec<Vec<SegmentNo>> = vec![Vec::new(); self.disks.len()];
        let mut sums = vec![[0u64; 3]; self.disks.len()];
        for number in self.segments.numbers() {
            let segment = &self.segments[number];
            if segment.owner == NO_OWNER {
                (u32::from(segment.free) == SLOTS_PER_SEGMENT).then_some(())?;
                continue;
            }
            let place =
                self.disks.get_mut(DiskNo(segment.owner))?.segments.get_mut(segment.place as usize)?;
            (*place == NONE).then_some(())?;
            *place = number;
            let owner = usize::from(segment.owner);
            let counts = [segment.live, segment.free, segment.pending].map(u64::from);
            sums[owner].iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            if segment.dirty > 0 {
                dirty[owner].push(number);
                let longest = segment.dirty;
                let times = DirtyTimes::since_the_start(longest);
                (self.dirty_times[number], self.segments[number].dirty_since_us) = (Some(times), 0);
            }
            self.relist(number, 0);
        }
        for ((space, dirty), [live, free, pending]) in self.disks.iter_mut().zip(dirty).zip(sums) {
            space.dirty_segments = dirty.into_iter().map(|number| (0, number)).collect();
            let is_sum = (space.live + space.mirrors, space.free, space.pending) == (live, free, pending);
            (is_sum && !space.segments.contains(&NONE)).then_some(())?;
        }
        Some(())
    }

    /// Notes the order of the segments that were common, if each place among them has one.
    fn note_former_sharers(&mut self, sharers: &[bool]) {
        let shared = |owner: u16| sharers.get(usize::from(owner)).is_some_and(|shares| *shares);
        let common: Vec<_> = self.segments.numbered().filter(|(_, s)| shared(s.owner)).collect();
        let mut order = vec![NONE; common.len()];
        for (number, segment) in common {
            if let Some(place) = order.get_mut(segment.common_place as usize) {
                *place = number;
            }
        }
        if !order.contains(&NONE) {
            self.common.former = order;
        }
    }
}

impl DiskSpace {
    fn put(&self, w: &mut Writer) {
        w.u32(self.segments.len() as u32);
        for count in [self.live, self.probation, self.dirty, self.mirrors, self.free, self.pending] {
            w.u64(count);
        }
        w.flag(self.shares).u64(self.laps);
        for hand in [self.hand, self.giving_hand, self.rewrite_hand] {
            w.u32(hand as u32);
        }
        self.stay.put(w);
        w.flag(self.aging.is_some());
        if let Some(aging) = &self.aging {
            aging.put(w);
        }
        w.u32(self.filled.len() as u32);
        for (segment, seq) in self.filled.iter() {
            w.u32(segment.0).u64(*seq);
        }
    }

    /// Reads what was written of a disk's space, and whether it shared the pool. It has as many segments as it had,
    /// none of them known yet.
    fn take(r: &mut Reader<'_>, segments: usize, now: u64) -> Option<(DiskSpace, bool)> {
        let count = r.u32()? as usize;
        (count <= segments).then_some(())?;
        let (live, probation, dirty) = (r.u64()?, r.u64()?, r.u64()?);
        let (mirrors, free, pending) = (r.u64()?, r.u64()?, r.u64()?);
        let (shared, laps) = (r.flag()?, r.u64()?);
        let mut hand = || r.u32().map(|hand| hand as usize);
        let (hand, giving_hand, rewrite_hand) = (hand()?, hand()?, hand()?);
        let stay = Stay::take(r, now)?;
        let aging = if r.flag()? { Some(Aging::take(r)?) } else { None };
        let mut filled = VecDeque::new();
        for _ in 0..r.u32()? {
            let segment = r.u32().filter(|segment| (*segment as usize) < segments)?;
            filled.push_back((SegmentNo(segment), r.u64()?));
        }
        let segments = vec![NONE; count];
        let counts =
            DiskSpace { segments, live, probation, dirty, mirrors, free, pending, ..DiskSpace::default() };
        let filled = Batches::of(filled);
        Some((DiskSpace { filled, hand, giving_hand, rewrite_hand, laps, stay, aging, ..counts }, shared))
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::random::Random;
    use haversack_model::{ArenaId, BlockNo, DeviceNo, Uuid};

    use super::super::slot::Live;
    use super::*;
    use crate::format::checkpoint::{Head, MemoryCheckpoint, PieceReader};

    const SEGMENTS: u32 = 40;

    fn blank(disks: u16) -> Store {
        let mut store = Store::new();
        (0..disks).for_each(|disk| store.add_disk(DiskNo(disk)));
        for device in 0..2 {
            store.add_device(DeviceNo(device), Uuid([device; 16]), SEGMENTS, SEGMENTS - 3);
        }
        store
    }

    /// A store in which disks were used for a while; those from 1 on share the pool.
    fn used() -> Store {
        let (mut store, mut rng) = (blank(3), Random::scrambled(7));
        store.collect_free_segments();
        (1..3).for_each(|disk| store.share(DiskNo(disk), Some(9)));
        for seq in 1..60u64 {
            let disk = DiskNo(rng.below(3) as u16);
            let segment = store.take_segment(disk, None).expect("there are free ones");
            for number in store.slots_of(segment).take(rng.range(1, 253) as usize) {
                let block = BlockNo(rng.below(2000));
                store.note_use(disk, block, 5.0);
                if let Some((old, _)) = store.lookup(disk, block) {
                    store.supersede(old, seq);
                }
                store.install(number, Live::new(block, 255, 1, seq).with_dirty(rng.one_in(4)), seq);
                if rng.one_in(3) {
                    store.hit(number);
                }
            }
            store.note_filled(disk, segment, seq);
            store.flushed(seq);
            store.evict_blocks(disk, rng.below(30));
            if seq % 20 == 0 {
                store.evict_common(40);
            }
        }
        assert!(store.is_at_rest());
        store.check();
        store
    }

    fn saved(store: &Store) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let mut sink = |piece: &[u8]| {
            pieces.push(piece.to_vec());
            Ok::<(), ()>(())
        };
        let head = Head { stop: Uuid([1; 16]), arena: ArenaId::default(), last_seq: 1, devices: Vec::new() };
        let mut writer = PieceWriter::start(&head, &mut sink).expect("memory takes it");
        store.save(&mut writer).expect("memory takes it");
        writer.finish().expect("memory takes it");
        pieces
    }

    fn loaded(pieces: Vec<Vec<u8>>, mut store: Store) -> Option<Store> {
        let mut checkpoint = MemoryCheckpoint::from(pieces);
        let mut reader = PieceReader::new(&mut checkpoint);
        reader.head().expect("there is a head");
        let mut loading = Loading::default();
        loop {
            let piece = reader.next().expect("there is an end");
            if piece.section == Section::End {
                store.finish_loading(&loading)?;
                return Some(store);
            }
            store.load(&mut loading, &piece)?;
        }
    }

    #[test]
    fn a_store_is_as_it_was_once_its_disks_share_again() {
        let mut store = used();
        let before = saved(&store);
        let mut again = loaded(before.clone(), blank(3)).expect("it fits");
        again.check();
        // In another order than before.
        (1..3).rev().for_each(|disk| again.share(DiskNo(disk), Some(9)));
        again.check();
        assert!(saved(&again) == before, "tables, hands, queues and ghost lists are the same");
        let free = |store: &Store| {
            let mut free: Vec<_> =
                store.devices.iter().flatten().flat_map(|d| d.free_segments.clone()).collect();
            free.sort();
            free
        };
        assert_eq!(free(&again), free(&store));
        for disk in store.disks.numbers() {
            let lists = |store: &Store| {
                let mut listed: Vec<_> = store.disks[disk].free_lists.most_free(&store.segments).collect();
                listed.sort();
                listed
            };
            assert_eq!(lists(&again), lists(&store));
            store.evict_blocks(disk, 100);
            again.evict_blocks(disk, 100);
        }
        assert!(saved(&again) == saved(&store), "the hands go on in the same way");
    }

    #[test]
    fn sharers_that_do_not_come_back_leave_nothing_behind() {
        let mut again = loaded(saved(&used()), blank(3)).expect("it fits");
        again.share(DiskNo(2), Some(9));
        again.check();
        assert!(!again.common.former.is_empty());
        let order = again.common.segments.clone();
        again.share(DiskNo(0), Some(9));
        again.share(DiskNo(1), Some(9));
        again.check();
        assert!(again.common.segments.starts_with(&order) && again.common.former.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let pieces = saved(&used());
        assert!(loaded(pieces.clone(), blank(3)).is_some());
        assert!(loaded(pieces.clone(), blank(2)).is_none(), "a disk is missing");
        let mut smaller = Store::new();
        (0..3).for_each(|disk| smaller.add_disk(DiskNo(disk)));
        smaller.add_device(DeviceNo(0), Uuid([0; 16]), SEGMENTS, SEGMENTS);
        assert!(loaded(pieces, smaller).is_none(), "a device is missing");
        let (bytes, blank_slot) = ([1; SLOT_BYTES], [0; SLOT_BYTES]);
        let (mut store, mut loading) = (blank(3), Loading::default());
        assert_eq!(store.load_slots(&mut loading, (3, &[blank_slot, bytes])), Some(()));
        assert_eq!(store.load_slots(&mut loading, (4, &[bytes])), None, "a slot that was read already");
        assert_eq!(store.load_slots(&mut loading, (5, &[bytes])), Some(()));
    }
}
