//! Requests of the VMs: from their loads to the core of the host that serves them, and back.

use haversack_core::{Op, Rejected, Request, RequestError, RequestTag};

use super::event::What;
use super::{World, wrong};
use crate::error::SimError;
use crate::latency::IoKind;
use crate::migration::content::{Buffer, Version, to_bytes};
use crate::migration::host::{Arrived, Purpose};
use crate::migration::measure::Stretch;
use crate::production::requests;

impl World<'_> {
    /// Handles a request of a VM at its time.
    pub(super) fn request_comes(&mut self, vm: usize) -> Result<(), SimError> {
        if self.is_over {
            return Ok(());
        }
        if self.vms[vm].stopped_ns.is_some() {
            self.vms[vm].is_due = true;
            return Ok(());
        }
        self.issue(vm)?;
        self.plan_next(vm)?;
        let host = self.vms[vm].host;
        self.pump(host)
    }

    pub(super) fn plan_next(&mut self, vm: usize) -> Result<(), SimError> {
        if let Some(ns) = self.vms[vm].next_ns()?.filter(|_| !self.is_over) {
            self.plan_at(self.zero_ns + ns, What::Comes { vm });
        }
        Ok(())
    }

    /// Issues new requests of a VM that keeps requests in flight.
    pub(super) fn feed(&mut self, vm: usize) -> Result<(), SimError> {
        let mut any = false;
        while self.vms[vm].is_hungry() && !self.is_over && self.issue(vm)? {
            any = true;
        }
        let host = self.vms[vm].host;
        if any { self.pump(host) } else { Ok(()) }
    }

    /// Issues a VM's next request now. Returns false if it has none.
    fn issue(&mut self, vm: usize) -> Result<bool, SimError> {
        let Some(access) = self.vms[vm].take()? else { return Ok(false) };
        self.note_use(vm, &access);
        for request in requests::of(&access) {
            self.vms[vm].in_flight += 1;
            let arrived = Arrived { vm: Some(vm), volume: access.volume, request, time_ns: self.now_ns };
            let host = self.vms[vm].host;
            self.hosts[host].waiting.push_back(arrived);
        }
        Ok(true)
    }

    /// Submits waiting requests, as far as the core accepts them. Returns whether it accepted any.
    pub(super) fn submit_waiting(&mut self, host: usize) -> Result<bool, SimError> {
        let mut any = false;
        while let Some(arrived) = self.hosts[host].waiting.pop_front() {
            if !self.hosts[host].serves(arrived.volume) {
                self.hosts[host].held.push(arrived);
            } else if self.submit(host, arrived)? {
                any = true;
            } else {
                self.hosts[host].waiting.push_front(arrived);
                break;
            }
        }
        Ok(any)
    }

    fn submit(&mut self, host: usize, arrived: Arrived) -> Result<bool, SimError> {
        let (volume, request) = (arrived.volume, arrived.request);
        let (first, sectors) = (request.sector, request.sectors as usize);
        let (mut oldest, mut buffer) = (Vec::new(), Buffer::Write(0));
        match request.op {
            Op::Read => {
                oldest = self.checker.begins_read(volume, first, sectors);
                buffer = Buffer::Sectors(vec![0; sectors]);
            }
            Op::Write { .. } => {
                buffer = Buffer::Write(self.checker.begins_write(volume, first, sectors));
            }
            Op::Discard | Op::WriteZeroes => self.checker.discarded(volume, first, sectors),
            Op::Flush => {}
        }
        let now = self.now_us();
        let at = &mut self.hosts[host];
        let disk = at.disk(volume).expect("a disk that is served has a number");
        let tag = at.put(buffer, Purpose::Guest(arrived, oldest));
        match at.core.with(&mut at.memory).submit(now, Request { tag, disk, ..request }) {
            Ok(()) => Ok(true),
            Err(Rejected::Busy) => {
                at.take_back(tag);
                if matches!(request.op, Op::Write { .. }) {
                    self.checker.takes_back_write(volume, first, sectors);
                }
                Ok(false)
            }
            Err(error) => Err(wrong(format!("a request is refused: {error}"))),
        }
    }

    pub(super) fn completed(
        &mut self,
        host: usize,
        tag: RequestTag,
        result: Result<(), RequestError>,
    ) -> Result<(), SimError> {
        let (buffer, purpose) = self.hosts[host].take_back(tag);
        match purpose {
            Purpose::Copy { mover, ticket, copied } => {
                let Buffer::Sectors(versions) = buffer else { unreachable!("a copy has sectors") };
                let copied = copied.filter(|_| result.is_ok());
                let copy = copied.map(|copied| (copied, to_bytes(&versions)));
                self.hosts[host].movers[mover].migration.copy_read(ticket, copy);
            }
            Purpose::Guest(arrived, oldest) => {
                result.map_err(|error| wrong(format!("a request fails: {error}")))?;
                self.check(&arrived, &oldest, buffer)?;
                self.answered(&arrived);
            }
        }
        Ok(())
    }

    /// Compares read data with the data that was written.
    fn check(&mut self, arrived: &Arrived, oldest: &[Version], buffer: Buffer) -> Result<(), SimError> {
        let (volume, first) = (arrived.volume, arrived.request.sector);
        let sectors = arrived.request.sectors as usize;
        match (arrived.request.op, buffer) {
            (Op::Read, Buffer::Sectors(found)) => {
                let checked = self.checker.ends_read(volume, first, oldest, &found);
                checked.map_err(|error| {
                    let name = &self.vms[self.vm_of[volume.0 as usize]].name;
                    let seconds = (self.now_ns - self.zero_ns) as f64 / 1e9;
                    wrong(format!("VM '{name}' reads at {seconds:.3} s what it did not write last: {error}"))
                })?;
            }
            (Op::Write { .. }, _) => self.checker.ends_write(volume, first, sectors),
            (Op::Discard | Op::WriteZeroes, _) => self.checker.discarded(volume, first, sectors),
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, arrived: &Arrived) {
        let Some(vm) = arrived.vm else { return };
        if self.vms[vm].is_closed() {
            // What the host does for a request bounds how many of them a VM issues.
            self.plan_at(self.now_ns + self.stations.host_ns(), What::Frees { vm });
        } else {
            self.vms[vm].in_flight -= 1;
        }
        if requests::kind(arrived.request.op) != IoKind::Flush {
            let stretch = match self.marks {
                1 => Some(Stretch::Before),
                2 => Some(Stretch::Ahead),
                3 => Some(Stretch::After),
                _ => None,
            };
            self.meters[vm].record(stretch, self.now_ns - arrived.time_ns + self.stations.host_ns());
        }
    }
}
