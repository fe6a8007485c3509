//! Detached disks that another host may take: they *stand by*, and leave when that host asks for them.
//!
//! Invariants
//! - A disk stands by only if its recorded ownership was agreed with the other hosts and, after a start, only once the
//!   hosts that can be reached have said that it was not taken over.
//! - A disk that is attached, is being attached or waits to be attached does not stand by: this host uses it, or is
//!   about to.

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
    /// Makes a detached disk that a pool records as this host's own stand by, so that it leaves for any host that asks
    /// for it.
    ///
    /// # Errors
    /// The disk cannot leave. The error is worded as another host reports it about this host.
    pub(super) fn stand_by(&self, pool: &Pool, id: DiskId) -> std::result::Result<(), String> {
        let check_unused = || match self.by_id(id) {
            Ok((_, disk)) if disk.with(|inner| inner.state) == DiskState::Detached => Ok(()),
            Ok(_) => {
                Err("is attaching it, or it waits there: wait until it is attached there, or detach it there"
                    .to_owned())
            }
            // Disks are listed soon after a start. Until then it is not known whether this one is to be attached.
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

/// Makes detached disks stand by after a start. Retries, until the daemon ends, those that cannot yet.
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
