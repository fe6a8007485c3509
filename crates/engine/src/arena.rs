//! How other threads call one arena of a pool: closures that its reactor runs between two I/Os, and their results.
//!
//! Calls do not wait for device or origin I/O unless their documentation says so: long operations are jobs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use haversack_core::pool::Member;
use haversack_core::{
    AdmissionConfig, AdmissionFigures, BaseBlocks, BaseUsage, DiskConfig, JobId, MonitorConfig, Moved,
    OpenReport, PREPARED_AT_FORMAT, PeerLoss, Records, SharingId, Target,
};
use haversack_migrate::{Method, ReplicaPolicy};
use haversack_model::{
    ArenaId, DeviceNo, DiskHandle, DiskId, HostId, Micros, SECTOR_BYTES, SectorNo, WriteMode,
};

use crate::assembly;
use crate::config::{DiskSpec, PoolSettings};
use crate::device::CacheDevice;
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::front;
use crate::front::nbd::NbdClient;
use crate::front::vhost_user::{VhostUserConfig, VhostUserServer};
use crate::job::{Job, JobPart};
use crate::label::{self, Kind, Label};
use crate::lending::{LendingSettings, LendingStatus};
use crate::mailbox::{Commands, Mailbox};
use crate::media::Devices;
use crate::moving::{HostMessage, HostSettings, MoveStatus, Receipt, RecordedDisk, TakeoverLoss};
use crate::origin;
use crate::pool_clock::PoolClock;
use crate::reactor::Reactor;
use crate::siblings::Siblings;
use crate::snapshot::Snapshot;

/// A running arena. Dropping it stops the thread immediately, like a kill.
pub(crate) struct Arena {
    handle: ArenaHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Arena {
    /// Opens the arena on a new thread, which then runs the reactor. The thread first sends the open report. If the
    /// arena cannot be opened, it sends the error and exits.
    pub fn start(
        opening: ArenaOpening,
        clock: Arc<PoolClock>,
        (mailbox, commands): (Mailbox, Commands),
    ) -> Result<Starting> {
        let name = opening.settings.name.clone();
        let arena = opening.siblings.arena();
        let measures_latencies = clock.runs() || opening.settings.io_times.is_some();
        let (sender, opened) = mpsc::channel();
        // The ring belongs to the thread that creates it.
        let reactors = clock.clone();
        let serve = move || match Reactor::open(opening, reactors, commands) {
            Ok((reactor, report)) => {
                let _ = sender.send(Ok(report));
                reactor.run();
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name(format!("arena{arena}-{name}")).spawn(serve);
        let thread = Some(thread.map_err(EngineError::Ring)?);
        let handle = ArenaHandle { name, clock, measures_latencies, mailbox, labelling: Arc::default() };
        Ok(Starting { arena: Arena { handle, thread }, opened })
    }

    /// Tells the thread to stop, without waiting for it.
    pub fn end(&self) {
        self.handle.mailbox.post(Box::new(Reactor::stop));
    }

    /// Returns a handle to the arena.
    pub fn handle(&self) -> ArenaHandle {
        self.handle.clone()
    }
}

/// What a reactor opens.
pub(crate) struct ArenaOpening {
    /// The settings of the arena.
    pub settings: PoolSettings,
    /// The arena's extents of the pool's devices.
    pub extents: Vec<CacheDevice>,
    pub siblings: Siblings,
}

/// An arena that is being opened.
pub(crate) struct Starting {
    arena: Arena,
    opened: mpsc::Receiver<Result<OpenReport>>,
}

impl Starting {
    /// Waits until the arena is open. Takes as long as it takes to read its metadata.
    ///
    /// # Errors
    /// A device or the arena cannot be opened.
    pub fn wait(self) -> Result<(Arena, OpenReport)> {
        let stopped = |_| EngineError::Stopped(self.arena.handle.name.clone());
        let report = self.opened.recv().map_err(stopped)??;
        Ok((self.arena, report))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A handle to an arena and its disks; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct ArenaHandle {
    name: String,
    clock: Arc<PoolClock>,
    measures_latencies: bool,
    mailbox: Mailbox,
    /// Held while labels are written: one page holds several.
    labelling: Arc<Mutex<()>>,
}

impl ArenaHandle {
    /// Returns the pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool's current time.
    pub fn now_us(&self) -> Micros {
        self.clock.now_us()
    }

    /// Returns whether latencies by the pool's clock are meaningful: the clock runs by itself, or the durations of I/Os
    /// are modelled.
    pub fn measures_latencies(&self) -> bool {
        self.measures_latencies
    }

    pub(crate) fn stopped(&self) -> EngineError {
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
        Ok(Job::of(JobPart { handle: self.clone(), id, end }))
    }

    /// Attaches a disk: opens its origin in the calling thread, waiting up to `origin_wait` for an NBD origin
    /// that is unreachable, then has the core attach the disk.
    ///
    /// # Errors
    /// The origin cannot be used or is too small, or the core refuses the disk.
    pub(crate) fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, Job)> {
        let origin = origin::open(&spec, self)?;
        let (sender, end) = mpsc::channel();
        let (disk, id) = self.run(move |reactor| {
            let (disk, id) = match spec.moves {
                Some(moves) => reactor.attach_moving(spec, moves, origin)?,
                None => reactor.attach_unmoving(spec, origin)?,
            };
            reactor.await_job(id, sender);
            Ok::<_, EngineError>((disk, id))
        })??;
        Ok((disk, Job::of(JobPart { handle: self.clone(), id, end })))
    }

    /// Makes this host known to the arena, before disks that can move are attached.
    pub(crate) fn join_hosts(&self, host: HostSettings) -> Result<()> {
        self.run(move |reactor| reactor.join_hosts(host))
    }

    /// Begins to lend and to borrow.
    pub(crate) fn join_lending(&self, settings: LendingSettings) -> Result<()> {
        self.run(move |reactor| reactor.join_lending(settings))
    }

    /// Restricts borrowing to these hosts.
    pub(crate) fn choose_lenders(&self, hosts: Vec<HostId>) -> Result<()> {
        self.run(move |reactor| reactor.choose_lenders(hosts))
    }

    /// Returns what is lent and borrowed.
    pub(crate) fn lending_status(&self) -> Result<LendingStatus> {
        self.run(|reactor| reactor.lending_status())
    }

    /// Passes on what another host says about a disk. Ignored if the disk does not move. The receipt is dropped
    /// afterwards.
    pub(crate) fn host_said(&self, from: HostId, disk: DiskId, message: HostMessage, receipt: Receipt) {
        self.mailbox.post(Box::new(move |reactor| {
            reactor.host_said(from, disk, message);
            drop(receipt);
        }));
    }

    /// Starts a migration of a disk to another host: from now on, the blocks that the method sends ahead are sent. The
    /// migration ends when the other host owns the disk.
    ///
    /// # Errors
    /// The disk does not move, or is not attached.
    pub fn start_migration(&self, disk: DiskHandle, to: HostId, method: Method) -> Result<()> {
        self.run(move |reactor| reactor.start_migration(disk, to, method))?
    }

    /// Aborts a migration; the destination drops the copies that it has received. Returns false if no migration of the
    /// disk was in progress.
    ///
    /// # Errors
    /// The disk does not move.
    pub fn stop_migration(&self, disk: DiskHandle) -> Result<bool> {
        self.run(move |reactor| reactor.stop_migration(disk))?
    }

    /// Sets which host is to have a replica of a disk's dirty blocks.
    ///
    /// # Errors
    /// The disk does not move, or the arena has ended.
    pub fn set_replica(&self, disk: DiskHandle, replica: Option<ReplicaPolicy>) -> Result<()> {
        self.run(move |reactor| reactor.set_replica(disk, replica))?
    }

    /// Makes this host the owner of a disk whose host is permanently dead, or ends the disk's dependence on such a
    /// host. `epoch` must come from [`haversack_ownership::forced_epoch`]. The takeover is complete when
    /// [`PoolHandle::migration_status`] says so. A replica that this host has of the owner's dirty blocks is dropped,
    /// even if it is certain. **Fence all hosts that may own the disk first.**
    ///
    /// # Errors
    /// The disk does not move, needs no other host, or is being moved.
    ///
    /// [`PoolHandle::migration_status`]: crate::PoolHandle::migration_status
    pub fn take_over(&self, disk: DiskHandle, epoch: u64, loss: PeerLoss) -> Result<()> {
        self.run(move |reactor| reactor.take_over(disk, epoch, loss))?
    }

    /// Like [`ArenaHandle::take_over`], but uses this host's replica of the owner's dirty blocks, even if the owner may
    /// have continued without the replica. **The owner must have died, or been fenced, while the replica was
    /// complete.**
    ///
    /// # Errors
    /// As for [`ArenaHandle::take_over`], or there is no complete replica here. Nothing has changed then.
    pub fn take_over_with_replica(&self, disk: DiskHandle, epoch: u64) -> Result<()> {
        self.run(move |reactor| reactor.take_over_with_replica(disk, epoch))?
    }

    pub(crate) fn overtaken(&self, disk: DiskId, by: HostId, epoch: u64) -> Result<bool> {
        self.run(move |reactor| reactor.overtaken(disk, by, epoch))
    }

    pub(crate) fn heard_of_owner(&self, disk: DiskId, host: HostId, epoch: u64) -> Result<()> {
        self.run(move |reactor| reactor.heard_of_owner(disk, host, epoch))
    }

    pub(crate) fn has_forgotten(&self, disk: DiskId, epoch: u64) -> Result<()> {
        self.run(move |reactor| reactor.has_forgotten(disk, epoch))
    }

    pub(crate) fn takeover_loss(&self, disk: DiskId) -> Result<TakeoverLoss> {
        self.run(move |reactor| reactor.takeover_loss(disk))
    }

    pub(crate) fn recorded_disk(&self, disk: DiskId) -> Result<Option<RecordedDisk>> {
        self.run(move |reactor| reactor.recorded_disk(disk))
    }

    /// Returns what remains to be done of a disk's last migration, if the disk's owner is recorded.
    pub(crate) fn recorded_move(&self, disk: DiskId) -> Result<Option<Moved>> {
        self.run(move |reactor| reactor.recorded_move(disk))
    }

    /// Starts fetching the remaining blocks from the earlier owner now, instead of only when they are needed.
    ///
    /// # Errors
    /// The disk does not move, or the pool has stopped.
    pub fn fetch_rest(&self, disk: DiskHandle) -> Result<()> {
        self.run(move |reactor| reactor.fetch_rest(disk))?
    }

    /// Says what the write cache of a disk's guest is, as was found out for the epoch under which this host owns the disk.
    /// It counts if that was not known. Returns false if this host no longer owns the disk under that epoch.
    ///
    /// # Errors
    /// The disk does not move, or the pool has stopped.
    pub fn settle_write_cache(&self, disk: DiskHandle, epoch: u64, on: bool) -> Result<bool> {
        self.run(move |reactor| reactor.settle_write_cache(disk, epoch, on))?
    }

    pub(crate) fn stand_by(&self, disk: DiskId) -> Result<bool> {
        self.run(move |reactor| reactor.stand_by(disk))
    }

    pub(crate) fn withdraw(&self, disk: DiskId) -> Result<()> {
        self.run(move |reactor| reactor.withdraw(disk))
    }

    /// Returns the migration state of a disk that can move; `None` for any other.
    pub(crate) fn migration_status(&self, disk: DiskId) -> Result<Option<MoveStatus>> {
        self.run(move |reactor| reactor.migration_status(disk))
    }

    pub(crate) fn departures(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        self.run(|reactor| reactor.departures())
    }

    /// Returns the state of the disks that have a replica, or whose replica is here.
    pub(crate) fn replicas(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        self.run(|reactor| reactor.replicas())
    }

    /// Cleans a disk and detaches it. Until it is detached it takes no new clients. If it has clients, the call
    /// is refused unless `force` is set; their requests then fail. Its clean blocks stay cached. Afterwards its
    /// handle is invalid.
    ///
    /// # Errors
    /// It has clients, or see [`haversack_core::ManageError`].
    pub fn detach(&self, disk: DiskHandle, force: bool) -> Result<Job> {
        self.job(move |reactor| reactor.detach(disk, force))
    }

    /// Like [`ArenaHandle::detach`], and also gives up lost sectors: once everything else is at the origin, reads of
    /// them return the origin's data.
    ///
    /// # Errors
    /// See [`ArenaHandle::detach`].
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
    /// See [`haversack_core::ManageError`].
    pub fn clean(&self, disk: DiskHandle) -> Result<Job> {
        self.job(move |reactor| reactor.disk_call(disk, |core, now, disk| core.clean(now, disk)))
    }

    /// Forgets a detached disk. Dirty blocks are destroyed only if the caller says so.
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub(crate) fn forget(&self, disk: DiskId, destroy_dirty: bool, remembered: Option<u64>) -> Result<Job> {
        self.job(move |reactor| reactor.forget(disk, destroy_dirty, remembered))
    }

    /// Changes the size of a disk. If it grows, the origin's size is checked first, in the calling thread.
    /// Clients are notified. It shrinks only if `shrink` is set and no client uses it; the data beyond the new
    /// end is lost.
    ///
    /// # Errors
    /// The origin is too small or unreachable, the disk would shrink without permission, or see
    /// [`haversack_core::ManageError`].
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
    /// See [`haversack_core::ManageError`].
    pub fn set_mode(&self, disk: DiskHandle, mode: WriteMode) -> Result<Job> {
        self.job(move |reactor| reactor.set(disk, |core, now, disk| core.set_mode(now, disk, mode)))
    }

    /// Changes a disk's share.
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub fn set_target(&self, disk: DiskHandle, target: Target) -> Result<()> {
        self.run(move |reactor| reactor.set(disk, |core, now, disk| core.set_target(now, disk, target)))?
    }

    /// Sets the latency that a block written to flash must save, and the share of blocks whose clean copies may be
    /// written to flash; see [`haversack_core::Core::set_write_price`] and [`haversack_core::Core::set_fill_share`].
    ///
    /// # Errors
    /// The pool has stopped.
    pub(crate) fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()> {
        self.run(move |reactor| {
            reactor.core.set_write_price(price_us);
            reactor.core.set_fill_share(fill_share);
        })
    }

    /// Changes the admission policy of a disk.
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub fn set_admission(&self, disk: DiskHandle, admission: AdmissionConfig) -> Result<()> {
        self.run(move |reactor| {
            reactor.set(disk, |core, now, disk| core.set_admission(now, disk, admission))
        })?
    }

    /// Returns the figures that a disk's admission filter uses, if it learns.
    ///
    /// # Errors
    /// It is not attached.
    pub fn admission_figures(&self, disk: DiskHandle) -> Result<Option<AdmissionFigures>> {
        self.run(move |reactor| reactor.admission_figures(disk))?
    }

    /// Begins to share blocks of a disk with its base; see [`haversack_core::Core::share_base`].
    ///
    /// # Errors
    /// One of them is not attached, they are in different arenas, or the core refuses the base.
    pub fn share_base(&self, disk: DiskHandle, base: DiskHandle) -> Result<SharingId> {
        self.run(move |reactor| reactor.share_base(disk, base))?
    }

    /// Completes the sharing begun by [`ArenaHandle::share_base`]; see [`haversack_core::Core::share_blocks`].
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn share_blocks(&self, disk: DiskHandle, sharing: SharingId, blocks: BaseBlocks) -> Result<bool> {
        self.run(move |reactor| reactor.share_blocks(disk, sharing, blocks))?
    }

    /// Returns what a disk shares with its base.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn base_usage(&self, disk: DiskHandle) -> Result<Option<BaseUsage>> {
        self.run(move |reactor| reactor.base_usage(disk))?
    }

    /// Ends the sharing of blocks with the disk's base.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn end_sharing(&self, disk: DiskHandle) -> Result<()> {
        self.run(move |reactor| reactor.end_sharing(disk))?
    }

    /// Returns what a disk's admission filter has learned, if it learns; see
    /// [`haversack_core::Core::saved_admission`].
    ///
    /// # Errors
    /// It is not attached.
    pub fn saved_admission(&self, disk: DiskHandle, with_accesses: bool) -> Result<Option<Vec<u8>>> {
        self.run(move |reactor| reactor.saved_admission(disk, with_accesses))?
    }

    /// Continues from what a disk's admission filter had learned. Returns false if its current filter does not learn.
    ///
    /// # Errors
    /// It is not attached, or the bytes are malformed.
    pub fn resume_admission(&self, disk: DiskHandle, saved: Vec<u8>) -> Result<bool> {
        self.run(move |reactor| reactor.resume_admission(disk, &saved))?
    }

    /// Applies the settings that only the operator changes: see [`DiskConfig::tuning`].
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub fn tune(&self, disk: DiskHandle, config: DiskConfig) -> Result<()> {
        self.run(move |reactor| reactor.set(disk, |core, now, disk| core.tune(now, disk, &config)))?
    }

    /// Returns the arena's identity, and the numbers that a new device may get.
    pub(crate) fn free_device_numbers(&self) -> Result<(ArenaId, Vec<DeviceNo>)> {
        self.run(|reactor| (reactor.core.arena(), reactor.core.free_device_numbers()))
    }

    /// Formats an extent that carries no superblock, in the calling thread, and adds it to the arena.
    ///
    /// # Errors
    /// The extent is unfit, or the arena is busy.
    pub(crate) fn add_extent(&self, mut extent: Devices, member: &Member) -> Result<Job> {
        let _labelling = self.labelling.lock().unwrap_or_else(PoisonError::into_inner);
        let most_segments = self.run(|reactor| reactor.core.spare_segments())?;
        let new =
            haversack_core::pool::prepare_device(&mut extent, 0, member, most_segments, PREPARED_AT_FORMAT)?;
        let unused_bytes = haversack_core::pool::unused_bytes(&mut extent, 0);
        if unused_bytes > 0 {
            let path = extent.devices[0].path.display();
            tracing::warn!(pool = self.name, %path, unused_bytes, "an arena cannot use all of a device");
        }
        self.label_extent(&extent.devices[0])?;
        let device = extent.devices.pop().expect("one was opened");
        self.job(move |reactor| reactor.add_device(device, new))
    }

    /// Copies all labels to a new extent, and writes its device's label to all of them.
    fn label_extent(&self, new: &CacheDevice) -> Result<()> {
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

    /// Stores a disk's label on the cache devices, in the calling thread.
    ///
    /// # Errors
    /// The disk was detached, or a device cannot be written.
    pub fn label_disk(&self, disk: DiskHandle, label: Label) -> Result<()> {
        let _labelling = self.labelling.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, pool) = self.run(move |reactor| {
            Ok::<_, EngineError>((reactor.attached(disk)?, reactor.core.arena().pool))
        })??;
        let mut devices = self.open_again()?;
        label::write(&mut devices, Kind::Disk, &[(usize::from(number.0), Label { pool, ..label })])
    }

    /// Reads the labels of disks from the cache devices, in the calling thread.
    ///
    /// # Errors
    /// The arena has stopped.
    pub(crate) fn disk_labels(&self) -> Result<Vec<Label>> {
        Ok(label::read(&mut self.open_again()?, Kind::Disk))
    }

    /// Empties a device and removes it from the pool.
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub(crate) fn remove_device(&self, device: DeviceNo) -> Result<Job> {
        self.job(move |reactor| reactor.remove_device(device))
    }

    /// Stops cleanly: commits everything staged and finishes requests in flight; new requests are never
    /// answered.
    ///
    /// # Errors
    /// The arena has stopped.
    pub(crate) fn shutdown(&self) -> Result<Job> {
        self.job(|reactor| Ok(reactor.shutdown()))
    }

    /// Starts recording the requests of a disk's clients, or stops with `None`.
    ///
    /// # Errors
    /// See [`haversack_core::ManageError`].
    pub fn set_monitor(&self, disk: DiskHandle, config: Option<MonitorConfig>) -> Result<()> {
        self.run(move |reactor| reactor.disk_call(disk, |core, _, disk| core.set_monitor(disk, config)))?
    }

    /// Exchanges the records of disks for empty buffers, without copying. Each buffer returns with what was
    /// recorded since the last call; it is empty if the disk is not monitored or was detached.
    ///
    /// # Errors
    /// The arena has stopped.
    pub(crate) fn take_records(
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
    /// The arena has stopped.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.run(|reactor| reactor.snapshot())
    }

    /// Sends events from now on: failed devices, corruption, origins lost and back.
    ///
    /// # Errors
    /// The arena has stopped.
    pub(crate) fn send_events(&self, sender: mpsc::Sender<EngineEvent>) -> Result<()> {
        self.run(move |reactor| reactor.subscribe(sender))
    }

    /// Reports that the caller has durably recorded the loss of what was on lost devices (see
    /// [`haversack_core::Event::PoolLost`]).
    ///
    /// # Errors
    /// The arena has stopped.
    pub(crate) fn loss_recorded(&self) -> Result<()> {
        self.run(|reactor| reactor.core_call(|core, now| core.loss_recorded(now)))
    }

    /// Returns the peers of a disk's NBD connections. A vhost-user server reports its front ends itself.
    ///
    /// # Errors
    /// The arena has stopped.
    pub fn nbd_peers(&self, disk: DiskHandle) -> Result<Vec<String>> {
        self.run(move |reactor| reactor.memory.payloads.peers(disk))
    }

    /// Makes a negotiated NBD connection a client of a disk.
    ///
    /// # Errors
    /// The disk was detached or is no longer as negotiated, it has the most connections allowed, the descriptor
    /// is not a socket, or the arena has stopped. The connection is then closed.
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
