//! Cache devices: failure, arrival, removal.
//!
//! Invariants
//! - A new device gets no blocks until the record durably lists it and it holds every mark of the intent
//!   maps. A crash before that would lose blocks on it, or clean blocks that the origin has overtaken would
//!   be trusted.
//! - In a redundant pool, when a device fails, the record says that the other devices stand alone before a flush
//!   succeeds or the cleaner starts another round. The record says so of the failed device only if it already said so
//!   before the failure.
//! - Clean sectors that wait to be committed for a block whose dirty ones are lost are dropped.
//! - When no device is left, origins are not written until the caller has durably noted the loss elsewhere.
//! - The only device in use cannot be removed. If all others fail while one is being emptied, it stays in
//!   use.
//! - The number of a device that was removed or failed is not given to another one before the pool is opened again.

use haversack_model::{BlockNo, DeviceNo, DiskNo, Micros, Uuid};

use crate::action::{Event, JobError, JobId};
use crate::checksum;
use crate::core::{Call, Core};
use crate::devices::Device;
use crate::devices::drain::Drain;
use crate::durability::record::RecordVersion;
use crate::error::ManageError;
use crate::format::geometry;
use crate::io::Io;
use crate::jobs::{PoolJob, PoolJobKind};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::pool;
use crate::store::slot::{Live, SlotNo};

/// A device that was formatted to join a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewDevice {
    /// Its number in the pool.
    pub(crate) number: DeviceNo,
    pub(crate) id: Uuid,
    /// Segments on it.
    pub(crate) segments: u32,
    /// How many of them are prepared for use.
    pub(crate) prepared: u32,
}

impl NewDevice {
    /// Returns its number in the pool.
    pub fn number(&self) -> DeviceNo {
        self.number
    }
}

impl Core {
    /// Requests a record with the present devices; returns the version that will hold it.
    pub(crate) fn change_devices(&mut self) -> RecordVersion {
        self.durability.record.change_devices()
    }

    pub(crate) fn alive_devices(&self) -> impl Iterator<Item = DeviceNo> + '_ {
        let alive = |d: &Option<crate::store::DeviceSpace>| d.as_ref().is_some_and(|d| d.alive);
        self.store.devices.numbered().filter(move |(_, d)| alive(d)).map(|(number, _)| number)
    }

    pub(crate) fn is_alive(&self, device: DeviceNo) -> bool {
        self.store.devices.get(device).is_some_and(|d| d.as_ref().is_some_and(|d| d.alive))
    }

    /// Whether origins must not be written because the loss of the last device is not on record.
    pub fn loss_unrecorded(&self) -> bool {
        !self.pool.is_loss_recorded() && self.alive_devices().next().is_none()
    }

    /// Returns the numbers that are available for a new device, in order. Empty if the pool has the maximum
    /// number of devices.
    pub fn free_device_numbers(&self) -> Vec<DeviceNo> {
        self.devices.free_numbers().collect()
    }

    /// Returns how many segments new devices may have together. Those of devices that have left count until the pool is
    /// opened again.
    pub fn spare_segments(&self) -> u32 {
        geometry::MAX_SEGMENTS - self.store.segments.len() as u32
    }

    /// Returns the first number that is available for a new device.
    pub fn next_device_no(&self) -> Option<DeviceNo> {
        self.devices.free_numbers().next()
    }
}

impl<M: Memory> Call<'_, M> {
    /// Called when a device has disappeared.
    pub fn fail_device(&mut self, now: Micros, device: DeviceNo) {
        self.now = now;
        self.device_failed(device);
        self.settle();
    }

    /// Called when the caller has durably recorded that the contents of the lost devices are void. Origins may be
    /// written again.
    pub fn loss_recorded(&mut self, now: Micros) {
        self.now = now;
        self.pool.record_loss();
        self.wake_around_all();
        self.settle();
    }

    /// Counts a failed read of a slot. A device with too many of them is no longer used.
    pub(crate) fn note_device_read(&mut self, io: &Io, place: SlotNo, result: Result<(), IoFailure>) {
        let Err(failure) = result else { return };
        let device = io.device.expect("the read is of a device");
        let (window_us, limit) = (self.config.device_error_window_us, self.config.device_read_errors);
        let now = self.now;
        let too_many = self.devices.note_failed_read(device, place, now, window_us, limit);
        if failure == IoFailure::Gone || too_many {
            self.device_failed(device);
        }
    }

    /// Stops using a device. Clean blocks on it are gone; dirty ones are served from their mirrored copy from
    /// then on.
    pub(crate) fn device_failed(&mut self, device: DeviceNo) {
        if !self.is_alive(device) {
            return;
        }
        let mut single_copies = Vec::new();
        let lost_device = self.store.lose_device(device, |disk, slot| single_copies.push((disk, slot)));
        let (mut lost, mut superseded) = (Vec::new(), Vec::new());
        for (disk, slot) in single_copies {
            let covered = self.is_staged_over(disk, slot);
            if covered {
                superseded.push((disk, slot.block()));
            } else {
                lost.push((disk, slot));
            }
        }
        for (disk, slot) in &lost {
            self.forget_clean_frame(*disk, slot.block());
            self.lose(*disk, slot.block(), self.lost_with(*disk, *slot));
            self.disk_mut(*disk).stats.lost_blocks += 1;
        }
        if self.stand_alone(self.alive_devices().collect()) {
            self.change_devices();
        }
        self.leave(device, lost_device, superseded);
        self.devices.preparation.device_failed(device);
        self.keep_last_place();
        self.event(Event::DeviceFailed { device, lost_blocks: lost.len() as u64 });
        if self.alive_devices().next().is_none() {
            self.event(Event::PoolLost);
        }
        self.jobs.device_failed(device, !lost.is_empty());
        for disk in self.disks.places() {
            if self.disks.contains(disk) {
                self.wake_around(disk);
                self.wake_dirty(disk);
                self.queue(disk);
            }
        }
        self.wake_staging();
    }

    /// Whether the staged frame of a block has all sectors that a slot has, and records the sectors that the
    /// slot has lost.
    fn is_staged_over(&self, disk: DiskNo, slot: Live) -> bool {
        let inside = self.disk(disk).inside(slot.block());
        self.resolve(disk, slot.block()).staged.is_some_and(|staged| {
            let knows = staged.poisoned || staged.mask == inside || !slot.poisoned();
            slot.mask() & !staged.mask == 0 && knows
        })
    }

    /// Returns the sectors that are lost with a dirty slot: those that are not staged. The origin has the
    /// sectors that the slot lacked, unless they were lost before.
    fn lost_with(&self, disk: DiskNo, slot: Live) -> u8 {
        let inside = self.disk(disk).inside(slot.block());
        let staged = self.resolve(disk, slot.block()).staged.filter(|staged| staged.dirty);
        let poisoned = slot.poisoned() || staged.is_some_and(|staged| staged.poisoned);
        let had = if poisoned { inside } else { inside & slot.mask() };
        had & !staged.map_or(0, |staged| staged.mask)
    }

    /// Forgets staged clean sectors of a block whose dirty ones are lost. On flash they would silently
    /// supersede the dirty ones if the device came back after a crash.
    fn forget_clean_frame(&mut self, disk: DiskNo, block: BlockNo) {
        let staged = self.resolve(disk, block).staged;
        if let Some(staged) = staged.filter(|s| !s.dirty && !s.committing) {
            self.unstage(staged.frame);
        }
    }

    /// Keeps a device that is being emptied in use if all others are gone.
    fn keep_last_place(&mut self) {
        let is_emptied = self.jobs.empties().is_some_and(|device| self.is_alive(device));
        if is_emptied
            && self.store.usable_devices().next().is_none()
            && let Some((removal, device)) = self.jobs.cancel_removal()
        {
            self.stop_draining(device);
            self.purge_before_whole();
            self.event(Event::JobDone { job: removal, result: Err(JobError::Cancelled) });
        }
    }

    /// Adds a formatted device to the pool. Dirty blocks without a mirrored copy get one.
    ///
    /// # Errors
    /// The number is taken, another job of the pool is running, or the pool is stopping.
    pub fn add_device(&mut self, now: Micros, device: NewDevice) -> Result<JobId, ManageError> {
        self.now = now;
        self.running()?;
        if self.jobs.is_pool_busy() {
            return Err(ManageError::Busy);
        }
        if !self.devices.free_numbers().any(|number| number == device.number) {
            return Err(ManageError::NoSuchDevice(device.number));
        }
        if device.segments > self.spare_segments() {
            return Err(pool::arena_full(format!("cache device {}", device.number)).into());
        }
        let alone = self.alive_devices().next().is_none();
        self.expect_single_copies(self.alive_devices().count());
        let seed = checksum::device_seed(self.pool.arena(), device.id);
        self.devices.add(device.number, Device::new(seed, device.id, false));
        self.store.add_device(device.number, device.id, device.segments, device.prepared);
        self.store.drain_device(device.number);
        for disk in self.disks.iter_mut() {
            if alone {
                // The origins may hold unflushed writes that no map could mark.
                disk.intents.mark_all_durably();
            } else {
                disk.intents.write_again();
            }
        }
        let job = self.jobs.new_id();
        let version = self.change_record();
        let kind = PoolJobKind::Add { device: device.number, version };
        self.jobs.run_pool(PoolJob { id: job, kind });
        self.queue_all();
        self.settle();
        Ok(job)
    }

    /// Starts to use a device that joined: it is on record and has every mark. Before that, a crash would
    /// lose the data on it, or clean blocks on it that the origin has overtaken would be trusted.
    pub(crate) fn use_device(&mut self, device: DeviceNo) {
        self.store.use_device(device);
        self.restage_unmirrored();
        self.queue_all();
    }

    /// Empties a device and removes it from the pool.
    ///
    /// # Errors
    /// There is no such device, it is the only one, another job of the pool is running, or the pool is
    /// stopping.
    pub fn remove_device(&mut self, now: Micros, device: DeviceNo) -> Result<JobId, ManageError> {
        self.now = now;
        self.running()?;
        if self.jobs.is_pool_busy() {
            return Err(ManageError::Busy);
        }
        if !self.is_alive(device) {
            return Err(ManageError::NoSuchDevice(device));
        }
        if self.alive_devices().count() < 2 {
            return Err(ManageError::LastDevice(device));
        }
        self.store.drain_device(device);
        self.devices.drain = Drain::default();
        self.expect_single_copies(self.store.usable_devices().count());
        let job = self.jobs.new_id();
        self.jobs.run_pool(PoolJob { id: job, kind: PoolJobKind::Drain { device } });
        self.queue_all();
        self.settle();
        Ok(job)
    }

    /// With fewer than two devices to write to, dirty blocks may have no mirrored copy: no flush is complete
    /// before the record says so.
    fn expect_single_copies(&mut self, usable: usize) {
        if usable < 2 && self.stand_alone(self.store.usable_devices().collect()) {
            self.change_devices();
        }
    }

    /// Marks devices as alone: a redundant pool needs them until it is rebuilt. Returns true if that is new for any of
    /// them.
    fn stand_alone(&mut self, devices: Vec<DeviceNo>) -> bool {
        if !self.pool.is_redundant() {
            return false;
        }
        self.pool.degrade();
        devices.into_iter().fold(false, |news, device| self.devices.stand_alone(device) | news)
    }

    /// Stops using a device that was emptied.
    pub(crate) fn remove_emptied(&mut self, device: DeviceNo) {
        let lost = self.store.lose_device(device, |_, _| unreachable!("the device was emptied"));
        self.leave(device, lost, Vec::new());
    }
}
