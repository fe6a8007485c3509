//! Exclusive use of the state directory. A second daemon there would overwrite what the first one remembers: which
//! disks are attached, and which pools are void.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use haversack_engine::{EngineError, lock_exclusively};

/// The name of the locked file in the directory. It is empty, and stays.
pub const FILE: &str = "lock";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateLockError {
    /// Another process uses the directory.
    #[error(
        "[daemon] state_dir = '{dir}': in use by {by}; stop it, or give each daemon a state_dir of its own"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process that uses it, as far as known.
        by: String,
    },
    /// The lock cannot be taken.
    #[error("[daemon] state_dir = '{dir}': cannot lock it: {source}")]
    Lock {
        /// The directory.
        dir: PathBuf,
        /// The engine's or the system's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Keeps other daemons out of a state directory while it lives.
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Locks a directory; creates it if it does not exist. Waits up to 10 s for a process that is about to exit.
    ///
    /// # Errors
    /// Another process uses it, or the lock file cannot be opened or locked.
    pub fn take(dir: &Path) -> Result<StateLock, StateLockError> {
        let path = dir.join(FILE);
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false).mode(0o640);
        // On a file system that has become read-only, disks can still be served: an existing file is good enough.
        let open = |()| options.open(&path).or_else(|error| File::open(&path).map_err(|_| error));
        let file = std::fs::create_dir_all(dir).and_then(open);
        let file = file.map_err(|error| StateLockError::Lock { dir: dir.into(), source: error.into() })?;
        lock_exclusively(&file, &path).map_err(|error| match error {
            EngineError::InUse { by, .. } => StateLockError::InUse { dir: dir.into(), by },
            error => StateLockError::Lock { dir: dir.into(), source: error.into() },
        })?;
        Ok(StateLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let first = StateLock::take(&state_dir).unwrap();
        let refusal = StateLock::take(&state_dir).map(drop).unwrap_err().to_string();
        let process = format!("process {}", std::process::id());
        assert!(
            refusal.contains(&state_dir.display().to_string()) && refusal.contains(&process),
            "{refusal}"
        );
        drop(first);
        StateLock::take(&state_dir).unwrap();
    }
}
