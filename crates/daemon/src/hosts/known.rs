//! Remembers epochs of disks that this host was told to forget, or whose records were overwritten because another host
//! took the disk over.
//!
//! Otherwise, a host that has forgotten a disk would answer as if it had never had the disk. A delayed question could
//! then make that host pass on an epoch that is long over. And a host that was dead would not learn that its disk was
//! taken over. In both cases, two hosts could own the disk. Only the epochs are remembered, in `state.json`.
//!
//! Invariants
//! - The remembered epochs of a disk never decrease. They are durable before the record is gone.
//! - The epoch of another host's takeover is remembered only if that host has confirmed the takeover, to this host or
//!   in the cluster's directory. A takeover that failed must not keep the disk from coming here.

use haversack_engine::RecordedDisk;
use haversack_migrate::{KnownBefore, KnownOwner};
use haversack_model::{DiskId, HostId};

use super::Hosts;
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};

/// Returns the epochs to remember of a disk that another host has taken over under `epoch`.
pub(super) fn after_take_over(disk: &RecordedDisk, epoch: u64) -> KnownBefore {
    let taken = KnownBefore { epoch, had: None };
    KnownBefore::of(KnownOwner::of(&disk.info)).map_or(taken, |before| before.and(taken))
}

impl Daemon {
    /// Remembers the epochs of a disk's record.
    pub(super) fn remember_record(&self, id: DiskId) -> Result<()> {
        let before = self.pool_with(id).and_then(|(_, disk)| KnownBefore::of(KnownOwner::of(&disk.info)));
        Ok(self.state.note_known(before.map(|before| (id, before)))?)
    }

    /// Remembers the epochs of a disk's record, and the epoch under which another host says that it has taken the disk
    /// over.
    pub(super) fn remember_taken_over(&self, id: DiskId, epoch: u64) -> Result<()> {
        let taken = self.pool_with(id).map(|(_, disk)| (id, after_take_over(&disk, epoch)));
        Ok(self.state.note_known(taken)?)
    }

    /// Remembers the epochs of a disk that is about to be forgotten. Returns the recorded epoch. Returns `None` if this
    /// host knows no other hosts, or if no pool knows the disk.
    pub(crate) fn remember_forgotten(&self, id: DiskId) -> Result<Option<u64>> {
        let Some(hosts) = self.hosts() else { return Ok(None) };
        if let Some((by, epoch)) = self.state.taken_over(id) {
            self.remember_if_confirmed(&hosts, id, by, epoch)?;
        }
        let Some((_, disk)) = self.pool_with(id) else { return Ok(None) };
        self.remember_record(id)?;
        if let Some((by, epoch)) = KnownOwner::of(&disk.info).rumour() {
            self.remember_if_confirmed(&hosts, id, by, epoch)?;
        }
        Ok(Some(disk.info.epoch))
    }

    /// Remembers the epoch of another host's takeover if that host has, or had, the disk under that epoch. A host that
    /// cannot be asked may not have taken the disk, so nothing is remembered then.
    fn remember_if_confirmed(&self, hosts: &Hosts, id: DiskId, by: HostId, epoch: u64) -> Result<()> {
        let Ok(records) = hosts.records_now(&[by], id) else { return Ok(()) };
        let has_taken =
            records.iter().any(|(_, record)| record.held_under().is_some_and(|held| held >= epoch));
        let taken = has_taken.then_some((id, KnownBefore { epoch, had: None }));
        Ok(self.state.note_known(taken)?)
    }

    /// Returns the highest remembered epoch of a disk that is about to come from another host; 0 if there is none.
    ///
    /// # Errors
    /// The other host owns the disk under a lower epoch: the disk was attached there as a new one while this host could
    /// not be asked.
    pub(super) fn known_before_coming(&self, hosts: &Hosts, id: DiskId, from: HostId) -> Result<u64> {
        let known = self.state.known_before(id).map_or(0, |before| before.epoch);
        if known == 0 || from == hosts.me {
            return Ok(known);
        }
        for (host, record) in hosts.records_now(&[from], id)? {
            if let KnownOwner::Me { epoch } = record.owner
                && epoch < known
            {
                let host = hosts.name_of(host);
                return Err(DaemonError::conflict(
                    format!(
                        "host '{host}' owns the disk under epoch {epoch}, but this host knows that it was owned under epoch {known}"
                    ),
                    "if it was attached as a new disk on that host, detach it there, and attach it with that epoch or a higher one; if it was \
                     taken over from that host, attach it here once that host has learned of the takeover",
                ));
            }
        }
        Ok(known)
    }

    /// Returns the highest epoch of a disk that this host, a connected host or the directory has ever known. None of
    /// these hosts has the disk now.
    pub(super) fn highest_known(&self, hosts: &Hosts, id: DiskId) -> Result<u64> {
        let mine = self.state.known_before(id).map_or(0, |before| before.epoch).max(self.directory_epoch(id));
        let records = hosts.records_now(&hosts.others(), id)?;
        Ok(records.iter().map(|(_, record)| record.epoch()).fold(mine, u64::max))
    }
}

#[cfg(test)]
mod tests {
    use haversack_migrate::HostRecord;

    #[test]
    fn hosts_of_the_version_before_are_understood_and_understand() {
        let of_before = r#"{"owner":{"me":{"epoch":3}},"dirty-blocks":0,"mode":null,"is-taking":false}"#;
        let record: HostRecord = serde_json::from_str(of_before).expect("nothing is missing");
        assert_eq!((record.epoch(), record.held_under(), record.before), (3, Some(3), None));
        assert!(!serde_json::to_string(&record).expect("it is plain").contains("before"));
    }
}
