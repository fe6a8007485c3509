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
//! - The guest is frozen no longer than the limit, and the time that it takes to thaw it. What was thawed early is no success.

mod guard;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{
    DiskChange, DiskStatus, Job, JobState, MigrationState, MigrationStatus, Mode, Span, Status,
};
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
/// The mode of quiesced disks: origins have each write before it is acknowledged.
const WRITE_THROUGH: Mode = Mode::Fixed(WriteMode::WriteThrough(WriteThroughAck::Origin));
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
    let modes = modes_to_restore(client, &quiesce.disks)?;
    if let Some(path) = &quiesce.guest_agent {
        GuestAgent::connect(path, AGENT_PATIENCE)?;
    }
    // While the guest runs, and before anything is changed: the origin may not keep up.
    flush_all(client, &quiesce.disks)?;
    let mut guard =
        Guard::start(client, quiesce.guest_agent.as_deref(), quiesce.limit, &quiesce.disks, &modes)?;
    let outcome = quiesced(client, quiesce, &modes, as_json, &mut guard);
    // A signal that was acted on is not to end this wait.
    let restored = guard.end(client, &mut Signals::new(client)?);
    let (time, frozen) = match (outcome, restored) {
        (Ok(quiesced), Ok(())) => quiesced,
        (Err(error), Ok(())) | (Ok(_), Err(error)) => return Err(error),
        (Err(first), Err(error)) => {
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

fn flush_all(client: &Client, disks: &[String]) -> Result<()> {
    for name in disks {
        let job: Job = client.call(Method::POST, &format!("{}/flush", path(name)?), None::<&()>)?;
        follow(client, job)?;
    }
    Ok(())
}

/// Returns the disks that may acknowledge writes which their origins do not have, and the modes that they are configured with.
fn modes_to_restore(client: &Client, disks: &[String]) -> Result<Vec<(String, Mode)>> {
    let mut modes = Vec::new();
    for name in disks {
        let disk: DiskStatus = client.get(&path(name)?)?;
        let (Some(_), Some(config)) = (disk.mode, disk.config) else {
            return Err(CliError::Usage(format!("disk '{name}' is not attached: attach it first")));
        };
        if !disk.origin_up {
            let what = "its origin cannot be reached, and would have to take every write";
            return Err(CliError::Failed(format!("disk '{name}': {what}; try again when it is back")));
        }
        if lacks_blocks(client, name)? {
            let what = "blocks of it are still on the host that it came from";
            return Err(CliError::Failed(format!(
                "disk '{name}': {what}; see haversack migrate status {name}"
            )));
        }
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

/// Whether another host has blocks of a disk that its origin lacks. A disk that does not move has none.
fn lacks_blocks(client: &Client, name: &str) -> Result<bool> {
    match client.get::<MigrationStatus>(&format!("{}/migration", path(name)?)) {
        Ok(status) => Ok(!matches!(status.state, MigrationState::Here | MigrationState::Sending)),
        Err(CliError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn path(disk: &str) -> Result<String> {
    Ok(format!("/v1/disks/{}", part(disk)?))
}

/// How long the command and what had to be frozen for it took, and how many file systems were frozen.
type Quiesced = (Duration, Option<u64>);

/// Quiesces the disks and runs the command.
fn quiesced(
    client: &Client,
    quiesce: &Quiesce,
    modes: &[(String, Mode)],
    as_json: bool,
    guard: &mut Guard,
) -> Result<Quiesced> {
    // Another one may have ended before this one's guard was alone.
    if modes_to_restore(client, &quiesce.disks)? != modes {
        return Err(CliError::Failed(
            "the write modes of the disks have just been changed: run this again".into(),
        ));
    }
    for (name, _) in modes {
        let change = DiskChange { mode: Some(WRITE_THROUGH), ..DiskChange::default() };
        let job: Job = client.call(Method::PATCH, &path(name)?, Some(&change))?;
        follow(client, job)?;
    }
    flush_all(client, &quiesce.disks)?;
    let mut signals = Signals::new(client)?;
    let began = Began { start: Instant::now(), daemon_uptime_s: uptime_s(client)?, limit: quiesce.limit };
    let frozen = match &quiesce.guest_agent {
        Some(path) => Some(freeze(path, &began, guard)?),
        None => None,
    };
    client.block_on(settled(client, &quiesce.disks, &began, &mut signals))?;
    still_quiesced(client, modes, &began)?;
    let mut child = spawn(quiesce, as_json)?;
    let status = client.block_on(ended(&mut child, &began, &mut signals));
    if status.is_err() {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    let status = status?;
    if !status.success() {
        return Err(CliError::Failed(format!("{}: {status}", command_name(quiesce))));
    }
    still_quiesced(client, modes, &began)?;
    // From then on the guard thaws the guest, also if this process was stopped.
    if began.left().is_zero() {
        return Err(too_long("the command", quiesce.limit));
    }
    Ok((began.start.elapsed(), frozen))
}

/// When the guest began to be frozen, or would have.
struct Began {
    start: Instant,
    daemon_uptime_s: u64,
    limit: Span,
}

impl Began {
    fn left(&self) -> Duration {
        self.limit.0.saturating_sub(self.start.elapsed())
    }
}

fn uptime_s(client: &Client) -> Result<u64> {
    Ok(client.get::<Status>("/v1/status")?.uptime_s)
}

/// Fails unless the disks have been in write-through mode all the time: a daemon that was restarted has the modes of its
/// configuration.
fn still_quiesced(client: &Client, modes: &[(String, Mode)], began: &Began) -> Result<()> {
    if uptime_s(client)? < began.daemon_uptime_s {
        let what =
            "the daemon was restarted: writes may be missing from what the command has made; run this again";
        return Err(CliError::Failed(what.into()));
    }
    for (name, _) in modes {
        let disk: DiskStatus = client.get(&path(name)?)?;
        if disk.mode != Some(WRITE_THROUGH) {
            let mode = disk.mode.map_or_else(|| "not attached".into(), |mode| format!("in mode {mode}"));
            return Err(CliError::Failed(format!(
                "disk '{name}' is {mode} and not in write-through mode any more: writes may be missing from what the command has \
                 made; run this again"
            )));
        }
    }
    Ok(())
}

/// Freezes the guest. The agent is free for the guard afterwards.
fn freeze(path: &Path, began: &Began, guard: &mut Guard) -> Result<u64> {
    guard.freezing()?;
    let mut agent = GuestAgent::connect(path, AGENT_PATIENCE.min(began.left()))?;
    let count = agent.freeze(began.left())?;
    if count == 0 {
        return Err(CliError::Failed(format!(
            "{}: the guest agent has frozen no file system",
            path.display()
        )));
    }
    guard.frozen(count)?;
    Ok(count)
}

fn too_long(what: &str, limit: Span) -> CliError {
    CliError::Failed(format!("{what} has not ended within {limit}; see --limit"))
}

/// Flushes the disks until the limit, and cancels that then.
async fn settled(client: &Client, disks: &[String], began: &Began, signals: &mut Signals) -> Result<()> {
    for name in disks {
        let mut running = None;
        let flush = flushed(client, name, signals, &mut running);
        let outcome = tokio::time::timeout(began.left(), flush)
            .await
            .unwrap_or_else(|_| Err(too_long("the flush", began.limit)));
        if let (Err(_), Some(job)) = (&outcome, running) {
            // If this fails, the guard waits for the job.
            let cancel = format!("/v1/jobs/{job}");
            let _ = tokio::time::timeout(CANCEL_PATIENCE, client.ask::<Job>(Method::DELETE, &cancel)).await;
        }
        outcome?;
    }
    Ok(())
}

/// Flushes a disk. `running` is the number of the job.
async fn flushed(
    client: &Client,
    name: &str,
    signals: &mut Signals,
    running: &mut Option<u64>,
) -> Result<()> {
    let mut job: Job = client.ask(Method::POST, &format!("{}/flush", path(name)?)).await?;
    *running = Some(job.id);
    loop {
        match job.state {
            JobState::Running => signals.pause(LOOK_EVERY).await?,
            JobState::Done => return Ok(()),
            JobState::Cancelled => return Err(CliError::Cancelled),
            JobState::Failed => {
                return Err(CliError::Job(job.error.unwrap_or_else(|| "the job failed".into())));
            }
        }
        job = client.ask(Method::GET, &format!("/v1/jobs/{}", job.id)).await?;
    }
}

/// Waits for the end of the command until the limit.
async fn ended(child: &mut Child, began: &Began, signals: &mut Signals) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().map_err(|e| CliError::Failed(e.to_string()))? {
            return Ok(status);
        }
        if began.left().is_zero() {
            return Err(too_long("the command", began.limit));
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
