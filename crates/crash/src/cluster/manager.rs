//! The manager of the VMs: it moves a VM with its disks from one host to another, in steps that fail, take long, or are
//! rolled back, and starts VMs again whose hosts have died.

use std::collections::BTreeSet;

use haversack_model::Micros;
use haversack_model::random::Random;

use super::plan::VMS;
use crate::hosts::machines::Machines;
use crate::run::tell;
use crate::world::Flow;

/// Who waits for the end of a move: a daemon, by host and instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    pub host: usize,
    pub instance: u64,
    pub is_by_hand: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Copies are being sent ahead. The number of portions that are left.
    Copying(u64),
    /// The VM is to stop.
    Stopping,
    /// It is to start at its destination.
    Starting,
    /// It runs there. It may be rolled back until then.
    Running { until: Micros },
}

/// A move.
struct Job {
    vm: usize,
    from: usize,
    to: usize,
    phase: Phase,
    next_us: Micros,
    waiter: Waiter,
}

/// See the module documentation.
pub struct Manager {
    jobs: Vec<Job>,
    rng: Random,
    failing_percent: u64,
    /// VMs that must not be started on hosts.
    pub barred: BTreeSet<(usize, usize)>,
    /// Moves that have ended, and whether the VM runs at its destination.
    pub ended: Vec<(Waiter, bool)>,
    /// Moves that were made.
    pub moves: u64,
}

impl Manager {
    pub fn new(rng: Random, failing_percent: u64) -> Manager {
        Manager {
            jobs: Vec::new(),
            rng,
            failing_percent,
            barred: BTreeSet::new(),
            ended: Vec::new(),
            moves: 0,
        }
    }

    /// Returns where a VM is.
    pub fn host_of(machines: &Machines, vm: usize) -> usize {
        machines.guests[VMS[vm][0]].host
    }

    /// Whether a VM is on its way.
    pub fn is_moving(&self, vm: usize) -> bool {
        self.jobs.iter().any(|job| job.vm == vm)
    }

    /// Whether nothing moves.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the hosts that take part in moves.
    pub fn involved(&self) -> impl Iterator<Item = usize> {
        self.jobs.iter().flat_map(|job| [job.from, job.to])
    }

    /// Whether a VM can be started on a host.
    pub fn can_run(&self, machines: &Machines, vm: usize, at: usize) -> bool {
        !self.barred.contains(&(vm, at)) && Self::is_free_for(machines, vm, at)
    }

    /// Whether a host runs and is not fenced, and nothing left there of a VM's disks prevents the VM from starting.
    pub fn is_free_for(machines: &Machines, vm: usize, at: usize) -> bool {
        let host = &machines.hosts[at];
        let is_free =
            |of: &usize| !machines.guests[*of].orphans_at().contains(&at) && !host.has_obsolete(*of);
        host.running.is_some() && !host.fenced && VMS[vm].iter().all(is_free)
    }

    /// Ends a VM, and its move. It is off until it is started.
    pub fn turn_off(&mut self, machines: &mut Machines, vm: usize) -> Flow {
        if let Some(place) = self.jobs.iter().position(|job| job.vm == vm) {
            let job = self.jobs.swap_remove(place);
            give_up(machines, &job)?;
            self.ended.push((job.waiter, false));
        }
        VMS[vm].iter().for_each(|of| machines.guests[*of].power_off());
        Ok(())
    }

    /// Starts a VM that is off.
    pub fn start_on(&mut self, machines: &mut Machines, vm: usize, at: usize) -> Flow {
        if self.is_moving(vm) { Ok(()) } else { start(machines, vm, at) }
    }

    /// Moves never fail from now on.
    pub fn calm(&mut self) {
        self.failing_percent = 0;
    }

    /// Begins to move a VM. It is left alone if it is on its way, or is not where it is said to be.
    pub fn begin(&mut self, machines: &Machines, vm: usize, from: usize, to: usize, waiter: Waiter) {
        let runs = |at: usize| self.can_run(machines, vm, at);
        let is_there = Manager::host_of(machines, vm) == from && from != to && runs(from) && runs(to);
        let is_stopped = VMS[vm].iter().any(|of| machines.guests[*of].is_stopped);
        if self.is_moving(vm) || !is_there || is_stopped {
            return self.ended.push((waiter, false));
        }
        tell(|| format!("{:>10} vm{vm} moves from host {from} to host {to}", machines.shared.now));
        let phase = Phase::Copying(self.rng.below(5));
        let next_us = machines.shared.now + self.rng.skewed(30_000);
        self.jobs.push(Job { vm, from, to, phase, next_us, waiter });
    }

    /// A daemon has ended. The program that it has called may end with it, as long as it only copies.
    pub fn lost(&mut self, machines: &mut Machines, instance: u64) -> Flow {
        for job in std::mem::take(&mut self.jobs) {
            let is_its = job.waiter.instance == instance && matches!(job.phase, Phase::Copying(_));
            if is_its && self.rng.one_in(2) {
                give_up(machines, &job)?;
            } else {
                self.jobs.push(job);
            }
        }
        Ok(())
    }

    /// Goes on with what is due.
    pub fn tick(&mut self, machines: &mut Machines) -> Flow {
        let now = machines.shared.now;
        for mut job in std::mem::take(&mut self.jobs) {
            if now < job.next_us {
                self.jobs.push(job);
                continue;
            }
            job.next_us = now + self.rng.skewed(8_000);
            match self.go_on(machines, &mut job)? {
                None => self.jobs.push(job),
                Some(is_done) => {
                    if !is_done {
                        give_up(machines, &job)?;
                    }
                    self.moves += u64::from(is_done);
                    self.ended.push((job.waiter, is_done));
                }
            }
        }
        self.start_again(machines)
    }

    /// Takes the next step of a move. Returns whether the VM runs at its destination, if the move has ended.
    fn go_on(&mut self, machines: &mut Machines, job: &mut Job) -> Flow<Option<bool>> {
        let disks = VMS[job.vm];
        let runs = |machines: &Machines, at: usize| machines.hosts[at].running.is_some();
        let is_at = Manager::host_of(machines, job.vm);
        match job.phase {
            Phase::Copying(left) => {
                let fails = self.rng.percent(self.failing_percent / 4);
                if is_at != job.from || !runs(machines, job.from) || fails {
                    return Ok(Some(false));
                }
                for of in disks {
                    machines.send_ahead(*of, job.to)?;
                }
                job.phase = left.checked_sub(1).map_or(Phase::Stopping, Phase::Copying);
            }
            Phase::Stopping => {
                if is_at != job.from || !runs(machines, job.from) {
                    return Ok(Some(false));
                }
                disks.iter().for_each(|of| machines.guests[*of].is_stopped = true);
                if disks.iter().any(|of| machines.guests[*of].in_flight() > 0) {
                    job.next_us = machines.shared.now + 1;
                    return Ok(None);
                }
                stop(machines, job.vm)?;
                job.phase = Phase::Starting;
            }
            Phase::Starting => {
                // A destination that does not answer: the VM goes on where it was.
                let is_possible =
                    self.can_run(machines, job.vm, job.to) && !self.rng.percent(self.failing_percent / 2);
                let at = if is_possible { job.to } else { job.from };
                if machines.hosts[at].fenced {
                    return Ok(Some(false));
                }
                start(machines, job.vm, at)?;
                if !is_possible {
                    return Ok(Some(false));
                }
                let until = machines.shared.now + self.rng.skewed(40_000);
                job.phase = Phase::Running { until };
            }
            Phase::Running { until } => {
                let is_served = disks.iter().any(|of| machines.is_served(*of));
                let is_busy = disks.iter().any(|of| machines.guests[*of].in_flight() > 0);
                if is_at != job.to || is_served || is_busy {
                    return Ok(Some(is_at == job.to));
                }
                let gives_up =
                    self.rng.percent(self.failing_percent) && self.can_run(machines, job.vm, job.from);
                if machines.shared.now >= until && gives_up && runs(machines, job.to) {
                    stop(machines, job.vm)?;
                    start(machines, job.vm, job.from)?;
                    return Ok(Some(false));
                }
                // The hypervisor has the VM running, whether its disks are served yet or not.
                if machines.shared.now >= until {
                    return Ok(Some(true));
                }
            }
        }
        Ok(None)
    }

    /// Starts VMs that were left stopped by a move that has failed.
    fn start_again(&mut self, machines: &mut Machines) -> Flow {
        for (vm, disks) in VMS.iter().enumerate() {
            let is_left = disks.iter().any(|of| machines.guests[*of].is_stopped) && !self.is_moving(vm);
            let at = Manager::host_of(machines, vm);
            if is_left && self.can_run(machines, vm, at) {
                start(machines, vm, at)?;
            } else if is_left && self.rng.one_in(50) {
                self.start_elsewhere(machines, vm)?;
            }
        }
        Ok(())
    }

    /// A host has died: what was running there may be started elsewhere at once. If not, it starts when the host is
    /// back.
    pub fn died(&mut self, machines: &mut Machines, at: usize) -> Flow {
        for vm in 0..VMS.len() {
            if Manager::host_of(machines, vm) == at && !self.is_moving(vm) && self.rng.one_in(3) {
                self.start_elsewhere(machines, vm)?;
            }
        }
        Ok(())
    }

    fn start_elsewhere(&mut self, machines: &mut Machines, vm: usize) -> Flow {
        let at = self.rng.below(machines.hosts.len() as u64) as usize;
        if self.can_run(machines, vm, at) { start(machines, vm, at) } else { Ok(()) }
    }
}

/// The source need not send copies any more: its hypervisor has ended the move.
fn give_up(machines: &mut Machines, job: &Job) -> Flow {
    for of in VMS[job.vm] {
        machines.hosts[job.from].with(&mut machines.shared, *of, |m, call, now| m.end(call, now))?;
    }
    Ok(())
}

fn stop(machines: &mut Machines, vm: usize) -> Flow {
    let at = Manager::host_of(machines, vm);
    for of in VMS[vm] {
        machines.guests[*of].is_stopped = true;
        machines.hosts[at].with(&mut machines.shared, *of, |migration, _, _| migration.guest_stopped())?;
    }
    Ok(())
}

fn start(machines: &mut Machines, vm: usize, at: usize) -> Flow {
    VMS[vm].iter().try_for_each(|of| machines.arrive(*of, at))
}
