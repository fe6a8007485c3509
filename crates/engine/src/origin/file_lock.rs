//! Locks on origin files and block devices: an image has one user, unless all users only read.
//!
//! Two kinds of locks are taken, since other programs check one or the other:
//! - `flock`, which every user of a cache device also takes: a cache device cannot be an origin while a pool
//!   uses it;
//! - QEMU's byte locks (`block/file-posix.c`): a program holds byte 100 + n for each permission n that it uses,
//!   and byte 200 + n for each that it denies to others. All are shared locks; conflicts are found by querying
//!   the bytes.
//!
//! The locks belong to the open file.

use std::fs::{File, TryLockError};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{EngineError, Result, at};
use crate::lock;

/// How long a killed process may keep its locks.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

const USED: i64 = 100;
const WITHHELD: i64 = 200;

/// QEMU's permissions, as bit numbers.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const WRITE_UNCHANGED: i64 = 2;
const RESIZE: i64 = 3;

/// Who may use an origin at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Users {
    /// Nobody else.
    One,
    /// Others that only read.
    Readers,
    /// Other hosts between which the disk moves: of those, the owner alone writes.
    Hosts,
}

/// Locks an origin. Waits a moment if the lock is held.
pub(super) fn take(file: &File, path: &Path, users: Users) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !try_flock(file, path, users)? || !try_bytes(file, path, users)? {
        if Instant::now() >= deadline {
            let by = lock::user_of(path).unwrap_or_else(|| lock::unseen(path));
            return Err(EngineError::OriginInUse { path: PathBuf::from(path), by });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn try_flock(file: &File, path: &Path, users: Users) -> Result<bool> {
    let locked = if users == Users::One { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => without_locks(source, path),
    }
}

/// Locks first and checks afterwards, as QEMU does: of two that lock at the same time, at least one sees the
/// other.
fn try_bytes(file: &File, path: &Path, users: Users) -> Result<bool> {
    let used: &[i64] = match users {
        Users::Readers => &[CONSISTENT_READ],
        Users::One | Users::Hosts => &[CONSISTENT_READ, WRITE, WRITE_UNCHANGED, RESIZE],
    };
    let withheld: &[i64] = if users == Users::Hosts { &[] } else { &[WRITE, RESIZE] };
    let locks = used.iter().map(|n| USED + n).chain(withheld.iter().map(|n| WITHHELD + n));
    let conflicts = used.iter().map(|n| WITHHELD + n).chain(withheld.iter().map(|n| USED + n));
    for byte in locks {
        if let Err(source) = lock_byte(file, libc::F_RDLCK, byte) {
            return match source.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => give_back(file),
                _ => without_locks(source, path),
            };
        }
    }
    for byte in conflicts {
        if is_locked(file, byte).map_err(at("look for locks of", path))? {
            return give_back(file);
        }
    }
    Ok(true)
}

/// Releases all byte locks.
fn give_back(file: &File) -> Result<bool> {
    for byte in (0..=RESIZE).flat_map(|n| [USED + n, WITHHELD + n]) {
        let _ = lock_byte(file, libc::F_UNLCK, byte);
    }
    Ok(false)
}

/// Allows a file system that has no locks to be used without them.
fn without_locks(source: std::io::Error, path: &Path) -> Result<bool> {
    match source.raw_os_error() {
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
            tracing::warn!(path = %path.display(), "this file system does not support locks ({source}): another host may use the origin at the same time");
            Ok(true)
        }
        _ => Err(at("lock", path)(source)),
    }
}

fn range(kind: libc::c_int, byte: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn lock_byte(file: &File, kind: libc::c_int, byte: i64) -> std::io::Result<()> {
    let range = range(kind, byte);
    // SAFETY: the descriptor is open, and the kernel only reads the structure.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Returns whether another open file holds a lock on a byte.
fn is_locked(file: &File, byte: i64) -> std::io::Result<bool> {
    let mut range = range(libc::F_WRLCK, byte);
    // SAFETY: the descriptor is open, and the structure is one that the kernel may write.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    if failed != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("haversack-origin-{name}-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        path
    }

    fn open(path: &Path) -> File {
        std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_writer_is_alone_and_readers_are_not() {
        let path = image("lock");
        let (writer, reader, other) = (open(&path), open(&path), open(&path));
        take(&writer, &path, Users::One).unwrap();
        let error = take(&reader, &path, Users::Readers).unwrap_err().to_string();
        assert!(error.contains("in use") && error.contains(&std::process::id().to_string()), "{error}");
        drop(writer);
        take(&reader, &path, Users::Readers).unwrap();
        take(&other, &path, Users::Readers).unwrap();
        assert!(take(&open(&path), &path, Users::One).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    /// QEMU's tools are installed wherever Haversack is tested.
    #[test]
    fn qemu_sees_the_lock_and_its_lock_is_seen() {
        let path = image("qemu");
        let writer = open(&path);
        take(&writer, &path, Users::One).unwrap();
        let opens = |mode: &[&str]| {
            let mut command = std::process::Command::new("qemu-io");
            command.args(["-f", "raw", "-c", "read 0 512"]).args(mode).arg(&path);
            command.output().expect("qemu-io is needed: install Debian's qemu-utils").status.success()
        };
        assert!(!opens(&[]), "QEMU writes to an image that is written");
        assert!(opens(&["-r", "-U"]), "QEMU cannot even look at an image that is written");
        drop(writer);
        assert!(opens(&[]), "the lock outlives its file");
        std::fs::remove_file(&path).unwrap();
    }
}
