//! Disks that are detached here and that another host may have: they *stand by*, and leave when that host asks for them.
//!
//! Invariants
//! - Only a disk whose ownership on record was agreed on with the other hosts stands by, and after a start only when the hosts
//!   that can be reached have said that it was not taken over.
//! - A disk that is attached, being attached or waiting for that does not: it is used here, or about to be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haversack_api::DiskState;
use haversack_core::Progress;
use haversack_model::{DiskHandle, DiskId};
use haversack_ownership::Record;

use super::{Hosts, bytes};
use crate::daemon::{Daemon, Disk};
use crate::error::{DaemonError, Result};
use crate::jobs::JobControl;
use crate::pool::Pool;

/// How often to look for detached disks that do not stand by.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a wait for blocks of another host checks how far it is.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long that host may be away meanwhile.
const AWAY: Duration = Duration::from_secs(15);

impl Daemon {
    /// Has a disk that a pool has on record as this host's leave for whichever host asks for it, if it is detached.
    ///
    /// # Errors
    /// It cannot leave. The error says why, as another host tells it of this one.
    pub(super) fn stand_by(&self, pool: &Pool, id: DiskId) -> std::result::Result<(), String> {
        let is_used =
            || self.by_id(id).is_ok_and(|(_, disk)| disk.with(|inner| inner.state) != DiskState::Detached);
        let used = "is attaching it, or it waits there: wait until it is attached there, or detach it there";
        if is_used() {
            return Err(used.into());
        }
        if !self.state.is_agreed(id) {
            return Err("has blocks of it, but it is not attached there as a disk that moves: attach it there, or forget \
                        it there"
                .into());
        }
        let disk = pool.backend.recorded_disk(id).map_err(|error| error.to_string())?;
        let Some(disk) = disk else { return Err("has just forgotten it: try again".into()) };
        if disk.dirty_blocks > 0 {
            return Err(format!(
                "has {} bytes of it that its origin does not have, and it is not attached there: attach it there, then move \
                 it from there, or detach it there when its origin can be written",
                bytes(disk.dirty_blocks)
            ));
        }
        if !disk.info.left_clean {
            return Err(
                "has not detached it in good order: attach it there, then detach it or move it from there"
                    .into(),
            );
        }
        self.check_epoch(id).map_err(|error| error.to_string())?;
        match pool.backend.stand_by(id) {
            // It may have begun to be attached since.
            Ok(true) if is_used() => {
                pool.backend.withdraw(id).map_err(|error| error.to_string())?;
                Err(used.into())
            }
            Ok(true) => Ok(()),
            Ok(false) => Err("is attaching or forgetting it: try again".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the detached disks that should stand by and do not.
    fn to_stand_by(&self) -> Vec<(String, DiskId)> {
        let is_due = |disk: &Disk| {
            let (pool, state) = disk.with(|inner| (inner.config.pool.clone(), inner.state));
            let Ok(pool) = self.pool(&pool) else { return false };
            state == DiskState::Detached
                && self.state.is_agreed(disk.id)
                && matches!(pool.backend.migration_status(disk.id), Ok(None))
                && matches!(pool.backend.recorded_disk(disk.id), Ok(Some(disk)) if disk.info.left_clean)
        };
        let disks = self.disks().into_values().filter(|disk| is_due(disk));
        disks.map(|disk| (disk.config().pool, disk.id)).collect()
    }

    /// Waits until no block of a disk is on another host any more that it came from, so that it can be detached.
    ///
    /// # Errors
    /// That host is away, or the wait was cancelled.
    pub(crate) fn await_blocks(
        &self,
        control: &JobControl,
        name: &str,
        disk: &Disk,
        handle: DiskHandle,
    ) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let backend = &self.pool(&disk.config().pool)?.backend;
        let (mut total_blocks, mut heard) = (None, Instant::now());
        while let Some(status) = backend.migration_status(disk.id)? {
            let Record::Owner { peers, .. } = &status.record else { break };
            let Some(peer) = peers.iter().next().copied() else { break };
            if backend.recorded_disk(disk.id)?.is_none_or(|disk| !disk.info.attached) {
                // It waits for that host itself; what is there is needed when it is attached again.
                break;
            }
            let needed_blocks = status.progress.needed_blocks;
            if total_blocks.is_none() {
                backend.fetch_rest(handle)?;
                let what =
                    format!("waits for {} bytes from host '{}'", bytes(needed_blocks), hosts.name_of(peer));
                tracing::info!(disk = name, "detaching: {what}");
                self.events.add("detach-waits", name, what);
            }
            let total_blocks = *total_blocks.get_or_insert(needed_blocks);
            control
                .report(Progress { done_blocks: total_blocks.saturating_sub(needed_blocks), total_blocks });
            if control.is_cancelled() {
                return Err(haversack_engine::EngineError::Job(haversack_core::JobError::Cancelled).into());
            }
            if hosts.is_connected(peer) {
                heard = Instant::now();
            } else if heard.elapsed() >= AWAY {
                return Err(DaemonError::conflict(
                    format!(
                        "disk '{name}' needs {} bytes that are only on host '{}', which is not connected",
                        bytes(needed_blocks),
                        hosts.name_of(peer)
                    ),
                    "start haversackd there and try again; or, if that host is dead for good, see 'haversack disk own'",
                ));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }
}

/// Has disks that are detached stand by after a start, and when that could not be done at once, until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    super::watch(daemon, "detached", LOOK_EVERY, |daemon, _: &Hosts| {
        for (pool, id) in daemon.to_stand_by() {
            if let Ok(pool) = daemon.pool(&pool)
                && let Err(why) = daemon.stand_by(pool, id)
            {
                tracing::debug!(disk = %id, "it cannot leave for another host: this one {why}");
            }
        }
    })
}
