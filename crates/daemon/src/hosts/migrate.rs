//! Sending a disk to another host, on request of an operator or of that host.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use haversack_api::{
    DiskConfig, DiskState, Job, JobKind, Method, MigrationState, MigrationStatus, Size, Span, StartMigration,
};
use haversack_core::{JobError, Progress};
use haversack_engine::{EngineError, MoveStatus};
use haversack_model::{DiskId, HostId, SECTOR_BYTES};
use haversack_ownership::Record;

use super::learned::Whose;
use super::talk::{Answer, Question};
use super::{Hosts, bytes, pace};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::jobs::JobControl;
use crate::locked::Locked;

/// How long the other host has to attach the disk.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a host that was connected may be disconnected before it has answered.
const AWAY: Duration = Duration::from_secs(15);
/// How long to wait for an attach: shorter, so that the other host still gets the reason.
const ATTACHING: Duration = Duration::from_secs(60);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Daemon {
    pub(super) fn hosts_or_error(&self) -> Result<Arc<Hosts>> {
        self.hosts().ok_or_else(|| {
            DaemonError::conflict("this host knows no other hosts", "configure [migration] and [[host]]")
        })
    }

    pub(super) fn by_id(&self, id: DiskId) -> Result<(String, Arc<Disk>)> {
        let found = self.disks().into_iter().find(|(_, disk)| disk.id == id);
        found.ok_or_else(|| DaemonError::NoSuch { what: "disk", name: id.to_string() })
    }

    /// Starts to send a disk's cache to another host, which attaches it if it has not. The job ends when that host has
    /// the disk. If the job is cancelled or not kept alive, the disk stays here.
    ///
    /// # Errors
    /// There is no such disk or host, or the disk does not move.
    pub fn migrate(self: &Arc<Self>, name: &str, start: StartMigration) -> Result<Job> {
        let StartMigration { to, method, keep } = start;
        let hosts = self.hosts_or_error()?;
        let disk = self.disk(name)?;
        disk.attached()?;
        if self.pool(&disk.config().pool)?.backend.migration_status(disk.id)?.is_none() {
            return Err(super::movable::stays(&disk.config()));
        }
        let to_host = hosts.find(&to).ok_or_else(|| Hosts::unknown(&to))?;
        let method = method.unwrap_or(hosts.method);
        hosts.aborted.locked().remove(&(disk.id, to_host));
        hosts.given_up.locked().remove(&disk.id);
        hosts.keep(disk.id, keep);
        let (daemon, name) = (self.clone(), name.to_string());
        self.jobs.start(JobKind::Migrate, &name.clone(), move |control| {
            daemon.run_migration(&hosts, &disk, (to_host, &to), method, control)
        })
    }

    /// Keeps a disk's requested migration alive for this long, or until it ends.
    ///
    /// # Errors
    /// There is no such disk, or no other hosts are configured.
    pub fn keep_migration(&self, name: &str, keep: Option<Span>) -> Result<()> {
        let (hosts, disk) = (self.hosts_or_error()?, self.disk(name)?);
        if self.jobs.is_running(JobKind::Migrate, name) {
            hosts.keep_on(disk.id, keep);
        }
        Ok(())
    }

    fn run_migration(
        &self,
        hosts: &Hosts,
        disk: &Disk,
        (to, to_name): (HostId, &str),
        method: Method,
        control: &JobControl,
    ) -> Result<()> {
        let config = disk.config();
        let backend = &self.pool(&config.pool)?.backend;
        let handle = disk.attached()?;
        // The directory does not delay the move: without etcd, it proceeds all the same.
        let epoch = self.owned_epoch(disk.id).unwrap_or_default();
        let _intent = self.begin_intent(&config.name, disk.id, to_name, epoch)?;
        let prepared = prepare(hosts, disk, (to, to_name), control);
        if control.is_cancelled() {
            return Err(cancelled(&config.name, hosts.note_cancelled(disk.id, to)));
        }
        prepared?;
        self.save_learned(&**backend, &config.name, disk.id, handle, true);
        backend.start_migration(handle, to, method)?;
        self.events.add("migrating", &config.name, format!("to host '{to_name}'"));
        loop {
            let is_same = disk.attached().is_ok_and(|present| present == handle);
            let Some(status) = backend.migration_status(disk.id)?.filter(|_| is_same) else {
                return Err(DaemonError::conflict("the disk was detached", "attach it, then try again"));
            };
            control.report(Progress {
                done_blocks: status.progress.copies,
                total_blocks: status.progress.copies + status.progress.copies_left,
            });
            if matches!(status.record, Record::Released { .. } | Record::Overtaken { .. }) {
                return Ok(());
            }
            let is_left = hosts.is_left(disk.id);
            if control.is_cancelled() || is_left {
                let is_given_up = hosts.note_cancelled(disk.id, to);
                backend.stop_migration(handle)?;
                let why = match (is_given_up, is_left) {
                    (true, _) => ": the balancer's move of its VM was given up",
                    (false, true) => ": the program that moves its VM has not been heard of",
                    (false, false) => "",
                };
                self.events.add("migration-cancelled", &config.name, format!("to host '{to_name}'{why}"));
                return Err(cancelled(&config.name, is_given_up));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Stops sending a disk ahead at the operator's request. From then on, the destination's requests for the disk are
    /// refused.
    ///
    /// # Errors
    /// There is no such disk, it does not move, or another host has it already.
    pub fn stop_migration(&self, name: &str) -> Result<()> {
        let disk = self.disk(name)?;
        let backend = &self.pool(&disk.config().pool)?.backend;
        let sent_to = backend.migration_status(disk.id)?.and_then(|status| status.to);
        if let (Some(to), Some(hosts)) = (sent_to, self.hosts()) {
            hosts.aborted.locked().insert((disk.id, to));
        }
        self.end_migration(name, &disk)
    }

    /// Stops sending a disk whose move was given up. If a hypervisor opens the disk at the destination after this, the
    /// disk is sent again.
    ///
    /// # Errors
    /// As [`Daemon::stop_migration`].
    pub(crate) fn give_up_migration(&self, name: &str) -> Result<()> {
        let disk = self.disk(name)?;
        if let Some(hosts) = self.hosts().filter(|_| self.jobs.is_running(JobKind::Migrate, name)) {
            hosts.given_up.locked().insert(disk.id);
        }
        self.end_migration(name, &disk)
    }

    fn end_migration(&self, name: &str, disk: &Disk) -> Result<()> {
        let handle = disk.attached()?;
        let running = self.jobs.cancel_of(JobKind::Migrate, name);
        let stopped = self.pool(&disk.config().pool)?.backend.stop_migration(handle)?;
        if stopped || running {
            return Ok(());
        }
        Err(DaemonError::conflict(
            format!("disk '{name}' is not being sent to another host"),
            "see 'haversack migrate status'",
        ))
    }

    /// Returns how far a disk is.
    ///
    /// # Errors
    /// There is no such disk, or it does not move.
    pub fn migration_of(&self, name: &str) -> Result<MigrationStatus> {
        let hosts = self.hosts_or_error()?;
        let disk = self.disk(name)?;
        let backend = &self.pool(&disk.config().pool)?.backend;
        let status = backend.migration_status(disk.id)?;
        let status = status.ok_or_else(|| super::movable::stays(&disk.config()))?;
        let described = describe(&hosts, name, &status);
        let Some(to) = status.to else { return Ok(described) };
        let dirty = backend.recorded_disk(disk.id)?.map_or(0, |disk| disk.dirty_blocks);
        let left = status.progress.copies_left;
        let rate = hosts.paces.locked().of(disk.id);
        Ok(MigrationStatus {
            // Each pass sends dirty blocks first.
            dirty_left_bytes: bytes(dirty.min(left)),
            sent_bytes_per_s: rate,
            eta_s: rate.and_then(|rate| pace::eta_s(bytes(left), rate)),
            expected_stall_s: hosts.state_of(to).and_then(|state| state.round_trip_us).map(|us| {
                let round_trip_s = us as f64 / 1e6;
                pace::expected_stall_s(round_trip_s, dirty, left)
            }),
            ..described
        })
    }

    /// Measures how fast disks are being sent.
    pub(super) fn measure_paces(&self, hosts: &Hosts) {
        let mut sent = HashSet::new();
        for (disk, status) in self.pools().filter_map(|pool| pool.backend.departures().ok()).flatten() {
            let Some(to) = status.to else { continue };
            let progress = (status.progress.copies, status.progress.copies_left);
            hosts.paces.locked().measure(disk, to, progress, Instant::now());
            sent.insert(disk);
        }
        hosts.paces.locked().retain(|disk| sent.contains(&disk));
    }

    /// Returns the progress of all disks that may move.
    ///
    /// # Errors
    /// No other hosts are configured.
    pub fn migrations(&self) -> Result<Vec<MigrationStatus>> {
        self.hosts_or_error()?;
        Ok(self.disks().keys().filter_map(|name| self.migration_of(name).ok()).collect())
    }

    /// Attaches a disk that another host is about to send.
    pub(super) fn prepare_for(
        self: &Arc<Self>,
        from: HostId,
        id: DiskId,
        config: DiskConfig,
        sectors: u64,
    ) -> Result<()> {
        let hosts = self.hosts_or_error()?;
        if let Ok((name, disk)) = self.by_id(id) {
            wait_while_attaching(&disk);
            if disk.attached().is_ok() {
                self.take_over_measured(id, Whose::Theirs);
                return check_size(&name, disk.with(|inner| inner.sectors), sectors);
            }
        }
        let mut names = self.pools().map(|pool| pool.name.clone());
        let only = names.next().filter(|_| names.next().is_none());
        let pool = match self.pool(&config.pool) {
            Ok(_) => config.pool.clone(),
            Err(error) => only.ok_or(error)?,
        };
        let from = Some(hosts.name_of(from));
        let size = Some(Size(sectors * SECTOR_BYTES as u64));
        let config = DiskConfig { pool, from, size, id: Some(id.to_string()), ..config };
        let name = config.name.clone();
        let job = self.attach(config)?;
        self.jobs.wait(job.id, ATTACHING)?;
        check_size(&name, self.disk(&name)?.with(|inner| inner.sectors), sectors)
    }

    /// Starts to send a disk to a host that has attached it.
    pub(super) fn send_to(&self, host: HostId, id: DiskId) -> Result<()> {
        let hosts = self.hosts_or_error()?;
        let (name, disk) = self.by_id(id)?;
        hosts.wanted.locked().note(id, host, Instant::now());
        let handle = disk.attached()?;
        let backend = &self.pool(&disk.config().pool)?.backend;
        let status = backend.migration_status(id)?;
        let sent_to = status.as_ref().and_then(|status| status.to);
        if sent_to == Some(host) || self.jobs.is_running(JobKind::Migrate, &name) {
            return Ok(());
        }
        if self.only_replicates_to(&hosts, id, host, status.as_ref()) {
            let what = format!("disk '{name}' is to have a replica there, and does not move");
            return Err(DaemonError::conflict(what, "start the move with 'haversack migrate'"));
        }
        if let Some(other) = sent_to {
            let what = format!("disk '{name}' is being sent to host '{}'", hosts.name_of(other));
            return Err(DaemonError::conflict(what, "abort that migration first"));
        }
        if hosts.aborted.locked().contains(&(id, host)) {
            let what = format!("the migration of disk '{name}' was aborted");
            return Err(DaemonError::conflict(what, "start it with 'haversack migrate'"));
        }
        self.save_learned(&**backend, &name, id, handle, true);
        backend.start_migration(handle, host, hosts.method)?;
        self.events.add("migrating", &name, format!("to host '{}', which asked", hosts.name_of(host)));
        Ok(())
    }

    /// Stops sending a disk to a host that has asked for it and no longer wants it.
    pub(super) fn stop_sending_to(&self, host: HostId, id: DiskId) -> Result<()> {
        let (name, disk) = self.by_id(id)?;
        if let Some(hosts) = self.hosts() {
            hosts.aborted.locked().remove(&(id, host));
            hosts.wanted.locked().forget(id, host);
        }
        let backend = &self.pool(&disk.config().pool)?.backend;
        let is_sent = backend.migration_status(id)?.is_some_and(|status| status.to == Some(host));
        if is_sent && !self.jobs.is_running(JobKind::Migrate, &name) {
            backend.stop_migration(disk.attached()?)?;
            self.events.add(
                "migration-cancelled",
                &name,
                format!("host '{}' does not need it", self.host_name(host)),
            );
        }
        Ok(())
    }

    /// Requests the cache of a disk that was attached here, if another host has it.
    pub(crate) fn have_sent(self: &Arc<Self>, disk: &Disk) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let config = disk.config();
        let status = self.pool(&config.pool)?.backend.migration_status(disk.id)?;
        if let Some(from) = status.and_then(|status| status.owner_elsewhere()) {
            // The answer does not matter: what is not sent ahead is fetched later.
            drop(hosts.ask(&[from], disk.id, &Question::Send));
            self.take_over_measured(disk.id, Whose::Theirs);
        }
        Ok(())
    }
}

impl Hosts {
    /// Remembers that the move of a disk was cancelled, so that requests of the destination do not start it again,
    /// unless the move was only given up. Returns whether it was.
    fn note_cancelled(&self, disk: DiskId, to: HostId) -> bool {
        let is_given_up = self.given_up.locked().remove(&disk);
        if !is_given_up {
            self.aborted.locked().insert((disk, to));
        }
        is_given_up
    }

    /// Whether a host has recently requested a disk, because a hypervisor there has opened the disk.
    pub(crate) fn is_wanted(&self, disk: DiskId, by: HostId) -> bool {
        self.wanted.locked().is_wanted(disk, by, Instant::now())
    }

    /// Whether the VM of a disk may have moved to a host, and not have written there yet.
    pub(crate) fn may_be_at(&self, disk: DiskId, host: HostId) -> bool {
        self.wanted.locked().may_be_there(disk, host, Instant::now())
    }
}

/// Returns the error of a cancelled migration. `is_given_up`: it ended together with the balancer's move of the disk to the
/// same host. A program of the balancer cannot be told from an operator who runs the same command.
fn cancelled(name: &str, is_given_up: bool) -> DaemonError {
    if !is_given_up {
        return EngineError::Job(JobError::Cancelled).into();
    }
    let what = format!("the balancer was moving disk '{name}' to the same host, and has given that move up");
    DaemonError::conflict(what, "start the migration again if the disk is to move nevertheless")
}

/// Waits for the end of an attach that is under way, as at the start of a daemon.
fn wait_while_attaching(disk: &Disk) {
    let deadline = Instant::now() + ATTACHING;
    let is_trying = || disk.with(|inner| matches!(inner.state, DiskState::Attaching | DiskState::Waiting));
    while is_trying() && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Refuses a disk whose size here differs from its size on the host that it comes from.
fn check_size(name: &str, here: u64, there: u64) -> Result<()> {
    if here == there {
        return Ok(());
    }
    let bytes = |sectors: u64| sectors * SECTOR_BYTES as u64;
    Err(DaemonError::conflict(
        format!(
            "disk '{name}' has {} bytes here and {} bytes on the host that has it",
            bytes(here),
            bytes(there)
        ),
        "detach it here, and attach it with the same size",
    ))
}

/// Returns the question that makes another host attach a disk.
pub(super) fn preparation(hosts: &Hosts, disk: &Disk, to: HostId) -> Question {
    let config = disk.config();
    // If a disk moves to the host of its replica, its new replica is to be on this host.
    let is_there = config.replica_host().is_some_and(|host| hosts.find(host) == Some(to));
    let replicate = if is_there { Some(hosts.my_name()) } else { config.replicate.clone() };
    let config = DiskConfig { accept_loss: None, accept_origin_change: None, replicate, ..config };
    Question::Prepare { config: Box::new(config), sectors: disk.with(|inner| inner.sectors) }
}

/// Has the other host attach the disk.
fn prepare(hosts: &Hosts, disk: &Disk, (to, to_name): (HostId, &str), control: &JobControl) -> Result<()> {
    let question = preparation(hosts, disk, to);
    let mut answers = hosts.ask(&[to], disk.id, &question);
    let mut connection = hosts.connected_since(to);
    let deadline = Instant::now() + PATIENCE;
    // A question that cannot be sent has no answer, but a host that was there may be back soon.
    let mut given_up_at = Instant::now() + if connection.is_some() { AWAY } else { Duration::ZERO };
    while Instant::now() < given_up_at.min(deadline) && !control.is_cancelled() {
        match answers.recv_timeout(LOOK_EVERY) {
            Ok((_, Answer::Refused(why))) => {
                let what = format!("host '{to_name}' cannot attach the disk: {why}");
                return Err(DaemonError::conflict(what, "attach it there, then try again"));
            }
            Ok(_) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            // It could not be sent.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_EVERY),
        }
        let present = hosts.connected_since(to);
        if present.is_some() {
            given_up_at = Instant::now() + AWAY;
            if present != connection {
                // The question or its answer was lost with the other connection.
                (answers, connection) = (hosts.ask_now(&[to], disk.id, &question), present);
            }
        }
    }
    if control.is_cancelled() {
        return Err(EngineError::Job(JobError::Cancelled).into());
    }
    let error =
        hosts.state_of(to).filter(|host| host.connected_since.is_none()).and_then(|host| host.last_error);
    let error = error.unwrap_or_else(|| "no answer".into());
    Err(DaemonError::conflict(
        format!("host '{to_name}' cannot be reached: {error}"),
        "see 'haversack host list'",
    ))
}

fn describe(hosts: &Hosts, name: &str, status: &MoveStatus) -> MigrationStatus {
    let (state, host) = match &status.record {
        Record::Owner { peers, .. } if !peers.is_empty() => {
            (MigrationState::Arriving, peers.iter().next().copied())
        }
        Record::Owner { .. } if status.to.is_some() => (MigrationState::Sending, status.to),
        Record::Owner { .. } => (MigrationState::Here, None),
        Record::Released { to, .. } if status.progress.is_peer => (MigrationState::Leaving, Some(*to)),
        Record::Released { to, .. } => (MigrationState::Away, Some(*to)),
        Record::Overtaken { by, .. } => (MigrationState::Overtaken, Some(*by)),
        Record::Unknown => (MigrationState::Waiting, Some(status.from)),
    };
    MigrationStatus {
        disk: name.to_string(),
        state,
        host: host.map(|host| hosts.name_of(host)),
        method: status.method,
        guest_is_here: status.is_guest_here,
        vhost_user_queues: status.queues.map(|queues| queues as u64),
        is_serving: status.progress.is_serving,
        sent_bytes: bytes(status.progress.copies),
        left_bytes: bytes(status.progress.copies_left),
        dirty_left_bytes: 0,
        sent_bytes_per_s: None,
        eta_s: None,
        expected_stall_s: None,
        passes: status.passes,
        is_ready: status.is_ready,
        needed_bytes: bytes(status.progress.needed_blocks),
        following_bytes: bytes(status.progress.following_blocks),
        dirty_bytes: bytes(status.progress.dirty_blocks),
        error: status.problem.clone().or_else(|| hosts.stranded.locked().get(name).cloned()),
    }
}
