//! Jobs of the pool: a device joins, a device is emptied and leaves, the pool stops.
//!
//! Invariants
//! - Only one runs at a time, and none starts once the pool is about to stop. A stop cancels the removal of a
//!   device unless the device is empty: the device stays in use. It waits for any other job.
//! - A job is done only when the record that says so is durable. The loss of a device ends its removal early.
//! - The record says that a stop was clean only when no request is in flight and all staged blocks are
//!   durable. From then on nothing begins in the background, so that what a checkpoint has stays true.

use std::ops::ControlFlow;

use haversack_model::{Micros, Uuid};

use crate::action::{Event, JobError, JobId};
use crate::core::Call;
use crate::jobs::{PoolJob, PoolJobKind};
use crate::memory::Memory;

impl<M: Memory> Call<'_, M> {
    /// Stops the pool: commits everything staged and records the stop as clean. Requests in flight finish
    /// first.
    pub fn shutdown(&mut self, now: Micros) -> JobId {
        self.now = now;
        self.pool.stop();
        let job = self.jobs.new_id();
        if let Some((removal, device)) = self.jobs.cancel_removal() {
            self.stop_draining(device);
            self.owe_purge();
            self.event(Event::JobDone { job: removal, result: Err(JobError::Cancelled) });
        }
        self.jobs.stop(job);
        self.queue_all();
        self.settle();
        job
    }

    /// Names the next clean stop, with a name that no other stop has had. The record then has that name, which
    /// distinguishes the checkpoint of this stop ([`crate::Core::checkpoint`]) from all others. To be called before
    /// [`Call::shutdown`].
    pub fn name_stop(&mut self, name: Uuid) {
        self.pool.name_stop(name);
    }

    pub(crate) fn drive_pool_job(&mut self) -> bool {
        if self.rebuilding() && self.rebuilt() {
            self.devices.none_alone();
            let version = self.change_record();
            self.pool.become_whole(version);
            return true;
        }
        let Some(job) = self.jobs.take_pool() else { return false };
        match self.step_pool_job(job.kind) {
            ControlFlow::Continue(kind) => {
                self.jobs.run_pool(PoolJob { id: job.id, kind });
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
                if self.durability.is_recorded(version) && self.intents_settled() =>
            {
                self.use_device(device);
                return ControlFlow::Break(Ok(()));
            }
            PoolJobKind::Gone { device, lost } if !self.devices.leaves(device) => {
                return ControlFlow::Break(if lost { Err(JobError::DataLost) } else { Ok(()) });
            }
            PoolJobKind::Stopped { version } if self.durability.is_recorded(version) => {
                self.pool.has_stopped();
                return ControlFlow::Break(Ok(()));
            }
            PoolJobKind::Drain { device }
                if self.drain(device) && !self.devices.preparation.is_of(device) =>
            {
                self.remove_emptied(device);
                PoolJobKind::Gone { device, lost: false }
            }
            PoolJobKind::Stop if self.all_committed() => {
                self.heal_stopped();
                self.pool.rest();
                PoolJobKind::Stopped { version: self.change_record() }
            }
            other => other,
        };
        ControlFlow::Continue(next)
    }

    /// Whether every device has every mark.
    fn intents_settled(&self) -> bool {
        self.alive_devices().next().is_none() || self.disks.iter().all(|d| d.intents.is_durably_marked())
    }

    fn all_committed(&mut self) -> bool {
        let staged = self.disks.numbers().any(|disk| self.staging.all_of(disk).next().is_some());
        if self.requests.len() > 0 || staged || !self.batches.is_empty() {
            return false;
        }
        let busy = self.disks.iter().any(|d| !d.cleaner.is_idle() || d.restaging > 0);
        if busy || !self.locks.is_empty() || self.is_preparing() {
            return false;
        }
        self.durability.want_completed() || self.alive_devices().next().is_none()
    }
}
