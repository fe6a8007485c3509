//! A process that outlives the one that quiesces disks: even if that one is killed, the guard thaws the guest and
//! restores the disks' write modes.
//!
//! Invariants
//! - There is at most one guard for each disk of a daemon, and for each guest.
//! - A guard thaws a guest only if the process that started the guard may have frozen it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{DiskChange, Job, Mode, Span};
use haversack_qmp::{AgentError, GuestAgent};
use hyper::Method;
use uuid::Uuid;

use super::{AGENT_PATIENCE, LOOK_EVERY, Signals, path};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::follow::is_done;
use crate::output;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the guard retries while the daemon is unreachable or a disk is busy.
const DAEMON_PATIENCE: Duration = Duration::from_secs(600);
/// How long after the limit the guard thaws the guest by itself: the process that froze it may be suspended.
const GRACE: Duration = Duration::from_secs(2);
/// Timeout for the start of a guard.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// A guard prints this line once it has claimed its disks and guest; any other first line is an error.
const READY: &str = "ready";
/// The line that a guard reads before the guest is frozen.
const FREEZING: &str = "freezing";
/// The word before the number of frozen file systems, once the guest is frozen.
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
    /// Disks whose mode is to be restored: NAME=MODE.
    #[arg(value_parser = mode)]
    modes: Vec<(String, Mode)>,
}

fn mode(text: &str) -> std::result::Result<(String, Mode), String> {
    let (name, mode) = text.split_once('=').ok_or("expected NAME=MODE")?;
    Ok((name.into(), mode.parse()?))
}

/// A running guard. It restores everything when this is dropped.
pub struct Guard {
    child: Child,
    /// Prints the guard's messages.
    printer: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts a guard. Returns an error if there is already a guard for one of the disks or the guest.
    pub fn start(
        client: &Client,
        guest_agent: Option<&Path>,
        limit: Span,
        disks: &[String],
        modes: &[(String, Mode)],
    ) -> Result<Guard> {
        let failed = |e: std::io::Error| CliError::Failed(format!("cannot start the guard process: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--socket").arg(client.socket()).args(["disk", "guard", "--limit", &limit.to_string()]);
        if let Some(path) = guest_agent {
            command.arg("--guest-agent").arg(path);
        }
        for name in disks {
            command.args(["--disk", name]);
        }
        command.args(modes.iter().map(|(name, mode)| format!("{name}={mode}")));
        // Its own process group, so that Ctrl-C does not reach it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let (said, first) = std::sync::mpsc::channel();
        let printer = std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(std::result::Result::ok);
            // The receiver is gone after the timeout.
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

    /// Reports that the guest is about to be frozen.
    pub fn freezing(&mut self) -> Result<()> {
        self.tell(FREEZING)
    }

    /// Reports the number of frozen file systems.
    pub fn frozen(&mut self, count: u64) -> Result<()> {
        self.tell(&format!("{FROZEN} {count}"))
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let written = self.child.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        written
            .transpose()
            .map(drop)
            .map_err(|e| CliError::Failed(format!("the guard process has ended: {e}")))
    }

    /// Has the guard restore everything and waits until it has. A signal ends the wait, not the guard.
    pub fn end(mut self, client: &Client, signals: &mut Signals) -> Result<()> {
        drop(self.child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|e| CliError::Failed(e.to_string()))? {
                break status;
            }
            client.block_on(signals.pause(LOOK_EVERY)).map_err(|_| {
                let process = self.child.id();
                CliError::Attention(format!(
                    "stopped waiting; process {process} keeps trying to thaw the guest"
                ))
            })?;
        };
        if let Some(printer) = self.printer.take() {
            // Its last messages must be printed before the error.
            let _ = printer.join();
        }
        if status.success() {
            return Ok(());
        }
        Err(CliError::Attention(format!(
            "the guard process failed ({status}, see above): do not use the result of the command, and check that the guest is \
             thawed and the disks have their write modes"
        )))
    }
}

/// Runs as a guard: waits until the process that started it exits or closes the pipe, then restores what that process
/// changed.
pub fn run(client: &Client, arguments: &GuardArguments) -> Result<()> {
    // Signals to all processes of a session or service must not end the guard.
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

/// Claims the disks and the guest while the result lives: an abstract socket's name is unique, and is free again when
/// its process ends.
fn alone(client: &Client, arguments: &GuardArguments) -> Result<Vec<UnixListener>> {
    let socket = client.socket().display();
    let disks = arguments.disks.iter().map(|name| (format!("disk '{name}'"), format!("{socket} {name}")));
    let agent = arguments.guest_agent.iter().map(|path| {
        let path = path.display().to_string();
        (format!("the guest of {path}"), path)
    });
    let claim = |(what, name): (String, String)| {
        // A name has at most 107 bytes.
        let name = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
        SocketAddr::from_abstract_name(format!("haversack-quiesce-{name}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => CliError::Failed(format!("{what} is already being quiesced")),
                _ => CliError::Failed(format!("{what} cannot be claimed: {error}")),
            })
    };
    disks.chain(agent).map(claim).collect()
}

/// Waits until the pipe from the starting process is closed, but no longer than `most` after the freeze began. Returns
/// the number of frozen file systems, or `None` if no freeze was announced.
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

/// Sends a line to the process that started the guard.
fn tell(line: &str) {
    // That process may be gone.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Thaws the guest. Retries until that succeeds or QEMU is gone, since nothing else would thaw it. Returns an error if
/// the guest was not frozen until now.
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
                tell(&format!("{}: the guest was thawed too early: {why}", socket.display()));
                return Err(CliError::Failed(why));
            }
            Err(error) if error.is_gone() => {
                tell(&format!("{error}; if the guest has moved to another host, thaw it there"));
                return Err(error.into());
            }
            Err(error) => {
                if !has_said {
                    tell(&format!("{error}; retrying until the guest is thawed"));
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

/// Restores a disk's write mode. Retries while the daemon is unreachable or the disk is busy.
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
            // The disk is busy or being attached, or the daemon is stopping.
            CliError::Refused(body) => {
                ["busy", "conflict", "stopping", "pool-failed"].contains(&body.code.as_str())
            }
            _ => false,
        };
        if !may_pass || Instant::now() >= deadline {
            tell(&format!(
                "{error}; disk '{name}' stays in write-through mode: run 'haversack disk set {name} --mode {mode}'"
            ));
            return Err(error);
        }
        if !has_said {
            tell(&format!("{error}; retrying until the write mode of disk '{name}' is restored"));
            has_said = true;
        }
        std::thread::sleep(PAUSE);
    }
}

fn changed(client: &Client, name: &str, change: &DiskChange) -> Result<()> {
    let mut job: Job = client.call(Method::PATCH, &path(name)?, Some(change))?;
    while !is_done(&job)? {
        std::thread::sleep(LOOK_EVERY);
        job = client.get(&format!("/v1/jobs/{}", job.id))?;
    }
    Ok(())
}
