//! How other threads call a pool: what concerns a disk goes to the arena that the disk belongs to, what concerns
//! devices or the whole pool to all arenas.
//!
//! Invariants
//! - A disk belongs to one arena as long as the pool is open: the one that has blocks of it, or the one that was chosen
//!   when it was first attached.
//! - A device has the same number in every arena.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use haversack_core::pool::Member;
use haversack_core::{ManageError, Moved, Records};
use haversack_lend::LEAST_LOAN_BLOCKS;
use haversack_model::{ArenaNo, BLOCK_BYTES, DeviceNo, DiskHandle, DiskId, HostId, Micros};

use crate::arena::ArenaHandle;
use crate::assembly::MissingDevice;
use crate::config::DiskSpec;
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::extents;
use crate::job::Job;
use crate::label::Label;
use crate::lending::{LendingSettings, LendingStatus};
use crate::media::Devices;
use crate::moving::{HostMessage, HostSettings, MoveStatus, Receipt, RecordedDisk, TakeoverLoss};
use crate::pool::Formatting;
use crate::snapshot::Snapshot;

/// A handle to a pool; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct PoolHandle {
    /// By number; not empty.
    arenas: Arc<[ArenaHandle]>,
    /// The arenas of the disks that the pool knows.
    homes: Arc<Mutex<HashMap<DiskId, ArenaNo>>>,
    missing: Arc<[MissingDevice]>,
}

impl PoolHandle {
    pub(crate) fn new(
        arenas: Vec<ArenaHandle>,
        homes: HashMap<DiskId, ArenaNo>,
        missing: Vec<MissingDevice>,
    ) -> PoolHandle {
        PoolHandle { arenas: arenas.into(), homes: Arc::new(Mutex::new(homes)), missing: missing.into() }
    }

    /// Returns the pool's name.
    pub fn name(&self) -> &str {
        self.arenas[0].name()
    }

    /// Returns the number of arenas.
    pub fn arenas(&self) -> usize {
        self.arenas.len()
    }

    /// Returns the pool's current time.
    pub fn now_us(&self) -> Micros {
        self.arenas[0].now_us()
    }

    /// Returns whether latencies by the pool's clock are meaningful: the clock runs by itself, or the durations of I/Os
    /// are modelled.
    pub fn measures_latencies(&self) -> bool {
        self.arenas[0].measures_latencies()
    }

    /// Returns the arena of an attached disk.
    pub fn arena(&self, disk: DiskHandle) -> &ArenaHandle {
        // A handle of another pool refers to no disk in any arena.
        self.arenas.get(usize::from(disk.arena().0)).unwrap_or(&self.arenas[0])
    }

    /// Returns the arena to which a disk belongs; for a new disk, that of the disk `beside`, or else the one with the
    /// fewest disks.
    fn home(&self, disk: DiskId, beside: Option<DiskId>) -> &ArenaHandle {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        let disks_of = |arena: usize| homes.values().filter(|home| usize::from(home.0) == arena).count();
        let emptiest = || (0..self.arenas.len()).min_by_key(|arena| disks_of(*arena)).unwrap_or(0);
        let known = homes.get(&disk).or_else(|| homes.get(&beside?)).copied();
        let home = known.unwrap_or_else(|| ArenaNo(emptiest() as u8));
        // The base may be attached later.
        if let Some(beside) = beside {
            homes.entry(beside).or_insert(home);
        }
        homes.insert(disk, home);
        &self.arenas[usize::from(home.0)]
    }

    /// Attaches a disk: opens its origin in the calling thread, waiting up to `origin_wait` for an NBD origin
    /// that is unreachable, then has the core attach the disk.
    ///
    /// # Errors
    /// The origin cannot be used or is too small, or the core refuses the disk.
    pub fn attach(&self, spec: DiskSpec) -> Result<(DiskHandle, Job)> {
        self.home(spec.config.id, spec.beside).attach(spec)
    }

    /// Makes this host known to the pool, before disks that can move are attached, and resumes what earlier
    /// migrations have left to do.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn join_hosts(&self, host: &HostSettings) -> Result<()> {
        self.arenas.iter().try_for_each(|arena| arena.join_hosts(host.clone()))
    }

    /// Begins to lend and to borrow, before disks that borrow are attached. Each arena lends an equal part.
    ///
    /// # Errors
    /// The pool has stopped, or an arena's part is less than the least loan: then the pool borrows, and does not lend.
    pub fn join_lending(&self, settings: &LendingSettings) -> Result<()> {
        let (arenas, least_blocks) = (self.arenas.len() as u64, u64::from(LEAST_LOAN_BLOCKS));
        let part_blocks = settings.lent_blocks / arenas;
        let is_enough = settings.lent_blocks == 0 || part_blocks >= least_blocks;
        let lent_blocks = if is_enough { part_blocks } else { 0 };
        let joined = LendingSettings { lent_blocks, ..settings.clone() };
        self.arenas.iter().try_for_each(|arena| arena.join_lending(joined.clone()))?;
        if is_enough {
            return Ok(());
        }
        Err(EngineError::ArenaMemory {
            pool: self.name().to_string(),
            setting: "[lend] capacity",
            arenas: arenas as u8,
            found_bytes: settings.lent_blocks * BLOCK_BYTES as u64,
            needed_bytes: arenas * least_blocks * BLOCK_BYTES as u64,
        })
    }

    /// Restricts borrowing to these hosts. Loans from all other hosts are given back.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn choose_lenders(&self, hosts: &[HostId]) -> Result<()> {
        self.arenas.iter().try_for_each(|arena| arena.choose_lenders(hosts.to_vec()))
    }

    /// Returns what is lent and borrowed.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn lending_status(&self) -> Result<LendingStatus> {
        let mut status = LendingStatus::default();
        for arena in &*self.arenas {
            status.add(arena.lending_status()?);
        }
        Ok(status)
    }

    fn known_home(&self, disk: DiskId) -> Option<&ArenaHandle> {
        let home = self.homes.lock().unwrap_or_else(PoisonError::into_inner).get(&disk).copied();
        home.map(|home| &self.arenas[usize::from(home.0)])
    }

    /// Delivers a message from another host about a disk. Ignores it if the pool does not know the disk. The receipt is
    /// dropped when the message has been handled. Until then the message is queued, and the caller must slow down a
    /// host that sends messages faster than they are handled.
    pub fn host_said(&self, from: HostId, disk: DiskId, message: HostMessage, receipt: Receipt) {
        if let HostMessage::Lend(lent) = &message
            && lent.is_for_lender()
        {
            // The arenas lend in turn.
            let arena = (lent.loan().number % self.arenas.len() as u64) as usize;
            return self.arenas[arena].host_said(from, disk, message, receipt);
        }
        if let Some(arena) = self.known_home(disk) {
            arena.host_said(from, disk, message, receipt);
        }
    }

    /// Returns what remains to be done of a disk's last migration, if the pool has recorded the disk's owner: this
    /// host, or the one that this host released it to.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn recorded_move(&self, disk: DiskId) -> Result<Option<Moved>> {
        self.known_home(disk).map_or(Ok(None), |arena| arena.recorded_move(disk))
    }

    /// Returns the migration state of a disk that can move; `None` for any other.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn migration_status(&self, disk: DiskId) -> Result<Option<MoveStatus>> {
        self.known_home(disk).map_or(Ok(None), |arena| arena.migration_status(disk))
    }

    /// Returns the progress of the disks that are about to move from here.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn departures(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        let arenas = self.arenas.iter().map(ArenaHandle::departures);
        Ok(arenas.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns the state of the disks that have, or should have, a replica on another host, and of the disks whose
    /// replica is on this host.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn replicas(&self) -> Result<Vec<(DiskId, MoveStatus)>> {
        let arenas = self.arenas.iter().map(ArenaHandle::replicas);
        Ok(arenas.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Records that another host has taken a disk over, or is about to: this host no longer serves or cleans the disk.
    /// Returns whether the takeover is recorded, or was known before; otherwise the call must be repeated.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn overtaken(&self, disk: DiskId, by: HostId, epoch: u64) -> Result<bool> {
        self.known_home(disk).map_or(Ok(true), |arena| arena.overtaken(disk, by, epoch))
    }

    /// Tells the pool that another host says that it owns a disk under this epoch. If the disk's guest waits here for
    /// an earlier owner, the pool asks that host instead.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn heard_of_owner(&self, disk: DiskId, host: HostId, epoch: u64) -> Result<()> {
        self.known_home(disk).map_or(Ok(()), |arena| arena.heard_of_owner(disk, host, epoch))
    }

    /// Remembers an epoch under which a disk was owned: the pool neither takes nor passes on a grant of this
    /// epoch or a lower one. Has no effect if the disk neither moves nor waits here.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn has_forgotten(&self, disk: DiskId, epoch: u64) -> Result<()> {
        self.known_home(disk).map_or(Ok(()), |arena| arena.has_forgotten(disk, epoch))
    }

    /// Puts a detached disk that was left clean on stand-by: until it is attached again, it is released to any host
    /// that asks for it. Returns false if the pool does not know the disk, or the disk was not left clean. **No other
    /// host may have taken the disk over by force.**
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn stand_by(&self, disk: DiskId) -> Result<bool> {
        self.known_home(disk).map_or(Ok(false), |arena| arena.stand_by(disk))
    }

    /// Ends the stand-by of a detached disk, because the disk is about to be attached. A release that has begun still
    /// completes.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn withdraw(&self, disk: DiskId) -> Result<()> {
        self.known_home(disk).map_or(Ok(()), |arena| arena.withdraw(disk))
    }

    /// Returns what would be lost if a disk were taken over now.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn takeover_loss(&self, disk: DiskId) -> Result<TakeoverLoss> {
        self.known_home(disk).map_or(Ok(TakeoverLoss::Unknown), |arena| arena.takeover_loss(disk))
    }

    /// Returns what the pool has recorded about a disk.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn recorded_disk(&self, disk: DiskId) -> Result<Option<RecordedDisk>> {
        self.known_home(disk).map_or(Ok(None), |arena| arena.recorded_disk(disk))
    }

    /// Forgets a detached disk. Dirty blocks are destroyed only if the caller says so. `remembered` is the epoch that
    /// the caller has noted elsewhere. Fails if the recorded epoch is higher, since the disk has moved on then.
    ///
    /// # Errors
    /// The pool does not know it, or see [`ManageError`].
    pub fn forget(&self, disk: DiskId, destroy_dirty: bool, remembered: Option<u64>) -> Result<Job> {
        let home = self.homes.lock().unwrap_or_else(PoisonError::into_inner).get(&disk).copied();
        let home = home.ok_or(EngineError::Unknown(disk))?;
        self.arenas[usize::from(home.0)].forget(disk, destroy_dirty, remembered)
    }

    /// Calls all arenas, and combines their jobs into one.
    fn job_of_all(&self, mut call: impl FnMut(&ArenaHandle) -> Result<Job>) -> Result<Job> {
        Ok(Job::all(self.arenas.iter().map(&mut call).collect::<Result<_>>()?))
    }

    /// Sets the latency that a block written to flash must save, and the share of blocks whose clean copies may be
    /// written to flash; see [`haversack_core::Core::set_write_price`] and [`haversack_core::Core::set_fill_share`].
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn set_write_price(&self, price_us: f32, fill_share: f64) -> Result<()> {
        self.arenas.iter().try_for_each(|arena| arena.set_write_price(price_us, fill_share))
    }

    /// Formats a device or file, in the calling thread, and adds it to the pool.
    ///
    /// # Errors
    /// The device cannot be opened or is unfit, or the pool is busy.
    pub fn add_device(&self, path: &Path, formatting: Formatting) -> Result<Job> {
        let mut media = Devices::create(&[path.to_path_buf()], formatting)?;
        let made = media.devices[0].is_new.then(|| path.to_path_buf());
        let added = self.add_opened(&mut media);
        if let (Err(_), Some(path)) = (&added, made) {
            let _ = std::fs::remove_file(path);
        }
        added
    }

    fn add_opened(&self, media: &mut Devices) -> Result<Job> {
        let id = crate::pool::random_id()?;
        let (mut ids, mut free) = (Vec::new(), None::<BTreeSet<DeviceNo>>);
        for arena in &*self.arenas {
            let (id, numbers) = arena.free_device_numbers()?;
            ids.push(id);
            let numbers: BTreeSet<DeviceNo> = numbers.into_iter().collect();
            free = Some(free.map_or_else(|| numbers.clone(), |free| &free & &numbers));
        }
        let number = free.and_then(|free| free.first().copied()).ok_or(ManageError::DeviceTableFull)?;
        let arenas = self.arenas.len() as u8;
        let blank = ids.iter().map(|arena| extents::blank(media, arenas, arena.number));
        let blank: Vec<Devices> = blank.collect::<Result<_>>()?;
        let mut jobs = Vec::new();
        for ((handle, arena), extent) in self.arenas.iter().zip(ids).zip(blank) {
            jobs.push(handle.add_extent(extent, &Member { arena, arenas, number, id })?);
        }
        Ok(Job::all(jobs))
    }

    /// Empties a device and removes it from the pool.
    ///
    /// # Errors
    /// No arena uses it, or see [`ManageError`].
    pub fn remove_device(&self, device: DeviceNo) -> Result<Job> {
        let mut jobs = Vec::new();
        for arena in &*self.arenas {
            match arena.remove_device(device) {
                // A crash while the device was added or removed leaves it in some of the arenas.
                Err(EngineError::Manage(ManageError::NoSuchDevice(_))) => {}
                started => jobs.push(started?),
            }
        }
        if jobs.is_empty() {
            return Err(ManageError::NoSuchDevice(device).into());
        }
        Ok(Job::all(jobs))
    }

    /// Stops cleanly: commits everything staged and finishes requests in flight; new requests are never
    /// answered. Drop the [`crate::OpenPool`] when the job has ended.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn shutdown(&self) -> Result<Job> {
        self.job_of_all(ArenaHandle::shutdown)
    }

    /// Returns the devices that the pool uses and that were not found when it was opened.
    pub fn missing_devices(&self) -> &[MissingDevice] {
        &self.missing
    }

    /// Reads the labels of disks from the cache devices, in the calling thread.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn disk_labels(&self) -> Result<Vec<Label>> {
        let labels: Vec<Vec<Label>> =
            self.arenas.iter().map(ArenaHandle::disk_labels).collect::<Result<_>>()?;
        Ok(labels.concat())
    }

    /// Exchanges the records of disks for empty buffers, without copying. Each buffer returns with what was
    /// recorded since the last call; it is empty if the disk is not monitored or was detached.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn take_records(&self, buffers: Vec<(DiskHandle, Records)>) -> Result<Vec<(DiskHandle, Records)>> {
        let mut by_arena: HashMap<ArenaNo, Vec<(DiskHandle, Records)>> = HashMap::new();
        for (disk, records) in buffers {
            by_arena.entry(disk.arena()).or_default().push((disk, records));
        }
        let mut taken = Vec::new();
        for (_, buffers) in by_arena {
            let arena = self.arena(buffers[0].0);
            taken.extend(arena.take_records(buffers)?);
        }
        Ok(taken)
    }

    /// Returns all current counters, shares and latencies.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = self.arenas[0].snapshot()?;
        for arena in &self.arenas[1..] {
            snapshot.add(arena.snapshot()?);
        }
        Ok(snapshot)
    }

    /// Subscribes to events from now on: failed devices, corruption, origins lost and back. A loss of an arena that is
    /// not on record yet is reported again.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn events(&self) -> Result<mpsc::Receiver<EngineEvent>> {
        let (sender, receiver) = mpsc::channel();
        self.arenas.iter().try_for_each(|arena| arena.send_events(sender.clone()))?;
        Ok(receiver)
    }

    /// Reports that the caller has durably recorded that the contents of an arena are void (see
    /// [`EngineEvent::PoolLost`]).
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn loss_recorded(&self, arena: ArenaNo) -> Result<()> {
        self.arenas.get(usize::from(arena.0)).map_or(Ok(()), ArenaHandle::loss_recorded)
    }
}
