//! Management jobs and what they guarantee once they are done.

use haversack_core::{Event, JobError, JobId};
use haversack_model::{DeviceNo, SECTOR_BYTES, WriteMode};

use crate::pattern;
use crate::run::tell;
use crate::world::{Flow, Life, Stop, What, World, violation};

/// A management job in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// Attaching a disk.
    Attach(usize),
    /// Detaching a disk, perhaps accepting that something is lost.
    Detach(usize, bool),
    /// Giving a disk up; `clean` when nothing can be dirty.
    Release(usize, bool),
    /// Forgetting a detached disk.
    Forget(usize),
    /// Freeing a loan.
    EndLoan(u32),
    /// Changing a disk's mode.
    Mode(usize, WriteMode),
    /// Changing a disk's size from the first to the second number of sectors.
    Resize(usize, u64, u64),
    /// Cleaning a disk on which nothing was in flight, at that oracle time.
    Clean(usize, u64),
    /// Adding a device.
    AddDevice(usize, DeviceNo),
    /// Removing a device.
    RemoveDevice(usize),
    /// The clean stop.
    Shutdown,
}

impl Job {
    /// Returns the disk that the job keeps busy.
    pub fn disk(&self) -> Option<usize> {
        match *self {
            Job::Attach(disk)
            | Job::Detach(disk, _)
            | Job::Release(disk, _)
            | Job::Forget(disk)
            | Job::Mode(disk, _)
            | Job::Resize(disk, ..)
            | Job::Clean(disk, _) => Some(disk),
            Job::EndLoan(_) | Job::AddDevice(..) | Job::RemoveDevice(_) | Job::Shutdown => None,
        }
    }
}

impl World {
    pub(crate) fn start(&mut self, id: JobId, job: Job) -> Flow<JobId> {
        if let Some(disk) = job.disk() {
            self.disks[disk].busy = true;
        }
        tell(|| format!("{:>10} {id:?} is {job:?}", self.now));
        self.jobs.push((id, job));
        self.pump()?;
        Ok(id)
    }

    pub(crate) fn finish(&mut self, id: JobId) -> Flow {
        self.wait("a management job", |world| world.jobs.iter().all(|(other, _)| *other != id))
    }

    pub(crate) fn requests_of(&self, disk: usize) -> usize {
        self.requests.iter().flatten().filter(|r| r.disk == disk).count()
    }

    pub(crate) fn event(&mut self, event: Event) -> Flow {
        match event {
            Event::JobDone { job, result } => {
                let Some(at) = self.jobs.iter().position(|(id, _)| *id == job) else {
                    return violation!("{job:?} is done but was never started, or was done before");
                };
                let (_, job) = self.jobs.swap_remove(at);
                if let Some(disk) = job.disk() {
                    self.disks[disk].busy = false;
                }
                self.counts.jobs += 1;
                self.job_done(job, result)
            }
            Event::DeviceFailed { device, lost_blocks } => {
                for member in &mut self.devices {
                    if member.no == Some(device) {
                        if !self.plan.faults.of_devices() {
                            return violation!(
                                "{device:?} was declared failed although nothing was wrong with it"
                            );
                        }
                        member.no = None;
                    }
                }
                self.note_lost();
                if lost_blocks > 0 && !self.unprotected_fault {
                    return violation!(
                        "{device:?} took {lost_blocks} dirty blocks with it although there was a second copy"
                    );
                }
                Ok(())
            }
            Event::PoolLost => {
                self.contents_void = true;
                let now = self.now;
                self.core().loss_recorded(now);
                Ok(())
            }
            Event::Corruption { disk, sector, device, offset_bytes, lost } => {
                if lost && !self.unprotected_fault {
                    return violation!(
                        "the block at byte {offset_bytes} of {device:?}, {disk:?}, is lost although nothing unprotected was damaged"
                    );
                }
                if !self.plan.faults.of_devices() && !self.unprotected_fault {
                    return violation!(
                        "the block at byte {offset_bytes} of {device:?}, {disk:?}, is reported corrupt although nothing was damaged"
                    );
                }
                if let Some(place) = self.disk_of.get(&disk).filter(|_| lost) {
                    let since = self.oracle.now();
                    self.disks[*place].damaged.push((sector.0, since));
                }
                Ok(())
            }
            Event::CleanFailed { .. } => Ok(()),
        }
    }

    fn job_done(&mut self, job: Job, result: Result<(), JobError>) -> Flow {
        if let Err(error) = result {
            let fair = match error {
                JobError::Origin => {
                    job.disk().is_some_and(|d| self.disks[d].last_error > 0) || job == Job::Shutdown
                }
                JobError::Cancelled => {
                    matches!(job, Job::Clean(..) | Job::Detach(..) | Job::Mode(..) | Job::RemoveDevice(_))
                }
                JobError::DataLost if matches!(job, Job::Detach(_, true)) => false,
                JobError::NoDevice | JobError::DeviceRead | JobError::DataLost => self.unprotected_fault,
            };
            if !fair {
                return violation!("{job:?} failed without cause: {error}");
            }
        }
        let done = result.is_ok();
        match job {
            Job::Attach(disk) => {
                if let Err(error) = result {
                    if self.unprotected_fault {
                        return Err(Stop::End);
                    }
                    return violation!("attaching disk {disk} failed: {error}");
                }
                let (may_have_lost, now) = (self.unprotected_fault, self.oracle.now());
                let d = &mut self.disks[disk];
                if d.handed_over || d.origin_forbidden || may_have_lost {
                    // Data that another host, or a lost cache, left in the origin's volatile cache.
                    d.volatile_since = now;
                }
                d.life = Life::Attached;
                d.origin_forbidden = false;
                d.handed_over = false;
                d.sectors = d.config.sectors;
                d.deferring = d.config.mode.defers_origin();
                self.fit_origin(disk);
                Ok(())
            }
            Job::Detach(disk, accepted) if done => {
                let released = self.disks[disk].origin_forbidden;
                self.disks[disk].life = if released { Life::Released } else { Life::Detached };
                self.let_go(disk)?;
                if accepted {
                    self.give_up(disk)?;
                }
                if !released && (accepted || self.trusts_origins()) {
                    self.check_origin(disk, "after a detach")?;
                    self.disks[disk].deferred.fill(false);
                }
                Ok(())
            }
            Job::Detach(disk, _) => {
                let released = self.disks[disk].origin_forbidden;
                self.disks[disk].life = if released { Life::Released } else { Life::Attached };
                Ok(())
            }
            Job::Release(disk, clean) => {
                if !done {
                    return Ok(());
                }
                self.disks[disk].life = Life::Released;
                self.fail_to_attach_under_old_epoch(disk)?;
                self.let_go(disk)?;
                if clean && self.trusts_origins() {
                    self.check_origin(disk, "after a clean release")?;
                }
                Ok(())
            }
            Job::Forget(disk) => {
                if done {
                    self.disk_of.retain(|_, d| *d != disk);
                    self.disks[disk].no = None;
                    self.disks[disk].deferred.fill(false);
                }
                Ok(())
            }
            Job::EndLoan(number) => {
                self.loans.iter_mut().for_each(|loans| loans.freed(number));
                self.counts.freed_loans += 1;
                Ok(())
            }
            Job::Mode(disk, mode) => {
                if done {
                    self.disks[disk].deferring = mode.defers_origin();
                }
                Ok(())
            }
            Job::Resize(disk, from, to) => {
                self.disks[disk].config.sectors = if done { to } else { from };
                self.disks[disk].sectors = self.disks[disk].config.sectors;
                self.fit_origin(disk);
                Ok(())
            }
            Job::Clean(disk, since) => {
                let quiet = self.oracle.quiet_since(disk, since);
                if done && quiet && self.trusts_origins() && !self.disks[disk].origin_forbidden {
                    self.check_origin(disk, "after a clean")?;
                }
                Ok(())
            }
            Job::AddDevice(device, no) => {
                if done && !self.devices[device].store.gone {
                    self.devices[device].no = Some(no);
                }
                Ok(())
            }
            Job::RemoveDevice(device) => {
                if done {
                    self.devices[device].no = None;
                    self.devices[device].plugged = false;
                }
                Ok(())
            }
            Job::Shutdown => Ok(()),
        }
    }

    /// Adapts the origin to the disk's size once the core knows it.
    pub(crate) fn fit_origin(&mut self, disk: usize) {
        let d = &mut self.disks[disk];
        let size = d.origin.bytes() / SECTOR_BYTES as u64;
        if size != d.config.sectors {
            d.origin.resize(d.config.sectors);
            self.oracle.resize(disk, d.config.sectors);
            if let Some(sharing) = &mut self.sharing {
                sharing.note_size(disk, d.config.sectors);
            }
        }
        self.recent.retain(|(at, sector, n)| *at != disk || sector + u64::from(*n) <= d.config.sectors);
        // Writes beyond the new end may have made the last block of the disk dirty, and the block may be lost.
        let length = d.config.sectors.div_ceil(8) as usize;
        if d.deferred.get(length) == Some(&true) {
            d.deferred[length - 1] = true;
        }
        d.deferred.resize(length, false);
    }

    /// Forbids the core to write the origin from now on.
    fn let_go(&mut self, disk: usize) -> Flow {
        self.disks[disk].origin_forbidden = true;
        let writes = self.flights.iter().flatten().filter(|flight| match flight.what {
            What::OriginWrite { disk: d, .. } | What::OriginZero { disk: d, .. } => d == disk,
            _ => false,
        });
        match writes.count() {
            0 => Ok(()),
            n => violation!("{n} origin writes of disk {disk} are in flight after it was let go"),
        }
    }

    /// Returns whether the origin of a clean disk must have all of its data. If the core can name lost data, a job
    /// fails rather than leave lost data behind.
    fn trusts_origins(&self) -> bool {
        !self.unprotected_fault || self.plan.faults.name_what_is_lost()
    }

    fn check_origin(&mut self, disk: usize, when: &str) -> Flow {
        let size = self.disks[disk].config.sectors;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (d, sector, n) in &self.recent {
            if *d == disk {
                ranges.push((*sector, u64::from(*n)));
            }
        }
        ranges.extend(self.oracle.open_sectors(disk).iter().take(2000).map(|at| (u64::from(*at), 1)));
        for _ in 0..16 {
            let at = self.rng.below(size);
            ranges.push((at, 8.min(size - at)));
        }
        let mut bytes = [0; SECTOR_BYTES];
        for (first, n) in ranges {
            for at in first..(first + n).min(size) {
                self.disks[disk].origin.read(at, &mut bytes);
                let content = pattern::recognise(&bytes);
                if !self.oracle.is_current(disk, at, content) {
                    return violation!(
                        "{when} the origin of disk {disk} holds {content} at sector {at}, which is not current"
                    );
                }
            }
        }
        Ok(())
    }
}
