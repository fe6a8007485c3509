//! A device leaves: it failed or was emptied, and is used no more. It is gone when the record says so.
//!
//! Until then a crash may bring it back with all that its pages list. So the store goes on knowing what that is: no origin
//! overtakes what is listed as dirty, and no page elsewhere leaves out what an older version there would pass for.
//!
//! Invariants
//! - The record says that a device is gone only when no page elsewhere lists a block as dirty of which the device has a
//!   newer version. Without that one the older would be the newest. It says not to believe clean blocks until no page
//!   lists such an older version at all (see [`crate::flow::purge`]).
//! - Nor before newer versions of what it had, staged or on their way to flash, are durable elsewhere, or their disk known
//!   to have lost something: a power loss takes the newer version, and nobody would know that the older one had been there.
//! - From the failure on, the record says that the others stand alone; of the device itself only if it did before: it may
//!   be missing at the next start.
//! - What a device's pages list is forgotten only when the record says that it is gone.
//! - No flush is complete while a device leaves.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use crate::bugs::{Bug, planted};
use crate::core::Core;
use crate::format::record::Damage;
use crate::memory::Memory;
use crate::store::slot::SlotNo;

/// Pages that are written at a time.
const PAGES_AT_A_TIME: usize = 16;

/// A device on its way out.
pub(crate) struct Leaving {
    device: DeviceNo,
    /// Older versions elsewhere of what it has: pages may list them.
    overtaken: Vec<SlotNo>,
    /// Those that pages may list as dirty.
    listed_dirty: Vec<SlotNo>,
    /// Dirty blocks that only it had, and of which a newer version was staged as it failed.
    staged: Vec<(DiskNo, BlockNo)>,
    /// Commits up to there had all that was staged or on its way to flash.
    committed_seq: Option<u64>,
    /// The record's version that says that it is gone.
    version: Option<u64>,
}

impl Leaving {
    /// It failed: what is `staged` of blocks that only it had must be committed first.
    pub(crate) fn failed(&mut self, staged: Vec<(DiskNo, BlockNo)>) {
        self.staged = staged;
    }
}

impl<M: Memory> Core<M> {
    /// The store has lost the device. Pages elsewhere may list what it had `overtaken`.
    pub(crate) fn leave(&mut self, device: DeviceNo, overtaken: Vec<SlotNo>) -> &mut Leaving {
        let dirty = overtaken.iter().copied().filter(|number| self.store.is_listed_dirty_in_vain(*number));
        self.leaving.push(Leaving {
            device,
            listed_dirty: dirty.collect(),
            overtaken,
            staged: Vec::new(),
            committed_seq: None,
            version: None,
        });
        self.leaving.last_mut().expect("just pushed")
    }

    /// Whether what is staged of a disk is to be committed before a device is gone.
    pub(crate) fn leave_waits_for(&self, disk: DiskNo) -> bool {
        self.leaving.iter().any(|l| l.staged.iter().any(|staged| staged.0 == disk))
    }

    /// Whether the device is not gone yet.
    pub(crate) fn leaves(&self, device: DeviceNo) -> bool {
        self.leaving.iter().any(|l| l.device == device)
    }

    /// Whether any device is not gone yet.
    pub(crate) fn leaves_any(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes devices that leave a step further. True if anything was done.
    pub(crate) fn drive_leaving(&mut self) -> bool {
        let mut acted = false;
        for mut leaving in std::mem::take(&mut self.leaving) {
            if let Some(version) = leaving.version {
                if self.record.is_durable(version) {
                    self.store.forget_device(leaving.device);
                    self.wake_around_all();
                    acted = true;
                    continue;
                }
            } else if planted(Bug::LeaveAtOnce) || self.may_go(&mut leaving) {
                self.purge_overtaken(std::mem::take(&mut leaving.overtaken));
                leaving.version = Some(self.retire(leaving.device));
                acted = true;
            }
            self.leaving.push(leaving);
        }
        acted
    }

    fn may_go(&mut self, leaving: &mut Leaving) -> bool {
        self.relist_as_clean(&mut leaving.listed_dirty) & self.commit_newer(leaving)
    }

    /// True when what was staged or being committed as the device failed is durable, or lost for want of a place.
    fn commit_newer(&mut self, leaving: &mut Leaving) -> bool {
        // The device took all versions on flash with it: one that is there now was committed since.
        leaving.staged.retain(|(disk, block)| {
            let versions = self.resolve(*disk, *block);
            versions.is_staged_dirty() && versions.flash.is_none()
        });
        if self.store.usable_devices().next().is_none() {
            for (disk, _) in leaving.staged.drain(..) {
                let d = self.disk_mut(disk);
                d.damage = d.damage.max(Damage::Lost);
            }
            return true;
        }
        if !leaving.staged.is_empty() {
            return false;
        }
        self.durability.want(*leaving.committed_seq.get_or_insert(self.durability.last()))
    }

    /// Writes pages that list overtaken versions as dirty. True when none does.
    fn relist_as_clean(&mut self, listed_dirty: &mut Vec<SlotNo>) -> bool {
        let mut waiting = Vec::new();
        while waiting.len() < PAGES_AT_A_TIME
            && let Some(number) = listed_dirty.pop()
        {
            if !self.store.is_listed_dirty_in_vain(number) {
                continue;
            }
            let segment = self.store.segment_of(number);
            let s = &self.store.segments[segment];
            let (page_seq, ready) = (s.page_seq, s.page_ready(self.durability.flushed()));
            if ready && self.store.slot(number).dead().is_some() {
                self.rewrite_page(segment);
            } else {
                self.durability.want(page_seq.max(self.durability.completed()));
            }
            waiting.push(number);
        }
        listed_dirty.append(&mut waiting);
        listed_dirty.is_empty()
    }

    /// Has the record say that the device is gone. Gives the version that will.
    fn retire(&mut self, device: DeviceNo) -> u64 {
        let at = device.0 as usize;
        let segments = self.store.devices[at].as_ref().map_or(0, |d| d.segments);
        let id = self.devices[at].as_ref().expect("a device that is retired was in use").id;
        if self.retired.len() <= at {
            self.retired.resize(at + 1, None);
        }
        self.retired[at] = Some((id, segments));
        self.change_devices()
    }
}
