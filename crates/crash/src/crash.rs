//! Crashes and recovery: which writes complete, opening the pool again (with more crashes in it), attaching.

use std::ops::Range;

use haversack_core::{CheckpointSource, CheckpointUse, Core, OpenOptions, PoolError, pool};
use haversack_model::{SECTOR_BYTES, SECTORS_PER_BLOCK};

use crate::base::Sharing;
use crate::checkpoint::Checkpoints;
use crate::device::{Payload, Store};
use crate::loans::Loans;
use crate::media::FakeMedia;
use crate::memory::SimMemory;
use crate::run::tell;
use crate::world::{CrashKind, Device, Flow, Life, Stop, What, World, violation};
use haversack_model::random::Random;

impl World {
    /// Creates the conditions of the first start: opens the pool and attaches all disks.
    pub fn first_open(&mut self) -> Flow {
        let memory = self.fresh_memory();
        self.open(memory, 0)?;
        for disk in 0..self.disks.len() {
            self.attach(disk)?;
        }
        Ok(())
    }

    /// Crashes, opens the pool again and attaches the disks. Further crashes while doing so are included.
    pub fn crash_and_recover(&mut self, mut kind: CrashKind) -> Flow {
        loop {
            self.give_up_unfinished()?;
            let in_order = self.disks_in_order();
            let memory = self.crash(kind);
            self.check_order(&in_order)?;
            self.damage();
            let nested = if self.rng.one_in(4) { self.rng.range(1, 3) } else { 0 };
            self.open(memory, nested)?;
            if self.rng.one_in(8) {
                let (ios, next) = (self.rng.below(30), self.rng.pick(&[CrashKind::Kill, CrashKind::Power]));
                self.crash_after(ios, next);
            }
            match self.attach_all() {
                Err(Stop::Crash(next)) => kind = next,
                other => {
                    self.trigger = None;
                    return other;
                }
            }
        }
    }

    /// Stops cleanly, discards the memory and starts again.
    pub fn restart(&mut self) -> Flow {
        self.name_stop();
        self.shutdown()?;
        self.note_lost();
        self.note_whole();
        self.leave_checkpoint();
        (self.core, self.memory) = (None, None);
        self.clear_flights();
        self.oracle.crash(false);
        for disk in &mut self.disks {
            disk.busy = false;
            if disk.life != Life::Released {
                disk.life = Life::Detached;
            }
        }
        self.jobs.clear();
        self.sharing.iter_mut().for_each(Sharing::forget_questions);
        self.loans.iter_mut().for_each(Loans::host_ended);
        let memory = self.fresh_memory();
        self.open(memory, 0)?;
        self.attach_all()
    }

    fn attach_all(&mut self) -> Flow {
        for disk in 0..self.disks.len() {
            match self.disks[disk].life {
                Life::Detached => self.attach(disk)?,
                Life::Released if self.rng.one_in(2) => self.regain(disk)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn clear_flights(&mut self) {
        self.flights.clear();
        self.free_flights.clear();
        self.due.clear();
        self.requests.clear();
        self.pending = 0;
        self.idle_wakeups = 0;
        self.stopping = false;
    }

    /// Ends the process or the power; returns what the memory then holds.
    fn crash(&mut self, kind: CrashKind) -> SimMemory {
        tell(|| format!("{:>10} {kind:?}", self.now));
        let tear = self.tear();
        let mut flights: Vec<_> = std::mem::take(&mut self.flights).into_iter().flatten().collect();
        self.rng.shuffle(&mut flights);
        for flight in flights {
            match flight.what {
                What::DeviceWrite { device, sector } if !self.devices[device].store.gone => {
                    let payload = Payload::Bytes(self.gather(&flight.pieces));
                    self.devices[device].store.write_torn(sector, payload, tear, &mut self.rng);
                }
                What::OriginWrite { disk, sector, .. } => {
                    let payload = Payload::Bytes(self.gather(&flight.pieces));
                    self.disks[disk].origin.write_torn(sector, payload, tear, &mut self.rng);
                }
                What::OriginZero { disk, sector, sectors, .. } => {
                    let payload = Payload::Zeroes(sectors);
                    self.disks[disk].origin.write_torn(sector, payload, tear, &mut self.rng);
                }
                _ => {}
            }
        }
        self.clear_flights();
        self.trigger = None;
        self.jobs.clear();
        self.sharing.iter_mut().for_each(Sharing::forget_questions);
        self.loans.iter_mut().for_each(Loans::host_ended);
        for disk in &mut self.disks {
            disk.busy = false;
            disk.life = match disk.life {
                Life::Releasing => Life::Releasing,
                Life::Released => Life::Released,
                _ if disk.origin_forbidden && disk.life == Life::Leaving => Life::Released,
                _ => Life::Detached,
            };
        }
        self.note_marks();
        self.note_lost();
        self.note_whole();
        self.core = None;
        let memory = self.memory.take();
        self.oracle.crash(kind == CrashKind::Power);
        self.end_of_memory(kind, memory)
    }

    fn end_of_memory(&mut self, kind: CrashKind, memory: Option<SimMemory>) -> SimMemory {
        let tear = self.tear();
        match (kind, memory) {
            (CrashKind::Kill, Some(mut memory)) => {
                self.counts.kills += 1;
                memory.kill(self.torn_store, &mut self.rng);
                memory
            }
            _ => {
                self.counts.cuts += 1;
                for device in &mut self.devices {
                    device.store.power_cut(tear, &mut self.rng);
                }
                for disk in &mut self.disks {
                    if self.rng.one_in(4) {
                        disk.origin.settle();
                    } else {
                        disk.origin.power_cut(tear, &mut self.rng);
                    }
                }
                self.fresh_memory()
            }
        }
    }

    /// May let the device at risk rot or disappear while the host is down.
    fn damage(&mut self) {
        let faults = self.plan.faults;
        if (faults.rot || faults.page_rot) && self.rng.one_in(3) {
            self.rot();
        }
        if faults.loss && self.rng.one_in(12) {
            self.unplug();
        }
    }

    /// Allows damage from now on to data that the core has recorded as flushed.
    pub(crate) fn note_marks(&mut self) {
        if let Some(core) = &self.core {
            let marked = core.marked_seq();
            self.devices.iter_mut().for_each(|device| device.store.marked(marked));
        }
    }

    /// Damages some sectors of the device at risk: anywhere, or in the newest page of some segment.
    pub(crate) fn rot(&mut self) {
        self.note_marks();
        self.note_device_fault();
        let store = &mut self.devices[0].store;
        let targeted = self.plan.faults.page_rot || self.rng.one_in(3);
        let page = newest_page(store, &mut self.rng).filter(|_| targeted);
        let (within, most) = match page {
            Some(page) => (page, 3),
            None if self.plan.faults.rot => (0..store.bytes() / SECTOR_BYTES as u64, 64),
            None => return,
        };
        for _ in 0..self.rng.skewed(most) {
            store.rot(within.clone(), &mut self.rng);
        }
    }

    /// Opens copies of the devices, with the tasks of the opening in order and in the reverse order, and compares the
    /// tables. Some openings are enough.
    fn compare_orders(&self, order: &[usize], options: &OpenOptions) -> Flow {
        if !Random::scrambled(self.now).one_in(16) {
            return Ok(());
        }
        let open = |is_reversed| {
            let mut devices = self.devices.iter().map(Device::copy).collect();
            let (rng, unit) = (Random::scrambled(0), self.plan.tear_unit);
            let mut media = FakeMedia::new(&mut devices, order.to_vec(), None, rng, unit);
            media.is_reversed = is_reversed;
            Core::open(&mut media, &mut self.fresh_memory(), self.plan.core, options, self.now)
        };
        match (open(false), open(true)) {
            (Ok((core, report)), Ok((reversed, reversed_report))) => {
                if report != reversed_report || !core.has_tables_of(&reversed) {
                    return violation!("what was recovered depends on the order of tasks: {report:?}");
                }
            }
            (Err(error), Err(reversed)) if error.to_string() == reversed.to_string() => {}
            _ => return violation!("whether the pool opens depends on the order of tasks"),
        }
        Ok(())
    }

    fn open(&mut self, mut memory: SimMemory, mut nested: u64) -> Flow {
        let mut options = OpenOptions { contents_void: self.contents_void, ..OpenOptions::default() };
        loop {
            let mut order: Vec<usize> = (0..self.devices.len())
                .filter(|i| self.devices[*i].plugged && !self.devices[*i].store.gone)
                .collect();
            if order.is_empty() {
                return Err(Stop::End);
            }
            if self.rng.one_in(2) {
                self.rng.shuffle(&mut order);
            }
            let in_store = nested > 0 && self.rng.one_in(3);
            let budget = (nested > 0 && !in_store).then(|| self.rng.skewed(64) - 1);
            if in_store {
                memory.arm(self.rng.skewed(200) - 1);
            }
            self.compare_orders(&order, &options)?;
            let fork = self.rng.fork();
            let (config, now, unit) = (self.plan.core, self.now, self.plan.tear_unit);
            let mut found = self.checkpoints.as_mut().and_then(Checkpoints::found);
            let copies = self.copies().filter(|_| found.is_some());
            let mut media = FakeMedia::new(&mut self.devices, order.clone(), budget, fork, unit);
            let checkpoint = found.as_mut().map(|pieces| pieces as &mut dyn CheckpointSource);
            let opened = Core::open_with(&mut media, &mut memory, checkpoint, config, &options, now);
            if media.dead || (in_store && opened.is_ok()) {
                let dead = media.dead;
                let kind = if dead && self.rng.one_in(2) { CrashKind::Power } else { CrashKind::Kill };
                self.torn_store = self.rng.one_in(2);
                self.counts.crashes_in_open += 1;
                tell(|| format!("{:>10} {kind:?} while opening", self.now));
                self.oracle.crash(kind == CrashKind::Power);
                memory = self.end_of_memory(kind, Some(memory));
                nested -= 1;
                continue;
            }
            let (core, report) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    memory.disarm();
                    match error {
                        PoolError::MissingDevice { .. }
                            if !options.accept_missing && self.devices.iter().any(|d| d.store.gone) =>
                        {
                            options.accept_missing = true;
                            continue;
                        }
                        _ if self.unprotected_fault => return Err(Stop::End),
                        error => return violation!("the pool does not open: {error}"),
                    }
                }
            };
            tell(|| format!("{:>10} opened {report:?}", self.now));
            self.compare((&core, &report), copies, &order, &options)?;
            self.counts.checkpoints += u64::from(report.checkpoint == CheckpointUse::Loaded);
            if let Some(checkpoints) = &mut self.checkpoints {
                checkpoints.opened();
            }
            for device in &mut self.devices {
                device.no = None;
            }
            for (no, place) in &report.devices {
                self.devices[order[*place]].no = Some(*no);
            }
            for place in &order {
                self.devices[*place].plugged = self.devices[*place].no.is_some();
            }
            (self.core, self.memory) = (Some(core), Some(memory));
            self.contents_void = false;
            self.disk_of.clear();
            for disk in &mut self.disks {
                disk.no = None;
            }
            for summary in &report.disks {
                if self.is_loan(summary.id) {
                    continue;
                }
                let Some(place) = self.disks.iter().position(|d| d.config.id == summary.id) else {
                    return violation!("the pool knows disk {}, which never was attached", summary.id);
                };
                self.disk_of.insert(summary.disk, place);
                let disk = &mut self.disks[place];
                disk.no = Some(summary.disk);
                disk.volatile_since = self.oracle.now();
                if disk.life == Life::Releasing {
                    disk.life = if summary.owned { Life::Detached } else { Life::Released };
                    disk.origin_forbidden = !summary.owned;
                } else if disk.life == Life::Released && summary.owned && !self.unprotected_fault {
                    return violation!("disk {place} was released but the pool thinks that it is owned");
                }
            }
            for disk in &mut self.disks {
                if disk.life == Life::Releasing {
                    disk.life = Life::Released;
                }
            }
            self.forget_loans()?;
            return self.pump();
        }
    }
}

/// Returns the sectors of the newest metadata page of a segment that has been in use.
fn newest_page(store: &Store, rng: &mut Random) -> Option<Range<u64>> {
    let start = |segment| pool::device_bytes(segment) / SECTOR_BYTES as u64;
    let segments = (store.bytes() / SECTOR_BYTES as u64 - start(0)) / (start(1) - start(0));
    let generation = |page| {
        let mut header = [0; SECTOR_BYTES];
        store.read(page, &mut header);
        u64::from_le_bytes(header[..8].try_into().expect("eight bytes")) & ((1 << 48) - 1)
    };
    let used = (0..segments as u32).filter_map(|segment| {
        let pages = [start(segment), start(segment) + SECTORS_PER_BLOCK];
        let newest = pages.into_iter().max_by_key(|page| generation(*page))?;
        (generation(newest) > 1).then_some(newest..newest + SECTORS_PER_BLOCK)
    });
    let used: Vec<_> = used.collect();
    (!used.is_empty()).then(|| used[rng.below(used.len() as u64) as usize].clone())
}
