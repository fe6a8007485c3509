//! The control plane's interface to a pool's data path: a thin trait over the engine, so that everything above
//! it can be tested without one.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use haversack_core::{AdmissionConfig, DiskConfig, MonitorConfig, Progress, Records, Target};
use haversack_engine::config::DiskSpec;
use haversack_engine::error::Result;
use haversack_engine::handle::{EngineEvent, Handle, Job};
use haversack_engine::label::Label;
use haversack_engine::pool::Formatting;
use haversack_engine::snapshot::Snapshot;
use haversack_engine::{Held, MissingDevice, NbdClient, VhostUserConfig, VhostUserServer};
use haversack_model::{DeviceNo, DiskHandle, DiskId, Micros, SectorNo, WriteMode};

/// A management job of the data path.
pub trait BackendJob: Send {
    /// Waits at most `time` for the job to end; `None` if it has not ended by then.
    ///
    /// # Errors
    /// The job failed.
    fn wait_for(&self, time: Duration) -> Result<Option<()>>;
    /// Returns the job's progress, if it reports any.
    fn progress(&self) -> Option<Progress>;
    /// Cancels the job. Returns false if that is not possible.
    fn cancel(&self) -> bool;
}

/// A job that the caller waits for.
pub type StartedJob = Box<dyn BackendJob>;

/// A disk's vhost-user server. Dropping it ends the service.
pub trait VhostUser: Send {
    /// Reports a new size to the guest.
    ///
    /// # Errors
    /// The size cannot be offered.
    fn resize(&self, sectors: u64) -> std::result::Result<(), String>;
    /// Returns the processes connected as front ends.
    fn connected(&self) -> Vec<String>;
    /// See [`VhostUserServer::close_if_unused`].
    ///
    /// # Errors
    /// The processes that are connected.
    fn close_if_unused(&self) -> std::result::Result<Held, Vec<String>>;
}

impl VhostUser for VhostUserServer {
    fn resize(&self, sectors: u64) -> std::result::Result<(), String> {
        VhostUserServer::resize(self, sectors).map_err(|e| e.to_string())
    }

    fn connected(&self) -> Vec<String> {
        VhostUserServer::connected(self)
    }

    fn close_if_unused(&self) -> std::result::Result<Held, Vec<String>> {
        VhostUserServer::close_if_unused(self)
    }
}

/// A pool's data path. The calls are those of the engine's [`Handle`] and are documented there.
#[expect(clippy::missing_errors_doc, reason = "described at the engine's handle")]
pub trait Backend: Send + Sync {
    /// See [`Handle::now_us`].
    fn now_us(&self) -> Micros;
    /// See [`Handle::clock_runs`].
    fn clock_runs(&self) -> bool;
    /// See [`Handle::attach`].
    fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, StartedJob)>;
    /// See [`Handle::detach`] and [`Handle::detach_accepting_loss`].
    fn detach(&self, disk: DiskHandle, force: bool, accept_loss: bool) -> Result<StartedJob>;
    /// See [`Handle::lost_runs`].
    fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>>;
    /// See [`Handle::clean`].
    fn clean(&self, disk: DiskHandle) -> Result<StartedJob>;
    /// See [`Handle::forget`].
    fn forget(&self, disk: DiskId, destroy_dirty: bool) -> Result<StartedJob>;
    /// See [`Handle::resize`].
    fn resize(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<StartedJob>;
    /// See [`Handle::set_mode`].
    fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<StartedJob>;
    /// See [`Handle::set_target`].
    fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()>;
    /// See [`Handle::set_admission`].
    fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()>;
    /// See [`Handle::set_write_price`].
    fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()>;
    /// See [`Handle::tune`].
    fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()>;
    /// See [`Handle::add_device`].
    fn add_device(&self, path: &Path, formatting: Formatting) -> Result<StartedJob>;
    /// See [`Handle::remove_device`].
    fn remove_device(&self, device: DeviceNo) -> Result<StartedJob>;
    /// See [`Handle::set_monitor`].
    fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()>;
    /// See [`Handle::take_records`].
    fn take_records(&self, buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>>;
    /// See [`Handle::shutdown`].
    fn shutdown(&self) -> Result<StartedJob>;
    /// See [`Handle::snapshot`].
    fn snapshot(&self) -> Result<Snapshot>;
    /// See [`Handle::events`].
    fn events(&self) -> Result<mpsc::Receiver<EngineEvent>>;
    /// See [`Handle::loss_recorded`].
    fn loss_recorded(&self) -> Result<()>;
    /// See [`Handle::missing_devices`].
    fn missing_devices(&self) -> Result<Vec<MissingDevice>>;
    /// See [`Handle::label_disk`].
    fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()>;
    /// See [`Handle::disk_labels`].
    fn disk_labels(&self) -> Result<Vec<Label>>;
    /// See [`Handle::nbd_peers`].
    fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>>;
    /// See [`Handle::add_nbd_client`].
    fn add_nbd_client(&self, client: NbdClient) -> Result<()>;
    /// See [`Handle::serve_vhost_user`]. The server stops when the returned value is dropped.
    fn serve_vhost_user(
        &self,
        disk: DiskHandle,
        sectors: u64,
        socket: &Path,
        config: &VhostUserConfig,
    ) -> Result<Box<dyn VhostUser>>;
}

impl BackendJob for Job {
    fn wait_for(&self, time: Duration) -> Result<Option<()>> {
        Job::wait_for(self, time)
    }

    fn progress(&self) -> Option<Progress> {
        Job::progress(self).ok().flatten()
    }

    fn cancel(&self) -> bool {
        Job::cancel(self).unwrap_or(false)
    }
}

fn boxed(job: Job) -> StartedJob {
    Box::new(job)
}

impl Backend for Handle {
    fn now_us(&self) -> Micros {
        Handle::now_us(self)
    }

    fn clock_runs(&self) -> bool {
        Handle::clock_runs(self)
    }

    fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, StartedJob)> {
        Handle::attach(self, spec).map(|(disk, job)| (disk, boxed(job)))
    }

    fn detach(&self, disk: DiskHandle, force: bool, accept_loss: bool) -> Result<StartedJob> {
        let detach = if accept_loss { Handle::detach_accepting_loss } else { Handle::detach };
        detach(self, disk, force).map(boxed)
    }
    fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>> {
        Handle::lost_runs(self, disk)
    }

    fn clean(&self, disk: DiskHandle) -> Result<StartedJob> {
        Handle::clean(self, disk).map(boxed)
    }

    fn forget(&self, disk: DiskId, destroy_dirty: bool) -> Result<StartedJob> {
        Handle::forget(self, disk, destroy_dirty).map(boxed)
    }

    fn resize(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<StartedJob> {
        Handle::resize(self, disk, sectors, shrink).map(boxed)
    }

    fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<StartedJob> {
        Handle::set_mode(self, disk, mode).map(boxed)
    }

    fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()> {
        Handle::set_write_price(self, price_us, fill_share)
    }

    fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()> {
        Handle::set_target(self, disk, target)
    }

    fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()> {
        Handle::set_admission(self, disk, admission)
    }

    fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()> {
        Handle::tune(self, disk, config)
    }

    fn add_device(&self, path: &Path, formatting: Formatting) -> Result<StartedJob> {
        Handle::add_device(self, path, formatting).map(boxed)
    }

    fn remove_device(&self, device: DeviceNo) -> Result<StartedJob> {
        Handle::remove_device(self, device).map(boxed)
    }

    fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()> {
        Handle::set_monitor(self, disk, config)
    }

    fn take_records(&self, buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>> {
        Handle::take_records(self, buffers)
    }

    fn shutdown(&self) -> Result<StartedJob> {
        Handle::shutdown(self).map(boxed)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Handle::snapshot(self)
    }

    fn events(&self) -> Result<mpsc::Receiver<EngineEvent>> {
        Handle::events(self)
    }

    fn loss_recorded(&self) -> Result<()> {
        Handle::loss_recorded(self)
    }

    fn missing_devices(&self) -> Result<Vec<MissingDevice>> {
        Handle::missing_devices(self)
    }

    fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()> {
        Handle::label_disk(self, disk, label)
    }

    fn disk_labels(&self) -> Result<Vec<Label>> {
        Handle::disk_labels(self)
    }

    fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>> {
        Handle::nbd_peers(self, disk)
    }

    fn add_nbd_client(&self, client: NbdClient) -> Result<()> {
        Handle::add_nbd_client(self, client)
    }

    fn serve_vhost_user(
        &self,
        disk: DiskHandle,
        sectors: u64,
        socket: &Path,
        config: &VhostUserConfig,
    ) -> Result<Box<dyn VhostUser>> {
        Ok(Box::new(Handle::serve_vhost_user(self, disk, sectors, socket, config)?))
    }
}
