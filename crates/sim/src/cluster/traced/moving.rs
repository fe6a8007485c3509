//! Moves of VMs, as a hypervisor makes them: memory is copied while the cache is sent ahead, the VM stops, it runs at
//! its destination.

use haversack_migrate::Method;
use haversack_model::DiskNo;
use haversack_ownership::Record;
use haversack_policy::Event;
use serde::Serialize;

use super::event::What;
use super::host::host_id;
use super::world::World;
use crate::error::SimError;

/// The longest time for which a VM waits for its cache to be ready, as a multiple of the time to copy its memory.
const MOST_WAITS: u64 = 8;
/// Interval between checks whether the cache is ready.
const WAIT_NS: u64 = 100_000_000;

/// A step of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Its memory is copied.
    Ahead,
    /// It has stopped, and its last requests are answered at the source.
    Draining,
    /// It is on its way.
    Stopped,
    /// It runs at its destination, which does not serve its disk yet.
    Resumed,
}

/// A move in progress.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    from: usize,
    to: usize,
    begun_ns: u64,
    stopped_ns: u64,
    sent_bytes: u64,
    step: Step,
}

impl Move {
    /// The host to which it leads.
    pub fn destination(&self) -> usize {
        self.to
    }
}

/// A move that was done.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Done {
    /// The VM.
    pub vm: String,
    /// The host that it left.
    pub from: usize,
    /// The host that it runs on.
    pub to: usize,
    /// When it began, in seconds.
    pub begun_seconds: f64,
    /// When the destination served its disk.
    pub served_seconds: f64,
    /// How long the VM stood still: the hypervisor's downtime and what the cache adds to it.
    pub stopped_seconds: f64,
    /// Bytes on the link from the source to the destination meanwhile.
    pub sent_bytes: u64,
    /// Blocks that the disk had in the source's cache when it stopped, and in the destination's when it was served.
    pub blocks: [u64; 2],
}

impl World<'_> {
    /// Starts to move a VM. Returns false if it cannot move now.
    ///
    /// # Errors
    /// A decision is refused.
    pub(super) fn begin(&mut self, volume: usize, to: usize) -> Result<bool, SimError> {
        let from = self.vms[volume].host;
        if self.vms[volume].moving.is_some() || from == to || !self.is_alone(volume, from) {
            return Ok(false);
        }
        let (now, now_ns) = (self.now_us(), self.now_ns);
        let sent_bytes = self.link(from, to).sent.bytes();
        let windows = self.governors[from].kept_windows(volume);
        self.tell(to, volume, &Event::Arriving(windows))?;
        let host = &mut self.hosts[from];
        let mut call = host.core.with(&mut host.memory);
        let begun = host.movers[volume].migration.begin(&mut call, now, host_id(to), Method::PreCopy);
        begun.map_err(|error| SimError::Migration(format!("a disk cannot be sent: {error}")))?;
        let step = Step::Ahead;
        self.vms[volume].moving = Some(Move { from, to, begun_ns: now_ns, stopped_ns: 0, sent_bytes, step });
        self.plan_at(now_ns + self.table.memory_ns(), What::Stop { volume });
        self.pump(from)?;
        Ok(true)
    }

    /// Whether a VM's host needs no other host for the VM's disk.
    fn is_alone(&mut self, volume: usize, host: usize) -> bool {
        let record = self.hosts[host].movers[volume].migration.record();
        matches!(record, Record::Owner { peers, .. } if peers.is_empty()) && self.hosts[host].serves(volume)
    }

    /// Passes an event of a disk to a host's control loop, and carries out what it decides.
    fn tell(&mut self, host: usize, volume: usize, event: &Event) -> Result<(), SimError> {
        let now_us = self.now_us();
        let (governor, at) = (&mut self.governors[host], &mut self.hosts[host]);
        at.now_us = now_us;
        governor.disk_event(now_us, DiskNo(volume as u16), event, at, &mut self.meter)?;
        self.pump(host)
    }

    pub(super) fn stop(&mut self, volume: usize) -> Result<(), SimError> {
        let Some(mut moving) = self.vms[volume].moving else { return Ok(()) };
        let is_ready = self.hosts[moving.from].movers[volume].migration.is_ready();
        if !is_ready && self.now_ns < moving.begun_ns + MOST_WAITS * self.table.memory_ns() {
            self.plan_at(self.now_ns + WAIT_NS, What::Stop { volume });
            return Ok(());
        }
        (moving.step, moving.stopped_ns) = (Step::Draining, self.now_ns);
        self.vms[volume].stopped = true;
        self.vms[volume].moving = Some(moving);
        self.look_at_moves()
    }

    pub(super) fn resume(&mut self, volume: usize) -> Result<(), SimError> {
        let Some(mut moving) = self.vms[volume].moving else { return Ok(()) };
        let now = self.now_us();
        let host = &mut self.hosts[moving.to];
        let mut call = host.core.with(&mut host.memory);
        host.movers[volume].migration.guest_runs(&mut call, now, host_id(moving.from));
        moving.step = Step::Resumed;
        let vm = &mut self.vms[volume];
        (vm.host, vm.stopped, vm.moving) = (moving.to, false, Some(moving));
        let held = std::mem::take(&mut vm.held);
        vm.in_flight += held.len() as u32;
        host.waiting.extend(held);
        self.pump(moving.to)
    }

    /// Advances the moves whose awaited event has happened.
    pub(super) fn look_at_moves(&mut self) -> Result<(), SimError> {
        for volume in 0..self.vms.len() {
            let Some(mut moving) = self.vms[volume].moving else { continue };
            if moving.step == Step::Draining && self.vms[volume].in_flight == 0 {
                moving.step = Step::Stopped;
                self.vms[volume].moving = Some(moving);
                self.hosts[moving.from].movers[volume].migration.guest_stopped();
                self.plan_at(self.now_ns + self.table.downtime_ns(), What::Resume { volume });
            }
            if moving.step == Step::Resumed && self.hosts[moving.to].serves(volume) {
                self.vms[volume].moving = None;
                self.has_come(volume, moving)?;
            }
        }
        Ok(())
    }

    /// Ends a move: the destination serves the disk.
    fn has_come(&mut self, volume: usize, moving: Move) -> Result<(), SimError> {
        let Move { from, to, .. } = moving;
        let blocks = |host: usize| {
            let usage = self.hosts[host].core.disk_usage(DiskNo(volume as u16));
            usage.map_or(0, |usage| usage.usage_blocks)
        };
        let blocks = [blocks(from), blocks(to)];
        let sent_bytes = self.link(from, to).sent.bytes() - moving.sent_bytes;
        self.done.push(Done {
            vm: self.vms[volume].name.clone(),
            from,
            to,
            begun_seconds: moving.begun_ns as f64 / 1e9,
            served_seconds: self.now_ns as f64 / 1e9,
            stopped_seconds: (self.now_ns - moving.stopped_ns) as f64 / 1e9,
            sent_bytes,
            blocks,
        });
        self.monitor_arrived(volume, to)?;
        self.governors[to].forget_applied(DiskNo(volume as u16));
        self.tell(from, volume, &Event::MigratingOut)?;
        let now_us = self.now_us();
        let (governor, at) = (&mut self.governors[to], &mut self.hosts[to]);
        at.now_us = now_us;
        governor.decide(now_us, "arrived", at, &mut self.meter)?;
        self.pump(to)
    }
}
