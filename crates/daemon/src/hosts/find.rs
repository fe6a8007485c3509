//! Finding out which host has a disk that is to be attached here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::DiskConfig;
use haversack_core::Moved;
use haversack_engine::Moves;
use haversack_model::{DiskId, HostId};

use super::Hosts;
use super::movable::why_it_stays;
use super::talk::{Answer, Question};
use crate::daemon::Daemon;
use crate::error::{DaemonError, Result};
use crate::locked::Locked;
use crate::origin::Origin;
use crate::pool::Pool;

/// How long the other hosts have to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a host that is attaching the disk as well is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// The answer of a host that cannot know whether it has a disk.
pub(super) const MAY_HAVE_IT: &str = "has a pool that is not open, and may have the disk";
/// The answer to the owner of a disk that has lost its own record of it.
const HAS_REPLICA: &str = "has a replica of it from when the disk was here: to use that, attach the disk there and take it over \
                           with 'haversack disk own'; if it is not needed, 'haversack disk forget' it there";
/// Says that no other host has had a disk.
const NOWHERE: &str = "none";

/// A disk that is being attached, until this is dropped.
pub(crate) struct Seeking {
    hosts: Arc<Hosts>,
    disk: DiskId,
}

impl Drop for Seeking {
    fn drop(&mut self) {
        self.hosts.seeking.locked().remove(&self.disk);
    }
}

impl Daemon {
    /// Makes it known to other hosts that a disk is being attached here, as long as the returned value lives.
    pub(crate) fn seek(&self, disk: DiskId) -> Option<Seeking> {
        let hosts = self.hosts()?;
        hosts.seeking.locked().insert(disk);
        Some(Seeking { hosts, disk })
    }

    /// Returns from which host a disk that can move is attached; `None` for a disk that does not move.
    pub(crate) fn moves(
        &self,
        config: &DiskConfig,
        id: DiskId,
        origin: &Origin,
        pool: &Pool,
    ) -> Result<Option<Moves>> {
        let Some(hosts) = self.hosts() else {
            return match &config.from {
                None => Ok(None),
                Some(_) => Err(DaemonError::conflict(
                    format!("disk '{}' has from, but this host knows no other hosts", config.name),
                    "configure [migration] and [[host]], or leave from out",
                )),
            };
        };
        if why_it_stays(config, origin).is_some() {
            return Ok(None);
        }
        self.heed_directory(&hosts, id)?;
        if self.state.is_agreed(id) || pool.backend.recorded_move(id)?.is_some_and(|moved| moved != Moved::No)
        {
            self.check_epoch(id)?;
        }
        let recorded = pool.backend.recorded_move(id)?;
        if recorded.is_some_and(|moved| moved != Moved::No) || recorded.is_some() && self.state.is_agreed(id)
        {
            // This host's record is newer than the `from` setting.
            let known_epoch = self.state.known_before(id).map_or(0, |before| before.epoch);
            return Ok(Some(Moves { known_epoch, ..Moves::default() }));
        }
        if recorded.is_some() {
            // The record is from a time when the disk did not move, or was read-only: another host may have taken the
            // disk since.
            let is_new = config.from.as_deref() == Some(NOWHERE);
            return match hosts.find_owner(&config.name, id, is_new)? {
                None => {
                    let known_epoch = self.highest_known(&hosts, id)?;
                    Ok(Some(Moves { known_epoch, ..Moves::default() }))
                }
                Some(host) => Err(DaemonError::conflict(
                    format!(
                        "pool '{}' has blocks of disk '{}' from a time when it did not move, and host '{}' has the disk",
                        pool.name,
                        config.name,
                        hosts.name_of(host)
                    ),
                    "forget the disk on the host that was not the last to use it",
                )),
            };
        }
        self.check_note(&hosts, id)?;
        let from = match config.from.as_deref() {
            Some(NOWHERE) => {
                let owner = hosts.find_owner(&config.name, id, true)?;
                if owner.is_none() {
                    self.state.forget_taken_over(id)?;
                }
                owner
            }
            Some(name) => Some(hosts.find(name).ok_or_else(|| Hosts::unknown(name))?),
            None => match self.state.taken_over(id) {
                Some((by, _)) if by != hosts.me => Some(by),
                _ => hosts.find_owner(&config.name, id, false)?,
            },
        };
        let known_epoch = match from {
            Some(host) => self.known_before_coming(&hosts, id, host)?,
            None => self.highest_known(&hosts, id)?,
        };
        Ok(Some(Moves { from, known_epoch, ..Moves::default() }))
    }

    /// Returns what this host knows of a disk that is being attached on host `by`.
    pub(super) fn knows(&self, by: HostId, id: DiskId) -> Answer {
        // Read this before the records: a disk that is no longer sought by then is recorded.
        let is_sought = self.hosts().is_some_and(|hosts| hosts.seeking.locked().contains(&id));
        for pool in self.pools() {
            let moves = matches!(pool.backend.migration_status(id), Ok(Some(_)));
            match pool.backend.recorded_move(id) {
                // The asking host asks the new owner as well, so this host gives no answer.
                Ok(Some(Moved::Overtaken { .. })) => {}
                Ok(Some(Moved::Replica { of, .. })) if of == by => {
                    return Answer::Refused(HAS_REPLICA.into());
                }
                Ok(Some(_)) if moves => return Answer::Known,
                Ok(Some(_)) => {
                    return self.stand_by(pool, id).map_or_else(Answer::Refused, |()| Answer::Known);
                }
                Ok(None) => {}
                Err(error) => return Answer::Refused(error.to_string()),
            }
        }
        if self.closed.closed().next().is_some() {
            return Answer::Refused(MAY_HAVE_IT.into());
        }
        if is_sought { Answer::Seeking } else { Answer::Unknown }
    }
}

impl Hosts {
    pub(super) fn unknown(name: &str) -> DaemonError {
        DaemonError::NoSuch { what: "host", name: name.to_string() }
    }

    /// Asks all hosts for a disk. Returns the one that has it or knows who does, or `None` if no host has it. A host
    /// that does not answer may have it, unless `is_new` says that none has.
    fn find_owner(&self, disk: &str, id: DiskId, is_new: bool) -> Result<Option<HostId>> {
        let mut deadline = None;
        let mut asked = self.others();
        let mut missing = Vec::new();
        while !asked.is_empty() {
            let answers = self.ask(&asked, id, &Question::Find);
            // The time starts after asking, because asking waits for connections that are being made.
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            let mut again = Vec::new();
            while !asked.is_empty() {
                let Ok((host, answer)) =
                    answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                else {
                    missing.extend(asked.drain(..).map(|host| (host, "does not answer".to_string())));
                    break;
                };
                asked.retain(|other| *other != host);
                match answer {
                    Answer::Known => return Ok(Some(host)),
                    // Of two that attach a disk at the same time, the one with the lower identity waits for the other
                    // one, which gives up for now.
                    Answer::Seeking if self.me < host => again.push(host),
                    Answer::Seeking => missing.push((host, "is attaching it as well".into())),
                    Answer::Refused(why) => missing.push((host, why)),
                    Answer::Unknown | Answer::Done | Answer::Learned { .. } | Answer::Record(_) => {}
                }
            }
            if !again.is_empty() {
                std::thread::sleep(PAUSE);
            }
            asked = again;
        }
        if is_new {
            missing.retain(|(host, why)| why != "does not answer" || self.is_connected(*host));
        }
        let Some((host, why)) = missing.first() else { return Ok(None) };
        Err(DaemonError::conflict(
            format!(
                "disk '{disk}' is new here, and another host may have it: host '{}' {why}",
                self.name_of(*host)
            ),
            "wait until all hosts are up; or name the host that has it as from; or from = \"none\" if no host has had it",
        ))
    }
}
