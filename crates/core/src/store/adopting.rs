//! Adds the entries that recovery found: first to their slots, one segment at a time, then to the index, many segments
//! at a time.
//!
//! The index of a large pool does not fit in the processor's caches, so the cost of an entry is the wait for its
//! bucket. The processor is therefore told some entries ahead which bucket comes. And the index is divided into ranges:
//! the entries of one range can be added while those of others are, on as many threads as a driver has. Meanwhile the
//! index is not part of the store, so the next segments can be put into their slots at the same time.
//!
//! Entries are added in rounds. In a round, each entry is tried in its current bucket only. Entries that find it full
//! move on to their next bucket, which may be in any range, and are tried there in the next round, before the entries
//! that were placed in the meantime.
//!
//! Invariants
//! - An entry that was placed is in its slot and counted. Until it is in the index as well, nothing looks for a block.
//! - The entries of a block are tried in each bucket in the order in which they were placed: they try the same buckets,
//!   and all move on by one bucket in a round. So every entry meets all earlier ones of its block.
//! - The result does not depend on the order in which the ranges of a round are processed.
//! - Nothing is removed from the index before recovery has added everything.

use haversack_model::DiskNo;

use super::index::{Index, IndexRange, Search, Spread};
use super::segment::SegmentNo;
use super::slot::{Slot, SlotNo};
use super::slots::{SegmentSlots, SlotsPart};
use super::{PREFETCH_TOGETHER, Store, hash};
use crate::media::Task;

/// Into how many parts of a range entries are sorted.
const SORT_PARTS: usize = 32;
/// How many entries ahead of the one that is being added the processor is told which bucket comes.
const AHEAD: usize = 24;
/// When a range has this many pairs of entries that may be of the same block, the pairs are compared.
const MOST_SIMILAR: usize = 1 << 10;

/// Entries that were placed and are not in the index yet, by the range that they are to be added to.
pub(crate) struct Placed {
    spread: Spread,
    /// Those that were not sorted yet.
    unsorted: Vec<Search>,
    sorted: Vec<Search>,
    /// By range: where its entries end among the sorted ones.
    ends: Vec<u32>,
}

impl Placed {
    /// Returns a list for entries of this store.
    pub fn of(store: &Store) -> Placed {
        Placed::over(store.index.spread())
    }

    fn over(spread: Spread) -> Placed {
        Placed { spread, unsorted: Vec::new(), sorted: Vec::new(), ends: vec![0; spread.ranges()] }
    }

    #[inline]
    fn push(&mut self, hash: u64, number: SlotNo) {
        self.unsorted.push(self.spread.begin(hash, number));
    }

    /// Makes room for this many entries.
    pub fn reserve(&mut self, entries: usize) {
        self.unsorted.reserve(entries);
    }

    /// Sorts the entries by range. Those of one range stay in their order. No more entries come.
    pub fn sort(&mut self) {
        // A short-lived buffer takes memory that the thread has just used, and so is in its processor's cache.
        let unsorted = std::mem::take(&mut self.unsorted);
        sort(
            [&unsorted[..]].into_iter(),
            |search| self.spread.range_of(search),
            &mut self.sorted,
            &mut self.ends,
        );
    }

    /// Returns the sorted entries of a range.
    fn range(&self, number: usize) -> &[Search] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.sorted[start as usize..self.ends[number] as usize]
    }

    pub fn clear(&mut self) {
        self.sorted.clear();
        self.ends.fill(0);
    }
}

/// Sorts entries by the part that each is in; `ends` has as many items as there are parts. Those of one part stay in
/// their order.
fn sort<'a>(
    lists: impl Iterator<Item = &'a [Search]> + Clone,
    part: impl Fn(&Search) -> usize,
    sorted: &mut Vec<Search>,
    ends: &mut [u32],
) {
    ends.fill(0);
    lists.clone().flatten().for_each(|search| ends[part(search)] += 1);
    let mut sum = 0;
    for end in &mut *ends {
        (*end, sum) = (sum, sum + *end);
    }
    // Written in order first: that brings the memory into the processor's cache faster than what follows.
    sorted.clear();
    sorted.resize(sum as usize, Search::default());
    for list in lists {
        for search in list {
            let at = &mut ends[part(search)];
            sorted[*at as usize] = *search;
            *at += 1;
        }
    }
}

/// How many entries were placed in a segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct PlacedCounts {
    pub all: u8,
    live: u8,
    dirty: u8,
}

/// The blank slots of a segment of a disk, to be filled.
pub(crate) struct Filling<'a> {
    disk: DiskNo,
    slots: SegmentSlots<'a>,
    placed: &'a mut Placed,
    pub counts: PlacedCounts,
}

impl<'a> Filling<'a> {
    /// Begins with a segment of a part. It has no slots that are not blank.
    pub fn begin(
        part: &'a mut SlotsPart<'_>,
        segment: SegmentNo,
        disk: DiskNo,
        placed: &'a mut Placed,
    ) -> Filling<'a> {
        Filling { disk, slots: part.segment(segment), placed, counts: PlacedCounts::default() }
    }

    /// Notes an entry that the segment, all blank so far, will contain.
    pub fn expect(&mut self, slot: &Slot) {
        self.slots.expect(slot);
    }

    /// Puts an entry, live or dead, into a blank slot.
    #[inline]
    pub fn put(&mut self, number: SlotNo, slot: Slot) {
        self.slots.fill(number.in_segment(), slot);
        self.placed.push(hash(self.disk, slot.block()), number);
        self.counts.all += 1;
        if let Some(slot) = slot.live() {
            debug_assert!(slot.protected() && !slot.mirror());
            self.counts.live += 1;
            self.counts.dirty += u8::from(slot.dirty());
        }
    }
}

/// The index of a store, and entries that are being added to it.
pub(crate) struct Indexing {
    index: Index,
    /// By range.
    ranges: Vec<Adding>,
}

/// What is being added to a range of the index.
struct Adding {
    /// By page of memory of the range: it is in use.
    pages: Vec<bool>,
    /// The entries that came here in the last round.
    carried: Vec<Search>,
    /// How many entries were tried in this round, of those and of the placed ones.
    tried: usize,
    /// All were tried.
    is_done: bool,
    /// How many were added in this round.
    added: usize,
    /// The ones that found their bucket full.
    left: Vec<Search>,
    /// Pairs of an entry and an earlier one that may be of the same block, in the order in which the pairs were found.
    similar: Vec<(SlotNo, SlotNo)>,
}

impl Indexing {
    /// Begins with the index of a store, which has none until [`Indexing::end`].
    pub fn of(store: &mut Store) -> Indexing {
        let mut index = std::mem::replace(&mut store.index, Index::new(0));
        let is_used = index.len() > 0;
        let adding = |range: IndexRange<'_>| Adding {
            pages: vec![is_used; range.pages()],
            carried: Vec::new(),
            tried: 0,
            is_done: true,
            added: 0,
            left: Vec::new(),
            similar: Vec::new(),
        };
        let ranges = index.ranges().map(adding).collect();
        Indexing { index, ranges }
    }

    /// Puts the index back into the store.
    pub fn end(self, store: &mut Store) {
        debug_assert!(self.ranges.iter().all(|adding| adding.is_done && adding.carried.is_empty()));
        store.index = self.index;
    }

    /// Returns an empty list for entries that are to be added.
    pub fn placed(&self) -> Placed {
        Placed::over(self.index.spread())
    }

    /// Begins a round with entries that were placed in this order, and returns its tasks.
    pub fn tasks<'a>(
        &'a mut self,
        placed: &'a [impl AsRef<Placed> + Sync],
    ) -> impl Iterator<Item = Task<'a>> {
        for adding in &mut self.ranges {
            (adding.tried, adding.is_done) = (0, false);
        }
        let ranges = self.index.ranges().zip(&mut self.ranges).enumerate();
        ranges.map(move |(number, (range, adding))| -> Task<'a> {
            Box::new(move || adding.run(range, number, placed))
        })
    }

    /// Ends a round, whose tasks have run. `settle` is called with each live entry whose block already has a live
    /// entry, and with that other entry: only one of the two may stay the first.
    pub fn finish(
        &mut self,
        placed: &[impl AsRef<Placed>],
        store: &mut Store,
        settle: &mut impl FnMut(&mut Store, SlotNo, SlotNo),
    ) {
        let mut is_done = false;
        while !is_done {
            is_done = true;
            for (number, (range, adding)) in self.index.ranges().zip(&mut self.ranges).enumerate() {
                store.settle_similar(&mut adding.similar, settle);
                if !adding.is_done {
                    adding.run(range, number, placed);
                    is_done = false;
                }
            }
        }
        let mut added = 0;
        for adding in &mut self.ranges {
            adding.carried.clear();
            added += std::mem::take(&mut adding.added);
        }
        self.index.added(added);
        let spread = self.index.spread();
        for number in 0..self.ranges.len() {
            let mut left = std::mem::take(&mut self.ranges[number].left);
            for search in left.drain(..) {
                self.ranges[spread.range_of(&search)].carried.push(search);
            }
            self.ranges[number].left = left;
        }
    }

    /// Adds the entries that are left, after the last round.
    pub fn finish_all(&mut self, store: &mut Store, settle: &mut impl FnMut(&mut Store, SlotNo, SlotNo)) {
        let none: [&Placed; 0] = [];
        while self.ranges.iter().any(|adding| !adding.carried.is_empty()) {
            self.tasks(&none).for_each(|task| task());
            self.finish(&none, store, settle);
        }
    }
}

impl AsRef<Placed> for Placed {
    fn as_ref(&self) -> &Placed {
        self
    }
}

impl Adding {
    /// Tries the entries of this round in their buckets, until all were tried or until many pairs have to be compared
    /// first. They are tried by the position of their buckets, so that those of neighbouring ones use the same pages of
    /// memory.
    fn run(&mut self, mut range: IndexRange<'_>, number: usize, placed: &[impl AsRef<Placed>]) {
        let lists = placed.iter().map(|placed| placed.as_ref().range(number));
        let (mut sorted, mut ends) = (Vec::new(), [0; SORT_PARTS]);
        let lists = std::iter::once(&self.carried[..]).chain(lists);
        sort(lists, |search| range.part(search, SORT_PARTS), &mut sorted, &mut ends);
        sorted[self.tried..].iter().take(AHEAD).for_each(|search| range.prefetch(search));
        for at in self.tried..sorted.len() {
            if self.similar.len() >= MOST_SIMILAR {
                return;
            }
            if let Some(ahead) = sorted.get(at + AHEAD) {
                range.prefetch(ahead);
            }
            self.try_one(&mut range, sorted[at]);
        }
        self.is_done = true;
    }

    #[inline]
    fn try_one(&mut self, range: &mut IndexRange<'_>, mut search: Search) {
        self.tried += 1;
        if !std::mem::replace(&mut self.pages[range.page(&search)], true) {
            range.use_page(&search);
        }
        let number = search.slot();
        if range.enter(&mut search, |other| self.similar.push((number, other))) {
            self.added += 1;
        } else {
            self.left.push(search);
        }
    }
}

impl Store {
    /// Assigns a segment, all blank so far, to the disk that recovery found it to belong to. Its part of the ghost list
    /// is empty.
    pub(crate) fn adopt_segment(&mut self, number: SegmentNo, disk: DiskNo) {
        self.assign(number, disk);
        self.relist(number, 0);
    }

    /// Returns the slots from a segment on, in parts of this many segments, to be filled. [`Store::filled`] must be
    /// told by how much the parts have grown.
    pub(crate) fn slots_to_fill(
        &mut self,
        first: SegmentNo,
        segments: usize,
    ) -> impl Iterator<Item = SlotsPart<'_>> {
        self.slots.parts(first, segments)
    }

    /// Counts the growth of parts that were filled.
    pub(crate) fn filled(&mut self, others_bytes: usize) {
        self.slots.grown(others_bytes);
    }

    /// Puts an entry, live or dead, into a blank slot of a segment whose owner is known.
    pub(crate) fn place(&mut self, number: SlotNo, slot: Slot, placed: &mut Placed) {
        let disk = self.owner_of(number);
        let slots = self.slots.segment(number.segment());
        let mut filling = Filling { disk, slots, placed, counts: PlacedCounts::default() };
        filling.put(number, slot);
        let counts = filling.counts;
        self.count_placed(number.segment(), counts);
    }

    /// Counts entries that were put into slots of a segment, whose owner is known. The time at which they became dirty
    /// is no longer known: the time of the pool's opening is used.
    pub(crate) fn count_placed(&mut self, segment: SegmentNo, counts: PlacedCounts) {
        let PlacedCounts { all, live, dirty } = counts;
        let disk = DiskNo(self.segments[segment].owner);
        self.note_dirty_since_the_start(segment, dirty);
        self.adjust(segment, |s| {
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
        placed.sort();
        let mut indexing = Indexing::of(self);
        let all = [&*placed];
        indexing.tasks(&all).for_each(|task| task());
        indexing.finish(&all, self, &mut settle);
        indexing.finish_all(self, &mut settle);
        indexing.end(self);
        placed.clear();
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
