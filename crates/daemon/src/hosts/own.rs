//! `haversack disk own`: taking a disk over from a host that is dead for good.
//!
//! Invariants
//! - A disk is taken only from hosts that do not answer. Every other host was asked, and has durably noted the new epoch
//!   before this one takes it: a grant of the dead host's that is still on its way to one of them counts for nothing.
//! - Every host that may own the disk and does not answer was fenced before, or the operator has said that it need not be.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haversack_api::{Job, JobKind, LastKnown, LostRange, OwnDisk, Takeover};
use haversack_core::PeerLoss;
use haversack_engine::TakeoverLoss;
use haversack_model::{DiskId, HostId, SECTOR_BYTES, SectorNo};
use haversack_ownership::{Record, forced_epoch};

use super::Hosts;
use super::epochs::{KnownOwner, PATIENCE, bytes, is_through};
use super::fence::{FenceTarget, fence};
use super::talk::{Answer, Question};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::locked::Locked;

/// How long the record may take, and what makes copies of lost blocks durable before it.
const TAKE_TIME: Duration = Duration::from_secs(600);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most ranges in a list of what would be lost.
const MOST_RANGES: usize = 10_000;

/// A take-over that is possible.
struct Plan {
    /// The host that has the disk, or blocks that this host needs.
    dead: HostId,
    /// This host owns the disk, and needs blocks of the dead one.
    depends: bool,
    /// Hosts that do not answer and may own the disk.
    suspects: Vec<HostId>,
    /// The other hosts.
    living: Vec<HostId>,
    /// The highest epoch that is known.
    epoch: u64,
    loss: TakeoverLoss,
}

/// A disk that is being taken over. It is no longer when this is dropped.
struct Taking<'a>(&'a Hosts, DiskId);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taking.locked().remove(&self.1);
    }
}

impl Daemon {
    /// Returns what would be lost if this host took a disk over.
    ///
    /// # Errors
    /// There is no such disk, it does not move, or it cannot be taken over: the host that has it answers.
    pub fn takeover_of(&self, name: &str) -> Result<Takeover> {
        let hosts = self.hosts_or_error()?;
        let disk = self.disk(name)?;
        let plan = self.plan(&hosts, &disk)?;
        Ok(self.describe_takeover(&hosts, &disk, &plan))
    }

    /// Takes a disk over from a host that is dead for good.
    ///
    /// # Errors
    /// As [`Daemon::takeover_of`], or something was not confirmed.
    pub fn own(self: &Arc<Self>, name: &str, request: OwnDisk) -> Result<Job> {
        let hosts = self.hosts_or_error()?;
        let disk = self.disk(name)?;
        if request.confirm != name {
            return Err(DaemonError::Bad(format!("confirm must repeat the disk's name, '{name}'")));
        }
        if request.accept_loss.as_ref().is_some_and(|repeated| repeated != name) {
            return Err(DaemonError::Bad(format!("accept_loss must repeat the disk's name, '{name}'")));
        }
        let plan = self.plan(&hosts, &disk)?;
        let takeover = self.describe_takeover(&hosts, &disk, &plan);
        if takeover.lost_bytes.is_none() && takeover.may_be_dirty && request.accept_loss.is_none() {
            return Err(DaemonError::conflict(
                format!(
                    "nobody knows which blocks of disk '{name}' only host '{}' has: there the guest will read what the origin has",
                    takeover.host
                ),
                "repeat the disk's name as accept_loss; or repair that host",
            ));
        }
        if !plan.suspects.is_empty() && takeover.fence.is_none() && !request.without_fence {
            return Err(DaemonError::conflict(
                format!(
                    "no fence is configured: host '{}' may go on writing the origin of disk '{name}'",
                    takeover.host
                ),
                "set fence in [migration]; or make sure that the host is off and stays off, and say without_fence",
            ));
        }
        let (daemon, name) = (self.clone(), name.to_string());
        self.jobs.start(JobKind::Own, &name, move |_| daemon.run_own(&hosts, &disk, &request))
    }

    fn run_own(&self, hosts: &Hosts, disk: &Disk, request: &OwnDisk) -> Result<()> {
        let name = disk.config().name;
        hosts.taking.locked().insert(disk.id);
        let _taking = Taking(hosts, disk.id);
        // Other hosts may have answered since, and now they see that this one takes it.
        let plan = self.plan(hosts, disk)?;
        let loss = if request.accept_loss.is_some() { PeerLoss::Accepted } else { PeerLoss::Recorded };
        if loss == PeerLoss::Recorded && plan.depends && plan.loss == TakeoverLoss::Unknown {
            return Err(DaemonError::conflict(
                "what is lost is not known any more",
                "look again what would be lost",
            ));
        }
        if !request.without_fence {
            self.fence_all(hosts, disk, &plan.suspects)?;
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let epoch = forced_epoch(plan.epoch, now_s);
        if !plan.depends {
            self.have_noted(hosts, disk, &plan.living, epoch)?;
        }
        let takeover = self.describe_takeover(hosts, disk, &plan);
        self.pool(&disk.config().pool)?.backend.take_over(disk.attached()?, epoch, loss)?;
        self.wait_until_taken(disk, epoch)?;
        self.state.note_agreed(disk.id, true)?;
        let lost = match (takeover.lost_bytes, loss) {
            (None, _) => "what only it had is as the origin has it".to_string(),
            (Some(bytes), PeerLoss::Accepted) => {
                format!("{bytes} bytes that only it had are as the origin has them")
            }
            (Some(bytes), PeerLoss::Recorded) => {
                format!(
                    "{bytes} bytes that only it had are lost; they read as errors until they are written again"
                )
            }
        };
        let message = format!("taken over from host '{}' by force; {lost}", takeover.host);
        tracing::warn!(disk = name, "{message}");
        self.events.add("taken-over", &name, message);
        Ok(())
    }

    /// Finds out from whom the disk would be taken.
    fn plan(&self, hosts: &Hosts, disk: &Disk) -> Result<Plan> {
        let (config, id) = (disk.config(), disk.id);
        let name = &config.name;
        disk.attached()?;
        let backend = &self.pool(&config.pool)?.backend;
        let status = backend.migration_status(id)?.ok_or_else(|| {
            let what = format!("disk '{name}' does not move between hosts");
            DaemonError::conflict(what, "disks that are read-only or have an rbd: origin do not")
        })?;
        let (dead, depends) = match &status.record {
            Record::Owner { peers, .. } => match peers.iter().next() {
                Some(peer) => (*peer, true),
                None => {
                    let what = format!("this host has disk '{name}' already, and needs no other one");
                    return Err(DaemonError::conflict(what, "there is nothing to do"));
                }
            },
            Record::Released { to, .. } | Record::Overtaken { by: to, .. } => (*to, false),
            Record::Unknown => (status.from, false),
        };
        let others = hosts.others();
        let asked: Vec<HostId> = if depends { vec![dead] } else { others.clone() };
        let answers = hosts.records(&asked, id);
        let host = |host: HostId| hosts.name_of(host);
        if hosts.is_connected(dead) || answers.iter().any(|(answering, _)| *answering == dead) {
            return Err(DaemonError::conflict(
                format!("host '{}' answers: it is not dead", host(dead)),
                "move the disk with 'haversack migrate' there, or attach and detach it there",
            ));
        }
        let mut epoch = status.record.epoch();
        for (answering, record) in &answers {
            epoch = epoch.max(record.owner.epoch());
            let what = match record.owner {
                _ if record.is_taking => "is taking it over as well",
                KnownOwner::Me { .. } => "has it",
                KnownOwner::Released { .. } if record.dirty_blocks > 0 => "has dirty blocks of it",
                _ => continue,
            };
            return Err(DaemonError::conflict(
                format!("disk '{name}' cannot be taken over here: host '{}' {what}", host(*answering)),
                "move it from there, or take it over there",
            ));
        }
        let is_living = |host: &HostId| answers.iter().any(|(answering, _)| answering == host);
        let (living, suspects) = others.into_iter().partition(is_living);
        let suspects = if depends { Vec::new() } else { suspects };
        let loss = backend.takeover_loss(id)?;
        Ok(Plan { dead, depends, suspects, living, epoch, loss })
    }

    fn describe_takeover(&self, hosts: &Hosts, disk: &Disk, plan: &Plan) -> Takeover {
        let bytes_of = |sectors: u64| sectors * SECTOR_BYTES as u64;
        let range = |(first, sectors): &(SectorNo, u64)| LostRange {
            offset_bytes: bytes_of(first.0),
            length_bytes: bytes_of(*sectors),
        };
        let runs = match &plan.loss {
            TakeoverLoss::Unknown => &[][..],
            TakeoverLoss::Runs(runs) => runs,
        };
        let heard = hosts.heard_of.locked().get(&disk.id).filter(|heard| heard.host == plan.dead).cloned();
        let is_clean = heard.as_ref().is_some_and(|heard| {
            heard.record.dirty_blocks == 0 && heard.record.mode.as_deref().is_some_and(is_through)
        });
        let config = disk.config();
        let kept = self.pool_with(disk.id).map_or(0, |(_, recorded)| recorded.dirty_blocks);
        let program = hosts.fence.as_ref().and_then(|programs| programs.program(&config.origin));
        Takeover {
            disk: config.name,
            host: hosts.name_of(plan.dead),
            depends: plan.depends,
            lost_bytes: (plan.loss != TakeoverLoss::Unknown)
                .then(|| runs.iter().map(|run| bytes_of(run.1)).sum()),
            ranges: runs.iter().take(MOST_RANGES).map(range).collect(),
            more_ranges: runs.len().saturating_sub(MOST_RANGES) as u64,
            may_be_dirty: plan.depends || !is_clean,
            last_known: heard.map(|heard| LastKnown {
                mode: heard.record.mode,
                dirty_bytes: bytes(heard.record.dirty_blocks),
                age_s: heard.at.elapsed().map_or(0.0, |age| age.as_secs_f64()),
            }),
            kept_bytes: bytes(kept),
            fenced_first: plan.suspects.iter().map(|host| hosts.name_of(*host)).collect(),
            fence: program.map(|program| program.display().to_string()),
        }
    }

    fn fence_all(&self, hosts: &Hosts, disk: &Disk, suspects: &[HostId]) -> Result<()> {
        let config = disk.config();
        for host in suspects {
            let (name, address) = (hosts.name_of(*host), hosts.address_of(*host));
            let Some(program) = hosts.fence.as_ref().and_then(|all| all.program(&config.origin)) else {
                let what = format!("no fence is configured for the origin {}", config.origin);
                return Err(DaemonError::conflict(what, "set fence in [migration], or say without_fence"));
            };
            let target = FenceTarget {
                host: name.clone(),
                address,
                disk: config.name.clone(),
                disk_id: disk.id.to_string(),
                origin: config.origin.clone(),
                by: hosts.name_of(hosts.me),
            };
            match fence(program, &target, hosts.fence_time) {
                Ok(output) => {
                    tracing::warn!(
                        disk = config.name,
                        host = name,
                        output,
                        "fenced by {}",
                        program.display()
                    );
                    let message = format!("host '{name}' was fenced by {}", program.display());
                    self.events.add("fenced", &config.name, message);
                }
                Err(error) => {
                    tracing::error!(disk = config.name, host = name, "not fenced: {error}");
                    self.events.add("fence-failed", &config.name, format!("host '{name}': {error}"));
                    return Err(DaemonError::conflict(
                        format!("host '{name}' is not fenced: {error}"),
                        "correct that; or make sure that the host is off and stays off, and say without_fence",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Has the living hosts note that this one takes the disk.
    fn have_noted(&self, hosts: &Hosts, disk: &Disk, living: &[HostId], epoch: u64) -> Result<()> {
        let answers = hosts.ask_now(living, disk.id, &Question::Yield { epoch });
        let deadline = Instant::now() + PATIENCE;
        for _ in living {
            let left = deadline.saturating_duration_since(Instant::now());
            let why = match answers.recv_timeout(left) {
                Ok((_, Answer::Done)) => continue,
                Ok((host, Answer::Refused(why))) => format!("host '{}': {why}", hosts.name_of(host)),
                Ok((host, _)) => format!("host '{}' is of another version", hosts.name_of(host)),
                Err(_) => "a host that has answered before does not any more".to_string(),
            };
            return Err(DaemonError::conflict(
                format!("the other hosts do not know that this one takes the disk: {why}"),
                "try again",
            ));
        }
        Ok(())
    }

    fn wait_until_taken(&self, disk: &Disk, epoch: u64) -> Result<()> {
        let backend = &self.pool(&disk.config().pool)?.backend;
        let deadline = Instant::now() + TAKE_TIME;
        while Instant::now() < deadline && !self.is_stopping() {
            let status = backend.migration_status(disk.id)?;
            let Some(status) = status else { break };
            match status.record {
                Record::Owner { epoch: mine, peers } if mine >= epoch && peers.is_empty() => return Ok(()),
                _ => {}
            }
            if let Some(problem) = status.problem {
                return Err(DaemonError::conflict(problem, "correct that, then try again"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(DaemonError::conflict(
            "that the disk was taken over is not on record yet",
            "see 'haversack migrate status', and try again",
        ))
    }
}
