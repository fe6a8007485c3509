//! `haversack disk quiesce`: runs a command, such as one that takes a snapshot, while the origins of disks have
//! everything that the guest has written.
//!
//! Meanwhile the disks are in write-through mode, so their origins receive each write before it is acknowledged. A
//! flush before the command writes back what was dirty. With a guest agent, the guest's file systems are frozen as
//! well: a snapshot is then file-system consistent, and crash consistent without one.
//!
//! Invariants
//! - Whatever happens to this process, the guest is thawed and the write modes are restored: see `guard.rs`.
//! - The command runs only while the origins have everything. `quiesce` fails if any step fails.
//! - The guest is not frozen for longer than the limit plus the time it takes to thaw. `quiesce` fails if the guest was
//!   thawed before the command had ended.

mod guard;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{DiskChange, DiskStatus, Job, MigrationState, MigrationStatus, Mode, Span};
use haversack_model::{WriteMode, WriteThroughAck};
use haversack_qmp::GuestAgent;
use hyper::Method;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Client;
use crate::complete::Names;
use crate::error::{CliError, Result};
use crate::follow::{follow, is_done};
use crate::output::{self, Style, counted};
use crate::run::part;
use guard::Guard;

pub use guard::{GuardArguments, run as guard};

/// How often a job or the command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Timeout for the guest agent's answers, except to the freeze.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for cancelling a job of a daemon that may not answer.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);
/// The mode of quiesced disks.
const WRITE_THROUGH: Mode = Mode::Fixed(WriteMode::WriteThrough(WriteThroughAck::Origin));
/// The environment variable with the names of the disks.
const DISKS: &str = "HAVERSACK_DISKS";

/// See the fields' help texts.
#[derive(Args)]
pub struct Quiesce {
    /// Disks, usually all disks of a VM.
    #[arg(required = true, add = Names::AttachedDisks)]
    disks: Vec<String>,
    /// Freeze the guest's file systems while the command runs: socket of the guest agent's character device
    /// (org.qemu.guest_agent.0).
    #[arg(long, value_name = "SOCKET")]
    guest_agent: Option<PathBuf>,
    /// Maximum time that the guest is frozen and the command runs. After that, the command is killed.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    limit: Span,
    /// Command and its arguments, after '--'. The environment variable HAVERSACK_DISKS contains the names of the disks.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// SIGINT, SIGTERM and SIGHUP, which cancel a quiesce.
struct Signals([Signal; 3]);

impl Signals {
    fn new(client: &Client) -> Result<Signals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let failed = |e: std::io::Error| CliError::Failed(format!("cannot handle signals: {e}"));
        let [interrupt, terminate, hangup] = client.block_on(async { kinds.map(signal) });
        Ok(Signals([interrupt.map_err(failed)?, terminate.map_err(failed)?, hangup.map_err(failed)?]))
    }

    /// Waits for a signal.
    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Waits for `time`. Returns an error if a signal arrives.
    async fn pause(&mut self, time: Duration) -> Result<()> {
        tokio::select! {
            biased;
            () = self.next() => Err(CliError::Cancelled),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }
}

/// Runs `haversack disk quiesce`.
pub fn run(client: &Client, quiesce: &Quiesce, style: Style) -> Result<()> {
    let modes = modes_to_restore(client, &quiesce.disks)?;
    if let Some(path) = &quiesce.guest_agent {
        GuestAgent::connect(path, AGENT_PATIENCE)?;
    }
    // In write-back mode, so that the guest does not wait for the origin during the long flush.
    flush_all(client, &quiesce.disks)?;
    let mut guard =
        Guard::start(client, quiesce.guest_agent.as_deref(), quiesce.limit, &quiesce.disks, &modes)?;
    let outcome = quiesced(client, quiesce, &modes, style.as_json, &mut guard);
    // New streams: a signal that was already handled must not end this wait.
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
    let frozen =
        frozen.map_or_else(String::new, |count| format!(", {} frozen", counted(count, "file system")));
    let text = format!("{}: quiesced for {:.2} s{frozen}\n", quiesce.disks.join(", "), time.as_secs_f64());
    style.print(&report, &text)
}

fn flush_all(client: &Client, disks: &[String]) -> Result<()> {
    for name in disks {
        let job: Job = client.call(Method::POST, &format!("{}/flush", path(name)?), None::<&()>)?;
        follow(client, job)?;
    }
    Ok(())
}

/// Returns the disks that may acknowledge writes before their origins have them, with their configured modes.
fn modes_to_restore(client: &Client, disks: &[String]) -> Result<Vec<(String, Mode)>> {
    let mut modes = Vec::new();
    for name in disks {
        let disk: DiskStatus = client.get(&path(name)?)?;
        let (Some(_), Some(config)) = (disk.mode, disk.config) else {
            return Err(CliError::Usage(format!("disk '{name}' is not attached: attach it first")));
        };
        if !disk.origin_up {
            let what = "the origin cannot be reached, so writes in write-through mode would fail";
            return Err(CliError::Failed(format!("disk '{name}': {what}; try again when it is reachable")));
        }
        if lacks_blocks(client, name)? {
            let what = "some of its blocks are still on the host that it came from";
            return Err(CliError::Failed(format!(
                "disk '{name}': {what}; wait until 'haversack migrate status {name}' shows 'here'"
            )));
        }
        let is_behind = match config.mode {
            // The policy may switch to write-back at any time.
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

/// Returns whether another host has blocks of a disk that its origin does not have. The request is refused for a disk
/// that does not move.
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

/// How long the disks were quiesced, and the number of frozen file systems.
type Quiesced = (Duration, Option<u64>);

/// Quiesces the disks and runs the command.
fn quiesced(
    client: &Client,
    quiesce: &Quiesce,
    modes: &[(String, Mode)],
    as_json: bool,
    guard: &mut Guard,
) -> Result<Quiesced> {
    // Another run may have restored the modes before this run's guard claimed the disks.
    if modes_to_restore(client, &quiesce.disks)? != modes {
        return Err(CliError::Failed("the write modes of the disks have just changed; try again".into()));
    }
    for (name, _) in modes {
        let change = DiskChange { mode: Some(WRITE_THROUGH), ..DiskChange::default() };
        let job: Job = client.call(Method::PATCH, &path(name)?, Some(&change))?;
        follow(client, job)?;
    }
    flush_all(client, &quiesce.disks)?;
    let mut signals = Signals::new(client)?;
    let began = Began { start: Instant::now(), limit: quiesce.limit };
    let frozen = match &quiesce.guest_agent {
        Some(path) => Some(freeze(path, &began, guard)?),
        None => None,
    };
    client.block_on(settled(client, &quiesce.disks, &began, &mut signals))?;
    check_modes(client, modes)?;
    let mut child = spawn(quiesce, as_json)?;
    let status = client.block_on(ended(&mut child, &began, &mut signals));
    if status.is_err() {
        // It may have exited in the meantime.
        let _ = child.kill();
        let _ = child.wait();
    }
    let status = status?;
    if !status.success() {
        return Err(CliError::Failed(format!("{}: {status}", command_name(quiesce))));
    }
    check_modes(client, modes)?;
    // After the limit the guard thaws the guest, even if this process was suspended.
    if began.left().is_zero() {
        return Err(too_long("the command", quiesce.limit));
    }
    Ok((began.start.elapsed(), frozen))
}

/// When the freeze began, and how long it may last.
struct Began {
    start: Instant,
    limit: Span,
}

impl Began {
    fn left(&self) -> Duration {
        self.limit.0.saturating_sub(self.start.elapsed())
    }
}

/// Returns an error if a disk is no longer in write-through mode. A restarted daemon uses the configured mode; one that
/// remembers write-through mode has used it throughout.
fn check_modes(client: &Client, modes: &[(String, Mode)]) -> Result<()> {
    for (name, _) in modes {
        let disk: DiskStatus = client.get(&path(name)?)?;
        if disk.mode != Some(WRITE_THROUGH) {
            let mode = disk.mode.map_or_else(|| "not attached".into(), |mode| format!("in mode {mode}"));
            return Err(CliError::Failed(format!(
                "disk '{name}' is now {mode}: the daemon was restarted, or somebody changed the mode. Writes may be missing from \
                 the result of the command; try again"
            )));
        }
    }
    Ok(())
}

/// Freezes the guest, and closes the connection to the agent, so that the guard can connect.
fn freeze(path: &Path, began: &Began, guard: &mut Guard) -> Result<u64> {
    guard.freezing()?;
    let mut agent = GuestAgent::connect(path, AGENT_PATIENCE.min(began.left()))?;
    let count = agent.freeze(began.left())?;
    if count == 0 {
        return Err(CliError::Failed(format!("{}: the guest agent froze no file systems", path.display())));
    }
    guard.frozen(count)?;
    Ok(count)
}

fn too_long(what: &str, limit: Span) -> CliError {
    CliError::Failed(format!("{what} did not finish within {limit} (--limit)"))
}

/// Flushes the disks. Cancels the flush when the limit is reached.
async fn settled(client: &Client, disks: &[String], began: &Began, signals: &mut Signals) -> Result<()> {
    for name in disks {
        let mut running = None;
        let flush = flushed(client, name, signals, &mut running);
        let outcome = tokio::time::timeout(began.left(), flush)
            .await
            .unwrap_or_else(|_| Err(too_long("the flush", began.limit)));
        if let (Err(_), Some(job)) = (&outcome, running) {
            // The guard retries until the job has ended.
            let cancel = format!("/v1/jobs/{job}");
            let _ = tokio::time::timeout(CANCEL_PATIENCE, client.ask::<Job>(Method::DELETE, &cancel)).await;
        }
        outcome?;
    }
    Ok(())
}

/// Flushes a disk. Stores the number of the job in `running`.
async fn flushed(
    client: &Client,
    name: &str,
    signals: &mut Signals,
    running: &mut Option<u64>,
) -> Result<()> {
    let mut job: Job = client.ask(Method::POST, &format!("{}/flush", path(name)?)).await?;
    *running = Some(job.id);
    while !is_done(&job)? {
        signals.pause(LOOK_EVERY).await?;
        job = client.ask(Method::GET, &format!("/v1/jobs/{}", job.id)).await?;
    }
    Ok(())
}

/// Waits until the command exits. Returns an error when the limit is reached.
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
        // Stdout is for the JSON report.
        command.stdout(std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    }
    command.stdin(Stdio::null()).spawn().map_err(failed)
}
