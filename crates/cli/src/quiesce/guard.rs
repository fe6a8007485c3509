//! A process that outlives the one that quiesces disks: whatever becomes of that, this one thaws the guest and gives the disks
//! their write modes back.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use haversack_api::{DiskChange, Job, JobState, Mode};
use haversack_qmp::GuestAgent;
use hyper::Method;

use super::{AGENT_PATIENCE, LOOK_EVERY, Signals, path};
use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output;

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a daemon may be away, or at work on a disk.
const DAEMON_PATIENCE: Duration = Duration::from_secs(600);

/// The arguments of a guard.
#[derive(Args)]
pub struct GuardArguments {
    #[arg(long)]
    guest_agent: Option<PathBuf>,
    /// Disks, each with its mode: NAME=MODE.
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
}

impl Guard {
    /// Starts one.
    pub fn start(client: &Client, guest_agent: Option<&Path>, modes: &[(String, Mode)]) -> Result<Guard> {
        let failed =
            |e: std::io::Error| CliError::Failed(format!("cannot start the guard of the guest: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--socket").arg(client.socket()).args(["disk", "guard"]);
        if let Some(path) = guest_agent {
            command.arg("--guest-agent").arg(path);
        }
        command.args(modes.iter().map(|(name, mode)| format!("{name}={mode}")));
        // Ctrl-C is for the command alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        Ok(Guard { child: command.spawn().map_err(failed)? })
    }

    /// Has it do its work, and waits for the end of that. A signal ends the wait.
    pub fn end(mut self, client: &Client, signals: &mut Signals) -> Result<()> {
        drop(self.child.stdin.take());
        if let Some(stdout) = self.child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                    output::say(&format!("haversack: {line}"));
                }
            });
        }
        loop {
            match self.child.try_wait().map_err(|e| CliError::Failed(e.to_string()))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let what = "the guest may still be frozen, or a disk still be in write-through mode";
                    return Err(CliError::Attention(format!("{what}: the guard has ended: {status}")));
                }
                None => {}
            }
            client.block_on(signals.pause(LOOK_EVERY)).map_err(|_| {
                let process = self.child.id();
                CliError::Attention(format!("stopped waiting: process {process} goes on to thaw the guest"))
            })?;
        }
    }
}

/// Is a guard: waits until the process that has started it ends or says so, and restores what that has changed.
pub fn run(client: &Client, arguments: &GuardArguments) -> Result<()> {
    // Nothing is sent: it ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let thawed = arguments.guest_agent.as_deref().map_or(Ok(()), thaw);
    let restored: Vec<_> = arguments.modes.iter().map(|(name, mode)| restore(client, name, *mode)).collect();
    thawed?;
    restored.into_iter().collect()
}

/// Reports to the process that has started this one, if that still listens.
fn tell(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Thaws the guest. Tries until it succeeds or QEMU is gone: nobody else would.
fn thaw(socket: &Path) -> Result<()> {
    let mut has_said = false;
    loop {
        let thawed =
            GuestAgent::connect(socket, AGENT_PATIENCE).and_then(|mut agent| agent.thaw(AGENT_PATIENCE));
        match thawed {
            Ok(_) => return Ok(()),
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) if !has_said => {
                tell(&format!("{error}. Retrying until the guest is thawed"));
                has_said = true;
            }
            Err(_) => {}
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
            CliError::Unreachable { .. } | CliError::Silent { .. } => true,
            CliError::Refused(body) => body.code == "busy" || body.code == "stopping",
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
