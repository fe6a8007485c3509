//! A process that outlives the one that moves a VM. If that one is killed while the VM is being moved, QEMU would wait for it
//! with the VM stopped; so this one cancels the migration, and the VM goes on where it was.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use haversack_qmp::{Address, Monitor};

use super::controller::PATIENCE;
use super::destination;
use super::source::{self, Stage};
use crate::error::{CliError, Result};

/// A guard. It is dismissed when this is dropped.
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts one.
    pub fn start(qmp: &Address, qmp_destination: &Address) -> Result<Guard> {
        let failed = |e: std::io::Error| CliError::Failed(format!("cannot start the guard of the move: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["migrate", "guard", &qmp.to_string(), &qmp_destination.to_string()]);
        // Ctrl-C is for the command alone.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        Ok(Guard { child: command.spawn().map_err(failed)? })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(mut stdin) = self.child.stdin.take() {
            // It may have been killed.
            let _ = stdin.write_all(b".");
        }
        let _ = self.child.wait();
    }
}

/// Is a guard: waits for the end of the process that has started it, and ends what that has left.
pub fn run(qmp: &Address, qmp_destination: &Address) -> Result<()> {
    let dismissed = std::io::stdin().read(&mut [0]).map_err(|e| CliError::Failed(e.to_string()))? > 0;
    if dismissed {
        return Ok(());
    }
    let mut source = Monitor::connect(qmp, PATIENCE)?;
    match source::stage(&mut source)? {
        Stage::Here | Stage::Waiting => return Ok(()),
        Stage::Moving(_) if source::cancel(&mut source)? => return Ok(()),
        Stage::Moving(_) | Stage::Gone => {}
    }
    destination::arrive(&mut Monitor::connect(qmp_destination, PATIENCE)?, true)
}
