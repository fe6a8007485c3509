//! The cache devices of the pool: those in use, those that are leaving, and those that left.
//!
//! Invariants
//! - The number of a device that failed or was removed is given to another one only after the pool was opened again:
//!   until then, segments and I/Os of the earlier one are known under it. On devices, its identity tells them apart.
//! - A device that stands alone does so until the pool is whole again.

pub(crate) mod drain;
pub(crate) mod leaving;
pub(crate) mod preparation;
pub(crate) mod purge;

use std::collections::VecDeque;

use haversack_model::{DeviceNo, DiskNo, Micros, Uuid};

use crate::config::MAX_DEVICES;
use crate::flow::gather::Gather;
use crate::format::record::{DeviceRecord, DeviceState};
use crate::read_errors::ReadErrors;
use crate::store::Store;
use crate::store::segment::SegmentNo;
use crate::store::slot::SlotNo;
use crate::table::Table;
use drain::Drain;
use leaving::Leaving;
use preparation::Preparation;
use purge::Purge;

/// A device that is or was in use.
pub(crate) struct Device {
    /// Hash of its identity, for page tags.
    seed: u64,
    /// Its identity.
    id: Uuid,
    /// Reads that failed recently.
    errors: ReadErrors,
    /// Something was written to it since its last flush.
    unflushed: bool,
    /// The device may hold the only copy of dirty blocks that should have two copies.
    alone: bool,
}

impl Device {
    /// Returns a device that may have unflushed writes.
    pub fn new(seed: u64, id: Uuid, alone: bool) -> Device {
        Device { seed, id, errors: ReadErrors::default(), unflushed: true, alone }
    }
}

/// See the module.
pub(crate) struct Devices {
    /// By number: devices that are or were in use since the pool was opened.
    used: Table<DeviceNo, Option<Device>>,
    /// By number: identity and segments of devices that failed or were removed.
    retired: Table<DeviceNo, Option<(Uuid, u32)>>,
    /// Devices that are no longer used and not yet gone from the record.
    leaving: Vec<Leaving>,
    /// Segments of devices that are gone, which the store still knows.
    gone: VecDeque<SegmentNo>,
    /// How far the device that is being removed has been emptied.
    pub drain: Drain,
    /// What the pages of other devices must no longer list.
    pub purge: Purge,
    /// Segments that are being prepared for use.
    pub preparation: Preparation,
    /// The segment that is being emptied for a disk that finds no space because of other disks' dirty blocks.
    pub gather: Gather,
}

impl Devices {
    /// Returns the devices in use and those that the record calls retired, each by number.
    pub fn new(
        used: Table<DeviceNo, Option<Device>>,
        retired: Table<DeviceNo, Option<(Uuid, u32)>>,
    ) -> Devices {
        Devices {
            used,
            retired,
            leaving: Vec::new(),
            gone: VecDeque::new(),
            drain: Drain::default(),
            purge: Purge::default(),
            preparation: Preparation::default(),
            gather: Gather::default(),
        }
    }

    /// Adds a device. It takes the place of an earlier one of that number.
    pub fn add(&mut self, number: DeviceNo, device: Device) {
        if let Some(earlier) = self.retired.get_mut(number) {
            *earlier = None;
        }
        self.used.reach(number, || None);
        self.used[number] = Some(device);
    }

    /// Returns the numbers that no device has had since the pool was opened.
    pub fn free_numbers(&self) -> impl Iterator<Item = DeviceNo> {
        let is_taken = |number| self.used.get(number).is_some_and(Option::is_some);
        (0..MAX_DEVICES).map(|at| DeviceNo(at as u8)).filter(move |number| !is_taken(*number))
    }

    fn device(&self, number: DeviceNo) -> &Device {
        self.used[number].as_ref().expect("the device is known")
    }

    fn device_mut(&mut self, number: DeviceNo) -> &mut Device {
        self.used[number].as_mut().expect("the device is known")
    }

    /// Returns the hash of a device's identity, for page tags.
    pub fn seed(&self, number: DeviceNo) -> u64 {
        self.device(number).seed
    }

    /// Called when something was written to a device.
    #[inline]
    pub fn written(&mut self, number: DeviceNo) {
        self.device_mut(number).unflushed = true;
    }

    /// Whether something was written to a device since the last call. If so, the caller must flush the device.
    pub fn takes_flush(&mut self, number: DeviceNo) -> bool {
        std::mem::take(&mut self.device_mut(number).unflushed)
    }

    /// Records a failed read at a place of a device. Returns true when at least `limit` places have failed within the
    /// window.
    pub fn note_failed_read(
        &mut self,
        number: DeviceNo,
        place: SlotNo,
        now: Micros,
        window_us: Micros,
        limit: u32,
    ) -> bool {
        self.device_mut(number).errors.note(place, now, window_us, limit)
    }

    /// Marks a device as alone: the pool cannot do without it. Returns whether the device was not marked before.
    pub fn stand_alone(&mut self, number: DeviceNo) -> bool {
        !std::mem::replace(&mut self.device_mut(number).alone, true)
    }

    /// Clears the alone mark of all devices: the pool is whole and can lose any one device.
    pub fn none_alone(&mut self) {
        self.used.iter_mut().flatten().for_each(|device| device.alone = false);
    }

    /// Called when a device is about to be gone from the record.
    pub fn retire(&mut self, number: DeviceNo, segments: u32) {
        self.retired.reach(number, || None);
        self.retired[number] = Some((self.device(number).id, segments));
    }

    /// Returns what the record says of each device number.
    pub fn records(&self, store: &Store) -> Vec<Option<DeviceRecord>> {
        let count = self.used.len().max(self.retired.len());
        let device = |number: DeviceNo| {
            let retired = self.retired.get(number).copied().flatten();
            let retired = retired.map(|(id, segments)| DeviceRecord {
                id,
                segments,
                prepared: 0,
                state: DeviceState::Retired,
            });
            retired.or_else(|| {
                let space = store.devices.get(number)?.as_ref()?;
                let alone = self.used[number].as_ref().is_some_and(|d| d.alone);
                let state = if alone { DeviceState::Alone } else { DeviceState::Active };
                let prepared = self.preparation.prepared(number).unwrap_or(space.prepared);
                Some(DeviceRecord { id: space.id, segments: space.segments, prepared, state })
            })
        };
        (0..count).map(|at| device(DeviceNo(at as u8))).collect()
    }

    /// Adds a device that is no longer used and not yet gone from the record.
    pub fn start_leaving(&mut self, leaving: Leaving) {
        self.leaving.push(leaving);
    }

    /// Takes out the devices that are leaving; those that are not gone are put back.
    pub fn take_leaving(&mut self) -> Vec<Leaving> {
        std::mem::take(&mut self.leaving)
    }

    /// Records that a device is gone: the store must forget its segments.
    pub fn forget_segments(&mut self, segments: Vec<SegmentNo>) {
        self.gone.extend(segments);
    }

    /// Whether the store must forget any segments.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns the next segment that the store must forget.
    pub fn next_gone(&mut self) -> Option<SegmentNo> {
        self.gone.pop_front()
    }

    /// Whether lost devices have segments for the next call to process.
    pub fn has_lost_segments(&self) -> bool {
        !self.gone.is_empty() || self.leaving.iter().any(|l| !l.clean.is_empty())
    }

    /// Whether the device is still leaving.
    pub fn leaves(&self, number: DeviceNo) -> bool {
        self.leaving.iter().any(|l| l.device == number)
    }

    /// Whether any device is still leaving.
    #[inline]
    pub fn leaves_any(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Returns the time until which leaving devices wait for staged blocks, if any device waits.
    pub fn waits_to_leave_until_us(&self) -> Option<Micros> {
        self.leaving.iter().filter(|l| !l.staged.is_empty()).map(|l| l.wait_until_us).min()
    }

    /// Whether the disk's staged blocks must be committed before a device is gone.
    pub fn leave_waits_for(&self, disk: DiskNo) -> bool {
        self.leaving.iter().any(|l| l.staged.iter().any(|staged| staged.0 == disk))
    }
}
