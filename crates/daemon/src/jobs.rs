//! Management jobs: each runs on its own thread, reports its progress, and may be cancelled.
//!
//! Invariants
//! - A job that has ended stays in the list until `KEPT` later ones have ended.
//! - A cancel request is passed on to the data path, which decides whether the job can still be stopped.
//! - A job whose work panics has failed: nobody waits for it for ever.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::{Job, JobKind, JobState};
use haversack_core::Progress;

use crate::backend::StartedJob;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::part;

/// The number of ended jobs kept.
const KEPT: usize = 256;
/// How often a job's progress is polled.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A job as its own thread sees it.
#[derive(Clone)]
pub struct JobControl {
    entry: Arc<Entry>,
}

struct Entry {
    id: u64,
    kind: JobKind,
    subject: String,
    started: Instant,
    cancel: AtomicBool,
    changing: Mutex<Changing>,
}

#[derive(Default)]
struct Changing {
    progress: Option<Progress>,
    end: Option<(Duration, Option<DaemonError>)>,
}

impl JobControl {
    /// Returns whether cancelling the job was requested.
    pub fn is_cancelled(&self) -> bool {
        self.entry.cancel.load(Ordering::Relaxed)
    }

    /// Reports how far the job is.
    pub fn report(&self, progress: Progress) {
        self.entry.changing.locked().progress = Some(progress);
    }

    /// Waits for a job of the data path. Reports the job's progress, and forwards a request to cancel to the job.
    ///
    /// # Errors
    /// The job failed.
    pub fn follow(&self, job: &StartedJob) -> Result<()> {
        let mut asked = false;
        loop {
            if job.wait_for(LOOK_EVERY)?.is_some() {
                return Ok(());
            }
            if let Some(progress) = job.progress() {
                self.entry.changing.locked().progress = Some(progress);
            }
            if self.is_cancelled() && !asked {
                asked = true;
                if !job.cancel() {
                    tracing::info!(job = self.entry.id, "too late to cancel the job");
                }
            }
        }
    }
}

impl Entry {
    fn describe(&self) -> Job {
        let changing = self.changing.locked();
        let (state, elapsed, error) = match &changing.end {
            None => (JobState::Running, self.started.elapsed(), None),
            Some((time, None)) => (JobState::Done, *time, None),
            Some((time, Some(error))) if error.is_cancelled() => (JobState::Cancelled, *time, None),
            Some((time, Some(error))) => (JobState::Failed, *time, Some(error.to_string())),
        };
        let elapsed_s = elapsed.as_secs_f64();
        let progress = changing.progress;
        Job {
            id: self.id,
            kind: self.kind,
            subject: self.subject.clone(),
            state,
            done_blocks: progress.map(|p| p.done_blocks),
            total_blocks: progress.map(|p| p.total_blocks),
            elapsed_s,
            eta_s: progress.filter(|_| state == JobState::Running).and_then(|p| eta_s(p, elapsed_s)),
            error,
        }
    }
}

/// Estimates the seconds left at the average speed so far.
fn eta_s(progress: Progress, elapsed_s: f64) -> Option<f64> {
    let left = progress.total_blocks.saturating_sub(progress.done_blocks);
    (progress.done_blocks > 0).then(|| elapsed_s * left as f64 / progress.done_blocks as f64)
}

/// All jobs.
#[derive(Default)]
pub struct Jobs {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    last: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
}

impl Jobs {
    /// Starts a job.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        &self,
        kind: JobKind,
        subject: &str,
        work: impl FnOnce(&JobControl) -> Result<()> + Send + 'static,
    ) -> Result<Job> {
        let entry = self.add(kind, subject);
        let control = JobControl { entry: entry.clone() };
        let run = move || {
            let error = part::caught(|| work(&control)).err();
            let entry = &control.entry;
            if let Some(error) = &error {
                tracing::warn!(job = entry.id, kind = ?entry.kind, subject = entry.subject, "job ended: {error}");
            }
            entry.changing.locked().end = Some((entry.started.elapsed(), error));
        };
        let thread = std::thread::Builder::new().name(format!("job-{}", entry.id)).spawn(run);
        if let Err(error) = thread {
            self.list.locked().entries.remove(&entry.id);
            return Err(DaemonError::conflict(
                format!("cannot start a thread for a job: {error}"),
                "try again later",
            ));
        }
        Ok(entry.describe())
    }

    fn add(&self, kind: JobKind, subject: &str) -> Arc<Entry> {
        let mut list = self.list.locked();
        let ended: Vec<u64> =
            list.entries.values().filter(|e| e.changing.locked().end.is_some()).map(|e| e.id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(KEPT)) {
            list.entries.remove(id);
        }
        list.last += 1;
        let entry = Arc::new(Entry {
            id: list.last,
            kind,
            subject: subject.to_string(),
            started: Instant::now(),
            cancel: AtomicBool::new(false),
            changing: Mutex::default(),
        });
        list.entries.insert(entry.id, entry.clone());
        entry
    }

    fn entry(&self, id: u64) -> Result<Arc<Entry>> {
        let list = self.list.locked();
        list.entries
            .get(&id)
            .cloned()
            .ok_or_else(|| DaemonError::NoSuch { what: "job", name: id.to_string() })
    }

    /// Returns all jobs, oldest first.
    pub fn list(&self) -> Vec<Job> {
        self.list.locked().entries.values().map(|entry| entry.describe()).collect()
    }

    /// Returns a job.
    ///
    /// # Errors
    /// There is no job of that number.
    pub fn get(&self, id: u64) -> Result<Job> {
        Ok(self.entry(id)?.describe())
    }

    fn running(&self, kind: JobKind, subject: &str) -> Vec<Arc<Entry>> {
        let is_it = |entry: &&Arc<Entry>| {
            entry.kind == kind && entry.subject == subject && entry.changing.locked().end.is_none()
        };
        self.list.locked().entries.values().filter(is_it).cloned().collect()
    }

    /// Returns whether a job of this kind is running.
    pub fn is_running(&self, kind: JobKind, subject: &str) -> bool {
        !self.running(kind, subject).is_empty()
    }

    /// Asks all jobs of this kind to stop. Returns whether there were any.
    pub fn cancel_of(&self, kind: JobKind, subject: &str) -> bool {
        let running = self.running(kind, subject);
        running.iter().for_each(|entry| entry.cancel.store(true, Ordering::Relaxed));
        !running.is_empty()
    }

    /// Waits until a job has ended.
    ///
    /// # Errors
    /// It failed, with its message, or has not ended within `patience`, or there is no such job.
    pub fn wait(&self, id: u64, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let job = self.get(id)?;
            match job.state {
                JobState::Running if Instant::now() >= deadline => {
                    let what = format!("job {id} has not ended after {} s", patience.as_secs());
                    return Err(DaemonError::conflict(
                        what,
                        "see the log for what it waits for, and try again",
                    ));
                }
                JobState::Running => std::thread::sleep(LOOK_EVERY),
                JobState::Done => return Ok(()),
                JobState::Failed | JobState::Cancelled => {
                    let what = job.error.unwrap_or_else(|| "cancelled".into());
                    return Err(DaemonError::conflict(what, "try again"));
                }
            }
        }
    }

    /// Asks a job to stop.
    ///
    /// # Errors
    /// There is no job of that number.
    pub fn cancel(&self, id: u64) -> Result<Job> {
        let entry = self.entry(id)?;
        entry.cancel.store(true, Ordering::Relaxed);
        Ok(entry.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_so_far_tells_the_end() {
        assert_eq!(eta_s(Progress { done_blocks: 0, total_blocks: 10 }, 5.0), None);
        assert_eq!(eta_s(Progress { done_blocks: 5, total_blocks: 20 }, 5.0), Some(15.0));
    }

    #[test]
    fn a_job_ends_as_its_work_does() {
        let jobs = Jobs::default();
        let fails = jobs.start(JobKind::Flush, "vm1", |_| Err(DaemonError::Bad("no".into()))).unwrap();
        let works = jobs.start(JobKind::Flush, "vm1", |_| Ok(())).unwrap();
        let ended = |id| loop {
            match jobs.get(id).unwrap() {
                job if job.state == JobState::Running => std::thread::yield_now(),
                job => break job,
            }
        };
        assert_eq!((ended(fails.id).state, ended(fails.id).error.as_deref()), (JobState::Failed, Some("no")));
        assert_eq!(ended(works.id).state, JobState::Done);
        assert_eq!(jobs.list().len(), 2);
        assert!(jobs.get(99).unwrap_err().to_string().contains("99"));
    }

    #[test]
    fn nobody_waits_longer_for_a_job_than_its_patience() {
        let jobs = Jobs::default();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let hang = move |_: &_| {
            let _ = ends.recv();
            Ok(())
        };
        let hangs = jobs.start(JobKind::Flush, "vm1", hang).unwrap();
        let refused = jobs.wait(hangs.id, Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("has not ended"), "{refused}");
        drop(end);
        assert!(jobs.wait(hangs.id, Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn a_job_that_panics_has_failed() {
        let jobs = Jobs::default();
        let panics = jobs.start(JobKind::Flush, "vm1", |_| panic!("broken")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while jobs.is_running(JobKind::Flush, "vm1") {
            assert!(Instant::now() < deadline, "the job never ends");
            std::thread::yield_now();
        }
        assert!(jobs.wait(panics.id, Duration::from_secs(10)).unwrap_err().to_string().contains("broken"));
    }
}
