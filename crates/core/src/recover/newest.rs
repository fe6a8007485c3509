//! Which of the listed entries of a block counts.
//!
//! Invariants
//! - Entries of a block are compared in the order in which they were placed: of two clean copies the first one stays.
//! - Of all entries compared so far, exactly one is live and not a second copy, if any was not void.

use crate::bugs::{Bug, planted};
use crate::store::Store;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;

/// Adds a segment unless it was the last one that was added.
pub(super) fn note_once(segments: &mut Vec<SegmentNo>, segment: SegmentNo) {
    if segments.last() != Some(&segment) {
        segments.push(segment);
    }
}

/// Decides between a live entry and another of the same block, which was live so far. Segments whose page must be
/// written again are added to `scrub`.
pub(super) fn settle(store: &mut Store, scrub: &mut Vec<SegmentNo>, number: SlotNo, other: SlotNo) {
    let live = |number| store.live(number).expect("only live entries are compared");
    let (slot, o) = (live(number), live(other));
    let newer = if planted(Bug::OldestWins) { slot.seq() < o.seq() } else { slot.seq() > o.seq() };
    let twins = slot.seq() == o.seq();
    let cleaner = twins && !slot.dirty() && o.dirty();
    if twins && slot.dirty() != o.dirty() {
        // The page of the dirty copy must be rewritten, so that the clean copy is not the only one that lists the block
        // as clean.
        let dirty = if slot.dirty() { number } else { other };
        note_once(scrub, store.segment_of(dirty));
    }
    if newer || cleaner {
        store.demote(other);
    } else if twins && slot.dirty() && o.dirty() && store.mirror_of(other).is_none() {
        store.make_second(other, number);
        if (slot.poisoned(), slot.mask()) != (o.poisoned(), o.mask()) {
            // Both copies were found damaged, and a crash kept one of the pages from saying so.
            store.poison(other);
        }
    } else {
        store.demote(number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use haversack_model::random::Random;
    use haversack_model::{BlockNo, DeviceNo, DiskNo, Uuid};

    use super::*;
    use crate::format::geometry::SLOTS_PER_SEGMENT;
    use crate::store::slot::{Live, Slot, Status};
    use crate::store::{Filling, Indexing, Placed};

    const SEGMENTS: u32 = 24;

    /// An entry as a page lists it.
    #[derive(Clone, Copy)]
    struct Listed {
        number: SlotNo,
        disk: DiskNo,
        slot: Live,
        void: bool,
    }

    impl Listed {
        fn placed(self) -> Slot {
            if self.void { self.slot.die(false).into() } else { self.slot.into() }
        }
    }

    /// The state of entries that were taken over one after the other.
    #[derive(Default)]
    struct OneByOne {
        /// By disk and block: the entry that counts.
        first: BTreeMap<(u16, u64), Listed>,
        /// By the slot of the first copy: that of the second.
        second: BTreeMap<SlotNo, SlotNo>,
        scrub: BTreeSet<SegmentNo>,
    }

    impl OneByOne {
        fn take(&mut self, new: Listed) {
            let key = (new.disk.0, new.slot.block().0);
            if new.void {
                return;
            }
            let Some(old) = self.first.get(&key).copied() else {
                self.first.insert(key, new);
                return;
            };
            let (seq, old_seq) = (new.slot.seq(), old.slot.seq());
            let (dirty, old_dirty) = (new.slot.dirty(), old.slot.dirty());
            if seq == old_seq && dirty != old_dirty {
                self.scrub.insert(if dirty { new } else { old }.number.segment());
            }
            if seq > old_seq || seq == old_seq && !dirty && old_dirty {
                self.second.remove(&old.number);
                self.first.insert(key, new);
            } else if seq == old_seq && dirty && old_dirty {
                self.second.entry(old.number).or_insert(new.number);
            }
        }
    }

    /// Two disks whose segments are full of a few versions of few blocks.
    fn listed(rng: &mut Random, blocks: u64) -> Vec<Listed> {
        let mut all = Vec::new();
        for segment in 0..SEGMENTS {
            let disk = DiskNo(rng.below(2) as u16);
            for at in 0..SLOTS_PER_SEGMENT {
                let slot = Live::new(BlockNo(rng.below(blocks)), 0xff, 1, rng.range(1, 20));
                let slot = slot.with_protected(true).with_dirty(rng.one_in(2));
                let number = SlotNo(segment * SLOTS_PER_SEGMENT + at);
                all.push(Listed { number, disk, slot, void: rng.one_in(9) });
            }
        }
        all
    }

    fn check(store: &Store, model: &OneByOne, listed: &[Listed]) {
        store.check();
        let second: BTreeSet<SlotNo> = model.second.values().copied().collect();
        for entry in listed {
            let first = model.first.get(&(entry.disk.0, entry.slot.block().0)).map(|first| first.number);
            let is_second = second.contains(&entry.number);
            let is_live = first == Some(entry.number) || is_second;
            let slot = store.slot(entry.number);
            assert_eq!(
                slot.status(),
                if is_live { Status::Live } else { Status::Dead },
                "{:?}",
                entry.number
            );
            if is_live {
                assert_eq!(store.live(entry.number).map(|live| live.mirror()), Some(is_second));
            }
            assert_eq!(store.lookup(entry.disk, entry.slot.block()).map(|(number, _)| number), first);
            assert_eq!(store.mirror_of(entry.number), model.second.get(&entry.number).copied());
        }
    }

    /// Puts the entries of a segment into its slots: some as the first stage does, the others one by one.
    fn place(
        store: &mut Store,
        rng: &mut Random,
        segment: SegmentNo,
        listed: &[Listed],
        placed: &mut Placed,
    ) {
        let (some, others) = listed.split_at(rng.below(253) as usize);
        store.adopt_segment(segment, listed[0].disk);
        let mut part = store.slots_to_fill(segment, 1).next().expect("there is a segment");
        let mut filling = Filling::begin(&mut part, segment, listed[0].disk, placed);
        some.iter().for_each(|entry| filling.put(entry.number, entry.placed()));
        let (counts, grown_bytes) = (filling.counts, part.others_bytes);
        store.filled(grown_bytes);
        store.count_placed(segment, counts);
        others.iter().for_each(|entry| store.place(entry.number, entry.placed(), placed));
    }

    /// Entries that get into the index in rounds, many segments at a time and some ranges of the index before others,
    /// end like those that are taken over one after the other.
    #[test]
    fn the_order_of_adding_to_the_index_decides_nothing() {
        for seed in 0..12 {
            let mut rng = Random::scrambled(seed);
            // From a few blocks, all in the same few buckets, to blocks with one version.
            let blocks = 1 << rng.range(5, 30);
            let (mut store, mut scrub, mut model) = (Store::new(), Vec::new(), OneByOne::default());
            (0..2).for_each(|disk| store.add_disk(DiskNo(disk)));
            store.add_device(DeviceNo(0), Uuid([1; 16]), SEGMENTS, SEGMENTS);
            let (listed, mut indexing) = (listed(&mut rng, blocks), Indexing::of(&mut store));
            let mut settle = |store: &mut Store, number, other| settle(store, &mut scrub, number, other);
            let mut placed = vec![indexing.placed()];
            for (segment, of_segment) in (0..).map(SegmentNo).zip(listed.chunks(SLOTS_PER_SEGMENT as usize)) {
                place(&mut store, &mut rng, segment, of_segment, placed.last_mut().expect("there is one"));
                if rng.one_in(3) {
                    placed.push(indexing.placed());
                }
                if rng.one_in(6) || segment.0 == SEGMENTS - 1 {
                    placed.iter_mut().for_each(Placed::sort);
                    let mut tasks: Vec<_> = indexing.tasks(&placed).collect();
                    rng.shuffle(&mut tasks);
                    tasks.into_iter().for_each(|task| task());
                    indexing.finish(&placed, &mut store, &mut settle);
                    placed = vec![indexing.placed()];
                }
            }
            indexing.finish_all(&mut store, &mut settle);
            indexing.end(&mut store);
            store.collect_free_segments();
            listed.iter().for_each(|entry| model.take(*entry));
            check(&store, &model, &listed);
            assert_eq!(scrub.into_iter().collect::<BTreeSet<_>>(), model.scrub);
        }
    }
}
