//! `haversack disk own`: taking a disk over from a permanently dead host.
//!
//! Invariants
//! - A disk is taken only from hosts that are not connected. Before this host takes it, every connected host has said
//!   that it has neither the disk nor dirty blocks of it, and has durably noted the new epoch. So a grant of the dead
//!   host that is still on its way to one of them has no effect. There is an exception if an owner gives up a dead
//!   host's blocks: hosts with blocks of former owners do not prevent that, and do not note the epoch.
//! - Every host that may own the disk and is not connected was fenced before, or the operator has named it as powered
//!   off. A host that is not configured cannot be fenced: neither its name nor its address is known.
//! - If an owner gives up the blocks of a dead host, the other hosts note its new epoch as well. If the owner then dies
//!   and the dead host comes back, `disk own` is refused there as long as a host that has noted the epoch answers: the
//!   blocks that were given up would replace what the owner has written since.
//! - A disk is taken over by one job at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haversack_api::{Job, JobKind, KeptReplica, LastKnown, LostRange, OwnDisk, Takeover};
use haversack_core::PeerLoss;
use haversack_engine::TakeoverLoss;
use haversack_migrate::{
    HostRecord, ReplicaAge, complete_replica, later_takeover, newest_epoch, objection, objection_of_peer,
    objection_of_third, relies_on_epoch,
};
use haversack_model::{DiskId, HostId, SECTOR_BYTES, SectorNo};
use haversack_ownership::{Record, forced_epoch};

use super::epochs::{PATIENCE, RECORD_TIME};
use super::fence::{FenceTarget, fence};
use super::replicas::kept;
use super::talk::{Answer, Question};
use super::{Hosts, bytes, unknown_name};
use crate::cluster::Cluster;
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::locked::Locked;

/// How often to check whether a takeover is recorded.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a takeover does not wait for hosts again after it has waited for them.
const WAITED_ONCE: Duration = Duration::from_secs(10);
/// What to do about hosts that are not fenced.
const FENCE_HINT: &str = "correct fence in [migration]; or make sure that each of these hosts is off and stays off, and name them \
                          as without_fence";
/// What to do about dirty blocks that are obsolete.
const VOID_HINT: &str = "connect the host that has it; or, if that is permanently dead, stop haversackd here and run 'haversack disk \
                         own' on another host";
/// What to do about dirty blocks that may be obsolete.
const VOID_OR_NOT_HINT: &str = "connect the host that has it; or, if that is permanently dead, stop haversackd here and run \
                                'haversack disk own' on another host; or, if 'haversack disk own' did not succeed on the dead host, use \
                                'haversack disk forget' on the hosts that have noted it, and try again here";
/// The most ranges in a list of what would be lost.
const MOST_RANGES: usize = 10_000;

/// A takeover that is possible.
struct Plan {
    /// The host that has the disk, or blocks that this host needs.
    dead: HostId,
    /// The host in `dead` answers, and has neither.
    has_nothing: bool,
    /// This host owns the disk, and needs blocks of the dead one.
    depends: bool,
    /// Hosts that do not answer and may own the disk.
    suspects: Vec<HostId>,
    /// The hosts that note the takeover before it happens.
    noting: Vec<HostId>,
    /// The highest epoch that is known.
    epoch: u64,
    loss: TakeoverLoss,
    /// The replica that this host has of the dead host's dirty blocks.
    replica: Option<KeptReplica>,
    /// Which one that is, if it is complete.
    complete_replica: Option<ReplicaAge>,
}

/// Marks a disk as being taken over until this is dropped.
struct Taking<'a>(&'a Hosts, DiskId);

impl<'a> Taking<'a> {
    fn begin(hosts: &'a Hosts, disk: DiskId) -> Result<Self> {
        if !hosts.taking.locked().insert(disk) {
            return Err(DaemonError::conflict("the disk is being taken over already", "wait for that job"));
        }
        Ok(Taking(hosts, disk))
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taking.locked().remove(&self.1);
    }
}

const TRUST_IF_STOPPED: &str = "if it died or was fenced within five seconds after that, say owner_stopped; or repeat the disk's name \
     as accept_loss to do without the replica";
const TRUST_IF_STOPPED_FIRST: &str = "say owner_stopped only if it stopped before this host did, or within five seconds after that; or \
     repeat the disk's name as accept_loss to do without the replica";

/// Returns whether a host is among others. Ignores the case of names.
fn is_among(host: &str, others: &[String]) -> bool {
    others.iter().any(|other| other.eq_ignore_ascii_case(host))
}

/// Names hosts in a message.
fn named(hosts: &[String]) -> String {
    let quoted: Vec<String> = hosts.iter().map(|host| format!("'{host}'")).collect();
    format!("{} {}", if hosts.len() == 1 { "host" } else { "hosts" }, quoted.join(", "))
}

/// Returns whether a takeover uses the replica that this host has.
fn uses_replica(replica: Option<&KeptReplica>, request: &OwnDisk) -> bool {
    replica.is_some_and(|replica| replica.is_used(request.owner_stopped))
}

/// Refuses a request that does not fit the replica on this host, or does not say whether to use it.
fn check_replica(takeover: &Takeover, request: &OwnDisk) -> Result<()> {
    let (disk, replica) = (&takeover.disk, takeover.replica.as_ref());
    match replica.filter(|replica| replica.is_usable()) {
        None if request.owner_stopped => {
            let why = match replica {
                None => "there is no replica of it here",
                Some(KeptReplica { is_void: true, .. }) => {
                    "the disk has moved on since the replica here was in use"
                }
                Some(_) => "the replica here is not complete",
            };
            Err(DaemonError::conflict(
                format!("owner_stopped says that a replica of disk '{disk}' is to be used, and {why}"),
                "leave owner_stopped out",
            ))
        }
        Some(replica) if !uses_replica(Some(replica), request) && request.accept_loss.is_none() => {
            let (heard, hint) = match replica.heard_s {
                Some(heard_s) => (format!("it was last heard {heard_s:.1} s ago"), TRUST_IF_STOPPED),
                None => ("it is not known when that was last heard".to_owned(), TRUST_IF_STOPPED_FIRST),
            };
            Err(DaemonError::conflict(
                format!(
                    "host '{}' may have continued without the replica of disk '{disk}' that is here: {heard}",
                    replica.of
                ),
                hint,
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses a takeover with consequences that the request has not accepted.
fn check(takeover: &Takeover, request: &OwnDisk) -> Result<()> {
    let Takeover { disk, host, fenced_first, .. } = takeover;
    check_replica(takeover, request)?;
    let uses_replica = uses_replica(takeover.replica.as_ref(), request);
    if takeover.lost_bytes.is_none() && !uses_replica && request.accept_loss.is_none() {
        let holders = if fenced_first.is_empty() { std::slice::from_ref(host) } else { fenced_first };
        return Err(DaemonError::conflict(
            format!(
                "it is not known which blocks of disk '{disk}' only {} had; for those the guest will read older data from the \
                 origin",
                named(holders)
            ),
            "repeat the disk's name as accept_loss; or repair the dead host",
        ));
    }
    let unknown = request.without_fence.iter().find(|host| !is_among(host, fenced_first));
    if let Some(host) = unknown {
        let suspects = match fenced_first.as_slice() {
            [] => "no host is to be fenced".to_string(),
            hosts => format!("to be fenced: {}", named(hosts)),
        };
        return Err(DaemonError::conflict(
            format!("without_fence names host '{host}'; {suspects}"),
            "name only hosts that are to be fenced, and are off and stay off",
        ));
    }
    let is_fenced = |host: &String| !is_among(host, &request.without_fence);
    if takeover.fence.is_none() && fenced_first.iter().any(is_fenced) {
        return Err(no_fence(disk, fenced_first));
    }
    Ok(())
}

fn no_fence(disk: &str, hosts: &[String]) -> DaemonError {
    let what = format!(
        "no fence is configured for the origin of disk '{disk}': {} may keep writing to it",
        named(hosts)
    );
    DaemonError::conflict(what, FENCE_HINT)
}

/// Refuses to fence a host that is not configured: a program that is told a made-up name finds nothing to fence.
fn refuse_unconfigured(disk: &str, fenced: &[HostId], names: &BTreeMap<HostId, String>) -> Result<()> {
    let Some(host) = fenced.iter().find(|host| !names.contains_key(host)) else { return Ok(()) };
    let name = unknown_name(*host);
    Err(DaemonError::conflict(
        format!("'{name}' may own disk '{disk}' and is in no [[host]]: it cannot be fenced"),
        "put it back into [[host]] and restart haversackd; or make sure that it is off and stays off, and name it in full as \
         without_fence",
    ))
}

/// Returns the error that refuses a takeover because another host may have replaced the `dirty` bytes here since.
fn may_be_void(disk: &str, by: Option<&str>, known_to: &str, dirty: u64) -> DaemonError {
    let taken = match by {
        Some(by) => format!("host '{by}' may have taken over disk '{disk}' since this host had it"),
        None => format!("disk '{disk}' was taken over since this host had it"),
    };
    let what = format!(
        "{taken} (host '{known_to}' has that on record); the {dirty} bytes that are dirty here may be obsolete"
    );
    // If the takeover is certain, the hosts that know of it must not be made to forget it.
    DaemonError::conflict(what, if by.is_some() { VOID_OR_NOT_HINT } else { VOID_HINT })
}

/// Returns which hosts note a takeover before it happens. A third host with blocks of a former owner does not note it:
/// it later learns of the new epoch from the host that takes the disk.
fn noting(answers: &[(HostId, HostRecord)], mine: Option<ReplicaAge>) -> Vec<HostId> {
    answers.iter().filter(|(_, record)| objection(record, mine).is_none()).map(|(host, _)| *host).collect()
}

impl Hosts {
    /// Asks hosts for their records of a disk. Waits only once per takeover for hosts that are not connected, so that
    /// a replica is still certain in the last step.
    fn records_once(&self, hosts: &[HostId], id: DiskId) -> Result<Vec<(HostId, HostRecord)>> {
        let is_fresh = |waited: &Instant| waited.elapsed() < WAITED_ONCE;
        if self.waited.locked().as_ref().is_some_and(is_fresh) {
            return self.records_now(hosts, id);
        }
        let records = self.records(hosts, id);
        *self.waited.locked() = Some(Instant::now());
        records
    }
}

impl Daemon {
    /// Returns what would be lost if this host took a disk over.
    ///
    /// # Errors
    /// There is no such disk, it does not move, or it cannot be taken over: the host that has it answers.
    pub fn takeover_of(&self, name: &str) -> Result<Takeover> {
        let hosts = self.hosts_or_error()?;
        let disk = self.disk_to_own(name)?;
        let plan = self.plan(&hosts, &disk)?;
        Ok(self.describe_takeover(&hosts, &disk, &plan))
    }

    /// Takes a disk over from a permanently dead host.
    ///
    /// # Errors
    /// As [`Daemon::takeover_of`], or something was not confirmed.
    pub fn own(self: &Arc<Self>, name: &str, request: OwnDisk) -> Result<Job> {
        let hosts = self.hosts_or_error()?;
        let disk = self.disk_to_own(name)?;
        if request.confirm != name {
            return Err(DaemonError::Bad(format!("confirm must repeat the disk's name, '{name}'")));
        }
        if request.accept_loss.as_ref().is_some_and(|repeated| repeated != name) {
            return Err(DaemonError::Bad(format!("accept_loss must repeat the disk's name, '{name}'")));
        }
        let plan = self.plan(&hosts, &disk)?;
        check(&self.describe_takeover(&hosts, &disk, &plan), &request)?;
        let (daemon, name) = (self.clone(), name.to_string());
        self.jobs.start(JobKind::Own, &name, move |_| daemon.run_own(&hosts, &disk, &request))
    }

    fn run_own(&self, hosts: &Hosts, disk: &Disk, request: &OwnDisk) -> Result<()> {
        let name = disk.config().name;
        let _taking = Taking::begin(hosts, disk.id)?;
        // Other hosts may have answered since, and from now on they are told that this host is taking the disk.
        let plan = self.plan(hosts, disk)?;
        let takeover = self.describe_takeover(hosts, disk, &plan);
        check(&takeover, request)?;
        let uses = uses_replica(takeover.replica.as_ref(), request);
        let loss = if request.accept_loss.is_some() { PeerLoss::Accepted } else { PeerLoss::Recorded };
        let is_fenced = |host: &HostId| !is_among(&hosts.name_of(*host), &request.without_fence);
        let fenced: Vec<HostId> = plan.suspects.iter().copied().filter(is_fenced).collect();
        refuse_unconfigured(&name, &fenced, &hosts.names)?;
        self.fence_all(hosts, disk, &fenced)?;
        if uses {
            self.check_still_used(hosts, disk, request)?;
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let epoch = forced_epoch(plan.epoch, now_s, hosts.me);
        self.have_noted(hosts, disk, &plan, epoch)?;
        let backend = &self.pool(&disk.config().pool)?.backend;
        // While the others were noting it, this host may have heard of another takeover.
        let is_owner = backend.migration_status(disk.id)?.is_some_and(|status| status.record.is_owner());
        if is_owner != plan.depends {
            return Err(DaemonError::conflict(
                format!("the owner of disk '{name}' has just changed"),
                "try again",
            ));
        }
        if uses {
            backend.take_over_with_replica(disk.attached()?, epoch)?;
        } else {
            backend.take_over(disk.attached()?, epoch, loss)?;
        }
        self.wait_until_taken(disk, epoch)?;
        self.state.note_agreed(disk.id, true)?;
        self.cluster().into_iter().for_each(Cluster::report_soon);
        let lost = match (takeover.lost_bytes, loss) {
            _ if uses => "nothing that was flushed is lost: the replica here was used".to_string(),
            (None, _) => "reads of data that only it had return the origin's data".to_string(),
            (Some(bytes), PeerLoss::Accepted) => {
                format!("reads of {bytes} bytes that only it had return the origin's data")
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
        if let Some((by, _)) = self.heed_directory(hosts, id)? {
            let by = hosts.name_of(by);
            let what = format!(
                "the directory says that host '{by}' has taken over disk '{name}' by force, and that is not yet on record here"
            );
            return Err(DaemonError::conflict(what, "try again in a moment"));
        }
        let backend = &self.pool(&config.pool)?.backend;
        let status = backend.migration_status(id)?.ok_or_else(|| super::movable::stays(&disk.config()))?;
        let peer = match &status.record {
            Record::Owner { peers, .. } => peers.iter().next().copied(),
            _ => None,
        };
        let Some(dead) = status.owner_elsewhere().or(peer) else {
            let what = format!("this host already has disk '{name}', and needs nothing from another host");
            return Err(DaemonError::conflict(what, "there is nothing to do"));
        };
        let depends = peer.is_some();
        let mut asked = hosts.others();
        if !asked.contains(&dead) {
            asked.push(dead);
        }
        let answers = hosts.records_once(&asked, id)?;
        let mine = status.record.epoch();
        let complete_replica = self.pool_with(id).and_then(|(_, here)| complete_replica(&here.info));
        for (answering, record) in &answers {
            let objection = match peer {
                None => objection(record, complete_replica),
                Some(peer) if peer == *answering => objection_of_peer(record, hosts.me),
                Some(_) => objection_of_third(record, mine),
            };
            if let Some((what, hint)) = objection {
                let other = hosts.name_of(*answering);
                let what = format!("disk '{name}' cannot be taken over: host '{other}' answers, and {what}");
                return Err(DaemonError::conflict(what, hint));
            }
        }
        self.check_not_void(hosts, disk, mine, &answers)?;
        let known = self.state.known_before(id).map_or(0, |before| before.epoch);
        let epoch = answers.iter().map(|(_, record)| record.epoch()).fold(mine.max(known), u64::max);
        let is_living = |host: &HostId| answers.iter().any(|(answering, _)| answering == host);
        // An owner fences no host: none of them can own the disk.
        let is_suspect = |host: &HostId| !depends && !is_living(host);
        let suspects: Vec<HostId> = asked.into_iter().filter(is_suspect).collect();
        // If the host that had the disk is back and has nothing of it, another host has the disk, if any has.
        let dead = if is_living(&dead) { suspects.first().copied().unwrap_or(dead) } else { dead };
        let has_nothing = is_living(&dead);
        let noting = noting(&answers, complete_replica);
        let loss = backend.takeover_loss(id)?;
        let replica = self.kept_replica(hosts, disk, newest_epoch(hosts.me, &answers).max(known))?;
        Ok(Plan { dead, has_nothing, depends, suspects, noting, epoch, loss, replica, complete_replica })
    }

    /// Refuses to take a disk over if the dirty blocks that this host has of it, under the epoch `mine`, may be
    /// obsolete because another host may have had the disk since.
    fn check_not_void(
        &self,
        hosts: &Hosts,
        disk: &Disk,
        mine: u64,
        answers: &[(HostId, HostRecord)],
    ) -> Result<()> {
        let Some((_, here)) = self.pool_with(disk.id) else { return Ok(()) };
        if !relies_on_epoch(&here.info, here.dirty_blocks) {
            return Ok(());
        }
        let Some(later) = later_takeover(hosts.me, mine, answers) else { return Ok(()) };
        let (by, known_to) = (later.by.map(|by| hosts.name_of(by)), hosts.name_of(later.known_to));
        Err(may_be_void(&disk.config().name, by.as_deref(), &known_to, bytes(here.dirty_blocks)))
    }

    /// Returns this host's replica of a disk. `epoch` is the highest epoch under which any host may have had the disk.
    fn kept_replica(&self, hosts: &Hosts, disk: &Disk, epoch: u64) -> Result<Option<KeptReplica>> {
        let backend = &self.pool(&disk.config().pool)?.backend;
        let Some(status) = backend.migration_status(disk.id)? else { return Ok(None) };
        let of = status.replica.map(|replica| hosts.name_of(replica.of));
        Ok(of.and_then(|of| kept(&status, backend.now_us(), of, epoch)))
    }

    /// Checks that the replica can still be used after fencing, which takes time. If the replica is no longer certain,
    /// only the operator can decide to use it.
    fn check_still_used(&self, hosts: &Hosts, disk: &Disk, request: &OwnDisk) -> Result<()> {
        if uses_replica(self.kept_replica(hosts, disk, 0)?.as_ref(), request) {
            return Ok(());
        }
        Err(DaemonError::conflict(
            "the replica here was certain when the takeover began, and is not any more",
            "if its owner was fenced or died within five seconds after it was last heard, say owner_stopped",
        ))
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
        let heard = hosts.heard_of.locked().get(&disk.id).cloned();
        let config = disk.config();
        let kept = self.pool_with(disk.id).map_or(0, |(_, recorded)| recorded.dirty_blocks);
        let program = hosts.fence.as_ref().and_then(|programs| programs.program(&config.origin));
        Takeover {
            disk: config.name,
            host: hosts.name_of(plan.dead),
            has_nothing: plan.has_nothing,
            depends: plan.depends,
            lost_bytes: (plan.loss != TakeoverLoss::Unknown)
                .then(|| runs.iter().map(|run| bytes_of(run.1)).sum()),
            ranges: runs.iter().take(MOST_RANGES).map(range).collect(),
            more_ranges: runs.len().saturating_sub(MOST_RANGES) as u64,
            last_known: heard.filter(|heard| heard.host == plan.dead).map(|heard| LastKnown {
                mode: heard.record.mode,
                dirty_bytes: bytes(heard.record.dirty_blocks),
                age_s: heard.at.elapsed().map_or(0.0, |age| age.as_secs_f64()),
            }),
            kept_bytes: if plan.replica.is_some() { 0 } else { bytes(kept) },
            replica: plan.replica.clone(),
            replica_elsewhere: self.replica_elsewhere(hosts, disk.id, plan),
            fenced_first: plan.suspects.iter().map(|host| hosts.name_of(*host)).collect(),
            fence: program.map(|program| program.display().to_string()),
        }
    }

    /// Returns which of the hosts that do not answer had a complete replica of the dead host's blocks, by the
    /// directory.
    fn replica_elsewhere(&self, hosts: &Hosts, id: DiskId, plan: &Plan) -> Option<String> {
        let (owner, replica_at) = self.cluster()?.replica_of(id)?;
        let is_silent = |host: &HostId| plan.suspects.contains(host);
        let is_owners = hosts.find(&owner) == Some(plan.dead);
        hosts.find(&replica_at).filter(is_silent).filter(|_| is_owners && !plan.depends).map(|_| replica_at)
    }

    /// Returns a disk that is to be taken over. If it is not here, the error says where the directory has it.
    fn disk_to_own(&self, name: &str) -> Result<Arc<Disk>> {
        let missing = match self.disk(name) {
            Err(missing @ DaemonError::NoSuch { .. }) => missing,
            found => return found,
        };
        let Some((owner, replica)) = self.cluster().and_then(|cluster| cluster.disk_named(name)) else {
            return Err(missing);
        };
        let (replica, hint) = match replica {
            None => (String::new(), "attach it here first, with the dead host as from"),
            Some(at) => (
                format!(", and a complete replica on host '{at}'"),
                "take it over on the host that has the replica",
            ),
        };
        let what = format!(
            "disk '{name}' is not attached on this host; the directory has it on host '{owner}'{replica}"
        );
        Err(DaemonError::conflict(what, hint))
    }

    fn fence_all(&self, hosts: &Hosts, disk: &Disk, suspects: &[HostId]) -> Result<()> {
        let config = disk.config();
        let program = hosts.fence.as_ref().and_then(|all| all.program(&config.origin));
        let names: Vec<String> = suspects.iter().map(|host| hosts.name_of(*host)).collect();
        for (host, name) in suspects.iter().zip(&names) {
            let Some(program) = program else { return Err(no_fence(&config.name, &names)) };
            let address = hosts.state_of(*host).map(|state| state.address).unwrap_or_default();
            let target = FenceTarget {
                host: name.clone(),
                address,
                disk: config.name.clone(),
                disk_id: disk.id.to_string(),
                origin: config.origin.clone(),
                by: hosts.my_name(),
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
                        format!("host '{name}' is not fenced: {error}; to be fenced: {}", named(&names)),
                        FENCE_HINT,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Makes the living hosts note that this host takes the disk.
    fn have_noted(&self, hosts: &Hosts, disk: &Disk, plan: &Plan, epoch: u64) -> Result<()> {
        let (living, replica) = (&plan.noting, plan.complete_replica);
        let answers = hosts.ask_now(living, disk.id, &Question::Yield { epoch, replica });
        // Each host makes its note durable before it answers.
        let deadline = Instant::now() + RECORD_TIME + PATIENCE;
        for _ in living {
            let left = deadline.saturating_duration_since(Instant::now());
            let why = match answers.recv_timeout(left) {
                Ok((_, Answer::Done)) => continue,
                Ok((host, Answer::Refused(why))) => format!("host '{}': {why}", hosts.name_of(host)),
                Ok((host, _)) => format!("host '{}' is of another version", hosts.name_of(host)),
                Err(_) => "a host stopped answering".to_string(),
            };
            return Err(DaemonError::conflict(
                format!("the other hosts have not recorded that this one takes the disk: {why}"),
                "try again",
            ));
        }
        Ok(())
    }

    fn wait_until_taken(&self, disk: &Disk, epoch: u64) -> Result<()> {
        let backend = &self.pool(&disk.config().pool)?.backend;
        // Until this returns, other hosts are told that this host is taking the disk over, because the takeover may
        // still be recorded.
        while !self.is_stopping() {
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
            "the takeover has not been recorded yet",
            "see 'haversack migrate status', and try again",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takeover(suspects: &[&str], fence: Option<&str>) -> Takeover {
        Takeover {
            disk: "vm1".into(),
            host: "alpha".into(),
            has_nothing: false,
            depends: false,
            lost_bytes: None,
            ranges: Vec::new(),
            more_ranges: 0,
            last_known: None,
            kept_bytes: 0,
            replica: None,
            replica_elsewhere: None,
            fenced_first: suspects.iter().map(ToString::to_string).collect(),
            fence: fence.map(str::to_string),
        }
    }

    fn refusal(takeover: &Takeover, accepts: bool, without_fence: &[&str]) -> String {
        let request = OwnDisk {
            confirm: "vm1".into(),
            accept_loss: accepts.then(|| "vm1".into()),
            without_fence: without_fence.iter().map(ToString::to_string).collect(),
            owner_stopped: false,
        };
        check(takeover, &request).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn every_host_that_is_not_fenced_is_named() {
        let two = takeover(&["alpha", "gamma"], None);
        let both = "hosts 'alpha', 'gamma'";
        assert!(refusal(&two, false, &[]).contains(both), "what is lost");
        assert!(refusal(&two, true, &[]).contains(both), "no fence is configured");
        for wrong in [&["alpha"][..], &["gamma"], &["alpha", "beta", "gamma"], &["beta"]] {
            assert!(refusal(&two, true, wrong).contains(both), "{wrong:?}");
        }
        let with_fence = takeover(&["alpha", "gamma"], Some("/fence"));
        assert_eq!(refusal(&with_fence, true, &["gamma"]), "", "alpha is fenced");
        assert!(refusal(&with_fence, true, &["beta"]).contains(both));
        assert_eq!(refusal(&two, true, &["gamma", "alpha"]), "");
        assert_eq!(refusal(&takeover(&["alpha", "gamma"], Some("/fence")), true, &[]), "");
        assert!(refusal(&takeover(&[], None), true, &["alpha"]).contains("no host is to be fenced"));
    }

    #[test]
    fn only_the_operator_can_say_that_an_uncertain_replica_is_used() {
        let kept = |is_complete, is_certain, is_void| KeptReplica {
            of: "alpha".into(),
            bytes: 4096,
            is_complete,
            is_certain,
            heard_s: Some(9.0),
            is_void,
        };
        let outcome = |replica: KeptReplica, owner_stopped, accepts: bool| {
            let accept_loss = accepts.then(|| "vm1".to_owned());
            let request = OwnDisk {
                confirm: "vm1".into(),
                accept_loss,
                without_fence: vec!["alpha".into()],
                owner_stopped,
            };
            let uses = uses_replica(Some(&replica), &request);
            let all = Takeover { replica: Some(replica), ..takeover(&["alpha"], None) };
            check(&all, &request).map(|()| uses).map_err(|error| error.to_string())
        };
        assert_eq!(outcome(kept(true, true, false), false, false), Ok(true));
        assert_eq!(outcome(kept(true, false, false), true, false), Ok(true));
        assert_eq!(outcome(kept(true, false, false), false, true), Ok(false), "the loss of it is accepted");
        let refused = outcome(kept(true, false, false), false, false).unwrap_err();
        assert!(refused.contains("may have continued without") && refused.contains("9.0 s ago"), "{refused}");
        let not_heard = KeptReplica { heard_s: None, ..kept(true, false, false) };
        let refused = outcome(not_heard, false, false).unwrap_err();
        assert!(refused.contains("not known when that was last heard"), "{refused}");
        for useless in [kept(false, false, false), kept(true, false, true)] {
            assert!(outcome(useless.clone(), true, true).unwrap_err().contains("owner_stopped"));
            assert!(outcome(useless.clone(), false, false).unwrap_err().contains("not known which blocks"));
            assert_eq!(outcome(useless, false, true), Ok(false));
        }
    }

    #[test]
    fn a_host_that_is_not_configured_is_not_fenced() {
        let names = BTreeMap::from([(HostId(1), "alpha".to_string())]);
        assert!(refuse_unconfigured("vm1", &[HostId(1)], &names).is_ok());
        let refused = refuse_unconfigured("vm1", &[HostId(1), HostId(2)], &names).unwrap_err().to_string();
        assert!(refused.contains("unknown host 0000000000000002"), "{refused}");
    }

    #[test]
    fn case_makes_no_difference_in_names() {
        let one = takeover(&["alpha"], None);
        assert_eq!(refusal(&one, true, &["Alpha"]), "");
    }
}
