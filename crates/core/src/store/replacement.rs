//! The two hands of replacement, which choose the blocks of a disk to evict. This is the idea of S3-FIFO
//! without copying.
//!
//! New blocks are on probation. The *probation hand* visits batches in the order in which they were written,
//! when more than a tenth of the disk's blocks are on probation. Blocks that have not been hit by then are
//! evicted in place and remembered in the ghost list; those that were hit become protected. A block that
//! returns while it is remembered is protected at once. While probation is within its tenth, the *main hand*
//! sweeps the protected blocks like a clock with counters of 0 to 3. How much of a counter a sweep takes is
//! learned where last uses are sampled ([`super::aging`]).
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23, section 4, with the
//! queues replaced by the segments they would have been copied between.

use haversack_model::DiskNo;

use super::Store;
use super::batches::{Batch, REVIEWED};
use super::segment::{SegmentNo, SegmentState};
use super::slot::{Live, Slot, SlotNo, View};

/// One of this many blocks of a disk may be on probation.
const PROBATION_SHARE: u64 = 10;
/// A queue of batches is long, and is reviewed, with more than this many, and this many for each segment of the disk.
const LONG_QUEUE: usize = 1024;
const BATCHES_PER_SEGMENT: usize = 4;

/// Whether the probation hand acts before the main hand.
pub(super) fn is_probation_due(probation: u64, live: u64) -> bool {
    probation * PROBATION_SHARE > live
}

impl Store {
    /// Notes that commit `seq` put blocks on probation into `segment`.
    pub fn note_filled(&mut self, disk: DiskNo, segment: SegmentNo, seq: u64) {
        self.newest_filled = seq;
        self.change_filled(disk, |store| {
            store.disks[disk].filled.push((segment, seq));
            store.review_filled(disk);
        });
    }

    /// Drops some batches of which nothing is on probation, if the queue is long.
    fn review_filled(&mut self, disk: DiskNo) {
        for _ in 0..REVIEWED {
            let space = &mut self.disks[disk];
            if space.filled.len() <= LONG_QUEUE + BATCHES_PER_SEGMENT * space.segments.len() {
                return;
            }
            let Some(batch) = space.filled.next_to_review() else { return };
            if self.is_on_probation(disk, batch) {
                self.disks[disk].filled.keep(batch);
            }
        }
    }

    /// Whether a block of the batch is on probation, or is again if the commit of its newer version fails.
    fn is_on_probation(&self, disk: DiskNo, (segment, seq): Batch) -> bool {
        let s = &self.segments[segment];
        let on_probation = |slot: Slot| match slot.view() {
            View::Live(live) => !live.protected() && !live.mirror(),
            View::Superseded(_) => true,
            View::Dead(_) | View::Blank => false,
        };
        let mut slots = self.slots_of(segment).map(|number| self.slot(number));
        (s.owner, s.state) == (disk.0, SegmentState::Owned)
            && slots.any(|slot| slot.seq() == seq && on_probation(slot))
    }

    /// Changes a disk's queue of batches, and keeps the common order of the oldest ones in step.
    fn change_filled<T>(&mut self, disk: DiskNo, change: impl FnOnce(&mut Store) -> T) -> T {
        let oldest = |store: &Store| store.disks[disk].filled.front().map(|(_, seq)| (*seq, disk));
        let before = oldest(self);
        let result = change(self);
        let after = oldest(self);
        if self.disks[disk].shares && before != after {
            before.map(|before| self.common.oldest.remove(&before));
            after.map(|after| self.common.oldest.insert(after));
        }
        result
    }

    /// Evicts at least `wanted` blocks of the disk. Not all of their slots are free at once: those that a
    /// durable page lists as dirty wait for the next page. Stops early when whole rounds of the main hand
    /// found nothing to evict: everything left is dirty or too new.
    pub fn evict_blocks(&mut self, disk: DiskNo, wanted: u64) {
        let (mut evicted, mut fruitless) = (0, 0);
        while evicted < wanted {
            let space = &self.disks[disk];
            // A hit block needs as many rounds as it has hits, and then one.
            if fruitless > 5 * space.segments.len() {
                break;
            }
            let probation_first = is_probation_due(space.probation, space.live);
            let more = match probation_first.then(|| self.probation_hand(disk, false)).flatten() {
                Some(more) => more,
                None => self.main_hand(disk),
            };
            fruitless = if more > 0 { 0 } else { fruitless + 1 };
            evicted += u64::from(more);
        }
    }

    /// Moves the probation hand over the oldest batch; returns the number of evicted blocks. `None` if there
    /// is no batch. If the disk's blocks are `kept`, they stay even if they were not hit.
    pub(super) fn probation_hand(&mut self, disk: DiskNo, kept: bool) -> Option<u32> {
        let (segment, seq) = self.next_filled(disk)?;
        let (owner, state) = {
            let s = &self.segments[segment];
            (s.owner, s.state)
        };
        let has_protected = self.has_protected(disk);
        let mut evicted = 0;
        if owner != disk.0 || state != SegmentState::Owned {
            return Some(0);
        }
        for number in self.slots_of(segment) {
            let on_probation = |slot: &Live| !slot.protected() && slot.seq() == seq;
            let Some(slot) = self.slot(number).primary().filter(on_probation) else { continue };
            if slot.hits() == 0 && !slot.dirty() && !kept {
                if !has_protected {
                    self.note_eviction(number);
                }
                self.evict(number);
                evicted += 1;
            } else {
                self.protect(disk, number, slot);
            }
        }
        Some(evicted)
    }

    /// Whether at least half of the blocks that are evicted together with the disk's are protected.
    fn has_protected(&self, disk: DiskNo) -> bool {
        let (space, common) = (&self.disks[disk], &self.common);
        let (probation, live) =
            if space.shares { (common.probation, common.live) } else { (space.probation, space.live) };
        probation * 2 <= live
    }

    /// Takes the disk's oldest batch out of the queue.
    fn next_filled(&mut self, disk: DiskNo) -> Option<Batch> {
        self.change_filled(disk, |store| store.disks[disk].filled.pop())
    }

    fn protect(&mut self, disk: DiskNo, number: SlotNo, slot: Live) {
        self.set(number, slot.with_protected(true).with_hits(0));
        let space = &mut self.disks[disk];
        space.probation -= 1;
        self.common.probation -= u64::from(space.shares);
    }

    /// Moves the main hand over one segment; returns the number of evicted blocks.
    pub(super) fn main_hand(&mut self, disk: DiskNo) -> u32 {
        let space = &mut self.disks[disk];
        if space.segments.is_empty() {
            return 0;
        }
        space.hand = (space.hand + 1) % space.segments.len();
        let segment = space.segments[space.hand];
        if self.segments[segment].state == SegmentState::Dead {
            return 0;
        }
        // If hardly anything is protected, blocks on probation must make room.
        let all = space.probation * 2 > space.live && space.filled.is_empty();
        self.sweep(segment, all)
    }

    /// Evicts the blocks of a segment that have no hits left, and takes one hit or all from the others: protected
    /// blocks, or all.
    fn sweep(&mut self, segment: SegmentNo, all: bool) -> u32 {
        let swept_before = self.note_sweep(segment);
        let mut evicted = 0;
        for number in self.slots_of(segment) {
            let may_go = |slot: &Live| !slot.dirty() && (slot.protected() || all);
            let Some(slot) = self.slot(number).primary().filter(may_go) else { continue };
            if slot.hits() > 0 {
                let left = self.hits_left(number, slot.hits(), swept_before);
                self.set(number, slot.with_hits(left));
            } else {
                self.note_eviction(number);
                self.evict(number);
                evicted += 1;
            }
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{BlockNo, DeviceNo, Uuid};

    use super::*;

    fn store() -> (Store, DiskNo, Vec<SlotNo>) {
        let (mut store, disk) = (Store::new(), DiskNo(0));
        store.add_disk(disk);
        store.add_device(DeviceNo(0), Uuid([1; 16]), 2, 2);
        store.collect_free_segments();
        store.share(disk, Some(0));
        store.take_this(SegmentNo(0), disk);
        let slots = store.slots_of(SegmentNo(0)).collect();
        (store, disk, slots)
    }

    /// A guest that flushes what it overwrites, in a cache that is not full.
    #[test]
    fn a_queue_of_batches_does_not_grow_for_ever() {
        let (mut store, disk, slots) = store();
        for seq in 1..=9 {
            store.install(slots[seq as usize], Live::new(BlockNo(seq), 255, 0, seq), 0);
            store.note_filled(disk, SegmentNo(0), seq);
        }
        (10..20_000).for_each(|seq| store.note_filled(disk, SegmentNo(0), seq));
        let queue = &store.disks[disk].filled;
        assert!(queue.len() < 2 * LONG_QUEUE, "{}", queue.len());
        assert!(queue.iter().map(|(_, seq)| *seq).take(9).eq(1..=9), "these have blocks on probation");
        assert!(queue.iter().is_sorted_by_key(|(_, seq)| *seq) && queue.bytes() < 64 * LONG_QUEUE);
        store.check();
    }

    #[test]
    fn the_order_of_the_oldest_batches_follows_a_review() {
        let (mut store, disk, _) = store();
        for seq in 1..5000 {
            store.note_filled(disk, SegmentNo(0), seq);
            store.check();
        }
        assert!(store.disks[disk].filled.front() > Some(&(SegmentNo(0), 1)));
    }
}
