//! Keeps what each disk's admission has learned across restarts: one file per disk in `<state_dir>/learned/`.
//! docs/format.md describes the file.
//!
//! Invariants
//! - One file is written at a time. It is replaced as a whole, and is used only if its checksum is right and it names
//!   the disk.
//! - A file that is missing or damaged does no harm: the disk's admission starts learning again.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use haversack_model::{DiskHandle, DiskId};

use crate::backend::Backend;
use crate::daemon::Daemon;
use crate::locked::Locked;
use crate::sealed::{Kind, seal, unseal};

/// The directory, in the state directory.
pub const DIRECTORY: &str = "learned";
const KIND: Kind = Kind { magic: b"HVLEARND", version: 1 };
/// How often the learned state is saved while the daemon runs: without the last accesses, some kilobytes per disk.
const SAVE_EVERY: Duration = Duration::from_secs(3600);
/// The pause between two disks, so that a pool's reactor serves its guests in between.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns what was learned of a disk, from the bytes of its file.
///
/// # Errors
/// It is damaged, or is not of this disk.
pub(crate) fn decode(disk: DiskId, bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    unseal(KIND, disk, bytes)
}

fn path_of(state_dir: &Path, disk: DiskId) -> PathBuf {
    state_dir.join(DIRECTORY).join(disk.to_string())
}

fn write(state_dir: &Path, disk: DiskId, body: &[u8]) -> io::Result<()> {
    let path = path_of(state_dir, disk);
    std::fs::create_dir_all(state_dir.join(DIRECTORY))?;
    let new = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o640).open(&new)?;
    // Not flushed: the checksum detects a file that a power loss has torn.
    file.write_all(&seal(KIND, disk, body))?;
    std::fs::rename(&new, &path)
}

/// Opens a disk's file, if there is one.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open(state_dir: &Path, disk: DiskId) -> io::Result<Option<File>> {
    match File::open(path_of(state_dir, disk)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(state_dir: &Path, disk: DiskId) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = open(state_dir, disk)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    decode(disk, bytes).map(Some).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))
}

impl Daemon {
    /// Saves what the admission of an attached disk has learned, with the last accesses that it remembers if nobody
    /// uses the disk any more.
    pub(crate) fn save_learned(
        &self,
        backend: &dyn Backend,
        name: &str,
        disk: DiskId,
        handle: DiskHandle,
        with_accesses: bool,
    ) {
        // A pool that has stopped is reported elsewhere.
        let Ok(Some(body)) = backend.saved_admission(handle, with_accesses) else { return };
        let _writing = self.learned_writing.locked();
        if let Err(error) = write(&self.config.state_dir, disk, &body) {
            let path = path_of(&self.config.state_dir, disk);
            tracing::warn!(disk = name, "{}: what was learned is not saved: {error}", path.display());
        }
    }

    /// Has the admission of a disk that was just attached continue from what it had learned.
    pub(crate) fn resume_learned(&self, backend: &dyn Backend, name: &str, disk: DiskId, handle: DiskHandle) {
        let resumed = match read(&self.config.state_dir, disk) {
            Ok(None) => return,
            Ok(Some(body)) => backend.resume_admission(handle, body).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match resumed {
            Ok(resumed) => tracing::debug!(disk = name, resumed, "the saved state of admission was read"),
            Err(error) => {
                let path = path_of(&self.config.state_dir, disk);
                tracing::warn!(disk = name, "{}: admission starts learning again: {error}", path.display());
            }
        }
    }

    /// Forgets what the admission of a disk had learned.
    pub(crate) fn forget_learned(&self, disk: DiskId) {
        let path = path_of(&self.config.state_dir, disk);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!("{}: cannot remove it: {error}", path.display());
            }
            _ => {}
        }
    }

    /// Saves what the admission of every attached disk has learned, because the daemon stops.
    pub(crate) fn save_all_learned(&self) {
        self.save_each_learned(true, Duration::ZERO);
    }

    fn save_each_learned(&self, with_accesses: bool, pause: Duration) {
        for (name, disk) in self.disks() {
            let Some((pool, handle)) = disk.with(|inner| Some((inner.config.pool.clone(), inner.handle?)))
            else {
                continue;
            };
            if let Ok(pool) = self.pool(&pool) {
                self.save_learned(&*pool.backend, &name, disk.id, handle, with_accesses);
                std::thread::sleep(pause);
            }
        }
    }
}

/// Starts to save what is learned while the daemon runs.
///
/// # Errors
/// The thread cannot be started.
pub fn start(daemon: &Arc<Daemon>) -> io::Result<()> {
    let daemon = daemon.clone();
    let run = move || {
        // The thread ends with the process: nothing waits for it.
        while !daemon.is_stopping() {
            std::thread::sleep(SAVE_EVERY);
            daemon.save_each_learned(false, PAUSE);
        }
    };
    std::thread::Builder::new().name("learned".into()).spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, other) = (DiskId([1; 16]), DiskId([2; 16]));
        assert_eq!(read(dir.path(), disk).expect("there is none"), None);
        write(dir.path(), disk, b"counts").expect("written");
        write(dir.path(), disk, b"newer counts").expect("written");
        assert_eq!(read(dir.path(), disk).expect("whole"), Some(b"newer counts".to_vec()));
        let bytes = std::fs::read(path_of(dir.path(), disk)).expect("it is there");
        let why = |bytes: &[u8], disk: DiskId| {
            std::fs::write(path_of(dir.path(), disk), bytes).expect("written");
            read(dir.path(), disk).expect_err("it is not whole").to_string()
        };
        assert_eq!(why(&bytes, other), "it is of another disk");
        assert_eq!(why(&bytes[..20], disk), "it is too short");
        assert_eq!(why(&bytes[..40], disk), "its checksum is wrong");
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            bytes
        };
        assert_eq!(why(&changed(0), disk), "it is not a file of this kind");
        assert_eq!(why(&changed(8), disk), "it has another version");
        assert_eq!(why(&changed(33), disk), "its checksum is wrong");
    }
}
