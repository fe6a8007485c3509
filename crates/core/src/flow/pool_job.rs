//! Jobs of the pool: a device joins, a device is emptied and leaves, the pool stops.
//!
//! Invariants
//! - There is one at a time, and none starts once the pool is to stop. A stop cancels the removal of a device
//!   unless the device is empty: the device stays in use. It waits for any other job.
//! - A job is done only when the record that says so is durable. The loss of a device ends its removal early.
//! - The record calls a stop clean only when no request is in flight and what was staged is durable.

use std::ops::ControlFlow;

use haversack_model::{DeviceNo, DiskNo, Micros};

use crate::action::{Event, JobError, JobId};
use crate::core::Core;
use crate::memory::Memory;

/// A job of the whole pool.
pub(crate) struct PoolJob {
    pub id: JobId,
    pub kind: PoolJobKind,
}

/// See [`PoolJob`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolJobKind {
    /// A device joins: the record must say so, and the device must have every mark, before anything else is
    /// written to it.
    Add { device: DeviceNo, version: u64 },
    /// A device is being emptied.
    Drain { device: DeviceNo },
    /// The device leaves; dirty blocks may be lost with it.
    Gone { device: DeviceNo, lost: bool },
    /// Everything staged is being committed.
    Stop,
    /// The last record is being written.
    Stopped { version: u64 },
}

impl PoolJob {
    pub fn is_final(&self) -> bool {
        matches!(self.kind, PoolJobKind::Stopped { .. })
    }

    /// Returns the device that is being emptied.
    pub fn empties(&self) -> Option<DeviceNo> {
        match self.kind {
            PoolJobKind::Drain { device } => Some(device),
            _ => None,
        }
    }
}

impl<M: Memory> Core<M> {
    /// Stops the pool: commits everything staged and records the stop as clean. Requests in flight finish
    /// first.
    pub fn shutdown(&mut self, now: Micros) -> JobId {
        self.now = now;
        self.stopping = true;
        let job = self.new_job();
        if let Some((removal, device)) = self.pool_job.as_ref().and_then(|j| Some((j.id, j.empties()?))) {
            self.pool_job = None;
            self.stop_draining(device);
            self.owe_purge();
            self.event(Event::JobDone { job: removal, result: Err(JobError::Cancelled) });
        }
        self.stops.push_back(job);
        self.touch_all();
        self.settle();
        job
    }

    /// Whether a device is being emptied.
    pub(crate) fn empties_device(&self) -> bool {
        self.pool_job.as_ref().is_some_and(|job| job.empties().is_some())
    }

    pub(crate) fn drive_pool_job(&mut self) -> bool {
        if self.rebuilding() && self.rebuilt() {
            self.degraded = false;
            self.devices.iter_mut().flatten().for_each(|device| device.alone = false);
            self.whole_version = self.change_record();
            return true;
        }
        let stop = |id| PoolJob { id, kind: PoolJobKind::Stop };
        let Some(job) = self.pool_job.take().or_else(|| self.stops.pop_front().map(stop)) else {
            return false;
        };
        match self.step_pool_job(job.kind) {
            ControlFlow::Continue(kind) => {
                self.pool_job = Some(PoolJob { id: job.id, kind });
                kind != job.kind
            }
            ControlFlow::Break(result) => {
                self.event(Event::JobDone { job: job.id, result });
                true
            }
        }
    }

    fn step_pool_job(&mut self, kind: PoolJobKind) -> ControlFlow<Result<(), JobError>, PoolJobKind> {
        let next = match kind {
            PoolJobKind::Add { device, version }
                if self.record.is_durable(version) && self.intents_settled() =>
            {
                self.use_device(device);
                return ControlFlow::Break(Ok(()));
            }
            PoolJobKind::Gone { device, lost } if !self.leaves(device) => {
                return ControlFlow::Break(if lost { Err(JobError::DataLost) } else { Ok(()) });
            }
            PoolJobKind::Stopped { version } if self.record.is_durable(version) => {
                return ControlFlow::Break(Ok(()));
            }
            PoolJobKind::Drain { device } if self.drain(device) => {
                self.remove_emptied(device);
                PoolJobKind::Gone { device, lost: false }
            }
            PoolJobKind::Stop if self.all_committed() => {
                PoolJobKind::Stopped { version: self.change_record() }
            }
            other => other,
        };
        ControlFlow::Continue(next)
    }

    /// Whether every device has every mark.
    fn intents_settled(&self) -> bool {
        self.alive_devices().next().is_none()
            || self.disks.iter().flatten().all(|d| d.intents.is_durably_marked())
    }

    fn all_committed(&mut self) -> bool {
        let staged = (0..self.disks.len()).any(|number| {
            self.disks[number].is_some() && self.staging.all_of(DiskNo(number as u16)).next().is_some()
        });
        if self.requests.len() > 0 || staged || self.batches.len() > 0 {
            return false;
        }
        let busy = self.disks.iter().flatten().any(|d| !d.cleaner.is_idle() || d.restaging > 0);
        if busy || !self.locks.is_empty() {
            return false;
        }
        self.durability.want_completed() || self.alive_devices().next().is_none()
    }
}
