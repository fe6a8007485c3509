//! What other threads ask of a reactor, through its mailbox.

use std::sync::mpsc::Sender;

use haversack_core::{JobError, JobId, ManageError, NewDevice, Progress};
use haversack_model::{DeviceNo, DiskNo, Micros, SECTOR_BYTES};

use crate::config::DiskSpec;
use crate::device::CacheDevice;
use crate::front::Client;
use crate::handle::EngineEvent;
use crate::live::{LiveDevice, LiveDisk};
use crate::origin::OpenOrigin;
use crate::reactor::{Afterwards, LiveCore, Reactor, put};
use crate::snapshot::{DiskSnapshot, Snapshot};

impl Reactor {
    /// Calls the core with the present time.
    pub(crate) fn core_call<R>(&mut self, call: impl FnOnce(&mut LiveCore, Micros) -> R) -> R {
        self.now = self.clock.now_us();
        call(&mut self.core, self.now)
    }

    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(crate) fn await_job(&mut self, job: JobId, sender: Sender<std::result::Result<(), JobError>>) {
        self.jobs.push((job, sender));
    }

    pub(crate) fn progress(&self, job: JobId) -> Option<Progress> {
        self.core.progress(job)
    }

    pub(crate) fn cancel(&mut self, job: JobId) -> bool {
        self.core_call(|core, now| core.cancel(now, job))
    }

    pub(crate) fn subscribe(&mut self, sender: Sender<EngineEvent>) {
        self.subscribers.push(sender);
    }

    pub(crate) fn attach(
        &mut self,
        spec: DiskSpec,
        origin: OpenOrigin,
    ) -> std::result::Result<(DiskNo, JobId), ManageError> {
        let (config, epoch, accept_loss) = (spec.config.clone(), spec.epoch, spec.accept_loss);
        if self.disks.iter().flatten().any(|live| live.spec.config.id == config.id && live.detached) {
            // The connections of its last time are still ending.
            return Err(ManageError::Busy);
        }
        let (disk, job) = self.core_call(|core, now| core.attach(now, &config, epoch, accept_loss))?;
        let live = LiveDisk::new(spec, (origin.make)(disk));
        put(&mut self.disks, disk.0.into(), live);
        self.origin(disk, |origin, context| origin.begin(context));
        Ok((disk, job))
    }

    pub(crate) fn detach(&mut self, disk: DiskNo) -> std::result::Result<JobId, ManageError> {
        let job = self.core_call(|core, now| core.detach(now, disk))?;
        self.afterwards.push((job, Afterwards::Detached(disk)));
        Ok(job)
    }

    pub(crate) fn resize(&mut self, disk: DiskNo, sectors: u64) -> std::result::Result<JobId, ManageError> {
        let job = self.core_call(|core, now| core.resize(now, disk, sectors))?;
        let needed_bytes = sectors * SECTOR_BYTES as u64;
        self.origin(disk, |origin, context| origin.grown(context, needed_bytes));
        self.afterwards.push((job, Afterwards::Resized(disk, sectors)));
        Ok(job)
    }

    /// What a disk was attached with, and its present size in sectors.
    pub(crate) fn spec(&self, disk: DiskNo) -> Option<(DiskSpec, u64)> {
        let live = self.disks.get(usize::from(disk.0))?.as_ref()?;
        Some((live.spec.clone(), self.core.disk_info(disk)?.sectors))
    }

    pub(crate) fn remove_device(&mut self, device: DeviceNo) -> std::result::Result<JobId, ManageError> {
        let job = self.core_call(|core, now| core.remove_device(now, device))?;
        self.afterwards.push((job, Afterwards::Removed(device)));
        Ok(job)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let devices = self.devices.iter().enumerate().filter_map(|(at, live)| Some((at, live.as_ref()?)));
        let disks = self.disks.iter().enumerate().filter_map(|(at, live)| Some((at, live.as_ref()?)));
        Snapshot {
            pool: self.core.pool_stats(),
            time_us: self.timers_looked_at_us(),
            ios_in_flight: self.ios_in_flight() as u64,
            devices: devices.map(|(at, live)| live.snapshot(DeviceNo(at as u8))).collect(),
            disks: disks.filter_map(|(at, live)| self.disk_snapshot(DiskNo(at as u16), live)).collect(),
        }
    }

    fn disk_snapshot(&self, disk: DiskNo, live: &LiveDisk) -> Option<DiskSnapshot> {
        let info = self.core.disk_info(disk)?;
        Some(DiskSnapshot {
            disk,
            id: info.id,
            name: live.spec.name.clone(),
            sectors: info.sectors,
            mode: info.mode,
            stats: *self.core.disk_stats(disk)?,
            usage: self.core.disk_usage(disk)?,
            origin_up: live.origin.is_up(),
            origin_errors: live.origin_errors,
            clients: self.clients_of(disk).len() as u64,
            vhost_user_latency: live.vhost_user_latency.clone(),
            nbd_latency: live.nbd_latency.clone(),
            origin_latency: live.origin_latency.clone(),
        })
    }

    pub(crate) fn add_device(
        &mut self,
        device: CacheDevice,
        new: NewDevice,
    ) -> std::result::Result<JobId, ManageError> {
        let number = new.number();
        let job = self.core_call(|core, now| core.add_device(now, new))?;
        put(&mut self.devices, number.0.into(), LiveDevice::new(device));
        Ok(job)
    }

    pub(crate) fn shutdown(&mut self) -> JobId {
        let job = self.core_call(|core, now| core.shutdown(now));
        self.afterwards.push((job, Afterwards::Stopped));
        job
    }

    /// The numbers of a disk's clients.
    pub(crate) fn clients_of(&self, disk: DiskNo) -> Vec<u32> {
        self.core.memory().payloads.of_disk(disk)
    }

    /// Adds a client; from now on it is asked for requests.
    pub(crate) fn add_client(&mut self, client: Box<dyn Client>) -> u32 {
        let number = self.core.memory_mut().payloads.insert(client);
        self.client(number, |c, context| c.begin(context));
        number
    }
}
