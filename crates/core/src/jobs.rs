//! Jobs of the pool and of its disks: management operations that end some time after the call.
//!
//! Invariants
//! - No two jobs have the same number.
//! - The pool has at most one job. Stops wait until there is none.

use std::collections::VecDeque;

use haversack_model::{DeviceNo, Micros, WriteMode};

use crate::action::JobId;
use crate::bugs::{Bug, planted};
use crate::durability::record::RecordVersion;

/// A disk's job.
pub(crate) struct Job {
    /// Its name in events.
    pub id: JobId,
    /// What it does.
    pub kind: JobKind,
    /// The version of the record that must be durable before the job continues.
    pub version: Option<RecordVersion>,
}

/// See [`Job`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobKind {
    Attach,
    Detach {
        total: u64,
        loss: Loss,
    },
    Release,
    Mode(WriteMode),
    Resize {
        before: u64,
        sectors: u64,
        stage: ResizeStage,
    },
    Clean {
        since_us: Micros,
        total: u64,
    },
    Forget {
        /// The last step stopped at its bound, and more segments can be given up without waiting.
        goes_on: bool,
    },
    Freeze,
    HandOver,
    Claim {
        epoch: u64,
    },
    /// Blocks that only a dead host had are replaced by copies here, or count as lost.
    GiveUpPeer {
        epoch: u64,
    },
    /// Clean blocks were dropped, so that the disk can be taken back from a dead host.
    Retake {
        epoch: u64,
    },
    /// The record is being written, and there is nothing else to do.
    Record,
}

/// What a detach does about lost blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// It fails.
    Refused,
    /// They are dropped once everything else is done.
    Accepted,
    /// They were dropped; durable pages may still list them.
    Dropped,
}

/// How far a resize is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResizeStage {
    /// Requests beyond the new end are in flight.
    Requests,
    /// Pages may list old content beyond the end, or the write-intent bitmap does not have the new size yet.
    Pages,
    /// The record is being written.
    Record { version: RecordVersion },
    /// The record says the new size; content beyond it is still cached.
    Beyond,
    /// That content is dropped, but pages may still list it.
    Forgotten,
}

impl Job {
    /// Whether the job may end without having done its work.
    pub fn may_be_cancelled(&self) -> bool {
        self.version.is_none()
            && match self.kind {
                JobKind::Clean { .. } => true,
                JobKind::Detach { loss, .. } => loss != Loss::Dropped,
                _ => false,
            }
    }

    /// Returns the size in sectors that the job gives the disk.
    pub fn resizes_to(&self) -> Option<u64> {
        match self.kind {
            JobKind::Resize { sectors, .. } => Some(sectors),
            _ => None,
        }
    }

    /// Whether the job can take another step without waiting.
    pub fn goes_on(&self) -> bool {
        self.kind == JobKind::Forget { goes_on: true }
    }

    /// Whether the job gives the disk to another host.
    pub fn hands_over(&self) -> bool {
        matches!(self.kind, JobKind::Freeze | JobKind::HandOver)
    }

    /// Whether the job needs everything staged to be committed.
    pub fn commits(&self) -> bool {
        match self.kind {
            JobKind::Detach { .. }
            | JobKind::Clean { .. }
            | JobKind::Resize { .. }
            | JobKind::GiveUpPeer { .. } => true,
            JobKind::Freeze => !planted(Bug::FreezeStaged),
            _ => false,
        }
    }
}

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
    Add { device: DeviceNo, version: RecordVersion },
    /// A device is being emptied.
    Drain { device: DeviceNo },
    /// The device leaves; dirty blocks may be lost with it.
    Gone { device: DeviceNo, lost: bool },
    /// Everything staged is being committed.
    Stop,
    /// The last record is being written.
    Stopped { version: RecordVersion },
}

/// The numbers of all jobs, and the jobs of the pool.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Number of the last job that was started.
    last: u32,
    /// The job of the pool that is running.
    pool: Option<PoolJob>,
    /// Stops that were requested and have not started.
    stops: VecDeque<JobId>,
}

impl Jobs {
    /// Returns the number of a new job.
    pub fn new_id(&mut self) -> JobId {
        self.last += 1;
        JobId(self.last)
    }

    /// Whether a job of the pool is running.
    pub fn is_pool_busy(&self) -> bool {
        self.pool.is_some()
    }

    /// Starts a job of the pool, or continues it with another step.
    pub fn run_pool(&mut self, job: PoolJob) {
        debug_assert!(self.pool.is_none(), "the pool has one job at a time");
        self.pool = Some(job);
    }

    /// Takes out the job of the pool to drive: the one that is running, or the next stop.
    #[inline]
    pub fn take_pool(&mut self) -> Option<PoolJob> {
        let stop = |id| PoolJob { id, kind: PoolJobKind::Stop };
        self.pool.take().or_else(|| self.stops.pop_front().map(stop))
    }

    /// Requests a stop of the pool.
    pub fn stop(&mut self, job: JobId) {
        self.stops.push_back(job);
    }

    /// Whether the last record is being written.
    pub fn is_final(&self) -> bool {
        self.pool.as_ref().is_some_and(|job| matches!(job.kind, PoolJobKind::Stopped { .. }))
    }

    /// Returns the device that is being emptied.
    pub fn empties(&self) -> Option<DeviceNo> {
        match self.pool.as_ref()?.kind {
            PoolJobKind::Drain { device } => Some(device),
            _ => None,
        }
    }

    /// Ends the removal of a device that is being emptied; returns its job and the device.
    pub fn cancel_removal(&mut self) -> Option<(JobId, DeviceNo)> {
        let device = self.empties()?;
        Some((self.pool.take()?.id, device))
    }

    /// Called when a device failed. If it was being emptied, it is now about to be gone.
    pub fn device_failed(&mut self, device: DeviceNo, lost: bool) {
        if self.empties() == Some(device)
            && let Some(job) = self.pool.as_mut()
        {
            job.kind = PoolJobKind::Gone { device, lost };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_waits_for_the_job_of_the_pool() {
        let mut jobs = Jobs::default();
        let (removal, stop) = (jobs.new_id(), jobs.new_id());
        let device = DeviceNo(1);
        jobs.run_pool(PoolJob { id: removal, kind: PoolJobKind::Drain { device } });
        jobs.stop(stop);
        let job = jobs.take_pool().expect("a job is running");
        assert!(job.id == removal);
        jobs.run_pool(job);
        assert_eq!(jobs.cancel_removal(), Some((removal, device)));
        assert!(jobs.take_pool().is_some_and(|job| job.id == stop && job.kind == PoolJobKind::Stop));
    }
}
