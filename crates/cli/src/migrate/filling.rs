//! The daemons' part of a move: the caches of the VM's disks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use haversack_api::{
    Job, JobKind, JobState, KeepMigration, Method as Travels, MigrationState, MigrationStatus, Size, Span,
    StartMigration,
};
use hyper::Method;

use super::{LOOK_EVERY, path, status};
use crate::client::Client;
use crate::error::{CliError, Result};

/// How long a disk whose VM has moved may take to follow, before that is reported as it is.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);
/// How long the daemon continues to send the caches without this process.
const KEEP: Span = Span(Duration::from_secs(60));
/// How often the daemon is told to continue.
const KEEP_EVERY: Duration = Duration::from_secs(15);

/// The caches of the VM's disks, on their way to another host.
pub struct Filling<'a> {
    client: &'a Client,
    disks: &'a [String],
    to: &'a str,
    method: Option<Travels>,
    /// The daemon's jobs that send them; those of an earlier run of this command are not among them.
    jobs: BTreeMap<&'a str, u64>,
    /// Disks that the VM has been seen to use over vhost-user.
    vhost_user: BTreeSet<&'a str>,
    /// When the daemon was last told that the transfers are still wanted.
    kept: Option<Instant>,
    /// The daemon is to send the caches until the disks have followed the VM, even without this process.
    is_let_go: bool,
}

/// How far they are.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    /// Bytes sent ahead.
    pub sent_bytes: u64,
    /// Bytes that are still to be sent.
    pub left_bytes: u64,
    /// A switchover now leaves little to fetch, for any of the disks.
    pub is_ready: bool,
    /// A disk whose vhost-user queues run, or are not known to have stopped.
    pub running: Option<String>,
}

impl std::fmt::Display for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of the cache sent, {} left",
            Size(self.sent_bytes).rounded(),
            Size(self.left_bytes).rounded()
        )
    }
}

impl<'a> Filling<'a> {
    pub fn new(client: &'a Client, disks: &'a [String], to: &'a str, method: Option<Travels>) -> Filling<'a> {
        let (jobs, vhost_user) = (BTreeMap::new(), BTreeSet::new());
        Filling { client, disks, to, method, jobs, vhost_user, kept: None, is_let_go: false }
    }

    /// Starts to send the caches that are not on their way yet.
    pub fn start(&mut self) -> Result<()> {
        for disk in self.disks {
            let status = status(self.client, disk)?;
            self.may_run(disk, &status);
            let client = self.client;
            client.block_on(self.start_unless_on_its_way(disk, &status))?;
        }
        Ok(())
    }

    async fn start_unless_on_its_way(&mut self, disk: &'a str, status: &MigrationStatus) -> Result<()> {
        let is_there = status.host.as_deref() == Some(self.to);
        let has_left = matches!(status.state, MigrationState::Leaving | MigrationState::Away);
        if is_there && has_left || self.is_starting(disk).await? {
            return Ok(());
        }
        let is_sent = is_there && status.state == MigrationState::Sending;
        if is_sent && self.has_job(disk).await? {
            return Ok(());
        }
        self.start_disk(disk).await
    }

    async fn start_disk(&mut self, disk: &'a str) -> Result<()> {
        let body = StartMigration { to: self.to.into(), method: self.method, keep: Some(KEEP) };
        let job: Job = match self.client.tell(Method::POST, &path(disk)?, &body).await {
            // A daemon of an older version does not know `keep`.
            Err(CliError::Refused(refusal)) if refusal.code == "bad-request" => {
                let body = StartMigration { keep: None, ..body };
                self.client.tell(Method::POST, &path(disk)?, &body).await?
            }
            job => job?,
        };
        self.jobs.insert(disk, job.id);
        Ok(())
    }

    /// Whether a job of the daemon sends a disk. Without a job, the daemon sends the disk because a hypervisor has
    /// opened it on the other host, and does not stop if this process is killed.
    async fn has_job(&self, disk: &str) -> Result<bool> {
        let jobs: Vec<Job> = self.client.ask(Method::GET, "/v1/jobs").await?;
        let is_running = |job: &Job| matches!(job.state, JobState::Running);
        Ok(jobs.iter().any(|job| job.kind == JobKind::Migrate && job.subject == disk && is_running(job)))
    }

    /// Renews the request to send the disks, if that is due. For use within [`Client::block_on`].
    pub async fn keep(&mut self) {
        if self.kept.is_none_or(|kept| kept.elapsed() >= KEEP_EVERY) {
            self.kept = Some(Instant::now());
            self.keep_for((!self.is_let_go).then_some(KEEP)).await;
        }
    }

    /// The VM is about to move, or has moved: the disks follow it even without this process. Repeated by
    /// [`Filling::keep`]. For use within [`Client::block_on`].
    pub async fn let_go(&mut self) {
        (self.is_let_go, self.kept) = (true, None);
        self.keep().await;
    }

    async fn keep_for(&mut self, keep: Option<Span>) {
        for disk in self.disks {
            // A daemon that does not answer now is told later.
            if let Ok(path) = path(disk) {
                let told: Result<()> = self.client.tell(Method::PUT, &path, &KeepMigration { keep }).await;
                drop(told);
            }
        }
    }

    /// Returns their progress. Restarts transfers that a restarted daemon has forgotten. For use within
    /// [`Client::block_on`].
    pub async fn look(&mut self) -> Result<Fill> {
        self.keep().await;
        let mut all = Fill { is_ready: true, ..Fill::default() };
        for disk in self.disks {
            let status: MigrationStatus = self.client.ask(Method::GET, &path(disk)?).await?;
            self.start_unless_on_its_way(disk, &status).await?;
            if self.may_run(disk, &status) {
                all.running.get_or_insert_with(|| disk.clone());
            }
            all.sent_bytes += status.sent_bytes;
            all.left_bytes += status.left_bytes;
            let is_there = matches!(status.state, MigrationState::Leaving | MigrationState::Away);
            all.is_ready &= status.is_ready || is_there;
        }
        Ok(all)
    }

    /// Returns whether a disk's vhost-user queues run, or are not known to have stopped. A restarted daemon does not
    /// know this until QEMU has reconnected.
    fn may_run(&mut self, disk: &'a str, status: &MigrationStatus) -> bool {
        let is_known = status.vhost_user_queues.is_some();
        if is_known {
            self.vhost_user.insert(disk);
        }
        status.vhost_user_queues != Some(0) && self.vhost_user.contains(disk)
    }

    /// Returns whether a disk's job runs. An error if it has failed.
    async fn is_starting(&self, disk: &str) -> Result<bool> {
        let Some(job) = self.jobs.get(disk) else { return Ok(false) };
        match self.client.ask::<Job>(Method::GET, &format!("/v1/jobs/{job}")).await {
            Ok(Job { state: JobState::Failed, error, .. }) => {
                Err(CliError::Job(error.unwrap_or_else(|| format!("disk '{disk}' cannot be sent"))))
            }
            Ok(Job { state: JobState::Cancelled, .. }) => {
                Err(CliError::Job(format!("the migration of disk '{disk}' was aborted")))
            }
            Ok(_) => Ok(true),
            Err(CliError::Refused(refusal)) if refusal.code == "not-found" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stops sending them. The disks stay here.
    pub fn abort(&self) {
        for disk in self.disks {
            // A transfer that is not running need not be stopped, and a daemon that has exited sends nothing.
            let _ = path(disk).and_then(|path| self.client.send(Method::DELETE, &path, None::<&()>));
        }
    }

    /// Waits briefly for the other host to take over the disks. Over NBD, that happens only when the VM writes.
    pub fn settle(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < SETTLED_WITHIN
            && self.status()?.iter().any(|disk| disk.state == MigrationState::Sending)
        {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until the disks are served by the other host.
    pub fn wait(&mut self) -> Result<()> {
        for job in std::mem::take(&mut self.jobs).into_values() {
            let job: Job = self.client.get(&format!("/v1/jobs/{job}"))?;
            crate::follow::follow(self.client, job)?;
        }
        Ok(())
    }

    /// Returns the state of each disk.
    pub fn status(&self) -> Result<Vec<MigrationStatus>> {
        self.disks.iter().map(|disk| status(self.client, disk)).collect()
    }
}
