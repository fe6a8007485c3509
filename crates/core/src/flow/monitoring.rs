//! Starting and stopping to record the requests of a disk's guest, and taking the records.

use haversack_model::DiskNo;

use crate::core::Core;
use crate::error::ManageError;
use crate::monitor::{Monitor, MonitorConfig, Records};

impl Core {
    /// Starts to record the requests of a disk's guest, with an empty buffer, or stops with `None`. Attaching
    /// a disk stops it too.
    ///
    /// # Errors
    /// The disk is not known or the setting is invalid.
    pub fn set_monitor(&mut self, disk: DiskNo, config: Option<MonitorConfig>) -> Result<(), ManageError> {
        let phase = self.known(disk)?.phase;
        config.as_ref().map_or(Ok(()), MonitorConfig::check)?;
        self.disk_mut(disk).monitor = config.map(|config| Monitor::new(config, phase));
        Ok(())
    }

    /// Swaps a disk's records for an empty buffer: `into` receives what was recorded since the last call. The
    /// buffer that is swapped in is reused if its capacity is that of the monitor; otherwise this allocates.
    /// Returns false, with `into` empty, if the disk is not monitored.
    pub fn take_records(&mut self, disk: DiskNo, into: &mut Records) -> bool {
        into.clear();
        let known = self.disks.get_mut(disk);
        let Some(monitor) = known.and_then(|disk| disk.monitor.as_mut()) else { return false };
        monitor.swap(into);
        true
    }

    /// Returns the used share of a disk's record buffer, from 0 to 1; 0 if the disk is not monitored.
    pub fn records_fill(&self, disk: DiskNo) -> f64 {
        let known = self.disks.get(disk);
        known.and_then(|disk| disk.monitor.as_ref()).map_or(0.0, |monitor| monitor.fill())
    }
}
