//! A device that is leaving, and what must happen before the record says that it is gone. The flow is
//! `flow/leave.rs`.

use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros};

use crate::durability::record::RecordVersion;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use crate::store::{LostDevice, Store};

/// A device that is leaving.
pub(crate) struct Leaving {
    /// Its number.
    pub device: DeviceNo,
    /// Its segments without dirty blocks, which are still to be taken out of the store's counts.
    pub clean: Vec<SegmentNo>,
    /// Slots on other devices with older versions of its blocks, which pages may list.
    pub overtaken: Vec<SlotNo>,
    /// Of these, the slots that pages may list as dirty.
    pub listed_dirty: Vec<SlotNo>,
    /// Dirty blocks that only this device had and of which a newer version was staged when the device failed. The
    /// staged versions must be committed before the device is gone.
    pub staged: Vec<(DiskNo, BlockNo)>,
    /// When the wait for these commits ends. After that, the record says that the disks of the remaining blocks have
    /// lost something.
    pub wait_until_us: Micros,
    /// Commits up to this sequence number contain everything that was staged or in flight when the device failed,
    /// except for the blocks that were given up.
    pub committed_seq: Option<u64>,
    /// The version of the record that says that it is gone.
    pub version: Option<RecordVersion>,
}

impl Leaving {
    /// Returns the state of a device that the store has just lost.
    pub fn new(
        device: DeviceNo,
        lost: LostDevice,
        staged: Vec<(DiskNo, BlockNo)>,
        wait_until_us: Micros,
        store: &Store,
    ) -> Leaving {
        let mut leaving = Leaving {
            device,
            clean: lost.clean,
            overtaken: Vec::new(),
            listed_dirty: Vec::new(),
            staged,
            wait_until_us,
            committed_seq: None,
            version: None,
        };
        leaving.add_overtaken(lost.overtaken, store);
        leaving
    }

    /// Records slots on other devices with older versions of its blocks, which pages may list.
    pub fn add_overtaken(&mut self, overtaken: Vec<SlotNo>, store: &Store) {
        let dirty = overtaken.iter().copied().filter(|number| store.is_stale_dirty_listing(*number));
        self.listed_dirty.extend(dirty);
        self.overtaken.extend(overtaken);
    }
}
