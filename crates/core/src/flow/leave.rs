//! A device that leaves: it failed or was emptied, and is no longer used. It is gone when the record says so.
//!
//! Until then a crash may bring it back with everything that its pages list. So the store keeps these entries
//! in its tables: the origin does not overtake blocks that are listed as dirty, and no page elsewhere drops
//! an entry if an older version on the device would then be taken for the newest.
//!
//! Invariants
//! - The record says that a device is gone only when no page elsewhere lists as dirty a block of which the
//!   device has a newer version: without that version the older one would be the newest. Until no page lists
//!   such an older version at all, the record says not to trust clean blocks (see [`crate::flow::purge`]).
//! - It also says so only when newer versions of the device's blocks, which were staged or on their way to
//!   flash, are durable elsewhere, or the record says that their disk has lost something. Otherwise a power
//!   loss could destroy the newer version, and nothing would show that an older one existed.
//! - That wait is bounded, since the blocks may be waiting for the device: a segment that lists newer
//!   versions of blocks that the device lists is not free before the device is gone.
//! - In a redundant pool, from the failure on the record says that the other devices stand alone. It says so
//!   of the failed device only if it already did before: it may be missing at the next start.
//! - The store forgets what a device's pages list only when the record says that the device is gone.
//! - A call takes a bounded number of segments out of the store, unless they have dirty blocks. The record
//!   says that the device is gone only when all have been searched for the versions that they overtook.
//! - While any device is in use, no flush is complete as long as a device is leaving, and flush marks do not
//!   advance.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::devices::leaving::Leaving;
use crate::durability::record::RecordVersion;
use crate::format::page::NO_OWNER;
use crate::format::record::Damage;
use crate::memory::Memory;
use crate::store::LostDevice;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;

/// Pages written at a time.
const PAGES_AT_A_TIME: usize = 16;
/// Segments of a lost device that a call processes: some hundred microseconds, however large the device is.
const SEGMENTS_AT_A_TIME: usize = 8;

impl Core {
    /// Starts the leaving of a device that the store has lost. Blocks in `staged`, which only it had, must be
    /// committed first.
    pub(crate) fn leave(&mut self, device: DeviceNo, lost: LostDevice, staged: Vec<(DiskNo, BlockNo)>) {
        self.durability.hold_mark();
        let wait_until_us = self.now + self.config.leave_wait_us;
        self.devices.start_leaving(Leaving::new(device, lost, staged, wait_until_us, &self.store));
    }

    /// Takes some clean segments of a lost device out of the store's counts, once in a call. Returns true
    /// when none is left.
    fn lose_clean(&mut self, leaving: &mut Leaving) -> bool {
        if !leaving.clean.is_empty() && self.schedule.may_step() {
            let mut overtaken = Vec::new();
            let left = leaving.clean.len().saturating_sub(SEGMENTS_AT_A_TIME);
            for segment in leaving.clean.drain(left..) {
                self.store.lose_clean(segment, &mut overtaken);
            }
            leaving.add_overtaken(overtaken, &self.store);
        }
        leaving.clean.is_empty()
    }

    /// Forgets some segments of devices that are gone, once in a call. Returns true if that was all.
    #[inline]
    fn forget_gone(&mut self) -> bool {
        if self.devices.has_gone() && self.schedule.may_step() {
            for _ in 0..SEGMENTS_AT_A_TIME {
                let Some(segment) = self.devices.next_gone() else { break };
                self.store.forget_segment(segment);
            }
            if !self.devices.has_gone() {
                self.wake_around_all();
                return true;
            }
        }
        false
    }

    /// Returns true when the blocks that were staged or being committed when the device failed are durable,
    /// or lost because there is no device to go to.
    fn commit_newer(&mut self, leaving: &mut Leaving) -> bool {
        // The device had the only versions on flash. So a version on flash now was committed since. Or it became live
        // again because a commit to the failed device failed; then no older version was lost.
        leaving.staged.retain(|(disk, block)| {
            let versions = self.resolve(*disk, *block);
            versions.is_staged_dirty() && versions.flash.is_none()
        });
        if self.store.usable_devices().next().is_none() {
            for (disk, _) in leaving.staged.drain(..) {
                let d = self.disk_mut(disk);
                d.damage = d.damage.max(Damage::Lost);
                d.flush.heals = false;
            }
            return true;
        }
        if self.now >= leaving.wait_until_us {
            // A flush that began earlier does not cover the blocks that are given up here.
            leaving.staged.retain(|(disk, _)| {
                self.disk_mut(*disk).flush.heals = false;
                !self.has_recorded_loss(*disk)
            });
        }
        if !leaving.staged.is_empty() {
            return false;
        }
        self.durability.want(*leaving.committed_seq.get_or_insert(self.durability.last()))
    }

    /// Makes the record say that the device is gone. Returns the version of the record that will say so.
    fn retire(&mut self, device: DeviceNo) -> RecordVersion {
        let segments = self.store.devices[device].as_ref().map_or(0, |d| d.segments);
        self.devices.retire(device, segments);
        self.change_devices()
    }
}

impl<M: Memory> Call<'_, M> {
    /// Advances the devices that are leaving. Returns true if anything was done.
    pub(crate) fn drive_leaving(&mut self) -> bool {
        let mut acted = self.forget_gone();
        if !self.devices.leaves_any() {
            return acted;
        }
        for mut leaving in self.devices.take_leaving() {
            let is_clean_lost = self.lose_clean(&mut leaving);
            if let Some(version) = leaving.version {
                if self.durability.is_recorded(version) {
                    let segments = self.store.numbers_on(leaving.device);
                    let is_owned = |number: &SegmentNo| self.store.segments[*number].owner != NO_OWNER;
                    let owned: Vec<SegmentNo> = segments.filter(is_owned).collect();
                    self.devices.forget_segments(owned);
                    self.wake_around_all();
                    acted = true;
                    continue;
                }
            } else if is_clean_lost && (planted(Bug::LeaveAtOnce) || self.may_go(&mut leaving)) {
                self.purge_overtaken(std::mem::take(&mut leaving.overtaken));
                leaving.version = Some(self.retire(leaving.device));
                acted = true;
            }
            self.devices.start_leaving(leaving);
        }
        if !self.devices.leaves_any() {
            self.durability.release_mark();
        }
        acted
    }

    fn may_go(&mut self, leaving: &mut Leaving) -> bool {
        self.relist_as_clean(&mut leaving.listed_dirty) & self.commit_newer(leaving)
    }

    /// Writes pages that list overtaken versions as dirty. Returns true when none is left.
    fn relist_as_clean(&mut self, listed_dirty: &mut Vec<SlotNo>) -> bool {
        let mut waiting = Vec::new();
        while waiting.len() < PAGES_AT_A_TIME
            && let Some(number) = listed_dirty.pop()
        {
            if !self.store.is_stale_dirty_listing(number) {
                continue;
            }
            let segment = self.store.segment_of(number);
            let s = &self.store.segments[segment];
            let (page_seq, ready) = (s.page_seq, s.page_ready(self.durability.flushed()));
            if ready && self.store.slot(number).dead().is_some() {
                self.rewrite_page(segment);
            } else {
                self.durability.want_completed_and(page_seq);
            }
            waiting.push(number);
        }
        listed_dirty.append(&mut waiting);
        listed_dirty.is_empty()
    }
}
