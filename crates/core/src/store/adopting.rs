//! Adds the entries that recovery found: first to their slots, one segment at a time, then to the index, many segments
//! at a time.
//!
//! The index of a large pool does not fit in the processor's caches, so the cost of an entry is the wait for its
//! bucket. Entries are therefore sorted by bucket, so that neighbouring entries use neighbouring memory, and the
//! buckets of several entries are read together before these entries are added. Meanwhile the index is not part of the
//! store, so a driver may do this on another thread while the next segments are put into their slots.
//!
//! Invariants
//! - An entry that was placed is in its slot and counted. Until it is in the index as well, nothing looks for a block.
//! - The entries of a block get into the index in the order in which they were placed.
//! - Nothing is removed from the index before recovery has added everything.

use haversack_model::DiskNo;

use super::index::{Index, Search};
use super::segment::SegmentNo;
use super::slot::{Slot, SlotNo};
use super::{PREFETCH_TOGETHER, Store, hash};

/// Bits of the hash by which entries are sorted. The index then is divided into parts that a processor's cache can hold.
const SORT_BITS: u32 = 12;
/// When there are this many pairs of entries that may be of the same block, the pairs are compared.
const MOST_SIMILAR: usize = 1 << 16;

/// Entries that were placed and are not in the index yet.
#[derive(Default)]
pub(crate) struct Placed(Vec<Search>);

/// The index of a store, and entries that are being added to it.
pub(crate) struct Indexing {
    index: Index,
    /// By page of memory of the index: it is in use.
    pages: Vec<bool>,
    /// The entries to be added.
    entries: Vec<Search>,
    /// The entries sorted by bucket, once that is done.
    sorted: Vec<Search>,
    /// How many of the sorted ones were tried in this round, and how many of these found their bucket full.
    tried: usize,
    left: usize,
    /// Pairs of an entry and an earlier one that may be of the same block, in the order in which the pairs were found.
    similar: Vec<(SlotNo, SlotNo)>,
}

fn part(search: &Search) -> usize {
    (search.hash >> (u64::BITS - SORT_BITS)) as usize
}

impl Indexing {
    /// Begins with the index of a store, which has none until [`Indexing::end`].
    pub fn of(store: &mut Store) -> Indexing {
        let index = std::mem::replace(&mut store.index, Index::new(0));
        let pages = vec![index.len() > 0; index.pages()];
        let (entries, sorted, similar) = (Vec::new(), Vec::new(), Vec::new());
        Indexing { index, pages, entries, sorted, tried: 0, left: 0, similar }
    }

    /// Puts the index back into the store.
    pub fn end(self, store: &mut Store) {
        debug_assert!(self.is_done() && self.similar.is_empty());
        store.index = self.index;
    }

    /// Takes placed entries, after all before them were added.
    pub fn take(&mut self, placed: &mut Placed) {
        debug_assert!(self.is_done());
        std::mem::swap(&mut self.entries, &mut placed.0);
    }

    fn is_done(&self) -> bool {
        self.entries.is_empty() && self.sorted.is_empty()
    }

    /// Adds entries to the index until all are added, or until many pairs have to be compared first.
    ///
    /// Each round tries every remaining entry in its current bucket. Entries that find the bucket full move on to their
    /// next bucket in the next round. Entries of one block try the same buckets in the same order, so earlier ones stay
    /// ahead.
    pub fn run(&mut self) {
        if !self.entries.is_empty() {
            self.sort();
        }
        while !self.sorted.is_empty() {
            while self.tried < self.sorted.len() {
                if self.similar.len() >= MOST_SIMILAR {
                    return;
                }
                self.try_some();
            }
            self.sorted.truncate(self.left);
            (self.tried, self.left) = (0, 0);
        }
    }

    fn try_some(&mut self) {
        let some = self.tried..(self.tried + PREFETCH_TOGETHER).min(self.sorted.len());
        self.tried = some.end;
        for search in &self.sorted[some.clone()] {
            if !std::mem::replace(&mut self.pages[self.index.page(search)], true) {
                self.index.use_page(search);
            }
        }
        let read = |read, search| read ^ self.index.prefetch_bucket(search);
        std::hint::black_box(self.sorted[some.clone()].iter().fold(0, read));
        for at in some {
            let mut search = self.sorted[at];
            let number = search.slot();
            let is_in = self.index.enter(&mut search, |other| self.similar.push((number, other)));
            if !is_in {
                self.sorted[self.left] = search;
                self.left += 1;
            }
        }
    }

    /// Sorts the entries by their place in the index. Those of one block stay in their order.
    fn sort(&mut self) {
        let mut starts = vec![0u32; (1 << SORT_BITS) + 1];
        for entry in &self.entries {
            starts[part(entry) + 1] += 1;
        }
        for part in 1..starts.len() {
            starts[part] += starts[part - 1];
        }
        self.sorted.resize(self.entries.len(), Search::default());
        for entry in self.entries.drain(..) {
            let at = &mut starts[part(&entry)];
            self.sorted[*at as usize] = self.index.begin(entry);
            *at += 1;
        }
    }

    /// Adds all remaining entries. `settle` is called with each live entry whose block already has a live entry, and
    /// with that other entry: only one of the two may stay the first.
    pub fn finish(&mut self, store: &mut Store, settle: &mut impl FnMut(&mut Store, SlotNo, SlotNo)) {
        loop {
            store.settle_similar(&mut self.similar, settle);
            if self.is_done() {
                return;
            }
            self.run();
        }
    }
}

impl Store {
    /// Assigns a segment, all blank so far, to the disk that recovery found it to belong to. `slot` is one that it will
    /// contain, if it will contain any. Its part of the ghost list is empty.
    pub(crate) fn adopt_segment(&mut self, number: SegmentNo, disk: DiskNo, slot: Option<&Slot>) {
        if let Some(slot) = slot {
            self.slots.expect(number, slot);
        }
        self.assign(number, disk);
        self.relist(number, 0);
    }

    /// Puts entries, live or dead, into blank slots of a segment, whose owner is known. The time at which they became
    /// dirty is no longer known: the time of the pool's opening is used.
    pub(crate) fn place(&mut self, segment: SegmentNo, entries: &[(SlotNo, Slot)], placed: &mut Placed) {
        let disk = DiskNo(self.segments[segment].owner);
        let (mut live, mut dirty) = (0, 0);
        for (number, slot) in entries {
            self.slots.fill(*number, *slot);
            placed.0.push(Search::of(hash(disk, slot.block()), *number));
            if let Some(slot) = slot.live() {
                debug_assert!(slot.protected() && !slot.mirror());
                live += 1;
                dirty += u8::from(slot.dirty());
            }
        }
        self.note_dirty_since_the_start(segment, dirty);
        self.adjust(segment, |s| {
            let all = entries.len() as u8;
            s.free -= all;
            s.live += live;
            s.dirty += dirty;
            s.pending += all - live;
        });
        let space = &mut self.disks[disk];
        debug_assert!(!space.shares, "disks share the pool only once they are attached");
        space.live += u64::from(live);
        space.dirty += u64::from(dirty);
    }

    /// Adds the placed entries to the index. `settle` is that of [`Indexing::finish`].
    pub(crate) fn index_placed(
        &mut self,
        placed: &mut Placed,
        mut settle: impl FnMut(&mut Store, SlotNo, SlotNo),
    ) {
        let mut indexing = Indexing::of(self);
        indexing.take(placed);
        indexing.finish(self, &mut settle);
        indexing.end(self);
    }

    /// Compares pairs of entries whose hashes may be equal; the second of each pair was in the index when the first was
    /// added. The comparison may be deferred, since its result does not change places in the index, but the order of
    /// the pairs must be kept.
    fn settle_similar(
        &mut self,
        similar: &mut Vec<(SlotNo, SlotNo)>,
        settle: &mut impl FnMut(&mut Store, SlotNo, SlotNo),
    ) {
        for some in similar.chunks(PREFETCH_TOGETHER) {
            let read = |read, (number, other): &(SlotNo, SlotNo)| {
                read ^ self.slots.prefetch(*number) ^ self.slots.prefetch(*other)
            };
            std::hint::black_box(some.iter().fold(0, read));
            for (number, other) in some {
                let (slot, other_slot) = (self.slot(*number), self.slot(*other));
                if slot.block() == other_slot.block()
                    && slot.primary().is_some()
                    && other_slot.primary().is_some()
                    && self.owner_of(*number) == self.owner_of(*other)
                {
                    settle(self, *number, *other);
                }
            }
        }
        similar.clear();
    }

    /// Makes a live entry dead: recovery found a newer one, or an equal one.
    pub(crate) fn demote(&mut self, number: SlotNo) {
        if let Some(mirror) = self.mirrors.remove(&number) {
            self.drop_live(mirror, false);
        }
        self.drop_live(number, false);
    }

    /// Makes a dirty entry the second copy of another.
    pub(crate) fn make_second(&mut self, primary: SlotNo, number: SlotNo) {
        let (disk, slot) = (self.owner_of(number), self.expect_live(number));
        self.count_live(disk, slot, -1);
        self.set(number, slot.with_mirror(true));
        self.count_live(disk, slot.with_mirror(true), 1);
        self.pair(primary, number);
    }
}
