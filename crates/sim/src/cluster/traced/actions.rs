//! Carries out the actions of a core and its movers: I/O on cache devices and the origin, and messages.

use haversack_core::{Action, Event as CoreEvent, IoFailure, IoId};
use haversack_migrate::{Message, Output};
use haversack_model::{BLOCK_BYTES, DiskNo, SECTOR_BYTES};

use super::event::What;
use super::host::{Host, Purpose, host_id, place_of};
use super::world::World;
use crate::error::SimError;
use crate::latency::IoKind;
use crate::migration::link::{Direction, Parcel};
use crate::production::reads::Read;
use crate::production::requests;

/// The most copies that a disk reads each time it is driven.
const COPIES_AT_A_TIME: usize = 32;

fn bytes(sectors: u32) -> u64 {
    u64::from(sectors) * SECTOR_BYTES as u64
}

impl World<'_> {
    /// The link from a host to another.
    pub(super) fn link(&mut self, from: usize, to: usize) -> &mut Direction {
        let model = self.link;
        self.links.entry((from, to)).or_insert_with(|| Direction::new(model))
    }

    pub(super) fn message(&mut self, from: usize, to: usize, parcel: Parcel) -> Result<(), SimError> {
        let now = self.now_us();
        let host = &mut self.hosts[to];
        if let Some(mover) = host.movers.iter_mut().find(|mover| mover.id == parcel.disk) {
            let mut call = host.core.with(&mut host.memory);
            mover.migration.message(&mut call, now, host_id(from), parcel.message);
        }
        self.pump(to)
    }

    fn send(&mut self, from: usize, to: usize, volume: usize, message: Message) {
        let disk = self.hosts[from].movers[volume].id;
        self.link(from, to).push(Parcel { disk, message });
        self.depart(from, to);
    }

    pub(super) fn depart(&mut self, from: usize, to: usize) {
        let now_ns = self.now_ns;
        if let Some(departure) = self.link(from, to).depart(now_ns) {
            self.plan_at(departure.free_ns, What::LinkFree { from, to });
            self.plan_at(departure.arrives_ns, What::Arrives { from, to, parcel: departure.parcel });
        }
    }

    /// Carries out the actions of a host's core and its movers until there are none left.
    pub(super) fn pump(&mut self, host: usize) -> Result<(), SimError> {
        loop {
            while let Some(action) = self.hosts[host].core.poll() {
                self.act(host, action);
            }
            let mut is_quiet = true;
            for volume in 0..self.hosts[host].movers.len() {
                is_quiet &= !self.drive(host, volume);
            }
            if is_quiet && !self.submit_waiting(host) {
                break;
            }
        }
        self.look_at_moves()
    }

    /// Advances one side of a disk's protocol. Returns whether it did anything.
    fn drive(&mut self, host: usize, volume: usize) -> bool {
        let now = self.now_us();
        let mut any = false;
        let migration = &mut self.hosts[host].movers[volume].migration;
        if migration.is_sending()
            && let Some(to) = migration.sends_to().map(place_of)
        {
            let room = self.link(host, to).copy_room().min(COPIES_AT_A_TIME);
            any |= self.hosts[host].movers[volume].migration.send_more(now, room) > 0;
        }
        while let Some(output) = self.hosts[host].movers[volume].migration.poll() {
            any = true;
            self.put_out(host, volume, output);
        }
        any
    }

    /// Submits waiting requests, as far as their disks are served and the core accepts them. Returns whether it
    /// accepted any.
    fn submit_waiting(&mut self, host: usize) -> bool {
        let now = self.now_us();
        let at = &mut self.hosts[host];
        let mut any = false;
        let mut kept = std::collections::VecDeque::new();
        while let Some(arrived) = at.waiting.pop_front() {
            if !at.serves(arrived.volume) {
                kept.push_back(arrived);
            } else if at.submit(now, arrived) {
                any = true;
            } else {
                at.waiting.push_front(arrived);
                break;
            }
        }
        kept.into_iter().rev().for_each(|arrived| at.waiting.push_front(arrived));
        any
    }

    fn act(&mut self, host: usize, action: Action) {
        match action {
            Action::Complete { tag, result } => {
                let is_good = result.is_ok();
                match self.hosts[host].take_back(tag) {
                    Purpose::Guest(arrived) => {
                        result.unwrap_or_else(|error| unreachable!("nothing fails here: {error}"));
                        self.vms[arrived.volume].in_flight -= 1;
                        let took_ns = self.now_ns - arrived.time_ns + self.stations.host_ns();
                        self.measure.latency(arrived.volume, requests::kind(arrived.request.op), took_ns);
                    }
                    Purpose::Copy { volume, ticket, copied } => {
                        let copy = is_good.then(|| (copied, vec![0; BLOCK_BYTES]));
                        self.hosts[host].movers[volume].migration.copy_read(ticket, copy);
                    }
                }
            }
            Action::Event(CoreEvent::JobDone { job, result }) => {
                let now = self.now_us();
                let Host { core, memory, movers, .. } = &mut self.hosts[host];
                for mover in movers {
                    mover.migration.job_done(&mut core.with(memory), now, job, result);
                }
            }
            Action::Event(event) => unreachable!("nothing fails here: {event:?}"),
            Action::ReadDevice { io, device, .. } => self.device_io(host, io, device.0, IoKind::Read),
            Action::WriteDevice { io, device, .. } => self.device_io(host, io, device.0, IoKind::Write),
            Action::FlushDevice { io, device } => self.device_io(host, io, device.0, IoKind::Flush),
            Action::ReadOrigin { io, disk, sectors, .. } => {
                self.origin_io(host, io, disk, IoKind::Read, bytes(sectors));
            }
            Action::WriteOrigin { io, disk, sectors, .. } => {
                self.origin_io(host, io, disk, IoKind::Write, bytes(sectors));
            }
            // Zeroes and discards move no data.
            Action::ZeroOrigin { io, disk, .. } => self.origin_io(host, io, disk, IoKind::Write, 0),
            Action::FlushOrigin { io, disk } => self.origin_io(host, io, disk, IoKind::Flush, 0),
            Action::ReadPeer { io, disk, block, mask, is_late } => {
                let now = self.now_us();
                let mover = &mut self.hosts[host].movers[usize::from(disk.0)];
                mover.migration.fetch(now, io, block, mask, is_late);
            }
        }
    }

    fn device_io(&mut self, host: usize, io: IoId, device: u8, kind: IoKind) {
        let bytes = match kind {
            IoKind::Flush => 0,
            _ => self.hosts[host].core.pieces(io).map(|piece| piece.len as u64).sum(),
        };
        let station = host * self.table.devices as usize + usize::from(device);
        let done_ns = self.stations.device(self.now_ns, station, kind, bytes);
        let read = (kind == IoKind::Read).then_some(Read { since_ns: self.now_ns, origin_of: None });
        self.plan_at(done_ns, What::IoDone { host, io, read });
    }

    fn origin_io(&mut self, host: usize, io: IoId, disk: DiskNo, kind: IoKind, bytes: u64) {
        let done_ns = self.stations.origin_from(host, self.now_ns, kind, bytes);
        let read = Read { since_ns: self.now_ns, origin_of: Some(disk) };
        self.plan_at(done_ns, What::IoDone { host, io, read: (kind == IoKind::Read).then_some(read) });
    }

    fn put_out(&mut self, host: usize, volume: usize, output: Output) {
        let now = self.now_us();
        let disk = DiskNo(volume as u16);
        match output {
            Output::Send(to, message) => self.send(host, place_of(to), volume, message),
            Output::ReadCopy(ticket) => {
                let at = &mut self.hosts[host];
                let nothing = haversack_core::Copied { mask: 0, reused: false };
                let tag = at.put(Purpose::Copy { volume, ticket, copied: nothing });
                match ticket.read(&mut at.core.with(&mut at.memory), now, tag, disk) {
                    Ok(Some(copied)) => at.set_copied(tag, copied),
                    Ok(None) | Err(_) => {
                        at.take_back(tag);
                        at.movers[volume].migration.copy_read(ticket, None);
                    }
                }
            }
            Output::TakeCopy { block, copied, .. } => {
                let at = &mut self.hosts[host];
                let tag = haversack_core::RequestTag(u64::MAX);
                // An error says that the disk is no longer expected; without room there is just no copy.
                let _ = at.core.with(&mut at.memory).take_copy(now, tag, disk, block, copied);
            }
            Output::KeepCopy { .. } => unreachable!("no disk here has a replica"),
            Output::Fetched { io, .. } => {
                let at = &mut self.hosts[host];
                at.core.with(&mut at.memory).complete(now, io, Ok(()));
            }
            Output::FetchFailed { io } => {
                let at = &mut self.hosts[host];
                at.core.with(&mut at.memory).complete(now, io, Err(IoFailure::Error));
            }
        }
    }
}
