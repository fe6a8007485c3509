//! Take-overs by force that this host must hear of: what it owns may be another host's by now.
//!
//! Invariants
//! - A disk that this host has on record as its own is served after a start only when the hosts that can be reached were
//!   asked for it. Those that cannot are asked when they are connected. Until then the record counts: otherwise a cluster in
//!   which one host is dead could not start again.
//! - A host that is told of a take-over remembers it, also if it does not know the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use haversack_core::Moved;
use haversack_engine::RecordedDisk;
use haversack_model::{BLOCK_BYTES, DiskId, HostId, WriteMode};
use haversack_ownership::Record;
use serde::{Deserialize, Serialize};

use super::Hosts;
use super::talk::{Answer, Question};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::pool::Pool;

/// How long the other hosts have to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether hosts are connected, and whether something is on record.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the host of a disk that waits here is asked for its state.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How long a record may take to be written.
const RECORD_TIME: Duration = Duration::from_secs(60);

/// What a host has on record of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostRecord {
    /// Who owns it, as far as that host knows.
    pub owner: KnownOwner,
    /// Its dirty blocks there.
    pub dirty_blocks: u64,
    /// Its write mode there, if it is attached.
    pub mode: Option<String>,
    /// That host is about to take it over by force.
    pub is_taking: bool,
}

/// Who owns a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownOwner {
    /// Nothing is on record.
    Unknown,
    /// The host itself.
    Me {
        /// Under this epoch.
        epoch: u64,
    },
    /// Another one, to which it was released.
    Released {
        /// That host.
        to: u64,
        /// The epoch that it was granted.
        epoch: u64,
    },
    /// Another one, which has taken it by force.
    Overtaken {
        /// That host.
        by: u64,
        /// Under this epoch.
        epoch: u64,
    },
}

impl KnownOwner {
    /// Returns the highest epoch that is known.
    pub fn epoch(self) -> u64 {
        match self {
            KnownOwner::Unknown => 0,
            KnownOwner::Me { epoch }
            | KnownOwner::Released { epoch, .. }
            | KnownOwner::Overtaken { epoch, .. } => epoch,
        }
    }

    /// Returns a host that has had the disk, and under which epoch, as `host` says.
    fn last_owner(self, host: HostId) -> Option<(HostId, u64)> {
        match self {
            KnownOwner::Unknown => None,
            KnownOwner::Me { epoch } => Some((host, epoch)),
            // It had the disk before it let it go.
            KnownOwner::Released { epoch, .. } => Some((host, epoch.saturating_sub(1))),
            KnownOwner::Overtaken { by, epoch } => Some((HostId(by), epoch)),
        }
    }
}

/// What a disk's host said last.
#[derive(Clone, Debug)]
pub struct LastHeard {
    /// The host.
    pub host: HostId,
    /// What it has on record.
    pub record: HostRecord,
    /// When.
    pub at: SystemTime,
}

fn owner_of(disk: &RecordedDisk) -> KnownOwner {
    let epoch = disk.info.epoch;
    match disk.info.moved {
        _ if disk.info.owned => KnownOwner::Me { epoch },
        Moved::Away { to, .. } | Moved::Peer { to } => KnownOwner::Released { to: to.0, epoch },
        Moved::Overtaken { to } => KnownOwner::Overtaken { by: to.0, epoch },
        Moved::No | Moved::Depends { .. } => KnownOwner::Unknown,
    }
}

/// Whether it matters here that another host has taken a disk over: this host owns it, or has blocks for its owner.
fn is_concerned(disk: &RecordedDisk) -> bool {
    disk.info.owned || matches!(disk.info.moved, Moved::Peer { .. }) && disk.dirty_blocks > 0
}

/// Whether a disk in this write mode, as [`HostRecord`] has it, has no dirty blocks of its own making.
pub(super) fn is_through(mode: &str) -> bool {
    mode.parse::<WriteMode>().is_ok_and(|mode| !mode.defers_origin())
}

impl Daemon {
    pub(super) fn pool_with(&self, id: DiskId) -> Option<(&Pool, RecordedDisk)> {
        self.pools().find_map(|pool| Some((pool, pool.backend.recorded_disk(id).ok().flatten()?)))
    }

    /// Returns what this host has on record of a disk.
    pub(super) fn record_of(&self, id: DiskId) -> HostRecord {
        let is_taking = self.hosts().is_some_and(|hosts| hosts.taking.locked().contains(&id));
        let disk = self.pool_with(id).map(|(_, disk)| disk);
        let noted = self.state.taken_over(id);
        let owner = disk.as_ref().map_or(KnownOwner::Unknown, owner_of);
        let owner = match noted {
            Some((by, epoch)) if epoch > owner.epoch() => KnownOwner::Overtaken { by: by.0, epoch },
            _ => owner,
        };
        HostRecord {
            owner,
            dirty_blocks: disk.map_or(0, |disk| disk.dirty_blocks),
            mode: disk.filter(|disk| disk.info.attached).map(|disk| disk.info.mode.to_string()),
            is_taking,
        }
    }

    /// Notes that another host takes a disk over, and returns when that is on record.
    pub(super) fn yield_to(&self, host: HostId, id: DiskId, epoch: u64) -> Result<()> {
        let found = self.pool_with(id);
        if found.as_ref().is_some_and(|(_, disk)| is_concerned(disk)) {
            return Err(DaemonError::conflict("has it, or dirty blocks of it", "move it from there"));
        }
        self.state.note_taken_over(id, host, epoch)?;
        let Some((pool, _)) = found else { return Ok(()) };
        self.record_overtaken(pool, id, host, epoch)
    }

    fn record_overtaken(&self, pool: &Pool, id: DiskId, by: HostId, epoch: u64) -> Result<()> {
        let deadline = Instant::now() + RECORD_TIME;
        while !pool.backend.overtaken(id, by, epoch)? {
            if Instant::now() >= deadline || self.is_stopping() {
                return Err(DaemonError::conflict(
                    "it cannot be recorded that the disk was taken over",
                    "see the log for what the disk waits for",
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Takes in what another host has on record of a disk: it may know that the disk was taken over from this one.
    pub(super) fn hear_of(&self, from: HostId, id: DiskId, record: &HostRecord) {
        let Some(hosts) = self.hosts() else { return };
        let Some((pool, disk)) = self.pool_with(id) else { return };
        let newer =
            record.owner.last_owner(from).filter(|(by, epoch)| *by != hosts.me && *epoch > disk.info.epoch);
        let Some((by, epoch)) = newer.filter(|_| is_concerned(&disk)) else { return };
        if let Err(error) = self
            .state
            .note_taken_over(id, by, epoch)
            .map_err(Into::into)
            .and_then(|()| self.record_overtaken(pool, id, by, epoch))
        {
            tracing::error!(%id, host = hosts.name_of(by), "another host has taken the disk over: {error}");
        }
    }

    /// Asks the other hosts whether a disk that this one has on record was taken over while it was away.
    pub(super) fn check_epoch(&self, id: DiskId) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let Some((pool, disk)) = self.pool_with(id).filter(|(_, disk)| is_concerned(disk)) else {
            return Ok(());
        };
        if let Some((by, epoch)) = self.state.taken_over(id).filter(|(_, epoch)| *epoch > disk.info.epoch) {
            return self.record_overtaken(pool, id, by, epoch);
        }
        for (host, record) in hosts.records(&hosts.others(), id) {
            self.hear_of(host, id, &record);
        }
        Ok(())
    }

    /// Makes what was noted of a take-over known to a pool that has just attached the disk.
    pub(crate) fn apply_taken_over(&self, pool: &Pool, id: DiskId) -> Result<()> {
        match self.state.taken_over(id) {
            Some((by, epoch)) if self.hosts().is_some_and(|hosts| hosts.me != by) => {
                self.record_overtaken(pool, id, by, epoch)
            }
            _ => Ok(()),
        }
    }
}

impl Hosts {
    /// Asks hosts for their records of a disk; returns the answers of those that answer in time.
    pub(super) fn records(&self, hosts: &[HostId], id: DiskId) -> Vec<(HostId, HostRecord)> {
        self.wait_for_connections(hosts);
        let connected: Vec<HostId> =
            hosts.iter().copied().filter(|host| self.sender.is_connected(*host)).collect();
        let answers = self.ask_now(&connected, id, &Question::Record);
        let deadline = Instant::now() + PATIENCE;
        let mut records = Vec::new();
        while records.len() < connected.len()
            && let Ok((host, answer)) =
                answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Answer::Record(record) = answer {
                records.push((host, record));
            }
        }
        records
    }
}

/// Asks hosts that were away and are connected again, until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let Some(hosts) = daemon.hosts() else { return Ok(()) };
    let daemon = Arc::downgrade(daemon);
    let run = move || {
        let mut watch = Watch::default();
        while let Some(daemon) = daemon.upgrade().filter(|daemon| !daemon.is_stopping()) {
            watch.look(&daemon, &hosts);
            drop(daemon);
            std::thread::sleep(LOOK_EVERY);
        }
    };
    std::thread::Builder::new().name("epochs".into()).spawn(run).map(drop)
}

/// A question that is on its way.
struct Asked {
    disk: DiskId,
    answers: Receiver<(HostId, Answer)>,
    at: Instant,
}

#[derive(Default)]
struct Watch {
    connected: HashMap<HostId, SystemTime>,
    asked: Vec<Asked>,
    owners_asked: Option<Instant>,
}

impl Watch {
    fn look(&mut self, daemon: &Daemon, hosts: &Hosts) {
        for (host, since) in hosts.connections() {
            if self.connected.insert(host, since) != Some(since) {
                for disk in daemon.disks().values().filter(|disk| daemon.is_recorded_here(disk.id)) {
                    self.ask(hosts, host, disk.id);
                }
            }
        }
        if self.owners_asked.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            self.owners_asked = Some(Instant::now());
            for disk in daemon.disks().values() {
                if let Some(owner) = daemon.owner_elsewhere(disk.id) {
                    self.ask(hosts, owner, disk.id);
                }
            }
        }
        self.asked.retain(|asked| match asked.answers.try_recv() {
            Ok((host, Answer::Record(record))) => {
                daemon.hear_of(host, asked.disk, &record);
                let heard = LastHeard { host, record, at: SystemTime::now() };
                hosts.heard_of.locked().insert(asked.disk, heard);
                false
            }
            Ok(_) => false,
            Err(_) => asked.at.elapsed() < PATIENCE,
        });
    }

    fn ask(&mut self, hosts: &Hosts, host: HostId, disk: DiskId) {
        let answers = hosts.ask_now(&[host], disk, &Question::Record);
        self.asked.push(Asked { disk, answers, at: Instant::now() });
    }
}

impl Daemon {
    fn is_recorded_here(&self, id: DiskId) -> bool {
        self.pool_with(id).is_some_and(|(_, disk)| is_concerned(&disk))
    }

    /// Returns the host of a disk that waits here.
    fn owner_elsewhere(&self, id: DiskId) -> Option<HostId> {
        let (pool, _) = self.pool_with(id)?;
        let status = pool.backend.migration_status(id).ok().flatten()?;
        match status.record {
            Record::Owner { .. } => None,
            Record::Released { to, .. } | Record::Overtaken { by: to, .. } => Some(to),
            Record::Unknown => Some(status.from),
        }
    }
}

/// Returns the bytes of blocks.
pub(super) fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_has_let_a_disk_go_had_it_before() {
        let host = HostId(3);
        assert_eq!(KnownOwner::Unknown.last_owner(host), None);
        assert_eq!(KnownOwner::Me { epoch: 7 }.last_owner(host), Some((host, 7)));
        assert_eq!(KnownOwner::Released { to: 9, epoch: 7 }.last_owner(host), Some((host, 6)));
        assert_eq!(KnownOwner::Overtaken { by: 9, epoch: 7 }.last_owner(host), Some((HostId(9), 7)));
    }

    #[test]
    fn only_write_back_makes_dirty_blocks_of_its_own() {
        let through: Vec<bool> = WriteMode::ALL.into_iter().map(|mode| is_through(mode.name())).collect();
        let expected: Vec<bool> = WriteMode::ALL.into_iter().map(|mode| !mode.defers_origin()).collect();
        assert_eq!(through, expected);
        assert!(!is_through("another"));
    }
}
