//! The calls that other threads make on a reactor, through its mailbox.

use std::sync::mpsc::Sender;

use haversack_core::{
    AdmissionFigures, BaseBlocks, BaseUsage, DiskInfo, JobError, JobId, ManageError, NewDevice, Progress,
    SharingId,
};
use haversack_model::{DeviceNo, DiskHandle, DiskId, DiskNo, Micros, SECTOR_BYTES, SectorNo};

use crate::config::DiskSpec;
use crate::device::CacheDevice;
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::front::nbd::{NbdClient, NbdConnection};
use crate::front::vhost_user::QueueClient;
use crate::front::{Client, ClientKind};
use crate::live::{LiveDevice, LiveDisk};
use crate::moving::ENDED_JOB;
use crate::origin::OpenOrigin;
use crate::pool::random_id;
use crate::reactor::Afterwards;
use crate::reactor::{CoreCall, Reactor, put};
use crate::snapshot::{DiskSnapshot, Snapshot, Stepped};

/// How long a reactor that has been told to end waits for what is in flight, in microseconds.
const PATIENCE_US: Micros = 2_000_000;

impl Reactor {
    /// Calls the core with the current time.
    pub(crate) fn core_call<R>(&mut self, call: impl FnOnce(&mut CoreCall<'_>, Micros) -> R) -> R {
        self.now = self.clock.now_us();
        call(&mut self.core.with(&mut self.memory), self.now)
    }

    /// Calls the core for an attached disk.
    pub(crate) fn disk_call<R>(
        &mut self,
        disk: DiskHandle,
        call: impl FnOnce(&mut CoreCall<'_>, Micros, DiskNo) -> std::result::Result<R, ManageError>,
    ) -> Result<R> {
        let number = self.attached(disk)?;
        Ok(self.core_call(|core, now| call(core, now, number))?)
    }

    /// Changes a setting of an attached disk, which may give the core something to do.
    pub(crate) fn set<R>(
        &mut self,
        disk: DiskHandle,
        call: impl FnOnce(&mut CoreCall<'_>, Micros, DiskNo) -> std::result::Result<R, ManageError>,
    ) -> Result<R> {
        let set = self.disk_call(disk, call);
        let now = self.now;
        if let Some(held) = self.held_mut() {
            held.stirred(now);
        }
        set
    }

    /// Returns the number of an attached disk.
    pub(crate) fn attached(&self, disk: DiskHandle) -> Result<DiskNo> {
        self.disks.get(disk).map(|live| live.handle.number()).ok_or(EngineError::Detached)
    }

    /// Ends the reactor. After a clean stop, what is in flight is awaited for a while: a checkpoint needs a core at
    /// rest.
    pub(crate) fn stop(&mut self) {
        let waits = self.stopped_cleanly && self.checkpoint.is_some() && self.clock.runs();
        let patience_us = if waits { PATIENCE_US } else { 0 };
        self.let_go();
        self.ends_by_us.get_or_insert(self.now + patience_us);
    }

    fn let_go(&mut self) {
        if let Some(held) = self.held_mut() {
            held.let_go();
        }
    }

    pub(crate) fn await_job(&mut self, job: JobId, sender: Sender<std::result::Result<(), JobError>>) {
        if job == ENDED_JOB {
            let _ = sender.send(Ok(()));
            return;
        }
        self.jobs.push((job, sender));
    }

    pub(crate) fn progress(&self, job: JobId) -> Option<Progress> {
        self.core.progress(job)
    }

    pub(crate) fn cancel(&mut self, job: JobId) -> bool {
        self.core_call(|core, now| core.cancel(now, job))
    }

    pub(crate) fn subscribe(&mut self, sender: Sender<EngineEvent>) {
        if self.core.loss_unrecorded() {
            // Writes wait until a subscriber has recorded the loss, and there may have been none when it happened. If
            // this one is gone already, that is noticed at the next event.
            let _ = sender.send(EngineEvent::PoolLost { arena: self.siblings.arena() });
        }
        self.subscribers.push(sender);
    }

    pub(crate) fn attach(&mut self, spec: DiskSpec, origin: OpenOrigin) -> Result<(DiskHandle, JobId)> {
        let DiskSpec { config, epoch, accept_loss, is_outdated, .. } = spec.clone();
        if self.disks.is_ending(config.id) {
            // Connections of its previous attachment are still ending.
            return Err(ManageError::Busy.into());
        }
        let (number, job) = self.core_call(|core, now| match is_outdated {
            true => core.attach_outdated(now, &config, epoch, accept_loss),
            false => core.attach(now, &config, epoch, accept_loss),
        })?;
        let disk = self.add_disk(number, spec, origin);
        self.origin(disk, |origin, context| origin.begin(context));
        Ok((disk, job))
    }

    /// Adds a disk with its origin, which is read through lenders if the disk borrows.
    pub(crate) fn add_disk(&mut self, number: DiskNo, spec: DiskSpec, origin: OpenOrigin) -> DiskHandle {
        let disk = self.disks.next_handle(number);
        let origin = self.with_lenders(&spec, (origin.make)(disk));
        self.disks.attach(LiveDisk::new(disk, spec, origin));
        disk
    }

    /// Begins to share blocks of a disk with its base.
    pub(crate) fn share_base(&mut self, disk: DiskHandle, base: DiskHandle) -> Result<SharingId> {
        if disk.arena() != base.arena() {
            return Err(EngineError::BaseElsewhere);
        }
        let base = self.attached(base)?;
        self.disk_call(disk, |core, now, number| core.share_base(now, number, base))
    }

    /// Completes the sharing begun by `share_base`.
    pub(crate) fn share_blocks(
        &mut self,
        disk: DiskHandle,
        sharing: SharingId,
        blocks: BaseBlocks,
    ) -> Result<bool> {
        let number = self.attached(disk)?;
        Ok(self.core.share_blocks(number, sharing, blocks))
    }

    pub(crate) fn base_usage(&self, disk: DiskHandle) -> Result<Option<BaseUsage>> {
        Ok(self.core.base_usage(self.attached(disk)?))
    }

    pub(crate) fn end_sharing(&mut self, disk: DiskHandle) -> Result<()> {
        let number = self.attached(disk)?;
        self.core.end_sharing(number);
        Ok(())
    }

    pub(crate) fn detach(&mut self, disk: DiskHandle, force: bool) -> Result<JobId> {
        self.start_detach(disk, force, |core, now, number| core.detach(now, number))
    }

    pub(crate) fn detach_accepting_loss(&mut self, disk: DiskHandle, force: bool) -> Result<JobId> {
        self.start_detach(disk, force, |core, now, number| core.detach_accepting_loss(now, number))
    }

    fn start_detach(
        &mut self,
        disk: DiskHandle,
        force: bool,
        call: impl FnOnce(&mut CoreCall<'_>, Micros, DiskNo) -> std::result::Result<JobId, ManageError>,
    ) -> Result<JobId> {
        let clients = self.users_of(disk);
        if !force && !clients.is_empty() {
            return Err(EngineError::Connected { disk: self.spec(disk)?.0.name, clients });
        }
        self.check_not_moving(disk)?;
        if self.is_elsewhere(disk) {
            self.is_detached(disk);
            return Ok(ENDED_JOB);
        }
        let job = self.disk_call(disk, call)?;
        self.afterwards.push((job, Afterwards::Detached(disk)));
        Ok(job)
    }

    pub(crate) fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>> {
        Ok(self.core.lost_runs(self.attached(disk)?))
    }

    /// Returns the figures that the filter of an attached disk uses, if it learns.
    pub(crate) fn admission_figures(&self, disk: DiskHandle) -> Result<Option<AdmissionFigures>> {
        Ok(self.core.admission_figures(self.attached(disk)?))
    }

    /// Returns what the filter of an attached disk has learned, if it learns.
    pub(crate) fn saved_admission(&self, disk: DiskHandle, with_accesses: bool) -> Result<Option<Vec<u8>>> {
        Ok(self.core.saved_admission(self.attached(disk)?, with_accesses))
    }

    /// Continues from what the filter of an attached disk had learned.
    pub(crate) fn resume_admission(&mut self, disk: DiskHandle, saved: &[u8]) -> Result<bool> {
        let number = self.attached(disk)?;
        Ok(self.core.resume_admission(number, saved)?)
    }

    /// Forgets a detached disk. It has no handle, so it is named by its permanent identity. It is refused if a higher
    /// epoch than `remembered` is on record.
    pub(crate) fn forget(
        &mut self,
        disk: DiskId,
        destroy_dirty: bool,
        remembered: Option<u64>,
    ) -> Result<JobId> {
        let is_it = |number: &DiskNo| self.core.disk_info(*number).is_some_and(|info| info.id == disk);
        let number = self.core.disk_numbers().find(is_it).ok_or(EngineError::Unknown(disk))?;
        let recorded = self.core.disk_info(number).map_or(0, |info| info.epoch);
        if remembered.is_some_and(|epoch| epoch < recorded) {
            return Err(ManageError::Busy.into());
        }
        let job = self.core_call(|core, now| core.forget(now, number, destroy_dirty.then_some(disk)))?;
        self.mover_forgotten(disk);
        Ok(job)
    }

    /// Lists the users of a disk: its NBD connections by their peers, and its vhost-user queues.
    fn users_of(&self, disk: DiskHandle) -> Vec<String> {
        let front = &self.memory.payloads;
        let mut users = front.peers(disk);
        match front.count(disk, ClientKind::VhostUser) {
            0 => {}
            queues => users.push(format!("{queues} vhost-user queues of a running guest")),
        }
        users
    }

    /// Checks that a disk is shrunk only if `shrink` is set and no client uses it.
    fn check_shrink(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<()> {
        let (spec, present) = self.spec(disk)?;
        let bytes = |sectors: u64| sectors * SECTOR_BYTES as u64;
        let users = self.users_of(disk);
        if sectors >= present {
            Ok(())
        } else if !shrink {
            let (present_bytes, new_bytes) = (bytes(present), bytes(sectors));
            Err(EngineError::Shrinks { disk: spec.name, present_bytes, new_bytes })
        } else if users.is_empty() {
            Ok(())
        } else {
            Err(EngineError::Connected { disk: spec.name, clients: users })
        }
    }

    pub(crate) fn resize(&mut self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<JobId> {
        self.check_shrink(disk, sectors, shrink)?;
        let job = self.disk_call(disk, |core, now, number| core.resize(now, number, sectors))?;
        let needed_bytes = sectors * SECTOR_BYTES as u64;
        self.origin(disk, |origin, context| origin.grown(context, needed_bytes));
        self.afterwards.push((job, Afterwards::Resized(disk, sectors)));
        Ok(job)
    }

    /// Returns the settings with which a disk was attached, and its current size in sectors.
    pub(crate) fn spec(&self, disk: DiskHandle) -> Result<(DiskSpec, u64)> {
        let live = self.disks.get(disk).ok_or(EngineError::Detached)?;
        let info = self.core.disk_info(disk.number()).ok_or(EngineError::Detached)?;
        Ok((live.spec.clone(), info.sectors))
    }

    pub(crate) fn remove_device(&mut self, device: DeviceNo) -> Result<JobId> {
        let job = self.core_call(|core, now| core.remove_device(now, device))?;
        self.afterwards.push((job, Afterwards::Removed(device)));
        Ok(job)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let devices = self.devices.iter().enumerate().filter_map(|(at, live)| Some((at, live.as_ref()?)));
        Snapshot {
            pool: self.core.pool_stats(),
            time_us: if self.held().is_some() { self.now } else { self.timers_looked_at_us() },
            ios_in_flight: self.ios_in_flight() as u64,
            stepped: self.stepped(),
            turns: self.turn_times.took.clone(),
            processor_wait_us: self.turn_times.processor.total_us,
            devices: devices.map(|(at, live)| live.snapshot(DeviceNo(at as u8))).collect(),
            disks: self.disks.iter().filter_map(|live| self.disk_snapshot(live)).collect(),
        }
    }

    fn stepped(&self) -> Option<Stepped> {
        let held = self.held()?;
        // Actions caused by earlier commands of this turn have not started yet.
        let is_settled = self.commands_run == 0 && self.ios_in_flight() == 0;
        let next_us = if is_settled { held.next_us() } else { self.now };
        Some(Stepped { next_us, ios: held.ios() as u64, requests: held.requests })
    }

    fn disk_snapshot(&self, live: &LiveDisk) -> Option<DiskSnapshot> {
        let number = live.handle.number();
        let info = self.core.disk_info(number)?;
        Some(DiskSnapshot {
            disk: live.handle,
            id: info.id,
            name: live.spec.name.clone(),
            sectors: info.sectors,
            is_served: info.attached,
            elsewhere: self.elsewhere(live.handle, &info),
            mode: info.mode,
            stats: *self.core.disk_stats(number)?,
            usage: self.core.disk_usage(number)?,
            base: self.core.base_usage(number),
            origin_up: live.origin.is_up(),
            origin_errors: live.origin_errors,
            clients: self.clients_of(live.handle).len() as u64,
            vhost_user_latency: live.vhost_user_latency.clone(),
            nbd_latency: live.nbd_latency.clone(),
            origin_latency: live.origin_latency.clone(),
        })
    }

    pub(crate) fn add_device(&mut self, device: CacheDevice, new: NewDevice) -> Result<JobId> {
        let number = new.number();
        let job = self.core_call(|core, now| core.add_device(now, new))?;
        put(&mut self.devices, number.0.into(), LiveDevice::new(device));
        Ok(job)
    }

    /// Returns where the arena's extent of a device begins, 0 if the device is not in use.
    pub(crate) fn start_bytes(&self, device: DeviceNo) -> u64 {
        self.devices
            .get(usize::from(device.0))
            .and_then(Option::as_ref)
            .map_or(0, |live| live.device.start_bytes)
    }

    /// Duplicates the open devices in use.
    pub(crate) fn devices_again(&self) -> Result<Vec<CacheDevice>> {
        self.devices.iter().flatten().filter(|live| !live.retired).map(|live| live.device.again()).collect()
    }

    pub(crate) fn shutdown(&mut self) -> JobId {
        if self.checkpoint.is_some() {
            match random_id() {
                Ok(name) => self.core_call(|core, _| core.name_stop(name)),
                Err(error) => tracing::warn!("this stop leaves no checkpoint: {error}"),
            }
        }
        self.let_go();
        let job = self.core_call(|core, now| core.shutdown(now));
        self.afterwards.push((job, Afterwards::Stopped));
        job
    }

    /// Returns the numbers of a disk's clients.
    pub(crate) fn clients_of(&self, disk: DiskHandle) -> Vec<u32> {
        self.memory.payloads.of_disk(disk)
    }

    /// Returns whether a disk is being detached.
    pub(crate) fn is_being_detached(&self, disk: DiskHandle) -> bool {
        let mut jobs = self.afterwards.iter().map(|(_, afterwards)| afterwards);
        jobs.any(|job| matches!(job, Afterwards::Detached(of) if *of == disk))
    }

    /// Returns whether a disk is being shrunk. It had no clients when that began and must not get any.
    fn is_shrinking(&self, disk: DiskHandle) -> bool {
        let present = self.core.disk_info(disk.number()).map_or(0, |info| info.sectors);
        let shrinks = |of: DiskHandle, sectors: u64| of == disk && sectors < present;
        let mut jobs = self.afterwards.iter().map(|(_, afterwards)| afterwards);
        jobs.any(|job| matches!(job, Afterwards::Resized(of, sectors) if shrinks(*of, *sectors)))
    }

    /// Makes an NBD connection a client of its disk, if the disk still is as negotiated.
    pub(crate) fn add_nbd_client(&mut self, client: NbdClient) -> Result<()> {
        let live = self.disks.get(client.disk).ok_or(EngineError::Detached)?;
        let may_come = |info: &DiskInfo| info.attached || self.may_wait(client.disk);
        let info = self.core.disk_info(client.disk.number()).filter(may_come);
        let size_bytes = info.ok_or(EngineError::Detached)?.sectors * SECTOR_BYTES as u64;
        let (export, disk) = (&client.negotiated.export, live.spec.name.clone());
        let is_as_agreed = (export.size_bytes, export.read_only) == (size_bytes, live.spec.read_only);
        if !is_as_agreed || self.is_shrinking(client.disk) {
            return Err(EngineError::ExportChanged { disk });
        }
        let most = client.max_connections;
        if self.memory.payloads.count(client.disk, ClientKind::Nbd) >= most as usize {
            return Err(EngineError::TooManyConnections { disk, most });
        }
        let disk = client.disk;
        let connection = NbdConnection::new(client, self.budget.clone()).map_err(EngineError::Socket)?;
        self.client_comes(disk, ClientKind::Nbd);
        self.add_client(Box::new(connection));
        Ok(())
    }

    /// Adds a queue. If its disk moves here, it takes no requests before the disk is served.
    pub(crate) fn add_queue(&mut self, mut queue: Box<QueueClient>) -> u32 {
        if !self.client_comes(queue.disk(), ClientKind::VhostUser) {
            queue.hold();
        }
        self.add_client(queue)
    }

    /// Adds a client; from now on it is polled for requests.
    pub(crate) fn add_client(&mut self, client: Box<dyn Client>) -> u32 {
        let number = self.memory.payloads.insert(client);
        self.client(number, |c, context| c.begin(context));
        number
    }
}
