//! Exclusive use of devices and of the staging area.
//!
//! A lock belongs to the open file, and I/O in flight keeps the file open. So once this process gets the lock
//! of a killed process, none of that process's writes can complete any more. A process that has exited or is
//! exiting is waited for; one that is alive is not, unless it is udev's: udev locks a device for a moment, to probe
//! its content, each time a program that has written to it closes it.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{EngineError, Result, at};

/// How long the I/O of a killed process may take to finish, and udev to look at a device.
const WAIT: Duration = Duration::from_secs(10);

/// Names of udev's processes that look at devices.
const PROBERS: [&str; 2] = ["(udev-worker)", "systemd-udevd"];

/// Flag of a process that is exiting, in `/proc/PID/stat`.
const EXITING: u64 = 4;
/// SIGKILL in the signal sets of `/proc/PID/status`.
const KILL: u64 = 1 << 8;

/// The holder of the lock on a file.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Holder {
    /// A process that is alive.
    Living(String),
    /// A process that has exited or is exiting; its I/O in flight holds the lock.
    Going,
    /// A process of udev.
    Prober,
    /// No process that is visible.
    Unknown,
}

/// Repeats `attempt` until it returns `Some`. Waits for a holder that has exited or is exiting, or is udev's, up to a
/// limit; any other living holder is an error. If no holder is visible, `unseen_may_go` decides whether to wait.
pub(crate) fn patiently<R>(
    path: &Path,
    unseen_may_go: bool,
    mut attempt: impl FnMut() -> Result<Option<R>>,
) -> Result<R> {
    let (begin, mut told) = (Instant::now(), false);
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        let in_use = |by: &str| EngineError::InUse { path: path.to_path_buf(), by: by.to_string() };
        let by = match holder(path) {
            Holder::Living(process) => return Err(in_use(&process)),
            Holder::Unknown if !unseen_may_go => return Err(in_use(&unseen(path))),
            Holder::Prober => "udev, which looks at what is on it",
            Holder::Going | Holder::Unknown => "in-flight I/O of a killed process",
        };
        if begin.elapsed() > WAIT {
            return Err(in_use(by));
        }
        if !std::mem::replace(&mut told, true) {
            let (path, wait_s) = (path.display(), WAIT.as_secs());
            tracing::warn!(%path, wait_s, "in use by {by}: waiting for it to finish");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Locks a file, waiting up to 10 s for a process that is about to exit.
///
/// # Errors
/// [`EngineError::InUse`] if another process has the lock, or the system's error.
pub fn exclusively(file: &File, path: &Path) -> Result<()> {
    patiently(path, true, || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(at("lock", path)(source)),
    })
}

/// Describes a user that is not visible here: a process of another user or namespace, or a mount.
pub(crate) fn unseen(path: &Path) -> String {
    format!("a process or mount that is not visible here ('fuser -v {}' as root may show it)", path.display())
}

/// Returns the process that has a file or device open: another process, or failing that this one.
pub(crate) fn user_of(path: &Path) -> Option<String> {
    let wanted = std::fs::metadata(path).ok()?;
    let is_it = |m: std::fs::Metadata| (m.dev(), m.ino()) == (wanted.dev(), wanted.ino());
    let has_open = |process: &u32| {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.map(|entry| entry.path()).any(|fd| std::fs::metadata(fd).is_ok_and(is_it))
    };
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let users: Vec<u32> = processes.filter(has_open).collect();
    let this = std::process::id();
    let user = users.iter().find(|user| **user != this).or(users.first())?;
    match state(*user) {
        Holder::Living(process) => Some(process),
        _ => None,
    }
}

fn holder(path: &Path) -> Holder {
    let Ok(metadata) = std::fs::metadata(path) else { return Holder::Unknown };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return Holder::Unknown };
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locked_by = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str()))
            .then(|| words[4].parse().ok())?
    };
    match locks.lines().find_map(locked_by) {
        None => Holder::Unknown,
        Some(process) => state(process),
    }
}

/// Returns the state of a process by its number, as far as this PID namespace shows it.
fn state(process: u32) -> Holder {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else { return Holder::Going };
    // The name is in parentheses and may contain any character; state and flags follow it.
    let Some((before, after)) = stat.rsplit_once(')') else { return Holder::Going };
    let words: Vec<&str> = after.split_whitespace().collect();
    let ended = matches!(words.first(), Some(&("Z" | "X")));
    let exiting =
        words.get(6).and_then(|flags| flags.parse().ok()).is_some_and(|flags: u64| flags & EXITING != 0);
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    let killed =
        pending.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & KILL != 0);
    if ended || exiting || killed {
        return Holder::Going;
    }
    let name = before.split_once('(').map_or("", |(_, name)| name);
    if PROBERS.contains(&name) {
        return Holder::Prober;
    }
    Holder::Living(format!("process {process} ({name})"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::{Child, Command};

    use super::*;

    /// Starts `flock` with a `sleep` that keeps the lock after `flock` has exited.
    fn locked(path: &Path, seconds: &str) -> Child {
        locked_by("flock", path, seconds)
    }

    fn locked_by(program: impl AsRef<OsStr>, path: &Path, seconds: &str) -> Child {
        std::fs::write(path, "").unwrap();
        let child = Command::new(program).arg(path).args(["sleep", seconds]).spawn().unwrap();
        while File::open(path).unwrap().try_lock().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn a_living_process_is_named_at_once() {
        let path = std::env::temp_dir().join(format!("haversack-lock-living-{}", std::process::id()));
        let mut child = locked(&path, "60");
        let begin = Instant::now();
        let error = exclusively(&File::open(&path).unwrap(), &path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} (flock)", child.id())), "{error}");
        assert!(begin.elapsed() < WAIT, "it waited");
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn udev_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let (path, worker) = (place.path().join("device"), place.path().join(PROBERS[0]));
        std::fs::copy("/usr/bin/flock", &worker).unwrap();
        let mut child = locked_by(&worker, &path, "1");
        let file = File::open(&path).unwrap();
        assert!(file.try_lock().is_err());
        exclusively(&file, &path).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_killed_process_is_waited_for() {
        let path = std::env::temp_dir().join(format!("haversack-lock-killed-{}", std::process::id()));
        let mut child = locked(&path, "3");
        child.kill().unwrap();
        let file = File::open(&path).unwrap();
        assert!(file.try_lock().is_err());
        exclusively(&file, &path).unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
