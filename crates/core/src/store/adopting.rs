//! Taking over the entries that recovery found: first into their slots, a segment at a time, then into the index, many
//! segments at a time.
//!
//! The index of a large pool fits no cache of the processor, so what an entry costs is the wait for its bucket. Sorted
//! by where they go, neighbouring entries use neighbouring memory; and the memory of some is read together before they
//! are added.
//!
//! Invariants
//! - An entry that was placed is in its slot and counted. Until it is in the index as well, nothing looks for a block.
//! - The entries of a block get into the index in the order in which they were placed.
//! - Nothing is removed from the index before recovery has added everything.

use haversack_model::DiskNo;

use super::index::Search;
use super::segment::SegmentNo;
use super::slot::{Slot, SlotNo, Status};
use super::{PREFETCH_TOGETHER, Store, hash};

/// Bits of the hash by which entries are sorted. The index then is divided into parts that a processor's cache can hold.
const SORT_BITS: u32 = 12;
/// The number of pairs of possibly equal entries that are collected before they are compared.
const MOST_SIMILAR: usize = 4096;

/// Entries that were placed and are not in the index yet.
#[derive(Default)]
pub(crate) struct Placed {
    entries: Vec<Search>,
    /// The same sorted, once they are.
    sorted: Vec<Search>,
    /// Entries with others that were there before them and may be of the same block, in the order in which they met.
    similar: Vec<(SlotNo, SlotNo)>,
}

fn part(search: &Search) -> usize {
    (search.hash >> (u64::BITS - SORT_BITS)) as usize
}

impl Placed {
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
            self.sorted[*at as usize] = entry;
            *at += 1;
        }
    }
}

impl Store {
    /// Assigns a segment, all blank so far, to the disk that recovery found it to belong to. Its
    /// part of the ghost list is empty.
    pub(crate) fn adopt_segment(&mut self, number: SegmentNo, disk: DiskNo) {
        self.assign(number, disk);
        self.relist(number, 0);
    }

    /// Puts entries, live or dead, into blank slots of a segment, whose owner is known. The time at which they became
    /// dirty is no longer known: the time of the pool's opening is used.
    pub(crate) fn place(&mut self, segment: SegmentNo, entries: &[(SlotNo, Slot)], placed: &mut Placed) {
        let disk = DiskNo(self.segments[segment].owner);
        let (mut live, mut dirty) = (0, 0);
        for (number, slot) in entries {
            debug_assert_eq!(self.slot(*number).status(), Status::Blank);
            self.set(*number, *slot);
            placed.entries.push(self.index.search(hash(disk, slot.block()), *number));
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

    /// Adds the placed entries to the index. `settle` gets each live one whose block has another live entry already, and
    /// that other one: only one of them may stay the first.
    ///
    /// All entries are tried in the bucket where they belong, then those that found it full in their next one, and so
    /// on. Entries of one block take the same way, so those that come earlier stay ahead.
    pub(crate) fn index_placed(
        &mut self,
        placed: &mut Placed,
        mut settle: impl FnMut(&mut Store, SlotNo, SlotNo),
    ) {
        placed.sort();
        let Placed { sorted: searches, similar, .. } = placed;
        while !searches.is_empty() {
            let mut left = 0;
            for start in (0..searches.len()).step_by(PREFETCH_TOGETHER) {
                let some = start..(start + PREFETCH_TOGETHER).min(searches.len());
                let read = |read, search| read ^ self.index.prefetch_bucket(search);
                std::hint::black_box(searches[some.clone()].iter().fold(0, read));
                for at in some {
                    let mut search = searches[at];
                    let number = search.slot();
                    let is_in = self.index.enter(&mut search, |other| similar.push((number, other)));
                    if !is_in {
                        searches[left] = search;
                        left += 1;
                    }
                }
                if similar.len() >= MOST_SIMILAR {
                    self.settle_similar(similar, &mut settle);
                }
            }
            searches.truncate(left);
        }
        self.settle_similar(similar, &mut settle);
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
                read ^ self.slot(*number).mask() ^ self.slot(*other).mask()
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
