//! A device that is leaving, and what has to happen before the record says that it is gone. The flow is
//! `flow/leave.rs`.

use haversack_model::{BlockNo, DeviceNo, DiskNo};

use crate::durability::record::RecordVersion;
use crate::store::Store;
use crate::store::slot::SlotNo;

/// A device that is leaving.
pub(crate) struct Leaving {
    /// Its number.
    pub device: DeviceNo,
    /// Slots on other devices with older versions of its blocks, which pages may list.
    pub overtaken: Vec<SlotNo>,
    /// Of these, the slots that pages may list as dirty.
    pub listed_dirty: Vec<SlotNo>,
    /// Dirty blocks that only this device had and of which a newer version was staged when it failed: they
    /// must be committed first.
    pub staged: Vec<(DiskNo, BlockNo)>,
    /// Sequence number up to which commits contain everything that was staged or in flight when it failed.
    pub committed_seq: Option<u64>,
    /// The version of the record that says that it is gone.
    pub version: Option<RecordVersion>,
}

impl Leaving {
    /// Returns the state of a device that the store has just lost. Pages elsewhere may list the slots in
    /// `overtaken`.
    pub fn new(
        device: DeviceNo,
        overtaken: Vec<SlotNo>,
        staged: Vec<(DiskNo, BlockNo)>,
        store: &Store,
    ) -> Leaving {
        let dirty = overtaken.iter().copied().filter(|number| store.is_listed_dirty_in_vain(*number));
        Leaving {
            device,
            listed_dirty: dirty.collect(),
            overtaken,
            staged,
            committed_seq: None,
            version: None,
        }
    }
}
