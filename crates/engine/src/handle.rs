//! How other threads talk to a shard: closures that its reactor runs between two I/Os, and their results.
//!
//! Calls do not wait for device or origin I/O unless their documentation says so: long operations are [`Job`]s.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use haversack_core::{
    AdmissionConfig, DiskConfig, JobError, JobId, ManageError, MonitorConfig, NewDevice, OpenReport,
    PREPARED_AT_FORMAT, Progress, Records, Target,
};
use haversack_model::{DeviceNo, DiskHandle, DiskId, Micros, SECTOR_BYTES, SectorNo, WriteMode};

use crate::assembly::{self, MissingDevice};
use crate::config::{DiskSpec, ShardConfig};
use crate::device::CacheDevice;
use crate::error::{EngineError, Result};
use crate::front;
use crate::front::nbd::NbdClient;
use crate::front::vhost_user::{VhostUserConfig, VhostUserServer};
use crate::label::{self, Kind, Label};
use crate::mailbox::Mailbox;
use crate::media::Devices;
use crate::origin;
use crate::pool::Formatting;
use crate::reactor::Reactor;
use crate::shard_clock::ShardClock;
use crate::snapshot::Snapshot;

/// A running shard. Dropping it stops the thread at once, like a kill: nothing acknowledged is lost, and the
/// next start finds the staging area. For a clean stop call [`Handle::shutdown`] first.
pub struct Shard {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Shard {
    /// Opens the pool and starts the reactor. Takes as long as it takes to read the pool's metadata.
    ///
    /// # Errors
    /// A device or the pool cannot be opened. No thread runs then.
    pub fn start(config: ShardConfig) -> Result<(Shard, OpenReport)> {
        let name = config.name.clone();
        let clock = Arc::new(ShardClock::open(config.clock_file.as_deref())?);
        let (mailbox, letters) = Mailbox::new().map_err(EngineError::Ring)?;
        let (sender, opened) = mpsc::channel();
        // The ring belongs to the thread that creates it.
        let reactors = clock.clone();
        let serve = move || match Reactor::open(&config, reactors, letters) {
            Ok((reactor, report)) => {
                let _ = sender.send(Ok(report));
                reactor.run();
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name(format!("shard-{name}")).spawn(serve);
        let thread = Some(thread.map_err(EngineError::Ring)?);
        let report = opened.recv().map_err(|_| EngineError::Stopped(name.clone()))??;
        Ok((Shard { handle: Handle { name, clock, mailbox, labelling: Arc::default() }, thread }, report))
    }

    /// Returns a handle to the shard.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.handle.mailbox.post(Box::new(Reactor::stop));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A running management job.
pub struct Job {
    handle: Handle,
    id: JobId,
    end: mpsc::Receiver<std::result::Result<(), JobError>>,
}

impl Job {
    /// Waits until the job ends.
    ///
    /// # Errors
    /// The job failed, or the shard has stopped.
    pub fn wait(self) -> Result<()> {
        let end = self.end.recv().map_err(|_| self.handle.stopped())?;
        Ok(end?)
    }

    /// Waits at most `time` for the job to end; `None` if it has not ended by then.
    ///
    /// # Errors
    /// The job failed, or the shard has stopped.
    pub fn wait_for(&self, time: Duration) -> Result<Option<()>> {
        match self.end.recv_timeout(time) {
            Ok(end) => Ok(Some(end?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.handle.stopped()),
        }
    }

    /// Returns the job's progress, if it reports any.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn progress(&self) -> Result<Option<Progress>> {
        let id = self.id;
        self.handle.run(move |reactor| reactor.progress(id))
    }

    /// Stops a job that cleans; what is already clean stays clean. Returns false if it can no longer be
    /// stopped.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn cancel(&self) -> Result<bool> {
        let id = self.id;
        self.handle.run(move |reactor| reactor.cancel(id))
    }
}

/// A handle to a shard; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Handle {
    name: String,
    clock: Arc<ShardClock>,
    mailbox: Mailbox,
    /// Held while labels are written: one page holds several.
    labelling: Arc<Mutex<()>>,
}

impl Handle {
    /// Returns the pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shard's current time.
    pub fn now_us(&self) -> Micros {
        self.clock.now_us()
    }

    /// Returns whether the shard's clock runs by itself. If not, its latencies mean nothing.
    pub fn clock_runs(&self) -> bool {
        self.clock.runs()
    }

    fn stopped(&self) -> EngineError {
        EngineError::Stopped(self.name.clone())
    }

    /// Runs a closure on the reactor's thread and waits for its result.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Reactor) -> R + Send + 'static,
    ) -> Result<R> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.mailbox.post(Box::new(move |reactor| {
            // The caller may have given up waiting.
            let _ = sender.send(work(reactor));
        }));
        answer.recv().map_err(|_| self.stopped())
    }

    fn job(&self, work: impl FnOnce(&mut Reactor) -> Result<JobId> + Send + 'static) -> Result<Job> {
        let (sender, end) = mpsc::channel();
        let id = self.run(move |reactor| {
            let id = work(reactor)?;
            reactor.await_job(id, sender);
            Ok::<_, EngineError>(id)
        })??;
        Ok(Job { handle: self.clone(), id, end })
    }

    /// Attaches a disk: opens its origin in the calling thread, waiting up to `origin_wait` for an NBD origin
    /// that is unreachable, then has the core attach the disk.
    ///
    /// # Errors
    /// The origin cannot be used or is too small, or the core refuses the disk.
    pub fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, Job)> {
        let origin = origin::open(&spec, self)?;
        let (sender, end) = mpsc::channel();
        let (disk, id) = self.run(move |reactor| {
            let (disk, id) = reactor.attach(spec, origin)?;
            reactor.await_job(id, sender);
            Ok::<_, EngineError>((disk, id))
        })??;
        Ok((disk, Job { handle: self.clone(), id, end }))
    }

    /// Cleans a disk and detaches it. Until it is detached it takes no new clients. If it has clients, the call
    /// is refused unless `force` is set; their requests then fail. Its clean blocks stay cached. Afterwards its
    /// handle is invalid.
    ///
    /// # Errors
    /// It has clients, or see [`ManageError`].
    pub fn detach(&self, disk: DiskHandle, force: bool) -> Result<Job> {
        self.job(move |reactor| reactor.detach(disk, force))
    }

    /// Does so too, and gives up lost sectors: once everything else is at the origin, they are as the origin has
    /// them.
    ///
    /// # Errors
    /// See [`Handle::detach`].
    pub fn detach_accepting_loss(&self, disk: DiskHandle, force: bool) -> Result<Job> {
        self.job(move |reactor| reactor.detach_accepting_loss(disk, force))
    }

    /// Returns the lost sectors of a disk: in runs, first sector and number of sectors, in order. Reads of them
    /// fail until they are written.
    ///
    /// # Errors
    /// It is not attached.
    pub fn lost_runs(&self, disk: DiskHandle) -> Result<Vec<(SectorNo, u64)>> {
        self.run(move |reactor| reactor.lost_runs(disk))?
    }

    /// Writes all blocks that are dirty now back to the origin.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn clean(&self, disk: DiskHandle) -> Result<Job> {
        self.job(move |reactor| reactor.disk_call(disk, |core, now, disk| core.clean(now, disk)))
    }

    /// Forgets a detached disk. Dirty blocks are destroyed only if the caller says so.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn forget(&self, disk: DiskId, destroy_dirty: bool) -> Result<Job> {
        self.job(move |reactor| reactor.forget(disk, destroy_dirty))
    }

    /// Changes the size of a disk. If it grows, the origin's size is checked first, in the calling thread.
    /// Clients are notified. It shrinks only if `shrink` is set and no client uses it; the data beyond the new
    /// end is lost.
    ///
    /// # Errors
    /// The origin is too small or unreachable, the disk would shrink without permission, or see
    /// [`ManageError`].
    pub fn resize(&self, disk: DiskHandle, sectors: u64, shrink: bool) -> Result<Job> {
        let (spec, present) = self.run(move |reactor| reactor.spec(disk))??;
        if sectors > present {
            origin::check_growth(&spec, sectors * SECTOR_BYTES as u64)?;
        }
        self.job(move |reactor| reactor.resize(disk, sectors, shrink))
    }

    /// Changes the write mode.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<Job> {
        self.job(move |reactor| reactor.disk_call(disk, |core, now, disk| core.set_mode(now, disk, mode)))
    }

    /// Changes a disk's share.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()> {
        self.run(move |reactor| {
            reactor.disk_call(disk, |core, now, disk| core.set_target(now, disk, target))
        })?
    }

    /// Sets what a block written to flash must save, and the share of the blocks of which clean copies may be written to
    /// flash; see [`haversack_core::Core::set_write_price`] and [`haversack_core::Core::set_fill_share`].
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()> {
        self.run(move |reactor| {
            reactor.core.set_write_price(price_us);
            reactor.core.set_fill_share(fill_share);
        })
    }

    /// Changes the admission policy of a disk.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()> {
        self.run(move |reactor| {
            reactor.disk_call(disk, |core, now, disk| core.set_admission(now, disk, admission))
        })?
    }

    /// Takes over what the operator alone changes: see [`DiskConfig::tuning`].
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()> {
        self.run(move |reactor| reactor.disk_call(disk, |core, now, disk| core.tune(now, disk, &config)))?
    }

    /// Formats a device or file, in the calling thread, and adds it to the pool.
    ///
    /// # Errors
    /// The device cannot be opened or is unfit, or the pool is busy.
    pub fn add_device(&self, path: &Path, formatting: Formatting) -> Result<Job> {
        let mut media = Devices::create(&[path.to_path_buf()], formatting)?;
        let made = media.devices[0].is_new.then(|| path.to_path_buf());
        let _labelling = self.labelling.lock().unwrap_or_else(PoisonError::into_inner);
        let added = self.prepare_device(&mut media).and_then(|new| {
            self.label_device(&media.devices[0])?;
            let device = media.devices.pop().expect("one was opened");
            self.job(move |reactor| reactor.add_device(device, new))
        });
        if let (Err(_), Some(path)) = (&added, made) {
            let _ = std::fs::remove_file(path);
        }
        added
    }

    fn prepare_device(&self, media: &mut Devices) -> Result<NewDevice> {
        let (pool, number) = self.run(|reactor| (reactor.core.pool_id(), reactor.core.next_device_no()))?;
        let number = number.ok_or(ManageError::DeviceTableFull)?;
        let id = crate::pool::random_id()?;
        Ok(haversack_core::pool::prepare_device(media, 0, pool, number, id, PREPARED_AT_FORMAT)?)
    }

    /// Copies all labels to a new device, and writes the new device's label to all devices.
    fn label_device(&self, new: &CacheDevice) -> Result<()> {
        let mut devices = self.open_again()?;
        devices.devices.push(new.again()?);
        label::copy(&mut devices)?;
        let at = devices.devices.len() - 1;
        let Some(identity) = haversack_core::pool::identify(&mut devices, at) else { return Ok(()) };
        let label = assembly::device_label(&self.name, identity, new, label::now_s());
        label::write(&mut devices, Kind::Device, &[(usize::from(identity.number.0), label)])
    }

    /// Duplicates the open devices in use.
    fn open_again(&self) -> Result<Devices> {
        Devices::of(self.run(|reactor| reactor.devices_again())??)
    }

    /// Returns the devices that the pool uses and that were not found when it was opened.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn missing_devices(&self) -> Result<Vec<MissingDevice>> {
        self.run(|reactor| reactor.missing.clone())
    }

    /// Stores a disk's label on the cache devices, in the calling thread.
    ///
    /// # Errors
    /// The disk was detached, or a device cannot be written.
    pub fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()> {
        let _labelling = self.labelling.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, pool) = self
            .run(move |reactor| Ok::<_, EngineError>((reactor.attached(disk)?, reactor.core.pool_id())))??;
        let mut devices = self.open_again()?;
        label::write(&mut devices, Kind::Disk, &[(usize::from(number.0), Label { pool, ..label })])
    }

    /// Reads the labels of disks from the cache devices, in the calling thread.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn disk_labels(&self) -> Result<Vec<Label>> {
        Ok(label::read(&mut self.open_again()?, Kind::Disk))
    }

    /// Empties a device and removes it from the pool.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn remove_device(&self, device: DeviceNo) -> Result<Job> {
        self.job(move |reactor| reactor.remove_device(device))
    }

    /// Stops cleanly: commits everything staged and finishes requests in flight; new requests are never
    /// answered. Drop the [`Shard`] when the job has ended.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn shutdown(&self) -> Result<Job> {
        self.job(|reactor| Ok(reactor.shutdown()))
    }

    /// Starts recording the requests of a disk's clients, or stops with `None`.
    ///
    /// # Errors
    /// See [`ManageError`].
    pub fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()> {
        self.run(move |reactor| reactor.disk_call(disk, |core, _, disk| core.set_monitor(disk, config)))?
    }

    /// Exchanges the records of disks for empty buffers, without copying. Each buffer returns with what was
    /// recorded since the last call; it is empty if the disk is not monitored or was detached.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn take_records(
        &self,
        mut buffers: Vec<(DiskHandle, Records)>,
    ) -> Result<Vec<(DiskHandle, Records)>> {
        self.run(move |reactor| {
            for (disk, records) in &mut buffers {
                match reactor.attached(*disk) {
                    Ok(number) => drop(reactor.core.take_records(number, records)),
                    Err(_) => records.clear(),
                }
            }
            buffers
        })
    }

    /// Returns all current counters, shares and latencies.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.run(|reactor| reactor.snapshot())
    }

    /// Subscribes to events from now on: failed devices, corruption, origins lost and back.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn events(&self) -> Result<mpsc::Receiver<EngineEvent>> {
        let (sender, receiver) = mpsc::channel();
        self.run(move |reactor| reactor.subscribe(sender))?;
        Ok(receiver)
    }

    /// Reports that the caller has durably recorded the loss of what was on lost devices (see
    /// [`haversack_core::Event::PoolLost`]).
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn loss_recorded(&self) -> Result<()> {
        self.run(|reactor| reactor.core_call(|core, now| core.loss_recorded(now)))
    }

    /// Returns the peers of a disk's NBD connections. A vhost-user server reports its front ends itself.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>> {
        self.run(move |reactor| reactor.memory.payloads.peers(disk))
    }

    /// Makes a negotiated NBD connection a client of a disk.
    ///
    /// # Errors
    /// The disk was detached or is no longer as negotiated, it has the most connections allowed, the descriptor
    /// is not a socket, or the shard has stopped. The connection is then closed.
    pub fn add_nbd_client(&self, client: NbdClient) -> Result<()> {
        self.run(move |reactor| reactor.add_nbd_client(client))?
    }

    /// Serves a disk of `sectors` sectors on a vhost-user-blk socket until the server is dropped.
    ///
    /// # Errors
    /// The socket cannot be created, or the disk was detached.
    pub fn serve_vhost_user(
        &self,
        disk: DiskHandle,
        sectors: u64,
        socket: &Path,
        config: &VhostUserConfig,
    ) -> Result<VhostUserServer> {
        self.run(move |reactor| reactor.attached(disk))??;
        front::vhost_user::serve(self, disk, sectors, socket, config)
    }
}

/// An event of a shard. Disks are named by their permanent identity: by the time an event is read, a disk's
/// number may belong to another disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    /// See [`haversack_core::Event::DeviceFailed`].
    DeviceFailed {
        /// The device.
        device: DeviceNo,
        /// Dirty blocks that had no other copy.
        lost_blocks: u64,
    },
    /// See [`haversack_core::Event::PoolLost`].
    PoolLost,
    /// See [`haversack_core::Event::Corruption`].
    Corruption {
        /// The disk.
        disk: DiskId,
        /// The disk's first sector in the block.
        sector: SectorNo,
        /// The device.
        device: DeviceNo,
        /// Byte offset of the block on the device.
        offset_bytes: u64,
        /// Whether the data is lost.
        lost: bool,
    },
    /// See [`haversack_core::Event::CleanFailed`].
    CleanFailed {
        /// The disk.
        disk: DiskId,
    },
    /// An origin is unreachable; its requests wait.
    OriginAway {
        /// The disk.
        disk: DiskId,
        /// What went wrong.
        why: String,
    },
    /// An origin is reachable again.
    OriginBack {
        /// The disk.
        disk: DiskId,
    },
    /// Dirty sectors of a disk were lost with a cache device. Reading them fails until they are written again.
    DataLost {
        /// The disk.
        disk: DiskId,
        /// All lost ranges of the disk: first sector and number of sectors, in order.
        runs: Vec<(SectorNo, u64)>,
    },
    /// Lost sectors of a disk were given up with a detach: they are as the origin has them.
    LossAccepted {
        /// The disk.
        disk: DiskId,
        /// First sector and number of sectors, in order.
        runs: Vec<(SectorNo, u64)>,
    },
    /// A cache device returned an error.
    DeviceError {
        /// The device.
        path: PathBuf,
        /// Byte offset of the I/O.
        offset_bytes: u64,
        /// The system's error number.
        errno: i32,
    },
}
