//! Running management jobs. A job of a pool has one part in each arena that it concerns.

use std::cell::Cell;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use haversack_core::{JobError, JobId, Progress};

use crate::arena::ArenaHandle;
use crate::error::Result;

/// A job, or part of one, that one arena runs.
pub(crate) struct JobPart {
    pub handle: ArenaHandle,
    pub id: JobId,
    pub end: mpsc::Receiver<std::result::Result<(), JobError>>,
}

impl JobPart {
    fn wait_for(&self, time: Option<Duration>) -> Result<Option<()>> {
        let end = match time {
            Some(time) => self.end.recv_timeout(time),
            None => self.end.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match end {
            Ok(end) => Ok(Some(end?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.handle.stopped()),
        }
    }

    fn progress(&self) -> Result<Option<Progress>> {
        let id = self.id;
        self.handle.run(move |reactor| reactor.progress(id))
    }

    fn cancel(&self) -> Result<bool> {
        let id = self.id;
        self.handle.run(move |reactor| reactor.cancel(id))
    }
}

/// A running management job.
pub struct Job {
    parts: Vec<JobPart>,
    /// The parts before this one have ended well.
    ended: Cell<usize>,
}

impl Job {
    /// A job that one arena runs.
    pub(crate) fn of(part: JobPart) -> Job {
        Job { parts: vec![part], ended: Cell::new(0) }
    }

    /// Makes one job of several. It ends when all of them have ended, or when one has failed.
    pub(crate) fn all(jobs: Vec<Job>) -> Job {
        Job { parts: jobs.into_iter().flat_map(|job| job.parts).collect(), ended: Cell::new(0) }
    }

    /// Waits until the job ends.
    ///
    /// # Errors
    /// The job failed, or the pool has stopped.
    pub fn wait(self) -> Result<()> {
        self.parts[self.ended.get()..].iter().try_for_each(|part| part.wait_for(None).map(drop))
    }

    /// Waits at most `time` for the job to end; `None` if it has not ended by then.
    ///
    /// # Errors
    /// The job failed, or the pool has stopped.
    pub fn wait_for(&self, time: Duration) -> Result<Option<()>> {
        while let Some(part) = self.parts.get(self.ended.get()) {
            if part.wait_for(Some(time))?.is_none() {
                return Ok(None);
            }
            self.ended.set(self.ended.get() + 1);
        }
        Ok(Some(()))
    }

    /// Returns the job's progress, if it reports any.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn progress(&self) -> Result<Option<Progress>> {
        let mut total: Option<Progress> = None;
        for part in &self.parts {
            if let Some(part) = part.progress()? {
                let sum = total.get_or_insert_default();
                sum.done_blocks += part.done_blocks;
                sum.total_blocks += part.total_blocks;
            }
        }
        Ok(total)
    }

    /// Stops a job that cleans; what is already clean stays clean. Returns false if it can no longer be
    /// stopped.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn cancel(&self) -> Result<bool> {
        let mut cancelled = false;
        for part in &self.parts {
            cancelled |= part.cancel()?;
        }
        Ok(cancelled)
    }
}
