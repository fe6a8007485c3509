//! Waiting for a job: progress, time left, Ctrl-C.

use std::time::Duration;

use haversack_api::{Job, JobState};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::Client;
use crate::error::{CliError, Result};

/// How often the daemon is polled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits for a job to end. The first Ctrl-C asks the daemon to cancel it; after a second one the command does
/// not wait any longer.
pub fn follow(client: &Client, job: Job) -> Result<Job> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} blocks");
    bar.set_style(style.map_err(|e| CliError::Failed(e.to_string()))?);
    let job = client.block_on(wait(client, job, &bar));
    bar.finish_and_clear();
    let job = job?;
    is_done(&job)?;
    Ok(job)
}

/// Returns whether a job is done, or still runs.
///
/// # Errors
/// It has failed or was cancelled.
pub fn is_done(job: &Job) -> Result<bool> {
    match job.state {
        JobState::Running => Ok(false),
        JobState::Done => Ok(true),
        JobState::Failed => Err(CliError::Job(job.error.clone().unwrap_or_else(|| "the job failed".into()))),
        JobState::Cancelled => Err(CliError::Cancelled),
    }
}

async fn wait(client: &Client, mut job: Job, bar: &ProgressBar) -> Result<Job> {
    let path = format!("/v1/jobs/{}", job.id);
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|e| CliError::Failed(format!("cannot handle Ctrl-C: {e}")))?;
    let mut cancelling = false;
    while job.state == JobState::Running {
        let look = async {
            tokio::time::sleep(LOOK_EVERY).await;
            client.ask::<Job>(Method::GET, &path).await
        };
        tokio::select! {
            looked = look => job = looked?,
            Some(()) = interrupts.recv() => {
                if std::mem::replace(&mut cancelling, true) {
                    return Err(CliError::Left(job.id));
                }
                bar.suspend(|| eprintln!("cancelling; press Ctrl-C again to stop waiting"));
                job = client.ask(Method::DELETE, &path).await?;
            }
        }
        show(bar, &job);
    }
    Ok(job)
}

fn show(bar: &ProgressBar, job: &Job) {
    if let (Some(done), Some(total)) = (job.done_blocks, job.total_blocks) {
        let left = job.eta_s.map_or(String::new(), |s| format!(", {s:.0} s left"));
        bar.set_message(format!("{}{left}", job.subject));
        bar.set_length(total);
        bar.set_position(done);
    }
}
