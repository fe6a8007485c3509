//! Prepares for a disk whose VM is about to arrive. Only the disk's place in the VM's configuration is known: the name
//! of its NBD export or its vhost-user socket. The host that has such a disk is asked to send it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::{ExpectDisk, MigrationStatus};
use haversack_model::{DiskId, HostId};

use super::Hosts;
use super::migrate::preparation;
use super::talk::{Answer, Question};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::settings::check_name;

/// How long the other hosts have to answer, and this one to attach the disk in the meantime.
const PATIENCE: Duration = Duration::from_secs(50);
/// The longest path that a socket can have.
const MOST_PATH_BYTES: usize = 107;

impl Daemon {
    /// Attaches a disk here through the host that has it, and requests its cache. If the disk is attached here already,
    /// only its cache is requested.
    ///
    /// # Errors
    /// The request does not name exactly one place, no host has such a disk, or it cannot be attached here.
    pub fn expect(self: &Arc<Self>, wanted: &ExpectDisk) -> Result<MigrationStatus> {
        check(wanted).map_err(DaemonError::Bad)?;
        let hosts = self.hosts_or_error()?;
        if let Some((name, disk)) = self.wanted(wanted) {
            self.have_sent(&disk)?;
            return self.migration_of(&name);
        }
        // It is not known here which disk it is.
        let others = hosts.others();
        let answers = hosts.ask(&others, DiskId([0; 16]), &Question::Bring(wanted.clone()));
        let (mut asked, away): (Vec<HostId>, Vec<HostId>) =
            others.into_iter().partition(|host| hosts.are_connected(&[*host]));
        let mut missing = away.first().map(|host| (*host, "is not connected".to_owned()));
        let deadline = Instant::now() + PATIENCE;
        while let Ok((host, answer)) =
            answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            asked.retain(|other| *other != host);
            match answer {
                Answer::Done => return self.attached_one(wanted),
                Answer::Refused(why) => missing = Some((host, why)),
                _ => {}
            }
        }
        match missing.or(asked.first().map(|host| (*host, "has not answered".to_owned()))) {
            Some((host, why)) => Err(DaemonError::conflict(
                format!("{} does not come from host '{}': it {why}", describe(wanted), hosts.name_of(host)),
                "see 'haversack host list', and 'haversack migrate status' there",
            )),
            None => Err(DaemonError::NoSuch { what: "disk", name: describe(wanted) }),
        }
    }

    /// Requests the cache of the disk that has just been attached.
    fn attached_one(self: &Arc<Self>, wanted: &ExpectDisk) -> Result<MigrationStatus> {
        let found = self.wanted(wanted);
        let (name, disk) = found.ok_or(DaemonError::NoSuch { what: "disk", name: describe(wanted) })?;
        self.have_sent(&disk)?;
        self.migration_of(&name)
    }

    /// Returns the attached disk that a request names.
    fn wanted(&self, wanted: &ExpectDisk) -> Option<(String, Arc<Disk>)> {
        let is_it = |name: &str, disk: &Disk| {
            let config = disk.config();
            let by_name = wanted.name.as_deref() == Some(name);
            let socket = wanted.vhost_user.as_deref();
            by_name || socket.is_some() && socket == config.vhost_user.as_deref().map(Path::new)
        };
        let disks = self.disks().into_iter();
        disks.filter(|(_, disk)| disk.attached().is_ok()).find(|(name, disk)| is_it(name, disk))
    }

    /// If the disk is here, makes the host that expects it attach it. That host then requests the cache.
    pub(super) fn bring(&self, hosts: &Hosts, to: HostId, wanted: &ExpectDisk) -> Result<Answer> {
        let Some((_, disk)) = self.wanted(wanted) else { return Ok(Answer::Unknown) };
        let status = self.pool(&disk.config().pool)?.backend.migration_status(disk.id)?;
        if !status.is_some_and(|status| status.record.is_owner()) {
            return Ok(Answer::Unknown);
        }
        let answers = hosts.ask(&[to], disk.id, &preparation(hosts, &disk, to));
        let answer = answers.recv_timeout(PATIENCE).map(|(_, answer)| answer);
        Ok(answer.unwrap_or_else(|_| Answer::Refused("has not been answered".into())))
    }
}

/// Refuses a request that does not name exactly one place.
fn check(wanted: &ExpectDisk) -> std::result::Result<(), String> {
    match (&wanted.name, &wanted.vhost_user) {
        (Some(name), None) => check_name(name),
        (None, Some(path)) if !path.is_absolute() => {
            Err(format!("vhost_user: '{}' is not an absolute path", path.display()))
        }
        (None, Some(path)) if path.as_os_str().len() > MOST_PATH_BYTES => {
            Err(format!("vhost_user: the path of a socket has at most {MOST_PATH_BYTES} bytes"))
        }
        (None, Some(_)) => Ok(()),
        _ => Err("give either name or vhost_user".into()),
    }
}

fn describe(wanted: &ExpectDisk) -> String {
    match (&wanted.name, &wanted.vhost_user) {
        (Some(name), _) => name.clone(),
        (None, Some(path)) => format!("with the socket {}", path.display()),
        (None, None) => "without a name".into(),
    }
}
