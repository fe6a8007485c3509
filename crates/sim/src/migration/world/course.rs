//! The steps of the move: copying the VM's memory begins, the VM stops, it runs at the destination, the source is no
//! longer needed.

use haversack_ownership::Record;
use haversack_trace::VolumeNo;

use super::event::What;
use super::{DESTINATION, SOURCE, World, wrong};
use crate::error::SimError;
use crate::migration::host::host_id;
use crate::migration::vm::Role;

/// When each step of the move happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moments {
    /// It stopped.
    pub stopped_ns: Option<u64>,
    /// Its last request at the source was answered.
    pub drained_ns: Option<u64>,
    /// It runs at the destination.
    pub resumed_ns: Option<u64>,
    /// Its disks are served there.
    pub served_ns: Option<u64>,
    /// The destination no longer needs the source.
    pub alone_ns: Option<u64>,
    /// Whether little was left to send when it stopped.
    pub was_ready: bool,
}

impl World<'_> {
    /// Starts to copy the VM's memory and to send its cache ahead.
    pub(super) fn begin(&mut self) -> Result<(), SimError> {
        let (now, method) = (self.now_us(), self.plan.method);
        let mut begun = Ok(());
        self.hosts[SOURCE].each_mover(|migration, call| {
            if begun.is_ok() {
                begun = migration.begin(call, now, host_id(DESTINATION), method);
            }
        });
        begun.map_err(|error| wrong(format!("the disk cannot be sent: {error}")))?;
        self.pump(SOURCE)
    }

    /// Stops the VM at the source.
    pub(super) fn stop(&mut self) -> Result<(), SimError> {
        self.moments.stopped_ns = Some(self.now_ns);
        self.moments.was_ready = self.hosts[SOURCE].movers.iter().all(|mover| mover.migration.is_ready());
        self.count_cached();
        let now_ns = self.now_ns;
        self.vms.iter_mut().filter(|vm| vm.role == Role::Moves).for_each(|vm| vm.stop(now_ns));
        self.look_at_move()
    }

    /// Resumes the VM at the destination.
    pub(super) fn resume(&mut self) -> Result<(), SimError> {
        self.moments.resumed_ns = Some(self.now_ns);
        let (now, now_ns) = (self.now_us(), self.now_ns);
        self.hosts[DESTINATION]
            .each_mover(|migration, call| migration.guest_runs(call, now, host_id(SOURCE)));
        for at in 0..self.vms.len() {
            if self.vms[at].role != Role::Moves {
                continue;
            }
            self.vms[at].resume(now_ns);
            self.vms[at].host = DESTINATION;
            self.feed(at)?;
            if std::mem::take(&mut self.vms[at].is_due) {
                self.plan_next(at)?;
            }
        }
        self.pump(DESTINATION)
    }

    /// Records which steps of the move are done, and starts the steps that follow.
    pub(super) fn look_at_move(&mut self) -> Result<(), SimError> {
        let Moments { stopped_ns, drained_ns, resumed_ns, served_ns, alone_ns, .. } = self.moments;
        if stopped_ns.is_some() && drained_ns.is_none() {
            let mut moving = self.vms.iter().filter(|vm| vm.role == Role::Moves);
            if moving.all(|vm| vm.in_flight == 0) {
                self.moments.drained_ns = Some(self.now_ns);
                self.hosts[SOURCE].each_mover(|migration, _| migration.guest_stopped());
                self.plan_at(self.now_ns + self.plan.downtime_ns, What::Resume);
            }
        }
        if resumed_ns.is_some() && served_ns.is_none() {
            let volumes: Vec<VolumeNo> =
                self.hosts[DESTINATION].movers.iter().map(|mover| mover.volume).collect();
            if volumes.into_iter().all(|volume| self.hosts[DESTINATION].serves(volume)) {
                self.moments.served_ns = Some(self.now_ns);
                let held = std::mem::take(&mut self.hosts[DESTINATION].held);
                self.hosts[DESTINATION].waiting.extend(held);
                return self.pump(DESTINATION);
            }
        }
        if served_ns.is_some() && alone_ns.is_none() {
            let is_alone =
                |record: &Record| matches!(record, Record::Owner { peers, .. } if peers.is_empty());
            if self.hosts[DESTINATION].movers.iter().all(|mover| is_alone(mover.migration.record())) {
                self.moments.alone_ns = Some(self.now_ns);
            }
        }
        Ok(())
    }
}
