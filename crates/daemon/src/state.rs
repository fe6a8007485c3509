//! The daemon's state across restarts, in `<state_dir>/state.json`: the disks that were attached, and the pools
//! that lost their last cache device.
//!
//! Invariants
//! - The file is replaced as a whole, and a change is durable when the call returns.
//! - No remembered disk accepts a loss: what an operator accepts holds for one attach, not for those after a restart.
//! - A file that cannot be read stops the start: starting with empty state would forget that a pool's contents
//!   are void.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use haversack_api::DiskConfig;
use haversack_control::budget::Account;
use haversack_engine::VoidArena;
use haversack_migrate::{AsOf, KnownBefore, WriteCacheMemory};
use haversack_model::{ArenaId, ArenaNo, DiskId, HostId, Uuid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::locked::Locked;
use crate::uses::Uses;

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read or written.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file's content is invalid.
    #[error(
        "{path}: {source}; restore it, or remove it if no pool of this host lost all its cache devices, and no disk was attached in \
             a pool that is not open"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// A disk that was attached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RememberedDisk {
    /// Its settings.
    pub config: DiskConfig,
    /// It was attached through the API, not by the configuration file.
    pub by_api: bool,
    /// It was attached. At the next start, only disks that were attached through the API are attached again.
    pub attached: bool,
}

/// A disk that another host has taken over by force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TakenOver {
    /// That host's identity.
    by: u64,
    /// The epoch of the takeover.
    epoch: u64,
}

/// The maximum number of disks whose former records are remembered. Beyond it, the one that was noted first is dropped.
const MOST_KNOWN: usize = 1_000;

/// A disk's former records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// The epochs of these records.
    before: KnownBefore,
    /// Greater than that of those noted earlier.
    number: u64,
}

/// The identity of a pool, as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct PoolId(Uuid);

impl TryFrom<String> for PoolId {
    type Error = uuid::Error;

    fn try_from(text: String) -> Result<PoolId, uuid::Error> {
        Ok(PoolId(Uuid(uuid::Uuid::parse_str(&text)?.into_bytes())))
    }
}

impl From<PoolId> for String {
    fn from(id: PoolId) -> String {
        id.0.to_string()
    }
}

/// The content of the file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    disks: BTreeMap<String, RememberedDisk>,
    /// Identities of disks whose recorded ownership was agreed with the other hosts.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    agreed_disks: BTreeSet<String>,
    /// Identities of disks whose store this host has locked together with others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    locked_disks: BTreeSet<String>,
    /// Identities of disks whose guests have switched their write cache off.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    without_write_cache: BTreeSet<String>,
    /// By identity, the epochs under which this host has known that, for disks that can move; `None` if the guest has
    /// switched it while it waited here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    write_cache_as_of: BTreeMap<String, Option<u64>>,
    /// Disks, by identity, that other hosts have taken over by force, as they have told this host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    taken_over: BTreeMap<String, TakenOver>,
    /// By identity, former records of disks that this host was told to forget, or that other hosts have taken over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    known_before: BTreeMap<String, Known>,
    /// By pool, the numbers of the arenas that lost their last cache device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lost_arenas: BTreeMap<PoolId, BTreeSet<u8>>,
    /// The same, noted by earlier versions, which identified a pool by its name.
    #[serde(default)]
    lost_pools: BTreeMap<String, BTreeSet<u8>>,
    /// Accounts of flash writes, by pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    flash_accounts: BTreeMap<String, Account>,
}

impl Memory {
    fn write_cache(&self, disk: &str) -> WriteCacheMemory {
        let as_of = match self.write_cache_as_of.get(disk) {
            None => AsOf::Always,
            Some(None) => AsOf::Waiting,
            Some(Some(epoch)) => AsOf::Epoch(*epoch),
        };
        WriteCacheMemory { is_off: self.without_write_cache.contains(disk), as_of }
    }

    fn set_write_cache(&mut self, disk: String, memory: WriteCacheMemory) {
        match memory.as_of {
            AsOf::Always => drop(self.write_cache_as_of.remove(&disk)),
            AsOf::Waiting => drop(self.write_cache_as_of.insert(disk.clone(), None)),
            AsOf::Epoch(epoch) => drop(self.write_cache_as_of.insert(disk.clone(), Some(epoch))),
        }
        if memory.is_off {
            self.without_write_cache.insert(disk);
        } else {
            self.without_write_cache.remove(&disk);
        }
    }
}

/// See the module documentation.
pub struct State {
    path: PathBuf,
    memory: Mutex<Memory>,
    /// Which pool used which origin last.
    pub uses: Uses,
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StateError {
    let path = path.to_path_buf();
    move |source| StateError::Io { action, path, source }
}

/// Reads a file of the state directory; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let read = serde_json::from_slice(&bytes);
            read.map(Some).map_err(|source| StateError::Malformed { path: path.to_path_buf(), source })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at("read", path)(error)),
    }
}

/// Replaces a file of the state directory, durably.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> Result<(), StateError> {
    let text = serde_json::to_vec_pretty(content).unwrap_or_default();
    let new = path.with_extension("json.new");
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o640);
    // A start that was killed before it gave up its privileges may have left one that belongs to root.
    let _ = std::fs::remove_file(&new);
    let mut file = options.open(&new).map_err(at("create", &new))?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(at("write", &new))?;
    std::fs::rename(&new, path).map_err(at("replace", path))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at("make durable", dir))
}

impl State {
    /// Reads the state; creates the directory if it does not exist.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open(dir: &Path) -> Result<State, StateError> {
        std::fs::create_dir_all(dir).map_err(at("create", dir))?;
        let path = dir.join("state.json");
        let mut memory: Memory = read(&path)?.unwrap_or_default();
        // Earlier versions remembered what had been accepted.
        memory.disks.values_mut().for_each(|disk| disk.config.forget_acceptances());
        let uses = Uses::open(dir, memory.disks.values())?;
        Ok(State { path, memory: Mutex::new(memory), uses })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn change(&self, change: impl FnOnce(&mut Memory)) -> Result<(), StateError> {
        let mut memory = self.memory.locked();
        let mut next = memory.clone();
        change(&mut next);
        if next != *memory {
            replace(&self.path, &next)?;
            *memory = next;
        }
        Ok(())
    }

    /// Returns whether a disk's recorded ownership was agreed with the other hosts.
    pub fn is_agreed(&self, disk: DiskId) -> bool {
        self.memory.locked().agreed_disks.contains(&disk.to_string())
    }

    /// Records whether a disk's ownership was agreed with the other hosts.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_agreed(&self, disk: DiskId, is_agreed: bool) -> Result<(), StateError> {
        self.change(|memory| {
            if is_agreed {
                memory.agreed_disks.insert(disk.to_string());
            } else {
                memory.agreed_disks.remove(&disk.to_string());
            }
        })
    }

    /// Returns what is remembered of a disk's guest's write cache.
    pub fn write_cache(&self, disk: DiskId) -> WriteCacheMemory {
        self.memory.locked().write_cache(&disk.to_string())
    }

    /// Changes what is remembered of a disk's guest's write cache. The guest does not repeat it to a later server of the
    /// disk.
    ///
    /// # Errors
    /// The file cannot be written. What it said before stays valid.
    pub fn change_write_cache(
        &self,
        disk: DiskId,
        change: impl FnOnce(WriteCacheMemory) -> WriteCacheMemory,
    ) -> Result<(), StateError> {
        let disk = disk.to_string();
        self.change(|memory| {
            let changed = change(memory.write_cache(&disk));
            memory.set_write_cache(disk, changed);
        })
    }

    /// Returns whether this host has locked a disk's store together with others. If so, but the lock is missing, the
    /// lock was taken away.
    pub fn has_locked(&self, disk: DiskId) -> bool {
        self.memory.locked().locked_disks.contains(&disk.to_string())
    }

    /// Records whether this host has locked a disk's store together with others.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_locked(&self, disk: DiskId, has_locked: bool) -> Result<(), StateError> {
        self.change(|memory| {
            if has_locked {
                memory.locked_disks.insert(disk.to_string());
            } else {
                memory.locked_disks.remove(&disk.to_string());
            }
        })
    }

    /// Returns the host that has taken a disk over by force, and under which epoch.
    pub fn taken_over(&self, disk: DiskId) -> Option<(HostId, u64)> {
        let memory = self.memory.locked();
        memory.taken_over.get(&disk.to_string()).map(|taken| (HostId(taken.by), taken.epoch))
    }

    /// Records that hosts have taken disks over: each disk, the host, and its epoch. A known takeover with a later
    /// epoch stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_taken_over(
        &self,
        disks: impl IntoIterator<Item = (DiskId, HostId, u64)>,
    ) -> Result<(), StateError> {
        self.change(|memory| {
            for (disk, HostId(by), epoch) in disks {
                let taken = memory.taken_over.entry(disk.to_string()).or_insert(TakenOver { by, epoch });
                if epoch > taken.epoch {
                    *taken = TakenOver { by, epoch };
                }
            }
        })
    }

    /// Forgets that a host has taken a disk over.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_taken_over(&self, disk: DiskId) -> Result<(), StateError> {
        self.change(|memory| {
            memory.taken_over.remove(&disk.to_string());
        })
    }

    /// Returns the remembered epochs of a disk's former records, if there are any.
    pub fn known_before(&self, disk: DiskId) -> Option<KnownBefore> {
        self.memory.locked().known_before.get(&disk.to_string()).map(|known| known.before)
    }

    /// Remembers the epochs of disks whose records are about to be overwritten or forgotten. Remembered epochs never
    /// decrease. Beyond a thousand disks, those that were noted first are dropped.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_known(
        &self,
        disks: impl IntoIterator<Item = (DiskId, KnownBefore)>,
    ) -> Result<(), StateError> {
        self.change(|memory| {
            for (disk, before) in disks {
                let known = &mut memory.known_before;
                let earlier = known.get(&disk.to_string()).map(|known| known.before);
                let all = earlier.map_or(before, |earlier| earlier.and(before));
                if earlier == Some(all) {
                    continue;
                }
                let number = known.values().map(|known| known.number).max().map_or(0, |last| last + 1);
                known.insert(disk.to_string(), Known { before: all, number });
                while known.len() > MOST_KNOWN {
                    let oldest = known.iter().min_by_key(|(_, known)| known.number);
                    let Some(oldest) = oldest.map(|(disk, _)| disk.clone()) else { break };
                    known.remove(&oldest);
                }
            }
        })
    }

    /// Returns the disks, by name.
    pub fn disks(&self) -> BTreeMap<String, RememberedDisk> {
        self.memory.locked().disks.clone()
    }

    /// Remembers a disk, without what was accepted for it.
    ///
    /// # Errors
    /// See [`StateError`]; the state is then unchanged.
    pub fn remember(&self, mut disk: RememberedDisk) -> Result<(), StateError> {
        disk.config.forget_acceptances();
        self.change(|memory| drop(memory.disks.insert(disk.config.name.clone(), disk)))
    }

    /// Returns a pool's account of flash writes.
    pub fn flash_account(&self, pool: &str) -> Option<Account> {
        self.memory.locked().flash_accounts.get(pool).copied()
    }

    /// Keeps a pool's account of flash writes.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn keep_flash_account(&self, pool: &str, account: Account) -> Result<(), StateError> {
        self.change(|memory| {
            memory.flash_accounts.insert(pool.into(), account);
        })
    }

    /// Forgets a disk.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn forget(&self, name: &str) -> Result<(), StateError> {
        self.change(|memory| drop(memory.disks.remove(name)))
    }

    /// Returns the arenas that lost their last cache device and were not opened since, so that their contents are void.
    /// The pool that is to be opened is known by its name only; another pool may have had that name.
    pub fn void_arenas(&self, name: &str) -> Vec<VoidArena> {
        let memory = self.memory.locked();
        let by_id = memory.lost_arenas.iter().map(|(id, numbers)| (Some(id.0), numbers));
        let by_name = memory.lost_pools.get(name).map(|numbers| (None, numbers));
        let void = |(pool, numbers): (Option<Uuid>, &BTreeSet<u8>)| {
            let arena = |number: &u8| VoidArena { pool, number: ArenaNo(*number) };
            numbers.iter().map(arena).collect::<Vec<_>>()
        };
        by_id.chain(by_name).flat_map(void).collect()
    }

    /// Records that an arena lost its last cache device.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn add_lost(&self, arena: ArenaId) -> Result<(), StateError> {
        self.change(|memory| {
            memory.lost_arenas.entry(PoolId(arena.pool)).or_default().insert(arena.number.0);
        })
    }

    /// Records that a pool was opened, so that all its arenas are valid again. Returns whether any was void.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn opened(&self, name: &str, id: Uuid) -> Result<bool, StateError> {
        let mut was_void = false;
        self.change(|memory| {
            let removed = (memory.lost_arenas.remove(&PoolId(id)), memory.lost_pools.remove(name));
            was_void = removed != (None, None);
        })?;
        Ok(was_void)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_disks_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        let disk =
            RememberedDisk { config: DiskConfig::new("vm1", "main", "/dev/b"), by_api: true, attached: true };
        state.remember(disk.clone()).unwrap();
        let again = State::open(dir.path()).unwrap();
        assert_eq!(again.disks()["vm1"], disk);
        again.forget("vm1").unwrap();
        assert!(State::open(dir.path()).unwrap().disks().is_empty());
    }

    #[test]
    fn a_pool_is_void_under_any_name_until_it_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (pool, other, number) = (Uuid([7; 16]), Uuid([8; 16]), ArenaNo(1));
        State::open(dir.path()).unwrap().add_lost(ArenaId { pool, number }).unwrap();
        let state = State::open(dir.path()).unwrap();
        let void = vec![VoidArena { pool: Some(pool), number }];
        assert_eq!((state.void_arenas("main"), state.void_arenas("renamed")), (void.clone(), void.clone()));
        assert!(!state.opened("main", other).unwrap());
        assert_eq!(State::open(dir.path()).unwrap().void_arenas("main"), void);
        assert!(state.opened("renamed", pool).unwrap());
        assert_eq!(State::open(dir.path()).unwrap().void_arenas("main"), []);
    }

    #[test]
    fn a_loss_that_an_earlier_version_noted_by_name_still_counts() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"disks": {}, "lost_pools": {"main": [0]}}"#;
        std::fs::write(dir.path().join("state.json"), text).unwrap();
        let state = State::open(dir.path()).unwrap();
        assert_eq!(state.void_arenas("main"), [VoidArena { pool: None, number: ArenaNo(0) }]);
        assert_eq!(state.void_arenas("other"), []);
        assert!(state.opened("main", Uuid([7; 16])).unwrap());
        assert_eq!(State::open(dir.path()).unwrap().void_arenas("main"), []);
    }

    #[test]
    fn what_earlier_versions_remembered_as_accepted_is_not_accepted_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new("vm1", "main", "/dev/b");
        (config.accept_loss, config.accept_origin_change) = (Some("vm1".into()), Some("vm1".into()));
        let disk = RememberedDisk { config, by_api: true, attached: true };
        let memory = Memory { disks: [("vm1".to_string(), disk)].into(), ..Memory::default() };
        replace(&dir.path().join("state.json"), &memory).unwrap();
        let config = State::open(dir.path()).unwrap().disks()["vm1"].config.clone();
        assert_eq!(config, DiskConfig::new("vm1", "main", "/dev/b"));
    }

    #[test]
    fn the_latest_take_over_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, state) = (DiskId([1; 16]), State::open(dir.path()).unwrap());
        state.note_taken_over([(disk, HostId(2), 7)]).unwrap();
        state.note_taken_over([(disk, HostId(3), 5)]).unwrap();
        assert_eq!(State::open(dir.path()).unwrap().taken_over(disk), Some((HostId(2), 7)));
        state.note_taken_over([(disk, HostId(3), 9)]).unwrap();
        assert_eq!(State::open(dir.path()).unwrap().taken_over(disk), Some((HostId(3), 9)));
        state.forget_taken_over(disk).unwrap();
        assert_eq!(State::open(dir.path()).unwrap().taken_over(disk), None);
    }

    #[test]
    fn what_was_known_of_disks_only_grows_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, state) = (DiskId([1; 16]), State::open(dir.path()).unwrap());
        let known = |epoch, had| KnownBefore { epoch, had };
        state.note_known([(disk, known(7, Some(6)))]).unwrap();
        state.note_known([(disk, known(5, Some(5)))]).unwrap();
        assert_eq!(State::open(dir.path()).unwrap().known_before(disk), Some(known(7, Some(6))));
        let id = |number: usize| {
            let [low, high] = [number as u8, (number >> 8) as u8];
            DiskId([2, low, high, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        };
        state.note_known((0..MOST_KNOWN - 1).map(|number| (id(number), known(1, None)))).unwrap();
        assert_eq!(state.known_before(disk), Some(known(7, Some(6))), "there is room for it");
        state.note_known([(id(MOST_KNOWN), known(1, None))]).unwrap();
        let again = State::open(dir.path()).unwrap();
        assert_eq!((again.known_before(disk), again.known_before(id(0))), (None, Some(known(1, None))));
    }

    #[test]
    fn a_write_cache_that_is_off_stays_off_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, other) = (DiskId([1; 16]), DiskId([2; 16]));
        for as_of in [AsOf::Always, AsOf::Epoch(7), AsOf::Waiting] {
            let off = WriteCacheMemory { is_off: true, as_of };
            State::open(dir.path()).unwrap().change_write_cache(disk, |_| off).unwrap();
            let state = State::open(dir.path()).unwrap();
            assert_eq!([disk, other].map(|disk| state.write_cache(disk)), [off, WriteCacheMemory::default()]);
        }
        let state = State::open(dir.path()).unwrap();
        state.change_write_cache(disk, |_| WriteCacheMemory::default()).unwrap();
        let text = std::fs::read_to_string(state.path()).unwrap();
        assert!(!text.contains("write_cache"), "a forgotten disk leaves nothing: {text}");
    }

    #[test]
    fn a_write_cache_that_an_earlier_version_noted_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskId([1; 16]);
        let text = format!(r#"{{"disks": {{}}, "without_write_cache": ["{disk}"]}}"#);
        std::fs::write(dir.path().join("state.json"), text).unwrap();
        let memory = State::open(dir.path()).unwrap().write_cache(disk);
        assert!(memory.is_off && memory.is_sure(Some(7)));
    }

    #[test]
    fn locked_stores_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, state) = (DiskId([1; 16]), State::open(dir.path()).unwrap());
        state.note_locked(disk, true).unwrap();
        assert!(State::open(dir.path()).unwrap().has_locked(disk));
        state.note_locked(disk, false).unwrap();
        assert!(!State::open(dir.path()).unwrap().has_locked(disk));
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state.json"), "{\"disks\":").unwrap();
        let error = State::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("state.json") && error.contains("restore"), "{error}");
    }
}
