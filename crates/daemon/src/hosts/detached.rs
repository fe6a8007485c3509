//! Disks that are detached here and that another host may have: they *stand by*, and leave when that host asks for them.
//!
//! Invariants
//! - Only a disk whose ownership on record was agreed on with the other hosts stands by, and after a start only when the hosts
//!   that can be reached have said that it was not taken over.
//! - A disk that is attached, being attached or waiting for that does not: it is used here, or about to be.

use std::sync::Arc;
use std::time::Duration;

use haversack_api::DiskState;
use haversack_model::DiskId;

use super::{Hosts, bytes};
use crate::daemon::{Daemon, Disk};
use crate::pool::Pool;

/// How often to look for detached disks that do not stand by.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Daemon {
    /// Has a disk that a pool has on record as this host's leave for whichever host asks for it, if it is detached.
    ///
    /// # Errors
    /// It cannot leave. The error says why, as another host tells it of this one.
    pub(super) fn stand_by(&self, pool: &Pool, id: DiskId) -> std::result::Result<(), String> {
        let check_unused = || match self.by_id(id) {
            Ok((_, disk)) if disk.with(|inner| inner.state) == DiskState::Detached => Ok(()),
            Ok(_) => {
                Err("is attaching it, or it waits there: wait until it is attached there, or detach it there"
                    .to_owned())
            }
            // It is listed soon after a start, before it is known whether it is to be attached.
            Err(_) => Err("has blocks of it, and does not list it: try again, or attach it there".to_owned()),
        };
        if !self.state.is_agreed(id) {
            return Err("has blocks of it, but it is not attached there as a disk that moves: attach it there, or forget \
                        it there"
                .into());
        }
        check_unused()?;
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
                "did not detach it cleanly: attach it there, then detach it or move it from there".into()
            );
        }
        self.check_epoch(id).map_err(|error| error.to_string())?;
        match pool.backend.stand_by(id) {
            // It may have begun to be attached since.
            Ok(true) => check_unused().or_else(|why| {
                pool.backend.withdraw(id).map_err(|error| error.to_string())?;
                Err(why)
            }),
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
}

/// Has disks that are detached stand by after a start, and when that could not be done at once, until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    super::watch(daemon, ("detached", "having detached disks stand by"), LOOK_EVERY, |daemon, _: &Hosts| {
        daemon.note_drained();
        for (pool, id) in daemon.to_stand_by() {
            if let Ok(pool) = daemon.pool(&pool)
                && let Err(why) = daemon.stand_by(pool, id)
            {
                tracing::debug!(disk = %id, "it cannot leave for another host: this one {why}");
            }
        }
    })
}
