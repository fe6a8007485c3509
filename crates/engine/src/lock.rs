//! Exclusive use of devices and of the staging area.
//!
//! A lock goes with the open file, and I/O in flight keeps the file open: once a lock of a killed process is ours,
//! none of its writes can land any more.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{EngineError, Result, at};

/// How long the I/O of a process that was killed may take to end.
const WAIT: Duration = Duration::from_secs(10);

/// Tries until it works (`Some`), while a process that is about to be gone may stand in the way.
pub(crate) fn patiently<R>(path: &Path, mut attempt: impl FnMut() -> Result<Option<R>>) -> Result<R> {
    let begin = Instant::now();
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        if begin.elapsed() > WAIT {
            return Err(EngineError::InUse { path: path.to_path_buf() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Locks a file, waiting a while for a process that is about to be gone.
pub(crate) fn exclusively(file: &File, path: &Path) -> Result<()> {
    patiently(path, || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(at("lock", path)(source)),
    })
}
