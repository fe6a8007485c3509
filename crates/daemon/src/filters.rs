//! Admission filters set by the operator whose size depends on the disk's share of its pool.
//!
//! Invariant
//! - Whatever changes shares calls [`Daemon::size_filters`] afterwards, so a filter knows its disk's current
//!   share.

use haversack_api::DiskConfig;

use crate::daemon::Daemon;
use crate::pool::Pool;
use crate::settings;

impl Daemon {
    /// Resizes the filters of a pool's disks to their current shares. The filters keep their content.
    pub fn size_filters(&self, pool: &Pool) {
        let by_share = |config: &DiskConfig| config.pool == pool.name && config.admission.goes_by_share();
        let disks: Vec<_> = self.disks().into_values().filter(|disk| by_share(&disk.config())).collect();
        if disks.is_empty() {
            return;
        }
        // A stopped pool is reported elsewhere.
        let Ok(snapshot) = pool.backend.snapshot() else { return };
        for disk in disks {
            let Some(shown) = snapshot.disks.iter().find(|shown| shown.id == disk.id) else { continue };
            let admission = settings::admission(disk.config().admission, shown.usage.target_blocks);
            if let Err(error) = pool.backend.set_admission(shown.disk, admission) {
                tracing::warn!(disk = shown.name, "cannot resize the admission filter: {error}");
            }
        }
    }
}
