//! A process that outlives the command that moves a VM. If the command is killed while the VM is being moved, or
//! gives up, QEMU would wait for it with the VM stopped. So the guard cancels the migration, and the VM continues
//! where it was or, if it has been sent, at the destination.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use haversack_qmp::{Address, Monitor};

use super::controller::PATIENCE;
use super::destination::{self, Arrival};
use super::refusal;
use super::source::{self, Stage};
use crate::error::{CliError, Result};
use crate::output;

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// A guard. It takes over when this is dropped.
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts one. `runs` tells whether the VM runs: a paused one stays paused.
    pub fn start(qmp: &Address, qmp_destination: &Address, runs: bool) -> Result<Guard> {
        let failed =
            |e: std::io::Error| CliError::Failed(format!("cannot start the guard of the migration: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["migrate", "guard", &qmp.to_string(), &qmp_destination.to_string()]);
        if !runs {
            command.arg("--paused");
        }
        // Ctrl-C is for the command alone.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr()).process_group(0);
        Ok(Guard { child: command.spawn().map_err(failed)? })
    }

    /// Ends the guard, because the VM no longer needs it.
    pub fn dismiss(mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            // It may have been killed.
            let _ = stdin.write_all(b".");
        }
        let _ = self.child.wait();
    }
}

/// Returns where a guard reports. A program that reads the command's output from a pipe would otherwise also wait for
/// the guard's end.
fn stderr() -> Stdio {
    let stderr = std::io::stderr();
    let metadata = stderr.as_fd().try_clone_to_owned().and_then(|file| File::from(file).metadata());
    let is_kept = stderr.is_terminal() || metadata.is_ok_and(|metadata| metadata.is_file());
    if is_kept { Stdio::inherit() } else { Stdio::null() }
}

/// Runs as a guard: waits until the process that started it has ended, then ends the migration that it left
/// behind. `runs` tells whether the VM ran before it was moved.
pub fn run(qmp: &Address, qmp_destination: &Address, runs: bool) -> Result<()> {
    let dismissed = std::io::stdin().read(&mut [0]).map_err(|e| CliError::Failed(e.to_string()))? > 0;
    if dismissed {
        return Ok(());
    }
    let ended = until_known("the migration has ended", || {
        let mut here = Monitor::connect(qmp, PATIENCE)?;
        let was_gone = source::stage(&mut here)? == Stage::Gone;
        // If the VM was gone before this process looked, another one may have moved it since.
        Ok((source::end(&mut here)?, Some(here).filter(|_| !was_gone)))
    });
    let (is_sent, here) = match ended {
        Err(CliError::Qmp(error)) if error.is_gone() => (true, None),
        ended => ended?,
    };
    if !is_sent {
        // It may have ended.
        if let Ok(mut there) = Monitor::connect(qmp_destination, PATIENCE) {
            refusal::discard(&mut there);
        }
        return Ok(());
    }
    let mut there = until_known("the VM runs", || Ok(Monitor::connect(qmp_destination, PATIENCE)?))?;
    let Arrival::Refused(why) = destination::arrive(&mut there, runs)? else { return Ok(()) };
    match here {
        Some(mut here) => Err(refusal::bring_back(&mut here, &mut there, &why, runs)),
        None => Err(refusal::unknown_whether_sent(&why)),
    }
}

/// Retries something until it succeeds or QEMU is gone: nothing else would let the VM continue.
fn until_known<T>(what: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut has_said = false;
    loop {
        match work() {
            Err(CliError::Qmp(error)) if error.is_gone() => return Err(error.into()),
            Err(error) => {
                if !has_said {
                    output::say(&format!("haversack: {error}. Retrying until {what}"));
                    has_said = true;
                }
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}
