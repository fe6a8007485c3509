//! `haversack disk quiesce`: runs a command, such as one that takes a snapshot, while the origins of disks have everything
//! that the guest has written.
//!
//! The disks are in write-through mode meanwhile, so their origins have each write before it is acknowledged, and a flush before
//! the command brings what was dirty. With a guest agent the guest's file systems are frozen, too: then the origins have what the
//! guest would find after a clean unmount, and without one what it would find after a power failure.
//!
//! Invariants
//! - Whatever happens to this process, the guest is thawed and the disks get their write modes back: see `guard.rs`.
//! - The command runs only when the origins have everything. If anything fails, so does this.
//! - The guest is frozen no longer than the limit, and the time that it takes to thaw it.

mod guard;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{DiskChange, DiskStatus, Job, JobState, Mode, Span};
use haversack_model::{WriteMode, WriteThroughAck};
use haversack_qmp::GuestAgent;
use hyper::Method;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Client;
use crate::error::{CliError, Result};
use crate::follow::follow;
use crate::output;
use crate::run::part;
use guard::Guard;

pub use guard::{GuardArguments, run as guard};

/// How often a job or the command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long an agent may take to say that it is there.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a daemon that has not answered in time may take to cancel a job.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);
/// The environment variable with the names of the disks.
const DISKS: &str = "HAVERSACK_DISKS";

/// See the fields' help texts.
#[derive(Args)]
pub struct Quiesce {
    /// All disks of a VM, or some.
    #[arg(required = true)]
    disks: Vec<String>,
    /// Socket of the guest agent: of QEMU's character device for org.qemu.guest_agent.0. The guest's file systems are frozen
    /// while the command runs.
    #[arg(long, value_name = "SOCKET")]
    guest_agent: Option<PathBuf>,
    /// How long the guest may be frozen, and the command may run. Then the command is killed.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    limit: Span,
    /// Command and its arguments, after '--'. HAVERSACK_DISKS in its environment has the names of the disks.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Signals that end the command early.
struct Signals([Signal; 3]);

impl Signals {
    fn new(client: &Client) -> Result<Signals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let failed = |e: std::io::Error| CliError::Failed(format!("cannot handle signals: {e}"));
        let [interrupt, terminate, hangup] = client.block_on(async { kinds.map(signal) });
        Ok(Signals([interrupt.map_err(failed)?, terminate.map_err(failed)?, hangup.map_err(failed)?]))
    }

    /// Waits for one.
    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Waits for `time`. Fails if there is a signal.
    async fn pause(&mut self, time: Duration) -> Result<()> {
        tokio::select! {
            biased;
            () = self.next() => Err(CliError::Cancelled),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }
}

/// Runs `haversack disk quiesce`.
pub fn run(client: &Client, quiesce: &Quiesce, as_json: bool) -> Result<()> {
    let mut signals = Signals::new(client)?;
    let modes = modes_to_restore(client, &quiesce.disks)?;
    if let Some(path) = &quiesce.guest_agent {
        GuestAgent::connect(path, AGENT_PATIENCE)?;
    }
    let guard = Guard::start(client, quiesce.guest_agent.as_deref(), &modes)?;
    let outcome = quiesced(client, quiesce, &modes, as_json, &mut signals);
    let time = match &outcome {
        Ok((start, _)) | Err((Some(start), _)) => start.elapsed(),
        Err((None, _)) => Duration::ZERO,
    };
    let restored = guard.end(client, &mut signals);
    let frozen = match (outcome, restored) {
        (Ok((_, frozen)), Ok(())) => frozen,
        (Err((_, error)), Ok(())) | (Ok(_), Err(error)) => return Err(error),
        (Err((_, first)), Err(error)) => {
            output::say(&format!("haversack: {first}"));
            return Err(error);
        }
    };
    let report = json!({
        "disks": quiesce.disks, "quiesced_s": time.as_secs_f64(), "frozen_file_systems": frozen,
    });
    let frozen = match frozen {
        Some(1) => ", 1 file system frozen".into(),
        Some(count) => format!(", {count} file systems frozen"),
        None => String::new(),
    };
    let text = format!("{}: quiesced for {:.2} s{frozen}\n", quiesce.disks.join(", "), time.as_secs_f64());
    output::print(as_json, &report, &text)
}

/// Returns the disks that may acknowledge writes which their origins do not have, and the modes that they are configured with.
fn modes_to_restore(client: &Client, disks: &[String]) -> Result<Vec<(String, Mode)>> {
    let mut modes = Vec::new();
    for name in disks {
        let disk: DiskStatus = client.get(&path(name)?)?;
        let (Some(_), Some(config)) = (disk.mode, disk.config) else {
            return Err(CliError::Usage(format!("disk '{name}' is not attached: attach it first")));
        };
        let is_behind = match config.mode {
            // The policy may choose write-back at any time.
            Mode::Auto => true,
            Mode::Fixed(mode) => {
                matches!(mode, WriteMode::WriteBack | WriteMode::WriteThrough(WriteThroughAck::Cache))
            }
        };
        if is_behind {
            modes.push((name.clone(), config.mode));
        }
    }
    Ok(modes)
}

fn path(disk: &str) -> Result<String> {
    Ok(format!("/v1/disks/{}", part(disk)?))
}

/// When the guest was frozen or the command started, and how many file systems were frozen.
type Quiesced = (Instant, Option<u64>);

/// Quiesces the disks and runs the command. An error comes with the time of the freeze, if it came to that.
fn quiesced(
    client: &Client,
    quiesce: &Quiesce,
    modes: &[(String, Mode)],
    as_json: bool,
    signals: &mut Signals,
) -> std::result::Result<Quiesced, (Option<Instant>, CliError)> {
    let before = |error| (None, error);
    for (name, _) in modes {
        let mode = Mode::Fixed(WriteMode::WriteThrough(WriteThroughAck::Origin));
        let change = DiskChange { mode: Some(mode), ..DiskChange::default() };
        let job: Job =
            path(name).and_then(|path| client.call(Method::PATCH, &path, Some(&change))).map_err(before)?;
        follow(client, job).map_err(before)?;
    }
    // Most of the work, while the guest still runs.
    for name in &quiesce.disks {
        let job = flush(client, name).map_err(before)?;
        follow(client, job).map_err(before)?;
    }
    client.block_on(signals.pause(Duration::ZERO)).map_err(before)?;
    let start = Instant::now();
    let after = |error| (Some(start), error);
    let deadline = start + quiesce.limit.0;
    let frozen = match &quiesce.guest_agent {
        Some(path) => Some(frozen(path, quiesce.limit.0).map_err(after)?),
        None => None,
    };
    for name in &quiesce.disks {
        let job = flush(client, name).map_err(after)?;
        client.block_on(settled(client, job, deadline, quiesce.limit, signals)).map_err(after)?;
    }
    let mut child = spawn(quiesce, as_json).map_err(after)?;
    let status = client.block_on(ended(&mut child, deadline, quiesce.limit, signals));
    if status.is_err() {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    match status.map_err(after)? {
        status if status.success() => Ok((start, frozen)),
        status => Err(after(CliError::Failed(format!("{}: {status}", command_name(quiesce))))),
    }
}

fn flush(client: &Client, disk: &str) -> Result<Job> {
    client.call(Method::POST, &format!("{}/flush", path(disk)?), None::<&()>)
}

/// Freezes the guest. The agent is free for the guard afterwards.
fn frozen(path: &Path, limit: Duration) -> Result<u64> {
    Ok(GuestAgent::connect(path, AGENT_PATIENCE.min(limit))?.freeze(limit)?)
}

fn too_long(what: &str, limit: Span) -> CliError {
    CliError::Failed(format!("{what} has not ended within {limit}; see --limit"))
}

/// Waits for a job until the deadline, and cancels it then.
async fn settled(
    client: &Client,
    mut job: Job,
    deadline: Instant,
    limit: Span,
    signals: &mut Signals,
) -> Result<()> {
    let path = format!("/v1/jobs/{}", job.id);
    let waited = async {
        loop {
            match job.state {
                JobState::Running => signals.pause(LOOK_EVERY).await?,
                JobState::Done => return Ok(()),
                JobState::Cancelled => return Err(CliError::Cancelled),
                JobState::Failed => {
                    return Err(CliError::Job(job.error.unwrap_or_else(|| "the job failed".into())));
                }
            }
            job = client.ask(Method::GET, &path).await?;
        }
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let outcome =
        tokio::time::timeout(left, waited).await.unwrap_or_else(|_| Err(too_long("the flush", limit)));
    if outcome.is_err() {
        // If this fails, the guard waits for the job.
        let _ = tokio::time::timeout(CANCEL_PATIENCE, client.ask::<Job>(Method::DELETE, &path)).await;
    }
    outcome
}

/// Waits for the end of the command until the deadline.
async fn ended(
    child: &mut Child,
    deadline: Instant,
    limit: Span,
    signals: &mut Signals,
) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().map_err(|e| CliError::Failed(e.to_string()))? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Err(too_long("the command", limit));
        }
        signals.pause(LOOK_EVERY).await?;
    }
}

fn command_name(quiesce: &Quiesce) -> String {
    quiesce.command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn spawn(quiesce: &Quiesce, as_json: bool) -> Result<Child> {
    let failed = |e: std::io::Error| CliError::Failed(format!("{}: cannot run: {e}", command_name(quiesce)));
    let Some((program, arguments)) = quiesce.command.split_first() else {
        return Err(CliError::Usage("give a command after '--'".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments).env(DISKS, quiesce.disks.join(" "));
    if as_json {
        // What is on stdout is JSON.
        command.stdout(std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    }
    command.stdin(Stdio::null()).spawn().map_err(failed)
}
