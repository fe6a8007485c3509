//! Random work: what guests and operators do between two crashes.

use haversack_core::{AdmissionConfig, CleanerConfig, Op, Persistence};
use haversack_model::WriteMode;

use crate::plan;
use crate::verify::Extent;
use crate::world::{CrashKind, Flow, Life, Stop, World, violation};

impl World {
    /// Runs a long run: work, crash, recovery and verification, `points` times, then a clean end.
    ///
    /// # Errors
    /// A violation, or the loss of the last device.
    pub fn long_run(&mut self, points: u64) -> Flow {
        let first = self.first_open();
        self.survive(first)?;
        for _ in 0..points {
            let work = self.work_until_crash();
            self.survive(work)?;
        }
        self.trigger = None;
        self.finish_run()
    }

    /// Recovers if the result is a crash; further crashes in the meantime are handled as well.
    fn survive(&mut self, mut result: Flow) -> Flow {
        loop {
            match result {
                Err(Stop::Crash(kind)) => {
                    self.crash_and_recover(kind)?;
                    self.counts.points += 1;
                    if self.rng.one_in(6) {
                        let (ios, next) = (self.rng.below(60), self.random_kind());
                        self.crash_after(ios, next);
                    }
                    result = self.after_recovery();
                }
                other => return other,
            }
        }
    }

    fn after_recovery(&mut self) -> Flow {
        let attached = (0..self.disks.len()).filter(|d| self.disks[*d].life != Life::Attached);
        for disk in attached.collect::<Vec<_>>() {
            match self.disks[disk].life {
                Life::Detached => self.attach(disk)?,
                Life::Released if self.rng.one_in(2) => self.regain(disk)?,
                _ => {}
            }
        }
        // Some origins stay away.
        if !self.rng.one_in(4) {
            self.heal();
        }
        self.share_some();
        self.lose_again()?;
        let extent = match self.rng.below(20) {
            0 => Extent::Everything,
            1..8 => Extent::Touched,
            _ => Extent::Sample,
        };
        self.verify(extent)?;
        if self.rng.one_in(8) {
            self.clean_all()?;
        }
        self.trigger = None;
        self.may_restart(2)
    }

    fn random_kind(&mut self) -> CrashKind {
        self.rng.pick(&[CrashKind::Kill, CrashKind::Power])
    }

    fn work_until_crash(&mut self) -> Flow {
        let kind = self.random_kind();
        let most = self.rng.pick(&[10, 60, 200, 600]);
        let ios = self.rng.below(most);
        self.crash_after(ios, kind);
        let steps = self.rng.pick(&[20, 100, 400, 1000]);
        let busy = self.rng.pick(&[30, 60, 90]);
        for step in 0..steps {
            self.look_at_order(step)?;
            if self.rng.below(1000) < self.plan.manage_permille {
                self.manage_something()?;
            }
            if self.rng.below(1000) < 4 {
                self.fault_something()?;
            }
            self.damage_something()?;
            self.share_something();
            self.lend_something()?;
            let asks = self.pending < self.plan.depth && self.rng.percent(busy);
            if asks || !self.advance()? {
                self.random_request()?;
            }
            if self.rng.one_in(2000) {
                self.idle()?;
            }
        }
        if self.rng.one_in(4) {
            self.heal();
            self.drain()?;
        }
        if self.rng.one_in(6) {
            self.idle()?;
        }
        Err(Stop::Crash(kind))
    }

    /// Advances the time by some seconds, for the cleaner and other timers.
    fn idle(&mut self) -> Flow {
        let until = self.now + self.rng.pick(&[20_000, 1_000_000, 6_000_000]);
        for _ in 0..400 {
            if self.now >= until || !self.advance()? {
                break;
            }
        }
        Ok(())
    }

    fn random_range(&mut self, disk: usize) -> (u64, u32) {
        let size = self.disks[disk].sectors;
        let longest = match self.rng.below(200) {
            0 => 2048,
            1..20 => 128,
            20..90 => 16,
            _ => 8,
        };
        let mut sectors = self.rng.skewed(longest).min(size);
        let first = match self.rng.below(10) {
            0..4 => {
                let hot = (size / 8).max(16).min(size);
                self.rng.below(hot)
            }
            4..6 => self.disks[disk].cursor,
            6..8 => {
                sectors = sectors.next_multiple_of(8);
                (self.rng.below(size) & !7) + u64::from(self.disks[disk].config.phase)
            }
            _ => self.rng.below(size),
        };
        sectors = sectors.min(size);
        let first = first.min(size - sectors);
        self.disks[disk].cursor = (first + sectors) % size;
        (first, sectors as u32)
    }

    pub(crate) fn random_request(&mut self) -> Flow {
        let disk = self.rng.below(self.disks.len() as u64) as usize;
        if self.disks[disk].life != Life::Attached && !self.rng.one_in(50) {
            return Ok(());
        }
        let op = match self.rng.below(100) {
            0..38 => Op::Read,
            38..78 => Op::Write { fua: false },
            78..82 => Op::Write { fua: true },
            82..88 => Op::Flush,
            88..94 => Op::Discard,
            _ => Op::WriteZeroes,
        };
        let op = if op != Op::Flush && self.is_base(disk) { Op::Read } else { op };
        let (sector, sectors) = if op == Op::Flush { (0, 0) } else { self.random_range(disk) };
        if matches!(self.trigger, Some((_, CrashKind::Kill))) && self.rng.one_in(300) {
            self.submit_and_die(disk, op, sector, sectors)?;
        } else {
            self.submit(disk, op, sector, sectors)?;
        }
        Ok(())
    }

    fn fault_something(&mut self) -> Flow {
        let faults = self.plan.faults;
        let disk = self.rng.below(self.disks.len() as u64) as usize;
        let now = self.now;
        match self.rng.below(6) {
            0 | 1 if faults.outages => {
                self.disks[disk].outage_until =
                    now + self.rng.pick(&[500, 5_000, 50_000, 2_000_000, 30_000_000]);
                self.counts.faults += 1;
            }
            2 => self.disks[disk].slow_until = now + 20_000,
            3 if faults.rot || faults.page_rot => self.rot(),
            4 if self.losses.is_some() => self.lose_device()?,
            4 if faults.loss && self.rng.one_in(3) => self.lose_device()?,
            5 if self.losses.is_some() => self.change_devices()?,
            _ => {}
        }
        Ok(())
    }

    fn manage_something(&mut self) -> Flow {
        let disk = self.rng.below(self.disks.len() as u64) as usize;
        let now = self.now;
        if self.disks[disk].busy {
            if self.rng.one_in(4)
                && let Some((job, _)) = self.jobs.iter().find(|(_, j)| j.disk() == Some(disk)).copied()
            {
                if let Some(progress) = self.core().progress(job)
                    && progress.done_blocks > progress.total_blocks
                {
                    return violation!(
                        "{job:?} is {} of {} blocks done",
                        progress.done_blocks,
                        progress.total_blocks
                    );
                }
                self.core().cancel(now, job);
                self.pump()?;
            }
            return Ok(());
        }
        match self.disks[disk].life {
            Life::Attached => {}
            Life::Detached => {
                return match self.rng.below(4) {
                    0 => self.regain(disk),
                    1 => {
                        self.forget(disk)?;
                        // Another disk may get its number.
                        if self.rng.one_in(2) { Ok(()) } else { self.attach(disk) }
                    }
                    _ => self.attach(disk),
                };
            }
            Life::Released => return self.regain(disk),
            _ => return Ok(()),
        }
        let Some(no) = self.disks[disk].no else {
            return Ok(());
        };
        match self.rng.below(24) {
            0..5 => {
                let mode = self.rng.pick(&WriteMode::ALL);
                if self.disks[disk].config.persistence != Persistence::None || !mode.defers_origin() {
                    self.set_mode(disk, mode)?;
                }
            }
            5 | 6 => {
                let target = plan::target(&mut self.rng, 8);
                let set = self.core().set_target(now, no, target);
                self.accepted(set, "set_target")?;
                self.disks[disk].config.target = target;
            }
            7 => {
                let drawn = plan::admission(&mut self.rng);
                let admission = if self.plan.learned { AdmissionConfig::Learned } else { drawn };
                let set = self.core().set_admission(now, no, admission);
                self.accepted(set, "set_admission")?;
                self.disks[disk].config.admission = admission;
            }
            8 => {
                let order = self.disks[disk].config.cleaner.order;
                let cleaner = CleanerConfig { order, ..plan::cleaner(&mut self.rng) };
                let set = self.core().set_cleaner(now, no, cleaner);
                self.accepted(set, "set_cleaner")?;
                self.disks[disk].config.cleaner = cleaner;
            }
            9 => {
                let bytes = self.rng.pick(&[0, 32_768, 131_072]);
                let set = self.core().set_sequential_cutoff(now, no, bytes);
                self.accepted(set, "set_sequential_cutoff")?;
                self.disks[disk].config.sequential_cutoff_bytes = bytes;
            }
            10..13 => {
                self.clean(disk)?;
            }
            13 | 14 => {
                self.begin_detach(disk)?;
            }
            15 => {
                self.release(disk, false)?;
            }
            16 => self.clean_release(disk)?,
            17 | 18 => {
                let size = self.disks[disk].sectors;
                let other = self.rng.range((size / 2).max(8), size + size / 2);
                self.wait("requests before a resize", |world| world.requests_of(disk) == 0)?;
                self.resize(disk, other)?;
                if self.rng.one_in(2) {
                    self.wait("a resize", |world| !world.disks[disk].busy && world.requests_of(disk) == 0)?;
                    self.resize(disk, size)?;
                }
            }
            19 | 20 if self.devices.len() < 8 && !self.plan.undisturbed => self.add_device()?,
            21 | 22 if !self.plan.undisturbed => self.remove_device()?,
            23 if self.rng.one_in(3) => {
                self.heal();
                self.drain()?;
                if self.jobs.is_empty() {
                    self.trigger = None;
                    self.restart()?;
                    self.verify(Extent::Sample)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn accepted(&mut self, set: Result<(), haversack_core::ManageError>, what: &str) -> Flow {
        self.pump()?;
        match set {
            Ok(()) => Ok(()),
            Err(error) => violation!("{what} was refused: {error}"),
        }
    }

    /// Hands over in an orderly way: idle, clean, released; the origin must have everything.
    pub(crate) fn clean_release(&mut self, disk: usize) -> Flow {
        self.disks[disk].outage_until = 0;
        self.wait("requests before a release", |world| world.requests_of(disk) == 0)?;
        let errors = self.disks[disk].last_error;
        if let Some(job) = self.clean(disk)? {
            self.finish(job)?;
            let lost = self.disks[disk].no.map_or(0, |no| self.core().lost_runs(no).len());
            let clean = self.disks[disk].last_error == errors && lost == 0;
            self.release(disk, clean)?;
        }
        Ok(())
    }

    /// Ends a run: faults end, all requests complete, everything is read, detached and compared with the origins.
    pub(crate) fn finish_run(&mut self) -> Flow {
        self.heal();
        self.drain()?;
        self.end_loans()?;
        self.wait("management jobs", |world| world.jobs.is_empty())?;
        self.become_whole()?;
        let everything = if self.rng.one_in(3) { Extent::Everything } else { Extent::Touched };
        self.verify(everything)?;
        self.flush_all()?;
        for disk in 0..self.disks.len() {
            if self.disks[disk].life == Life::Attached {
                self.detach(disk)?;
            }
        }
        self.restart()?;
        self.verify(Extent::Touched)
    }
}
