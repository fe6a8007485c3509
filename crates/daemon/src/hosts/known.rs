//! What this host knew of disks that it was told to forget, or whose record a take-over by another host has replaced.
//!
//! Without that, a host that has forgotten a disk would answer like one that never had it. A question from before that arrives
//! late could then make it pass on an epoch that is long over, and a host that was dead would not learn that the disk was taken
//! from it: in both cases two hosts could own the disk. Only the epochs are remembered, in `state.json`.
//!
//! Invariants
//! - What is remembered of a disk only grows, and it is durable before the record is gone.
//! - The epoch of another host's take-over is remembered only if that host has confirmed it: one that came to nothing must not keep
//!   the disk from coming here.

use haversack_engine::RecordedDisk;
use haversack_migrate::{KnownBefore, KnownOwner};
use haversack_model::{DiskId, HostId};

use super::Hosts;
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};

/// Returns what is to be remembered of a disk that another host has taken over under an epoch.
pub(super) fn after_take_over(disk: &RecordedDisk, epoch: u64) -> KnownBefore {
    let taken = KnownBefore { epoch, had: None };
    KnownBefore::of(KnownOwner::of(&disk.info)).map_or(taken, |before| before.and(taken))
}

impl Daemon {
    /// Remembers what is on record of a disk.
    pub(super) fn remember_record(&self, id: DiskId) -> Result<()> {
        let before = self.pool_with(id).and_then(|(_, disk)| KnownBefore::of(KnownOwner::of(&disk.info)));
        Ok(self.state.note_known(before.map(|before| (id, before)))?)
    }

    /// Remembers what is on record of a disk that another host has taken over under this epoch, as it says itself.
    pub(super) fn remember_taken_over(&self, id: DiskId, epoch: u64) -> Result<()> {
        let taken = self.pool_with(id).map(|(_, disk)| (id, after_take_over(&disk, epoch)));
        Ok(self.state.note_known(taken)?)
    }

    /// Remembers what is known of a disk that is to be forgotten, and returns the epoch that is on record. `None` if there are no other
    /// hosts, or no pool knows the disk.
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

    /// Remembers the epoch of another host's take-over if that host has the disk under it, or had it. One that cannot be asked may not
    /// have taken it.
    fn remember_if_confirmed(&self, hosts: &Hosts, id: DiskId, by: HostId, epoch: u64) -> Result<()> {
        let Ok(records) = hosts.records_now(&[by], id) else { return Ok(()) };
        let has_taken =
            records.iter().any(|(_, record)| record.held_under().is_some_and(|held| held >= epoch));
        let taken = has_taken.then_some((id, KnownBefore { epoch, had: None }));
        Ok(self.state.note_known(taken)?)
    }

    /// Returns the epoch that this host once knew of a disk that is to come from another one.
    ///
    /// # Errors
    /// That host owns the disk under an older epoch: it was made anew there, while this host could not be asked.
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
                        "host '{host}' has the disk under epoch {epoch}, and this host knew it under epoch {known} before it forgot it"
                    ),
                    "if it was made anew on that host, detach it there, and attach it with the epoch that this host knew, or a higher one",
                ));
            }
        }
        Ok(known)
    }

    /// Returns the highest epoch that this host, or another one that is connected, has ever known of a disk that none of them has now.
    pub(super) fn highest_known(&self, hosts: &Hosts, id: DiskId) -> Result<u64> {
        let mine = self.state.known_before(id).map_or(0, |before| before.epoch);
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
