//! Which pool used which origin last, in `<state_dir>/uses.json`.
//!
//! Invariants
//! - A pool's blocks of a disk are current only if a use by that pool and disk is recorded and has not ended. A use
//!   that writes the origin ends all its other uses. A use that has ended stays recorded until the pool has none of the
//!   disk's blocks.
//! - The file is replaced as a whole, and a change is durable when the call returns.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use haversack_model::{DiskId, Uuid};
use serde::{Deserialize, Serialize};

use crate::locked::Locked;
use crate::settings;
use crate::state::{self, RememberedDisk, StateError};

/// The name of the file.
pub const FILE: &str = "uses.json";

/// A use of an origin by a disk, through a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Use {
    /// The origin, as the disk named it.
    pub origin: String,
    /// The disk's name.
    pub name: String,
    /// The disk's identity.
    pub disk_id: String,
    /// The pool's name at that time.
    pub pool: String,
    /// The pool's identity. `None` if the use is from before uses were recorded.
    pub pool_id: Option<String>,
    /// The pool may have dirty blocks of the disk: writes may be acknowledged before the origin has them, and the disk
    /// was not detached since.
    pub may_be_dirty: bool,
    /// The origin was used since by another disk or through another pool, which may have written it.
    pub is_ended: bool,
    /// The pool's blocks of the disk are older than the origin, and are being dropped.
    pub is_outdated: bool,
    /// When the origin was last modified, in nanoseconds since 1970, if it is a file and the disk was detached.
    pub modified_ns: Option<i64>,
}

impl Use {
    /// Returns whether the use is of this disk, in the pool with this identity.
    pub fn is_by(&self, disk: DiskId, pool: Uuid) -> bool {
        self.is_of(disk) && self.pool_id.as_ref().is_some_and(|id| *id == pool.to_string())
    }

    /// Returns whether the use is of this disk.
    pub fn is_of(&self, disk: DiskId) -> bool {
        self.disk_id == disk.to_string()
    }

    /// Makes a use from what is remembered of a disk alone.
    fn unrecorded(disk: &RememberedDisk) -> Option<Use> {
        let config = &disk.config;
        Some(Use {
            origin: config.origin.clone(),
            name: config.name.clone(),
            disk_id: settings::disk_id(config).ok()?.to_string(),
            pool: config.pool.clone(),
            pool_id: None,
            may_be_dirty: disk.attached && !config.read_only,
            is_ended: false,
            is_outdated: false,
            modified_ns: None,
        })
    }
}

/// See the module documentation.
pub struct Uses {
    path: PathBuf,
    is_complete: bool,
    list: Mutex<Arc<Vec<Use>>>,
}

impl Uses {
    /// Reads the uses. If there is no file, derives them from the remembered disks.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open<'a>(
        dir: &Path,
        disks: impl IntoIterator<Item = &'a RememberedDisk>,
    ) -> Result<Uses, StateError> {
        let path = dir.join(FILE);
        let recorded = state::read(&path)?;
        let is_complete = recorded.is_some();
        let list = recorded.unwrap_or_else(|| disks.into_iter().filter_map(Use::unrecorded).collect());
        Ok(Uses { path, is_complete, list: Mutex::new(Arc::new(list)) })
    }

    /// Returns whether the file existed at the start, so that all relevant uses are recorded. Otherwise uses were not
    /// recorded before this start, or the file was lost.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the uses as they are now.
    pub fn list(&self) -> Arc<Vec<Use>> {
        self.list.locked().clone()
    }

    /// Changes the uses; returns what the change returns.
    ///
    /// # Errors
    /// The file cannot be written; nothing has changed then.
    pub fn change<T>(&self, change: impl FnOnce(&mut Vec<Use>) -> T) -> Result<T, StateError> {
        let mut list = self.list.locked();
        let mut next = list.to_vec();
        let returned = change(&mut next);
        next.sort_by(|a, b| (&a.disk_id, &a.pool_id).cmp(&(&b.disk_id, &b.pool_id)));
        if next != **list {
            state::replace(&self.path, &next)?;
            *list = Arc::new(next);
        }
        Ok(returned)
    }
}

#[cfg(test)]
mod tests {
    use haversack_api::DiskConfig;

    use super::*;

    fn remembered(attached: bool, read_only: bool) -> RememberedDisk {
        let config = DiskConfig { read_only, ..DiskConfig::new("vm1", "main", "/dev/b") };
        RememberedDisk { config, by_api: true, attached }
    }

    #[test]
    fn uses_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let disk = remembered(true, false);
        let uses = Uses::open(dir.path(), [&disk]).unwrap();
        uses.change(|list| list[0].pool_id = Some(Uuid([3; 16]).to_string())).unwrap();
        let again = Uses::open(dir.path(), []).unwrap();
        assert!(!uses.is_complete() && again.is_complete());
        assert_eq!(again.list(), uses.list());
        let id = settings::disk_id(&disk.config).unwrap();
        assert!(again.list()[0].is_by(id, Uuid([3; 16])) && !again.list()[0].is_by(id, Uuid([4; 16])));
    }

    #[test]
    fn without_a_file_remembered_disks_say_where_they_may_be_dirty() {
        for (attached, read_only, may_be_dirty) in
            [(true, false, true), (false, false, false), (true, true, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let list = Uses::open(dir.path(), [&remembered(attached, read_only)]).unwrap().list();
            assert_eq!((list[0].pool.as_str(), list[0].may_be_dirty), ("main", may_be_dirty));
        }
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("uses.json"), "[{").unwrap();
        let error = Uses::open(dir.path(), []).map(drop).unwrap_err().to_string();
        assert!(error.contains("uses.json"), "{error}");
    }
}
