//! Filters that the operator gave disks and that go by a disk's share of its pool.
//!
//! Invariant: whatever changes shares calls this after it, so a filter knows the share that its disk has now.

use haversack_api::DiskConfig;

use crate::daemon::Daemon;
use crate::pool::Pool;
use crate::settings;

impl Daemon {
    /// Tells the filters of a pool's disks how large their shares are now. What they remember stays.
    pub fn size_filters(&self, pool: &Pool) {
        let by_share = |config: &DiskConfig| config.pool == pool.name && config.admission.goes_by_share();
        let disks: Vec<_> = self.disks().into_values().filter(|disk| by_share(&disk.config())).collect();
        if disks.is_empty() {
            return;
        }
        // A pool that has stopped is told of elsewhere.
        let Ok(snapshot) = pool.backend.snapshot() else { return };
        for disk in disks {
            let Some(shown) = snapshot.disks.iter().find(|shown| shown.id == disk.id) else { continue };
            let admission = settings::admission(disk.config().admission, shown.usage.target_blocks);
            if let Err(error) = pool.backend.set_admission(shown.disk, admission) {
                tracing::warn!(disk = shown.name, "its filter does not know its share: {error}");
            }
        }
    }
}
