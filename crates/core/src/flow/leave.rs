//! A device leaves: it failed or was emptied, and is used no more. It is gone when the record says so.
//!
//! Until then a crash may bring it back with all that its pages list. So the store goes on knowing what that is: no origin
//! overtakes what is listed as dirty, and no page elsewhere leaves out what an older version there would pass for.
//!
//! Invariants
//! - The record says that a device is gone only when no page elsewhere lists a block as dirty of which the device has a
//!   newer version. Without that one the older would be the newest.
//! - What a device's pages list is forgotten only when the record says that it is gone.
//! - No flush is complete while a device leaves.

use haversack_model::DeviceNo;

use crate::core::Core;
use crate::memory::Memory;
use crate::store::slot::{SlotNo, Status};

/// Pages that are written at a time.
const PAGES_AT_A_TIME: usize = 16;

/// A device on its way out.
pub(crate) struct Leaving {
    device: DeviceNo,
    /// What its entries have overtaken elsewhere and may be listed as dirty there.
    overtaken: Vec<SlotNo>,
    /// Clean blocks elsewhere may be older than what the device has.
    distrust_clean: bool,
    /// The record's version that says that it is gone.
    version: Option<u64>,
}

impl<M: Memory> Core<M> {
    /// The store has lost the device.
    pub(crate) fn leave(&mut self, device: DeviceNo, overtaken: Vec<SlotNo>, distrust_clean: bool) {
        self.leaving.push(Leaving { device, overtaken, distrust_clean, version: None });
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
            match leaving.version {
                None if self.purge_overtaken(&mut leaving.overtaken) => {
                    self.distrust_clean |= leaving.distrust_clean;
                    leaving.version = Some(self.retire(leaving.device));
                }
                Some(version) if self.record.is_durable(version) => {
                    self.store.forget_device(leaving.device);
                    self.wake_around_all();
                    acted = true;
                    continue;
                }
                _ => {
                    self.leaving.push(leaving);
                    continue;
                }
            }
            acted = true;
            self.leaving.push(leaving);
        }
        acted
    }

    /// Writes pages that list overtaken versions as dirty. True when none does.
    fn purge_overtaken(&mut self, overtaken: &mut Vec<SlotNo>) -> bool {
        let mut waiting = Vec::new();
        while waiting.len() < PAGES_AT_A_TIME
            && let Some(number) = overtaken.pop()
        {
            if !self.store.lists_in_vain(number) {
                continue;
            }
            let segment = self.store.segment_of(number);
            let s = &self.store.segments[segment as usize];
            let (page_seq, ready) = (s.page_seq, s.page_ready(self.store.flushed_seq));
            if ready && self.store.slot(number).status() == Status::Remnant {
                self.rewrite_page(segment);
            } else {
                self.want_flush(page_seq.max(self.sequence.completed()));
            }
            waiting.push(number);
        }
        overtaken.append(&mut waiting);
        overtaken.is_empty()
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
