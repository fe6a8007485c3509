//! A process that outlives the one that quiesces disks: whatever becomes of that, this one thaws the guest and gives the disks
//! their write modes back.
//!
//! Invariants
//! - At most one guard of a daemon is at work on a disk, and at most one on a guest.
//! - It thaws only a guest that the process which has started it may have frozen.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{DiskChange, Job, JobState, Mode, Span};
use haversack_qmp::{AgentError, GuestAgent};
use hyper::Method;
use uuid::Uuid;

use super::{AGENT_PATIENCE, LOOK_EVERY, Signals, path};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output;

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a daemon may be away, or at work on a disk.
const DAEMON_PATIENCE: Duration = Duration::from_secs(600);
/// How much later than the limit the guest is thawed if the process that has frozen it does not do so: it may be stopped.
const GRACE: Duration = Duration::from_secs(2);
/// How long a guard may take to start.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What a guard says when it is there, alone for all that it was given.
const READY: &str = "ready";
/// What it is told before the guest is frozen, and with the number of file systems afterwards.
const FREEZING: &str = "freezing";
const FROZEN: &str = "frozen";

/// The arguments of a guard.
#[derive(Args)]
pub struct GuardArguments {
    #[arg(long)]
    guest_agent: Option<PathBuf>,
    #[arg(long)]
    limit: Span,
    /// All disks.
    #[arg(long = "disk")]
    disks: Vec<String>,
    /// Disks that get a mode back: NAME=MODE.
    #[arg(value_parser = mode)]
    modes: Vec<(String, Mode)>,
}

fn mode(text: &str) -> std::result::Result<(String, Mode), String> {
    let (name, mode) = text.split_once('=').ok_or("expected NAME=MODE")?;
    Ok((name.into(), mode.parse()?))
}

/// A guard. It begins its work when this is dropped.
pub struct Guard {
    child: Child,
    /// Prints what it reports.
    printer: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts one. Fails if another one is at work on the same disks or guest.
    pub fn start(
        client: &Client,
        guest_agent: Option<&Path>,
        limit: Span,
        disks: &[String],
        modes: &[(String, Mode)],
    ) -> Result<Guard> {
        let failed =
            |e: std::io::Error| CliError::Failed(format!("cannot start the guard of the guest: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--socket").arg(client.socket()).args(["disk", "guard", "--limit", &limit.to_string()]);
        if let Some(path) = guest_agent {
            command.arg("--guest-agent").arg(path);
        }
        for name in disks {
            command.args(["--disk", name]);
        }
        command.args(modes.iter().map(|(name, mode)| format!("{name}={mode}")));
        // Ctrl-C is for the command alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let (said, first) = std::sync::mpsc::channel();
        let printer = std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(std::result::Result::ok);
            // Nobody waits for it any more.
            let _ = said.send(lines.next().unwrap_or_default());
            lines.for_each(|line| output::say(&format!("haversack: {line}")));
        });
        let guard = Guard { child, printer: Some(printer) };
        match first.recv_timeout(START_PATIENCE) {
            Ok(line) if line == READY => Ok(guard),
            Ok(line) if !line.is_empty() => Err(CliError::Failed(line)),
            Ok(_) => Err(failed(ErrorKind::UnexpectedEof.into())),
            Err(_) => Err(failed(ErrorKind::TimedOut.into())),
        }
    }

    /// Tells it that the guest is about to be frozen.
    pub fn freezing(&mut self) -> Result<()> {
        self.tell(FREEZING)
    }

    /// Tells it how many file systems are frozen.
    pub fn frozen(&mut self, count: u64) -> Result<()> {
        self.tell(&format!("{FROZEN} {count}"))
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let written = self.child.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        written
            .transpose()
            .map(drop)
            .map_err(|e| CliError::Failed(format!("the guard of the guest has ended: {e}")))
    }

    /// Has it do its work, and waits for the end of that. A signal ends the wait.
    pub fn end(mut self, client: &Client, signals: &mut Signals) -> Result<()> {
        drop(self.child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|e| CliError::Failed(e.to_string()))? {
                break status;
            }
            client.block_on(signals.pause(LOOK_EVERY)).map_err(|_| {
                let process = self.child.id();
                CliError::Attention(format!("stopped waiting: process {process} goes on to thaw the guest"))
            })?;
        };
        if let Some(printer) = self.printer.take() {
            // It has nothing to return.
            let _ = printer.join();
        }
        if status.success() {
            return Ok(());
        }
        let what =
            "what the command has made may be incomplete, the guest frozen, or a disk in write-through mode";
        Err(CliError::Attention(format!("{what}: the guard has ended with {status}")))
    }
}

/// Is a guard: waits until the process that has started it ends or says so, and restores what that has changed.
pub fn run(client: &Client, arguments: &GuardArguments) -> Result<()> {
    // Signals that end all processes of a session or service are not to end this one.
    let _ignored = Signals::new(client)?;
    let _alone = match alone(client, arguments) {
        Ok(alone) => alone,
        Err(error) => {
            tell(&error.to_string());
            return Err(error);
        }
    };
    tell(READY);
    let frozen = wait(arguments.limit.0 + GRACE);
    let thawed = match (&arguments.guest_agent, frozen) {
        (Some(path), Some(count)) => thaw(path, count),
        _ => Ok(()),
    };
    let restored: Vec<_> = arguments.modes.iter().map(|(name, mode)| restore(client, name, *mode)).collect();
    thawed?;
    restored.into_iter().collect()
}

/// Claims the disks and the guest as long as the result lives. Names of sockets that have no file end with their process.
fn alone(client: &Client, arguments: &GuardArguments) -> Result<Vec<UnixListener>> {
    let socket = client.socket().display();
    let disks = arguments.disks.iter().map(|name| (format!("disk '{name}'"), format!("{socket} {name}")));
    let agent = arguments.guest_agent.iter().map(|path| {
        let path = path.display().to_string();
        (format!("the guest of {path}"), path)
    });
    let claim = |(what, name): (String, String)| {
        // Names have 107 bytes at most.
        let name = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
        SocketAddr::from_abstract_name(format!("haversack-quiesce-{name}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => CliError::Failed(format!("{what} is being quiesced already")),
                _ => CliError::Failed(format!("{what} cannot be claimed: {error}")),
            })
    };
    disks.chain(agent).map(claim).collect()
}

/// Waits until the process that has started this one ends or says so, and once the guest is being frozen no longer than
/// `most`. Returns how many file systems may be frozen.
fn wait(most: Duration) -> Option<u64> {
    let (said, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let (mut frozen, mut deadline) = (None, None);
    loop {
        let line = match deadline {
            None => lines.recv().ok(),
            Some(deadline) => {
                lines.recv_timeout(Instant::saturating_duration_since(&deadline, Instant::now())).ok()
            }
        };
        match line.as_deref().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
            Some((FREEZING, _)) => (frozen, deadline) = (Some(0), Some(Instant::now() + most)),
            Some((FROZEN, count)) => frozen = count.parse().ok().or(frozen),
            Some(_) => {}
            None => return frozen,
        }
    }
}

/// Reports to the process that has started this one, if that still listens.
fn tell(line: &str) {
    // It may have been killed.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Thaws the guest. Tries until it succeeds or QEMU is gone: nobody else would. Fails if the guest was not frozen all the time.
fn thaw(socket: &Path, frozen: u64) -> Result<()> {
    let (mut has_said, mut refusal) = (false, None);
    loop {
        let thawed =
            GuestAgent::connect(socket, AGENT_PATIENCE).and_then(|mut agent| agent.thaw(AGENT_PATIENCE));
        match thawed {
            Ok(count) if refusal.is_none() && count >= frozen => return Ok(()),
            Ok(count) => {
                let why =
                    refusal.unwrap_or_else(|| format!("{count} of {frozen} file systems were still frozen"));
                tell(&format!("{}: the guest has thawed itself: {why}", socket.display()));
                return Err(CliError::Failed(why));
            }
            Err(error) if error.is_gone() => {
                tell(&format!("{error}. If the guest was moved, thaw it where it is"));
                return Err(error.into());
            }
            Err(error) => {
                if !has_said {
                    tell(&format!("{error}. Retrying until the guest is thawed"));
                    has_said = true;
                }
                if matches!(error, AgentError::Refused { .. }) {
                    refusal = Some(error.to_string());
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Gives a disk its write mode back. Waits for a daemon that is away or at work on the disk.
fn restore(client: &Client, name: &str, mode: Mode) -> Result<()> {
    let deadline = Instant::now() + DAEMON_PATIENCE;
    let change = DiskChange { mode: Some(mode), ..DiskChange::default() };
    let mut has_said = false;
    loop {
        let error = match changed(client, name, &change) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let may_pass = match &error {
            CliError::Unreachable { .. }
            | CliError::Silent { .. }
            | CliError::Job(_)
            | CliError::Cancelled => true,
            // Being attached, or at work, or ending.
            CliError::Refused(body) => {
                ["busy", "conflict", "stopping", "pool-failed"].contains(&body.code.as_str())
            }
            _ => false,
        };
        if !may_pass || Instant::now() >= deadline {
            tell(&format!(
                "{error}. Disk '{name}' stays in write-through mode: haversack disk set {name} --mode {mode}"
            ));
            return Err(error);
        }
        if !has_said {
            tell(&format!("{error}. Retrying until disk '{name}' has its write mode back"));
            has_said = true;
        }
        std::thread::sleep(PAUSE);
    }
}

fn changed(client: &Client, name: &str, change: &DiskChange) -> Result<()> {
    let mut job: Job = client.call(Method::PATCH, &path(name)?, Some(change))?;
    loop {
        match job.state {
            JobState::Done => return Ok(()),
            JobState::Cancelled => return Err(CliError::Cancelled),
            JobState::Failed => {
                return Err(CliError::Job(job.error.unwrap_or_else(|| "the job failed".into())));
            }
            JobState::Running => std::thread::sleep(LOOK_EVERY),
        }
        job = client.get(&format!("/v1/jobs/{}", job.id))?;
    }
}
