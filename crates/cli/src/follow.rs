//! Waiting for a job: progress, time left, Ctrl-C.

use std::time::Duration;

use haversack_api::{Job, JobState};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::Client;
use crate::error::{CliError, Result};

/// How often the daemon is asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits for a job's end; the first Ctrl-C asks the daemon to cancel it.
pub fn follow(client: &Client, mut job: Job) -> Result<Job> {
    let path = format!("/v1/jobs/{}", job.id);
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} blocks");
    bar.set_style(style.map_err(|e| CliError::Failed(e.to_string()))?);
    while job.state == JobState::Running {
        if client.interrupted_within(LOOK_EVERY) {
            bar.suspend(|| eprintln!("cancelling"));
            client.send(Method::DELETE, &path, None::<&()>)?;
        }
        job = client.get(&path)?;
        if let (Some(done), Some(total)) = (job.done_blocks, job.total_blocks) {
            let left = job.eta_s.map_or(String::new(), |s| format!(", {s:.0} s left"));
            bar.set_message(format!("{}{left}", job.subject));
            bar.set_length(total);
            bar.set_position(done);
        }
    }
    bar.finish_and_clear();
    match job.state {
        JobState::Failed => Err(CliError::Job(job.error.unwrap_or_else(|| "the job failed".into()))),
        JobState::Cancelled => Err(CliError::Cancelled),
        JobState::Running | JobState::Done => Ok(job),
    }
}
