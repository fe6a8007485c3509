//! The control plane's interface to a pool's data path: a thin trait over the engine, so that everything above
//! it can be tested without one.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use haversack_api::Method;
use haversack_core::{
    AdmissionConfig, AdmissionFigures, BaseBlocks, BaseUsage, DiskConfig, MonitorConfig, Moved, PeerLoss,
    Progress, Records, SharingId, Target,
};
use haversack_engine::config::DiskSpec;
use haversack_engine::error::Result;
use haversack_engine::label::Label;
use haversack_engine::pool::Formatting;
use haversack_engine::snapshot::Snapshot;
use haversack_engine::{
    ArenaHandle, EngineEvent, Held, HostMessage, HostSettings, Job, LendingSettings, LendingStatus,
    MissingDevice, MoveStatus, NbdClient, PoolHandle, Receipt, RecordedDisk, ReplicaPolicy, TakeoverLoss,
    VhostUserConfig, VhostUserServer, WriteCacheSetting,
};
use haversack_model::{ArenaNo, DeviceNo, DiskHandle, DiskId, HostId, Micros, SectorNo, WriteMode};

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
    /// See [`VhostUserServer::write_cache`].
    fn write_cache(&self) -> (Option<u64>, WriteCacheSetting);
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

    fn write_cache(&self) -> (Option<u64>, WriteCacheSetting) {
        VhostUserServer::write_cache(self)
    }

    fn close_if_unused(&self) -> std::result::Result<Held, Vec<String>> {
        VhostUserServer::close_if_unused(self)
    }
}

/// A pool's data path. The calls are those of the engine's [`PoolHandle`] and [`ArenaHandle`] and are documented there.
#[expect(clippy::missing_errors_doc, reason = "described at the engine's handle")]
pub trait Backend: Send + Sync {
    /// See [`PoolHandle::now_us`].
    fn now_us(&self) -> Micros;
    /// See [`PoolHandle::measures_latencies`].
    fn measures_latencies(&self) -> bool;
    /// See [`PoolHandle::attach`].
    fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, StartedJob)>;
    /// See [`PoolHandle::join_hosts`].
    fn join_hosts(&self, host: &HostSettings) -> Result<()>;
    /// See [`PoolHandle::join_lending`].
    fn join_lending(&self, settings: &LendingSettings) -> Result<()>;
    /// See [`PoolHandle::choose_lenders`].
    fn choose_lenders(&self, hosts: &[HostId]) -> Result<()>;
    /// See [`PoolHandle::lending_status`].
    fn lending_status(&self) -> Result<LendingStatus>;
    /// See [`PoolHandle::host_said`].
    fn host_said(&self, from: HostId, disk: DiskId, message: HostMessage, receipt: Receipt);
    /// See [`PoolHandle::recorded_move`].
    fn recorded_move(&self, disk: DiskId) -> Result<Option<Moved>>;
    /// See [`ArenaHandle::start_migration`].
    fn start_migration(&self, disk: DiskHandle, to: HostId, method: Method) -> Result<()>;
    /// See [`ArenaHandle::stop_migration`].
    fn stop_migration(&self, disk: DiskHandle) -> Result<bool>;
    /// See [`PoolHandle::migration_status`].
    fn migration_status(&self, disk: DiskId) -> Result<Option<MoveStatus>>;
    /// See [`PoolHandle::departures`].
    fn departures(&self) -> Result<Vec<(DiskId, MoveStatus)>>;
    /// See [`ArenaHandle::take_over`].
    fn take_over(&self, disk: DiskHandle, epoch: u64, loss: PeerLoss) -> Result<()>;
    /// See [`ArenaHandle::take_over_with_replica`].
    fn take_over_with_replica(&self, disk: DiskHandle, epoch: u64) -> Result<()>;
    /// See [`ArenaHandle::set_replica`].
    fn set_replica(&self, disk: DiskHandle, replica: Option<ReplicaPolicy>) -> Result<()>;
    /// See [`PoolHandle::replicas`].
    fn replicas(&self) -> Result<Vec<(DiskId, MoveStatus)>>;
    /// See [`PoolHandle::stand_by`].
    fn stand_by(&self, disk: DiskId) -> Result<bool>;
    /// See [`PoolHandle::withdraw`].
    fn withdraw(&self, disk: DiskId) -> Result<()>;
    /// See [`ArenaHandle::fetch_rest`].
    fn fetch_rest(&self, disk: DiskHandle) -> Result<()>;
    /// See [`ArenaHandle::settle_write_cache`].
    fn settle_write_cache(&self, disk: DiskHandle, epoch: u64, on: bool) -> Result<bool>;
    /// See [`PoolHandle::overtaken`].
    fn overtaken(&self, disk: DiskId, by: HostId, epoch: u64) -> Result<bool>;
    /// See [`PoolHandle::heard_of_owner`].
    fn heard_of_owner(&self, disk: DiskId, host: HostId, epoch: u64) -> Result<()>;
    /// See [`PoolHandle::has_forgotten`].
    fn has_forgotten(&self, disk: DiskId, epoch: u64) -> Result<()>;
    /// See [`PoolHandle::takeover_loss`].
    fn takeover_loss(&self, disk: DiskId) -> Result<TakeoverLoss>;
    /// See [`PoolHandle::recorded_disk`].
    fn recorded_disk(&self, disk: DiskId) -> Result<Option<RecordedDisk>>;
    /// See [`ArenaHandle::detach`] and [`ArenaHandle::detach_accepting_loss`].
    fn detach(&self, disk: DiskHandle, force: bool, accept_loss: bool) -> Result<StartedJob>;
    /// See [`ArenaHandle::lost_runs`].
    fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>>;
    /// See [`ArenaHandle::clean`].
    fn clean(&self, disk: DiskHandle) -> Result<StartedJob>;
    /// See [`PoolHandle::forget`].
    fn forget(&self, disk: DiskId, destroy_dirty: bool, remembered: Option<u64>) -> Result<StartedJob>;
    /// See [`ArenaHandle::resize`].
    fn resize(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<StartedJob>;
    /// See [`ArenaHandle::set_mode`].
    fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<StartedJob>;
    /// See [`ArenaHandle::set_target`].
    fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()>;
    /// See [`ArenaHandle::set_admission`].
    fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()>;
    /// See [`ArenaHandle::admission_figures`].
    fn admission_figures(&self, disk: DiskHandle) -> Result<Option<AdmissionFigures>>;
    /// See [`ArenaHandle::saved_admission`].
    fn saved_admission(&self, disk: DiskHandle, with_accesses: bool) -> Result<Option<Vec<u8>>>;
    /// See [`ArenaHandle::share_base`].
    fn share_base(&self, disk: DiskHandle, base: DiskHandle) -> Result<SharingId>;
    /// See [`ArenaHandle::share_blocks`].
    fn share_blocks(&self, disk: DiskHandle, sharing: SharingId, blocks: BaseBlocks) -> Result<bool>;
    /// See [`ArenaHandle::base_usage`].
    fn base_usage(&self, disk: DiskHandle) -> Result<Option<BaseUsage>>;
    /// See [`ArenaHandle::end_sharing`].
    fn end_sharing(&self, disk: DiskHandle) -> Result<()>;
    /// See [`ArenaHandle::resume_admission`].
    fn resume_admission(&self, disk: DiskHandle, saved: Vec<u8>) -> Result<bool>;
    /// See [`PoolHandle::set_write_price`].
    fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()>;
    /// See [`ArenaHandle::tune`].
    fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()>;
    /// See [`PoolHandle::add_device`].
    fn add_device(&self, path: &Path, formatting: Formatting) -> Result<StartedJob>;
    /// See [`PoolHandle::remove_device`].
    fn remove_device(&self, device: DeviceNo) -> Result<StartedJob>;
    /// See [`ArenaHandle::set_monitor`].
    fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()>;
    /// See [`PoolHandle::take_records`].
    fn take_records(&self, buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>>;
    /// See [`PoolHandle::shutdown`].
    fn shutdown(&self) -> Result<StartedJob>;
    /// See [`PoolHandle::snapshot`].
    fn snapshot(&self) -> Result<Snapshot>;
    /// See [`PoolHandle::events`].
    fn events(&self) -> Result<mpsc::Receiver<EngineEvent>>;
    /// See [`PoolHandle::loss_recorded`].
    fn loss_recorded(&self, arena: ArenaNo) -> Result<()>;
    /// See [`PoolHandle::missing_devices`].
    fn missing_devices(&self) -> Vec<MissingDevice>;
    /// See [`ArenaHandle::label_disk`].
    fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()>;
    /// See [`PoolHandle::disk_labels`].
    fn disk_labels(&self) -> Result<Vec<Label>>;
    /// See [`ArenaHandle::nbd_peers`].
    fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>>;
    /// See [`ArenaHandle::add_nbd_client`].
    fn add_nbd_client(&self, client: NbdClient) -> Result<()>;
    /// See [`ArenaHandle::serve_vhost_user`]. The server stops when the returned value is dropped.
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

impl Backend for PoolHandle {
    fn now_us(&self) -> Micros {
        PoolHandle::now_us(self)
    }

    fn measures_latencies(&self) -> bool {
        PoolHandle::measures_latencies(self)
    }

    fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, StartedJob)> {
        PoolHandle::attach(self, spec).map(|(disk, job)| (disk, boxed(job)))
    }

    fn join_hosts(&self, host: &HostSettings) -> Result<()> {
        PoolHandle::join_hosts(self, host)
    }

    fn join_lending(&self, settings: &LendingSettings) -> Result<()> {
        PoolHandle::join_lending(self, settings)
    }

    fn choose_lenders(&self, hosts: &[HostId]) -> Result<()> {
        PoolHandle::choose_lenders(self, hosts)
    }

    fn lending_status(&self) -> Result<LendingStatus> {
        PoolHandle::lending_status(self)
    }

    fn host_said(&self, from: HostId, disk: DiskId, message: HostMessage, receipt: Receipt) {
        PoolHandle::host_said(self, from, disk, message, receipt);
    }

    fn recorded_move(&self, disk: DiskId) -> Result<Option<Moved>> {
        PoolHandle::recorded_move(self, disk)
    }

    fn start_migration(&self, disk: DiskHandle, to: HostId, method: Method) -> Result<()> {
        self.arena(disk).start_migration(disk, to, method)
    }

    fn stop_migration(&self, disk: DiskHandle) -> Result<bool> {
        self.arena(disk).stop_migration(disk)
    }

    fn migration_status(&self, disk: DiskId) -> Result<Option<MoveStatus>> {
        PoolHandle::migration_status(self, disk)
    }

    fn departures(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        PoolHandle::departures(self)
    }

    fn take_over(&self, disk: DiskHandle, epoch: u64, loss: PeerLoss) -> Result<()> {
        self.arena(disk).take_over(disk, epoch, loss)
    }

    fn take_over_with_replica(&self, disk: DiskHandle, epoch: u64) -> Result<()> {
        self.arena(disk).take_over_with_replica(disk, epoch)
    }

    fn set_replica(&self, disk: DiskHandle, replica: Option<ReplicaPolicy>) -> Result<()> {
        self.arena(disk).set_replica(disk, replica)
    }

    fn replicas(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        PoolHandle::replicas(self)
    }

    fn stand_by(&self, disk: DiskId) -> Result<bool> {
        PoolHandle::stand_by(self, disk)
    }

    fn withdraw(&self, disk: DiskId) -> Result<()> {
        PoolHandle::withdraw(self, disk)
    }

    fn fetch_rest(&self, disk: DiskHandle) -> Result<()> {
        self.arena(disk).fetch_rest(disk)
    }

    fn settle_write_cache(&self, disk: DiskHandle, epoch: u64, on: bool) -> Result<bool> {
        self.arena(disk).settle_write_cache(disk, epoch, on)
    }

    fn overtaken(&self, disk: DiskId, by: HostId, epoch: u64) -> Result<bool> {
        PoolHandle::overtaken(self, disk, by, epoch)
    }

    fn heard_of_owner(&self, disk: DiskId, host: HostId, epoch: u64) -> Result<()> {
        PoolHandle::heard_of_owner(self, disk, host, epoch)
    }

    fn has_forgotten(&self, disk: DiskId, epoch: u64) -> Result<()> {
        PoolHandle::has_forgotten(self, disk, epoch)
    }

    fn takeover_loss(&self, disk: DiskId) -> Result<TakeoverLoss> {
        PoolHandle::takeover_loss(self, disk)
    }

    fn recorded_disk(&self, disk: DiskId) -> Result<Option<RecordedDisk>> {
        PoolHandle::recorded_disk(self, disk)
    }

    fn detach(&self, disk: DiskHandle, force: bool, accept_loss: bool) -> Result<StartedJob> {
        let detach = if accept_loss { ArenaHandle::detach_accepting_loss } else { ArenaHandle::detach };
        detach(self.arena(disk), disk, force).map(boxed)
    }
    fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>> {
        self.arena(disk).lost_runs(disk)
    }

    fn admission_figures(&self, disk: DiskHandle) -> Result<Option<AdmissionFigures>> {
        self.arena(disk).admission_figures(disk)
    }

    fn saved_admission(&self, disk: DiskHandle, with_accesses: bool) -> Result<Option<Vec<u8>>> {
        self.arena(disk).saved_admission(disk, with_accesses)
    }

    fn share_base(&self, disk: DiskHandle, base: DiskHandle) -> Result<SharingId> {
        self.arena(disk).share_base(disk, base)
    }

    fn share_blocks(&self, disk: DiskHandle, sharing: SharingId, blocks: BaseBlocks) -> Result<bool> {
        self.arena(disk).share_blocks(disk, sharing, blocks)
    }

    fn base_usage(&self, disk: DiskHandle) -> Result<Option<BaseUsage>> {
        self.arena(disk).base_usage(disk)
    }

    fn end_sharing(&self, disk: DiskHandle) -> Result<()> {
        self.arena(disk).end_sharing(disk)
    }

    fn resume_admission(&self, disk: DiskHandle, saved: Vec<u8>) -> Result<bool> {
        self.arena(disk).resume_admission(disk, saved)
    }

    fn clean(&self, disk: DiskHandle) -> Result<StartedJob> {
        self.arena(disk).clean(disk).map(boxed)
    }

    fn forget(&self, disk: DiskId, destroy_dirty: bool, remembered: Option<u64>) -> Result<StartedJob> {
        PoolHandle::forget(self, disk, destroy_dirty, remembered).map(boxed)
    }

    fn resize(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<StartedJob> {
        self.arena(disk).resize(disk, sectors, shrink).map(boxed)
    }

    fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<StartedJob> {
        self.arena(disk).set_mode(disk, mode).map(boxed)
    }

    fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()> {
        PoolHandle::set_write_price(self, price_us, fill_share)
    }

    fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()> {
        self.arena(disk).set_target(disk, target)
    }

    fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()> {
        self.arena(disk).set_admission(disk, admission)
    }

    fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()> {
        self.arena(disk).tune(disk, config)
    }

    fn add_device(&self, path: &Path, formatting: Formatting) -> Result<StartedJob> {
        PoolHandle::add_device(self, path, formatting).map(boxed)
    }

    fn remove_device(&self, device: DeviceNo) -> Result<StartedJob> {
        PoolHandle::remove_device(self, device).map(boxed)
    }

    fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()> {
        self.arena(disk).set_monitor(disk, config)
    }

    fn take_records(&self, buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>> {
        PoolHandle::take_records(self, buffers)
    }

    fn shutdown(&self) -> Result<StartedJob> {
        PoolHandle::shutdown(self).map(boxed)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        PoolHandle::snapshot(self)
    }

    fn events(&self) -> Result<mpsc::Receiver<EngineEvent>> {
        PoolHandle::events(self)
    }

    fn loss_recorded(&self, arena: ArenaNo) -> Result<()> {
        PoolHandle::loss_recorded(self, arena)
    }

    fn missing_devices(&self) -> Vec<MissingDevice> {
        PoolHandle::missing_devices(self).to_vec()
    }

    fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()> {
        self.arena(disk).label_disk(disk, label)
    }

    fn disk_labels(&self) -> Result<Vec<Label>> {
        PoolHandle::disk_labels(self)
    }

    fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>> {
        self.arena(disk).nbd_peers(disk)
    }

    fn add_nbd_client(&self, client: NbdClient) -> Result<()> {
        self.arena(client.disk).add_nbd_client(client)
    }

    fn serve_vhost_user(
        &self,
        disk: DiskHandle,
        sectors: u64,
        socket: &Path,
        config: &VhostUserConfig,
    ) -> Result<Box<dyn VhostUser>> {
        Ok(Box::new(self.arena(disk).serve_vhost_user(disk, sectors, socket, config)?))
    }
}
