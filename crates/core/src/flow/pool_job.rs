//! Jobs of the pool: a device joins, a device is emptied and leaves, the pool stops.
//!
//! Invariants
//! - There is one at a time; only a stop takes the place of another, which is cancelled.
//! - A job is done only when the record that says so is durable. The loss of a device ends its removal early.
//! - The record calls a stop clean only when no request is in flight and what was staged is durable.

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
    /// A device joined; the record must say so.
    Add { version: u64, device: DeviceNo },
    /// A device is being emptied.
    Drain { device: DeviceNo },
    /// Pages elsewhere that list what the device had newer are being written.
    Purge { device: DeviceNo },
    /// The record must say that a device is gone.
    Gone { version: u64 },
    /// Everything staged is being committed.
    Stop,
    /// The last record is being written.
    Stopped { version: u64 },
}

impl PoolJob {
    pub fn is_final(&self) -> bool {
        matches!(self.kind, PoolJobKind::Stopped { .. })
    }

    pub fn is_removal_of(&self, gone: DeviceNo) -> bool {
        match self.kind {
            PoolJobKind::Drain { device } | PoolJobKind::Purge { device } => device == gone,
            _ => false,
        }
    }
}

impl<M: Memory> Core<M> {
    /// Commits everything staged and marks the stop as clean. Requests in flight finish first.
    pub fn shutdown(&mut self, now: Micros) -> JobId {
        self.now = now;
        self.stopping = true;
        let job = self.new_job();
        if let Some(other) = self.pool_job.replace(PoolJob { id: job, kind: PoolJobKind::Stop }) {
            self.event(Event::JobDone { job: other.id, result: Err(JobError::Cancelled) });
        }
        self.touch_all();
        self.settle();
        job
    }

    pub(crate) fn drive_pool_job(&mut self) -> bool {
        if self.rebuilding() && self.rebuilt() {
            self.degraded = false;
            self.change_record();
            return true;
        }
        let Some(job) = self.pool_job.take() else { return false };
        let id = job.id;
        let next = self.step_pool_job(job.kind);
        let changed = next.as_ref() != Some(&job.kind);
        match next {
            Some(kind) => self.pool_job = Some(PoolJob { id, kind }),
            None => self.event(Event::JobDone { job: id, result: Ok(()) }),
        }
        changed
    }

    fn step_pool_job(&mut self, kind: PoolJobKind) -> Option<PoolJobKind> {
        match kind {
            PoolJobKind::Add { version, device }
                if self.record.is_durable(version) && self.intents_settled() =>
            {
                self.open_device(device);
                None
            }
            PoolJobKind::Gone { version } | PoolJobKind::Stopped { version }
                if self.record.is_durable(version) =>
            {
                None
            }
            PoolJobKind::Drain { device } if self.drain(device) => Some(PoolJobKind::Purge { device }),
            PoolJobKind::Purge { device } if self.purge_pages(device) => {
                Some(PoolJobKind::Gone { version: self.remove_emptied(device) })
            }
            PoolJobKind::Stop if self.all_committed() => {
                Some(PoolJobKind::Stopped { version: self.change_record() })
            }
            other => Some(other),
        }
    }

    fn intents_settled(&self) -> bool {
        self.disks.iter().flatten().all(|d| d.intents.is_durably_marked())
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
        self.want_flush(self.sequence.completed());
        self.store.flushed_seq == self.sequence.completed() || self.alive_devices().next().is_none()
    }
}
