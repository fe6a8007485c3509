//! One helper per disk, even after the daemon was killed: the helper left behind closes its store and exits, and the
//! next one starts only when it is gone.
//!
//! Invariants
//! - The lock of a file beside the socket belongs to the helper process, which has the file as its standard input. The
//!   lock ends with the process, however the process ends.
//! - The process ID in the file is that of the lock's holder, or there is none.
//! - A helper has the file open for reading only, and the daemon kills the process that the file names only if it runs
//!   as the helper's user.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{HelperError, LOOK_EVERY};

/// How long the helper of a dead daemon may take to close its store before it is killed. If a killed client had its RBD
/// image open, the helper gets the image only after 10 s; killing the helper as well would delay its successor by the
/// same time again.
const TIME_TO_CLOSE: Duration = Duration::from_secs(15);
/// How long a helper that was killed may take to be gone.
const TIME_TO_END: Duration = Duration::from_secs(3);

/// The right to start the helper of a disk.
pub struct HelperLock {
    path: PathBuf,
    /// The lock file, opened twice: for the lock, which the helper gets, and to write the helper's process ID.
    file: File,
    note: File,
}

impl HelperLock {
    /// Takes the lock of the helper with this socket. A helper that an earlier daemon has left is waited for, and
    /// killed if it takes too long.
    ///
    /// # Errors
    /// The file cannot be opened, or the earlier helper does not end.
    pub fn take(disk: &str, socket: &Path, run_as: Option<(u32, u32)>) -> Result<HelperLock, HelperError> {
        let mut path = OsString::from(socket);
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source| HelperError::Lock { path: path.clone(), source };
        let mut options = OpenOptions::new();
        options.mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        let note = options.append(true).create(true).open(&path).map_err(failed)?;
        if let Some((user, group)) = run_as {
            // The daemon itself becomes this user after its start.
            std::os::unix::fs::fchown(&note, Some(user), Some(group)).map_err(failed)?;
        }
        let file =
            OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path).map_err(failed)?;
        if !is_free_within(TIME_TO_CLOSE, &file).map_err(failed)? {
            let pid = std::io::read_to_string(&file).ok().and_then(|pid| pid.parse::<i32>().ok());
            if let Some(pid) = pid.filter(|pid| *pid > 1 && is_of(*pid, run_as)) {
                tracing::warn!(
                    disk,
                    pid,
                    "the helper of an earlier daemon has not closed its store; killing it"
                );
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            if !is_free_within(TIME_TO_END, &file).map_err(failed)? {
                return Err(HelperError::Left { disk: disk.to_string(), lock: path });
            }
        }
        note.set_len(0).map_err(failed)?;
        Ok(HelperLock { path, file, note })
    }

    /// Returns what the helper must have as its standard input.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn for_helper(&self) -> Result<File, HelperError> {
        self.file.try_clone().map_err(|source| HelperError::Lock { path: self.path.clone(), source })
    }

    /// Passes the lock on to the helper's process, and writes the process's ID to the file.
    pub fn leave_to(mut self, pid: u32) {
        if let Err(error) = self.note.write_all(pid.to_string().as_bytes()) {
            tracing::warn!(path = %self.path.display(), "cannot note the process id of a helper: {error}");
        }
    }
}

/// Returns whether a process runs as the user of the helpers.
fn is_of(pid: i32, run_as: Option<(u32, u32)>) -> bool {
    let user = run_as.map_or_else(|| nix::unistd::geteuid().as_raw(), |(user, _)| user);
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == user)
}

/// Takes the lock as soon as it is free. Returns false if it is not within the time.
fn is_free_within(time: Duration, file: &File) -> std::io::Result<bool> {
    let deadline = Instant::now() + time;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
        }
    }
}
