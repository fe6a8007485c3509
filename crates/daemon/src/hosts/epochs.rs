//! Takeovers by force that concern this host: another host may by now own a disk that this host has recorded as its
//! own.
//!
//! Invariants
//! - After a start, a disk that this host has recorded as its own is served only once the hosts that can be reached
//!   were asked about it and have answered. The other hosts are asked once they are connected, until they answer. Until
//!   then, the record counts: otherwise a cluster with one dead host could not start again.
//! - Only the host that takes a disk over can confirm that it has done so, by its answer or by its entry in the
//!   cluster's directory: the takeover may have failed after others had noted it. Until that is known, this host does
//!   not begin to serve the disk.
//! - A host that is told of a takeover remembers it, even if it does not know the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use haversack_core::Moved;
use haversack_engine::RecordedDisk;
use haversack_migrate::{
    HostRecord, KnownOwner, ReplicaAge, complete_replica, has_complete_replica, is_void_under_any, may_yield,
};
use haversack_model::{DiskId, HostId};

use super::find::MAY_HAVE_IT;
use super::known::after_take_over;
use super::questions::Questions;
use super::talk::{Answer, Question};
use super::waits::Waits;
use super::witness::Witness;
use super::write_caches::WriteCaches;
use super::{Hosts, bytes};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::pool::Pool;
use crate::rbd::lock::LockError;

/// How long the other hosts have to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How often to check whether hosts are connected, and whether something is on record.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the host of a disk that waits here is asked for its state.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How long a record may take to be written.
pub(super) const RECORD_TIME: Duration = Duration::from_secs(60);

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

/// Returns whether a takeover of a disk by another host matters to this host.
fn is_concerned(disk: &RecordedDisk) -> bool {
    haversack_migrate::is_concerned(&disk.info, disk.dirty_blocks)
}

/// What other hosts say of a disk that this one has on record as its own.
#[derive(PartialEq, Eq, Debug)]
enum Heard {
    /// No host has taken it over.
    Nothing,
    /// The named host has taken it over, under this epoch.
    TakenOver(HostId, u64),
    /// The named host was about to take it over, and does not answer.
    Unclear(HostId),
}

/// Evaluates the other hosts' records of a disk and this host's own note. This host has recorded the disk under
/// `epoch`.
fn judge(
    (me, epoch, is_void_under_any): (HostId, u64, bool),
    records: &[(HostId, HostRecord)],
    noted: Option<(HostId, u64)>,
) -> Heard {
    let news = |(host, record): &(HostId, HostRecord)| Some((*host, record.news(is_void_under_any, epoch)?));
    let newest = records.iter().filter_map(news).max_by_key(|(_, taken)| *taken);
    if let Some((by, taken)) = newest {
        return Heard::TakenOver(by, taken);
    }
    let has_answered = |host: HostId| records.iter().any(|(answering, _)| *answering == host);
    let rumours = records.iter().filter_map(|(_, record)| record.owner.rumour()).chain(noted);
    let mut unclear = rumours.filter(|(by, taken)| *by != me && *taken > epoch && !has_answered(*by));
    unclear.next().map_or(Heard::Nothing, |(by, _)| Heard::Unclear(by))
}

impl Daemon {
    pub(super) fn pool_with(&self, id: DiskId) -> Option<(&Pool, RecordedDisk)> {
        self.pools().find_map(|pool| Some((pool, pool.backend.recorded_disk(id).ok().flatten()?)))
    }

    /// Returns the pool that has a disk on record. Fails if a pool is not open, because that pool may have the disk.
    fn on_record(&self, id: DiskId) -> Result<Option<(&Pool, RecordedDisk)>> {
        for pool in self.pools() {
            if let Some(disk) = pool.backend.recorded_disk(id)? {
                return Ok(Some((pool, disk)));
            }
        }
        if self.closed.closed().next().is_some() {
            return Err(DaemonError::conflict(MAY_HAVE_IT, "see 'haversack status' there"));
        }
        Ok(None)
    }

    /// Returns what this host has on record of a disk.
    ///
    /// # Errors
    /// That cannot be known: a pool is not open.
    pub(super) fn record_of(&self, id: DiskId) -> Result<HostRecord> {
        // Read this before the record: once the disk is no longer being taken over, the record shows the outcome.
        let is_taking = self.hosts().is_some_and(|hosts| hosts.taking.locked().contains(&id));
        let disk = self.on_record(id)?.map(|(_, disk)| disk);
        let noted = self.state.taken_over(id);
        let owner = disk.as_ref().map_or(KnownOwner::Unknown, |disk| KnownOwner::of(&disk.info));
        let owner = match noted {
            Some((by, epoch)) if epoch > owner.epoch() => KnownOwner::Overtaken { by: by.0, epoch },
            _ => owner,
        };
        Ok(HostRecord {
            owner,
            has_complete_replica: disk.as_ref().and_then(|disk| has_complete_replica(&disk.info)),
            replica: disk.as_ref().and_then(|disk| complete_replica(&disk.info)),
            dirty_blocks: disk.map_or(0, |disk| disk.dirty_blocks),
            has_losses: disk.is_some_and(|disk| disk.has_losses),
            mode: disk.filter(|disk| disk.info.attached).map(|disk| disk.info.mode.to_string()),
            is_taking,
            before: self.state.known_before(id),
            write_cache: self.state.write_cache(id).told(),
        })
    }

    /// Returns the epoch under which this host owns a disk, if it does and that is known.
    pub(crate) fn owned_epoch(&self, id: DiskId) -> Option<u64> {
        match self.record_of(id).ok()?.owner {
            KnownOwner::Me { epoch } => Some(epoch),
            _ => None,
        }
    }

    /// Records that another host, which may have a complete replica of the disk, takes it over. Returns once the pools
    /// have recorded it.
    pub(super) fn yield_to(
        &self,
        host: HostId,
        id: DiskId,
        epoch: u64,
        replica: Option<ReplicaAge>,
    ) -> Result<()> {
        self.check_not_concerned(id, replica)?;
        // The takeover may fail. The epochs of the current record are certain, so remember them.
        self.remember_record(id)?;
        // The note comes first: an attach that runs meanwhile checks the note once the pool knows the disk.
        self.state.note_taken_over([(id, host, epoch)])?;
        self.pools().try_for_each(|pool| {
            self.until_recorded(|| {
                if let Err(granted) = self.check_not_concerned(id, replica) {
                    self.state.forget_taken_over(id)?;
                    return Err(granted);
                }
                Ok(pool.backend.overtaken(id, host, epoch)?)
            })
        })
    }

    fn check_not_concerned(&self, id: DiskId, theirs: Option<ReplicaAge>) -> Result<()> {
        match self.on_record(id)? {
            Some((_, disk)) if !may_yield(&disk.info, disk.dirty_blocks, theirs) => {
                Err(DaemonError::conflict("has it, or dirty blocks of it", "move it from there"))
            }
            _ => Ok(()),
        }
    }

    fn record_overtaken(&self, pool: &Pool, id: DiskId, by: HostId, epoch: u64) -> Result<()> {
        self.until_recorded(|| Ok(pool.backend.overtaken(id, by, epoch)?))
    }

    /// Calls `is_recorded` repeatedly until it returns true.
    fn until_recorded(&self, is_recorded: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + RECORD_TIME;
        while !is_recorded()? {
            if Instant::now() >= deadline || self.is_stopping() {
                return Err(DaemonError::conflict(
                    "the takeover of the disk cannot be recorded",
                    "see the log for what the disk waits for",
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Asks the other hosts whether a disk that this one has on record was taken over while it was away.
    ///
    /// # Errors
    /// A host that can be reached does not answer or is taking the disk over now, or one that cannot be reached may
    /// have taken it over.
    pub(super) fn check_epoch(&self, id: DiskId) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let Some((pool, disk)) = self.pool_with(id).filter(|(_, disk)| is_concerned(disk)) else {
            return Ok(());
        };
        let records = hosts.records(&hosts.others(), id)?;
        if let Some((host, _)) = records.iter().find(|(_, record)| record.is_taking) {
            let what = format!("host '{}' is taking the disk over", hosts.name_of(*host));
            return Err(DaemonError::conflict(what, "try again when that has ended"));
        }
        let is_void_under_any = is_void_under_any(&disk.info, disk.dirty_blocks);
        if let Some((by, epoch)) = self.certain_take_over(&hosts, id, disk.info.epoch)? {
            return self.record_overtaken(pool, id, by, epoch);
        }
        match judge((hosts.me, disk.info.epoch, is_void_under_any), &records, self.state.taken_over(id)) {
            Heard::Nothing => self.forget_void_note(id, &records),
            Heard::TakenOver(by, epoch) => {
                self.remember_taken_over(id, epoch)?;
                // Noted first: if the pool cannot record it now, the next start knows of it.
                self.state.note_taken_over([(id, by, epoch)])?;
                self.record_overtaken(pool, id, by, epoch)
            }
            Heard::Unclear(by) => Err(DaemonError::conflict(
                format!("host '{}' may have taken the disk over, and is not connected", hosts.name_of(by)),
                "connect it; or, if it is permanently dead and has not served the disk, 'haversack disk forget' on the hosts \
                 that have noted its takeover",
            )),
        }
    }

    /// Returns the error of a disk whose lock was taken away. If another host says that it has taken the disk over,
    /// that is recorded here, and the error names that host.
    pub(crate) fn or_who_took_it(&self, name: &str, id: DiskId, error: DaemonError) -> DaemonError {
        if !matches!(error, DaemonError::Locked(LockError::Lost { .. })) {
            return error;
        }
        if let Err(unknown) = self.check_epoch(id) {
            tracing::debug!(disk = name, "whether it was taken over is not known: {unknown}");
        }
        let disk = self.pool_with(id).map(|(_, disk)| disk);
        let Some((Moved::Overtaken { to }, dirty_blocks)) = disk.map(|d| (d.info.moved, d.dirty_blocks))
        else {
            return error;
        };
        let by = self.host_name(to);
        DaemonError::conflict(
            format!(
                "host '{by}' has taken over disk '{name}', and the lock of its origin was taken away from this host; {} bytes that \
                 were dirty here are kept until 'haversack disk forget {name}', then the disk can be attached again",
                bytes(dirty_blocks)
            ),
            "see what is dirty with 'haversack flush-offline --list'; then forget the disk here, and attach it again",
        )
    }

    /// Asks the host that was about to take a disk over, and forgets the takeover if it has failed.
    pub(super) fn check_note(&self, hosts: &Hosts, id: DiskId) -> Result<()> {
        let Some((by, _)) = self.state.taken_over(id) else { return Ok(()) };
        self.forget_void_note(id, &hosts.records(&[by], id)?)
    }

    fn forget_void_note(&self, id: DiskId, records: &[(HostId, HostRecord)]) -> Result<()> {
        let Some((by, epoch)) = self.state.taken_over(id) else { return Ok(()) };
        let is_void = |record: &HostRecord| !record.is_taking && record.epoch() < epoch;
        if records.iter().any(|(host, record)| *host == by && is_void(record)) {
            self.state.forget_taken_over(id)?;
        }
        Ok(())
    }

    /// Applies a noted takeover in a pool that has just attached the disk.
    pub(crate) fn apply_taken_over(&self, pool: &Pool, id: DiskId) -> Result<()> {
        match self.state.taken_over(id) {
            Some((by, epoch)) if self.hosts().is_some_and(|hosts| hosts.me != by) => {
                self.record_overtaken(pool, id, by, epoch)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether takeovers of a disk matter here: the disk moves, and this host has it, has had it, or waits for
    /// it.
    fn may_come_here(&self, disk: &Disk) -> bool {
        let Ok(pool) = self.pool(&disk.config().pool) else { return false };
        matches!(pool.backend.migration_status(disk.id), Ok(Some(_)))
    }

    /// Returns the host of a disk that waits here.
    fn owner_elsewhere(&self, disk: &Disk) -> Option<HostId> {
        let pool = self.pool(&disk.config().pool).ok()?;
        pool.backend.migration_status(disk.id).ok().flatten()?.owner_elsewhere()
    }
}

impl Hosts {
    /// Asks hosts for their records of a disk; returns those of the hosts that are connected.
    ///
    /// # Errors
    /// A host is connected and has not said what it has on record.
    pub(super) fn records(&self, hosts: &[HostId], id: DiskId) -> Result<Vec<(HostId, HostRecord)>> {
        self.wait_for_connections(hosts);
        self.records_now(hosts, id)
    }

    /// As [`Hosts::records`], but without waiting for connections.
    ///
    /// # Errors
    /// As [`Hosts::records`].
    pub(super) fn records_now(&self, hosts: &[HostId], id: DiskId) -> Result<Vec<(HostId, HostRecord)>> {
        let answers = self.ask_now(hosts, id, &Question::Record);
        let deadline = Instant::now() + PATIENCE;
        let (mut records, mut refused) = (Vec::new(), HashMap::new());
        while let Ok((host, answer)) =
            answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            match answer {
                Answer::Record(record) => records.push((host, record)),
                Answer::Refused(why) => drop(refused.insert(host, why)),
                _ => {}
            }
        }
        let has_answered = |host: &HostId| records.iter().any(|(answering, _)| answering == host);
        let Some(host) = hosts.iter().find(|host| self.is_connected(**host) && !has_answered(host)) else {
            return Ok(records);
        };
        let why = refused.get(host).map_or_else(String::new, |why| format!(": it {why}"));
        let hint = match refused.get(host) {
            Some(_) => "correct that there, or stop haversackd on that host; then try again",
            None => "try again",
        };
        let what = format!("host '{}' is connected and has not answered{why}", self.name_of(*host));
        Err(DaemonError::conflict(what, hint))
    }
}

/// Asks hosts for their records when they have connected again, until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let mut watch = Watch::default();
    super::watch(
        daemon,
        ("epochs", "asking hosts for the owners of disks"),
        LOOK_EVERY,
        move |daemon, hosts| watch.look(daemon, hosts),
    )
}

#[derive(Default)]
struct Watch {
    connected: HashMap<HostId, SystemTime>,
    questions: Questions,
    owners_asked: Option<Instant>,
    waits: Waits,
    witness: Witness,
    write_caches: WriteCaches,
    /// Disks that were taken over, with the host and the epoch, until that is on record.
    overtaken: Vec<(DiskId, HostId, u64)>,
}

impl Watch {
    fn look(&mut self, daemon: &Daemon, hosts: &Hosts) {
        self.look_at_connections(daemon, hosts);
        self.overtaken.extend(self.witness.look(daemon, hosts));
        for disk in self.write_caches.look(daemon, Instant::now()) {
            self.connected.keys().for_each(|host| self.questions.add(*host, disk));
        }
        let answers = self.questions.take_answers(Instant::now());
        self.questions.ask(Instant::now(), |host, disk| hosts.ask_now(&[host], disk, &Question::Record));
        self.hear(daemon, hosts, answers);
    }

    fn look_at_connections(&mut self, daemon: &Daemon, hosts: &Hosts) {
        let connected: HashMap<HostId, SystemTime> = hosts.connections().into_iter().collect();
        let is_same = |host: &HostId| connected.get(host) == self.connected.get(host);
        self.questions.retain(|host| connected.contains_key(host) && is_same(host));
        let new: Vec<HostId> = connected.keys().copied().filter(|host| !is_same(host)).collect();
        if !new.is_empty() {
            for disk in daemon.disks().values().filter(|disk| daemon.may_come_here(disk)) {
                new.iter().for_each(|host| self.questions.add(*host, disk.id));
            }
        }
        if self.owners_asked.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            self.owners_asked = Some(Instant::now());
            for disk in daemon.disks().values() {
                if let Some(owner) = daemon.owner_elsewhere(disk).filter(|host| connected.contains_key(host))
                {
                    self.questions.add(owner, disk.id);
                }
            }
            let others = self.waits.whom_to_ask(daemon, hosts);
            let others = others.into_iter().filter(|(host, _)| connected.contains_key(host));
            others.for_each(|(host, id)| self.questions.add(host, id));
        }
        self.connected = connected;
    }

    /// Processes what other hosts have on record. Stops serving all disks that were taken over before it waits
    /// for the first record.
    fn hear(&mut self, daemon: &Daemon, hosts: &Hosts, answers: Vec<(HostId, DiskId, HostRecord)>) {
        let (mut news, mut before) = (Vec::new(), Vec::new());
        for (host, id, record) in answers {
            if let Some(told) = record.write_cache {
                daemon.learn_write_cache(id, &hosts.name_of(host), told);
            }
            let disk = daemon.pool_with(id).map(|(_, disk)| disk);
            let taken = disk.as_ref().and_then(|RecordedDisk { info, dirty_blocks, .. }| {
                record.news(is_void_under_any(info, *dirty_blocks), info.epoch)
            });
            self.waits.follow(hosts, (host, id, &record), disk.as_ref());
            if let Some(epoch) = taken {
                tracing::warn!(%id, by = hosts.name_of(host), "the disk was taken over");
                news.push((id, host, epoch));
                before.extend(disk.as_ref().map(|disk| (id, after_take_over(disk, epoch))));
            } else {
                self.waits.hear(daemon, (host, id, &record), disk.as_ref());
            }
            if matches!(record.owner, KnownOwner::Me { .. }) {
                let heard = LastHeard { host, record, at: SystemTime::now() };
                hosts.heard_of.locked().insert(id, heard);
            }
        }
        self.overtaken.extend(&news);
        // Noted before the pools record it: whatever they do, the next start knows of it.
        if !news.is_empty()
            && let Err(error) =
                daemon.state.note_taken_over(news).and_then(|()| daemon.state.note_known(before))
        {
            tracing::error!("the takeovers have not been recorded: {error}");
        }
        self.overtaken.retain(|(id, by, epoch)| {
            let Some((pool, _)) = daemon.pool_with(*id) else { return false };
            match pool.backend.overtaken(*id, *by, *epoch) {
                Ok(is_on_record) => !is_on_record,
                Err(error) => {
                    tracing::error!(%id, by = hosts.name_of(*by), "the takeover has not been recorded: {error}");
                    false
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use haversack_ownership::least_forced_epoch;

    use super::*;

    fn record(owner: KnownOwner, is_taking: bool) -> HostRecord {
        HostRecord { owner, is_taking, ..HostRecord::default() }
    }

    #[test]
    fn only_the_host_that_takes_a_disk_over_is_believed_that_it_has() {
        let (me, beta, gamma) = (HostId(1), HostId(2), HostId(3));
        let says = |host, owner| (host, record(owner, false));
        let noted = |by, epoch| says(gamma, KnownOwner::Overtaken { by, epoch });
        let owns = |epoch| says(beta, KnownOwner::Me { epoch });
        let nothing = || says(beta, KnownOwner::Unknown);
        for (answers, own_note, expected) in [
            (vec![], None, Heard::Nothing),
            (vec![noted(2, 9)], None, Heard::Unclear(beta)),
            (vec![], Some((beta, 9)), Heard::Unclear(beta)),
            (vec![noted(2, 9), nothing()], Some((beta, 9)), Heard::Nothing),
            (vec![noted(2, 9), owns(9)], None, Heard::TakenOver(beta, 9)),
            (vec![noted(4, 12), owns(9)], None, Heard::TakenOver(beta, 9)),
            (vec![noted(2, 5), owns(5)], None, Heard::Nothing),
            (vec![noted(1, 9)], None, Heard::Nothing),
            (
                vec![says(gamma, KnownOwner::Released { to: 1, epoch: 6, passed_on: false })],
                None,
                Heard::Nothing,
            ),
        ] {
            assert_eq!(judge((me, 5, true), &answers, own_note), expected, "{answers:?}, {own_note:?}");
        }
        // Blocks kept for the host to which the disk was released are needed by the host to which that one has passed
        // the disk on.
        assert_eq!(judge((me, 5, false), &[owns(6)], None), Heard::Nothing);
        let forced = least_forced_epoch(5);
        assert_eq!(judge((me, 5, false), &[owns(forced)], None), Heard::TakenOver(beta, forced));
    }
}
