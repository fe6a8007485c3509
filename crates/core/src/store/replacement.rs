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
use super::segment::{SegmentNo, SegmentState};
use super::slot::{Live, SlotNo};

/// One of this many blocks of a disk may be on probation.
const PROBATION_SHARE: u64 = 10;

/// Whether the probation hand acts before the main hand.
pub(super) fn is_probation_due(probation: u64, live: u64) -> bool {
    probation * PROBATION_SHARE > live
}

impl Store {
    /// Notes that commit `seq` put blocks on probation into `segment`.
    pub fn note_filled(&mut self, disk: DiskNo, segment: SegmentNo, seq: u64) {
        let space = &mut self.disks[disk];
        if space.filled.is_empty() && space.shares {
            self.common.oldest.insert((seq, disk));
        }
        space.filled.push_back((segment, seq));
        self.newest_filled = seq;
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
    fn next_filled(&mut self, disk: DiskNo) -> Option<(SegmentNo, u64)> {
        let space = &mut self.disks[disk];
        let first = space.filled.pop_front()?;
        if space.shares {
            self.common.oldest.remove(&(first.1, disk));
            if let Some((_, next)) = space.filled.front() {
                self.common.oldest.insert((*next, disk));
            }
        }
        Some(first)
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
