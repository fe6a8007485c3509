//! A daemon with a fake data path.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use haversack_api::Method;
use haversack_core::monitor::Kind;
use haversack_core::{
    AdmissionConfig, AdmissionFigures, BaseBlocks, BaseUsage, DiskConfig, DiskStats, DiskUsage, JobError,
    ManageError, MonitorConfig, Moved, OpenReport, PeerLoss, PoolStats, Progress, Records, SharingId, Target,
};
use haversack_daemon::backend::{Backend, BackendJob, StartedJob, VhostUser};
use haversack_daemon::config::DaemonConfig;
use haversack_daemon::control::{Caller, Role, Who, router};
use haversack_daemon::daemon::Daemon;
use haversack_daemon::state::State;
use haversack_engine::error::{EngineError, Result};
use haversack_engine::label::Label;
use haversack_engine::pool::Formatting;
use haversack_engine::snapshot::DeviceSnapshot;
use haversack_engine::{
    Borrowed, DiskSnapshot, DiskSpec, EngineEvent, HostMessage, HostSettings, Latencies, LendingSettings,
    LendingStatus, MissingDevice, MoveStatus, NbdClient, Receipt, RecordedDisk, ReplicaPolicy, Snapshot,
    TakeoverLoss, VhostUserConfig,
};
use haversack_model::{ArenaNo, DeviceNo, DiskHandle, DiskId, DiskNo, HostId, Micros, SectorNo, WriteMode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// How often something that must happen is polled, and how many times.
pub const POLL_EVERY: Duration = Duration::from_millis(5);
pub const POLLS: u32 = 12_000;

/// A fake data path. Its jobs end immediately, except cleaning, which continues until it is cancelled.
#[derive(Default)]
pub struct Fake {
    pub disks: AtomicU16,
    /// Attempts to attach that find the disk busy.
    pub busy: AtomicU16,
    pub modes: Mutex<Vec<WriteMode>>,
    /// Jobs that detach a disk fail while this is set.
    pub fails_detach: AtomicBool,
    /// Serving a disk panics, instead of failing, while this is set.
    pub panics: AtomicBool,
    /// Changes of modes do not end while this is set.
    pub holds_modes: Arc<AtomicBool>,
    pub attached: Mutex<Vec<DiskSnapshot>>,
    pub targets: Mutex<BTreeMap<u16, Target>>,
    pub monitored: Mutex<Vec<DiskHandle>>,
    pub filters: Mutex<BTreeMap<u16, AdmissionConfig>>,
    pub peers: Mutex<Vec<String>>,
    pub lost: Mutex<Vec<(SectorNo, u64)>>,
    /// Bytes written to the cache device.
    pub written_bytes: AtomicU64,
    /// The share of fills that was set last.
    pub fill_share: Mutex<Option<f64>>,
    /// What the pool has on record of any disk.
    pub recorded: Mutex<Option<RecordedDisk>>,
    /// Blocks that guests read until records are taken next.
    pub reads: Mutex<Vec<u64>>,
}

pub fn admin() -> Caller {
    Caller { who: Who::Unknown, role: Some(Role::Admin) }
}

pub fn shown(disk: DiskHandle, id: DiskId, name: &str, sectors: u64, mode: WriteMode) -> DiskSnapshot {
    DiskSnapshot {
        disk,
        id,
        name: name.into(),
        sectors,
        is_served: true,
        elsewhere: None,
        mode,
        stats: DiskStats::default(),
        usage: DiskUsage { origin_in_order: Some(true), ..DiskUsage::default() },
        base: None,
        origin_up: true,
        origin_errors: 0,
        clients: 0,
        vhost_user_latency: Latencies::default(),
        nbd_latency: Latencies::default(),
        origin_latency: Latencies::default(),
    }
}

fn device() -> DeviceSnapshot {
    DeviceSnapshot {
        device: DeviceNo(0),
        path: "/dev/cache".into(),
        capacity_bytes: 4 << 20,
        errors: 0,
        read_bytes: 0,
        written_bytes: 0,
        latency: Latencies::default(),
    }
}

struct FakeJob {
    ends: bool,
    /// It does not end while this is set.
    is_held: Arc<AtomicBool>,
    cancelled: AtomicBool,
}

impl BackendJob for FakeJob {
    fn wait_for(&self, time: Duration) -> Result<Option<()>> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(JobError::Cancelled.into());
        }
        let ends = self.ends && !self.is_held.load(Ordering::Relaxed);
        if !ends {
            std::thread::sleep(time.min(Duration::from_millis(1)));
        }
        Ok(ends.then_some(()))
    }

    fn progress(&self) -> Option<Progress> {
        Some(Progress { done_blocks: 1, total_blocks: 4 })
    }

    fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::Relaxed);
        true
    }
}

fn job(ends: bool) -> Result<StartedJob> {
    Ok(Box::new(FakeJob { ends, is_held: Arc::default(), cancelled: AtomicBool::new(false) }))
}

impl Backend for Fake {
    fn now_us(&self) -> Micros {
        haversack_engine::clock::now_us()
    }
    fn measures_latencies(&self) -> bool {
        true
    }
    fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, StartedJob)> {
        if self.busy.load(Ordering::Relaxed) > 0 {
            self.busy.fetch_sub(1, Ordering::Relaxed);
            return Err(ManageError::Busy.into());
        }
        let number = self.disks.fetch_add(1, Ordering::Relaxed);
        let disk = DiskHandle::new(ArenaNo(0), DiskNo(number), number.into());
        let snapshot = shown(disk, spec.config.id, &spec.name, spec.config.sectors, spec.config.mode);
        self.attached.lock().unwrap().push(snapshot);
        Ok((disk, job(true)?))
    }
    fn join_hosts(&self, _: &HostSettings) -> Result<()> {
        Ok(())
    }
    fn join_lending(&self, _: &LendingSettings) -> Result<()> {
        Ok(())
    }
    fn choose_lenders(&self, _: &[HostId]) -> Result<()> {
        Ok(())
    }
    fn lending_status(&self) -> Result<LendingStatus> {
        Ok(lending_status())
    }
    fn host_said(&self, _: HostId, _: DiskId, _: HostMessage, _: Receipt) {}
    fn recorded_move(&self, _: DiskId) -> Result<Option<Moved>> {
        Ok(None)
    }
    fn start_migration(&self, _: DiskHandle, _: HostId, _: Method) -> Result<()> {
        Err(EngineError::DoesNotMove)
    }
    fn stop_migration(&self, _: DiskHandle) -> Result<bool> {
        Err(EngineError::DoesNotMove)
    }
    fn migration_status(&self, _: DiskId) -> Result<Option<MoveStatus>> {
        Ok(None)
    }
    fn departures(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        Ok(Vec::new())
    }
    fn take_over(&self, _: DiskHandle, _: u64, _: PeerLoss) -> Result<()> {
        Err(EngineError::DoesNotMove)
    }
    fn take_over_with_replica(&self, _: DiskHandle, _: u64) -> Result<()> {
        Err(EngineError::DoesNotMove)
    }
    fn set_replica(&self, _: DiskHandle, _: Option<ReplicaPolicy>) -> Result<()> {
        Err(EngineError::DoesNotMove)
    }
    fn replicas(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        Ok(Vec::new())
    }
    fn stand_by(&self, _: DiskId) -> Result<bool> {
        Ok(false)
    }
    fn withdraw(&self, _: DiskId) -> Result<()> {
        Ok(())
    }
    fn fetch_rest(&self, _: DiskHandle) -> Result<()> {
        Err(EngineError::DoesNotMove)
    }
    fn settle_write_cache(&self, _: DiskHandle, _: u64, _: bool) -> Result<bool> {
        Err(EngineError::DoesNotMove)
    }
    fn overtaken(&self, _: DiskId, _: HostId, _: u64) -> Result<bool> {
        Ok(true)
    }
    fn heard_of_owner(&self, _: DiskId, _: HostId, _: u64) -> Result<()> {
        Ok(())
    }
    fn has_forgotten(&self, _: DiskId, _: u64) -> Result<()> {
        Ok(())
    }
    fn takeover_loss(&self, _: DiskId) -> Result<TakeoverLoss> {
        Ok(TakeoverLoss::Unknown)
    }
    fn recorded_disk(&self, _: DiskId) -> Result<Option<RecordedDisk>> {
        Ok(*self.recorded.lock().unwrap())
    }
    fn lost_runs(&self, _: DiskHandle) -> Result<Vec<(SectorNo, u64)>> {
        Ok(self.lost.lock().unwrap().clone())
    }
    fn saved_admission(&self, _: DiskHandle, _: bool) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn share_base(&self, _: DiskHandle, _: DiskHandle) -> Result<SharingId> {
        Ok(SharingId(1))
    }
    fn share_blocks(&self, _: DiskHandle, _: SharingId, _: BaseBlocks) -> Result<bool> {
        Ok(true)
    }
    fn base_usage(&self, _: DiskHandle) -> Result<Option<BaseUsage>> {
        Ok(None)
    }
    fn end_sharing(&self, _: DiskHandle) -> Result<()> {
        Ok(())
    }
    fn resume_admission(&self, _: DiskHandle, _: Vec<u8>) -> Result<bool> {
        Ok(false)
    }

    fn admission_figures(&self, _: DiskHandle) -> Result<Option<AdmissionFigures>> {
        Ok(Some(AdmissionFigures::default()))
    }
    fn detach(&self, disk: DiskHandle, _: bool, accept_loss: bool) -> Result<StartedJob> {
        if !accept_loss && !self.lost.lock().unwrap().is_empty() {
            return Err(JobError::DataLost.into());
        }
        if self.fails_detach.load(Ordering::Relaxed) {
            return Err(JobError::Origin.into());
        }
        self.attached.lock().unwrap().retain(|shown| shown.disk != disk);
        job(true)
    }
    fn set_write_price(&self, _: f32, fill_share: f64) -> Result<()> {
        *self.fill_share.lock().unwrap() = Some(fill_share);
        Ok(())
    }
    fn clean(&self, _: DiskHandle) -> Result<StartedJob> {
        job(false)
    }
    fn forget(&self, _: DiskId, _: bool, _: Option<u64>) -> Result<StartedJob> {
        job(true)
    }
    fn resize(&self, disk: DiskHandle, sectors: u64, _: bool) -> Result<StartedJob> {
        let mut attached = self.attached.lock().unwrap();
        attached.iter_mut().filter(|shown| shown.disk == disk).for_each(|shown| shown.sectors = sectors);
        job(true)
    }
    fn set_mode(&self, _: DiskHandle, mode: WriteMode) -> Result<StartedJob> {
        self.modes.lock().unwrap().push(mode);
        let (is_held, cancelled) = (self.holds_modes.clone(), AtomicBool::new(false));
        Ok(Box::new(FakeJob { ends: true, is_held, cancelled }))
    }
    fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()> {
        self.targets.lock().unwrap().insert(disk.number().0, target);
        let blocks = if let Target::Blocks(blocks) = target { blocks } else { 1000 };
        let mut attached = self.attached.lock().unwrap();
        let set = attached.iter_mut().filter(|shown| shown.disk == disk);
        set.for_each(|shown| shown.usage.target_blocks = blocks);
        Ok(())
    }
    fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()> {
        self.filters.lock().unwrap().insert(disk.number().0, admission);
        Ok(())
    }
    fn tune(&self, _: DiskHandle, _: DiskConfig) -> Result<()> {
        Ok(())
    }
    fn add_device(&self, _: &Path, _: Formatting) -> Result<StartedJob> {
        job(true)
    }
    fn remove_device(&self, device: DeviceNo) -> Result<StartedJob> {
        Err(EngineError::Manage(ManageError::LastDevice(device)))
    }
    fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()> {
        let mut monitored = self.monitored.lock().unwrap();
        monitored.retain(|other| *other != disk);
        monitored.extend(config.map(|_| disk));
        Ok(())
    }
    fn take_records(&self, mut buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>> {
        let reads = std::mem::take(&mut *self.reads.lock().unwrap());
        for (_, records) in &mut buffers {
            records.clear();
            reads.iter().for_each(|block| records.push(self.now_us(), Kind::Read, block * 8, 8));
        }
        Ok(buffers)
    }
    fn shutdown(&self) -> Result<StartedJob> {
        job(true)
    }
    fn snapshot(&self) -> Result<Snapshot> {
        let pool = PoolStats { capacity_blocks: 1000, devices: 1, ..PoolStats::default() };
        let disks = self.attached.lock().unwrap().clone();
        Ok(Snapshot {
            pool,
            time_us: 0,
            ios_in_flight: 0,
            stepped: None,
            turns: haversack_engine::histogram::Histogram::default(),
            processor_wait_us: 0,
            devices: vec![DeviceSnapshot {
                written_bytes: device().written_bytes + self.written_bytes.load(Ordering::Relaxed),
                ..device()
            }],
            disks,
        })
    }
    fn events(&self) -> Result<mpsc::Receiver<EngineEvent>> {
        Ok(mpsc::channel().1)
    }
    fn loss_recorded(&self, _: ArenaNo) -> Result<()> {
        Ok(())
    }
    fn missing_devices(&self) -> Vec<MissingDevice> {
        Vec::new()
    }
    fn label_disk(&self, _: DiskHandle, _: Label) -> Result<()> {
        Ok(())
    }
    fn disk_labels(&self) -> Result<Vec<Label>> {
        Ok(Vec::new())
    }
    fn nbd_peers(&self, _: DiskHandle) -> Result<Vec<String>> {
        Ok(self.peers.lock().unwrap().clone())
    }
    fn add_nbd_client(&self, _: NbdClient) -> Result<()> {
        Ok(())
    }
    fn serve_vhost_user(
        &self,
        _: DiskHandle,
        _: u64,
        _: &Path,
        _: &VhostUserConfig,
    ) -> Result<Box<dyn VhostUser>> {
        assert!(!self.panics.load(Ordering::Relaxed), "broken");
        Err(EngineError::Stopped("main".into()))
    }
}

pub struct Api {
    pub daemon: Arc<Daemon>,
    pub fake: Arc<Fake>,
    pub dir: tempfile::TempDir,
}

impl Api {
    pub fn new() -> Api {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        let fake = Arc::new(Fake::default());
        let pools = vec![("main".to_string(), fake.clone() as Arc<dyn Backend>, OpenReport::default())];
        let config = DaemonConfig { state_dir: dir.path().to_path_buf(), ..DaemonConfig::default() };
        Api { daemon: Daemon::new(config, state, pools, None), fake, dir }
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.call_as(Some(Role::Admin), method, path, body).await
    }

    pub async fn call_as(&self, role: Option<Role>, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (stop, _) = tokio::sync::mpsc::channel(1);
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.extension(Caller { role, ..admin() });
        let answer =
            router(self.daemon.clone(), stop).oneshot(request.body(Body::from(text)).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Starts a job and waits for its end.
    pub async fn work(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, job) = self.call(method, path, body).await;
        assert_eq!(status, 202, "{job}");
        self.ended(&job).await
    }

    pub async fn ended(&self, job: &Value) -> Value {
        for _ in 0..POLLS {
            let (_, job) = self.call("GET", &format!("/v1/jobs/{}", job["id"]), Value::Null).await;
            if job["state"] != "running" {
                return job;
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        panic!("the job does not end: {job}");
    }
}

pub fn vm1() -> Value {
    json!({"name": "vm1", "pool": "main", "origin": "/dev/b", "size": "1GiB"})
}
/// A pool that lends, and a disk that borrows.
fn lending_status() -> LendingStatus {
    let borrowed = vec![Borrowed { disk: "vm1".into(), ..Borrowed::default() }];
    LendingStatus { lends: true, borrowed, ..LendingStatus::default() }
}
