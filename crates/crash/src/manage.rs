//! Management calls.

use haversack_core::pool::{self, Member};
use haversack_core::{Damage, JobId, ManageError, Op};
use haversack_model::{SECTOR_BYTES, SECTORS_PER_BLOCK, WriteMode};

use crate::created::{self, Created, Shape};
use crate::device::Payload;
use crate::job::Job;
use crate::media::FakeMedia;
use crate::oracle::Tick;
use crate::pattern;
use crate::world::{Device, Flow, Life, Stop, World, device_id, device_store, violation};
use haversack_model::random::Random;

impl World {
    /// A released disk may be written by another host, so it is taken back only under a higher epoch.
    pub(crate) fn fail_to_attach_under_old_epoch(&mut self, disk: usize) -> Flow {
        let (now, config, epoch) = (self.now, self.disks[disk].config.clone(), self.disks[disk].epoch);
        match self.core().attach(now, &config, epoch, false) {
            Ok(_) => violation!("disk {disk} was released and attached again with the same epoch {epoch}"),
            Err(_) => Ok(()),
        }
    }

    /// Attaches a disk with its epoch and waits for it.
    pub fn attach(&mut self, disk: usize) -> Flow {
        let now = self.now;
        for _ in 0..8 {
            let d = &self.disks[disk];
            let (config, epoch, id) = (d.config.clone(), d.epoch, d.config.id);
            let is_outdated = d.is_outdated;
            let attach = |world: &mut World, accept_loss| match is_outdated {
                true => world.core().attach_outdated(now, &config, epoch, accept_loss),
                false => world.core().attach(now, &config, epoch, accept_loss),
            };
            let tried = match attach(self, false) {
                Err(error @ (ManageError::Lost(_) | ManageError::Damaged(_))) if self.unprotected_fault => {
                    self.forgive(disk, matches!(error, ManageError::Lost(_)));
                    attach(self, true)
                }
                other => other,
            };
            match tried {
                Ok((no, job)) => {
                    self.disk_of.retain(|_, d| *d != disk);
                    self.disk_of.insert(no, disk);
                    self.disks[disk].no = Some(no);
                    self.disks[disk].life = Life::Attaching;
                    let job = self.start(job, Job::Attach(disk))?;
                    self.finish(job)?;
                    self.disks[disk].is_outdated = false;
                    self.note_still_lost(disk);
                    return Ok(());
                }
                Err(ManageError::Size { recorded_sectors, .. }) => {
                    self.disks[disk].config.sectors = recorded_sectors;
                }
                Err(ManageError::Attached(_)) if self.disks[disk].handed_over => {
                    self.detach(disk)?;
                }
                Err(ManageError::Dirty { .. }) if self.disks[disk].handed_over => {
                    let Some(no) = self.disks[disk].no else {
                        return violation!("disk {disk} has dirty blocks but the pool does not know it");
                    };
                    match self.core().forget(now, no, Some(id)) {
                        Ok(job) => {
                            let job = self.start(job, Job::Forget(disk))?;
                            self.finish(job)?;
                        }
                        Err(ManageError::Attached(_)) => self.detach(disk)?,
                        Err(error) => {
                            return violation!("forgetting disk {disk} was refused: {error}");
                        }
                    }
                }
                Err(error) => {
                    return violation!("attaching disk {disk} with epoch {epoch} was refused: {error}");
                }
            }
        }
        violation!("disk {disk} cannot be attached again")
    }

    /// Makes the operator accept the loss of dirty blocks or, if the lost ones are `known`, of only those. Data that
    /// was already cleaned is not lost, unless the pages that record it are damaged.
    fn forgive(&mut self, disk: usize, known: bool) {
        self.note_lost();
        let trusted = !(self.plan.faults.rot || self.plan.faults.page_rot);
        let mut bytes = [0; SECTOR_BYTES];
        let d = &self.disks[disk];
        // A resize may have been in progress: the origin has the larger size.
        let size = d.origin.bytes() / SECTOR_BYTES as u64;
        for at in 0..size.min(8 * d.deferred.len() as u64) {
            if if known { d.lost.contains(&at) } else { d.may_be_dirty(at, 1) } {
                d.origin.read_durable(at, &mut bytes);
                self.oracle.forgive(disk, at, trusted.then(|| pattern::recognise(&bytes)).as_slice());
            }
        }
        let d = &mut self.disks[disk];
        d.accepted.extend(d.lost.drain());
        d.damaged.clear();
    }

    /// Records which sectors stay lost after an attach with an accepted loss: the rest of blocks that were partly
    /// written since. The core knows these blocks from the entries on flash, and refuses reads of their lost sectors.
    fn note_still_lost(&mut self, disk: usize) {
        let d = &mut self.disks[disk];
        let (Some(core), Some(no)) = (&self.core, d.no) else { return };
        for (first, sectors) in core.lost_runs(no) {
            d.lost.extend((first.0..first.0 + sectors).filter(|at| d.accepted.contains(at)));
        }
        d.accepted.clear();
    }

    /// Makes the operator accept a loss with a detach: the core names what it gives up, and from then on reads return
    /// the origin's data there.
    pub(crate) fn give_up(&mut self, disk: usize) -> Flow {
        let Some(no) = self.disks[disk].no else { return Ok(()) };
        let mut bytes = [0; SECTOR_BYTES];
        for (first, sectors) in self.core().given_up(no).to_vec() {
            for at in first.0..first.0 + sectors {
                let d = &self.disks[disk];
                let known = self.plan.faults.name_what_is_lost();
                if !if known { d.lost.contains(&at) } else { d.may_be_dirty(at, 1) } {
                    return violation!("sector {at} of disk {disk} was given up but cannot be lost");
                }
                d.origin.read(at, &mut bytes);
                self.oracle.adopt(disk, at, pattern::recognise(&bytes)).map_err(Stop::Violation)?;
            }
        }
        self.disks[disk].lost.clear();
        Ok(())
    }

    /// Does the same for detaches that a crash interrupts: what they have dropped is lost, whatever the pool record
    /// says.
    pub(crate) fn give_up_unfinished(&mut self) -> Flow {
        let unfinished: Vec<usize> = self
            .jobs
            .iter()
            .filter_map(|(_, job)| if let Job::Detach(disk, true) = job { Some(*disk) } else { None })
            .collect();
        unfinished.into_iter().try_for_each(|disk| self.give_up(disk))
    }

    /// Records which sectors the core reports as lost, because the next core cannot know. Whole blocks are noted: a
    /// sector that was written since is lost too if a power cut takes that unflushed write. Also noted are blocks whose
    /// damaged copy was dropped because an intact one was staged, and everything unflushed of a disk whose record says
    /// that something is lost.
    pub(crate) fn note_lost(&mut self) {
        let Some(core) = &self.core else { return };
        for (index, disk) in self.disks.iter_mut().enumerate() {
            let Some(no) = disk.no else { continue };
            if core.disk_info(no).is_some_and(|info| info.damage == Damage::Lost) {
                let unflushed = (0..disk.config.sectors).filter(|at| self.oracle.is_undecided(index, *at));
                let unflushed: Vec<u64> = unflushed.flat_map(|at| disk.whole_blocks(at..at + 1)).collect();
                disk.lost.extend(unflushed);
            }
            let damaged = disk.damaged.iter().map(|(sector, _)| (*sector, 1));
            let lost = core.lost_runs(no).into_iter().chain(core.given_up(no).iter().copied());
            let lost = lost.map(|(first, sectors)| (first.0, sectors)).chain(damaged);
            let lost: Vec<u64> =
                lost.flat_map(|(first, sectors)| disk.whole_blocks(first..first + sectors)).collect();
            disk.lost.extend(lost);
        }
    }

    /// Forgets damaged blocks that a flush which began at `start` has made durable again: nothing of them is lost
    /// now, and no version of them is undecided.
    pub(crate) fn forget_repaired(&mut self, disk: usize, start: Tick) {
        let d = &self.disks[disk];
        let (Some(core), Some(no), false) = (&self.core, d.no, d.damaged.is_empty()) else { return };
        let shift = (SECTORS_PER_BLOCK - u64::from(d.config.phase)) % SECTORS_PER_BLOCK;
        let block = |sector: u64| (sector + shift) / SECTORS_PER_BLOCK;
        let lost = core.lost_runs(no);
        let is_lost = |sector: u64| {
            lost.iter().any(|(first, n)| (block(first.0)..=block(first.0 + n - 1)).contains(&block(sector)))
        };
        let oracle = &self.oracle;
        self.disks[disk].damaged.retain(|(sector, since)| {
            *since >= start || is_lost(*sector) || oracle.is_undecided(disk, *sector)
        });
    }

    /// Detaches a disk and waits for it.
    pub fn detach(&mut self, disk: usize) -> Flow {
        if let Some(job) = self.begin_detach(disk)? {
            self.finish(job)?;
        }
        Ok(())
    }

    pub(crate) fn begin_detach(&mut self, disk: usize) -> Flow<Option<JobId>> {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(None);
        };
        let accepts = self.unprotected_fault && self.rng.one_in(2);
        let started = match accepts {
            true => self.core().detach_accepting_loss(now, no),
            false => self.core().detach(now, no),
        };
        match started {
            Ok(job) => {
                self.disks[disk].life = Life::Leaving;
                self.start(job, Job::Detach(disk, accepts)).map(Some)
            }
            Err(ManageError::Busy | ManageError::Stopping) => {
                self.advance()?;
                Ok(None)
            }
            Err(error) => violation!("detaching disk {disk} was refused: {error}"),
        }
    }

    /// Changes the mode of a disk.
    pub fn set_mode(&mut self, disk: usize, mode: WriteMode) -> Flow<Option<JobId>> {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(None);
        };
        match self.core().set_mode(now, no, mode) {
            Ok(job) => {
                let d = &mut self.disks[disk];
                d.config.mode = mode;
                d.mode_changes += 1;
                d.deferring |= mode.defers_origin();
                // Waiting requests may follow the new mode.
                let waiting = self.requests.iter().flatten().filter(|r| r.disk == disk && r.op != Op::Read);
                for request in waiting {
                    d.note_write(request.sector, u64::from(request.sectors));
                }
                self.start(job, Job::Mode(disk, mode)).map(Some)
            }
            Err(ManageError::Busy | ManageError::Stopping) => Ok(None),
            Err(error) => violation!("setting mode {mode} of disk {disk} was refused: {error}"),
        }
    }

    /// Starts to write back all dirty blocks of a disk.
    pub fn clean(&mut self, disk: usize) -> Flow<Option<JobId>> {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(None);
        };
        let since = self.oracle.now();
        match self.core().clean(now, no) {
            Ok(job) => self.start(job, Job::Clean(disk, since)).map(Some),
            Err(ManageError::Busy | ManageError::Stopping) => Ok(None),
            Err(error) => violation!("cleaning disk {disk} was refused: {error}"),
        }
    }

    /// Starts to release a disk.
    pub fn release(&mut self, disk: usize, clean: bool) -> Flow<Option<JobId>> {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(None);
        };
        match self.core().release(now, no) {
            Ok(job) => {
                let d = &mut self.disks[disk];
                d.life = Life::Releasing;
                d.origin_forbidden = true;
                self.start(job, Job::Release(disk, clean)).map(Some)
            }
            Err(ManageError::Busy | ManageError::Stopping) => Ok(None),
            Err(error) => violation!("releasing disk {disk} was refused: {error}"),
        }
    }

    /// Hands the disk to another host, which writes some sectors and returns the disk under a higher epoch. If the disk
    /// was only detached, the epoch may stay the same; this host then knows that others have written to the origin.
    pub fn regain(&mut self, disk: usize) -> Flow {
        self.wait("requests of a released disk", |world| world.requests_of(disk) == 0)?;
        self.disks[disk].origin.settle();
        let size = self.disks[disk].config.sectors;
        if self.disks[disk].life == Life::Released {
            let mut bytes = [0; SECTOR_BYTES];
            for at in 0..size {
                self.disks[disk].origin.read(at, &mut bytes);
                let content = pattern::recognise(&bytes);
                self.oracle.adopt(disk, at, content).map_err(Stop::Violation)?;
            }
        }
        let writes = self.rng.below(6);
        for _ in 0..if self.is_base(disk) { 0 } else { writes } {
            let sectors = self.rng.skewed(64).min(size) as u32;
            let first = self.rng.below(size - u64::from(sectors) + 1);
            let version = self.oracle.foreign_write(disk, first, sectors);
            let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
            for (i, one) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                pattern::fill(disk as u16, first + i as u64, version, one);
            }
            self.disks[disk].origin.write_durable(first, &Payload::Bytes(bytes));
            self.recent.push((disk, first, sectors));
        }
        self.disks[disk].deferred.fill(false);
        self.disks[disk].is_outdated = self.disks[disk].life == Life::Detached && writes % 2 == 1;
        if !self.disks[disk].is_outdated {
            self.disks[disk].epoch += 1;
        }
        self.disks[disk].handed_over = true;
        self.attach(disk)
    }

    /// Adds a new cache device.
    pub fn add_device(&mut self) -> Flow {
        let Some(no) = self.core().next_device_no() else {
            return Ok(());
        };
        let place = self.devices.len();
        let segments = self.rng.range(2, 6) as u32;
        self.devices.push(Device {
            store: device_store(segments),
            id: device_id(place),
            no: None,
            plugged: true,
        });
        let (arena, unit, now) = (self.arena(), self.plan.tear_unit, self.now);
        let (prepared, remains) = (self.plan.prepared, self.plan.remains);
        let devices =
            created::devices(Shape::Device { place, number: no, segments, prepared, remains }, || {
                let device = &mut self.devices[place];
                remains.leave(&mut device.store, segments, arena, device.id);
                let mut media =
                    FakeMedia::new(&mut self.devices, vec![place], None, Random::scrambled(0), unit);
                let member = Member { arena, arenas: 1, number: no, id: device_id(place) };
                let joins = Some(pool::prepare_device(&mut media, 0, &member, u32::MAX, prepared)?);
                Ok(vec![Created { store: self.devices[place].store.clone(), joins }])
            });
        let prepared = match devices {
            Ok(mut devices) => devices.remove(0),
            Err(error) => return violation!("preparing a device failed: {error}"),
        };
        self.devices[place].store = prepared.store;
        self.devices[place].no = Some(no);
        match self.core().add_device(now, prepared.joins.expect("it was formatted to join")) {
            Ok(job) => self.start(job, Job::AddDevice(place, no)).map(|_| ()),
            Err(ManageError::Busy | ManageError::Stopping) => {
                self.devices[place].no = None;
                self.devices[place].plugged = false;
                Ok(())
            }
            Err(error) => violation!("adding a device was refused: {error}"),
        }
    }

    /// Starts to remove a cache device.
    pub fn remove_device(&mut self) -> Flow {
        let keep_healthy = self.plan.faults.of_devices() && self.losses.is_none();
        let members: Vec<usize> = (0..self.devices.len())
            .filter(|i| self.devices[*i].no.is_some() && (*i == 0 || !keep_healthy))
            .collect();
        // The pool must not depend on a device that is already gone.
        let unnoticed = self.losses.is_some() && members.iter().any(|i| self.devices[*i].store.gone);
        if members.is_empty() || unnoticed {
            return Ok(());
        }
        let device = self.rng.pick(&members);
        let (Some(no), now) = (self.devices[device].no, self.now) else {
            return Ok(());
        };
        let left = self.devices.iter().filter(|d| d.no.is_some() && d.no != Some(no)).count();
        match self.core().remove_device(now, no) {
            Ok(job) => {
                // From now on dirty blocks have one copy, and old damage may be found.
                self.unprotected_fault |= left == 1 && keep_healthy;
                self.start(job, Job::RemoveDevice(device)).map(|_| ())
            }
            Err(
                ManageError::Busy
                | ManageError::Stopping
                | ManageError::LastDevice(_)
                | ManageError::NoSuchDevice(_),
            ) => Ok(()),
            Err(error) => violation!("removing device {device} was refused: {error}"),
        }
    }

    /// Forgets a disk if it is detached and clean.
    pub fn forget(&mut self, disk: usize) -> Flow {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(());
        };
        match self.core().forget(now, no, None) {
            Ok(job) => {
                let job = self.start(job, Job::Forget(disk))?;
                self.finish(job)
            }
            Err(ManageError::Busy | ManageError::Stopping) => Ok(()),
            Err(ManageError::Dirty { .. } | ManageError::Lost(_) | ManageError::Damaged(_))
                if self.unprotected_fault =>
            {
                Ok(())
            }
            Err(error) => violation!("forgetting disk {disk} was refused: {error}"),
        }
    }

    /// Starts to change the size of an idle disk.
    pub fn resize(&mut self, disk: usize, sectors: u64) -> Flow {
        let (now, Some(no)) = (self.now, self.disks[disk].no) else {
            return Ok(());
        };
        if self.requests_of(disk) > 0 || sectors == self.disks[disk].sectors {
            return Ok(());
        }
        let from = self.disks[disk].config.sectors;
        if sectors > from {
            self.disks[disk].origin.resize(sectors);
            self.oracle.resize(disk, sectors);
        }
        match self.core().resize(now, no, sectors) {
            Ok(job) => {
                let d = &mut self.disks[disk];
                d.config.sectors = sectors;
                d.sectors = d.sectors.min(sectors);
                self.start(job, Job::Resize(disk, from, sectors))?;
                self.share_some();
                Ok(())
            }
            Err(ManageError::Busy | ManageError::Stopping) => {
                self.fit_origin(disk);
                Ok(())
            }
            Err(error) => {
                violation!("resizing disk {disk} from {from} to {sectors} sectors was refused: {error}")
            }
        }
    }

    /// Commits everything and marks the stop clean.
    pub fn shutdown(&mut self) -> Flow {
        self.stopping = true;
        let now = self.now;
        let job = self.core().shutdown(now);
        let job = self.start(job, Job::Shutdown)?;
        self.finish(job)
    }
}
